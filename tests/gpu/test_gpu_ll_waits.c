/* SPDX-License-Identifier: Apache-2.0 */
/* Every wait of a kernel of low-latency mode, given up: for a header, a free slot, messages, rows of slots and of sums,
 * weights. The error says what had come of how much.
 *
 * Rank 0 is real. Rank 1 has a buffer and makes no call: the test writes into rank 0's memory what rank 1 would have
 * written there until it stopped. */
#include "ep/harness/ranks.h"
#include "ep/low_latency/ll.h"
#include "ep/low_latency/trial.h"
#include "exec/cuda/low_latency/ll_gpu.h"
#include "gpu/mirror_ll.h"
#include "gpu/serves.h"
#include "gpu/worker.h"
#include "oracle/unit.h"
#include <pthread.h>
#include <string.h>

enum { RANKS = 2, GONE = 1, TOKENS = 6, HIDDEN = 16, EXPERTS = 4, LOCALS = EXPERTS / RANKS, CAME = 2, PROMISED = 5 };
_Static_assert(TOKENS > LL_EXACT_WORD_TOKENS, "exact combines of TOKENS have their rows by flags");
#define SHORT_MS 2000

/* Every token goes to every expert. */
typedef struct scene {
    const lowlat_traffic *traffic;
    const lowlat_answers *exact, *reduced;
    expar_ll *ll; /* rank 0's */
} scene;

typedef struct stage_of_two {
    void (*trial)(const scene *s);
    scene scene;
    pthread_barrier_t both; /* ranks are threads */
} stage_of_two;

/* ---- what rank 1 has written ------------------------------------------------------------------------------------- */

/* Rank 0's thread writes for it, before its call: no kernel runs then. */
static void write_there(const scene *s, uint64_t offset, const void *from, size_t bytes)
{
    const gpu_core *core = &ll_gpu_of(s->ll->base.exec)->core;
    CHECK_OK(CUDA_CALL(MemcpyHtoD, device_heap_at(core->heap, core->place.buffer + offset), from, bytes));
    CHECK_OK(cuda_synchronize());
}

static void write_flag(const scene *s, uint64_t offset, uint64_t epoch)
{
    const uint64_t word = ll_word(epoch, 1);
    write_there(s, offset, &word, sizeof word);
}

/* A row of a small batch. */
static void write_row(const scene *s, uint64_t offset)
{
    uint64_t words[HIDDEN / 2];
    for (int i = 0; i < HIDDEN / 2; i++)
        words[i] = ll_word(1, 0);
    write_there(s, offset, words, sizeof words);
}

/* All words of the header but the last so many. */
static void write_unit(const scene *s, ll_kind kind, uint64_t epoch, const ll_form *form, int32_t messages,
                       int32_t lacking)
{
    const ll_gpu *gpu = ll_gpu_of(s->ll->base.exec);
    const int32_t words = LL_HEADER_COUNTS + (kind == LL_DISPATCH ? LOCALS : 0);
    uint64_t unit[LL_HEADER_COUNTS + LOCALS] = {0};
    for (int32_t w = 0; w < words; w++)
        unit[w] = ll_word(epoch, 0);
    unit[LL_HEADER_TAG] = ll_word(epoch, ll_form_tag(form));
    unit[LL_HEADER_ROUTE] = ll_word(epoch, form->route);
    unit[LL_HEADER_MESSAGES] = ll_word(epoch, (uint32_t)messages);
    write_there(s, ll_header_at(&gpu->space, kind, GONE, epoch), unit, (size_t)(words - lacking) * sizeof *unit);
}

/* Messages without rows. */
static void write_messages(const scene *s, int32_t count)
{
    const ll_gpu *gpu = ll_gpu_of(s->ll->base.exec);
    for (int32_t m = 0; m < count; m++) {
        int32_t header[2 + 3 * EXPERTS] = {m, 0, -1, -1, -1, -1};
        write_there(s, ll_message_at(&gpu->space, &gpu->shape, GONE, 1, m), header, sizeof header);
        write_flag(s, ll_message_flag_at(&gpu->space, &gpu->shape, GONE, 1, m), 1);
    }
}

static ll_form dispatch_form(const scene *s)
{
    return (ll_form){.dtype = EXPAR_BF16, .weights = s->traffic->with_weights, .topk = EXPERTS};
}

static ll_form combine_form(const scene *s, expar_ll_sum sum)
{
    return (ll_form){.dtype = EXPAR_BF16,
                     .sum = (int32_t)sum,
                     .weights = sum == EXPAR_LL_SUM_REDUCED && !s->traffic->with_weights,
                     .topk = EXPERTS,
                     .route = ll_stamp(1)};
}

static void open_dispatch(const scene *s, uint64_t epoch, int32_t messages, int32_t lacking)
{
    const ll_form form = dispatch_form(s);
    write_unit(s, LL_DISPATCH, epoch, &form, messages, lacking);
}

/* ---- what rank 0 does -------------------------------------------------------------------------------------------- */

static const lowlat_choice plain = {0}, hooked = {.hook = true};

/* One that goes well, or comes to the wait and says so. */
static void dispatch(const scene *s, const lowlat_choice *choice, lowlat_call *call, const char *wait, const char *due)
{
    lowlat_prepare_dispatch(call, s->ll, s->traffic, 0, choice);
    expar_status status = lowlat_start(call);
    if (status == EXPAR_OK) status = lowlat_end(call);
    CHECK_STATUS(due ? EXPAR_ERR_PEER : EXPAR_OK, status);
    if (due) CHECK_TEXT("low-latency dispatch: ", "timed out after 2000 ms", wait, due);
}

/* The expected error of a wait. */
typedef struct told_wait {
    const char *wait, *due;
} told_wait;

static bool tells(const told_wait *told)
{
    return strstr(expar_last_error(), told->wait) && strstr(expar_last_error(), told->due);
}

/* It comes to either of the waits. */
static void combine(const scene *s, const lowlat_answers *back, told_wait one, told_wait other)
{
    const ll_form form = combine_form(s, back->sum);
    lowlat_call there, call;
    dispatch(s, &plain, &there, NULL, NULL);
    write_unit(s, LL_COMBINE, 1, &form, 0, 0);
    lowlat_prepare_combine(&call, s->ll, s->traffic, back, 0, &plain, there.there.handle);
    CHECK_STATUS(EXPAR_ERR_PEER, lowlat_start(&call));
    CHECK_TEXT("low-latency combine: ", "timed out after 2000 ms");
    CHECK(tells(&one) || tells(&other), "\"%s\" does not say \"%s\"", expar_last_error(), one.due);
    lowlat_clean(&call);
    lowlat_clean(&there);
}

static void miss_unit(const scene *s)
{
    lowlat_call call;
    open_dispatch(s, 1, 0, 1);
    dispatch(s, &plain, &call, "no message header from rank 1", "; message headers of rank 1: 0 of 1");
    lowlat_clean(&call);
}

static void miss_messages(const scene *s)
{
    lowlat_call call;
    write_messages(s, CAME);
    open_dispatch(s, 1, PROMISED, 0);
    dispatch(s, &plain, &call, "no row from rank 1", "; rows of rank 1: 2 of 5");
    lowlat_clean(&call);
}

/* With a hook, so that nobody waits for the header yet. */
static void miss_half(const scene *s)
{
    lowlat_call calls[3];
    for (uint64_t epoch = 1; epoch <= 3; epoch++) {
        if (epoch < 3) open_dispatch(s, epoch, 0, 0);
        dispatch(s, &hooked, &calls[epoch - 1], "no free slot from rank 1",
                 epoch < 3 ? NULL : "; acknowledgements of rank 1: 0 of 1");
    }
    for (int i = 0; i < 3; i++)
        lowlat_clean(&calls[i]);
}

/* Data of rank 1 for the token: a row a slot, or a sum; in words, or by flags with no data after them. */
static void write_rows_of(const scene *s, int32_t token, expar_ll_sum sum)
{
    const ll_gpu *gpu = ll_gpu_of(s->ll->base.exec);
    const int64_t *idx = s->traffic->inputs[0].topk_idx + token * EXPERTS;
    const bool words = sum == EXPAR_LL_SUM_REDUCED || s->traffic->inputs[0].num_tokens <= LL_EXACT_WORD_TOKENS;
    for (int32_t k = 0; k < EXPERTS; k++) {
        if (idx[k] / LOCALS != GONE) continue;
        const int32_t place = sum == EXPAR_LL_SUM_EXACT ? k : idx[0] / LOCALS != GONE;
        if (words)
            write_row(s, ll_word_row_at(&gpu->space, &gpu->shape, 1, token, place));
        else
            write_flag(s, ll_row_flag_at(&gpu->space, ll_place_number(&gpu->space, &gpu->shape, 1, 0, token, place)),
                       1);
    }
}

/* Those of the first tokens have come. */
static void miss_rows(const scene *s, const lowlat_answers *back, const char *due)
{
    open_dispatch(s, 1, 0, 0);
    for (int32_t token = 0; token < CAME; token++)
        write_rows_of(s, token, back->sum);
    const told_wait rows = {"no row from rank 1", due};
    combine(s, back, rows, rows);
}

static void miss_slots(const scene *s)
{
    miss_rows(s, s->exact, "; rows of rank 1: 4 of 12");
}

static void miss_slots_in_words(const scene *s)
{
    miss_rows(s, s->exact, "; rows of rank 1: 4 of 8");
}

static void miss_sums(const scene *s)
{
    miss_rows(s, s->reduced, "; rows of rank 1: 2 of 6");
}

static void miss_weights(const scene *s)
{
    const ll_gpu *gpu = ll_gpu_of(s->ll->base.exec);
    write_messages(s, PROMISED);
    open_dispatch(s, 1, PROMISED, 0);
    for (int32_t m = 0; m < CAME; m++)
        write_flag(s, ll_weight_flag_at(&gpu->space, &gpu->shape, GONE, 1, m), 1);
    /* Blocks that send wait for weights, others for rows already. */
    combine(s, s->reduced, (told_wait){"no weights from rank 1", "; weights of rank 1: 2 of 5"},
            (told_wait){"no row from rank 1", "; rows of rank 1: 0 of 6"});
}

/* ---- both -------------------------------------------------------------------------------------------------------- */

static void trial(expar_group *group, void *shared)
{
    stage_of_two *stage = shared;
    expar_ll_config config = EXPAR_LL_CONFIG_INIT;
    expar_ll *ll = NULL;
    config.max_tokens = TOKENS;
    config.hidden = HIDDEN;
    config.max_topk = config.num_experts = EXPERTS;
    if (!CHECK_OK(mirror_ll_create(group, &config, &ll))) return;
    CHECK_OK(expar_group_barrier(group));
    group->boot->late_limit_ms = SHORT_MS;
    if (expar_group_rank(group) == 0) {
        stage->scene.ll = ll;
        stage->trial(&stage->scene);
        serves_context(buffer_find(ll)->device);
    }
    pthread_barrier_wait(&stage->both);
    group->boot->late_limit_ms = 0;
    CHECK_OK(mirror_ll_destroy(ll));
}

/* ahead: the dispatch has no weights. */
static void run_batch(void (*of)(const scene *s), int64_t batch, bool ahead)
{
    const int64_t num_tokens[RANKS] = {batch, batch};
    random_source random = random_start(8);
    const lowlat_plan plan = {.num_ranks = RANKS,
                              .max_tokens = TOKENS,
                              .hidden = HIDDEN,
                              .topk = EXPERTS,
                              .num_experts = EXPERTS,
                              .with_weights = !ahead,
                              .num_tokens = num_tokens};
    lowlat_traffic *t = lowlat_traffic_make(&plan, &random);
    lowlat_answers *exact = lowlat_answers_make(t, ORACLE_BF16, EXPAR_LL_SUM_EXACT, &random);
    lowlat_answers *reduced = lowlat_answers_make(t, ORACLE_BF16, EXPAR_LL_SUM_REDUCED, &random);
    stage_of_two stage = {.trial = of, .scene = {.traffic = t, .exact = exact, .reduced = reduced}};
    const ranks_plan ranks = {.kind = RANKS_THREADS, .size = RANKS, .heap_bytes = (size_t)16 << 20};
    pthread_barrier_init(&stage.both, NULL, RANKS);
    const bool passed = ranks_run(&ranks, trial, &stage);
    pthread_barrier_destroy(&stage.both);
    lowlat_answers_free(reduced, t);
    lowlat_answers_free(exact, t);
    lowlat_traffic_free(t);
    assert_true(passed);
}

static void run(void (*of)(const scene *s), bool ahead)
{
    run_batch(of, TOKENS, ahead);
}

static void test_unit(void **state)
{
    (void)state;
    run(miss_unit, false);
}

static void test_messages(void **state)
{
    (void)state;
    run(miss_messages, false);
}

static void test_half(void **state)
{
    (void)state;
    run(miss_half, false);
}

static void test_slots(void **state)
{
    (void)state;
    run(miss_slots, false);
}

static void test_slots_in_words(void **state)
{
    (void)state;
    run_batch(miss_slots_in_words, LL_EXACT_WORD_TOKENS, false);
}

static void test_sums(void **state)
{
    (void)state;
    run(miss_sums, false);
}

static void test_weights(void **state)
{
    (void)state;
    run(miss_weights, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_unit),           cmocka_unit_test(test_messages),
                                       cmocka_unit_test(test_half),           cmocka_unit_test(test_slots),
                                       cmocka_unit_test(test_slots_in_words), cmocka_unit_test(test_sums),
                                       cmocka_unit_test(test_weights)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers that get their shape later, from each rank by itself. A rank that lives and stays away is masked at the late
 * limit of the buffer, though it has never laid anything out, and is in again after a clean. Shapes that differ, and
 * bad arguments. test_ll_masks and others show with EXPAR_TEST_RESERVED=1 that calls are as in other buffers. */
#include "ep/harness/check.h"
#include "ep/harness/stage.h"
#include "ep/low_latency/masked.h"
#include "ep/low_latency/trial.h"
#include "oracle/unit.h"
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static ranks_kind kind;

enum { RANKS = 4, ROUNDS = 4, LATE_MS = 3000, MOST_NAPS = 60000 };

typedef struct reserve_show {
    lowlat_plan plan;
    int64_t tokens[RANKS];
    masked_traffic *rounds[ROUNDS];
    int32_t victim;
    _Atomic int32_t *gone_on; /* shared by all ranks: of the others, without the victim */
} reserve_show;

static void run_show(ranks_body body)
{
    reserve_show show = {.victim = 1};
    random_source random = random_start(77);
    const ranks_plan plan = {.kind = kind, .size = RANKS};
    show.plan = masked_plan(RANKS, show.tokens, &random);
    show.gone_on = mmap(NULL, sizeof *show.gone_on, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(show.gone_on != MAP_FAILED);
    for (int i = 0; i < ROUNDS; i++)
        show.rounds[i] = masked_traffic_make(&show.plan, show.victim, EXPAR_LL_SUM_EXACT, 900 + (uint64_t)i);
    const bool passed = ranks_run(&plan, body, &show);
    for (int i = 0; i < ROUNDS; i++)
        masked_traffic_free(show.rounds[i]);
    munmap(show.gone_on, sizeof *show.gone_on);
    assert_true(passed);
}

/* The victim lives meanwhile, and does nothing of the library's. */
static bool await_others(const reserve_show *show)
{
    const struct timespec moment = {0, 1000000};
    for (int i = 0; i < MOST_NAPS && atomic_load(show->gone_on) < RANKS - 1; i++)
        nanosleep(&moment, NULL);
    return CHECK(atomic_load(show->gone_on) == RANKS - 1, "the others do not go on");
}

static expar_ll *make_reserve(const reserve_show *show, expar_group *group, int64_t late_ms)
{
    expar_ll_config config = masked_config(&show->plan);
    size_t bytes = 0;
    expar_ll *ll = NULL;
    config.late_limit_ms = late_ms;
    CHECK_OK(expar_ll_get_buffer_size(&config, RANKS, &bytes));
    const expar_ll_config reserve = masked_reserve(&config, bytes);
    return CHECK_OK(expar_ll_create(group, &reserve, &ll)) ? ll : NULL;
}

static bool lay_out(const reserve_show *show, expar_ll *ll)
{
    const expar_ll_config config = masked_config(&show->plan);
    int32_t topk = 0;
    return CHECK_OK(expar_ll_set_shape(ll, &config, &topk)) && CHECK(topk == config.max_topk, "K is %d", (int)topk);
}

static bool trial_view(expar_ll *ll, const masked_traffic *m, masked_view view, int32_t rank)
{
    const lowlat_choice plain = {0};
    return lowlat_round_trip(ll, m->there[view], &m->back[view], 1, rank, &plain);
}

static bool check_masks(expar_ll *ll, const uint8_t *wanted)
{
    int32_t got[RANKS] = {9, 9, 9, 9};
    const expar_tensor status = expar_tensor_1d(got, EXPAR_I32, RANKS);
    bool right = CHECK_OK(expar_ll_mask_query(ll, &status, NULL));
    for (int32_t r = 0; r < RANKS && right; r++)
        right = CHECK(got[r] == (wanted ? wanted[r] : 0), "rank %d is %d", (int)r, (int)got[r]);
    return right;
}

/* ---- a rank that stays away -------------------------------------------------------------------------------------- */

/* The others go on without it. */
static bool go_on_without(const reserve_show *show, expar_ll *ll, int32_t rank)
{
    const bool good = lay_out(show, ll) && trial_view(ll, show->rounds[0], MASKED_VICTIM, rank) &&
                      trial_view(ll, show->rounds[1], MASKED_VICTIM, rank) &&
                      check_masks(ll, masked_of(show->rounds[0], rank));
    atomic_fetch_add(show->gone_on, 1);
    return good;
}

/* All are in again. */
static bool end_together(const reserve_show *show, expar_ll *ll, int32_t rank)
{
    return CHECK_OK(expar_ll_mask_clean(ll)) && check_masks(ll, NULL) &&
           trial_view(ll, show->rounds[2], MASKED_NOBODY, rank) &&
           trial_view(ll, show->rounds[3], MASKED_NOBODY, rank) && CHECK_OK(expar_ll_destroy(ll));
}

/* It makes its first call later, and finds itself masked. */
static void trial_late_comer(expar_group *group, void *shared)
{
    const reserve_show *show = shared;
    const int32_t rank = expar_group_rank(group);
    expar_ll *ll = make_reserve(show, group, LATE_MS);
    if (!ll) return;
    bool good = rank != show->victim
                    ? go_on_without(show, ll, rank)
                    : await_others(show) && lay_out(show, ll) && trial_view(ll, show->rounds[0], MASKED_OTHERS, rank) &&
                          check_masks(ll, masked_of(show->rounds[0], rank));
    if (good) end_together(show, ll, rank);
}

/* Its first call is the clean, by which it is in again, without a shape yet. */
static void trial_cleaned(expar_group *group, void *shared)
{
    const reserve_show *show = shared;
    const int32_t rank = expar_group_rank(group);
    expar_ll *ll = make_reserve(show, group, LATE_MS);
    if (!ll) return;
    bool good = rank == show->victim ? await_others(show) : go_on_without(show, ll, rank);
    good = good && CHECK_OK(expar_ll_mask_clean(ll)) && check_masks(ll, NULL);
    if (good && rank == show->victim) good = lay_out(show, ll);
    if (good) end_together(show, ll, rank);
}

/* The others clean, before any of them has a shape, and it does not come. */
static void trial_no_clean(expar_group *group, void *shared)
{
    const reserve_show *show = shared;
    const int32_t rank = expar_group_rank(group);
    expar_ll *ll = make_reserve(show, group, LATE_MS);
    if (!ll) return;
    bool good = rank == show->victim
                    ? await_others(show)
                    : CHECK_OK(expar_ll_mask_clean(ll)) && check_masks(ll, masked_of(show->rounds[0], rank)) &&
                          go_on_without(show, ll, rank);
    if (good && rank == show->victim) good = lay_out(show, ll);
    if (good) end_together(show, ll, rank);
}

static void test_late_comer(void **state)
{
    (void)state;
    run_show(trial_late_comer);
}

static void test_cleaned(void **state)
{
    (void)state;
    run_show(trial_cleaned);
}

static void test_no_clean(void **state)
{
    (void)state;
    run_show(trial_no_clean);
}

/* A rank that is in calls after masks that a caller has set before any shape. */
static void trial_masked_first(expar_group *group, void *shared)
{
    const reserve_show *show = shared;
    const int32_t rank = expar_group_rank(group);
    expar_ll *ll = make_reserve(show, group, LATE_MS);
    if (!ll) return;
    bool good = rank == show->victim || CHECK_OK(expar_ll_mask_set(ll, show->victim, 1));
    good = good && CHECK_OK(expar_group_barrier(group)) && lay_out(show, ll) &&
           trial_view(ll, show->rounds[0], rank == show->victim ? MASKED_OTHERS : MASKED_VICTIM, rank) &&
           check_masks(ll, masked_of(show->rounds[0], rank));
    if (good) end_together(show, ll, rank);
}

static void test_masked_first(void **state)
{
    (void)state;
    run_show(trial_masked_first);
}

/* Some abandon it without a shape, or with one that no call has had. */
static void trial_abandoned(expar_group *group, void *shared)
{
    const reserve_show *show = shared;
    const int32_t rank = expar_group_rank(group);
    expar_ll *ll = make_reserve(show, group, LATE_MS), *unused = make_reserve(show, group, LATE_MS);
    if (!ll || !unused) return;
    CHECK_OK(expar_ll_destroy(unused));
    if (rank == show->victim) {
        CHECK_OK(expar_ll_abandon(ll));
    } else if (lay_out(show, ll) && trial_view(ll, show->rounds[0], MASKED_VICTIM, rank)) {
        CHECK_OK(expar_ll_destroy(ll));
    }
    CHECK_OK(expar_group_barrier(group));
}

static void test_abandoned(void **state)
{
    (void)state;
    run_show(trial_abandoned);
}

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

/* Ranks that have laid out different shapes write nothing to each other; all are told, each time. */
static void trial_mismatch(expar_group *group, void *shared)
{
    const reserve_show *show = shared;
    const int32_t rank = expar_group_rank(group);
    expar_ll_config config = masked_config(&show->plan);
    const lowlat_choice plain = {0};
    expar_ll *ll = make_reserve(show, group, RANKS_TIMEOUT_MS);
    lowlat_call call;
    if (!ll) return;
    if (rank == show->victim) config.sums = 1 << EXPAR_LL_SUM_EXACT;
    if (!CHECK_OK(expar_ll_set_shape(ll, &config, NULL))) return;
    for (int i = 0; i < 2; i++) {
        lowlat_prepare_dispatch(&call, ll, show->rounds[0]->there[MASKED_NOBODY], rank, &plain);
        CHECK_STATUS(EXPAR_ERR_MISMATCH, lowlat_start(&call));
        CHECK_TEXT("sums of the buffer's shape", rank == show->victim ? "is 3 on rank" : "is 1 on rank 1",
                   "expected the same");
        lowlat_clean(&call);
    }
    CHECK_OK(expar_ll_destroy(ll));
}

static void test_mismatch(void **state)
{
    (void)state;
    run_show(trial_mismatch);
}

/* K is the largest that fits, whatever the caller asks for at least. */
static void trial_sizes(expar_group *group, void *shared)
{
    const reserve_show *show = shared;
    expar_ll_config config = masked_config(&show->plan);
    size_t bytes = 0;
    expar_ll *ll = NULL;
    int32_t topk = -1;
    config.max_topk = 7;
    CHECK_OK(expar_ll_get_buffer_size(&config, RANKS, &bytes));
    const expar_ll_config reserve = masked_reserve(&config, bytes);
    if (!CHECK_OK(expar_ll_create(group, &reserve, &ll))) return;
    config.max_topk = 11;
    CHECK_STATUS(EXPAR_ERR_LIMIT, expar_ll_set_shape(ll, &config, &topk));
    CHECK_TEXT("expar_ll_set_shape", "max_topk 11", "of the reserve");
    CHECK(topk == -1, "K is %d", (int)topk);
    config.max_topk = 2;
    if (!CHECK_OK(expar_ll_set_shape(ll, &config, &topk))) return;
    CHECK(topk >= 7 && topk < 11, "K is %d", (int)topk);
    config.max_topk = topk;
    CHECK_OK(expar_ll_get_buffer_size(&config, RANKS, &bytes));
    CHECK(bytes <= reserve.reserve_bytes + 4096, "%zu bytes in %zu", bytes, reserve.reserve_bytes);
    CHECK(trial_view(ll, show->rounds[0], MASKED_NOBODY, expar_group_rank(group)), "calls");
    CHECK_OK(expar_ll_destroy(ll));
}

static void test_sizes(void **state)
{
    (void)state;
    run_show(trial_sizes);
}

/* ---- bad arguments ----------------------------------------------------------------------------------------------- */

static void check_configs(expar_group *group, const expar_ll_config *shape)
{
    const expar_ll_config good = masked_reserve(shape, 1 << 20);
    expar_ll_config bad = good;
    expar_ll *ll = NULL;
    bad.num_experts = 12;
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_ll_create(group, &bad, &ll));
    CHECK_TEXT("config.num_experts is 12", "expected 0 with reserve_bytes");
    bad = good;
    bad.masking = 0;
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_ll_create(group, &bad, &ll));
    CHECK_TEXT("config.masking is 0", "reserve_bytes");
    bad = good;
    bad.reserve_bytes = SIZE_MAX;
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_ll_create(group, &bad, &ll));
    CHECK_TEXT("config.reserve_bytes is", "at most");
    bad = good;
    bad.late_limit_ms = -1;
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_ll_create(group, &bad, &ll));
    CHECK_TEXT("config.late_limit_ms is -1");
    bad = good;
    bad.reserve_bytes += (size_t)expar_group_rank(group) * 4096;
    CHECK_STATUS(EXPAR_ERR_MISMATCH, expar_ll_create(group, &bad, &ll));
    CHECK_TEXT("config.reserve_bytes");
    bad = good;
    bad.unmapped = 1;
    CHECK_STATUS(EXPAR_ERR_UNSUPPORTED, expar_ll_create(group, &bad, &ll));
    CHECK_TEXT("config.reserve_bytes is given", "network");
}

/* Before it has a shape, and after that. */
static void check_calls(const reserve_show *show, expar_ll *ll, int32_t rank)
{
    expar_ll_config shape = masked_config(&show->plan);
    const lowlat_choice plain = {0};
    expar_tensor x;
    lowlat_call call;
    lowlat_prepare_dispatch(&call, ll, show->rounds[0]->there[MASKED_NOBODY], rank, &plain);
    CHECK_STATUS(EXPAR_ERR_STATE, lowlat_start(&call));
    CHECK_TEXT("expar_ll_dispatch", "has no shape", "expar_ll_set_shape");
    lowlat_clean(&call);
    CHECK_STATUS(EXPAR_ERR_STATE, expar_ll_get_combine_buffer(ll, NULL, EXPAR_BF16, &x));
    CHECK_TEXT("expar_ll_get_combine_buffer", "has no shape");
    shape.hidden = 12;
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_ll_set_shape(ll, &shape, NULL));
    CHECK_TEXT("expar_ll_set_shape", "hidden is 12");
    CHECK_STATUS(EXPAR_ERR_NULL, expar_ll_set_shape(ll, NULL, NULL));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_ll_set_shape(NULL, &shape, NULL));
    shape.hidden = 128;
    lay_out(show, ll);
    CHECK_STATUS(EXPAR_ERR_STATE, expar_ll_set_shape(ll, &shape, NULL));
    CHECK_TEXT("expar_ll_set_shape", "has its shape", "max_tokens 12");
}

static void trial_bad(expar_group *group, void *shared)
{
    const reserve_show *show = shared;
    const int32_t rank = expar_group_rank(group);
    const expar_ll_config shape = masked_config(&show->plan);
    expar_ll *usual = NULL;
    check_configs(group, &shape);
    expar_ll *ll = make_reserve(show, group, LATE_MS);
    if (!ll || !CHECK_OK(expar_ll_create(group, &shape, &usual))) return;
    CHECK_STATUS(EXPAR_ERR_STATE, expar_ll_set_shape(usual, &shape, NULL));
    CHECK_TEXT("expar_ll_set_shape", "reserve_bytes was 0");
    CHECK_OK(expar_ll_destroy(usual));
    check_calls(show, ll, rank);
    CHECK(trial_view(ll, show->rounds[0], MASKED_NOBODY, rank), "calls");
    CHECK_OK(expar_ll_destroy(ll));
}

static void test_bad(void **state)
{
    (void)state;
    run_show(trial_bad);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_late_comer),   cmocka_unit_test(test_cleaned),   cmocka_unit_test(test_no_clean),
        cmocka_unit_test(test_masked_first), cmocka_unit_test(test_abandoned), cmocka_unit_test(test_mismatch),
        cmocka_unit_test(test_sizes),        cmocka_unit_test(test_bad),
    };
    kind = stage_kind(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

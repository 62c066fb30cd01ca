/* SPDX-License-Identifier: Apache-2.0 */
/* Every wait of a kernel after the headers, given up: for an advertisement, the end of rows, a free slot, a row.
 *
 * Rank 0 is real. Rank 1 has a buffer and makes no call: the test writes into rank 0's memory what rank 1 would have
 * written there until it stopped. Then rank 0 calls, and must say what it waited for, of whom, what it saw and what it
 * expected; the GPU serves on. With EXPAR_TEST_PLAIN=1 calls have no event, and what went wrong while rows moved is
 * told by the next call. */
#include "ep/harness/stage.h"
#include "ep/normal/normal.h"
#include "exec/cuda/normal/normal_gpu.h"
#include "gpu/mirror.h"
#include "gpu/serves.h"
#include "gpu/worker.h"
#include "oracle/unit.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHORT_MS 1000
#define SLOTS    2
#define TOKENS   12
#define HIDDEN   64
#define TOPK     3
#define EXPERTS  6
/* Rows of rank 1's results, and the rest of them after that, in its pool. */
#define REST_OFFSET ((uint64_t)1 << 20)

/* How far rank 1 comes. */
typedef struct stop {
    const char *wait;        /* of rank 0, as it is told */
    bool combines;           /* it stops in the combine, else in the dispatch before it */
    expar_ep_path path;      /* of rank 0's call in which it stops */
    ep_mode mode;            /* how it takes its rows, or gives them; NONE: it has only sent its header */
    bool is_done;            /* it has said that it is through with its rows */
    uint32_t put;            /* rows that it has put into the one to rank 0 */
    uint32_t seen, expected; /* values of the word that rank 0 waits for */
} stop;

typedef struct scene {
    const traffic *traffic;
    stop stop;
    pthread_barrier_t both; /* ranks are threads */
} scene;

/* ---- what rank 1 has written ------------------------------------------------------------------------------------- */

/* Rank 0's thread writes for it, before its call: no kernel runs then. */
static void write_word(const expar_ep *ep, uint64_t offset, const void *from, size_t bytes)
{
    CHECK_OK(CUDA_CALL(
        MemcpyHtoD, device_heap_at(gpu_of(ep->base.exec)->core.heap, gpu_of(ep->base.exec)->core.place.buffer + offset),
        from, bytes));
    CHECK_OK(cuda_synchronize());
}

static uint32_t next_epoch(const expar_ep *ep)
{
    uint32_t epoch = 0;
    const gpu_state *state = gpu_of(ep->base.exec)->core.place.state;
    CHECK_OK(CUDA_CALL(MemcpyDtoH, &epoch, (cu_address)(uintptr_t)&state->epoch, sizeof epoch));
    return epoch + 1;
}

static int32_t ranks_of(const expar_ep *ep)
{
    return ep->shape.ranks;
}

/* Rows at rank 1: all that there can be. */
static ep_advert advert_of(const expar_ep *ep, ep_mode mode)
{
    const uint64_t pool = gpu_of(ep->base.exec)->core.place.buffer + gpu_of(ep->base.exec)->space.pool;
    return (ep_advert){.x_offset = pool,
                       .idx_offset = pool + REST_OFFSET,
                       .weights_offset = pool + 2 * REST_OFFSET,
                       .scales_offset = pool + 3 * REST_OFFSET,
                       .x_pitch_bytes = HIDDEN * 2,
                       .weights_pitch_bytes = TOPK * 4,
                       .rows = 2 * TOKENS,
                       .mode = (int32_t)mode};
}

/* With the counts of rank 1's tokens; it advertises no space. */
static void say_header(const expar_ep *ep, const traffic *t, uint32_t epoch, const ep_form *form,
                       const ep_advert *advert)
{
    const ep_space *space = &gpu_of(ep->base.exec)->space;
    int32_t ranks = ranks_of(ep), channels = ep->shape.channels, experts[EXPERTS];
    int32_t *prefix = calloc((size_t)(ranks * channels), sizeof *prefix);
    uint8_t *bytes = calloc(1, space->opening_bytes);
    if (!prefix || !bytes) abort();
    ep_header *header = (ep_header *)(void *)bytes;
    header->form = *form;
    header->advert = *advert;
    header->flag = ep_word(epoch, 1);
    oracle_channel_prefix(&t->job, 1, channels, prefix);
    memcpy(header + 1, prefix, (size_t)channels * sizeof *prefix);
    oracle_tokens_per_expert(&t->job, 1, experts);
    memcpy((int32_t *)(header + 1) + channels, experts, (size_t)ep->shape.local_experts * sizeof *experts);
    oracle_tokens_per_rank(&t->job, 1, (int32_t *)(void *)(bytes + space->header_sent));
    write_word(ep, ep_header_at(space, ranks, epoch, 1), bytes, space->opening_bytes);
    free(prefix);
    free(bytes);
}

static void reply(const expar_ep *ep, uint32_t epoch, ep_mode mode)
{
    ep_reply record;
    memset(&record, 0, sizeof record);
    record.advert = advert_of(ep, mode);
    record.flag = ep_word(epoch, 1);
    write_word(ep, ep_reply_at(&gpu_of(ep->base.exec)->space, ranks_of(ep), epoch, 1), &record, sizeof record);
}

static void say_done(const expar_ep *ep, uint32_t epoch)
{
    const uint64_t word = ep_word(epoch, 1);
    write_word(ep, ep_completion_at(&gpu_of(ep->base.exec)->space, ranks_of(ep), epoch, 1), &word, sizeof word);
}

static void move_rings(const expar_ep *ep, uint32_t epoch, const stop *s)
{
    const uint64_t put = ep_word(epoch, s->put);
    if (s->put) write_word(ep, ep_tail_at(&gpu_of(ep->base.exec)->space, ranks_of(ep), 0, 1), &put, sizeof put);
}

static void trial_dispatch_of_peer(const expar_ep *ep, const traffic *t, const stop *s)
{
    const ep_form form = {.kind = EP_DISPATCH,
                          .hidden = HIDDEN,
                          .dtype = EXPAR_BF16,
                          .topk = TOPK,
                          .experts = EXPERTS,
                          .idx_dtype = EXPAR_I32};
    const ep_advert none = {0};
    uint32_t epoch = next_epoch(ep);
    say_header(ep, t, epoch, &form, &none);
    if (s->mode != EP_MODE_NONE) reply(ep, epoch, s->mode);
    if (s->is_done) say_done(ep, epoch);
    move_rings(ep, epoch, s);
}

static void trial_combine_of_peer(const expar_ep *ep, const traffic *t, const stop *s, const expar_ep_handle *handle)
{
    const ep_form form = {.kind = EP_COMBINE,
                          .hidden = HIDDEN,
                          .dtype = EXPAR_BF16,
                          .topk = TOPK,
                          .experts = EXPERTS,
                          .route = handle->route,
                          .route_buffer = handle->buffer};
    const ep_advert advert = advert_of(ep, s->mode);
    uint32_t epoch = next_epoch(ep);
    say_header(ep, t, epoch, &form, &advert);
    if (s->is_done) say_done(ep, epoch);
    move_rings(ep, epoch, s);
}

/* ---- what rank 0 does -------------------------------------------------------------------------------------------- */

static expar_status dispatch(expar_ep *ep, const traffic *t, expar_ep_path path, expar_ep_dispatch_result *result)
{
    const trial_choice choice = {.path = path};
    const trial_area none = {0};
    *result = (expar_ep_dispatch_result)EXPAR_EP_DISPATCH_RESULT_INIT;
    expar_ep_dispatch_args args = trial_dispatch_args(t, 0, &choice, &none, NULL);
    expar_status status = mirror_ep_dispatch(ep, &args, result);
    trial_dispatch_args_free(&args);
    return status;
}

static expar_status combine(expar_ep *ep, const traffic *t, expar_ep_path path, const expar_ep_dispatch_result *there)
{
    expar_ep_combine_args args = EXPAR_EP_COMBINE_ARGS_INIT;
    args.x = there->recv_x;
    args.handle = there->handle;
    args.path = path;
    args.out_y = expar_tensor_2d(traffic_alloc(TOKENS, traffic_row_bytes(t)), traffic_dtype(t), TOKENS, HIDDEN);
    expar_status status = mirror_ep_combine(ep, &args, NULL);
    free(args.out_y.data);
    return status;
}

/* The report, as exactly as it is known. */
static void hear(const stop *s, const char *call, uint32_t epoch)
{
    char wait[64], words[96];
    unsigned long long seen = s->seen ? ep_word(epoch, s->seen) : 0, expected = ep_word(epoch, s->expected);
    snprintf(wait, sizeof wait, "%s from rank 1", s->wait);
    snprintf(words, sizeof words, "(seen %#llx, expected %#llx)", seen, expected);
    CHECK_TEXT(call, "on the GPU: timed out after 1000 ms", wait, words);
}

/* The call that rank 1 does not come through, and one after it. */
static void give_up(expar_ep *ep, const traffic *t, const stop *s, expar_ep_dispatch_result *there)
{
    const char *plain = getenv("EXPAR_TEST_PLAIN"), *call = s->combines ? "expar_ep_combine" : "expar_ep_dispatch";
    /* Without an event a call waits until it knows whether all go on. */
    bool late = plain && *plain == '1' && s->mode != EP_MODE_NONE;
    expar_ep_dispatch_result unused;
    uint32_t epoch = next_epoch(ep);
    expar_status status = s->combines ? combine(ep, t, s->path, there) : dispatch(ep, t, s->path, there);
    CHECK_STATUS(late ? EXPAR_OK : EXPAR_ERR_PEER, status);
    if (!late) hear(s, call, epoch);
    CHECK_STATUS(EXPAR_ERR_PEER, dispatch(ep, t, EXPAR_EP_PATH_AUTO, &unused));
    hear(s, "poisoned", epoch);
}

/* Rows that rank 0's first tokens need of rank 1's ring in a combine: as many tokens at a time as it has slots. */
static uint32_t rows_needed_first(const traffic *t)
{
    uint32_t need = 0;
    for (int64_t token = 0; token < TOKENS && (token % SLOTS || !need); token++)
        need += oracle_token_in_rank(&t->job, 0, token, 1);
    return need;
}

static void be_rank_0(expar_ep *ep, const scene *c)
{
    const stop through = {.mode = EP_MODE_DIRECT, .is_done = true};
    expar_ep_dispatch_result there = EXPAR_EP_DISPATCH_RESULT_INIT;
    stop s = c->stop;
    bool begun = true;
    trial_dispatch_of_peer(ep, c->traffic, s.combines ? &through : &s);
    if (s.combines) {
        begun = CHECK_OK(dispatch(ep, c->traffic, EXPAR_EP_PATH_AUTO, &there));
        if (begun) trial_combine_of_peer(ep, c->traffic, &s, there.handle);
        if (!s.expected) s.expected = rows_needed_first(c->traffic);
    }
    if (begun) give_up(ep, c->traffic, &s, &there);
    mirror_output_release(there.output);
    expar_ep_handle_release(there.handle);
    serves_context(buffer_find(ep)->device);
}

/* Once the buffer is made nothing but what is to time out takes long. */
static void have_little_time(expar_group *group)
{
    CHECK_OK(expar_group_barrier(group));
    group->boot->late_limit_ms = SHORT_MS;
}

static void trial(expar_group *group, void *shared)
{
    scene *c = shared;
    stage_plan plan = stage_plan_for(c->traffic, RANKS_THREADS);
    expar_ep *ep = NULL;
    plan.config.num_channels = 1;
    plan.config.ring_slots = SLOTS;
    if (!CHECK_OK(mirror_ep_create(group, &plan.config, &ep))) return;
    have_little_time(group);
    if (expar_group_rank(group) == 0) be_rank_0(ep, c);
    pthread_barrier_wait(&c->both);
    group->boot->late_limit_ms = 0;
    CHECK_OK(mirror_ep_destroy(ep));
}

/* ---- the tests --------------------------------------------------------------------------------------------------- */

static traffic *make_traffic(void)
{
    static const int64_t num_tokens[] = {TOKENS, TOKENS};
    traffic_plan plan = {
        .num_ranks = 2, .hidden = HIDDEN, .topk = TOPK, .num_experts = EXPERTS, .num_tokens = num_tokens};
    random_source random = random_start(6);
    traffic *t = traffic_make(&plan, &random);
    int32_t sent[2];
    /* So many that no ring holds them, whichever way they go. */
    oracle_tokens_per_rank(&t->job, 0, sent);
    assert_true(sent[0] > SLOTS + 1 && sent[1] > SLOTS + 1);
    oracle_tokens_per_rank(&t->job, 1, sent);
    assert_true(sent[0] > SLOTS + 1 && sent[1] > SLOTS + 1);
    return t;
}

static void run(const stop *s)
{
    traffic *t = make_traffic();
    scene c = {.traffic = t, .stop = *s};
    const ranks_plan ranks = {.kind = RANKS_THREADS, .size = 2};
    pthread_barrier_init(&c.both, NULL, 2);
    bool passed = ranks_run(&ranks, trial, &c);
    pthread_barrier_destroy(&c.both);
    assert_true(passed);
    assert_true(serves_ranks(t));
    traffic_free(t);
}

static void test_no_advert(void **state)
{
    (void)state;
    run(&(stop){.wait = "no advertisement", .mode = EP_MODE_NONE, .expected = 1});
}

static void test_no_end_of_a_dispatch(void **state)
{
    (void)state;
    run(&(stop){.wait = "no end of rows", .mode = EP_MODE_DIRECT, .expected = 1});
}

/* Both slots are full, and no row was taken out. */
static void test_no_slot_in_a_dispatch(void **state)
{
    (void)state;
    run(&(stop){.wait = "no free slot", .mode = EP_MODE_QUEUE, .is_done = true, .seen = 0, .expected = 1});
}

static void test_no_row_in_a_dispatch(void **state)
{
    (void)state;
    run(&(stop){.wait = "no row",
                .path = EXPAR_EP_PATH_QUEUE,
                .mode = EP_MODE_DIRECT,
                .is_done = true,
                .put = 1,
                .seen = 1,
                .expected = 2});
}

static void test_no_end_of_a_combine(void **state)
{
    (void)state;
    run(&(stop){.wait = "no end of rows", .combines = true, .mode = EP_MODE_DIRECT, .expected = 1});
}

static void test_no_slot_in_a_combine(void **state)
{
    (void)state;
    run(&(stop){.wait = "no free slot",
                .combines = true,
                .path = EXPAR_EP_PATH_QUEUE,
                .mode = EP_MODE_DIRECT,
                .is_done = true,
                .seen = 0,
                .expected = 1});
}

/* How many rows it waits for depends on the first tokens. */
static void test_no_row_in_a_combine(void **state)
{
    (void)state;
    run(&(stop){.wait = "no row", .combines = true, .mode = EP_MODE_QUEUE, .is_done = true});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_advert),
        cmocka_unit_test(test_no_end_of_a_dispatch),
        cmocka_unit_test(test_no_slot_in_a_dispatch),
        cmocka_unit_test(test_no_row_in_a_dispatch),
        cmocka_unit_test(test_no_end_of_a_combine),
        cmocka_unit_test(test_no_slot_in_a_combine),
        cmocka_unit_test(test_no_row_in_a_combine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

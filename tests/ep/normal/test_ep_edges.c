/* SPDX-License-Identifier: Apache-2.0 */
/* The edges of dispatch and combine, one test each: by every path, with weights, against the oracle. */
#include "ep/harness/stage.h"
#include "ep/normal/normal.h"
#include "oracle/unit.h"
#include <stdlib.h>
#include <string.h>

static ranks_kind kind;

/* 3 ranks of 2 experts, 5 tokens each, rows of 32 bytes. */
#define EXAMPLE                                                                                                        \
    {                                                                                                                  \
        .num_ranks = 3, .hidden = 16, .topk = 2, .num_experts = 6, .expert_alignment = 4, .with_weights = true,        \
        .num_tokens = (const int64_t[])                                                                                \
        {                                                                                                              \
            5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5                                                             \
        }                                                                                                              \
    }

/* Changes the config of a case. */
typedef void (*tune_fn)(expar_ep_config *config);
/* Changes what was drawn; t is settled after. */
typedef void (*shape_fn)(traffic *t);

typedef struct edge {
    traffic *traffic;
    answers *answers;
} edge;

static void trial_edge(stage *s, void *shared)
{
    static const expar_ep_path paths[] = {EXPAR_EP_PATH_AUTO, EXPAR_EP_PATH_DIRECT, EXPAR_EP_PATH_QUEUE,
                                          EXPAR_EP_PATH_DIRECT};
    const edge *e = shared;
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++)
        if (!CHECK(stage_round_trip(s, e->traffic, e->answers, paths[i]), "path %d", (int)paths[i])) return;
}

static void run_edge(const traffic_plan *plan, shape_fn shape, tune_fn tune, stage_body body)
{
    random_source random = random_start(1);
    edge e = {.traffic = traffic_make(plan, &random)};
    if (shape) {
        shape(e.traffic);
        traffic_settle(e.traffic);
    }
    e.answers = answers_make(e.traffic, true, &random);
    stage_plan setting = stage_plan_for(e.traffic, kind);
    if (tune) tune(&setting.config);
    bool passed = stage_run(&setting, body, &e);
    answers_free(e.answers);
    traffic_free(e.traffic);
    assert_true(passed);
}

static int64_t *slots_of(traffic *t, int32_t rank)
{
    return (int64_t *)(uintptr_t)t->inputs[rank].topk_idx;
}

/* ---- tokens and ranks -------------------------------------------------------------------------------------------- */

static void test_no_tokens_anywhere(void **state)
{
    (void)state;
    traffic_plan plan = EXAMPLE;
    plan.num_tokens = (const int64_t[]){0, 0, 0};
    run_edge(&plan, NULL, NULL, trial_edge);
}

static void test_no_tokens_on_some_ranks(void **state)
{
    (void)state;
    traffic_plan plan = EXAMPLE;
    plan.num_tokens = (const int64_t[]){0, 7, 0};
    run_edge(&plan, NULL, NULL, trial_edge);
}

static void test_one_token(void **state)
{
    (void)state;
    traffic_plan plan = EXAMPLE;
    plan.num_tokens = (const int64_t[]){0, 0, 1};
    run_edge(&plan, NULL, NULL, trial_edge);
}

static void test_one_rank(void **state)
{
    (void)state;
    traffic_plan plan = EXAMPLE;
    plan.num_ranks = 1;
    run_edge(&plan, NULL, NULL, trial_edge);
}

static void test_sixteen_ranks(void **state)
{
    (void)state;
    traffic_plan plan = EXAMPLE;
    plan.num_ranks = 16;
    if (kind == RANKS_PROCESSES && plan.num_ranks > STAGE_MOST_PROCESSES) skip();
    plan.num_experts = 32;
    plan.topk = 8;
    run_edge(&plan, NULL, NULL, trial_edge);
}

/* On a GPU so many do not advertise space with their headers (EP_SPACE_RANKS). */
static void test_seventeen_ranks(void **state)
{
    (void)state;
    static const int64_t num_tokens[17] = {5, 4, 3, 2, 1, 0, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 7};
    traffic_plan plan = EXAMPLE;
    plan.num_ranks = EP_SPACE_RANKS + 1;
    plan.num_tokens = num_tokens;
    assert_int_equal(plan.num_ranks, ARRAY_LENGTH(num_tokens));
    if (kind == RANKS_PROCESSES && plan.num_ranks > STAGE_MOST_PROCESSES) skip();
    plan.num_experts = 34;
    plan.topk = 8;
    run_edge(&plan, NULL, NULL, trial_edge);
}

/* On a GPU they are laid out by several blocks, the last piece by half a warp. */
static void test_many_tokens(void **state)
{
    (void)state;
    traffic_plan plan = EXAMPLE;
    plan.num_tokens = (const int64_t[]){2100, 0, 1553};
    run_edge(&plan, NULL, NULL, trial_edge);
}

/* More than a GPU's block counts in its shared memory. */
static void test_many_experts(void **state)
{
    (void)state;
    traffic_plan plan = EXAMPLE;
    plan.num_tokens = (const int64_t[]){1100, 5, 600};
    plan.num_experts = 12288;
    run_edge(&plan, NULL, NULL, trial_edge);
}

/* More than a GPU's buffer begins with counters for, after calls with few and before such. By CUDA IPC nothing grows.
   */
static void trial_more_experts(stage *s, void *shared)
{
    const edge *edges = shared; /* with few, and many */
    for (int i = 0; i < 5; i++)
        trial_edge(s, (void *)(uintptr_t)&edges[i % 2]);
    CHECK(s->ep->growths == 2, "%llu growths", (unsigned long long)s->ep->growths);
}

static void test_more_experts_without_limits(void **state)
{
    (void)state;
    if (getenv("EXPAR_CUDA_IPC")) skip();
    static const int64_t num_tokens[] = {40, 0, 21};
    static const int32_t num_experts[] = {6, 60000};
    random_source random = random_start(3);
    edge edges[2];
    for (int i = 0; i < 2; i++) {
        traffic_plan plan = EXAMPLE;
        plan.num_tokens = num_tokens;
        plan.num_experts = num_experts[i];
        edges[i].traffic = traffic_make(&plan, &random);
        edges[i].answers = answers_make(edges[i].traffic, true, &random);
    }
    stage_plan setting = stage_plan_for(edges[1].traffic, kind);
    setting.config = (expar_ep_config)EXPAR_EP_CONFIG_INIT;
    const bool passed = stage_run(&setting, trial_more_experts, edges);
    for (int i = 0; i < 2; i++) {
        answers_free(edges[i].answers);
        traffic_free(edges[i].traffic);
    }
    assert_true(passed);
}

/* Puts these into slot 0 of token 1090 and slot 1 of token 701, and takes out what was there. */
static void exchange_slots(int64_t *slots, int64_t values[2])
{
    int64_t *places[] = {&slots[1090 * 2], &slots[701 * 2 + 1]};
    for (int i = 0; i < 2; i++) {
        int64_t was = *places[i];
        *places[i] = values[i];
        values[i] = was;
    }
}

/* The first of two bad ones, in pieces far apart, is named; nothing of that call is left in the next. */
static void trial_bad_indices(stage *s, void *shared)
{
    const edge *e = shared;
    trial_choice plain = {0};
    int64_t values[] = {6, 7};
    if (s->rank == 1) exchange_slots(slots_of(e->traffic, 1), values);
    expar_ep_dispatch_args args = trial_dispatch_args(e->traffic, s->rank, &plain, &s->area, NULL);
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    CHECK_STATUS(s->rank == 1 ? EXPAR_ERR_INDEX : EXPAR_ERR_REMOTE, expar_ep_dispatch(s->ep, &args, &result));
    CHECK_TEXT("topk_idx[701][1] is 7");
    trial_dispatch_args_free(&args);
    if (s->rank == 1) exchange_slots(slots_of(e->traffic, 1), values);
    CHECK_OK(expar_barrier_all(s->group));
    trial_edge(s, shared);
}

static void test_bad_indices_among_many_tokens(void **state)
{
    (void)state;
    traffic_plan plan = EXAMPLE;
    plan.num_tokens = (const int64_t[]){40, 1100, 0};
    run_edge(&plan, NULL, NULL, trial_bad_indices);
}

/* The same beside a handle. The handle serves calls after it. */
static void trial_bad_indices_beside_a_handle(stage *s, void *shared)
{
    const edge *e = shared;
    trial_choice plain = {0};
    trial_arrival first, again;
    int64_t values[] = {6, 7};
    if (!trial_dispatch(s->ep, e->traffic, s->rank, &plain, &s->area, NULL, &first)) return;
    if (s->rank == 1) exchange_slots(slots_of(e->traffic, 1), values);
    expar_ep_dispatch_args args = trial_dispatch_args(e->traffic, s->rank, &plain, &s->area, NULL);
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    args.handle = first.handle;
    CHECK_STATUS(s->rank == 1 ? EXPAR_ERR_INDEX : EXPAR_ERR_REMOTE, expar_ep_dispatch(s->ep, &args, &result));
    CHECK_TEXT("topk_idx[701][1] is 7");
    trial_dispatch_args_free(&args);
    if (s->rank == 1) exchange_slots(slots_of(e->traffic, 1), values);
    CHECK_OK(expar_barrier_all(s->group));
    if (trial_dispatch(s->ep, e->traffic, s->rank, &plain, &s->area, first.handle, &again)) {
        trial_combine(s->ep, e->traffic, e->answers, s->rank, &plain, &s->area, first.handle, &again);
        trial_release(&again, false);
    }
    trial_release(&first, false);
}

/* A dispatch on a GPU checks the few indices itself. A kernel before it checks the many. */
static void test_bad_indices_beside_a_handle(void **state)
{
    (void)state;
    static const int64_t few[] = {40, 1100, 0}, many[] = {40, 2100, 0};
    traffic_plan plan = EXAMPLE;
    plan.num_tokens = few;
    run_edge(&plan, NULL, NULL, trial_bad_indices_beside_a_handle);
    plan.num_tokens = many;
    run_edge(&plan, NULL, NULL, trial_bad_indices_beside_a_handle);
}

/* ---- routings ---------------------------------------------------------------------------------------------------- */

static void test_all_to_one_expert(void **state)
{
    (void)state;
    traffic_plan plan = EXAMPLE;
    plan.routing = ROUTING_ONE_HOT;
    run_edge(&plan, NULL, NULL, trial_edge);
}

static void only_experts_of_rank_1(traffic *t)
{
    for (int32_t r = 0; r < t->job.num_ranks; r++)
        for (int64_t i = 0; i < t->inputs[r].num_tokens * t->job.topk; i++)
            slots_of(t, r)[i] = 2 + i % 2;
}

static void test_all_experts_on_one_rank(void **state)
{
    (void)state;
    traffic_plan plan = EXAMPLE;
    run_edge(&plan, only_experts_of_rank_1, NULL, trial_edge);
}

static void test_all_tokens_nowhere(void **state)
{
    (void)state;
    traffic_plan plan = EXAMPLE;
    plan.routing = ROUTING_NOWHERE;
    run_edge(&plan, NULL, NULL, trial_edge);
}

static void test_top_1(void **state)
{
    (void)state;
    traffic_plan plan = EXAMPLE;
    plan.topk = 1;
    run_edge(&plan, NULL, NULL, trial_edge);
}

static void test_one_expert_a_rank(void **state)
{
    (void)state;
    traffic_plan plan = EXAMPLE;
    plan.num_experts = plan.num_ranks;
    run_edge(&plan, NULL, NULL, trial_edge);
}

static void test_more_slots_than_experts(void **state)
{
    (void)state;
    traffic_plan plan = EXAMPLE;
    plan.num_experts = plan.num_ranks;
    plan.topk = 9;
    run_edge(&plan, NULL, NULL, trial_edge);
}

static void every_slot_the_same(traffic *t)
{
    for (int32_t r = 0; r < t->job.num_ranks; r++)
        for (int64_t i = 0; i < t->inputs[r].num_tokens * t->job.topk; i++)
            slots_of(t, r)[i] = i / t->job.topk % t->job.num_experts;
}

static void test_duplicates_in_every_token(void **state)
{
    (void)state;
    traffic_plan plan = EXAMPLE;
    plan.topk = 4;
    run_edge(&plan, every_slot_the_same, NULL, trial_edge);
}

static void test_every_token_to_every_rank(void **state)
{
    (void)state;
    traffic_plan plan = EXAMPLE;
    plan.topk = plan.num_experts = 6;
    run_edge(&plan, NULL, NULL, trial_edge);
}

/* ---- shapes of the buffer ---------------------------------------------------------------------------------------- */

static void one_slot(expar_ep_config *config)
{
    config->ring_slots = 1;
    config->num_channels = 1;
}

static void test_ring_of_one_slot(void **state)
{
    (void)state;
    traffic_plan plan = EXAMPLE;
    plan.num_tokens = (const int64_t[]){60, 40, 50};
    run_edge(&plan, NULL, one_slot, trial_edge);
}

static void three_slots_two_threads(expar_ep_config *config)
{
    config->ring_slots = 3;
    config->num_channels = 2;
    config->num_threads = 2;
}

static void test_rings_that_wrap_around(void **state)
{
    (void)state;
    traffic_plan plan = EXAMPLE;
    plan.num_tokens = (const int64_t[]){100, 99, 101};
    run_edge(&plan, NULL, three_slots_two_threads, trial_edge);
}

static void many_channels(expar_ep_config *config)
{
    config->num_channels = 8;
}

static void test_more_channels_than_tokens(void **state)
{
    (void)state;
    traffic_plan plan = EXAMPLE;
    run_edge(&plan, NULL, many_channels, trial_edge);
}

static void many_threads(expar_ep_config *config)
{
    config->num_channels = 2;
    config->num_threads = 5;
}

static void test_more_threads_than_channels(void **state)
{
    (void)state;
    traffic_plan plan = EXAMPLE;
    run_edge(&plan, NULL, many_threads, trial_edge);
}

static void test_smallest_row(void **state)
{
    (void)state;
    traffic_plan plan = EXAMPLE;
    plan.hidden = 4;
    plan.type = ORACLE_F32;
    run_edge(&plan, NULL, NULL, trial_edge);
}

static void test_large_row(void **state)
{
    (void)state;
    traffic_plan plan = EXAMPLE;
    plan.hidden = 7168;
    run_edge(&plan, NULL, NULL, trial_edge);
}

/* ---- pool -------------------------------------------------------------------------------------------------------- */

static void tiny_pool(expar_ep_config *config)
{
    config->pool_limit_bytes = 128;
}

static void trial_auto(stage *s, void *shared)
{
    const edge *e = shared;
    trial_choice choice = {.path = EXPAR_EP_PATH_AUTO};
    trial_arrival arrival;
    trial_dispatch(s->ep, e->traffic, s->rank, &choice, &s->area, NULL, &arrival);
    CHECK(arrival.result.path == EXPAR_EP_PATH_QUEUE, "path is %d", (int)arrival.result.path);
    trial_combine(s->ep, e->traffic, e->answers, s->rank, &choice, &s->area, arrival.handle, &arrival);
    trial_release(&arrival, false);
}

static void test_used_up_pool_means_queue(void **state)
{
    (void)state;
    traffic_plan plan = EXAMPLE;
    run_edge(&plan, NULL, tiny_pool, trial_auto);
}

/* Rank 1 insists on the direct path; the others would take what comes. */
static void trial_rejected_direct(stage *s, void *shared)
{
    const edge *e = shared;
    trial_choice choice = {.path = s->rank == 1 ? EXPAR_EP_PATH_DIRECT : EXPAR_EP_PATH_AUTO};
    expar_ep_dispatch_args args = trial_dispatch_args(e->traffic, s->rank, &choice, &s->area, NULL);
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    expar_status status = expar_ep_dispatch(s->ep, &args, &result);
    if (s->rank == 1) {
        CHECK_STATUS(EXPAR_ERR_BUFFER_SIZE, status);
        CHECK_TEXT("expar_ep_dispatch", "pool", "path");
    } else {
        CHECK_STATUS(EXPAR_ERR_REMOTE, status);
        CHECK_TEXT("rank 1", "EXPAR_ERR_BUFFER_SIZE", "pool");
    }
    CHECK(!result.handle && !result.output, "a refused dispatch left something");
    trial_dispatch_args_free(&args);
    trial_auto(s, shared);
}

static void test_used_up_pool_rejects_direct(void **state)
{
    (void)state;
    traffic_plan plan = EXAMPLE;
    run_edge(&plan, NULL, tiny_pool, trial_rejected_direct);
}

/* Outputs that are never given back use the pool up; what was there before stays as it was. */
static void trial_until_queue(stage *s, void *shared)
{
    enum { ARRIVALS = 12 };
    const edge *e = shared;
    trial_choice choice = {.path = EXPAR_EP_PATH_AUTO};
    trial_arrival arrivals[ARRIVALS];
    int32_t direct = 0;
    for (int32_t i = 0; i < ARRIVALS; i++) {
        trial_dispatch(s->ep, e->traffic, s->rank, &choice, &s->area, NULL, &arrivals[i]);
        direct += arrivals[i].result.path == EXPAR_EP_PATH_DIRECT;
    }
    CHECK(direct > 0 && direct < ARRIVALS, "%d of %d came directly", (int)direct, (int)ARRIVALS);
    for (int32_t i = 0; i < ARRIVALS; i++) {
        trial_check_arrival(&arrivals[i], s->rank);
        trial_release(&arrivals[i], i & 1);
    }
    trial_dispatch(s->ep, e->traffic, s->rank, &choice, &s->area, NULL, &arrivals[0]);
    CHECK(arrivals[0].result.path == EXPAR_EP_PATH_DIRECT, "the pool did not get its memory back");
    trial_release(&arrivals[0], false);
}

static void small_pool(expar_ep_config *config)
{
    config->pool_limit_bytes = 4096;
}

static void test_pool_fills_and_empties(void **state)
{
    (void)state;
    traffic_plan plan = EXAMPLE;
    plan.num_tokens = (const int64_t[]){16, 16, 16};
    run_edge(&plan, every_slot_the_same, small_pool, trial_until_queue);
}

/* ---- rows that come by surprise ---------------------------------------------------------------------------------- */

static void none_at_all(traffic *t)
{
    for (int32_t r = 0; r < t->job.num_ranks; r++)
        for (int64_t i = 0; i < t->inputs[r].num_tokens * t->job.topk; i++)
            slots_of(t, r)[i] = -1;
}

/* Each call brings more rows, or fewer, than the one before, with a hole in the pool that fits some. On a GPU a
   dispatch is put on its way before it is known how many come, by what came the last time. */
static void trial_jumps(stage *s, void *shared)
{
    static const int order[] = {0, 2, 2, 0, 1, 2, 1, 0, 0, 2, 1};
    const traffic *const *t = shared; /* with no rows, some, and many */
    trial_choice plain = {.sure_of_pool = true}, queue = {.path = EXPAR_EP_PATH_QUEUE};
    trial_arrival hole, held, next;
    if (!trial_dispatch(s->ep, t[1], s->rank, &plain, &s->area, NULL, &hole) ||
        !trial_dispatch(s->ep, t[1], s->rank, &plain, &s->area, NULL, &held))
        return;
    trial_release(&hole, true);
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++) {
        if (!trial_dispatch(s->ep, t[order[i]], s->rank, i % 4 == 2 ? &queue : &plain, &s->area, NULL, &next)) return;
        trial_release(&next, i & 1);
    }
    CHECK(trial_check_arrival(&held, s->rank), "the output that was held is another one");
    trial_release(&held, false);
}

static void test_more_rows_than_the_last_time(void **state)
{
    (void)state;
    traffic_plan plan = EXAMPLE;
    random_source random = random_start(2);
    traffic *t[3];
    for (int i = 0; i < 3; i++) {
        plan.num_tokens = i == 2 ? (const int64_t[]){40, 40, 40} : (const int64_t[]){5, 5, 5};
        t[i] = traffic_make(&plan, &random);
        (i == 0 ? none_at_all : every_slot_the_same)(t[i]);
        traffic_settle(t[i]);
    }
    stage_plan setting = stage_plan_for(t[2], kind);
    bool passed = stage_run(&setting, trial_jumps, t);
    for (int i = 0; i < 3; i++)
        traffic_free(t[i]);
    assert_true(passed);
}

/* ---- long runs --------------------------------------------------------------------------------------------------- */

/* Epochs have 32 bits; all ranks stand just before the last one. */
static void trial_over_the_wrap(stage *s, void *shared)
{
    const edge *e = shared;
    CHECK_OK(expar_group_barrier(s->group));
    s->ep->base.calls = UINT32_MAX - 5;
    CHECK_OK(expar_group_barrier(s->group));
    for (int round = 0; round < 4; round++)
        trial_edge(s, shared);
    CHECK((uint32_t)s->ep->base.calls < 100, "the epoch is %u: it did not wrap", (uint32_t)s->ep->base.calls);
    (void)e;
}

static void test_epoch_wraps(void **state)
{
    (void)state;
    traffic_plan plan = EXAMPLE;
    run_edge(&plan, NULL, three_slots_two_threads, trial_over_the_wrap);
}

int main(int argc, char **argv)
{
    kind = stage_kind(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_tokens_anywhere),
        cmocka_unit_test(test_no_tokens_on_some_ranks),
        cmocka_unit_test(test_one_token),
        cmocka_unit_test(test_one_rank),
        cmocka_unit_test(test_sixteen_ranks),
        cmocka_unit_test(test_seventeen_ranks),
        cmocka_unit_test(test_many_tokens),
        cmocka_unit_test(test_many_experts),
        cmocka_unit_test(test_more_experts_without_limits),
        cmocka_unit_test(test_bad_indices_among_many_tokens),
        cmocka_unit_test(test_bad_indices_beside_a_handle),
        cmocka_unit_test(test_all_to_one_expert),
        cmocka_unit_test(test_all_experts_on_one_rank),
        cmocka_unit_test(test_all_tokens_nowhere),
        cmocka_unit_test(test_top_1),
        cmocka_unit_test(test_one_expert_a_rank),
        cmocka_unit_test(test_more_slots_than_experts),
        cmocka_unit_test(test_duplicates_in_every_token),
        cmocka_unit_test(test_every_token_to_every_rank),
        cmocka_unit_test(test_ring_of_one_slot),
        cmocka_unit_test(test_rings_that_wrap_around),
        cmocka_unit_test(test_more_channels_than_tokens),
        cmocka_unit_test(test_more_threads_than_channels),
        cmocka_unit_test(test_smallest_row),
        cmocka_unit_test(test_large_row),
        cmocka_unit_test(test_used_up_pool_means_queue),
        cmocka_unit_test(test_used_up_pool_rejects_direct),
        cmocka_unit_test(test_pool_fills_and_empties),
        cmocka_unit_test(test_more_rows_than_the_last_time),
        cmocka_unit_test(test_epoch_wraps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

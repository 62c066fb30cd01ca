/* SPDX-License-Identifier: Apache-2.0 */
/* expar_ep_route: what it tells, and the dispatches and combines with its handle, against the oracle. Its wrong
 * arguments: test_ep_bad_route. */
#include "ep/harness/pitched.h"
#include "ep/harness/stage.h"
#include "ep/harness/table.h"
#include "oracle/unit.h"

#include <stdlib.h>

static ranks_kind kind;

static void trial(const table_case *what)
{
    assert_true(table_run(what, kind, table_trial_all_paths, NULL));
}

/* A route before each first dispatch; repeats carry topk_idx again. */
static table_case routed(void)
{
    table_case c = table_case_make();
    c.there.routed = c.there.with_topk = c.there.src_tokens = true;
    c.choice.counts = true;
    return c;
}

static void test_all_paths(void **state)
{
    (void)state;
    table_case c = routed();
    trial(&c);
    c.there.with_topk = false;
    c.plan.wide = true;
    c.plan.with_weights = false;
    trial(&c);
}

static void test_rows_with_scales(void **state)
{
    (void)state;
    table_case c = routed();
    c.there.type = ORACLE_F8E4M3;
    c.there.hidden = 32;
    c.there.num_scales = 3;
    c.choice.scales = SCALES_TRANSPOSED;
    trial(&c);
}

static void test_by_hand(void **state)
{
    (void)state;
    table_case c = routed();
    c.plan.by_hand = true;
    trial(&c);
    c.there.with_topk = false;
    c.back.with_weights = false;
    c.plan.topk = 0;
    c.plan.with_counts = true;
    trial(&c);
}

static void test_worst_cases(void **state)
{
    (void)state;
    table_case c = routed();
    for (c.choice.worst = WORST_EXACT; c.choice.worst < WORST_KINDS; c.choice.worst++)
        trial(&c);
}

/* The handle learns the places with the first dispatch that brings topk_idx. */
static void test_expert_major(void **state)
{
    (void)state;
    table_case c = routed();
    c.choice = (deal_choice){.expert_major = true, .zero_padding = true, .alignment = 4, .counts = true};
    c.back_choice = (deal_choice){.expert_major = true, .expert_weights = true, .biases = 3};
    trial(&c);
    c.there.with_topk = false;
    c.choice.worst = WORST_LARGER;
    trial(&c);
}

static void fall_silent(deal *d)
{
    for (int32_t r = 0; r < d->job.num_ranks; r++)
        for (int64_t i = 0; i < d->inputs[r].num_tokens * d->job.topk; i++)
            ((int64_t *)(uintptr_t)d->inputs[r].topk_idx)[i] = -1;
}

static void test_tokens_that_go_nowhere(void **state)
{
    (void)state;
    table_case c = routed();
    c.shape = fall_silent;
    trial(&c);
}

/* ---- by hand ----------------------------------------------------------------------------------------------------- */

typedef struct scene {
    traffic *traffic;
    answers *answers;
} scene;

static expar_ep_handle *route(const stage *s, const traffic *t)
{
    const trial_choice plain = {0};
    expar_ep_dispatch_args same = trial_dispatch_args(t, s->rank, &plain, &s->area, NULL);
    expar_ep_route_args args = EXPAR_EP_ROUTE_ARGS_INIT;
    expar_ep_route_result result = EXPAR_EP_ROUTE_RESULT_INIT;
    args.topk_idx = same.topk_idx;
    args.num_experts = same.num_experts;
    CHECK_OK(expar_ep_route(s->ep, &args, &result));
    CHECK(result.num_recv_tokens == t->arrivals[s->rank].num_rows, "a route tells R %lld",
          (long long)result.num_recv_tokens);
    trial_dispatch_args_free(&same);
    return result.handle;
}

/* Where a rank's rows lie follows from the route alone. */
static void combine_without_a_dispatch(stage *s, void *shared)
{
    const scene *c = shared;
    expar_ep_handle *handle = route(s, c->traffic);
    const trial_choice places[] = {{.place = PLACE_PRIVATE}, {.place = PLACE_SYMMETRIC, .path = EXPAR_EP_PATH_DIRECT}};
    for (int i = 0; i < 2; i++) {
        trial_arrival none = {0};
        trial_combine(s->ep, c->traffic, c->answers, s->rank, &places[i], &s->area, handle, &none);
    }
    expar_ep_handle_release(handle);
}

/* A caller with memory of its own allocates once it knows R. */
static void allocate_after_a_route(stage *s, void *shared)
{
    const scene *c = shared;
    const traffic *t = c->traffic;
    const trial_choice choice = {.place = PLACE_PRIVATE};
    expar_ep_handle *handle = route(s, t);
    void *own = NULL;
    expar_ep_dispatch_args args = trial_dispatch_args(t, s->rank, &choice, &s->area, &own);
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    args.handle = handle;
    if (CHECK_OK(expar_ep_dispatch(s->ep, &args, &result))) {
        expar_tensor idx = result.recv_topk_idx;
        CHECK(result.recv_x.data == own, "recv_x is not out_x");
        CHECK(pitched_equals(&result.recv_x, t->arrivals[s->rank].x), "recv_x differs");
        for (int64_t i = 0; i < idx.shape[0] * idx.shape[1]; i++)
            CHECK(((int32_t *)idx.data)[i] == t->arrivals[s->rank].topk_idx[i], "recv_topk_idx differs");
        CHECK(pitched_equals(&result.recv_topk_weights, t->arrivals[s->rank].weights), "recv_topk_weights differ");
        CHECK(!result.handle && !result.recv_tokens_per_expert, "a dispatch with a handle made one");
    }
    expar_ep_output_release(result.output);
    trial_dispatch_args_free(&args);
    expar_ep_handle_release(handle);
    free(own);
}

static expar_status dispatch_by_expert(stage *s, const traffic *t, const expar_ep_handle *handle, bool rejected)
{
    const trial_choice plain = {0};
    expar_ep_dispatch_args args = trial_dispatch_args(t, s->rank, &plain, &s->area, NULL);
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    args.handle = handle;
    args.expert_major = 1;
    args.async_finish = 1;
    if (rejected) args.path = (expar_ep_path)7;
    expar_status status = expar_ep_dispatch(s->ep, &args, &result);
    if (status == EXPAR_OK) status = expar_event_wait(result.event);
    if (status == EXPAR_OK) {
        int64_t slots = t->arrivals[s->rank].num_rows * t->job.topk;
        int32_t *map = traffic_alloc((size_t)slots, sizeof *map);
        oracle_expert_map(&t->job, s->rank, map);
        CHECK(pitched_equals(&result.recv_row_map, map), "recv_row_map differs");
        free(map);
    }
    expar_event_release(result.event);
    expar_ep_output_release(result.output);
    trial_dispatch_args_free(&args);
    return status;
}

/* The dispatch that was to fill the handle's row map ends with another rank's rejection: the next one fills it. */
static void fill_the_map_after_a_rejection(stage *s, void *shared)
{
    const scene *c = shared;
    expar_ep_handle *handle = route(s, c->traffic);
    bool rejected = s->rank == 1;
    CHECK_STATUS(rejected ? EXPAR_ERR_ARGUMENT : EXPAR_ERR_REMOTE, dispatch_by_expert(s, c->traffic, handle, rejected));
    CHECK_OK(dispatch_by_expert(s, c->traffic, handle, false));
    expar_ep_handle_release(handle);
}

/* A rank that routes while the others dispatch, and one with another E. */
static void differ(stage *s, void *shared)
{
    const scene *c = shared;
    const trial_choice plain = {0};
    expar_ep_dispatch_args same = trial_dispatch_args(c->traffic, s->rank, &plain, &s->area, NULL);
    expar_ep_dispatch_result rows = EXPAR_EP_DISPATCH_RESULT_INIT;
    expar_ep_route_args args = EXPAR_EP_ROUTE_ARGS_INIT;
    expar_ep_route_result result = EXPAR_EP_ROUTE_RESULT_INIT;
    args.topk_idx = same.topk_idx;
    args.num_experts = same.num_experts;
    CHECK_STATUS(EXPAR_ERR_MISMATCH,
                 s->rank == 2 ? expar_ep_route(s->ep, &args, &result) : expar_ep_dispatch(s->ep, &same, &rows));
    CHECK_TEXT("rank 2 called expar_ep_route while rank 0 called expar_ep_dispatch");
    if (s->rank == 1) args.topk_idx.shape[1] = 2;
    CHECK_STATUS(EXPAR_ERR_MISMATCH, expar_ep_route(s->ep, &args, &result));
    CHECK_TEXT("expar_ep_route", "top-k is 2 on rank 1 and 3 on rank 0");
    trial_dispatch_args_free(&same);
    stage_round_trip(s, c->traffic, c->answers, EXPAR_EP_PATH_AUTO);
}

/* Counts whose sums fit 31 bits by a hair, and then one that is too large on one rank: all ranks are told. */
static expar_status route_counts(const stage *s, int32_t each, int32_t alignment, expar_ep_route_result *result)
{
    static const uint8_t nowhere[3];
    const int32_t counts[] = {each, 0, each, each, each, each};
    expar_ep_route_args args = EXPAR_EP_ROUTE_ARGS_INIT;
    args.token_in_rank = expar_tensor_2d((void *)(uintptr_t)nowhere, EXPAR_U8, 1, 3);
    args.tokens_per_expert = counts;
    args.num_experts = 6;
    args.expert_alignment = alignment;
    return expar_ep_route(s->ep, &args, result);
}

static void check_remote(const stage *s, int32_t rank, expar_status status, const char *text)
{
    CHECK_STATUS(s->rank == rank ? EXPAR_ERR_ARGUMENT : EXPAR_ERR_REMOTE, status);
    CHECK_TEXT("expar_ep_route", s->rank == rank ? text : rank == 1 ? "rank 1" : "rank 2", text);
}

static void count_as_far_as_may_be(stage *s, void *shared)
{
    enum { MOST = (1 << 30) / 3 };
    const scene *c = shared;
    const int32_t units[] = {1 << 30, 128, 1 << 20};
    expar_ep_route_result result = EXPAR_EP_ROUTE_RESULT_INIT;
    if (CHECK_OK(route_counts(s, MOST, units[s->rank], &result))) {
        CHECK(result.recv_tokens_per_expert[0] == 1 << 30, "rounded to %d", result.recv_tokens_per_expert[0]);
        CHECK(result.recv_tokens_per_expert[1] == (s->rank ? 1 << 30 : 0), "rounded to %d",
              result.recv_tokens_per_expert[1]);
        CHECK(result.num_expert_rows == (int64_t)1 << (s->rank ? 31 : 30), "%lld rows",
              (long long)result.num_expert_rows);
    }
    expar_ep_handle_release(result.handle);
    check_remote(s, 1, route_counts(s, MOST + (s->rank == 1), 128, &result),
                 "tokens_per_expert[0] is 357913942; expected 0 to 357913941");
    check_remote(s, 2, route_counts(s, MOST, (1 << 30) + (s->rank == 2), &result),
                 "expert_alignment is 1073741825; expected 0 to 1073741824");
    stage_round_trip(s, c->traffic, c->answers, EXPAR_EP_PATH_AUTO);
}

static void run(stage_body body)
{
    static const int64_t num_tokens[] = {9, 5, 7};
    traffic_plan plan = {.num_ranks = 3,
                         .hidden = 16,
                         .topk = 3,
                         .num_experts = 6,
                         .with_weights = true,
                         .disturb = 5,
                         .num_tokens = num_tokens};
    random_source random = random_start(33);
    scene c = {.traffic = traffic_make(&plan, &random)};
    c.answers = answers_make(c.traffic, true, &random);
    stage_plan setting = stage_plan_for(c.traffic, kind);
    bool passed = stage_run(&setting, body, &c);
    answers_free(c.answers);
    traffic_free(c.traffic);
    assert_true(passed);
}

static void test_combine_without_a_dispatch(void **state)
{
    (void)state;
    run(combine_without_a_dispatch);
}

static void test_outputs_allocated_after_it(void **state)
{
    (void)state;
    run(allocate_after_a_route);
}

static void test_map_after_a_rejection(void **state)
{
    (void)state;
    run(fill_the_map_after_a_rejection);
}

static void test_ranks_that_differ(void **state)
{
    (void)state;
    run(differ);
}

static void test_counts_of_31_bits(void **state)
{
    (void)state;
    run(count_as_far_as_may_be);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_paths),
        cmocka_unit_test(test_rows_with_scales),
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_worst_cases),
        cmocka_unit_test(test_expert_major),
        cmocka_unit_test(test_tokens_that_go_nowhere),
        cmocka_unit_test(test_combine_without_a_dispatch),
        cmocka_unit_test(test_outputs_allocated_after_it),
        cmocka_unit_test(test_map_after_a_rejection),
        cmocka_unit_test(test_ranks_that_differ),
        cmocka_unit_test(test_counts_of_31_bits),
    };
    kind = stage_kind(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

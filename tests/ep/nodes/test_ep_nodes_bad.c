/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes that disagree, and what does not hold across nodes: all ranks get the same error, which names the rank or the
 * option, and the buffer serves on. Also the size of a buffer there. */
#include "ep/harness/pitched.h"
#include "ep/harness/stage.h"
#include "oracle/unit.h"

#include <stdlib.h>
#include <string.h>

#define RANKS          4
#define RANKS_PER_NODE 2

static traffic *make_traffic(void)
{
    static const int64_t num_tokens[RANKS] = {9, 0, 5, 12};
    traffic_plan plan = traffic_plan_small(RANKS, RANKS_PER_NODE, num_tokens);
    plan.wide = plan.with_weights = true;
    random_source random = random_start(21);
    return traffic_make(&plan, &random);
}

/* max_tokens: the buffer's; -1: as many as there are. */
static void run_within(stage_body body, int64_t max_tokens)
{
    random_source random = random_start(22);
    traffic *t = make_traffic();
    answers *a = answers_make(t, true, &random);
    stage_plan setting = stage_plan_for(t, RANKS_THREADS);
    const void *const shared[] = {t, a};
    if (max_tokens >= 0) setting.config.max_tokens = max_tokens;
    bool passed = stage_run(&setting, body, (void *)(uintptr_t)shared);
    answers_free(a);
    traffic_free(t);
    assert_true(passed);
}

static void run(stage_body body)
{
    run_within(body, -1);
}

static expar_status combine_by(stage *s, const traffic *t, const expar_ep_handle *handle, expar_ep_nodes_sum nodes)
{
    expar_ep_combine_args args = EXPAR_EP_COMBINE_ARGS_INIT;
    const int64_t rows = t->arrivals[s->rank].num_rows, tokens = t->inputs[s->rank].num_tokens;
    args.x = pitched_make(traffic_dtype(t), rows, t->job.hidden, 0, false);
    args.out_y = pitched_make(traffic_dtype(t), tokens, t->job.hidden, 0, false);
    args.topk_weights = pitched_make(EXPAR_F32, rows, t->job.topk, 0, false);
    args.out_topk_weights = pitched_make(EXPAR_F32, tokens, t->job.topk, 0, false);
    args.handle = handle;
    args.nodes_sum = nodes;
    expar_status status = expar_ep_combine(s->ep, &args, NULL);
    pitched_free(&args.x);
    pitched_free(&args.out_y);
    pitched_free(&args.topk_weights);
    pitched_free(&args.out_topk_weights);
    return status;
}

static expar_status combine(stage *s, const traffic *t, const expar_ep_handle *handle)
{
    return combine_by(s, t, handle, EXPAR_EP_NODES_SUM_ROUNDED);
}

/* The number of tokens alone may be without a limit. */
static void trial_any_tokens(stage *s, void *shared)
{
    const traffic *t = ((const void *const *)shared)[0];
    const answers *a = ((const void *const *)shared)[1];
    stage_round_trip(s, t, a, EXPAR_EP_PATH_AUTO);
    stage_round_trip(s, t, a, EXPAR_EP_PATH_QUEUE);
}

static void test_tokens_without_a_limit(void **state)
{
    (void)state;
    run_within(trial_any_tokens, 0);
}

/* The ranks of node 1 dispatch shorter rows, combine while those of node 0 dispatch, and ask for other sums. */
static void trial_disagreement(stage *s, void *shared)
{
    const traffic *t = ((const void *const *)shared)[0];
    const answers *a = ((const void *const *)shared)[1];
    const trial_choice plain = {0};
    const bool odd = s->rank >= RANKS_PER_NODE;
    trial_arrival before;
    if (!trial_dispatch(s->ep, t, s->rank, &plain, &s->area, NULL, &before)) return;
    expar_ep_dispatch_args given = trial_dispatch_args(t, s->rank, &plain, &s->area, NULL), args = given;
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    if (odd) args.x.shape[1] = 16;
    CHECK_STATUS(EXPAR_ERR_MISMATCH, expar_ep_dispatch(s->ep, &args, &result));
    CHECK_TEXT("hidden size", "16 on rank 2", "24 on rank 0");
    CHECK_STATUS(EXPAR_ERR_MISMATCH, odd ? combine(s, t, before.handle) : expar_ep_dispatch(s->ep, &given, &result));
    CHECK_TEXT("rank 2 called expar_ep_combine", "rank 0 called expar_ep_dispatch");
    CHECK_STATUS(EXPAR_ERR_MISMATCH,
                 combine_by(s, t, before.handle, odd ? EXPAR_EP_NODES_SUM_EXACT : EXPAR_EP_NODES_SUM_ROUNDED));
    CHECK_TEXT("nodes_sum is EXACT on rank 2 and ROUNDED on rank 0");
    CHECK_STATUS(EXPAR_ERR_MISMATCH,
                 combine_by(s, t, before.handle, odd ? EXPAR_EP_NODES_SUM_ONE_ORDER : EXPAR_EP_NODES_SUM_EXACT));
    CHECK_TEXT("nodes_sum is ONE_ORDER on rank 2 and EXACT on rank 0");
    trial_dispatch_args_free(&given);
    trial_combine(s->ep, t, a, s->rank, &plain, &s->area, before.handle, &before);
    trial_release(&before, true);
    stage_round_trip(s, t, a, EXPAR_EP_PATH_QUEUE);
}

static void test_nodes_that_disagree(void **state)
{
    (void)state;
    run(trial_disagreement);
}

/* Slots come with the records, so all ranks ask for them, or none. */
static void trial_slots_of_some(stage *s, void *shared)
{
    const traffic *t = ((const void *const *)shared)[0];
    const answers *a = ((const void *const *)shared)[1];
    const trial_choice plain = {0};
    expar_ep_dispatch_args args = trial_dispatch_args(t, s->rank, &plain, &s->area, NULL);
    expar_ep_route_args route = EXPAR_EP_ROUTE_ARGS_INIT;
    expar_ep_route_result routed = EXPAR_EP_ROUTE_RESULT_INIT;
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    args.keep_slots = route.keep_slots = s->rank == 3;
    CHECK_STATUS(EXPAR_ERR_MISMATCH, expar_ep_dispatch(s->ep, &args, &result));
    CHECK_TEXT("expar_ep_dispatch", "keep_slots is 1 on rank 3 and 0 on rank 0");
    route.topk_idx = args.topk_idx;
    route.num_experts = t->job.num_experts;
    CHECK_STATUS(EXPAR_ERR_MISMATCH, expar_ep_route(s->ep, &route, &routed));
    CHECK_TEXT("expar_ep_route", "keep_slots is 1 on rank 3 and 0 on rank 0");
    trial_dispatch_args_free(&args);
    stage_round_trip(s, t, a, EXPAR_EP_PATH_AUTO);
}

static void test_slots_that_some_keep(void **state)
{
    (void)state;
    run(trial_slots_of_some);
}

/* A combine with a route's handle needs to know which ranks have which record, which a dispatch tells. */
static void trial_route_alone(stage *s, void *shared)
{
    const traffic *t = ((const void *const *)shared)[0];
    const trial_choice plain = {0};
    expar_ep_dispatch_args args = trial_dispatch_args(t, s->rank, &plain, &s->area, NULL);
    expar_ep_route_args route = EXPAR_EP_ROUTE_ARGS_INIT;
    expar_ep_route_result routed = EXPAR_EP_ROUTE_RESULT_INIT;
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    route.topk_idx = args.topk_idx;
    route.num_experts = t->job.num_experts;
    if (!CHECK_OK(expar_ep_route(s->ep, &route, &routed))) return;
    expar_status status = combine(s, t, routed.handle);
    CHECK_STATUS(s->rank == 0 ? EXPAR_ERR_HANDLE : EXPAR_ERR_REMOTE, status);
    CHECK_TEXT("expar_ep_combine", "that of a route");
    expar_ep_dispatch_args again = args;
    again.handle = routed.handle;
    again.num_experts = 0;
    again.topk_idx = again.topk_weights = (expar_tensor){0};
    if (CHECK_OK(expar_ep_dispatch(s->ep, &again, &result))) {
        CHECK_OK(combine(s, t, routed.handle));
        expar_ep_output_release(result.output);
    }
    trial_dispatch_args_free(&args);
    expar_ep_handle_release(routed.handle);
}

static void test_route_without_a_dispatch(void **state)
{
    (void)state;
    run(trial_route_alone);
}

/* It takes of the heap what the one formula says, the network's rings included. */
static void create_in_its_size(expar_group *group, void *shared)
{
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    expar_heap_stats before = EXPAR_HEAP_STATS_INIT, after = EXPAR_HEAP_STATS_INIT;
    size_t near = 0, bytes = 0;
    expar_ep *ep = NULL;
    (void)shared;
    config.max_tokens = 16;
    config.max_row_bytes = 128;
    config.max_topk = 2;
    config.max_experts = 2 * RANKS;
    CHECK_OK(expar_ep_get_buffer_size(&config, RANKS, &near));
    config.ranks_per_node = 2;
    CHECK_OK(expar_ep_get_buffer_size(&config, RANKS, &bytes));
    CHECK(bytes > near, "%zu bytes over two nodes, %zu on one", bytes, near);
    CHECK_OK(expar_heap_get_stats(group, &before));
    if (!CHECK_OK(expar_ep_create(group, &config, &ep))) return;
    CHECK_OK(expar_heap_get_stats(group, &after));
    const uint64_t taken = after.used_bytes - before.used_bytes;
    CHECK(taken >= bytes && taken <= bytes + 2 * 4096, "%llu bytes were taken, not %zu", (unsigned long long)taken,
          bytes);
    CHECK_OK(expar_ep_destroy(ep));
    config.ranks_per_node = 3;
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_ep_get_buffer_size(&config, RANKS, &bytes));
    CHECK_TEXT("config.ranks_per_node is 3", "divisor of the 4 ranks");
    config.ranks_per_node = 2;
    config.max_topk = expar_group_rank(group) < RANKS_PER_NODE ? 2 : 3;
    CHECK_STATUS(EXPAR_ERR_MISMATCH, expar_ep_create(group, &config, &ep));
    CHECK_TEXT("expar_ep_create", "max_topk", "rank 2", "rank 0");
}

/* Without limits headers have space for 65536 experts, and that is the limit then. */
static void create_without_limits(expar_group *group, void *shared)
{
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    expar_heap_stats before = EXPAR_HEAP_STATS_INIT, after = EXPAR_HEAP_STATS_INIT;
    expar_ep_route_args route = EXPAR_EP_ROUTE_ARGS_INIT;
    expar_ep_route_result routed = EXPAR_EP_ROUTE_RESULT_INIT;
    int32_t idx[2] = {0, 65535};
    size_t bytes = 0;
    expar_ep *ep = NULL;
    (void)shared;
    config.ranks_per_node = RANKS_PER_NODE;
    CHECK_OK(expar_ep_get_buffer_size(&config, RANKS, &bytes));
    CHECK_OK(expar_heap_get_stats(group, &before));
    if (!CHECK_OK(expar_ep_create(group, &config, &ep))) return;
    CHECK_OK(expar_heap_get_stats(group, &after));
    const uint64_t taken = after.used_bytes - before.used_bytes;
    CHECK(taken >= bytes && taken <= bytes + 2 * 4096, "%llu bytes were taken, not %zu", (unsigned long long)taken,
          bytes);
    route.topk_idx = expar_tensor_2d(idx, EXPAR_I32, 1, 2);
    route.num_experts = 65536 + RANKS;
    CHECK_STATUS(EXPAR_ERR_LIMIT, expar_ep_route(ep, &route, &routed));
    CHECK_TEXT("num_experts is 65540", "65536");
    route.num_experts = 65536;
    if (CHECK_OK(expar_ep_route(ep, &route, &routed))) {
        const bool has = expar_group_rank(group) == 0 || expar_group_rank(group) == RANKS - 1;
        CHECK(routed.num_recv_tokens == (has ? RANKS : 0), "%lld rows come", (long long)routed.num_recv_tokens);
        expar_ep_handle_release(routed.handle);
    }
    CHECK_OK(expar_ep_destroy(ep));
}

/* Rank 0 alone has so many tokens of so many slots, all of -1, that sums of each slot in one order could not count
   their slots of a ring. By rank they can. */
static void combine_uncounted(expar_group *group, void *shared)
{
    enum { SLOTS = 4096, HIDDEN = 8 };
    const bool many = expar_group_rank(group) == 0;
    const int64_t tokens = many ? 65 : 1;
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    expar_ep_dispatch_args args = EXPAR_EP_DISPATCH_ARGS_INIT;
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    expar_ep_combine_args back = EXPAR_EP_COMBINE_ARGS_INIT;
    expar_ep *ep = NULL;
    (void)shared;
    config.ranks_per_node = RANKS_PER_NODE;
    if (!CHECK_OK(expar_ep_create(group, &config, &ep))) return;
    int32_t *idx = traffic_alloc((size_t)tokens * SLOTS, sizeof *idx);
    memset(idx, 0xff, (size_t)tokens * SLOTS * sizeof *idx);
    args.x = pitched_make(EXPAR_F32, tokens, HIDDEN, 0, false);
    args.topk_idx = expar_tensor_2d(idx, EXPAR_I32, tokens, SLOTS);
    args.num_experts = RANKS;
    args.expert_major = args.keep_slots = 1;
    if (CHECK_OK(expar_ep_dispatch(ep, &args, &result))) {
        back.x = result.recv_x;
        back.out_y = pitched_make(EXPAR_F32, tokens, HIDDEN, 0, false);
        back.handle = result.handle;
        back.expert_major = 1;
        back.nodes_sum = EXPAR_EP_NODES_SUM_ONE_ORDER;
        back.sum_order = EXPAR_EP_SUM_ORDER_EACH_SLOT;
        CHECK_STATUS(many ? EXPAR_ERR_LIMIT : EXPAR_ERR_REMOTE, expar_ep_combine(ep, &back, NULL));
        CHECK_TEXT("nodes_sum is ONE_ORDER with 65 tokens of up to 33554432 ring slots", "at most 63");
        back.sum_order = EXPAR_EP_SUM_ORDER_BY_RANK;
        CHECK_OK(expar_ep_combine(ep, &back, NULL));
        expar_ep_handle_release(result.handle);
        expar_ep_output_release(result.output);
    }
    pitched_free(&args.x);
    pitched_free(&back.out_y);
    free(idx);
    CHECK_OK(expar_ep_destroy(ep));
}

static void test_rows_that_cannot_be_counted(void **state)
{
    (void)state;
    const ranks_plan plan = {.kind = RANKS_THREADS, .size = RANKS, .ranks_per_node = RANKS_PER_NODE};
    assert_true(ranks_run(&plan, combine_uncounted, NULL));
}

static void test_size(void **state)
{
    (void)state;
    const ranks_plan plan = {.kind = RANKS_THREADS, .size = RANKS, .ranks_per_node = RANKS_PER_NODE};
    assert_true(ranks_run(&plan, create_in_its_size, NULL));
    assert_true(ranks_run(&plan, create_without_limits, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nodes_that_disagree),         cmocka_unit_test(test_tokens_without_a_limit),
        cmocka_unit_test(test_slots_that_some_keep),        cmocka_unit_test(test_route_without_a_dispatch),
        cmocka_unit_test(test_rows_that_cannot_be_counted), cmocka_unit_test(test_size)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

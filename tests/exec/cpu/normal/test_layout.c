/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU executor's layout on examples worked out by hand. */
#include "exec/cpu/normal/cpu.h"
#include "oracle/unit.h"

#include <malloc.h>
#include <string.h>

static ep_routing make_routing(int64_t tokens, int32_t topk, int32_t experts, int32_t ranks, int32_t channels)
{
    ep_routing routing = {
        .tokens = tokens, .ranks = ranks, .ranks_per_node = 2, .channels = channels, .topk = topk, .experts = experts};
    assert_int_equal(cpu_routing_make(&routing, ranks), EXPAR_OK);
    return routing;
}

static void assert_target(const ep_routing *routing, int64_t token, int32_t which, int32_t rank, int32_t index)
{
    const ep_target *target = &routing->targets[routing->first[token] + which];
    assert_int_equal(target->rank, rank);
    assert_int_equal(target->index, index);
}

/* 2 ranks, 4 experts, tokens {0,1},{1,2},{2,3},{0,3}: the example of the definition. */
static void the_example_of_the_definition(void **state)
{
    (void)state;
    const int64_t idx[4][2] = {{0, 1}, {1, 2}, {2, 3}, {0, 3}};
    ep_routing routing = make_routing(4, 2, 4, 2, 2);
    ep_route_view view = {.idx = idx, .idx_bytes = 8, .idx_pitch = 2};
    assert_int_equal(cpu_layout(&view, &routing), EXPAR_OK);
    for (int e = 0; e < 4; e++)
        assert_int_equal(routing.expert_counts[e], 2);
    const int64_t first[] = {0, 1, 3, 4, 6};
    assert_memory_equal(routing.first, first, sizeof first);
    assert_target(&routing, 0, 0, 0, 0);
    assert_target(&routing, 1, 0, 0, 1);
    assert_target(&routing, 1, 1, 1, 0);
    assert_target(&routing, 2, 0, 1, 1);
    assert_target(&routing, 3, 0, 0, 2);
    assert_target(&routing, 3, 1, 1, 2);
    const int32_t prefix[] = {2, 3, 1, 3};
    assert_memory_equal(routing.channel_prefix, prefix, sizeof prefix);
    ep_routing_free(&routing);
}

/* Targets come in rank order whatever the order of the slots, and a rank stands once however often it is named. */
static void ranks_are_sorted_and_stand_once(void **state)
{
    (void)state;
    const int32_t idx[2][6] = {{7, -1, 0, 7, 4, 6}, {-1, -1, -1, -1, -1, -1}};
    ep_routing routing = make_routing(2, 6, 8, 4, 1);
    ep_route_view view = {.idx = idx, .idx_bytes = 4, .idx_pitch = 6};
    assert_int_equal(cpu_layout(&view, &routing), EXPAR_OK);
    assert_int_equal(routing.first[1], 3);
    assert_int_equal(routing.first[2], 3);
    assert_target(&routing, 0, 0, 0, 0);
    assert_target(&routing, 0, 1, 2, 0);
    assert_target(&routing, 0, 2, 3, 0);
    assert_int_equal(routing.expert_counts[7], 2);
    assert_int_equal(routing.node_counts[0], 1);
    assert_int_equal(routing.node_counts[1], 1);
    ep_routing_free(&routing);
}

static void an_index_out_of_range_names_token_and_slot(void **state)
{
    (void)state;
    const int64_t bad[] = {4, -2, INT64_MIN, INT64_MAX, (int64_t)1 << 32};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        int64_t idx[3][2] = {{0, 1}, {2, 3}, {1, bad[i]}};
        ep_routing routing = make_routing(3, 2, 4, 2, 1);
        ep_route_view view = {.idx = idx, .idx_bytes = 8, .idx_pitch = 2};
        assert_int_equal(cpu_layout(&view, &routing), EXPAR_ERR_INDEX);
        assert_non_null(strstr(expar_last_error(), "topk_idx[2][1]"));
        assert_non_null(strstr(expar_last_error(), "0 to 3"));
        ep_routing_free(&routing);
    }
}

static void rows_may_lie_apart(void **state)
{
    (void)state;
    const int32_t idx[2][5] = {{1, 99, 99, 99, 99}, {0, 99, 99, 99, 99}};
    ep_routing routing = make_routing(2, 1, 2, 2, 1);
    int32_t copy[2][1] = {{7}, {7}};
    ep_route_view view = {.idx = idx, .idx_bytes = 4, .idx_pitch = 5, .idx_copy = copy};
    assert_int_equal(cpu_layout(&view, &routing), EXPAR_OK);
    assert_target(&routing, 0, 0, 1, 0);
    assert_target(&routing, 1, 0, 0, 0);
    assert_int_equal(copy[0][0], 1);
    assert_int_equal(copy[1][0], 0);
    ep_routing_free(&routing);
}

/* token_in_rank drives the routing; topk_idx, where given, counts the experts whose rank gets the token; the
   caller's counts stand in for it. */
static void ranks_named_by_hand(void **state)
{
    (void)state;
    const uint8_t in_rank[3][4] = {{0, 1, 0, 7}, {0, 0, 0, 0}, {1, 1, 1, 1}};
    const int32_t idx[3][1] = {{5}, {-1}, {5}}, counts[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    ep_routing routing = make_routing(3, 1, 8, 4, 1);
    ep_route_view view = {
        .idx = idx, .idx_bytes = 4, .idx_pitch = 1, .token_in_rank = in_rank[0], .token_in_rank_pitch = 4};
    for (int with_idx = 1; with_idx >= 0; with_idx--) {
        if (!with_idx)
            view = (ep_route_view){.token_in_rank = in_rank[0], .token_in_rank_pitch = 4, .expert_counts = counts};
        assert_int_equal(cpu_layout(&view, &routing), EXPAR_OK);
        const int64_t first[] = {0, 2, 2, 6};
        assert_memory_equal(routing.first, first, sizeof first);
        assert_target(&routing, 0, 0, 1, 0);
        assert_target(&routing, 0, 1, 3, 0);
        assert_target(&routing, 2, 3, 3, 1);
        assert_int_equal(routing.expert_counts[5], with_idx ? 1 : 6);
    }
    ep_routing_free(&routing);
}

/* Every fresh dispatch makes one: its arrays lie in one allocation, one after the other, whatever the sizes. */
static void a_routing_is_one_allocation(void **state)
{
    (void)state;
    static const struct {
        int64_t tokens;
        int32_t topk, experts, ranks, channels;
    } sizes[] = {{0, 1, 2, 2, 1}, {1, 1, 2, 2, 1}, {7, 3, 8, 2, 3}, {33, 8, 64, 8, 5}};
    for (size_t i = 0; i < ARRAY_LENGTH(sizes); i++) {
        ep_routing r =
            make_routing(sizes[i].tokens, sizes[i].topk, sizes[i].experts, sizes[i].ranks, sizes[i].channels);
        const void *arrays[] = {r.first,       r.targets,     r.channel_prefix,      r.expert_counts,
                                r.node_counts, r.rank_prefix, r.recv_channel_prefix, r.recv_expert_counts,
                                r.first_row};
        uintptr_t begin = (uintptr_t)r.arrays, end = (uintptr_t)(r.first_row + r.ranks);
        assert_true(end - begin <= malloc_usable_size(r.arrays));
        for (size_t a = 0; a < ARRAY_LENGTH(arrays); a++)
            assert_in_range((uintptr_t)arrays[a], begin, end);
        for (size_t a = 1; a < ARRAY_LENGTH(arrays); a++)
            assert_true((uintptr_t)arrays[a] >= (uintptr_t)arrays[a - 1]);
        ep_routing_free(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_example_of_the_definition),
        cmocka_unit_test(a_routing_is_one_allocation),
        cmocka_unit_test(ranks_are_sorted_and_stand_once),
        cmocka_unit_test(an_index_out_of_range_names_token_and_slot),
        cmocka_unit_test(rows_may_lie_apart),
        cmocka_unit_test(ranks_named_by_hand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

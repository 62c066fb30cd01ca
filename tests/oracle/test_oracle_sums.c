/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle's orders of sums, against examples worked out by hand: rows of one FP32 number, so chosen that any other
   order gives another sum. */
#include "oracle.h"
#include "unit.h"

#define ONE   0x3f800000u
#define LARGE 0x4b800000u /* 2^24: the next number is 2^24 + 2 */
#define MINUS 0xcb800000u

static const void *const no_biases[2] = {NULL, NULL};

/* 3 ranks of 2 experts; rank 0 has one token with experts 4, 1, 5, 0: on ranks 2, 0, 2, 0; s(0) = 3, s(2) = 2. */
static const int64_t idx[] = {4, 1, 5, 0};
static const oracle_input inputs[3] = {{.num_tokens = 1, .topk_idx = idx}, {0}, {0}};
static const oracle_job job = {.num_ranks = 3,
                               .ranks_per_node = 3,
                               .hidden = 1,
                               .topk = 4,
                               .num_experts = 6,
                               .type = ORACLE_F32,
                               .inputs = inputs};

/* By slot rank 2 comes before rank 0: (1 + 1) + 2^24 = 2^24 + 2; by rank it is (1 + 2^24) + 1 = 2^24. */
static void test_by_slot_ranks_follow_their_last_slots(void **state)
{
    (void)state;
    const uint32_t bias = ONE, from0 = LARGE, from2 = ONE;
    const void *answers[] = {&from0, NULL, &from2}, *const biases[2] = {&bias, NULL};
    uint32_t y;
    oracle_combine_by_slot(&job, 0, biases, answers, &y);
    assert_int_equal(y, LARGE + 1);
    oracle_combine_biased(&job, 0, biases, answers, &y);
    assert_int_equal(y, LARGE);
}

/* The token also goes by hand to rank 1, where none of its experts live, and not to rank 0: rank 1 comes first. */
static void test_by_slot_ranks_without_experts_come_first(void **state)
{
    (void)state;
    const uint8_t in_rank[] = {0, 1, 1};
    const oracle_input by_hand[3] = {{.num_tokens = 1, .topk_idx = idx, .token_in_rank = in_rank}, {0}, {0}};
    oracle_job other = job;
    const uint32_t bias = ONE, from1 = ONE, from2 = LARGE;
    const void *answers[] = {NULL, &from1, &from2}, *const biases[2] = {&bias, NULL};
    uint32_t y;
    other.inputs = by_hand;
    oracle_combine_by_slot(&other, 0, biases, answers, &y);
    assert_int_equal(y, LARGE + 1);
}

/* Slots 0 to 3 lie on ranks 2, 0, 2, 0, and are added in that order: ((1 + 1) + 2^24) - 2^24 = 2. Rank after rank it
   would be (1 - 2^24) + (1 + 2^24) = 1. */
static void test_each_slot_is_added_in_its_turn(void **state)
{
    (void)state;
    const uint32_t rows0[] = {MINUS, ONE}, rows2[] = {ONE, LARGE}; /* by expert: 0 and 1; 4 and 5 */
    const void *rows[] = {rows0, NULL, rows2};
    int32_t map0[4], map2[4];
    const int32_t *const maps[] = {map0, NULL, map2};
    uint32_t y;
    oracle_expert_map(&job, 0, map0);
    oracle_expert_map(&job, 2, map2);
    ASSERT_ARRAY(map0, -1, 1, -1, 0);
    ASSERT_ARRAY(map2, 0, -1, 1, -1);
    oracle_combine_each_slot(&job, 0, no_biases, maps, rows, &y);
    assert_int_equal(y, 0x40000000u);
}

/* Slots 0 to 3 lie on ranks 2, 0, 3, 1 of two nodes: the last of node 1 is 2, that of node 0 is 3. So node 1 comes
   first: (1 + (1 + 2^24)) + 1, where each sum is rounded to 2^24. Nodes ascending it would be (1 + 1) + 2^24, which is
   2^24 + 2, and on one node 1 + 1 + 1 + 2^24, rounded to 2^24 + 4. */
static void test_nodes_follow_their_last_slots(void **state)
{
    (void)state;
    const int64_t four[] = {4, 0, 6, 2};
    const oracle_input of_four[4] = {{.num_tokens = 1, .topk_idx = four}, {0}, {0}, {0}};
    oracle_job nodes = job;
    const uint32_t bias = ONE, from0 = ONE, from1 = 0, from2 = ONE, from3 = LARGE;
    const void *answers[] = {&from0, &from1, &from2, &from3}, *const biases[2] = {&bias, NULL};
    uint32_t y;
    nodes.num_ranks = 4;
    nodes.ranks_per_node = 2;
    nodes.num_experts = 8;
    nodes.inputs = of_four;
    oracle_combine_by_slot(&nodes, 0, biases, answers, &y);
    assert_int_equal(y, LARGE);
    nodes.ranks_per_node = 4;
    oracle_combine_by_slot(&nodes, 0, biases, answers, &y);
    assert_int_equal(y, LARGE + 2);
    nodes.ranks_per_node = 2;
    nodes.nodes = ORACLE_NODES_ONE_ORDER;
    oracle_combine_by_slot(&nodes, 0, biases, answers, &y);
    assert_int_equal(y, LARGE + 2);
}

/* Ranks ascending: 1 + 1 + 0 + 1 + 2^24, rounded to 2^24 + 4. Of two nodes' sums the second is 1 + 2^24, rounded to
   2^24, and the whole 2^24 + 2. */
static void test_ranks_of_all_nodes_in_one_order(void **state)
{
    (void)state;
    const int64_t four[] = {4, 0, 6, 2};
    const oracle_input of_four[4] = {{.num_tokens = 1, .topk_idx = four}, {0}, {0}, {0}};
    oracle_job nodes = job;
    const uint32_t bias = ONE, from0 = ONE, from1 = 0, from2 = ONE, from3 = LARGE;
    const void *answers[] = {&from0, &from1, &from2, &from3}, *const biases[2] = {&bias, NULL};
    uint32_t y;
    nodes.num_ranks = 4;
    nodes.ranks_per_node = 2;
    nodes.num_experts = 8;
    nodes.inputs = of_four;
    oracle_combine_biased(&nodes, 0, biases, answers, &y);
    assert_int_equal(y, LARGE + 1);
    nodes.nodes = ORACLE_NODES_ONE_ORDER;
    oracle_combine_biased(&nodes, 0, biases, answers, &y);
    assert_int_equal(y, LARGE + 2);
}

/* Rank 0 adds 1 + 2^24 + 1, which is 2^24, as each 1 is lost. Then it adds 2 of node 1: 2^24 + 2. Rank 3 adds 1 + 1 + 1
   of its own node, then the rounded 2^24 of node 0: 2^24 + 3, rounded to 2^24 + 4. */
static void test_own_node_first(void **state)
{
    (void)state;
    const int64_t four[] = {4, 0, 6, 2};
    const oracle_input of_four[4] = {{.num_tokens = 1, .topk_idx = four}, {0}, {0}, {0}};
    const oracle_input of_last[4] = {{0}, {0}, {0}, {.num_tokens = 1, .topk_idx = four}};
    oracle_job nodes = job;
    const uint32_t bias = ONE, from0 = LARGE, from1 = ONE, from2 = ONE, from3 = ONE;
    const void *answers[] = {&from0, &from1, &from2, &from3}, *const biases[2] = {&bias, NULL};
    uint32_t y;
    nodes.num_ranks = 4;
    nodes.ranks_per_node = 2;
    nodes.num_experts = 8;
    nodes.nodes = ORACLE_NODES_OWN_FIRST;
    nodes.inputs = of_four;
    oracle_combine_biased(&nodes, 0, biases, answers, &y);
    assert_int_equal(y, LARGE + 1);
    oracle_combine_by_slot(&nodes, 0, biases, answers, &y);
    assert_int_equal(y, LARGE + 1);
    nodes.inputs = of_last;
    oracle_combine_biased(&nodes, 3, biases, answers, &y);
    assert_int_equal(y, LARGE + 2);
}

/* Slots 1 and 3 lie on node 0, 0 and 2 on node 1, which comes first: (1 + 2^24) + (1 - 2^24) = 2^24 + (-2^24 + 1) = 1.
   In turn they are 1 + 1 + 2^24 - 2^24 = 2. */
static void test_each_slot_by_node(void **state)
{
    (void)state;
    const int64_t four[] = {2, 0, 3, 1};
    const oracle_input of_two[2] = {{.num_tokens = 1, .topk_idx = four}, {0}};
    oracle_job nodes = job;
    const uint32_t rows0[] = {ONE, MINUS}, rows1[] = {ONE, LARGE}; /* experts 0 and 1; 2 and 3 */
    const void *rows[] = {rows0, rows1};
    int32_t map0[4], map1[4];
    const int32_t *const maps[] = {map0, map1};
    uint32_t y;
    nodes.num_ranks = 2;
    nodes.ranks_per_node = 1;
    nodes.num_experts = 4;
    nodes.inputs = of_two;
    oracle_expert_map(&nodes, 0, map0);
    oracle_expert_map(&nodes, 1, map1);
    oracle_combine_each_slot(&nodes, 0, no_biases, maps, rows, &y);
    assert_int_equal(y, ONE);
    nodes.ranks_per_node = 2;
    oracle_combine_each_slot(&nodes, 0, no_biases, maps, rows, &y);
    assert_int_equal(y, 0x40000000u);
    nodes.ranks_per_node = 1;
    nodes.nodes = ORACLE_NODES_ONE_ORDER;
    oracle_combine_each_slot(&nodes, 0, no_biases, maps, rows, &y);
    assert_int_equal(y, 0x40000000u);
}

/* A slot of -1, and one whose expert's rank did not keep its row, add nothing; the same expert twice adds two rows. */
static void test_each_slot_without_rows(void **state)
{
    (void)state;
    const int64_t few[] = {-1, 2, 4, 2};
    const oracle_input kept[3] = {{.num_tokens = 1, .topk_idx = few}, {0}, {0}};
    oracle_job other = job;
    const uint32_t rows1[] = {ONE, ONE}, rows2[] = {LARGE};
    const int32_t map1[] = {-1, 0, -1, 1}, map2[] = {-1, -1, -1, -1};
    const void *rows[] = {NULL, rows1, rows2};
    const int32_t *const maps[] = {NULL, map1, map2};
    uint32_t y;
    other.inputs = kept;
    oracle_combine_each_slot(&other, 0, no_biases, maps, rows, &y);
    assert_int_equal(y, 0x40000000u);
}

static void test_owners_weights(void **state)
{
    (void)state;
    const int64_t few[] = {4, 1, -1, 0};
    const oracle_input kept[3] = {{.num_tokens = 1, .topk_idx = few}, {0}, {0}};
    oracle_job other = job;
    const uint32_t from0[] = {10, 11, 12, 13}, from2[] = {20, 21, 22, 23};
    const uint32_t *const weights[] = {from0, NULL, from2};
    uint32_t got[4];
    other.inputs = kept;
    oracle_owners_weights(&other, 0, weights, got);
    ASSERT_ARRAY(got, 20, 11, 0, 13);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_slot_ranks_follow_their_last_slots),
        cmocka_unit_test(test_by_slot_ranks_without_experts_come_first),
        cmocka_unit_test(test_each_slot_is_added_in_its_turn),
        cmocka_unit_test(test_each_slot_without_rows),
        cmocka_unit_test(test_nodes_follow_their_last_slots),
        cmocka_unit_test(test_ranks_of_all_nodes_in_one_order),
        cmocka_unit_test(test_own_node_first),
        cmocka_unit_test(test_each_slot_by_node),
        cmocka_unit_test(test_owners_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle on examples worked by hand. */
#include "oracle/oracle.h"
#include "oracle/unit.h"
#include <stdlib.h>

#define ONE   0x3f800000u
#define TWO   0x40000000u
#define THREE 0x40400000u
#define NAN32 0x7fffffffu

/* The example of the specification: 2 ranks, 4 experts, 4 tokens on rank 0. */
static const int64_t spec_idx[] = {0, 1, 1, 2, 2, 3, 0, 3};
static const oracle_input spec_inputs[2] = {{.num_tokens = 4, .topk_idx = spec_idx}, {.num_tokens = 0}};
static const oracle_job spec_job = {.num_ranks = 2,
                                    .ranks_per_node = 2,
                                    .hidden = 1,
                                    .topk = 2,
                                    .num_experts = 4,
                                    .type = ORACLE_F32,
                                    .inputs = spec_inputs};

static void test_layout_of_the_specification(void **state)
{
    (void)state;
    int32_t ranks[2], nodes[1], experts[4];
    uint8_t routes[8];
    oracle_tokens_per_rank(&spec_job, 0, ranks);
    oracle_tokens_per_node(&spec_job, 0, nodes);
    oracle_tokens_per_expert(&spec_job, 0, experts);
    oracle_routes(&spec_job, 0, routes);
    ASSERT_ARRAY(ranks, 3, 3);
    ASSERT_ARRAY(nodes, 4);
    ASSERT_ARRAY(experts, 2, 2, 2, 2);
    ASSERT_ARRAY(routes, 1, 0, 1, 1, 0, 1, 1, 1);
}

static void test_layout_with_two_nodes(void **state)
{
    (void)state;
    oracle_job job = spec_job;
    int32_t nodes[2];
    job.ranks_per_node = 1;
    oracle_tokens_per_node(&job, 0, nodes);
    ASSERT_ARRAY(nodes, 3, 3);
}

/* Two ranks, two experts each. Rank 0: token 0 to expert 3 twice and to 0; token 1 nowhere. Rank 1:
   tokens to 1, 2, 2. */
static const int64_t idx0[] = {3, 0, 3, -1, -1, -1};
static const int64_t idx1[] = {1, -1, -1, 2, -1, 2, -1, -1, 2};
static const uint32_t weights0[] = {10, 11, 12, 13, 14, 15};
static const uint32_t weights1[] = {20, 21, 22, 23, 24, 25, 26, 27, 28};
static const uint32_t x0[] = {100, 101, 102, 103};
static const uint32_t x1[] = {200, 201, 202, 203, 204, 205};
static const oracle_input inputs[2] = {{.num_tokens = 2, .x = x0, .topk_idx = idx0, .weights = weights0},
                                       {.num_tokens = 3, .x = x1, .topk_idx = idx1, .weights = weights1}};
static const oracle_job job = {.num_ranks = 2,
                               .ranks_per_node = 2,
                               .hidden = 2,
                               .topk = 3,
                               .num_experts = 4,
                               .expert_alignment = 4,
                               .type = ORACLE_F32,
                               .inputs = inputs};

static void test_counts(void **state)
{
    (void)state;
    int32_t prefix[2], experts[2];
    assert_int_equal(oracle_num_received(&job, 0), 2);
    assert_int_equal(oracle_num_received(&job, 1), 3);
    oracle_rank_prefix(&job, 0, prefix);
    ASSERT_ARRAY(prefix, 1, 2);
    oracle_rank_prefix(&job, 1, prefix);
    ASSERT_ARRAY(prefix, 1, 3);
    oracle_received_per_expert(&job, 1, experts); /* 3 of expert 2, 2 of expert 3; aligned to 4 */
    ASSERT_ARRAY(experts, 4, 4);
}

static void test_counts_without_alignment(void **state)
{
    (void)state;
    oracle_job plain = job;
    int32_t experts[2];
    plain.expert_alignment = 0;
    oracle_received_per_expert(&plain, 0, experts);
    ASSERT_ARRAY(experts, 1, 1);
    oracle_received_per_expert(&plain, 1, experts);
    ASSERT_ARRAY(experts, 3, 2);
}

static void test_channels(void **state)
{
    (void)state;
    int32_t prefix[2 * 4];
    oracle_channel_prefix(&job, 1, 2, prefix); /* tokens 0, 1 in channel 0, token 2 in channel 1 */
    ASSERT_ARRAY(prefix, 1, 1, 1, 2);
    oracle_channel_prefix(&job, 1, 4, prefix); /* more channels than tokens */
    ASSERT_ARRAY(prefix, 1, 1, 1, 1, 0, 1, 2, 2);
    oracle_channel_prefix(&spec_job, 1, 4, prefix); /* no token */
    ASSERT_ARRAY(prefix, 0, 0, 0, 0, 0, 0, 0, 0);
}

static void test_dispatch_orders_by_source_and_token(void **state)
{
    (void)state;
    uint32_t x[6], weights[9];
    int64_t idx[9];
    oracle_dispatch(&job, 0, x, idx, weights);
    ASSERT_ARRAY(x, 100, 101, 200, 201);
    ASSERT_ARRAY(idx, -1, 0, -1, 1, -1, -1);
    ASSERT_ARRAY(weights, 0, 11, 0, 20, 0, 0);
    oracle_dispatch(&job, 1, x, idx, weights);
    ASSERT_ARRAY(x, 100, 101, 202, 203, 204, 205);
    ASSERT_ARRAY(idx, 1, -1, 1, 0, -1, 0, -1, -1, 0);
    ASSERT_ARRAY(weights, 10, 0, 12, 23, 0, 25, 0, 0, 28);
}

static void test_combine_sums_the_answers(void **state)
{
    (void)state;
    const uint32_t from0[] = {ONE, TWO, 0x80000000u, 0xffc00000u}; /* for rank 0's token 0, for rank 1's token 0 */
    const uint32_t from1[] = {TWO, 0x80000000u, ONE, TWO, THREE, 0x7f800000u};
    const void *answers[] = {from0, from1};
    uint32_t y[6];
    oracle_combine(&job, 0, answers, y);
    ASSERT_ARRAY(y, THREE, TWO, 0, 0); /* token 1 went nowhere */
    oracle_combine(&job, 1, answers, y);
    ASSERT_ARRAY(y, 0, NAN32, ONE, TWO, THREE, 0x7f800000u); /* +0 + -0 = +0 */
}

static void test_combine_sums_the_weights_slot_by_slot(void **state)
{
    (void)state;
    const uint32_t from0[] = {ONE, TWO, THREE, ONE, ONE, ONE};
    const uint32_t from1[] = {TWO, ONE, 0, ONE, 0, 0, TWO, TWO, 0};
    const uint32_t *answers[] = {from0, from1};
    uint32_t weights[9];
    oracle_combine_weights(&job, 0, answers, weights);
    ASSERT_ARRAY(weights, THREE, THREE, THREE, 0, 0, 0);
    oracle_combine_weights(&job, 1, answers, weights);
    ASSERT_ARRAY(weights, ONE, ONE, ONE, ONE, 0, 0, TWO, TWO, 0);
}

/* 1 + 2^-8 + 2^-8 in bf16: rounding after each addition would lose both small terms. */
static void test_combine_rounds_once(void **state)
{
    (void)state;
    const int64_t idx[] = {0, 1, 2};
    const oracle_input one_token[3] = {{.num_tokens = 1, .topk_idx = idx}, {0}, {0}};
    const oracle_job three = {.num_ranks = 3,
                              .ranks_per_node = 3,
                              .hidden = 1,
                              .topk = 3,
                              .num_experts = 3,
                              .type = ORACLE_BF16,
                              .inputs = one_token};
    const uint16_t one = 0x3f80, small = 0x3b80;
    const void *answers[] = {&one, &small, &small};
    uint16_t y;
    oracle_combine(&three, 0, answers, &y);
    assert_int_equal(y, 0x3f81);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout_of_the_specification),
        cmocka_unit_test(test_layout_with_two_nodes),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_counts_without_alignment),
        cmocka_unit_test(test_channels),
        cmocka_unit_test(test_dispatch_orders_by_source_and_token),
        cmocka_unit_test(test_combine_sums_the_answers),
        cmocka_unit_test(test_combine_sums_the_weights_slot_by_slot),
        cmocka_unit_test(test_combine_rounds_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

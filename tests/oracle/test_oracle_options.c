/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle's options on examples worked by hand: scales, routing by hand, worst-case sizes, expert-major rows,
 * biases. */
#include "oracle/oracle.h"
#include "oracle/unit.h"

#define HALF  0x3f000000u
#define ONE   0x3f800000u
#define TWO   0x40000000u
#define THREE 0x40400000u
#define FOUR  0x40800000u
#define SIX   0x40c00000u

/* Two ranks, two experts each. Rank 0: token 0 to expert 3 twice and to 0; token 1 nowhere. Rank 1: tokens to 1, to 2
 * twice, to 2. So rank 1 receives three rows, of its experts {1, -, 1}, {0, -, 0}, {-, -, 0}. */
static const int64_t idx0[] = {3, 0, 3, -1, -1, -1};
static const int64_t idx1[] = {1, -1, -1, 2, -1, 2, -1, -1, 2};
static const uint32_t x0[] = {100, 101}, x1[] = {200, 201, 202};
static const uint32_t scales0[] = {1, 2, 3, 4}, scales1[] = {5, 6, 7, 8, 9, 10};

static void make_inputs(oracle_input inputs[2])
{
    inputs[0] = (oracle_input){.num_tokens = 2, .x = x0, .topk_idx = idx0, .scales = scales0};
    inputs[1] = (oracle_input){.num_tokens = 3, .x = x1, .topk_idx = idx1, .scales = scales1};
}

static oracle_job make_job(const oracle_input *inputs)
{
    return (oracle_job){.num_ranks = 2,
                        .ranks_per_node = 2,
                        .hidden = 1,
                        .topk = 3,
                        .num_scales = 2,
                        .num_experts = 4,
                        .type = ORACLE_F32,
                        .inputs = inputs};
}

static void test_scales_follow_their_rows(void **state)
{
    (void)state;
    oracle_input inputs[2];
    make_inputs(inputs);
    oracle_job job = make_job(inputs);
    uint32_t scales[6];
    oracle_dispatch_scales(&job, 0, scales);
    ASSERT_ARRAY(scales, 1, 2, 5, 6);
    oracle_dispatch_scales(&job, 1, scales);
    ASSERT_ARRAY(scales, 1, 2, 7, 8, 9, 10);
}

static void test_routing_by_hand(void **state)
{
    (void)state;
    static const uint8_t in_rank0[] = {0, 1, 1, 1}, in_rank1[] = {0, 0, 0, 7, 1, 0};
    oracle_input inputs[2];
    make_inputs(inputs);
    inputs[0].token_in_rank = in_rank0;
    inputs[1].token_in_rank = in_rank1;
    oracle_job job = make_job(inputs);
    uint32_t x[3];
    int64_t idx[9];
    int32_t counts[2];
    assert_int_equal(oracle_num_received(&job, 0), 2);
    oracle_dispatch(&job, 0, x, idx, NULL);
    ASSERT_ARRAY(x, 101, 202);
    ASSERT_ARRAY(idx, -1, -1, -1, -1, -1, -1);
    oracle_received_per_expert(&job, 0, counts); /* expert 0 and 1 were chosen by tokens that do not come */
    ASSERT_ARRAY(counts, 0, 0);
    assert_int_equal(oracle_num_received(&job, 1), 3);
    oracle_dispatch(&job, 1, x, idx, NULL);
    ASSERT_ARRAY(x, 100, 101, 201);
    ASSERT_ARRAY(idx, 1, -1, 1, -1, -1, -1, 0, -1, 0);
    oracle_received_per_expert(&job, 1, counts);
    ASSERT_ARRAY(counts, 2, 2);
}

static void test_routing_by_hand_alone(void **state)
{
    (void)state;
    static const uint8_t in_rank0[] = {0, 1, 1, 1}, in_rank1[] = {0, 0, 0, 1, 1, 0};
    static const int32_t counts0[] = {9, 0, 2, 1}, counts1[] = {1, 0, 0, 4};
    oracle_input inputs[2];
    make_inputs(inputs);
    inputs[0].token_in_rank = in_rank0;
    inputs[1].token_in_rank = in_rank1;
    inputs[0].topk_idx = inputs[1].topk_idx = NULL;
    inputs[0].tokens_per_expert = counts0;
    inputs[1].tokens_per_expert = counts1;
    oracle_job job = make_job(inputs);
    job.topk = 0;
    job.expert_alignment = 4;
    uint32_t x[3];
    int32_t counts[2];
    oracle_dispatch(&job, 1, x, NULL, NULL);
    ASSERT_ARRAY(x, 100, 101, 201);
    oracle_received_per_expert(&job, 0, counts);
    ASSERT_ARRAY(counts, 12, 0);
    oracle_received_per_expert(&job, 1, counts);
    ASSERT_ARRAY(counts, 4, 8);
    inputs[0].tokens_per_expert = inputs[1].tokens_per_expert = NULL;
    oracle_received_per_expert(&job, 1, counts);
    ASSERT_ARRAY(counts, 0, 0);
}

/* Only two of rank 1's three rows have space: the last of rank 1's own tokens is dropped, and adds nothing. */
static void test_rows_beyond_the_worst_case(void **state)
{
    (void)state;
    oracle_input inputs[2];
    make_inputs(inputs);
    inputs[1].num_worst_tokens = 2;
    oracle_job job = make_job(inputs);
    uint32_t x[2] = {0}, y[3];
    int64_t idx[6];
    assert_int_equal(oracle_num_received(&job, 1), 3);
    assert_int_equal(oracle_num_kept(&job, 1), 2);
    assert_int_equal(oracle_num_rows(&job, 1), 2);
    assert_int_equal(oracle_num_rows(&job, 0), 2);
    oracle_dispatch(&job, 1, x, idx, NULL);
    ASSERT_ARRAY(x, 100, 201);
    const uint32_t from0[] = {ONE, ONE}, from1[] = {TWO, THREE};
    const void *answers[] = {from0, from1};
    oracle_combine(&job, 0, answers, y);
    ASSERT_ARRAY(y, THREE, 0);
    oracle_combine(&job, 1, answers, y);
    ASSERT_ARRAY(y, ONE, THREE, 0);
}

static void test_worst_case_larger_than_needed(void **state)
{
    (void)state;
    oracle_input inputs[2];
    make_inputs(inputs);
    inputs[1].num_worst_tokens = 4;
    oracle_job job = make_job(inputs);
    int32_t map[12];
    assert_int_equal(oracle_num_kept(&job, 1), 3);
    assert_int_equal(oracle_num_rows(&job, 1), 4);
    assert_int_equal(oracle_num_expert_rows(&job, 1), 12);
    oracle_expert_map(&job, 1, map);
    ASSERT_ARRAY(map, 3, -1, 4, 0, -1, 1, -1, -1, 2, -1, -1, -1);
}

static void test_expert_rows(void **state)
{
    (void)state;
    oracle_input inputs[2];
    make_inputs(inputs);
    oracle_job job = make_job(inputs);
    int32_t map[9], ends[2];
    uint32_t rows[] = {100, 201, 202}, sorted[5] = {0};
    assert_int_equal(oracle_num_expert_rows(&job, 1), 5);
    oracle_expert_map(&job, 1, map);
    ASSERT_ARRAY(map, 3, -1, 4, 0, -1, 1, -1, -1, 2);
    oracle_expert_expand(&job, 1, 4, rows, sorted);
    ASSERT_ARRAY(sorted, 201, 201, 202, 100, 100);
    oracle_expert_ends(&job, 1, ends);
    ASSERT_ARRAY(ends, 3, 5);
    job.expert_alignment = 4;
    oracle_expert_ends(&job, 1, ends);
    ASSERT_ARRAY(ends, 3, 6);
    assert_int_equal(oracle_num_expert_rows(&job, 1), 8);
    oracle_expert_map(&job, 1, map);
    ASSERT_ARRAY(map, 4, -1, 5, 0, -1, 1, -1, -1, 2);
}

/* One row is kept, whose places would be 3 and 4 of three rows: both are lost. */
static void test_expert_rows_beyond_the_worst_case(void **state)
{
    (void)state;
    oracle_input inputs[2];
    make_inputs(inputs);
    inputs[1].num_worst_tokens = 1;
    oracle_job job = make_job(inputs);
    int32_t map[3];
    assert_int_equal(oracle_num_expert_rows(&job, 1), 3);
    oracle_expert_map(&job, 1, map);
    ASSERT_ARRAY(map, -1, -1, -1);
    job.expert_alignment = 4;
    assert_int_equal(oracle_num_expert_rows(&job, 1), 9);
    oracle_expert_map(&job, 1, map);
    ASSERT_ARRAY(map, 4, -1, 5);
}

/* Places are those of all rows: expert 0 has 0 to 2, expert 1 3 and 4. Of four rows the last is lost. */
static void test_expert_rows_within_a_limit(void **state)
{
    (void)state;
    oracle_input inputs[2];
    make_inputs(inputs);
    inputs[1].num_expert_rows = 4;
    oracle_job job = make_job(inputs);
    int32_t map[9];
    assert_int_equal(oracle_num_expert_rows(&job, 1), 4);
    oracle_expert_map(&job, 1, map);
    ASSERT_ARRAY(map, 3, -1, -1, 0, -1, 1, -1, -1, 2);
    inputs[1].num_expert_rows = 7;
    assert_int_equal(oracle_num_expert_rows(&job, 1), 7);
}

static void test_expert_rows_are_weighted_and_summed(void **state)
{
    (void)state;
    oracle_input inputs[2];
    make_inputs(inputs);
    oracle_job job = make_job(inputs);
    const uint32_t sorted[] = {ONE, TWO, THREE, FOUR, ONE};
    const uint32_t weights[] = {HALF, 0x7fffffffu, FOUR, TWO, ONE, TWO, ONE, ONE, TWO};
    uint32_t rows[3];
    oracle_expert_reduce(&job, 1, sorted, NULL, rows);
    ASSERT_ARRAY(rows, 0x40a00000u /* 5 */, THREE, THREE);
    oracle_expert_reduce(&job, 1, sorted, weights, rows);
    ASSERT_ARRAY(rows, SIX, SIX, SIX);
}

static void test_expert_rows_have_the_weights_of_their_slots(void **state)
{
    (void)state;
    static const uint32_t weights0[] = {10, 11, 12, 13, 14, 15}, weights1[] = {20, 21, 22, 23, 24, 25, 26, 27, 28};
    oracle_input inputs[2];
    make_inputs(inputs);
    inputs[0].weights = weights0;
    inputs[1].weights = weights1;
    oracle_job job = make_job(inputs);
    uint32_t row_weights[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    oracle_expert_weights(&job, 1, row_weights);
    ASSERT_ARRAY(row_weights, 23, 25, 28, 10, 12, 1);
    job.expert_alignment = 4;
    oracle_expert_weights(&job, 1, row_weights);
    ASSERT_ARRAY(row_weights, 23, 25, 28, 10, 10, 12, 1, 1);
}

static void test_sources_are_told_with_their_places(void **state)
{
    (void)state;
    oracle_input inputs[2];
    make_inputs(inputs);
    oracle_job job = make_job(inputs);
    int32_t map[9], metadata[15];
    oracle_expert_map(&job, 1, map);
    oracle_dispatch_metadata(&job, 1, 10, map, metadata);
    ASSERT_ARRAY(metadata, 0, 0, 3, -1, 4, 11, 1, 0, -1, 1, 12, 1, -1, -1, 2);
    oracle_dispatch_metadata(&job, 1, 10, NULL, metadata);
    ASSERT_ARRAY(metadata, 0, 0, -1, -1, -1, 11, 1, -1, -1, -1, 12, 1, -1, -1, -1);
}

/* (1 + 2^-12)² rounds to 1 + 2^-11 before -1 is added; a fused product would keep 2^-24. */
static void test_products_are_rounded(void **state)
{
    (void)state;
    static const int64_t idx[] = {0, 0};
    const uint32_t x[] = {0};
    oracle_input inputs[1] = {{.num_tokens = 1, .x = x, .topk_idx = idx}};
    const oracle_job job = {.num_ranks = 1,
                            .ranks_per_node = 1,
                            .hidden = 1,
                            .topk = 2,
                            .num_experts = 1,
                            .type = ORACLE_F32,
                            .inputs = inputs};
    const uint32_t near_one = 0x3f800800u, minus_one = 0xbf800000u;
    const uint32_t sorted[] = {minus_one, near_one}, weights[] = {ONE, near_one};
    uint32_t row;
    oracle_expert_reduce(&job, 0, sorted, weights, &row);
    assert_int_equal(row, 0x3a000000u);
}

/* 2^-24 + 2^-24 + 1: in this order the small terms count; after the 1 both would be lost. */
static void test_biases_come_first(void **state)
{
    (void)state;
    static const int64_t idx[] = {0, -1};
    const oracle_input inputs[1] = {{.num_tokens = 2, .topk_idx = idx}};
    const oracle_job job = {.num_ranks = 1,
                            .ranks_per_node = 1,
                            .hidden = 1,
                            .topk = 1,
                            .num_experts = 1,
                            .type = ORACLE_F32,
                            .inputs = inputs};
    const uint32_t tiny = 0x33800000u, bias[] = {tiny, 0x80000000u}, rows[] = {ONE};
    const void *answers[] = {rows}, *none[2] = {NULL, NULL}, *one[2] = {NULL, bias}, *two[2] = {bias, bias};
    uint32_t y[2];
    oracle_combine_biased(&job, 0, none, answers, y);
    ASSERT_ARRAY(y, ONE, 0);
    oracle_combine_biased(&job, 0, one, answers, y);
    ASSERT_ARRAY(y, ONE, 0);
    oracle_combine_biased(&job, 0, two, answers, y);
    ASSERT_ARRAY(y, ONE + 1, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scales_follow_their_rows),
        cmocka_unit_test(test_routing_by_hand),
        cmocka_unit_test(test_routing_by_hand_alone),
        cmocka_unit_test(test_rows_beyond_the_worst_case),
        cmocka_unit_test(test_worst_case_larger_than_needed),
        cmocka_unit_test(test_expert_rows),
        cmocka_unit_test(test_expert_rows_beyond_the_worst_case),
        cmocka_unit_test(test_expert_rows_within_a_limit),
        cmocka_unit_test(test_expert_rows_are_weighted_and_summed),
        cmocka_unit_test(test_expert_rows_have_the_weights_of_their_slots),
        cmocka_unit_test(test_sources_are_told_with_their_places),
        cmocka_unit_test(test_products_are_rounded),
        cmocka_unit_test(test_biases_come_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle of low-latency mode, against examples worked out by hand. */
#include "ep/low_latency/oracle.h"
#include "oracle/unit.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ONE   0x3f800000u
#define LARGE 0x4b800000u /* 2^24: the next number is 2^24 + 2 */
#define MINUS 0xcb800000u

/* ---- formats ----------------------------------------------------------------------------------------------------- */

static void test_e4m3(void **state)
{
    (void)state;
    assert_true(llo_e4m3_widen(0x38) == 1.0f && llo_e4m3_widen(0x7e) == 448.0f && llo_e4m3_widen(0x01) == 0x1p-9f);
    assert_true(llo_e4m3_widen(0x08) == 0x1p-6f && llo_e4m3_widen(0xbc) == -1.5f && isnan(llo_e4m3_widen(0xff)));
    for (int bits = 0; bits < 256; bits++)
        if (!isnan(llo_e4m3_widen((uint8_t)bits)))
            assert_int_equal(llo_e4m3_round(llo_e4m3_widen((uint8_t)bits)), bits);
    assert_int_equal(llo_e4m3_round(NAN), 0x7f);
    assert_int_equal(llo_e4m3_round(1e9f), 0x7e);
    assert_int_equal(llo_e4m3_round(-INFINITY), 0xfe);
    assert_int_equal(llo_e4m3_round(1.0625f), 0x38); /* between 1 and 1.125 */
    assert_int_equal(llo_e4m3_round(1.1875f), 0x3a); /* between 1.125 and 1.25 */
    assert_int_equal(llo_e4m3_round(nextafterf(1.0625f, 2.0f)), 0x39);
    assert_int_equal(llo_e4m3_round(0x1p-10f), 0x00);
    assert_int_equal(llo_e4m3_round(0x3p-10f), 0x02);
    assert_int_equal(llo_e4m3_round(nextafterf(0x1p-10f, 1.0f)), 0x01);
    assert_int_equal(llo_e4m3_round(-0x1p-20f), 0x80);
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Two groups: the first reaches ±2, the second nothing. */
static void quantise_two_groups(llo_format format, uint8_t q[2 * LLO_GROUP], uint32_t scales[2])
{
    float x[2 * LLO_GROUP] = {2.0f, -2.0f, 1.0f, 0.5f, 2.0f / 254.0f};
    const llo_job job = {.hidden = 2 * LLO_GROUP, .type = ORACLE_F32, .format = format};
    llo_quantise(&job, x, q, scales);
}

static void test_fp8(void **state)
{
    (void)state;
    uint8_t q[2 * LLO_GROUP];
    uint32_t scales[2];
    quantise_two_groups(LLO_FP8, q, scales);
    ASSERT_ARRAY(q, 0x7e, 0xfe, 0x76, 0x6e, 0x3e); /* 448, -448, 224, 112, 1.76… */
    ASSERT_ARRAY(scales, bits_of(2.0f / 448.0f), bits_of(1e-4f / 448.0f));
    assert_int_equal(q[LLO_GROUP], 0);
}

/* 2/448 = 0.0044… is between 2^-8 and 2^-7; 1e-4/448 = 2.2e-7 between 2^-23 and 2^-22. */
static void test_fp8_powers_of_two(void **state)
{
    (void)state;
    uint8_t q[2 * LLO_GROUP];
    uint32_t scales[2];
    quantise_two_groups(LLO_FP8_ROUND, q, scales);
    ASSERT_ARRAY(scales, bits_of(0x1p-7f), bits_of(0x1p-22f));
    ASSERT_ARRAY(q, 0x78, 0xf8, 0x70, 0x68, 0x38); /* 256, -256, 128, 64, 1.007… */
    scales[1] = 7;
    quantise_two_groups(LLO_FP8_UE8M0, q, scales);
    ASSERT_ARRAY(scales, 120u | 105u << 8, 7);
    ASSERT_ARRAY(q, 0x78, 0xf8, 0x70, 0x68, 0x38);
}

/* A largest magnitude of 448 · 2^k has that very power as its scale. */
static void test_fp8_powers_stay(void **state)
{
    (void)state;
    float x[LLO_GROUP] = {448.0f * 0x1p5f};
    const llo_job job = {.hidden = LLO_GROUP, .type = ORACLE_F32, .format = LLO_FP8_ROUND};
    uint8_t q[LLO_GROUP];
    uint32_t scale;
    llo_quantise(&job, x, q, &scale);
    assert_int_equal(scale, bits_of(0x1p5f));
    assert_int_equal(q[0], 0x7e);
}

static void test_int8(void **state)
{
    (void)state;
    uint8_t q[2 * LLO_GROUP];
    uint32_t scales[2];
    quantise_two_groups(LLO_INT8, q, scales);
    ASSERT_ARRAY(scales, bits_of(2.0f / 127.0f), bits_of(1e-4f / 127.0f));
    ASSERT_ARRAY((int8_t *)q, 127, -127, 64, 32, 0); /* 63.5 and 0.5 are ties; 31.75 is none */
}

static void test_nan_takes_the_group(void **state)
{
    (void)state;
    float x[2 * LLO_GROUP] = {[3] = -INFINITY, [LLO_GROUP] = 127.0f};
    llo_job job = {.hidden = 2 * LLO_GROUP, .type = ORACLE_F32, .format = LLO_INT8};
    uint8_t q[2 * LLO_GROUP];
    uint32_t scales[2];
    x[0] = 1.0f;
    llo_quantise(&job, x, q, scales);
    ASSERT_ARRAY(scales, 0x7fffffffu, ONE);
    ASSERT_ARRAY(q, 0, 0, 0, 0);
    assert_int_equal(q[LLO_GROUP], 127);
    job.format = LLO_FP8_UE8M0;
    x[3] = NAN;
    llo_quantise(&job, x, q, scales);
    ASSERT_ARRAY(scales, 255u | 126u << 8);
    ASSERT_ARRAY(q, 0x7f, 0x7f, 0x7f, 0x7f);
}

/* ---- LogFMT ------------------------------------------------------------------------------------------------------ */

static bool lies_between(const uint32_t *low, const uint32_t *high, int i, double value)
{
    return oracle_widen(ORACLE_F32, low[i]) <= value && value <= oracle_widen(ORACLE_F32, high[i]);
}

/* From 2^-11 to 2^-1 there are ten binades of 51 steps each. Powers of two arrive as they are. So does a number a third
   of a step above one; a number two thirds above it arrives a step higher. */
static void test_log_of_powers_of_two(void **state)
{
    (void)state;
    uint32_t x[LLO_GROUP], low[LLO_GROUP], high[LLO_GROUP];
    for (int i = 0; i < LLO_GROUP; i++)
        x[i] = bits_of(ldexpf(i % 2 ? -1 : 1, -1 - i % 11));
    x[11] = bits_of(0x1p-9f * exp2f(1.0f / 153));
    x[12] = bits_of(-0x1p-9f * exp2f(2.0f / 153));
    x[13] = 0;
    x[14] = 0x80000000u;
    assert_int_equal(llo_log_row(ORACLE_F32, LLO_GROUP, x, low, high), LLO_GROUP - 2);
    for (int i = 0; i < LLO_GROUP; i++)
        if (i < 11 || i > 14) assert_true(lies_between(low, high, i, oracle_widen(ORACLE_F32, x[i])));
    assert_true(lies_between(low, high, 11, 0x1p-9) && lies_between(low, high, 12, -0x1p-9 * exp2(1.0 / 51)));
    assert_true(low[13] == 0 && high[13] == 0 && low[14] == 0x80000000u && high[14] == 0x80000000u);
    for (int i = 0; i < LLO_GROUP; i++)
        assert_true(fabs((double)oracle_widen(ORACLE_F32, high[i]) - oracle_widen(ORACLE_F32, low[i])) <=
                    1e-5 * fabs((double)oracle_widen(ORACLE_F32, x[i])));
}

/* In the middle between two steps both are meant; numbers below the range are raised to its least. */
static void test_log_between_two_steps(void **state)
{
    (void)state;
    uint32_t x[LLO_GROUP] = {0}, low[LLO_GROUP], high[LLO_GROUP];
    x[0] = bits_of(0x1p-1f);
    x[1] = bits_of(0x1p-11f);
    x[2] = bits_of(0x1p-6f * exp2f(1.0f / 102));
    llo_log_row(ORACLE_F32, LLO_GROUP, x, low, high);
    assert_true(lies_between(low, high, 2, 0x1p-6) && lies_between(low, high, 2, 0x1p-6 * exp2(1.0 / 51)));
    x[1] = bits_of(-0x1p-70f);
    llo_log_row(ORACLE_F32, LLO_GROUP, x, low, high);
    assert_true(lies_between(low, high, 1, -0x1p-33) && !lies_between(low, high, 1, -0x1p-34));
}

/* As BF16, rounded once: what is not below 1, not a number, too small, all alike, or nothing but zeros. */
static void test_log_groups_that_go_as_bf16(void **state)
{
    static const float odd[][2] = {{1.0f, 0.3f}, {INFINITY, 0.3f}, {-0x1.4p-95f, 0x1p-99f}, {-0.3f, 0.3f}, {0, 0}};
    (void)state;
    for (size_t c = 0; c < sizeof odd / sizeof *odd; c++) {
        uint32_t x[LLO_GROUP] = {0}, low[LLO_GROUP], high[LLO_GROUP];
        for (int i = 0; i < LLO_GROUP; i++)
            x[i] = i % 3 == 2 ? 0x80000000u : bits_of(odd[c][i % 3]);
        assert_int_equal(llo_log_row(ORACLE_F32, LLO_GROUP, x, low, high), 0);
        for (int i = 0; i < LLO_GROUP; i++)
            assert_int_equal(low[i], oracle_round(ORACLE_BF16, oracle_widen(ORACLE_F32, x[i])) << 16);
    }
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* 2 ranks of 2 experts, B 3, H 1. Rank 0: {0, 3}, {1, 0}. Rank 1: {0, 2}, {-1, 0}, and {1, 1}, which has two rows at
   expert 1. */
static const int64_t idx0[] = {0, 3, 1, 0}, idx1[] = {0, 2, -1, 0, 1, 1};
static const uint32_t x0[] = {10, 11}, x1[] = {20, 21, 22};
static const oracle_input inputs[2] = {{.num_tokens = 2, .topk_idx = idx0, .x = x0},
                                       {.num_tokens = 3, .topk_idx = idx1, .x = x1}};
static const llo_job pair = {
    .num_ranks = 2, .max_tokens = 3, .hidden = 1, .topk = 2, .num_experts = 4, .type = ORACLE_F32, .inputs = inputs};

static void test_rows(void **state)
{
    (void)state;
    int32_t *map = llo_map_make(&pair), count[2], src_info[12];
    int64_t range[4];
    uint32_t x[12] = {0};
    llo_places(&pair, map, 0, count, src_info, range);
    ASSERT_ARRAY(count, 4, 3);
    ASSERT_ARRAY(src_info, 0, 1, 0, 1, -1, -1, 1, 2, 2, -1);
    ASSERT_ARRAY(range, 2, (int64_t)2 << 32 | 2, 1, (int64_t)1 << 32 | 2);
    llo_dispatch(&pair, map, 0, x, NULL);
    ASSERT_ARRAY(x, 10, 11, 20, 21, 0, 0, 11, 22, 22, 0);
    llo_places(&pair, map, 1, count, src_info, range);
    ASSERT_ARRAY(count, 1, 1);
    assert_int_equal(llo_messages(&pair, 0), 3);
    assert_int_equal(llo_messages(&pair, 1), 4);
    free(map);
}

static void test_wrong_tokens_have_no_rows(void **state)
{
    (void)state;
    const int64_t idx[] = {1, 4, 0, 1};
    const oracle_input given = {.num_tokens = 2, .topk_idx = idx, .x = x0};
    const llo_job job = {.num_ranks = 1,
                         .max_tokens = 2,
                         .hidden = 1,
                         .topk = 2,
                         .num_experts = 4,
                         .type = ORACLE_F32,
                         .inputs = &given};
    int32_t *map = llo_map_make(&job);
    assert_true(llo_token_is_wrong(&job, 0, 0) && !llo_token_is_wrong(&job, 0, 1));
    ASSERT_ARRAY(map, -1, -1, 0, 0);
    free(map);
}

static void test_masked_ranks_have_no_rows(void **state)
{
    (void)state;
    const uint8_t masked[] = {0, 1};
    llo_job alone = pair;
    alone.masked = masked;
    int32_t *map = llo_map_make(&alone), count[2], src_info[12];
    int64_t range[4];
    llo_places(&alone, map, 0, count, src_info, range);
    ASSERT_ARRAY(count, 2, 1);
    assert_int_equal(llo_messages(&alone, 0), 2);
    free(map);
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

/* 3 ranks of 2 experts, B 1; rank 0 has one token with experts 4, 1, -1, 5, 0: their rows are r4, r1, r5, r0. */
static void sum(oracle_type type, const uint32_t rows[4], const uint32_t *weights, uint32_t *exact, uint32_t *reduced)
{
    const int64_t idx[] = {4, 1, -1, 5, 0};
    const uint32_t ones[] = {ONE, ONE, ONE, ONE, ONE};
    const oracle_input given[3] = {{.num_tokens = 1, .topk_idx = idx, .weights = weights ? weights : ones}, {0}, {0}};
    const llo_job job = {
        .num_ranks = 3, .max_tokens = 1, .hidden = 1, .topk = 5, .num_experts = 6, .type = type, .inputs = given};
    uint32_t of0[6] = {0}, of2[6] = {0};
    const void *const all[] = {of0, NULL, of2};
    oracle_store(type, of2, 0, rows[0]); /* expert 4 */
    oracle_store(type, of0, 3, rows[1]); /* expert 1 */
    oracle_store(type, of2, 3, rows[2]); /* expert 5 */
    oracle_store(type, of0, 0, rows[3]); /* expert 0 */
    int32_t *map = llo_map_make(&job);
    *exact = *reduced = 0;
    llo_combine_exact(&job, map, 0, all, exact);
    llo_combine_reduced(&job, map, 0, all, reduced);
    free(map);
}

/* ((1 + 1) + 2^24) - 2^24 = 2; rank after rank (1 - 2^24) + (1 + 2^24) = (1 - 2^24) + 2^24 = 1. */
static void test_orders(void **state)
{
    (void)state;
    const uint32_t rows[] = {ONE, ONE, LARGE, MINUS};
    uint32_t exact, reduced;
    sum(ORACLE_F32, rows, NULL, &exact, &reduced);
    assert_int_equal(exact, 0x40000000u);
    assert_int_equal(reduced, ONE);
}

/* BF16: 1 + 2^-8 on one rank rounds to 1 before the other's 2^-8 comes; exact, 1 + 2^-8 + 2^-8 = 1 + 2^-7 stays. */
static void test_reduced_rounds_twice(void **state)
{
    (void)state;
    const uint32_t rows[] = {0x3b80, 0x3f80, 0, 0x3b80};
    uint32_t exact, reduced;
    sum(ORACLE_BF16, rows, NULL, &exact, &reduced);
    assert_int_equal(exact, 0x3f81);
    assert_int_equal(reduced, 0x3f80);
}

/* (1 + 2^-23)² = 1 + 2^-22 + 2^-46 loses its last bit before -(1 + 2^-22) is added: 0, and 2^-46 if contracted. */
static void test_products_are_rounded(void **state)
{
    (void)state;
    const uint32_t next = ONE + 1, rows[] = {ONE + 2, next, 0, 0}, weights[] = {0xbf800000u, next, ONE, ONE, ONE};
    uint32_t exact, reduced;
    sum(ORACLE_F32, rows, weights, &exact, &reduced);
    assert_int_equal(exact, 0);
    assert_int_equal(reduced, 0);
}

/* Sums begin with +0, so that -0 never comes out. */
static void test_zero_is_positive(void **state)
{
    (void)state;
    const uint32_t minus = 0x80000000u, rows[] = {minus, minus, minus, minus};
    uint32_t exact, reduced;
    sum(ORACLE_F32, rows, NULL, &exact, &reduced);
    assert_int_equal(exact, 0);
    assert_int_equal(reduced, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_log_of_powers_of_two),
        cmocka_unit_test(test_log_between_two_steps),
        cmocka_unit_test(test_log_groups_that_go_as_bf16),
        cmocka_unit_test(test_e4m3),
        cmocka_unit_test(test_fp8),
        cmocka_unit_test(test_fp8_powers_of_two),
        cmocka_unit_test(test_fp8_powers_stay),
        cmocka_unit_test(test_int8),
        cmocka_unit_test(test_nan_takes_the_group),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_masked_ranks_have_no_rows),
        cmocka_unit_test(test_wrong_tokens_have_no_rows),
        cmocka_unit_test(test_orders),
        cmocka_unit_test(test_reduced_rounds_twice),
        cmocka_unit_test(test_products_are_rounded),
        cmocka_unit_test(test_zero_is_positive),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

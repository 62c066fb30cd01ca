/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle's conversions: every 16-bit value there and back, and the places where rounding turns. */
#include "oracle/oracle.h"
#include "oracle/unit.h"
#include <math.h>
#include <stdlib.h>

#define VALUES 0x10000u

static bool is_nan(oracle_type type, uint32_t bits)
{
    uint32_t infinity = type == ORACLE_BF16 ? 0x7f80 : 0x7c00;
    return (bits & 0x7fff) > infinity;
}

/* Widening is exact, so rounding must give the same bits again; NaNs give the canonical one. */
static void check_there_and_back(oracle_type type)
{
    for (uint32_t bits = 0; bits < VALUES; bits++) {
        uint32_t back = oracle_round(type, oracle_widen(type, bits));
        assert_int_equal(back, is_nan(type, bits) ? 0x7fff : bits);
    }
}

/* For neighbours a < b with a ≥ 0: their middle goes to the even one, a little less to a, a little more to b. */
static void check_ties(oracle_type type, uint32_t last_finite)
{
    for (uint32_t bits = 0; bits < last_finite; bits++) {
        double low = oracle_widen(type, bits), high = oracle_widen(type, bits + 1);
        float middle = (float)((low + high) / 2);
        uint32_t even = bits & 1 ? bits + 1 : bits;
        assert_true((double)middle == (low + high) / 2);
        assert_int_equal(oracle_round(type, middle), even);
        assert_int_equal(oracle_round(type, -middle), even | 0x8000);
        assert_int_equal(oracle_round(type, nextafterf(middle, 0)), bits);
        assert_int_equal(oracle_round(type, nextafterf(middle, INFINITY)), bits + 1);
    }
}

static void test_bf16_there_and_back(void **state)
{
    (void)state;
    check_there_and_back(ORACLE_BF16);
}

static void test_f16_there_and_back(void **state)
{
    (void)state;
    check_there_and_back(ORACLE_F16);
}

static void test_bf16_ties(void **state)
{
    (void)state;
    check_ties(ORACLE_BF16, 0x7f7f);
}

static void test_f16_ties(void **state)
{
    (void)state;
    check_ties(ORACLE_F16, 0x7bff);
}

static void test_known_values(void **state)
{
    (void)state;
    assert_true(oracle_widen(ORACLE_BF16, 0x3f80) == 1.0f);
    assert_true(oracle_widen(ORACLE_BF16, 0xc049) == -3.140625f);
    assert_true(oracle_widen(ORACLE_F16, 0x3c00) == 1.0f);
    assert_true(oracle_widen(ORACLE_F16, 0x0001) == 0x1p-24f);
    assert_true(oracle_widen(ORACLE_F16, 0x7bff) == 65504.0f);
    assert_true(oracle_widen(ORACLE_F16, 0xfc00) == -INFINITY);
    assert_int_equal(oracle_round(ORACLE_BF16, 3.14159265f), 0x4049);
    assert_int_equal(oracle_round(ORACLE_F16, 0.1f), 0x2e66);
}

static void test_overflow_is_infinity(void **state)
{
    (void)state;
    assert_int_equal(oracle_round(ORACLE_F16, 65519.0f), 0x7bff);
    assert_int_equal(oracle_round(ORACLE_F16, 65520.0f), 0x7c00);
    assert_int_equal(oracle_round(ORACLE_F16, -1e30f), 0xfc00);
    assert_int_equal(oracle_round(ORACLE_BF16, 0x1.fep127f), 0x7f7f);
    assert_int_equal(oracle_round(ORACLE_BF16, 0x1.ffp127f), 0x7f80);
    assert_int_equal(oracle_round(ORACLE_BF16, -INFINITY), 0xff80);
}

static void test_underflow_keeps_the_sign(void **state)
{
    (void)state;
    assert_int_equal(oracle_round(ORACLE_F16, 0x1p-25f), 0);
    assert_int_equal(oracle_round(ORACLE_F16, nextafterf(0x1p-25f, 1)), 1);
    assert_int_equal(oracle_round(ORACLE_F16, -0x1p-149f), 0x8000);
    assert_int_equal(oracle_round(ORACLE_BF16, -0x1p-149f), 0x8000);
    assert_int_equal(oracle_round(ORACLE_F32, -0x1p-149f), 0x80000001u);
}

static void test_every_nan_is_canonical(void **state)
{
    (void)state;
    assert_int_equal(oracle_round(ORACLE_BF16, -NAN), 0x7fff);
    assert_int_equal(oracle_round(ORACLE_F16, oracle_widen(ORACLE_F32, 0xff800001u)), 0x7fff);
    assert_int_equal(oracle_round(ORACLE_F32, oracle_widen(ORACLE_F32, 0x7f800001u)), 0x7fffffff);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bf16_there_and_back),
        cmocka_unit_test(test_f16_there_and_back),
        cmocka_unit_test(test_bf16_ties),
        cmocka_unit_test(test_f16_ties),
        cmocka_unit_test(test_known_values),
        cmocka_unit_test(test_overflow_is_infinity),
        cmocka_unit_test(test_underflow_keeps_the_sign),
        cmocka_unit_test(test_every_nan_is_canonical),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

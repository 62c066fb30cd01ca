/* SPDX-License-Identifier: Apache-2.0 */
/* LogFMT's codes as kernels compute them, four at a time, equal the codec's, one by one. It takes all of BF16, and bits
 * of FP32 at random, and all codes on their way back. */
#define GPU_LOOK_ASIDE 1
#include "exec/cuda/kernels/low_latency/log_codes.h"
#include "oracle/unit.h"
#include <stdlib.h>

static float table[LL_GPU_LOG_TABLE];

/* Heads of groups: of two numbers far apart, of what is raised, of neighbours, of the largest and the least ones; the
   last two are of no BF16. */
static const uint32_t extents[][2] = {
    {0x3c000000u, 0x3f400000u}, {0x00010000u, 0x3f7f0000u}, {0x3f000000u, 0x3f010000u}, {0x3eb50000u, 0x3eb60000u},
    {0x10800000u, 0x10810000u}, {0x20350000u, 0x2fb40000u}, {0x3f34ffffu, 0x3f3504f4u}, {0x3e812345u, 0x3f7fffffu},
};
#define EXTENTS (sizeof extents / sizeof *extents)

static logfmt_range range_of(size_t i)
{
    const logfmt_range range = logfmt_range_of(extents[i][0] - 1, extents[i][1]);
    assert_true(range.span > 0.0f);
    return range;
}

/* Four numbers that a group of that range may have. */
static void check_four(const logfmt_range *range, const uint32_t bits[4], const float *known)
{
    const float steps = logfmt_steps_per_unit(range);
    uint32_t codes[4], in[4], low, above, signs = 0;
    for (int32_t i = 0; i < 4; i++) {
        codes[i] = logfmt_code_of(range, steps, number_of_bits(bits[i]));
        in[i] = ll_log_code_in(range, steps, number_of_bits(bits[i]), known);
        assert_int_equal(in[i] & 0x1ffu, codes[i] & 0x1ffu);
        signs |= (bits[i] >> 24) << 8 * i;
    }
    ll_log_pack(in, signs, &low, &above);
    for (int32_t i = 0; i < 4; i++)
        assert_int_equal(low >> 8 * i & 0xffu, codes[i] & 0xffu);
    assert_int_equal(above >> 24, logfmt_bits_above(codes[0], codes[1], codes[2], codes[3]));
}

static void test_codes_of_bf16(void **state)
{
    (void)state;
    for (size_t e = 0; e < EXTENTS; e++) {
        const logfmt_range range = range_of(e);
        const uint32_t most = number_bits(range.most) >> 16;
        for (uint32_t half = 0; half <= most; half++) {
            const uint32_t other = most - half,
                           bits[4] = {half << 16, (other | 0x8000u) << 16, other << 16, (half | 0x8000u) << 16};
            if (!(extents[e][0] & 0xffffu)) check_four(&range, bits, table);
            check_four(&range, bits, NULL);
        }
    }
}

static void test_codes_of_fp32(void **state)
{
    (void)state;
    uint32_t word = 1;
    for (size_t e = 0; e < EXTENTS; e++) {
        const logfmt_range range = range_of(e);
        const uint32_t most = number_bits(range.most), least = number_bits(range.least);
        for (int32_t n = 0; n < 100000; n++) {
            uint32_t bits[4];
            for (int32_t i = 0; i < 4; i++) {
                word = word * 1664525u + 1013904223u;
                const uint32_t magnitude = i % 2 ? word % (most + 1) : least + word % (most - least + 1);
                bits[i] = magnitude | (word & 0x80000000u);
            }
            check_four(&range, bits, NULL);
        }
    }
}

static void test_values(void **state)
{
    (void)state;
    for (size_t e = 0; e < EXTENTS; e++) {
        const logfmt_range range = range_of(e);
        const float units = logfmt_units_per_step(&range);
        for (uint32_t first = 0; first < 1024; first++) {
            const uint32_t codes[4] = {first, 1023 - first, first * 7 % 1024, first ^ 0x155u};
            const uint32_t low =
                (codes[0] & 0xffu) | (codes[1] & 0xffu) << 8 | (codes[2] & 0xffu) << 16 | (codes[3] & 0xffu) << 24;
            float values[4];
            ll_log_unpack(&range, units, low, logfmt_bits_above(codes[0], codes[1], codes[2], codes[3]), values);
            for (int32_t i = 0; i < 4; i++)
                assert_int_equal(number_bits(values[i]), number_bits(logfmt_value_of(&range, units, codes[i])));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codes_of_bf16),
        cmocka_unit_test(test_codes_of_fp32),
        cmocka_unit_test(test_values),
    };
    for (uint32_t i = 0; i < LL_GPU_LOG_TABLE; i++)
        table[i] = logfmt_log_of(127u << 23 | i << 16).fraction;
    return cmocka_run_group_tests(tests, NULL, NULL);
}

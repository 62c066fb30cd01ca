/* SPDX-License-Identifier: Apache-2.0 */
/* The codec's numbers, groups and sizes: bytes worked out by hand, and every code against the oracle. */
#include "oracle/oracle_codec.h"
#include "oracle/random.h"
#include "oracle/unit.h"
#include "proto/codec/codec.h"

#include <expar/tensor.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

static void every_e4m3_code_is_its_number(void **state)
{
    (void)state;
    for (uint32_t code = 0; code < 256; code++) {
        double value = oracle_e4m3_value(code);
        if (isnan(value)) {
            assert_int_equal(number_bits(number_of_e4m3(code)), 0x7fffffff);
            continue;
        }
        assert_true(number_of_e4m3(code) == value && !signbit(number_of_e4m3(code)) == !signbit(value));
        assert_int_equal(number_to_e4m3(number_of_e4m3(code)), code);
    }
}

/* Between two codes: below the middle, the middle itself, above it. */
static void between_codes_the_nearest_is_taken(void **state)
{
    (void)state;
    for (uint32_t code = 0; code < 0x7e; code++) {
        float middle = (float)((oracle_e4m3_value(code) + oracle_e4m3_value(code + 1)) / 2);
        for (int sign = 0; sign < 2; sign++) {
            uint32_t minus = sign ? 0x80 : 0;
            float direction = sign ? -1.0f : 1.0f;
            assert_int_equal(number_to_e4m3(direction * nextafterf(middle, 0)), minus | code);
            assert_int_equal(number_to_e4m3(direction * middle), minus | (code % 2 ? code + 1 : code));
            assert_int_equal(number_to_e4m3(direction * nextafterf(middle, 500)), minus | (code + 1));
        }
    }
}

static void e4m3_saturates(void **state)
{
    (void)state;
    const float large[] = {448.0f, 448.0001f, 463.9f, 464.0f, 464.1f, 480.0f, 1e30f, INFINITY};
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
        assert_int_equal(number_to_e4m3(large[i]), 0x7e);
        assert_int_equal(number_to_e4m3(-large[i]), 0xfe);
    }
    assert_int_equal(number_to_e4m3(NAN), 0x7f);
    assert_int_equal(number_to_e4m3(-NAN), 0x7f);
    assert_int_equal(number_to_e4m3_pair(-INFINITY, NAN), 0x7ffe);
}

/* Small ones: 2^-9 is the least, half of it goes to zero; FP32 subnormals are nothing. */
static void small_numbers_become_subnormals_and_zeros(void **state)
{
    (void)state;
    assert_int_equal(number_to_e4m3(0x1p-9f), 0x01);
    assert_int_equal(number_to_e4m3(0x1p-10f), 0x00);
    assert_int_equal(number_to_e4m3(-0x1p-10f), 0x80);
    assert_int_equal(number_to_e4m3(0x1.8p-9f), 0x02);
    assert_int_equal(number_to_e4m3(0x1.ep-7f), 0x08); /* 7.5 · 2^-9 */
    assert_int_equal(number_to_e4m3(0x1p-149f), 0x00);
    assert_int_equal(number_to_e4m3(-0.0f), 0x80);
}

static void int8_rounds_to_even_and_saturates(void **state)
{
    (void)state;
    for (int32_t whole = -127; whole < 127; whole++) {
        float middle = (float)whole + 0.5f;
        int32_t even = whole % 2 ? whole + 1 : whole;
        assert_int_equal((int8_t)number_to_i8((float)whole), whole);
        assert_int_equal((int8_t)number_to_i8(middle), even);
        assert_int_equal((int8_t)number_to_i8(nextafterf(middle, -200)), whole);
        assert_int_equal((int8_t)number_to_i8(nextafterf(middle, 200)), whole + 1);
    }
    const float large[] = {127.0f, 127.4f, 127.5f, 128.0f, 1e30f, INFINITY};
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
        assert_int_equal((int8_t)number_to_i8(large[i]), 127);
        assert_int_equal((int8_t)number_to_i8(-large[i]), -127);
    }
    assert_int_equal(number_to_i8(NAN), 0);
    assert_int_equal(number_to_i8(-0.0f), 0);
    for (uint32_t code = 0; code < 256; code++)
        assert_true(number_of_i8(code) == (float)(int8_t)code);
}

static void every_half_is_widened_and_rounded_back(void **state)
{
    (void)state;
    for (uint32_t half = 0; half < 65536; half++) {
        float bf16 = oracle_widen(ORACLE_BF16, half), f16 = oracle_widen(ORACLE_F16, half);
        float mine = number_of_bf16(half), mine_f16 = number_of_f16(half);
        if (isnan(bf16)) assert_true(isnan(mine) && number_to_bf16(mine) == 0x7fff);
        if (isnan(f16)) assert_true(isnan(mine_f16) && number_to_f16(mine_f16) == 0x7fff);
        if (!isnan(bf16)) assert_true(memcmp(&mine, &bf16, 4) == 0 && number_to_bf16(mine) == half);
        if (!isnan(f16)) assert_true(memcmp(&mine_f16, &f16, 4) == 0 && number_to_f16(mine_f16) == half);
    }
}

/* ---- groups ------------------------------------------------------------------------------------------------------ */

static codec_scaling scaling_of(int32_t format, float amax)
{
    return codec_scaling_of(format, number_magnitude(amax));
}

static void scales_are_as_worked_out_by_hand(void **state)
{
    (void)state;
    codec_scaling s = scaling_of(CODEC_FP8, 448.0f);
    assert_true(s.factor == 1.0f && s.scale == 1.0f);
    s = scaling_of(CODEC_FP8, -7.0f);
    assert_true(s.factor == 64.0f && s.scale == 0x1p-6f);
    s = scaling_of(CODEC_INT8, 254.0f);
    assert_true(s.factor == 0.5f && s.scale == 2.0f);
    s = scaling_of(CODEC_FP8_ROUND, 448.0f);
    assert_true(s.factor == 1.0f && s.scale == 1.0f);
    s = scaling_of(CODEC_FP8_ROUND, 449.0f);
    assert_true(s.factor == 0.5f && s.scale == 2.0f);
    s = scaling_of(CODEC_FP8_UE8M0, 1.0f); /* 1/448 is between 2^-9 and 2^-8 */
    assert_true(s.factor == 256.0f && s.scale == 0x1p-8f);
}

static void a_small_amax_counts_as_the_least(void **state)
{
    (void)state;
    for (int32_t format = CODEC_FP8; format <= CODEC_INT8; format++) {
        codec_scaling least = scaling_of(format, 1e-4f);
        const float small[] = {0.0f, 0x1p-149f, 1e-10f, nextafterf(1e-4f, 0)};
        for (size_t i = 0; i < 4; i++) {
            codec_scaling s = scaling_of(format, small[i]);
            assert_true(s.factor == least.factor && s.scale == least.scale);
        }
        assert_true(scaling_of(format, 1.01e-4f).factor <= least.factor);
    }
    assert_true(scaling_of(CODEC_FP8, 0).scale == 1e-4f / 448.0f);
    assert_true(scaling_of(CODEC_FP8_ROUND, 0).scale == 0x1p-22f);
}

static void what_is_not_finite_makes_its_group_nan(void **state)
{
    (void)state;
    const float odd[] = {INFINITY, -INFINITY, NAN};
    for (int32_t format = CODEC_FP8; format <= CODEC_INT8; format++)
        for (size_t i = 0; i < 3; i++) {
            codec_scaling s = scaling_of(format, odd[i]);
            assert_int_equal(number_bits(s.scale), 0x7fffffff);
            assert_int_equal(codec_quantise(format, 1.0f, s.factor), format == CODEC_INT8 ? 0 : 0x7f);
            assert_int_equal(number_bits(codec_dequantise(format, 0, s.scale)), 0x7fffffff);
        }
    assert_int_equal(codec_scale_exponent(number_of_bits(NUMBER_NAN)), 255);
}

static void exponents_stand_for_powers_of_two(void **state)
{
    (void)state;
    assert_int_equal(codec_scale_exponent(1.0f), 127);
    for (uint32_t exponent = 0; exponent < 255; exponent++)
        assert_true(codec_scale_of_exponent(exponent) == ldexp(1, (int)exponent - 127));
    assert_true(isnan(codec_scale_of_exponent(255)));
}

/* All amax that are a bit off a step between two powers, against a quotient that is rounded up. */
static void powers_are_quotients_rounded_up(void **state)
{
    (void)state;
    for (int exponent = -13; exponent < 128; exponent++) {
        const float fractions[] = {1.0f, 1.5f, 1.75f, 1.9999999f};
        for (size_t i = 0; i < 4; i++) {
            float amax = ldexpf(fractions[i], exponent),
                  near[] = {nextafterf(amax, 0), amax, nextafterf(amax, INFINITY)};
            for (size_t n = 0; n < 3 && isfinite(near[n]); n++) {
                float quotient = near[n] / 448.0f, power = codec_power_of_amax(near[n]);
                assert_true(power >= quotient && power / 2 < quotient && ldexp(1, ilogb(power)) == power);
            }
        }
    }
}

/* Rows of two groups: 0 … 127 and their half, negative. amax 127 and 63.5 give INT8 whole and half codes. */
static void a_row_has_the_bytes_worked_out_by_hand(void **state)
{
    (void)state;
    float row[256], scales[2], back[256];
    uint8_t payload[256];
    for (int i = 0; i < 128; i++) {
        row[i] = (float)i;
        row[128 + i] = (float)-i / 2;
    }
    assert_int_equal(codec_encode_row(CODEC_INT8, CODEC_F32, 256, row, payload, scales), 256);
    assert_true(scales[0] == 1.0f && scales[1] == 0.5f);
    for (int i = 0; i < 128; i++) {
        assert_int_equal((int8_t)payload[i], i);
        assert_int_equal((int8_t)payload[128 + i], -i);
    }
    codec_decode_row(CODEC_INT8, 256, payload, scales, back);
    for (int i = 0; i < 256; i++)
        assert_true(back[i] == row[i]);
}

/* 3.5 · 2^k for all: 448 is 1.75 · 2^8, so the codes are those of 448 and the scale 3.5 / 448 = 2^-7. */
static void ue8m0_packs_four_groups_a_word(void **state)
{
    (void)state;
    uint16_t row[640];
    uint8_t payload[640];
    uint32_t scales[2] = {0xffffffffu, 0xffffffffu};
    for (int g = 0; g < 5; g++)
        for (int i = 0; i < 128; i++)
            row[g * 128 + i] = (uint16_t)number_to_bf16(ldexpf(i ? -3.5f : 0.0f, g));
    assert_int_equal(codec_encode_row(CODEC_FP8_UE8M0, CODEC_BF16, 640, row, payload, scales), 640);
    assert_int_equal(scales[0], 0x7b7a7978);
    assert_int_equal(scales[1], 0x0000007c);
    for (int i = 0; i < 640; i++)
        assert_int_equal(payload[i], i % 128 ? 0xfe : 0x00);
}

/*
 * A quotient close to the middle of two INT8 codes may go to the farther one. Factor, scale, and both products are
 * rounded, each by at most 2^-24 of a number of up to 127.5 codes: together 4 * 127.5 * 2^-24 codes, beside half a
 * code.
 */
#define INT8_SLACK (1 + 8 * 127.5 * 0x1p-24)

/* docs/reference/low-latency-formats.md states how far a number is off, beside the largest one of its group. */
static double worst_of_group(random_source *random, int32_t format, float amax)
{
    float row[CODEC_GROUP], scales[2] = {0}, back[CODEC_GROUP];
    uint8_t payload[2 * CODEC_GROUP];
    double worst = 0;
    for (int i = 0; i < CODEC_GROUP; i++)
        row[i] = amax * (float)ldexp(2 * random_unit(random) - 1, -(int)random_between(random, 0, 24));
    row[0] = amax;
    codec_encode_row(format, CODEC_F32, CODEC_GROUP, row, payload, scales);
    codec_decode_row(format, CODEC_GROUP, payload, scales, back);
    double scale = codec_load_scale(format, scales, 0), least = amax < 1e-4f ? 1e-4f : amax;
    assert_true(scale >= least / 448.001 && scale <= (format == CODEC_INT8 ? least / 126.999 : least / 223.999));
    for (int i = 0; i < CODEC_GROUP; i++) {
        double error = fabs((double)back[i] - row[i]), share = fabs(row[i]) / 16;
        if (format == CODEC_INT8) assert_true(error <= scale / 2 * INT8_SLACK);
        if (format != CODEC_INT8) assert_true(error <= 1.00001 * (share > scale / 1024 ? share : scale / 1024));
        worst = error / least > worst ? error / least : worst;
    }
    return worst;
}
static void numbers_are_off_by_no_more_than_stated(void **state)
{
    (void)state;
    random_source random = random_start(random_test_seed("test_codec"));
    for (int32_t format = CODEC_FP8; format <= CODEC_INT8; format++) {
        double worst = 0;
        for (int64_t round = random_test_rounds(2000); round > 0; round--) {
            double unit = 1 + random_unit(&random);
            double off = worst_of_group(&random, format, (float)ldexp(unit, (int)random_between(&random, -20, 20)));
            worst = off > worst ? off : worst;
        }
        printf("format %d: off by %.5f of amax at most\n", (int)format, worst);
        assert_true(worst <= (format == CODEC_INT8  ? INT8_SLACK / 254
                              : format == CODEC_FP8 ? 16 / 447.99
                                                    : 32 / 447.99));
    }
}

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

static void formats_have_the_numbers_of_their_types(void **state)
{
    (void)state;
    assert_true((int)CODEC_BF16 == (int)EXPAR_BF16 && (int)CODEC_F16 == (int)EXPAR_F16);
    assert_true((int)CODEC_F32 == (int)EXPAR_F32);
}

static void sizes_follow_the_table(void **state)
{
    (void)state;
    assert_int_equal(codec_row_bytes(CODEC_BF16, 7168), 14336);
    assert_int_equal(codec_row_bytes(CODEC_F16, 8), 16);
    assert_int_equal(codec_row_bytes(CODEC_F32, 7168), 28672);
    assert_int_equal(codec_scales(CODEC_BF16, 7168), 0);
    for (int32_t format = CODEC_FP8; format <= CODEC_INT8; format++) {
        int64_t words = format == CODEC_FP8_UE8M0 ? 14 : 56;
        assert_int_equal(codec_row_bytes(format, 7168), 7168);
        assert_int_equal(codec_row_bytes(format, 128), 128);
        assert_int_equal(codec_scales(format, 7168), words);
        assert_int_equal(codec_scale_bytes(format, 7168), 4 * words);
        assert_int_equal(codec_scales(format, 128), 1);
    }
    assert_int_equal(codec_row_bytes(CODEC_NVFP4, 7168), 3584);
    assert_int_equal(codec_scales(CODEC_NVFP4, 7168), 112);
    assert_int_equal(codec_scales(CODEC_FP8_UE8M0, 512), 1);
    assert_int_equal(codec_scales(CODEC_FP8_UE8M0, 640), 2);
}

static void other_sizes_are_rejected(void **state)
{
    (void)state;
    for (int32_t format = CODEC_FP8; format <= CODEC_NVFP4; format++) {
        const int64_t bad[] = {0, -128, 64, 127, 129, 7168 + 64, (int64_t)1 << 31, INT64_MAX, INT64_MIN};
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            assert_false(codec_takes(format, bad[i]));
            assert_int_equal(codec_row_bytes(format, bad[i]), 0);
            assert_int_equal(codec_scale_bytes(format, bad[i]), 0);
        }
    }
    assert_false(codec_takes(CODEC_BF16, 7) || codec_takes(CODEC_F32, 2));
    assert_true(codec_takes(CODEC_BF16, 24) && codec_takes(CODEC_F32, 4));
    assert_false(codec_takes(CODEC_NO_FORMAT, 128) || codec_takes(-1, 128) || codec_takes(99, 128));
}

static void scales_of_received_rows_lie_token_contiguous(void **state)
{
    (void)state;
    assert_int_equal(codec_scale_at(CODEC_FP8, 56, 1024, 0, 0, 0), 0);
    assert_int_equal(codec_scale_at(CODEC_FP8, 56, 1024, 0, 0, 1), 1);
    assert_int_equal(codec_scale_at(CODEC_FP8, 56, 1024, 0, 1, 0), 1024);
    assert_int_equal(codec_scale_at(CODEC_FP8, 56, 1024, 2, 3, 5), (2 * 56 + 3) * 1024 + 5);
    assert_int_equal(codec_total_bytes(224, 32, 1024), 224 * 32 * 1024);
    assert_int_equal(codec_total_bytes(224, 0, 1024), 0);
    assert_int_equal(codec_total_bytes(1, INT64_MAX, 1), INT64_MAX);
    assert_int_equal(codec_total_bytes(2, INT64_MAX, 1), -1);
    assert_int_equal(codec_total_bytes(1, (int64_t)1 << 32, (int64_t)1 << 32), -1);
    assert_int_equal(codec_total_bytes(-1, 1, 1), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_e4m3_code_is_its_number),
        cmocka_unit_test(between_codes_the_nearest_is_taken),
        cmocka_unit_test(e4m3_saturates),
        cmocka_unit_test(small_numbers_become_subnormals_and_zeros),
        cmocka_unit_test(int8_rounds_to_even_and_saturates),
        cmocka_unit_test(every_half_is_widened_and_rounded_back),
        cmocka_unit_test(scales_are_as_worked_out_by_hand),
        cmocka_unit_test(a_small_amax_counts_as_the_least),
        cmocka_unit_test(what_is_not_finite_makes_its_group_nan),
        cmocka_unit_test(exponents_stand_for_powers_of_two),
        cmocka_unit_test(powers_are_quotients_rounded_up),
        cmocka_unit_test(a_row_has_the_bytes_worked_out_by_hand),
        cmocka_unit_test(ue8m0_packs_four_groups_a_word),
        cmocka_unit_test(numbers_are_off_by_no_more_than_stated),
        cmocka_unit_test(formats_have_the_numbers_of_their_types),
        cmocka_unit_test(sizes_follow_the_table),
        cmocka_unit_test(other_sizes_are_rejected),
        cmocka_unit_test(scales_of_received_rows_lie_token_contiguous),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

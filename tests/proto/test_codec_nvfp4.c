/* SPDX-License-Identifier: Apache-2.0 */
/* Rows in NVFP4: the codec's bytes are the oracle's, and those of the CPU executor are the codec's. */
#include "exec/cpu/core/encode.h"
#include "oracle/oracle_codec.h"
#include "oracle/random.h"
#include "oracle/unit.h"

#include <math.h>
#include <string.h>

#define MOST_HIDDEN (9 * CODEC_GROUP)
#define GUARD       16 /* bytes after each output that nobody writes */

static const oracle_type types[] = {[CODEC_BF16] = ORACLE_BF16, [CODEC_F16] = ORACLE_F16, [CODEC_F32] = ORACLE_F32};

typedef struct coded {
    _Alignas(64) uint8_t payload[MOST_HIDDEN / 2 + GUARD];
    _Alignas(64) uint8_t scales[MOST_HIDDEN / NVFP4_BLOCK + GUARD];
} coded;
static _Alignas(64) uint8_t row[4 * MOST_HIDDEN];
static coded plain, fast, wanted;

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

static void codes_are_eight_numbers_and_a_sign(void **state)
{
    (void)state;
    static const float values[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    for (uint32_t code = 0; code < 8; code++) {
        assert_int_equal(number_bits(number_of_e2m1(code)), number_bits(values[code]));
        assert_int_equal(number_bits(number_of_e2m1(code | 8)), number_bits(-values[code]));
        assert_int_equal(number_to_e2m1(values[code]), code);
        assert_int_equal(number_to_e2m1(-values[code]), code | 8);
    }
    assert_int_equal(number_to_e2m1(INFINITY), 7);
    assert_int_equal(number_to_e2m1(-INFINITY), 15);
    assert_int_equal(number_to_e2m1(NAN), 0);
}

/* All numbers of BF16, which hold all middles between two codes, and the FP32 numbers next to them. */
static void numbers_go_to_the_nearest_code(void **state)
{
    (void)state;
    for (uint32_t half = 0; half < 65536; half++)
        for (uint32_t bits = (half << 16) - 1; bits != (half << 16) + 2; bits++)
            assert_int_equal(number_to_e2m1(number_of_bits(bits)), oracle_e2m1_nearest(number_of_bits(bits)));
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

typedef enum manner { SAME_SIZE, ALL_SIZES, TINY, BITS, WITH_ODD, MANNERS } manner;

static float draw(random_source *random, manner how)
{
    float sign = random_once_in(random, 2) ? -1.0f : 1.0f, unit = (float)random_unit(random);
    if (random_once_in(random, 20)) return sign * 0.0f;
    if (how == WITH_ODD && random_once_in(random, 60)) return random_once_in(random, 2) ? sign * INFINITY : sign * NAN;
    if (how == ALL_SIZES) return sign * ldexpf(unit, (int)random_between(random, -150, 127));
    if (how == TINY) return sign * ldexpf(unit, (int)random_between(random, -30, -8));
    if (random_once_in(random, 3)) return sign * (float)random_between(random, 0, 12) / 2.0f; /* ties */
    return sign * unit * 8.0f;
}

static void fill_row(random_source *random, int32_t dtype, int64_t hidden, manner how)
{
    for (int64_t i = 0; i < hidden; i++)
        codec_store(dtype, row, i, draw(random, how));
    for (int64_t i = 0; how == BITS && i < hidden * (dtype == CODEC_F32 ? 4 : 2); i++)
        row[i] = (uint8_t)random_bits(random);
}

static void check_row(int32_t dtype, int64_t hidden, float global)
{
    memset(&plain, 0xa5, sizeof plain);
    memset(&fast, 0xa5, sizeof fast);
    memset(&wanted, 0xa5, sizeof wanted);
    oracle_encode_nvfp4_row(types[dtype], hidden, global, row, wanted.payload, wanted.scales);
    assert_int_equal(codec_encode_nvfp4_row(dtype, hidden, global, row, plain.payload, plain.scales), hidden / 2);
    assert_int_equal(cpu_encode_nvfp4_row(dtype, hidden, global, row, fast.payload, fast.scales), hidden / 2);
    assert_memory_equal(&plain, &wanted, sizeof plain);
    assert_memory_equal(&fast, &wanted, sizeof fast);
}

static void random_rows_have_the_bytes_of_the_oracle(void **state)
{
    (void)state;
    const float globals[] = {1.0f, 336.0f, 0.01f, 1e30f, -2.0f, 0.0f, INFINITY, NAN};
    random_source random = random_start(random_test_seed("test_codec_nvfp4"));
    for (int64_t round = random_test_rounds(10); round > 0; round--)
        for (int32_t dtype = CODEC_BF16; dtype <= CODEC_F32; dtype++)
            for (manner how = 0; how < MANNERS; how++) {
                const int64_t hidden = CODEC_GROUP * random_between(&random, 1, 9);
                fill_row(&random, dtype, hidden, how);
                for (size_t g = 0; g < sizeof globals / sizeof *globals; g++)
                    check_row(dtype, hidden, globals[g]);
            }
}

/* docs/reference/low-latency-formats.md: at most 17/96 of a block's largest magnitude, while its scale is a normal
   number of E4M3 below 448. The rest is FP32's rounding. */
static void the_error_has_its_bound(void **state)
{
    (void)state;
    static float back[MOST_HIDDEN];
    const float global = 336.0f; /* 448 · 6 / 8 */
    random_source random = random_start(random_test_seed("test_codec_nvfp4, error"));
    for (int64_t round = random_test_rounds(50); round > 0; round--) {
        fill_row(&random, CODEC_F32, MOST_HIDDEN, SAME_SIZE);
        codec_encode_nvfp4_row(CODEC_F32, MOST_HIDDEN, global, row, plain.payload, plain.scales);
        codec_decode_nvfp4_row(MOST_HIDDEN, global, plain.payload, plain.scales, back);
        for (int64_t i = 0; i < MOST_HIDDEN; i++) {
            const int64_t block = i / NVFP4_BLOCK * NVFP4_BLOCK;
            const float amax = number_of_bits(codec_amax(CODEC_F32, row, block, block + NVFP4_BLOCK));
            const float error = fabsf(back[i] - codec_load(CODEC_F32, row, i));
            if (global * amax / 6.0f >= 0x1p-6f) assert_true(error <= 17.0f / 96.0f * amax * (1 + 1e-5f));
        }
    }
}

static void blocks_that_are_not_finite_decode_to_nan(void **state)
{
    (void)state;
    float back[CODEC_GROUP];
    for (int32_t i = 0; i < CODEC_GROUP; i++)
        codec_store(CODEC_F32, row, i, i == 20 ? -INFINITY : i == 70 ? NAN : 1.0f);
    codec_encode_nvfp4_row(CODEC_F32, CODEC_GROUP, 1.0f, row, plain.payload, plain.scales);
    codec_decode_nvfp4_row(CODEC_GROUP, 1.0f, plain.payload, plain.scales, back);
    for (int32_t i = 0; i < CODEC_GROUP; i++)
        assert_true(i / 16 == 1 || i / 16 == 4 ? number_bits(back[i]) == NUMBER_NAN : fabsf(back[i] - 1.0f) < 0.1f);
}

/* The layout that tensor cores read. */
static void scales_of_received_rows_lie_in_tiles(void **state)
{
    (void)state;
    assert_int_equal(codec_scale_at(CODEC_NVFP4, 112, 300, 0, 0, 0), 0);
    assert_int_equal(codec_scale_at(CODEC_NVFP4, 112, 300, 0, 0, 1), 4);
    assert_int_equal(codec_scale_at(CODEC_NVFP4, 112, 300, 0, 0, 33), 5);
    assert_int_equal(codec_scale_at(CODEC_NVFP4, 112, 300, 0, 0, 127), 31 * 4 + 3);
    assert_int_equal(codec_scale_at(CODEC_NVFP4, 112, 300, 0, 3, 0), 3 * 128);
    assert_int_equal(codec_scale_at(CODEC_NVFP4, 112, 300, 2, 3, 130), ((2 * 3 + 1) * 112 + 3) * 128 + 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_are_eight_numbers_and_a_sign),
        cmocka_unit_test(numbers_go_to_the_nearest_code),
        cmocka_unit_test(random_rows_have_the_bytes_of_the_oracle),
        cmocka_unit_test(the_error_has_its_bound),
        cmocka_unit_test(blocks_that_are_not_finite_decode_to_nan),
        cmocka_unit_test(scales_of_received_rows_lie_in_tiles),
    };
#ifdef NEEDS_AVX2
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 77;
#endif
    return cmocka_run_group_tests(tests, NULL, NULL);
}

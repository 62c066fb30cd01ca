/* SPDX-License-Identifier: Apache-2.0 */
/* Whole rows of random elements. The codec's bytes are the oracle's, and those of the CPU executor are the codec's. So
 * are those that lanes of a warp make of a few elements each. */
#include "exec/cpu/core/encode.h"
#include "oracle/oracle_codec.h"
#include "oracle/random.h"
#include "oracle/unit.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define MOST_HIDDEN 7168
#define GUARD       16 /* bytes after each output that nobody writes */

static const oracle_type types[] = {[CODEC_BF16] = ORACLE_BF16, [CODEC_F16] = ORACLE_F16, [CODEC_F32] = ORACLE_F32};
static const oracle_payload payloads[] = {[CODEC_FP8] = ORACLE_FP8,
                                          [CODEC_FP8_ROUND] = ORACLE_FP8_ROUND,
                                          [CODEC_FP8_UE8M0] = ORACLE_FP8_UE8M0,
                                          [CODEC_INT8] = ORACLE_INT8};

/* A row and what is made of it. */
typedef struct coded {
    _Alignas(64) uint8_t payload[4 * MOST_HIDDEN + GUARD];
    _Alignas(64) uint8_t scales[8 * MOST_HIDDEN / CODEC_GROUP + GUARD];
    float back[MOST_HIDDEN + 1];
} coded;
static _Alignas(64) uint8_t row[4 * MOST_HIDDEN];
static coded plain, fast, lanes;

static size_t element_bytes(int32_t dtype)
{
    return dtype == CODEC_F32 ? 4 : 2;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

typedef enum manner { SAME_SIZE, ALL_SIZES, TINY, BELOW_ONE, BITS, WITH_ODD, MANNERS } manner;

static float draw(random_source *random, manner how)
{
    float sign = random_once_in(random, 2) ? -1.0f : 1.0f, unit = (float)random_unit(random);
    if (random_once_in(random, 20)) return sign * 0.0f;
    if (how == WITH_ODD && random_once_in(random, 300)) return random_once_in(random, 2) ? sign * INFINITY : sign * NAN;
    if (how == ALL_SIZES) return sign * ldexpf(unit, (int)random_between(random, -150, 127));
    if (how == TINY) return sign * ldexpf(unit, (int)random_between(random, -30, -12));
    if (how == BELOW_ONE) return sign * ldexpf(unit, (int)random_between(random, -40, 0));
    if (random_once_in(random, 3)) return sign * (float)random_between(random, 0, 448); /* ties */
    return sign * unit * 8.0f;
}

static void fill_row(random_source *random, int32_t dtype, int64_t hidden, manner how)
{
    for (int64_t i = 0; i < hidden; i++)
        codec_store(dtype, row, i, draw(random, how));
    for (size_t i = 0; how == BITS && i < (size_t)hidden * element_bytes(dtype); i++)
        row[i] = (uint8_t)random_bits(random);
}

/* ---- one row ----------------------------------------------------------------------------------------------------- */

static void spoil(coded *out)
{
    memset(out, 0xa5, sizeof *out);
}

static void assert_same(int32_t format, int64_t hidden, const coded *a, const coded *b)
{
    size_t payload = (size_t)codec_row_bytes(format, hidden), scales = (size_t)codec_scale_bytes(format, hidden);
    assert_memory_equal(a->payload, b->payload, payload + GUARD);
    assert_memory_equal(a->scales, b->scales, scales + GUARD);
    assert_memory_equal(a->back, b->back, (size_t)(hidden + 1) * sizeof *a->back);
}

/* As a warp does: lanes have 8 elements each, find the largest magnitude together, and each writes its codes. */
static void encode_by_lanes(int32_t format, int32_t dtype, int64_t hidden)
{
    const int64_t each = 8;
    uint32_t words[MOST_HIDDEN / 512 + 1] = {0};
    for (int64_t g = 0; g < hidden / CODEC_GROUP; g++) {
        uint32_t amax = 0;
        for (int64_t begin = g * CODEC_GROUP; begin < (g + 1) * CODEC_GROUP; begin += each) {
            uint32_t mine = codec_amax(dtype, row, begin, begin + each);
            amax = mine > amax ? mine : amax;
        }
        codec_scaling scaling = codec_scaling_of(format, amax);
        for (int64_t i = g * CODEC_GROUP; i < (g + 1) * CODEC_GROUP; i += 2) {
            uint32_t pair =
                codec_quantise_pair(format, codec_load(dtype, row, i), codec_load(dtype, row, i + 1), scaling.factor);
            lanes.payload[i] = (uint8_t)pair;
            lanes.payload[i + 1] = (uint8_t)(pair >> 8);
        }
        words[g / 4] |= codec_scale_exponent(scaling.scale) << (g % 4 * 8);
        if (format != CODEC_FP8_UE8M0) memcpy(lanes.scales + 4 * g, &scaling.scale, 4);
    }
    if (format == CODEC_FP8_UE8M0) memcpy(lanes.scales, words, (size_t)codec_scale_bytes(format, hidden));
}

static void check_oracle(int32_t format, int32_t dtype, int64_t hidden)
{
    static uint8_t codes[MOST_HIDDEN];
    uint32_t scales[MOST_HIDDEN / CODEC_GROUP];
    oracle_encode_row(payloads[format], types[dtype], hidden, row, codes, scales);
    assert_memory_equal(plain.payload, codes, (size_t)hidden);
    assert_memory_equal(plain.scales, scales, (size_t)codec_scale_bytes(format, hidden));
    for (int64_t i = 0; i < hidden; i++)
        assert_int_equal(number_bits(plain.back[i]), oracle_decode(payloads[format], codes, scales, i));
}

static void check_row(int32_t format, int32_t dtype, int64_t hidden)
{
    bool quantised = format >= CODEC_FP8 && format <= CODEC_INT8;
    spoil(&plain);
    spoil(&fast);
    spoil(&lanes);
    int64_t bytes = codec_encode_row(format, dtype, hidden, row, plain.payload, plain.scales);
    assert_int_equal(bytes, codec_payload_bytes(format, hidden, plain.scales));
    if (format != CODEC_LOGFMT) assert_int_equal(bytes, codec_row_bytes(format, hidden));
    codec_decode_row(format, hidden, plain.payload, plain.scales, plain.back);
    assert_int_equal(cpu_encode_row(format, dtype, hidden, row, fast.payload, fast.scales), bytes);
    cpu_decode_row(format, hidden, fast.payload, fast.scales, fast.back);
    assert_same(format, hidden, &plain, &fast);
    if (!quantised) return;
    encode_by_lanes(format, dtype, hidden);
    memcpy(lanes.back, plain.back, sizeof lanes.back);
    assert_same(format, hidden, &plain, &lanes);
    check_oracle(format, dtype, hidden);
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static void random_rows_have_the_bytes_of_the_oracle(void **state)
{
    (void)state;
    random_source random = random_start(random_test_seed("test_codec_rows"));
    for (int64_t round = random_test_rounds(20); round > 0; round--)
        for (int32_t dtype = CODEC_BF16; dtype <= CODEC_F32; dtype++)
            for (manner how = 0; how < MANNERS; how++) {
                int64_t hidden = CODEC_GROUP * random_between(&random, 1, 9);
                fill_row(&random, dtype, hidden, how);
                for (int32_t format = CODEC_FP8; format <= CODEC_INT8; format++)
                    check_row(format, dtype, hidden);
            }
}

static void a_large_row_has_the_bytes_of_the_oracle(void **state)
{
    (void)state;
    random_source random = random_start(random_test_seed("test_codec_rows, H 7168"));
    for (int32_t dtype = CODEC_BF16; dtype <= CODEC_F32; dtype++) {
        fill_row(&random, dtype, MOST_HIDDEN, SAME_SIZE);
        for (int32_t format = CODEC_FP8; format <= CODEC_INT8; format++)
            check_row(format, dtype, MOST_HIDDEN);
    }
}

/* All finite numbers of the 16-bit types, and with them all groups of their neighbours. */
static void every_half_is_quantised(void **state)
{
    (void)state;
    for (int32_t dtype = CODEC_BF16; dtype <= CODEC_F16; dtype++)
        for (int32_t first = 0; first < 65536; first += 4096) {
            for (int32_t i = 0; i < 4096; i++)
                ((uint16_t *)(void *)row)[i] = (uint16_t)(first + i);
            for (int32_t format = CODEC_FP8; format <= CODEC_LOGFMT; format++)
                check_row(format, dtype, 4096);
        }
}

/* The bytes of LogFMT are looked at by test_codec_log; here, that vectors give them as well. */
static void vectors_of_logfmt_are_the_codecs(void **state)
{
    (void)state;
    random_source random = random_start(random_test_seed("test_codec_rows, LogFMT"));
    for (int64_t round = random_test_rounds(20); round > 0; round--)
        for (int32_t dtype = CODEC_BF16; dtype <= CODEC_F32; dtype++)
            for (manner how = 0; how < MANNERS; how++) {
                int64_t hidden = CODEC_GROUP * random_between(&random, 1, 9);
                fill_row(&random, dtype, hidden, how);
                check_row(CODEC_LOGFMT, dtype, hidden);
            }
}

/* As given: bits, NaN's too. From another type: rounded once, one NaN. */
static void formats_without_scales_keep_or_round(void **state)
{
    (void)state;
    random_source random = random_start(random_test_seed("test_codec_rows, plain formats"));
    for (int32_t dtype = CODEC_BF16; dtype <= CODEC_F32; dtype++)
        for (int32_t format = CODEC_BF16; format <= CODEC_F32; format++)
            for (manner how = 0; how < MANNERS; how++) {
                int64_t hidden = 8 * random_between(&random, 1, 90);
                fill_row(&random, dtype, hidden, how);
                check_row(format, dtype, hidden);
                if (format == dtype) assert_memory_equal(plain.payload, row, (size_t)codec_row_bytes(format, hidden));
                for (int64_t i = 0; format != dtype && i < hidden; i++)
                    assert_int_equal(
                        oracle_load(types[format], plain.payload, i),
                        oracle_round(types[format], oracle_widen(types[dtype], oracle_load(types[dtype], row, i))));
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_rows_have_the_bytes_of_the_oracle),
        cmocka_unit_test(a_large_row_has_the_bytes_of_the_oracle),
        cmocka_unit_test(every_half_is_quantised),
        cmocka_unit_test(vectors_of_logfmt_are_the_codecs),
        cmocka_unit_test(formats_without_scales_keep_or_round),
    };
#ifdef NEEDS_AVX2
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 77;
#endif
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* LogFMT: bytes worked out by hand, how far logarithms, codes and numbers are off, and which groups go as BF16. */
#include "ep/low_latency/oracle.h"
#include "oracle/oracle.h"
#include "oracle/random.h"
#include "oracle/unit.h"
#include "proto/codec/codec.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Claims of docs/reference/low-latency-formats.md: numbers beside half of the step that rounding costs. */
#define LOG_ERROR   2e-7 /* of a logarithm, absolute */
#define POWER_ERROR 4e-7 /* of a power, relative */
#define VALUE_ERROR 4e-6 /* of a decoded number, relative */

/* ---- logarithms and powers --------------------------------------------------------------------------------------- */

static void every_logarithm_is_near(void **state)
{
    (void)state;
    double worst = 0;
    for (uint32_t magnitude = 0x3f000000; magnitude < 0x3f800000; magnitude++) {
        logfmt_log log = logfmt_log_of(magnitude);
        double error = fabs(log.exponent + (double)log.fraction - log2((double)number_of_bits(magnitude)));
        worst = error > worst ? error : worst;
    }
    printf("logarithms are off by %.2g at most\n", worst);
    assert_true(worst < LOG_ERROR);
}

/* From one number to the next, over all fractions and where the exponent changes. */
static void logarithms_never_fall(void **state)
{
    (void)state;
    for (uint32_t magnitude = 0x3f000000; magnitude < 0x3f800000; magnitude++) {
        logfmt_range range = {.start = logfmt_log_of(magnitude)};
        if (!(logfmt_above(&range, magnitude + 1) >= 0)) fail_msg("above %#x they do", (unsigned)magnitude);
    }
}

static void logarithms_of_powers_of_two_are_whole(void **state)
{
    (void)state;
    for (int exponent = -126; exponent < 128; exponent++) {
        logfmt_log log = logfmt_log_of(number_bits(ldexpf(1, exponent)));
        assert_true(log.exponent == exponent && log.fraction == 0);
    }
}

static void powers_are_near(void **state)
{
    (void)state;
    double worst = 0;
    for (float fraction = -0.5f; fraction < 33; fraction += 0x1p-16f) {
        double error = fabs(logfmt_power(-60, fraction) / exp2((double)fraction - 60) - 1);
        worst = error > worst ? error : worst;
    }
    printf("powers are off by %.2g of them at most\n", worst);
    assert_true(worst < POWER_ERROR);
    for (int exponent = -126; exponent < 0; exponent++)
        assert_true(logfmt_power(exponent, 0) == ldexpf(1, exponent));
}

/* ---- groups ------------------------------------------------------------------------------------------------------ */

typedef struct coded {
    uint8_t payload[4 * CODEC_GROUP];
    float heads[4], back[2 * CODEC_GROUP];
    int64_t bytes;
} coded;

static coded encode(const float *row, int64_t hidden)
{
    coded c;
    memset(&c, 0xa5, sizeof c);
    c.bytes = codec_encode_row(CODEC_LOGFMT, CODEC_F32, hidden, row, c.payload, c.heads);
    codec_decode_row(CODEC_LOGFMT, hidden, c.payload, c.heads, c.back);
    return c;
}

static uint32_t code_at(const coded *c, int32_t i)
{
    return c->payload[i] | ((uint32_t)c->payload[128 + i / 4] >> (i % 4 * 2) & 3u) << 8;
}

/* From 2^-11 to 2^-1 there are ten binades, of 51 codes each. */
static void a_group_has_the_bytes_worked_out_by_hand(void **state)
{
    (void)state;
    float row[CODEC_GROUP];
    for (int i = 0; i < CODEC_GROUP; i++)
        row[i] = ldexpf(i % 2 ? -1 : 1, -1 - i % 11);
    row[12] = 0.0f;
    row[13] = -0.0f;
    coded c = encode(row, CODEC_GROUP);
    assert_int_equal(c.bytes, 160);
    assert_true(c.heads[0] == 0x1p-11f && c.heads[1] == 0x1p-1f);
    for (int i = 0; i < CODEC_GROUP; i++) {
        uint32_t code = i == 12 || i == 13 ? 0 : (uint32_t)(511 - 51 * (i % 11));
        assert_int_equal(code_at(&c, i), code | (i % 2 ? 0x200u : 0));
        assert_true(fabs(c.back[i] - row[i]) <= VALUE_ERROR * fabs(row[i]) && !signbit(c.back[i]) == !signbit(row[i]));
    }
    /* 511 = 0x1ff, 460 = 0x1cc negative 0x3cc, 409 = 0x199, 358 = 0x166 negative 0x366 */
    ASSERT_ARRAY(c.payload, 0xff, 0xcc, 0x99, 0x66);
    assert_int_equal(c.payload[128], 1 | 3 << 2 | 1 << 4 | 3 << 6);
}

static void small_numbers_are_raised_and_zeros_are_not(void **state)
{
    (void)state;
    float row[CODEC_GROUP] = {0.75f, -0x1p-60f, 0x1p-140f, 0.0f, -0.75f};
    coded c = encode(row, CODEC_GROUP);
    assert_true(c.heads[0] == 0.75f * 0x1p-32f && c.heads[1] == 0.75f);
    ASSERT_ARRAY(((uint32_t[]){code_at(&c, 0), code_at(&c, 1), code_at(&c, 2), code_at(&c, 3), code_at(&c, 4)}), 511,
                 0x201, 1, 0, 0x3ff);
    assert_true(c.back[3] == 0 && fabs(c.back[2] / (0.75 * 0x1p-32) - 1) < VALUE_ERROR);
}

/* Not all below 1, all zero, all one magnitude, too small for the least one to be normal, not finite. */
static void other_groups_go_as_bf16(void **state)
{
    (void)state;
    const float firsts[][2] = {{1.0f, 0.5f},     {0.0f, -0.0f},     {0.3f, -0.3f}, {0x1p-95f, 0x1p-96f},
                               {INFINITY, 0.1f}, {-INFINITY, 0.1f}, {NAN, 0.125f}, {300.0f, 0x1p-60f}};
    for (size_t k = 0; k < sizeof firsts / sizeof *firsts; k++) {
        float row[CODEC_GROUP] = {firsts[k][0], firsts[k][1]};
        coded c = encode(row, CODEC_GROUP);
        assert_int_equal(c.bytes, 256);
        assert_true(c.heads[0] == 0 && c.heads[1] == 0);
        for (int i = 0; i < CODEC_GROUP; i++) {
            uint32_t expected = oracle_round(ORACLE_BF16, row[i]);
            assert_int_equal(oracle_load(ORACLE_BF16, c.payload, i), expected);
            assert_int_equal(number_bits(c.back[i]), expected << 16);
        }
    }
}

static void the_bounds_of_coded_groups_are_exact(void **state)
{
    (void)state;
    const struct {
        float most, least;
        bool is_coded;
    } cases[] = {{0x1.fffffep-1f, 0.5f, true},       {1.0f, 0.5f, false},     {0x1p-94f, 0x1p-95f, true},
                 {0x1.fffffep-95f, 0x1p-95f, false}, {0.5f, 0x1p-149f, true}, {0.5f, 0.499f, true}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        float row[CODEC_GROUP] = {cases[k].least, cases[k].most};
        assert_int_equal(encode(row, CODEC_GROUP).bytes, cases[k].is_coded ? 160 : 256);
    }
}

/* A head that says nothing sensible makes a group of BF16, and never more bytes than fit. */
static void no_head_is_longer_than_its_space(void **state)
{
    (void)state;
    const float odd[] = {0, -0.5f, 0.25f, 0.5f, 1, INFINITY, NAN, -NAN, 0x1p-149f, 0x1p-94f};
    for (size_t a = 0; a < 10; a++)
        for (size_t b = 0; b < 10; b++) {
            float heads[2] = {odd[a], odd[b]};
            int64_t bytes = codec_payload_bytes(CODEC_LOGFMT, CODEC_GROUP, heads);
            assert_true(bytes == 160 || bytes == 256);
        }
    const float upside_down[2] = {0.5f, 0.25f};
    assert_int_equal(codec_payload_bytes(CODEC_LOGFMT, CODEC_GROUP, upside_down), 256);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static void groups_of_a_row_stand_without_gaps(void **state)
{
    (void)state;
    float row[2 * CODEC_GROUP] = {0.5f, 0.25f};
    row[CODEC_GROUP] = 2.0f;
    coded c = encode(row, 256);
    assert_int_equal(c.bytes, 160 + 256);
    assert_int_equal(codec_payload_bytes(CODEC_LOGFMT, 256, c.heads), c.bytes);
    assert_int_equal(oracle_load(ORACLE_BF16, c.payload + 160, 0), 0x4000);
    assert_true(c.back[0] == 0.5f && c.back[CODEC_GROUP] == 2.0f);
    memmove(row, row + CODEC_GROUP, sizeof row / 2);
    memset(row + CODEC_GROUP, 0, sizeof row / 2);
    row[CODEC_GROUP] = 0x1p-3f;
    row[CODEC_GROUP + 1] = 0x1p-4f;
    c = encode(row, 256);
    assert_int_equal(c.bytes, 256 + 160);
    assert_int_equal(c.payload[256], 0xff);
    assert_true(c.back[CODEC_GROUP + 1] == 0x1p-4f);
}

static void sizes_have_space_for_bf16(void **state)
{
    (void)state;
    assert_int_equal(codec_row_bytes(CODEC_LOGFMT, 7168), 14336);
    assert_int_equal(codec_scales(CODEC_LOGFMT, 7168), 112);
    assert_int_equal(codec_row_bytes(CODEC_LOGFMT, 7168 + 64), 0);
}

/* The code is the whole number nearest to the logarithm's place, and the number within half a step: by log2 and exp2 of
   the C library in double. */
static double check_element(const coded *c, const float *row, int32_t i)
{
    double least = log2(c->heads[0]), span = log2(c->heads[1]) - least, magnitude = fabs(row[i]);
    uint32_t code = code_at(c, i);
    if (magnitude == 0) {
        assert_true((code & 0x1ff) == 0 && c->back[i] == 0);
        return 0;
    }
    double place = magnitude < c->heads[0] ? 1 : 1 + (log2(magnitude) - least) / span * 510;
    assert_true(fabs(place - (code & 0x1ff)) <= 0.5 + 1e-3 + 4e-7 / span * 510);
    assert_true((code & 0x1ff) >= 1 && !(code & 0x200) == !signbit(row[i]));
    double expected = exp2(least + ((code & 0x1ff) - 1.0) * span / 510);
    assert_true(fabs(fabs(c->back[i]) / expected - 1) <= VALUE_ERROR);
    if (magnitude < c->heads[0]) return 0;
    double error = fabs(fabs(c->back[i]) / magnitude - 1);
    assert_true(error <= exp2(span / 1020) - 1 + VALUE_ERROR);
    return error;
}

/* From groups of nearly one magnitude to groups over more than 32 binades. */
static void numbers_are_off_by_half_a_step_at_most(void **state)
{
    (void)state;
    random_source random = random_start(random_test_seed("test_codec_log"));
    double worst = 0;
    for (int64_t round = random_test_rounds(2000); round > 0; round--) {
        float row[CODEC_GROUP];
        int binades = (int)random_between(&random, 0, 40), largest = (int)random_between(&random, -54, 0);
        for (int i = 0; i < CODEC_GROUP; i++) {
            double unit = binades ? random_unit(&random) : 0.9 + 1e-3 * random_unit(&random);
            row[i] = (float)ldexp(unit, largest - (int)random_between(&random, 0, binades));
            if (random_once_in(&random, 2)) row[i] = -row[i];
            if (random_once_in(&random, 30)) row[i] = 0;
        }
        coded c = encode(row, CODEC_GROUP);
        if (c.bytes == LOGFMT_BF16_BYTES) fail_msg("a group of magnitudes below 1 is not coded");
        for (int i = 0; i < CODEC_GROUP; i++) {
            double error = check_element(&c, row, i);
            worst = error > worst ? error : worst;
        }
    }
    printf("numbers are off by %.4f of them at most\n", worst);
    assert_true(worst <= 0.0220);
}

/* Within some bits of each other, also where logarithms change their whole part: codes stay in range. */
static void groups_of_neighbours_are_off_by_bits(void **state)
{
    (void)state;
    random_source random = random_start(random_test_seed("test_codec_log, neighbours"));
    for (int64_t round = random_test_rounds(2000); round > 0; round--) {
        float row[CODEC_GROUP];
        int64_t apart = random_between(&random, 1, 200), first = random_between(&random, 0x3e800000, 0x3f7fff00);
        if (random_once_in(&random, 2)) first = 0x3f3504f3 - apart / 2; /* √½ */
        for (int i = 0; i < CODEC_GROUP; i++)
            row[i] = number_of_bits((uint32_t)(first + random_between(&random, 0, apart)));
        row[0] = number_of_bits((uint32_t)first);
        row[1] = number_of_bits((uint32_t)(first + apart));
        coded c = encode(row, CODEC_GROUP);
        assert_int_equal(c.bytes, LOGFMT_CODED_BYTES);
        for (int i = 0; i < CODEC_GROUP; i++) {
            assert_in_range(code_at(&c, i), 1, 511);
            assert_true(fabs(c.back[i] / row[i] - 1) <= apart * 0x1p-23 + POWER_ERROR);
        }
    }
}

static void every_code_comes_back(void **state)
{
    (void)state;
    logfmt_range range = logfmt_range_of_head(0x1.8p-20f, 0x1.2p-1f);
    float up = logfmt_steps_per_unit(&range), down = logfmt_units_per_step(&range);
    for (uint32_t code = 0; code < 1024; code++)
        assert_int_equal(logfmt_code_of(&range, up, logfmt_value_of(&range, down, code)), code);
}

/* ---- the oracle of low-latency mode ------------------------------------------------------------------------------ */

/* Where the oracle's two ends are one, the number that has arrived is that, else it lies between them. */
static void assert_arrived(oracle_type type, const float *back, const void *low, const void *high)
{
    for (int32_t i = 0; i < CODEC_GROUP; i++) {
        const uint32_t got = oracle_round(type, back[i]), least = oracle_load(type, low, i);
        const uint32_t most = oracle_load(type, high, i);
        const float value = oracle_widen(type, got);
        if (least == most)
            assert_int_equal(got, least);
        else
            assert_true(value >= oracle_widen(type, least) && value <= oracle_widen(type, most));
    }
}

/* Groups of all widths, some of them beyond what is coded. */
static void draw_group(random_source *random, oracle_type type, void *x)
{
    const int below = (int)random_between(random, 1, 40), above = (int)random_between(random, -4, 1);
    for (int32_t i = 0; i < CODEC_GROUP; i++) {
        const float unit = (float)random_unit(random) + 0.25f, sign = random_once_in(random, 2) ? -1.0f : 1.0f;
        const float value = ldexpf(unit * sign, above - (int)random_between(random, 0, below));
        oracle_store(type, x, i, oracle_round(type, random_once_in(random, 20) ? sign * 0.0f : value));
    }
}

static void rows_arrive_as_the_oracle_says(void **state)
{
    static const struct {
        oracle_type type;
        int32_t dtype;
        int64_t often; /* at least so many elements for one whose ends differ */
    } kinds[] = {{ORACLE_BF16, CODEC_BF16, 100}, {ORACLE_F16, CODEC_F16, 10}, {ORACLE_F32, CODEC_F32, 0}};
    random_source random = random_start(17);
    (void)state;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        int64_t unsure = 0, groups = 400;
        for (int64_t g = 0; g < groups; g++) {
            uint32_t x[CODEC_GROUP], low[CODEC_GROUP], high[CODEC_GROUP];
            float heads[2] = {0}, back[CODEC_GROUP];
            uint8_t payload[4 * CODEC_GROUP];
            draw_group(&random, kinds[k].type, x);
            codec_encode_row(CODEC_LOGFMT, kinds[k].dtype, CODEC_GROUP, x, payload, heads);
            codec_decode_row(CODEC_LOGFMT, CODEC_GROUP, payload, heads, back);
            unsure += llo_log_row(kinds[k].type, CODEC_GROUP, x, low, high);
            assert_arrived(kinds[k].type, back, low, high);
        }
        assert_true(unsure * kinds[k].often <= groups * CODEC_GROUP);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_arrive_as_the_oracle_says),
        cmocka_unit_test(every_logarithm_is_near),
        cmocka_unit_test(logarithms_never_fall),
        cmocka_unit_test(logarithms_of_powers_of_two_are_whole),
        cmocka_unit_test(powers_are_near),
        cmocka_unit_test(a_group_has_the_bytes_worked_out_by_hand),
        cmocka_unit_test(small_numbers_are_raised_and_zeros_are_not),
        cmocka_unit_test(other_groups_go_as_bf16),
        cmocka_unit_test(the_bounds_of_coded_groups_are_exact),
        cmocka_unit_test(no_head_is_longer_than_its_space),
        cmocka_unit_test(groups_of_a_row_stand_without_gaps),
        cmocka_unit_test(sizes_have_space_for_bf16),
        cmocka_unit_test(numbers_are_off_by_half_a_step_at_most),
        cmocka_unit_test(groups_of_neighbours_are_off_by_bits),
        cmocka_unit_test(every_code_comes_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

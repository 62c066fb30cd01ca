/* SPDX-License-Identifier: Apache-2.0 */
/* Row sums and row copies of the CPU executor, against the oracle's numbers; sums in vectors of each width that this
   processor has. */
#include "exec/cpu/core/sum_wide.h"
#include "exec/cpu/normal/cpu.h"
#include "oracle/oracle.h"
#include "oracle/random.h"
#include "oracle/unit.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    expar_dtype dtype;
    oracle_type type;
} types[] = {{EXPAR_BF16, ORACLE_BF16}, {EXPAR_F16, ORACLE_F16}, {EXPAR_F32, ORACLE_F32}};

/* NULL: what is chosen here. */
static const sum_wide *widths[4] = {NULL, &sum_wide_any};
static size_t num_widths = 2;

static void find_widths(void)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2")) widths[num_widths++] = &sum_wide_avx2;
    if (__builtin_cpu_supports("avx512f")) widths[num_widths++] = &sum_wide_avx512;
#endif
}

/* The sum of element i of all rows, as the definition has it. */
static uint32_t expected_sum(oracle_type type, const void *const *rows, const float *weights, int32_t num_rows,
                             int64_t i)
{
    float sum = 0.0f;
    for (int32_t r = 0; r < num_rows; r++) {
        const float element = oracle_widen(type, oracle_load(type, rows[r], i));
        const float product = weights ? element * weights[r] : element;
        sum += product;
    }
    return oracle_round(type, sum);
}

static void sum_by(const sum_wide *wide, size_t which, uint8_t *y, const void *const *rows, const float *weights,
                   int32_t num_rows, int64_t elements)
{
    const int64_t bytes = elements * (int64_t)oracle_element_bytes(types[which].type);
    if (!wide)
        cpu_sum_weighted(types[which].dtype, y, rows, weights, num_rows, elements);
    else if (types[which].type == ORACLE_F32)
        wide->f32(y, rows, weights, num_rows, bytes);
    else
        (types[which].type == ORACLE_BF16 ? wide->bf16 : wide->f16)(y, rows, weights, num_rows, bytes);
}

static void check_weighted(size_t which, const void *const *rows, const float *weights, int32_t num_rows,
                           int64_t elements)
{
    const oracle_type type = types[which].type;
    const size_t row_bytes = (size_t)elements * oracle_element_bytes(type);
    uint8_t *y = malloc(row_bytes + 4), *first = malloc(row_bytes + 4);
    for (size_t w = 0; w < num_widths; w++) {
        memset(y, 0x5a, row_bytes + 4);
        sum_by(widths[w], which, y, rows, weights, num_rows, elements);
        assert_int_equal(y[row_bytes], 0x5a);
        if (w > 0) assert_memory_equal(y, first, row_bytes);
        if (w == 0) memcpy(first, y, row_bytes);
    }
    for (int64_t i = 0; i < elements; i++)
        assert_int_equal(oracle_load(type, first, i), expected_sum(type, rows, weights, num_rows, i));
    free(first);
    free(y);
}

static void check_sum(size_t which, const void *const *rows, int32_t num_rows, int64_t elements)
{
    check_weighted(which, rows, NULL, num_rows, elements);
}

/* One row of all 65536 values: widening and rounding back, special values included. */
static void every_16_bit_value_alone(void **state)
{
    (void)state;
    uint16_t *all = malloc(65536 * sizeof *all);
    for (int32_t i = 0; i < 65536; i++)
        all[i] = (uint16_t)i;
    const void *rows[] = {all};
    check_sum(0, rows, 1, 65536);
    check_sum(1, rows, 1, 65536);
    free(all);
}

/* Random bits: infinities, NaN, subnormals and ties come by themselves. */
static void random_bits_any_number_of_rows(void **state)
{
    (void)state;
    random_source random = random_start(random_test_seed("test_sum"));
    for (int round = 0; round < 200; round++)
        for (size_t which = 0; which < 3; which++) {
            int32_t num_rows = (int32_t)random_between(&random, 0, 8);
            int64_t elements = random_between(&random, 0, 2099);
            uint8_t *bits = malloc((size_t)(num_rows + 1) * 2100 * 4);
            for (size_t i = 0; i < (size_t)(num_rows + 1) * 2100 * 4; i++)
                bits[i] = (uint8_t)random_bits(&random);
            const void *rows[9];
            float weights[9];
            for (int32_t r = 0; r < num_rows; r++) {
                rows[r] = bits + (size_t)r * 2100 * 4;
                weights[r] = (float)random_between(&random, -1000, 1000) / 512;
            }
            check_weighted(which, rows, round % 2 ? weights : NULL, num_rows, elements);
            free(bits);
        }
}

/* Sums that land between two values of the narrow type, also where the result is subnormal or overflows. */
static void f32_rows_keep_their_value(void **state)
{
    (void)state;
    const uint32_t specials[] = {0x00000000, 0x80000000, 0x00000001, 0x807fffff, 0x7f800000,
                                 0xff800000, 0x7fc00000, 0xffffffff, 0x3f800001, 0x7f7fffff};
    const void *rows[] = {specials, specials};
    check_sum(2, rows, 1, 10);
    check_sum(2, rows, 2, 10);
    check_sum(2, rows, 0, 10);
}

static void copies_are_exact(void **state)
{
    (void)state;
    _Alignas(64) static uint8_t from[4096 + 64], to[4096 + 64];
    for (size_t i = 0; i < sizeof from; i++)
        from[i] = (uint8_t)(i * 7 + i / 256);
    for (size_t bytes = 0; bytes <= 4096; bytes += 16)
        for (int streaming = 0; streaming < 2; streaming++) {
            memset(to, 0xee, sizeof to);
            cpu_copy_row(to + 16, from + 32, bytes, streaming);
            cpu_copy_fence();
            assert_memory_equal(to + 16, from + 32, bytes);
            assert_true(to[15] == 0xee && to[16 + bytes] == 0xee);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_16_bit_value_alone),
        cmocka_unit_test(random_bits_any_number_of_rows),
        cmocka_unit_test(f32_rows_keep_their_value),
        cmocka_unit_test(copies_are_exact),
    };
    find_widths();
    return cmocka_run_group_tests(tests, NULL, NULL);
}

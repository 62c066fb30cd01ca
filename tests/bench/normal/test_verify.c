/* SPDX-License-Identifier: Apache-2.0 */
/* The verifier must say no: outputs built by hand are right, and wrong as soon as one byte of them is. Also the
 * arithmetic of patterns and statistics. */
#include "bench/frame/routing.h"
#include "bench/frame/stats.h"
#include "bench/normal/mode.h"
#include "exec/cpu/core/encode.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 4, TOKENS = 9, HIDDEN = 24, TOPK = 3, EXPERTS = 8, SALT = 77 };

static struct problem *make_problem(int rank, expar_dtype dtype)
{
    struct routing_shape routing = {.num_ranks = RANKS, .tokens = TOKENS, .topk = TOPK, .experts = EXPERTS};
    struct problem_shape shape = {.rank = rank,
                                  .num_ranks = RANKS,
                                  .tokens = TOKENS,
                                  .hidden = HIDDEN,
                                  .topk = TOPK,
                                  .experts = EXPERTS,
                                  .dtype = dtype};
    char error[256];
    struct problem *problem = problem_create(&shape, routing_make("uniform", &routing, 3, error, sizeof error));
    assert_non_null(problem);
    return problem;
}

/* ---- dispatch ---------------------------------------------------------------------------------------------------- */

/* A right output of dispatch, made by walking over sources and tokens. */
struct output {
    unsigned char rows[RANKS * TOKENS * HIDDEN * 4];
    int32_t experts[RANKS * TOKENS * TOPK];
    float weights[RANKS * TOKENS * TOPK];
    int32_t counts[EXPERTS / RANKS];
    expar_ep_dispatch_result result;
};

static void add_row(struct output *output, const struct problem *problem, int source, int token)
{
    int64_t row = output->result.num_recv_tokens++;
    const int32_t *routed = problem->routing + (source * TOKENS + token) * TOPK;
    pattern_row(problem->dtype, pattern_key(SALT, source, token), HIDDEN,
                output->rows + (size_t)row * problem->row_bytes);
    for (int k = 0; k < TOPK; k++) {
        bool here = routed[k] / 2 == problem->rank;
        output->experts[row * TOPK + k] = here ? routed[k] % 2 : -1;
        output->weights[row * TOPK + k] = here ? problem_weight(source, token, k) : 0;
        if (here) output->counts[routed[k] % 2]++;
    }
}

static struct output *make_output(const struct problem *problem)
{
    struct output *output = calloc(1, sizeof *output);
    assert_non_null(output);
    for (int source = 0; source < RANKS; source++)
        for (int token = 0; token < TOKENS; token++) {
            const int32_t *routed = problem->routing + (source * TOKENS + token) * TOPK;
            bool goes = false;
            for (int k = 0; k < TOPK; k++)
                goes |= routed[k] / 2 == problem->rank;
            if (goes) add_row(output, problem, source, token);
        }
    int64_t count = output->result.num_recv_tokens;
    output->result.recv_x = expar_tensor_2d(output->rows, problem->dtype, count, HIDDEN);
    output->result.recv_topk_idx = expar_tensor_2d(output->experts, EXPAR_I32, count, TOPK);
    output->result.recv_topk_weights = expar_tensor_2d(output->weights, EXPAR_F32, count, TOPK);
    output->result.recv_tokens_per_expert = output->counts;
    return output;
}

static const expar_dtype dtypes[] = {EXPAR_BF16, EXPAR_F16, EXPAR_F32};

static void right_dispatch_is_accepted(void **state)
{
    (void)state;
    for (int d = 0; d < 3; d++)
        for (int rank = 0; rank < RANKS; rank++) {
            struct problem *problem = make_problem(rank, dtypes[d]);
            struct output *output = make_output(problem);
            assert_true(output->result.num_recv_tokens > 3);
            assert_int_equal(problem->num_received, output->result.num_recv_tokens);
            assert_true(verify_dispatch(problem, SALT, &output->result, false));
            assert_true(verify_dispatch(problem, SALT, &output->result, true));
            free(output);
            problem_free(problem);
        }
}

/* Rows that the caller has coded, by the library's codec: any wrong bit of a code or a scale is seen. */
static void wrong_codes_are_seen(void **state)
{
    (void)state;
    enum { WIDE = 256, GROUPS = WIDE / 128 };
    static uint16_t token[WIDE];
    static uint8_t rows[RANKS * TOKENS][WIDE];
    static float scales[RANKS * TOKENS][GROUPS];
    struct routing_shape routing = {.num_ranks = RANKS, .tokens = TOKENS, .topk = TOPK, .experts = EXPERTS};
    const struct problem_shape shape = {1, RANKS, TOKENS, WIDE, TOPK, EXPERTS, EXPAR_F8E4M3};
    char error[256];
    struct problem *problem = problem_create(&shape, routing_make("uniform", &routing, 3, error, sizeof error));
    assert_non_null(problem);
    assert_true(problem->num_received > 3);
    for (int64_t i = 0; i < problem->num_received; i++) {
        pattern_row(EXPAR_BF16, pattern_key(SALT, problem->received[i].rank, problem->received[i].token), WIDE, token);
        cpu_encode_row(CODEC_FP8, CODEC_BF16, WIDE, token, rows[i], scales[i]);
    }
    assert_true(coded_verify_rows(problem, SALT, rows, scales[0]));
    assert_false(coded_verify_rows(problem, SALT + 1, rows, scales[0]));
    for (int j = 0; j < WIDE; j += 51) {
        rows[3][j] ^= 1;
        assert_false(coded_verify_rows(problem, SALT, rows, scales[0]));
        rows[3][j] ^= 1;
    }
    scales[2][1] = nextafterf(scales[2][1], 0);
    assert_false(coded_verify_rows(problem, SALT, rows, scales[0]));
    problem_free(problem);
}

static void any_wrong_byte_of_a_row_is_seen(void **state)
{
    (void)state;
    struct problem *problem = make_problem(1, EXPAR_BF16);
    struct output *output = make_output(problem);
    size_t bytes = (size_t)problem->num_received * problem->row_bytes;
    for (size_t i = 0; i < bytes; i += 11) {
        output->rows[i] ^= 1;
        assert_false(verify_dispatch(problem, SALT, &output->result, false));
        assert_false(verify_rows(problem, SALT, output->rows));
        output->rows[i] ^= 1;
    }
    output->rows[bytes - 1] ^= 128;
    assert_false(verify_rows(problem, SALT, output->rows));
    free(output);
    problem_free(problem);
}

static void swapped_rows_are_seen(void **state)
{
    (void)state;
    struct problem *problem = make_problem(2, EXPAR_F32);
    struct output *output = make_output(problem);
    unsigned char kept[HIDDEN * 4];
    memcpy(kept, output->rows, sizeof kept);
    memcpy(output->rows, output->rows + sizeof kept, sizeof kept);
    memcpy(output->rows + sizeof kept, kept, sizeof kept);
    assert_false(verify_rows(problem, SALT, output->rows));
    free(output);
    problem_free(problem);
}

static void rows_of_an_earlier_filling_are_seen(void **state)
{
    (void)state;
    struct problem *problem = make_problem(0, EXPAR_F16);
    struct output *output = make_output(problem);
    assert_false(verify_rows(problem, SALT + 1, output->rows));
    free(output);
    problem_free(problem);
}

static void wrong_counts_and_topk_are_seen(void **state)
{
    (void)state;
    struct problem *problem = make_problem(3, EXPAR_BF16);
    struct output *output = make_output(problem);
    output->experts[4]++;
    assert_false(verify_dispatch(problem, SALT, &output->result, false));
    output->experts[4]--;
    output->weights[2] += 0.5f;
    assert_false(verify_dispatch(problem, SALT, &output->result, false));
    output->weights[2] -= 0.5f;
    output->counts[1]++;
    assert_false(verify_dispatch(problem, SALT, &output->result, false));
    output->counts[1]--;
    output->result.num_recv_tokens--;
    assert_false(verify_dispatch(problem, SALT, &output->result, false));
    output->result.num_recv_tokens++;
    assert_true(verify_dispatch(problem, SALT, &output->result, false));
    free(output);
    problem_free(problem);
}

/* ---- combine ----------------------------------------------------------------------------------------------------- */

/* BF16 sums by long way round: values as doubles, rounded through the nearest two candidates. */
static double bf16_to_double(uint16_t bits)
{
    double mantissa = (bits & 0x7f) / 128.0 + 1;
    return ldexp(bits & 0x8000 ? -mantissa : mantissa, (bits >> 7 & 255) - 127);
}

static uint16_t bf16_nearest(double value)
{
    int exponent;
    double fraction = frexp(fabs(value), &exponent) * 256; /* 128 … 256 */
    double rounded = nearbyint(fraction);
    if (value == 0) return 0;
    unsigned magnitude = (unsigned)((exponent + 125) * 128 + (int)rounded);
    return (uint16_t)(magnitude | (value < 0 ? 0x8000u : 0));
}

/* Sums of the rows that ranks filled in; returned: of the token's own row, as often as ranks have it. */
static void fill_sums(const struct problem *problem, bool returned, uint16_t *y)
{
    for (int token = 0; token < TOKENS; token++)
        for (int j = 0; j < HIDDEN; j++) {
            float sum = 0;
            for (int holder = 0; holder < RANKS; holder++) {
                int64_t position = problem->position[token * RANKS + holder];
                uint64_t key = returned ? pattern_key(SALT, 1, token) : pattern_key(SALT, holder, position);
                uint16_t row[HIDDEN];
                if (position < 0) continue;
                pattern_row(EXPAR_BF16, key, HIDDEN, row);
                sum += (float)bf16_to_double(row[j]);
            }
            y[token * HIDDEN + j] = bf16_nearest(sum);
        }
}

static void assert_judged(const struct problem *problem, enum verify_rows_of rows_of, uint16_t *y)
{
    const enum verify_rows_of other = rows_of == VERIFY_FILLED ? VERIFY_RETURNED : VERIFY_FILLED;
    assert_true(verify_combine(problem, SALT, rows_of, problem->num_ranks, y));
    for (int i = 0; i < TOKENS * HIDDEN; i += 5) {
        y[i] ^= 1;
        assert_false(verify_combine(problem, SALT, rows_of, problem->num_ranks, y));
        y[i] ^= 1;
    }
    assert_false(verify_combine(problem, SALT + 1, rows_of, problem->num_ranks, y));
    assert_false(verify_combine(problem, SALT, other, problem->num_ranks, y));
}

static void combine_is_judged_byte_by_byte(void **state)
{
    (void)state;
    struct problem *problem = make_problem(1, EXPAR_BF16);
    uint16_t y[TOKENS * HIDDEN];
    fill_sums(problem, false, y);
    assert_judged(problem, VERIFY_FILLED, y);
    fill_sums(problem, true, y);
    assert_judged(problem, VERIFY_RETURNED, y);
    problem_free(problem);
}

/* Positions agree with what the other ranks expect to receive. */
static void positions_match_the_receivers(void **state)
{
    (void)state;
    struct problem *sender = make_problem(2, EXPAR_F32);
    for (int rank = 0; rank < RANKS; rank++) {
        struct problem *receiver = make_problem(rank, EXPAR_F32);
        for (int64_t i = 0; i < receiver->num_received; i++)
            if (receiver->received[i].rank == 2)
                assert_int_equal(sender->position[receiver->received[i].token * RANKS + rank], i);
        assert_true(receiver->num_received <= sender->most_received);
        problem_free(receiver);
    }
    problem_free(sender);
}

/* ---- arithmetic -------------------------------------------------------------------------------------------------- */

static void f16_is_rounded_to_nearest_even(void **state)
{
    (void)state;
    static const struct {
        float value;
        uint16_t bits;
    } cases[] = {{0.0f, 0},
                 {1.0f, 0x3c00},
                 {-2.0f, 0xc000},
                 {0x1.002p0f, 0x3c00},   /* half way: to even, down */
                 {0x1.006p0f, 0x3c02},   /* half way: to even, up */
                 {0x1.0021p0f, 0x3c01},  /* above half */
                 {0x1.ffep0f, 0x4000},   /* carries into the exponent */
                 {0x1p-14f, 0x0400},     /* least normal */
                 {0x1.ff8p-15f, 0x03ff}, /* largest subnormal */
                 {0x1.ffcp-15f, 0x0400}, /* half way: to even, a normal */
                 {0x1p-24f, 0x0001},     /* least subnormal */
                 {0x1p-25f, 0x0000},     /* half of it: to even */
                 {0x1.8p-25f, 0x0001},
                 {0x1p-26f, 0x0000}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint16_t bits;
        pattern_round(EXPAR_F16, &cases[i].value, 1, &bits);
        if (bits != cases[i].bits) fail_msg("%a became %04x, not %04x", (double)cases[i].value, bits, cases[i].bits);
    }
}

static void widening_and_rounding_are_inverse(void **state)
{
    (void)state;
    for (int d = 0; d < 3; d++)
        for (uint64_t key = 1; key < 50; key++) {
            unsigned char row[HIDDEN * 4] = {0}, again[HIDDEN * 4] = {0};
            float sum[HIDDEN] = {0};
            pattern_row(dtypes[d], pattern_key(key, 1, 2), HIDDEN, row);
            pattern_add(dtypes[d], pattern_key(key, 1, 2), HIDDEN, sum);
            for (int j = 0; j < HIDDEN; j++)
                assert_true(fabsf(sum[j]) >= 0x1p-7f && fabsf(sum[j]) < 2);
            pattern_round(dtypes[d], sum, HIDDEN, again);
            assert_memory_equal(row, again, sizeof row);
        }
}

static void statistics(void **state)
{
    (void)state;
    double values[200];
    for (int i = 0; i < 200; i++)
        values[i] = (double)((i * 77 + 5) % 200 + 1);
    stats_sort(values, 200);
    assert_true(values[0] == 1 && values[199] == 200);
    assert_true(stats_median(values, 200) == 100.5);
    assert_true(stats_p99(values, 200) == 198);
    assert_true(stats_median(values, 1) == 1 && stats_p99(values, 1) == 1);
    assert_true(stats_median(values, 3) == 2 && stats_p99(values, 3) == 3);
}

/* The rows of a seed stay what they are, too. */
static void patterns_keep_their_bytes(void **state)
{
    (void)state;
    static const uint16_t kept[] = {0xbff0, 0xbf09, 0x3cb6, 0xbfe1, 0xbd20, 0xbd74, 0xbd74, 0xbda9};
    uint16_t row[8];
    assert_true(pattern_key(0, 0, 0) == UINT64_C(0xa706dd2f4d197e6f));
    assert_true(pattern_key(1, 1023, 1048575) == UINT64_C(0x4ea679deb5f6ba09));
    pattern_row(EXPAR_BF16, pattern_key(7, 3, 1000), 8, row);
    assert_memory_equal(row, kept, sizeof kept);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(patterns_keep_their_bytes),
        cmocka_unit_test(right_dispatch_is_accepted),
        cmocka_unit_test(any_wrong_byte_of_a_row_is_seen),
        cmocka_unit_test(wrong_codes_are_seen),
        cmocka_unit_test(swapped_rows_are_seen),
        cmocka_unit_test(rows_of_an_earlier_filling_are_seen),
        cmocka_unit_test(wrong_counts_and_topk_are_seen),
        cmocka_unit_test(combine_is_judged_byte_by_byte),
        cmocka_unit_test(positions_match_the_receivers),
        cmocka_unit_test(f16_is_rounded_to_nearest_even),
        cmocka_unit_test(widening_and_rounding_are_inverse),
        cmocka_unit_test(statistics),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

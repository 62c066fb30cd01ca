/* SPDX-License-Identifier: Apache-2.0 */
/* The verifier of low-latency mode must say no: outputs built by hand are right, and wrong as soon as one byte of them
 * is. Also codes of known numbers, and sums. */
#include "bench/frame/routing.h"
#include "bench/low_latency/mode.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 2, TOKENS = 5, HIDDEN = 256, TOPK = 3, EXPERTS = 4, LOCALS = EXPERTS / RANKS, SALT = 77 };
enum { PER_EXPERT = RANKS * TOKENS, MOST_SCALES = HIDDEN / 128 };

static const struct ll_format *format_of(const char *name)
{
    const struct ll_format *format = ll_formats;
    while (strcmp(format->name, name) != 0)
        format++;
    return format;
}

/* A session without a group, on the CPU: problem and layout. */
static struct bench_session open_session(int rank, expar_dtype dtype, const char *format)
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
    static const struct bench_world world = {.device = &bench_cpu};
    struct bench_session session = {.world = &world, .format = format_of(format)};
    session.problem = problem_create(&shape, routing_make("uniform", &routing, 3, error, sizeof error));
    assert_non_null(session.problem);
    session.layout = ll_layout_create(session.problem);
    assert_non_null(session.layout);
    return session;
}

static void close_session(struct bench_session *session)
{
    ll_layout_free(session->layout);
    problem_free(session->problem);
}

/* ---- dispatch ---------------------------------------------------------------------------------------------------- */

/* A right output of dispatch, made by walking over experts, sources and tokens. */
struct output {
    uint8_t x[LOCALS * PER_EXPERT * HIDDEN * 4];
    uint32_t scales[LOCALS * MOST_SCALES * PER_EXPERT];
    int32_t counts[LOCALS], src_info[LOCALS * PER_EXPERT];
    struct ll_rows rows;
};

static void add_row(struct output *output, const struct bench_session *session, int local, int source, int token)
{
    const struct problem *problem = session->problem;
    const size_t row_bytes = ll_format_row_bytes(session->format, problem->dtype, HIDDEN);
    const int num_scales = ll_format_scales(session->format, HIDDEN), row = output->counts[local]++;
    uint8_t plain[HIDDEN * 4], coded[HIDDEN * 4 + MOST_SCALES * 4];
    pattern_row(problem->dtype, pattern_key(SALT, source, token), HIDDEN, plain);
    ll_format_encode(session->format, problem->dtype, HIDDEN, plain, coded);
    memcpy(output->x + (size_t)(local * PER_EXPERT + row) * row_bytes, coded, row_bytes);
    for (int w = 0; w < num_scales; w++)
        memcpy(&output->scales[(local * num_scales + w) * PER_EXPERT + row], coded + row_bytes + w * 4, 4);
    output->src_info[local * PER_EXPERT + row] = token;
}

static struct output *make_output(const struct bench_session *session)
{
    struct output *output = calloc(1, sizeof *output);
    assert_non_null(output);
    for (int i = 0; i < LOCALS * RANKS * TOKENS * TOPK; i++) {
        const int local = i / (RANKS * TOKENS * TOPK), slot = i % (RANKS * TOKENS * TOPK);
        if (session->problem->routing[slot] == session->problem->rank * LOCALS + local)
            add_row(output, session, local, slot / (TOKENS * TOPK), slot / TOPK % TOKENS);
    }
    const int num_scales = ll_format_scales(session->format, HIDDEN);
    output->rows = (struct ll_rows){.rows = output->x,
                                    .scales = output->scales,
                                    .scale_strides = {num_scales * PER_EXPERT, 1, PER_EXPERT},
                                    .counts = output->counts,
                                    .src_info = output->src_info};
    return output;
}

/* One changed byte of row 0, of its scale, token number, or of a count. */
static void assert_noticed(const struct bench_session *session, const struct output *output, void *where)
{
    uint8_t *byte = where;
    assert_true(output->counts[0] > 0);
    *byte ^= 1;
    assert_false(ll_verify_rows(session, SALT, &output->rows));
    *byte ^= 1;
    assert_true(ll_verify_rows(session, SALT, &output->rows));
}

static void wrong_rows_are_noticed(void **state)
{
    (void)state;
    static const char *const formats[] = {"f32", "fp8", "fp8_round", "fp8_ue8m0", "int8"};
    for (int i = 0; i < RANKS * 5; i++) {
        struct bench_session session = open_session(i % RANKS, EXPAR_F32, formats[i / RANKS]);
        struct output *output = make_output(&session);
        assert_true(ll_verify_rows(&session, SALT, &output->rows));
        assert_false(ll_verify_rows(&session, SALT + 1, &output->rows));
        assert_noticed(&session, output, output->x);
        assert_noticed(&session, output, output->src_info);
        assert_noticed(&session, output, &output->counts[LOCALS - 1]);
        if (ll_format_scales(session.format, HIDDEN)) assert_noticed(&session, output, output->scales);
        free(output);
        close_session(&session);
    }
}

/* ---- combine ----------------------------------------------------------------------------------------------------- */

/* Row i of the output of expert `expert`: half of the pattern, a power of two less in each exponent. */
static void expert_row(expar_dtype dtype, int expert, int i, uint8_t *row)
{
    uint16_t *halves = (uint16_t *)row;
    uint32_t *words = (uint32_t *)row;
    pattern_row(dtype, pattern_key(SALT, expert, i), HIDDEN, row);
    for (int j = 0; j < HIDDEN; j++)
        if (dtype == EXPAR_F32)
            words[j] -= 1u << 23;
        else
            halves[j] = (uint16_t)(halves[j] - (dtype == EXPAR_BF16 ? 1 << 7 : 1 << 10));
}

/* The sum of a token's slots on one rank, or with -1 on all; 0 where there are none. */
static int sum_slots(const struct bench_session *session, int token, int rank, uint8_t *out)
{
    static _Alignas(64) uint8_t made[TOPK][HIDDEN * 4];
    const struct problem *problem = session->problem;
    const void *rows[TOPK];
    float weights[TOPK];
    int count = 0;
    for (int k = 0; k < TOPK; k++) {
        const int slot = (problem->rank * TOKENS + token) * TOPK + k;
        if (rank >= 0 && problem->routing[slot] / LOCALS != rank) continue;
        expert_row(problem->dtype, problem->routing[slot], session->layout->row[slot], made[k]);
        rows[count] = made[k];
        weights[count++] = problem_weight(problem->rank, token, k);
    }
    if (count) ll_sum_rows(problem->dtype, rows, weights, count, HIDDEN, out);
    return count;
}

static void make_sums(const struct bench_session *session, bool reduced, uint8_t *y)
{
    static _Alignas(64) uint8_t partial[RANKS][HIDDEN * 4];
    const size_t row_bytes = session->problem->row_bytes;
    for (int token = 0; token < TOKENS; token++) {
        const void *rows[RANKS];
        int count = 0;
        if (!reduced) sum_slots(session, token, -1, y + (size_t)token * row_bytes);
        for (int rank = 0; rank < RANKS && reduced; rank++)
            if (sum_slots(session, token, rank, partial[rank])) rows[count++] = partial[rank];
        if (reduced) ll_sum_rows(session->problem->dtype, rows, NULL, count, HIDDEN, y + (size_t)token * row_bytes);
    }
}

static void wrong_sums_are_noticed(void **state)
{
    (void)state;
    static const expar_dtype dtypes[] = {EXPAR_BF16, EXPAR_F16, EXPAR_F32};
    static uint8_t y[TOKENS * HIDDEN * 4];
    for (int i = 0; i < 3 * RANKS * 2; i++) {
        const bool reduced = i % 2;
        struct bench_session session = open_session(i / 2 % RANKS, dtypes[i / 4], "bf16");
        make_sums(&session, reduced, y);
        assert_true(ll_verify_combine(&session, SALT, reduced, false, y));
        assert_true(ll_verify_combine(&session, SALT, reduced, true, y));
        assert_false(ll_verify_combine(&session, SALT + 1, reduced, true, y));
        uint8_t *last = &y[(TOKENS - 1) * session.problem->row_bytes + session.problem->row_bytes - 4];
        *last ^= 1;
        assert_false(ll_verify_combine(&session, SALT, reduced, false, y));
        last[3] ^= 0x80; /* the other sign is beyond any bound */
        assert_false(ll_verify_combine(&session, SALT, reduced, true, y));
        close_session(&session);
    }
}

static void wrong_counts_are_noticed(void **state)
{
    (void)state;
    struct bench_session session = open_session(0, EXPAR_BF16, "bf16");
    assert_true(ll_verify_count(&session, "messages", 7, 7));
    assert_false(ll_verify_count(&session, "messages", 8, 7));
    close_session(&session);
}

/* ---- formats ----------------------------------------------------------------------------------------------------- */

/* With 448 (127) as the largest number the scale is 1, and codes are those of the numbers themselves. */
static void known_numbers_have_known_codes(void **state)
{
    (void)state;
    static const struct {
        float value;
        uint8_t code;
    } e4m3[] = {{448, 0x7e},     {-448, 0xfe},      {1, 0x38},        {17, 0x58},         {19, 0x5a},
                {0x1p-9f, 0x01}, {0x1.8p-9f, 0x02}, {0x1p-10f, 0x00}, {0x1.fcp-7f, 0x08}, {0, 0x00}},
      int8[] = {{127, 127}, {-127, 129}, {2.5f, 2}, {3.5f, 4}, {-0.5f, 0}, {0.75f, 1}};
    float row[128] = {0}, scale;
    uint8_t coded[128 + 4];
    for (size_t i = 0; i < sizeof e4m3 / sizeof *e4m3; i++)
        row[i] = e4m3[i].value;
    ll_format_encode(format_of("fp8"), EXPAR_F32, 128, row, coded);
    memcpy(&scale, coded + 128, 4);
    assert_true(scale == 1);
    for (size_t i = 0; i < sizeof e4m3 / sizeof *e4m3; i++)
        assert_int_equal(coded[i], e4m3[i].code);
    ll_format_encode(format_of("fp8_ue8m0"), EXPAR_F32, 128, row, coded);
    assert_int_equal(coded[128], 127);
    assert_int_equal(coded[129], 0);
    row[0] = 449; /* beyond 448 · 2^0: the next power of two */
    ll_format_encode(format_of("fp8_round"), EXPAR_F32, 128, row, coded);
    memcpy(&scale, coded + 128, 4);
    assert_true(scale == 2);
    memset(row, 0, sizeof row);
    for (size_t i = 0; i < sizeof int8 / sizeof *int8; i++)
        row[i] = int8[i].value;
    ll_format_encode(format_of("int8"), EXPAR_F32, 128, row, coded);
    for (size_t i = 0; i < sizeof int8 / sizeof *int8; i++)
        assert_int_equal(coded[i], int8[i].code);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_rows_are_noticed),
        cmocka_unit_test(wrong_sums_are_noticed),
        cmocka_unit_test(wrong_counts_are_noticed),
        cmocka_unit_test(known_numbers_have_known_codes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

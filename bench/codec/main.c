/* SPDX-License-Identifier: Apache-2.0 */
/* expar-bench-codec: how fast a thread encodes rows for sending, beside memcpy of the same rows.
 *
 * Messages lie one after the other, each a payload and its scales. Within an iteration memcpy and the codec take turns
 * on the same rows; medians count. A rate is bytes of the rows as given, whatever becomes of them. */
#include "arguments.h"
#include "base/shown.h"
#include "bench/frame/measure.h"
#include "bench/frame/splitmix.h"
#include "exec/cpu/core/encode.h"
#include "table.h"
#include "text.h"
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_TOKENS (INT64_C(1) << 20)
#define MAX_HIDDEN (INT64_C(1) << 20)
#define MAX_ITERS  50000

enum { KEY_TOKENS = 1000, KEY_HIDDEN, KEY_ITERS };

static const struct argp_option options_table[] = {
    {"tokens", KEY_TOKENS, "T", 0, "Rows (default: 128)", 0},
    {"hidden", KEY_HIDDEN, "H", 0, "Elements of a row, a multiple of 128 (default: 7168)", 0},
    {"iters", KEY_ITERS, "COUNT", 0, "Measured iterations (default: 100)", 0},
    {0}};

struct codec_bench {
    int64_t tokens, hidden, iters;
    unsigned char *rows, *messages; /* large enough for FP32 rows and scales */
    float *numbers;                 /* one row */
    double *copy_us, *encode_us, *decode_us;
};

static const struct {
    int32_t number;
    const char *name;
} formats[] = {{CODEC_BF16, "bf16"},
               {CODEC_F16, "f16"},
               {CODEC_F32, "f32"},
               {CODEC_FP8, "fp8"},
               {CODEC_FP8_ROUND, "fp8 round"},
               {CODEC_FP8_UE8M0, "fp8 ue8m0"},
               {CODEC_INT8, "int8"},
               {CODEC_LOGFMT, "logfmt"}};

static size_t element_bytes(int32_t dtype)
{
    return dtype == CODEC_F32 ? 4 : 2;
}

/* ---- what is timed ----------------------------------------------------------------------------------------------- */

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

static double copy_rows(const struct codec_bench *b, int32_t dtype)
{
    size_t bytes = (size_t)b->hidden * element_bytes(dtype);
    double start_us = now_us();
    for (size_t t = 0; t < (size_t)b->tokens; t++)
        memcpy(b->messages + t * bytes, b->rows + t * bytes, bytes);
    return now_us() - start_us;
}

static size_t message_bytes(const struct codec_bench *b, int32_t format)
{
    return (size_t)(codec_row_bytes(format, b->hidden) + codec_scale_bytes(format, b->hidden) + 15) / 16 * 16;
}

static double encode_rows(const struct codec_bench *b, int32_t format, int32_t dtype)
{
    size_t bytes = (size_t)b->hidden * element_bytes(dtype), pitch = message_bytes(b, format);
    size_t payload_bytes = (size_t)codec_row_bytes(format, b->hidden);
    double start_us = now_us();
    for (size_t t = 0; t < (size_t)b->tokens; t++) {
        unsigned char *message = b->messages + t * pitch;
        cpu_encode_row(format, dtype, b->hidden, b->rows + t * bytes, message, message + payload_bytes);
    }
    return now_us() - start_us;
}

static double decode_rows(const struct codec_bench *b, int32_t format)
{
    size_t pitch = message_bytes(b, format), payload_bytes = (size_t)codec_row_bytes(format, b->hidden);
    double start_us = now_us();
    for (size_t t = 0; t < (size_t)b->tokens; t++) {
        const unsigned char *message = b->messages + t * pitch;
        cpu_decode_row(format, b->hidden, message, message + payload_bytes, b->numbers);
    }
    return now_us() - start_us;
}

/* ---- a case ------------------------------------------------------------------------------------------------------ */

static const char *const dtype_names[] = {[CODEC_BF16] = "bf16", [CODEC_F16] = "f16", [CODEC_F32] = "f32"};

static void fill_rows(const struct codec_bench *b, int32_t dtype)
{
    uint64_t state = 1;
    for (int64_t i = 0; i < b->tokens * b->hidden; i++)
        codec_store(dtype, b->rows, i, (float)(int32_t)splitmix_next(&state) * 0x1p-32f);
}

static void run_case(const struct codec_bench *b, size_t which, int32_t dtype, struct table *table)
{
    int32_t format = formats[which].number;
    double bytes = (double)(b->tokens * b->hidden) * (double)element_bytes(dtype);
    for (int64_t i = -2; i < b->iters; i++) {
        int64_t at = i < 0 ? 0 : i;
        b->copy_us[at] = copy_rows(b, dtype);
        b->encode_us[at] = encode_rows(b, format, dtype);
        b->decode_us[at] = decode_rows(b, format);
    }
    double copy_us = bench_summary(b->copy_us, (int)b->iters).median_us;
    double encode_us = bench_summary(b->encode_us, (int)b->iters).median_us;
    double decode_us = bench_summary(b->decode_us, (int)b->iters).median_us;
    table_row(table);
    table_cell(table, "%s", dtype_names[dtype]);
    table_cell(table, "%s", formats[which].name);
    table_cell(table, "%.2f", encode_us / (double)b->tokens);
    table_cell(table, "%.1f", bytes / encode_us * 1e-3);
    table_cell(table, "%.1f", bytes / copy_us * 1e-3);
    table_cell(table, "%.2f", copy_us / encode_us);
    table_cell(table, "%.2f", decode_us / (double)b->tokens);
}

/* All formats of all types. */
static bool run_all(const struct codec_bench *b)
{
    struct table *table = table_new();
    table_column(table, "rows", TABLE_LEFT);
    table_column(table, "format", TABLE_LEFT);
    static const char *const titles[] = {"encode µs/row", "GB/s", "memcpy GB/s", "of memcpy", "decode µs/row"};
    for (size_t i = 0; i < sizeof titles / sizeof *titles; i++)
        table_column(table, titles[i], TABLE_RIGHT);
    for (int32_t dtype = CODEC_BF16; dtype <= CODEC_F32; dtype++) {
        fill_rows(b, dtype);
        for (size_t f = 0; f < sizeof formats / sizeof *formats; f++)
            run_case(b, f, dtype, table);
    }
    printf("T %lld, H %lld, one thread\n", (long long)b->tokens, (long long)b->hidden);
    return table_print(table, stdout);
}

/* ---- arguments --------------------------------------------------------------------------------------------------- */

static void parse_number(struct argp_state *state, const char *name, const char *text, int64_t most, int64_t *out)
{
    if (!text_to_int(text, 1, most, out))
        argp_error(state, "--%s: expected a number from 1 to %lld, not '%s'", name, (long long)most, SHOWN(text));
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct codec_bench *b = state->input;
    if (key == KEY_TOKENS)
        parse_number(state, "tokens", arg, MAX_TOKENS, &b->tokens);
    else if (key == KEY_HIDDEN)
        parse_number(state, "hidden", arg, MAX_HIDDEN, &b->hidden);
    else if (key == KEY_ITERS)
        parse_number(state, "iters", arg, MAX_ITERS, &b->iters);
    else if (key == ARGP_KEY_END && !codec_takes(CODEC_FP8, b->hidden))
        argp_error(state, "--hidden: expected a multiple of %d, not %lld", CODEC_GROUP, (long long)b->hidden);
    else
        return key == ARGP_KEY_ARG ? ARGP_ERR_UNKNOWN : 0;
    return 0;
}

static bool make(struct codec_bench *b)
{
    size_t row_bytes = (size_t)b->hidden * sizeof(float), times = (size_t)b->iters;
    b->rows = aligned_alloc(4096, ((size_t)b->tokens * row_bytes + 4095) / 4096 * 4096);
    b->messages = aligned_alloc(4096, ((size_t)b->tokens * row_bytes + 4095) / 4096 * 4096);
    b->numbers = malloc(row_bytes);
    b->copy_us = malloc(times * sizeof *b->copy_us);
    b->encode_us = malloc(times * sizeof *b->encode_us);
    b->decode_us = malloc(times * sizeof *b->decode_us);
    return b->rows && b->messages && b->numbers && b->copy_us && b->encode_us && b->decode_us;
}

static void end(struct codec_bench *b)
{
    free(b->rows);
    free(b->messages);
    free(b->numbers);
    free(b->copy_us);
    free(b->encode_us);
    free(b->decode_us);
}

int main(int argc, char **argv)
{
    struct codec_bench b = {.tokens = 128, .hidden = 7168, .iters = 100};
    setlocale(LC_ALL, "");
    const struct argp argp = {.options = options_table,
                              .parser = parse,
                              .doc = "Measures how fast a thread encodes and decodes rows, beside memcpy of the rows."};
    if (arguments_parse(&argp, 0, argc, argv, &b)) return 1;
    bool good = make(&b);
    if (good)
        good = run_all(&b);
    else
        fprintf(stderr, "expar-bench-codec: no memory for %lld rows\n", (long long)b.tokens);
    end(&b);
    return good ? 0 : 1;
}

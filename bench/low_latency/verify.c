/* SPDX-License-Identifier: Apache-2.0 */
/* Compares every byte of an output with what follows from the routing, the pattern of rows and the format's
 * definition. */
#include "bench/low_latency/mode.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

bool ll_verify_count(const struct bench_session *session, const char *what, uint64_t count, uint64_t expected)
{
    if (count == expected) return true;
    return bench_wrong(session->problem, "%llu %s, %llu expected", (unsigned long long)count, what,
                       (unsigned long long)expected);
}

/* ---- dispatch ---------------------------------------------------------------------------------------------------- */

static bool row_is(const struct bench_session *session, const struct ll_rows *rows, int64_t row,
                   const uint8_t *expected)
{
    const struct problem *problem = session->problem;
    const size_t row_bytes = ll_format_row_bytes(session->format, problem->dtype, problem->hidden);
    if (memcmp((const uint8_t *)rows->rows + (size_t)row * row_bytes, expected, row_bytes)) return false;
    const int64_t per_expert = session->layout->rows_per_expert;
    const int words = ll_format_scales(session->format, problem->hidden);
    const int64_t at = ll_format_scale_at(session->format, words, row % per_expert) * rows->scale_strides[1];
    const uint32_t *scales = rows->scales + row / per_expert * rows->scale_strides[0] + at;
    for (int w = 0; w < words; w++)
        if (memcmp(scales + w * rows->scale_strides[2], expected + row_bytes + (size_t)w * 4, 4)) return false;
    return true;
}

/* Verifies all rows of one message; `plain` and `coded` hold one row each. */
static bool message_is(const struct bench_session *session, uint64_t salt, const struct ll_rows *rows,
                       const struct problem_row *message, void *plain, uint8_t *coded)
{
    const struct problem *problem = session->problem;
    pattern_row(problem->dtype, pattern_key(salt, message->rank, message->token), problem->hidden, plain);
    ll_format_encode(session->format, problem->dtype, problem->hidden, plain, coded);
    for (int k = 0; k < problem->topk; k++) {
        if (ll_layout_rank(problem, message->rank, message->token, k) != problem->rank) continue;
        const int64_t row = ll_layout_row(problem, session->layout, message->rank, message->token, k);
        if (rows->src_info[row] != message->token)
            return bench_wrong(session->problem, "src_info of row %lld is %d, not %d", (long long)row,
                               (int)rows->src_info[row], (int)message->token);
        if (!row_is(session, rows, row, coded))
            return bench_wrong(session->problem, "row %lld is not token %d of rank %d", (long long)row,
                               (int)message->token, (int)message->rank);
    }
    return true;
}

bool ll_verify_rows(const struct bench_session *session, uint64_t salt, const struct ll_rows *rows)
{
    const struct problem *problem = session->problem;
    const struct ll_layout *layout = session->layout;
    const size_t scale_bytes = 4 * (size_t)ll_format_scales(session->format, problem->hidden);
    void *plain = malloc(problem->row_bytes);
    uint8_t *coded = malloc(problem->row_bytes + scale_bytes);
    bool good = (plain && coded) || bench_wrong(session->problem, "out of memory for the comparison");
    for (int l = 0; l < layout->local_experts && good; l++)
        if (rows->counts[l] != layout->counts[problem->rank * layout->local_experts + l])
            good = bench_wrong(session->problem, "the count of local expert %d", l);
    for (int64_t i = 0; i < problem->num_received && good; i++)
        good = message_is(session, salt, rows, &problem->received[i], plain, coded);
    free(coded);
    free(plain);
    return good;
}

/* Verifies range[l][s]: begin and count of a source's rows. */
static bool ranges_are_right(const struct bench_session *session, const int64_t *range)
{
    const struct problem *problem = session->problem;
    const int locals = session->layout->local_experts;
    for (int l = 0; l < locals; l++) {
        int64_t begin = 0;
        for (int s = 0; s < problem->num_ranks; s++) {
            int64_t count = 0;
            const int32_t *routed = problem_routing_of(problem, s);
            for (int64_t i = 0; i < problem->tokens * problem->topk; i++)
                count += routed[i] == problem->rank * locals + l;
            if (range[l * problem->num_ranks + s] != (begin << 32 | count))
                return bench_wrong(session->problem, "the range of rank %d at local expert %d", s, l);
            begin += count;
        }
    }
    return true;
}

static const void *view(const struct bench_session *session, const void *data, size_t bytes)
{
    return data ? session->world->device->view(session->world, data, bytes) : NULL;
}

static void unview(const struct bench_session *session, const void *seen)
{
    if (seen) session->world->device->unview(session->world, seen);
}

static bool on_host(const struct bench_session *session)
{
    return session->world->place.type != EXPAR_CUDA;
}

static size_t all_rows_bytes(const struct bench_session *session)
{
    const struct ll_layout *layout = session->layout;
    const size_t row_bytes = ll_format_row_bytes(session->format, session->problem->dtype, session->problem->hidden);
    return (size_t)layout->local_experts * (size_t)layout->rows_per_expert * row_bytes;
}

/* Copies the rows that the layout names for each expert to the same places. */
static void *copy_rows(const struct bench_session *session, const void *rows)
{
    const struct ll_layout *layout = session->layout;
    const size_t expert_bytes = all_rows_bytes(session) / (size_t)layout->local_experts;
    uint8_t *seen = ll_reserve(all_rows_bytes(session));
    bool good = seen != NULL;
    for (int l = 0; l < layout->local_experts && good; l++) {
        const int32_t count = layout->counts[session->problem->rank * layout->local_experts + l];
        const size_t at = (size_t)l * expert_bytes,
                     bytes = expert_bytes / (size_t)layout->rows_per_expert * (size_t)count;
        const void *part = view(session, (const uint8_t *)rows + at, bytes);
        good = part != NULL;
        if (good) memcpy(seen + at, part, bytes);
        unview(session, part);
    }
    if (good) return seen;
    ll_unreserve(seen, all_rows_bytes(session));
    return NULL;
}

bool ll_look(const struct bench_session *session, const struct ll_rows *rows, struct ll_rows *seen)
{
    const struct ll_layout *layout = session->layout;
    const size_t locals = (size_t)layout->local_experts, places = locals * (size_t)layout->rows_per_expert;
    *seen = *rows;
    if (on_host(session)) return true;
    seen->rows = copy_rows(session, rows->rows);
    seen->scales = rows->scales ? view(session, rows->scales, locals * (size_t)rows->scale_strides[0] * 4) : NULL;
    seen->counts = rows->counts ? view(session, rows->counts, locals * sizeof *rows->counts) : NULL;
    seen->src_info = view(session, rows->src_info, places * sizeof *rows->src_info);
    if (seen->rows && !rows->scales == !seen->scales && !rows->counts == !seen->counts && seen->src_info) return true;
    ll_unlook(session, seen);
    return bench_complain(session->world, "the output cannot be read back");
}

void ll_unlook(const struct bench_session *session, struct ll_rows *seen)
{
    if (on_host(session)) return;
    ll_unreserve((void *)(uintptr_t)seen->rows, all_rows_bytes(session));
    unview(session, seen->scales);
    unview(session, seen->counts);
    unview(session, seen->src_info);
}

static bool verify_ranges(const struct bench_session *session, const int64_t *range)
{
    const int64_t *seen = view(
        session, range, (size_t)session->layout->local_experts * (size_t)session->problem->num_ranks * sizeof *range);
    bool good = seen && ranges_are_right(session, seen);
    unview(session, seen);
    return good;
}

bool ll_verify_dispatch(const struct bench_session *session, uint64_t salt, const expar_ll_dispatch_result *result)
{
    expar_ll_handle_info info = EXPAR_LL_HANDLE_INFO_INIT;
    if (!bench_good(session->world, expar_ll_handle_get_info(result->handle, &info))) return false;
    struct ll_rows seen, rows = {.rows = result->recv_x.data,
                                 .scales = result->recv_scales.data,
                                 .counts = result->recv_count.data,
                                 .src_info = info.src_info.data};
    const int words = ll_format_scales(session->format, session->problem->hidden);
    for (int i = 0; i < 3 && rows.scales; i++)
        rows.scale_strides[i] = result->recv_scales.strides[i];
    if (ll_format_is_nvfp4(session->format)) {
        const int64_t per_expert = session->layout->rows_per_expert;
        rows.scale_strides[0] = ll_format_scale_words(session->format, words, per_expert);
        rows.scale_strides[1] = 1;
        rows.scale_strides[2] = ll_format_scale_stride(session->format, per_expert);
    }
    if (!verify_ranges(session, info.range.data) || !ll_look(session, &rows, &seen)) return false;
    bool good = ll_verify_rows(session, salt, &seen);
    ll_unlook(session, &seen);
    return good;
}

/* ---- combine ----------------------------------------------------------------------------------------------------- */

/* Scratch memory of one sum. */
struct sums {
    float *row, *sum, *partial; /* [H] */
    float *magnitudes;          /* [H] Σ |weight · x|, for the bound of what LogFMT may change */
    void *rounded;              /* [H] of the type */
};

static void add_slot(const struct bench_session *session, uint64_t salt, int64_t token, int k, const struct sums *sums,
                     float *to)
{
    const struct problem *problem = session->problem;
    const int64_t slot = ((int64_t)problem->rank * problem->tokens + token) * problem->topk + k;
    const float weight = problem_weight(problem->rank, token, k);
    memset(sums->row, 0, (size_t)problem->hidden * sizeof *sums->row);
    pattern_add(problem->dtype, pattern_key(salt, problem->routing[slot], session->layout->row[slot]), problem->hidden,
                sums->row);
    for (int j = 0; j < problem->hidden; j++) {
        const float product = weight * (sums->row[j] * 0.5f); /* rows are half of the pattern */
        to[j] += product;
        sums->magnitudes[j] += fabsf(product);
    }
}

/* Adds the slots whose expert lives on the rank; -1: all slots. Returns whether there are any. */
static bool add_slots(const struct bench_session *session, uint64_t salt, int64_t token, int rank,
                      const struct sums *sums, float *to)
{
    const struct problem *problem = session->problem;
    bool any = false;
    for (int k = 0; k < problem->topk; k++) {
        const int of = ll_layout_rank(problem, problem->rank, token, k);
        if (of < 0 || (rank >= 0 && of != rank)) continue;
        add_slot(session, salt, token, k, sums, to);
        any = true;
    }
    return any;
}

static void expected_sum(const struct bench_session *session, uint64_t salt, bool reduced, int64_t token,
                         const struct sums *sums)
{
    const struct problem *problem = session->problem;
    const size_t bytes = (size_t)problem->hidden * sizeof(float);
    memset(sums->sum, 0, bytes);
    memset(sums->magnitudes, 0, bytes);
    if (!reduced) add_slots(session, salt, token, -1, sums, sums->sum);
    for (int rank = 0; rank < problem->num_ranks && reduced; rank++) {
        memset(sums->partial, 0, bytes);
        if (!add_slots(session, salt, token, rank, sums, sums->partial)) continue;
        pattern_round(problem->dtype, sums->partial, problem->hidden, sums->rounded);
        for (int j = 0; j < problem->hidden; j++)
            sums->sum[j] += ll_element(problem->dtype, sums->rounded, j);
    }
    pattern_round(problem->dtype, sums->sum, problem->hidden, sums->rounded);
}

/* Rows span at most 8 binades. A code is within 2^(8/1020) - 1 and 4e-6 of its number
   (docs/reference/low-latency-formats.md). Decoded rows and the sum are rounded to the type, bf16 at worst. */
static bool is_near(const struct bench_session *session, const void *row, const struct sums *sums)
{
    const struct problem *problem = session->problem;
    const float code = 0x1.66p-8f, rounding = 0x1p-8f;
    for (int j = 0; j < problem->hidden; j++) {
        const float bound = (code + rounding) * sums->magnitudes[j] + rounding * fabsf(sums->sum[j]);
        if (!(fabsf(ll_element(problem->dtype, row, j) - sums->sum[j]) <= bound)) return false;
    }
    return true;
}

static bool sums_make(const struct problem *problem, struct sums *sums)
{
    const size_t hidden = (size_t)problem->hidden;
    float *memory = calloc(5 * hidden, sizeof *memory);
    *sums = (struct sums){0};
    if (!memory) return false;
    *sums = (struct sums){.row = memory,
                          .sum = memory + hidden,
                          .partial = memory + 2 * hidden,
                          .magnitudes = memory + 3 * hidden,
                          .rounded = memory + 4 * hidden};
    return true;
}

bool ll_verify_combine(const struct bench_session *session, uint64_t salt, bool reduced, bool coded, const void *y)
{
    const struct problem *problem = session->problem;
    struct sums sums;
    const uint8_t *seen = view(session, y, (size_t)problem->tokens * problem->row_bytes);
    if (!seen) return bench_wrong(session->problem, "y cannot be read back");
    bool good = sums_make(problem, &sums) || bench_wrong(session->problem, "out of memory for the comparison");
    for (int64_t token = 0; token < problem->tokens && good; token++) {
        const uint8_t *row = seen + (size_t)token * problem->row_bytes;
        expected_sum(session, salt, reduced, token, &sums);
        good = coded ? is_near(session, row, &sums) : !memcmp(row, sums.rounded, problem->row_bytes);
        if (!good) bench_wrong(session->problem, "the sum of token %lld", (long long)token);
    }
    free(sums.row);
    unview(session, seen);
    return good;
}

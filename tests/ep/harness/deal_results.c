/* SPDX-License-Identifier: Apache-2.0 */
/* Compares the results of a dispatch of a deal with the oracle. */
#include "ep/harness/deal.h"
#include "ep/harness/pitched.h"
#include <stdlib.h>
#include <string.h>

/* ---- counts where the tensors lie -------------------------------------------------------------------------------- */

static bool check_ends(const deal_call *call)
{
    oracle_job job = deal_job_of(call->move->deal, call->rank);
    int32_t locals = job.num_experts / job.num_ranks, *ends = traffic_alloc((size_t)locals, sizeof *ends);
    bool right = true;
    oracle_expert_ends(&job, call->rank, ends);
    for (int32_t e = 0; right && e < locals; e++)
        right = CHECK(call->counts.expert_ends[e] == ends[e], "the rows of expert %d are told to end at %d, not %d",
                      (int)e, (int)call->counts.expert_ends[e], (int)ends[e]);
    free(ends);
    return right;
}

bool deal_told_check(const deal_call *call)
{
    const expar_ep_recv_counts *told = &call->counts;
    oracle_job aligned = deal_job_of(call->move->deal, call->rank), plain = aligned;
    int32_t locals = plain.num_experts / plain.num_ranks, before = 0;
    int32_t *counts = traffic_alloc((size_t)locals, 4), *rounded = traffic_alloc((size_t)locals, 4);
    int32_t *ranks = traffic_alloc((size_t)plain.num_ranks, 4);
    plain.expert_alignment = 1;
    oracle_received_per_expert(&plain, call->rank, counts);
    oracle_received_per_expert(&aligned, call->rank, rounded);
    oracle_rank_prefix(&plain, call->rank, ranks);
    bool right = CHECK(*told->num_recv_tokens == oracle_num_kept(&plain, call->rank), "R is told as %lld",
                       (long long)*told->num_recv_tokens);
    for (int32_t e = 0; right && e < locals; before += rounded[e++])
        right = CHECK(told->tokens_per_expert[e] == counts[e] && told->expert_prefix[e] == before,
                      "expert %d: %d tokens behind %d are told, expected %d behind %d", (int)e,
                      (int)told->tokens_per_expert[e], (int)told->expert_prefix[e], (int)counts[e], (int)before);
    right = right && CHECK(told->expert_prefix[locals] == before, "the experts' rows are told as %d, not %d",
                           (int)told->expert_prefix[locals], (int)before);
    for (int32_t r = 0; right && r < plain.num_ranks; r++)
        right = CHECK(told->rank_prefix[r] == ranks[r], "%d rows are told from ranks to %d, expected %d",
                      (int)told->rank_prefix[r], (int)r, (int)ranks[r]);
    free(counts);
    free(rounded);
    free(ranks);
    return right && check_ends(call);
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

static bool check_shape(const expar_tensor *tensor, bool given, expar_dtype dtype, int64_t rows, int64_t columns,
                        const char *name)
{
    if (!given) return CHECK(!tensor->data && tensor->ndim == 0, "%s is given, expected none", name);
    return CHECK(tensor->ndim == 2 && tensor->dtype == dtype && tensor->shape[0] == rows && tensor->shape[1] == columns,
                 "%s is %s [%lld][%lld], expected %s [%lld][%lld]", name, expar_dtype_string(tensor->dtype),
                 (long long)tensor->shape[0], (long long)tensor->shape[1], expar_dtype_string(dtype), (long long)rows,
                 (long long)columns) &&
           CHECK(rows == 0 || (tensor->data && tensor->strides[0] == columns && tensor->strides[1] == 1),
                 "%s has no data or is not contiguous", name);
}

/* The rows that a rank must get, one by one. */
typedef struct expected {
    int64_t kept, rows, x_rows;
    int32_t *map;    /* [rows][K], of any dispatch with top-k */
    uint8_t *filled; /* [x_rows]: a row of the result belongs here */
} expected;

static expected expected_make(const deal_call *call)
{
    const deal_move *m = call->move;
    oracle_job job = m->job;
    job.expert_alignment = m->deal->choices[call->rank].alignment;
    expected e = {.kept = oracle_num_kept(&job, call->rank),
                  .rows = oracle_num_rows(&job, call->rank),
                  .x_rows = move_num_x_rows(m, call->rank)};
    int64_t slots = e.rows * job.topk;
    e.map = traffic_alloc((size_t)slots, sizeof *e.map);
    e.filled = traffic_alloc((size_t)e.x_rows, 1);
    if (!m->choices[call->rank].expert_major) {
        memset(e.filled, 1, (size_t)e.kept);
        return e;
    }
    oracle_expert_map(&job, call->rank, e.map);
    for (int64_t i = 0; i < slots; i++)
        if (e.map[i] >= 0) e.filled[e.map[i]] = 1;
    return e;
}

static void expected_free(expected *e)
{
    free(e->map);
    free(e->filled);
}

static bool all_bytes(const uint8_t *bytes, int64_t count, uint8_t value)
{
    for (int64_t i = 0; i < count; i++)
        if (bytes[i] != value) return false;
    return true;
}

/* rows: token-major, as the oracle gave them. blank: byte of rows that nobody fills, -1: any. */
static bool check_rows(const deal_call *call, const expected *e, const char *name, const void *got, int64_t bytes,
                       void *rows, int blank)
{
    oracle_job job = call->move->job;
    job.expert_alignment = call->move->deal->choices[call->rank].alignment;
    void *sorted = traffic_alloc((size_t)(e->x_rows * bytes), 1);
    if (call->move->choices[call->rank].expert_major)
        oracle_expert_expand(&job, call->rank, (size_t)bytes, rows, sorted);
    else
        memcpy(sorted, rows, (size_t)(e->kept * bytes));
    bool right = true;
    for (int64_t row = 0; right && row < e->x_rows; row++) {
        const uint8_t *at = (const uint8_t *)got + row * bytes;
        if (e->filled[row])
            right = CHECK(memcmp(at, (const uint8_t *)sorted + row * bytes, (size_t)bytes) == 0,
                          "%s differs in row %lld of %lld", name, (long long)row, (long long)e->x_rows);
        else if (blank >= 0)
            right = CHECK(all_bytes(at, bytes, (uint8_t)blank), "%s: row %lld, which nobody sent, is not %#x", name,
                          (long long)row, (unsigned)blank);
    }
    free(sorted);
    return right;
}

static bool check_x(const deal_call *call, const expected *e)
{
    const deal_move *m = call->move;
    const deal_choice *choice = &m->choices[call->rank];
    const expar_tensor *x = &call->result.recv_x, *out = &call->args.out_x;
    if (!check_shape(x, true, deal_dtype(m->form.type), e->x_rows, m->form.hidden, "recv_x")) return false;
    if (!CHECK(!out->data || x->data == out->data, "recv_x is not out_x")) return false;
    void *rows = traffic_alloc((size_t)(e->kept * move_row_bytes(m)), 1);
    oracle_dispatch(&m->job, call->rank, rows, NULL, NULL);
    int blank = choice->expert_major && choice->zero_padding ? 0 : out->data ? DEAL_SPARE_BYTE : -1;
    bool right = check_rows(call, e, "recv_x", x->data, move_row_bytes(m), rows, blank);
    free(rows);
    if (!out->data) return right;
    const uint8_t *after = (const uint8_t *)out->data + e->x_rows * move_row_bytes(m);
    return right & CHECK(all_bytes(after, DEAL_SPARE_ROWS * move_row_bytes(m), DEAL_SPARE_BYTE),
                         "rows behind recv_x were written");
}

/* Column by column, with what is said of the pitch; a copy of them in rows. */
static bool take_columns(const deal_call *call, const expected *e, uint32_t *rows)
{
    const expar_tensor *got = &call->result.recv_scales, *own = &call->args.out_scales;
    int64_t width = got->shape[1], pitch = own->ndim && width > 1 ? own->strides[1] : (e->x_rows + 3) / 4 * 4;
    if (!CHECK(got->strides[0] == 1 && got->strides[1] == pitch && (uintptr_t)got->data % 16 == 0,
               "recv_scales %p has strides (%lld, %lld), expected (1, %lld)", got->data, (long long)got->strides[0],
               (long long)got->strides[1], (long long)pitch))
        return false;
    for (int64_t row = 0; row < e->x_rows; row++)
        for (int64_t i = 0; i < width; i++)
            rows[row * width + i] = ((uint32_t *)got->data)[row + i * pitch];
    bool right = CHECK(!own->data || got->data == own->data, "recv_scales is not the caller's");
    for (int64_t i = 0; right && own->data && i < width; i++)
        right = CHECK(
            all_bytes((uint8_t *)own->data + 4 * (i * pitch + e->x_rows), 4 * (long)DEAL_SPARE_ROWS, DEAL_SPARE_BYTE),
            "what is behind column %lld was written", (long long)i);
    return right;
}

static bool check_columns(const deal_call *call, const expected *e, uint32_t *scales)
{
    const deal_choice *choice = &call->move->choices[call->rank];
    const expar_tensor *got = &call->result.recv_scales;
    int64_t width = call->move->form.num_scales;
    if (!CHECK(got->ndim == 2 && got->dtype == call->args.x_scales.dtype && got->shape[0] == e->x_rows &&
                   got->shape[1] == width,
               "recv_scales is [%lld][%lld]", (long long)got->shape[0], (long long)got->shape[1]))
        return false;
    uint32_t *rows = traffic_alloc((size_t)(e->x_rows * width), sizeof *rows);
    bool right = take_columns(call, e, rows) && check_rows(call, e, "recv_scales by columns", rows, 4 * width, scales,
                                                           choice->expert_major && choice->zero_padding ? 0 : -1);
    free(rows);
    return right;
}

static bool check_scales(const deal_call *call, const expected *e)
{
    const deal_move *m = call->move;
    const deal_choice *choice = &m->choices[call->rank];
    int64_t width = m->form.num_scales;
    expar_dtype dtype = m->form.packed ? EXPAR_I32 : EXPAR_F32;
    const bool columns = width && choice->column_scales;
    if (!columns && !check_shape(&call->result.recv_scales, width > 0, dtype, e->x_rows, width, "recv_scales"))
        return false;
    if (!width) return true;
    uint32_t *scales = traffic_alloc((size_t)(e->kept * width), sizeof *scales);
    oracle_dispatch_scales(&m->job, call->rank, scales);
    bool right = columns ? check_columns(call, e, scales)
                         : check_rows(call, e, "recv_scales", call->result.recv_scales.data, 4 * width, scales,
                                      choice->expert_major && choice->zero_padding ? 0 : -1);
    free(scales);
    return right;
}

static bool check_idx_and_weights(const deal_call *call, const expected *e)
{
    const deal_move *m = call->move;
    const expar_tensor *idx = &call->result.recv_topk_idx, *weights = &call->result.recv_topk_weights;
    bool given = move_carries_topk(m), weighted = given && m->deal->with_weights;
    int64_t topk = m->job.topk, slots = e->rows * topk;
    if (!check_shape(idx, given, m->deal->wide ? EXPAR_I64 : EXPAR_I32, e->rows, topk, "recv_topk_idx") ||
        !check_shape(weights, weighted, EXPAR_F32, e->rows, topk, "recv_topk_weights"))
        return false;
    if (!given) return true;
    int64_t *right_idx = traffic_alloc((size_t)slots, sizeof *right_idx);
    uint32_t *right_weights = traffic_alloc((size_t)slots, sizeof *right_weights);
    memset(right_idx, 0xff, (size_t)slots * sizeof *right_idx);
    oracle_dispatch(&m->job, call->rank, NULL, right_idx, weighted ? right_weights : NULL);
    int64_t first = m->form.global_experts ? (int64_t)call->rank * (m->job.num_experts / m->job.num_ranks) : 0;
    for (int64_t i = 0; i < slots; i++)
        if (right_idx[i] >= 0) right_idx[i] += first;
    bool right = true;
    for (int64_t i = 0; right && i < slots; i++) {
        int64_t got = m->deal->wide ? ((int64_t *)idx->data)[i] : ((int32_t *)idx->data)[i];
        right = CHECK(got == right_idx[i], "recv_topk_idx[%lld][%lld] is %lld, expected %lld", (long long)(i / topk),
                      (long long)(i % topk), (long long)got, (long long)right_idx[i]);
    }
    if (weighted)
        right &= CHECK(memcmp(weights->data, right_weights, (size_t)(e->kept * topk) * sizeof *right_weights) == 0,
                       "recv_topk_weights differ");
    free(right_idx);
    free(right_weights);
    return right;
}

static bool check_row_weights(const deal_call *call, const expected *e)
{
    const deal_choice *choice = &call->move->choices[call->rank];
    const expar_tensor *got = &call->result.recv_row_weights;
    const void *own = call->args.out_row_weights.data;
    if (!deal_call_weighs_rows(call)) return CHECK(!got->data && got->ndim == 0, "recv_row_weights is given");
    if (!CHECK(got->ndim == 1 && got->dtype == EXPAR_F32 && got->shape[0] == e->x_rows && got->strides[0] == 1,
               "recv_row_weights is of %d dimensions, [%lld]", (int)got->ndim, (long long)got->shape[0]))
        return false;
    oracle_job job = call->move->job;
    job.expert_alignment = call->move->deal->choices[call->rank].alignment;
    uint32_t *weights = traffic_alloc((size_t)e->x_rows, sizeof *weights);
    oracle_expert_weights(&job, call->rank, weights);
    bool right = CHECK(!own || got->data == own, "recv_row_weights is not the caller's");
    for (int64_t i = 0; right && i < e->x_rows; i++)
        if (e->filled[i] || choice->zero_padding)
            right = CHECK(memcmp((float *)got->data + i, weights + i, sizeof *weights) == 0,
                          "recv_row_weights[%lld] differs", (long long)i);
    free(weights);
    return right &&
           (!own || CHECK(all_bytes((const uint8_t *)own + 4 * e->x_rows, 4L * DEAL_SPARE_ROWS, DEAL_SPARE_BYTE),
                          "what is behind recv_row_weights was written"));
}

static bool check_sources(const deal_call *call, const expected *e)
{
    const deal_move *m = call->move;
    const expar_tensor *src = &call->result.recv_src_token;
    if (!move_tells_sources(&m->form)) return CHECK(!src->data && src->ndim == 0, "recv_src_token is given");
    if (!CHECK(src->ndim == 1 && src->dtype == EXPAR_I32 && src->shape[0] == e->rows && src->strides[0] == 1,
               "recv_src_token is of %d dimensions, [%lld]", (int)src->ndim, (long long)src->shape[0]))
        return false;
    int32_t *right = traffic_alloc((size_t)e->rows, sizeof *right);
    memset(right, 0xff, (size_t)e->rows * sizeof *right);
    oracle_dispatch_sources(&m->job, call->rank, right);
    bool same = true;
    for (int64_t i = 0; same && i < e->rows; i++)
        same = CHECK(((int32_t *)src->data)[i] == right[i], "recv_src_token[%lld] is %d, expected %d", (long long)i,
                     (int)((int32_t *)src->data)[i], (int)right[i]);
    free(right);
    return same & CHECK(!call->args.out_src_token.data || src->data == call->args.out_src_token.data,
                        "recv_src_token is not the caller's");
}

static bool check_metadata(const deal_call *call, const expected *e)
{
    const deal_move *m = call->move;
    const expar_tensor *got = &call->result.recv_src_metadata;
    int64_t width = 2 + m->job.topk;
    if (!check_shape(got, m->form.src_stride > 0, EXPAR_I32, e->rows, width, "recv_src_metadata")) return false;
    if (!m->form.src_stride) return true;
    int32_t *right = traffic_alloc((size_t)(e->rows * width), sizeof *right);
    memset(right, 0xff, (size_t)(e->rows * width) * sizeof *right);
    oracle_dispatch_metadata(&m->job, call->rank, m->form.src_stride,
                             m->choices[call->rank].expert_major ? e->map : NULL, right);
    bool same = true;
    for (int64_t i = 0; same && i < e->rows * width; i++)
        same = CHECK(((int32_t *)got->data)[i] == right[i], "recv_src_metadata[%lld][%lld] is %d, expected %d",
                     (long long)(i / width), (long long)(i % width), (int)((int32_t *)got->data)[i], (int)right[i]);
    free(right);
    return same;
}

static bool check_map(const deal_call *call, const expected *e)
{
    const expar_tensor *map = &call->result.recv_row_map;
    int64_t topk = call->move->job.topk;
    if (!check_shape(map, call->move->choices[call->rank].expert_major, EXPAR_I32, e->rows, topk, "recv_row_map"))
        return false;
    if (!map->data) return true;
    for (int64_t i = 0; i < e->rows * topk; i++)
        if (!CHECK(((int32_t *)map->data)[i] == e->map[i], "recv_row_map[%lld][%lld] is %d, expected %d",
                   (long long)(i / topk), (long long)(i % topk), (int)((int32_t *)map->data)[i], (int)e->map[i]))
            return false;
    return true;
}

/* A call that has waited for its rows knows the dropped ones all the same. */
static bool check_unknown(const deal_call *call, int64_t dropped)
{
    const expar_ep_dispatch_result *result = &call->result;
    if (call->args.async_finish) dropped = 0;
    return CHECK(result->num_recv_tokens == -1 && result->num_dropped_tokens == dropped &&
                     !result->recv_tokens_per_expert,
                 "R is %lld and %lld were dropped, which the host does not know", (long long)result->num_recv_tokens,
                 (long long)result->num_dropped_tokens);
}

static bool check_counts(const deal_call *call, const expected *e)
{
    const deal_move *m = call->move;
    const expar_ep_dispatch_result *result = &call->result;
    oracle_job job = deal_job_of(m->deal, call->rank);
    int32_t locals = job.num_experts / job.num_ranks;
    int64_t dropped = oracle_num_received(&job, call->rank) - e->kept;
    if (!call->told) return check_unknown(call, dropped);
    bool right = CHECK(result->num_recv_tokens == e->kept && result->num_dropped_tokens == dropped,
                       "R is %lld and %lld were dropped, expected %lld and %lld", (long long)result->num_recv_tokens,
                       (long long)result->num_dropped_tokens, (long long)e->kept, (long long)dropped) &
                 CHECK(result->num_local_experts == locals, "L is %d", (int)result->num_local_experts);
    if (m->form.routed) return right;
    if (m->form.kind == MOVE_REPEAT)
        return right & CHECK(!result->recv_tokens_per_expert && !result->handle, "a repeat gave counts or a handle");
    int32_t *counts = traffic_alloc((size_t)locals, sizeof *counts);
    oracle_received_per_expert(&job, call->rank, counts);
    for (int32_t l = 0; right && l < locals; l++)
        right = CHECK(result->recv_tokens_per_expert[l] == counts[l], "recv_tokens_per_expert[%d] is %d, expected %d",
                      (int)l, (int)result->recv_tokens_per_expert[l], (int)counts[l]);
    free(counts);
    return right;
}

/* The caller's own parts are where it said, and nothing follows their rows. */
static bool check_own(const deal_call *call)
{
    const expar_ep_dispatch_args *args = &call->args;
    const expar_ep_dispatch_result *result = &call->result;
    const expar_tensor *own[] = {&args->out_scales, &args->out_topk_idx, &args->out_topk_weights, &args->out_row_map,
                                 &args->out_src_metadata};
    const expar_tensor *got[] = {&result->recv_scales, &result->recv_topk_idx, &result->recv_topk_weights,
                                 &result->recv_row_map, &result->recv_src_metadata};
    bool right = true;
    for (int i = 0; i < 5 && right; i++) {
        if (!own[i]->data || (i == 0 && args->column_scales)) continue;
        int64_t row = own[i]->shape[1] * (int64_t)expar_dtype_bytes(own[i]->dtype);
        right = CHECK(got[i]->data == own[i]->data, "part %d is not the caller's", i + 1) &&
                CHECK(all_bytes((const uint8_t *)own[i]->data + got[i]->shape[0] * row, DEAL_SPARE_ROWS * row,
                                DEAL_SPARE_BYTE),
                      "rows behind part %d were written", i + 1);
    }
    return right;
}

static bool check_copy(const deal_call *call)
{
    const deal *d = call->move->deal;
    const expar_tensor *copy = &call->args.topk_idx_copy;
    const int64_t *right = d->inputs[call->rank].topk_idx;
    for (int64_t i = 0; copy->ndim && i < copy->shape[0] * copy->shape[1]; i++) {
        const int64_t got = d->wide ? ((int64_t *)copy->data)[i] : ((int32_t *)copy->data)[i];
        if (!CHECK(got == right[i], "entry %lld of topk_idx_copy is %lld, expected %lld", (long long)i, (long long)got,
                   (long long)right[i]))
            return false;
    }
    return true;
}

bool deal_dispatch_check(const deal_call *call)
{
    const deal_choice *choice = &call->move->choices[call->rank];
    expected e = expected_make(call);
    bool right = check_counts(call, &e) && check_x(call, &e) && check_scales(call, &e) &&
                 check_idx_and_weights(call, &e) && check_map(call, &e) && check_row_weights(call, &e) &&
                 check_metadata(call, &e) && check_sources(call, &e) && check_own(call) && check_copy(call) &&
                 (!choice->counts || deal_told_check(call)) &&
                 CHECK(choice->path == EXPAR_EP_PATH_AUTO || call->result.path == choice->path,
                       "path is %d, expected %d", (int)call->result.path, (int)choice->path) &&
                 CHECK(pitched_equals(&call->args.x, call->move->inputs[call->rank].x), "the dispatch changed x");
    expected_free(&e);
    return right;
}

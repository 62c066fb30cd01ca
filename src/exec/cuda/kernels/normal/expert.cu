/* SPDX-License-Identifier: Apache-2.0 */
/* Expert-major rows: the map from slots to rows, the copies there and the weighted sums back. All work is local; no
 * thread waits.
 *
 * ep_map: a warp for each expert walks over all slots in order and numbers those of its expert. ep_expand: a warp for
 * each row copies it to the row of each of its slots. ep_zero_padding: a block for each expert. ep_reduce: a warp for
 * each token. ep_columns: a thread for each scale, those of a column together. ep_sources: a warp for each row.
 * ep_tell_counts: one warp writes the counts that the handle knows for the caller, in calls without notify. */
#include "exec/cuda/kernels/core/number.h"
#include "exec/cuda/kernels/normal/records.h"
#include "exec/cuda/kernels/normal/tell.h"

/* Returns the first row of an expert. */
GPU_FUNC int64_t expert_begin(const int32_t *counts, int32_t alignment, int32_t expert)
{
    int64_t begin = 0;
    for (int32_t e = 0; e < expert; e++)
        begin += aligned_count(counts[e], alignment);
    return begin;
}

/* Returns the local number, or less than 0. */
GPU_FUNC int64_t slot_expert(const gpu_map_args *a, int64_t slot)
{
    int64_t expert = a->idx_bytes == 8 ? ((const int64_t *)a->idx)[slot] : ((const int32_t *)a->idx)[slot];
    return expert - a->first_expert;
}

/* Maps slots that have no expert here to -1. All threads of the grid call it. */
GPU_FUNC void map_nowhere(const gpu_map_args *a, int64_t slots)
{
    int64_t all = a->rows * a->topk, stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += stride)
        if (i >= slots || slot_expert(a, i) < 0) a->map[i] = -1;
}

/* One warp calls it. */
GPU_FUNC void map_expert(const gpu_map_args *a, int64_t slots, int32_t expert)
{
    int32_t lane = threadIdx.x % 32;
    int64_t next = expert_begin(a->expert_counts, a->alignment, expert);
    for (int64_t first = 0; first < slots; first += 32) {
        int64_t i = first + lane;
        bool mine = i < slots && slot_expert(a, i) == expert;
        uint32_t hits = __ballot_sync(GPU_ALL, mine);
        int64_t row = next + __popc(hits & ((1u << lane) - 1));
        /* Counts include all rows that were sent. If rows were dropped, places may lie beyond the output. */
        if (mine) a->map[i] = row < a->expert_rows ? (int32_t)row : -1;
        next += __popc(hits);
    }
}

GPU_KERNEL(256) ep_map(GPU_ARGS gpu_map_args a)
{
    if (a.brought && !*a.brought) return;
    int64_t rows = rows_held(a.rank_prefix, a.ranks, a.rows);
    map_nowhere(&a, rows * a.topk);
    int32_t warps = (int32_t)(gridDim.x * (blockDim.x / 32));
    for (int32_t e = (int32_t)(blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32); e < a.local_experts; e += warps)
        map_expert(&a, rows * a.topk, e);
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

/* Copies the weight of each of a token's slots, unchanged, to the slot's row. */
GPU_FUNC void expand_weights(const gpu_expand_args *a, int64_t row)
{
    for (int32_t k = threadIdx.x % 32; k < a->topk; k += 32) {
        int64_t slot = row * a->topk + k, to = a->map[slot];
        if (to >= 0) a->out_weights[to] = a->weights[slot];
    }
}

/* Copies a row's scales to that row of the output. */
GPU_FUNC void expand_scales(const gpu_expand_args *a, const uint32_t *scales, int64_t to)
{
    int32_t count = (int32_t)(a->scale_bytes / 4);
    int64_t pitch = a->out_pitch ? a->out_pitch : 1;
    uint32_t *out = (uint32_t *)a->out_scales + (a->out_pitch ? to : to * count);
    for (int32_t s = threadIdx.x % 32; s < count; s += 32)
        out[s * pitch] = scales[s];
}

/* Copies one row to the rows of all its slots, in vectors of 16 bytes. */
GPU_FUNC void expand_row(const gpu_expand_args *a, int64_t row)
{
    int32_t lane = threadIdx.x % 32, vectors = (int32_t)(a->row_bytes / 16);
    const uint4 *from = (const uint4 *)(a->x + row * a->row_bytes);
    const uint32_t *scales = (const uint32_t *)(a->scales + row * a->scale_bytes);
    for (int32_t k = 0; k < a->topk; k++) {
        int64_t to = a->map[row * a->topk + k];
        if (to < 0) continue;
        for (int32_t v = lane; v < vectors; v += 32)
            ((uint4 *)(a->out_x + to * a->row_bytes))[v] = from[v];
        expand_scales(a, scales, to);
    }
    if (a->out_weights) expand_weights(a, row);
}

GPU_KERNEL(256) ep_expand(GPU_ARGS gpu_expand_args a)
{
    int64_t warps = (int64_t)gridDim.x * (blockDim.x / 32), rows = rows_held(a.rank_prefix, a.ranks, a.rows);
    for (int64_t r = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; r < rows; r += warps)
        expand_row(&a, r);
}

GPU_FUNC void zero_words(uint8_t *data, int64_t begin, int64_t end)
{
    for (int64_t i = begin / 4 + threadIdx.x; i < end / 4; i += blockDim.x)
        ((uint32_t *)data)[i] = 0;
}

/* Returns the end of the rows in [begin, end) that some slot has; they are numbered without gaps. One block calls
   it. */
GPU_FUNC int64_t mapped_end(const gpu_padding_args *a, int64_t begin, int64_t end)
{
    __shared__ int32_t most;
    __syncthreads();
    if (threadIdx.x == 0) most = (int32_t)begin;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < a->map_rows * a->topk; i += blockDim.x)
        if (a->map[i] >= begin && a->map[i] < end) atomicMax(&most, a->map[i] + 1);
    __syncthreads();
    return most;
}

GPU_FUNC void zero_scales(const gpu_padding_args *a, int64_t begin, int64_t end)
{
    if (!a->scales_pitch) zero_words(a->scales, begin * a->scale_bytes, end * a->scale_bytes);
    for (int64_t s = 0; a->scales_pitch && s < a->scale_bytes / 4; s++)
        zero_words(a->scales + 4 * s * a->scales_pitch, 4 * begin, 4 * end);
}

GPU_KERNEL(256) ep_zero_padding(GPU_ARGS gpu_padding_args a)
{
    bool dropped = a.rank_prefix[a.ranks - 1] > a.map_rows;
    for (int32_t e = (int32_t)blockIdx.x; e < a.local_experts; e += (int32_t)gridDim.x) {
        int64_t begin = expert_begin(a.expert_counts, a.alignment, e), used = begin + a.expert_counts[e];
        int64_t end = begin + aligned_count(a.expert_counts[e], a.alignment);
        /* No expert has the rows after the last expert's. */
        if (end > a.rows || e == a.local_experts - 1) end = a.rows;
        if (begin >= end) continue;
        if (dropped) used = mapped_end(&a, begin, end);
        if (used >= end) continue;
        zero_words(a.x, used * a.row_bytes, end * a.row_bytes);
        if (a.scale_bytes) zero_scales(&a, used, end);
        if (a.weights) zero_words(a.weights, used * 4, end * 4);
    }
}

/* ---- column-major scales ----------------------------------------------------------------------------------------- */

GPU_KERNEL(256) ep_columns(GPU_ARGS gpu_columns_args a)
{
    int64_t rows = rows_held(a.rank_prefix, a.ranks, a.rows), stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < rows * a.num_scales; i += stride)
        a.out[i / rows * a.pitch + i % rows] = a.scales[i % rows * a.num_scales + i / rows];
}

/* ---- sources ----------------------------------------------------------------------------------------------------- */

/* Returns the rank that sent this row. */
GPU_FUNC int32_t source_of(const gpu_sources_args *a, int64_t row)
{
    int32_t low = 0, high = a->ranks - 1;
    while (low < high) {
        int32_t middle = (low + high) / 2;
        if (a->rank_prefix[middle] > row)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* One warp calls it. */
GPU_FUNC void tell_source(const gpu_sources_args *a, int64_t row, bool came)
{
    int32_t *out = a->out + row * (2 + a->topk), source = came ? source_of(a, row) : -1;
    for (int32_t i = threadIdx.x % 32; i < 2 + a->topk; i += 32) {
        int32_t told = -1;
        if (came && i == 0) told = ep_saturate((int64_t)source * a->stride + a->src[row]);
        if (i == 1) told = source;
        if (came && i > 1 && a->map) told = a->map[row * a->topk + i - 2];
        out[i] = told;
    }
}

GPU_KERNEL(256) ep_sources(GPU_ARGS gpu_sources_args a)
{
    int64_t warps = (int64_t)gridDim.x * (blockDim.x / 32), rows = rows_held(a.rank_prefix, a.ranks, a.rows);
    for (int64_t r = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; r < a.rows; r += warps)
        tell_source(&a, r, r < rows);
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

/* Adds vector v of a token's expert-major rows, slots ascending. */
GPU_FUNC void reduce_vector(const gpu_reduce_args *a, int64_t row, int32_t v)
{
    int32_t dtype = GPU_DTYPE(a->dtype);
    float sums[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    for (int32_t k = 0; k < a->topk; k++) {
        int64_t from = a->map[row * a->topk + k];
        if (from < 0) continue;
        float weight = a->weights ? a->weights[row * a->weights_pitch + k] : 1.0f;
        uint4 part = ((const uint4 *)(a->x + from * a->x_pitch_bytes))[v];
        add_vector(dtype, sums, part, a->weights != NULL, weight);
    }
    ((uint4 *)(a->out + row * a->row_bytes))[v] = narrow_vector(dtype, sums);
}

/* Copies to each slot of a token the weight of its row, unchanged. */
GPU_FUNC void spread_weights(const gpu_reduce_args *a, int64_t row)
{
    for (int32_t k = threadIdx.x % 32; k < a->topk; k += 32) {
        int64_t from = a->map[row * a->topk + k];
        const uint32_t *weights = (const uint32_t *)a->row_weights;
        ((uint32_t *)a->out_weights)[row * a->topk + k] = from < 0 ? 0 : weights[from * a->row_weights_pitch];
    }
}

GPU_KERNEL(256) ep_reduce(GPU_ARGS gpu_reduce_args a)
{
    int64_t warps = (int64_t)gridDim.x * (blockDim.x / 32), rows = rows_held(a.rank_prefix, a.ranks, a.rows);
    int32_t vectors = (int32_t)(a.row_bytes / 16);
    for (int64_t r = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; r < rows; r += warps) {
        for (int32_t v = threadIdx.x % 32; a.out && v < vectors; v += 32)
            reduce_vector(&a, r, v);
        if (a.out_weights) spread_weights(&a, r);
    }
}

/* ---- counts ------------------------------------------------------------------------------------------------------ */

GPU_KERNEL(32) ep_tell_counts(GPU_ARGS gpu_tell_args a)
{
    tell_counts(&a);
}

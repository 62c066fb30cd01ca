/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of rows that came back by themselves. All work is local; no thread waits.
 *
 * Rows come by key, then by token, then by slot; a key is a rank or an expert. ep_find_terms: a block for each key,
 * whose threads take tokens. It counts the rows of lower keys, then numbers those of its own. ep_sum_terms: a block for
 * each token, whose threads take vectors of 16 bytes. It reads each row of the token once, and writes one row. It adds
 * the rows of a node apart.
 *
 * Registers: under 64; shared memory: 132 bytes. */
#include "exec/cuda/kernels/core/number.h"
#include "exec/cuda/kernels/normal/slots.h"

#define BLOCK_WARPS 32
/* Rows that a thread loads before it adds them. */
#define GPU_SUM_ROWS 4

/* ---- terms ------------------------------------------------------------------------------------------------------- */

/* Returns the expert, or -1. */
GPU_FUNC int64_t term_expert(const gpu_terms_args *a, int64_t token, int32_t slot)
{
    int64_t expert = expert_at(&a->route, token, slot);
    return expert < a->experts ? expert : -1;
}

GPU_FUNC int64_t term_key(const gpu_terms_args *a, int64_t token, int32_t slot)
{
    int64_t expert = term_expert(a, token, slot);
    return expert < 0 ? -1 : expert / a->key_experts;
}

/* Says whether the slot has a row. If rows are those of ranks, the rank's last slot has it. */
GPU_FUNC bool has_row(const gpu_terms_args *a, int64_t token, int32_t slot, int64_t key)
{
    if (key < 0) return false;
    for (int32_t k = slot + 1; !a->each_slot && k < a->topk; k++)
        if (term_key(a, token, k) == key) return false;
    return true;
}

/* Returns how many of the token's rows have keys in [first, end). */
GPU_FUNC int32_t rows_of(const gpu_terms_args *a, int64_t token, int64_t first, int64_t end)
{
    int32_t count = 0;
    for (int32_t k = 0; k < a->topk; k++) {
        int64_t key = term_key(a, token, k);
        if (key >= first && key < end && has_row(a, token, k, key)) count++;
    }
    return count;
}

/* Returns the sum of the values of all threads before this one, and that of all threads in *all. All threads of the
   block call it, in whole warps. sums: [BLOCK_WARPS + 1] shared. */
GPU_FUNC int64_t before_thread(int32_t value, int64_t *sums, int64_t *all)
{
    int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, sum = value;
    for (int32_t step = 1; step < 32; step *= 2) {
        int32_t below = __shfl_up_sync(GPU_ALL, sum, step);
        if (lane >= step) sum += below;
    }
    __syncthreads();
    if (lane == 31) sums[warp] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        int64_t total = 0;
        for (int32_t i = 0; i < (int32_t)(blockDim.x / 32); i++) {
            int64_t of_warp = sums[i];
            sums[i] = total;
            total += of_warp;
        }
        sums[BLOCK_WARPS] = total;
    }
    __syncthreads();
    *all = sums[BLOCK_WARPS];
    return sums[warp] + sum - value;
}

/* Returns the number of rows with lower keys. */
GPU_FUNC int64_t begin_of(const gpu_terms_args *a, int64_t key, int64_t *sums)
{
    int64_t all;
    int32_t mine = 0;
    for (int64_t t = threadIdx.x; t < a->tokens; t += blockDim.x)
        mine += rows_of(a, t, 0, key);
    before_thread(mine, sums, &all);
    return all;
}

/* Writes the token's terms of that key. */
GPU_FUNC void put_terms(const gpu_terms_args *a, int64_t token, int64_t key, int64_t row)
{
    for (int32_t k = 0; k < a->topk; k++) {
        if (term_key(a, token, k) != key || !has_row(a, token, k, key)) continue;
        int64_t node = a->node_experts ? term_expert(a, token, k) / a->node_experts + 1 : 0;
        a->terms[token * a->terms_pitch + k] = row++ | node << 32;
    }
}

/* One block calls it. */
GPU_FUNC void number_rows(const gpu_terms_args *a, int64_t key, int64_t *sums)
{
    int64_t next = begin_of(a, key, sums), all;
    for (int64_t first = 0; first < a->tokens; first += blockDim.x) {
        int64_t token = first + threadIdx.x;
        bool here = token < a->tokens;
        int32_t count = here ? rows_of(a, token, key, key + 1) : 0;
        int64_t row = next + before_thread(count, sums, &all);
        if (count) put_terms(a, token, key, row);
        next += all;
    }
}

/* Slots without a row. All threads of the grid call it. */
GPU_FUNC void put_nothing(const gpu_terms_args *a)
{
    int64_t all = a->tokens * a->topk, stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += stride) {
        int64_t token = i / a->topk;
        int32_t k = (int32_t)(i % a->topk);
        if (!has_row(a, token, k, term_key(a, token, k))) a->terms[token * a->terms_pitch + k] = -1;
    }
}

GPU_KERNEL(32 * BLOCK_WARPS) ep_find_terms(GPU_ARGS gpu_terms_args a)
{
    __shared__ int64_t sums[BLOCK_WARPS + 1];
    put_nothing(&a);
    for (int64_t key = blockIdx.x; key < a.experts / a.key_experts; key += gridDim.x)
        number_rows(&a, key, sums);
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

GPU_FUNC int64_t term_at(const gpu_sum_args *a, int64_t token, int32_t slot)
{
    int64_t i = token * a->terms_pitch + slot;
    return a->term_bytes == 8 ? ((const int64_t *)a->terms)[i] : ((const int32_t *)a->terms)[i];
}

GPU_FUNC int64_t term_node(int64_t term)
{
    return term < 0 ? 0 : term >> 32;
}

/* Returns vector v of the term's row, or NULL if it adds nothing. */
GPU_FUNC const uint4 *term_vector(const gpu_sum_args *a, int64_t term, int32_t v)
{
    int64_t row = term & 0xffffffff;
    return term < 0 || row >= a->rows ? NULL : (const uint4 *)(a->x + row * a->x_pitch_bytes) + v;
}

/* Adds vector v of the rows of this node in slots [begin, end), GPU_SUM_ROWS at a time. node 0: those that are added by
   themselves. */
GPU_FUNC void add_terms(const gpu_sum_args *a, int64_t token, int64_t node, int32_t begin, int32_t end, int32_t v,
                        float sums[8])
{
    for (int32_t first = begin; first < end; first += GPU_SUM_ROWS) {
        uint4 part[GPU_SUM_ROWS];
        bool there[GPU_SUM_ROWS];
#pragma unroll
        for (int32_t i = 0; i < GPU_SUM_ROWS; i++) {
            int64_t term = first + i < end ? term_at(a, token, first + i) : -1;
            const uint4 *from = term_node(term) == node ? term_vector(a, term, v) : NULL;
            there[i] = from != NULL;
            if (there[i]) part[i] = *from;
        }
#pragma unroll
        for (int32_t i = 0; i < GPU_SUM_ROWS; i++)
            if (there[i]) add_vector(a->dtype, sums, part[i], false, 1.0f);
    }
}

/* Says whether no later slot has a row of the same node. */
GPU_FUNC bool ends_node(const gpu_sum_args *a, int64_t token, int32_t slot, int64_t node)
{
    for (int32_t k = slot + 1; k < a->topk; k++)
        if (term_node(term_at(a, token, k)) == node) return false;
    return true;
}

/* Adds slot by slot: rows that are added by themselves, and the rounded sum of each node at its last slot. */
GPU_FUNC void add_nodes(const gpu_sum_args *a, int64_t token, int32_t v, float sums[8])
{
    for (int32_t k = 0; k < a->topk; k++) {
        int64_t node = term_node(term_at(a, token, k));
        if (node == 0) add_terms(a, token, 0, k, k + 1, v, sums);
        if (node == 0 || !ends_node(a, token, k, node)) continue;
        float part[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
        add_terms(a, token, node, 0, k + 1, v, part);
        add_vector(a->dtype, sums, narrow_vector(a->dtype, part), false, 1.0f);
    }
}

GPU_FUNC bool has_nodes(const gpu_sum_args *a, int64_t token)
{
    for (int32_t k = 0; a->term_bytes == 8 && k < a->topk; k++)
        if (term_node(term_at(a, token, k))) return true;
    return false;
}

GPU_FUNC void sum_token(const gpu_sum_args *a, int64_t token)
{
    bool by_node = has_nodes(a, token);
    for (int32_t v = threadIdx.x; v < (int32_t)(a->row_bytes / 16); v += blockDim.x) {
        float sums[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
        for (int32_t i = 0; i < 2; i++)
            if (a->bias[i])
                add_vector(a->dtype, sums, ((const uint4 *)(a->bias[i] + token * a->bias_pitch_bytes[i]))[v], false,
                           1.0f);
        if (by_node)
            add_nodes(a, token, v, sums);
        else
            add_terms(a, token, 0, 0, a->topk, v, sums);
        ((uint4 *)(a->y + token * a->y_pitch_bytes))[v] = narrow_vector(a->dtype, sums);
    }
}

GPU_KERNEL(256) ep_sum_terms(GPU_ARGS gpu_sum_args a)
{
    for (int64_t token = blockIdx.x; token < a.tokens; token += gridDim.x)
        sum_token(&a, token);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The experts of this rank's tokens in a dispatch, in shared memory, and their check. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_DISPATCH_TOKENS_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_DISPATCH_TOKENS_H

#include "exec/cuda/kernels/core/rejection.h"
#include "exec/cuda/kernels/low_latency/call.h"

/* 1: the kernel for formats with scales, which handles no others. */
#ifndef LL_SCALED
#define LL_SCALED 0
#endif

/* ll_is_scaled says whether rows are quantised, ll_scales_of how many words a row's scales have. */
GPU_FUNC bool ll_is_scaled(const ll_dispatch_args *a)
{
    return LL_ALL_FORMATS ? a->scales != 0 : LL_SCALED != 0;
}
GPU_FUNC int32_t ll_scales_of(const ll_dispatch_args *a)
{
    return ll_is_scaled(a) ? a->scales : 0;
}

/* The shared memory of this kernel, after what both kernels have. */
typedef struct ll_tokens {
    int32_t *first; /* [N+1][L] counts, then first rows, of each rank's rows for each expert here */
    int32_t *idx;   /* [K][pitch] expert or -1; K is the buffer's. A token with a bad index goes nowhere */
    int32_t pitch;
    /* [2][LL_GPU_TEAMS][LL_GPU_HEAD] in turn for the messages of each team, where one warp waits for it (LL_FAR) */
    uint32_t *heads;
} ll_tokens;

GPU_FUNC ll_tokens ll_tokens_of(const ll_dispatch_args *a, const ll_shared *s)
{
    ll_tokens t;
    t.heads = (uint32_t *)s->rest;
    t.first = s->rest + (LL_FAR ? LL_GPU_HEADS_BYTES / 4 : 0);
    t.idx = t.first + (LL_RANKS(&a->call) + 1) * LL_LOCALS(&a->call);
    t.pitch = ll_gpu_idx_pitch(a->routing.tokens);
    return t;
}

#define LL_OUT_OF_RANGE (-2)

/* Loads the indices. All warps but the last call it; the last one looks at the ranks' slots meanwhile (ll_begin). */
GPU_FUNC void ll_load_idx(const ll_dispatch_args *a, const ll_tokens *t)
{
    const int32_t slots = LL_BUFFER_TOPK(&a->call), experts = LL_RANKS(&a->call) * LL_LOCALS(&a->call);
    const int32_t last = threadIdx.x < LL_GPU_THREADS - 32 ? a->routing.tokens * slots : 0;
#pragma unroll 1
    for (int32_t i = threadIdx.x; i < last; i += LL_GPU_THREADS - 32) {
        const int32_t token = i / slots, k = i - token * slots;
        const int64_t expert = k < a->routing.topk ? expert_at(&a->route, token, k) : -1;
        t->idx[k * t->pitch + token] = expert < -1 || expert >= experts ? LL_OUT_OF_RANGE : (int32_t)expert;
    }
}

/* Returns the first slot of a token that is out of range; -1: none. If there are few slots, all are loaded at once. */
GPU_FUNC int32_t ll_find_bad(const int32_t *column, int32_t pitch, int32_t topk)
{
    int32_t first = -1;
    LL_UNROLL_SLOTS
    for (int32_t k = topk - 1; k >= 0; k--)
        if (column[k * pitch] == LL_OUT_OF_RANGE) first = k;
    return first;
}

/* Rejects the first bad index, with the text of the CPU's check. */
GPU_FUNC void ll_reject_index(const ll_dispatch_args *a, const ll_shared *s)
{
    const int32_t token = (int32_t)(*s->first_bad >> GPU_SLOT_BITS);
    const int32_t k = (int32_t)(*s->first_bad & ((1u << GPU_SLOT_BITS) - 1));
    const int32_t experts = LL_RANKS(&a->call) * LL_LOCALS(&a->call);
    const int64_t expert = expert_at(&a->route, token, k);
    char *text = s->rejection->text;
    s->rejection->status = EXPAR_STATUS_INDEX;
    int32_t at = put_words(text, 0, "topk_idx[", token);
    at = put_words(text, at, "][", k);
    at = put_words(text, at, "] is ", expert);
    at = put_words(text, at, "; expected -1 to ", experts - 1);
    text[at] = 0;
}

/* True if an index that this thread looks at is out of range. */
GPU_FUNC bool ll_doubts_tokens(const ll_dispatch_args *a, const ll_tokens *t)
{
    const int32_t slots = LL_BUFFER_TOPK(&a->call);
    bool doubt = false;
    for (int32_t token = threadIdx.x; token < a->routing.tokens; token += blockDim.x)
        doubt |= ll_find_bad(t->idx + token, t->pitch, slots) >= 0;
    return doubt;
}

/* Takes out tokens with a bad index: they go nowhere, and this rank reports the first. All threads call it, once one of
   them doubts. */
GPU_ASIDE void ll_take_out_bad(const ll_dispatch_args *a)
{
    const int32_t slots = LL_BUFFER_TOPK(&a->call);
    const ll_shared shared = ll_shared_here(&a->call), *s = &shared;
    const ll_tokens tokens = ll_tokens_of(a, s), *t = &tokens;
    for (int32_t token = threadIdx.x; token < a->routing.tokens; token += blockDim.x) {
        const int32_t bad = ll_find_bad(t->idx + token, t->pitch, slots);
        if (bad < 0) continue;
        atomicMin(s->first_bad, (unsigned long long)token << GPU_SLOT_BITS | (unsigned)bad);
        for (int32_t k = 0; k < slots; k++)
            t->idx[k * t->pitch + token] = -1;
    }
    __syncthreads();
    if (threadIdx.x == 0) ll_reject_index(a, s);
    __syncthreads();
}

/* Counts the slots of the earlier tokens that name the expert and, in the high half, the earlier tokens that name an
   expert of the same rank. Both fit 16 bits: the indices of all slots lie in shared memory, of which a block has less
   than 256 KiB. A warp calls it. */
GPU_FUNC uint32_t ll_count_before(const ll_tokens *t, int32_t slots, int32_t token, int32_t expert, int32_t locals)
{
    const int32_t low = expert / locals * locals;
    uint32_t count = 0;
    for (int32_t i = threadIdx.x % 32; i < token; i += 32) {
        uint32_t rows = 0;
        bool any = false;
#pragma unroll 8
        for (int32_t k = 0; k < slots; k++) {
            const int32_t other = t->idx[k * t->pitch + i];
            rows += other == expert;
            any |= other >= low && other < low + locals;
        }
        count += (any ? 1u << 16 : 0) + rows;
    }
    return __reduce_add_sync(GPU_ALL, count);
}

#endif

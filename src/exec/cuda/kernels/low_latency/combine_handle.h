/* SPDX-License-Identifier: Apache-2.0 */
/* The check of a combine's handle: does it belong to a dispatch that this combine can answer? */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_COMBINE_HANDLE_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_COMBINE_HANDLE_H

#include "exec/cuda/kernels/core/rejection.h"
#include "exec/cuda/kernels/low_latency/combine_form.h"

GPU_FUNC void ll_reject_expert(const ll_combine_args *a, const ll_shared *s, int32_t kept)
{
    const int32_t token = (int32_t)(*s->first_bad >> GPU_SLOT_BITS);
    const int32_t k = (int32_t)(*s->first_bad & ((1u << GPU_SLOT_BITS) - 1));
    char *text = s->rejection->text;
    s->rejection->status = EXPAR_STATUS_ARGUMENT;
    int32_t at = put_words(text, 0, "topk_idx[", token);
    at = put_words(text, at, "][", k);
    at = put_words(text, at, "] is ", expert_at(&a->route, token, k));
    at = put_words(text, at, "; expected ", kept);
    put_text(text + at, ", as in the handle's dispatch");
}

/* Checks the handle before the block meets, and fills in what the combine owes each rank. True: as far as this thread
   sees, the dispatch has not brought all its rows, or its experts differ from the combine's. */
GPU_FUNC bool ll_doubts_handle(const ll_combine_args *a, const ll_shared *s, uint32_t route)
{
    const int32_t topk = a->routing.topk, pitch = LL_BUFFER_TOPK(&a->call);
    bool doubt = route == 0;
    for (int32_t r = threadIdx.x; r < LL_RANKS(&a->call); r += blockDim.x)
        s->owed[r] = a->routing.messages[r];
    for (int32_t i = threadIdx.x; i < a->routing.tokens * topk; i += blockDim.x) {
        const int32_t token = i / topk, k = i - token * topk;
        doubt |= a->routing.idx[(int64_t)token * pitch + k] != expert_at(&a->route, token, k);
    }
    return doubt;
}

/* Rejects the call because of the handle. */
GPU_ASIDE void ll_reject_handle(const ll_combine_args *a)
{
    const ll_shared shared = ll_shared_here(&a->call), *s = &shared;
    const int32_t topk = a->routing.topk, pitch = LL_BUFFER_TOPK(&a->call);
    for (int32_t i = threadIdx.x; i < a->routing.tokens * topk; i += blockDim.x) {
        const int32_t token = i / topk, k = i - token * topk;
        if (a->routing.idx[(int64_t)token * pitch + k] != expert_at(&a->route, token, k))
            atomicMin(s->first_bad, (unsigned long long)token << GPU_SLOT_BITS | (unsigned)k);
    }
    __syncthreads();
    if (threadIdx.x == 0 && *a->routing.stamp == 0) {
        s->rejection->status = EXPAR_STATUS_HANDLE;
        put_text(s->rejection->text,
                 "handle is of a dispatch that was not received whole; expected one that ended well "
                 "on all ranks");
    } else if (threadIdx.x == 0) {
        const int64_t token = (int64_t)(*s->first_bad >> GPU_SLOT_BITS);
        const int32_t k = (int32_t)(*s->first_bad & ((1u << GPU_SLOT_BITS) - 1));
        ll_reject_expert(a, s, a->routing.idx[token * pitch + k]);
    }
    __syncthreads();
}

#endif

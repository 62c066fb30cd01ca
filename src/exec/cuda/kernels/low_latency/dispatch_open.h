/* SPDX-License-Identifier: Apache-2.0 */
/* How a dispatch opens: what this rank sends to each rank is counted and told in its message header. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_DISPATCH_OPEN_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_DISPATCH_OPEN_H

#include "exec/cuda/kernels/low_latency/dispatch_tokens.h"
#include "exec/cuda/kernels/low_latency/headers.h"

/* Counts the rows for each of the rank's experts into t->first. Returns the number of messages to the rank. */
GPU_FUNC int32_t ll_count_for(const ll_dispatch_args *a, const ll_shared *s, const ll_tokens *t, int32_t pe)
{
    const int32_t locals = LL_LOCALS(&a->call), slots = LL_BUFFER_TOPK(&a->call);
    for (int32_t l = threadIdx.x; l < locals; l += blockDim.x)
        t->first[l] = 0;
    if (threadIdx.x == 0) *s->sum = 0;
    __syncthreads();
    for (int32_t token = threadIdx.x; token < a->routing.tokens; token += blockDim.x) {
        bool any = false;
        for (int32_t k = 0; k < slots; k++) {
            const int32_t local = t->idx[k * t->pitch + token] - pe * locals;
            if (local < 0 || local >= locals) continue;
            atomicAdd(&t->first[local], 1);
            any = true;
        }
        if (any) atomicAdd(s->sum, 1);
    }
    __syncthreads();
    return *s->sum;
}

/* Returns the bytes of a message, as they are counted. */
GPU_FUNC uint64_t ll_message_bytes(const ll_dispatch_args *a)
{
    const uint64_t numbers = a->route.weights ? 12 : 8;
    const uint64_t header = sizeof(ll_header) + numbers * (uint64_t)a->routing.topk;
    return header + (uint64_t)a->row_bytes + 4 * (uint64_t)ll_scales_of(a);
}

/* Says whether rows go in words, which they do in a call with few tokens. */
GPU_FUNC bool ll_sends_words(const ll_dispatch_args *a)
{
    return !LL_MASKS && LL_SMALL(&a->call) && a->routing.tokens <= LL_SMALL(&a->call);
}

/* Returns the marks that are told together with the number of messages. */
GPU_FUNC int32_t ll_marks_of(const ll_dispatch_args *a)
{
    if (!ll_sends_words(a)) return 0;
    return (int32_t)(a->routing.tokens <= LL_EXACT_WORD_TOKENS ? LL_HEADER_MARKS : LL_HEADER_IN_WORDS);
}

/* False: a wait was given up. */
GPU_FUNC bool ll_open_ranks(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, const ll_tokens *t)
{
    const ll_gpu_call *c = &a->call;
    const bool goes = ll_status_goes_on(s->rejection->status);
    const int32_t marks = ll_marks_of(a);
    if (now->after && blockIdx.x == 0 && !ll_await_between(c, *now)) return false;
    for (int32_t i = ll_first_opened(now); i < LL_RANKS(c); i += ll_opened_stride(now)) {
        const int32_t pe = (c->place.rank + 1 + i) % LL_RANKS(c);
        if (!ll_is_told(c, pe)) continue;
        const int32_t messages = goes ? ll_count_for(a, s, t, pe) : 0;
        ll_post_header(c, s, now, pe, 0, messages | marks, t->first);
        ll_tell_read(c, s, pe);
        if (threadIdx.x == LL_GPU_THREADS - 1 && messages) {
            ll_count_sent(c, pe, messages, 0);
            ll_count_bytes(c, pe, (uint64_t)messages * ll_message_bytes(a));
        }
        __syncthreads();
    }
    return true;
}

#endif

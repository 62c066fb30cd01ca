/* SPDX-License-Identifier: Apache-2.0 */
/* With masks: rows that a rank has counted and not sent in a dispatch. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_DISPATCH_MISSING_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_DISPATCH_MISSING_H

#include "exec/cuda/kernels/low_latency/dispatch_receive.h"

GPU_FUNC void ll_find_missing(const ll_dispatch_args *a, const ll_shared *s, const ll_tokens *t, int32_t source)
{
    const ll_gpu_call *c = &a->call;
    const int32_t locals = LL_LOCALS(c), topk = a->routing.topk;
    for (int32_t l = 0; l < locals; l++) {
        const int64_t rows = (int64_t)l * LL_RANKS(c) * LL_TOKENS(c);
        for (int32_t i = t->first[source * locals + l] + (int32_t)threadIdx.x; i < t->first[(source + 1) * locals + l];
             i += blockDim.x)
            a->routing.src_info[rows + i] = LL_NO_TOKEN;
    }
    __syncthreads();
    for (int32_t m = threadIdx.x; m < ll_messages_of(s, source); m += blockDim.x) {
        const int64_t place = (int64_t)source * LL_TOKENS(c) + m;
        ll_header *header = (ll_header *)(a->routing.headers + place * (int64_t)a->routing.header_bytes);
        for (int32_t k = 0; k < topk && header->token != LL_NO_TOKEN; k++) {
            const int32_t local = ll_header_experts(header)[k], row = ll_header_rows(header, LL_BUFFER_TOPK(c))[k];
            if ((uint32_t)local < (uint32_t)locals && (uint32_t)row < ll_rows_of_expert(c))
                a->routing.src_info[ll_row_of(a, local, row)] = header->token;
        }
    }
    __syncthreads();
}

GPU_FUNC void ll_clear_row(const ll_dispatch_args *a, int64_t row)
{
    const int32_t units = (int32_t)(GPU_ROW_BYTES(a) / 16);
    const int64_t rows = (int64_t)LL_RANKS(&a->call) * LL_TOKENS(&a->call);
    for (int32_t u = threadIdx.x; u < units; u += blockDim.x)
        store_row((uint4 *)(a->out_x + row * GPU_ROW_BYTES(a)) + u, make_uint4(0, 0, 0, 0));
    for (int32_t w = threadIdx.x; w < ll_scales_of(a); w += blockDim.x)
        a->out_scales[codec_scale_at(a->codec, ll_scales_of(a), rows, row / rows, w, row % rows)] = 0;
}

GPU_FUNC void ll_clear_missing(const ll_dispatch_args *a, const ll_tokens *t, int32_t source)
{
    const ll_gpu_call *c = &a->call;
    const int32_t locals = LL_LOCALS(c);
    for (int32_t l = 0; l < locals; l++) {
        const int64_t rows = (int64_t)l * LL_RANKS(c) * LL_TOKENS(c);
        int32_t cleared = 0;
        for (int32_t i = t->first[source * locals + l]; i < t->first[(source + 1) * locals + l]; i++) {
            if (a->routing.src_info[rows + i] != LL_NO_TOKEN) continue;
            ll_clear_row(a, rows + i);
            cleared++;
        }
        if (threadIdx.x == 0 && a->stats) a->stats[l] -= cleared; /* they were counted and did not come */
    }
}

/* Zeroes the rows that have not come from ranks that were masked meanwhile. The last block to end calls it. */
GPU_FUNC void ll_dispatch_mend(const ll_dispatch_args *a, const ll_shared *s, const ll_tokens *t)
{
    const ll_gpu_call *c = &a->call;
    if (!__syncthreads_or(load_relaxed(&c->masks->lost))) return;
    for (int32_t r = 0; r < LL_RANKS(c); r++) {
        if (!ll_sends_data(s, r) || !__syncthreads_or(ll_is_masked(c, r))) continue;
        ll_find_missing(a, s, t, r);
        ll_clear_missing(a, t, r);
    }
    __syncthreads();
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Weights of a reduced combine whose dispatch had none: they are sent ahead of the rows. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_COMBINE_WEIGHTS_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_COMBINE_WEIGHTS_H

#include "exec/cuda/kernels/low_latency/combine_form.h"
#include "exec/cuda/kernels/low_latency/credits.h"
#include "exec/cuda/kernels/low_latency/outcome.h"

/* If the token has a message to the rank, it is that rank's next one, and its weights go there. One warp for each
   rank. */
GPU_FUNC void ll_send_weights(const ll_combine_args *a, const ll_shared *s, const ll_now *now, int32_t pe)
{
    const ll_gpu_call *c = &a->call;
    const int32_t topk = a->routing.topk, locals = LL_LOCALS(c), lane = threadIdx.x % 32;
    int32_t message = 0;
    for (int32_t token = 0; token < a->routing.tokens; token++) {
        const int32_t expert = lane < topk ? a->routing.idx[(int64_t)token * LL_BUFFER_TOPK(c) + lane] : -1;
        if (!__any_sync(GPU_ALL, expert >= 0 && expert / locals == pe)) continue;
        const uint64_t place = ll_weights_place(c, c->place.rank, now->epoch, message);
        float *to = (float *)ll_there(s, pe, place);
        if (LL_FAR && ll_is_far(c, pe)) to = (float *)ll_parcel_weights(c, pe, now->epoch, message);
        if (lane < topk) to[lane] = a->route.weights[token * a->route.weights_pitch + lane];
        __syncwarp();
        const ll_parcel parcel = {(const uint8_t *)to, place, sizeof(float) * (uint64_t)topk,
                                  ll_weight_flag_place(c, c->place.rank, now->epoch, message), ll_flag_of(now, 1)};
        if (lane == 0) ll_send_parcel(c, s, now, pe, &parcel);
        message++;
    }
}

/* Sends to all ranks. Block 0 calls it. False: a wait was given up. */
GPU_FUNC bool ll_send_all_weights(const ll_combine_args *a, const ll_shared *s, const ll_now *now)
{
    const ll_gpu_call *c = &a->call;
    bool ok = true;
    for (int32_t i = threadIdx.x / 32; i + 1 < LL_RANKS(c) && !blockIdx.x; i += LL_BLOCK_WARPS) {
        const int32_t pe = (c->place.rank + 1 + i) % LL_RANKS(c);
        int32_t region;
        const ll_credit credit = ll_await_slot(c, s, now, pe, &region);
        ok &= credit != LL_CREDIT_AWAITED;
        if (__all_sync(GPU_ALL, credit == LL_CREDIT_GIVEN)) ll_send_weights(a, s, now, pe);
    }
    return !__syncthreads_or(!ok);
}

#endif

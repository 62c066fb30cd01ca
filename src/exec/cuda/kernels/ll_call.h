/* SPDX-License-Identifier: Apache-2.0 */
/* A low-latency call, as a block of its kernel sees it: shapes, shared memory, where ranks lie. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LL_CALL_H
#define EXPAR_EXEC_CUDA_KERNELS_LL_CALL_H

#include "exec/cuda/kernels/device.h"
#include "exec/cuda/kernels/ll_args.h"

/* 1: the form for buffers with masks, a program of its own (ll_dispatch_masks.cu, ll_combine_masks.cu), so that others
   pay nothing for it: no registers, no shared memory, no looks. */
#ifndef LL_MASKS
#define LL_MASKS 0
#endif
#if LL_MASKS
#define LL_KERNEL(name) name##_masks
#else
#define LL_KERNEL(name) name
#endif

/* Token of a message, or a row, that was counted and has not come. */
#define LL_NO_TOKEN (-1)

#define LL_BLOCK_WARPS LL_GPU_BLOCK_WARPS
#define LL_GPU_PARTS   4 /* rows that a thread loads before it uses the first */

#ifdef EXPAR_TOPK
#define LL_BUFFER_TOPK(c) EXPAR_TOPK
#else
#define LL_BUFFER_TOPK(c) ((c)->shape.topk)
#endif
#define LL_RANKS(c) GPU_RANKS(&(c)->world)

/* The call, as a block sees it. */
typedef struct ll_now {
    uint64_t epoch;
    uint32_t stamp, between, before; /* of the epoch, and of the two before it */
    int32_t kind, half;
    bool kept;   /* this call's units are where they were kept */
    bool behind; /* its send stands behind a call of the half that was not read */
} ll_now;

/* A block's shared memory. */
typedef struct ll_shared {
    uint64_t *bases;                          /* [N] where the buffer of each rank lies */
    unsigned long long *waits;                /* [N] nanoseconds of this block's waits for each rank */
    uint64_t *places;                         /* [32] */
    int32_t *status, *tag, *route, *messages; /* [N] that each rank has told */
    int32_t *out;                             /* [N] with masks: what has become of the rank's unit (ll_gpu_out) */
    int32_t *notes;                           /* [LL_GPU_NOTES][32] */
    ep_refusal *refusal;                      /* of this rank */
    unsigned long long *first_bad;            /* slot; ~0: none */
    int32_t *sum;                             /* one word */
    int32_t *rest;                            /* what one kernel has behind that */
} ll_shared;

GPU_FUNC ll_shared ll_shared_of(const ll_gpu_call *c, uint8_t *memory)
{
    const int32_t ranks = LL_RANKS(c);
    ll_shared s;
    s.bases = (uint64_t *)memory;
    s.waits = (unsigned long long *)(s.bases + ranks);
    s.places = (uint64_t *)(s.waits + ranks);
    s.first_bad = (unsigned long long *)(s.places + LL_MOST_TOPK);
    s.sum = (int32_t *)(s.first_bad + 1);
    s.status = s.sum + 2;
    s.tag = s.status + ranks;
    s.route = s.tag + ranks;
    s.messages = s.route + ranks;
    s.out = s.messages + ranks;
    s.notes = LL_MASKS ? s.out + ranks : s.out;
    s.refusal = (ep_refusal *)(s.notes + LL_GPU_NOTES * LL_MOST_TOPK);
    s.rest = (int32_t *)(s.refusal + 1);
    return s;
}

GPU_FUNC uint8_t *ll_there(const ll_shared *s, int32_t pe, uint64_t offset)
{
    return (uint8_t *)(s->bases[pe] + offset);
}
GPU_FUNC uint8_t *ll_own(const ll_gpu_call *c, const ll_shared *s, uint64_t offset)
{
    return ll_there(s, c->world.rank, offset);
}
GPU_FUNC uint64_t ll_flag_of(const ll_now *now, uint32_t value)
{
    return (uint64_t)now->stamp << 32 | value;
}

/* Of the warp. */
GPU_FUNC void ll_stamp_time(const ll_gpu_call *c, int32_t which)
{
    if (!c->stamps || threadIdx.x % 32) return;
    c->stamps[(which * gridDim.x + blockIdx.x) * LL_BLOCK_WARPS + threadIdx.x / 32] = clock_now();
}
GPU_FUNC void ll_stamp_start(const ll_gpu_call *c)
{
    if (!c->stamps || threadIdx.x % 32) return;
    for (int32_t which = LL_GPU_SENT; which < LL_GPU_MOMENTS; which++)
        c->stamps[(which * gridDim.x + blockIdx.x) * LL_BLOCK_WARPS + threadIdx.x / 32] = 0;
    ll_stamp_time(c, LL_GPU_STARTED);
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* A low-latency call, as a block of its kernel sees it: shapes, shared memory, where ranks lie. The protocol is that
 * of exec/low_latency.h; where words lie, and what they mean, is in proto/low_latency.h.
 *
 * There is no barrier over the grid. Each block finds out by itself what it needs (the epoch from its copy of the
 * state, the others' units from this rank's own memory). Of a quick call each moves its copy on, and the next kernel
 * says that the half was read; else the last one to end does both. Words of units carry their stamp and are complete
 * by themselves, so they are stored without an order; a refusal's text stands before its status, which is stored with
 * release. Rows are stored by all threads of a block, which then meet, and flagged with release by threads that were
 * there.
 *
 * What both kernels have: places.h, and in the order of a call begin.h, doors.h, units.h, outcome.h, end.h, of which
 * each needs words.h, masks.h, times.h or none. What one has: dispatch_*.h, combine_*.h and log*.h. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_CALL_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_CALL_H

#include "exec/cuda/kernels/low_latency/places.h"

/* 1: the form for buffers with masks, a program of its own (ll_dispatch_masks.cu, ll_combine_masks.cu), so that others
   pay nothing for it: no registers, no shared memory, no looks. */
#ifndef LL_MASKS
#define LL_MASKS 0
#endif
#if LL_MASKS
#define LL_KERNEL_NAME(name) name##_masks
#define LL_KERNEL(name)      LL_KERNEL_NAME(name)
#else
#define LL_KERNEL(name) name
#endif

/* Token of a message, or a row, that was counted and has not come. */
#define LL_NO_TOKEN (-1)

#define LL_BLOCK_WARPS LL_GPU_BLOCK_WARPS
#define LL_GPU_PARTS   4 /* rows that a thread loads before it uses the first */

/* The call, as a block sees it. */
typedef struct ll_now {
    uint64_t epoch;
    uint32_t stamp, between, before; /* of the epoch, and of the two before it */
    int32_t kind, half;
    bool failed;  /* the buffer has, as this thread saw it */
    bool kept;    /* this call's units are where they were kept */
    bool pending; /* the half's last call is still open */
    bool behind;  /* its send stands behind a call of the half that was not read */
    bool quick;   /* both phases, and nothing that blocks would have to come to together: each ends by itself, and the
                     read words of the call are left to the next kernel */
} ll_now;

/* A block's shared memory. */
typedef struct ll_shared {
    uint64_t *bases;                          /* [N] where the buffer of each rank lies */
    unsigned long long *waits;                /* [N] nanoseconds of this block's waits for each rank */
    uint64_t *places;                         /* [32] */
    int32_t *status, *tag, *route, *messages; /* [N] that each rank has told */
    int32_t *open;                            /* [N] 1: the rank's half is known to be free; 0: it is to be awaited */
    int32_t *owed;                            /* [N] of a combine: the handle's messages */
    int32_t *doors;                           /* [N] of its send: 1, with masks and the region there: rows may go to the
                                                 rank; 0: they may not, or not yet */
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
    s.open = s.messages + ranks;
    s.owed = s.open + ranks;
    s.doors = s.owed + ranks;
    s.out = s.doors + ranks;
    s.notes = LL_MASKS ? s.out + ranks : s.out;
    s.refusal = (ep_refusal *)(s.notes + LL_GPU_NOTES * LL_MOST_TOPK);
    s.rest = (int32_t *)(s.refusal + 1);
    return s;
}

/* What lies aside (GPU_ASIDE) finds it so, too: a pointer to what its caller has in registers would put that into
   memory. */
GPU_FUNC ll_shared ll_shared_here(const ll_gpu_call *c)
{
    GPU_LAUNCH_SHARED(uint8_t, memory);
    return ll_shared_of(c, memory);
}

GPU_FUNC uint8_t *ll_there(const ll_shared *s, int32_t pe, uint64_t offset)
{
    return (uint8_t *)(s->bases[pe] + offset);
}
GPU_FUNC uint64_t ll_flag_of(const ll_now *now, uint32_t value)
{
    return (uint64_t)now->stamp << 32 | value;
}

/* What the previous kernels have left, in this block's own copy. */
GPU_FUNC const ll_gpu_line *ll_line_of(const ll_gpu_call *c, int32_t kind)
{
    return &c->state[blockIdx.x].lines[kind];
}

#endif

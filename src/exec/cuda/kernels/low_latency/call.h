/* SPDX-License-Identifier: Apache-2.0 */
/* A low-latency call, as a block of its kernel sees it: its shape, shared memory, and the addresses of ranks. The
 * protocol is that of exec/low_latency.h. proto/low_latency.h says where words are and what they mean.
 *
 * There is no barrier over the grid. Each block finds by itself what it needs: the epoch from its copy of the state,
 * and the other ranks' message headers from this rank's own memory. In a quick call each block moves its copy on, and
 * the next kernel acknowledges the slot. Otherwise the last block to end does both.
 *
 * Words of message headers carry their stamp and are complete by themselves, so they are stored without an order. The
 * text of a rejection comes before its status, which is stored with release. All threads of a block store rows and then
 * meet. Threads that were there then store the flags with release.
 *
 * Both kernels use places.h, and, in the order of a call, begin.h, credits.h, headers.h, outcome.h and end.h. Some of
 * these need words.h, masks.h, far.h or times.h. Only one of the kernels uses dispatch_*.h, or combine_*.h and
 * log*.h. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_CALL_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_CALL_H

#include "exec/cuda/kernels/low_latency/places.h"

/* 1: the form for buffers with masks. It is a program of its own (ll_dispatch_masks.cu, ll_combine_masks.cu). So other
   buffers pay nothing for masks: no registers, no shared memory, no looks. */
#ifndef LL_MASKS
#define LL_MASKS 0
#endif
/* 1: the form for buffers some of whose ranks are not mapped (far.h). It is a program of its own, likewise
   (ll_dispatch_far.cu, ll_combine_far.cu; with masks, too: ll_dispatch_far_masks.cu, ll_combine_far_masks.cu). */
#ifndef LL_FAR
#define LL_FAR 0
#endif
/* 1: flags lie in pinned memory, so one warp of a team waits for them, and the team's warps of this block meet
   (ll_group_goes_on). If all warps read over the bus again and again, their reads queue up and delay the data.
   With masks each warp of a combine waits by itself, since each has to know what is lost; those of a dispatch meet in
   any case. */
#define LL_LEADS (LL_FAR && !LL_MASKS)
#if LL_MASKS && LL_FAR
#define LL_KERNEL_NAME(name) name##_far_masks
#define LL_KERNEL(name)      LL_KERNEL_NAME(name)
#elif LL_MASKS
#define LL_KERNEL_NAME(name) name##_masks
#define LL_KERNEL(name)      LL_KERNEL_NAME(name)
#elif LL_FAR
#define LL_KERNEL_NAME(name) name##_far
#define LL_KERNEL(name)      LL_KERNEL_NAME(name)
#else
#define LL_KERNEL(name) name
#endif
/* 1: one kernel for all formats. */
#define LL_ALL_FORMATS (LL_MASKS || LL_FAR)

/* The token of a message or row that was counted and has not come. */
#define LL_NO_TOKEN (-1)

#define LL_BLOCK_WARPS LL_GPU_BLOCK_WARPS
#define LL_GPU_PARTS   4 /* rows that a thread loads before it uses the first */

/* The call, as a block sees it. */
typedef struct ll_now {
    uint64_t epoch;
    uint32_t stamp, between, before; /* stamps of the epoch, and of the two before it */
    int32_t kind, slot;
    bool failed;  /* the buffer has failed, as this thread saw it */
    bool kept;    /* this call's message headers are in ll_gpu_call.kept */
    bool pending; /* the slot's last call is still open */
    /* Its send comes after a call in the slot that was not received here. */
    bool after;
    /* The kernel has both phases, and its blocks need not agree on anything at the end. So each block ends by itself,
       and the next kernel stores the call's acknowledgements. */
    bool quick;
} ll_now;

/* A block's shared memory. */
typedef struct ll_shared {
    uint64_t *bases;                          /* [N] the address of each rank's buffer, if it is mapped */
    unsigned long long *waits;                /* [N] nanoseconds of this block's waits for each rank */
    uint64_t *places;                         /* [32] addresses of a token's messages */
    int32_t *status, *tag, *route, *messages; /* [N] words of each rank's header */
    int32_t *open;                            /* [N] 1: the rank's slot is known to be free; 0: wait for it */
    int32_t *owed;                            /* [N] for a combine: the messages of the handle's dispatch */
    /* [N] for the send of a combine: 1, or with masks 1 + the region, if rows may go to the rank; 0: not, or not
       yet. */
    int32_t *credits;
    int32_t *out;   /* [N] with masks: what has become of the rank's header (ll_gpu_out) */
    int32_t *notes; /* [LL_GPU_NOTES][32] */
    /* [LL_GPU_TEAMS] One more than the item at which the team's first warp has given up a wait (LL_LEADS); 0: it has
       not. The warp stores it before its team meets, and never takes it back. Warps that leave that meeting late do not
       take it for one of an earlier item. */
    int32_t *left;
    ep_rejection *rejection;       /* this rank's rejection */
    unsigned long long *first_bad; /* slot; ~0: none */
    int32_t *sum;                  /* one word */
    int32_t *rest;                 /* the words that only one of the kernels has */
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
    s.credits = s.owed + ranks;
    s.out = s.credits + ranks;
    s.notes = LL_MASKS ? s.out + ranks : s.out;
    s.rejection = (ep_rejection *)(s.notes + LL_GPU_NOTES * LL_MOST_TOPK);
    s.left = (int32_t *)(s.rejection + 1);
    s.rest = s.left + LL_GPU_TEAMS;
    return s;
}

/* Functions out of line (GPU_ASIDE) compute it themselves. A pointer to their caller's variables would move those from
   registers into memory. */
GPU_FUNC ll_shared ll_shared_here(const ll_gpu_call *c)
{
    GPU_LAUNCH_SHARED(uint8_t, memory);
    return ll_shared_of(c, memory);
}

GPU_FUNC bool ll_is_far(const ll_gpu_call *c, int32_t pe)
{
    return LL_FAR && c->far[pe].sends != NULL;
}
GPU_FUNC uint8_t *ll_there(const ll_shared *s, int32_t pe, uint64_t offset)
{
    return (uint8_t *)(s->bases[pe] + offset);
}
GPU_FUNC uint64_t ll_flag_of(const ll_now *now, uint32_t value)
{
    return (uint64_t)now->stamp << 32 | value;
}

/* Returns the state that the previous kernels have left, in this block's own copy. */
GPU_FUNC const ll_gpu_line *ll_line_of(const ll_gpu_call *c, int32_t kind)
{
    return &c->state[blockIdx.x].lines[kind];
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments that the host passes to the kernels of an EP buffer, and the reports that it reads back. Compiles as
 * C17, under NVRTC and under nvcc. Addresses are 64-bit words or pointers in the GPU's view.
 *
 *   gpu_place    the same for all calls on a buffer, a member of every kernel's arguments
 *   gpu_state    device memory that only this rank's kernels use
 *   gpu_report   pinned host memory: kernels write, the host reads without a stream synchronisation
 *   gpu_route    a call's topk_idx and weights in device memory */
#ifndef EXPAR_EXEC_CUDA_KERNELS_CORE_ARGS_H
#define EXPAR_EXEC_CUDA_KERNELS_CORE_ARGS_H

#include "exec/cuda/kernels/core/moments.h"
#include "proto/normal.h"

#define GPU_SLOT_BITS 13 /* bits of a slot's number in a token */

/* The most results of votes that the host has not read yet. The search for a call's own result starts at slot ticket %
   GPU_VOTES. */
#define GPU_VOTES 64

/* The thing that a kernel awaited when it gave up. */
typedef enum gpu_wait {
    GPU_WAIT_NONE = 0,
    GPU_WAIT_HEADER = 1,
    GPU_WAIT_REPLY = 2,
    GPU_WAIT_DONE = 3,
    GPU_WAIT_SLOT = 4, /* a free slot in the peer's ring */
    GPU_WAIT_ROW = 5,  /* a row from the peer, through a ring */
    /* Low-latency dispatch. A low-latency combine adds GPU_LL_WAITS to these values. */
    GPU_WAIT_MESSAGE_HEADER = 6, /* a message header */
    GPU_WAIT_CREDIT = 7,         /* the acknowledgement of the slot's last call */
    GPU_WAIT_MESSAGE = 8,        /* a message of a dispatch, or a row of a combine */
    GPU_WAIT_WEIGHTS = 9,        /* weights that are sent ahead of rows */
    /* After those of a low-latency combine: a signal of the GEMM that writes its rows. */
    GPU_WAIT_SIGNAL = 14
} gpu_wait;
#define GPU_LL_WAITS 4

/* Says whether a wait on this buffer was given up. */
typedef enum gpu_soundness {
    GPU_SOUND = 0,
    GPU_FAILING = 1, /* one thread is writing the report */
    GPU_FAILED = 2   /* the report is written: all waits leave at once */
} gpu_soundness;

typedef struct gpu_state {
    /* The last call's epoch. The kernels of a call read it here and move it on, so that graphs can be replayed. */
    uint32_t epoch;
    /* The number of blocks of the running kernel that have finished. The last one resets it to 0. */
    uint32_t arrived;
    /* The number of items that warps of the running dispatch or combine have taken (deal_next); 0 between kernels. */
    uint32_t dealt;
    /* gpu_soundness. A thread that gives up a wait writes it (release), all waiting threads read it (acquire). It is
       never cleared. */
    uint32_t failed;
    /* 1: the notify before this dispatch ended in a rejection, or was given up. */
    uint32_t rejected;
    /* 1: pools grow after the notify before this dispatch, so no advertised space counts. */
    uint32_t grows;
    /* 1: all ranks went on in the last dispatch, so its rows are here. */
    uint32_t brought;
    /* The watch over waits (watch.h). The thread that has the watch writes these words, all waiting threads read them.
       watch_ns is the time at which it took the watch, moved_ns the time of the last change of the orders. `orders` are
       the largest that were read from the host, and seen_ns is the time of that reading. seen_ns is stored last
       (release) and read first (acquire). */
    uint64_t watch_ns, moved_ns, orders, seen_ns;
    unsigned long long bad_slot; /* the first token << GPU_SLOT_BITS | slot with an index out of range; ~0: none */
    ep_rejection checked;        /* the result of ep_check_topk, or of the check in the dispatch with a handle */
} gpu_state;

/* Bits of gpu_report.orders. */
#define GPU_ABORT 1u
#define GPU_BEAT  2u

/* A value of gpu_report.was_abort: the peer is lost and cannot be masked (low_latency/masks.h). */
#define GPU_NO_REGION 2u
/* Another value: the ring that carries data to the peer has ended (low_latency/far.h). */
#define GPU_NO_RING 3u
/* Another value: a signal did not come in time (low_latency/ll_await_signals.cu). `peer` is the local expert then, and
   the high half of `seen` is the word's number. */
#define GPU_LATE_SIGNAL 4u

/* A kernel's message about a lasting wait. The awaited rank follows from the place of the word. */
typedef struct gpu_awaited {
    uint64_t beat;  /* the pulse at that time, modulo GPU_BEAT_MASK + 1 */
    int32_t wait;   /* gpu_wait */
    uint32_t epoch; /* epoch of the call */
} gpu_awaited;
#define GPU_BEAT_MASK 0xffffffu

EP_FUNC uint64_t gpu_orders_beat(uint64_t orders)
{
    return (orders >> 1) & GPU_BEAT_MASK;
}
EP_FUNC uint64_t gpu_await_word(uint64_t orders, int32_t wait, uint32_t epoch)
{
    return gpu_orders_beat(orders) << 40 | (uint64_t)wait << 32 | epoch;
}
EP_FUNC gpu_awaited gpu_await_read(uint64_t word)
{
    gpu_awaited a;
    a.beat = word >> 40;
    a.wait = (int32_t)(word >> 32 & 0xff);
    a.epoch = (uint32_t)word;
    return a;
}

/* 1: both words are about the same call at the same pulse, so the host needs only one of them. */
EP_FUNC int32_t gpu_await_is_same(uint64_t a, uint64_t b)
{
    return !((a ^ b) & ~((uint64_t)0xff << 32));
}

/* Pinned memory. The host's guard or the thread that makes a call writes it. The watch reads `asked` at each new pulse,
   kernels read `dead` (both relaxed: each word stands for itself). */
typedef struct gpu_loss {
    /* Waits for the rank shall end if they have lasted since this pulse or an earlier one. It is one more than that
       pulse; 0: no wait shall end. */
    uint64_t asked;
    uint64_t dead; /* 1: the rank will write nothing any more */
} gpu_loss;

/* How a call ended, if it did not end well. One thread writes it into a free slot, `ticket` last (release, system
   scope). The host reads it (acquire) and frees the slot by ticket 0 (release). */
typedef struct gpu_vote {
    uint64_t ticket;
    int32_t rank; /* as in ep_vote; -1: no rejection, only dropped rows */
    int32_t dropped;
    ep_rejection reason;
    ep_form form, form0;
} gpu_vote;

typedef struct gpu_report {
    /* 1: a wait was given up, and the members down to `expected` are valid. The first thread that gives up writes it
       (release, system scope), the host reads it (acquire). */
    uint32_t failed;
    int32_t wait, peer; /* gpu_wait */
    /* The abort word (GPU_ABORT), GPU_NO_REGION, GPU_NO_RING or GPU_LATE_SIGNAL ended the wait. 0: the host had not
       moved the pulse for gpu_place.orphan_ns. */
    uint32_t was_abort;
    uint64_t seen, expected;
    uint64_t failed_after; /* calls with this ticket or a lower one had ended before */
    /* GPU_ABORT ends all waits. The host sets it (release). Kernels read it (relaxed: only the word itself counts), and
       so do waits of the host (acquire). The other bits are the pulse, which the host's guard moves on by GPU_BEAT
       (release). Both are in one word, so that a wait reads them at once. */
    uint64_t orders;
    /* The ticket of the last notify whose counts are complete (gpu_notify_args.told). It is written last (release); the
       host reads it (acquire). Only calls with a ticket write this word, the next two and the counts. A call that
       nobody asks for, for instance in a graph, leaves them alone: a host may still poll or read for an earlier
       call. */
    uint64_t counts_ready;
    /* The ticket of the last notify that did not go on, written before counts_ready. Its result is among `votes`.
       Any other result that is there once counts are ready is that of the dispatch after it. */
    uint64_t counts_rejected;
    /* The ticket of the last notify after which pools grow, likewise written before counts_ready. */
    uint64_t counts_grow;
    /* The ticket of the last dispatch or combine that knows whether it goes on. Its result, if any, is among
       `votes`. Block 0 writes it after that (release), the host reads it (acquire). */
    uint64_t opened;
    /* One more than the epoch of the last notify whose headers requested growth in vain, since some host did not wait;
       0: none yet. Calls in graphs request none. Kernels write it, the host reads it (relaxed: a host that sees it late
       waits in a later call). */
    uint64_t requested;
    gpu_vote votes[GPU_VOTES];
    /* Tickets of the first and the last call whose result found no free slot; lost_to 0: there were none. lost_to is
       written last (release), the host reads it (acquire). */
    uint64_t lost_from, lost_to;
    /* The first call without a ticket that did not end well. Such calls are those in graphs, and those whose event
       nobody wants. A call that the host rejected is not among them. The kernel sets `ticket` to 1 (release). The host
       sets it to 0 after reading the rest (release). */
    gpu_vote untold;
} gpu_report;

/* The most ranks of a group whose combines read rows in place in the callers' memory. */
#define GPU_MOST_SHIFTED 32

/* A buffer's memory and state on the GPUs, for both modes: every kernel needs it. */
typedef struct gpu_place {
    uint64_t buffer;       /* offset of the EP buffer in every PE's heap */
    const uint64_t *heaps; /* [N] device memory: the addresses at which this rank maps each PE's heap */
    gpu_state *state;
    gpu_report *report;
    /* [N] pinned memory, by rank: the last wait for it that lasted from one pulse to another (gpu_await_word). Waiting
       threads write it, the host's guard reads it (relaxed: each word stands for itself). */
    uint64_t *awaits;
    uint64_t *noted;        /* [N] device memory: what was last written to awaits, by compare-and-swap */
    const gpu_loss *losses; /* [N] pinned, for a buffer with masks; else NULL */
    uint64_t *lost;         /* [N] device memory: losses[].asked as the watch has read it, by maximum */
    uint64_t orphan_ns;     /* a host that has not moved the pulse for that long has stopped */
    uint64_t ticket;        /* the call's ticket, from 1; 0: nobody will ask how it ended */
    uint64_t before;        /* the last ticket before this call; 0 in graphs */
    int32_t rank, ranks;
} gpu_place;

/* ---- arguments of kernels ---------------------------------------------------------------------------------------- */

/* As ep_route_view, in device memory. */
typedef struct gpu_route {
    const void *idx; /* NULL: there is none */
    int64_t idx_pitch;
    const float *weights; /* NULL: there are none */
    int64_t weights_pitch;
    const uint8_t *token_in_rank; /* NULL: there is none */
    int64_t token_in_rank_pitch;
    int32_t idx_bytes;
    int32_t unused;
} gpu_route;

#endif

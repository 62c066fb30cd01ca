/* SPDX-License-Identifier: Apache-2.0 */
/* What the host hands to the kernels of an EP buffer, and what it reads back. Compiles as C17, under NVRTC and under
 * nvcc; addresses are 64-bit words or pointers in the GPU's view.
 *
 *   gpu_place    the same for all calls on a buffer, a member of every kernel's arguments
 *   gpu_state    device memory of this rank alone, touched by its own kernels
 *   gpu_report   pinned host memory: kernels write, the host reads without a stream synchronisation
 *   gpu_route    a call's topk_idx and weights in device memory */
#ifndef EXPAR_EXEC_CUDA_KERNELS_CORE_ARGS_H
#define EXPAR_EXEC_CUDA_KERNELS_CORE_ARGS_H

#include "exec/cuda/kernels/core/moments.h"
#include "proto/normal.h"

#define GPU_SLOT_BITS 13 /* of the number of a slot in a token */

/* Verdicts that the host has not read yet, at most; a call's own is looked for from slot ticket % GPU_VERDICTS on. */
#define GPU_VERDICTS 64

/* What a kernel was waiting for when it gave up. */
typedef enum gpu_wait {
    GPU_WAIT_NONE = 0,
    GPU_WAIT_HELLO = 1,
    GPU_WAIT_REPLY = 2,
    GPU_WAIT_DONE = 3,
    GPU_WAIT_SLOT = 4, /* queue: a free slot in the peer's ring */
    GPU_WAIT_ROW = 5,  /* queue: a row from the peer */
    /* Of low-latency mode, in a dispatch; in a combine GPU_LL_WAITS more: */
    GPU_WAIT_UNIT = 6,    /* an opening unit */
    GPU_WAIT_HALF = 7,    /* that the half before was read */
    GPU_WAIT_MESSAGE = 8, /* a message of a dispatch, or a row of a combine */
    GPU_WAIT_WEIGHTS = 9  /* weights that go ahead of rows */
} gpu_wait;
#define GPU_LL_WAITS 4

/* Whether a wait on this buffer was given up. */
typedef enum gpu_soundness {
    GPU_SOUND = 0,
    GPU_FAILING = 1, /* one thread writes the report */
    GPU_FAILED = 2   /* it is written: all waits leave at once */
} gpu_soundness;

typedef struct gpu_state {
    uint32_t epoch;   /* of the last call: kernels of a call take it from here and move it on, so that graphs replay */
    uint32_t arrived; /* blocks of the running kernel that are through; the last one sets it back to 0 */
    uint32_t dealt;   /* what warps of the running dispatch or combine have come for (deal_next); 0 between kernels */
    uint32_t failed;  /* gpu_soundness, by who gives up a wait (release) for all that wait (acquire); never cleared */
    uint32_t refused; /* 1 when the notify before this dispatch ended in a refusal, or was given up */
    uint32_t grows;   /* 1 when pools grow behind the notify before this dispatch: no room stands */
    uint32_t brought; /* 1 when all ranks went on in the last dispatch: its rows are here */
    /* The watch over waits (watch.h). By the thread that has it, for all that wait: when it took the watch; when the
       orders were last seen to change; the largest orders of the host that were read; when that was, stored last
       (release) and read first (acquire). */
    uint64_t watch_ns, moved_ns, orders, seen_ns;
    unsigned long long bad_slot; /* first token << GPU_SLOT_BITS | slot with an index out of range; ~0: none */
    ep_refusal checked;          /* what ep_check_topk found, for the dispatch with a handle behind it */
} gpu_state;

/* Of gpu_report.orders. */
#define GPU_ABORT 1u
#define GPU_BEAT  2u

/* Of gpu_report.was_abort: the peer is lost and cannot be masked (low_latency/masks.h). */
#define GPU_NO_REGION 2u

/* What a kernel says of a wait that lasts: whom it awaits is the word's place. */
typedef struct gpu_awaited {
    uint64_t beat;  /* the pulse when it said so, modulo GPU_BEAT_MASK + 1 */
    int32_t wait;   /* gpu_wait */
    uint32_t epoch; /* of the call */
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

/* 1 when both tell of the same call at the same pulse: the host needs one of them. */
EP_FUNC int32_t gpu_await_is_same(uint64_t a, uint64_t b)
{
    return !((a ^ b) & ~((uint64_t)0xff << 32));
}

/* Pinned: written by the host's guard or by the thread that makes a call. `asked` is read by the watch at each new
   pulse, `dead` by kernels (both relaxed: each word by itself). */
typedef struct gpu_loss {
    uint64_t asked; /* waits for the rank that have lasted since this pulse or an earlier one are to end: one more than
                       it; 0: none is */
    uint64_t dead;  /* 1: the rank writes nothing any more */
} gpu_loss;

/* How a call ended, when it was not well. Written by one thread into a slot that is free, `ticket` last (release,
   system scope). The host reads it (acquire) and frees the slot by ticket 0 (release). */
typedef struct gpu_verdict {
    uint64_t ticket;
    int32_t rank; /* as in ep_verdict; -1: no refusal, only dropped rows */
    int32_t dropped;
    ep_refusal reason;
    ep_form form, form0;
} gpu_verdict;

typedef struct gpu_report {
    /* 1 when a wait was given up; the four behind it are then valid. Written by the first thread that gave up (release,
       system scope), read by the host (acquire). */
    uint32_t failed;
    int32_t wait, peer; /* gpu_wait */
    uint32_t was_abort; /* the abort word ended it, or GPU_NO_REGION; 0: the host had not moved the pulse for
                           gpu_place.orphan_ns */
    uint64_t seen, expected;
    uint64_t failed_after; /* calls with this ticket or a lower one had ended before */
    /* GPU_ABORT: all waits end, of kernels (relaxed: nothing but the word counts) and of the host (acquire); set by the
       host (release). The rest is the pulse, which the host's guard moves on by GPU_BEAT (relaxed). One word, so that a
       wait reads both at once. */
    uint64_t orders;
    /* Ticket of the last notify whose counts are complete (gpu_notify_args.told). Written last (release), read by the
       host (acquire). This word, the next one and the counts are for calls that have a ticket: one that nobody asks
       for, in a graph for instance, leaves them alone. A host may still poll, or read, for a call of which the notify
       is through. */
    uint64_t counts_ready;
    /* Ticket of the last notify that did not go on: before counts_ready is set to it. Its verdict stands below; any
       other that is found there once counts are ready is that of the dispatch behind it. */
    uint64_t counts_refused;
    /* Ticket of the last notify after which pools grow: likewise before counts_ready. */
    uint64_t counts_grow;
    /* Ticket of the last dispatch or combine that knows whether it goes on: its verdict, if any, stands below. Written
       behind that by block 0 (release), read by the host (acquire). */
    uint64_t opened;
    /* One more than the epoch of the last notify whose hellos wished for growth in vain, for a host did not wait; 0:
       none yet. Of all calls but those in graphs, which wish for none. Written by kernels, read by the host (relaxed:
       who sees it late waits in a later call). */
    uint64_t wished;
    gpu_verdict verdicts[GPU_VERDICTS];
    /* Tickets of the first and the last call whose verdict found no free slot; lost_to 0: none did. lost_to is written
       last (release), read by the host (acquire). */
    uint64_t lost_from, lost_to;
    /* Of calls that nobody asks for (ticket 0: in graphs, for one): the first that did not end well. `ticket` is set to
       1 by the kernel (release), and to 0 by the host once it has read the rest (release). */
    gpu_verdict untold;
} gpu_report;

/* Ranks of a group whose combines read rows where they lie in the callers' memory. */
#define GPU_MOST_SHIFTED 32

/* A buffer's place on the GPUs, of either mode: what every kernel needs. */
typedef struct gpu_place {
    uint64_t buffer;       /* offset of the EP buffer in every PE's heap */
    const uint64_t *heaps; /* [N] device memory: where each PE's heap is mapped here */
    gpu_state *state;
    gpu_report *report;
    /* [N] pinned memory, by rank: the last wait for it that lasted from one pulse to another (gpu_await_word). Written
       by whoever waits, read by the host's guard; relaxed, each by itself. */
    uint64_t *awaits;
    uint64_t *noted;        /* [N] device memory: what was last told there, by compare-and-swap */
    const gpu_loss *losses; /* [N] pinned, of a buffer with masks; else NULL */
    uint64_t *lost;         /* [N] device memory: losses[].asked as the watch has read it; by maximum */
    uint64_t orphan_ns;     /* a host that has not moved the pulse for so long is gone */
    uint64_t ticket;        /* of this call, from 1; 0: nobody will ask how it ended */
    uint64_t before;        /* the last ticket before this call; 0 in graphs */
    int32_t rank, ranks;
} gpu_place;

/* ---- arguments of kernels ---------------------------------------------------------------------------------------- */

/* As ep_route_view, in device memory. */
typedef struct gpu_route {
    const void *idx; /* NULL without */
    int64_t idx_pitch;
    const float *weights; /* NULL without */
    int64_t weights_pitch;
    const uint8_t *token_in_rank; /* NULL without */
    int64_t token_in_rank_pitch;
    int32_t idx_bytes;
    int32_t unused;
} gpu_route;

#endif

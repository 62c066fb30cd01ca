/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting in kernels, and the watch over waits.
 *
 * A thread that waits polls its own word. Every GPU_POLLS polls it also looks at device memory: whether another wait
 * was given up, and at a copy of the host's orders. The orders themselves lie in pinned host memory, and a read of them
 * crosses the bus. When many threads read them, the reads queue up, and every one of these threads is late to see its
 * own word. So one thread of a kernel reads them at a time: the watch.
 *
 * The watch belongs to no fixed thread, since that thread might leave while others wait. A thread that finds the last
 * reading older than GPU_WATCH_NS takes the watch by a compare-and-swap on its time, reads, and publishes the copy.
 *
 * Words in gpu_state: `watch_ns`, `moved_ns`, `orders` and `seen_ns` are written by the thread that has the watch and
 * read by all that wait. `orders` only grows, so two threads that watch at the same moment may both publish. `seen_ns`
 * is stored last (release) and read first (acquire): it says how old the copy is. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_CORE_WATCH_H
#define EXPAR_EXEC_CUDA_KERNELS_CORE_WATCH_H

#include "exec/cuda/kernels/core/args.h"
#include "link/device/ptx.h"

/* Polls between two looks at the clock and the copy of the orders. */
#define GPU_POLLS 256
/* The orders are read this often while a kernel waits. */
#define GPU_WATCH_NS 20000u
/* An older copy says nothing: the kernel has just begun to wait, and another thread is reading. */
#define GPU_FRESH_NS 1000000

/* Only the first wait that is given up is reported. No thread leaves before the report is complete: what a leaving
   thread then tells the host must not overtake the report. */
GPU_FUNC void give_up(const gpu_place *place, int32_t wait, int32_t peer, uint64_t seen, uint64_t expected,
                      uint32_t was_abort)
{
    if (atomicCAS(&place->state->failed, GPU_SOUND, GPU_FAILING) != GPU_SOUND) return;
    gpu_report *report = place->report;
    report->wait = wait;
    report->peer = peer;
    report->was_abort = was_abort;
    report->seen = seen;
    report->expected = expected;
    report->failed_after = place->before;
    store_release_32(&report->failed, 1);
    fence_system();
    atomicExch(&place->state->failed, GPU_FAILED);
}

/* If true, it acts as an acquire. The report then precedes all that this thread, or one that it meets at a barrier,
   tells the host. */
GPU_FUNC bool has_failed(const gpu_place *place)
{
    if (load_relaxed(&place->state->failed) != GPU_FAILED) return false;
    fence_gpu();
    return true;
}

/* ---- the watch --------------------------------------------------------------------------------------------------- */

/* By a new pulse the host says which ranks it has found lost since the last one (gpu_loss.asked). Only kernels of
   buffers with masks ask. */
#if defined(LL_MASKS) && LL_MASKS
GPU_FUNC void watch_losses(const gpu_place *place)
{
    for (int32_t r = 0; r < place->ranks; r++)
        atomicMax((unsigned long long *)&place->lost[r], (unsigned long long)load_relaxed_64(&place->losses[r].asked));
    fence_gpu();
}
#else
GPU_FUNC void watch_losses(const gpu_place *place)
{
}
#endif

/* The thread that has the watch reads the host's orders. After a time without waits the pulse counts as moved, since no
   thread looked whether it did. */
GPU_FUNC void watch_orders(const gpu_place *place, uint64_t now)
{
    gpu_state *state = place->state;
    const uint64_t orders = load_acquire(&place->report->orders), before = load_relaxed_64(&state->orders);
    if (orders != before) watch_losses(place);
    if (orders != before || now - load_relaxed_64(&state->seen_ns) > GPU_FRESH_NS)
        store_relaxed_64(&state->moved_ns, now);
    atomicMax((unsigned long long *)&state->orders, (unsigned long long)orders);
    store_release(&state->seen_ns, now);
}

/* Takes the watch when nobody has read the orders for GPU_WATCH_NS. */
GPU_FUNC void watch_take(const gpu_place *place, uint64_t now)
{
    unsigned long long *time = (unsigned long long *)&place->state->watch_ns;
    const uint64_t last = load_relaxed_64(&place->state->watch_ns);
    if (now - last < GPU_WATCH_NS) return;
    if (atomicCAS(time, (unsigned long long)last, (unsigned long long)now) == last) watch_orders(place, now);
}

/* Tells the host which rank this kernel awaits: once for each peer, pulse and call, whatever the number of waiting
   threads. `noted` is a copy in device memory of what was told. */
GPU_FUNC void watch_note(const gpu_place *place, int32_t peer, uint64_t word)
{
    const uint64_t told = load_relaxed_64(&place->noted[peer]);
    if (gpu_await_is_same(told, word)) return;
    if (atomicCAS((unsigned long long *)&place->noted[peer], (unsigned long long)told, (unsigned long long)word) ==
        told)
        store_relaxed_64(&place->awaits[peer], word);
}

/* ---- waits ------------------------------------------------------------------------------------------------------- */

/* A wait in progress. Its words are short, because they stay in registers while threads wait. */
typedef struct gpu_waiting {
    uint32_t pulse; /* one more than the host's pulse at the last look; 0: not looked yet */
    uint32_t polls;
} gpu_waiting;

/* Looks at the clock and at the copy of the host's orders. False: give up, since another thread has given up, the host
   asks for it, or the host itself has stopped. How late a peer may be is the host's decision (guard.c): it is told of
   each wait that lasts from one pulse to another. */
GPU_FUNC bool look_at_orders(const gpu_place *place, gpu_waiting *p, int32_t wait, int32_t peer, uint64_t seen,
                             uint64_t expected)
{
    if (has_failed(place)) return false;
    const uint64_t now = clock_now();
    watch_take(place, now);
    const uint64_t seen_ns = load_acquire(&place->state->seen_ns), orders = load_relaxed_64(&place->state->orders);
    if ((int64_t)(now - seen_ns) > GPU_FRESH_NS) return true;
    const uint32_t pulse = (uint32_t)(orders / GPU_BEAT) + 1;
    const bool orphaned = (int64_t)(now - load_relaxed_64(&place->state->moved_ns)) >= (int64_t)place->orphan_ns;
    if (!(orders & GPU_ABORT) && !orphaned) {
        if (p->pulse && pulse != p->pulse)
            watch_note(place, peer, gpu_await_word(orders, wait, (uint32_t)(expected >> 32)));
        p->pulse = pulse;
        return true;
    }
    give_up(place, wait, peer, seen, expected, orders & GPU_ABORT);
    return !has_failed(place);
}

#ifdef GPU_LOOK_ASIDE
/* The same look, out of line. Registers are short there: the pulse is passed and returned by value, and wait and peer
   share a word. The low 32 bits of expected low-latency words are 0 and are not passed. GPU_GIVES_UP is no pulse. */
#define GPU_GIVES_UP 0xffffffffu
GPU_ASIDE uint32_t look_aside(const gpu_place *place, uint32_t pulse, uint32_t wait_of_peer, uint64_t seen,
                              uint32_t stamp)
{
    gpu_waiting p = {pulse, 0};
    const bool goes_on = look_at_orders(place, &p, (int32_t)(wait_of_peer & 0xff), (int32_t)(wait_of_peer >> 8), seen,
                                        (uint64_t)stamp << 32);
    return goes_on ? p.pulse : GPU_GIVES_UP;
}
#endif

/* False: give up. */
GPU_FUNC bool may_wait(const gpu_place *place, gpu_waiting *p, int32_t wait, int32_t peer, uint64_t seen,
                       uint64_t expected)
{
    if (++p->polls % GPU_POLLS) return true;
#ifdef GPU_LOOK_ASIDE
    p->pulse = look_aside(place, p->pulse, (uint32_t)peer << 8 | (uint32_t)wait, seen, (uint32_t)(expected >> 32));
    return p->pulse != GPU_GIVES_UP;
#else
    return look_at_orders(place, p, wait, peer, seen, expected);
#endif
}

/* Waits until the flag of a record is that of this call. */
GPU_FUNC bool await_flag(const gpu_place *place, const uint64_t *flag, uint32_t epoch, int32_t wait, int32_t peer)
{
    uint64_t expected = ep_word(epoch, 1);
    gpu_waiting p = {0, 0};
    for (;;) {
        uint64_t seen = load_acquire(flag);
        if (seen == expected) return true;
        if (!may_wait(place, &p, wait, peer, seen, expected)) return false;
    }
}

#endif

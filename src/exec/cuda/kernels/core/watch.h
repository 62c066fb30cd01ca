/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting in kernels, and the watch over waits.
 *
 * A thread that waits polls its own word. Every GPU_POLLS polls it also reads device memory: has another thread given
 * up a wait, and what does the copy of the host's orders say? The orders are one word in pinned host memory: the abort
 * bit and the pulse, a number that the host's guard raises regularly (gpu_report.orders). A read of it crosses the bus.
 * If many threads read it, their reads queue up, and each of these threads sees its own word late. So only one thread
 * of a kernel reads it at a time. That thread has the watch.
 *
 * No fixed thread has the watch, because a thread may leave while others wait. A thread that finds the last reading
 * older than GPU_WATCH_NS takes the watch: it sets the time of that reading by a compare-and-swap. Then it reads the
 * orders and publishes the copy.
 *
 * Words in gpu_state: the thread that has the watch writes `watch_ns`, `moved_ns`, `orders` and `seen_ns`, and all
 * waiting threads read them. `orders` only grows, so two threads that have the watch at the same moment may both
 * publish. `seen_ns` is the time at which the copy was read. It is stored last (release) and read first (acquire). */
#ifndef EXPAR_EXEC_CUDA_KERNELS_CORE_WATCH_H
#define EXPAR_EXEC_CUDA_KERNELS_CORE_WATCH_H

#include "exec/cuda/kernels/core/args.h"
#include "link/device/ptx.h"

/* Polls between two looks at the clock and the copy of the orders. Kernels whose polls cross the bus make fewer. */
#ifndef GPU_POLLS
#define GPU_POLLS 256
#endif
/* The orders are read this often while a kernel waits. */
#define GPU_WATCH_NS 20000u
/* A waiting thread ignores an older copy: the kernel has just begun to wait, and another thread is reading the
   orders. */
#define GPU_FRESH_NS 1000000

/* Reports a wait that was given up, to the host; only the first one is reported. Threads leave only after the report is
   complete (GPU_FAILED), so that nothing they tell the host arrives before it. */
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

/* Returns whether a wait was given up. If it returns true, it acts as an acquire: whatever this thread tells the host
   from then on arrives after the report. This also holds for threads that it then meets at a barrier. */
GPU_FUNC bool has_failed(const gpu_place *place)
{
    if (load_relaxed(&place->state->failed) != GPU_FAILED) return false;
    fence_gpu();
    return true;
}

/* ---- the watch --------------------------------------------------------------------------------------------------- */

/* Copies to `lost` which waits shall end because their rank was lost (gpu_loss.asked). The host raises the pulse after
   it has changed these words. Only kernels of buffers with masks read them. */
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

/* Reads the host's orders; the thread that has the watch calls it. moved_ns is the time at which the pulse last
   changed. If no thread has read the orders for GPU_FRESH_NS, the change may have been missed, and moved_ns becomes the
   present time. */
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

/* Tells the host which rank this kernel awaits, in awaits[peer]. It does so once for each peer, pulse and call, however
   many threads wait. noted[peer] is a copy in device memory of the word that was last written there. */
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

/* Looks at the clock and at the copy of the host's orders. Returns false if the wait must be given up. That is so if
   another thread has given up, or the host has set the abort bit. It is also so if the pulse has not moved for
   orphan_ns: then the host has stopped. The host alone decides how late a peer may be (guard.c). For that purpose this
   function reports each wait that lasts from one pulse to another. */
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
/* look_at_orders as a function that is not inlined. Few registers are left for its arguments: the pulse is passed and
   returned by value, and wait and peer share a word. Expected words of low-latency mode have 0 in the low 32 bits, so
   only the high bits are passed. GPU_GIVES_UP is never a pulse. */
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

/* Call this after each poll that has not found the awaited value. Returns false if the wait must be given up. */
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

/* Waits until the flag of a record has this call's epoch. Returns false if the wait was given up. */
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

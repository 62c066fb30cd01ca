/* SPDX-License-Identifier: Apache-2.0 */
/* ll_await_signals: waits until a GEMM on this GPU has written the rows of a combine (proto/signals.h).
 *
 *   grid   one block of LL_GPU_SIGNAL_THREADS, so that the GEMM keeps the other SMs; it comes before the combine's
 *          kernel on the stream
 *   waits  each thread polls some of the words. They end with the time-out, or when the buffer's waits end
 *   bytes  the words, again and again */
#include "exec/cuda/kernels/core/watch.h"
#include "exec/cuda/kernels/low_latency/ll_args.h"

/* Returns false if the wait was given up. */
GPU_FUNC bool ll_await_signal(const ll_signals_args *a, int32_t expert, int32_t word, uint64_t end_ns)
{
    const uint32_t *address = a->signals.words + (int64_t)expert * a->signals.blocks + word;
    for (;;) {
        for (int32_t polls = 0; polls < GPU_POLLS; polls++) {
            if (load_relaxed(address) != a->signals.value) continue;
            fence_system();
            return true;
        }
        /* No rank is to blame, so the guard is not told of this wait: `now` is always new. */
        gpu_waiting now = {0, 0};
        const uint64_t seen = load_relaxed(address);
        if (!look_at_orders(&a->place, &now, GPU_WAIT_SIGNAL, a->place.rank, seen, a->signals.value)) return false;
        if ((int64_t)(clock_now() - end_ns) < 0) continue;
        give_up(&a->place, GPU_WAIT_SIGNAL, expert, (uint64_t)word << 32 | seen, a->signals.value, GPU_LATE_SIGNAL);
        return false;
    }
}

GPU_KERNEL(LL_GPU_SIGNAL_THREADS) ll_await_signals(GPU_ARGS ll_signals_args a)
{
    const uint64_t end_ns = clock_now() + (uint64_t)a.signals.timeout_ns;
    const int32_t all = a.signals.experts * a.signals.blocks;
    for (int32_t i = threadIdx.x; i < all; i += blockDim.x) {
        const int32_t expert = i / a.signals.blocks, word = i - expert * a.signals.blocks;
        if (word >= ll_signals_due(&a.signals, expert)) continue;
        if (!ll_await_signal(&a, expert, word, end_ns)) return;
    }
}

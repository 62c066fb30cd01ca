/* SPDX-License-Identifier: Apache-2.0 */
/* The gate before a measured iteration. One warp on each rank's stream waits until the hosts of all ranks have come to
 * this turn, and a little longer. So the work that they are about to enqueue after the gate is there when it opens.
 * Then all streams start at the same moment, as far as a word travels from pinned host memory to the GPUs (a
 * microsecond).
 *
 * Waits: lane l waits for the hosts of ranks l, l + 32, …; with a deadline. Registers: under 32; nothing shared. */
#include "bench/gpu/kernels/forms.h"
#include "exec/cuda/kernels/core/tools.h"

GPU_FUNC bool await_turn(const gate_call *g, int32_t rank)
{
    uint64_t start = clock_now();
    while (load_acquire(g->turns + rank) < g->turn)
        if (clock_now() - start > g->timeout_ns) return false;
    return true;
}

GPU_KERNEL(32) bench_gate(GPU_ARGS gate_call g)
{
    bool come = true;
    for (int32_t rank = threadIdx.x; rank < g.ranks; rank += 32)
        come &= await_turn(&g, rank);
    if (!__all_sync(GPU_ALL, come)) {
        if (threadIdx.x == 0) *g.expired = 1;
        return;
    }
    uint64_t start = clock_now();
    while (clock_now() - start < g.delay_ns)
        ;
}

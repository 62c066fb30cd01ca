/* SPDX-License-Identifier: Apache-2.0 */
/* A kernel that runs, and reads memory only once the host says so: a consumer of rows that takes as long as a test
 * likes.
 *
 * Grid: one warp, whose lanes all wait for the flag, with a deadline, and then copy 4 bytes each. No shared memory. */
#include "exec/cuda/kernels/core/tools.h"
#include "tests/cuda/kernels/late_copy.h"

GPU_KERNEL(32) late_copy(GPU_ARGS late_copy_call c)
{
    const uint64_t start = clock_now();
    while (load_acquire(c.flag) == 0)
        if (clock_now() - start > c.timeout_ns) return;
    for (int64_t i = threadIdx.x; i < c.words; i += 32)
        c.target[i] = c.source[i];
}

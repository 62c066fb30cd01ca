/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of expar/device.h on a GPU: one block on each rank (handles_bodies.h). With EXPAR_DELAYS threads are late at
 * random at each ordered access. */
#include "link/device/ptx.h"
#define EXPAR_DEVICE_DELAY() hold_back()
#include "tests/cuda/kernels/handles_bodies.h"

GPU_KERNEL(HANDLES_THREADS) handles_run(GPU_ARGS handles_launch a)
{
    body_run(&a.handle, &a.call);
}

/* All blocks of the grid wait for each other, so they must run at the same time. */
GPU_KERNEL(HANDLES_THREADS) handles_grid(GPU_ARGS handles_launch a)
{
    const expar_device_handle *h = &a.handle;
    if (threadIdx.x == 0) expar_kernel_atomic_inc_u64(h, a.call.words, expar_kernel_my_pe(h));
    const int status = expar_kernel_wait_until_u64_block(h, a.call.words, EXPAR_CMP_GE, gridDim.x, 0);
    if (blockIdx.x == 0) a.call.status[threadIdx.x] = status;
}

/* All blocks count themselves, and stay until the host sets the next word. */
GPU_KERNEL(HANDLES_THREADS) handles_hold(GPU_ARGS handles_launch a)
{
    const expar_device_handle *h = &a.handle;
    if (threadIdx.x == 0) expar_kernel_atomic_inc_u64(h, a.call.words, expar_kernel_my_pe(h));
    const int status = expar_kernel_wait_until_u64_block(h, a.call.words + 1, EXPAR_CMP_NE, 0, 0);
    if (blockIdx.x == 0) a.call.status[threadIdx.x] = status;
}

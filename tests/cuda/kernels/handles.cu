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

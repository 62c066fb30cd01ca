/* SPDX-License-Identifier: Apache-2.0 */
/* In the place of the kernels' own file of this name: bulk copies of the simulated GPU (tests/cuda/simt/simt.h).
 * Fetched data comes at once, but counts at the barrier alone. Data goes out of a stage when its lane waits for that: a
 * lane that loads into the stage without, or ends without, loses rows. All threads of a block take turns in one thread
 * of the host, so that nothing here is atomic. */
#ifndef EXPAR_LINK_DEVICE_BULK_H
#define EXPAR_LINK_DEVICE_BULK_H

#include "link/device/ptx.h"

#include <stdlib.h>

#define GPU_HAS_BULK

/* As link/device/bulk.h has it. */
typedef struct bulk_stage {
    uint32_t data, barrier;
    int32_t bytes;
    uint32_t phase;
} bulk_stage;

/* ---- addresses in shared memory ---------------------------------------------------------------------------------- */

#define __cvta_generic_to_shared(pointer) ((size_t)((const uint8_t *)(pointer) - (const uint8_t *)simt_shared()))
#define __cvta_shared_to_generic(address) ((void *)((uint8_t *)simt_shared() + (address)))

/* ---- barriers ---------------------------------------------------------------------------------------------------- */

/* Where the kernel has 8 bytes for one. */
typedef struct simt_copies {
    int32_t due; /* bytes that were told of and have not come */
    uint16_t arrived, phase;
} simt_copies;
static_assert(sizeof(simt_copies) == 8, "a barrier has so many bytes");

GPU_FUNC simt_copies *simt_copies_at(uint32_t barrier)
{
    return (simt_copies *)__cvta_shared_to_generic(barrier);
}
GPU_FUNC void simt_copies_turn(simt_copies *copies)
{
    if (copies->due || !copies->arrived) return;
    copies->arrived = 0;
    copies->phase ^= 1;
}

GPU_FUNC void bulk_fence(void)
{
}
GPU_FUNC void bulk_barrier_open(uint32_t barrier)
{
    memset(simt_copies_at(barrier), 0, sizeof(simt_copies));
}
GPU_FUNC void bulk_expect(uint32_t barrier, uint32_t bytes)
{
    simt_copies_at(barrier)->due += (int32_t)bytes;
}
/* Bulk copies are of whole units of 16 bytes. */
GPU_FUNC void simt_copy(void *to, const void *from, uint32_t bytes)
{
    if (((uintptr_t)to | (uintptr_t)from | bytes) % 16) abort();
    memcpy(to, from, bytes);
}
GPU_FUNC void bulk_fetch(uint32_t to, uint32_t barrier, const uint8_t *from, uint32_t bytes)
{
    simt_copy(__cvta_shared_to_generic(to), from, bytes);
    simt_copies_at(barrier)->due -= (int32_t)bytes;
    simt_copies_turn(simt_copies_at(barrier));
}
GPU_FUNC void bulk_arrive(uint32_t barrier)
{
    simt_copies_at(barrier)->arrived = 1;
    simt_copies_turn(simt_copies_at(barrier));
}
GPU_FUNC void bulk_wait(uint32_t barrier, uint32_t parity)
{
    while (simt_copies_at(barrier)->phase == parity)
        simt_poll();
}

/* ---- stages ------------------------------------------------------------------------------------------------------ */

GPU_FUNC void bulk_wait_read(void)
{
    simt_parcel *parcel = simt_parcel_here();
    if (parcel->bytes) simt_copy(parcel->to, parcel->from, parcel->bytes);
    simt_stored_bytes += parcel->bytes;
    parcel->bytes = 0;
}

GPU_FUNC void bulk_stage_open(bulk_stage *stage, uint8_t *stages, int32_t warp, int32_t warps, int32_t bytes)
{
    const uint32_t base = (uint32_t)__cvta_generic_to_shared(stages);
    stage->data = base + (uint32_t)(warp * bytes);
    stage->barrier = base + (uint32_t)(warps * bytes + warp * 8);
    stage->bytes = bytes;
    stage->phase = 0;
    simt_parcel_here()->bytes = 0;
    if (bytes && threadIdx.x % 32 == 0) bulk_barrier_open(stage->barrier);
    __syncwarp();
}
GPU_FUNC void bulk_load(bulk_stage *stage, const uint8_t *from, uint32_t bytes)
{
    if (threadIdx.x % 32 == 0) {
        bulk_expect(stage->barrier, bytes);
        bulk_arrive(stage->barrier);
        bulk_fetch(stage->data, stage->barrier, from, bytes);
    }
    bulk_wait(stage->barrier, stage->phase);
    stage->phase ^= 1;
}
GPU_FUNC void bulk_store(const bulk_stage *stage, uint8_t *to, uint32_t bytes)
{
    simt_parcel *parcel = simt_parcel_here();
    if (parcel->bytes) abort();
    *parcel = (simt_parcel){to, (const uint8_t *)__cvta_shared_to_generic(stage->data), bytes};
}
GPU_FUNC void bulk_commit(void)
{
}
GPU_FUNC void bulk_stage_close(const bulk_stage *stage)
{
    if (stage->bytes) bulk_wait_read();
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Bulk copies (sm_90): the copy engine of an SM moves a row between global and shared memory while its warps do other
 * work. A barrier beside the data in shared memory says when the copy is complete. On older GPUs stages have no bytes,
 * and rows go by loads and stores.
 *
 * The engine's accesses and ordinary ones belong to different proxies, in the terms of PTX. fence.proxy.async is needed
 * at three places:
 * - before copies that read what other threads have stored in this call, after the barrier or acquire that shows it;
 * - before copies use a new barrier;
 * - after the last copies of a warp.
 * Ordinary accesses after a completed copy need no fence, because the completion is one. */
#ifndef EXPAR_LINK_DEVICE_BULK_H
#define EXPAR_LINK_DEVICE_BULK_H

#include "link/device/ptx.h"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define GPU_HAS_BULK
#endif

/* Memory that a warp's copies pass through, one at a time. */
typedef struct bulk_stage {
    uint32_t data, barrier; /* addresses in shared memory */
    int32_t bytes;          /* 0: none */
    uint32_t phase;         /* parity of the barrier's next phase */
} bulk_stage;

#ifdef GPU_HAS_BULK

GPU_FUNC void bulk_fence(void)
{
    asm volatile("fence.proxy.async;" ::: "memory");
}

/* ---- barriers: addresses in shared memory ------------------------------------------------------------------------ */

/* One lane calls this before the others use the barrier. */
GPU_FUNC void bulk_barrier_open(uint32_t barrier)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
    bulk_fence();
}

/* One lane announces the bytes, as often as it likes. Then any lane fetches them, and at last the first lane
   arrives. */
GPU_FUNC void bulk_expect(uint32_t barrier, uint32_t bytes)
{
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
GPU_FUNC void bulk_fetch(uint32_t to, uint32_t barrier, const uint8_t *from, uint32_t bytes)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}
GPU_FUNC void bulk_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* Waits until the phase of this parity is over: the announced bytes are there. */
GPU_FUNC void bulk_wait(uint32_t barrier, uint32_t parity)
{
    asm volatile("{\n\t.reg .pred done;\n"
                 "again:\n\t"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
                 "@!done bra again;\n\t}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* ---- stages ------------------------------------------------------------------------------------------------------ */

/* All threads of a block call this. The barriers lie after the stages of all warps. */
GPU_FUNC void bulk_stage_open(bulk_stage *stage, uint8_t *stages, int32_t warp, int32_t warps, int32_t bytes)
{
    uint32_t base = (uint32_t)__cvta_generic_to_shared(stages);
    stage->data = base + (uint32_t)(warp * bytes);
    stage->barrier = base + (uint32_t)(warps * bytes + warp * 8);
    stage->bytes = bytes;
    stage->phase = 0;
    if (bytes && threadIdx.x % 32 == 0) bulk_barrier_open(stage->barrier);
    __syncwarp();
}

/* Waits until this lane's copies out of shared memory have read it. */
GPU_FUNC void bulk_wait_read(void)
{
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

/* Copies from global memory to the stage: one lane starts it, all lanes wait. bytes: a multiple of 16. */
GPU_FUNC void bulk_load(bulk_stage *stage, const uint8_t *from, uint32_t bytes)
{
    if (threadIdx.x % 32 == 0) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(stage->barrier), "r"(bytes)
                     : "memory");
        bulk_fetch(stage->data, stage->barrier, from, bytes);
    }
    bulk_wait(stage->barrier, stage->phase);
    stage->phase ^= 1;
}

/* Copies from the stage to global memory; the calling lane starts it. */
GPU_FUNC void bulk_store(const bulk_stage *stage, uint8_t *to, uint32_t bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(stage->data), "r"(bytes)
                 : "memory");
}

GPU_FUNC void bulk_commit(void)
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Waits until all copies of this lane are written; later releases of this thread cover them. */
GPU_FUNC void bulk_stage_close(const bulk_stage *stage)
{
    if (!stage->bytes) return;
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    bulk_fence();
}

#else

GPU_FUNC void bulk_stage_open(bulk_stage *stage, uint8_t *stages, int32_t warp, int32_t warps, int32_t bytes)
{
    (void)stages, (void)warp, (void)warps, (void)bytes;
    stage->bytes = 0;
}
GPU_FUNC void bulk_stage_close(const bulk_stage *stage)
{
    (void)stage;
}

#endif

#endif

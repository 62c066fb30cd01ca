/* SPDX-License-Identifier: Apache-2.0 */
/* The copy roofline: the rows of a list and their places, with no flags and nobody waiting. A warp a row, by bulk
 * copies through the warp's stage of shared memory where the GPU has them, else by 16-byte loads and stores.
 *
 * bench_copy_push: each row is read once and written to all its places, as a dispatch must.
 * bench_copy_pull: each row's places are read and one of them is written to the row, as a combine must; no sums.
 *
 * With stamps each warp stores the clock three times: at its start, when its last row is written (by bulk copies; else
 * stored), and at its end. Nothing is opened, as no place has to be asked for. */
#include "bench/gpu/kernels/forms.h"
#include "exec/cuda/kernels/core/tools.h"

GPU_FUNC void stamp_end(const copy_list *a)
{
    stamp_warp(a->stamps, GPU_SENT);
    stamp_warp(a->stamps, GPU_ENDED);
}

#ifdef GPU_HAS_BULK
/* The row that the warp takes after the current one, told to lane 0 alone; as a dispatch deals out tokens. */
GPU_FUNC int64_t deal_row(const copy_list *a, int64_t all)
{
    if (all >= a->rows) return a->rows;
    return threadIdx.x % 32 ? 0 : all + (uint32_t)(atomicAdd(a->dealt, 1u) - a->before);
}

GPU_KERNEL(1024) bench_copy_push(GPU_ARGS copy_list a)
{
    GPU_LAUNCH_SHARED(uint8_t, shared);
    int32_t warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = threadIdx.x % 32;
    bulk_stage stage;
    stamp_warp(a.stamps, GPU_STARTED);
    bulk_stage_open(&stage, shared, warp, warps, a.stage_bytes);
    const int64_t all = (int64_t)warps * gridDim.x;
    for (int64_t r = (int64_t)warp * gridDim.x + blockIdx.x, next; r < a.rows; r = __shfl_sync(GPU_ALL, next, 0)) {
        next = deal_row(&a, all);
        uint8_t *place = lane < a.most ? a.places[r * a.most + lane] : NULL;
        bulk_wait_read();
        __syncwarp();
        bulk_load(&stage, a.own + r * a.row_bytes, (uint32_t)a.row_bytes);
        if (place) bulk_store(&stage, place, (uint32_t)a.row_bytes);
        bulk_commit();
    }
    bulk_stage_close(&stage);
    stamp_end(&a);
}

GPU_KERNEL(1024) bench_copy_pull(GPU_ARGS copy_list a)
{
    GPU_LAUNCH_SHARED(uint8_t, shared);
    int32_t warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = threadIdx.x % 32;
    bulk_stage stage;
    stamp_warp(a.stamps, GPU_STARTED);
    bulk_stage_open(&stage, shared, warp, warps, a.stage_bytes);
    const int64_t all = (int64_t)warps * gridDim.x;
    for (int64_t r = (int64_t)warp * gridDim.x + blockIdx.x, next; r < a.rows; r = __shfl_sync(GPU_ALL, next, 0)) {
        next = deal_row(&a, all);
        uint8_t *const *places = a.places + r * a.most;
        bulk_wait_read();
        for (int32_t i = 0; i < a.most && places[i]; i++) {
            /* No lane may lag by a phase, where it would wait for one that has come and gone. */
            __syncwarp();
            bulk_load(&stage, places[i], (uint32_t)a.row_bytes);
        }
        if (lane == 0 && places[0]) bulk_store(&stage, a.own + r * a.row_bytes, (uint32_t)a.row_bytes);
        bulk_commit();
    }
    bulk_stage_close(&stage);
    stamp_end(&a);
}
#else
GPU_KERNEL(1024) bench_copy_push(GPU_ARGS copy_list a)
{
    int32_t warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = threadIdx.x % 32;
    stamp_warp(a.stamps, GPU_STARTED);
    for (int64_t r = (int64_t)warp * gridDim.x + blockIdx.x; r < a.rows; r += (int64_t)warps * gridDim.x)
        for (int32_t v = lane; v < a.row_bytes / 16; v += 32) {
            uint4 part = load_row((const uint4 *)(a.own + r * a.row_bytes) + v);
            for (int32_t i = 0; i < a.most && a.places[r * a.most + i]; i++)
                store_row((uint4 *)a.places[r * a.most + i] + v, part);
        }
    stamp_end(&a);
}

GPU_KERNEL(1024) bench_copy_pull(GPU_ARGS copy_list a)
{
    int32_t warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = threadIdx.x % 32;
    stamp_warp(a.stamps, GPU_STARTED);
    for (int64_t r = (int64_t)warp * gridDim.x + blockIdx.x; r < a.rows; r += (int64_t)warps * gridDim.x) {
        uint8_t *const *places = a.places + r * a.most;
        for (int32_t v = lane; places[0] && v < a.row_bytes / 16; v += 32) {
            uint4 part = make_uint4(0, 0, 0, 0);
            for (int32_t i = 0; i < a.most && places[i]; i++)
                part = load_row((const uint4 *)places[i] + v);
            store_row((uint4 *)(a.own + r * a.row_bytes) + v, part);
        }
    }
    stamp_end(&a);
}
#endif

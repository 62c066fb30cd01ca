/* SPDX-License-Identifier: Apache-2.0 */
/* The coding of BF16 rows as FP8, e4m3 with a scale for each 128 elements, as a caller of normal mode does it before a
 * dispatch. The codes are those of the library's formats.
 *
 * Grid: any. A warp takes a group of 128 elements, and a lane four of them: it reads 8 bytes and writes 4. A reduction
 * of the warp finds the largest magnitude. Nobody waits; nothing is shared. */
#include "bench/gpu/kernels/forms.h"
#include "exec/cuda/kernels/core/tools.h"
#include "proto/codec/codec.h"

GPU_KERNEL(256) bench_encode(GPU_ARGS encode_call a)
{
    const int64_t lane = threadIdx.x % 32, warps = (int64_t)gridDim.x * (blockDim.x / 32);
    for (int64_t g = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; g < a.groups; g += warps) {
        const int64_t first = g * ENCODE_GROUP + 4 * lane;
        const uint32_t amax = __reduce_max_sync(GPU_ALL, codec_amax(CODEC_BF16, a.x, first, first + 4));
        const codec_scaling scaling = codec_scaling_of(CODEC_FP8, amax);
        const uint32_t low = codec_quantise_pair(CODEC_FP8, codec_load(CODEC_BF16, a.x, first),
                                                 codec_load(CODEC_BF16, a.x, first + 1), scaling.factor);
        const uint32_t high = codec_quantise_pair(CODEC_FP8, codec_load(CODEC_BF16, a.x, first + 2),
                                                  codec_load(CODEC_BF16, a.x, first + 3), scaling.factor);
        ((uint32_t *)a.payload)[first / 4] = (low & 0xffffu) | high << 16;
        if (lane == 0) a.scales[g] = scaling.scale;
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The caller's coding of rows as FP8, by a kernel of the benchmark's own. */
#include "bench/gpu/gpu.h"
#include "bench/gpu/kernels/forms.h"
#include "tool_kernels.h"

/* Warps of a block, and blocks for each SM. The rows are read and written once, so more gain nothing. */
#define ENCODE_WARPS  8
#define BLOCKS_PER_SM 4

expar_status gpu_encode_load(struct gpu_rank *rank)
{
    expar_status status = tool_kernel_load(rank->device, "bench/gpu/kernels/encode.cu", &rank->encode_program);
    if (status == EXPAR_OK) status = cuda_program_kernel(rank->encode_program, "bench_encode", 0, &rank->encode);
    return status;
}

bool gpu_encode(const struct bench_world *world, const struct bench_coding *coding)
{
    const struct gpu_rank *rank = world->gpu;
    encode_call call = {.x = coding->x,
                        .payload = coding->payload,
                        .scales = coding->scales,
                        .groups = coding->rows * coding->hidden / ENCODE_GROUP};
    const int64_t most = (int64_t)rank->device->num_sms * BLOCKS_PER_SM;
    const int64_t needed = (call.groups + ENCODE_WARPS - 1) / ENCODE_WARPS;
    if (call.groups == 0) return true;
    void *parameters[] = {&call};
    const cuda_launch launch = {.function = rank->encode,
                                .stream = rank->stream,
                                .blocks = (uint32_t)(needed < most ? needed : most),
                                .threads = ENCODE_WARPS * 32};
    return bench_good(world, cuda_launch_kernel(&launch, parameters));
}

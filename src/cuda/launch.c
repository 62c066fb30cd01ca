/* SPDX-License-Identifier: Apache-2.0 */
/* Launching a kernel, with the attribute that this library uses. */
#include "cuda/cuda.h"

expar_status cuda_launch_kernel(const cuda_launch *launch, void **parameters)
{
    cu_launch_attribute together = {.id = CU_LAUNCH_COOPERATIVE, .value.cooperative = 1};
    cu_launch_config config = {.grid_x = launch->blocks,
                               .grid_y = 1,
                               .grid_z = 1,
                               .block_x = launch->threads,
                               .block_y = 1,
                               .block_z = 1,
                               .shared_bytes = launch->shared_bytes,
                               .stream = launch->stream,
                               .attributes = &together,
                               .num_attributes = launch->cooperative ? 1 : 0};
    return CUDA_CALL(LaunchKernelEx, &config, launch->function, parameters, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Programs of kernels, and their launches.
 *
 * The driver loads no module while kernels of its context run. Such a kernel of another rank of this process may wait
 * for the rank that loads. So ranks of one process that share a GPU load, in advance, kernels that take any shape. */
#include "exec/cuda/core/gpu.h"

/* Tests set it before any buffer is made. */
static uint32_t delays;

void gpu_programs_delay(uint32_t seed)
{
    delays = seed;
}

/* With delays one compilation serves all shapes, since tests use many. */
expar_status gpu_program_load(const gpu_core *self, const char *source, const cuda_macro *macros, size_t num_macros,
                              cuda_program **out)
{
    const cuda_macro seed = {"EXPAR_DELAYS", delays};
    if (delays) return cuda_program_load(self->device, source, &seed, 1, out);
    return cuda_program_load(self->device, source, macros, self->shares_gpu ? 0 : num_macros, out);
}

expar_status gpu_launch(gpu_core *self, const exec_call *call, cu_function function, uint32_t blocks, uint32_t threads,
                        uint32_t shared_bytes, void *arguments)
{
    const cuda_launch launch = {.function = function,
                                .stream = call->stream,
                                .blocks = blocks,
                                .threads = threads,
                                .shared_bytes = shared_bytes};
    void *parameters[] = {arguments};
    expar_status status = gpu_enter(self, call);
    if (status != EXPAR_OK) return status;
    gpu_order_settle(self, call);
    status = cuda_launch_kernel(&launch, parameters);
    gpu_leave(call);
    return status;
}

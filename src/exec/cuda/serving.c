/* SPDX-License-Identifier: Apache-2.0 */
/* In which order a buffer's kernels serve the ranks (exec/serving.h): as the environment says, or a benchmark. */
#include "exec/cuda/gpu.h"

expar_status gpu_serving_open(gpu_executor *self)
{
    const char *text = env_string("EXPAR_CUDA_SERVING");
    if (!text || exec_serving_read(text, &self->serving)) return EXPAR_OK;
    return error_set(EXPAR_ERR_ARGUMENT, "EXPAR_CUDA_SERVING=%s: expected " EXEC_SERVINGS, text);
}

void gpu_serve(executor *base, const ep_serving *serving)
{
    gpu_of(base)->serving = *serving;
}

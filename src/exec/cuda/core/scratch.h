/* SPDX-License-Identifier: Apache-2.0 */
/* Small memory that one executor after another uses. Freeing memory waits for all kernels of the context. Those of
 * other ranks of this process may wait for a rank that is just leaving, so this memory is kept. It is freed when no
 * executor of this process has any on that GPU. */
#ifndef EXPAR_EXEC_CUDA_CORE_SCRATCH_H
#define EXPAR_EXEC_CUDA_CORE_SCRATCH_H

#include "mem/device.h"

typedef struct gpu_scratch {
    cuda_device *device; /* a reference of its own: the memory goes with the context */
    cu_address memory;
    uint64_t memory_bytes;
    mem_pinned pinned; /* zeroed when taken; `memory` is not */
    bool used;
    struct gpu_scratch *next;
} gpu_scratch;

expar_status gpu_scratch_take(const cuda_device *device, uint64_t memory_bytes, uint64_t pinned_bytes,
                              gpu_scratch **out);
/* Call this when no kernel uses it any more. NULL is allowed. */
void gpu_scratch_give(gpu_scratch *scratch);

#endif

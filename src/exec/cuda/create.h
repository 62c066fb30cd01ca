/* SPDX-License-Identifier: Apache-2.0 */
/* Making the CUDA executor, which puts the steps of a call on the caller's stream as kernels. What it is beside that
 * stands in exec/executor.h; everything else in this folder is private to it. */
#ifndef EXPAR_EXEC_CUDA_CREATE_H
#define EXPAR_EXEC_CUDA_CREATE_H

#include "exec/executor.h"

/* In a device heap of its own, on the GPU of plan->device. create: EXPAR_ERR_UNSUPPORTED, no CUDA, GPUs that do not
   reach each other, more ranks a GPU than it has SMs, or than the process has queues to it. */
extern const executor_kind executor_cuda;

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the CUDA executor, which puts the steps of a call on the caller's stream as kernels. exec/executor.h describes
 * it; everything else in this folder is private to it. */
#ifndef EXPAR_EXEC_CUDA_CREATE_H
#define EXPAR_EXEC_CUDA_CREATE_H

#include "exec/executor.h"

/* The buffer is in a device heap on the GPU of plan->device. create returns EXPAR_ERR_UNSUPPORTED if there is no CUDA,
   or if GPUs do not reach each other. It does so, too, if a GPU has more ranks than SMs, or more than the process has
   queues to it. */
extern const executor_kind executor_cuda;

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the executor of a device. No other file depends on that choice. */
#include "exec/cpu/create.h"
#include "exec/cpu/low_latency/create.h"
#include "exec/cuda/create.h"
#include "exec/cuda/low_latency/create.h"

const executor_kind *executor_kind_of(expar_device_type type)
{
    return type == EXPAR_CPU ? &executor_cpu : type == EXPAR_CUDA ? &executor_cuda : NULL;
}

ll_create_fn ll_create_of(expar_device_type type)
{
    return type == EXPAR_CPU ? ll_executor_cpu_create : type == EXPAR_CUDA ? ll_executor_cuda_create : NULL;
}

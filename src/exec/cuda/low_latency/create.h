/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the CUDA executor of low-latency calls. exec/low_latency.h describes it; everything else in this folder is
 * private to it. */
#ifndef EXPAR_EXEC_CUDA_LOW_LATENCY_CREATE_H
#define EXPAR_EXEC_CUDA_LOW_LATENCY_CREATE_H

#include "exec/low_latency.h"

/* See ll_create_fn. */
expar_status ll_executor_cuda_create(const ll_plan *plan, executor **out);

#endif

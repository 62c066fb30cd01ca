/* SPDX-License-Identifier: Apache-2.0 */
/* tools: what kernels outside of exec may take from here, and nothing else: those of the benchmark (bench/gpu/kernels).
 * Ordered and row-wise loads and stores, the clock and stamps of it (device.h, moments.h), bulk copies through a warp's
 * stage (bulk.h), sums (number.h), so that what is compared with the library's kernels moves and adds bytes as they do,
 * and tells its times as they do. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_CORE_TOOLS_H
#define EXPAR_EXEC_CUDA_KERNELS_CORE_TOOLS_H

#include "exec/cuda/kernels/core/device.h"
#include "exec/cuda/kernels/core/number.h"
#include "link/device/bulk.h"

#endif

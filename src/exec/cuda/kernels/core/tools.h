/* SPDX-License-Identifier: Apache-2.0 */
/* tools: the only header here that kernels outside of exec may include. The benchmark's kernels do (bench/gpu/kernels).
 * It gives them ordered and row-wise loads and stores, the clock and its stamps (device.h, moments.h), bulk copies
 * through a warp's stage (bulk.h), and sums (number.h). So the benchmark's kernels move and add bytes as the library's
 * do, and take their times alike. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_CORE_TOOLS_H
#define EXPAR_EXEC_CUDA_KERNELS_CORE_TOOLS_H

#include "exec/cuda/kernels/core/device.h"
#include "exec/cuda/kernels/core/number.h"
#include "link/device/bulk.h"

#endif

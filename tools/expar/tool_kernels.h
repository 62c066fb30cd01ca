/* SPDX-License-Identifier: Apache-2.0 */
/* tool_kernels: CUDA kernels of the benchmark and the demo, embedded as the library's own are. */
#ifndef EXPAR_TOOL_TOOL_KERNELS_H
#define EXPAR_TOOL_TOOL_KERNELS_H

#include "cuda/cuda.h"

/* Made by cmake/embed_kernels.cmake from the files that tools/expar/CMakeLists.txt lists. */
extern const cuda_source tool_kernels[];
extern const size_t tool_num_kernels;

/* Loads one by its name, "bench/gpu/kernels/gate.cu"; cuda_program_make's errors. */
expar_status tool_kernel_load(const cuda_device *device, const char *name, cuda_program **out);

#endif

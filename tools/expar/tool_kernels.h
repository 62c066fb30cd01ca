/* SPDX-License-Identifier: Apache-2.0 */
/* tool_kernels: CUDA kernels of the benchmark and the demo, embedded as the library's own are. */
#ifndef EXPAR_TOOL_TOOL_KERNELS_H
#define EXPAR_TOOL_TOOL_KERNELS_H

#include "cuda/cuda.h"

/* Made by cmake/embed_kernels.cmake from the files that tools/expar/CMakeLists.txt lists. */
extern const cuda_source tool_kernels[];
extern const size_t tool_num_kernels;

/* Loads a kernel by its name, such as "bench/gpu/kernels/gate.cu". It returns the errors of cuda_program_make. */
expar_status tool_kernel_load(const cuda_device *device, const char *name, cuda_program **out);

#endif

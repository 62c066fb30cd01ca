/* SPDX-License-Identifier: Apache-2.0 */
/* test_sources: CUDA kernels of tests, embedded as the library's own are. */
#ifndef TESTS_CUDA_TEST_SOURCES_H
#define TESTS_CUDA_TEST_SOURCES_H

#include "cuda/cuda.h"

/* Made by cmake/embed_kernels.cmake from tests/cuda/kernels. */
extern const cuda_source test_sources[];
extern const size_t test_num_sources;

#endif

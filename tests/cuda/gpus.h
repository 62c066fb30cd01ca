/* SPDX-License-Identifier: Apache-2.0 */
/* How many GPUs this machine has, for tests that need some. */
#ifndef TESTS_CUDA_GPUS_H
#define TESTS_CUDA_GPUS_H

#include <stdbool.h>
#include <stdint.h>

/* The status of a test's main if the test cannot run here. */
#define GPUS_SKIP 77

/* Counted in a process of its own: CUDA does not survive a fork, and the test may fork ranks. With fewer than `needed`
   it says so on stdout. */
int32_t gpus_count(int32_t needed);
/* Whether this build has kernels that GPU 0 runs without a compiler; found out likewise. */
bool gpus_have_ready_kernels(void);

#endif

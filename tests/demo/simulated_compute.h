/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU's arithmetic on memory of a GPU that the CPU simulates (tests/cuda/simt), in order with a stream there. So
 * the library's kernels carry the rows, where the demo's own kernels are not simulated. */
#ifndef TESTS_DEMO_SIMULATED_COMPUTE_H
#define TESTS_DEMO_SIMULATED_COMPUTE_H

#include "compute.h"

extern const compute_kind compute_simulated;

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Every operation of a compute, carried out on random numbers. */
#ifndef TESTS_DEMO_OPERATIONS_H
#define TESTS_DEMO_OPERATIONS_H

#include "compute.h"

/* Results of the operations, in host memory. Made of random numbers from `seed`, the same for every compute. */
enum { OP_ROWS = 5, OP_HIDDEN = 64, OP_EXPERTS = 12, OP_TOP_K = 3, OP_OUTPUTS = 96, OP_CAPACITY = 40 };
typedef struct operations_result {
    float embedded[OP_ROWS * OP_HIDDEN], normed[OP_ROWS * OP_HIDDEN], product[OP_ROWS * OP_OUTPUTS];
    float keys[2 * OP_CAPACITY * OP_HIDDEN], attended[OP_ROWS * OP_HIDDEN];
    float scores[OP_ROWS * OP_EXPERTS], weights[OP_ROWS * OP_TOP_K], sums[OP_ROWS * OP_HIDDEN];
    int32_t chosen[OP_ROWS * OP_TOP_K];
} operations_result;

model_sizes operations_sizes(void);
/* Fails the running test when the compute fails. */
void operations_run(compute *c, unsigned seed, operations_result *out);

#endif

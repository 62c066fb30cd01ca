/* SPDX-License-Identifier: Apache-2.0 */
/* forms: arguments of the demo's kernels, as host and device both see them. Compiles as C17, under nvcc and under
 * NVRTC. On the host, pointers are addresses in the memory of a compute. */
#ifndef EXPAR_DEMO_KERNELS_FORMS_H
#define EXPAR_DEMO_KERNELS_FORMS_H

#include "base/portable.h"

/* The threads of a block that divide a row among them. */
#define DEMO_THREADS 128

/* One row of a batch: the token at `position` of a sequence, and the memory of the sequence's keys and values. */
typedef struct compute_row {
    float *keys, *values; /* [layers][capacity][D] */
    int32_t token, position, capacity, unused;
} compute_row;

/* The weights of one layer's experts: L of them. */
typedef struct expert_weights {
    const float *w1, *w3; /* [L][D][F] */
    const float *w2;      /* [L][F][D] */
    int32_t first, count; /* those that take part */
} expert_weights;

#endif

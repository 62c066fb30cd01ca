/* SPDX-License-Identifier: Apache-2.0 */
/* Host copies of a dispatch's results, for as long as the test has its output. */
#ifndef TESTS_GPU_KEPT_H
#define TESTS_GPU_KEPT_H

#include "gpu/trip.h"

/* Puts host memory in place of the result's GPU memory, filled when the trip ends; but for what args say is the
   caller's. */
void kept_add(trip *t, expar_dispatch_result *result, const expar_dispatch_args *args);
/* Keeps counts, which are freed with the rest; NULL is allowed. */
const int32_t *kept_counts(const expar_ep_output *output, int32_t *counts);
/* The recv_x on the GPU whose host copy begins there. */
bool kept_find(const void *host, expar_tensor *x);
void kept_drop(const expar_ep_output *output);

#endif

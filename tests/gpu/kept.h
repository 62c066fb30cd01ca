/* SPDX-License-Identifier: Apache-2.0 */
/* Host copies of results, for as long as the test has their output or handle. */
#ifndef TESTS_GPU_KEPT_H
#define TESTS_GPU_KEPT_H

#include "gpu/mirrored.h"

/* Puts host memory in place of the GPU memory of each tensor, filled when the mirrored call ends. They belong to
   `owner`, an output or a handle; NULL parts, and none, are left out. */
#define KEPT_PARTS 8
void kept_put(mirrored *t, const void *owner, expar_tensor *const parts[KEPT_PARTS]);
/* Likewise of a dispatch's result, but for what args say is the caller's. */
void kept_add(mirrored *t, expar_ep_dispatch_result *result, const expar_ep_dispatch_args *args);
/* Keeps counts, which are freed with the rest; NULL is allowed. */
const int32_t *kept_counts(const expar_ep_output *output, int32_t *counts);
/* The host copy of a tensor of the owner's that lies there on the GPU; NULL: there is none. */
void *kept_host(const void *owner, const void *on_gpu);
/* Rows as a combine is to see them: those that lie in a result's host copy go back there, others are copied. */
expar_tensor kept_give(mirrored *t, const expar_tensor *host);
void kept_drop(const void *owner);

#endif

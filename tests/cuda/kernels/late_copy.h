/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of late_copy, a kernel of tests (late_copy.cu), as host and device both see them. On the host, pointers are
 * addresses of the device, not to be followed. */
#ifndef TESTS_CUDA_KERNELS_LATE_COPY_H
#define TESTS_CUDA_KERNELS_LATE_COPY_H

#include "base/portable.h"

typedef struct late_copy_call {
    const uint64_t *flag; /* pinned host memory. Written by the host (release), read by the kernel (acquire) */
    const uint32_t *source;
    uint32_t *target; /* [words], as the source */
    int64_t words;
    uint64_t timeout_ns; /* then it leaves without having read anything */
} late_copy_call;

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* A low-latency dispatch of a buffer with masks: the kernel of ll_dispatch.cu, which knows of ranks that are masked,
 * before it or in its midst (low_latency/masks.h). A program of its own, so that buffers without masks pay nothing for
 * it.
 *
 * What is more here: a word of device memory a wait, which says whether the rank is masked; a word a rank on which the
 * blocks agree, and one more in shared memory; and now and then, in waits that last, two of this rank's own memory and
 * two of the host's. */
#define LL_MASKS 1
#include "exec/cuda/kernels/low_latency/ll_dispatch.cu"

/* SPDX-License-Identifier: Apache-2.0 */
/* A low-latency dispatch of a buffer with masks: the kernel of ll_dispatch.cu with ranks that are masked before or
 * during the call (low_latency/masks.h). It is a program of its own, so that buffers without masks pay nothing for it.
 *
 * Its additional costs: each wait reads a word of device memory that says whether the rank is masked. The blocks agree
 * on a word for each rank, and keep another one in shared memory. Lasting waits now and then read two words of this
 * rank's own memory and two of the host's. */
#define LL_MASKS 1
#include "exec/cuda/kernels/low_latency/ll_dispatch.cu"

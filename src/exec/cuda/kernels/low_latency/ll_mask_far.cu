/* SPDX-License-Identifier: Apache-2.0 */
/* ll_mask_far: the kernel of ll_mask.cu for a buffer some of whose ranks are not mapped. It leaves words for these to
 * the host. */
#define LL_FAR         1
#define LL_MASK_KERNEL ll_mask_far
#include "exec/cuda/kernels/low_latency/ll_mask.cu"

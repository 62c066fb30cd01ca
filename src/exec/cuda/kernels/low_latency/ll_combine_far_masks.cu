/* SPDX-License-Identifier: Apache-2.0 */
/* ll_combine_impl_far_masks: a low-latency combine of a buffer with masks some of whose ranks are not mapped. It is
 * the kernel of ll_combine.cu with what ll_combine_far.cu and ll_combine_masks.cu add. */
#define LL_FAR    1
#define GPU_POLLS 64
#define LL_MASKS  1
#include "exec/cuda/kernels/low_latency/ll_combine.cu"

/* SPDX-License-Identifier: Apache-2.0 */
/* ll_combine_impl_log: ll_combine_impl for rows in LogFMT. Their terms need more registers than the kernel for other
 * rows can spare. */
#define LL_CODED          1
#define LL_COMBINE_KERNEL ll_combine_impl_log
#include "exec/cuda/kernels/low_latency/ll_combine.cu"

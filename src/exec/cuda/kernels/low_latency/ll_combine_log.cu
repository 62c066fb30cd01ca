/* SPDX-License-Identifier: Apache-2.0 */
/* ll_combine_impl_log: ll_combine_impl for rows of LogFMT, whose terms take more registers than others' have to
   spare. */
#define LL_CODED          1
#define LL_COMBINE_KERNEL ll_combine_impl_log
#include "exec/cuda/kernels/low_latency/ll_combine.cu"

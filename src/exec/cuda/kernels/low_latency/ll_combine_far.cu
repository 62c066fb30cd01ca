/* SPDX-License-Identifier: Apache-2.0 */
/* ll_combine_impl_far: a low-latency combine of a buffer some of whose ranks are not mapped. It is the kernel of
 * ll_combine.cu, in which rows for such ranks go by a proxy (low_latency/far.h). It is a program of its own, so that
 * buffers whose ranks are all mapped pay nothing for it. */
#define LL_FAR    1
#define GPU_POLLS 64
#include "exec/cuda/kernels/low_latency/ll_combine.cu"

/* SPDX-License-Identifier: Apache-2.0 */
/* ll_dispatch_impl_far: a low-latency dispatch of a buffer some of whose ranks are not mapped. It is the kernel of
 * ll_dispatch.cu, in which data for such ranks goes by a proxy (low_latency/far.h). It is a program of its own, so that
 * buffers whose ranks are all mapped pay nothing for it. */
#define LL_FAR    1
#define GPU_POLLS 64
#include "exec/cuda/kernels/low_latency/ll_dispatch.cu"

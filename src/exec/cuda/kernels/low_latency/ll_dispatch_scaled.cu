/* SPDX-License-Identifier: Apache-2.0 */
/* ll_dispatch_impl_scaled: ll_dispatch_impl for formats with scales, so that the kernel for plain rows has no quantiser
 * to jump over. */
#define LL_SCALED          1
#define LL_DISPATCH_KERNEL ll_dispatch_impl_scaled
#include "exec/cuda/kernels/low_latency/ll_dispatch.cu"

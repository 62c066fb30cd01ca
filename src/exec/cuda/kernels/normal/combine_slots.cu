/* SPDX-License-Identifier: Apache-2.0 */
/* Combine with sums that go by slots, or with the weights of the slots' owners. It is the kernel of combine.cu, but a
 * token's rows are found by places (ep_sum_place) and not by ranks. It is a program of its own, so that sums by rank,
 * which nearly all are, pay nothing for it: no registers, no shared memory, no looks at slots.
 *
 * Its additional costs: the warp that looks a token up reads 2 bytes for each slot. For sums of each slot's row it
 * reads one word of the provider's map for each row. */
#define GPU_BY_SLOT 1
#define GPU_COMBINE ep_combine_impl_slots
#include "exec/cuda/kernels/normal/combine.cu"

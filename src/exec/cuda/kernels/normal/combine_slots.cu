/* SPDX-License-Identifier: Apache-2.0 */
/* Combine with sums that go by slots, or with the weights of the slots' owners: the kernel of combine.cu, in which a
 * token's rows are found by places (ep_sum_place) and not by ranks. A program of its own, so that sums by rank, which
 * nearly all are, pay nothing for it: no registers, no shared memory, no looks at slots.
 *
 * What is more here: by the warp that looks a token up, 2 bytes a slot, and for sums of each slot's row one word of the
 * provider's map a row. */
#define GPU_BY_SLOT 1
#define GPU_COMBINE ep_combine_impl_slots
#include "exec/cuda/kernels/normal/combine.cu"

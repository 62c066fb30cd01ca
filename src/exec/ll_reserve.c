/* SPDX-License-Identifier: Apache-2.0 */
/* What is said of shapes that differ. */
#include "exec/ll_reserve.h"

expar_status ll_shape_differs(const ll_shape *own, int32_t own_rank, const ll_shape_words *said, int32_t rank)
{
    const ll_shape other = ll_shape_said(said);
    const struct {
        const char *name;
        int32_t own, other;
    } members[] = {
        {"max_tokens", own->tokens, other.tokens},
        {"hidden", own->hidden, other.hidden},
        {"num_topk", own->topk, other.topk},
        {"num_experts", own->local_experts * own->ranks, other.local_experts * own->ranks},
        {"max_element_bytes", own->element_bytes, other.element_bytes},
        {"sums", own->exact | own->reduced << 1, other.exact | other.reduced << 1},
    };
    size_t i = 0;
    while (i + 1 < ARRAY_LENGTH(members) && members[i].own == members[i].other)
        i++;
    return error_set(EXPAR_ERR_MISMATCH,
                     "%s of the buffer's shape is %d on rank %d and %d on rank %d; expected the same", members[i].name,
                     members[i].other, rank, members[i].own, own_rank);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <expar/expar.h>

/* How many tokens of this rank go to each rank. */
expar_status count(expar_group *group, int64_t *topk_idx, int64_t tokens, int32_t *tokens_per_rank)
{
    expar_tensor indices = expar_tensor_2d(topk_idx, EXPAR_I64, tokens, 8);
    expar_ep_layout layout = EXPAR_EP_LAYOUT_INIT;
    layout.tokens_per_rank = tokens_per_rank;
    return expar_ep_get_layout(group, &indices, 256, &layout);
}

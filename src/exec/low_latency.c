/* SPDX-License-Identifier: Apache-2.0 */
/* Code that both executors of low latency share. */
#include "exec/low_latency.h"
#include "group/members.h"

expar_status ll_shape_differs(const ll_shape *own, int32_t own_rank, const ll_shape_words *said, int32_t rank)
{
    const ll_shape other = ll_shape_said(said);
    const struct {
        const char *name;
        int32_t own, other;
    } members[] = {
        {"max_tokens", own->tokens, other.tokens},
        {"hidden", own->hidden, other.hidden},
        {"max_topk", own->topk, other.topk},
        {"num_experts", own->local_experts * own->ranks, other.local_experts * own->ranks},
        {"max_row_bytes", own->hidden * own->element_bytes, other.hidden * other.element_bytes},
        {"sums", own->exact | own->reduced << 1, other.exact | other.reduced << 1},
    };
    size_t i = 0;
    while (i + 1 < ARRAY_LENGTH(members) && members[i].own == members[i].other)
        i++;
    return error_set(EXPAR_ERR_MISMATCH,
                     "%s of the buffer's shape is %d on rank %d and %d on rank %d; expected the same", members[i].name,
                     members[i].other, rank, members[i].own, own_rank);
}

expar_status ll_clean_agree(group_members *members, ll_clean_step *step, uint64_t epochs[LL_KINDS])
{
    ll_call *call = &step->call;
    members_ask ask = {.call = call->number, .status = call->rejection.status, .calls = step->calls};
    memcpy(ask.epochs, epochs, sizeof ask.epochs);
    expar_status status = members_agree(members, &ask);
    if (status != EXPAR_OK) return status;
    call->vote = (ep_vote){.rank = ask.refuser};
    if (ask.refuser >= 0) call->vote.reason = (ep_rejection){.status = ask.rejection, .text = "a call is open there"};
    step->calls = ask.calls;
    memcpy(epochs, ask.epochs, sizeof ask.epochs);
    return EXPAR_OK;
}

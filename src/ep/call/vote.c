/* SPDX-License-Identifier: Apache-2.0 */
/* The result of the vote of all ranks about a call, as an error's text: a rank's rejection, or ranks with different
 * forms. */
#include "ep/call/call.h"

#include <string.h>

/* ---- of this call ------------------------------------------------------------------------------------------------ */

expar_status ep_call_vote(const ep_call *call, const ep_vote *vote)
{
    if (call->rejection.status != EXPAR_OK) return (expar_status)call->rejection.status;
    if (vote->rank < 0) return EXPAR_OK;
    if (vote->reason.status == EXPAR_ERR_MISMATCH && !vote->reason.text[0])
        return ep_call_prefix(call, call->buffer->kind->mismatch(vote, call->buffer->rank));
    /* Kernels know errors of this rank's own arguments before the host does. */
    if (vote->rank == call->buffer->rank)
        return ep_call_prefix(call, error_set((expar_status)vote->reason.status, "%s", vote->reason.text));
    if (vote->reason.status == EXPAR_ERR_PEER)
        return ep_call_prefix(call, error_set(EXPAR_ERR_PEER, "%s", vote->reason.text));
    return ep_call_prefix(call, error_set(EXPAR_ERR_REMOTE, "rank %d rejected its arguments: %s: %s", vote->rank,
                                          expar_status_string((expar_status)vote->reason.status), vote->reason.text));
}

expar_status ep_call_judge(const ep_call *call, expar_status status, const ep_vote *vote)
{
    return status == EXPAR_OK ? ep_call_vote(call, vote) : ep_call_prefix(call, status);
}

/* ---- of an earlier one, whose caller was not told ---------------------------------------------------------------- */

/* Says whether it is this rank's own last rejection, which its call has returned. */
static bool is_told(const ep_buffer *buffer, const ep_vote *vote)
{
    return vote->rank == buffer->rank && vote->reason.status == buffer->own_rejection.status &&
           strcmp(vote->reason.text, buffer->own_rejection.text) == 0;
}

/* Only one thread at a time may look. */
static bool untold_take(ep_buffer *buffer, ep_vote *vote, int64_t *dropped)
{
    pthread_mutex_lock(&buffer->poison_lock);
    bool found = buffer->exec->ops->untold(buffer->exec, vote, dropped) && !is_told(buffer, vote);
    pthread_mutex_unlock(&buffer->poison_lock);
    return found;
}

void ep_call_tell_untold(const ep_call *call)
{
    const ep_call earlier = {.buffer = call->buffer, .name = "an earlier call without an event"};
    ep_vote vote;
    error_kept ended;
    int64_t dropped = 0;
    if (!call->buffer->unread || !untold_take(call->buffer, &vote, &dropped)) return;
    expar_status status = ep_call_vote(&earlier, &vote);
    if (status == EXPAR_OK)
        status = error_set(EXPAR_ERR_DROPPED, "%s: %lld rows were dropped", earlier.name, (long long)dropped);
    LOG(LOG_WARN, "%s", expar_last_error());
    error_keep(&ended, status);
    ep_unread_note(call->buffer->unread, &ended);
}

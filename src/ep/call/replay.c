/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of graphs, where the host carries calls out. The capture makes a copy of the call, with references to all that
 * it uses. Whenever a stream comes to the call in the graph, a thread of the executor carries out a fresh copy of that
 * one. It does so as the buffer's own thread does with a call with async_finish.
 *
 * No caller asks how such a call ends. If ranks may be out of step then, it poisons the buffer. Any other failure is
 * kept for expar_ep_query. */
#include "ep/call/call.h"

#include <stdlib.h>
#include <string.h>

typedef struct ep_replay {
    exec_replay base;
    ep_call *kept; /* the call as it was captured */
    ep_call *once; /* memory for the copy that is carried out */
} ep_replay;

static void replay_note(const ep_call *call, expar_status status)
{
    error_kept ended;
    error_keep(&ended, status);
    LOG(LOG_WARN, "in a graph: %s", ended.text);
    if (call->buffer->unread) ep_unread_note(call->buffer->unread, &ended);
}

static void replay_run(exec_replay *base, const exec_call *exec)
{
    const ep_replay *self = (const ep_replay *)base;
    ep_call *call = self->once;
    memcpy(call, self->kept, self->kept->parts->bytes);
    call->exec = *exec;
    const bool is_news = ep_call_check_poison(call) == EXPAR_OK;
    const expar_status status = ep_call_replay(call);
    /* The failure is there when the stream goes on. */
    if (status != EXPAR_OK && is_news) replay_note(call, status);
    call->buffer->exec->ops->end(call->buffer->exec, &call->exec);
}

static void replay_drop(exec_replay *base)
{
    ep_replay *self = (ep_replay *)base;
    self->kept->parts->drop(self->kept);
    free(self->kept);
    free(self->once);
    free(self);
}

/* Makes the copies. They own what the call owns, also if the next step fails. */
static ep_replay *replay_make(ep_call *call)
{
    const size_t bytes = call->parts->bytes;
    ep_replay *self = malloc(sizeof *self);
    ep_call *once = malloc(bytes);
    if (!self || !once) {
        free(once);
        free(self);
        return NULL;
    }
    *self = (ep_replay){.base = {.run = replay_run, .drop = replay_drop}, .kept = call->own, .once = once};
    call->own = NULL;
    call->issued = true;
    memcpy(self->kept, call, bytes);
    self->kept->replayed = true;
    self->kept->wait_event = NULL;
    self->kept->parts->hold(self->kept);
    if (call->parts->list) call->parts->list(call, &self->base);
    return self;
}

expar_status ep_call_record(ep_call *call)
{
    executor *exec = call->buffer->exec;
    ep_replay *replay = replay_make(call);
    if (!replay) return ep_call_step(call, error_set(EXPAR_ERR_MEMORY, "no memory for a call of a graph"));
    expar_status status = exec->ops->record(exec, &call->exec, call->wait_event, &replay->base);
    if (status == EXPAR_OK) return ep_call_step(call, exec->ops->end(exec, &call->exec));
    error_kept kept;
    error_keep(&kept, status);
    replay_drop(&replay->base);
    return ep_call_step(call, error_restore(&kept));
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of every call on a buffer: see call.h. */
#include "ep/call/call.h"
#include "exec/event.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

expar_status ep_call_prefix(const ep_call *call, expar_status status)
{
    return error_prefix(status, "%s on rank %d", call->name, call->buffer->rank);
}

static boot_topic call_topic(const ep_call *call)
{
    const ep_buffer *buffer = call->buffer;
    if (!call->replayed) return ep_buffer_topic(buffer, call->number);
    return ep_buffer_topic(buffer, boot_graph_number(buffer->group->boot, buffer->kind->topic, buffer->number));
}

/* ---- poison ------------------------------------------------------------------------------------------------------ */

expar_status ep_call_poison(const ep_call *call, expar_status status)
{
    ep_buffer *buffer = call->buffer;
    pthread_mutex_lock(&buffer->poison_lock);
    const bool first = buffer->poison.status == EXPAR_OK;
    if (first) error_keep(&buffer->poison, status);
    pthread_mutex_unlock(&buffer->poison_lock);
    /* A rank that awaits this one there, or in a later call, learns that it does not come. */
    const boot_topic topic = call_topic(call);
    if (first) boot_note_ended(buffer->group->boot, &topic, status, expar_last_error());
    return status;
}

expar_status ep_call_check_poison(const ep_call *call)
{
    ep_buffer *buffer = call->buffer;
    pthread_mutex_lock(&buffer->poison_lock);
    expar_status status = error_restore(&buffer->poison);
    pthread_mutex_unlock(&buffer->poison_lock);
    if (status == EXPAR_OK) return EXPAR_OK;
    return ep_call_prefix(call, error_prefix(status, "the buffer is poisoned"));
}

/* Says whether the call was broken off while other ranks wait in it. A rejection has been told to them, so it is
   none. */
static bool is_broken_off(const ep_call *call, expar_status status)
{
    if (status == EXPAR_ERR_INTERRUPTED) return call->rejection.status != EXPAR_ERR_INTERRUPTED;
    return status == EXPAR_ERR_PEER || status == EXPAR_ERR_ABORTED || call->exec.lost;
}

static expar_status poison_with_group(const ep_call *call, expar_status status)
{
    return is_broken_off(call, status) ? ep_call_poison(call, status) : status;
}

void ep_call_note_uncaptured(const ep_call *call, expar_status status)
{
    const boot_topic topic = call_topic(call);
    boot_note_rejected(call->buffer->group->boot, &topic, status, expar_last_error());
}

expar_status ep_call_step(const ep_call *call, expar_status status)
{
    if (status == EXPAR_OK) return EXPAR_OK;
    ep_call_prefix(call, status);
    if (call->exec.captured)
        ep_call_note_uncaptured(call, status);
    else if (call->buffer->exec->ops->streams)
        ep_call_poison(call, status);
    return status;
}

/* ---- a call begins ----------------------------------------------------------------------------------------------- */

expar_status ep_call_check_earlier(const ep_call *call)
{
    executor *exec = call->buffer->exec;
    expar_status status = ep_call_check_poison(call);
    if (status != EXPAR_OK) return status;
    status = exec->ops->check(exec, "an earlier call");
    if (status == EXPAR_OK) return EXPAR_OK;
    ep_call_poison(call, call->buffer->kind->asks_twice ? ep_call_prefix(call, status) : status);
    return ep_call_check_poison(call);
}

expar_status ep_call_settle(const ep_call *call)
{
    const expar_status status = ep_issuer_await(call->buffer->issuer, EP_CALL_ENDED);
    return status == EXPAR_OK ? ep_call_check_earlier(call) : ep_call_prefix(call, status);
}

expar_status ep_call_begin(ep_call *call, const char *name, const ep_parts *parts, ep_buffer *buffer)
{
    const ep_buffer_kind *kind = buffer->kind;
    expar_status status = ep_buffer_take(buffer, name);
    if (status != EXPAR_OK) return status;
    call->buffer = buffer;
    call->name = name;
    call->parts = parts;
    call->after = EP_CALL_ENDED;
    /* If several calls may be open, the number of the failed one is not known. */
    call->number = kind->overlaps ? 0 : kind->number(buffer->calls);
    status = ep_call_check_earlier(call);
    if (status != EXPAR_OK) return ep_buffer_give(buffer, status);
    ep_call_tell_untold(call);
    /* The call before the last has ended when the last one, after it on the same thread, is sent. If the last one has
       ended in its caller's thread, this is not known. */
    if (kind->overlaps && buffer->last_issued) call->after = EP_CALL_SENT;
    buffer->last_issued = false;
    call->number = kind->number(++buffer->calls) + call->second;
    const boot_topic topic = call_topic(call);
    boot_note_call(buffer->group->boot, &topic, name);
    boot_note_came(buffer->group->boot, kind->topic, buffer->number);
    return EXPAR_OK;
}

expar_status ep_call_learn(ep_call *call, void *stream, int32_t num_sms, bool asked)
{
    executor *exec = call->buffer->exec;
    call->exec.asked = asked && !call->forgets;
    call->exec.num_sms = num_sms;
    return exec->ops->begin(exec, &call->exec, stream);
}

expar_status ep_call_check_events(const ep_call *call, const expar_event *wait_event, bool async_finish)
{
    const expar_status status = ep_check_wait_event(wait_event);
    if (status != EXPAR_OK || !call->exec.captured) return status;
    bool outside = wait_event && !event_in_capture(wait_event, call->exec.capture);
    const char *extra = outside        ? "wait_event is given, and not of the capture,"
                        : async_finish ? "async_finish is 1"
                                       : NULL;
    if (!extra) return EXPAR_OK;
    return error_set(EXPAR_ERR_ARGUMENT, "%s while the stream is being captured; a graph has its own order", extra);
}

expar_status ep_call_await(ep_call *call, ep_phase phase)
{
    if (call->issued) return EXPAR_OK;
    expar_status status = ep_issuer_await(call->buffer->issuer, phase);
    /* A call that no other rank has heard of counts as not made. */
    call->withdrawn = status != EXPAR_OK && !call->opened;
    return status == EXPAR_OK ? EXPAR_OK : ep_call_prefix(call, status);
}

void ep_call_set_async(ep_call *call, bool async_finish, bool sized)
{
    call->by_itself = async_finish;
    call->leaves = (async_finish || call->exec.captured) && sized && !call->buffer->exec->ops->streams;
}

expar_status ep_call_prepare_issue(ep_buffer *buffer)
{
    if (buffer->issuer) return EXPAR_OK;
    expar_status status = ep_issuer_start(&buffer->issuer);
    if (status == EXPAR_OK) life_hold(&buffer->life);
    return status;
}

expar_status ep_call_promise(ep_call *call)
{
    expar_status status = EXPAR_OK;
    if (call->forgets || (!call->by_itself && !call->leaves)) return EXPAR_OK;
    if (!call->buffer->exec->ops->streams) {
        call->own = malloc(call->parts->bytes);
        if (!call->own) return error_set(EXPAR_ERR_MEMORY, "no memory for a call without its caller's thread");
        if (call->by_itself) status = ep_call_prepare_issue(call->buffer);
    }
    if (status != EXPAR_OK || !call->by_itself) return status;
    status = event_create_for_call(&call->event);
    if (status == EXPAR_OK && call->buffer->unread) ep_unread_hear(call->buffer->unread, call->event);
    return status;
}

void ep_call_break_promise(ep_call *call)
{
    free(call->own);
    if (!call->event) return;
    expar_event_release(call->event);
    expar_event_release(call->event);
}

static expar_status wait_event(expar_event *event)
{
    if (!event) return EXPAR_OK;
    expar_status status = expar_event_wait(event);
    if (status == EXPAR_OK || status == EXPAR_ERR_INTERRUPTED) return status;
    /* Another status than the event's: its failure says nothing about this group. */
    return error_prefix(error_set(EXPAR_ERR_STATE, "%s", expar_last_error()), "wait_event ended with an error");
}

expar_status ep_call_follow(ep_call *call)
{
    executor *exec = call->buffer->exec;
    expar_event *event = call->wait_event;
    error_kept waited;
    if (call->followed) return EXPAR_OK;
    call->followed = true;
    bool by_stream = event && exec->ops->follows(exec, &call->exec, event);
    error_keep(&waited, by_stream ? EXPAR_OK : wait_event(event));
    /* A rejection that comes with the call's buffer advertisements has its place, too. */
    expar_status placed = exec->ops->place(exec, &call->exec);
    if (placed == EXPAR_OK && by_stream) placed = exec->ops->join(exec, &call->exec, event);
    return waited.status == EXPAR_OK ? placed : error_restore(&waited);
}

expar_status ep_call_open(ep_call *call)
{
    expar_status status = ep_call_await(call, call->after);
    if (status == EXPAR_OK) status = ep_call_check_poison(call);
    call->opened = status == EXPAR_OK;
    return status;
}

/* ---- the rest of it ---------------------------------------------------------------------------------------------- */

static bool went_through(expar_status status)
{
    return status == EXPAR_OK || status == EXPAR_ERR_DROPPED;
}

static void reach(ep_call *call, ep_phase phase)
{
    assert(call->phase + 1 == phase);
    call->phase = phase;
    if (call->issued && !call->replayed) ep_issuer_reach(call->buffer->issuer, phase);
}

static expar_status carry_out_second(ep_call *call)
{
    expar_status status = call->parts->receive(call);
    if (went_through(status)) reach(call, EP_CALL_RECEIVED);
    return status;
}

static expar_status carry_on(ep_call *call)
{
    expar_status status = ep_call_check_poison(call);
    if (status == EXPAR_OK) status = call->parts->send(call);
    if (status != EXPAR_OK) return status;
    reach(call, EP_CALL_SENT);
    return call->hooked ? EXPAR_OK : carry_out_second(call);
}

/* The reason of a failed call stays the last error. */
static void end_steps(ep_call *call)
{
    executor *exec = call->buffer->exec;
    error_kept kept;
    error_save(&kept);
    exec->ops->end(exec, &call->exec);
    error_put_back(&kept);
}

/* Runs on the buffer's own thread: carries out the call, or tells its rejection. */
static expar_status run_issued(void *issued)
{
    ep_call *call = issued;
    const bool rejected = call->rejection.status != EXPAR_OK;
    expar_status status = rejected ? ep_call_check_poison(call) : carry_on(call);
    if (rejected && status == EXPAR_OK) status = call->parts->reject(call);
    poison_with_group(call, status);
    expar_event_release(call->wait_event);
    end_steps(call);
    if (!rejected) call->parts->drop(call);
    free(call);
    return status;
}

expar_status ep_call_replay(ep_call *call)
{
    return poison_with_group(call, carry_on(call));
}

void ep_call_issue(ep_call *call, ep_call *own)
{
    call->issued = call->buffer->last_issued = true;
    memcpy(own, call, call->parts->bytes);
    own->job = (ep_issuer_job){.call = own, .event = own->event, .run = run_issued};
}

/* The stream comes to later work only after the call, which has no place there otherwise. */
static void depart(ep_call *call)
{
    executor *exec = call->buffer->exec;
    event_keeper keeper = {0};
    exec->ops->depart(exec, &call->exec, call->wait_event, &keeper);
    if (keeper.mark) event_keep(call->event, &keeper);
}

static void issue(ep_call *call)
{
    const ep_buffer *buffer = call->buffer;
    ep_call *own = call->own;
    depart(call);
    call->own = NULL;
    ep_call_issue(call, own);
    if (own->wait_event) event_retain(own->wait_event);
    own->parts->hold(own);
    ep_issuer_put(own->buffer->issuer, &own->job);
    /* An interrupt ends only this wait; the event tells how the call ends. */
    if (buffer->exec->ends_first) (void)ep_issuer_await(buffer->issuer, EP_CALL_ENDED);
}

/* The data that a call needs when its stream comes to its end. */
typedef struct ending {
    ep_call call;
    expar_event *event;
} ending;

/* An executor_done_fn. The executor tells all ends before it is destroyed, and the buffer with it. */
static void end_by_stream(void *context, expar_status status, const ep_vote *vote, int64_t dropped)
{
    ending *end = context;
    status = end->call.parts->judge(&end->call, status, vote);
    if (status == EXPAR_OK && dropped > 0)
        status = ep_call_prefix(
            &end->call,
            error_set(EXPAR_ERR_DROPPED, "%lld rows were dropped: num_worst_tokens is too small", (long long)dropped));
    event_finish(end->event, status);
    free(end);
}

static expar_status have_told(ep_call *call)
{
    executor *exec = call->buffer->exec;
    event_keeper keeper;
    ending *end = malloc(sizeof *end);
    if (!end) return ep_call_prefix(call, error_set(EXPAR_ERR_MEMORY, "no memory for an asynchronous call"));
    *end = (ending){.call = *call, .event = call->event};
    expar_status status = exec->ops->tell(exec, &call->exec, end_by_stream, end, &keeper);
    if (status == EXPAR_OK) {
        event_keep(call->event, &keeper);
        return EXPAR_OK;
    }
    free(end);
    return ep_call_prefix(call, status);
}

/* Ends the call's steps after send and receive, in the caller's thread. */
static expar_status close_steps(ep_call *call)
{
    executor *exec = call->buffer->exec;
    expar_status status = ep_call_step(call, exec->ops->end(exec, &call->exec));
    return status == EXPAR_OK && call->event ? have_told(call) : status;
}

expar_status ep_call_finish(ep_call *call)
{
    if (call->own && call->exec.captured) return ep_call_record(call);
    if (call->own && call->rejection.status == EXPAR_OK) {
        issue(call);
        return EXPAR_OK;
    }
    expar_status status = ep_call_await(call, EP_CALL_ENDED);
    if (status != EXPAR_OK) return status;
    status = carry_on(call);
    if (!went_through(status)) return status;
    expar_status closed = close_steps(call);
    return closed == EXPAR_OK ? status : closed;
}

expar_status ep_call_receive(ep_call *call, const char *name, void *stream)
{
    executor *exec = call->buffer->exec;
    call->name = name;
    call->exec = (exec_call){.num_sms = call->exec.num_sms};
    expar_status status = exec->ops->begin(exec, &call->exec, stream);
    if (status == EXPAR_OK) status = exec->ops->place(exec, &call->exec);
    if (status != EXPAR_OK) return ep_call_step(call, status);
    status = carry_out_second(call);
    return went_through(status) ? close_steps(call) : status;
}

/* Gives the call's number to the next call. */
static void withdraw(const ep_call *call)
{
    call->buffer->calls--;
    call->buffer->last_issued = call->after == EP_CALL_SENT;
}

expar_status ep_call_end(ep_call *call, expar_status status)
{
    executor *exec = call->buffer->exec;
    if (call->withdrawn)
        withdraw(call);
    else
        poison_with_group(call, status);
    if (!went_through(status)) {
        /* A call that failed before its end has still left work on its stream. The reason of its failure stays the last
           error. */
        error_kept kept;
        error_keep(&kept, status);
        ep_call_step(call, exec->ops->end(exec, &call->exec));
        error_restore(&kept);
    }
    return ep_buffer_give(call->buffer, status);
}

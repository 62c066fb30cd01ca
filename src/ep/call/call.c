/* SPDX-License-Identifier: Apache-2.0 */
/* What every call on a buffer has: see call.h. */
#include "ep/call/call.h"
#include "exec/event.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

expar_status ep_call_prefix(const ep_call *call, expar_status status)
{
    return error_prefix(status, "%s on rank %d", call->name, call->ep->group->rank);
}

/* ---- poison ------------------------------------------------------------------------------------------------------ */

static void poison(const ep_call *call, expar_status status)
{
    expar_ep *ep = call->ep;
    pthread_mutex_lock(&ep->poison_lock);
    const bool first = ep->poison.status == EXPAR_OK;
    if (first) error_keep(&ep->poison, status);
    pthread_mutex_unlock(&ep->poison_lock);
    /* Whoever awaits this rank there, or in a later call, learns that it does not come. */
    const boot_topic topic = {.kind = BOOT_KIND_BUFFER, .object = ep->number, .number = call->epoch};
    if (first) boot_note_ended(ep->group->boot, &topic, status, expar_last_error());
}

expar_status ep_call_check_poison(const ep_call *call)
{
    expar_ep *ep = call->ep;
    pthread_mutex_lock(&ep->poison_lock);
    expar_status status = error_restore(&ep->poison);
    pthread_mutex_unlock(&ep->poison_lock);
    if (status == EXPAR_OK) return EXPAR_OK;
    return ep_call_prefix(call, error_prefix(status, "the buffer is poisoned"));
}

/* The call was broken off with others waiting in it; a refusal has been told to them. */
static bool is_broken_off(const ep_call *call, expar_status status)
{
    if (status == EXPAR_ERR_INTERRUPTED) return call->refusal.status != EXPAR_ERR_INTERRUPTED;
    return status == EXPAR_ERR_PEER || status == EXPAR_ERR_ABORTED;
}

static expar_status poison_with_group(const ep_call *call, expar_status status)
{
    if (is_broken_off(call, status)) poison(call, status);
    return status;
}

/* The call is in no graph of this rank's, and nothing was put on the stream that could tell the others, whose graphs
   may have it. */
static void note_uncaptured(const ep_call *call, expar_status status)
{
    const expar_ep *ep = call->ep;
    const boot_topic topic = {.kind = BOOT_KIND_BUFFER, .object = ep->number, .number = call->epoch};
    boot_note_refused(ep->group->boot, &topic, status, expar_last_error());
}

expar_status ep_call_step(const ep_call *call, expar_status status)
{
    if (status == EXPAR_OK) return EXPAR_OK;
    ep_call_prefix(call, status);
    if (call->exec.captured)
        note_uncaptured(call, status);
    else if (call->ep->exec->ops->streams)
        poison(call, status);
    return status;
}

/* ---- a call begins ----------------------------------------------------------------------------------------------- */

expar_status ep_call_check_earlier(const ep_call *call)
{
    executor *exec = call->ep->exec;
    expar_status status = ep_call_check_poison(call);
    if (status != EXPAR_OK) return status;
    status = exec->ops->check(exec, "an earlier call");
    if (status == EXPAR_OK) return EXPAR_OK;
    poison(call, ep_call_prefix(call, status));
    return ep_call_check_poison(call);
}

expar_status ep_call_begin(ep_call *call, const char *name, const ep_halves *halves, expar_ep *ep)
{
    expar_status status = ep_check_outside(name);
    if (status == EXPAR_OK) status = ep_enter(ep, name);
    if (status != EXPAR_OK) return status;
    int32_t idle = 0;
    if (!atomic_compare_exchange_strong(&ep->busy, &idle, 1)) {
        ep_leave(ep);
        return error_set(EXPAR_ERR_BUSY, "%s: another call on this buffer is still running", name);
    }
    /* Whoever abandons the buffer now sees that it is busy, or has been seen. */
    if (atomic_load(&ep->ended)) {
        atomic_store_explicit(&ep->busy, 0, memory_order_release);
        status = ep_enter(ep, name);
        ep_leave(ep);
        return status;
    }
    *call = (ep_call){.ep = ep, .name = name, .halves = halves};
    status = ep_call_check_earlier(call);
    if (status != EXPAR_OK) {
        atomic_store_explicit(&ep->busy, 0, memory_order_release);
        ep_leave(ep);
        return status;
    }
    ep_call_tell_untold(call);
    /* The one before the last has ended when the last, behind it on the same thread, is sent; where that one has ended
       in its caller's thread this is not known. */
    call->behind = ep->last_issued ? EP_CALL_SENT : EP_CALL_ENDED;
    ep->last_issued = false;
    call->epoch = ++ep->epoch;
    const boot_topic topic = {.kind = BOOT_KIND_BUFFER, .object = ep->number, .number = call->epoch};
    boot_note_call(ep->group->boot, &topic, name);
    boot_note_came(ep->group->boot, BOOT_KIND_BUFFER, ep->number);
    return EXPAR_OK;
}

expar_status ep_call_learn(ep_call *call, void *stream, int32_t num_sms, bool asked)
{
    executor *exec = call->ep->exec;
    call->exec.asked = asked;
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

/* Until this rank's earlier calls have come to the phase: on the buffer's own thread all have ended. Interrupted, a
   call that nobody has heard of is withdrawn. */
static expar_status await_earlier(ep_call *call, ep_phase phase)
{
    if (call->issued) return EXPAR_OK;
    expar_status status = ep_issue_await(call->ep, phase);
    call->withdrawn = status != EXPAR_OK && !call->opened;
    return status == EXPAR_OK ? EXPAR_OK : ep_call_prefix(call, status);
}

static expar_status grow(ep_call *call, const ep_grow_step *step)
{
    executor *exec = call->ep->exec;
    ep_verdict verdict = {.rank = -1};
    expar_status status = await_earlier(call, EP_CALL_ENDED);
    if (status == EXPAR_OK) status = ep_call_check_poison(call);
    if (status == EXPAR_OK) status = ep_call_step(call, exec->ops->grow(exec, step, &verdict));
    return status == EXPAR_OK ? ep_call_verdict(call, &verdict) : status;
}

void ep_call_set_async(ep_call *call, bool async_finish, bool sized)
{
    call->by_itself = async_finish;
    call->leaves = async_finish && sized && !call->ep->exec->ops->streams;
}

static bool fits_now(const ep_call *call)
{
    executor *exec = call->ep->exec;
    return exec->ops->fits(exec, &call->form, call->row_bytes);
}

/* A call makes records larger before it is sent. */
expar_status ep_call_fits(ep_call *call, bool *fits)
{
    *fits = true;
    if (call->leaves) return EXPAR_OK;
    expar_status status = await_earlier(call, call->behind);
    call->told = status != EXPAR_OK;
    if (status == EXPAR_OK) *fits = fits_now(call);
    return status;
}

expar_status ep_call_grow(ep_call *call, ep_grow_step step)
{
    expar_ep *ep = call->ep;
    step.epoch = call->epoch;
    step.form = call->form;
    step.row_bytes = call->row_bytes;
    expar_status status = grow(call, &step);
    call->told = status != EXPAR_OK;
    if (call->told) return status;
    atomic_fetch_add_explicit(&ep->growths, 1, memory_order_release);
    if (ep->exec->ops->grows_apart) call->epoch = ++ep->epoch;
    return EXPAR_OK;
}

expar_status ep_call_make_room(ep_call *call)
{
    const ep_grow_step step = {.tokens = -1};
    if (!call->leaves || fits_now(call)) return EXPAR_OK;
    return ep_call_grow(call, step);
}

expar_status ep_call_promise(ep_call *call)
{
    if (!call->ep->exec->ops->streams) {
        call->own = malloc(call->halves->bytes);
        if (!call->own) return error_set(EXPAR_ERR_MEMORY, "no memory for an asynchronous call");
        expar_status status = ep_issue_prepare(call->ep);
        if (status != EXPAR_OK) return status;
    }
    expar_status status = event_create_for_call(&call->event);
    if (status == EXPAR_OK) ep_unheard_hear(call->ep->unheard, call->event);
    return status;
}

void ep_call_break_promise(ep_call *call)
{
    free(call->own);
    if (!call->event) return;
    expar_event_destroy(call->event);
    expar_event_destroy(call->event);
}

static expar_status wait_event(expar_event *event)
{
    if (!event) return EXPAR_OK;
    expar_status status = expar_event_wait(event);
    if (status == EXPAR_OK || status == EXPAR_ERR_INTERRUPTED) return status;
    /* Another status than the event's: its failure says nothing about this group. */
    return error_prefix(error_set(EXPAR_ERR_STATE, "%s", expar_last_error()), "wait_event ended badly");
}

expar_status ep_call_follow(ep_call *call)
{
    executor *exec = call->ep->exec;
    expar_event *event = call->wait_event;
    error_kept waited;
    if (call->followed) return EXPAR_OK;
    call->followed = true;
    bool by_stream = event && exec->ops->follows(exec, &call->exec, event);
    error_keep(&waited, by_stream ? EXPAR_OK : wait_event(event));
    /* A refusal that comes with the call's offers has its place, too. */
    expar_status placed = exec->ops->place(exec, &call->exec);
    if (placed == EXPAR_OK && by_stream) placed = exec->ops->join(exec, &call->exec, event);
    return waited.status == EXPAR_OK ? placed : error_restore(&waited);
}

expar_status ep_call_open(ep_call *call)
{
    expar_status status = await_earlier(call, call->behind);
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
    if (call->issued) ep_issue_reach(call->ep, phase);
}

static expar_status call_carry_out(ep_call *call)
{
    expar_status status = ep_call_check_poison(call);
    if (status == EXPAR_OK) status = call->halves->send(call);
    if (status != EXPAR_OK) return status;
    reach(call, EP_CALL_SENT);
    status = call->halves->receive(call);
    if (went_through(status)) reach(call, EP_CALL_RECEIVED);
    return status;
}

/* By the buffer's own thread. */
static expar_status run_issued(void *issued)
{
    ep_call *call = issued;
    expar_status status = poison_with_group(call, call_carry_out(call));
    expar_event_destroy(call->wait_event);
    call->halves->drop(call);
    free(call);
    return status;
}

static void issue(ep_call *call)
{
    ep_call *own = call->own;
    call->own = NULL;
    call->issued = call->ep->last_issued = true;
    memcpy(own, call, call->halves->bytes);
    if (own->wait_event) event_retain(own->wait_event);
    own->halves->hold(own);
    ep_issue(own, run_issued);
}

/* What is left of a call when its stream comes to its end. */
typedef struct ending {
    ep_call call;
    expar_event *event;
} ending;

static void end_by_stream(void *context, expar_status status, const ep_verdict *verdict, int64_t dropped)
{
    ending *end = context;
    if (status != EXPAR_OK)
        ep_call_prefix(&end->call, status);
    else
        status = ep_call_verdict(&end->call, verdict);
    if (status == EXPAR_OK && dropped > 0)
        status = ep_call_prefix(
            &end->call,
            error_set(EXPAR_ERR_DROPPED, "%lld rows were dropped: num_worst_tokens is too small", (long long)dropped));
    event_finish(end->event, status);
    free(end);
}

static expar_status have_told(ep_call *call)
{
    executor *exec = call->ep->exec;
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

/* Behind the halves, in the caller's thread. */
static expar_status close_steps(ep_call *call)
{
    executor *exec = call->ep->exec;
    expar_status status = ep_call_step(call, exec->ops->end(exec, &call->exec));
    return status == EXPAR_OK && call->event ? have_told(call) : status;
}

expar_status ep_call_finish(ep_call *call)
{
    if (call->own && call->refusal.status == EXPAR_OK) {
        issue(call);
        return EXPAR_OK;
    }
    expar_status status = await_earlier(call, EP_CALL_ENDED);
    if (status != EXPAR_OK) return status;
    status = call_carry_out(call);
    if (!went_through(status)) return status;
    expar_status closed = close_steps(call);
    return closed == EXPAR_OK ? status : closed;
}

/* Its epoch is the next call's. */
static void withdraw(const ep_call *call)
{
    call->ep->epoch--;
    call->ep->last_issued = call->behind == EP_CALL_SENT;
}

expar_status ep_call_end(ep_call *call, expar_status status)
{
    executor *exec = call->ep->exec;
    if (call->withdrawn)
        withdraw(call);
    else
        poison_with_group(call, status);
    if (!went_through(status)) {
        /* A call that failed on its way has left work on its stream all the same. Why it failed stays
           the last error. */
        error_kept kept;
        error_keep(&kept, status);
        ep_call_step(call, exec->ops->end(exec, &call->exec));
        error_restore(&kept);
    }
    atomic_store_explicit(&call->ep->busy, 0, memory_order_release);
    ep_leave(call->ep);
    return status;
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static void keep_own_refusal(const ep_call *call)
{
    expar_ep *ep = call->ep;
    pthread_mutex_lock(&ep->poison_lock);
    ep->own_refusal = call->refusal;
    pthread_mutex_unlock(&ep->poison_lock);
}

expar_status ep_call_refuse(ep_call *call, expar_status status)
{
    call->refusal = ep_refusal_of(status);
    if (!call->issued) keep_own_refusal(call);
    return ep_call_prefix(call, status);
}

expar_status ep_call_refused(ep_call *call, const ep_refusal *refusal)
{
    call->refusal = *refusal;
    if (!call->issued) keep_own_refusal(call);
    return ep_call_prefix(call, error_set((expar_status)refusal->status, "%s", refusal->text));
}

static expar_status notify_refusal(ep_call *call)
{
    executor *exec = call->ep->exec;
    ep_notify_step step = {.epoch = call->epoch, .form = call->form, .refusal = call->refusal};
    return ep_call_step(call, exec->ops->notify(exec, &call->exec, &step));
}

/* There is nothing to receive. */
static expar_status send_refusal(ep_call *call)
{
    expar_status status = notify_refusal(call);
    return status == EXPAR_OK ? (expar_status)call->refusal.status : status;
}

static void hold_nothing(ep_call *call)
{
    (void)call;
}

static const ep_halves refusal_halves = {
    .bytes = sizeof(ep_call), .send = send_refusal, .hold = hold_nothing, .drop = hold_nothing};

/* The caller has its error; nobody has an event. False: it is to be told from here. */
static bool issue_refusal(ep_call *call)
{
    if (!call->by_itself || call->issued || call->ep->exec->ops->streams || ep_issue_prepare(call->ep) != EXPAR_OK)
        return false;
    ep_call *own = malloc(sizeof *own);
    if (!own) return false;
    call->issued = call->ep->last_issued = true;
    *own = *call;
    own->halves = &refusal_halves;
    own->wait_event = NULL;
    own->event = NULL;
    ep_issue(own, run_issued);
    return true;
}

expar_status ep_call_tell_refusal(ep_call *call, expar_status refused)
{
    ep_call_refuse(call, refused);
    error_kept kept;
    error_keep(&kept, (expar_status)call->refusal.status);
    /* In a graph it would be told again and again. */
    if (call->exec.captured) note_uncaptured(call, kept.status);
    if (call->exec.captured || issue_refusal(call)) return error_restore(&kept);
    expar_status status = ep_call_open(call);
    if (status == EXPAR_OK) status = notify_refusal(call);
    return status == EXPAR_OK ? error_restore(&kept) : status;
}

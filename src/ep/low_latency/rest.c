/* SPDX-License-Identifier: Apache-2.0 */
/* The phases of a call: both in the caller's thread, or the receive by a hook, or both on the buffer's own thread.
 * Where phases only put work on a stream, the caller's thread does that in any case, and an event is the stream's. */
#include "ep/low_latency/ll.h"
#include "exec/event.h"

#include <stdlib.h>

struct ll_job {
    expar_ll *ll;
    const char *name;
    ll_rest rest;
    ep_issuer_job job;
    expar_event *wait_event, *event; /* NULL: of a refusal */
    error_kept refused;              /* why this rank refuses the call, or EXPAR_OK */
};

/* ---- phases ------------------------------------------------------------------------------------------------------ */

ll_call *ll_rest_call(ll_rest *rest)
{
    return rest->kind == LL_DISPATCH ? &rest->step.dispatch.call : &rest->step.combine.call;
}

void ll_rest_hold(const ll_rest *rest)
{
    if (rest->handle) ll_handle_hold(rest->handle);
    if (rest->output) ep_output_hold(rest->output);
}

void ll_rest_drop(const ll_rest *rest)
{
    expar_ll_handle_destroy(rest->handle);
    expar_ep_output_release(rest->output);
}

/* Another status than the event's: its failure says nothing about this group. */
static expar_status await_event(expar_event *event)
{
    if (!event) return EXPAR_OK;
    expar_status status = expar_event_wait(event);
    if (status == EXPAR_OK || status == EXPAR_ERR_INTERRUPTED) return status;
    return error_prefix(error_set(EXPAR_ERR_STATE, "%s", expar_last_error()), "wait_event ended badly");
}

expar_status ll_rest_send(expar_ll *ll, const char *name, ll_rest *rest, expar_event *wait_event, expar_status own)
{
    ll_executor *exec = ll->exec;
    ll_call *call = ll_rest_call(rest);
    error_kept kept;
    call->wait_event = wait_event;
    if (own == EXPAR_OK && !exec->ops->streams) own = await_event(wait_event);
    error_keep(&kept, own);
    ll_refuse(call, own);
    expar_status status = rest->kind == LL_DISPATCH ? exec->ops->dispatch_send(exec, &rest->step.dispatch)
                                                    : exec->ops->combine_send(exec, &rest->step.combine);
    return ll_sent(ll, name, call, status, &kept);
}

expar_status ll_rest_receive(expar_ll *ll, const char *name, ll_rest *rest)
{
    ll_executor *exec = ll->exec;
    const bool dispatch = rest->kind == LL_DISPATCH;
    expar_status status = dispatch ? exec->ops->dispatch_receive(exec, &rest->step.dispatch)
                                   : exec->ops->combine_receive(exec, &rest->step.combine);
    status = ll_received(ll, name, ll_rest_call(rest), status);
    if (dispatch && status == EXPAR_OK) atomic_store_explicit(&rest->handle->filled, true, memory_order_release);
    return status;
}

expar_status ll_tell_earlier(expar_ll *ll, const char *name, uint64_t number)
{
    ll_executor *exec = ll->exec;
    ll_call earlier = {.number = number};
    if (!exec->ops->streams || !exec->ops->untold(exec, &earlier.verdict)) return EXPAR_OK;
    expar_status status = ll_received(ll, "an earlier call", &earlier, EXPAR_OK);
    return status == EXPAR_OK ? EXPAR_OK : error_prefix(status, "%s", name);
}

expar_status ll_rest_earlier(expar_ll *ll, const char *name, ll_rest *rest)
{
    const ll_call *call = ll_rest_call(rest);
    return call->exec.captured ? EXPAR_OK : ll_tell_earlier(ll, name, call->number);
}

/* ---- on the call's stream ---------------------------------------------------------------------------------------- */

/* What is left of a call when its stream comes to its end. */
typedef struct ll_ending {
    expar_ll *ll;
    const char *name;
    ll_call call;
    expar_event *event;
} ll_ending;

/* Of executor_done_fn: the executor tells all ends before it goes, and the buffer with it. */
static void ll_end_by_stream(void *context, expar_status status, const ep_verdict *verdict, int64_t dropped)
{
    ll_ending *end = context;
    (void)dropped;
    end->call.verdict = ll_verdict_of(verdict);
    event_finish(end->event, ll_received(end->ll, end->name, &end->call, status));
    free(end);
}

/* The event is the caller's from then on. */
static expar_status job_tell(expar_ll *ll, const char *name, ll_rest *rest, ll_manner *manner, expar_event **event)
{
    ll_executor *exec = ll->exec;
    ll_job *job = manner->job;
    event_keeper keeper;
    ll_ending *end = malloc(sizeof *end);
    if (!end) return ll_prefix(ll, name, error_set(EXPAR_ERR_MEMORY, "no memory for an asynchronous call"));
    *end = (ll_ending){.ll = ll, .name = name, .call = *ll_rest_call(rest), .event = job->event};
    expar_status status = exec->ops->tell(exec, &end->call, ll_end_by_stream, end, &keeper);
    if (status != EXPAR_OK) {
        free(end);
        return ll_prefix(ll, name, status);
    }
    event_keep(job->event, &keeper);
    *event = job->event;
    free(job);
    manner->job = NULL;
    return EXPAR_OK;
}

/* ---- on the buffer's own thread ---------------------------------------------------------------------------------- */

/* Without an event. */
static expar_status job_make(expar_ll *ll, const char *name, ll_job **out)
{
    ll_job *job = calloc(1, sizeof *job);
    if (!job) return error_set(EXPAR_ERR_MEMORY, "no memory for an asynchronous call");
    *out = job;
    job->ll = ll;
    job->name = name;
    if (ll->issuer || ll->exec->ops->streams) return EXPAR_OK;
    expar_status status = ep_issuer_start(&ll->issuer);
    if (status == EXPAR_OK) life_hold(&ll->life);
    return status;
}

expar_status ll_job_make(expar_ll *ll, const char *name, ll_job **out)
{
    expar_status status = job_make(ll, name, out);
    return status == EXPAR_OK ? event_create_for_call(&(*out)->event) : status;
}

/* The event has a reference of the caller's and one of the call's. */
void ll_job_free(ll_job *job)
{
    if (!job) return;
    if (job->event) {
        expar_event_destroy(job->event);
        expar_event_destroy(job->event);
    }
    free(job);
}

static expar_status job_run(void *issued)
{
    ll_job *job = issued;
    expar_status status = ll_check_poison(job->ll);
    if (status == EXPAR_OK) {
        const expar_status own = error_restore(&job->refused);
        status = ll_rest_send(job->ll, job->name, &job->rest, job->wait_event, own);
    }
    if (status == EXPAR_OK) status = ll_rest_receive(job->ll, job->name, &job->rest);
    ll_rest_drop(&job->rest);
    expar_event_destroy(job->wait_event);
    free(job);
    return status;
}

static void job_put(ll_job *job)
{
    job->job = (ep_issuer_job){.call = job, .event = job->event, .run = job_run};
    ep_issuer_put(job->ll->issuer, &job->job);
}

static expar_event *job_issue(ll_job *job, const ll_rest *rest, expar_event *wait_event)
{
    expar_event *event = job->event;
    job->rest = *rest;
    job->wait_event = wait_event;
    ll_rest_hold(rest);
    if (wait_event) event_retain(wait_event);
    job_put(job);
    return event;
}

/* The caller has its error; nobody has an event. False: it is to be told from here. */
static bool refusal_issue(expar_ll *ll, const char *name, const ll_rest *rest, const error_kept *refused)
{
    ll_job *job = NULL;
    if (job_make(ll, name, &job) != EXPAR_OK) {
        ll_job_free(job);
        return false;
    }
    job->refused = *refused;
    job->rest.kind = rest->kind;
    ll_rest_call(&job->rest)->number = ll_number_call(ll, name, job->rest.kind);
    job_put(job);
    return true;
}

/* ---- in the caller's --------------------------------------------------------------------------------------------- */

expar_status ll_carry_out(expar_ll *ll, const char *name, ll_rest *rest, ll_manner *manner, expar_status own,
                          expar_event **event)
{
    ll_call *call = ll_rest_call(rest);
    const bool streams = ll->exec->ops->streams;
    error_kept kept;
    if (own == EXPAR_OK && manner->job && !streams) {
        call->number = ll_number_call(ll, name, rest->kind);
        *event = job_issue(manner->job, rest, manner->wait_event);
        manner->job = NULL;
        return EXPAR_OK;
    }
    error_keep(&kept, own);
    if (own != EXPAR_OK && manner->by_itself && !streams && refusal_issue(ll, name, rest, &kept))
        return ll_prefix(ll, name, error_restore(&kept));
    expar_status status = ll_settle(ll, name);
    if (status != EXPAR_OK) return status;
    call->number = ll_number_call(ll, name, rest->kind);
    status = ll_rest_send(ll, name, rest, manner->wait_event, error_restore(&kept));
    if (status != EXPAR_OK) return status;
    if (manner->hook) {
        ll_hook_fill(manner->hook, rest);
        return EXPAR_OK;
    }
    status = ll_rest_receive(ll, name, rest);
    if (status == EXPAR_OK) status = ll_rest_earlier(ll, name, rest);
    return status == EXPAR_OK && manner->job ? job_tell(ll, name, rest, manner, event) : status;
}

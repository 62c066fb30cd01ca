/* SPDX-License-Identifier: Apache-2.0 */
/* A call's place on its stream. Work that the stream holds when the call is made comes before it, later work after it.
 * If graphs have calls of the buffer, the place is also the call's turn: it opens when the mover has begun.
 *
 * With the mover, its run has that place. A call that its caller carries out begins a run with the first step that
 * copies. For a call that another thread carries out, the caller's thread begins the run, before the call returns.
 * Without the mover a mark tells the host when earlier work has ended, and the call returns after its end. Then no
 * stream waits for the host, so none holds up the library's copies. */
#include "base/interrupt.h"
#include "exec/cuda/hosted/hosted.h"

#include <stdlib.h>

/* ---- its beginning ----------------------------------------------------------------------------------------------- */

static expar_status mark_stream(const hosted_executor *self, hosted_call *own, void *stream)
{
    if (self->mover.on) return EXPAR_OK;
    expar_status status = cuda_mark_make_in(self->device, stream, 0, &own->mark);
    /* Blocks beside the pool that were released before this call are free once the stream has come here. */
    if (status == EXPAR_OK) status = CUDA_CALL(EventRecord, gpu_fallback_event(self->core.fallback), stream);
    if (status == EXPAR_OK) gpu_fallback_settle(self->core.fallback, false);
    return status;
}

static expar_status reject_capture(void)
{
    return error_set(EXPAR_ERR_UNSUPPORTED,
                     "the stream is being captured; expected a stream that is not: where ranks do not map each other's "
                     "memory, a kernel tells the host of calls of graphs, and this rank has none, since it shares its "
                     "GPU with a thread of its process or cannot compile it");
}

/* As inside a node, hosts no longer count calls once one was captured, also if it is rejected. */
static expar_status take_stream(hosted_executor *self, exec_call *call)
{
    expar_status status = cuda_stream_capture(call->stream, &call->capture);
    if (status != EXPAR_OK) return status;
    call->captured = self->core.capturing = call->capture != 0;
    if (!call->captured) return mark_stream(self, call->own, call->stream);
    executor_cpu_note_graphs(self->inner);
    return self->mover.on ? EXPAR_OK : reject_capture();
}

expar_status hosted_check_sms(const hosted_executor *self, const char *name, int32_t asked)
{
    if (asked >= 0 && asked <= self->device->num_sms) return EXPAR_OK;
    return error_set(EXPAR_ERR_ARGUMENT, "%s is %d; expected 1 to the %d SMs of GPU %d, or 0", name, asked,
                     self->device->num_sms, self->device->index);
}

expar_status hosted_begin(executor *base, exec_call *call, void *stream)
{
    hosted_executor *self = hosted_of(base);
    expar_status status = gpu_check_stream(&self->core, stream);
    if (status != EXPAR_OK) return status;
    hosted_call *own = calloc(1, sizeof *own);
    if (!own) return error_set(EXPAR_ERR_MEMORY, "no memory for a call");
    call->own = own;
    call->stream = stream;
    self->core.called_on = stream;
    status = cuda_enter(self->device);
    if (status != EXPAR_OK) return status;
    status = take_stream(self, call);
    cuda_leave();
    /* A call that is rejected for its SMs is known to be captured. */
    return status == EXPAR_OK ? hosted_check_sms(self, "num_sms", call->num_sms) : status;
}

/* ---- its turn ---------------------------------------------------------------------------------------------------- */

expar_status hosted_look(const hosted_executor *self, int64_t *asked_ns)
{
    static const char what[] = "work on the call's stream";
    if (atomic_load_explicit(&self->core.halted, memory_order_relaxed))
        return error_set(EXPAR_ERR_ABORTED, "%s: the buffer has been abandoned", what);
    const expar_status status = sym_check(self->core.sym, what);
    return status == EXPAR_OK ? interrupt_look(asked_ns, what) : status;
}

static expar_status call_await_mark(const hosted_executor *self, hosted_call *own)
{
    expar_status status = EXPAR_OK;
    int64_t asked_ns = 0;
    for (int64_t looks = 0; status == EXPAR_OK && !own->ready; looks++) {
        if (looks > 0) gpu_rest_between(looks);
        status = cuda_mark_query(own->mark, &own->ready);
        if (status == EXPAR_OK && !own->ready) status = hosted_look(self, &asked_ns);
    }
    return status;
}

static expar_status begin_run(hosted_executor *self, const exec_call *call)
{
    hosted_call *own = call->own;
    if (own->run.number) return EXPAR_OK;
    if (!own->stage) hosted_stage_grow(self);
    return hosted_run_begin(self, call, &own->run);
}

expar_status hosted_await_inputs(hosted_executor *self, const exec_call *call)
{
    hosted_call *own = call->own;
    if (!self->mover.on) {
        if (!own->ready && !own->stage) hosted_stage_grow(self);
        return call_await_mark(self, own);
    }
    expar_status status = own->departed ? error_restore(&own->departing) : begin_run(self, call);
    if (status == EXPAR_OK) status = hosted_run_reach(self, &own->run);
    if (status == EXPAR_OK && !own->of_graph) hosted_replays_settle(self);
    return status;
}

/* A call that has a run has its turn when the stream comes to that. Any other stream serves as well, since calls follow
   each other as they were made. */
expar_status hosted_turn_begin(hosted_executor *self, exec_call *call, hosted_run *alone)
{
    const hosted_call *own = call->own;
    const exec_call other = {.stream = self->core.own_stream};
    const hosted_run *run = own && own->run.number ? &own->run : alone;
    *alone = (hosted_run){0};
    if (!self->core.base.in_turns) return EXPAR_OK;
    expar_status status = run == alone ? hosted_run_begin(self, &other, alone) : EXPAR_OK;
    if (status == EXPAR_OK) status = hosted_run_reach(self, run);
    if (status != EXPAR_OK) call->lost = true;
    if (status == EXPAR_OK && !(own && own->of_graph)) hosted_replays_settle(self);
    return status;
}

void hosted_turn_end(hosted_executor *self, hosted_run *alone)
{
    error_kept kept;
    error_save(&kept);
    hosted_run_end(self, alone);
    error_put_back(&kept);
}

/* The stream waits for the event, so that no SM does. */
static expar_status begin_run_after(hosted_executor *self, const exec_call *call, expar_event *event)
{
    const bool waits = event && event_on_stream(event, 0);
    const expar_status status = waits ? expar_event_stream_wait(event, call->stream) : EXPAR_OK;
    return status == EXPAR_OK ? begin_run(self, call) : status;
}

void hosted_depart(executor *base, exec_call *call, expar_event *event, event_keeper *keeper)
{
    hosted_executor *self = hosted_of(base);
    hosted_call *own = call->own;
    keeper->mark = NULL;
    if (!self->mover.on || !own) return;
    error_keep(&own->departing, begin_run_after(self, call, event));
    own->departed = true;
    keeper->mark = own->run.mark;
    if (keeper->mark) cuda_mark_hold(keeper->mark);
}

void hosted_pause(hosted_executor *self, hosted_call *own)
{
    if (!own->departed) hosted_run_end(self, &own->run);
}

expar_status hosted_break_off(hosted_executor *self, exec_call *call, expar_status status)
{
    hosted_call *own = call->own;
    error_kept kept;
    error_keep(&kept, status);
    if (status == EXPAR_ERR_CUDA || status == EXPAR_ERR_MEMORY) call->lost = true;
    /* The stream of a graph goes on when the failure has been kept (hosted_end). */
    if (!own->of_graph) hosted_run_end(self, &own->run);
    return error_restore(&kept);
}

/* ---- its end ----------------------------------------------------------------------------------------------------- */

expar_status hosted_end(executor *base, exec_call *call)
{
    hosted_executor *self = hosted_of(base);
    hosted_call *own = call->own;
    call->placed = false;
    call->own = NULL;
    if (!own) return EXPAR_OK;
    hosted_run_end(self, &own->run);
    hosted_copies_free(self, own);
    cuda_mark_give(own->mark);
    if (own->of_graph) return EXPAR_OK;
    if (call->captured) self->core.capturing = false;
    free(own);
    return EXPAR_OK;
}

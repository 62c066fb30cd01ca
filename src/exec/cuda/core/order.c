/* SPDX-License-Identifier: Apache-2.0 */
/* The order of calls. A rank's calls on one GPU follow each other, whatever buffers of the group and streams they use.
 * So two kernels that wait for peers never wait for each other's SMs. A call holds the order from before its first work
 * until after its last. Another thread's call, on another buffer, waits on the host. The call's thread has entered the
 * device for that time, so that its steps need not do so one by one (gpu_enter).
 *
 * Inside a capture the order becomes part of the graph. The first call waits for all that came before the graph's
 * launch, and the calls follow each other. All that comes after the launch waits for them. This rests on external event
 * nodes: the launch itself is the record, and a graph waits for the records before its launch
 * (docs/internals/gpu-calls.md). */
#include "exec/cuda/core/order.h"
#include "base/interrupt.h"
#include "group/group.h"

#include <stdlib.h>

/* A rank's orders, one for each GPU of its buffers. The group keeps them. They change as buffers are made and
   destroyed, which a rank does one at a time. */
struct gpu_orders {
    group_attachment attachment;
    gpu_order *first;
};

static expar_status make_events(gpu_order *order, const cuda_device *device)
{
    order->places = gpu_places_make();
    if (!order->places) return error_set(EXPAR_ERR_MEMORY, "CUDA executor: no memory");
    expar_status status = gpu_fallback_make(device, &order->fallback);
    if (status == EXPAR_OK) order->last = gpu_fallback_event(order->fallback);
    for (int i = 0; i < CAPTURES && status == EXPAR_OK; i++)
        status = CUDA_CALL(EventCreate, &order->captures[i].inner, CU_EVENT_NO_TIMING);
    return status;
}

static void order_destroy(gpu_order *order)
{
    for (int i = 0; i < CAPTURES; i++) {
        if (order->captures[i].inner) cuda_driver()->EventDestroy(order->captures[i].inner);
        if (order->captures[i].witness) cuda_driver()->StreamDestroy(order->captures[i].witness);
    }
    if (order->fallback) gpu_fallback_settle(order->fallback, true);
    gpu_fallback_drop(order->fallback);
    gpu_places_drop(order->places);
    pthread_mutex_destroy(&order->lock);
    free(order);
}

/* All buffers are destroyed before the group, so no order is left here. */
static void orders_end(group_attachment *attachment)
{
    free((gpu_orders *)attachment);
}

/* Returns the rank's orders; NULL: out of memory. */
static gpu_orders *orders_of(expar_group *group)
{
    gpu_orders *orders = (gpu_orders *)group_kept(group, orders_end);
    if (orders || !(orders = calloc(1, sizeof *orders))) return orders;
    orders->attachment.end = orders_end;
    group_keep(group, &orders->attachment);
    return orders;
}

expar_status gpu_order_hold(gpu_core *self)
{
    gpu_orders *orders = orders_of(self->group);
    gpu_order *order = orders ? orders->first : NULL;
    while (order && order->device != self->device->index)
        order = order->next;
    if (order) {
        order->references++;
        self->order = order;
        self->fallback = order->fallback;
        return EXPAR_OK;
    }
    order = orders ? calloc(1, sizeof *order) : NULL;
    if (!order) return error_set(EXPAR_ERR_MEMORY, "CUDA executor: no memory");
    pthread_mutex_init(&order->lock, NULL);
    expar_status status = make_events(order, self->device);
    if (status != EXPAR_OK) {
        order_destroy(order);
        return status;
    }
    order->device = self->device->index;
    order->references = 1;
    order->orders = orders;
    order->next = orders->first;
    self->order = orders->first = order;
    self->fallback = order->fallback;
    return EXPAR_OK;
}

void gpu_order_release(gpu_core *self)
{
    gpu_order *order = self->order;
    if (!order) return;
    self->order = NULL;
    if (--order->references) return;
    gpu_order **place = &order->orders->first;
    while (*place != order)
        place = &(*place)->next;
    *place = order->next;
    order_destroy(order);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* Streams are told apart by number. Addresses do not serve: a destroyed stream may have had the same one, and
   CU_STREAM_PER_THREAD is another stream in each thread. */
static expar_status follow_on_stream(gpu_core *self, const exec_call *call)
{
    gpu_order *order = self->order;
    unsigned long long number;
    gpu_order_settle(self, call);
    expar_status status = CUDA_CALL(StreamGetId, call->stream, &number);
    if (status != EXPAR_OK) return status;
    const uint64_t now = cuda_moment();
    bool follows = order->in_graphs || (order->has_last && order->last_stream != number);
    if (follows) status = CUDA_CALL(StreamWaitEvent, call->stream, order->last, 0);
    if (status != EXPAR_OK) return status;
    order->last_stream = number;
    gpu_places_note(order->places, number, now);
    return EXPAR_OK;
}

gpu_places *gpu_order_places(const gpu_order *order)
{
    return order->places;
}

expar_status gpu_join(executor *base, const exec_call *call, expar_event *event)
{
    cuda_mark_place place;
    const bool placed = !call->captured && event_place(event, &place);
    expar_status status = expar_event_stream_wait(event, call->stream);
    if (status == EXPAR_OK && placed) gpu_places_note(gpu_core_of(base)->order->places, place.stream, place.begun);
    return status;
}

/* Returns the earlier calls of the call's capture; NULL: it is the first there. */
static captured_calls *calls_before(gpu_order *order, const exec_call *call)
{
    for (int i = 0; i < CAPTURES; i++)
        if (order->captures[i].number == call->capture) return &order->captures[i];
    return NULL;
}

static expar_status make_stream(cu_stream *out)
{
    int mode;
    expar_status status = gpu_leave_captures(&mode);
    if (status != EXPAR_OK) return status;
    status = CUDA_CALL(StreamCreate, out, CU_STREAM_NON_BLOCKING);
    gpu_return_to_captures(mode);
    return status;
}

/* Finds a place for a new capture: one whose capture has ended. */
static expar_status place_for_capture(gpu_order *order, captured_calls **out)
{
    for (int i = 0; i < CAPTURES; i++) {
        captured_calls *place = &order->captures[i];
        int capturing = CU_CAPTURE_NONE;
        expar_status status = place->witness ? CUDA_CALL(StreamIsCapturing, place->witness, &capturing) : EXPAR_OK;
        if (status != EXPAR_OK) return status;
        if (capturing != CU_CAPTURE_NONE) continue;
        *out = place;
        return EXPAR_OK;
    }
    return error_set(
        EXPAR_ERR_STATE,
        "the stream is being captured while %d other captures with calls of this rank's on GPU %d have not "
        "ended; expected %d captures at a time at most",
        CAPTURES, order->device, CAPTURES);
}

/* Makes the place's own stream join the capture. The caller's stream then waits for it, since a capture can only end
   after each stream that joined it was waited for. */
static expar_status join_capture(captured_calls *place, cu_stream stream)
{
    expar_status status = place->witness ? EXPAR_OK : make_stream(&place->witness);
    if (status == EXPAR_OK) status = CUDA_CALL(EventRecord, place->inner, stream);
    if (status == EXPAR_OK) status = CUDA_CALL(StreamWaitEvent, place->witness, place->inner, 0);
    if (status == EXPAR_OK) status = CUDA_CALL(EventRecord, place->inner, place->witness);
    return status == EXPAR_OK ? CUDA_CALL(StreamWaitEvent, stream, place->inner, 0) : status;
}

static expar_status follow_captured(gpu_core *self, const exec_call *call)
{
    gpu_order *order = self->order;
    const cu_stream stream = call->stream;
    const captured_calls *before = calls_before(order, call);
    /* On the same stream the graph has that edge already. */
    if (before) return CUDA_CALL(StreamWaitEvent, stream, before->inner, 0);
    captured_calls *place;
    expar_status status = place_for_capture(order, &place);
    if (status == EXPAR_OK) status = CUDA_CALL(StreamWaitEvent, stream, order->last, CU_EVENT_EXTERNAL);
    if (status == EXPAR_OK) status = join_capture(place, stream);
    if (status == EXPAR_OK) place->number = call->capture;
    return status;
}

static expar_status end_captured(const gpu_core *self, const exec_call *call)
{
    gpu_order *order = self->order;
    const cu_stream stream = call->stream;
    order->in_graphs = true;
    expar_status status = CUDA_CALL(EventRecord, calls_before(order, call)->inner, stream);
    return status == EXPAR_OK ? CUDA_CALL(EventRecordWithFlags, order->last, stream, CU_EVENT_EXTERNAL) : status;
}

static bool is_default(const void *stream)
{
    return !stream || stream == CU_SHARED_STREAM;
}

expar_status gpu_check_stream(const gpu_core *self, const void *stream)
{
    if (!is_default(stream) || !self->with_threads) return EXPAR_OK;
    return error_set(EXPAR_ERR_ARGUMENT,
                     "stream is the default one, which ranks of one process share; expected a stream of its own");
}

expar_status gpu_begin(executor *base, exec_call *call, void *stream)
{
    gpu_core *self = gpu_core_of(base);
    int capturing = CU_CAPTURE_NONE;
    self->begun++;
    expar_status status = gpu_check_stream(self, stream);
    if (status == EXPAR_OK) status = cuda_enter(self->device);
    if (status != EXPAR_OK) return status;
    call->stream = stream;
    status = CUDA_CALL(StreamGetCaptureInfo, call->stream, &capturing, &call->capture, NULL, NULL, NULL);
    cuda_leave();
    call->captured = status == EXPAR_OK && capturing != CU_CAPTURE_NONE;
    call->has_stream = status == EXPAR_OK;
    self->capturing = call->captured;
    self->called_on = stream;
    const int32_t asked = call->num_sms;
    if (status != EXPAR_OK || (asked >= 0 && asked <= self->most_sms)) return status;
    /* The call that reports this error to the others uses the buffer's number. */
    call->num_sms = 0;
    return error_set(EXPAR_ERR_ARGUMENT,
                     "num_sms is %d; expected 1 to %d, or 0 for the buffer's %d: this rank's share of GPU %d", asked,
                     self->most_sms, self->num_sms, self->device->index);
}

/* Says whether the stream itself may wait for the event. Where ranks share a GPU, that wait could be held up by another
   rank's kernel (waiting.c, "ranks that share a GPU"). There the host waits instead. */
bool gpu_follows(const executor *base, const exec_call *call, expar_event *event)
{
    bool shares = ((const gpu_core *)base)->shares_gpu && !call->captured;
    return call->has_stream && !shares && event_on_stream(event, call->captured ? call->capture : 0);
}

expar_status gpu_order_enter(gpu_core *self, exec_call *call)
{
    /* Another thread of this rank may hold the lock in a call, and wait for its counts. */
    expar_status status = interrupt_lock(&self->order->lock, "this rank's calls before");
    if (status != EXPAR_OK) return status;
    status = cuda_enter(self->device);
    if (status == EXPAR_OK) {
        status = call->captured ? follow_captured(self, call) : follow_on_stream(self, call);
        if (status != EXPAR_OK) cuda_leave();
    }
    call->placed = status == EXPAR_OK;
    if (!call->placed) pthread_mutex_unlock(&self->order->lock);
    return status;
}

expar_status gpu_enter(const gpu_core *self, const exec_call *call)
{
    return call->placed ? EXPAR_OK : cuda_enter(self->device);
}

void gpu_leave(const exec_call *call)
{
    if (!call->placed) cuda_leave();
}

expar_status gpu_take_place(executor *base, exec_call *call)
{
    gpu_core *self = gpu_core_of(base);
    if (call->placed) return EXPAR_OK;
    const expar_status status = gpu_order_enter(self, call);
    if (status == EXPAR_OK) gpu_guard_note_begin(self);
    return status;
}

/* Kernels carry calls out, so no thread needs to. */
void gpu_depart(executor *base, exec_call *call, expar_event *event, event_keeper *keeper)
{
    (void)base, (void)call, (void)event;
    keeper->mark = NULL;
}

/* Captured kernels are in the graph, so the host has no part in it. */
expar_status gpu_record(executor *base, const exec_call *call, expar_event *event, exec_replay *replay)
{
    (void)base, (void)call, (void)event, (void)replay;
    return error_set(EXPAR_ERR_STATE, "a graph needs no host for calls that kernels carry out");
}

expar_status gpu_own_stream_make(gpu_core *self)
{
    if (self->own_stream) return EXPAR_OK;
    expar_status status = cuda_enter(self->device);
    if (status != EXPAR_OK) return status;
    status = make_stream(&self->own_stream);
    cuda_leave();
    return status;
}

expar_status gpu_own_stream_await(gpu_core *self)
{
    expar_status status = gpu_stream_await(self->device, self->own_stream, "the buffer's memory");
    self->unsettled |= status != EXPAR_OK;
    return status;
}

expar_status gpu_place_rejected(gpu_core *self, exec_call *call)
{
    if (call->has_stream) return gpu_take_place(&self->base, call);
    call->asked = true;
    expar_status status = gpu_begin(&self->base, call, self->own_stream);
    return status == EXPAR_OK ? gpu_take_place(&self->base, call) : status;
}

/* Marks the end of a call. Call it after the call's last step: later calls of this rank follow from here. */
static expar_status mark(gpu_core *self, const exec_call *call)
{
    gpu_order *order = self->order;
    order->has_last |= !call->captured;
    return call->captured ? end_captured(self, call) : CUDA_CALL(EventRecord, order->last, call->stream);
}

expar_status gpu_order_leave(gpu_core *self, exec_call *call)
{
    const expar_status status = mark(self, call);
    cuda_leave();
    call->placed = false;
    if (!call->captured) gpu_fallback_settle(self->fallback, false);
    pthread_mutex_unlock(&self->order->lock);
    return status;
}

expar_status gpu_end(executor *base, exec_call *call)
{
    gpu_core *self = gpu_core_of(base);
    self->capturing = false;
    self->called_on = NULL;
    /* Rejected calls in a capture count, too: only the host counts them. */
    if (call->captured) gpu_guard_note_captured(self);
    if (!call->placed) return EXPAR_OK;
    const expar_status status = gpu_order_leave(self, call);
    gpu_guard_note_end(self);
    return status;
}

/* ---- calls of the driver that wait for kernels ------------------------------------------------------------------- */

void gpu_order_close(gpu_order *order)
{
    pthread_mutex_lock(&order->lock);
}

bool gpu_order_try_close(gpu_order *order)
{
    return pthread_mutex_trylock(&order->lock) == 0;
}

void gpu_order_open(gpu_order *order)
{
    pthread_mutex_unlock(&order->lock);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Marks: places on streams, by the driver's events. When a mark is given back, its event is kept for the next mark of
 * its context. The last holder may be a function that the driver calls, which must not call the driver. Also, making an
 * event takes longer than a warm call may. */
#include "cuda/parts.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

struct cuda_mark {
    cu_context context;
    /* number of the context: another one may get its address once it has gone, with its events */
    unsigned long long number;
    cu_event event;
    unsigned long long capture; /* number of the capture that its stream was in; 0: none */
    cuda_mark_place place;
    atomic_int holders; /* references; the thread that drops the last one (acq_rel) keeps the mark for the next user */
    cuda_mark *next;    /* in the holder's list, later in that of kept marks */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cuda_mark *kept; /* guarded by lock: marks that were given back */
/* The next moment. Relaxed: the driver's own locks order the records on one stream. */
static _Atomic uint64_t moments = 1;

uint64_t cuda_moment(void)
{
    return atomic_fetch_add_explicit(&moments, 1, memory_order_relaxed);
}

/* ---- contexts ---------------------------------------------------------------------------------------------------- */

/* Returns whether it is a name of a default stream, which belongs to whatever context is current. */
static bool names_default(const void *stream)
{
    return (uintptr_t)stream <= (uintptr_t)CU_THREADS_STREAM;
}

bool cuda_context_is_current(void)
{
    typedef cu_result (*current_fn)(cu_context * context);
    current_fn current;
    cu_context found = NULL;
    void *library = dlopen(CUDA_DRIVER_LIBRARY, RTLD_NOW | RTLD_NOLOAD);
    if (!library) return false;
    bool is = cuda_symbol_find(library, "cuCtxGetCurrent", &current) && current(&found) == CU_OK && found;
    dlclose(library);
    return is;
}

bool cuda_current_bus_id(char bus_id[32])
{
    cu_device device;
    return cuda_context_is_current() && cuda_open() == EXPAR_OK && cuda_driver()->CtxGetDevice(&device) == CU_OK &&
           cuda_driver()->DeviceGetPCIBusId(bus_id, 32, device) == CU_OK;
}

expar_status cuda_enter_stream(void *stream)
{
    cu_context context = NULL;
    expar_status status = cuda_open();
    if (status == EXPAR_OK) status = CUDA_CALL(StreamGetCtx, stream, &context);
    return status == EXPAR_OK ? CUDA_CALL(CtxPushCurrent, context) : status;
}

static bool is_current(int32_t index)
{
    cu_device wanted, current;
    return cuda_driver()->CtxGetDevice(&current) == CU_OK && cuda_driver()->DeviceGet(&wanted, index) == CU_OK &&
           current == wanted;
}

expar_status cuda_stream_capture(void *stream, unsigned long long *capture)
{
    int capturing = CU_CAPTURE_NONE;
    *capture = 0;
    expar_status status = CUDA_CALL(StreamGetCaptureInfo, stream, &capturing, capture, NULL, NULL, NULL);
    if (capturing == CU_CAPTURE_NONE) *capture = 0;
    return status;
}

/* Calls of this thread between the two functions are in no stream's order, so that no capture forbids them. */
static expar_status leave_captures(int *mode)
{
    *mode = CU_CAPTURE_RELAXED;
    return CUDA_CALL(ThreadExchangeStreamCaptureMode, mode);
}

static void return_to_captures(int mode)
{
    cuda_driver()->ThreadExchangeStreamCaptureMode(&mode);
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

/* Finds a kept mark. Marks of an earlier context at this address are dropped: their events have gone with it. */
static cuda_mark *find_kept(cu_context context, unsigned long long number)
{
    cuda_mark *found = NULL;
    pthread_mutex_lock(&lock);
    for (cuda_mark **place = &kept; *place && !found;) {
        cuda_mark *one = *place;
        if (one->context != context) {
            place = &one->next;
            continue;
        }
        *place = one->next;
        if (one->number == number)
            found = one;
        else
            free(one);
    }
    pthread_mutex_unlock(&lock);
    return found;
}

/* The context must be current. */
static expar_status mark_new(cu_context context, unsigned long long number, cuda_mark **out)
{
    int mode;
    cuda_mark *self = calloc(1, sizeof *self);
    if (!self) return error_set(EXPAR_ERR_MEMORY, "no memory for an event");
    self->context = context;
    self->number = number;
    expar_status status = leave_captures(&mode);
    if (status == EXPAR_OK) {
        status = CUDA_CALL(EventCreate, &self->event, CU_EVENT_NO_TIMING);
        return_to_captures(mode);
    }
    if (status != EXPAR_OK) {
        free(self);
        return status;
    }
    *out = self;
    return EXPAR_OK;
}

/* capture: the stream's, 0 for none. */
static expar_status mark_of_current(cu_context context, void *stream, unsigned long long capture, cuda_mark **out)
{
    unsigned long long number;
    cuda_mark *self = NULL;
    expar_status status = CUDA_CALL(CtxGetId, context, &number);
    if (status == EXPAR_OK) self = find_kept(context, number);
    if (status == EXPAR_OK && !self) status = mark_new(context, number, &self);
    if (status != EXPAR_OK) return status;
    atomic_init(&self->holders, 1);
    self->capture = capture;
    status = CUDA_CALL(StreamGetId, stream, &self->place.stream);
    if (status == EXPAR_OK) self->place.begun = cuda_moment();
    if (status == EXPAR_OK) status = CUDA_CALL(EventRecord, self->event, stream);
    if (status != EXPAR_OK) {
        cuda_mark_give(self);
        return status;
    }
    self->place.made = cuda_moment();
    self->next = NULL;
    *out = self;
    return EXPAR_OK;
}

expar_status cuda_mark_make(void *stream, cuda_mark **out)
{
    cu_context context = NULL;
    unsigned long long capture;
    expar_status status = cuda_open();
    if (status == EXPAR_OK) status = CUDA_CALL(StreamGetCtx, stream, &context);
    if (status == EXPAR_OK) status = CUDA_CALL(CtxPushCurrent, context);
    if (status != EXPAR_OK) return status;
    status = cuda_stream_capture(stream, &capture);
    if (status == EXPAR_OK) status = mark_of_current(context, stream, capture, out);
    cuda_leave();
    return status;
}

expar_status cuda_mark_make_in(const cuda_device *device, void *stream, unsigned long long capture, cuda_mark **out)
{
    return mark_of_current(device->context, stream, capture, out);
}

/* Returns the stream's context, which is entered then. opened: as in cuda_enter_stream_on. */
static expar_status enter_context_of(int32_t device, void *stream, cuda_device **opened, cu_context *context)
{
    expar_status status = cuda_open();
    if (status != EXPAR_OK) return status;
    if (!names_default(stream) || is_current(device)) {
        status = CUDA_CALL(StreamGetCtx, stream, context);
    } else {
        status = cuda_device_open(device, opened);
        if (status == EXPAR_OK) *context = (*opened)->context;
    }
    return status == EXPAR_OK ? CUDA_CALL(CtxPushCurrent, *context) : status;
}

expar_status cuda_enter_stream_on(int32_t device, void *stream, cuda_device **opened)
{
    cu_context context;
    *opened = NULL;
    return enter_context_of(device, stream, opened, &context);
}

expar_status cuda_mark_make_on(int32_t device, void *stream, cuda_mark **out)
{
    cuda_device *opened = NULL;
    cu_context context;
    unsigned long long capture;
    *out = NULL;
    expar_status status = enter_context_of(device, stream, &opened, &context);
    if (status == EXPAR_OK) {
        status = cuda_stream_capture(stream, &capture);
        if (status == EXPAR_OK && !capture) status = mark_of_current(context, stream, 0, out);
        cuda_leave();
    }
    cuda_device_close(opened);
    return status;
}

void cuda_mark_hold(cuda_mark *self)
{
    atomic_fetch_add_explicit(&self->holders, 1, memory_order_relaxed);
}

void cuda_mark_give(cuda_mark *self)
{
    if (!self || atomic_fetch_sub_explicit(&self->holders, 1, memory_order_acq_rel) != 1) return;
    pthread_mutex_lock(&lock);
    self->next = kept;
    kept = self;
    pthread_mutex_unlock(&lock);
}

/* ---- using ------------------------------------------------------------------------------------------------------- */

/* The mark's event exists as long as its context. */
static expar_status mark_check(const cuda_mark *self)
{
    unsigned long long number = 0;
    expar_status status = CUDA_CALL(CtxGetId, self->context, &number);
    if (status != EXPAR_OK || number == self->number) return status;
    return error_set(EXPAR_ERR_CUDA, "the event's CUDA context was destroyed");
}

cuda_mark_place cuda_mark_place_of(const cuda_mark *self)
{
    return self->place;
}

void cuda_mark_link(cuda_mark *self, cuda_mark *next)
{
    self->next = next;
}

cuda_mark *cuda_mark_next(const cuda_mark *self)
{
    return self->next;
}

unsigned long long cuda_mark_capture(const cuda_mark *self)
{
    return self->capture;
}

expar_status cuda_mark_query(const cuda_mark *self, bool *passed)
{
    int mode;
    if (self->capture)
        return error_set(EXPAR_ERR_STATE, "the event was recorded while its stream was being captured, where nothing "
                                          "runs; expected expar_event_stream_wait in the same capture");
    expar_status status = mark_check(self);
    if (status == EXPAR_OK) status = CUDA_CALL(CtxPushCurrent, self->context);
    if (status != EXPAR_OK) return status;
    status = leave_captures(&mode);
    if (status == EXPAR_OK) {
        cu_result result = cuda_driver()->EventQuery(self->event);
        return_to_captures(mode);
        *passed = result == CU_OK;
        if (result != CU_OK && result != CU_ERROR_NOT_READY)
            status = cuda_status(result, __FILE__, __LINE__, "cuEventQuery");
    }
    cuda_leave();
    return status;
}

/* The context must be current. A graph cannot wait for a mark that is in no graph, or in another one. */
static expar_status mark_follow(const cuda_mark *self, void *stream)
{
    unsigned long long capture;
    bool passed = false;
    expar_status status = cuda_stream_capture(stream, &capture);
    if (status != EXPAR_OK) return status;
    if (!capture || capture == self->capture) return CUDA_CALL(StreamWaitEvent, stream, self->event, 0);
    if (!self->capture) status = cuda_mark_query(self, &passed);
    if (status != EXPAR_OK || passed) return status;
    return error_set(EXPAR_ERR_STATE,
                     "the stream is being captured, and the event is not of that capture; expected one "
                     "recorded there, or one that has happened");
}

expar_status cuda_mark_follow(const cuda_mark *self, void *stream)
{
    expar_status status = mark_check(self);
    if (status == EXPAR_OK)
        status = names_default(stream) ? CUDA_CALL(CtxPushCurrent, self->context) : cuda_enter_stream(stream);
    if (status != EXPAR_OK) return status;
    status = mark_follow(self, stream);
    cuda_leave();
    return status;
}

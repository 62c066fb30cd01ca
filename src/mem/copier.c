/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of the host on streams of the library's own. */
#include "mem/copier.h"
#include "base/knobs.h"
#include "mem/device.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The lanes. Streams share the GPU's queues with those of the caller, so there are few. Copies from device memory to
   device memory may take a kernel of the driver, and wait for SMs. So they have a lane of their own, and delay no
   others. */
enum { FIRST_LANE, SECOND_LANE, DEVICE_LANE, OWN_LANE, NUM_LANES };

struct mem_lane {
    const cuda_device *device;
    mem_registry *registry; /* may be NULL */
    cu_stream stream;
    /* both pieces, one after the other */
    mem_pinned pinned;
    uint64_t piece_bytes;
    /* recorded after the last copy from or to each piece */
    cu_event events[MEM_LANE_PIECES];
    bool taken;
};

struct mem_copier {
    cuda_device *device;
    mem_registry *registry; /* may be NULL */
    pthread_mutex_t lock;
    pthread_cond_t returned;
    /* `taken` is guarded by lock; OWN_LANE is mem_copier_own_lane's */
    mem_lane lanes[NUM_LANES];
};

/* ---- making and end ---------------------------------------------------------------------------------------------- */

/* The device has been entered. */
static expar_status lane_open(mem_lane *lane, const cuda_device *device)
{
    lane->device = device;
    lane->piece_bytes = (uint64_t)knob(KNOB_COPY_PIECE_BYTES);
    expar_status status = mem_pinned_create(MEM_LANE_PIECES * lane->piece_bytes, &lane->pinned);
    if (status == EXPAR_OK) status = CUDA_CALL(StreamCreate, &lane->stream, CU_STREAM_NON_BLOCKING);
    for (int i = 0; i < MEM_LANE_PIECES && status == EXPAR_OK; i++)
        status = CUDA_CALL(EventCreate, &lane->events[i], CU_EVENT_NO_TIMING);
    return status;
}

static void lane_close(mem_lane *lane)
{
    for (int i = 0; i < MEM_LANE_PIECES; i++)
        if (lane->events[i]) cuda_driver()->EventDestroy(lane->events[i]);
    if (lane->stream) cuda_driver()->StreamDestroy(lane->stream);
    mem_pinned_free(&lane->pinned);
}

expar_status mem_copier_create(int32_t index, mem_registry *registry, mem_copier **out)
{
    mem_copier *self = calloc(1, sizeof *self);
    if (!self) return error_set(EXPAR_ERR_MEMORY, "no memory");
    pthread_mutex_init(&self->lock, NULL);
    pthread_cond_init(&self->returned, NULL);
    expar_status status = cuda_device_open(index, &self->device);
    if (status == EXPAR_OK && (status = cuda_enter(self->device)) == EXPAR_OK) {
        for (int i = 0; i < NUM_LANES && status == EXPAR_OK; i++) {
            self->lanes[i].registry = registry;
            status = lane_open(&self->lanes[i], self->device);
        }
        cuda_leave();
    }
    if (status == EXPAR_OK && registry) {
        self->registry = registry;
        mem_registry_pin(registry, self->device);
    }
    if (status == EXPAR_OK)
        *out = self;
    else
        mem_copier_destroy(self);
    return status;
}

void mem_copier_destroy(mem_copier *self)
{
    if (!self) return;
    if (self->registry) mem_registry_unpin(self->registry);
    if (self->device && cuda_enter(self->device) == EXPAR_OK) {
        for (int i = 0; i < NUM_LANES; i++)
            lane_close(&self->lanes[i]);
        cuda_leave();
    }
    cuda_device_close(self->device);
    pthread_cond_destroy(&self->returned);
    pthread_mutex_destroy(&self->lock);
    free(self);
}

/* ---- lanes ------------------------------------------------------------------------------------------------------- */

/* Takes one of the lanes first to last; waits until there is one. */
static mem_lane *borrow_among(mem_copier *self, int first, int last)
{
    mem_lane *found = NULL;
    pthread_mutex_lock(&self->lock);
    while (!found) {
        for (int i = first; i <= last && !found; i++)
            if (!self->lanes[i].taken) found = &self->lanes[i];
        if (!found) pthread_cond_wait(&self->returned, &self->lock);
    }
    found->taken = true;
    pthread_mutex_unlock(&self->lock);
    return found;
}

mem_lane *mem_copier_borrow(mem_copier *self)
{
    return borrow_among(self, FIRST_LANE, SECOND_LANE);
}

void mem_copier_return(mem_copier *self, mem_lane *lane)
{
    pthread_mutex_lock(&self->lock);
    lane->taken = false;
    pthread_cond_broadcast(&self->returned); /* threads wait for different lanes */
    pthread_mutex_unlock(&self->lock);
}

mem_lane *mem_copier_own_lane(mem_copier *self)
{
    return &self->lanes[OWN_LANE];
}

mem_side mem_lane_piece(const mem_lane *lane, int32_t number, uint64_t *bytes)
{
    *bytes = lane->piece_bytes;
    return (mem_side){.at = (uint8_t *)lane->pinned.host + (uint64_t)number * lane->piece_bytes, .kind = MEM_PINNED};
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

void mem_copier_rest(int64_t looks)
{
    const int64_t yields = knob(KNOB_CUDA_STREAM_LOOKS);
    if (looks < yields)
        sched_yield();
    else
        nanosleep(&(struct timespec){.tv_nsec = knob(KNOB_CUDA_STREAM_SLEEP_NS)}, NULL);
}

/* Waits until the copies before the event have ended. */
static expar_status await_copies(cu_event event)
{
    cu_result result;
    for (int64_t looks = 0; (result = cuda_driver()->EventQuery(event)) == CU_ERROR_NOT_READY; looks++)
        mem_copier_rest(looks);
    return cuda_status(result, __FILE__, __LINE__, "cuEventQuery");
}

static expar_status put_copy(const mem_lane *lane, void *dest, const void *source, uint64_t bytes)
{
    return CUDA_CALL(MemcpyAsync, (cu_address)(uintptr_t)dest, (cu_address)(uintptr_t)source, bytes, lane->stream);
}

static expar_status start_copy(const mem_lane *lane, int number, void *dest, const void *source, uint64_t bytes)
{
    expar_status status = put_copy(lane, dest, source, bytes);
    return status == EXPAR_OK ? CUDA_CALL(EventRecord, lane->events[number], lane->stream) : status;
}

/* Returns how many of the bytes lie in one registration of that side's memory. */
static uint64_t registered_bytes(mem_side side, uint64_t bytes)
{
    const uint64_t left = MEM_REGISTERED_UNIT - (uintptr_t)side.at % MEM_REGISTERED_UNIT;
    return side.kind == MEM_PINNED && left < bytes ? left : bytes;
}

/* The driver rejects a copy whose host memory lies in two registrations. */
static expar_status start_whole(const mem_lane *lane, mem_side dest, mem_side source, uint64_t bytes)
{
    expar_status status = EXPAR_OK;
    while (bytes > 0 && status == EXPAR_OK) {
        const uint64_t part = registered_bytes(dest, registered_bytes(source, bytes));
        status = put_copy(lane, dest.at, source.at, part);
        dest = mem_side_after(dest, part);
        source = mem_side_after(source, part);
        bytes -= part;
    }
    return status == EXPAR_OK ? CUDA_CALL(EventRecord, lane->events[0], lane->stream) : status;
}

static uint64_t copier_piece_at(const mem_lane *lane, uint64_t bytes, uint64_t at)
{
    return bytes - at < lane->piece_bytes ? bytes - at : lane->piece_bytes;
}

static void *copier_piece(const mem_lane *lane, uint64_t number, int *event)
{
    *event = (int)(number % MEM_LANE_PIECES);
    return (uint8_t *)lane->pinned.host + (uint64_t)*event * lane->piece_bytes;
}

/* The CPU fills one piece while the driver empties the other one. */
static expar_status push_pieces(const mem_lane *lane, void *dest, const void *source, uint64_t bytes)
{
    expar_status status = EXPAR_OK;
    uint64_t number = 0;
    int event = 0;
    for (uint64_t at = 0; at < bytes && status == EXPAR_OK; at += lane->piece_bytes, number++) {
        void *piece = copier_piece(lane, number, &event);
        if (number >= MEM_LANE_PIECES) status = await_copies(lane->events[event]);
        if (status != EXPAR_OK) break;
        memcpy(piece, (const uint8_t *)source + at, copier_piece_at(lane, bytes, at));
        status = start_copy(lane, event, (uint8_t *)dest + at, piece, copier_piece_at(lane, bytes, at));
    }
    /* The stream's last event covers both pieces. */
    return status == EXPAR_OK ? await_copies(lane->events[event]) : status;
}

/* The driver fills one piece while the CPU empties the other one. */
static expar_status pull_pieces(const mem_lane *lane, void *dest, const void *source, uint64_t bytes)
{
    expar_status status = EXPAR_OK;
    uint64_t started = 0;
    int event;
    for (uint64_t at = 0, number = 0; at < bytes && status == EXPAR_OK; at += lane->piece_bytes, number++) {
        while (started < bytes && started < at + MEM_LANE_PIECES * lane->piece_bytes && status == EXPAR_OK) {
            void *next = copier_piece(lane, started / lane->piece_bytes, &event);
            status =
                start_copy(lane, event, next, (const uint8_t *)source + started, copier_piece_at(lane, bytes, started));
            started += lane->piece_bytes;
        }
        const void *piece = copier_piece(lane, number, &event);
        if (status == EXPAR_OK) status = await_copies(lane->events[event]);
        if (status == EXPAR_OK) memcpy((uint8_t *)dest + at, piece, copier_piece_at(lane, bytes, at));
    }
    return status;
}

/* Part of a copy: all of its host side is pinned, or nothing. */
static expar_status copy_part(const mem_lane *lane, mem_side dest, mem_side source, uint64_t bytes)
{
    if (source.kind == MEM_PAGEABLE) return push_pieces(lane, dest.at, source.at, bytes);
    if (dest.kind == MEM_PAGEABLE) return pull_pieces(lane, dest.at, source.at, bytes);
    expar_status status = start_whole(lane, dest, source, bytes);
    return status == EXPAR_OK ? await_copies(lane->events[0]) : status;
}

/* Returns how many bytes, from the address on, are alike: pinned or not. */
static uint64_t alike_bytes(const mem_pinned_range *pinned, uintptr_t at, bool *is_pinned)
{
    *is_pinned = at >= pinned->begin && at < pinned->end;
    if (*is_pinned) return pinned->end - at;
    return at < pinned->begin ? pinned->begin - at : UINT64_MAX;
}

/* The first and the last page of registered memory may be pageable. */
static expar_status copy_registered(const mem_lane *lane, mem_side dest, mem_side source, uint64_t bytes,
                                    const mem_pinned_range *pinned)
{
    expar_status status = EXPAR_OK;
    mem_side *host = source.kind == MEM_PAGEABLE ? &source : &dest;
    while (bytes > 0 && status == EXPAR_OK) {
        bool is_pinned;
        const uint64_t alike = alike_bytes(pinned, (uintptr_t)host->at, &is_pinned);
        const uint64_t part = alike < bytes ? alike : bytes;
        host->kind = is_pinned ? MEM_PINNED : MEM_PAGEABLE;
        status = copy_part(lane, dest, source, part);
        dest = mem_side_after(dest, part);
        source = mem_side_after(source, part);
        bytes -= part;
    }
    return status;
}

static expar_status copy_entered(const mem_lane *lane, mem_side dest, mem_side source, uint64_t bytes)
{
    mem_pinned_range pinned;
    const bool pageable = source.kind == MEM_PAGEABLE || dest.kind == MEM_PAGEABLE;
    const void *host = source.kind == MEM_PAGEABLE ? source.at : dest.at;
    mem_registered *registered = pageable ? mem_registry_enter(lane->registry, host, bytes, &pinned) : NULL;
    if (!registered) return copy_part(lane, dest, source, bytes);
    expar_status status = copy_registered(lane, dest, source, bytes, &pinned);
    mem_registry_leave(lane->registry, registered);
    return status;
}

/* Copies if both sides are memory of the CPU. */
static bool copied_by_cpu(mem_side dest, mem_side source, uint64_t bytes)
{
    if (dest.kind == MEM_DEVICE || source.kind == MEM_DEVICE) return false;
    memcpy(dest.at, source.at, bytes);
    return true;
}

expar_status mem_lane_copy(mem_lane *lane, mem_side dest, mem_side source, uint64_t bytes)
{
    int mode = CU_CAPTURE_RELAXED;
    if (bytes == 0 || copied_by_cpu(dest, source, bytes)) return EXPAR_OK;
    expar_status status = cuda_enter(lane->device);
    if (status != EXPAR_OK) return status;
    /* The stream is in no capture, so no capture of the caller's forbids the calls. */
    status = CUDA_CALL(ThreadExchangeStreamCaptureMode, &mode);
    if (status == EXPAR_OK) {
        status = copy_entered(lane, dest, source, bytes);
        cuda_driver()->ThreadExchangeStreamCaptureMode(&mode);
    }
    cuda_leave();
    return status;
}

expar_status mem_copier_copy(mem_copier *self, mem_side dest, mem_side source, uint64_t bytes)
{
    if (bytes == 0 || copied_by_cpu(dest, source, bytes)) return EXPAR_OK;
    const bool inside = dest.kind == MEM_DEVICE && source.kind == MEM_DEVICE;
    mem_lane *lane = inside ? borrow_among(self, DEVICE_LANE, DEVICE_LANE) : mem_copier_borrow(self);
    expar_status status = mem_lane_copy(lane, dest, source, bytes);
    mem_copier_return(self, lane);
    return status;
}

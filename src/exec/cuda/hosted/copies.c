/* SPDX-License-Identifier: Apache-2.0 */
/* Host copies of memory on the GPU, and the copies from and to it. The mover makes these between the GPU and pinned
 * memory, and from one place on the GPU to another one. Rows of other host memory pass through the run's bounce buffer.
 * Without the mover a stream of the executor's own makes the copies. Nothing on that stream waits: the host waits for
 * the inputs before it puts a copy there. */
#include "base/interrupt.h"
#include "exec/cuda/hosted/hosted.h"

#include <stdlib.h>
#include <string.h>

/* Without the mover, rows that are further apart than so many row lengths are copied one by one, others with what lies
   between them. */
enum { MOST_SPREAD = 4 };

/* Rows to copy. Those on the host lie one after the other. */
typedef struct moved_rows {
    bool to_host;
    uint8_t *device, *host;
    uint64_t rows, row_bytes, pitch_bytes; /* pitch: on the GPU */
} moved_rows;

/* ---- by a stream ------------------------------------------------------------------------------------------------- */

static expar_status enqueue(const hosted_executor *self, const moved_rows *what, uint64_t row)
{
    const cu_stream stream = self->core.own_stream;
    const cu_address device = (cu_address)(uintptr_t)(what->device + row * what->pitch_bytes);
    uint8_t *host = what->host + row * what->row_bytes;
    if (what->to_host) return CUDA_CALL(MemcpyDtoHAsync, host, device, what->row_bytes, stream);
    return CUDA_CALL(MemcpyHtoDAsync, device, host, what->row_bytes, stream);
}

/* The stream is in no capture, but this thread may be capturing another one. */
static expar_status copy_by_stream(const hosted_executor *self, const moved_rows *what)
{
    int mode;
    expar_status status = cuda_enter(self->device);
    if (status != EXPAR_OK) return status;
    status = gpu_leave_captures(&mode);
    if (status == EXPAR_OK) {
        for (uint64_t row = 0; row < what->rows && status == EXPAR_OK; row++)
            status = enqueue(self, what, row);
        gpu_return_to_captures(mode);
    }
    cuda_leave();
    return status;
}

/* ---- by the mover ------------------------------------------------------------------------------------------------ */

/* `host` is pinned. */
static expar_status copy_by_mover(const hosted_step *step, const moved_rows *what)
{
    const uint64_t device = (uint64_t)(uintptr_t)what->device, host = (uint64_t)(uintptr_t)what->host;
    const mover_command command = {.dest = what->to_host ? host : device,
                                   .source = what->to_host ? device : host,
                                   .rows = what->rows,
                                   .row_bytes = what->row_bytes,
                                   .dest_pitch = what->to_host ? what->row_bytes : what->pitch_bytes,
                                   .source_pitch = what->to_host ? what->pitch_bytes : what->row_bytes,
                                   .kind = MOVER_COPY};
    return hosted_run_post(step->self, &step->call->run, &command);
}

/* At most what the bounce buffer holds. */
static expar_status bounce(const hosted_step *step, const moved_rows *what)
{
    moved_rows through = *what;
    const uint64_t bytes = what->rows * what->row_bytes;
    through.host = hosted_bounce(step->self, &step->call->run);
    if (!what->to_host) memcpy(through.host, what->host, (size_t)bytes);
    expar_status status = copy_by_mover(step, &through);
    if (status == EXPAR_OK) status = hosted_run_await(step->self, &step->call->run);
    if (status == EXPAR_OK && what->to_host) memcpy(what->host, through.host, (size_t)bytes);
    return status;
}

/* Each time as many rows as fit, or a part of one row. */
static expar_status copy_by_bounces(const hosted_step *step, const moved_rows *what)
{
    const uint64_t most = hosted_bounce_bytes(), fit = most / what->row_bytes;
    expar_status status = EXPAR_OK;
    for (uint64_t row = 0; row < what->rows && status == EXPAR_OK; row += fit ? fit : 1) {
        moved_rows some = *what;
        some.device += row * what->pitch_bytes;
        some.host += row * what->row_bytes;
        some.rows = fit == 0 ? 1 : what->rows - row < fit ? what->rows - row : fit;
        for (uint64_t at = 0; at < what->row_bytes && status == EXPAR_OK; at += most) {
            const uint64_t left = what->row_bytes - at;
            if (!fit) some.row_bytes = left < most ? left : most;
            status = bounce(step, &some);
            some.device += most;
            some.host += most;
        }
    }
    return status;
}

static const hosted_copy *copy_at(const hosted_step *step, const uint8_t *host)
{
    const hosted_copy *one = step->call->copies;
    while (one && !(host >= one->data && host < one->data + (one->bytes ? one->bytes : 1)))
        one = one->next;
    return one;
}

/* ---- either way -------------------------------------------------------------------------------------------------- */

static void run_copy(hosted_step *step, moved_rows what)
{
    if (step->status != EXPAR_OK || what.rows == 0 || what.row_bytes == 0) return;
    if (what.pitch_bytes == what.row_bytes) {
        what.row_bytes *= what.rows;
        what.rows = 1;
    }
    if (!step->self->mover.on) {
        step->status = copy_by_stream(step->self, &what);
        return;
    }
    const hosted_copy *copy = copy_at(step, what.host);
    step->status = copy && copy->pinned ? copy_by_mover(step, &what) : copy_by_bounces(step, &what);
}

static void copy_to_host(hosted_step *step, uint8_t *host, const void *device, uint64_t bytes)
{
    run_copy(step, (moved_rows){.to_host = true,
                                .device = (uint8_t *)(uintptr_t)device,
                                .host = host,
                                .rows = 1,
                                .row_bytes = bytes,
                                .pitch_bytes = bytes});
}

/* Copies of the stream end by themselves, and use host memory that is freed after them. So that wait is not
   interrupted. The mover drops copies of a call that has failed (hosted_run_end). */
static expar_status step_await_copies(const hosted_step *step)
{
    hosted_executor *self = step->self;
    if (self->mover.on) return step->call->run.number ? hosted_run_await(self, &step->call->run) : EXPAR_OK;
    interrupt_defer();
    const expar_status status = gpu_stream_await(self->device, self->core.own_stream, "copies of a call");
    interrupt_undefer();
    return status;
}

expar_status hosted_sync(hosted_step *step)
{
    const bool sound = step->status == EXPAR_OK;
    /* A failed step keeps its error. Its copies by the stream are awaited all the same. */
    if (!sound && step->self->mover.on) return step->status;
    const expar_status status = step_await_copies(step);
    if (sound) step->status = status;
    return step->status;
}

hosted_step hosted_step_begin(hosted_executor *self, const exec_call *call)
{
    hosted_step step = {.self = self, .call = call->own};
    step.status =
        step.call ? hosted_await_inputs(self, call) : error_set(EXPAR_ERR_STATE, "the call has no place on a stream");
    step.out_of_turn = step.status != EXPAR_OK && self->core.base.in_turns;
    return step;
}

/* ---- copies of a call -------------------------------------------------------------------------------------------- */

void hosted_copies_free(hosted_executor *self, hosted_call *call)
{
    while (call->copies) {
        hosted_copy *one = call->copies;
        call->copies = one->next;
        if (one->block) mem_block_release(one->block);
        free(one);
    }
    hosted_stage_leave(self, call);
}

/* Takes the block from the pool that peers reach, else from other memory. */
static expar_status take_host_block(hosted_executor *self, hosted_copy *one)
{
    const executor *inner = self->inner;
    const uint64_t bytes = one->bytes ? one->bytes : 1;
    expar_status status = mem_pool_take(inner->pool, bytes, &one->block);
    if (status != EXPAR_OK) status = hosted_take_private(self, bytes, &one->block);
    if (status != EXPAR_OK) return status;
    one->data = one->block->data;
    one->offset = one->block->offset;
    one->reached = one->block->pool == inner->pool;
    return EXPAR_OK;
}

static expar_status take_host_memory(const hosted_step *step, hosted_copy *one)
{
    if (hosted_stage_take(step->self, step->call, one)) return EXPAR_OK;
    return take_host_block(step->self, one);
}

static hosted_copy *add_copy(hosted_step *step, const void *device, uint64_t bytes)
{
    if (step->status != EXPAR_OK) return NULL;
    hosted_copy *one = calloc(1, sizeof *one);
    if (!one) {
        step->status = error_set(EXPAR_ERR_MEMORY, "no memory for the record of a copy");
        return NULL;
    }
    one->device = device;
    one->bytes = bytes;
    step->status = take_host_memory(step, one);
    if (step->status != EXPAR_OK) {
        free(one);
        return NULL;
    }
    one->next = step->call->copies;
    step->call->copies = one;
    return one;
}

static const hosted_copy *find_copy(const hosted_step *step, const void *device, uint64_t bytes)
{
    const uint8_t *at = device;
    for (const hosted_copy *one = step->call->copies; one; one = one->next)
        if (one->device && at >= one->device && bytes <= one->bytes &&
            (uint64_t)(at - one->device) <= one->bytes - bytes)
            return one;
    return NULL;
}

static uint8_t *host_of(const hosted_copy *copy, const void *device)
{
    return copy->data + ((const uint8_t *)device - copy->device);
}

static bool places_find(const hosted_places *places, const void *data, bool *far)
{
    for (int32_t i = 0; i < places->count; i++)
        if (places->all[i].data == data) {
            *far = places->all[i].far;
            return true;
        }
    return false;
}

static bool places_ask(hosted_places *places, const void *data)
{
    const bool far = mem_is_far(data);
    if (places && places->count < HOSTED_PLACES) {
        places->all[places->count].data = data;
        places->all[places->count++].far = far;
    }
    return far;
}

void hosted_places_fill(hosted_places *places, const exec_replay *replay)
{
    bool unused;
    for (int32_t i = 0; i < replay->num_places; i++)
        if (!places_find(places, replay->places[i], &unused)) (void)places_ask(places, replay->places[i]);
}

static bool is_far(const hosted_step *step, const void *data, uint64_t bytes)
{
    hosted_places *places = step->call->places;
    bool far;
    if (!data || bytes == 0) return false;
    return places && places_find(places, data, &far) ? far : places_ask(places, data);
}

bool hosted_only_on_gpu(const hosted_step *step, const void *data, uint64_t bytes)
{
    return is_far(step, data, bytes) && !find_copy(step, data, bytes);
}

bool hosted_carry_step(const hosted_step *step, const void *rows, uint64_t bytes, int32_t topk)
{
    hosted_carrier *carrier = step->self->carrier;
    if (step->status != EXPAR_OK || !carrier || !hosted_only_on_gpu(step, rows, bytes)) return false;
    if (!executor_cpu_carries_sums(step->self->inner, topk)) return false;
    hosted_carrier_use(carrier, &step->call->run);
    return true;
}

const void *hosted_read(hosted_step *step, const void *data, uint64_t bytes)
{
    if (step->status != EXPAR_OK || !is_far(step, data, bytes)) return data;
    const hosted_copy *copy = find_copy(step, data, bytes);
    if (copy) return host_of(copy, data);
    copy = add_copy(step, data, bytes);
    if (!copy) return data;
    copy_to_host(step, copy->data, data, bytes);
    return copy->data;
}

void *hosted_write(hosted_step *step, void *data, uint64_t bytes, bool keeps)
{
    uint64_t unused;
    if (step->status != EXPAR_OK || !is_far(step, data, bytes)) return data;
    const hosted_copy *copy = find_copy(step, data, bytes);
    if (copy) return host_of(copy, data);
    copy = add_copy(step, data, bytes);
    if (!copy) return data;
    /* New memory of the library's has nothing to keep. */
    if (keeps && !mem_store_offset(step->self->store, data, bytes, &unused))
        copy_to_host(step, copy->data, data, bytes);
    return copy->data;
}

void *hosted_scratch(hosted_step *step, uint64_t bytes)
{
    const hosted_copy *copy = add_copy(step, NULL, bytes);
    return copy ? copy->data : NULL;
}

static const void *read_apart(hosted_step *step, const void *data, int64_t rows, int64_t row_bytes, int64_t pitch)
{
    uint8_t *host = hosted_scratch(step, (uint64_t)(rows * row_bytes));
    if (!host) return NULL;
    run_copy(step, (moved_rows){.to_host = true,
                                .device = (uint8_t *)(uintptr_t)data,
                                .host = host,
                                .rows = (uint64_t)rows,
                                .row_bytes = (uint64_t)row_bytes,
                                .pitch_bytes = (uint64_t)pitch});
    return host;
}

const void *hosted_read_rows(hosted_step *step, const void *data, int64_t rows, int64_t row_bytes, int64_t *pitch_bytes)
{
    const int64_t pitch = *pitch_bytes, most = step->self->mover.on ? row_bytes : MOST_SPREAD * row_bytes;
    if (rows <= 0 || !is_far(step, data, (uint64_t)row_bytes)) return data;
    if (pitch >= row_bytes && pitch <= most) return hosted_read(step, data, (uint64_t)((rows - 1) * pitch + row_bytes));
    *pitch_bytes = row_bytes;
    return read_apart(step, data, rows, row_bytes, pitch);
}

void hosted_write_back(hosted_step *step, const void *data, uint64_t bytes)
{
    if (step->status != EXPAR_OK || !is_far(step, data, bytes)) return;
    const hosted_copy *copy = find_copy(step, data, bytes);
    if (copy) hosted_send_rows(step, (void *)(uintptr_t)data, host_of(copy, data), 1, (int64_t)bytes, (int64_t)bytes);
}

void hosted_send_rows(hosted_step *step, void *data, const void *host, int64_t rows, int64_t row_bytes,
                      int64_t pitch_bytes)
{
    if (rows <= 0 || data == host) return;
    run_copy(step, (moved_rows){.device = data,
                                .host = (uint8_t *)(uintptr_t)host,
                                .rows = (uint64_t)rows,
                                .row_bytes = (uint64_t)row_bytes,
                                .pitch_bytes = (uint64_t)pitch_bytes});
}

bool hosted_is_symmetric(const hosted_step *step, const void *host, uint64_t *offset)
{
    *offset = 0;
    if (!host) return true;
    const hosted_copy *one = copy_at(step, host);
    if (!one) return false;
    *offset = one->offset + (uint64_t)((const uint8_t *)host - one->data);
    return one->reached;
}

static void move_on_gpu(hosted_step *step, void *dest, const void *source, uint64_t bytes)
{
    const mover_command command = {.dest = (uint64_t)(uintptr_t)dest,
                                   .source = (uint64_t)(uintptr_t)source,
                                   .rows = 1,
                                   .row_bytes = bytes,
                                   .kind = MOVER_COPY};
    step->status = hosted_run_post(step->self, &step->call->run, &command);
}

/* The destination's copy, if the call has one, gets the bytes, too. */
void hosted_move(hosted_step *step, void *dest, const void *source, uint64_t bytes)
{
    if (step->status == EXPAR_OK && step->self->mover.on && hosted_only_on_gpu(step, source, bytes) &&
        hosted_only_on_gpu(step, dest, bytes)) {
        move_on_gpu(step, dest, source, bytes);
        return;
    }
    const void *from = hosted_read(step, source, bytes);
    void *to = hosted_write(step, dest, bytes, false);
    if (hosted_sync(step) != EXPAR_OK || bytes == 0) return;
    memcpy(to, from, (size_t)bytes);
    hosted_write_back(step, dest, bytes);
}

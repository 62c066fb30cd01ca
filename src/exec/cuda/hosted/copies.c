/* SPDX-License-Identifier: Apache-2.0 */
/* Host copies of memory on the GPU. A stream of the executor's own makes them and sends them back. Nothing on it waits:
 * the host waits for the inputs before it puts a copy there. */
#include "base/interrupt.h"
#include "exec/cuda/hosted/hosted.h"

#include <stdlib.h>
#include <string.h>

/* Rows that are further apart than so many row lengths are copied one by one, others with what lies between them. */
enum { MOST_SPREAD = 4 };

/* ---- one copy by the GPU ----------------------------------------------------------------------------------------- */

typedef enum direction { TO_HOST, TO_DEVICE, ON_DEVICE } direction;

static expar_status enqueue(const hosted_executor *self, direction way, void *dest, const void *source, uint64_t bytes)
{
    const cu_stream stream = self->core.own_stream;
    const cu_address to = (cu_address)(uintptr_t)dest, from = (cu_address)(uintptr_t)source;
    if (way == TO_HOST) return CUDA_CALL(MemcpyDtoHAsync, dest, from, bytes, stream);
    if (way == TO_DEVICE) return CUDA_CALL(MemcpyHtoDAsync, to, source, bytes, stream);
    return CUDA_CALL(MemcpyAsync, to, from, bytes, stream);
}

/* The stream is in no capture, but this thread may be capturing another one. */
static void run_copy(hosted_step *step, direction way, void *dest, const void *source, uint64_t bytes)
{
    int mode;
    if (step->status != EXPAR_OK || bytes == 0) return;
    step->status = cuda_enter(step->self->device);
    if (step->status != EXPAR_OK) return;
    step->status = gpu_leave_captures(&mode);
    if (step->status == EXPAR_OK) {
        step->status = enqueue(step->self, way, dest, source, bytes);
        gpu_return_to_captures(mode);
    }
    cuda_leave();
}

/* Copies end by themselves, and use host memory that is freed after them. So this wait is not interrupted. */
expar_status hosted_sync(hosted_step *step)
{
    const hosted_executor *self = step->self;
    interrupt_defer();
    const expar_status status = gpu_stream_await(self->device, self->core.own_stream, "copies of a call");
    interrupt_undefer();
    if (step->status == EXPAR_OK) step->status = status;
    return step->status;
}

hosted_step hosted_step_begin(hosted_executor *self, const exec_call *call)
{
    hosted_step step = {.self = self, .call = call->own};
    step.status = step.call ? hosted_await_inputs(self, step.call)
                            : error_set(EXPAR_ERR_STATE, "the call has no place on a stream");
    return step;
}

/* ---- copies of a call -------------------------------------------------------------------------------------------- */

void hosted_copies_free(hosted_call *call)
{
    while (call->copies) {
        hosted_copy *one = call->copies;
        call->copies = one->next;
        mem_block_release(one->block);
        free(one);
    }
}

/* Takes the block from the pool that peers reach, else from other memory. */
static expar_status take_host_block(executor *inner, uint64_t bytes, mem_block **out)
{
    if (mem_pool_take(inner->pool, bytes, out) == EXPAR_OK) return EXPAR_OK;
    return inner->ops->take(inner, NULL, bytes, out);
}

static hosted_copy *add_copy(hosted_step *step, const void *device, uint64_t bytes)
{
    hosted_copy *one;
    if (step->status != EXPAR_OK) return NULL;
    one = calloc(1, sizeof *one);
    step->status = one ? take_host_block(step->self->inner, bytes ? bytes : 1, &one->block)
                       : error_set(EXPAR_ERR_MEMORY, "no memory for the record of a copy");
    if (step->status != EXPAR_OK) {
        free(one);
        return NULL;
    }
    one->device = device;
    one->bytes = bytes;
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
    return (uint8_t *)copy->block->data + ((const uint8_t *)device - copy->device);
}

static bool is_far(const void *data, uint64_t bytes)
{
    return data && bytes > 0 && mem_is_far(data);
}

const void *hosted_read(hosted_step *step, const void *data, uint64_t bytes)
{
    if (step->status != EXPAR_OK || !is_far(data, bytes)) return data;
    const hosted_copy *copy = find_copy(step, data, bytes);
    if (copy) return host_of(copy, data);
    copy = add_copy(step, data, bytes);
    if (!copy) return data;
    run_copy(step, TO_HOST, copy->block->data, data, bytes);
    return copy->block->data;
}

void *hosted_write(hosted_step *step, void *data, uint64_t bytes, bool keeps)
{
    uint64_t unused;
    if (step->status != EXPAR_OK || !is_far(data, bytes)) return data;
    const hosted_copy *copy = find_copy(step, data, bytes);
    if (copy) return host_of(copy, data);
    copy = add_copy(step, data, bytes);
    if (!copy) return data;
    /* New memory of the library's has nothing to keep. */
    if (keeps && !mem_store_offset(step->self->store, data, bytes, &unused))
        run_copy(step, TO_HOST, copy->block->data, data, bytes);
    return copy->block->data;
}

void *hosted_scratch(hosted_step *step, uint64_t bytes)
{
    const hosted_copy *copy = add_copy(step, NULL, bytes);
    return copy ? copy->block->data : NULL;
}

static const void *read_apart(hosted_step *step, const uint8_t *data, int64_t rows, int64_t row_bytes, int64_t pitch)
{
    uint8_t *host = hosted_scratch(step, (uint64_t)(rows * row_bytes));
    for (int64_t row = 0; host && row < rows; row++)
        run_copy(step, TO_HOST, host + row * row_bytes, data + row * pitch, (uint64_t)row_bytes);
    return host;
}

const void *hosted_read_rows(hosted_step *step, const void *data, int64_t rows, int64_t row_bytes, int64_t *pitch_bytes)
{
    const int64_t pitch = *pitch_bytes;
    if (rows <= 0 || !is_far(data, (uint64_t)row_bytes)) return data;
    if (pitch >= row_bytes && pitch <= MOST_SPREAD * row_bytes)
        return hosted_read(step, data, (uint64_t)((rows - 1) * pitch + row_bytes));
    *pitch_bytes = row_bytes;
    return read_apart(step, data, rows, row_bytes, pitch);
}

void hosted_write_back(hosted_step *step, const void *data, uint64_t bytes)
{
    if (step->status != EXPAR_OK || !is_far(data, bytes)) return;
    const hosted_copy *copy = find_copy(step, data, bytes);
    if (copy) run_copy(step, TO_DEVICE, (void *)(uintptr_t)data, host_of(copy, data), bytes);
}

void hosted_send_rows(hosted_step *step, void *data, const void *host, int64_t rows, int64_t row_bytes,
                      int64_t pitch_bytes)
{
    const uint8_t *from = host;
    uint8_t *to = data;
    if (rows <= 0 || data == host) return;
    if (pitch_bytes == row_bytes || rows == 1) {
        run_copy(step, TO_DEVICE, to, from, (uint64_t)(rows * row_bytes));
        return;
    }
    for (int64_t row = 0; row < rows; row++)
        run_copy(step, TO_DEVICE, to + row * pitch_bytes, from + row * row_bytes, (uint64_t)row_bytes);
}

bool hosted_is_symmetric(const hosted_step *step, const void *host, uint64_t *offset)
{
    *offset = 0;
    if (!host) return true;
    for (const hosted_copy *one = step->call->copies; one; one = one->next) {
        const uint8_t *begin = one->block->data, *at = host;
        if (at < begin || at >= begin + one->block->bytes) continue;
        *offset = one->block->offset + (uint64_t)(at - begin);
        return one->block->pool == step->self->inner->pool;
    }
    return false;
}

/* The destination's copy, if the call has one, gets the bytes, too. */
void hosted_move(hosted_step *step, void *dest, const void *source, uint64_t bytes)
{
    const void *from = hosted_read(step, source, bytes);
    void *to = hosted_write(step, dest, bytes, false);
    if (hosted_sync(step) != EXPAR_OK || bytes == 0) return;
    memcpy(to, from, (size_t)bytes);
    hosted_write_back(step, dest, bytes);
}

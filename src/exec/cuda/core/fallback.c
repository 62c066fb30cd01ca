/* SPDX-License-Identifier: Apache-2.0 */
/* Memory beside the pool, for outputs that find no free space there. It comes from the caller's allocator, or from the
 * driver's stream-ordered one. Peers do not reach it, so rows get there through rings.
 *
 * As with memory of the pool, a block may be used again only after this rank's next call. Work on that call's stream at
 * the time of the release may still read the block, and so may the call that is being made. So released blocks wait for
 * the mark after that call. A thread of the library (cuda_later) frees them once the mark has passed, since the last
 * release may happen in a function that the driver calls. When no more calls will come, that thread waits for all work
 * of the GPU. */
#include "base/knobs.h"
#include "exec/cuda/core/gpu.h"
#include "exec/step.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

struct gpu_fallback {
    /* One of the order of calls, one of each block that is out. Dropping the last one (acquire, release) ends it. */
    atomic_int holders;
    cuda_device *device;
    cu_stream stream; /* only for taking and freeing */
    cu_event last;    /* after the last call; the order's event */
    pthread_mutex_t lock;
    bool ended;         /* no more calls will come. Guarded by lock */
    cuda_task *waiting; /* released since the last call was made. Guarded by lock */
};

typedef struct lent_block {
    mem_block block; /* first: holders know only this */
    cuda_task task;
    gpu_fallback *fallback;
    mem_allocator from; /* alloc NULL: the driver */
    void *stream;       /* the stream that `from` was asked for */
} lent_block;

/* ---- the lender -------------------------------------------------------------------------------------------------- */

static void fallback_close(gpu_fallback *fallback)
{
    if (cuda_enter(fallback->device) == EXPAR_OK) {
        if (fallback->last) cuda_driver()->EventDestroy(fallback->last);
        if (fallback->stream) cuda_driver()->StreamDestroy(fallback->stream);
        cuda_leave();
    }
    cuda_device_close(fallback->device);
    pthread_mutex_destroy(&fallback->lock);
    free(fallback);
}

expar_status gpu_fallback_make(const cuda_device *device, gpu_fallback **out)
{
    gpu_fallback *fallback = calloc(1, sizeof *fallback);
    if (!fallback) return error_set(EXPAR_ERR_MEMORY, "CUDA executor: no memory");
    atomic_init(&fallback->holders, 1);
    pthread_mutex_init(&fallback->lock, NULL);
    expar_status status = cuda_device_open(device->index, &fallback->device);
    if (status != EXPAR_OK) {
        pthread_mutex_destroy(&fallback->lock);
        free(fallback);
        return status;
    }
    status = CUDA_CALL(EventCreate, &fallback->last, CU_EVENT_NO_TIMING);
    if (status == EXPAR_OK) status = CUDA_CALL(StreamCreate, &fallback->stream, CU_STREAM_NON_BLOCKING);
    if (status == EXPAR_OK)
        *out = fallback;
    else
        fallback_close(fallback);
    return status;
}

cu_event gpu_fallback_event(const gpu_fallback *fallback)
{
    return fallback->last;
}

void gpu_fallback_drop(gpu_fallback *fallback)
{
    if (fallback && atomic_fetch_sub_explicit(&fallback->holders, 1, memory_order_acq_rel) == 1)
        fallback_close(fallback);
}

void gpu_fallback_settle(gpu_fallback *fallback, bool ended)
{
    pthread_mutex_lock(&fallback->lock);
    cuda_task *task = fallback->waiting;
    fallback->ended = ended;
    fallback->waiting = NULL;
    pthread_mutex_unlock(&fallback->lock);
    while (task) {
        cuda_task *next = task->next;
        cuda_later(task);
        task = next;
    }
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

static expar_status take_of_driver(gpu_fallback *fallback, uint64_t bytes, cu_address *out)
{
    expar_status status = CUDA_CALL(MemAllocAsync, out, bytes, fallback->stream);
    /* After this wait any stream may use the memory. This stream has nothing else but frees. */
    if (status == EXPAR_OK) {
        status = gpu_stream_await(fallback->device, fallback->stream, "memory beside the pool");
        if (status != EXPAR_OK) cuda_driver()->MemFreeAsync(*out, fallback->stream);
    }
    return status == EXPAR_ERR_MEMORY ? mem_device_full(fallback->device, bytes) : status;
}

/* Allocates a block. The context has been entered, so an allocator `from` that calls the driver gets memory of that
   GPU. */
static expar_status fallback_take(const lent_block *one, uint64_t bytes, void **out)
{
    const expar_device here = {.type = EXPAR_CUDA, .index = one->fallback->device->index};
    cu_address memory = 0;
    int mode;
    expar_status status = gpu_leave_captures(&mode);
    if (status != EXPAR_OK) return status;
    if (one->from.alloc) {
        status = mem_allocate(here, &one->from, bytes, one->stream, out);
    } else {
        status = take_of_driver(one->fallback, bytes, &memory);
        *out = (void *)(uintptr_t)memory;
    }
    gpu_return_to_captures(mode);
    return status;
}

static bool has_ended(gpu_fallback *fallback)
{
    pthread_mutex_lock(&fallback->lock);
    const bool ended = fallback->ended;
    pthread_mutex_unlock(&fallback->lock);
    return ended;
}

/* Waits for the calls that may use a block. The context has been entered. False: it is lost, and nothing runs there any
   more. */
static bool await_calls(gpu_fallback *fallback)
{
    return (has_ended(fallback) ? cuda_driver()->CtxSynchronize() : cuda_driver()->EventSynchronize(fallback->last)) ==
           CU_OK;
}

/* Frees a block. The caller's memory is freed in any case. In a lost context the driver frees nothing. */
static void fallback_give(const lent_block *one)
{
    const mem_block *block = &one->block;
    const mem_allocator *from = &one->from;
    int mode;
    const bool entered = cuda_enter(one->fallback->device) == EXPAR_OK,
               left = entered && gpu_leave_captures(&mode) == EXPAR_OK, passed = left && await_calls(one->fallback);
    if (from->alloc)
        from->free(from->context, block->data, (size_t)block->bytes, one->stream);
    else if (passed)
        cuda_driver()->MemFreeAsync((cu_address)(uintptr_t)block->data, one->fallback->stream);
    if (left) gpu_return_to_captures(mode);
    if (entered) cuda_leave();
}

/* Frees a released block, or waits on. A stream may use the block for a long time, so the task queues itself again, and
   other tasks go on meanwhile. */
static void give_later(cuda_task *task)
{
    lent_block *one = (lent_block *)((char *)task - offsetof(lent_block, task));
    if (!mem_block_is_free(&one->block, NULL, NULL)) {
        nanosleep(&(struct timespec){.tv_nsec = knob(KNOB_CUDA_LENT_SLEEP_NS)}, NULL);
        cuda_later(task);
        return;
    }
    fallback_give(one);
    gpu_fallback_drop(one->fallback);
    free(one);
}

/* False: no more calls will come. */
static bool wait_for_call(gpu_fallback *fallback, cuda_task *task)
{
    pthread_mutex_lock(&fallback->lock);
    const bool waits = !fallback->ended;
    if (waits) {
        task->next = fallback->waiting;
        fallback->waiting = task;
    }
    pthread_mutex_unlock(&fallback->lock);
    return waits;
}

static void lent_give(mem_block *block)
{
    lent_block *one = (lent_block *)block;
    one->task.run = give_later;
    if (!wait_for_call(one->fallback, &one->task)) cuda_later(&one->task);
}

/* Allocates the record before the memory: memory without a record could not be freed in order. */
static expar_status lend(gpu_fallback *fallback, const mem_allocator *from, void *stream, uint64_t bytes,
                         mem_block **out)
{
    void *memory;
    lent_block *one = calloc(1, sizeof *one);
    if (!one) return error_set(EXPAR_ERR_MEMORY, "no memory for the record of a block");
    one->fallback = fallback;
    one->stream = stream;
    if (from) one->from = *from;
    expar_status status = fallback_take(one, bytes, &memory);
    if (status != EXPAR_OK) {
        free(one);
        return status;
    }
    one->block = (mem_block){.data = memory, .offset = UINT64_MAX, .bytes = bytes, .give = lent_give};
    atomic_init(&one->block.references, 1);
    /* Relaxed: the order holds the lender meanwhile. */
    atomic_fetch_add_explicit(&fallback->holders, 1, memory_order_relaxed);
    *out = &one->block;
    return EXPAR_OK;
}

expar_status gpu_reject_growth(const ep_grow_step *step)
{
    return error_set(EXPAR_ERR_LIMIT,
                     "records hold no rows of %lld bytes, top-k %d and %d experts while the stream is being "
                     "captured; make such a call once outside of captures, or give the limits in the config",
                     (long long)step->row_bytes, step->form.topk, step->form.experts);
}

expar_status gpu_fallback_allocate(gpu_core *self, const mem_allocator *from, uint64_t bytes, mem_block **out)
{
    if (self->capturing)
        return error_set(
            EXPAR_ERR_BUFFER_SIZE,
            "the pool has no space for %llu bytes while the stream is being captured; make such a call once "
            "outside of captures, whose memory may then grow, free outputs and handles, or set "
            "config.pool_bytes",
            (unsigned long long)bytes);
    expar_status status = cuda_enter(self->device);
    if (status != EXPAR_OK) return status;
    status = lend(self->fallback, from, self->called_on, bytes ? bytes : 1, out);
    cuda_leave();
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Memory beside the pool, for what finds no room there: the driver's stream-ordered allocator's. Peers do not reach it,
 * so rows come there by the queue.
 *
 * Like memory of the pool it is used again behind this rank's next call: what stands on the call's stream when a block
 * is let go may still read it, the call that is being made included. So blocks wait for the mark behind that call, and
 * a thread of the library's (cuda_later) gives them back once it has passed: whoever lets a block go last may be a
 * function that the driver calls. When there are no calls any more it waits for all that the GPU does. */
#include "exec/cuda/gpu.h"

#include <pthread.h>
#include <stdlib.h>

struct gpu_lender {
    atomic_int holders; /* the order of calls, and what was lent; who drops the last one (acquire, release) ends it */
    cuda_device *device;
    cu_stream stream; /* of taking and giving alone */
    cu_event last;    /* behind the last call: the order's */
    pthread_mutex_t lock;
    bool ended;         /* there are no calls any more. Guarded by lock */
    cuda_task *waiting; /* let go since the last call was made. Guarded by lock */
};

typedef struct lent_block {
    mem_block block; /* first: what a holder has */
    cuda_task task;
    gpu_lender *lender;
} lent_block;

/* ---- the lender -------------------------------------------------------------------------------------------------- */

static void lender_close(gpu_lender *lender)
{
    if (cuda_enter(lender->device) == EXPAR_OK) {
        if (lender->last) cuda_driver()->EventDestroy(lender->last);
        if (lender->stream) cuda_driver()->StreamDestroy(lender->stream);
        cuda_leave();
    }
    cuda_device_close(lender->device);
    pthread_mutex_destroy(&lender->lock);
    free(lender);
}

expar_status gpu_lender_make(const cuda_device *device, gpu_lender **out)
{
    gpu_lender *lender = calloc(1, sizeof *lender);
    if (!lender) return error_set(EXPAR_ERR_MEMORY, "CUDA executor: no memory");
    atomic_init(&lender->holders, 1);
    pthread_mutex_init(&lender->lock, NULL);
    expar_status status = cuda_device_open(device->index, &lender->device);
    if (status != EXPAR_OK) {
        pthread_mutex_destroy(&lender->lock);
        free(lender);
        return status;
    }
    status = CUDA_CALL(EventCreate, &lender->last, CU_EVENT_NO_TIMING);
    if (status == EXPAR_OK) status = CUDA_CALL(StreamCreate, &lender->stream, CU_STREAM_NON_BLOCKING);
    if (status == EXPAR_OK)
        *out = lender;
    else
        lender_close(lender);
    return status;
}

cu_event gpu_lender_event(const gpu_lender *lender)
{
    return lender->last;
}

void gpu_lender_drop(gpu_lender *lender)
{
    if (lender && atomic_fetch_sub_explicit(&lender->holders, 1, memory_order_acq_rel) == 1) lender_close(lender);
}

void gpu_lender_settle(gpu_lender *lender, bool ended)
{
    pthread_mutex_lock(&lender->lock);
    cuda_task *task = lender->waiting;
    lender->ended = ended;
    lender->waiting = NULL;
    pthread_mutex_unlock(&lender->lock);
    while (task) {
        cuda_task *next = task->next;
        cuda_later(task);
        task = next;
    }
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

/* The context has been entered. */
static expar_status lender_take(gpu_lender *lender, uint64_t bytes, cu_address *out)
{
    int mode;
    expar_status status = gpu_leave_captures(&mode);
    if (status != EXPAR_OK) return status;
    status = CUDA_CALL(MemAllocAsync, out, bytes, lender->stream);
    /* Then any stream may use it. Nothing stands on this one but what was given back. */
    if (status == EXPAR_OK) status = CUDA_CALL(StreamSynchronize, lender->stream);
    gpu_return_to_captures(mode);
    return status == EXPAR_ERR_MEMORY ? mem_device_full(lender->device, bytes) : status;
}

static bool has_ended(gpu_lender *lender)
{
    pthread_mutex_lock(&lender->lock);
    const bool ended = lender->ended;
    pthread_mutex_unlock(&lender->lock);
    return ended;
}

static void lender_give(gpu_lender *lender, cu_address memory)
{
    int mode;
    if (cuda_enter(lender->device) != EXPAR_OK) return;
    if (gpu_leave_captures(&mode) == EXPAR_OK) {
        const cu_result passed =
            has_ended(lender) ? cuda_driver()->CtxSynchronize() : cuda_driver()->EventSynchronize(lender->last);
        /* In a context that is lost neither works, and nothing is. */
        if (passed == CU_OK) cuda_driver()->MemFreeAsync(memory, lender->stream);
        gpu_return_to_captures(mode);
    }
    cuda_leave();
}

static void give_later(cuda_task *task)
{
    lent_block *one = (lent_block *)((char *)task - offsetof(lent_block, task));
    lender_give(one->lender, (cu_address)(uintptr_t)one->block.data);
    gpu_lender_drop(one->lender);
    free(one);
}

/* False: no call is to come. */
static bool wait_for_call(gpu_lender *lender, cuda_task *task)
{
    pthread_mutex_lock(&lender->lock);
    const bool waits = !lender->ended;
    if (waits) {
        task->next = lender->waiting;
        lender->waiting = task;
    }
    pthread_mutex_unlock(&lender->lock);
    return waits;
}

static void lent_give(mem_block *block)
{
    lent_block *one = (lent_block *)block;
    one->task.run = give_later;
    if (!wait_for_call(one->lender, &one->task)) cuda_later(&one->task);
}

static expar_status lend(gpu_lender *lender, uint64_t bytes, mem_block **out)
{
    cu_address memory = 0;
    lent_block *one = calloc(1, sizeof *one);
    if (!one) return error_set(EXPAR_ERR_MEMORY, "no memory for the record of a block");
    expar_status status = lender_take(lender, bytes, &memory);
    if (status != EXPAR_OK) {
        free(one);
        return status;
    }
    one->lender = lender;
    one->block =
        (mem_block){.data = (void *)(uintptr_t)memory, .offset = UINT64_MAX, .bytes = bytes, .give = lent_give};
    atomic_init(&one->block.references, 1);
    /* Relaxed: the order holds the lender meanwhile. */
    atomic_fetch_add_explicit(&lender->holders, 1, memory_order_relaxed);
    *out = &one->block;
    return EXPAR_OK;
}

expar_status gpu_lend(gpu_executor *self, uint64_t bytes, mem_block **out)
{
    if (self->capturing)
        return error_set(
            EXPAR_ERR_BUFFER_SIZE,
            "the pool has no room for %llu bytes while the stream is being captured; make such a call once "
            "outside of captures, whose memory may then grow, free outputs and handles, or set "
            "config.pool_bytes",
            (unsigned long long)bytes);
    expar_status status = cuda_enter(self->device);
    if (status != EXPAR_OK) return status;
    status = lend(self->lender, bytes ? bytes : 1, out);
    cuda_leave();
    return status;
}

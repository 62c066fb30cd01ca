/* SPDX-License-Identifier: Apache-2.0 */
/* Pinned memory for the copies of calls. It belongs to the pool that peers reach, and stays with the buffer, since
 * registering takes longer than copying. A call that needs more than there is uses other memory for the rest. The mover
 * brings rows of that through a bounce buffer (copies.c), and a stream copies them more slowly. The next call finds
 * enough. */
#include "exec/cuda/hosted/hosted.h"
#include "mem/device.h"

#define STAGE_ALIGNMENT ((uint64_t)256)

/* ---- making ------------------------------------------------------------------------------------------------------ */

/* The driver may wait for kernels. Without the mover none of them waits for a thread. */
static void close_order(const hosted_executor *self)
{
    if (self->core.order) gpu_order_close(self->core.order);
}

static void open_order(const hosted_executor *self)
{
    if (self->core.order) gpu_order_open(self->core.order);
}

static void stage_free(const hosted_executor *self, hosted_stage *stage)
{
    if (!stage->block) return;
    close_order(self);
    mem_host_unregister(self->device, stage->block->data);
    open_order(self);
    mem_block_release(stage->block);
    stage->block = NULL;
}

/* Without memory for it, calls go on without a stage. Returns false if the driver does not register it. */
static bool stage_make(const hosted_executor *self, hosted_stage *stage, uint64_t bytes)
{
    mem_block *block = NULL;
    int mode;
    /* Numbers of rows vary from call to call: a quarter more spares most of the next growths. */
    const uint64_t wanted = align_up(bytes + bytes / 4, MEM_POOL_LARGE_BYTES);
    if (mem_pool_take(self->inner->pool, wanted, &block) != EXPAR_OK) return true;
    expar_status status = gpu_leave_captures(&mode);
    if (status == EXPAR_OK) {
        close_order(self);
        status = mem_host_register(self->device, block->data, block->bytes);
        open_order(self);
        gpu_return_to_captures(mode);
    }
    if (status == EXPAR_OK) {
        stage->block = block;
        return true;
    }
    LOG(LOG_INFO, "copies of calls on GPU %d have no pinned memory: %s", self->device->index, expar_last_error());
    mem_block_release(block);
    return false;
}

static uint64_t stage_bytes(const hosted_stage *stage)
{
    return stage->block ? stage->block->bytes : 0;
}

/* Returns an unused stage of at least that size, else any unused one; NULL: there is none. The caller holds the
   lock. */
static hosted_stage *stage_find_unused(hosted_stages *stages, uint64_t bytes)
{
    hosted_stage *found = NULL;
    for (int i = 0; i < HOSTED_STAGES; i++) {
        hosted_stage *one = &stages->all[i];
        if (!one->used && (!found || (stage_bytes(found) < bytes && stage_bytes(one) > stage_bytes(found))))
            found = one;
    }
    return found;
}

void hosted_stage_grow(hosted_executor *self)
{
    hosted_stages *stages = &self->stages;
    pthread_mutex_lock(&stages->lock);
    const uint64_t bytes = stages->bytes;
    hosted_stage *stage = stages->refused ? NULL : stage_find_unused(stages, bytes);
    const bool grows = stage && stage_bytes(stage) < bytes;
    if (grows) stage->used = true;
    pthread_mutex_unlock(&stages->lock);
    if (!grows) return;
    stage_free(self, stage);
    const bool registered = stage_make(self, stage, bytes);
    pthread_mutex_lock(&stages->lock);
    stage->used = false;
    stages->refused |= !registered;
    pthread_mutex_unlock(&stages->lock);
}

/* The first block makes the pool. */
expar_status hosted_take_private(hosted_executor *self, uint64_t bytes, mem_block **out)
{
    pthread_mutex_lock(&self->stages.lock);
    const expar_status status = self->inner->ops->take(self->inner, NULL, bytes, out);
    pthread_mutex_unlock(&self->stages.lock);
    return status;
}

/* ---- using ------------------------------------------------------------------------------------------------------- */

static hosted_stage *enter_stage(hosted_stages *stages)
{
    pthread_mutex_lock(&stages->lock);
    hosted_stage *stage = stage_find_unused(stages, stages->bytes);
    if (stage && !stage->block) stage = NULL;
    if (stage) stage->used = true;
    pthread_mutex_unlock(&stages->lock);
    return stage;
}

bool hosted_stage_take(hosted_executor *self, hosted_call *call, hosted_copy *copy)
{
    const uint64_t bytes = align_up(copy->bytes ? copy->bytes : 1, STAGE_ALIGNMENT);
    call->stage_needed += bytes;
    if (!call->stage) call->stage = enter_stage(&self->stages);
    if (!call->stage || bytes > stage_bytes(call->stage) - call->stage_used) return false;
    copy->data = (uint8_t *)call->stage->block->data + call->stage_used;
    copy->offset = call->stage->block->offset + call->stage_used;
    copy->reached = copy->pinned = true;
    call->stage_used += bytes;
    return true;
}

void hosted_stage_leave(hosted_executor *self, hosted_call *call)
{
    hosted_stages *stages = &self->stages;
    pthread_mutex_lock(&stages->lock);
    if (call->stage_needed > stages->bytes) stages->bytes = call->stage_needed;
    if (call->stage) call->stage->used = false;
    pthread_mutex_unlock(&stages->lock);
    call->stage = NULL;
}

/* ---- the buffer's ------------------------------------------------------------------------------------------------ */

void hosted_stages_make(hosted_executor *self)
{
    pthread_mutex_init(&self->stages.lock, NULL);
}

void hosted_stages_trim(hosted_executor *self)
{
    hosted_stages *stages = &self->stages;
    bool freed[HOSTED_STAGES];
    pthread_mutex_lock(&stages->lock);
    for (int i = 0; i < HOSTED_STAGES; i++) {
        freed[i] = !stages->all[i].used;
        stages->all[i].used = true;
    }
    stages->bytes = 0;
    pthread_mutex_unlock(&stages->lock);
    /* The driver may wait for a call that needs the lock. */
    for (int i = 0; i < HOSTED_STAGES; i++)
        if (freed[i]) stage_free(self, &stages->all[i]);
    pthread_mutex_lock(&stages->lock);
    for (int i = 0; i < HOSTED_STAGES; i++)
        if (freed[i]) stages->all[i].used = false;
    pthread_mutex_unlock(&stages->lock);
}

void hosted_stages_close(hosted_executor *self)
{
    hosted_stages_trim(self);
    pthread_mutex_destroy(&self->stages.lock);
}

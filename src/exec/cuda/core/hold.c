/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps blocks that streams still use. In a capture the graph keeps them while it lives. Otherwise the next user of
 * their memory comes after the stream's present point. */
#include "exec/cuda/core/gpu.h"

#include <stdlib.h>

typedef struct kept {
    int32_t count;
    mem_block *blocks[];
} kept;

/* Called from a thread of the driver. */
static void let_go(void *context)
{
    kept *all = context;
    for (int32_t i = 0; i < all->count; i++)
        mem_block_release(all->blocks[i]);
    free(all);
}

static expar_status kept_make(mem_block *const *blocks, int32_t count, kept **out)
{
    kept *all = calloc(1, sizeof *all + (size_t)count * sizeof *all->blocks);
    if (!all) return error_set(EXPAR_ERR_MEMORY, "no memory for the records of %d blocks", count);
    for (int32_t i = 0; i < count; i++) {
        if (!blocks[i]) continue;
        mem_block_retain(blocks[i]);
        all->blocks[all->count++] = blocks[i];
    }
    *out = all;
    return EXPAR_OK;
}

expar_status gpu_give_to_graph(cu_stream stream, void *given, void (*let_go_of)(void *object))
{
    cu_graph graph = NULL;
    cu_user_object object = NULL;
    int capturing;
    expar_status status = CUDA_CALL(StreamGetCaptureInfo, stream, &capturing, NULL, &graph, NULL, NULL);
    if (status == EXPAR_OK)
        status = CUDA_CALL(UserObjectCreate, &object, given, let_go_of, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
    if (status != EXPAR_OK) {
        let_go_of(given);
        return status;
    }
    status = CUDA_CALL(GraphRetainUserObject, graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE);
    if (status != EXPAR_OK) cuda_driver()->UserObjectRelease(object, 1);
    return status;
}

expar_status gpu_keep(executor *base, const exec_call *call, mem_block *const *blocks, int32_t count)
{
    gpu_core *self = gpu_core_of(base);
    kept *all;
    if (!call->captured) return EXPAR_OK;
    expar_status status = kept_make(blocks, count, &all);
    if (status != EXPAR_OK) return status;
    status = cuda_enter(self->device);
    if (status != EXPAR_OK) {
        let_go(all);
        return status;
    }
    status = gpu_give_to_graph(call->stream, all, let_go);
    cuda_leave();
    return status;
}

/* ---- until a stream has come to a point -------------------------------------------------------------------------- */

/* A point of a captured stream belongs to the graph and comes again at each launch, so the graph keeps the blocks. */
static expar_status hold_in_graph(expar_device device, void *stream, mem_block *const *blocks, int32_t count)
{
    kept *all;
    cuda_device *opened = NULL;
    expar_status status = kept_make(blocks, count, &all);
    if (status != EXPAR_OK) return status;
    status = cuda_enter_stream_on(device.index, stream, &opened);
    if (status == EXPAR_OK) {
        status = gpu_give_to_graph(stream, all, let_go);
        cuda_leave();
    } else {
        let_go(all);
    }
    cuda_device_close(opened);
    return status;
}

expar_status gpu_hold_until(expar_device device, void *stream, mem_block *const *blocks, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        cuda_mark *mark;
        if (!blocks[i]) continue;
        expar_status status = cuda_mark_make_on(device.index, stream, &mark);
        if (status != EXPAR_OK) return status;
        if (!mark) return hold_in_graph(device, stream, blocks + i, count - i);
        mem_block_follow(blocks[i], mark);
    }
    return EXPAR_OK;
}

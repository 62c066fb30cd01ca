/* SPDX-License-Identifier: Apache-2.0 */
/* Dispatch on a GPU, where it differs: outputs that are made before anything is put on the stream, whether their size
 * is known or not, and what follows the rows there. */
#include "ep/dispatch.h"

#include <stdlib.h>

/* In a capture: the graph keeps what its kernels touch, whatever becomes of the caller's holds. */
static expar_status keep_in_graph(const dispatch_call *call)
{
    const expar_ep_handle *handle = dispatch_handle(call);
    const expar_ep_output *output = call->to.output;
    mem_block *const blocks[] = {handle->device, handle->device_map, output->block, output->arrival};
    return executor_cuda_keep(call->base.ep->exec, blocks, ARRAY_LENGTH(blocks));
}

expar_status dispatch_gpu_make_output(dispatch_call *call)
{
    if (call->no_wait) {
        call->made->rows = call->args.num_worst_tokens;
        call->made->recv_tokens = -1;
    }
    expar_status status = dispatch_make_output(call);
    return status == EXPAR_OK ? keep_in_graph(call) : status;
}

/* ---- ahead of the counts --------------------------------------------------------------------------------------------
 *
 * Between the counts of a fresh dispatch and its rows lies a way to the host and back: it learns how many rows come,
 * takes memory for them, launches the kernel. So the kernel is launched before that, with a free piece of the pool as
 * it is, and that is offered with the hello; once the counts are there all know how much of it is needed.
 *
 * But for ranks of one process that share a GPU: they put nothing behind a kernel that may be waiting (docs/gpu.md). */

/* As if each token of this rank brought as many rows as the last time, and some to spare: the next routing is another
   one. */
static int64_t guess_rows(const dispatch_call *call)
{
    const expar_ep *ep = call->base.ep;
    int64_t tokens = call->args.x.shape[0], most = ep->shape.ranks * ep->shape.tokens, rows;
    if (ep->last_tokens && tokens)
        rows = ep->last_rows * tokens / ep->last_tokens;
    else
        rows = ep->last_rows > tokens ? ep->last_rows : tokens;
    rows += rows / 8;
    return rows < most ? rows : most;
}

static void note_rows(const dispatch_call *call)
{
    call->base.ep->last_tokens = call->args.x.shape[0];
    call->base.ep->last_rows = call->made->rows;
}

/* Counts that are refused because they do not fit 31 bits must be so before any row comes. Without topk_idx they are
   the callers' own. */
static bool counts_are_sound(const dispatch_call *call)
{
    const ep_shape *shape = &call->base.ep->shape;
    int32_t topk = call->base.form.topk, alignment = call->args.expert_alignment;
    return alignment <= 1 || (topk && shape->ranks * shape->tokens * topk + alignment <= INT32_MAX);
}

static bool take_room(const dispatch_call *call, mem_block **out)
{
    const ep_wish wish = dispatch_wish(call);
    ep_block_shape shape = wish.shape;
    if (wish.expert_major || wish.out_x || !counts_are_sound(call)) return false;
    shape.rows = shape.x_rows = guess_rows(call);
    uint64_t least = ep_block_map_of(&shape).total_bytes;
    return mem_pool_take_whole(call->base.ep->pool, least ? least : 1, out);
}

void dispatch_gpu_make_ahead(dispatch_call *call)
{
    if (call->base.ep->shares_gpu) return;
    size_t counts = (size_t)call->made->routing.local_experts;
    expar_ep_output *output = ep_output_make();
    if (!output) return;
    output->tokens_per_expert = calloc(counts, sizeof *output->tokens_per_expert);
    if (output->tokens_per_expert && take_room(call, &output->block))
        call->ahead = output;
    else
        expar_ep_output_release(output);
}

ep_room dispatch_gpu_room(const dispatch_call *call)
{
    if (!call->ahead) return (ep_room){0};
    const mem_block *block = call->ahead->block;
    return (ep_room){.offset = block->offset,
                     .bytes = block->bytes,
                     .mode = call->args.path == EXPAR_PATH_QUEUE ? EP_MODE_QUEUE : EP_MODE_DIRECT};
}

expar_status dispatch_gpu_launch_ahead(dispatch_call *call, ep_notify_step *notify)
{
    executor *exec = call->base.ep->exec;
    ep_dispatch_step step = dispatch_step(call);
    step.no_wait = true;
    step.room = notify->room;
    expar_status status = exec->ops->dispatch(exec, &step);
    return status == EXPAR_OK ? executor_cuda_await_counts(exec, notify) : status;
}

void dispatch_gpu_settle_room(dispatch_call *call)
{
    note_rows(call);
    if (!call->ahead) return;
    const ep_wish wish = dispatch_wish(call);
    uint64_t bytes = ep_block_map_of(&wish.shape).total_bytes;
    call->launched_ahead = bytes <= call->ahead->block->bytes;
    if (call->launched_ahead) {
        mem_block_trim(call->ahead->block, bytes);
        return;
    }
    expar_ep_output_release(call->ahead);
    call->ahead = NULL;
}

/* ---- behind the rows ---- */

/* On a GPU all is put on the stream; what came is known there only. */
static expar_status expand_on_gpu(dispatch_call *call)
{
    executor *exec = call->base.ep->exec;
    const expar_ep_handle *handle = dispatch_handle(call);
    const ep_routing *routing = &handle->routing;
    int64_t bytes = dispatch_row_bytes(call), scale_bytes = 4 * (int64_t)call->base.form.scales;
    ep_map_step map = {.routing = routing,
                       .alignment = handle->alignment,
                       .idx_bytes = (int32_t)expar_dtype_bytes((expar_dtype)call->base.form.idx_dtype),
                       .rows = handle->rows,
                       .expert_rows = handle->expert_rows,
                       .idx = call->to.arrival.idx,
                       .map = handle->row_map};
    expar_status status = dispatch_cached(call) ? EXPAR_OK : executor_cuda_map(exec, &map);
    if (status == EXPAR_OK)
        status = executor_cuda_copy(exec, call->to.row_map, handle->row_map,
                                    (uint64_t)handle->rows * (uint64_t)routing->topk * sizeof(int32_t));
    ep_expand_step step = {.routing = routing,
                           .rows = handle->rows,
                           .row_bytes = bytes,
                           .scale_bytes = scale_bytes,
                           .topk = routing->topk,
                           .map = handle->row_map,
                           .x = call->to.arrival.x,
                           .scales = call->to.arrival.scales,
                           .out_x = call->to.x,
                           .out_scales = call->to.scales};
    if (status == EXPAR_OK) status = exec->ops->expand(exec, &step);
    ep_padding_step padding = {.routing = routing,
                               .alignment = handle->alignment,
                               .map = handle->row_map,
                               .map_rows = handle->rows,
                               .rows = handle->expert_rows,
                               .row_bytes = bytes,
                               .scale_bytes = scale_bytes,
                               .x = call->to.x,
                               .scales = call->to.scales};
    if (status == EXPAR_OK && call->args.zero_padding) status = executor_cuda_zero_padding(exec, &padding);
    mem_block_release(call->to.output->arrival);
    call->to.output->arrival = NULL;
    return status;
}

expar_status dispatch_gpu_finish(dispatch_call *call)
{
    expar_status status = dispatch_move_rows(call);
    if (status != EXPAR_OK) return status;
    if (call->args.expert_major) return expand_on_gpu(call);
    if (call->to.x == call->to.arrival.x) return EXPAR_OK;
    return executor_cuda_copy(call->base.ep->exec, call->to.x, call->to.arrival.x,
                              (uint64_t)dispatch_handle(call)->rows * (uint64_t)dispatch_row_bytes(call));
}

expar_status dispatch_gpu_end(const dispatch_call *call)
{
    expar_status status = ep_gpu_end(&call->base, call->event);
    if (status != EXPAR_OK || call->dropped == 0) return status;
    return error_set(EXPAR_ERR_DROPPED,
                     "expar_dispatch: %d rows were dropped: the handle's num_worst_tokens is too small", call->dropped);
}

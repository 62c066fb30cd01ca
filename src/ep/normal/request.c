/* SPDX-License-Identifier: Apache-2.0 */
/* The request of a dispatch: the parts that it wants to receive, and the sizes of their blocks, for pools that will
 * grow. It also has spare memory for rows that come before their counts. */
#include "ep/normal/request.h"

#include <stdlib.h>

request part_request_of(const dispatch_call *call)
{
    const expar_ep_dispatch_args *args = &call->args;
    const ep_form *form = &call->brings.form;
    const expar_ep_handle *handle = dispatch_handle(call);
    int32_t idx_bytes = (int32_t)expar_dtype_bytes((expar_dtype)form->idx_dtype);
    request w = {.shape = ep_block_shape_of(form, dispatch_row_bytes(call), idx_bytes, handle->rows),
                 .expert_major = args->expert_major != 0,
                 .rows_known = handle->recv_tokens >= 0,
                 .path = args->path};
    w.shape.metadata = args->src_stride != 0;
    w.shape.column_bytes = args->column_scales ? w.shape.scale_bytes : 0;
    for (int part = 0; part < EP_DISPATCH_PARTS; part++)
        w.out[part] = dispatch_own(call, part);
    if (!w.expert_major) return w;
    w.shape.x_rows = handle->expert_rows;
    w.shape.map = 1;
    w.shape.row_weights = dispatch_weighs_rows(call);
    return w;
}

/* The block of the results, without what is the caller's. */
static ep_block_shape block_shape(const request *w)
{
    ep_block_shape shape = w->shape;
    if (!request_in_block(w, EXPAR_EP_PART_X)) shape.row_bytes = 0;
    if (!request_in_block(w, EXPAR_EP_PART_SCALES)) shape.column_bytes = 0;
    if (w->shape.column_bytes ? w->expert_major : !request_in_block(w, EXPAR_EP_PART_SCALES)) shape.scale_bytes = 0;
    if (!request_in_block(w, EXPAR_EP_PART_TOPK_IDX)) shape.idx_bytes = 0;
    if (!request_in_block(w, EXPAR_EP_PART_TOPK_WEIGHTS)) shape.weights = 0;
    if (!request_in_block(w, EXPAR_EP_PART_ROW_MAP)) shape.map = 0;
    if (!request_in_block(w, EXPAR_EP_PART_SRC_TOKEN)) shape.src = 0;
    if (!request_in_block(w, EXPAR_EP_PART_ROW_WEIGHTS)) shape.row_weights = 0;
    if (!request_in_block(w, EXPAR_EP_PART_SRC_METADATA)) shape.metadata = 0;
    return shape;
}

ep_block_map request_block(const request *w)
{
    const ep_block_shape shape = block_shape(w);
    return ep_block_map_of(&shape);
}

ep_block_map request_arrival(const request *w)
{
    const ep_block_shape shape = {.x_rows = w->shape.rows,
                                  .rows = w->shape.rows,
                                  .row_bytes = w->shape.row_bytes,
                                  .scale_bytes = w->shape.scale_bytes};
    return ep_block_map_of(&shape);
}

/* ---- how much it takes ------------------------------------------------------------------------------------------- */

/* Adds enough that the next, different routing fits, too. */
static uint64_t with_spare(uint64_t bytes)
{
    return bytes + bytes / 8;
}

int32_t dispatch_sizes(const dispatch_call *call, uint64_t sizes[3])
{
    request w = part_request_of(call);
    const expar_ep_handle *handle = dispatch_handle(call);
    int32_t count = 0;
    for (int part = 0; part < EP_DISPATCH_PARTS; part++)
        w.staged |= request_arrives_there(&w, part) ? PART_BIT(part) : 0;
    if (w.expert_major) sizes[count++] = (uint64_t)(handle->rows * handle->routing.topk + 1) * sizeof(int32_t);
    sizes[count++] = request_at_least_one(request_block(&w).total_bytes);
    if (w.expert_major && request_arrival(&w).total_bytes) sizes[count++] = request_arrival(&w).total_bytes;
    for (int32_t i = 0; i < count && !dispatch_sized(call); i++)
        sizes[i] = with_spare(sizes[i]);
    return count;
}

int32_t dispatch_sizes_ahead(dispatch_call *call, uint64_t sizes[3])
{
    const ep_form *form = &call->brings.form;
    expar_ep_handle like = {.rows = call->prologue.num_worst_tokens, .recv_tokens = -1};
    if (!dispatch_sized(call)) return 0;
    if (dispatch_cached(call)) return dispatch_sizes(call, sizes);
    like.routing.topk = form->topk;
    like.routing.local_experts = form->experts / ep_of(&call->base)->shape.ranks;
    like.expert_rows = prologue_worst_expert_rows(&call->prologue, &like);
    call->made = &like;
    const int32_t count = dispatch_sizes(call, sizes);
    call->made = NULL;
    return count;
}

/* ---- ahead of the counts -------------------------------------------------------------------------------------------
 *
 * Between the counts of a fresh dispatch and its rows, control goes to the host and back. The host learns how many rows
 * come, takes memory for them, and starts their transfer. An executor that sends ahead starts it before that, into a
 * free piece of the pool. That piece is advertised with the header. Once the counts have come all ranks know how much
 * of it is needed. */

/* As if each token of this rank brought as many rows as the last time, and some to spare: the next routing is another
   one. */
static int64_t guess_rows(const dispatch_call *call)
{
    const expar_ep *ep = ep_of(&call->base);
    int64_t tokens = call->args.x.shape[0], most = ep->shape.ranks * ep->limits.tokens, rows;
    if (ep->last_tokens && tokens)
        rows = ep->last_rows * tokens / ep->last_tokens;
    else
        rows = ep->last_rows > tokens ? ep->last_rows : tokens;
    rows += rows / 8;
    return rows < most ? rows : most;
}

static uint64_t bytes_of_rows(const request *w, int64_t rows)
{
    ep_block_shape shape = w->shape;
    shape.rows = shape.x_rows = rows;
    return request_at_least_one(ep_block_map_of(&shape).total_bytes);
}

/* Rows that were sent ahead have the layout of an output by itself. If the spare rows do not fit, the guess may still
   be right without them. */
static mem_block *take_spare(dispatch_call *call, const request *w)
{
    executor *exec = call->base.buffer->exec;
    mem_block *block;
    for (int part = 0; part < EP_DISPATCH_PARTS; part++)
        if (w->out[part]) return NULL;
    if (w->expert_major || w->shape.column_bytes) return NULL;
    const int64_t rows = guess_rows(call);
    const uint64_t least = bytes_of_rows(w, rows - rows / 9);
    if (mem_pool_take_whole(exec->pool, bytes_of_rows(w, rows), &block)) return block;
    if (mem_pool_take_whole(exec->pool, least, &block)) return block;
    call->lacking_bytes = least;
    return NULL;
}

/* Kernels lay out so much there (ep_block_shape_of). Parts that are made of rows later come after it. */
static uint64_t bytes_that_come(const request *w, int64_t rows)
{
    request bare = *w;
    bare.shape.metadata = 0;
    return bytes_of_rows(&bare, rows);
}

/* Returns the bytes to advertise. Whenever the rows that come fit into these bytes, the whole output fits into the
   block: they are less than one row more than fits would take. */
static uint64_t bytes_to_advert(const request *w, const mem_block *block)
{
    int64_t fit = 0, over = (int64_t)(block->bytes / (uint64_t)w->shape.row_bytes) + 1;
    if (!w->shape.metadata) return block->bytes;
    while (over - fit > 1) {
        const int64_t rows = fit + (over - fit) / 2;
        if (bytes_of_rows(w, rows) <= block->bytes)
            fit = rows;
        else
            over = rows;
    }
    return bytes_that_come(w, over) - 1;
}

void dispatch_take_spare(dispatch_call *call)
{
    if (!call->base.buffer->exec->sends_ahead) return;
    const request w = part_request_of(call);
    size_t counts = (size_t)call->made->routing.local_experts;
    expar_ep_output *output = ep_output_make(call->base.buffer);
    if (!output) return;
    output->tokens_per_expert = calloc(counts, sizeof *output->tokens_per_expert);
    if (output->tokens_per_expert) output->block = take_spare(call, &w);
    if (!output->block) {
        expar_ep_output_release(output);
        return;
    }
    call->offered_bytes = bytes_to_advert(&w, output->block);
    call->plan.output = output;
}

ep_free_space dispatch_advert_spare(const dispatch_call *call)
{
    return (ep_free_space){.offset = call->plan.output->block->offset,
                           .bytes = call->offered_bytes,
                           .mode = call->args.path == EXPAR_EP_PATH_QUEUE ? EP_MODE_QUEUE : EP_MODE_DIRECT};
}

void dispatch_settle_spare(dispatch_call *call)
{
    ep_of(&call->base)->last_tokens = call->args.x.shape[0];
    ep_of(&call->base)->last_rows = call->made->rows;
    if (!call->offered_bytes) return;
    const request w = part_request_of(call);
    call->sent_ahead = !call->grows && bytes_that_come(&w, w.shape.rows) <= call->offered_bytes;
    if (call->sent_ahead)
        mem_block_trim(call->plan.output->block, ep_block_map_of(&w.shape).total_bytes);
    else
        plan_release(&call->base, &call->plan);
}

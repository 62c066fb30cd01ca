/* SPDX-License-Identifier: Apache-2.0 */
/* The results of a dispatch: how large they are, where they lie, and how rows that have arrived get there. */
#include "ep/normal/dispatch.h"

#include <stdlib.h>

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

expar_status dispatch_count_experts(const dispatch_call *call, expar_ep_output *output, int64_t *sum)
{
    size_t locals = (size_t)call->made->routing.local_experts;
    if (!output->tokens_per_expert) output->tokens_per_expert = malloc(locals * sizeof *output->tokens_per_expert);
    if (!output->tokens_per_expert) return error_set(EXPAR_ERR_MEMORY, "no memory for %zu counts", locals);
    *sum = opening_round_counts(&call->opening, &call->made->routing, output->tokens_per_expert);
    return EXPAR_OK;
}

/* Whether an expert-major output can be as long, and the room for its map. */
static expar_status size_expert_major(dispatch_call *call)
{
    const expar_ep_handle *handle = dispatch_handle(call);
    if (handle->expert_rows > INT32_MAX)
        return error_set(EXPAR_ERR_ARGUMENT, "an expert-major output of %lld rows; expected at most 2^31 - 1",
                         (long long)handle->expert_rows);
    return ep_handle_make_map(ep_of(&call->base), handle, &call->fills_map);
}

static expar_status size_fresh(const dispatch_call *call, expar_ep_output *output)
{
    expar_ep_handle *made = call->made;
    made->expert_rows = opening_worst_expert_rows(&call->opening, made);
    return dispatch_sized(call) ? EXPAR_OK : dispatch_count_experts(call, output, &made->expert_rows);
}

/* ---- growth ------------------------------------------------------------------------------------------------------ */

/* So much more that the next routing, which is another one, finds room, too. */
static uint64_t with_spare(uint64_t bytes)
{
    return bytes + bytes / 8;
}

/* The blocks that the call takes, whose rows are known, in this order. */
static int32_t sizes_of_blocks(const dispatch_call *call, uint64_t sizes[3])
{
    const ep_wish wish = dispatch_wish(call);
    const expar_ep_handle *handle = dispatch_handle(call);
    uint64_t own[2];
    int32_t count = 0;
    ep_destination_sizes(&wish, own);
    if (wish.expert_major) sizes[count++] = (uint64_t)(handle->rows * handle->routing.topk + 1) * sizeof(int32_t);
    for (int32_t i = 0; i < 2 && own[i]; i++)
        sizes[count++] = own[i];
    for (int32_t i = 0; i < count && !dispatch_sized(call); i++)
        sizes[i] = with_spare(sizes[i]);
    return count;
}

int32_t dispatch_sizes_ahead(dispatch_call *call, uint64_t sizes[3])
{
    const ep_form *form = &call->brings.form;
    expar_ep_handle like = {.rows = call->opening.num_worst_tokens, .recv_tokens = -1};
    if (!dispatch_sized(call)) return 0;
    if (dispatch_cached(call)) return sizes_of_blocks(call, sizes);
    like.routing.topk = form->topk;
    like.routing.local_experts = form->experts / ep_of(&call->base)->shape.ranks;
    like.expert_rows = opening_worst_expert_rows(&call->opening, &like);
    call->made = &like;
    const int32_t count = sizes_of_blocks(call, sizes);
    call->made = NULL;
    return count;
}

bool dispatch_lies_beside(const dispatch_call *call)
{
    for (int part = 0; part < EP_DISPATCH_PARTS; part++)
        if (dispatch_own(call, part)) return false;
    return call->args.path == EXPAR_PATH_AUTO && !call->to.output->block->pool;
}

void dispatch_grow(dispatch_call *call, bool sized)
{
    executor *exec = call->base.buffer->exec;
    uint64_t sizes[3];
    if (!call->grows) return;
    call->grows = false;
    call->growth = exec->normal->grow_pool(exec, sizes, sized ? sizes_of_blocks(call, sizes) : 0);
}

/* ---- places ------------------------------------------------------------------------------------------------------ */

ep_wish dispatch_wish(const dispatch_call *call)
{
    const expar_dispatch_args *args = &call->args;
    const ep_form *form = &call->brings.form;
    const expar_ep_handle *handle = dispatch_handle(call);
    int32_t idx_bytes = (int32_t)expar_dtype_bytes((expar_dtype)form->idx_dtype);
    ep_wish wish = {.shape = ep_block_shape_of(form, dispatch_row_bytes(call), idx_bytes, handle->rows),
                    .expert_major = args->expert_major != 0,
                    .path = args->path,
                    .rows_known = handle->recv_tokens >= 0,
                    .output = call->ahead};
    wish.shape.metadata = args->src_stride != 0;
    wish.shape.column_bytes = args->column_scales ? wish.shape.scale_bytes : 0;
    for (int part = 0; part < EP_DISPATCH_PARTS; part++)
        wish.out[part] = dispatch_own(call, part);
    if (!wish.expert_major) return wish;
    wish.shape.x_rows = handle->expert_rows;
    wish.shape.map = 1;
    wish.shape.row_weights = dispatch_weighs_rows(call);
    return wish;
}

static expar_status make_destination(dispatch_call *call)
{
    const ep_wish wish = dispatch_wish(call);
    for (int part = 0; part < EP_DISPATCH_PARTS; part++) {
        bool of_x = part == EXPAR_EP_PART_X || part == EXPAR_EP_PART_SCALES || part == EXPAR_EP_PART_ROW_WEIGHTS;
        int64_t needed = of_x ? wish.shape.x_rows : wish.shape.rows;
        if (wish.out[part] && wish.out[part]->shape[0] < needed)
            return error_set(EXPAR_ERR_BUFFER_SIZE, "%s has %lld rows; %lld are received", ep_out_name(part),
                             (long long)wish.out[part]->shape[0], (long long)needed);
    }
    call->ahead = NULL;
    return ep_destination_make(ep_of(&call->base), &wish, &call->to);
}

/* In a capture: the graph keeps what its kernels touch, whatever becomes of the caller's references. */
static expar_status dispatch_keep_in_graph(const dispatch_call *call)
{
    executor *exec = call->base.buffer->exec;
    const expar_ep_handle *handle = dispatch_handle(call);
    const expar_ep_output *output = call->to.output;
    mem_block *const blocks[] = {handle->routing.own, ep_handle_map_block(handle), output->block, output->arrival};
    return exec->ops->keep(exec, &call->base.exec, blocks, ARRAY_LENGTH(blocks));
}

expar_status dispatch_make_output(dispatch_call *call)
{
    if (!call->ahead) call->ahead = ep_output_make(call->base.buffer);
    if (!call->ahead) return error_set(EXPAR_ERR_MEMORY, "no memory for an output");
    bool fresh = !dispatch_cached(call);
    expar_status status = fresh ? size_fresh(call, call->ahead) : EXPAR_OK;
    if (status == EXPAR_OK) dispatch_grow(call, true);
    if (status == EXPAR_OK) status = call->growth;
    if (status == EXPAR_OK && call->args.expert_major) status = size_expert_major(call);
    if (status == EXPAR_OK) status = make_destination(call);
    return status == EXPAR_OK ? dispatch_keep_in_graph(call) : status;
}

/* ---- from the arrival to the results ----------------------------------------------------------------------------- */

/* Whether this call has to fill the handle's map: the one that was to may have been refused since this one began. */
static bool dispatch_takes_map(dispatch_call *call)
{
    expar_ep_handle *handle = (expar_ep_handle *)dispatch_handle(call);
    if (!call->fills_map && !ep_handle_map_is_sure(handle) && tensor_given(&call->args.topk_idx))
        call->fills_map = !atomic_exchange_explicit(&handle->mapped, true, memory_order_acq_rel);
    return call->fills_map;
}

/* Where steps are put on a stream the host need not know how a dispatch ends: until one has filled the map of which it
   does, those that can fill it again, one behind the other. */
static bool dispatch_fills_again(const dispatch_call *call)
{
    return call->base.buffer->exec->ops->streams && !ep_handle_map_is_sure(dispatch_handle(call)) &&
           tensor_given(&call->args.topk_idx);
}

/* The map that this call fills, or reads. On the CPU the handle's may be under way on another buffer, or have been left
   by a dispatch that was refused: then the call fills the result's own. */
static expar_status choose_map(dispatch_call *call, int32_t **map, bool *fills)
{
    const expar_ep_handle *handle = dispatch_handle(call);
    *fills = dispatch_takes_map(call) || dispatch_fills_again(call);
    *map = ep_handle_map(handle);
    if (*fills || call->base.buffer->exec->ops->streams || ep_handle_map_is_sure(handle)) return EXPAR_OK;
    *fills = tensor_given(&call->args.topk_idx);
    *map = call->to.row_map;
    if (*fills) return EXPAR_OK;
    return error_set(EXPAR_ERR_HANDLE,
                     "the dispatch that was to fill the handle's row map has been refused, or has not "
                     "ended; expected topk_idx");
}

/* Number of this rank's first expert, as recv_topk_idx has it. */
static int32_t dispatch_first_expert(const dispatch_call *call)
{
    bool global = call->brings.form.options & EP_OPTION_GLOBAL_EXPERTS;
    return global ? call->base.buffer->group->rank * dispatch_handle(call)->routing.local_experts : 0;
}

/* The handle's map, which the first dispatch that can fills, and the result's, which is a copy of it. */
static expar_status fill_row_map(dispatch_call *call)
{
    executor *exec = call->base.buffer->exec;
    const expar_ep_handle *handle = dispatch_handle(call);
    ep_map_step step = {.routing = &handle->routing,
                        .alignment = handle->alignment,
                        .idx_bytes = (int32_t)expar_dtype_bytes((expar_dtype)call->brings.form.idx_dtype),
                        .rows = handle->rows,
                        .expert_rows = handle->expert_rows,
                        .first_expert = dispatch_first_expert(call),
                        .counted = dispatch_cached(call) ? 0 : normal_epoch(&call->base),
                        .idx = call->to.arrival.idx};
    bool fills;
    expar_status status = choose_map(call, &step.map, &fills);
    step.again = !call->fills_map;
    if (status == EXPAR_OK && fills) status = exec->normal->map(exec, &call->base.exec, &step);
    if (status != EXPAR_OK) return status;
    const bool known = !exec->ops->streams || !call->step.deferred;
    if (fills && known && step.map == ep_handle_map(handle)) ep_handle_map_set_sure((expar_ep_handle *)handle);
    if (step.map == call->to.row_map) return EXPAR_OK;
    return exec->normal->copy(exec, &call->base.exec, call->to.row_map, step.map,
                              (uint64_t)handle->rows * (uint64_t)handle->routing.topk * sizeof(int32_t));
}

/* Filled by fill_row_map. On the CPU the result's, since the handle's may be another call's to fill. */
static const int32_t *row_map_of(const dispatch_call *call)
{
    return call->base.buffer->exec->ops->streams ? ep_handle_map(dispatch_handle(call)) : call->to.row_map;
}

static expar_status expand_rows(dispatch_call *call)
{
    executor *exec = call->base.buffer->exec;
    const expar_ep_handle *handle = dispatch_handle(call);
    const ep_expand_step step = {.routing = &handle->routing,
                                 .rows = handle->rows,
                                 .row_bytes = dispatch_row_bytes(call),
                                 .scale_bytes = 4 * (int64_t)call->brings.form.scales,
                                 .topk = handle->routing.topk,
                                 .map = row_map_of(call),
                                 .x = call->to.arrival.x,
                                 .scales = call->to.arrival.scales,
                                 .weights = call->to.arrival.weights,
                                 .out_x = call->to.x,
                                 .out_scales = call->to.scales,
                                 .out_pitch = dispatch_scales_pitch(call),
                                 .out_weights = call->to.row_weights};
    return exec->normal->expand(exec, &call->base.exec, &step);
}

static expar_status pad_rows(dispatch_call *call)
{
    executor *exec = call->base.buffer->exec;
    const expar_ep_handle *handle = dispatch_handle(call);
    const ep_padding_step step = {.routing = &handle->routing,
                                  .alignment = handle->alignment,
                                  .map = row_map_of(call),
                                  .map_rows = handle->rows,
                                  .rows = handle->expert_rows,
                                  .row_bytes = dispatch_row_bytes(call),
                                  .scale_bytes = 4 * (int64_t)call->brings.form.scales,
                                  .x = call->to.x,
                                  .scales = call->to.scales,
                                  .scales_pitch = dispatch_scales_pitch(call),
                                  .weights = call->to.row_weights};
    return exec->normal->pad(exec, &call->base.exec, &step);
}

static expar_status make_expert_major(dispatch_call *call)
{
    expar_status status = fill_row_map(call);
    if (status == EXPAR_OK) status = expand_rows(call);
    if (status == EXPAR_OK && call->args.zero_padding) status = pad_rows(call);
    mem_block_release(call->to.output->arrival);
    call->to.output->arrival = NULL;
    return status;
}

static expar_status turn_scales(dispatch_call *call)
{
    executor *exec = call->base.buffer->exec;
    const expar_ep_handle *handle = dispatch_handle(call);
    const ep_columns_step step = {.routing = &handle->routing,
                                  .rows = handle->rows,
                                  .pitch = dispatch_scales_pitch(call),
                                  .scales = call->to.arrival.scales,
                                  .out = call->to.scales,
                                  .num_scales = call->brings.form.scales};
    return exec->normal->columns(exec, &call->base.exec, &step);
}

static expar_status tell_sources(dispatch_call *call)
{
    executor *exec = call->base.buffer->exec;
    const expar_ep_handle *handle = dispatch_handle(call);
    const ep_sources_step step = {.routing = &handle->routing,
                                  .rows = handle->rows,
                                  .topk = call->brings.form.topk,
                                  .stride = call->args.src_stride,
                                  .src = call->to.arrival.src,
                                  .map = call->args.expert_major ? row_map_of(call) : NULL,
                                  .out = call->to.metadata};
    return exec->normal->sources(exec, &call->base.exec, &step);
}

expar_status dispatch_arrange(dispatch_call *call)
{
    executor *exec = call->base.buffer->exec;
    const ep_destination *to = &call->to;
    const ep_form *form = &call->brings.form;
    bool rows = !call->args.expert_major, columns = rows && call->args.column_scales && form->scales;
    const struct {
        void *to;
        const void *from;
        int64_t row_bytes;
    } parts[] = {{to->x, to->arrival.x, rows ? dispatch_row_bytes(call) : 0},
                 {to->scales, to->arrival.scales, rows && !columns ? 4 * (int64_t)form->scales : 0},
                 {to->idx, to->arrival.idx, form->topk * (int64_t)expar_dtype_bytes((expar_dtype)form->idx_dtype)},
                 {to->weights, to->arrival.weights, form->topk * (int64_t)sizeof(float)},
                 {to->src, to->arrival.src, sizeof(int32_t)}};
    expar_status status = call->args.expert_major ? make_expert_major(call) : EXPAR_OK;
    if (status == EXPAR_OK && columns) status = turn_scales(call);
    if (status == EXPAR_OK && to->metadata) status = tell_sources(call);
    for (size_t i = 0; i < ARRAY_LENGTH(parts) && status == EXPAR_OK; i++)
        if (parts[i].row_bytes && parts[i].to != parts[i].from)
            status = exec->normal->copy(exec, &call->base.exec, parts[i].to, parts[i].from,
                                        (uint64_t)(dispatch_handle(call)->rows * parts[i].row_bytes));
    return status;
}

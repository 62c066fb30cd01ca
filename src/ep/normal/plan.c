/* SPDX-License-Identifier: Apache-2.0 */
/* Decides the way of the rows of a dispatch or a combine on this rank, and the place of each part.
 *
 * All parts go the same way. Rows go directly (DIRECT) if peers reach every part. A part that they reach is in the
 * pool, or in the caller's memory, or the pool has a copy of it. Else all parts go by the queue. */
#include "ep/normal/combine.h"
#include "ep/normal/request.h"

#include <stdio.h>

/* ---- the way ----------------------------------------------------------------------------------------------------- */

/* Finds out where peers reach each part that has bytes. Returns the bits of those that they do not reach. maps: the
   bits of those that peers may map if they are outside the heap. */
static uint32_t find_places(const ep_call *call, ep_plan *plan, uint32_t maps)
{
    executor *exec = call->buffer->exec;
    uint32_t lacking = 0;
    for (int part = 0; part < EP_OUTPUT_PARTS; part++) {
        ep_plan_place *place = &plan->parts[part];
        if (!place->bytes || (exec->normal->x_alone && part != EXPAR_EP_PART_X)) continue;
        const exec_reach reach =
            exec->normal->reach(exec, &call->exec, place->data, place->bytes, maps & PART_BIT(part), &place->mapping);
        place->offset = place->mapping.offset;
        if (reach == EXEC_REACH_NONE) lacking |= PART_BIT(part);
        if (reach == EXEC_REACH_MAPPED && part == EXPAR_EP_PART_X) plan->mapped = true;
    }
    return lacking;
}

static int first_part(uint32_t parts)
{
    int part = 0;
    while (!(parts & PART_BIT(part)))
        part++;
    return part;
}

static expar_status reject_address(const char *name, const void *data)
{
    return error_set(EXPAR_ERR_ADDRESS, "path is DIRECT, but %s.data %p is not in the symmetric heap", name, data);
}

static expar_status reject_pool(const expar_ep *ep, uint64_t bytes, const char *what)
{
    mem_pool *pool = ep->base.exec->pool;
    return error_set(
        EXPAR_ERR_BUFFER_SIZE,
        "path is DIRECT, but the pool of %llu bytes has no space for %s (config.%s of %llu bytes would be enough)",
        (unsigned long long)mem_pool_limit(pool), what,
        ep->base.exec->grows && !ep->pool_limit_bytes ? "pool_bytes" : "pool_limit_bytes",
        (unsigned long long)mem_pool_enough(pool, bytes));
}

/* ---- blocks of a dispatch ---------------------------------------------------------------------------------------- */

/* Takes the block from the pool if rows come directly, else from other memory. If the pool is full and the path is
   AUTO, it takes other memory, and rows come by the queue. */
static expar_status output_take_block(expar_ep *ep, const request *w, uint64_t bytes, ep_plan *plan, mem_block **block)
{
    bytes = request_at_least_one(bytes);
    if (plan->mode == EP_MODE_QUEUE) return ep_other_take(ep, bytes, block);
    if (mem_pool_take(ep->base.exec->pool, bytes, block) == EXPAR_OK) return EXPAR_OK;
    /* A pool without a limit fails only because there is no memory, and the last error says so. */
    if (w->path == EXPAR_EP_PATH_DIRECT && !ep->pool_limit_bytes && !ep->shape.pool_bytes)
        return error_prefix(EXPAR_ERR_MEMORY, "path is DIRECT, but");
    if (w->path == EXPAR_EP_PATH_DIRECT) {
        char what[64];
        snprintf(what, sizeof what, "an output of %llu bytes", (unsigned long long)bytes);
        return reject_pool(ep, bytes, what);
    }
    LOG(LOG_INFO, "pool has no space for %llu bytes: this output comes by the queue", (unsigned long long)bytes);
    plan->mode = EP_MODE_QUEUE;
    return ep_other_take(ep, bytes, block);
}

/* If all results are in the caller's memory, the block is one byte outside the pool, since an output has a block. */
static expar_status take_result_block(expar_ep *ep, const request *w, ep_plan *plan)
{
    const uint64_t bytes = request_block(w).total_bytes;
    if (bytes == 0 && ep_block_map_of(&w->shape).total_bytes > 0) return mem_block_private(1, &plan->output->block);
    return output_take_block(ep, w, bytes, plan, &plan->output->block);
}

/* Takes the block of the pool through which staged rows pass on their way to the caller's memory. If the pool is full,
   no row is staged, and rows come by the queue. */
static void take_stage(const expar_ep *ep, request *w, ep_plan *plan)
{
    if (mem_pool_take(ep->base.exec->pool, request_block(w).total_bytes, &plan->output->block) == EXPAR_OK) return;
    w->staged = 0;
    plan->mode = EP_MODE_QUEUE;
}

/* Takes the block of the results. For an expert-major output it also takes the block where token-major rows arrive.
   Both are in the pool, or both are outside: if the second does not fit into the pool, the first is taken again. */
static expar_status take_blocks(expar_ep *ep, request *w, ep_plan *plan)
{
    expar_ep_output *output = plan->output;
    if (w->staged) take_stage(ep, w, plan);
    expar_status status = output->block ? EXPAR_OK : take_result_block(ep, w, plan);
    if (status != EXPAR_OK || !w->expert_major) return status;
    const ep_mode before = plan->mode;
    status = output_take_block(ep, w, request_arrival(w).total_bytes, plan, &output->arrival);
    if (status != EXPAR_OK || plan->mode == before) return status;
    mem_block_release(output->block);
    output->block = NULL;
    w->staged = 0;
    return take_result_block(ep, w, plan);
}

/* ---- places of its parts ----------------------------------------------------------------------------------------- */

/* The blocks that were taken, and the offsets of the parts in them. */
typedef struct blocks {
    const mem_block *result, *arrival;
    ep_block_map of_result, of_arrival;
} blocks;

/* Sets where rows of the part arrive: in the caller's memory, whose offset choose_way has found, or in a block. */
static void place_arrival(const request *w, const blocks *in, int part, ep_plan_place *place)
{
    const bool first = request_expands(w, part);
    const mem_block *block = first ? in->arrival : in->result;
    const uint64_t at = request_begin(first ? &in->of_arrival : &in->of_result, part);
    if (request_arrives_there(w, part) && !request_in_block(w, part)) {
        place->travels = w->out[part]->data;
        return;
    }
    place->offset = block->offset + at;
    place->travels = (uint8_t *)block->data + at;
}

/* Returns where the part's result is: in the caller's memory, where its rows arrive, or where a later step makes it. */
static void *place_result(const request *w, const blocks *in, int part, const ep_plan_place *place)
{
    const bool columns = part == EXPAR_EP_PART_SCALES && w->shape.column_bytes;
    if (w->out[part]) return w->out[part]->data;
    if (place->travels && !request_remakes(w, part)) return place->travels;
    return (uint8_t *)in->result->data + (columns ? in->of_result.columns : request_begin(&in->of_result, part));
}

static void place_parts(const request *w, ep_plan *plan)
{
    const blocks in = {plan->output->block, plan->output->arrival, request_block(w), request_arrival(w)};
    for (int part = 0; part < EP_DISPATCH_PARTS; part++) {
        ep_plan_place *place = &plan->parts[part];
        const int64_t row_bytes = request_row_bytes(w, part);
        if (row_bytes == 0 && !request_makes(w, part)) continue;
        if (row_bytes) place_arrival(w, &in, part, place);
        place->bytes = request_remakes(w, part) ? 0 : (uint64_t)(w->shape.rows * row_bytes);
        place->data = place_result(w, &in, part, place);
    }
}

/* ---- the decision ------------------------------------------------------------------------------------------------ */

static expar_status check_space(const request *w)
{
    for (int part = 0; part < EP_DISPATCH_PARTS; part++) {
        const bool of_x = part == EXPAR_EP_PART_X || part == EXPAR_EP_PART_SCALES || part == EXPAR_EP_PART_ROW_WEIGHTS;
        const int64_t needed = of_x ? w->shape.x_rows : w->shape.rows;
        if (w->out[part] && w->out[part]->shape[0] < needed)
            return error_set(EXPAR_ERR_BUFFER_SIZE, "%s has %lld rows; %lld are received", dispatch_out_name(part),
                             (long long)w->out[part]->shape[0], (long long)needed);
    }
    return EXPAR_OK;
}

/* Decides whether senders write rows to their places, as far as the caller's path and memory allow it. Rows are staged
   only if their number is known. The copy to the caller's memory then writes no row that did not come. */
static expar_status choose_way(const ep_call *call, request *w, ep_plan *plan)
{
    plan->mode = w->path == EXPAR_EP_PATH_QUEUE ? EP_MODE_QUEUE : EP_MODE_DIRECT;
    if (w->path == EXPAR_EP_PATH_QUEUE) return EXPAR_OK;
    for (int part = 0; part < EP_DISPATCH_PARTS; part++)
        if (request_arrives_there(w, part))
            plan->parts[part] = (ep_plan_place){.data = w->out[part]->data,
                                                .bytes = (uint64_t)(w->shape.rows * request_row_bytes(w, part))};
    const uint32_t lacking = find_places(call, plan, 0);
    if (lacking && w->path == EXPAR_EP_PATH_DIRECT) {
        const int part = first_part(lacking);
        return reject_address(dispatch_out_name(part), plan->parts[part].data);
    }
    if (lacking && call->buffer->exec->normal->stages && w->rows_known)
        w->staged = lacking;
    else if (lacking)
        plan->mode = EP_MODE_QUEUE;
    return EXPAR_OK;
}

expar_status dispatch_plan(dispatch_call *call)
{
    ep_plan *plan = &call->plan;
    request w = part_request_of(call);
    plan->rows = w.shape.rows;
    expar_status status = check_space(&w);
    if (status == EXPAR_OK) status = choose_way(&call->base, &w, plan);
    if (status == EXPAR_OK) status = take_blocks(ep_of(&call->base), &w, plan);
    if (status != EXPAR_OK) {
        plan_release(&call->base, plan);
        return status;
    }
    place_parts(&w, plan);
    return plan_keep(&call->base, plan, dispatch_handle(call));
}

bool dispatch_lies_beside(const dispatch_call *call)
{
    for (int part = 0; part < EP_DISPATCH_PARTS; part++)
        if (dispatch_own(call, part)) return false;
    return call->args.path == EXPAR_EP_PATH_AUTO && !call->plan.output->block->pool;
}

/* ---- a combine --------------------------------------------------------------------------------------------------- */

/* Takes memory for a part that this rank makes before it travels: in the pool if it fits, else outside the pool. */
static expar_status take_made(combine_call *call, ep_plan_place *place)
{
    ep_plan *plan = &call->plan;
    mem_block **block = &plan->blocks[plan->num_blocks];
    expar_status status = ep_block_take(ep_of(&call->base), place->bytes, block);
    if (status != EXPAR_OK) return status;
    plan->num_blocks++;
    place->data = (*block)->data;
    return EXPAR_OK;
}

/* Returns the number of bytes from the first row's first byte to the last row's last byte. */
static uint64_t span_bytes(const ep_plan_place *place, int64_t rows, int64_t row_bytes)
{
    return rows > 0 ? (uint64_t)((rows - 1) * place->pitch_bytes + row_bytes) : 0;
}

static expar_status place_rows(combine_call *call)
{
    const expar_tensor *x = &call->args.x;
    ep_plan_place *place = &call->plan.parts[EXPAR_EP_PART_X];
    const int64_t row_bytes = combine_row_bytes(call), pitch = tensor_pitch(x);
    place->data = x->data;
    place->pitch_bytes = combine_reduces(call) ? row_bytes : pitch * (int64_t)expar_dtype_bytes(x->dtype);
    place->bytes = span_bytes(place, combine_adds_each_slot(call) ? x->shape[0] : call->plan.rows, row_bytes);
    return combine_reduces(call) ? take_made(call, place) : EXPAR_OK;
}

/* Weights of expert-major rows are made into an [R][K] array before they travel. */
static expar_status place_weights(combine_call *call)
{
    const expar_tensor *weights = &call->args.topk_weights;
    ep_plan_place *place = &call->plan.parts[EXPAR_EP_PART_TOPK_WEIGHTS];
    const int64_t topk = call->args.handle->routing.topk, unit = (int64_t)sizeof(float);
    place->data = weights->data;
    place->pitch_bytes = (combine_weighs_rows(call) ? topk : tensor_pitch(weights)) * unit;
    if (!tensor_given(weights)) return EXPAR_OK;
    place->bytes = span_bytes(place, call->plan.rows, topk * unit);
    return combine_weighs_rows(call) ? take_made(call, place) : EXPAR_OK;
}

/* If each slot is added, the row map travels too: the owner finds the rows of its tokens by it. */
static void place_map(combine_call *call)
{
    const expar_ep_handle *handle = call->args.handle;
    ep_plan_place *place = &call->plan.parts[EXPAR_EP_PART_ROW_MAP];
    if (!combine_adds_each_slot(call)) return;
    place->data = ep_handle_map(handle);
    place->bytes = (uint64_t)call->plan.rows * (uint64_t)handle->routing.topk * sizeof(int32_t);
}

static expar_status reject_direct(const combine_call *call, int part)
{
    const ep_plan_place *place = &call->plan.parts[part];
    const bool own =
        part == EXPAR_EP_PART_ROW_MAP || (part == EXPAR_EP_PART_X ? combine_reduces(call) : combine_weighs_rows(call));
    char what[64];
    if (!own) return reject_address(part == EXPAR_EP_PART_X ? "x" : "topk_weights", place->data);
    snprintf(what, sizeof what, "%lld rows", (long long)call->plan.rows);
    return reject_pool(ep_of(&call->base), place->bytes, what);
}

/* Takes blocks of the pool for copies of these parts, which peers do not reach. It takes all of them or none. The
   copies are made when the call runs (plan_copy). */
static bool take_copies(const executor *exec, ep_plan *plan, uint32_t parts)
{
    mem_block *taken[EP_OUTPUT_PARTS] = {0};
    for (int part = 0; part < EP_OUTPUT_PARTS; part++) {
        if (!(parts & PART_BIT(part)) || mem_pool_take(exec->pool, plan->parts[part].bytes, &taken[part]) == EXPAR_OK)
            continue;
        while (part-- > 0)
            mem_block_release(taken[part]);
        return false;
    }
    for (int part = 0; part < EP_OUTPUT_PARTS; part++) {
        if (!taken[part]) continue;
        plan->blocks[plan->num_blocks++] = taken[part];
        plan->parts[part].travels = taken[part]->data;
        plan->parts[part].offset = taken[part]->offset;
    }
    plan->copied = parts & PART_BIT(EXPAR_EP_PART_X);
    return true;
}

/* Decides the way of a combine's rows. The handle's map is the library's own, so it may be copied to the pool on any
   device. With path DIRECT the caller's memory outside the heap is rejected, even if peers could map it. */
static expar_status choose_combine_way(combine_call *call)
{
    const executor *exec = call->base.buffer->exec;
    const uint32_t of_callers = PART_BIT(EXPAR_EP_PART_X) | PART_BIT(EXPAR_EP_PART_TOPK_WEIGHTS);
    const bool any = call->args.path == EXPAR_EP_PATH_AUTO;
    ep_plan *plan = &call->plan;
    plan->mode = EP_MODE_QUEUE;
    if (call->args.path == EXPAR_EP_PATH_QUEUE) return EXPAR_OK;
    const uint32_t lacking = find_places(&call->base, plan, any ? of_callers : 0);
    const bool copies = !(lacking & of_callers) || (any && exec->normal->stages);
    if (copies && take_copies(exec, plan, lacking)) plan->mode = EP_MODE_DIRECT;
    return plan->mode == EP_MODE_DIRECT || any ? EXPAR_OK : reject_direct(call, first_part(lacking));
}

expar_status combine_plan(combine_call *call)
{
    ep_plan *plan = &call->plan;
    plan->rows = combine_rows_held(call);
    expar_status status = place_rows(call);
    if (status == EXPAR_OK) status = place_weights(call);
    if (status != EXPAR_OK) return status;
    place_map(call);
    for (int part = 0; part < EP_OUTPUT_PARTS; part++)
        plan->parts[part].travels = plan->parts[part].data;
    status = choose_combine_way(call);
    return status == EXPAR_OK ? plan_keep(&call->base, plan, call->args.handle) : status;
}

/* ---- carrying it out --------------------------------------------------------------------------------------------- */

expar_status plan_keep(const ep_call *call, const ep_plan *plan, const expar_ep_handle *handle)
{
    const expar_ep_output *output = plan->output;
    mem_block *held[4 + EP_PLAN_BLOCKS] = {handle->routing.own, ep_handle_map_block(handle),
                                           output ? output->block : NULL, output ? output->arrival : NULL};
    executor *exec = call->buffer->exec;
    for (int32_t i = 0; i < plan->num_blocks; i++)
        held[4 + i] = plan->blocks[i];
    return exec->ops->keep(exec, &call->exec, held, ARRAY_LENGTH(held));
}

void plan_list(const ep_plan *plan, const expar_ep_handle *handle, exec_replay *replay)
{
    exec_replay_list(replay, ep_handle_map(handle));
    for (int part = 0; part < EP_OUTPUT_PARTS; part++) {
        const ep_plan_place *place = &plan->parts[part];
        exec_replay_list(replay, place->data);
        if (place->travels != place->data) exec_replay_list(replay, place->travels);
    }
}

expar_status plan_copy(ep_call *call, const ep_plan *plan, bool back)
{
    executor *exec = call->buffer->exec;
    expar_status status = EXPAR_OK;
    for (int part = 0; part < EP_OUTPUT_PARTS && status == EXPAR_OK; part++) {
        const ep_plan_place *place = &plan->parts[part];
        if (place->bytes && place->travels != place->data)
            status = exec->normal->copy(exec, &call->exec, back ? place->travels : place->data,
                                        back ? place->data : place->travels, place->bytes);
    }
    return status;
}

static void raise_count(_Atomic uint64_t *counter)
{
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

void plan_count(expar_ep *ep, const ep_plan *plan)
{
    const bool direct = plan->mode == EP_MODE_DIRECT;
    raise_count(direct ? &ep->direct_calls : &ep->queue_calls);
    if (direct && plan->mapped) raise_count(&ep->mapped_calls);
    if (direct && plan->copied) raise_count(&ep->copied_calls);
}

/* Uses the executor only to end mappings: an executor without any may have been destroyed by now. */
void plan_release(const ep_call *call, ep_plan *plan)
{
    executor *exec = call->buffer->exec;
    expar_ep_output_release(plan->output);
    for (int32_t i = 0; i < plan->num_blocks; i++)
        mem_block_release(plan->blocks[i]);
    for (int part = 0; part < EP_OUTPUT_PARTS; part++)
        if (plan->parts[part].mapping.held) exec->normal->unmap(exec, &plan->parts[part].mapping);
    *plan = (ep_plan){0};
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Notify and dispatch by the host: tokens and routing come from the GPU, rows go there. */
#include "exec/cuda/hosted/hosted.h"

/* ---- what a step reads ------------------------------------------------------------------------------------------- */

/* Host copies of the indices, and of what comes in their place. */
static void read_routing(hosted_step *step, ep_route_view *route, const ep_routing *routing)
{
    int64_t pitch = route->idx_pitch * route->idx_bytes;
    route->idx = hosted_read_rows(step, route->idx, routing->tokens, (int64_t)routing->topk * route->idx_bytes, &pitch);
    if (route->idx_bytes) route->idx_pitch = pitch / route->idx_bytes;
    route->token_in_rank =
        hosted_read_rows(step, route->token_in_rank, routing->tokens, routing->ranks, &route->token_in_rank_pitch);
}

static void read_weights(hosted_step *step, ep_route_view *route, const ep_routing *routing)
{
    const int64_t unit = (int64_t)sizeof *route->weights;
    int64_t pitch = route->weights_pitch * unit;
    route->weights = hosted_read_rows(step, route->weights, routing->tokens, routing->topk * unit, &pitch);
    route->weights_pitch = pitch / unit;
}

/* Strides may have any sign, so the first element need not come first in memory. */
static void read_scales(hosted_step *step, ep_dispatch_step *inner)
{
    const int64_t rows = inner->routing->tokens, columns = inner->form.scales;
    if (!inner->scales || rows == 0 || columns == 0) return;
    const int64_t down = (rows - 1) * inner->scales_row_pitch, across = (columns - 1) * inner->scales_column_pitch;
    const int64_t least = (down < 0 ? down : 0) + (across < 0 ? across : 0);
    const int64_t most = (down > 0 ? down : 0) + (across > 0 ? across : 0);
    const uint32_t *begin =
        hosted_read(step, inner->scales + least, (uint64_t)(most - least + 1) * sizeof *inner->scales);
    inner->scales = begin - least;
}

/* ---- notify ------------------------------------------------------------------------------------------------------ */

/* The numbers of experts that came with a routing by hand, which nobody has checked. */
static void read_counts(hosted_step *step, ep_notify_step *inner)
{
    ep_route_view *route = &inner->route;
    const int32_t most = ep_most_of_expert(inner->routing->ranks);
    if (!route->counts_far) return;
    route->counts_far = false;
    route->expert_counts =
        hosted_read(step, route->expert_counts, (uint64_t)inner->routing->experts * sizeof *route->expert_counts);
    if (hosted_sync(step) != EXPAR_OK) return;
    for (int32_t e = 0; e < inner->routing->experts && step->status == EXPAR_OK; e++)
        if (route->expert_counts[e] < 0 || route->expert_counts[e] > most)
            step->status = error_set(EXPAR_ERR_ARGUMENT, "tokens_per_expert[%d] is %d; expected 0 to %d", e,
                                     route->expert_counts[e], most);
}

static uint64_t bytes_of_idx(const ep_notify_step *step)
{
    return (uint64_t)(step->routing->tokens * step->routing->topk * step->route.idx_bytes);
}

static void read_notify_inputs(hosted_step *step, ep_notify_step *inner)
{
    if (step->status == EXPAR_OK) read_routing(step, &inner->route, inner->routing);
    if (step->status == EXPAR_OK) read_counts(step, inner);
    inner->route.idx_copy = hosted_write(step, inner->route.idx_copy, bytes_of_idx(inner), false);
    hosted_sync(step);
}

/* A rank that cannot read its inputs says so with its header. */
static expar_status carry_out_notify(hosted_executor *self, exec_call *call, ep_notify_step *step)
{
    executor *inner = self->inner;
    exec_call host = {.placed = true};
    hosted_step reads = hosted_step_begin(self, call);
    ep_notify_step here = *step;
    here.counts = NULL;
    here.growth = hosted_choose_growth(self, step);
    if (reads.status == EXPAR_OK) read_notify_inputs(&reads, &here);
    if (hosted_mark_loss(&reads, call)) return reads.status;
    if (reads.status != EXPAR_OK) here.rejection = ep_rejection_of(reads.status);
    here.epoch = hosted_open(self, call);
    expar_status status = inner->normal->notify(inner, &host, &here);
    step->rejection = here.rejection;
    step->vote = here.vote;
    step->counted = here.counted;
    step->grows = here.grows;
    if (status != EXPAR_OK || here.vote.rank >= 0 || reads.status != EXPAR_OK) return status;
    hosted_write_back(&reads, step->route.idx_copy, bytes_of_idx(step));
    hosted_sync(&reads);
    (void)hosted_mark_loss(&reads, call);
    return reads.status;
}

/* The call is rejected. */
static expar_status notify_rejection(hosted_executor *self, exec_call *call, ep_notify_step *step)
{
    hosted_run alone;
    expar_status status = hosted_turn_begin(self, call, &alone);
    if (status == EXPAR_OK) {
        step->epoch = hosted_open(self, call);
        status = self->inner->normal->notify(self->inner, call, step);
    }
    hosted_turn_end(self, &alone);
    return status;
}

expar_status hosted_notify(executor *base, exec_call *call, ep_notify_step *step)
{
    hosted_executor *self = hosted_of(base);
    if (!step->routing) return notify_rejection(self, call, step);
    const expar_status status = carry_out_notify(self, call, step);
    /* Memory for the rows comes next. */
    if (call->own) hosted_pause(self, call->own);
    return status;
}

/* ---- dispatch ---------------------------------------------------------------------------------------------------- */

/* The bytes of each part of the rows that arrive. */
typedef struct arrival_bytes {
    int64_t x, scales, idx, weights, src; /* of one row */
} arrival_bytes;

static arrival_bytes bytes_of_row(const ep_dispatch_step *step)
{
    const int64_t topk = step->routing->topk;
    return (arrival_bytes){.x = step->row_bytes,
                           .scales = step->form.scales * (int64_t)sizeof(uint32_t),
                           .idx = topk * step->route.idx_bytes,
                           .weights = topk * (int64_t)sizeof(float),
                           .src = (int64_t)sizeof(int32_t)};
}

/* Returns the host memory for a part; *reached becomes false if peers do not reach it. */
static void *place_part(hosted_step *step, void *data, int64_t rows, int64_t row_bytes, uint64_t *offset, bool *reached)
{
    void *host = hosted_write(step, data, (uint64_t)(rows * row_bytes), false);
    /* No peer writes to a part without bytes. */
    if (rows * row_bytes > 0 && !hosted_is_symmetric(step, host, offset)) *reached = false;
    return host;
}

/* Says where all that comes beside the rows goes to. Returns whether peers reach all of it. */
static bool place_beside_dispatched(hosted_step *step, ep_dispatch_step *inner)
{
    const arrival_bytes bytes = bytes_of_row(inner);
    ep_arrival *to = &inner->arrival;
    bool reached = true;
    to->scales = place_part(step, to->scales, to->rows, bytes.scales, &to->scales_offset, &reached);
    to->idx = place_part(step, to->idx, to->rows, bytes.idx, &to->idx_offset, &reached);
    to->weights = place_part(step, to->weights, to->rows, bytes.weights, &to->weights_offset, &reached);
    to->src = place_part(step, to->src, to->rows, bytes.src, &to->src_offset, &reached);
    return reached;
}

/* Rows pass through host memory. */
static void bring_dispatched_to_host(hosted_step *step, ep_dispatch_step *inner)
{
    ep_arrival *to = &inner->arrival;
    bool reached = true;
    to->x = place_part(step, to->x, to->rows, inner->row_bytes, &to->x_offset, &reached);
    if (!reached) to->mode = EP_MODE_QUEUE;
    inner->x = hosted_read_rows(step, inner->x, inner->routing->tokens, inner->row_bytes, &inner->x_pitch_bytes);
}

/* Rows stay on the GPU if the carrier can move them. It needs no space for rows that do not come. */
static bool carry_dispatched(hosted_step *step, ep_dispatch_step *inner)
{
    ep_arrival *to = &inner->arrival;
    const hosted_executor *self = step->self;
    to->carried = step->status == EXPAR_OK && self->carrier && (to->mode == EP_MODE_DIRECT || to->rows == 0) &&
                  executor_cpu_carries(self->inner, inner->routing, &inner->form, inner->row_bytes, false) &&
                  hosted_offset_on_gpu(self, to->x, (uint64_t)(to->rows * inner->row_bytes), &to->x_offset);
    if (to->carried) to->mode = EP_MODE_DIRECT;
    return to->carried;
}

static void place_dispatched(hosted_step *step, ep_dispatch_step *inner)
{
    if (!place_beside_dispatched(step, inner)) inner->arrival.mode = EP_MODE_QUEUE;
    step->call->carried = carry_dispatched(step, inner);
    if (!step->call->carried) bring_dispatched_to_host(step, inner);
}

/* Not all ranks of the node have a carrier for this call. */
static void give_up_carried_dispatch(hosted_step *step, ep_dispatch_step *inner)
{
    if (!step->call->carried || inner->arrival.carried) return;
    step->call->carried = false;
    bring_dispatched_to_host(step, inner);
    hosted_sync(step);
}

static void read_dispatch(hosted_step *step, ep_dispatch_step *inner)
{
    const ep_routing *routing = inner->routing;
    read_scales(step, inner);
    read_routing(step, &inner->route, routing);
    read_weights(step, &inner->route, routing);
    place_dispatched(step, inner);
    hosted_sync(step);
}

/* A dispatch with a handle opens here. */
static uint32_t dispatch_epoch(hosted_executor *self, const exec_call *call, const ep_dispatch_step *step)
{
    const hosted_call *own = call->own;
    return step->form.kind == EP_DISPATCH_CACHED ? hosted_open(self, call) : own->epoch;
}

/* The call is rejected. */
static expar_status dispatch_send_rejection(hosted_executor *self, exec_call *call, ep_dispatch_step *step)
{
    hosted_run alone;
    if (!call->own) return error_set(EXPAR_ERR_STATE, "the call has no place on a stream");
    expar_status status = hosted_turn_begin(self, call, &alone);
    if (status == EXPAR_OK) {
        step->epoch = dispatch_epoch(self, call, step);
        status = self->inner->normal->dispatch_send(self->inner, call, step);
    }
    hosted_turn_end(self, &alone);
    return status;
}

/* A rank that cannot read its inputs says so with its advertisements. */
expar_status hosted_dispatch_send(executor *base, exec_call *call, ep_dispatch_step *step)
{
    hosted_executor *self = hosted_of(base);
    executor *inner = self->inner;
    if (step->rejection.status != EXPAR_OK) return dispatch_send_rejection(self, call, step);
    exec_call host = {.placed = true};
    hosted_step reads = hosted_step_begin(self, call);
    if (!reads.call) return reads.status;
    ep_dispatch_step *here = &reads.call->dispatch;
    *here = *step;
    if (reads.status == EXPAR_OK) read_dispatch(&reads, here);
    if (hosted_mark_loss(&reads, call)) return reads.status;
    if (reads.status != EXPAR_OK) here->rejection = ep_rejection_of(reads.status);
    here->epoch = dispatch_epoch(self, call, step);
    const expar_status status = inner->normal->dispatch_send(inner, &host, here);
    step->rejection = here->rejection;
    step->vote = here->vote;
    step->dropped = here->dropped;
    return status;
}

/* Rows that did not come have no bytes, but -1 as their indices and source tokens. */
static void send_arrival(hosted_step *step, const ep_dispatch_step *told, const ep_dispatch_step *here)
{
    const arrival_bytes bytes = bytes_of_row(here);
    const ep_arrival *to = &told->arrival;
    const int64_t coming = here->routing->rank_prefix[here->routing->ranks - 1];
    const int64_t rows = coming < to->rows ? coming : to->rows;
    hosted_write_back(step, to->x, (uint64_t)(rows * bytes.x));
    hosted_write_back(step, to->scales, (uint64_t)(rows * bytes.scales));
    hosted_write_back(step, to->weights, (uint64_t)(rows * bytes.weights));
    hosted_write_back(step, to->idx, (uint64_t)(to->rows * bytes.idx));
    hosted_write_back(step, to->src, (uint64_t)(to->rows * bytes.src));
}

expar_status hosted_dispatch_receive(executor *base, exec_call *call, ep_dispatch_step *step)
{
    hosted_executor *self = hosted_of(base);
    executor *inner = self->inner;
    exec_call host = {.placed = true};
    hosted_step writes = hosted_step_begin(self, call);
    if (hosted_mark_loss(&writes, call) || writes.status != EXPAR_OK) return writes.status;
    ep_dispatch_step *here = &writes.call->dispatch;
    give_up_carried_dispatch(&writes, here);
    if (writes.status != EXPAR_OK) return hosted_break_off(self, call, writes.status);
    if (here->arrival.carried) hosted_carrier_use(self->carrier, &writes.call->run);
    const expar_status status = inner->normal->dispatch_receive(inner, &host, here);
    step->vote = here->vote;
    step->dropped = here->dropped;
    if (status != EXPAR_OK) return hosted_break_off(self, call, status);
    send_arrival(&writes, step, here);
    hosted_sync(&writes);
    (void)hosted_mark_loss(&writes, call);
    return writes.status;
}

/* ---- counts for the caller --------------------------------------------------------------------------------------- */

expar_status hosted_tell_counts(executor *base, exec_call *call, const ep_counts_step *step)
{
    hosted_executor *self = hosted_of(base);
    executor *inner = self->inner;
    hosted_step writes = hosted_step_begin(self, call);
    const uint64_t unit = sizeof(int32_t), locals = (uint64_t)step->routing->local_experts * unit;
    const uint64_t ranks = (uint64_t)step->routing->ranks * unit;
    ep_counts_step here = *step;
    here.tokens_per_expert = hosted_write(&writes, step->tokens_per_expert, locals, false);
    here.expert_prefix = hosted_write(&writes, step->expert_prefix, locals + unit, false);
    here.rank_prefix = hosted_write(&writes, step->rank_prefix, ranks, false);
    here.num_recv_tokens = hosted_write(&writes, step->num_recv_tokens, sizeof(int64_t), false);
    here.expert_ends = hosted_write(&writes, step->expert_ends, locals, false);
    if (writes.status != EXPAR_OK) return writes.status;
    const expar_status status = inner->normal->tell_counts(inner, call, &here);
    if (status != EXPAR_OK) return status;
    hosted_write_back(&writes, step->tokens_per_expert, locals);
    hosted_write_back(&writes, step->expert_prefix, locals + unit);
    hosted_write_back(&writes, step->rank_prefix, ranks);
    hosted_write_back(&writes, step->num_recv_tokens, sizeof(int64_t));
    hosted_write_back(&writes, step->expert_ends, locals);
    return hosted_sync(&writes);
}

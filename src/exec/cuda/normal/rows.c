/* SPDX-License-Identifier: Apache-2.0 */
/* Dispatch and combine: one kernel each. If the rows of a dispatch did not fit the space that was advertised, it is
 * launched again. */
#include "base/knobs.h"
#include "exec/cuda/normal/normal_gpu.h"
#include "proto/serving.h"

#include <string.h>

/* Both teams of a block with rings need one. */
#define LEAST_WARPS 2

/* Shared memory of a dispatch: the targets, a stage for each sender, a barrier for each warp. The first warps of a
   block are the senders: they send rows that go directly to their places. */
typedef struct stages {
    int32_t warps, senders, stage_bytes;
    uint32_t shared_bytes;
} stages;

/* Says whether this rank's rows come through rings; then those of all ranks nearly always do. For rings more warps are
   always better. */
static bool comes_by_queue(const ep_dispatch_step *step)
{
    const int32_t mode = step->spare.bytes ? (int32_t)step->spare.mode : (int32_t)step->arrival.mode;
    return mode == EP_MODE_QUEUE;
}

static stages plan_stages(const gpu_executor *self, const exec_call *call, const ep_dispatch_step *step)
{
    uint32_t targets = (uint32_t)ep_round((uint64_t)self->shape.ranks * GPU_DISPATCH_RANK_BYTES, EP_ALIGN_BYTES);
    stages plan = {.warps = GPU_DISPATCH_WARPS, .senders = GPU_DISPATCH_WARPS, .shared_bytes = targets};
    if (self->core.device->major < 9) return plan;
    int64_t stage = (int64_t)ep_round((uint64_t)step->row_bytes, EP_ALIGN_BYTES);
    const int64_t most = knob(KNOB_CUDA_STAGE_BYTES) / EP_ALIGN_BYTES * EP_ALIGN_BYTES;
    int32_t stage_bytes = (int32_t)(stage < most ? stage : most);
    int32_t spare = self->core.device->shared_bytes - GPU_STATIC_SHARED_BYTES - (int32_t)targets;
    int32_t fit = (spare - plan.warps * 8) / stage_bytes;
    if (fit < LEAST_WARPS) return plan;
    plan.stage_bytes = stage_bytes;
    fit = fit < plan.warps ? fit : plan.warps;
    plan.senders = ep_warps_under_way(gpu_sms_of(&self->core, call), fit, LEAST_WARPS);
    if (!comes_by_queue(step)) plan.warps = plan.senders;
    plan.shared_bytes = targets + (uint32_t)(plan.senders * plan.stage_bytes + plan.warps * 8);
    return plan;
}

gpu_route gpu_route_of(const ep_route_view *route)
{
    return (gpu_route){.idx = route->idx,
                       .idx_pitch = route->idx_pitch,
                       .weights = route->weights,
                       .weights_pitch = route->weights_pitch,
                       .token_in_rank = route->token_in_rank,
                       .token_in_rank_pitch = route->token_in_rank_pitch,
                       .idx_bytes = route->idx_bytes};
}

static gpu_arrival arrival_of(const ep_arrival *arrival)
{
    return (gpu_arrival){.advert = {.x_offset = arrival->x_offset,
                                    .scales_offset = arrival->scales_offset,
                                    .idx_offset = arrival->idx_offset,
                                    .weights_offset = arrival->weights_offset,
                                    .src_offset = arrival->src_offset,
                                    .rows = arrival->rows,
                                    .mode = (int32_t)arrival->mode},
                         .idx = arrival->idx,
                         .x = arrival->x,
                         .scales = arrival->scales,
                         .weights = arrival->weights,
                         .src = arrival->src};
}

#define CHECK_THREADS 512
/* Block 0 of a dispatch looks at so many indices itself. More would hold up the other ranks for longer than a kernel's
   launch takes. */
enum { FEW_SLOTS = 4096 };

/* Says who checks indices: nobody has checked those that come with a handle. */
static gpu_checker checker_of(const ep_dispatch_step *step)
{
    if (step->form.kind != EP_DISPATCH_CACHED || !step->route.idx || step->rejection.status != EXPAR_OK)
        return GPU_CHECKS_NOTHING;
    return step->routing->tokens * step->form.topk > FEW_SLOTS ? GPU_CHECKED_BEFORE : GPU_CHECKS_ITSELF;
}

static expar_status launch_check(gpu_executor *self, const exec_call *call, const ep_dispatch_step *step)
{
    gpu_check_args args = {.world = gpu_world_of(self, call),
                           .route = gpu_route_of(&step->route),
                           .tokens = step->routing->tokens,
                           .topk = step->form.topk,
                           .experts = step->form.experts};
    int64_t blocks = (args.tokens * args.topk + CHECK_THREADS - 1) / CHECK_THREADS;
    if (blocks > gpu_sms_of(&self->core, call)) blocks = gpu_sms_of(&self->core, call);
    return gpu_launch(&self->core, call, self->check_kernel, blocks ? (uint32_t)blocks : 1, CHECK_THREADS, 0, &args);
}

/* Computes the rings that rows of the routing use, and how many channels each of them carries. */
static void share_rings(const gpu_executor *self, const ep_routing *routing, int32_t *rings, int32_t *joined)
{
    *joined = ep_channels_joined(routing->channels, self->shape.channels);
    *rings = ep_rings_of(routing->channels, *joined);
}

/* Says whether rows may be dropped. An output with as many rows as come drops none. Until the host has asked, the
   number here is 0; for worst-case outputs it does not ask. Rows for which the kernel itself takes space in the pool
   (`spare`) fit, or the pool grows. */
static bool may_drop(const ep_dispatch_step *step)
{
    const ep_routing *routing = step->routing;
    return !step->spare.bytes && routing->rank_prefix[routing->ranks - 1] != step->arrival.rows;
}

expar_status gpu_dispatch_launch(gpu_executor *self, const exec_call *call, const ep_dispatch_step *step)
{
    const ep_routing *routing = step->routing;
    const gpu_programs *programs;
    expar_status status = gpu_programs_find(self, step->row_bytes, &step->form, &programs);
    if (status != EXPAR_OK) return status;
    gpu_dispatch_args args = {.world = gpu_world_of(self, call),
                              .form = step->form,
                              .rejection = step->rejection,
                              .checker = (int32_t)checker_of(step),
                              .route = gpu_route_of(&step->route),
                              .x = step->x,
                              .x_pitch_bytes = step->x_pitch_bytes,
                              .row_bytes = step->row_bytes,
                              .scales = step->scales,
                              .scales_row_pitch = step->scales_row_pitch,
                              .scales_column_pitch = step->scales_column_pitch,
                              .arrival = arrival_of(&step->arrival),
                              .spare = step->spare,
                              .may_drop = may_drop(step),
                              .tokens = routing->tokens,
                              .channels = routing->channels,
                              .local_experts = routing->local_experts,
                              .routing = routing->own->data,
                              .at = gpu_routing_at(routing)};
    share_rings(self, routing, &args.rings, &args.joined);
    stages plan = plan_stages(self, call, step);
    args.stage_bytes = plan.stage_bytes;
    args.senders = plan.senders;
    args.stamps = gpu_stamps_of_rows(self, call, plan.warps);
    status = gpu_launch(&self->core, call, programs->dispatch_kernel, (uint32_t)gpu_sms_of(&self->core, call),
                        (uint32_t)plan.warps * 32, plan.shared_bytes, &args);
    if (status == EXPAR_OK) gpu_order_note_wait(&self->core, true);
    return status;
}

/* Waits until a kernel knows whether all ranks go on, and which rows it will drop. Rows are still moving then. */
static expar_status await_headers(gpu_executor *self, const exec_call *call, const char *what, ep_vote *vote,
                                  int64_t *dropped)
{
    expar_status status = gpu_ticket_await(&self->core, call, &self->core.report->opened, what);
    if (status != EXPAR_OK) return status;
    if (call->ticket) gpu_order_note_wait(&self->core, false);
    *dropped = gpu_vote_read(&self->core, call->ticket, vote);
    return EXPAR_OK;
}

expar_status gpu_dispatch_send(executor *base, exec_call *call, ep_dispatch_step *step)
{
    gpu_executor *self = gpu_of(base);
    if (step->form.kind == EP_DISPATCH_CACHED) gpu_ticket_take(&self->core, call);
    expar_status status = checker_of(step) == GPU_CHECKED_BEFORE ? launch_check(self, call, step) : EXPAR_OK;
    if (status == EXPAR_OK && !step->sent_ahead) status = gpu_dispatch_launch(self, call, step);
    if (status != EXPAR_OK || step->deferred) return status;
    return await_headers(self, call, "dispatch", &step->vote, &step->dropped);
}

/* The kernel does both phases, so later work on the stream finds all rows. */
expar_status gpu_dispatch_receive(executor *base, exec_call *call, ep_dispatch_step *step)
{
    (void)base, (void)call, (void)step;
    return EXPAR_OK;
}

/* For a combine: how many slots a warp has, and how many bytes of a row each part has. */
typedef struct slots {
    int32_t warps, count, part_bytes;
    uint32_t shared_bytes;
} slots;

/* Plans the slots. `spares` is the most rows that a token's sum may have. */
static slots plan_slots(const gpu_executor *self, int64_t row_bytes, int64_t spares)
{
    int64_t ranks = self->shape.ranks, row = (int64_t)ep_round((uint64_t)row_bytes, EP_ALIGN_BYTES);
    const int64_t count = knob(KNOB_CUDA_COMBINE_SLOTS);
    int64_t part = knob(KNOB_CUDA_COMBINE_SPACE_BYTES) / (spares * count) / EP_ALIGN_BYTES * EP_ALIGN_BYTES;
    part = part < EP_ALIGN_BYTES ? EP_ALIGN_BYTES : part < row ? part : row;
    uint32_t sources = (uint32_t)ep_round((uint64_t)ranks * GPU_COMBINE_RANK_BYTES, EP_ALIGN_BYTES);
    int64_t spare = self->core.device->shared_bytes - GPU_STATIC_SHARED_BYTES - (int64_t)sources;
    int64_t warp_bytes = count * (spares * part + GPU_COMBINE_NOTE_BYTES), fit = spare / warp_bytes;
    slots plan = {.warps = GPU_COMBINE_WARPS, .count = (int32_t)count, .shared_bytes = sources};
    if (self->core.device->major < 9 || fit < LEAST_WARPS) return plan;
    plan.part_bytes = (int32_t)part;
    plan.warps = fit < plan.warps ? (int32_t)fit : plan.warps;
    plan.shared_bytes += (uint32_t)(plan.warps * warp_bytes);
    return plan;
}

/* Gives the caller's memory another offset on each rank. */
static void shift_adverts(const gpu_executor *self, const ep_combine_step *step, gpu_combine_args *args)
{
    const size_t bytes = (size_t)self->shape.ranks * sizeof(uint64_t);
    args->shifted = step->x_shifts || step->weights_shifts;
    if (step->x_shifts) memcpy(args->x_shifts, step->x_shifts, bytes);
    if (step->weights_shifts) memcpy(args->weights_shifts, step->weights_shifts, bytes);
}

expar_status gpu_combine_send(executor *base, exec_call *call, ep_combine_step *step)
{
    gpu_executor *self = gpu_of(base);
    const ep_routing *routing = step->routing;
    int64_t none;
    const gpu_programs *programs;
    const bool by_slot = gpu_by_slot(&step->form, self->shape.ranks);
    expar_status status = gpu_programs_find(self, step->row_bytes, &step->form, &programs);
    if (status != EXPAR_OK) return status;
    gpu_ticket_take(&self->core, call);
    gpu_combine_args args = {.world = gpu_world_of(self, call),
                             .form = step->form,
                             .rejection = step->rejection,
                             .tokens = routing->tokens,
                             .channels = routing->channels,
                             .local_experts = routing->local_experts,
                             .routing = routing->own->data,
                             .at = gpu_routing_at(routing),
                             .advert = {.x_offset = step->x_offset,
                                        .idx_offset = step->map_offset,
                                        .weights_offset = step->weights_offset,
                                        .x_pitch_bytes = step->x_pitch_bytes,
                                        .weights_pitch_bytes = step->weights_pitch * (int64_t)sizeof(float),
                                        .rows = step->rows,
                                        .mode = step->mode},
                             .x = step->x,
                             .weights = step->weights,
                             .bias = {step->bias[0], step->bias[1]},
                             .bias_pitch_bytes = {step->bias_pitch_bytes[0], step->bias_pitch_bytes[1]},
                             .y = step->y,
                             .y_pitch_bytes = step->y_pitch_bytes,
                             .row_bytes = step->row_bytes,
                             .out_weights = step->out_weights,
                             .out_weights_pitch = step->out_weights_pitch,
                             .sum = ep_sum_of(routing, by_slot ? step->form.sum_order : EP_SUM_BY_RANK),
                             .map = step->map};
    shift_adverts(self, step, &args);
    share_rings(self, routing, &args.rings, &args.joined);
    args.spares = args.sum.order == EP_SUM_EACH_SLOT ? args.sum.topk : args.sum.ranks;
    args.ring_part_bytes = ep_ring_part_bytes(&self->space, &args.sum, step->row_bytes);
    args.ring_parts = (int32_t)((step->row_bytes + args.ring_part_bytes - 1) / args.ring_part_bytes);
    slots plan = plan_slots(self, step->row_bytes, args.spares);
    args.part_bytes = plan.part_bytes;
    args.slots = plan.count;
    args.stamps = gpu_stamps_of_rows(self, call, plan.warps);
    status = gpu_launch(&self->core, call, by_slot ? programs->slots_kernel : programs->combine_kernel,
                        (uint32_t)gpu_sms_of(&self->core, call), (uint32_t)plan.warps * 32, plan.shared_bytes, &args);
    if (status != EXPAR_OK) return status;
    if (!call->captured) gpu_segments_follow(self->core.segments, call->stream);
    gpu_order_note_wait(&self->core, true);
    return step->deferred ? EXPAR_OK : await_headers(self, call, "combine", &step->vote, &none);
}

expar_status gpu_combine_receive(executor *base, exec_call *call, ep_combine_step *step)
{
    (void)base, (void)call, (void)step;
    return EXPAR_OK;
}

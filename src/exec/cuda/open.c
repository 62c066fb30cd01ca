/* SPDX-License-Identifier: Apache-2.0 */
/* How a fresh dispatch opens: layout, unless notify makes it, then notify, whose counts the host reads from pinned
 * memory as soon as they are there, without a stream synchronisation. */
#include "exec/cuda/gpu.h"

#include <string.h>

#define LAYOUT_THREADS 256
#define NOTIFY_THREADS 512

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

/* ---- layout ---- */

/* Counts that the caller gives, where there is no topk_idx to count. */
static expar_status give_counts(gpu_executor *self, const ep_route_view *route, const ep_routing *routing)
{
    if (route->idx || !route->expert_counts) return EXPAR_OK;
    expar_status status = cuda_enter(self->device);
    if (status != EXPAR_OK) return status;
    status = gpu_counts_send(self, route->expert_counts, routing->experts);
    cuda_leave();
    return status;
}

/* Notify's one block makes the layout of so many tokens itself, a piece a warp: another kernel would take longer. */
static bool notify_lays_out(const ep_routing *routing)
{
    return gpu_pieces(routing->tokens) <= NOTIFY_THREADS / 32;
}

static gpu_layout_args layout_args(gpu_executor *self, const ep_route_view *route, const ep_routing *routing)
{
    gpu_layout_args args = {.world = self->world,
                            .route = gpu_route_of(route),
                            .tokens = routing->tokens,
                            .topk = routing->topk,
                            .experts = routing->experts,
                            .masks = (uint32_t *)((uint8_t *)routing->device + gpu_routing_at(self, routing).masks),
                            .expert_counts = self->expert_counts};
    args.shared_counts = (size_t)routing->experts * sizeof(int32_t) <= GPU_SHARED_COUNTS;
    return args;
}

static uint32_t layout_shared_bytes(const gpu_layout_args *args)
{
    return args->shared_counts ? (uint32_t)args->experts * (uint32_t)sizeof(int32_t) : 0;
}

expar_status gpu_layout(executor *base, const ep_route_view *route, ep_routing *routing)
{
    gpu_executor *self = gpu_of(base);
    expar_status status = give_counts(self, route, routing);
    if (status != EXPAR_OK || notify_lays_out(routing)) return status;
    gpu_layout_args args = layout_args(self, route, routing);
    int64_t warps = LAYOUT_THREADS / 32, blocks = (gpu_pieces(routing->tokens) + warps - 1) / warps;
    return gpu_launch(self, self->layout_kernel, (uint32_t)(blocks < 65535 ? blocks : 65535), LAYOUT_THREADS,
                      layout_shared_bytes(&args), &args);
}

/* ---- notify ---- */

/* Counts that kernels wrote, for the caller. */
static void take_counts(const gpu_executor *self, ep_routing *routing)
{
    const int32_t *counts = (const int32_t *)(self->report + 1);
    size_t ranks = (size_t)routing->ranks, cells = ranks * (size_t)routing->channels;
    memcpy(routing->rank_prefix, counts, ranks * sizeof(int32_t));
    memcpy(routing->channel_prefix, counts + ranks, cells * sizeof(int32_t));
    memcpy(routing->recv_expert_counts, counts + ranks + cells, (size_t)routing->local_experts * sizeof(int32_t));
}

expar_status gpu_notify(executor *base, ep_notify_step *step)
{
    gpu_executor *self = gpu_of(base);
    const ep_shape *shape = &self->world.shape;
    ep_routing *routing = step->routing;
    gpu_ticket_take(self);
    gpu_notify_args args = {.world = self->world,
                            .form = step->form,
                            .refusal = step->refusal,
                            .room = step->room,
                            .channels = shape->channels,
                            .local_experts = shape->local_experts,
                            .expert_counts = self->expert_counts};
    if (routing) {
        args.tokens = routing->tokens;
        args.channel_tokens = (routing->tokens + shape->channels - 1) / shape->channels;
        args.local_experts = routing->local_experts;
        args.routing = routing->device;
        args.at = gpu_routing_at(self, routing);
        args.route = gpu_route_of(&step->route);
        if (notify_lays_out(routing)) args.layout = layout_args(self, &step->route, routing);
    }
    step->verdict = (ep_verdict){.rank = -1};
    uint32_t shared_bytes = (uint32_t)ep_round((uint64_t)shape->ranks * sizeof(int32_t), 16);
    expar_status status = gpu_launch(self, self->notify_kernel, 1, NOTIFY_THREADS,
                                     shared_bytes + layout_shared_bytes(&args.layout), &args);
    if (status != EXPAR_OK) return status;
    gpu_order_note_wait(self, true);
    return step->no_wait ? EXPAR_OK : executor_cuda_await_counts(base, step);
}

expar_status executor_cuda_await_counts(executor *base, ep_notify_step *step)
{
    gpu_executor *self = gpu_of(base);
    expar_status status = gpu_ticket_await(self, &self->report->counts_ready, "notify");
    if (status != EXPAR_OK) return status;
    if (self->world.ticket) gpu_order_note_wait(self, false);
    if (self->report->counts_refused == self->world.ticket) gpu_verdict_read(self, self->world.ticket, &step->verdict);
    if (step->verdict.rank < 0 && step->routing) take_counts(self, step->routing);
    return EXPAR_OK;
}

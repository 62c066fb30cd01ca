/* SPDX-License-Identifier: Apache-2.0 */
/* How a fresh dispatch opens: one kernel makes the layout and exchanges the hellos. The host reads its counts from
 * pinned memory as soon as they are there, without a stream synchronisation. */
#include "exec/cuda/gpu.h"

#include <string.h>

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

/* Notify makes it. Here the counts that the caller gives, where there is no topk_idx to count, go to the GPU. */
expar_status gpu_layout(executor *base, const ep_route_view *route, ep_routing *routing)
{
    gpu_executor *self = gpu_of(base);
    if (route->idx || !route->expert_counts) return EXPAR_OK;
    expar_status status = cuda_enter(self->device);
    if (status != EXPAR_OK) return status;
    status = gpu_counts_send(self, route->expert_counts, routing->experts);
    cuda_leave();
    return status;
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

static void add_routing(const gpu_executor *self, const ep_notify_step *step, gpu_notify_args *args)
{
    const ep_routing *routing = step->routing;
    args->tokens = routing->tokens;
    args->channel_tokens = (routing->tokens + args->channels - 1) / args->channels;
    args->local_experts = routing->local_experts;
    args->topk = routing->topk;
    args->experts = routing->experts;
    args->routing = routing->device;
    args->at = gpu_routing_at(self, routing);
    args->route = gpu_route_of(&step->route);
    args->shared_counts = (size_t)routing->experts * sizeof(int32_t) <= GPU_SHARED_COUNTS;
}

/* Of words that each thread reads one by one. The compiler may read aligned 16 bytes for one of them. */
static uint32_t shared_words_bytes(uint32_t words)
{
    return (uint32_t)ep_round(words * sizeof(int32_t), 16);
}

/* A piece of tokens a warp. Only the last block waits, but the call's SMs are all that it takes. */
static expar_status launch_notify(gpu_executor *self, gpu_notify_args *args)
{
    int64_t warps = NOTIFY_THREADS / 32, blocks = (gpu_pieces(args->tokens) + warps - 1) / warps;
    if (blocks > self->num_sms) blocks = self->num_sms;
    uint32_t words = GPU_NOTIFY_RANK_WORDS * (uint32_t)self->world.shape.ranks;
    if (args->shared_counts) words += (uint32_t)args->experts;
    return gpu_launch(self, self->notify_kernel, blocks ? (uint32_t)blocks : 1, NOTIFY_THREADS,
                      shared_words_bytes(words), args);
}

expar_status gpu_notify(executor *base, ep_notify_step *step)
{
    gpu_executor *self = gpu_of(base);
    const ep_shape *shape = &self->world.shape;
    gpu_ticket_take(self);
    self->notified = true;
    gpu_notify_args args = {.world = self->world,
                            .form = step->form,
                            .refusal = step->refusal,
                            .room = step->room,
                            .stamps = self->stamps,
                            .channels = shape->channels,
                            .local_experts = shape->local_experts,
                            .expert_counts = self->expert_counts};
    if (step->routing) add_routing(self, step, &args);
    step->verdict = (ep_verdict){.rank = -1};
    expar_status status = launch_notify(self, &args);
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

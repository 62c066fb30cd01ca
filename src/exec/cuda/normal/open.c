/* SPDX-License-Identifier: Apache-2.0 */
/* How a fresh dispatch opens: one kernel makes the layout and exchanges the headers. The host reads its counts from
 * pinned memory as soon as they are there, without a stream synchronisation. If space for the rows was found before,
 * their kernel already follows on the stream. */
#include "exec/cuda/normal/normal_gpu.h"

#include <string.h>

#define NOTIFY_THREADS 512

/* Copies the caller's counts to the GPU if there is no topk_idx to count. */
static expar_status send_counts(gpu_executor *self, const exec_call *call, const ep_notify_step *step)
{
    if (!step->routing || step->route.idx || !step->route.expert_counts) return EXPAR_OK;
    expar_status status = gpu_enter(&self->core, call);
    if (status != EXPAR_OK) return status;
    status = gpu_counts_send(self, call, step->route.expert_counts, step->routing->experts);
    gpu_leave(call);
    return status;
}

/* Copies the counts that kernels wrote to the caller. */
static void gpu_take_counts(const gpu_executor *self, ep_routing *routing)
{
    const int32_t *counts = self->counters->scratch->pinned.host;
    size_t ranks = (size_t)routing->ranks, cells = ranks * (size_t)routing->channels;
    memcpy(routing->rank_prefix, counts, ranks * sizeof(int32_t));
    memcpy(routing->channel_prefix, counts + ranks, cells * sizeof(int32_t));
    memcpy(routing->recv_expert_counts, counts + ranks + cells, (size_t)routing->local_experts * sizeof(int32_t));
}

static void add_routing(const ep_notify_step *step, gpu_notify_args *args)
{
    const ep_routing *routing = step->routing;
    args->tokens = routing->tokens;
    args->channel_tokens = (routing->tokens + args->channels - 1) / args->channels;
    args->local_experts = routing->local_experts;
    args->topk = routing->topk;
    args->experts = routing->experts;
    args->routing = routing->own->data;
    args->at = gpu_routing_at(routing);
    args->keeps_slots = routing->keeps_slots;
    args->idx_copy = step->route.idx_copy;
    args->route = gpu_route_of(&step->route);
    args->check_counts = !step->route.idx && step->route.counts_far;
    args->shared_counts = (size_t)routing->experts * sizeof(int32_t) <= GPU_SHARED_COUNTS;
}

/* Returns the bytes of words that each thread reads separately. The compiler may read 16 aligned bytes for one word. */
static uint32_t shared_words_bytes(uint32_t words)
{
    return (uint32_t)ep_round(words * sizeof(int32_t), 16);
}

/* Each warp takes a piece of tokens. Only the last block waits, but the kernel takes no more than the call's SMs. */
static expar_status launch_notify(gpu_executor *self, const exec_call *call, gpu_notify_args *args)
{
    int64_t warps = NOTIFY_THREADS / 32, blocks = (gpu_pieces(args->tokens) + warps - 1) / warps;
    if (blocks > gpu_sms_of(&self->core, call)) blocks = gpu_sms_of(&self->core, call);
    uint32_t words = GPU_NOTIFY_RANK_WORDS * (uint32_t)self->shape.ranks;
    if (args->shared_counts) words += (uint32_t)args->experts;
    return gpu_launch(&self->core, call, self->notify_kernel, blocks ? (uint32_t)blocks : 1, NOTIFY_THREADS,
                      shared_words_bytes(words), args);
}

/* Chooses what the header says of growth. A call that need not wait for counts, but may, waits while growth is
   requested. */
static ep_growth choose_growth(gpu_executor *self, const ep_notify_step *step)
{
    ep_growth growth = step->growth;
    if (growth == EP_GROWTH_CAN && (gpu_pool_lacks(self, step->lacking) || gpu_pool_requests(self)))
        growth = EP_GROWTH_REQUESTED;
    return step->deferred && !gpu_pool_awaits_growth(self, growth) ? EP_GROWTH_NONE : growth;
}

/* asked: a thread asks how the rest of the call ends. */
static expar_status put_notify(gpu_executor *self, const exec_call *call, ep_notify_step *step, ep_growth growth,
                               bool asked)
{
    exec_call rest = *call;
    const ep_shape *shape = &self->shape;
    self->notified = self->core.begun;
    gpu_notify_args args = {.world = gpu_world_of(self, call),
                            .form = step->form,
                            .rejection = step->rejection,
                            .stamps = self->core.stamps,
                            .channels = shape->channels,
                            .local_experts = shape->local_experts,
                            .expert_counts = (int32_t *)(uintptr_t)self->counters->scratch->memory,
                            .told = (int32_t *)(uintptr_t)self->counters->scratch->pinned.device};
    bool goes_on = step->rejection.status == EXPAR_OK;
    if (step->routing && goes_on) add_routing(step, &args);
    step->told = step->routing && goes_on && step->counts;
    if (step->told) args.tell = gpu_tell_args_of(step->counts);
    if (step->rows && goes_on) args.spare = step->rows->spare;
    args.spare.growth = (int32_t)growth;
    expar_status status = launch_notify(self, call, &args);
    if (status != EXPAR_OK) return status;
    gpu_order_note_wait(&self->core, true);
    if (!asked) rest.ticket = 0;
    return step->rows && goes_on ? gpu_dispatch_launch(self, &rest, step->rows) : EXPAR_OK;
}

static expar_status await_counts(gpu_executor *self, const exec_call *call, ep_notify_step *step)
{
    expar_status status = gpu_ticket_await(&self->core, call, &self->core.report->counts_ready, "notify");
    if (status != EXPAR_OK) return status;
    if (call->ticket) gpu_order_note_wait(&self->core, false);
    if (self->core.report->counts_rejected == call->ticket) gpu_vote_read(&self->core, call->ticket, &step->vote);
    const bool goes_on = step->vote.rank < 0 && step->routing;
    step->counted = goes_on && !step->deferred;
    step->grows = goes_on && self->core.report->counts_grow == call->ticket;
    if (step->counted) gpu_take_counts(self, step->routing);
    return EXPAR_OK;
}

/* The kernel finds indices out of range. They come back as a rejection by this rank. */
expar_status gpu_notify(executor *base, exec_call *call, ep_notify_step *step)
{
    gpu_executor *self = gpu_of(base);
    expar_status status = call->placed ? EXPAR_OK : gpu_place_rejected(&self->core, call);
    if (status != EXPAR_OK) return status;
    status = send_counts(self, call, step);
    /* A graph would repeat the rejection at each launch. */
    if (status != EXPAR_OK && call->captured) return status;
    if (status != EXPAR_OK) step->rejection = ep_rejection_of(status);
    const ep_growth growth = choose_growth(self, step);
    const bool asked = call->asked, for_growth = step->deferred && growth != EP_GROWTH_NONE;
    /* The host waits for these counts, even if no thread asks for the rest of the call. */
    const bool waits = for_growth || !step->deferred;
    call->asked |= for_growth || (waits && step->routing);
    gpu_ticket_take(&self->core, call);
    call->asked = asked;
    status = put_notify(self, call, step, growth, asked);
    if (status == EXPAR_OK && waits) status = await_counts(self, call, step);
    /* Nobody asks how the rest of the call ends. */
    if (!asked) call->ticket = 0;
    if (for_growth && growth == EP_GROWTH_REQUESTED && !step->grows) gpu_pool_note_vain(self);
    return status;
}

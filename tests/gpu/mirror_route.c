/* SPDX-License-Identifier: Apache-2.0 */
/* expar_ep_route, on the GPU. */
#include "ep/normal/normal.h"
#include "exec/cuda/normal/normal_gpu.h"
#include "gpu/mirror.h"
#include "gpu/mirrored.h"
#include <string.h>

int32_t mirror_fetch_counts(const worker *h, const expar_ep_handle *handle, int32_t *counts)
{
    const ep_routing *r = &handle->routing;
    const size_t bytes = (size_t)r->local_experts * sizeof *counts;
    const gpu_routing at = gpu_routing_at(r);
    int32_t came = r->rank_prefix[r->ranks - 1];
    if (!r->own) {
        memcpy(counts, r->recv_expert_counts, bytes);
        return came;
    }
    const cu_address base = (cu_address)(uintptr_t)r->own->data;
    worker_fetch(h, &came, base + at.rank_prefix + 4 * (uint64_t)(r->ranks - 1), sizeof came);
    worker_fetch(h, counts, base + at.recv_expert_counts, bytes);
    return came;
}

/* Numbers that were not known when the call returned. */
static void fill_result(const worker *h, expar_ep_route_result *result)
{
    const expar_ep_handle *handle = result->handle;
    const ep_routing *r = &handle->routing;
    if (handle->recv_tokens >= 0) return;
    const int32_t came = mirror_fetch_counts(h, handle, handle->tokens_per_expert);
    for (int32_t e = 0; e < r->local_experts; e++)
        handle->tokens_per_expert[e] =
            (handle->tokens_per_expert[e] + handle->alignment - 1) / handle->alignment * handle->alignment;
    result->recv_tokens_per_expert = handle->tokens_per_expert;
    result->num_recv_tokens = came < handle->rows ? came : handle->rows;
    result->num_dropped_tokens = came - result->num_recv_tokens;
}

/* Always with an event: with num_worst_tokens nothing else tells how it went. */
expar_status mirror_ep_route(expar_ep *ep, const expar_ep_route_args *args, expar_ep_route_result *result)
{
    buffer *b = buffer_find(ep);
    bool sound = result && result->struct_size == sizeof *result;
    if (!b || !args || args->struct_size != sizeof *args) return expar_ep_route(ep, args, result);
    if (!sound) {
        expar_ep_route_args unsound = *args;
        unsound.stream = worker_of(b->device)->stream;
        return expar_ep_route(ep, &unsound, result);
    }
    if (args->wait_event) (void)expar_event_wait(args->wait_event);
    mirrored *t = mirrored_begin(b);
    expar_ep_route_args given = *args;
    expar_ep_route_result got = EXPAR_EP_ROUTE_RESULT_INIT;
    given.topk_idx = mirrored_give(t, &args->topk_idx);
    given.token_in_rank = mirrored_give(t, &args->token_in_rank);
    given.stream = t->worker->stream;
    expar_ep_recv_counts counts;
    given.recv_counts = mirrored_give_counts(t, args->recv_counts, args->num_experts, &counts);
    given.tokens_per_expert = mirrored_give_numbers(t, args->tokens_per_expert, args->num_experts);
    if (args->async_finish == 0) given.async_finish = 1; /* and what is neither is the library's to refuse */
    expar_status status = expar_ep_route(ep, &given, &got);
    if (status == EXPAR_OK) status = expar_event_wait(got.event);
    if (status == EXPAR_OK) fill_result(t->worker, &got);
    mirrored_end(t, status == EXPAR_OK);
    if (status != EXPAR_OK) {
        expar_event_release(got.event);
        expar_ep_handle_release(got.handle);
        return status;
    }
    if (!args->async_finish) {
        expar_event_release(got.event);
        got.event = NULL;
    }
    *result = got;
    return EXPAR_OK;
}

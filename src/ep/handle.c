/* SPDX-License-Identifier: Apache-2.0 */
/* Handles: the routing of one dispatch, kept for the combine and for later dispatches. */
#include "ep/ep.h"

#include <stdlib.h>
#include <string.h>

void ep_routing_free(ep_routing *routing)
{
    free(routing->first);
    free(routing->targets);
    free(routing->channel_prefix);
    free(routing->expert_counts);
    free(routing->node_counts);
    free(routing->rank_prefix);
    free(routing->recv_channel_prefix);
    free(routing->recv_expert_counts);
    free(routing->first_row);
}

/* On a GPU: the counts that the caller may ask for; all else lies in the block. */
static expar_status alloc_on_gpu(expar_ep *ep, expar_ep_handle *handle)
{
    ep_routing *routing = &handle->routing;
    size_t n = (size_t)routing->ranks, cells = n * (size_t)routing->channels;
    routing->local_experts = routing->experts / routing->ranks;
    routing->channel_prefix = calloc(cells, sizeof(int32_t));
    routing->rank_prefix = calloc(n, sizeof(int32_t));
    routing->recv_expert_counts = calloc((size_t)routing->local_experts, sizeof(int32_t));
    expar_status status = EXPAR_OK;
    if (!routing->channel_prefix || !routing->rank_prefix || !routing->recv_expert_counts)
        status = error_set(EXPAR_ERR_MEMORY, "no memory for the counts of a handle");
    if (status == EXPAR_OK)
        status = ep_block_take(ep, executor_cuda_routing_bytes(&ep->shape, routing->tokens), &handle->device);
    if (status != EXPAR_OK) {
        ep_routing_free(routing);
        return status;
    }
    routing->device = handle->device->data;
    return EXPAR_OK;
}

expar_status ep_routing_alloc(ep_routing *routing, int32_t most_targets)
{
    int64_t tokens = routing->tokens;
    size_t n = (size_t)routing->ranks, cells = n * (size_t)routing->channels, experts = (size_t)routing->experts;
    routing->local_experts = routing->experts / routing->ranks;
    /* One entry more than needed, so that no allocation has size 0. */
    routing->first = calloc((size_t)tokens + 1, sizeof(int64_t));
    routing->targets = malloc(((size_t)tokens * (size_t)most_targets + 1) * sizeof(ep_target));
    routing->channel_prefix = malloc(cells * sizeof(int32_t));
    routing->expert_counts = malloc(experts * sizeof(int32_t));
    routing->node_counts = malloc(n / (size_t)routing->ranks_per_node * sizeof(int32_t));
    routing->rank_prefix = malloc(n * sizeof(int32_t));
    routing->recv_channel_prefix = malloc(cells * sizeof(int32_t));
    routing->recv_expert_counts = malloc(experts / n * sizeof(int32_t));
    routing->first_row = malloc(n * sizeof(int32_t));
    if (routing->first && routing->targets && routing->channel_prefix && routing->expert_counts &&
        routing->node_counts && routing->rank_prefix && routing->recv_channel_prefix && routing->recv_expert_counts &&
        routing->first_row)
        return EXPAR_OK;
    ep_routing_free(routing);
    return error_set(EXPAR_ERR_MEMORY, "no memory for the routing of %lld tokens", (long long)tokens);
}

expar_status ep_handle_create(expar_ep *ep, int64_t tokens, int32_t topk, int32_t experts, int32_t most_targets,
                              expar_ep_handle **out)
{
    expar_ep_handle *handle = calloc(1, sizeof *handle);
    if (!handle) return error_set(EXPAR_ERR_MEMORY, "no memory for a handle");
    handle->routing = (ep_routing){.tokens = tokens,
                                   .ranks = ep->shape.ranks,
                                   .ranks_per_node = ep->group->ranks_per_node,
                                   .channels = ep->shape.channels,
                                   .topk = topk,
                                   .experts = experts};
    expar_status status = ep->gpu ? alloc_on_gpu(ep, handle) : ep_routing_alloc(&handle->routing, most_targets);
    if (status != EXPAR_OK) {
        free(handle);
        return status;
    }
    handle->magic = EP_HANDLE_MAGIC;
    atomic_init(&handle->holds, 1);
    handle->serial = ep->serial;
    handle->route = ep->epoch;
    *out = handle;
    return EXPAR_OK;
}

expar_ep_handle *ep_handle_hold(const expar_ep_handle *handle)
{
    expar_ep_handle *held = (expar_ep_handle *)handle;
    atomic_fetch_add_explicit(&held->holds, 1, memory_order_relaxed);
    return held;
}

void expar_ep_handle_destroy(expar_ep_handle *handle)
{
    if (!handle || atomic_fetch_sub_explicit(&handle->holds, 1, memory_order_acq_rel) > 1) return;
    handle->magic = 0;
    ep_routing_free(&handle->routing);
    if (handle->device)
        mem_block_release(handle->device);
    else
        free(handle->row_map);
    if (handle->device_map) mem_block_release(handle->device_map);
    free(handle);
}

expar_status expar_ep_handle_info(const expar_ep_handle *handle, expar_handle_info *info)
{
    if (!handle) return error_set(EXPAR_ERR_NULL, "expar_ep_handle_info: handle is NULL");
    if (handle->magic != EP_HANDLE_MAGIC)
        return error_set(EXPAR_ERR_HANDLE, "expar_ep_handle_info: handle is not a living handle");
    expar_handle_info checked;
    expar_status status = ep_copy_struct("info", &checked, sizeof checked, info);
    if (status != EXPAR_OK) return error_prefix(status, "expar_ep_handle_info");
    /* On a GPU that nobody has waited for they stay there. */
    bool known = handle->recv_tokens >= 0;
    expar_handle_info full = {.struct_size = checked.struct_size,
                              .num_tokens = handle->routing.tokens,
                              .num_recv_tokens = handle->recv_tokens,
                              .num_experts = handle->routing.experts,
                              .num_topk = handle->routing.topk,
                              .num_channels = handle->routing.channels,
                              .num_nodes = handle->routing.ranks / handle->routing.ranks_per_node,
                              .tokens_per_node = handle->routing.node_counts,
                              .rank_prefix = known ? handle->routing.rank_prefix : NULL,
                              .channel_prefix = known ? handle->routing.channel_prefix : NULL};
    memcpy(info, &full, checked.struct_size);
    return EXPAR_OK;
}

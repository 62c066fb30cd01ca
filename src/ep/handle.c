/* SPDX-License-Identifier: Apache-2.0 */
/* Handles: the routing of one dispatch, kept for the combine and for later dispatches. */
#include "ep/ep.h"

#include <stdlib.h>
#include <string.h>

expar_status ep_handle_create(expar_ep *ep, uint32_t epoch, int64_t tokens, int32_t topk, int32_t experts,
                              int32_t most_targets, expar_ep_handle **out)
{
    expar_ep_handle *handle = calloc(1, sizeof *handle);
    if (!handle) return error_set(EXPAR_ERR_MEMORY, "no memory for a handle");
    handle->routing = (ep_routing){.tokens = tokens,
                                   .ranks = ep->shape.ranks,
                                   .ranks_per_node = ep->group->ranks_per_node,
                                   .channels = ep->shape.channels,
                                   .topk = topk,
                                   .experts = experts};
    expar_status status = ep->exec->ops->routing_make(ep->exec, &handle->routing, most_targets);
    if (status != EXPAR_OK) {
        free(handle);
        return status;
    }
    handle->magic = EP_HANDLE_MAGIC;
    atomic_init(&handle->references, 1);
    handle->group = ep->group->number;
    handle->device = ep->device;
    handle->buffer = ep->number;
    handle->route = epoch;
    *out = handle;
    return EXPAR_OK;
}

expar_ep_handle *ep_handle_hold(const expar_ep_handle *handle)
{
    expar_ep_handle *held = (expar_ep_handle *)handle;
    atomic_fetch_add_explicit(&held->references, 1, memory_order_relaxed);
    return held;
}

void expar_ep_handle_destroy(expar_ep_handle *handle)
{
    if (!handle || atomic_fetch_sub_explicit(&handle->references, 1, memory_order_acq_rel) > 1) return;
    handle->magic = 0;
    ep_routing_free(&handle->routing);
    mem_block_release(handle->map);
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
    /* What nobody has waited for the host does not know. */
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

/* SPDX-License-Identifier: Apache-2.0 */
/* Handles: the routing of one dispatch, kept for the combine and for later dispatches. */
#include "ep/normal/normal.h"

#include <stdlib.h>
#include <string.h>

static const life_kind handles = {EP_HANDLE_MAGIC, "handle", "retained"};
static life_spent spent = LIFE_SPENT_NONE;

static void handle_end(void *object)
{
    expar_ep_handle *handle = object;
    ep_routing_free(&handle->routing);
    mem_block_release(ep_handle_map_block(handle));
    free(handle->tokens_per_expert);
    life_keep(&spent, handle);
}

expar_status ep_handle_create(expar_ep *ep, uint32_t epoch, const ep_routing *wanted, int32_t most_targets,
                              expar_ep_handle **out)
{
    expar_ep_handle *handle = calloc(1, sizeof *handle);
    if (!handle) return error_set(EXPAR_ERR_MEMORY, "no memory for a handle");
    handle->routing = *wanted;
    handle->routing.ranks = ep->shape.ranks;
    handle->routing.ranks_per_node = ep->base.group->ranks_per_node;
    handle->routing.channels = ep->shape.channels;
    expar_status status = ep->base.exec->normal->routing_make(ep->base.exec, &handle->routing, most_targets);
    if (status != EXPAR_OK) {
        free(handle);
        return status;
    }
    handle->life = life_begin(handles.magic, handle_end);
    handle->origin = ep_origin_of(&ep->base);
    handle->buffer = ep->base.number;
    handle->route = epoch;
    *out = handle;
    return EXPAR_OK;
}

expar_status ep_handle_make_counts(expar_ep_handle *handle)
{
    size_t locals = (size_t)handle->routing.local_experts;
    handle->tokens_per_expert = calloc(locals, sizeof *handle->tokens_per_expert);
    if (handle->tokens_per_expert) return EXPAR_OK;
    return error_set(EXPAR_ERR_MEMORY, "no memory for %zu counts", locals);
}

/* Callers have handles as const: what follows from their routing is put there all the same. */
expar_status ep_handle_make_map(expar_ep *ep, const expar_ep_handle *given, bool *fills)
{
    expar_ep_handle *handle = (expar_ep_handle *)given;
    mem_block *map, *none = NULL;
    *fills = false;
    if (!ep_handle_map_block(handle)) {
        expar_status status = ep->base.exec->normal->map_make(ep->base.exec, handle->rows * handle->routing.topk, &map);
        if (status != EXPAR_OK) return status;
        bool first = atomic_compare_exchange_strong_explicit(&handle->map, &none, map, memory_order_acq_rel,
                                                             memory_order_acquire);
        if (!first) mem_block_release(map);
    }
    *fills = !atomic_exchange_explicit(&handle->mapped, true, memory_order_acq_rel);
    return EXPAR_OK;
}

void ep_handle_unmap(const expar_ep_handle *handle)
{
    atomic_store_explicit(&((expar_ep_handle *)handle)->mapped, false, memory_order_release);
}

expar_ep_handle *ep_handle_hold(const expar_ep_handle *handle)
{
    expar_ep_handle *held = (expar_ep_handle *)handle;
    life_hold(&held->life);
    return held;
}

/* Checks the limits for a handle from another buffer of the group. */
static expar_status check_handle_fits(const expar_ep *ep, const ep_routing *routing)
{
    const ep_limits *limited = &ep->limits;
    const struct {
        const char *has, *member;
        int64_t value, most;
    } limits[] = {{"tokens", "max_tokens", routing->tokens, limited->tokens},
                  {"slots a token", "max_topk", routing->topk, limited->topk},
                  {"experts", "max_experts", routing->experts, limited->experts}};
    for (size_t i = 0; i < ARRAY_LENGTH(limits); i++)
        if (limits[i].value > limits[i].most)
            return error_set(EXPAR_ERR_LIMIT,
                             "handle has %lld %s; this buffer was created for at most %lld (config.%s)",
                             (long long)limits[i].value, limits[i].has, (long long)limits[i].most, limits[i].member);
    return EXPAR_OK;
}

expar_status ep_check_handle(const expar_ep *ep, const expar_ep_handle *handle)
{
    if (!handle) return error_set(EXPAR_ERR_NULL, "handle is NULL");
    if (!life_alive(&handle->life, handles.magic))
        return error_set(EXPAR_ERR_HANDLE,
                         "handle %p is not a living handle; it has been released as often as retained",
                         (const void *)handle);
    if (handle->origin.group != ep->base.group->number)
        return error_set(EXPAR_ERR_HANDLE, "handle was made in another group, or by another rank of this one");
    if (handle->origin.device.type != ep->base.device.type || handle->origin.device.index != ep->base.device.index)
        return error_set(EXPAR_ERR_HANDLE, "handle was made on %s device %d; expected %s device %d, the buffer's",
                         ep_tell(&ep_names_device, handle->origin.device.type).text, handle->origin.device.index,
                         ep_tell(&ep_names_device, ep->base.device.type).text, ep->base.device.index);
    return check_handle_fits(ep, &handle->routing);
}

expar_status expar_ep_handle_retain(expar_ep_handle *handle)
{
    return call_ended(life_retain(&handles, "expar_ep_handle_retain", handle));
}

void expar_ep_handle_release(expar_ep_handle *handle)
{
    life_release(&handles, "expar_ep_handle_release", handle);
}

expar_status expar_ep_handle_release_after(expar_ep_handle *handle, void *stream)
{
    static const char call[] = "expar_ep_handle_release_after";
    if (!handle) return EXPAR_OK;
    expar_status status = life_check(&handles, call, handle);
    if (status != EXPAR_OK) return call_ended(status);
    mem_block *const blocks[] = {handle->routing.own, ep_handle_map_block(handle)};
    const ep_origin *origin = &handle->origin;
    status = origin->kind->hold_until(origin->device, stream, blocks, ARRAY_LENGTH(blocks));
    if (status != EXPAR_OK) return call_ended(error_prefix(status, "%s", call));
    expar_ep_handle_release(handle);
    return EXPAR_OK;
}

expar_status expar_ep_handle_get_info(const expar_ep_handle *handle, expar_ep_handle_info *info)
{
    expar_status status = life_check(&handles, "expar_ep_handle_get_info", handle);
    if (status != EXPAR_OK) return call_ended(status);
    expar_ep_handle_info checked;
    status = ep_copy_struct("info", &checked, sizeof checked, info);
    if (status != EXPAR_OK) return call_ended(error_prefix(status, "expar_ep_handle_get_info"));
    /* The host does not know counts that no call has waited for. */
    bool known = handle->recv_tokens >= 0;
    expar_ep_handle_info full = {.struct_size = checked.struct_size,
                                 .num_tokens = handle->routing.tokens,
                                 .num_recv_tokens = handle->recv_tokens,
                                 .num_experts = handle->routing.experts,
                                 .num_topk = handle->routing.topk,
                                 .num_channels = handle->routing.channels,
                                 .num_nodes = handle->routing.ranks / handle->routing.ranks_per_node,
                                 .tokens_per_node = known ? handle->routing.node_counts : NULL,
                                 .rank_prefix = known ? handle->routing.rank_prefix : NULL,
                                 .channel_prefix = known ? handle->routing.channel_prefix : NULL};
    memcpy(info, &full, checked.struct_size);
    return EXPAR_OK;
}

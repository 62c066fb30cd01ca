/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of a routing: one allocation for all arrays, since every fresh dispatch makes one. */
#include "exec/cpu/normal/cpu.h"

#include <stdlib.h>

/* Returns where one array begins after those before it; *bytes grows by it. */
static size_t routing_place(size_t *bytes, size_t count, size_t each)
{
    size_t at = *bytes;
    *bytes += (size_t)ep_round(count * each, sizeof(int64_t));
    return at;
}

expar_status cpu_routing_make(ep_routing *routing, int32_t most_targets)
{
    size_t tokens = (size_t)routing->tokens, n = (size_t)routing->ranks, experts = (size_t)routing->experts;
    size_t cells = n * (size_t)routing->channels, nodes = n / (size_t)routing->ranks_per_node, bytes = 0;
    size_t first = routing_place(&bytes, tokens + 1, sizeof *routing->first);
    size_t targets = routing_place(&bytes, tokens * (size_t)most_targets, sizeof *routing->targets);
    size_t channel_prefix = routing_place(&bytes, cells, sizeof(int32_t));
    size_t expert_counts = routing_place(&bytes, experts, sizeof(int32_t));
    size_t node_counts = routing_place(&bytes, nodes, sizeof(int32_t));
    size_t rank_prefix = routing_place(&bytes, n, sizeof(int32_t));
    size_t recv_channel_prefix = routing_place(&bytes, cells, sizeof(int32_t));
    size_t recv_expert_counts = routing_place(&bytes, experts / n, sizeof(int32_t));
    size_t first_row = routing_place(&bytes, n, sizeof(int32_t));
    size_t slots = routing->keeps_slots ? tokens * (size_t)routing->topk : 0;
    size_t owners = routing_place(&bytes, slots, sizeof *routing->owners);
    uint8_t *arrays = malloc(bytes);
    if (!arrays)
        return error_set(EXPAR_ERR_MEMORY, "no memory for the routing of %lld tokens", (long long)routing->tokens);
    routing->arrays = arrays;
    routing->local_experts = routing->experts / routing->ranks;
    routing->first = (int64_t *)(arrays + first);
    routing->targets = (ep_target *)(arrays + targets);
    routing->channel_prefix = (int32_t *)(arrays + channel_prefix);
    routing->expert_counts = (int32_t *)(arrays + expert_counts);
    routing->node_counts = (int32_t *)(arrays + node_counts);
    routing->rank_prefix = (int32_t *)(arrays + rank_prefix);
    routing->recv_channel_prefix = (int32_t *)(arrays + recv_channel_prefix);
    routing->recv_expert_counts = (int32_t *)(arrays + recv_expert_counts);
    routing->first_row = (int32_t *)(arrays + first_row);
    if (routing->keeps_slots) routing->owners = (uint16_t *)(arrays + owners);
    return EXPAR_OK;
}

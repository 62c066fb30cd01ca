/* SPDX-License-Identifier: Apache-2.0 */
/* Layout: from topk_idx, or from token_in_rank, to each token's list of targets, and the counts that follow from
 * it. */
#include "exec/cpu/normal/cpu.h"

#include <string.h>

expar_status cpu_check_range(const ep_route_view *route, const ep_routing *routing)
{
    for (int64_t t = 0; route->idx && t < routing->tokens; t++)
        for (int32_t k = 0; k < routing->topk; k++) {
            int64_t expert = ep_route_expert(route, t, k);
            if (expert < -1 || expert >= routing->experts)
                return error_set(EXPAR_ERR_INDEX, "topk_idx[%lld][%d] is %lld; expected -1 (none) or 0 to %d",
                                 (long long)t, k, (long long)expert, routing->experts - 1);
        }
    return EXPAR_OK;
}

/* Inserts rank into the sorted list of one token's targets, unless it is there. Lists are short: at most K. */
static int32_t insert_rank(ep_target *list, int32_t length, int32_t rank)
{
    int32_t at = length;
    while (at > 0 && list[at - 1].rank > rank)
        at--;
    if (at > 0 && list[at - 1].rank == rank) return length;
    memmove(list + at + 1, list + at, (size_t)(length - at) * sizeof *list);
    list[at].rank = rank;
    return length + 1;
}

/* Finds the ranks of a token's experts, and counts its experts. */
static int32_t ranks_by_topk(const ep_route_view *route, ep_routing *routing, int64_t token, ep_target *list)
{
    int32_t length = 0;
    for (int32_t k = 0; k < routing->topk; k++) {
        int64_t expert = ep_route_expert(route, token, k);
        if (expert < 0) continue;
        routing->expert_counts[expert]++;
        length = insert_rank(list, length, ep_expert_owner(expert, routing->local_experts));
    }
    return length;
}

/* Finds the ranks that the caller named. Experts count if their rank gets the token. */
static int32_t ranks_by_hand(const ep_route_view *route, ep_routing *routing, int64_t token, ep_target *list)
{
    const uint8_t *in_rank = route->token_in_rank + token * route->token_in_rank_pitch;
    int32_t length = 0;
    for (int32_t r = 0; r < routing->ranks; r++)
        if (in_rank[r]) list[length++].rank = r;
    for (int32_t k = 0; route->idx && k < routing->topk; k++) {
        int64_t expert = ep_route_expert(route, token, k);
        if (expert >= 0 && in_rank[ep_expert_owner(expert, routing->local_experts)]) routing->expert_counts[expert]++;
    }
    return length;
}

/* Routes one token: finds its targets in rank order, each with its place among all tokens that go there. sent[r] counts
   them. */
static void route_token(const ep_route_view *route, ep_routing *routing, int32_t *sent, int64_t token)
{
    ep_target *list = routing->targets + routing->first[token];
    int32_t length =
        route->token_in_rank ? ranks_by_hand(route, routing, token, list) : ranks_by_topk(route, routing, token, list);
    int32_t last_node = -1;
    for (int32_t i = 0; i < length; i++) {
        /* Ranks ascend and are numbered node by node, so those of one node are adjacent. */
        int32_t node = list[i].rank / routing->ranks_per_node;
        if (node != last_node) routing->node_counts[node]++;
        last_node = node;
        list[i].index = sent[list[i].rank]++;
    }
    routing->first[token + 1] = routing->first[token] + length;
}

/* Keeps the rank of each slot's expert, for sums that go by slots. */
static void keep_owners(const ep_route_view *route, ep_routing *routing)
{
    for (int64_t t = 0; t < routing->tokens; t++)
        for (int32_t k = 0; k < routing->topk; k++) {
            int64_t expert = ep_route_expert(route, t, k);
            int32_t owner = expert < 0 ? (int32_t)EP_NO_OWNER : ep_expert_owner(expert, routing->local_experts);
            routing->owners[t * routing->topk + k] = (uint16_t)owner;
        }
}

/* The pitches of idx may differ. */
static void copy_idx(const ep_route_view *route, const ep_routing *routing)
{
    const size_t bytes = (size_t)route->idx_bytes, row_bytes = (size_t)routing->topk * bytes;
    const uint8_t *from = route->idx;
    uint8_t *to = route->idx_copy;
    for (int64_t t = 0; t < routing->tokens; t++)
        memcpy(to + (size_t)t * row_bytes, from + (size_t)(t * route->idx_pitch) * bytes, row_bytes);
}

expar_status cpu_layout(const ep_route_view *route, ep_routing *routing)
{
    expar_status status = cpu_check_range(route, routing);
    if (status != EXPAR_OK) return status;
    int32_t channels = routing->channels, ranks = routing->ranks;
    size_t count_bytes = (size_t)routing->experts * sizeof(int32_t);
    memset(routing->expert_counts, 0, count_bytes);
    if (!route->idx && route->expert_counts) memcpy(routing->expert_counts, route->expert_counts, count_bytes);
    memset(routing->node_counts, 0, (size_t)(ranks / routing->ranks_per_node) * sizeof(int32_t));
    /* first_row holds the running counts; it is free until the advertisements come. */
    int32_t *sent = routing->first_row;
    memset(sent, 0, (size_t)ranks * sizeof(int32_t));
    routing->first[0] = 0;
    for (int32_t c = 0; c < channels; c++) {
        int64_t end = ep_channel_begin(routing->tokens, channels, c + 1);
        for (int64_t t = ep_channel_begin(routing->tokens, channels, c); t < end; t++)
            route_token(route, routing, sent, t);
        for (int32_t r = 0; r < ranks; r++)
            routing->channel_prefix[(int64_t)r * channels + c] = sent[r];
    }
    if (routing->keeps_slots) keep_owners(route, routing);
    if (route->idx_copy) copy_idx(route, routing);
    return EXPAR_OK;
}

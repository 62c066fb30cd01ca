/* SPDX-License-Identifier: Apache-2.0 */
/* The layout by itself, for callers without a buffer. */
#include "exec/cpu/normal/cpu.h"

#include <string.h>

static void count_fill(const ep_count_step *step, const ep_routing *routing)
{
    for (int32_t r = 0; step->tokens_per_rank && r < routing->ranks; r++)
        step->tokens_per_rank[r] = ep_rows_to(routing, r);
    if (step->tokens_per_expert)
        memcpy(step->tokens_per_expert, routing->expert_counts, (size_t)routing->experts * sizeof(int32_t));
    if (step->tokens_per_node)
        memcpy(step->tokens_per_node, routing->node_counts, (size_t)step->nodes * sizeof(int32_t));
    if (!step->token_in_rank) return;
    memset(step->token_in_rank, 0, (size_t)routing->tokens * (size_t)routing->ranks);
    for (int64_t t = 0; t < routing->tokens; t++)
        for (int64_t i = routing->first[t]; i < routing->first[t + 1]; i++)
            step->token_in_rank[t * routing->ranks + routing->targets[i].rank] = 1;
}

expar_status cpu_count(const ep_count_step *step)
{
    ep_routing routing = {.tokens = step->tokens,
                          .ranks = step->ranks,
                          .ranks_per_node = step->ranks / step->nodes,
                          .channels = 1,
                          .topk = step->topk,
                          .experts = step->experts};
    expar_status status = cpu_routing_make(&routing, step->topk < step->ranks ? step->topk : step->ranks);
    if (status != EXPAR_OK) return status;
    status = cpu_layout(&step->route, &routing);
    if (status == EXPAR_OK) count_fill(step, &routing);
    ep_routing_free(&routing);
    return status;
}

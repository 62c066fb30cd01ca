/* SPDX-License-Identifier: Apache-2.0 */
/* expar_ep_layout: counts that follow from topk_idx alone, made where that lies. */
#include "ep/ep.h"

#include <string.h>

/* Counts go where the indices lie. An address of another place would end the process, or the GPU's context. */
static expar_status check_arrays(expar_device device, const expar_layout *layout)
{
    const struct {
        const char *name;
        const void *data;
    } arrays[] = {{"layout.tokens_per_rank", layout->tokens_per_rank},
                  {"layout.tokens_per_node", layout->tokens_per_node},
                  {"layout.tokens_per_expert", layout->tokens_per_expert},
                  {"layout.token_in_rank", layout->token_in_rank}};
    expar_status status = EXPAR_OK;
    for (size_t i = 0; status == EXPAR_OK && i < ARRAY_LENGTH(arrays); i++)
        status = ep_check_place(device, arrays[i].name, arrays[i].data);
    return status;
}

static expar_status check(const expar_group *group, const expar_tensor *topk_idx, int32_t num_experts,
                          const expar_layout *given, expar_layout *layout)
{
    if (!group) return error_set(EXPAR_ERR_NULL, "group is NULL");
    if (!topk_idx) return error_set(EXPAR_ERR_NULL, "topk_idx is NULL");
    const expar_device cpu = {.type = EXPAR_CPU};
    const expar_device device = topk_idx->device.type == EXPAR_CUDA ? topk_idx->device : cpu;
    expar_status status = ep_copy_struct("layout", layout, sizeof *layout, given);
    if (status == EXPAR_OK) status = check_arrays(device, layout);
    if (status == EXPAR_OK) status = ep_check_experts(num_experts, group->size);
    if (status == EXPAR_OK)
        status =
            ep_check_matrix(device, "topk_idx", topk_idx, topk_idx->shape[0], topk_idx->shape[1], EXPAR_I64, EXPAR_I32);
    return status;
}

static ep_route_view route_of(const expar_tensor *topk_idx)
{
    return (ep_route_view){.idx = topk_idx->data ? topk_idx->data : "",
                           .idx_bytes = (int32_t)expar_dtype_bytes(topk_idx->dtype),
                           .idx_pitch = tensor_pitch(topk_idx)};
}

/* ---- on a GPU ---- */

static expar_status count_on_gpu(const expar_group *group, const expar_tensor *topk_idx, int32_t num_experts,
                                 const expar_layout *layout)
{
    const ep_count_step step = {.device = topk_idx->device.index,
                                .stream = layout->stream,
                                .route = route_of(topk_idx),
                                .tokens = topk_idx->shape[0],
                                .topk = (int32_t)topk_idx->shape[1],
                                .experts = num_experts,
                                .ranks = group->size,
                                .nodes = group->num_nodes,
                                .tokens_per_rank = layout->tokens_per_rank,
                                .tokens_per_node = layout->tokens_per_node,
                                .tokens_per_expert = layout->tokens_per_expert,
                                .token_in_rank = layout->token_in_rank};
    return executor_cuda_count(&step);
}

/* ---- on the CPU ---- */

static void fill(const expar_group *group, const ep_routing *routing, const expar_layout *layout)
{
    size_t ranks = (size_t)routing->ranks;
    if (layout->tokens_per_rank)
        for (int32_t r = 0; r < routing->ranks; r++)
            layout->tokens_per_rank[r] = ep_rows_to(routing, r);
    if (layout->tokens_per_expert)
        memcpy(layout->tokens_per_expert, routing->expert_counts, (size_t)routing->experts * sizeof(int32_t));
    if (layout->tokens_per_node)
        memcpy(layout->tokens_per_node, routing->node_counts, (size_t)group->num_nodes * sizeof(int32_t));
    if (!layout->token_in_rank) return;
    memset(layout->token_in_rank, 0, (size_t)routing->tokens * ranks);
    for (int64_t t = 0; t < routing->tokens; t++)
        for (int64_t i = routing->first[t]; i < routing->first[t + 1]; i++)
            layout->token_in_rank[t * routing->ranks + routing->targets[i].rank] = 1;
}

static expar_status count_on_cpu(const expar_group *group, const expar_tensor *topk_idx, int32_t num_experts,
                                 const expar_layout *layout)
{
    const ep_route_view route = route_of(topk_idx);
    int32_t topk = (int32_t)topk_idx->shape[1];
    ep_routing routing = {.tokens = topk_idx->shape[0],
                          .ranks = group->size,
                          .ranks_per_node = group->ranks_per_node,
                          .channels = 1,
                          .topk = topk,
                          .experts = num_experts};
    expar_status status = ep_routing_alloc(&routing, topk < group->size ? topk : group->size);
    if (status != EXPAR_OK) return status;
    status = executor_cpu_layout(&route, &routing);
    if (status == EXPAR_OK) fill(group, &routing, layout);
    ep_routing_free(&routing);
    return status;
}

expar_status expar_ep_layout(const expar_group *group, const expar_tensor *topk_idx, int32_t num_experts,
                             const expar_layout *given)
{
    expar_layout layout;
    expar_status status = check(group, topk_idx, num_experts, given, &layout);
    if (status == EXPAR_OK)
        status = topk_idx->device.type == EXPAR_CUDA ? count_on_gpu(group, topk_idx, num_experts, &layout)
                                                     : count_on_cpu(group, topk_idx, num_experts, &layout);
    return status == EXPAR_OK ? EXPAR_OK : error_prefix(status, "expar_ep_layout");
}

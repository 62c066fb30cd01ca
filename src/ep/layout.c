/* SPDX-License-Identifier: Apache-2.0 */
/* expar_ep_layout: counts that follow from topk_idx alone, made where that lies. */
#include "ep/ep.h"

/* Counts go where the indices lie. An address of another place would end the process, or lose the
   device. */
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
        status = exec_check_place(device, arrays[i].name, arrays[i].data);
    return status;
}

static expar_status layout_check(const expar_group *group, const expar_tensor *topk_idx, int32_t num_experts,
                                 const expar_layout *given, expar_layout *layout)
{
    if (!group) return error_set(EXPAR_ERR_NULL, "group is NULL");
    if (!topk_idx) return error_set(EXPAR_ERR_NULL, "topk_idx is NULL");
    const expar_device cpu = {.type = EXPAR_CPU};
    const expar_device device = executor_kind_of(topk_idx->device.type) ? topk_idx->device : cpu;
    expar_status status = ep_copy_struct("layout", layout, sizeof *layout, given);
    if (status == EXPAR_OK) status = check_arrays(device, layout);
    if (status == EXPAR_OK) status = ep_check_experts(num_experts, group->size);
    if (status == EXPAR_OK)
        status =
            ep_check_matrix(device, "topk_idx", topk_idx, topk_idx->shape[0], topk_idx->shape[1], EXPAR_I64, EXPAR_I32);
    return status;
}

expar_status expar_ep_layout(const expar_group *group, const expar_tensor *topk_idx, int32_t num_experts,
                             const expar_layout *given)
{
    expar_layout layout;
    expar_status status = layout_check(group, topk_idx, num_experts, given, &layout);
    if (status != EXPAR_OK) return group_ended(group, error_prefix(status, "expar_ep_layout"));
    const ep_count_step step = {.device = topk_idx->device,
                                .stream = layout.stream,
                                .route = {.idx = topk_idx->data ? topk_idx->data : "",
                                          .idx_bytes = (int32_t)expar_dtype_bytes(topk_idx->dtype),
                                          .idx_pitch = tensor_pitch(topk_idx)},
                                .tokens = topk_idx->shape[0],
                                .topk = (int32_t)topk_idx->shape[1],
                                .experts = num_experts,
                                .ranks = group->size,
                                .nodes = group->num_nodes,
                                .tokens_per_rank = layout.tokens_per_rank,
                                .tokens_per_node = layout.tokens_per_node,
                                .tokens_per_expert = layout.tokens_per_expert,
                                .token_in_rank = layout.token_in_rank};
    status = executor_kind_of(step.device.type)->count(&step);
    return group_ended(group, status == EXPAR_OK ? EXPAR_OK : error_prefix(status, "expar_ep_layout"));
}

/* SPDX-License-Identifier: Apache-2.0 */
/* expar_ep_get_layout: counts that follow from topk_idx alone, made where that lies. */
#include "ep/normal/normal.h"

/* Counts go where the indices lie. An address of another place would end the process, or lose the
   device. */
static expar_status check_arrays(expar_device device, const expar_ep_layout *layout)
{
    const ep_array arrays[] = {{"layout.tokens_per_rank", layout->tokens_per_rank, sizeof(int32_t)},
                               {"layout.tokens_per_node", layout->tokens_per_node, sizeof(int32_t)},
                               {"layout.tokens_per_expert", layout->tokens_per_expert, sizeof(int32_t)},
                               {"layout.token_in_rank", layout->token_in_rank, 1}};
    return ep_check_arrays(device, arrays, ARRAY_LENGTH(arrays));
}

/* As of a buffer; arrays of 2^31 counts would take all memory before any index is looked at. */
static expar_status check_experts(int32_t num_experts, int32_t ranks)
{
    if (num_experts <= EP_MOST_EXPERTS) return ep_check_experts(num_experts, ranks);
    return error_set(EXPAR_ERR_ARGUMENT, "num_experts is %d; expected at most %d", num_experts, EP_MOST_EXPERTS);
}

/* Counts are of 31 bits. */
static expar_status check_slots(const expar_tensor *topk_idx)
{
    int64_t tokens = topk_idx->shape[0], topk = topk_idx->shape[1];
    if (topk <= INT32_MAX && (topk == 0 || tokens <= INT32_MAX / topk)) return EXPAR_OK;
    return error_set(EXPAR_ERR_SHAPE, "topk_idx has shape [%lld][%lld]; expected at most 2^31 - 1 slots",
                     (long long)tokens, (long long)topk);
}

static expar_status layout_check(const expar_group *group, const expar_tensor *topk_idx, int32_t num_experts,
                                 const expar_ep_layout *given, expar_ep_layout *layout)
{
    if (!topk_idx) return error_set(EXPAR_ERR_NULL, "topk_idx is NULL");
    const expar_device cpu = {.type = EXPAR_CPU};
    const expar_device device = executor_kind_of(topk_idx->device.type) ? topk_idx->device : cpu;
    expar_status status = ep_copy_struct("layout", layout, sizeof *layout, given);
    if (status == EXPAR_OK) status = check_arrays(device, layout);
    if (status == EXPAR_OK) status = check_experts(num_experts, group->size);
    if (status == EXPAR_OK)
        status =
            ep_check_matrix(device, "topk_idx", topk_idx, topk_idx->shape[0], topk_idx->shape[1], EXPAR_I64, EXPAR_I32);
    return status == EXPAR_OK ? check_slots(topk_idx) : status;
}

static expar_status count(const expar_group *group, const expar_tensor *topk_idx, int32_t num_experts,
                          const expar_ep_layout *layout)
{
    const ep_count_step step = {.device = topk_idx->device,
                                .stream = layout->stream,
                                .route = {.idx = topk_idx->data ? topk_idx->data : "",
                                          .idx_bytes = (int32_t)expar_dtype_bytes(topk_idx->dtype),
                                          .idx_pitch = tensor_pitch(topk_idx)},
                                .tokens = topk_idx->shape[0],
                                .topk = (int32_t)topk_idx->shape[1],
                                .experts = num_experts,
                                .ranks = group->size,
                                .nodes = group->num_nodes,
                                .tokens_per_rank = layout->tokens_per_rank,
                                .tokens_per_node = layout->tokens_per_node,
                                .tokens_per_expert = layout->tokens_per_expert,
                                .token_in_rank = layout->token_in_rank};
    return executor_kind_of(step.device.type)->count(&step);
}

/* Callers have the group as const; it is only held. */
expar_status expar_ep_get_layout(const expar_group *group, const expar_tensor *topk_idx, int32_t num_experts,
                                 const expar_ep_layout *given)
{
    static const char name[] = "expar_ep_get_layout";
    expar_ep_layout layout;
    if (!group) return group_ended(group, error_set(EXPAR_ERR_NULL, "%s: group is NULL", name));
    if (!group_enter((expar_group *)group, name)) return group_ended(group, EXPAR_ERR_STATE);
    expar_status status = layout_check(group, topk_idx, num_experts, given, &layout);
    if (status == EXPAR_OK) status = count(group, topk_idx, num_experts, &layout);
    if (status != EXPAR_OK) error_prefix(status, "%s", name);
    group_leave((expar_group *)group);
    return group_ended(group, status);
}

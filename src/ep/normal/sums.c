/* SPDX-License-Identifier: Apache-2.0 */
/* expar_ep_find_terms and expar_ep_sum_terms: sums of rows that came back by themselves, made where these lie. */
#include "ep/normal/normal.h"

/* A row's number is the lower half of a term. */
#define MOST_ROWS UINT32_MAX

static expar_device sum_device_of(const expar_tensor *tensor)
{
    const expar_device cpu = {.type = EXPAR_CPU};
    return executor_kind_of(tensor->device.type) ? tensor->device : cpu;
}

/* ---- terms ------------------------------------------------------------------------------------------------------- */

static expar_status check_options(const expar_group *group, const expar_ep_terms_args *args)
{
    if (args->sum_order != EXPAR_EP_SUM_ORDER_BY_SLOT && args->sum_order != EXPAR_EP_SUM_ORDER_EACH_SLOT)
        return error_set(EXPAR_ERR_ARGUMENT, "sum_order is %d; expected BY_SLOT or EACH_SLOT", (int)args->sum_order);
    if (args->nodes_sum != EXPAR_EP_NODES_SUM_ROUNDED && args->nodes_sum != EXPAR_EP_NODES_SUM_ONE_ORDER)
        return error_set(EXPAR_ERR_ARGUMENT, "nodes_sum is %d; expected ROUNDED or ONE_ORDER", (int)args->nodes_sum);
    if (args->num_experts > EP_MOST_EXPERTS)
        return error_set(EXPAR_ERR_ARGUMENT, "num_experts is %d; expected at most %d", args->num_experts,
                         EP_MOST_EXPERTS);
    return ep_check_experts(args->num_experts, group->size);
}

static expar_status check_terms(const expar_group *group, const expar_ep_terms_args *args)
{
    const expar_tensor *idx = &args->topk_idx;
    const int64_t tokens = idx->shape[0], topk = idx->shape[1];
    expar_status status = check_options(group, args);
    if (status == EXPAR_OK)
        status = ep_check_matrix(sum_device_of(idx), "topk_idx", idx, tokens, topk, EXPAR_I64, EXPAR_I32);
    if (status == EXPAR_OK && (topk > INT32_MAX || (topk > 0 && tokens > INT32_MAX / topk)))
        status = error_set(EXPAR_ERR_SHAPE, "topk_idx has shape [%lld][%lld]; expected at most 2^31 - 1 slots",
                           (long long)tokens, (long long)topk);
    if (status != EXPAR_OK) return status;
    return ep_check_matrix(sum_device_of(idx), "out_terms", &args->out_terms, tokens, topk, EXPAR_I64, EXPAR_I64);
}

static expar_status find_terms(const expar_group *group, const expar_ep_terms_args *args)
{
    const expar_tensor *idx = &args->topk_idx;
    const bool each_slot = args->sum_order == EXPAR_EP_SUM_ORDER_EACH_SLOT;
    const bool by_node = group->num_nodes > 1 && args->nodes_sum == EXPAR_EP_NODES_SUM_ROUNDED;
    const ep_terms_step step = {.device = idx->device,
                                .stream = args->stream,
                                .route = {.idx = idx->data,
                                          .idx_bytes = (int32_t)expar_dtype_bytes(idx->dtype),
                                          .idx_pitch = tensor_pitch(idx)},
                                .tokens = idx->shape[1] ? idx->shape[0] : 0,
                                .topk = (int32_t)idx->shape[1],
                                .experts = args->num_experts,
                                .key_experts = each_slot ? 1 : args->num_experts / group->size,
                                .each_slot = each_slot,
                                .node_experts = by_node ? args->num_experts / group->num_nodes : 0,
                                .terms = args->out_terms.data,
                                .terms_pitch = tensor_pitch(&args->out_terms)};
    return step.tokens ? executor_kind_of(step.device.type)->terms(&step) : EXPAR_OK;
}

/* Callers have the group as const; it is only held. */
expar_status expar_ep_find_terms(const expar_group *group, const expar_ep_terms_args *given)
{
    static const char name[] = "expar_ep_find_terms";
    expar_ep_terms_args args;
    if (!group) return group_ended(group, error_set(EXPAR_ERR_NULL, "%s: group is NULL", name));
    if (!group_enter((expar_group *)group, name)) return group_ended(group, EXPAR_ERR_STATE);
    expar_status status = ep_copy_struct("args", &args, sizeof args, given);
    if (status == EXPAR_OK) status = check_terms(group, &args);
    if (status == EXPAR_OK) status = find_terms(group, &args);
    if (status != EXPAR_OK) error_prefix(status, "%s", name);
    group_leave((expar_group *)group);
    return group_ended(group, status);
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

static expar_status check_sum(const expar_ep_sum_args *args)
{
    static const char *const names[] = {"out_y", "bias[0]", "bias[1]"};
    const expar_tensor *const tensors[] = {&args->out_y, &args->bias[0], &args->bias[1]};
    const expar_tensor *x = &args->x, *terms = &args->terms;
    const expar_device device = sum_device_of(x);
    expar_status status = ep_check_rows(device, "x", x, INT64_MAX, false);
    if (status == EXPAR_OK && x->shape[0] > MOST_ROWS)
        status = error_set(EXPAR_ERR_SHAPE, "x has %lld rows; expected less than 2^32", (long long)x->shape[0]);
    if (status == EXPAR_OK)
        status = ep_check_matrix(device, "terms", terms, terms->shape[0], terms->shape[1], EXPAR_I64, EXPAR_I32);
    if (status == EXPAR_OK && terms->shape[1] > INT32_MAX / 2)
        status =
            error_set(EXPAR_ERR_SHAPE, "terms has %lld columns; expected less than 2^30", (long long)terms->shape[1]);
    for (int i = 0; status == EXPAR_OK && i < 3; i++) {
        if (i > 0 && !tensor_given(tensors[i])) continue;
        status = ep_check_matrix(device, names[i], tensors[i], terms->shape[0], x->shape[1], x->dtype, x->dtype);
        if (status == EXPAR_OK) status = ep_check_units(names[i], tensors[i]);
    }
    return status;
}

static expar_status sum_terms(const expar_ep_sum_args *args)
{
    const expar_tensor *x = &args->x, *terms = &args->terms, *bias = args->bias;
    const int64_t element = (int64_t)expar_dtype_bytes(x->dtype);
    const ep_sum_step step = {.device = x->device,
                              .stream = args->stream,
                              .x = x->data,
                              .rows = x->shape[0],
                              .x_pitch_bytes = tensor_pitch(x) * element,
                              .row_bytes = x->shape[1] * element,
                              .terms = terms->data,
                              .term_bytes = (int32_t)expar_dtype_bytes(terms->dtype),
                              .topk = (int32_t)terms->shape[1],
                              .dtype = (int32_t)x->dtype,
                              .terms_pitch = tensor_pitch(terms),
                              .tokens = terms->shape[0],
                              .bias = {bias[0].data, bias[1].data},
                              .bias_pitch_bytes = {tensor_pitch(&bias[0]) * element, tensor_pitch(&bias[1]) * element},
                              .y = args->out_y.data,
                              .y_pitch_bytes = tensor_pitch(&args->out_y) * element};
    return step.tokens ? executor_kind_of(step.device.type)->sum(&step) : EXPAR_OK;
}

expar_status expar_ep_sum_terms(const expar_group *group, const expar_ep_sum_args *given)
{
    static const char name[] = "expar_ep_sum_terms";
    expar_ep_sum_args args;
    if (!group) return group_ended(group, error_set(EXPAR_ERR_NULL, "%s: group is NULL", name));
    if (!group_enter((expar_group *)group, name)) return group_ended(group, EXPAR_ERR_STATE);
    expar_status status = ep_copy_struct("args", &args, sizeof args, given);
    if (status == EXPAR_OK) status = check_sum(&args);
    if (status == EXPAR_OK) status = sum_terms(&args);
    if (status != EXPAR_OK) error_prefix(status, "%s", name);
    group_leave((expar_group *)group);
    return group_ended(group, status);
}

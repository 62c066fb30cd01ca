/* SPDX-License-Identifier: Apache-2.0 */
/* Every wrong argument of expar_ep_route (rejection.h). Rank 1 has T 5, K 3, E 6; the buffer takes 6 tokens. */
#include "ep/harness/rejection.h"

static _Alignas(64) char memory[4096];

static expar_status call_without_args(const rejection_scene *scene)
{
    expar_ep_route_result result = EXPAR_EP_ROUTE_RESULT_INIT;
    return expar_ep_route(scene->stage->ep, NULL, &result);
}

static expar_status call_without_a_result(const rejection_scene *scene)
{
    expar_ep_route_args args = EXPAR_EP_ROUTE_ARGS_INIT;
    return expar_ep_route(scene->stage->ep, &args, NULL);
}

static void idx_of_too_many_slots(expar_ep_route_args *args, const rejection_scene *scene)
{
    (void)scene;
    args->topk_idx.shape[1] = args->topk_idx.strides[0] = 4;
}

static void idx_out_of_range(expar_ep_route_args *args, const rejection_scene *scene)
{
    (void)scene;
    ((int64_t *)args->topk_idx.data)[2 * args->topk_idx.strides[0]] = -2;
}

static void by_hand(expar_ep_route_args *args, int64_t rows)
{
    args->token_in_rank = expar_tensor_2d(memory, EXPAR_U8, rows, 3);
}

static void routes_of_another_t(expar_ep_route_args *args, const rejection_scene *scene)
{
    (void)scene;
    by_hand(args, 4);
}

static void worst_case_by_hand_alone(expar_ep_route_args *args, const rejection_scene *scene)
{
    (void)scene;
    by_hand(args, 5);
    args->topk_idx = EXPAR_TENSOR_NONE;
    args->num_worst_tokens = 9;
}

static void limit_by_hand_alone(expar_ep_route_args *args, const rejection_scene *scene)
{
    (void)scene;
    by_hand(args, 5);
    args->topk_idx = EXPAR_TENSOR_NONE;
    args->num_expert_rows = 9;
}

static void counts_at_odd_address(expar_ep_route_args *args, const rejection_scene *scene)
{
    static expar_ep_recv_counts counts = EXPAR_EP_RECV_COUNTS_INIT;
    (void)scene;
    counts.rank_prefix = (int32_t *)(void *)(memory + 2);
    args->recv_counts = &counts;
}

static void ends_at_odd_address(expar_ep_route_args *args, const rejection_scene *scene)
{
    static expar_ep_recv_counts counts = EXPAR_EP_RECV_COUNTS_INIT;
    (void)scene;
    counts.expert_ends = (int32_t *)(void *)(memory + 2);
    args->recv_counts = &counts;
}

static void counts_of_no_size(expar_ep_route_args *args, const rejection_scene *scene)
{
    static expar_ep_recv_counts counts;
    (void)scene;
    args->recv_counts = &counts;
}

static void negative_counts(expar_ep_route_args *args, const rejection_scene *scene)
{
    static const int32_t counts[6] = {0, 1, 2, 3, -4, 5};
    (void)scene;
    by_hand(args, 5);
    args->topk_idx = EXPAR_TENSOR_NONE;
    args->tokens_per_expert = counts;
}

static void event_that_has_gone(expar_ep_route_args *args, const rejection_scene *scene)
{
    (void)scene;
    args->wait_event = rejection_event_gone();
}

static const rejection_case cases[] = {
    {.name = "call_without_args",
     .status = EXPAR_ERR_NULL,
     .words = {"args"},
     .call = call_without_args,
     .is_route = true},
    {.name = "call_without_a_result",
     .status = EXPAR_ERR_NULL,
     .words = {"result"},
     .call = call_without_a_result,
     .is_route = true},
    REJECTION_SET_ROUTE(idx_absent, topk_idx, 0, EXPAR_ERR_NULL, "topk_idx is not given"),
    REJECTION_SET_ROUTE(idx_of_floats, topk_idx.dtype, EXPAR_F32, EXPAR_ERR_DTYPE, "topk_idx.dtype", "f32"),
    REJECTION_SET_ROUTE(idx_of_too_many_tokens, topk_idx.shape[0], 7, EXPAR_ERR_LIMIT, "topk_idx has 7 tokens",
                        "at most 6", "config.max_tokens"),
    REJECTION_ROUTE(idx_of_too_many_slots, EXPAR_ERR_LIMIT, "topk_idx has 4 slots", "config.max_topk"),
    REJECTION_SET_ROUTE(idx_on_a_gpu, topk_idx.device.type, EXPAR_CUDA, EXPAR_ERR_DEVICE, "topk_idx lies"),
    REJECTION_ROUTE(idx_out_of_range, EXPAR_ERR_INDEX, "topk_idx[2][0] is -2", "0 to 5"),
    REJECTION_SET_ROUTE(experts_that_ranks_do_not_share, num_experts, 7, EXPAR_ERR_ARGUMENT, "num_experts is 7",
                        "3 ranks"),
    REJECTION_SET_ROUTE(too_many_experts, num_experts, 9, EXPAR_ERR_LIMIT, "num_experts is 9", "config.max_experts"),
    REJECTION_SET_ROUTE(negative_alignment, expert_alignment, -1, EXPAR_ERR_ARGUMENT, "expert_alignment is -1"),
    REJECTION_SET_ROUTE(negative_worst_case, num_worst_tokens, -1, EXPAR_ERR_ARGUMENT, "num_worst_tokens is -1"),
    REJECTION_ROUTE(routes_of_another_t, EXPAR_ERR_SHAPE, "token_in_rank has", "[4][3]", "[5][3]"),
    REJECTION_ROUTE(worst_case_by_hand_alone, EXPAR_ERR_NULL, "topk_idx is not given", "num_worst_tokens"),
    REJECTION_SET_ROUTE(negative_limit, num_expert_rows, -1, EXPAR_ERR_ARGUMENT, "num_expert_rows is -1"),
    REJECTION_ROUTE(limit_by_hand_alone, EXPAR_ERR_NULL, "topk_idx is not given", "num_expert_rows"),
    REJECTION_SET_ROUTE(too_many_sms, num_sms, 1025, EXPAR_ERR_ARGUMENT, "num_sms is 1025", "expected 1 to"),
    REJECTION_ROUTE(counts_at_odd_address, EXPAR_ERR_ALIGNMENT, "recv_counts.rank_prefix", "multiple of 4"),
    REJECTION_ROUTE(ends_at_odd_address, EXPAR_ERR_ALIGNMENT, "recv_counts.expert_ends", "multiple of 4"),
    REJECTION_ROUTE(counts_of_no_size, EXPAR_ERR_ARGUMENT, "recv_counts.struct_size is 0", "_INIT"),
    REJECTION_ROUTE(negative_counts, EXPAR_ERR_ARGUMENT, "tokens_per_expert[4] is -4"),
    REJECTION_SET_ROUTE(async_finish_neither, async_finish, 3, EXPAR_ERR_ARGUMENT,
                        "async_finish is 3; expected 0 or 1"),
    REJECTION_SET_ROUTE(keep_slots_neither, keep_slots, -1, EXPAR_ERR_ARGUMENT, "keep_slots is -1; expected 0 or 1"),
    REJECTION_ROUTE(event_that_has_gone, EXPAR_ERR_HANDLE, "wait_event", "is not a living event"),
};

int main(void)
{
    return rejection_run("bad route", cases, sizeof cases / sizeof cases[0]);
}

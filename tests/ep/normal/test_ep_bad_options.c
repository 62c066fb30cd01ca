/* SPDX-License-Identifier: Apache-2.0 */
/* Every wrong argument of the options of dispatch and combine (rejection.h). The traffic: 3 ranks; rank 1 has T 5, rows
 * of 32 bytes, K 3, E 6; the buffer takes one scale a token. */
#include "ep/harness/rejection.h"

#define UNUSED(scene) ((void)(scene))

static _Alignas(64) char memory[4096];

/* ---- rows with scales -------------------------------------------------------------------------------------------- */

static void scales_with_bf16(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    args->x_scales = expar_tensor_2d(memory, EXPAR_F32, 5, 1);
}

/* From here on x is of bytes. */
static void quantised(expar_ep_dispatch_args *args, expar_dtype dtype, int64_t rows, int64_t scales)
{
    args->x.dtype = EXPAR_F8E4M3;
    args->x.shape[1] = args->x.strides[0] = 32;
    args->x_scales = expar_tensor_2d(memory, dtype, rows, scales);
}

static void scales_of_bf16(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    quantised(args, EXPAR_BF16, 5, 1);
}

static void scales_of_another_t(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    quantised(args, EXPAR_F32, 4, 1);
}

static void scales_too_many(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    quantised(args, EXPAR_I32, 5, 2);
}

static void scales_of_no_columns(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    quantised(args, EXPAR_F32, 5, 0);
}

static void scales_without_data(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    quantised(args, EXPAR_F32, 5, 1);
    args->x_scales.data = NULL;
}

static void scales_of_one_dimension(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    quantised(args, EXPAR_F32, 5, 1);
    args->x_scales.ndim = 1;
}

static void scales_at_odd_address(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    quantised(args, EXPAR_F32, 5, 1);
    args->x_scales.data = memory + 2;
}

static void scales_on_a_gpu(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    quantised(args, EXPAR_F32, 5, 1);
    args->x_scales.device.type = EXPAR_CUDA;
}

static void scales_spread_too_far(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    quantised(args, EXPAR_F32, 5, 1);
    args->x_scales.strides[0] = INT64_MAX / 8;
}

/* ---- routing by hand --------------------------------------------------------------------------------------------- */

static void routes(expar_ep_dispatch_args *args, expar_dtype dtype, int64_t rows, int64_t ranks)
{
    args->token_in_rank = expar_tensor_2d(memory, dtype, rows, ranks);
}

static void routes_of_integers(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    routes(args, EXPAR_I32, 5, 3);
}

static void routes_of_another_t(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    routes(args, EXPAR_U8, 6, 3);
}

static void routes_of_another_n(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    routes(args, EXPAR_U8, 5, 4);
}

static void routes_of_spread_ranks(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    routes(args, EXPAR_U8, 5, 3);
    args->token_in_rank.strides[1] = 2;
}

static void routes_without_data(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    routes(args, EXPAR_U8, 5, 3);
    args->token_in_rank.data = NULL;
}

static void routes_on_a_gpu(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    routes(args, EXPAR_U8, 5, 3);
    args->token_in_rank.device.type = EXPAR_CUDA;
}

static void index_out_of_range_by_hand(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    routes(args, EXPAR_U8, 5, 3);
    ((int64_t *)args->topk_idx.data)[4] = 99;
}

/* By hand alone. */
static void without_topk(expar_ep_dispatch_args *args)
{
    routes(args, EXPAR_U8, 5, 3);
    args->topk_idx = args->topk_weights = EXPAR_TENSOR_NONE;
}

static void weights_without_topk(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    routes(args, EXPAR_U8, 5, 3);
    args->topk_idx = EXPAR_TENSOR_NONE;
}

static void worst_case_without_topk(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    without_topk(args);
    args->num_worst_tokens = 9;
}

static void expert_major_without_topk(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    without_topk(args);
    args->expert_major = 1;
}

static void slots_kept_without_topk(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    without_topk(args);
    args->keep_slots = 1;
}

static void copy_without_topk(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    without_topk(args);
    args->topk_idx_copy = expar_tensor_2d(memory, EXPAR_I64, 5, 3);
}

static void copy_of_another_dtype(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    args->topk_idx_copy = expar_tensor_2d(memory, EXPAR_I32, 5, 3);
}

static void copy_of_another_t(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    args->topk_idx_copy = expar_tensor_2d(memory, EXPAR_I64, 4, 3);
}

static void copy_with_gaps(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    args->topk_idx_copy = expar_tensor_2d(memory, EXPAR_I64, 5, 3);
    args->topk_idx_copy.strides[0] = 4;
}

static void copy_on_a_gpu(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    args->topk_idx_copy = expar_tensor_2d(memory, EXPAR_I64, 5, 3);
    args->topk_idx_copy.device.type = EXPAR_CUDA;
}

static void negative_count(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    static const int32_t counts[6] = {0, 0, 0, 0, -3, 0};
    UNUSED(scene);
    without_topk(args);
    args->tokens_per_expert = counts;
}

static void huge_count(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    static const int32_t counts[6] = {0, 1 << 30, 0, 0, 0, 0};
    UNUSED(scene);
    without_topk(args);
    args->tokens_per_expert = counts;
}

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

static void huge_expert_major_worst_case(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    args->num_worst_tokens = 1 << 30;
    args->expert_major = 1;
}

static void huge_alignment(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    args->expert_alignment = 1 << 30;
    args->num_worst_tokens = 3;
    args->expert_major = 1;
}

static void huge_limit(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    args->num_expert_rows = (int64_t)1 << 31;
    args->expert_major = 1;
}

static void out_shorter_than_the_limit(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    args->num_expert_rows = 40;
    args->expert_major = 1;
    args->out_x = expar_tensor_2d(memory, EXPAR_BF16, 39, 16);
}

static void out_shorter_than_the_worst_case(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    args->num_worst_tokens = 40;
    args->out_x = expar_tensor_2d(memory, EXPAR_BF16, 39, 16);
}

static void out_shorter_than_expert_major(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    args->expert_major = 1;
    args->expert_alignment = 64;
    args->out_x = expar_tensor_2d(memory, EXPAR_BF16, 63, 16);
}

static void numbers_at_odd_address(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    without_topk(args);
    args->tokens_per_expert = (const int32_t *)(const void *)(memory + 2);
}

/* ---- with a handle; the others dispatch with theirs -------------------------------------------------------------- */

static void cached(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    args->handle = scene->handle;
    args->topk_idx = args->topk_weights = EXPAR_TENSOR_NONE;
}

static void handle_and_routes(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    cached(args, scene);
    routes(args, EXPAR_U8, 5, 3);
}

static void handle_and_copy(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    cached(args, scene);
    args->topk_idx_copy = expar_tensor_2d(memory, EXPAR_I64, 5, 3);
}

static void handle_and_limit(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    cached(args, scene);
    args->num_expert_rows = 9;
}

static void handle_and_worst_case(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    cached(args, scene);
    args->num_worst_tokens = 9;
}

static void handle_that_is_not_expert_major(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    cached(args, scene);
    args->expert_major = 1;
}

/* ---- combine ----------------------------------------------------------------------------------------------------- */

static void bias_of_another_dtype(expar_ep_combine_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    args->bias[0] = expar_tensor_2d(memory, EXPAR_F32, 5, 16);
}

static void bias_of_another_t(expar_ep_combine_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    args->bias[1] = expar_tensor_2d(memory, EXPAR_BF16, 4, 16);
}

static void bias_of_another_h(expar_ep_combine_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    args->bias[1] = expar_tensor_2d(memory, EXPAR_BF16, 5, 8);
}

static void bias_of_spread_columns(expar_ep_combine_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    args->bias[0] = expar_tensor_2d(memory, EXPAR_BF16, 5, 16);
    args->bias[0].strides[1] = 2;
}

static void bias_without_data(expar_ep_combine_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    args->bias[0] = expar_tensor_2d(NULL, EXPAR_BF16, 5, 16);
}

static void bias_on_a_gpu(expar_ep_combine_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    args->bias[1] = expar_tensor_2d(memory, EXPAR_BF16, 5, 16);
    args->bias[1].device.type = EXPAR_CUDA;
}

static void expert_weights_alone(expar_ep_combine_args *args, const rejection_scene *scene)
{
    args->expert_weights = expar_tensor_2d(memory, EXPAR_F32, scene->traffic->arrivals[REJECTION_RANK].num_rows, 3);
}

static const rejection_case cases[] = {
    REJECTION_DISPATCH(scales_with_bf16, EXPAR_ERR_ARGUMENT, "x_scales", "bf16", "f8e4m3 or i8"),
    REJECTION_DISPATCH(scales_of_bf16, EXPAR_ERR_DTYPE, "x_scales.dtype", "bf16", "f32 or i32"),
    REJECTION_DISPATCH(scales_of_another_t, EXPAR_ERR_SHAPE, "x_scales", "4 rows", "expected 5"),
    REJECTION_DISPATCH(scales_too_many, EXPAR_ERR_LIMIT, "x_scales", "2 scales", "1 to 1 (config.max_scales)"),
    REJECTION_DISPATCH(scales_of_no_columns, EXPAR_ERR_LIMIT, "x_scales", "0 scales", "1 to 1 (config.max_scales)"),
    REJECTION_DISPATCH(scales_without_data, EXPAR_ERR_NULL, "x_scales.data"),
    REJECTION_DISPATCH(scales_of_one_dimension, EXPAR_ERR_SHAPE, "x_scales", "1 dimension", "expected 2"),
    REJECTION_DISPATCH(scales_at_odd_address, EXPAR_ERR_ALIGNMENT, "x_scales.data", "multiple of 4"),
    REJECTION_DISPATCH(scales_spread_too_far, EXPAR_ERR_STRIDE, "x_scales.strides", "1152921504606846975, 1]",
                       "2^63 bytes"),
    REJECTION_DISPATCH(scales_on_a_gpu, EXPAR_ERR_DEVICE, "x_scales", "CPU"),
    REJECTION_DISPATCH(routes_of_integers, EXPAR_ERR_DTYPE, "token_in_rank.dtype", "i32", "u8"),
    REJECTION_DISPATCH(routes_of_another_t, EXPAR_ERR_SHAPE, "token_in_rank", "[6][3]", "[5][3]"),
    REJECTION_DISPATCH(routes_of_another_n, EXPAR_ERR_SHAPE, "token_in_rank", "[5][4]", "[5][3]"),
    REJECTION_DISPATCH(routes_of_spread_ranks, EXPAR_ERR_STRIDE, "token_in_rank.strides[1]", "2", "expected 1"),
    REJECTION_DISPATCH(routes_without_data, EXPAR_ERR_NULL, "token_in_rank.data"),
    REJECTION_DISPATCH(routes_on_a_gpu, EXPAR_ERR_DEVICE, "token_in_rank", "CPU"),
    REJECTION_DISPATCH(index_out_of_range_by_hand, EXPAR_ERR_INDEX, "topk_idx[1][1]", "99", "0 to 5"),
    REJECTION_DISPATCH(weights_without_topk, EXPAR_ERR_NULL, "topk_idx", "topk_weights"),
    REJECTION_DISPATCH(worst_case_without_topk, EXPAR_ERR_NULL, "topk_idx", "num_worst_tokens"),
    REJECTION_DISPATCH(expert_major_without_topk, EXPAR_ERR_NULL, "topk_idx", "expert_major"),
    REJECTION_DISPATCH(slots_kept_without_topk, EXPAR_ERR_NULL, "topk_idx", "keep_slots"),
    REJECTION_DISPATCH(copy_without_topk, EXPAR_ERR_NULL, "topk_idx", "topk_idx_copy"),
    REJECTION_DISPATCH(copy_of_another_dtype, EXPAR_ERR_DTYPE, "topk_idx_copy.dtype is i32", "expected i64"),
    REJECTION_DISPATCH(copy_of_another_t, EXPAR_ERR_SHAPE, "topk_idx_copy has shape [4][3]", "[5][3]"),
    REJECTION_DISPATCH(copy_with_gaps, EXPAR_ERR_STRIDE, "topk_idx_copy.strides[0] is 4", "expected 3"),
    REJECTION_DISPATCH(copy_on_a_gpu, EXPAR_ERR_DEVICE, "topk_idx_copy", "CPU"),
    REJECTION_DISPATCH(negative_count, EXPAR_ERR_ARGUMENT, "tokens_per_expert[4]", "-3"),
    REJECTION_DISPATCH(huge_count, EXPAR_ERR_ARGUMENT, "tokens_per_expert[1]", "1073741824", "357913941"),
    REJECTION_SET_DISPATCH(negative_worst_case, num_worst_tokens, -2, EXPAR_ERR_ARGUMENT, "num_worst_tokens", "-2"),
    REJECTION_SET_DISPATCH(huge_worst_case, num_worst_tokens, (int64_t)1 << 31, EXPAR_ERR_ARGUMENT, "num_worst_tokens",
                           "2147483648", "2^31 - 1"),
    REJECTION_SET_DISPATCH(limit_of_plain_rows, num_expert_rows, 9, EXPAR_ERR_ARGUMENT, "num_expert_rows",
                           "expert_major"),
    REJECTION_SET_DISPATCH(negative_limit, num_expert_rows, -1, EXPAR_ERR_ARGUMENT, "num_expert_rows is -1"),
    REJECTION_DISPATCH(huge_limit, EXPAR_ERR_ARGUMENT, "num_expert_rows is 2147483648", "2^31 - 1"),
    REJECTION_DISPATCH(out_shorter_than_the_limit, EXPAR_ERR_BUFFER_SIZE, "out_x has", "39 rows", "40"),
    REJECTION_DISPATCH(handle_and_limit, EXPAR_ERR_ARGUMENT, "num_expert_rows", "handle"),
    REJECTION_DISPATCH(huge_expert_major_worst_case, EXPAR_ERR_ARGUMENT, "expert-major output", "rows"),
    REJECTION_DISPATCH(huge_alignment, EXPAR_ERR_ARGUMENT, "expert-major output", "rows"),
    REJECTION_DISPATCH(out_shorter_than_the_worst_case, EXPAR_ERR_BUFFER_SIZE, "out_x has", "39 rows", "40"),
    REJECTION_DISPATCH(out_shorter_than_expert_major, EXPAR_ERR_BUFFER_SIZE, "out_x has", "63 rows", "128"),
    REJECTION_DISPATCH(numbers_at_odd_address, EXPAR_ERR_ALIGNMENT, "tokens_per_expert is", "multiple of 4"),
    REJECTION_SET_DISPATCH(too_few_sms, num_sms, -1, EXPAR_ERR_ARGUMENT, "num_sms is -1", "expected 1 to",
                           "0 for the buffer's"),
    REJECTION_SET_COMBINE(too_many_sms, num_sms, 1025, EXPAR_ERR_ARGUMENT, "num_sms is 1025", "expected 1 to",
                          "0 for the buffer's"),
    REJECTION_DISPATCH(handle_and_routes, EXPAR_ERR_ARGUMENT, "token_in_rank", "handle"),
    REJECTION_DISPATCH(handle_and_copy, EXPAR_ERR_ARGUMENT, "topk_idx_copy", "handle"),
    REJECTION_DISPATCH(handle_and_worst_case, EXPAR_ERR_ARGUMENT, "num_worst_tokens", "handle"),
    REJECTION_DISPATCH(handle_that_is_not_expert_major, EXPAR_ERR_HANDLE, "expert_major", "expert-major dispatch"),
    REJECTION_COMBINE(bias_of_another_dtype, EXPAR_ERR_DTYPE, "bias[0].dtype", "f32", "bf16"),
    REJECTION_COMBINE(bias_of_another_t, EXPAR_ERR_SHAPE, "bias[1]", "[4][16]", "[5][16]"),
    REJECTION_COMBINE(bias_of_another_h, EXPAR_ERR_SHAPE, "bias[1]", "[5][8]", "[5][16]"),
    REJECTION_COMBINE(bias_of_spread_columns, EXPAR_ERR_STRIDE, "bias[0].strides[1]", "2", "expected 1"),
    REJECTION_COMBINE(bias_without_data, EXPAR_ERR_NULL, "bias[0].data"),
    REJECTION_COMBINE(bias_on_a_gpu, EXPAR_ERR_DEVICE, "bias[1]", "CPU"),
    REJECTION_SET_COMBINE(quantised_x, x.dtype, EXPAR_I8, EXPAR_ERR_DTYPE, "x.dtype", "i8", "bf16, f16 or f32"),
    REJECTION_SET_COMBINE(expert_major_of_another_handle, expert_major, 1, EXPAR_ERR_HANDLE, "expert_major",
                          "expert-major dispatch"),
    REJECTION_COMBINE(expert_weights_alone, EXPAR_ERR_ARGUMENT, "expert_weights", "expert_major"),
    REJECTION_SET_COMBINE(unknown_sum_order, sum_order, (expar_ep_sum_order)3, EXPAR_ERR_ARGUMENT, "sum_order is 3",
                          "BY_RANK, BY_SLOT or EACH_SLOT"),
    REJECTION_SET_COMBINE(unknown_weights_of, weights_of, (expar_ep_weights_of)-1, EXPAR_ERR_ARGUMENT,
                          "weights_of is -1", "ALL or OWNER"),
    REJECTION_SET_COMBINE(by_slot_with_slots_forgotten, sum_order, EXPAR_EP_SUM_ORDER_BY_SLOT, EXPAR_ERR_HANDLE,
                          "sum_order is BY_SLOT", "slots", "with keep_slots"),
    REJECTION_SET_COMBINE(owners_weights_with_slots_forgotten, weights_of, EXPAR_EP_WEIGHTS_OF_OWNER, EXPAR_ERR_HANDLE,
                          "weights_of is OWNER", "slots", "with keep_slots"),
    REJECTION_SET_COMBINE(no_place_for_the_event, async_finish, 1, EXPAR_ERR_NULL, "result is NULL", "async_finish"),
};

int main(void)
{
    return rejection_run("bad options", cases, sizeof cases / sizeof cases[0]);
}

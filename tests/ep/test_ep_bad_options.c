/* SPDX-License-Identifier: Apache-2.0 */
/* Every wrong argument of the options of dispatch and combine (refusal.h). The traffic: 3 ranks; rank 1 has T 5, rows
 * of 32 bytes, K 3, E 6; the buffer takes one scale a token. */
#include "ep/refusal.h"

#define UNUSED(scene) ((void)(scene))

static _Alignas(64) char memory[4096];

/* ---- rows with scales -------------------------------------------------------------------------------------------- */

static void scales_with_bf16(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    args->x_scales = expar_tensor_2d(memory, EXPAR_F32, 5, 1);
}

/* From here on x is of bytes. */
static void quantised(expar_dispatch_args *args, expar_dtype dtype, int64_t rows, int64_t scales)
{
    args->x.dtype = EXPAR_F8E4M3;
    args->x.shape[1] = args->x.strides[0] = 32;
    args->x_scales = expar_tensor_2d(memory, dtype, rows, scales);
}

static void scales_of_bf16(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    quantised(args, EXPAR_BF16, 5, 1);
}

static void scales_of_another_t(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    quantised(args, EXPAR_F32, 4, 1);
}

static void scales_too_many(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    quantised(args, EXPAR_I32, 5, 2);
}

static void scales_of_no_columns(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    quantised(args, EXPAR_F32, 5, 0);
}

static void scales_without_data(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    quantised(args, EXPAR_F32, 5, 1);
    args->x_scales.data = NULL;
}

static void scales_of_one_dimension(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    quantised(args, EXPAR_F32, 5, 1);
    args->x_scales.ndim = 1;
}

static void scales_at_odd_address(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    quantised(args, EXPAR_F32, 5, 1);
    args->x_scales.data = memory + 2;
}

static void scales_on_a_gpu(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    quantised(args, EXPAR_F32, 5, 1);
    args->x_scales.device.type = EXPAR_CUDA;
}

static void scales_spread_too_far(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    quantised(args, EXPAR_F32, 5, 1);
    args->x_scales.strides[0] = INT64_MAX / 8;
}

/* ---- routing by hand --------------------------------------------------------------------------------------------- */

static void routes(expar_dispatch_args *args, expar_dtype dtype, int64_t rows, int64_t ranks)
{
    args->token_in_rank = expar_tensor_2d(memory, dtype, rows, ranks);
}

static void routes_of_integers(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    routes(args, EXPAR_I32, 5, 3);
}

static void routes_of_another_t(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    routes(args, EXPAR_U8, 6, 3);
}

static void routes_of_another_n(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    routes(args, EXPAR_U8, 5, 4);
}

static void routes_of_spread_ranks(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    routes(args, EXPAR_U8, 5, 3);
    args->token_in_rank.strides[1] = 2;
}

static void routes_without_data(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    routes(args, EXPAR_U8, 5, 3);
    args->token_in_rank.data = NULL;
}

static void routes_on_a_gpu(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    routes(args, EXPAR_U8, 5, 3);
    args->token_in_rank.device.type = EXPAR_CUDA;
}

static void index_out_of_range_by_hand(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    routes(args, EXPAR_U8, 5, 3);
    ((int64_t *)args->topk_idx.data)[4] = 99;
}

/* By hand alone. */
static void without_topk(expar_dispatch_args *args)
{
    routes(args, EXPAR_U8, 5, 3);
    args->topk_idx = args->topk_weights = EXPAR_TENSOR_NONE;
}

static void weights_without_topk(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    routes(args, EXPAR_U8, 5, 3);
    args->topk_idx = EXPAR_TENSOR_NONE;
}

static void worst_case_without_topk(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    without_topk(args);
    args->num_worst_tokens = 9;
}

static void expert_major_without_topk(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    without_topk(args);
    args->expert_major = 1;
}

static void slots_kept_without_topk(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    without_topk(args);
    args->keep_slots = 1;
}

static void copy_without_topk(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    without_topk(args);
    args->topk_idx_copy = expar_tensor_2d(memory, EXPAR_I64, 5, 3);
}

static void copy_of_another_dtype(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    args->topk_idx_copy = expar_tensor_2d(memory, EXPAR_I32, 5, 3);
}

static void copy_of_another_t(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    args->topk_idx_copy = expar_tensor_2d(memory, EXPAR_I64, 4, 3);
}

static void copy_with_gaps(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    args->topk_idx_copy = expar_tensor_2d(memory, EXPAR_I64, 5, 3);
    args->topk_idx_copy.strides[0] = 4;
}

static void copy_on_a_gpu(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    args->topk_idx_copy = expar_tensor_2d(memory, EXPAR_I64, 5, 3);
    args->topk_idx_copy.device.type = EXPAR_CUDA;
}

static void negative_count(expar_dispatch_args *args, const refusal_scene *scene)
{
    static const int32_t counts[6] = {0, 0, 0, 0, -3, 0};
    UNUSED(scene);
    without_topk(args);
    args->tokens_per_expert = counts;
}

static void huge_count(expar_dispatch_args *args, const refusal_scene *scene)
{
    static const int32_t counts[6] = {0, 1 << 30, 0, 0, 0, 0};
    UNUSED(scene);
    without_topk(args);
    args->tokens_per_expert = counts;
}

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

static void negative_worst_case(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    args->num_worst_tokens = -2;
}

static void huge_worst_case(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    args->num_worst_tokens = (int64_t)1 << 31;
}

static void huge_expert_major_worst_case(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    args->num_worst_tokens = 1 << 30;
    args->expert_major = 1;
}

static void huge_alignment(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    args->expert_alignment = 1 << 30;
    args->num_worst_tokens = 3;
    args->expert_major = 1;
}

static void out_shorter_than_the_worst_case(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    args->num_worst_tokens = 40;
    args->out_x = expar_tensor_2d(memory, EXPAR_BF16, 39, 16);
}

static void out_shorter_than_expert_major(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    args->expert_major = 1;
    args->expert_alignment = 64;
    args->out_x = expar_tensor_2d(memory, EXPAR_BF16, 63, 16);
}

/* ---- counts ------------------------------------------------------------------------------------------------------ */

/* Outputs of the caller's; the others ask for none. */
static void own_idx_of_another_dtype(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    args->out_topk_idx = expar_tensor_2d(memory, EXPAR_I32, 40, 3);
}

static void own_idx_of_another_k(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    args->out_topk_idx = expar_tensor_2d(memory, EXPAR_I64, 40, 2);
}

static void own_idx_too_short(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    args->num_worst_tokens = 30;
    args->out_topk_idx = expar_tensor_2d(memory, EXPAR_I64, 29, 3);
}

static void own_idx_on_a_gpu(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    args->out_topk_idx = expar_tensor_2d(memory, EXPAR_I64, 40, 3);
    args->out_topk_idx.device.type = EXPAR_CUDA;
}

static void own_idx_for_the_direct_path(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    args->num_worst_tokens = 30;
    args->path = EXPAR_PATH_DIRECT;
    args->out_topk_idx = expar_tensor_2d(memory, EXPAR_I64, 40, 3);
}

static void own_weights_with_gaps(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    args->out_topk_weights = expar_tensor_2d(memory, EXPAR_F32, 40, 3);
    args->out_topk_weights.strides[0] = 4;
}

static void own_weights_at_odd_address(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    args->out_topk_weights = expar_tensor_2d(memory + 2, EXPAR_F32, 40, 3);
}

static void own_scales_without_scales(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    args->out_scales = expar_tensor_2d(memory, EXPAR_F32, 40, 1);
}

static void own_map_of_token_major_rows(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    args->out_row_map = expar_tensor_2d(memory, EXPAR_I32, 40, 3);
}

static void own_sources(expar_dispatch_args *args, expar_dtype dtype)
{
    args->out_src_token = expar_tensor_1d(memory, dtype, 40);
}

static void row_weights_of_tokens(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    args->row_weights = 1;
}

static void row_weights_without_weights(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    args->expert_major = 1;
    args->out_row_weights = expar_tensor_1d(memory, EXPAR_F32, 200);
    args->topk_weights = EXPAR_TENSOR_NONE;
}

static void add_own_row_weights(expar_dispatch_args *args, expar_dtype dtype, int64_t rows)
{
    args->expert_major = 1;
    args->num_worst_tokens = 30;
    args->out_row_weights = expar_tensor_1d(memory, dtype, rows);
}

static void own_row_weights_of_integers(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    add_own_row_weights(args, EXPAR_I32, 90);
}

static void own_row_weights_with_gaps(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    add_own_row_weights(args, EXPAR_F32, 90);
    args->out_row_weights.strides[0] = 2;
}

static void own_row_weights_too_short(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    add_own_row_weights(args, EXPAR_F32, 89);
}

static void column_scales_of_bf16(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    args->column_scales = 1;
}

/* From here on the caller's own, of one scale a token. */
static void turned(expar_dispatch_args *args, expar_dtype dtype, int64_t columns)
{
    quantised(args, EXPAR_F32, 5, 1);
    args->column_scales = 1;
    args->out_scales = expar_tensor_2d(memory, dtype, 40, columns);
    args->out_scales.strides[0] = 1;
    args->out_scales.strides[1] = 40;
}

static void own_columns_of_another_dtype(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    turned(args, EXPAR_I32, 1);
}

static void own_columns_too_many(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    turned(args, EXPAR_F32, 2);
}

static void own_columns_with_gaps(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    turned(args, EXPAR_F32, 1);
    args->out_scales.strides[0] = 2;
}

static void own_columns_at_8_bytes(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    turned(args, EXPAR_F32, 1);
    args->out_scales.data = memory + 8;
}

static void negative_stride(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    args->src_stride = -1;
}

static void stride_beyond_31_bits(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    args->src_stride = INT32_MAX / 3 + 1;
}

static void stride_of_fewer_tokens(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    args->src_stride = 4;
}

static void own_metadata_without_a_stride(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    args->out_src_metadata = expar_tensor_2d(memory, EXPAR_I32, 40, 5);
}

static void own_metadata_too_narrow(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    args->src_stride = 5;
    args->out_src_metadata = expar_tensor_2d(memory, EXPAR_I32, 40, 3);
}

static void own_sources_of_two_dimensions(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    args->out_src_token = expar_tensor_2d(memory, EXPAR_I32, 40, 1);
}

static void own_sources_of_long_integers(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    own_sources(args, EXPAR_I64);
}

static void own_sources_with_gaps(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    own_sources(args, EXPAR_I32);
    args->out_src_token.strides[0] = 2;
}

static void own_sources_on_a_gpu(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    own_sources(args, EXPAR_I32);
    args->out_src_token.device.type = EXPAR_CUDA;
}

static void own_sources_too_short(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    args->num_worst_tokens = 41;
    own_sources(args, EXPAR_I32);
}

static void numbers_at_odd_address(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    without_topk(args);
    args->tokens_per_expert = (const int32_t *)(const void *)(memory + 2);
}

static void too_few_sms(expar_dispatch_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    args->num_sms = -1;
}

static void too_many_sms(expar_combine_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    args->num_sms = 1025;
}

static void counts_at_odd_address(expar_dispatch_args *args, const refusal_scene *scene)
{
    static expar_recv_counts counts = EXPAR_RECV_COUNTS_INIT;
    UNUSED(scene);
    counts.num_recv_tokens = (int64_t *)(void *)(memory + 4);
    args->recv_counts = &counts;
}

static void counts_of_no_size(expar_dispatch_args *args, const refusal_scene *scene)
{
    static expar_recv_counts counts;
    UNUSED(scene);
    args->recv_counts = &counts;
}

/* ---- with a handle; the others dispatch with theirs -------------------------------------------------------------- */

static void cached(expar_dispatch_args *args, const refusal_scene *scene)
{
    args->handle = scene->handle;
    args->topk_idx = args->topk_weights = EXPAR_TENSOR_NONE;
}

static void handle_and_routes(expar_dispatch_args *args, const refusal_scene *scene)
{
    cached(args, scene);
    routes(args, EXPAR_U8, 5, 3);
}

static void handle_and_copy(expar_dispatch_args *args, const refusal_scene *scene)
{
    cached(args, scene);
    args->topk_idx_copy = expar_tensor_2d(memory, EXPAR_I64, 5, 3);
}

static void handle_and_worst_case(expar_dispatch_args *args, const refusal_scene *scene)
{
    cached(args, scene);
    args->num_worst_tokens = 9;
}

static void handle_that_is_not_expert_major(expar_dispatch_args *args, const refusal_scene *scene)
{
    cached(args, scene);
    args->expert_major = 1;
}

/* ---- combine ----------------------------------------------------------------------------------------------------- */

static void bias_of_another_dtype(expar_combine_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    args->bias[0] = expar_tensor_2d(memory, EXPAR_F32, 5, 16);
}

static void bias_of_another_t(expar_combine_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    args->bias[1] = expar_tensor_2d(memory, EXPAR_BF16, 4, 16);
}

static void bias_of_another_h(expar_combine_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    args->bias[1] = expar_tensor_2d(memory, EXPAR_BF16, 5, 8);
}

static void bias_of_spread_columns(expar_combine_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    args->bias[0] = expar_tensor_2d(memory, EXPAR_BF16, 5, 16);
    args->bias[0].strides[1] = 2;
}

static void bias_without_data(expar_combine_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    args->bias[0] = expar_tensor_2d(NULL, EXPAR_BF16, 5, 16);
}

static void bias_on_a_gpu(expar_combine_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    args->bias[1] = expar_tensor_2d(memory, EXPAR_BF16, 5, 16);
    args->bias[1].device.type = EXPAR_CUDA;
}

static void quantised_x(expar_combine_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    args->x.dtype = EXPAR_I8;
}

static void expert_major_of_another_handle(expar_combine_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    args->expert_major = 1;
}

static void expert_weights_alone(expar_combine_args *args, const refusal_scene *scene)
{
    args->expert_weights = expar_tensor_2d(memory, EXPAR_F32, scene->traffic->arrivals[REFUSAL_RANK].num_rows, 3);
}

static void unknown_sum_order(expar_combine_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    args->sum_order = (expar_sum_order)3;
}

static void unknown_weights_of(expar_combine_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    args->weights_of = (expar_weights_of)-1;
}

static void by_slot_with_slots_forgotten(expar_combine_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    args->sum_order = EXPAR_SUM_BY_SLOT;
}

static void owners_weights_with_slots_forgotten(expar_combine_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    args->weights_of = EXPAR_WEIGHTS_OF_OWNER;
}

static void no_place_for_the_event(expar_combine_args *args, const refusal_scene *scene)
{
    UNUSED(scene);
    args->async_finish = 1;
}

#define DISPATCH(function, expected, ...)                                                                              \
    {                                                                                                                  \
        .name = #function, .status = expected, .words = {__VA_ARGS__}, .spoil_dispatch = function                      \
    }
#define COMBINE(function, expected, ...)                                                                               \
    {                                                                                                                  \
        .name = #function, .status = expected, .words = {__VA_ARGS__}, .spoil_combine = function                       \
    }

static const refusal_case cases[] = {
    DISPATCH(scales_with_bf16, EXPAR_ERR_ARGUMENT, "x_scales", "bf16", "f8e4m3 or i8"),
    DISPATCH(scales_of_bf16, EXPAR_ERR_DTYPE, "x_scales.dtype", "bf16", "f32 or i32"),
    DISPATCH(scales_of_another_t, EXPAR_ERR_SHAPE, "x_scales", "4 rows", "expected 5"),
    DISPATCH(scales_too_many, EXPAR_ERR_LIMIT, "x_scales", "2 scales", "1 to 1 (config.max_scales)"),
    DISPATCH(scales_of_no_columns, EXPAR_ERR_LIMIT, "x_scales", "0 scales", "1 to 1 (config.max_scales)"),
    DISPATCH(scales_without_data, EXPAR_ERR_NULL, "x_scales.data"),
    DISPATCH(scales_of_one_dimension, EXPAR_ERR_SHAPE, "x_scales", "1 dimension", "expected 2"),
    DISPATCH(scales_at_odd_address, EXPAR_ERR_ALIGNMENT, "x_scales.data", "multiple of 4"),
    DISPATCH(scales_spread_too_far, EXPAR_ERR_STRIDE, "x_scales.strides", "1152921504606846975, 1]", "2^63 bytes"),
    DISPATCH(scales_on_a_gpu, EXPAR_ERR_DEVICE, "x_scales", "CPU"),
    DISPATCH(routes_of_integers, EXPAR_ERR_DTYPE, "token_in_rank.dtype", "i32", "u8"),
    DISPATCH(routes_of_another_t, EXPAR_ERR_SHAPE, "token_in_rank", "[6][3]", "[5][3]"),
    DISPATCH(routes_of_another_n, EXPAR_ERR_SHAPE, "token_in_rank", "[5][4]", "[5][3]"),
    DISPATCH(routes_of_spread_ranks, EXPAR_ERR_STRIDE, "token_in_rank.strides[1]", "2", "expected 1"),
    DISPATCH(routes_without_data, EXPAR_ERR_NULL, "token_in_rank.data"),
    DISPATCH(routes_on_a_gpu, EXPAR_ERR_DEVICE, "token_in_rank", "CPU"),
    DISPATCH(index_out_of_range_by_hand, EXPAR_ERR_INDEX, "topk_idx[1][1]", "99", "0 to 5"),
    DISPATCH(weights_without_topk, EXPAR_ERR_NULL, "topk_idx", "topk_weights"),
    DISPATCH(worst_case_without_topk, EXPAR_ERR_NULL, "topk_idx", "num_worst_tokens"),
    DISPATCH(expert_major_without_topk, EXPAR_ERR_NULL, "topk_idx", "expert_major"),
    DISPATCH(slots_kept_without_topk, EXPAR_ERR_NULL, "topk_idx", "keep_slots"),
    DISPATCH(copy_without_topk, EXPAR_ERR_NULL, "topk_idx", "topk_idx_copy"),
    DISPATCH(copy_of_another_dtype, EXPAR_ERR_DTYPE, "topk_idx_copy.dtype is i32", "expected i64"),
    DISPATCH(copy_of_another_t, EXPAR_ERR_SHAPE, "topk_idx_copy has shape [4][3]", "[5][3]"),
    DISPATCH(copy_with_gaps, EXPAR_ERR_STRIDE, "topk_idx_copy.strides[0] is 4", "expected 3"),
    DISPATCH(copy_on_a_gpu, EXPAR_ERR_DEVICE, "topk_idx_copy", "CPU"),
    DISPATCH(negative_count, EXPAR_ERR_ARGUMENT, "tokens_per_expert[4]", "-3"),
    DISPATCH(huge_count, EXPAR_ERR_ARGUMENT, "tokens_per_expert[1]", "1073741824", "357913941"),
    DISPATCH(negative_worst_case, EXPAR_ERR_ARGUMENT, "num_worst_tokens", "-2"),
    DISPATCH(huge_worst_case, EXPAR_ERR_ARGUMENT, "num_worst_tokens", "2147483648", "2^31 - 1"),
    DISPATCH(huge_expert_major_worst_case, EXPAR_ERR_ARGUMENT, "expert-major output", "rows"),
    DISPATCH(huge_alignment, EXPAR_ERR_ARGUMENT, "expert-major output", "rows"),
    DISPATCH(out_shorter_than_the_worst_case, EXPAR_ERR_BUFFER_SIZE, "out_x has", "39 rows", "40"),
    DISPATCH(out_shorter_than_expert_major, EXPAR_ERR_BUFFER_SIZE, "out_x has", "63 rows", "128"),
    DISPATCH(own_idx_of_another_dtype, EXPAR_ERR_DTYPE, "out_topk_idx.dtype is i32", "expected i64"),
    DISPATCH(own_idx_of_another_k, EXPAR_ERR_SHAPE, "out_topk_idx has shape [40][2]", "[40][3]"),
    DISPATCH(own_idx_too_short, EXPAR_ERR_BUFFER_SIZE, "out_topk_idx has 29 rows", "30 are received"),
    DISPATCH(own_idx_on_a_gpu, EXPAR_ERR_DEVICE, "out_topk_idx lies"),
    DISPATCH(own_idx_for_the_direct_path, EXPAR_ERR_ADDRESS, "out_topk_idx.data", "not in the symmetric heap"),
    DISPATCH(own_weights_with_gaps, EXPAR_ERR_STRIDE, "out_topk_weights.strides[0] is 4", "expected 3"),
    DISPATCH(own_weights_at_odd_address, EXPAR_ERR_ALIGNMENT, "out_topk_weights.data", "multiple of 4"),
    DISPATCH(own_scales_without_scales, EXPAR_ERR_ARGUMENT, "out_scales is given without x_scales"),
    DISPATCH(own_map_of_token_major_rows, EXPAR_ERR_ARGUMENT, "out_row_map is given without expert_major"),
    DISPATCH(row_weights_of_tokens, EXPAR_ERR_ARGUMENT, "row_weights is given without expert_major"),
    DISPATCH(row_weights_without_weights, EXPAR_ERR_ARGUMENT, "out_row_weights is given without topk_weights"),
    DISPATCH(own_row_weights_of_integers, EXPAR_ERR_DTYPE, "out_row_weights.dtype is i32", "expected f32"),
    DISPATCH(own_row_weights_with_gaps, EXPAR_ERR_STRIDE, "out_row_weights.strides[0] is 2"),
    DISPATCH(own_row_weights_too_short, EXPAR_ERR_BUFFER_SIZE, "out_row_weights has 89 rows", "90 are received"),
    DISPATCH(column_scales_of_bf16, EXPAR_ERR_ARGUMENT, "column_scales is given without x_scales"),
    DISPATCH(own_columns_of_another_dtype, EXPAR_ERR_DTYPE, "out_scales.dtype is i32", "expected f32"),
    DISPATCH(own_columns_too_many, EXPAR_ERR_SHAPE, "out_scales has 2 columns; expected 1"),
    DISPATCH(own_columns_with_gaps, EXPAR_ERR_STRIDE, "out_scales has strides (2, 40)", "column_scales"),
    DISPATCH(own_columns_at_8_bytes, EXPAR_ERR_ALIGNMENT, "out_scales.data"),
    DISPATCH(negative_stride, EXPAR_ERR_ARGUMENT, "src_stride is -1; expected 0 (none) to"),
    DISPATCH(stride_beyond_31_bits, EXPAR_ERR_ARGUMENT, "src_stride is 715827883", "to 715827882"),
    DISPATCH(stride_of_fewer_tokens, EXPAR_ERR_ARGUMENT, "src_stride is 4; expected at least the 5 tokens of x"),
    DISPATCH(own_metadata_without_a_stride, EXPAR_ERR_ARGUMENT, "out_src_metadata is given without src_stride"),
    DISPATCH(own_metadata_too_narrow, EXPAR_ERR_SHAPE, "out_src_metadata has"),
    DISPATCH(own_sources_of_two_dimensions, EXPAR_ERR_SHAPE, "out_src_token has 2 dimensions"),
    DISPATCH(own_sources_of_long_integers, EXPAR_ERR_DTYPE, "out_src_token.dtype is i64", "expected i32"),
    DISPATCH(own_sources_with_gaps, EXPAR_ERR_STRIDE, "out_src_token.strides[0] is 2"),
    DISPATCH(own_sources_on_a_gpu, EXPAR_ERR_DEVICE, "out_src_token lies"),
    DISPATCH(own_sources_too_short, EXPAR_ERR_BUFFER_SIZE, "out_src_token has 40 rows", "41 are received"),
    DISPATCH(numbers_at_odd_address, EXPAR_ERR_ALIGNMENT, "tokens_per_expert is", "multiple of 4"),
    DISPATCH(too_few_sms, EXPAR_ERR_ARGUMENT, "num_sms is -1", "expected 1 to", "0 for the buffer's"),
    COMBINE(too_many_sms, EXPAR_ERR_ARGUMENT, "num_sms is 1025", "expected 1 to", "0 for the buffer's"),
    DISPATCH(counts_at_odd_address, EXPAR_ERR_ALIGNMENT, "recv_counts.num_recv_tokens", "multiple of 8"),
    DISPATCH(counts_of_no_size, EXPAR_ERR_ARGUMENT, "recv_counts.struct_size is 0", "_INIT"),
    DISPATCH(handle_and_routes, EXPAR_ERR_ARGUMENT, "token_in_rank", "handle"),
    DISPATCH(handle_and_copy, EXPAR_ERR_ARGUMENT, "topk_idx_copy", "handle"),
    DISPATCH(handle_and_worst_case, EXPAR_ERR_ARGUMENT, "num_worst_tokens", "handle"),
    DISPATCH(handle_that_is_not_expert_major, EXPAR_ERR_HANDLE, "expert_major", "expert-major dispatch"),
    COMBINE(bias_of_another_dtype, EXPAR_ERR_DTYPE, "bias[0].dtype", "f32", "bf16"),
    COMBINE(bias_of_another_t, EXPAR_ERR_SHAPE, "bias[1]", "[4][16]", "[5][16]"),
    COMBINE(bias_of_another_h, EXPAR_ERR_SHAPE, "bias[1]", "[5][8]", "[5][16]"),
    COMBINE(bias_of_spread_columns, EXPAR_ERR_STRIDE, "bias[0].strides[1]", "2", "expected 1"),
    COMBINE(bias_without_data, EXPAR_ERR_NULL, "bias[0].data"),
    COMBINE(bias_on_a_gpu, EXPAR_ERR_DEVICE, "bias[1]", "CPU"),
    COMBINE(quantised_x, EXPAR_ERR_DTYPE, "x.dtype", "i8", "bf16, f16 or f32"),
    COMBINE(expert_major_of_another_handle, EXPAR_ERR_HANDLE, "expert_major", "expert-major dispatch"),
    COMBINE(expert_weights_alone, EXPAR_ERR_ARGUMENT, "expert_weights", "expert_major"),
    COMBINE(unknown_sum_order, EXPAR_ERR_ARGUMENT, "sum_order is 3", "0 (by rank), 1 (by slot) or 2 (each slot)"),
    COMBINE(unknown_weights_of, EXPAR_ERR_ARGUMENT, "weights_of is -1", "0 (all ranks) or 1 (the owner)"),
    COMBINE(by_slot_with_slots_forgotten, EXPAR_ERR_HANDLE, "sum_order is 1", "slots", "with keep_slots"),
    COMBINE(owners_weights_with_slots_forgotten, EXPAR_ERR_HANDLE, "weights_of is 1", "slots", "with keep_slots"),
    COMBINE(no_place_for_the_event, EXPAR_ERR_NULL, "event", "async_finish"),
};

int main(void)
{
    return refusal_run("bad options", cases, sizeof cases / sizeof cases[0]);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Every wrong output of the caller's in a dispatch, and what asks for outputs (rejection.h); the others ask for none.
 * The traffic is that of test_ep_bad_options.c. */
#include "ep/harness/rejection.h"

#define UNUSED(scene) ((void)(scene))

static _Alignas(64) char memory[4096];

static void own_idx_of_another_dtype(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    args->out_topk_idx = expar_tensor_2d(memory, EXPAR_I32, 40, 3);
}

static void own_idx_of_another_k(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    args->out_topk_idx = expar_tensor_2d(memory, EXPAR_I64, 40, 2);
}

static void own_idx_too_short(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    args->num_worst_tokens = 30;
    args->out_topk_idx = expar_tensor_2d(memory, EXPAR_I64, 29, 3);
}

static void own_idx_on_a_gpu(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    args->out_topk_idx = expar_tensor_2d(memory, EXPAR_I64, 40, 3);
    args->out_topk_idx.device.type = EXPAR_CUDA;
}

static void own_idx_for_the_direct_path(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    args->num_worst_tokens = 30;
    args->path = EXPAR_EP_PATH_DIRECT;
    args->out_topk_idx = expar_tensor_2d(memory, EXPAR_I64, 40, 3);
}

static void own_weights_with_gaps(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    args->out_topk_weights = expar_tensor_2d(memory, EXPAR_F32, 40, 3);
    args->out_topk_weights.strides[0] = 4;
}

static void own_weights_at_odd_address(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    args->out_topk_weights = expar_tensor_2d(memory + 2, EXPAR_F32, 40, 3);
}

static void own_scales_without_scales(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    args->out_scales = expar_tensor_2d(memory, EXPAR_F32, 40, 1);
}

static void own_map_of_token_major_rows(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    args->out_row_map = expar_tensor_2d(memory, EXPAR_I32, 40, 3);
}

static void own_sources(expar_ep_dispatch_args *args, expar_dtype dtype)
{
    args->out_src_token = expar_tensor_1d(memory, dtype, 40);
}

static void row_weights_without_weights(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    args->expert_major = 1;
    args->out_row_weights = expar_tensor_1d(memory, EXPAR_F32, 200);
    args->topk_weights = EXPAR_TENSOR_NONE;
}

static void add_own_row_weights(expar_ep_dispatch_args *args, expar_dtype dtype, int64_t rows)
{
    args->expert_major = 1;
    args->num_worst_tokens = 30;
    args->out_row_weights = expar_tensor_1d(memory, dtype, rows);
}

static void own_row_weights_of_integers(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    add_own_row_weights(args, EXPAR_I32, 90);
}

static void own_row_weights_with_gaps(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    add_own_row_weights(args, EXPAR_F32, 90);
    args->out_row_weights.strides[0] = 2;
}

static void own_row_weights_too_short(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    add_own_row_weights(args, EXPAR_F32, 89);
}

/* From here on the caller's own, of one scale a token. */
static void turned(expar_ep_dispatch_args *args, expar_dtype dtype, int64_t columns)
{
    args->x.dtype = EXPAR_F8E4M3;
    args->x.shape[1] = args->x.strides[0] = 32;
    args->x_scales = expar_tensor_2d(memory, EXPAR_F32, 5, 1);
    args->column_scales = 1;
    args->out_scales = expar_tensor_2d(memory, dtype, 40, columns);
    args->out_scales.strides[0] = 1;
    args->out_scales.strides[1] = 40;
}

static void own_columns_of_another_dtype(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    turned(args, EXPAR_I32, 1);
}

static void own_columns_too_many(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    turned(args, EXPAR_F32, 2);
}

static void own_columns_with_gaps(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    turned(args, EXPAR_F32, 1);
    args->out_scales.strides[0] = 2;
}

static void own_columns_at_8_bytes(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    turned(args, EXPAR_F32, 1);
    args->out_scales.data = memory + 8;
}

static void own_metadata_without_a_stride(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    args->out_src_metadata = expar_tensor_2d(memory, EXPAR_I32, 40, 5);
}

static void own_metadata_too_narrow(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    args->src_stride = 5;
    args->out_src_metadata = expar_tensor_2d(memory, EXPAR_I32, 40, 3);
}

static void own_sources_of_two_dimensions(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    args->out_src_token = expar_tensor_2d(memory, EXPAR_I32, 40, 1);
}

static void own_sources_of_long_integers(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    own_sources(args, EXPAR_I64);
}

static void own_sources_with_gaps(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    own_sources(args, EXPAR_I32);
    args->out_src_token.strides[0] = 2;
}

static void own_sources_on_a_gpu(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    own_sources(args, EXPAR_I32);
    args->out_src_token.device.type = EXPAR_CUDA;
}

static void own_sources_too_short(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    UNUSED(scene);
    args->num_worst_tokens = 41;
    own_sources(args, EXPAR_I32);
}

static void counts_at_odd_address(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    static expar_ep_recv_counts counts = EXPAR_EP_RECV_COUNTS_INIT;
    UNUSED(scene);
    counts.num_recv_tokens = (int64_t *)(void *)(memory + 4);
    args->recv_counts = &counts;
}

static void counts_of_no_size(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    static expar_ep_recv_counts counts;
    UNUSED(scene);
    args->recv_counts = &counts;
}

static const rejection_case cases[] = {
    REJECTION_DISPATCH(own_idx_of_another_dtype, EXPAR_ERR_DTYPE, "out_topk_idx.dtype is i32", "expected i64"),
    REJECTION_DISPATCH(own_idx_of_another_k, EXPAR_ERR_SHAPE, "out_topk_idx has shape [40][2]", "[40][3]"),
    REJECTION_DISPATCH(own_idx_too_short, EXPAR_ERR_BUFFER_SIZE, "out_topk_idx has 29 rows", "30 are received"),
    REJECTION_DISPATCH(own_idx_on_a_gpu, EXPAR_ERR_DEVICE, "out_topk_idx lies"),
    REJECTION_DISPATCH(own_idx_for_the_direct_path, EXPAR_ERR_ADDRESS, "out_topk_idx.data",
                       "not in the symmetric heap"),
    REJECTION_DISPATCH(own_weights_with_gaps, EXPAR_ERR_STRIDE, "out_topk_weights.strides[0] is 4", "expected 3"),
    REJECTION_DISPATCH(own_weights_at_odd_address, EXPAR_ERR_ALIGNMENT, "out_topk_weights.data", "multiple of 4"),
    REJECTION_DISPATCH(own_scales_without_scales, EXPAR_ERR_ARGUMENT, "out_scales is given without x_scales"),
    REJECTION_DISPATCH(own_map_of_token_major_rows, EXPAR_ERR_ARGUMENT, "out_row_map is given without expert_major"),
    REJECTION_SET_DISPATCH(row_weights_of_tokens, row_weights, 1, EXPAR_ERR_ARGUMENT,
                           "row_weights is given without expert_major"),
    REJECTION_DISPATCH(row_weights_without_weights, EXPAR_ERR_ARGUMENT,
                       "out_row_weights is given without topk_weights"),
    REJECTION_DISPATCH(own_row_weights_of_integers, EXPAR_ERR_DTYPE, "out_row_weights.dtype is i32", "expected f32"),
    REJECTION_DISPATCH(own_row_weights_with_gaps, EXPAR_ERR_STRIDE, "out_row_weights.strides[0] is 2"),
    REJECTION_DISPATCH(own_row_weights_too_short, EXPAR_ERR_BUFFER_SIZE, "out_row_weights has 89 rows",
                       "90 are received"),
    REJECTION_SET_DISPATCH(column_scales_of_bf16, column_scales, 1, EXPAR_ERR_ARGUMENT,
                           "column_scales is given without x_scales"),
    REJECTION_DISPATCH(own_columns_of_another_dtype, EXPAR_ERR_DTYPE, "out_scales.dtype is i32", "expected f32"),
    REJECTION_DISPATCH(own_columns_too_many, EXPAR_ERR_SHAPE, "out_scales has 2 columns; expected 1"),
    REJECTION_DISPATCH(own_columns_with_gaps, EXPAR_ERR_STRIDE, "out_scales has strides (2, 40)", "column_scales"),
    REJECTION_DISPATCH(own_columns_at_8_bytes, EXPAR_ERR_ALIGNMENT, "out_scales.data"),
    REJECTION_SET_DISPATCH(negative_stride, src_stride, -1, EXPAR_ERR_ARGUMENT,
                           "src_stride is -1; expected 0 (none) to"),
    REJECTION_SET_DISPATCH(stride_beyond_31_bits, src_stride, INT32_MAX / 3 + 1, EXPAR_ERR_ARGUMENT,
                           "src_stride is 715827883", "to 715827882"),
    REJECTION_SET_DISPATCH(stride_of_fewer_tokens, src_stride, 4, EXPAR_ERR_ARGUMENT,
                           "src_stride is 4; expected at least the 5 tokens of x"),
    REJECTION_DISPATCH(own_metadata_without_a_stride, EXPAR_ERR_ARGUMENT,
                       "out_src_metadata is given without src_stride"),
    REJECTION_DISPATCH(own_metadata_too_narrow, EXPAR_ERR_SHAPE, "out_src_metadata has"),
    REJECTION_DISPATCH(own_sources_of_two_dimensions, EXPAR_ERR_SHAPE, "out_src_token has 2 dimensions"),
    REJECTION_DISPATCH(own_sources_of_long_integers, EXPAR_ERR_DTYPE, "out_src_token.dtype is i64", "expected i32"),
    REJECTION_DISPATCH(own_sources_with_gaps, EXPAR_ERR_STRIDE, "out_src_token.strides[0] is 2"),
    REJECTION_DISPATCH(own_sources_on_a_gpu, EXPAR_ERR_DEVICE, "out_src_token lies"),
    REJECTION_DISPATCH(own_sources_too_short, EXPAR_ERR_BUFFER_SIZE, "out_src_token has 40 rows", "41 are received"),
    REJECTION_DISPATCH(counts_at_odd_address, EXPAR_ERR_ALIGNMENT, "recv_counts.num_recv_tokens", "multiple of 8"),
    REJECTION_DISPATCH(counts_of_no_size, EXPAR_ERR_ARGUMENT, "recv_counts.struct_size is 0", "_INIT"),
};

int main(void)
{
    return rejection_run("bad outputs", cases, sizeof cases / sizeof cases[0]);
}

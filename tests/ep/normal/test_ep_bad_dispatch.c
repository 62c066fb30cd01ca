/* SPDX-License-Identifier: Apache-2.0 */
/* Every wrong argument of expar_ep_dispatch (rejection.h). The traffic: 3 ranks; rank 1 has T 5, H 16 (bf16), K 3, E 6.
 * The buffer was made for T 6 and for exactly these K, E and rows. */
#include "ep/harness/rejection.h"
#include <string.h>

/* ---- pointers and structs ---------------------------------------------------------------------------------------- */

static expar_status call_without_args(const rejection_scene *scene)
{
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    return expar_ep_dispatch(scene->stage->ep, NULL, &result);
}

static expar_status call_without_result(const rejection_scene *scene)
{
    trial_choice plain = {0};
    expar_ep_dispatch_args args =
        trial_dispatch_args(scene->traffic, scene->stage->rank, &plain, &scene->stage->area, NULL);
    expar_status status = expar_ep_dispatch(scene->stage->ep, &args, NULL);
    trial_dispatch_args_free(&args);
    return status;
}

static expar_status call_with_result_of_no_size(const rejection_scene *scene)
{
    trial_choice plain = {0};
    expar_ep_dispatch_args args =
        trial_dispatch_args(scene->traffic, scene->stage->rank, &plain, &scene->stage->area, NULL);
    expar_ep_dispatch_result result = {0};
    expar_status status = expar_ep_dispatch(scene->stage->ep, &args, &result);
    trial_dispatch_args_free(&args);
    return status;
}

/* ---- x ----------------------------------------------------------------------------------------------------------- */

static void x_of_one_dimension(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    (void)scene;
    args->x = expar_tensor_1d(args->x.data, args->x.dtype, args->x.shape[0] * args->x.shape[1]);
}

static void x_of_long_rows(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    (void)scene;
    args->x.shape[1] = args->x.strides[0] = 24;
}

static void x_of_huge_rows(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    (void)scene;
    args->x.shape[1] = args->x.strides[0] = INT64_MAX / 2;
}

static void x_at_odd_address(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    (void)scene;
    args->x.data = (char *)args->x.data + 2;
}

static void x_of_odd_pitch(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    (void)scene;
    args->x.shape[0] = 2;
    args->x.strides[0] = 17;
}

/* The bytes from the first row to the last do not fit 64 bits. */
/* One token more than the buffer's 6; nothing of it is read. */
static void x_of_too_many_tokens(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    (void)scene;
    args->x.shape[0] = args->topk_idx.shape[0] = args->topk_weights.shape[0] = 7;
}

/* ---- routing ----------------------------------------------------------------------------------------------------- */

static void idx_of_one_dimension(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    (void)scene;
    args->topk_idx = expar_tensor_1d(args->topk_idx.data, EXPAR_I64, 15);
}

static void idx_of_too_many_slots(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    (void)scene;
    args->topk_idx.shape[1] = args->topk_weights.shape[1] = 4;
    args->topk_idx.strides[0] = args->topk_weights.strides[0] = 4;
}

static void idx_of_no_slots(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    (void)scene;
    args->topk_idx.shape[1] = args->topk_weights.shape[1] = 0;
}

static void idx_at_odd_address(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    (void)scene;
    args->topk_idx.data = (char *)args->topk_idx.data + 4;
}

static void index_too_large(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    (void)scene;
    ((int64_t *)args->topk_idx.data)[3 * 3 + 2] = 6;
}

static void index_below_minus_one(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    (void)scene;
    ((int64_t *)args->topk_idx.data)[4 * 3 + 0] = -7;
}

/* ---- output ------------------------------------------------------------------------------------------------------ */

static _Alignas(64) char own_rows[64 * 32];

/* One row short: the text says how many are needed. */
static expar_tensor own_out(const rejection_scene *scene, int64_t more)
{
    const traffic *t = scene->traffic;
    return expar_tensor_2d(own_rows, EXPAR_BF16, t->arrivals[REJECTION_RANK].num_rows + more, t->job.hidden);
}

static void out_too_small(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    args->out_x = own_out(scene, -1);
}

static void out_of_another_dtype(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    args->out_x = own_out(scene, 0);
    args->out_x.dtype = EXPAR_F16;
}

static void out_of_another_h(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    args->out_x = own_out(scene, 0);
    args->out_x.shape[1] = args->out_x.strides[0] = 8;
}

static void out_with_gaps(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    args->out_x = own_out(scene, 0);
    args->out_x.strides[0] = 24;
}

static void out_at_odd_address(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    args->out_x = own_out(scene, 0);
    args->out_x.data = own_rows + 8;
}

static void out_on_a_gpu(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    args->out_x = own_out(scene, 0);
    args->out_x.device.type = EXPAR_CUDA;
}

static void out_not_symmetric(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    args->out_x = own_out(scene, 0);
    args->path = EXPAR_EP_PATH_DIRECT;
}

static void event_that_has_gone(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    (void)scene;
    args->wait_event = rejection_event_gone();
}

/* ---- members that say yes or no ---------------------------------------------------------------------------------- */

#define CALLED(function, expected, ...)                                                                                \
    {                                                                                                                  \
        .name = #function, .status = expected, .words = {__VA_ARGS__}, .call = function                                \
    }

static const rejection_case cases[] = {
    CALLED(call_without_args, EXPAR_ERR_NULL, "args"),
    CALLED(call_without_result, EXPAR_ERR_NULL, "result"),
    CALLED(call_with_result_of_no_size, EXPAR_ERR_ARGUMENT, "result.struct_size", "0", "_INIT"),
    REJECTION_SET_DISPATCH(args_of_no_size, struct_size, 0, EXPAR_ERR_ARGUMENT, "args.struct_size", "0", "_INIT"),
    REJECTION_SET_DISPATCH(args_of_the_future, struct_size, sizeof(expar_ep_dispatch_args) + 8, EXPAR_ERR_ARGUMENT,
                           "args.struct_size", "_INIT"),
    REJECTION_SET_DISPATCH(x_absent, x, 0, EXPAR_ERR_NULL, "x"),
    REJECTION_SET_DISPATCH(x_without_data, x.data, NULL, EXPAR_ERR_NULL, "x.data"),
    REJECTION_SET_DISPATCH(x_of_integers, x.dtype, EXPAR_I32, EXPAR_ERR_DTYPE, "x.dtype", "i32",
                           "bf16, f16, f32, f8e4m3 or i8"),
    REJECTION_SET_DISPATCH(x_of_no_dtype, x.dtype, (expar_dtype)99, EXPAR_ERR_DTYPE, "x.dtype is 99", "expected",
                           "bf16, f16, f32, f8e4m3 or i8"),
    REJECTION_DISPATCH(x_of_one_dimension, EXPAR_ERR_SHAPE, "x has", "1 dimension", "expected 2"),
    REJECTION_SET_DISPATCH(x_of_negative_extent, x.shape[0], -5, EXPAR_ERR_SHAPE, "x has", "-5"),
    REJECTION_SET_DISPATCH(x_of_another_t, x.shape[0], 4, EXPAR_ERR_SHAPE, "topk_idx", "[5][3]", "[4][3]"),
    REJECTION_SET_DISPATCH(x_of_odd_rows, x.shape[1], 12, EXPAR_ERR_SHAPE, "x has", "24 bytes", "hidden size 12",
                           "multiple of 16"),
    REJECTION_SET_DISPATCH(x_of_no_columns, x.shape[1], 0, EXPAR_ERR_SHAPE, "x has", "0", "at least 1"),
    REJECTION_DISPATCH(x_of_long_rows, EXPAR_ERR_LIMIT, "x has", "24 elements", "32 bytes (config.max_row_bytes)"),
    REJECTION_DISPATCH(x_of_huge_rows, EXPAR_ERR_LIMIT, "x has", "32 bytes (config.max_row_bytes)"),
    REJECTION_DISPATCH(x_at_odd_address, EXPAR_ERR_ALIGNMENT, "x.data", "multiple of 16"),
    REJECTION_DISPATCH(x_of_odd_pitch, EXPAR_ERR_ALIGNMENT, "x.strides[0]", "17", "multiple of 16"),
    REJECTION_SET_DISPATCH(x_of_spread_columns, x.strides[1], 2, EXPAR_ERR_STRIDE, "x.strides[1]", "2", "expected 1"),
    REJECTION_SET_DISPATCH(x_of_overlapping_rows, x.strides[0], 8, EXPAR_ERR_STRIDE, "x.strides[0]", "8",
                           "at least 16"),
    REJECTION_SET_DISPATCH(x_of_endless_pitch, x.strides[0], INT64_MAX - 7, EXPAR_ERR_STRIDE, "x.strides[0]",
                           "9223372036854775800"),
    REJECTION_SET_DISPATCH(x_on_a_gpu, x.device.type, EXPAR_CUDA, EXPAR_ERR_DEVICE, "x lies", "CUDA", "CPU"),
    REJECTION_DISPATCH(x_of_too_many_tokens, EXPAR_ERR_LIMIT, "x has", "7 tokens", "6 (config.max_tokens)"),
    REJECTION_SET_DISPATCH(idx_absent, topk_idx, 0, EXPAR_ERR_NULL, "topk_idx"),
    REJECTION_SET_DISPATCH(idx_without_data, topk_idx.data, NULL, EXPAR_ERR_NULL, "topk_idx.data"),
    REJECTION_SET_DISPATCH(idx_of_floats, topk_idx.dtype, EXPAR_F32, EXPAR_ERR_DTYPE, "topk_idx.dtype", "f32", "i64",
                           "i32"),
    REJECTION_DISPATCH(idx_of_one_dimension, EXPAR_ERR_SHAPE, "topk_idx", "1 dimension", "expected 2"),
    REJECTION_SET_DISPATCH(idx_of_another_t, topk_idx.shape[0], 4, EXPAR_ERR_SHAPE, "topk_idx", "[4][3]", "[5][3]"),
    REJECTION_DISPATCH(idx_of_too_many_slots, EXPAR_ERR_LIMIT, "topk_idx", "4 slots", "3 (config.max_topk)"),
    REJECTION_DISPATCH(idx_of_no_slots, EXPAR_ERR_LIMIT, "topk_idx", "0 slots", "3 (config.max_topk)"),
    REJECTION_SET_DISPATCH(idx_of_spread_slots, topk_idx.strides[1], 3, EXPAR_ERR_STRIDE, "topk_idx.strides[1]", "3",
                           "expected 1"),
    REJECTION_SET_DISPATCH(idx_on_a_gpu, topk_idx.device.type, EXPAR_CUDA, EXPAR_ERR_DEVICE, "topk_idx", "CUDA", "CPU"),
    REJECTION_DISPATCH(idx_at_odd_address, EXPAR_ERR_ALIGNMENT, "topk_idx.data", "multiple of 8"),
    REJECTION_DISPATCH(index_too_large, EXPAR_ERR_INDEX, "topk_idx[3][2]", "6", "0 to 5"),
    REJECTION_DISPATCH(index_below_minus_one, EXPAR_ERR_INDEX, "topk_idx[4][0]", "-7", "0 to 5"),
    REJECTION_SET_DISPATCH(weights_of_integers, topk_weights.dtype, EXPAR_I32, EXPAR_ERR_DTYPE, "topk_weights.dtype",
                           "i32", "f32"),
    REJECTION_SET_DISPATCH(weights_of_another_k, topk_weights.shape[1], 2, EXPAR_ERR_SHAPE, "topk_weights", "[5][2]",
                           "[5][3]"),
    REJECTION_SET_DISPATCH(weights_of_another_t, topk_weights.shape[0], 6, EXPAR_ERR_SHAPE, "topk_weights", "[6][3]",
                           "[5][3]"),
    REJECTION_SET_DISPATCH(weights_without_data, topk_weights.data, NULL, EXPAR_ERR_NULL, "topk_weights.data"),
    REJECTION_SET_DISPATCH(weights_on_a_gpu, topk_weights.device.type, EXPAR_CUDA, EXPAR_ERR_DEVICE, "topk_weights",
                           "CUDA", "CPU"),
    REJECTION_SET_DISPATCH(too_many_experts, num_experts, 9, EXPAR_ERR_LIMIT, "num_experts", "9",
                           "6 (config.max_experts)"),
    REJECTION_SET_DISPATCH(experts_that_do_not_divide, num_experts, 4, EXPAR_ERR_ARGUMENT, "num_experts", "4",
                           "multiple of the 3"),
    REJECTION_SET_DISPATCH(no_experts, num_experts, 0, EXPAR_ERR_ARGUMENT, "num_experts", "0", "multiple of the 3"),
    REJECTION_SET_DISPATCH(negative_alignment, expert_alignment, -16, EXPAR_ERR_ARGUMENT, "expert_alignment", "-16"),
    REJECTION_SET_DISPATCH(alignment_beyond_31_bits, expert_alignment, (1 << 30) + 1, EXPAR_ERR_ARGUMENT,
                           "expert_alignment is 1073741825", "0 to 1073741824"),
    REJECTION_SET_DISPATCH(unknown_path, path, (expar_ep_path)7, EXPAR_ERR_ARGUMENT, "path", "7"),
    REJECTION_DISPATCH(out_too_small, EXPAR_ERR_BUFFER_SIZE, "out_x", "rows"),
    REJECTION_DISPATCH(out_of_another_dtype, EXPAR_ERR_DTYPE, "out_x.dtype", "f16", "bf16"),
    REJECTION_DISPATCH(out_of_another_h, EXPAR_ERR_SHAPE, "out_x", "8", "16"),
    REJECTION_DISPATCH(out_with_gaps, EXPAR_ERR_STRIDE, "out_x.strides[0]", "24", "16"),
    REJECTION_DISPATCH(out_at_odd_address, EXPAR_ERR_ALIGNMENT, "out_x.data", "multiple of 16"),
    REJECTION_DISPATCH(out_on_a_gpu, EXPAR_ERR_DEVICE, "out_x", "CUDA", "CPU"),
    REJECTION_DISPATCH(out_not_symmetric, EXPAR_ERR_ADDRESS, "out_x.data", "symmetric"),
    REJECTION_SET_DISPATCH(expert_major_neither, expert_major, 2, EXPAR_ERR_ARGUMENT,
                           "expert_major is 2; expected 0 or 1"),
    REJECTION_SET_DISPATCH(zero_padding_neither, zero_padding, -1, EXPAR_ERR_ARGUMENT,
                           "zero_padding is -1; expected 0 or 1"),
    REJECTION_SET_DISPATCH(async_finish_neither, async_finish, 3, EXPAR_ERR_ARGUMENT,
                           "async_finish is 3; expected 0 or 1"),
    REJECTION_SET_DISPATCH(keep_slots_neither, keep_slots, 2, EXPAR_ERR_ARGUMENT, "keep_slots is 2; expected 0 or 1"),
    REJECTION_SET_DISPATCH(row_weights_neither, row_weights, -1, EXPAR_ERR_ARGUMENT,
                           "row_weights is -1; expected 0 or 1"),
    REJECTION_SET_DISPATCH(column_scales_neither, column_scales, 2, EXPAR_ERR_ARGUMENT,
                           "column_scales is 2; expected 0 or 1"),
    REJECTION_SET_DISPATCH(src_tokens_neither, src_tokens, 256, EXPAR_ERR_ARGUMENT,
                           "src_tokens is 256; expected 0 or 1"),
    REJECTION_SET_DISPATCH(global_experts_neither, global_experts, -7, EXPAR_ERR_ARGUMENT,
                           "global_experts is -7; expected 0 or 1"),
    REJECTION_DISPATCH(event_that_has_gone, EXPAR_ERR_HANDLE, "wait_event", "is not a living event"),
};

int main(void)
{
    return rejection_run("bad dispatch", cases, sizeof cases / sizeof cases[0]);
}

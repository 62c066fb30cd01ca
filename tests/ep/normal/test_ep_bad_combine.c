/* SPDX-License-Identifier: Apache-2.0 */
/* Every wrong argument of expar_ep_combine, and of expar_ep_dispatch with a handle (rejection.h). Rank 1 has T 5, H 16
 * (bf16), K 3; the arguments are right with weights. */
#include "ep/harness/rejection.h"
#include <string.h>

/* ---- combine ----------------------------------------------------------------------------------------------------- */

static expar_status call_without_args(const rejection_scene *scene)
{
    return expar_ep_combine(scene->stage->ep, NULL, NULL);
}

static expar_status result_of_no_size(const rejection_scene *scene)
{
    const expar_ep_combine_args args = EXPAR_EP_COMBINE_ARGS_INIT;
    expar_ep_combine_result result = {0};
    return expar_ep_combine(scene->stage->ep, &args, &result);
}

static void x_one_row_short(expar_ep_combine_args *args, const rejection_scene *scene)
{
    (void)scene;
    args->x.shape[0]--;
}

static void x_of_long_rows(expar_ep_combine_args *args, const rejection_scene *scene)
{
    (void)scene;
    args->x.shape[1] = args->x.strides[0] = 24;
}

static void x_at_odd_address(expar_ep_combine_args *args, const rejection_scene *scene)
{
    (void)scene;
    args->x.data = (char *)args->x.data + 4;
}

static void y_of_one_dimension(expar_ep_combine_args *args, const rejection_scene *scene)
{
    (void)scene;
    args->out_y = expar_tensor_1d(args->out_y.data, args->out_y.dtype, 80);
}

static void weights_one_row_short(expar_ep_combine_args *args, const rejection_scene *scene)
{
    (void)scene;
    args->topk_weights.shape[0]--;
}

/* ---- dispatch with a handle; the others dispatch with theirs ----------------------------------------------------- */

static void idx_of_another_k_than_the_handle(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    args->handle = scene->handle;
    args->topk_idx.shape[1] = args->topk_weights.shape[1] = 2;
}

static void idx_of_another_t_than_the_handle(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    args->handle = scene->handle;
    args->topk_idx.shape[0] = 4;
}

static void idx_out_of_range_beside_a_handle(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    args->handle = scene->handle;
    ((int64_t *)args->topk_idx.data)[3 * args->topk_idx.strides[0] + 2] = 6;
}

static void idx_of_floats_beside_a_handle(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    args->handle = scene->handle;
    args->topk_idx.dtype = EXPAR_F32;
}

static void weights_of_integers_beside_a_handle(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    args->handle = scene->handle;
    args->topk_weights.dtype = EXPAR_I32;
}

static void weights_without_idx_beside_a_handle(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    args->handle = scene->handle;
    args->topk_idx = EXPAR_TENSOR_NONE;
}

static void handle_of_another_t(expar_ep_dispatch_args *args, const rejection_scene *scene)
{
    args->handle = scene->handle;
    args->topk_idx = args->topk_weights = EXPAR_TENSOR_NONE;
    args->x.shape[0] = 4;
}

static void event_that_has_gone(expar_ep_combine_args *args, const rejection_scene *scene)
{
    (void)scene;
    args->wait_event = rejection_event_gone();
}

static const rejection_case cases[] = {
    {.name = "call_without_args",
     .status = EXPAR_ERR_NULL,
     .words = {"args"},
     .call = call_without_args,
     .is_combine = true},
    {.name = "result_of_no_size",
     .status = EXPAR_ERR_ARGUMENT,
     .words = {"result.struct_size is 0", "_INIT"},
     .call = result_of_no_size,
     .is_combine = true},
    REJECTION_SET_COMBINE(args_of_no_size, struct_size, 0, EXPAR_ERR_ARGUMENT, "args.struct_size", "0", "_INIT"),
    REJECTION_SET_COMBINE(handle_absent, handle, NULL, EXPAR_ERR_NULL, "handle"),
    REJECTION_SET_COMBINE(x_absent, x, 0, EXPAR_ERR_NULL, "x"),
    REJECTION_SET_COMBINE(x_without_data, x.data, NULL, EXPAR_ERR_NULL, "x.data"),
    REJECTION_COMBINE(x_one_row_short, EXPAR_ERR_SHAPE, "x has", "rows", "received"),
    REJECTION_SET_COMBINE(x_of_integers, x.dtype, EXPAR_U8, EXPAR_ERR_DTYPE, "x.dtype", "u8", "bf16, f16 or f32"),
    REJECTION_SET_COMBINE(x_of_odd_rows, x.shape[1], 12, EXPAR_ERR_SHAPE, "x has", "24 bytes", "multiple of 16"),
    REJECTION_COMBINE(x_of_long_rows, EXPAR_ERR_LIMIT, "x has", "24 elements", "32 bytes (config.max_row_bytes)"),
    REJECTION_COMBINE(x_at_odd_address, EXPAR_ERR_ALIGNMENT, "x.data", "multiple of 16"),
    REJECTION_SET_COMBINE(x_of_spread_columns, x.strides[1], 2, EXPAR_ERR_STRIDE, "x.strides[1]", "2", "expected 1"),
    REJECTION_SET_COMBINE(x_on_a_gpu, x.device.type, EXPAR_CUDA, EXPAR_ERR_DEVICE, "x lies", "CUDA", "CPU"),
    REJECTION_SET_COMBINE(y_absent, out_y, 0, EXPAR_ERR_NULL, "out_y"),
    REJECTION_SET_COMBINE(y_without_data, out_y.data, NULL, EXPAR_ERR_NULL, "out_y.data"),
    REJECTION_SET_COMBINE(y_of_another_t, out_y.shape[0], 4, EXPAR_ERR_SHAPE, "out_y has", "[4][16]", "[5][16]"),
    REJECTION_SET_COMBINE(y_of_another_h, out_y.shape[1], 8, EXPAR_ERR_SHAPE, "out_y has", "[5][8]", "[5][16]"),
    REJECTION_SET_COMBINE(y_of_another_dtype, out_y.dtype, EXPAR_F16, EXPAR_ERR_DTYPE, "out_y.dtype", "f16", "bf16"),
    REJECTION_COMBINE(y_of_one_dimension, EXPAR_ERR_SHAPE, "out_y has", "1 dimension", "expected 2"),
    REJECTION_SET_COMBINE(y_of_spread_columns, out_y.strides[1], 2, EXPAR_ERR_STRIDE, "out_y.strides[1]", "2",
                          "expected 1"),
    REJECTION_SET_COMBINE(y_on_a_gpu, out_y.device.type, EXPAR_CUDA, EXPAR_ERR_DEVICE, "out_y lies", "CUDA", "CPU"),
    REJECTION_SET_COMBINE(weights_of_integers, topk_weights.dtype, EXPAR_I32, EXPAR_ERR_DTYPE, "topk_weights.dtype",
                          "i32", "f32"),
    REJECTION_SET_COMBINE(weights_of_another_k, topk_weights.shape[1], 2, EXPAR_ERR_SHAPE, "topk_weights", "][2]",
                          "][3]"),
    REJECTION_COMBINE(weights_one_row_short, EXPAR_ERR_SHAPE, "topk_weights", "expected"),
    REJECTION_SET_COMBINE(weights_without_an_output, out_topk_weights, 0, EXPAR_ERR_NULL, "out_topk_weights",
                          "both or none"),
    REJECTION_SET_COMBINE(an_output_without_weights, topk_weights, 0, EXPAR_ERR_NULL, "topk_weights", "both or none"),
    REJECTION_SET_COMBINE(weights_output_of_another_t, out_topk_weights.shape[0], 6, EXPAR_ERR_SHAPE,
                          "out_topk_weights", "[6][3]", "[5][3]"),
    REJECTION_SET_COMBINE(unknown_path, path, (expar_ep_path)-1, EXPAR_ERR_ARGUMENT, "path", "-1"),
    REJECTION_SET_COMBINE(direct_from_private_memory, path, EXPAR_EP_PATH_DIRECT, EXPAR_ERR_ADDRESS, "x.data",
                          "symmetric"),
    REJECTION_DISPATCH(idx_of_another_k_than_the_handle, EXPAR_ERR_SHAPE, "topk_idx has 2 slots",
                       "the 3 of the handle"),
    REJECTION_DISPATCH(idx_of_another_t_than_the_handle, EXPAR_ERR_SHAPE, "topk_idx has", "[4][3]", "[5][3]"),
    REJECTION_DISPATCH(idx_out_of_range_beside_a_handle, EXPAR_ERR_INDEX, "topk_idx[3][2] is 6", "0 to 5"),
    REJECTION_DISPATCH(idx_of_floats_beside_a_handle, EXPAR_ERR_DTYPE, "topk_idx.dtype", "f32", "i64 or i32"),
    REJECTION_DISPATCH(weights_of_integers_beside_a_handle, EXPAR_ERR_DTYPE, "topk_weights.dtype", "i32", "f32"),
    REJECTION_DISPATCH(weights_without_idx_beside_a_handle, EXPAR_ERR_NULL, "topk_idx is not given", "topk_weights"),
    REJECTION_DISPATCH(handle_of_another_t, EXPAR_ERR_SHAPE, "x has", "4 tokens", "5"),
    REJECTION_SET_COMBINE(expert_major_neither, expert_major, 2, EXPAR_ERR_ARGUMENT,
                          "expert_major is 2; expected 0 or 1"),
    REJECTION_SET_COMBINE(async_finish_neither, async_finish, 3, EXPAR_ERR_ARGUMENT,
                          "async_finish is 3; expected 0 or 1"),
    REJECTION_SET_COMBINE(nodes_sum_of_4, nodes_sum, 4, EXPAR_ERR_ARGUMENT, "nodes_sum is 4; expected",
                          "ROUNDED, EXACT, ONE_ORDER or OWN_FIRST"),
    REJECTION_COMBINE(event_that_has_gone, EXPAR_ERR_HANDLE, "wait_event", "is not a living event"),
};

int main(void)
{
    return rejection_run("bad combine", cases, sizeof cases / sizeof cases[0]);
}

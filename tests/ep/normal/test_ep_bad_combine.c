/* SPDX-License-Identifier: Apache-2.0 */
/* Every wrong argument of expar_combine, and of expar_dispatch with a handle (refusal.h). Rank 1 has T 5, H 16 (bf16),
 * K 3; the arguments are right with weights. */
#include "ep/harness/refusal.h"
#include <string.h>

/* ---- combine ----------------------------------------------------------------------------------------------------- */

static expar_status call_without_args(const refusal_scene *scene)
{
    return expar_combine(scene->stage->ep, NULL);
}

static void args_of_no_size(expar_combine_args *args, const refusal_scene *scene)
{
    (void)scene;
    args->struct_size = 0;
}

static void handle_absent(expar_combine_args *args, const refusal_scene *scene)
{
    (void)scene;
    args->handle = NULL;
}

static void x_absent(expar_combine_args *args, const refusal_scene *scene)
{
    (void)scene;
    args->x = EXPAR_TENSOR_NONE;
}

static void x_without_data(expar_combine_args *args, const refusal_scene *scene)
{
    (void)scene;
    args->x.data = NULL;
}

static void x_one_row_short(expar_combine_args *args, const refusal_scene *scene)
{
    (void)scene;
    args->x.shape[0]--;
}

static void x_of_integers(expar_combine_args *args, const refusal_scene *scene)
{
    (void)scene;
    args->x.dtype = EXPAR_U8;
}

static void x_of_odd_rows(expar_combine_args *args, const refusal_scene *scene)
{
    (void)scene;
    args->x.shape[1] = 12;
}

static void x_of_long_rows(expar_combine_args *args, const refusal_scene *scene)
{
    (void)scene;
    args->x.shape[1] = args->x.strides[0] = 24;
}

static void x_at_odd_address(expar_combine_args *args, const refusal_scene *scene)
{
    (void)scene;
    args->x.data = (char *)args->x.data + 4;
}

static void x_of_spread_columns(expar_combine_args *args, const refusal_scene *scene)
{
    (void)scene;
    args->x.strides[1] = 2;
}

static void x_on_a_gpu(expar_combine_args *args, const refusal_scene *scene)
{
    (void)scene;
    args->x.device.type = EXPAR_CUDA;
}

static void y_absent(expar_combine_args *args, const refusal_scene *scene)
{
    (void)scene;
    args->y = EXPAR_TENSOR_NONE;
}

static void y_without_data(expar_combine_args *args, const refusal_scene *scene)
{
    (void)scene;
    args->y.data = NULL;
}

static void y_of_another_t(expar_combine_args *args, const refusal_scene *scene)
{
    (void)scene;
    args->y.shape[0] = 4;
}

static void y_of_another_h(expar_combine_args *args, const refusal_scene *scene)
{
    (void)scene;
    args->y.shape[1] = 8;
}

static void y_of_another_dtype(expar_combine_args *args, const refusal_scene *scene)
{
    (void)scene;
    args->y.dtype = EXPAR_F16;
}

static void y_of_one_dimension(expar_combine_args *args, const refusal_scene *scene)
{
    (void)scene;
    args->y = expar_tensor_1d(args->y.data, args->y.dtype, 80);
}

static void y_of_spread_columns(expar_combine_args *args, const refusal_scene *scene)
{
    (void)scene;
    args->y.strides[1] = 2;
}

static void y_on_a_gpu(expar_combine_args *args, const refusal_scene *scene)
{
    (void)scene;
    args->y.device.type = EXPAR_CUDA;
}

static void weights_of_integers(expar_combine_args *args, const refusal_scene *scene)
{
    (void)scene;
    args->topk_weights.dtype = EXPAR_I32;
}

static void weights_of_another_k(expar_combine_args *args, const refusal_scene *scene)
{
    (void)scene;
    args->topk_weights.shape[1] = 2;
}

static void weights_one_row_short(expar_combine_args *args, const refusal_scene *scene)
{
    (void)scene;
    args->topk_weights.shape[0]--;
}

static void weights_without_an_output(expar_combine_args *args, const refusal_scene *scene)
{
    (void)scene;
    args->out_topk_weights = EXPAR_TENSOR_NONE;
}

static void an_output_without_weights(expar_combine_args *args, const refusal_scene *scene)
{
    (void)scene;
    args->topk_weights = EXPAR_TENSOR_NONE;
}

static void weights_output_of_another_t(expar_combine_args *args, const refusal_scene *scene)
{
    (void)scene;
    args->out_topk_weights.shape[0] = 6;
}

static void unknown_path(expar_combine_args *args, const refusal_scene *scene)
{
    (void)scene;
    args->path = (expar_path)-1;
}

static void direct_from_private_memory(expar_combine_args *args, const refusal_scene *scene)
{
    (void)scene;
    args->path = EXPAR_PATH_DIRECT;
}

/* ---- dispatch with a handle; the others dispatch with theirs ----------------------------------------------------- */

static void idx_of_another_k_than_the_handle(expar_dispatch_args *args, const refusal_scene *scene)
{
    args->handle = scene->handle;
    args->topk_idx.shape[1] = args->topk_weights.shape[1] = 2;
}

static void idx_of_another_t_than_the_handle(expar_dispatch_args *args, const refusal_scene *scene)
{
    args->handle = scene->handle;
    args->topk_idx.shape[0] = 4;
}

static void idx_out_of_range_beside_a_handle(expar_dispatch_args *args, const refusal_scene *scene)
{
    args->handle = scene->handle;
    ((int64_t *)args->topk_idx.data)[3 * args->topk_idx.strides[0] + 2] = 6;
}

static void idx_of_floats_beside_a_handle(expar_dispatch_args *args, const refusal_scene *scene)
{
    args->handle = scene->handle;
    args->topk_idx.dtype = EXPAR_F32;
}

static void weights_of_integers_beside_a_handle(expar_dispatch_args *args, const refusal_scene *scene)
{
    args->handle = scene->handle;
    args->topk_weights.dtype = EXPAR_I32;
}

static void weights_without_idx_beside_a_handle(expar_dispatch_args *args, const refusal_scene *scene)
{
    args->handle = scene->handle;
    args->topk_idx = EXPAR_TENSOR_NONE;
}

static void handle_of_another_t(expar_dispatch_args *args, const refusal_scene *scene)
{
    args->handle = scene->handle;
    args->topk_idx = args->topk_weights = EXPAR_TENSOR_NONE;
    args->x.shape[0] = 4;
}

static void event_that_has_gone(expar_combine_args *args, const refusal_scene *scene)
{
    (void)scene;
    args->wait_event = refusal_event_gone();
}

#define NEITHER(member, value)                                                                                         \
    static void member##_neither(expar_combine_args *args, const refusal_scene *scene)                                 \
    {                                                                                                                  \
        (void)scene;                                                                                                   \
        args->member = value;                                                                                          \
    }
NEITHER(expert_major, 2)
NEITHER(async_finish, 3)
NEITHER(exact_across_nodes, 3)

#define SPOILED(function, expected, ...)                                                                               \
    {                                                                                                                  \
        .name = #function, .status = expected, .words = {__VA_ARGS__}, .spoil_combine = function                       \
    }
#define SPOILED_DISPATCH(function, expected, ...)                                                                      \
    {                                                                                                                  \
        .name = #function, .status = expected, .words = {__VA_ARGS__}, .spoil_dispatch = function                      \
    }

static const refusal_case cases[] = {
    {.name = "call_without_args",
     .status = EXPAR_ERR_NULL,
     .words = {"args"},
     .call = call_without_args,
     .is_combine = true},
    SPOILED(args_of_no_size, EXPAR_ERR_ARGUMENT, "args.struct_size", "0", "_INIT"),
    SPOILED(handle_absent, EXPAR_ERR_NULL, "handle"),
    SPOILED(x_absent, EXPAR_ERR_NULL, "x"),
    SPOILED(x_without_data, EXPAR_ERR_NULL, "x.data"),
    SPOILED(x_one_row_short, EXPAR_ERR_SHAPE, "x has", "rows", "received"),
    SPOILED(x_of_integers, EXPAR_ERR_DTYPE, "x.dtype", "u8", "bf16, f16 or f32"),
    SPOILED(x_of_odd_rows, EXPAR_ERR_SHAPE, "x has", "24 bytes", "multiple of 16"),
    SPOILED(x_of_long_rows, EXPAR_ERR_LIMIT, "x has", "24 elements", "32 bytes (config.max_row_bytes)"),
    SPOILED(x_at_odd_address, EXPAR_ERR_ALIGNMENT, "x.data", "multiple of 16"),
    SPOILED(x_of_spread_columns, EXPAR_ERR_STRIDE, "x.strides[1]", "2", "expected 1"),
    SPOILED(x_on_a_gpu, EXPAR_ERR_DEVICE, "x lies", "2", "CPU"),
    SPOILED(y_absent, EXPAR_ERR_NULL, "y"),
    SPOILED(y_without_data, EXPAR_ERR_NULL, "y.data"),
    SPOILED(y_of_another_t, EXPAR_ERR_SHAPE, "y has", "[4][16]", "[5][16]"),
    SPOILED(y_of_another_h, EXPAR_ERR_SHAPE, "y has", "[5][8]", "[5][16]"),
    SPOILED(y_of_another_dtype, EXPAR_ERR_DTYPE, "y.dtype", "f16", "bf16"),
    SPOILED(y_of_one_dimension, EXPAR_ERR_SHAPE, "y has", "1 dimension", "expected 2"),
    SPOILED(y_of_spread_columns, EXPAR_ERR_STRIDE, "y.strides[1]", "2", "expected 1"),
    SPOILED(y_on_a_gpu, EXPAR_ERR_DEVICE, "y lies", "2", "CPU"),
    SPOILED(weights_of_integers, EXPAR_ERR_DTYPE, "topk_weights.dtype", "i32", "f32"),
    SPOILED(weights_of_another_k, EXPAR_ERR_SHAPE, "topk_weights", "][2]", "][3]"),
    SPOILED(weights_one_row_short, EXPAR_ERR_SHAPE, "topk_weights", "expected"),
    SPOILED(weights_without_an_output, EXPAR_ERR_NULL, "out_topk_weights", "both or none"),
    SPOILED(an_output_without_weights, EXPAR_ERR_NULL, "topk_weights", "both or none"),
    SPOILED(weights_output_of_another_t, EXPAR_ERR_SHAPE, "out_topk_weights", "[6][3]", "[5][3]"),
    SPOILED(unknown_path, EXPAR_ERR_ARGUMENT, "path", "-1"),
    SPOILED(direct_from_private_memory, EXPAR_ERR_ADDRESS, "x.data", "symmetric"),
    SPOILED_DISPATCH(idx_of_another_k_than_the_handle, EXPAR_ERR_SHAPE, "topk_idx has 2 slots", "the 3 of the handle"),
    SPOILED_DISPATCH(idx_of_another_t_than_the_handle, EXPAR_ERR_SHAPE, "topk_idx has", "[4][3]", "[5][3]"),
    SPOILED_DISPATCH(idx_out_of_range_beside_a_handle, EXPAR_ERR_INDEX, "topk_idx[3][2] is 6", "0 to 5"),
    SPOILED_DISPATCH(idx_of_floats_beside_a_handle, EXPAR_ERR_DTYPE, "topk_idx.dtype", "f32", "i64 or i32"),
    SPOILED_DISPATCH(weights_of_integers_beside_a_handle, EXPAR_ERR_DTYPE, "topk_weights.dtype", "i32", "f32"),
    SPOILED_DISPATCH(weights_without_idx_beside_a_handle, EXPAR_ERR_NULL, "topk_idx is not given", "topk_weights"),
    SPOILED_DISPATCH(handle_of_another_t, EXPAR_ERR_SHAPE, "x has", "4 tokens", "5"),
    SPOILED(expert_major_neither, EXPAR_ERR_ARGUMENT, "expert_major is 2; expected 0 or 1"),
    SPOILED(async_finish_neither, EXPAR_ERR_ARGUMENT, "async_finish is 3; expected 0 or 1"),
    SPOILED(exact_across_nodes_neither, EXPAR_ERR_ARGUMENT, "exact_across_nodes is 3; expected", "2 (in one order)"),
    SPOILED(event_that_has_gone, EXPAR_ERR_HANDLE, "wait_event", "is not a living event"),
};

int main(void)
{
    return refusal_run("bad combine", cases, sizeof cases / sizeof cases[0]);
}

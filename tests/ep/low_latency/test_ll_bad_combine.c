/* SPDX-License-Identifier: Apache-2.0 */
/* Every wrong argument of expar_ll_combine that one rank sees alone (wrong.h). */
#include "ep/low_latency/wrong.h"

typedef expar_ll_combine_args back_args;

/* ---- pointers, structs, handles ---------------------------------------------------------------------------------- */

static expar_status call_without_args(const wrong_scene *scene)
{
    expar_ll_combine_result result = EXPAR_LL_COMBINE_RESULT_INIT;
    return expar_ll_combine(scene->ll, NULL, &result);
}

static expar_status call_without_result(const wrong_scene *scene)
{
    expar_ll_combine_args args = EXPAR_LL_COMBINE_ARGS_INIT;
    return expar_ll_combine(scene->ll, &args, NULL);
}

static void handle_of_another_buffer(back_args *args, const wrong_scene *scene)
{
    args->handle = scene->foreign;
}

static void handle_that_is_none(back_args *args, const wrong_scene *scene)
{
    static _Alignas(16) const char nothing[512];
    (void)scene;
    args->handle = (const expar_ll_handle *)nothing;
}

/* ---- x ----------------------------------------------------------------------------------------------------------- */

static void x_of_two_dimensions(back_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->x = expar_tensor_2d(args->x.data, args->x.dtype, WRONG_RANKS * WRONG_TOKENS, WRONG_HIDDEN);
}

static void x_at_odd_address(back_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->x.data = (char *)args->x.data + 2;
}

/* ---- manner and results ------------------------------------------------------------------------------------------ */

/* Groups of 128 elements do not fit rows of 16. */
static void format_of_exact_sums(back_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->format = EXPAR_LL_FORMAT_LOGFMT;
    args->sum = EXPAR_LL_SUM_REDUCED;
}

static void hook_and_event(back_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->hook = args->async_finish = 1;
}

static void event_that_has_gone(back_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->wait_event = wrong_event_gone();
}

static void out_at_odd_address(back_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->out_y.data = (char *)args->out_y.data + 2;
}

static _Alignas(16) int64_t spare[WRONG_RANKS + 1];

static void waits_of_more_ranks(back_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->wait_ns = expar_tensor_1d(spare, EXPAR_I64, WRONG_RANKS + 1);
}

static void waits_of_floats(back_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->wait_ns = expar_tensor_1d(spare, EXPAR_F32, WRONG_RANKS);
}

static const wrong_case cases[] = {
    {"no args", EXPAR_ERR_NULL, {"args is NULL"}, .call = call_without_args, .is_combine = true},
    {"no result", EXPAR_ERR_NULL, {"result is NULL"}, .call = call_without_result, .is_combine = true},
    {"args of no size", EXPAR_ERR_ARGUMENT, {"args.struct_size", "is 0"}, WRONG_SET_COMBINE(struct_size, 0)},
    {"handle absent", EXPAR_ERR_NULL, {"handle is NULL"}, WRONG_SET_COMBINE(handle, NULL)},
    {"handle of another buffer", EXPAR_ERR_HANDLE, {"handle"}, .spoil_combine = handle_of_another_buffer},
    {"handle that is none", EXPAR_ERR_HANDLE, {"handle"}, .spoil_combine = handle_that_is_none},
    {"x absent", EXPAR_ERR_NULL, {"x "}, WRONG_SET_COMBINE(x, 0)},
    {"x without data", EXPAR_ERR_NULL, {"x.data is NULL"}, WRONG_SET_COMBINE(x.data, NULL)},
    {"x of integers", EXPAR_ERR_DTYPE, {"x.dtype is i32", "expected"}, WRONG_SET_COMBINE(x.dtype, EXPAR_I32)},
    {"x of long elements",
     EXPAR_ERR_LIMIT,
     {"x.dtype is f32", "config.max_row_bytes"},
     WRONG_SET_COMBINE(x.dtype, EXPAR_F32)},
    {"x of two dimensions",
     EXPAR_ERR_SHAPE,
     {"x has 2 dimensions", "expected 3"},
     .spoil_combine = x_of_two_dimensions},
    {"x of other experts", EXPAR_ERR_SHAPE, {"x.shape[0] is 1", "expected 2"}, WRONG_SET_COMBINE(x.shape[0], 1)},
    {"x of fewer rows",
     EXPAR_ERR_SHAPE,
     {"x.shape[1] is 6", "expected 18"},
     WRONG_SET_COMBINE(x.shape[1], WRONG_TOKENS)},
    {"x of other rows", EXPAR_ERR_SHAPE, {"x.shape[2] is 8", "expected 16"}, WRONG_SET_COMBINE(x.shape[2], 8)},
    {"x at an odd address", EXPAR_ERR_ALIGNMENT, {"x.data"}, .spoil_combine = x_at_odd_address},
    {"x of odd pitch", EXPAR_ERR_ALIGNMENT, {"x.strides"}, WRONG_SET_COMBINE(x.strides[1], 17)},
    {"x of overlapping rows", EXPAR_ERR_STRIDE, {"x.strides"}, WRONG_SET_COMBINE(x.strides[1], 8)},
    {"x of spread columns", EXPAR_ERR_STRIDE, {"x.strides[2] is 2"}, WRONG_SET_COMBINE(x.strides[2], 2)},
    {"x of endless pitch", EXPAR_ERR_STRIDE, {"x.strides"}, WRONG_SET_COMBINE(x.strides[0], INT64_MAX - 7)},
    {"x on a GPU", EXPAR_ERR_DEVICE, {"x lies on", "expected"}, WRONG_SET_COMBINE(x.device.type, EXPAR_CUDA)},
    {"topk_idx absent", EXPAR_ERR_NULL, {"topk_idx "}, WRONG_SET_COMBINE(topk_idx, 0)},
    {"topk_idx of another T", EXPAR_ERR_SHAPE, {"topk_idx", "4", "5"}, WRONG_SET_COMBINE(topk_idx.shape[0], 4)},
    {"topk_idx of fewer slots",
     EXPAR_ERR_SHAPE,
     {"topk_idx", "2", "3"},
     WRONG_SET_COMBINE(topk_idx.shape[1], WRONG_TOPK - 1)},
    {"topk_idx of floats", EXPAR_ERR_DTYPE, {"topk_idx.dtype is f32"}, WRONG_SET_COMBINE(topk_idx.dtype, EXPAR_F32)},
    {"topk_weights absent", EXPAR_ERR_NULL, {"topk_weights "}, WRONG_SET_COMBINE(topk_weights, 0)},
    {"topk_weights of another T",
     EXPAR_ERR_SHAPE,
     {"topk_weights", "6", "5"},
     WRONG_SET_COMBINE(topk_weights.shape[0], 6)},
    {"topk_weights of integers",
     EXPAR_ERR_DTYPE,
     {"topk_weights.dtype is i32"},
     WRONG_SET_COMBINE(topk_weights.dtype, EXPAR_I32)},
    {"sum unknown", EXPAR_ERR_ARGUMENT, {"sum is 2", "expected"}, WRONG_SET_COMBINE(sum, (expar_ll_sum)2)},
    {"format of dispatches",
     EXPAR_ERR_ARGUMENT,
     {"format is FP8", "expected"},
     WRONG_SET_COMBINE(format, EXPAR_LL_FORMAT_FP8)},
    {"format of groups",
     EXPAR_ERR_SHAPE,
     {"format is LOGFMT", "16", "multiple of 128"},
     WRONG_SET_COMBINE(format, EXPAR_LL_FORMAT_LOGFMT)},
    {"format of exact sums",
     EXPAR_ERR_ARGUMENT,
     {"format is LOGFMT", "sum REDUCED"},
     .spoil_combine = format_of_exact_sums},
    {"format unknown",
     EXPAR_ERR_ARGUMENT,
     {"format is -1", "expected"},
     WRONG_SET_COMBINE(format, (expar_ll_format)-1)},
    {"hook and event", EXPAR_ERR_ARGUMENT, {"hook is 1 and async_finish is 1"}, .spoil_combine = hook_and_event},
    {"wait_event that has gone",
     EXPAR_ERR_HANDLE,
     {"wait_event", "is not a living event"},
     .spoil_combine = event_that_has_gone},
    {"hook of 2", EXPAR_ERR_ARGUMENT, {"hook is 2", "expected 0 or 1"}, WRONG_SET_COMBINE(hook, 2)},
    {"async_finish of 3",
     EXPAR_ERR_ARGUMENT,
     {"async_finish is 3", "expected 0 or 1"},
     WRONG_SET_COMBINE(async_finish, 3)},
    {"out_y of another dtype",
     EXPAR_ERR_DTYPE,
     {"out_y.dtype is f16", "bf16"},
     WRONG_SET_COMBINE(out_y.dtype, EXPAR_F16)},
    {"out_y of fewer tokens", EXPAR_ERR_SHAPE, {"out_y", "4", "5"}, WRONG_SET_COMBINE(out_y.shape[0], 4)},
    {"out_y at an odd address", EXPAR_ERR_ALIGNMENT, {"out_y.data"}, .spoil_combine = out_at_odd_address},
    {"out_y of overlapping rows", EXPAR_ERR_STRIDE, {"out_y.strides[0] is 8"}, WRONG_SET_COMBINE(out_y.strides[0], 8)},
    {"out_y on a GPU",
     EXPAR_ERR_DEVICE,
     {"out_y lies on", "expected"},
     WRONG_SET_COMBINE(out_y.device.type, EXPAR_CUDA)},
    {"waits of more ranks",
     EXPAR_ERR_SHAPE,
     {"wait_ns.shape[0] is 4", "expected 3"},
     .spoil_combine = waits_of_more_ranks},
    {"waits of floats", EXPAR_ERR_DTYPE, {"wait_ns.dtype is f32", "i64"}, .spoil_combine = waits_of_floats},
};

int main(void)
{
    return wrong_run("bad low-latency combines", cases, sizeof cases / sizeof *cases);
}

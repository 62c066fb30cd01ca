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

static void args_of_no_size(back_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->struct_size = 0;
}

static void handle_absent(back_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->handle = NULL;
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

static void x_absent(back_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->x = EXPAR_TENSOR_NONE;
}

static void x_without_data(back_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->x.data = NULL;
}

static void x_of_integers(back_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->x.dtype = EXPAR_I32;
}

static void x_of_long_elements(back_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->x.dtype = EXPAR_F32;
}

static void x_of_two_dimensions(back_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->x = expar_tensor_2d(args->x.data, args->x.dtype, WRONG_RANKS * WRONG_TOKENS, WRONG_HIDDEN);
}

static void x_of_other_experts(back_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->x.shape[0] = 1;
}

static void x_of_fewer_rows(back_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->x.shape[1] = WRONG_TOKENS;
}

static void x_of_other_hidden(back_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->x.shape[2] = 8;
}

static void x_at_odd_address(back_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->x.data = (char *)args->x.data + 2;
}

static void x_of_odd_pitch(back_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->x.strides[1] = 17;
}

static void x_of_overlapping_rows(back_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->x.strides[1] = 8;
}

static void x_of_spread_columns(back_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->x.strides[2] = 2;
}

static void x_of_endless_pitch(back_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->x.strides[0] = INT64_MAX - 7;
}

static void x_on_a_gpu(back_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->x.device.type = EXPAR_CUDA;
}

/* ---- topk_idx and topk_weights ----------------------------------------------------------------------------------- */

static void idx_absent(back_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->topk_idx = EXPAR_TENSOR_NONE;
}

static void idx_of_another_t(back_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->topk_idx.shape[0] = 4;
}

static void idx_of_fewer_slots(back_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->topk_idx.shape[1] = WRONG_TOPK - 1;
}

static void idx_of_floats(back_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->topk_idx.dtype = EXPAR_F32;
}

static void weights_absent(back_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->topk_weights = EXPAR_TENSOR_NONE;
}

static void weights_of_another_t(back_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->topk_weights.shape[0] = 6;
}

static void weights_of_integers(back_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->topk_weights.dtype = EXPAR_I32;
}

/* ---- manner and results ------------------------------------------------------------------------------------------ */

static void sum_unknown(back_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->sum = (expar_ll_sum)2;
}

static void format_of_dispatches(back_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->format = EXPAR_LL_FP8;
}

/* Groups of 128 elements do not fit rows of 16. */
static void format_of_groups(back_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->format = EXPAR_LL_LOGFMT;
}

static void format_of_exact_sums(back_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->format = EXPAR_LL_LOGFMT;
    args->sum = EXPAR_LL_REDUCED;
}

static void format_unknown(back_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->format = (expar_ll_format)-1;
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

static void hook_of_two(back_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->hook = 2;
}

static void async_of_three(back_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->async_finish = 3;
}

static void out_of_another_dtype(back_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->out.dtype = EXPAR_F16;
}

static void out_of_fewer_tokens(back_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->out.shape[0] = 4;
}

static void out_at_odd_address(back_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->out.data = (char *)args->out.data + 2;
}

static void out_of_overlapping_rows(back_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->out.strides[0] = 8;
}

static void out_on_a_gpu(back_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->out.device.type = EXPAR_CUDA;
}

static _Alignas(16) int64_t room[WRONG_RANKS + 1];

static void waits_of_more_ranks(back_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->wait_ns = expar_tensor_1d(room, EXPAR_I64, WRONG_RANKS + 1);
}

static void waits_of_floats(back_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->wait_ns = expar_tensor_1d(room, EXPAR_F32, WRONG_RANKS);
}

static const wrong_case cases[] = {
    {"no args", EXPAR_ERR_NULL, {"args is NULL"}, .call = call_without_args, .is_combine = true},
    {"no result", EXPAR_ERR_NULL, {"result is NULL"}, .call = call_without_result, .is_combine = true},
    {"args of no size", EXPAR_ERR_ARGUMENT, {"args.struct_size", "is 0"}, .spoil_combine = args_of_no_size},
    {"handle absent", EXPAR_ERR_NULL, {"handle is NULL"}, .spoil_combine = handle_absent},
    {"handle of another buffer", EXPAR_ERR_HANDLE, {"handle"}, .spoil_combine = handle_of_another_buffer},
    {"handle that is none", EXPAR_ERR_HANDLE, {"handle"}, .spoil_combine = handle_that_is_none},
    {"x absent", EXPAR_ERR_NULL, {"x "}, .spoil_combine = x_absent},
    {"x without data", EXPAR_ERR_NULL, {"x.data is NULL"}, .spoil_combine = x_without_data},
    {"x of integers", EXPAR_ERR_DTYPE, {"x.dtype is i32", "expected"}, .spoil_combine = x_of_integers},
    {"x of long elements",
     EXPAR_ERR_LIMIT,
     {"x.dtype is f32", "config.max_element_bytes"},
     .spoil_combine = x_of_long_elements},
    {"x of two dimensions",
     EXPAR_ERR_SHAPE,
     {"x has 2 dimensions", "expected 3"},
     .spoil_combine = x_of_two_dimensions},
    {"x of other experts", EXPAR_ERR_SHAPE, {"x.shape[0] is 1", "expected 2"}, .spoil_combine = x_of_other_experts},
    {"x of fewer rows", EXPAR_ERR_SHAPE, {"x.shape[1] is 6", "expected 18"}, .spoil_combine = x_of_fewer_rows},
    {"x of other rows", EXPAR_ERR_SHAPE, {"x.shape[2] is 8", "expected 16"}, .spoil_combine = x_of_other_hidden},
    {"x at an odd address", EXPAR_ERR_ALIGNMENT, {"x.data"}, .spoil_combine = x_at_odd_address},
    {"x of odd pitch", EXPAR_ERR_ALIGNMENT, {"x.strides"}, .spoil_combine = x_of_odd_pitch},
    {"x of overlapping rows", EXPAR_ERR_STRIDE, {"x.strides"}, .spoil_combine = x_of_overlapping_rows},
    {"x of spread columns", EXPAR_ERR_STRIDE, {"x.strides[2] is 2"}, .spoil_combine = x_of_spread_columns},
    {"x of endless pitch", EXPAR_ERR_STRIDE, {"x.strides"}, .spoil_combine = x_of_endless_pitch},
    {"x on a GPU", EXPAR_ERR_DEVICE, {"x lies on", "expected"}, .spoil_combine = x_on_a_gpu},
    {"topk_idx absent", EXPAR_ERR_NULL, {"topk_idx "}, .spoil_combine = idx_absent},
    {"topk_idx of another T", EXPAR_ERR_SHAPE, {"topk_idx", "4", "5"}, .spoil_combine = idx_of_another_t},
    {"topk_idx of fewer slots", EXPAR_ERR_SHAPE, {"topk_idx", "2", "3"}, .spoil_combine = idx_of_fewer_slots},
    {"topk_idx of floats", EXPAR_ERR_DTYPE, {"topk_idx.dtype is f32"}, .spoil_combine = idx_of_floats},
    {"topk_weights absent", EXPAR_ERR_NULL, {"topk_weights "}, .spoil_combine = weights_absent},
    {"topk_weights of another T", EXPAR_ERR_SHAPE, {"topk_weights", "6", "5"}, .spoil_combine = weights_of_another_t},
    {"topk_weights of integers", EXPAR_ERR_DTYPE, {"topk_weights.dtype is i32"}, .spoil_combine = weights_of_integers},
    {"sum unknown", EXPAR_ERR_ARGUMENT, {"sum is 2", "expected"}, .spoil_combine = sum_unknown},
    {"format of dispatches", EXPAR_ERR_ARGUMENT, {"format is 1", "expected"}, .spoil_combine = format_of_dispatches},
    {"format of groups", EXPAR_ERR_SHAPE, {"format is 5", "16", "multiple of 128"}, .spoil_combine = format_of_groups},
    {"format of exact sums", EXPAR_ERR_ARGUMENT, {"format is 5", "sum 1"}, .spoil_combine = format_of_exact_sums},
    {"format unknown", EXPAR_ERR_ARGUMENT, {"format is -1", "expected"}, .spoil_combine = format_unknown},
    {"hook and event", EXPAR_ERR_ARGUMENT, {"hook is 1 and async_finish is 1"}, .spoil_combine = hook_and_event},
    {"wait_event that has gone",
     EXPAR_ERR_HANDLE,
     {"wait_event", "is not a living event"},
     .spoil_combine = event_that_has_gone},
    {"hook of 2", EXPAR_ERR_ARGUMENT, {"hook is 2", "expected 0 or 1"}, .spoil_combine = hook_of_two},
    {"async_finish of 3",
     EXPAR_ERR_ARGUMENT,
     {"async_finish is 3", "expected 0 or 1"},
     .spoil_combine = async_of_three},
    {"out of another dtype", EXPAR_ERR_DTYPE, {"out.dtype is f16", "bf16"}, .spoil_combine = out_of_another_dtype},
    {"out of fewer tokens", EXPAR_ERR_SHAPE, {"out", "4", "5"}, .spoil_combine = out_of_fewer_tokens},
    {"out at an odd address", EXPAR_ERR_ALIGNMENT, {"out.data"}, .spoil_combine = out_at_odd_address},
    {"out of overlapping rows", EXPAR_ERR_STRIDE, {"out.strides[0] is 8"}, .spoil_combine = out_of_overlapping_rows},
    {"out on a GPU", EXPAR_ERR_DEVICE, {"out lies on", "expected"}, .spoil_combine = out_on_a_gpu},
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

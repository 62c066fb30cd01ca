/* SPDX-License-Identifier: Apache-2.0 */
/* Every wrong argument of expar_ll_dispatch that one rank sees alone (wrong.h). */
#include "ep/low_latency/wrong.h"

typedef expar_ll_dispatch_args there_args;

/* ---- pointers and structs ---------------------------------------------------------------------------------------- */

static expar_status call_without_args(const wrong_scene *scene)
{
    expar_ll_dispatch_result result = EXPAR_LL_DISPATCH_RESULT_INIT;
    return expar_ll_dispatch(scene->ll, NULL, &result);
}

static expar_status call_without_result(const wrong_scene *scene)
{
    const lowlat_choice plain = {0};
    lowlat_call call;
    lowlat_prepare_dispatch(&call, scene->ll, scene->traffic, scene->rank, &plain);
    expar_status status = expar_ll_dispatch(scene->ll, &call.there_args, NULL);
    lowlat_clean(&call);
    return status;
}

static expar_status call_with_result_of_no_size(const wrong_scene *scene)
{
    const lowlat_choice plain = {0};
    lowlat_call call;
    lowlat_prepare_dispatch(&call, scene->ll, scene->traffic, scene->rank, &plain);
    call.there.struct_size = 0;
    expar_status status = lowlat_start(&call);
    lowlat_clean(&call);
    return status;
}

/* ---- x ----------------------------------------------------------------------------------------------------------- */

/* The buffer is for elements of 2 bytes. */
static void x_of_one_dimension(there_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->x = expar_tensor_1d(args->x.data, args->x.dtype, WRONG_HIDDEN);
}

/* One token more than the buffer's; nothing of it is read. */
static void x_of_too_many_tokens(there_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->x.shape[0] = args->topk_idx.shape[0] = args->topk_weights.shape[0] = WRONG_TOKENS + 1;
}

static void x_at_odd_address(there_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->x.data = (char *)args->x.data + 2;
}

/* The bytes from the first row to the last do not fit 64 bits. */
/* ---- topk_idx and topk_weights ----------------------------------------------------------------------------------- */

/* One slot more than the buffer's. */
static void idx_of_many_slots(there_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->topk_idx.shape[0] = args->x.shape[0] = args->topk_weights.shape[0] = 1;
    args->topk_idx.shape[1] = args->topk_idx.strides[0] = WRONG_TOPK + 1;
}

/* ---- manner ------------------------------------------------------------------------------------------------------ */

/* Groups of 128 elements do not fit rows of 16. */
static void hook_and_event(there_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->hook = args->async_finish = 1;
}

static void event_that_has_gone(there_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->wait_event = wrong_event_gone();
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* Memory that no refused call writes to. */
static _Alignas(16) char spare[WRONG_EXPERTS * WRONG_RANKS * WRONG_TOKENS * WRONG_HIDDEN * 2 + 16];

static expar_tensor fitting_x(const there_args *args)
{
    const int64_t places = WRONG_RANKS * WRONG_TOKENS;
    return (expar_tensor){.data = spare,
                          .dtype = args->x.dtype,
                          .ndim = 3,
                          .shape = {WRONG_EXPERTS / WRONG_RANKS, places, WRONG_HIDDEN},
                          .strides = {places * WRONG_HIDDEN, WRONG_HIDDEN, 1},
                          .device = {.type = EXPAR_CPU}};
}

static void out_x_of_another_dtype(there_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->out_x = fitting_x(args);
    args->out_x.dtype = EXPAR_F16;
}

static void out_x_of_two_dimensions(there_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->out_x = expar_tensor_2d(spare, args->x.dtype, WRONG_EXPERTS / WRONG_RANKS, WRONG_HIDDEN);
}

static void out_x_of_fewer_rows(there_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->out_x = fitting_x(args);
    args->out_x.shape[1]--;
}

static void out_x_of_wide_rows(there_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->out_x = fitting_x(args);
    args->out_x.strides[1] += 8;
}

static void out_x_at_odd_address(there_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->out_x = fitting_x(args);
    args->out_x.data = spare + 2;
}

static void out_x_on_a_gpu(there_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->out_x = fitting_x(args);
    args->out_x.device.type = EXPAR_CUDA;
}

static void out_scales_without_scales(there_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->out_scales = fitting_x(args);
}

static void global_scale_without_nvfp4(there_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->global_scale = expar_tensor_1d(spare, EXPAR_F32, 1);
}

static void global_scale_of_two_numbers(there_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->format = EXPAR_LL_FORMAT_NVFP4;
    args->global_scale = expar_tensor_1d(spare, EXPAR_F32, 2);
}

static void global_scale_of_another_dtype(there_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->format = EXPAR_LL_FORMAT_NVFP4;
    args->global_scale = expar_tensor_1d(spare, EXPAR_F16, 1);
}

static void blocks_of_short_rows(there_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->format = EXPAR_LL_FORMAT_NVFP4;
    args->global_scale = expar_tensor_1d(spare, EXPAR_F32, 1);
}

static void out_count_of_more_experts(there_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->out_count = expar_tensor_1d(spare, EXPAR_I32, WRONG_EXPERTS);
}

static void out_count_of_long_integers(there_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->out_count = expar_tensor_1d(spare, EXPAR_I64, WRONG_EXPERTS / WRONG_RANKS);
}

static void stats_of_floats(there_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->expert_recv_stats = expar_tensor_1d(spare, EXPAR_F32, WRONG_EXPERTS / WRONG_RANKS);
}

static void stats_of_all_experts(there_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->expert_recv_stats = expar_tensor_1d(spare, EXPAR_I32, WRONG_EXPERTS);
}

static void waits_of_fewer_ranks(there_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->wait_ns = expar_tensor_1d(spare, EXPAR_I64, WRONG_RANKS - 1);
}

static void waits_of_short_integers(there_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->wait_ns = expar_tensor_1d(spare, EXPAR_I32, WRONG_RANKS);
}

static void waits_at_odd_address(there_args *args, const wrong_scene *scene)
{
    (void)scene;
    args->wait_ns = expar_tensor_1d(spare + 4, EXPAR_I64, WRONG_RANKS);
}

static const wrong_case cases[] = {
    {"no args", EXPAR_ERR_NULL, {"args is NULL"}, .call = call_without_args},
    {"no result", EXPAR_ERR_NULL, {"result is NULL"}, .call = call_without_result},
    {"result of no size", EXPAR_ERR_ARGUMENT, {"result.struct_size", "is 0"}, .call = call_with_result_of_no_size},
    {"args of no size", EXPAR_ERR_ARGUMENT, {"args.struct_size", "is 0"}, WRONG_SET_DISPATCH(struct_size, 0)},
    {"args of the future",
     EXPAR_ERR_ARGUMENT,
     {"args.struct_size"},
     WRONG_SET_DISPATCH(struct_size, sizeof(expar_ll_dispatch_args) + 8)},
    {"x absent", EXPAR_ERR_NULL, {"x "}, WRONG_SET_DISPATCH(x, 0)},
    {"x without data", EXPAR_ERR_NULL, {"x.data is NULL"}, WRONG_SET_DISPATCH(x.data, NULL)},
    {"x of integers", EXPAR_ERR_DTYPE, {"x.dtype is i32", "expected"}, WRONG_SET_DISPATCH(x.dtype, EXPAR_I32)},
    {"x of no dtype",
     EXPAR_ERR_DTYPE,
     {"x.dtype is 99", "expected bf16"},
     WRONG_SET_DISPATCH(x.dtype, (expar_dtype)99)},
    {"x of long elements",
     EXPAR_ERR_LIMIT,
     {"x.dtype is f32", "config.max_row_bytes"},
     WRONG_SET_DISPATCH(x.dtype, EXPAR_F32)},
    {"x of one dimension", EXPAR_ERR_SHAPE, {"x has 1 dimension", "expected 2"}, .spoil_dispatch = x_of_one_dimension},
    {"x of negative extent", EXPAR_ERR_SHAPE, {"x has shape [-5]"}, WRONG_SET_DISPATCH(x.shape[0], -5)},
    {"x of other rows",
     EXPAR_ERR_SHAPE,
     {"x has hidden size 8", "16 (config.hidden)"},
     WRONG_SET_DISPATCH(x.shape[1], 8)},
    {"x of another T", EXPAR_ERR_SHAPE, {"topk_idx", "5", "4"}, WRONG_SET_DISPATCH(x.shape[0], 4)},
    {"x of too many tokens",
     EXPAR_ERR_LIMIT,
     {"x has 7 tokens", "6 (config.max_tokens)"},
     .spoil_dispatch = x_of_too_many_tokens},
    {"x at an odd address", EXPAR_ERR_ALIGNMENT, {"x.data"}, .spoil_dispatch = x_at_odd_address},
    {"x of odd pitch", EXPAR_ERR_ALIGNMENT, {"x.strides[0]"}, WRONG_SET_DISPATCH(x.strides[0], 17)},
    {"x of spread columns", EXPAR_ERR_STRIDE, {"x.strides[1] is 2"}, WRONG_SET_DISPATCH(x.strides[1], 2)},
    {"x of overlapping rows", EXPAR_ERR_STRIDE, {"x.strides[0] is 8"}, WRONG_SET_DISPATCH(x.strides[0], 8)},
    {"x of endless pitch", EXPAR_ERR_STRIDE, {"x.strides[0]"}, WRONG_SET_DISPATCH(x.strides[0], INT64_MAX - 7)},
    {"x on a GPU", EXPAR_ERR_DEVICE, {"x lies on", "expected"}, WRONG_SET_DISPATCH(x.device.type, EXPAR_CUDA)},
    {"topk_idx absent", EXPAR_ERR_NULL, {"topk_idx "}, WRONG_SET_DISPATCH(topk_idx, 0)},
    {"topk_idx without data", EXPAR_ERR_NULL, {"topk_idx.data is NULL"}, WRONG_SET_DISPATCH(topk_idx.data, NULL)},
    {"topk_idx of floats", EXPAR_ERR_DTYPE, {"topk_idx.dtype is f32"}, WRONG_SET_DISPATCH(topk_idx.dtype, EXPAR_F32)},
    {"topk_idx of another T", EXPAR_ERR_SHAPE, {"topk_idx", "4", "5"}, WRONG_SET_DISPATCH(topk_idx.shape[0], 4)},
    {"topk_idx of many slots",
     EXPAR_ERR_LIMIT,
     {"topk_idx has 4 slots", "config.max_topk"},
     .spoil_dispatch = idx_of_many_slots},
    {"topk_idx of no slots",
     EXPAR_ERR_LIMIT,
     {"topk_idx has 0 slots", "config.max_topk"},
     WRONG_SET_DISPATCH(topk_idx.shape[1], 0)},
    {"topk_idx of spread slots",
     EXPAR_ERR_STRIDE,
     {"topk_idx.strides[1] is 2"},
     WRONG_SET_DISPATCH(topk_idx.strides[1], 2)},
    {"topk_idx on a GPU",
     EXPAR_ERR_DEVICE,
     {"topk_idx lies on", "expected"},
     WRONG_SET_DISPATCH(topk_idx.device.type, EXPAR_CUDA)},
    {"topk_weights without data",
     EXPAR_ERR_NULL,
     {"topk_weights.data is NULL"},
     WRONG_SET_DISPATCH(topk_weights.data, NULL)},
    {"topk_weights of integers",
     EXPAR_ERR_DTYPE,
     {"topk_weights.dtype is i32"},
     WRONG_SET_DISPATCH(topk_weights.dtype, EXPAR_I32)},
    {"topk_weights of fewer slots",
     EXPAR_ERR_SHAPE,
     {"topk_weights", "2", "3"},
     WRONG_SET_DISPATCH(topk_weights.shape[1], WRONG_TOPK - 1)},
    {"topk_weights of another T",
     EXPAR_ERR_SHAPE,
     {"topk_weights", "4", "5"},
     WRONG_SET_DISPATCH(topk_weights.shape[0], 4)},
    {"format unknown", EXPAR_ERR_ARGUMENT, {"format is 9", "expected"}, WRONG_SET_DISPATCH(format, (expar_ll_format)9)},
    {"format of combines",
     EXPAR_ERR_ARGUMENT,
     {"format is LOGFMT", "expected"},
     WRONG_SET_DISPATCH(format, EXPAR_LL_FORMAT_LOGFMT)},
    {"format of groups",
     EXPAR_ERR_SHAPE,
     {"format is INT8", "16", "multiple of 128"},
     WRONG_SET_DISPATCH(format, EXPAR_LL_FORMAT_INT8)},
    {"format of blocks",
     EXPAR_ERR_SHAPE,
     {"format is NVFP4", "16", "multiple of 128"},
     .spoil_dispatch = blocks_of_short_rows},
    {"no global scale",
     EXPAR_ERR_NULL,
     {"global_scale is not given", "NVFP4"},
     WRONG_SET_DISPATCH(format, EXPAR_LL_FORMAT_NVFP4)},
    {"global scale of another format",
     EXPAR_ERR_ARGUMENT,
     {"global_scale is given", "PLAIN", "NVFP4"},
     .spoil_dispatch = global_scale_without_nvfp4},
    {"global scale of two numbers",
     EXPAR_ERR_SHAPE,
     {"global_scale.shape[0] is 2", "expected 1"},
     .spoil_dispatch = global_scale_of_two_numbers},
    {"global scale of another dtype",
     EXPAR_ERR_DTYPE,
     {"global_scale.dtype is f16", "f32"},
     .spoil_dispatch = global_scale_of_another_dtype},
    {"hook and event", EXPAR_ERR_ARGUMENT, {"hook is 1 and async_finish is 1"}, .spoil_dispatch = hook_and_event},
    {"wait_event that has gone",
     EXPAR_ERR_HANDLE,
     {"wait_event", "is not a living event"},
     .spoil_dispatch = event_that_has_gone},
    {"hook of 2", EXPAR_ERR_ARGUMENT, {"hook is 2", "expected 0 or 1"}, WRONG_SET_DISPATCH(hook, 2)},
    {"async_finish of 3",
     EXPAR_ERR_ARGUMENT,
     {"async_finish is 3", "expected 0 or 1"},
     WRONG_SET_DISPATCH(async_finish, 3)},
    {"out_x of another dtype",
     EXPAR_ERR_DTYPE,
     {"out_x.dtype is f16", "bf16"},
     .spoil_dispatch = out_x_of_another_dtype},
    {"out_x of two dimensions",
     EXPAR_ERR_SHAPE,
     {"out_x has 2 dimensions", "expected 3"},
     .spoil_dispatch = out_x_of_two_dimensions},
    {"out_x of fewer rows",
     EXPAR_ERR_SHAPE,
     {"out_x.shape[1] is 17", "expected 18"},
     .spoil_dispatch = out_x_of_fewer_rows},
    {"out_x of wide rows",
     EXPAR_ERR_STRIDE,
     {"out_x.strides[1] is 24", "expected 16"},
     .spoil_dispatch = out_x_of_wide_rows},
    {"out_x at an odd address", EXPAR_ERR_ALIGNMENT, {"out_x.data"}, .spoil_dispatch = out_x_at_odd_address},
    {"out_x on a GPU", EXPAR_ERR_DEVICE, {"out_x lies on", "expected"}, .spoil_dispatch = out_x_on_a_gpu},
    {"out_scales without scales",
     EXPAR_ERR_ARGUMENT,
     {"out_scales is given"},
     .spoil_dispatch = out_scales_without_scales},
    {"out_count of more experts",
     EXPAR_ERR_SHAPE,
     {"out_count.shape[0] is 6", "expected 2"},
     .spoil_dispatch = out_count_of_more_experts},
    {"out_count of long integers",
     EXPAR_ERR_DTYPE,
     {"out_count.dtype is i64", "i32"},
     .spoil_dispatch = out_count_of_long_integers},
    {"stats of floats", EXPAR_ERR_DTYPE, {"expert_recv_stats.dtype is f32", "i32"}, .spoil_dispatch = stats_of_floats},
    {"stats of all experts",
     EXPAR_ERR_SHAPE,
     {"expert_recv_stats.shape[0] is 6", "expected 2"},
     .spoil_dispatch = stats_of_all_experts},
    {"waits of fewer ranks",
     EXPAR_ERR_SHAPE,
     {"wait_ns.shape[0] is 2", "expected 3"},
     .spoil_dispatch = waits_of_fewer_ranks},
    {"waits of short integers",
     EXPAR_ERR_DTYPE,
     {"wait_ns.dtype is i32", "i64"},
     .spoil_dispatch = waits_of_short_integers},
    {"waits at an odd address", EXPAR_ERR_ALIGNMENT, {"wait_ns.data"}, .spoil_dispatch = waits_at_odd_address},
};

int main(void)
{
    return wrong_run("bad low-latency dispatches", cases, sizeof cases / sizeof *cases);
}

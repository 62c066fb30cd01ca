/* SPDX-License-Identifier: Apache-2.0 */
/* Counts the driver calls of warm calls: every operation of both modes on one rank, on simulated GPUs with the
 * library's own kernels. The numbers below are what they took when this was written; they may become smaller. No
 * operation puts a host function on a stream, takes memory of the driver's, or waits for a stream. */
#include "cuda/find_controls.h"
#include "ep/harness/idle_rank.h"
#include "ep/normal/normal.h"
#include "shmem/kind.h"
#include <expar/low_latency.h>
#include <stdio.h>
#include <string.h>

#define MOST_COUNTS 64
#define WARM        3
#define TOKENS      2
#define EXPERTS     2

/* Parts of the memory of tensors. Indices are zero: all tokens go to expert 0. */
enum { PART_X, PART_IDX, PART_LL_X, PART_WEIGHTS, PART_LAYOUT, PART_Y, PARTS };
#define PART_BYTES 4096

typedef struct scene {
    idle_rank one;
    expar_ll *ll;
    expar_ll_dispatch_args to;
    expar_ll_combine_args back;
    cu_address memory;
    expar_tensor x, topk_idx, y; /* of normal mode */
    /* Made by one operation, used and given back by a later one. */
    expar_ep_dispatch_result again;
    expar_ll_dispatch_result there;
    expar_ll_combine_result device_state;
    expar_event *event;
    expar_ep_layout layout;
    expar_ep_recv_counts counts;
} scene;

/* ---- operations: each once, and what it leaves given back apart from it ------------------------------------------ */

static expar_ep_dispatch_args fresh_args(const scene *s)
{
    expar_ep_dispatch_args args = idle_dispatch_args(&s->one, EXPAR_F32);
    args.x = s->x;
    args.topk_idx = s->topk_idx;
    return args;
}

static expar_ep_combine_args combine_args(const scene *s)
{
    expar_ep_combine_args args = idle_combine_args(&s->one);
    args.x = s->one.came.recv_x;
    args.out_y = s->y;
    return args;
}

static void dispatch(scene *s, const expar_ep_dispatch_args *args)
{
    s->again = (expar_ep_dispatch_result)EXPAR_EP_DISPATCH_RESULT_INIT;
    CHECK_OK(expar_ep_dispatch(s->one.ep, args, &s->again));
}

/* As a program in Python does that does not want the event. PyTorch knows where the tensors lie. */
static void dispatch_forgotten(scene *s, const expar_ep_dispatch_args *args)
{
    s->again = (expar_ep_dispatch_result)EXPAR_EP_DISPATCH_RESULT_INIT;
    ep_vouch_for_places(true);
    CHECK_OK(ep_dispatch_make(s->one.ep, args, true, &s->again));
    ep_vouch_for_places(false);
    CHECK(!s->again.event, "a dispatch made an event that nobody wants");
}

static void dispatch_fresh(scene *s)
{
    const expar_ep_dispatch_args args = fresh_args(s);
    dispatch(s, &args);
}

static void dispatch_fresh_forgotten(scene *s)
{
    expar_ep_dispatch_args args = fresh_args(s);
    args.async_finish = 1;
    dispatch_forgotten(s, &args);
}

static void dispatch_worst(scene *s)
{
    expar_ep_dispatch_args args = fresh_args(s);
    args.num_worst_tokens = TOKENS;
    dispatch(s, &args);
}

static void dispatch_expert_major(scene *s)
{
    expar_ep_dispatch_args args = fresh_args(s);
    args.expert_major = 1;
    dispatch(s, &args);
}

static void route(scene *s)
{
    expar_ep_route_args args = EXPAR_EP_ROUTE_ARGS_INIT;
    expar_ep_route_result result = EXPAR_EP_ROUTE_RESULT_INIT;
    args.topk_idx = s->topk_idx;
    args.num_experts = s->one.group->size;
    args.stream = s->one.stream;
    CHECK_OK(expar_ep_route(s->one.ep, &args, &result));
    s->again = (expar_ep_dispatch_result)EXPAR_EP_DISPATCH_RESULT_INIT;
    s->again.handle = result.handle;
}

static void let_handle_go_after(scene *s)
{
    CHECK_OK(expar_ep_handle_release_after(s->again.handle, s->one.stream));
}

static void allocate(scene *s)
{
    CHECK_OK(expar_ep_alloc(s->one.ep, PART_BYTES, &s->again.output));
    s->again.handle = NULL;
}

/* Its tensors are right, and its number of experts is not. */
static void dispatch_rejected(scene *s)
{
    expar_ep_dispatch_args args = fresh_args(s);
    args.num_experts = -1;
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_ep_dispatch(s->one.ep, &args, &s->again));
}

static void lay_out(scene *s)
{
    CHECK_OK(expar_ep_get_layout(s->one.group, &s->to.topk_idx, EXPERTS, &s->layout));
}

static void dispatch_counted(scene *s)
{
    expar_ep_dispatch_args args = fresh_args(s);
    args.recv_counts = &s->counts;
    dispatch(s, &args);
}

static expar_ep_dispatch_args repeated_args(const scene *s, int async_finish)
{
    expar_ep_dispatch_args args = fresh_args(s);
    args.topk_idx = EXPAR_TENSOR_NONE;
    args.handle = s->one.came.handle;
    args.async_finish = async_finish;
    return args;
}

static void dispatch_with_handle(scene *s)
{
    const expar_ep_dispatch_args args = repeated_args(s, 0);
    dispatch(s, &args);
}

/* Its few indices are checked by the dispatch itself. */
static void dispatch_with_indices(scene *s)
{
    expar_ep_dispatch_args args = repeated_args(s, 0);
    args.topk_idx = s->topk_idx;
    dispatch(s, &args);
}

static void dispatch_async(scene *s)
{
    const expar_ep_dispatch_args args = repeated_args(s, 1);
    dispatch(s, &args);
    expar_event_release(s->again.event);
}

static void dispatch_again_forgotten(scene *s)
{
    const expar_ep_dispatch_args args = repeated_args(s, 1);
    dispatch_forgotten(s, &args);
}

static void combine(scene *s)
{
    const expar_ep_combine_args args = combine_args(s);
    CHECK_OK(expar_ep_combine(s->one.ep, &args, NULL));
}

/* Rows in the caller's memory, where peers read them. */
static void combine_mapped(scene *s)
{
    expar_ep_combine_args args = combine_args(s);
    args.x = s->x;
    CHECK_OK(expar_ep_combine(s->one.ep, &args, NULL));
}

static void combine_forgotten(scene *s)
{
    expar_ep_combine_args args = combine_args(s);
    args.async_finish = 1;
    expar_ep_combine_result done = EXPAR_EP_COMBINE_RESULT_INIT;
    ep_vouch_for_places(true);
    CHECK_OK(ep_combine_make(s->one.ep, &args, true, &done));
    ep_vouch_for_places(false);
    CHECK(!done.event, "a combine made an event that nobody wants");
}

static void combine_captured(scene *s)
{
    cu_graph graph;
    CHECK_OK(CUDA_CALL(StreamBeginCapture, s->one.stream, CU_CAPTURE_THREAD_LOCAL));
    combine(s);
    CHECK_OK(CUDA_CALL(StreamEndCapture, s->one.stream, &graph));
    CHECK_OK(CUDA_CALL(GraphDestroy, graph));
}

static void combine_async(scene *s)
{
    expar_ep_combine_args args = combine_args(s);
    args.async_finish = 1;
    expar_ep_combine_result done = EXPAR_EP_COMBINE_RESULT_INIT;
    CHECK_OK(expar_ep_combine(s->one.ep, &args, &done));
    s->event = done.event;
}

static void let_output_go(scene *s)
{
    CHECK_OK(expar_ep_output_read_on(s->again.output, s->one.stream));
    expar_ep_output_release(s->again.output);
    expar_ep_handle_release(s->again.handle);
}

static void let_output_go_after(scene *s)
{
    CHECK_OK(expar_ep_output_release_after(s->again.output, s->one.stream));
    expar_ep_handle_release(s->again.handle);
}

static void record_event(scene *s)
{
    CHECK_OK(expar_event_record(s->one.stream, &s->event));
}

static void follow_event(scene *s)
{
    CHECK_OK(expar_event_stream_wait(s->event, s->one.stream));
}

static void query_event(scene *s)
{
    int done;
    CHECK_OK(expar_event_query(s->event, &done));
}

static void destroy_event(scene *s)
{
    expar_event_release(s->event);
    s->event = NULL;
}

static void query_buffer(scene *s)
{
    CHECK_OK(expar_ep_query(s->one.ep));
}

static void ll_dispatch(scene *s)
{
    s->there = (expar_ll_dispatch_result)EXPAR_LL_DISPATCH_RESULT_INIT;
    CHECK_OK(expar_ll_dispatch(s->ll, &s->to, &s->there));
}

static void ll_combine(scene *s)
{
    s->back.handle = s->there.handle;
    s->device_state = (expar_ll_combine_result)EXPAR_LL_COMBINE_RESULT_INIT;
    CHECK_OK(expar_ll_combine(s->ll, &s->back, &s->device_state));
}

static void ll_call_hook(scene *s)
{
    expar_ll_hook *hook = s->there.hook ? s->there.hook : s->device_state.hook;
    CHECK_OK(expar_ll_hook_call(hook, s->one.stream));
    expar_ll_hook_release(hook);
    s->there.hook = s->device_state.hook = NULL;
}

static void ll_let_go(scene *s)
{
    expar_ep_output_release(s->there.output);
    expar_ep_output_release(s->device_state.output);
    expar_ll_handle_release(s->there.handle);
    s->there.output = s->device_state.output = NULL;
}

static void ll_by_hooks(scene *s)
{
    s->to.hook = s->back.hook = !s->to.hook;
}

/* most: calls of the driver; of launches of kernels at least `kernels` are among them. */
typedef struct operation {
    const char *name;
    void (*run)(scene *s);
    int most, kernels;
} operation;

static const operation operations[] = {
    {"dispatch", dispatch_fresh, 11, 2},
    {"let an output go that a stream reads", let_output_go, 7, 0},
    {"dispatch whose event nobody wants", dispatch_fresh_forgotten, 9, 2},
    {"let its output go", let_output_go, 7, 0},
    {"dispatch of a worst-case size", dispatch_worst, 11, 2},
    {"let its output go", let_output_go, 7, 0},
    {"expert-major dispatch", dispatch_expert_major, 14, 4},
    {"let its output go", let_output_go, 7, 0},
    {"route", route, 9, 1},
    {"let a handle go after a stream", let_handle_go_after, 7, 0},
    {"layout", lay_out, 9, 1},
    {"dispatch that tells counts", dispatch_counted, 12, 2},
    {"let its output go", let_output_go, 7, 0},
    {"dispatch with a handle", dispatch_with_handle, 9, 1},
    {"let an output go after a stream", let_output_go_after, 7, 0},
    {"dispatch with a handle and indices", dispatch_with_indices, 10, 1},
    {"let its output go", let_output_go, 7, 0},
    {"dispatch with a handle, asynchronous", dispatch_async, 14, 1},
    {"let its output go", let_output_go, 7, 0},
    {"dispatch with a handle, event not wanted", dispatch_again_forgotten, 8, 1},
    {"let its output go", let_output_go, 7, 0},
    {"dispatch that is rejected", dispatch_rejected, 15, 1},
    {"combine", combine, 10, 1},
    {"combine of the caller's rows", combine_mapped, 10, 1},
    {"combine whose event nobody wants", combine_forgotten, 8, 1},
    {"combine, asynchronous", combine_async, 15, 1},
    {"let a stream wait for an event", follow_event, 6, 0},
    {"ask for an event", query_event, 6, 0},
    {"destroy an event", destroy_event, 0, 0},
    {"record an event", record_event, 7, 0},
    {"destroy a recorded event", destroy_event, 0, 0},
    {"ask for a buffer", query_buffer, 0, 0},
    {"take memory of the pool", allocate, 0, 0},
    {"let memory of the pool go", let_output_go, 7, 0},
    {"low-latency dispatch", ll_dispatch, 10, 1},
    {"low-latency combine", ll_combine, 11, 1},
    {"let low-latency results go", ll_let_go, 0, 0},
    {"(from here on by hooks)", ll_by_hooks, 0, 0},
    {"low-latency dispatch by a hook", ll_dispatch, 10, 1},
    {"its hook", ll_call_hook, 8, 1},
    {"low-latency combine by a hook", ll_combine, 11, 1},
    {"its hook", ll_call_hook, 8, 1},
    {"let results of hooks go", ll_let_go, 0, 0},
    {"(from here on whole)", ll_by_hooks, 0, 0},
};

/* After the others: a rank with graphs waits for them in each call. */
static const operation with_graphs[] = {
    {"combine that is captured", combine_captured, 24, 0},
    {"combine after a capture", combine, 11, 1},
};

/* ---- counting ---------------------------------------------------------------------------------------------------- */

static fake_count_begin_function *count_begin;
static fake_count_end_function *count_end;

static bool find_counting(void)
{
    void *library = dlopen(CUDA_DRIVER_LIBRARY, RTLD_NOW | RTLD_NOLOAD);
    return CHECK(library && cuda_symbol_find(library, "fake_count_begin", &count_begin) &&
                     cuda_symbol_find(library, "fake_count_end", &count_end),
                 "the driver does not count");
}

/* A wait of the host asks as often as it takes; each time it leaves captures, and returns. */
#define CALLS_OF_A_LOOK 3
static bool is_a_look(const fake_count *of)
{
    return !strcmp(of->name, "cuStreamQuery");
}

static const char *const forbidden[] = {"cuLaunchHostFunc",     "cuStreamSynchronize", "cuEventSynchronize",
                                        "cuCtxSynchronize",     "cuMemAlloc_v2",       "cuMemFree_v2",
                                        "cuMemAllocAsync",      "cuMemFreeAsync",      "cuMemHostAlloc",
                                        "cuMemFreeHost",        "cuMemCreate",         "cuMemMap",
                                        "cuEventCreate",        "cuEventDestroy_v2",   "cuStreamCreate",
                                        "cuDeviceGetAttribute", "cuModuleLoadData",    "cuDevicePrimaryCtxRetain"};

static void check_one(const operation *op, const fake_count *of)
{
    for (size_t i = 0; i < sizeof forbidden / sizeof *forbidden; i++)
        CHECK(strcmp(of->name, forbidden[i]) != 0, "%s: %s is called", op->name, of->name);
}

static void check_counts(const operation *op, const fake_count *counts, int number)
{
    char text[1024] = "";
    size_t length = 0;
    int all = 0, launches = 0;
    for (int i = 0; i < number; i++) {
        check_one(op, &counts[i]);
        all += is_a_look(&counts[i]) ? (1 - CALLS_OF_A_LOOK) * counts[i].count : counts[i].count;
        if (!strcmp(counts[i].name, "cuLaunchKernelEx")) launches = counts[i].count;
        if (length < sizeof text)
            length += (size_t)snprintf(text + length, sizeof text - length, " %s %d", counts[i].name, counts[i].count);
    }
    printf("%-40s %2d calls of the driver:%s\n", op->name, all, text);
    CHECK(all <= op->most, "%s: %d calls of the driver; expected at most %d:%s", op->name, all, op->most, text);
    CHECK(launches >= op->kernels, "%s: %d kernels; expected %d", op->name, launches, op->kernels);
}

static void run_operations(scene *s, const operation *these, size_t number, bool counted)
{
    for (size_t i = 0; i < number; i++) {
        fake_count counts[MOST_COUNTS];
        if (counted) count_begin();
        these[i].run(s);
        if (counted) check_counts(&these[i], counts, count_end(counts, MOST_COUNTS));
    }
}

static void warm_and_count(scene *s, const operation *these, size_t number)
{
    for (int i = 0; i < WARM; i++)
        run_operations(s, these, number, false);
    run_operations(s, these, number, true);
}

/* ---- the rank ---------------------------------------------------------------------------------------------------- */

static expar_tensor tensor_at(const scene *s, int part, expar_dtype dtype, int64_t rows, int64_t columns)
{
    expar_tensor t = expar_tensor_2d((void *)(uintptr_t)(s->memory + (size_t)part * PART_BYTES), dtype, rows, columns);
    t.device = (expar_device){.type = EXPAR_CUDA};
    return t;
}

static bool make_tensors(scene *s)
{
    const size_t bytes = (size_t)PARTS * PART_BYTES;
    if (!CHECK_OK(CUDA_CALL(MemAlloc, &s->memory, bytes)) || !CHECK_OK(CUDA_CALL(MemsetD8, s->memory, 0, bytes)))
        return false;
    s->x = tensor_at(s, PART_X, EXPAR_F32, TOKENS, IDLE_HIDDEN);
    s->topk_idx = tensor_at(s, PART_IDX, EXPAR_I32, TOKENS, 1);
    s->y = tensor_at(s, PART_Y, EXPAR_F32, TOKENS, IDLE_HIDDEN);
    return true;
}

/* The rows of its combine are those of the dispatch. */
static bool make_low_latency(scene *s)
{
    expar_ll_config config = EXPAR_LL_CONFIG_INIT;
    config.max_tokens = TOKENS;
    config.hidden = IDLE_HIDDEN;
    config.max_topk = 1;
    config.num_experts = EXPERTS;
    config.device = (expar_device){.type = EXPAR_CUDA};
    s->layout = (expar_ep_layout)EXPAR_EP_LAYOUT_INIT;
    s->layout.tokens_per_rank = (int32_t *)(uintptr_t)(s->memory + PART_LAYOUT * PART_BYTES);
    s->layout.tokens_per_expert = s->layout.tokens_per_rank + 16;
    s->layout.token_in_rank = (uint8_t *)(s->layout.tokens_per_rank + 32);
    s->layout.stream = s->one.stream;
    s->counts = (expar_ep_recv_counts)EXPAR_EP_RECV_COUNTS_INIT;
    s->counts.rank_prefix = s->layout.tokens_per_rank + 64;
    s->to = (expar_ll_dispatch_args)EXPAR_LL_DISPATCH_ARGS_INIT;
    s->to.x = tensor_at(s, PART_X, EXPAR_BF16, TOKENS, IDLE_HIDDEN);
    s->to.topk_idx = tensor_at(s, PART_IDX, EXPAR_I64, TOKENS, 1);
    s->to.stream = s->one.stream;
    s->back = (expar_ll_combine_args)EXPAR_LL_COMBINE_ARGS_INIT;
    s->back.x = expar_tensor_1d(NULL, EXPAR_BF16, 0);
    s->back.x.ndim = 3;
    s->back.x.data = (void *)(uintptr_t)(s->memory + PART_LL_X * PART_BYTES);
    s->back.x.shape[0] = EXPERTS;
    s->back.x.shape[1] = TOKENS;
    s->back.x.shape[2] = IDLE_HIDDEN;
    s->back.x.strides[0] = (int64_t)TOKENS * IDLE_HIDDEN;
    s->back.x.strides[1] = IDLE_HIDDEN;
    s->back.x.strides[2] = 1;
    s->back.x.device = (expar_device){.type = EXPAR_CUDA};
    s->back.topk_idx = s->to.topk_idx;
    s->back.topk_weights = tensor_at(s, PART_WEIGHTS, EXPAR_F32, TOKENS, 1);
    s->back.stream = s->one.stream;
    return CHECK_OK(expar_ll_create(s->one.group, &config, &s->ll));
}

static void trial(expar_group *group, void *shared)
{
    scene s = {0};
    (void)shared;
    if (!idle_begin(&s.one, group) || !find_counting() || !make_tensors(&s) || !make_low_latency(&s)) return;
    const expar_ep_dispatch_args first = fresh_args(&s);
    if (CHECK_OK(expar_ep_dispatch(s.one.ep, &first, &s.one.came))) {
        warm_and_count(&s, operations, sizeof operations / sizeof *operations);
        warm_and_count(&s, with_graphs, sizeof with_graphs / sizeof *with_graphs);
    }
    CHECK_OK(CUDA_CALL(StreamSynchronize, s.one.stream));
    CHECK_OK(expar_ll_destroy(s.ll));
    idle_end(&s.one);
}

static void warm_calls(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 1, trial);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(warm_calls)};
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

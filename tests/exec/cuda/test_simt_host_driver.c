/* SPDX-License-Identifier: Apache-2.0 */
/* Counts the driver calls of warm calls: every operation of both modes on one rank, on simulated GPUs with the
 * library's own kernels. The numbers below are what they took when this was written; they may become smaller. No
 * operation puts a host function on a stream, takes memory of the driver's, or waits for a stream. */
#include "cuda/find_controls.h"
#include "ep/harness/idle_rank.h"
#include "shmem/kind.h"
#include <expar/low_latency.h>
#include <stdio.h>
#include <string.h>

#define MOST_COUNTS 64
#define WARM        3
#define TOKENS      2
#define EXPERTS     2

typedef struct scene {
    idle_rank one;
    expar_ll *ll;
    expar_ll_dispatch_args to;
    expar_ll_combine_args back;
    cu_address memory;
    /* Made by one operation, used and given back by a later one. */
    expar_ep_dispatch_result again;
    expar_ll_dispatch_result there;
    expar_ll_combine_result device_state;
    expar_event *event;
    expar_ep_layout layout;
    expar_ep_recv_counts counts;
} scene;

/* ---- operations: each once, and what it leaves given back apart from it ------------------------------------------ */

static void dispatch_fresh(scene *s)
{
    expar_ep_dispatch_args args = idle_dispatch_args(&s->one, EXPAR_F32);
    s->again = (expar_ep_dispatch_result)EXPAR_EP_DISPATCH_RESULT_INIT;
    CHECK_OK(expar_ep_dispatch(s->one.ep, &args, &s->again));
}

static void lay_out(scene *s)
{
    CHECK_OK(expar_ep_get_layout(s->one.group, &s->to.topk_idx, EXPERTS, &s->layout));
}

static void dispatch_counted(scene *s)
{
    expar_ep_dispatch_args args = idle_dispatch_args(&s->one, EXPAR_F32);
    args.recv_counts = &s->counts;
    s->again = (expar_ep_dispatch_result)EXPAR_EP_DISPATCH_RESULT_INIT;
    CHECK_OK(expar_ep_dispatch(s->one.ep, &args, &s->again));
}

static void repeat(scene *s, int async_finish)
{
    expar_ep_dispatch_args args = idle_dispatch_args(&s->one, EXPAR_F32);
    args.topk_idx = EXPAR_TENSOR_NONE;
    args.handle = s->one.came.handle;
    args.async_finish = async_finish;
    s->again = (expar_ep_dispatch_result)EXPAR_EP_DISPATCH_RESULT_INIT;
    CHECK_OK(expar_ep_dispatch(s->one.ep, &args, &s->again));
}

static void dispatch_with_handle(scene *s)
{
    repeat(s, 0);
}

static void dispatch_async(scene *s)
{
    repeat(s, 1);
    expar_event_release(s->again.event);
}

static void combine(scene *s)
{
    const expar_ep_combine_args args = idle_combine_args(&s->one);
    CHECK_OK(expar_ep_combine(s->one.ep, &args, NULL));
}

static void combine_async(scene *s)
{
    expar_ep_combine_args args = idle_combine_args(&s->one);
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
    {"dispatch", dispatch_fresh, 15, 2},
    {"let an output go that a stream reads", let_output_go, 8, 0},
    {"layout", lay_out, 9, 1},
    {"dispatch that tells counts", dispatch_counted, 16, 2},
    {"let its output go", let_output_go, 8, 0},
    {"dispatch with a handle", dispatch_with_handle, 12, 1},
    {"let an output go after a stream", let_output_go_after, 8, 0},
    {"dispatch with a handle, asynchronous", dispatch_async, 17, 1},
    {"let its output go", let_output_go, 8, 0},
    {"combine", combine, 12, 1},
    {"combine, asynchronous", combine_async, 17, 1},
    {"let a stream wait for an event", follow_event, 6, 0},
    {"ask for an event", query_event, 6, 0},
    {"destroy an event", destroy_event, 0, 0},
    {"ask for a buffer", query_buffer, 0, 0},
    {"low-latency dispatch", ll_dispatch, 14, 1},
    {"low-latency combine", ll_combine, 15, 1},
    {"let low-latency results go", ll_let_go, 0, 0},
    {"(from here on by hooks)", ll_by_hooks, 0, 0},
    {"low-latency dispatch by a hook", ll_dispatch, 14, 1},
    {"its hook", ll_call_hook, 12, 1},
    {"low-latency combine by a hook", ll_combine, 15, 1},
    {"its hook", ll_call_hook, 12, 1},
    {"let results of hooks go", ll_let_go, 0, 0},
    {"(from here on whole)", ll_by_hooks, 0, 0},
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

/* A wait of the host asks as often as it takes; each time it enters the context, leaves captures, and returns. */
#define CALLS_OF_A_LOOK 5
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

static void run_operations(scene *s, bool counted)
{
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
        fake_count counts[MOST_COUNTS];
        if (counted) count_begin();
        operations[i].run(s);
        if (counted) check_counts(&operations[i], counts, count_end(counts, MOST_COUNTS));
    }
}

/* ---- the rank ---------------------------------------------------------------------------------------------------- */

static expar_tensor tensor_at(const scene *s, size_t offset, expar_dtype dtype, int64_t rows, int64_t columns)
{
    expar_tensor t = expar_tensor_2d((void *)(uintptr_t)(s->memory + offset), dtype, rows, columns);
    t.device = (expar_device){.type = EXPAR_CUDA};
    return t;
}

/* Two tokens, all to expert 0, whose rows are those of the dispatch. */
static bool make_low_latency(scene *s)
{
    expar_ll_config config = EXPAR_LL_CONFIG_INIT;
    config.max_tokens = TOKENS;
    config.hidden = IDLE_HIDDEN;
    config.max_topk = 1;
    config.num_experts = EXPERTS;
    config.device = (expar_device){.type = EXPAR_CUDA};
    const size_t part = 4096;
    if (!CHECK_OK(CUDA_CALL(MemAlloc, &s->memory, 5 * part)) || !CHECK_OK(CUDA_CALL(MemsetD8, s->memory, 0, 5 * part)))
        return false;
    s->layout = (expar_ep_layout)EXPAR_EP_LAYOUT_INIT;
    s->layout.tokens_per_rank = (int32_t *)(uintptr_t)(s->memory + 4 * part);
    s->layout.tokens_per_expert = s->layout.tokens_per_rank + 16;
    s->layout.token_in_rank = (uint8_t *)(s->layout.tokens_per_rank + 32);
    s->layout.stream = s->one.stream;
    s->counts = (expar_ep_recv_counts)EXPAR_EP_RECV_COUNTS_INIT;
    s->counts.rank_prefix = s->layout.tokens_per_rank + 64;
    s->to = (expar_ll_dispatch_args)EXPAR_LL_DISPATCH_ARGS_INIT;
    s->to.x = tensor_at(s, 0, EXPAR_BF16, TOKENS, IDLE_HIDDEN);
    s->to.topk_idx = tensor_at(s, part, EXPAR_I64, TOKENS, 1);
    s->to.stream = s->one.stream;
    s->back = (expar_ll_combine_args)EXPAR_LL_COMBINE_ARGS_INIT;
    s->back.x = expar_tensor_1d(NULL, EXPAR_BF16, 0);
    s->back.x.ndim = 3;
    s->back.x.data = (void *)(uintptr_t)(s->memory + 2 * part);
    s->back.x.shape[0] = EXPERTS;
    s->back.x.shape[1] = TOKENS;
    s->back.x.shape[2] = IDLE_HIDDEN;
    s->back.x.strides[0] = (int64_t)TOKENS * IDLE_HIDDEN;
    s->back.x.strides[1] = IDLE_HIDDEN;
    s->back.x.strides[2] = 1;
    s->back.x.device = (expar_device){.type = EXPAR_CUDA};
    s->back.topk_idx = s->to.topk_idx;
    s->back.topk_weights = tensor_at(s, 3 * part, EXPAR_F32, TOKENS, 1);
    s->back.stream = s->one.stream;
    return CHECK_OK(expar_ll_create(s->one.group, &config, &s->ll));
}

static void trial(expar_group *group, void *shared)
{
    scene s = {0};
    (void)shared;
    if (!idle_begin(&s.one, group) || !find_counting() || !make_low_latency(&s)) return;
    if (idle_dispatch(&s.one, EXPAR_F32)) {
        for (int i = 0; i < WARM; i++)
            run_operations(&s, false);
        run_operations(&s, true);
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

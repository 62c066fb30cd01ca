/* SPDX-License-Identifier: Apache-2.0 */
/* The order of a rank's calls (exec/cuda/core/order.c), on the simulated driver: captures that go on at a time, graphs
 * and calls whose streams are slow. Also a driver that does not take the order's events. */
#include "cuda/find_controls.h"
#include "ep/harness/idle_rank.h"
#include "ep/normal/normal.h"
#include "exec/cuda/normal/normal_gpu.h"
#include "shmem/kind.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

/* ---- captures ---------------------------------------------------------------------------------------------------- */

/* A capture with two streams, the second of which joins it before any call. */
typedef struct capture {
    cu_stream streams[2];
    cu_event forked;
} capture;

static void open_capture(capture *c)
{
    for (int i = 0; i < 2; i++)
        CHECK_OK(CUDA_CALL(StreamCreate, &c->streams[i], CU_STREAM_NON_BLOCKING));
    CHECK_OK(CUDA_CALL(EventCreate, &c->forked, CU_EVENT_NO_TIMING));
    CHECK_OK(CUDA_CALL(StreamBeginCapture, c->streams[0], CU_CAPTURE_THREAD_LOCAL));
    CHECK_OK(CUDA_CALL(EventRecord, c->forked, c->streams[0]));
    CHECK_OK(CUDA_CALL(StreamWaitEvent, c->streams[1], c->forked, 0));
}

static cu_graph_exec end_capture(capture *c)
{
    cu_graph graph = NULL;
    cu_graph_exec exec = NULL;
    CHECK_OK(CUDA_CALL(StreamEndCapture, c->streams[0], &graph));
    CHECK_OK(CUDA_CALL(GraphInstantiate, &exec, graph, 0));
    CHECK_OK(CUDA_CALL(GraphDestroy, graph));
    CHECK_OK(CUDA_CALL(EventDestroy, c->forked));
    for (int i = 0; i < 2; i++)
        CHECK_OK(CUDA_CALL(StreamDestroy, c->streams[i]));
    return exec;
}

static void close_capture(capture *c)
{
    CHECK_OK(CUDA_CALL(GraphExecDestroy, end_capture(c)));
}

/* Waits of a capture's first call. It waits for what comes before the launch; and there and back, for a stream of the
   order's that is in the capture as long as it goes on. */
#define FIRST 1, 2

/* Waits for what comes before the launch of a graph, and others, that a combine on the stream adds. */
static void check_waits(const idle_rank *one, cu_stream stream, int outside, int inside, const char *what)
{
    const fake_controls *controls = controls_find();
    expar_ep_combine_args args = idle_combine_args(one);
    args.stream = stream;
    if (!CHECK(controls, "another driver is open")) return;
    int outside_before = atomic_load(&controls->outside), others_before = atomic_load(&controls->others);
    CHECK_OK(expar_ep_combine(one->ep, &args, NULL));
    int got = atomic_load(&controls->outside) - outside_before;
    CHECK(got == outside, "%s: %d waits for what comes before the launch", what, got);
    got = atomic_load(&controls->others) - others_before - got;
    CHECK(got == inside, "%s: %d waits for calls of the capture", what, got);
}

static void trial_two_captures(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    capture a, b;
    if (!idle_begin(&one, group) || !idle_dispatch(&one, EXPAR_F32)) return;
    open_capture(&a);
    open_capture(&b);
    check_waits(&one, a.streams[0], FIRST, "the first call of a");
    check_waits(&one, b.streams[0], FIRST, "the first call of b");
    check_waits(&one, a.streams[1], 0, 1, "the second of a");
    check_waits(&one, b.streams[1], 0, 1, "the second of b");
    check_waits(&one, a.streams[0], 0, 1, "the third of a");
    close_capture(&a);
    check_waits(&one, b.streams[0], 0, 1, "the third of b");
    close_capture(&b);
    CHECK(idle_combine(&one), "a call behind captures");
    idle_end(&one);
}

static void captures_at_a_time(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 1, trial_two_captures);
}

/* Far more than there are places for. */
static void trial_many_captures(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    if (!idle_begin(&one, group) || !idle_dispatch(&one, EXPAR_F32)) return;
    for (int i = 0; i < 50 && !check_failures(); i++) {
        capture c;
        open_capture(&c);
        check_waits(&one, c.streams[0], FIRST, "the first call");
        check_waits(&one, c.streams[1], 0, 1, "the second call");
        close_capture(&c);
    }
    idle_end(&one);
}

/* One capture goes on while more than there are places for come and go. */
static void trial_a_long_capture(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    capture lasting;
    if (!idle_begin(&one, group) || !idle_dispatch(&one, EXPAR_F32)) return;
    open_capture(&lasting);
    check_waits(&one, lasting.streams[0], FIRST, "the first call");
    for (int i = 0; i < 30 && !check_failures(); i++) {
        capture c;
        open_capture(&c);
        check_waits(&one, c.streams[0], FIRST, "the first call of another one");
        close_capture(&c);
        if (i % 15 == 14) check_waits(&one, lasting.streams[i % 2], 0, 1, "a later call");
    }
    close_capture(&lasting);
    idle_end(&one);
}

static void a_capture_that_outlasts_others(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 1, trial_a_long_capture);
}

#define MOST 8

static void check_rejected(const idle_rank *one, cu_stream stream)
{
    const fake_controls *controls = controls_find();
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    expar_ep_dispatch_args fresh = idle_dispatch_args(one, EXPAR_F32), again = fresh;
    expar_ep_combine_args back = idle_combine_args(one);
    if (!CHECK(controls, "another driver is open")) return;
    int put = atomic_load(&controls->others) + atomic_load(&controls->launches);
    fresh.stream = again.stream = back.stream = stream;
    fresh.num_worst_tokens = 4;
    again.handle = one->came.handle;
    again.topk_idx = (expar_tensor){0};
    again.num_experts = 0;
    CHECK_STATUS(EXPAR_ERR_STATE, expar_ep_combine(one->ep, &back, NULL));
    CHECK_TEXT("expar_ep_combine on rank 0: ", "being captured while 8 other captures",
               "expected 8 captures at a time at most");
    CHECK_STATUS(EXPAR_ERR_STATE, expar_ep_dispatch(one->ep, &fresh, &result));
    CHECK_TEXT("expar_ep_dispatch on rank 0: ", "expected 8 captures at a time at most");
    CHECK_STATUS(EXPAR_ERR_STATE, expar_ep_dispatch(one->ep, &again, &result));
    CHECK_TEXT("expar_ep_dispatch on rank 0: ", "expected 8 captures at a time at most");
    put = atomic_load(&controls->others) + atomic_load(&controls->launches) - put;
    CHECK(put == 0, "%d kernels and waits were put on a stream", put);
}

/* Call by call in turns. */
static void trial_too_many_captures(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    capture all[MOST + 1];
    if (!idle_begin(&one, group) || !idle_dispatch(&one, EXPAR_F32)) return;
    for (int i = 0; i <= MOST; i++)
        open_capture(&all[i]);
    for (int i = 0; i < MOST; i++)
        check_waits(&one, all[i].streams[0], FIRST, "a first call");
    check_rejected(&one, all[MOST].streams[0]);
    for (int i = 0; i < MOST; i++)
        check_waits(&one, all[i].streams[1], 0, 1, "a second call");
    check_rejected(&one, all[MOST].streams[1]);
    close_capture(&all[3]);
    check_waits(&one, all[MOST].streams[0], FIRST, "the first call of the ninth");
    for (int i = 0; i <= MOST; i++) {
        if (i == 3) continue;
        check_waits(&one, all[i].streams[1], 0, 1, "a last call");
        close_capture(&all[i]);
    }
    CHECK(idle_combine(&one), "a call behind captures");
    idle_end(&one);
}

static void a_ninth_capture_at_a_time_is_rejected(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 1, trial_too_many_captures);
}

static void captures_one_after_another(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 1, trial_many_captures);
}

/* ---- graphs after something slow --------------------------------------------------------------------------------- */

/* Looks at a call that must not have gone on. */
#define LOOKS 50

/* Two buffers of a rank, so that epochs tell whose call has run; a graph with a combine of each, and a slow kernel. */
typedef struct slow {
    fake_controls *controls;
    idle_rank ranks[2]; /* the second one has the first one's stream */
    cu_graph_exec execs[2];
    cu_stream other; /* stream */
    uint32_t epochs[2];
    cu_module module;
    cu_function spin;
    atomic_int end; /* 1: the slow kernel goes on */
} slow;

static uint32_t epoch_of(const slow *s, int i)
{
    return __atomic_load_n(&gpu_of(s->ranks[i].ep->base.exec)->core.place.state->epoch, __ATOMIC_ACQUIRE);
}

/* By the last combine of buffer i. */
static bool has_run(const slow *s, int i)
{
    return epoch_of(s, i) != s->epochs[i];
}

static bool slow_begin(slow *s, expar_group *group)
{
    *s = (slow){.controls = NULL};
    if (!idle_begin(&s->ranks[0], group) || !idle_dispatch(&s->ranks[0], EXPAR_F32)) return false;
    s->controls = controls_find();
    if (!CHECK(s->controls, "another driver is open")) return false;
    const expar_ep_config config = idle_config(group);
    s->ranks[1] = s->ranks[0];
    s->ranks[1].came = (expar_ep_dispatch_result)EXPAR_EP_DISPATCH_RESULT_INIT;
    if (!CHECK_OK(expar_ep_create(group, &config, &s->ranks[1].ep)) || !idle_dispatch(&s->ranks[1], EXPAR_F32))
        return false;
    for (int i = 0; i < 2; i++) {
        capture c;
        expar_ep_combine_args args = idle_combine_args(&s->ranks[i]);
        open_capture(&c);
        args.stream = c.streams[0];
        CHECK_OK(expar_ep_combine(s->ranks[i].ep, &args, NULL));
        s->execs[i] = end_capture(&c);
        s->epochs[i] = epoch_of(s, i);
    }
    CHECK_OK(CUDA_CALL(StreamCreate, &s->other, CU_STREAM_NON_BLOCKING));
    CHECK_OK(CUDA_CALL(ModuleLoadData, &s->module, "a kernel that is slow"));
    CHECK_OK(CUDA_CALL(ModuleGetFunction, &s->spin, s->module, FAKE_SPIN));
    return check_failures() == 0;
}

static void slow_end(slow *s)
{
    for (int i = 0; i < 2; i++)
        CHECK_OK(CUDA_CALL(GraphExecDestroy, s->execs[i]));
    CHECK_OK(CUDA_CALL(ModuleUnload, s->module));
    CHECK_OK(CUDA_CALL(StreamDestroy, s->other));
    idle_forget(&s->ranks[1]);
    CHECK_OK(expar_ep_destroy(s->ranks[1].ep));
    idle_end(&s->ranks[0]);
}

/* From here on streams go on only when all is on them. */
static void put_slow_kernel(slow *s, cu_stream stream)
{
    fake_spin_args args = {&s->end};
    void *parameters[] = {&args};
    const cuda_launch launch = {.function = s->spin, .stream = stream, .blocks = 1, .threads = 1};
    atomic_store(&s->controls->hold, 1);
    CHECK_OK(cuda_launch_kernel(&launch, parameters));
}

/* Buffer 0's call follows the slow kernel, buffer 1's is on another stream. */
static void check_order(slow *s)
{
    atomic_store(&s->controls->hold, 0);
    CHECK(controls_await(&s->controls->running[0], 1), "the slow kernel does not run");
    for (int i = 0; i < LOOKS && !has_run(s, 0) && !has_run(s, 1); i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    CHECK(!has_run(s, 0), "the first call has run, though its stream had not come to it");
    CHECK(!has_run(s, 1), "the second call has run before the first");
    atomic_store(&s->end, 1);
    CHECK(controls_await(&s->controls->held, 0), "something is left on the streams");
    CHECK(has_run(s, 0) && has_run(s, 1), "a call has not run");
}

static expar_event *call_async(slow *s, int i, cu_stream stream)
{
    expar_ep_combine_result done = EXPAR_EP_COMBINE_RESULT_INIT;
    expar_ep_combine_args args = idle_combine_args(&s->ranks[i]);
    args.stream = stream;
    args.async_finish = 1;
    CHECK_OK(expar_ep_combine(s->ranks[i].ep, &args, &done));
    return done.event;
}

static void end_async(expar_event *event)
{
    CHECK_OK(expar_event_wait(event));
    expar_event_release(event);
}

static void trial_a_call_after_a_graph(expar_group *group, void *shared)
{
    slow s;
    (void)shared;
    if (!slow_begin(&s, group)) return;
    put_slow_kernel(&s, s.other);
    CHECK_OK(CUDA_CALL(GraphLaunch, s.execs[0], s.other));
    expar_event *event = call_async(&s, 1, s.ranks[0].stream);
    check_order(&s);
    end_async(event);
    slow_end(&s);
}

static void a_call_follows_a_graph_from_its_launch(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 1, trial_a_call_after_a_graph);
}

static void trial_a_graph_after_a_call(expar_group *group, void *shared)
{
    slow s;
    (void)shared;
    if (!slow_begin(&s, group)) return;
    put_slow_kernel(&s, s.ranks[0].stream);
    expar_event *event = call_async(&s, 0, s.ranks[0].stream);
    CHECK_OK(CUDA_CALL(GraphLaunch, s.execs[1], s.other));
    check_order(&s);
    end_async(event);
    slow_end(&s);
}

static void a_graph_follows_the_calls_before_its_launch(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 1, trial_a_graph_after_a_call);
}

static void trial_a_graph_after_a_graph(expar_group *group, void *shared)
{
    slow s;
    (void)shared;
    if (!slow_begin(&s, group)) return;
    put_slow_kernel(&s, s.other);
    CHECK_OK(CUDA_CALL(GraphLaunch, s.execs[0], s.other));
    CHECK_OK(CUDA_CALL(GraphLaunch, s.execs[1], s.ranks[0].stream));
    check_order(&s);
    slow_end(&s);
}

static void a_graph_follows_a_graph_from_its_launch(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 1, trial_a_graph_after_a_graph);
}

/* A call that waits for a graph is none that the graph waits for. */
static void trial_a_graph_before_a_call(expar_group *group, void *shared)
{
    slow s;
    (void)shared;
    if (!slow_begin(&s, group)) return;
    put_slow_kernel(&s, s.other);
    CHECK_OK(CUDA_CALL(GraphLaunch, s.execs[0], s.other));
    expar_event *event = call_async(&s, 1, s.ranks[0].stream);
    CHECK_OK(CUDA_CALL(GraphLaunch, s.execs[0], s.other));
    check_order(&s);
    end_async(event);
    CHECK(epoch_of(&s, 0) == s.epochs[0] + 2 && epoch_of(&s, 1) == s.epochs[1] + 1, "calls are missing");
    slow_end(&s);
}

static void graphs_and_calls_in_turns_end(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 1, trial_a_graph_before_a_call);
}

/* ---- what hosts poll --------------------------------------------------------------------------------------------- */

/* A dispatch that nobody asks for, in a capture or without a wait, leaves what a call that is waited for has told. */
static void trial_counts_that_stay(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    capture c;
    expar_ep_dispatch_result results[2] = {EXPAR_EP_DISPATCH_RESULT_INIT, EXPAR_EP_DISPATCH_RESULT_INIT};
    if (!idle_begin(&one, group) || !idle_dispatch(&one, EXPAR_F32)) return;
    const gpu_report *report = gpu_of(one.ep->base.exec)->core.report;
    int32_t *counts = gpu_of(one.ep->base.exec)->counters->scratch->pinned.host;
    const uint64_t ready = report->counts_ready;
    CHECK(ready > 0, "the call that was waited for has no ticket");
    counts[0] = 77; /* no count of a rank without tokens */
    expar_ep_dispatch_args args = idle_dispatch_args(&one, EXPAR_F32);
    args.num_worst_tokens = 8;
    open_capture(&c);
    for (int i = 0; i < 2; i++) {
        args.stream = i ? one.stream : c.streams[0];
        CHECK_OK(expar_ep_dispatch(one.ep, &args, &results[i]));
        CHECK(report->counts_ready == ready, "%d: counts_ready is %llu", i, (unsigned long long)report->counts_ready);
        CHECK(counts[0] == 77, "%d: there are other counts", i);
    }
    close_capture(&c);
    CHECK(idle_dispatch(&one, EXPAR_F32), "a call that is waited for");
    CHECK(report->counts_ready > ready && counts[0] == 0, "it has told nothing");
    for (int i = 0; i < 2; i++) {
        expar_ep_output_release(results[i].output);
        expar_ep_handle_release(results[i].handle);
    }
    idle_end(&one);
}

static void calls_nobody_asks_for_leave_counts_alone(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 1, trial_counts_that_stay);
}

/* ---- events that the driver does not take ------------------------------------------------------------------------ */

/* Nothing says then when the call's kernels are through. */
static void trial_a_call_without_a_mark(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    if (!idle_begin(&one, group) || !idle_dispatch(&one, EXPAR_F32)) return;
    expar_ep_combine_args args = idle_combine_args(&one);
    setenv("FAKE_RECORD", "0", 1);
    CHECK_STATUS(EXPAR_ERR_CUDA, expar_ep_combine(one.ep, &args, NULL));
    CHECK_TEXT("expar_ep_combine on rank ");
    CHECK_TEXT("cuEventRecord");
    unsetenv("FAKE_RECORD");
    CHECK_STATUS(EXPAR_ERR_CUDA, expar_ep_combine(one.ep, &args, NULL));
    CHECK_TEXT("expar_ep_combine on rank ", ": the buffer is poisoned: expar_ep_combine on rank ");
    idle_end(&one);
}

static void a_call_without_a_mark_poisons_the_buffer(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 1, trial_a_call_without_a_mark);
}

/* A thread that waits for the last call learns that it could not. */
static void trial_an_end_nobody_sees(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    if (!idle_begin(&one, group) || !idle_dispatch(&one, EXPAR_F32)) return;
    setenv("FAKE_MODES", "0", 1);
    CHECK_STATUS(EXPAR_ERR_CUDA, gpu_await(one.ep->base.exec, "the test"));
    CHECK_TEXT("cuThreadExchangeStreamCaptureMode");
    unsetenv("FAKE_MODES");
    CHECK_OK(gpu_await(one.ep->base.exec, "the test"));
    idle_end(&one);
}

static void an_end_that_cannot_be_seen_is_no_good_end(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 1, trial_an_end_nobody_sees);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(captures_at_a_time),
        cmocka_unit_test(captures_one_after_another),
        cmocka_unit_test(a_capture_that_outlasts_others),
        cmocka_unit_test(a_ninth_capture_at_a_time_is_rejected),
        cmocka_unit_test(a_call_follows_a_graph_from_its_launch),
        cmocka_unit_test(a_graph_follows_the_calls_before_its_launch),
        cmocka_unit_test(a_graph_follows_a_graph_from_its_launch),
        cmocka_unit_test(graphs_and_calls_in_turns_end),
        cmocka_unit_test(calls_nobody_asks_for_leave_counts_alone),
        cmocka_unit_test(a_call_without_a_mark_poisons_the_buffer),
        cmocka_unit_test(an_end_that_cannot_be_seen_is_no_good_end),
    };
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Events and streams, on the simulated driver: who waits for an event, a stream or the host, and which calls return
 * before any of their work has run. Also when memory goes back that is released after a stream. Ranks without tokens.
 * */
#include "cuda/find_controls.h"
#include "ep/harness/idle_rank.h"
#include "ep/normal/normal.h"
#include "exec/cuda/normal/normal_gpu.h"
#include "shmem/kind.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

/* Looks at what must not have happened. */
#define LOOKS 50

/* A rank, and a stream beside its own that a kernel holds up. */
typedef struct bench {
    fake_controls *controls;
    idle_rank one;
    cu_stream slow; /* stream */
    cu_module module;
    cu_function spin;
    atomic_int end; /* 1: the kernel goes on */
} bench;

static bool bench_begin(bench *b, expar_group *group)
{
    *b = (bench){.controls = NULL};
    if (!idle_begin(&b->one, group) || !idle_dispatch(&b->one, EXPAR_F32)) return false;
    b->controls = controls_find();
    if (!CHECK(b->controls, "another driver is open")) return false;
    CHECK_OK(CUDA_CALL(StreamCreate, &b->slow, CU_STREAM_NON_BLOCKING));
    CHECK_OK(CUDA_CALL(ModuleLoadData, &b->module, "a kernel that is slow"));
    CHECK_OK(CUDA_CALL(ModuleGetFunction, &b->spin, b->module, FAKE_SPIN));
    return check_failures() == 0;
}

static void bench_end(bench *b)
{
    CHECK_OK(CUDA_CALL(ModuleUnload, b->module));
    CHECK_OK(CUDA_CALL(StreamDestroy, b->slow));
    idle_end(&b->one);
}

/* Until let_go. */
static void hold_up(bench *b, cu_stream stream)
{
    fake_spin_args args = {&b->end};
    void *parameters[] = {&args};
    const cuda_launch launch = {.function = b->spin, .stream = stream, .blocks = 1, .threads = 1};
    atomic_store(&b->end, 0);
    atomic_store(&b->controls->hold, 1);
    CHECK_OK(cuda_launch_kernel(&launch, parameters));
    atomic_store(&b->controls->hold, 0);
    CHECK(controls_await(&b->controls->running[0], 1), "the slow kernel does not run");
}

static void let_go(bench *b)
{
    atomic_store(&b->end, 1);
    CHECK(controls_await(&b->controls->held, 0), "something is left on the streams");
}

static uint32_t epoch_of(const bench *b)
{
    return __atomic_load_n(&gpu_of(b->one.ep->base.exec)->core.place.state->epoch, __ATOMIC_ACQUIRE);
}

static bool stays(const bench *b, uint32_t epoch)
{
    for (int i = 0; i < LOOKS && epoch_of(b) == epoch; i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return epoch_of(b) == epoch;
}

static void end_event(expar_event *event)
{
    CHECK_OK(expar_event_wait(event));
    expar_event_release(event);
}

static expar_event *combine(bench *b, expar_event *wait_event)
{
    expar_ep_combine_result done = EXPAR_EP_COMBINE_RESULT_INIT;
    expar_ep_combine_args args = idle_combine_args(&b->one);
    args.wait_event = wait_event;
    args.async_finish = 1;
    CHECK_OK(expar_ep_combine(b->one.ep, &args, &done));
    return done.event;
}

static expar_event *dispatch_again(bench *b, expar_event *wait_event)
{
    expar_ep_dispatch_args args = idle_dispatch_args(&b->one, EXPAR_F32);
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    args.handle = b->one.came.handle;
    args.topk_idx = EXPAR_TENSOR_NONE;
    args.num_experts = 0;
    args.wait_event = wait_event;
    args.async_finish = 1;
    CHECK_OK(expar_ep_dispatch(b->one.ep, &args, &result));
    expar_ep_output_release(result.output);
    return result.event;
}

/* ---- calls that return ------------------------------------------------------------------------------------------- */

/* Nothing of this rank's runs, and the other ranks have not called: the host waits for neither. */
static void trial_without_host(expar_group *group, void *shared)
{
    bench b;
    expar_event *events[6];
    (void)shared;
    if (!bench_begin(&b, group)) return;
    uint32_t epoch = epoch_of(&b);
    hold_up(&b, b.one.stream);
    for (int i = 0; i < 6; i++)
        events[i] = i % 2 ? combine(&b, NULL) : dispatch_again(&b, NULL);
    CHECK(epoch_of(&b) == epoch, "a call has run, though its stream had not come to it");
    let_go(&b);
    for (int i = 0; i < 6; i++)
        end_event(events[i]);
    CHECK(epoch_of(&b) == epoch + 6, "calls are missing");
    bench_end(&b);
}

static void calls_return_before_they_run(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 1, trial_without_host);
}

/* ---- wait_event -------------------------------------------------------------------------------------------------- */

/* Work of a stream, and of another call: the call's stream waits for it, and this thread does not. */
static void trial_wait_events(expar_group *group, void *shared)
{
    bench b;
    expar_event *recorded = NULL;
    (void)shared;
    if (!bench_begin(&b, group)) return;
    for (int cached = 0; cached < 2; cached++) {
        uint32_t epoch = epoch_of(&b);
        hold_up(&b, b.slow);
        CHECK_OK(expar_event_record(b.slow, &recorded));
        expar_event *event = cached ? dispatch_again(&b, recorded) : combine(&b, recorded);
        expar_event_release(recorded);
        CHECK(stays(&b, epoch), "the call did not wait for its wait_event");
        expar_event *second = combine(&b, event);
        let_go(&b);
        end_event(event);
        end_event(second);
        CHECK(epoch_of(&b) == epoch + 2, "a call has not run");
    }
    bench_end(&b);
}

static void wait_events_hold_streams(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 1, trial_wait_events);
}

/* A fresh dispatch waits for its counts, but not for its wait_event before. */
static void *let_go_soon(void *argument)
{
    nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL);
    let_go(argument);
    return NULL;
}

static void trial_fresh_after_an_event(expar_group *group, void *shared)
{
    bench b;
    pthread_t thread;
    expar_event *recorded = NULL;
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    (void)shared;
    if (!bench_begin(&b, group)) return;
    const int before = atomic_load(&b.controls->others);
    hold_up(&b, b.slow);
    CHECK_OK(expar_event_record(b.slow, &recorded));
    expar_ep_dispatch_args args = idle_dispatch_args(&b.one, EXPAR_F32);
    args.wait_event = recorded;
    args.async_finish = 1;
    if (pthread_create(&thread, NULL, let_go_soon, &b)) abort();
    CHECK_OK(expar_ep_dispatch(b.one.ep, &args, &result));
    CHECK(atomic_load(&b.end) == 1, "the call returned before its counts were there");
    CHECK(atomic_load(&b.controls->others) == before + 1, "the stream was not told to wait");
    pthread_join(thread, NULL);
    end_event(result.event);
    expar_event_release(recorded);
    expar_ep_output_release(result.output);
    expar_ep_handle_release(result.handle);
    bench_end(&b);
}

static void a_fresh_dispatch_waits_for_counts_alone(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 1, trial_fresh_after_an_event);
}

/* Ranks of a process that share a GPU put no wait on their streams: the host waits. */
static void trial_shared_gpu(expar_group *group, void *shared)
{
    bench b;
    pthread_t thread;
    expar_event *recorded = NULL;
    (void)shared;
    if (!bench_begin(&b, group)) return;
    CHECK_OK(expar_barrier_all(group));
    if (group->rank == 0) {
        hold_up(&b, b.slow);
        CHECK_OK(expar_event_record(b.slow, &recorded));
        if (pthread_create(&thread, NULL, let_go_soon, &b)) abort();
    }
    CHECK_OK(expar_barrier_all(group));
    expar_event *event = combine(&b, recorded);
    if (group->rank == 0) {
        CHECK(atomic_load(&b.end) == 1, "the stream was told to wait");
        pthread_join(thread, NULL);
        expar_event_release(recorded);
    }
    end_event(event);
    CHECK_OK(expar_barrier_all(group));
    bench_end(&b);
}

static void hosts_wait_where_ranks_share_a_gpu(void **state)
{
    (void)state;
    kind_run((ranks_plan){.kind = RANKS_THREADS}, 2, trial_shared_gpu);
}

/* ---- expar_event_stream_wait ------------------------------------------------------------------------------------- */

/* The stream comes to a combine only when the event has happened. */
static void check_held(bench *b, expar_event *event, void (*happen)(bench *b, expar_event *event), const char *what)
{
    uint32_t epoch = epoch_of(b);
    CHECK_OK(expar_event_stream_wait(event, b->one.stream));
    expar_event *end = combine(b, NULL);
    CHECK(stays(b, epoch), "%s: the stream did not wait", what);
    happen(b, event);
    end_event(end);
    CHECK(epoch_of(b) == epoch + 1, "%s: the stream did not go on", what);
}

static void by_stream(bench *b, expar_event *event)
{
    let_go(b);
    end_event(event);
}

static void by_signal(bench *b, expar_event *event)
{
    (void)b;
    CHECK_OK(expar_event_signal(event));
    expar_event_release(event);
}

static void by_destroying(bench *b, expar_event *event)
{
    (void)b;
    expar_event_release(event);
}

static void trial_streams(expar_group *group, void *shared)
{
    bench b;
    expar_event *event = NULL;
    int done = 7;
    (void)shared;
    if (!bench_begin(&b, group)) return;
    hold_up(&b, b.slow);
    CHECK_OK(expar_event_record(b.slow, &event));
    CHECK_OK(expar_event_query(event, &done));
    CHECK(!done, "the event has happened already");
    CHECK_STATUS(EXPAR_ERR_STATE, expar_event_signal(event));
    CHECK_TEXT("expar_event_signal", "was recorded on a stream");
    check_held(&b, event, by_stream, "recorded");
    /* Words serve one event after another, whether the stream has come there or not. */
    for (int round = 0; round < 3; round++) {
        CHECK_OK(expar_event_create(&event));
        check_held(&b, event, by_signal, "signalled");
        CHECK_OK(expar_event_create(&event));
        check_held(&b, event, by_destroying, "destroyed");
    }
    CHECK_OK(expar_event_create(&event));
    setenv("FAKE_WORDS", "0", 1);
    CHECK_STATUS(EXPAR_ERR_UNSUPPORTED, expar_event_stream_wait(event, b.one.stream));
    CHECK_TEXT("expar_event_stream_wait", "cuStreamWaitValue32", "expar_event_wait");
    unsetenv("FAKE_WORDS");
    CHECK_OK(expar_event_signal(event));
    CHECK_OK(expar_event_stream_wait(event, b.one.stream));
    expar_event_release(event);
    bench_end(&b);
}

static void streams_wait_for_events(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 1, trial_streams);
}

/* ---- captures ---------------------------------------------------------------------------------------------------- */

/* A recorded event is a place in the graph, which only that capture's streams wait for; and a capture waits for no
   other event that has not happened. */
static void trial_captures(expar_group *group, void *shared)
{
    bench b;
    cu_stream other;
    cu_graph graph = NULL;
    cu_graph_exec exec = NULL;
    expar_event *inner = NULL, *outer = NULL, *own = NULL;
    int done = 7;
    (void)shared;
    if (!bench_begin(&b, group)) return;
    CHECK_OK(CUDA_CALL(StreamCreate, &other, CU_STREAM_NON_BLOCKING));
    CHECK_OK(expar_event_create(&own));
    hold_up(&b, b.slow);
    CHECK_OK(expar_event_record(b.slow, &outer));
    CHECK_OK(CUDA_CALL(StreamBeginCapture, b.one.stream, CU_CAPTURE_THREAD_LOCAL));
    CHECK_OK(expar_event_record(b.one.stream, &inner));
    CHECK_STATUS(EXPAR_ERR_STATE, expar_event_wait(inner));
    CHECK_TEXT("expar_event_wait", "being captured");
    CHECK_STATUS(EXPAR_ERR_STATE, expar_event_query(inner, &done));
    CHECK_STATUS(EXPAR_ERR_STATE, expar_event_stream_wait(outer, b.one.stream));
    CHECK_TEXT("expar_event_stream_wait", "is not of that capture");
    CHECK_STATUS(EXPAR_ERR_STATE, expar_event_stream_wait(own, b.one.stream));
    CHECK_TEXT("expar_event_stream_wait", "does not lie on a stream");
    CHECK_OK(expar_event_stream_wait(inner, other));
    expar_ep_combine_args args = idle_combine_args(&b.one);
    args.stream = other;
    args.wait_event = outer;
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_ep_combine(b.one.ep, &args, NULL));
    CHECK_TEXT("wait_event is given, and not of the capture");
    args.wait_event = inner;
    CHECK_OK(expar_ep_combine(b.one.ep, &args, NULL));
    expar_event_release(inner);
    CHECK_OK(expar_event_record(other, &inner));
    CHECK_OK(expar_event_stream_wait(inner, b.one.stream));
    expar_event_release(inner);
    let_go(&b);
    CHECK_OK(expar_event_stream_wait(outer, b.one.stream));
    CHECK_OK(CUDA_CALL(StreamEndCapture, b.one.stream, &graph));
    expar_event_release(outer);
    expar_event_release(own);
    uint32_t epoch = epoch_of(&b);
    CHECK_OK(CUDA_CALL(GraphInstantiate, &exec, graph, 0));
    CHECK_OK(CUDA_CALL(GraphLaunch, exec, b.one.stream));
    CHECK_OK(CUDA_CALL(StreamSynchronize, b.one.stream));
    CHECK(epoch_of(&b) == epoch + 1, "the graph has another number of calls");
    CHECK_OK(CUDA_CALL(GraphExecDestroy, exec));
    CHECK_OK(CUDA_CALL(GraphDestroy, graph));
    CHECK_OK(CUDA_CALL(StreamDestroy, other));
    bench_end(&b);
}

static void events_in_captures(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 1, trial_captures);
}

/* ---- memory that is given back after a stream -------------------------------------------------------------------- */

#define SPARE_BYTES 4096

static uint64_t bytes_in_use(const bench *b)
{
    expar_ep_stats stats = EXPAR_EP_STATS_INIT;
    CHECK_OK(expar_ep_get_stats(b->one.ep, &stats));
    return stats.group_used_bytes;
}

/* The last holders have let go, but the stream has still to come past what it held then. */
static void release_after(bench *b)
{
    expar_ep_output *output = NULL;
    expar_ep_dispatch_args args = idle_dispatch_args(&b->one, EXPAR_F32);
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    const uint64_t before = bytes_in_use(b);
    if (!CHECK_OK(expar_ep_dispatch(b->one.ep, &args, &result))) return;
    expar_ep_output_release(result.output);
    const uint64_t with_handle = bytes_in_use(b);
    if (!CHECK_OK(expar_ep_alloc(b->one.ep, SPARE_BYTES, &output))) return;
    const uint64_t with_both = bytes_in_use(b);
    CHECK(before < with_handle && with_handle + SPARE_BYTES <= with_both, "nothing was taken of the pool");
    hold_up(b, b->slow);
    CHECK_OK(expar_ep_handle_release_after(result.handle, b->slow));
    CHECK_OK(expar_ep_output_release_after(output, b->slow));
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_ep_output_retain(output));
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_ep_handle_retain(result.handle));
    CHECK(bytes_in_use(b) == with_both, "memory that a stream may still use has gone back");
    let_go(b);
    CHECK_OK(CUDA_CALL(StreamSynchronize, b->slow));
    CHECK(bytes_in_use(b) == before, "memory stays in use");
}

/* Likewise where the reader was told of long before. The same one again counts once. */
static void release_after_readers(bench *b)
{
    expar_ep_output *output = NULL;
    const uint64_t before = bytes_in_use(b);
    char others[8];
    if (!CHECK_OK(expar_ep_alloc(b->one.ep, SPARE_BYTES, &output))) return;
    const uint64_t with = bytes_in_use(b);
    CHECK_OK(expar_ep_output_read_on(output, b->slow));
    CHECK_OK(expar_ep_output_read_on(output, b->slow));
    hold_up(b, b->slow);
    expar_ep_output_release(output);
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_ep_output_read_on(output, b->slow));
    CHECK(bytes_in_use(b) == with, "memory that a stream may still read has gone back");
    let_go(b);
    CHECK_OK(CUDA_CALL(StreamSynchronize, b->slow));
    CHECK(bytes_in_use(b) == before, "memory stays in use");

    if (!CHECK_OK(expar_ep_alloc(b->one.ep, SPARE_BYTES, &output))) return;
    for (size_t i = 0; i < sizeof others; i++)
        CHECK_OK(expar_ep_output_read_on(output, others + i));
    CHECK_STATUS(EXPAR_ERR_LIMIT, expar_ep_output_read_on(output, b->slow));
    CHECK_OK(expar_ep_output_read_on(output, others));
    expar_ep_output_release(output);
    CHECK(bytes_in_use(b) == before, "memory stays in use");
}

/* A call comes after the release on another stream if its wait_event was recorded there after the release. So do all
   later calls, which may take the memory although that stream has not passed. An event from before the release says
   nothing of it. */
static void serve_after_an_event(bench *b, bool recorded_after)
{
    expar_ep_output *output = NULL;
    expar_event *recorded = NULL;
    const uint64_t before = bytes_in_use(b);
    if (!CHECK_OK(expar_ep_alloc(b->one.ep, SPARE_BYTES, &output))) return;
    const uint64_t with = bytes_in_use(b);
    hold_up(b, b->slow);
    if (!recorded_after) CHECK_OK(expar_event_record(b->slow, &recorded));
    CHECK_OK(expar_ep_output_release_after(output, b->slow));
    if (recorded_after) CHECK_OK(expar_event_record(b->slow, &recorded));
    CHECK(bytes_in_use(b) == with, "memory that a stream may still use has gone back");
    expar_event *event = combine(b, recorded);
    CHECK(bytes_in_use(b) == (recorded_after ? before : with), "after a call whose event was recorded %s: %llu bytes",
          recorded_after ? "after the release" : "before it", (unsigned long long)bytes_in_use(b));
    let_go(b);
    end_event(event);
    expar_event_release(recorded);
    CHECK(bytes_in_use(b) == before, "memory stays in use");
}

/* As in a context that is lost. A reader's memory goes back at once, for nothing runs there any more. A release that
   cannot be ordered keeps its reference. */
static void release_where_nothing_is_recorded(bench *b)
{
    expar_ep_output *read = NULL, *kept = NULL;
    const uint64_t before = bytes_in_use(b);
    if (!CHECK_OK(expar_ep_alloc(b->one.ep, SPARE_BYTES, &read))) return;
    if (!CHECK_OK(expar_ep_alloc(b->one.ep, SPARE_BYTES, &kept))) return;
    CHECK_OK(expar_ep_output_read_on(read, b->slow));
    const uint64_t with = bytes_in_use(b);
    setenv("FAKE_RECORD", "0", 1);
    expar_ep_output_release(read);
    CHECK_STATUS(EXPAR_ERR_CUDA, expar_ep_output_release_after(kept, b->slow));
    unsetenv("FAKE_RECORD");
    CHECK(bytes_in_use(b) < with && bytes_in_use(b) > before, "not one of the blocks is in use");
    expar_ep_output_release(kept);
    CHECK(bytes_in_use(b) == before, "memory stays in use");
}

/* There a point of the stream is one of the graph's, which may come again and again. by_reader: the stream was told of
   as a reader, and the last reference is dropped in the capture. */
static void release_in_a_capture(bench *b, bool by_reader)
{
    cu_graph graph = NULL;
    expar_ep_output *output = NULL;
    const expar_ep_combine_args args = idle_combine_args(&b->one);
    const uint64_t before = bytes_in_use(b);
    if (!CHECK_OK(expar_ep_alloc(b->one.ep, SPARE_BYTES, &output))) return;
    const uint64_t with = bytes_in_use(b);
    CHECK_OK(CUDA_CALL(StreamBeginCapture, b->one.stream, CU_CAPTURE_THREAD_LOCAL));
    CHECK_OK(expar_ep_combine(b->one.ep, &args, NULL));
    if (by_reader) CHECK_OK(expar_ep_output_read_on(output, b->one.stream));
    if (by_reader)
        expar_ep_output_release(output);
    else
        CHECK_OK(expar_ep_output_release_after(output, b->one.stream));
    CHECK(bytes_in_use(b) == with, "memory that a graph may use has gone back");
    CHECK_OK(CUDA_CALL(StreamEndCapture, b->one.stream, &graph));
    CHECK(bytes_in_use(b) == with, "memory that a graph may use has gone back with the capture");
    CHECK_OK(CUDA_CALL(GraphDestroy, graph));
    CHECK(bytes_in_use(b) == before, "memory stays in use");
}

static void trial_releases(expar_group *group, void *shared)
{
    bench b;
    (void)shared;
    if (!bench_begin(&b, group)) return;
    release_after(&b);
    release_after_readers(&b);
    for (int i = 0; i < 2; i++)
        serve_after_an_event(&b, i != 0);
    release_where_nothing_is_recorded(&b);
    for (int i = 0; i < 2; i++)
        release_in_a_capture(&b, i != 0);
    bench_end(&b);
}

static void memory_goes_back_after_a_stream(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 1, trial_releases);
}

/* ---- expar_ep_query ---------------------------------------------------------------------------------------------- */

#define RANKS 2

/* Rank 1's arguments are bad: the others, who do not ask, learn it by the query, once. */
static void trial_queries(expar_group *group, void *shared)
{
    idle_rank one;
    (void)shared;
    if (!idle_begin(&one, group) || !idle_dispatch(&one, EXPAR_F32)) return;
    CHECK_OK(expar_ep_query(one.ep));
    for (int with_event = 0; with_event < 2; with_event++) {
        expar_ep_dispatch_args args = idle_dispatch_args(&one, EXPAR_F32);
        expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
        args.num_worst_tokens = 4;
        args.async_finish = with_event;
        bool odd = group->rank == 1;
        if (odd) args.num_experts = -3;
        CHECK_STATUS(odd ? EXPAR_ERR_ARGUMENT : EXPAR_OK, expar_ep_dispatch(one.ep, &args, &result));
        if (!odd && with_event) expar_event_release(result.event);
        CHECK_OK(gpu_await(one.ep->base.exec, "the test"));
        CHECK_OK(expar_barrier_all(group));
        CHECK_STATUS(odd ? EXPAR_OK : EXPAR_ERR_REMOTE, expar_ep_query(one.ep));
        if (!odd) CHECK_TEXT("rank 1 rejected its arguments");
        CHECK_OK(expar_ep_query(one.ep));
        expar_ep_output_release(result.output);
        expar_ep_handle_release(result.handle);
    }
    if (idle_dispatch(&one, EXPAR_F32)) idle_combine(&one);
    CHECK_OK(expar_ep_query(one.ep));
    idle_end(&one);
}

/* A combine whose event nobody wants; bad: with an argument that is wrong. */
static expar_status combine_forgotten(const idle_rank *one, bool bad)
{
    expar_ep_combine_args args = idle_combine_args(one);
    expar_ep_combine_result result = EXPAR_EP_COMBINE_RESULT_INIT;
    args.async_finish = 1;
    args.expert_major = bad ? -1 : 0;
    const expar_status status = ep_combine_make(one->ep, &args, true, &result);
    CHECK(!result.event, "a combine made an event that nobody wants");
    return status;
}

/* A call that the host rejected has told its caller. It must not fill the one place for failures of calls without an
   event, which the next such failure needs. */
static void check_nothing_untold(const idle_rank *one)
{
    executor *exec = one->ep->base.exec;
    ep_vote vote;
    int64_t dropped = 0;
    CHECK(!exec->ops->untold(exec, &vote, &dropped), "a rejection that its caller knows is told once more");
}

/* Calls that make no event, in turns with one that has an event, which learns how it ended all the same. A failure is
   told once, by the query or by the call that comes next, which is carried out. */
static void trial_forgotten(expar_group *group, void *shared)
{
    idle_rank one;
    (void)shared;
    if (!idle_begin(&one, group) || !idle_dispatch(&one, EXPAR_F32)) return;
    const bool odd = group->rank == 1;
    for (int by_call = 0; by_call < 2; by_call++) {
        expar_ep_combine_args args = idle_combine_args(&one);
        expar_ep_combine_result asked = EXPAR_EP_COMBINE_RESULT_INIT;
        args.async_finish = 1;
        CHECK_OK(combine_forgotten(&one, false));
        CHECK_OK(expar_ep_combine(one.ep, &args, &asked));
        CHECK_STATUS(odd ? EXPAR_ERR_ARGUMENT : EXPAR_OK, combine_forgotten(&one, odd));
        CHECK_OK(gpu_await(one.ep->base.exec, "the test"));
        CHECK_OK(expar_barrier_all(group));
        CHECK_OK(expar_event_wait(asked.event));
        expar_event_release(asked.event);
        if (odd) check_nothing_untold(&one);
        if (by_call) CHECK_OK(combine_forgotten(&one, false));
        CHECK_STATUS(odd ? EXPAR_OK : EXPAR_ERR_REMOTE, expar_ep_query(one.ep));
        if (!odd) CHECK_TEXT("an earlier call without an event", "rank 1 rejected its arguments", "expert_major is -1");
        CHECK_OK(expar_ep_query(one.ep));
    }
    if (idle_dispatch(&one, EXPAR_F32)) idle_combine(&one);
    idle_end(&one);
}

static void calls_without_an_event_are_told(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, RANKS, trial_forgotten);
}

/* The next context of a GPU stands where the last one stood. */
static void events_go_with_their_context(void **state)
{
    (void)state;
    cuda_device *device;
    cu_stream stream;
    expar_event *events[2] = {NULL};
    int done;
    assert_int_equal(cuda_open(), EXPAR_OK);
    for (int life = 0; life < 2; life++) {
        assert_int_equal(cuda_device_open(0, &device), EXPAR_OK);
        assert_int_equal(cuda_enter(device), EXPAR_OK);
        assert_int_equal(CUDA_CALL(StreamCreate, &stream, CU_STREAM_NON_BLOCKING), EXPAR_OK);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(expar_event_record(stream, &events[i]), EXPAR_OK);
            if (i) assert_int_equal(expar_event_stream_wait(events[i], stream), EXPAR_OK);
            if (i) assert_int_equal(expar_event_wait(events[i]), EXPAR_OK);
            if (life || i) expar_event_release(events[i]);
        }
        assert_int_equal(CUDA_CALL(StreamDestroy, stream), EXPAR_OK);
        cuda_leave();
        if (life == 0) {
            expar_event *early = events[0];
            cuda_device_close(device);
            assert_int_equal(cuda_device_open(0, &device), EXPAR_OK);
            assert_int_equal(expar_event_query(early, &done), EXPAR_ERR_CUDA);
            assert_non_null(strstr(expar_last_error(), "context was destroyed"));
            expar_event_release(early);
        }
        cuda_device_close(device);
    }
}

static void queries_tell_once(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, RANKS, trial_queries);
}

/* A buffer that cannot be used any more says so each time. */
static void trial_poison(expar_group *group, void *shared)
{
    idle_rank one;
    (void)shared;
    if (!idle_begin(&one, group) || !idle_dispatch(&one, EXPAR_F32)) return;
    expar_ep_combine_args args = idle_combine_args(&one);
    setenv("FAKE_RECORD", "0", 1);
    CHECK_STATUS(EXPAR_ERR_CUDA, expar_ep_combine(one.ep, &args, NULL));
    unsetenv("FAKE_RECORD");
    for (int i = 0; i < 2; i++) {
        CHECK_STATUS(EXPAR_ERR_CUDA, expar_ep_query(one.ep));
        CHECK_TEXT("expar_ep_query on rank 0: the buffer is poisoned");
    }
    idle_end(&one);
}

static void queries_of_a_poisoned_buffer(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 1, trial_poison);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_go_with_their_context), /* first: later ones leave what keeps the context */
        cmocka_unit_test(calls_return_before_they_run),
        cmocka_unit_test(wait_events_hold_streams),
        cmocka_unit_test(a_fresh_dispatch_waits_for_counts_alone),
        cmocka_unit_test(hosts_wait_where_ranks_share_a_gpu),
        cmocka_unit_test(streams_wait_for_events),
        cmocka_unit_test(events_in_captures),
        cmocka_unit_test(memory_goes_back_after_a_stream),
        cmocka_unit_test(queries_tell_once),
        cmocka_unit_test(queries_of_a_poisoned_buffer),
        cmocka_unit_test(calls_without_an_event_are_told),
    };
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Normal mode on GPUs of two nodes, whose host carries calls out, on the simulated driver. Calls come after the work
 * that their stream held, and before the work that it gets later. A graph has calls of ranks with the mover, between
 * calls outside of it. Other captures are rejected by name, and the buffer stays usable. tests/gpu runs the scripts of
 * tests/ep/nodes so.
 *
 * Ranks that are threads share a GPU, so streams copy for them, and a call returns after its end. For ranks that are
 * processes the mover copies, and a call with async_finish returns while its stream waits for work before it. */
#include "cuda/find_controls.h"
#include "ep/harness/check.h"
#include "ep/harness/idle_rank.h"
#include "ep/harness/ranks.h"
#include "ep/normal/normal.h"
#include "exec/cuda/hosted/hosted.h"
#include "mem/device.h"
#include "oracle/unit.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static ranks_kind kind;

enum { RANKS = 2, TOKENS = 3, WORST = TOKENS + 1, BYTES = TOKENS * IDLE_HIDDEN * (int)sizeof(float) };

/* A rank with memory on its GPU. All tokens go to the other rank. */
typedef struct bench {
    idle_rank one;
    int32_t rank;
    cu_address x, y, idx;
    mem_pinned sees; /* what the stream copies to the host: rows, then sums */
    expar_ep_dispatch_result came;
} bench;

/* Element i of a rank's tokens. */
static float value_of(int32_t rank, int i)
{
    return (float)(1000 * rank + i);
}

static void check_values(const float *got, int32_t rank, const char *what)
{
    int i = 0;
    while (i < TOKENS * IDLE_HIDDEN && got[i] == value_of(rank, i))
        i++;
    CHECK(i == TOKENS * IDLE_HIDDEN, "%s: element %d is not that of rank %d", what, i, rank);
}

static bool bench_begin(bench *b, expar_group *group)
{
    const int32_t rank = expar_group_rank(group), other = 1 - rank;
    const int32_t idx[TOKENS] = {other, other, other};
    *b = (bench){.rank = rank};
    b->came = (expar_ep_dispatch_result)EXPAR_EP_DISPATCH_RESULT_INIT;
    if (!idle_begin(&b->one, group)) return false;
    CHECK_OK(CUDA_CALL(MemAlloc, &b->x, BYTES));
    CHECK_OK(CUDA_CALL(MemAlloc, &b->y, BYTES));
    CHECK_OK(CUDA_CALL(MemAlloc, &b->idx, sizeof idx));
    CHECK_OK(mem_pinned_create((size_t)2 * BYTES, &b->sees));
    CHECK_OK(CUDA_CALL(MemcpyHtoD, b->idx, idx, sizeof idx));
    return check_failures() == 0;
}

/* The output outlives the buffer. */
static void bench_end(bench *b)
{
    float rows[TOKENS * IDLE_HIDDEN];
    cuda_device *gpu = NULL;
    expar_ep_handle_release(b->came.handle);
    mem_pinned_free(&b->sees);
    CHECK_OK(CUDA_CALL(MemFree, b->idx));
    CHECK_OK(CUDA_CALL(MemFree, b->y));
    CHECK_OK(CUDA_CALL(MemFree, b->x));
    idle_end(&b->one);
    if (!b->came.output || !CHECK_OK(cuda_device_open(0, &gpu)) || !CHECK_OK(cuda_enter(gpu))) return;
    CHECK_OK(CUDA_CALL(MemcpyDtoH, rows, (cu_address)(uintptr_t)b->came.recv_x.data, BYTES));
    check_values(rows, 1 - b->rank, "rows after the buffer's end");
    cuda_leave();
    expar_ep_output_release(b->came.output);
    cuda_device_close(gpu);
}

static expar_tensor on_gpu(cu_address at, expar_dtype dtype, int64_t columns)
{
    return expar_tensor_2d_on((expar_device){.type = EXPAR_CUDA}, (void *)(uintptr_t)at, dtype, TOKENS, columns);
}

static expar_ep_dispatch_args dispatch_args(const bench *b)
{
    expar_ep_dispatch_args args = idle_dispatch_args(&b->one, EXPAR_F32);
    args.x = on_gpu(b->x, EXPAR_F32, IDLE_HIDDEN);
    args.topk_idx = on_gpu(b->idx, EXPAR_I32, 1);
    args.num_worst_tokens = WORST;
    args.async_finish = 1;
    return args;
}

static expar_ep_combine_args combine_args(const bench *b)
{
    expar_ep_combine_args args = idle_combine_args(&b->one);
    args.x = b->came.recv_x;
    args.handle = b->came.handle;
    args.out_y = on_gpu(b->y, EXPAR_F32, IDLE_HIDDEN);
    args.async_finish = 1;
    return args;
}

/* ---- order on the stream ----------------------------------------------------------------------------------------- */

/* Lets the stream go on some time after a call began to wait for it. */
typedef struct late_signal {
    expar_event *event;
    atomic_bool gone; /* from right before it does so */
} late_signal;

static void *signal_late(void *argument)
{
    late_signal *late = argument;
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    atomic_store(&late->gone, true);
    CHECK_OK(expar_event_signal(late->event));
    return NULL;
}

/* Says whether the rank's calls return before their end. */
static bool returns_early(void)
{
    return kind == RANKS_PROCESSES;
}

/* The event of a call that has just returned. */
static void check_returned(expar_event *event)
{
    int done = 0;
    CHECK_OK(expar_event_query(event, &done));
    if (returns_early())
        CHECK(!done, "a call has ended before its stream came to it");
    else
        CHECK(done, "a call returned before its end");
}

static void await_end(expar_event *event)
{
    CHECK_OK(expar_event_wait(event));
    expar_event_release(event);
}

/* Makes the calls, and has the stream copy their results, with no wait of the host between. */
static void call_and_copy(bench *b, const late_signal *late, float *rows, float *y, expar_event **back)
{
    const cu_stream stream = b->one.stream;
    expar_ep_combine_result result = EXPAR_EP_COMBINE_RESULT_INIT;
    const expar_ep_dispatch_args to = dispatch_args(b);
    if (!CHECK_OK(expar_ep_dispatch(b->one.ep, &to, &b->came))) return;
    if (!returns_early()) CHECK(atomic_load(&late->gone), "the dispatch returned before its stream came to it");
    check_returned(b->came.event);
    CHECK_OK(CUDA_CALL(MemcpyDtoHAsync, rows, (cu_address)(uintptr_t)b->came.recv_x.data, BYTES, stream));
    const expar_ep_combine_args from = combine_args(b);
    if (!CHECK_OK(expar_ep_combine(b->one.ep, &from, &result))) return;
    check_returned(result.event);
    *back = result.event;
    CHECK_OK(CUDA_CALL(MemcpyDtoHAsync, y, b->y, BYTES, stream));
}

/* The stream writes x only once that signal lets it go on. A thread gives it where the calls wait for the stream. */
static void call_before_signal(bench *b, late_signal *late, float *rows, float *y, expar_event **back)
{
    pthread_t thread;
    if (returns_early()) {
        call_and_copy(b, late, rows, y, back);
        CHECK_OK(expar_event_signal(late->event));
        return;
    }
    CHECK(pthread_create(&thread, NULL, signal_late, late) == 0, "no thread");
    call_and_copy(b, late, rows, y, back);
    CHECK(pthread_join(thread, NULL) == 0, "the thread");
}

/* Counts the mover's commands of the kind that the buffer's rings still hold. */
static int commands_of(const bench *b, mover_kind kind_of_command)
{
    const hosted_mover *mover = &((const hosted_executor *)b->one.ep->base.exec)->mover;
    int count = 0;
    for (int ring = 0; mover->on && ring < HOSTED_ALL_RINGS; ring++)
        for (int i = 0; i < MOVER_COMMANDS; i++)
            count += mover->rings[ring].commands[i].kind == (uint32_t)kind_of_command;
    return count;
}

/* With the mover, rows do not pass through the host: it has moved them from place to place, and added them. */
static void check_carried(const bench *b)
{
    if (!returns_early()) return;
    CHECK(commands_of(b, MOVER_ROWS) > 0, "no rows were copied by a list");
    CHECK(commands_of(b, MOVER_SUMS) > 0, "no sums were made by a list");
}

/* The second time the copies of a call find memory that fits them (stage.c). */
static void order_on_stream(bench *b)
{
    const cu_stream stream = b->one.stream;
    float x[TOKENS * IDLE_HIDDEN], *rows = b->sees.host, *y = rows + TOKENS * IDLE_HIDDEN;
    late_signal late = {.event = NULL};
    expar_event *back = NULL;
    for (int i = 0; i < TOKENS * IDLE_HIDDEN; i++)
        x[i] = value_of(b->rank, i);
    memset(rows, 0xff, (size_t)2 * BYTES);
    CHECK_OK(CUDA_CALL(MemsetD8Async, b->x, 0xff, BYTES, stream));
    CHECK_OK(expar_event_create(&late.event));
    CHECK_OK(expar_event_stream_wait(late.event, stream));
    CHECK_OK(CUDA_CALL(MemcpyHtoDAsync, b->x, x, BYTES, stream));
    call_before_signal(b, &late, rows, y, &back);
    if (check_failures() > 0) return;
    await_end(b->came.event);
    await_end(back);
    CHECK_OK(CUDA_CALL(StreamSynchronize, stream));
    check_values(rows, 1 - b->rank, "rows that the stream read after the dispatch");
    check_values(y, b->rank, "sums that the stream read after the combine");
    check_carried(b);
    expar_event_release(late.event);
}

static void drop_rows(bench *b)
{
    expar_ep_handle_release(b->came.handle);
    expar_ep_output_release(b->came.output);
    b->came = (expar_ep_dispatch_result)EXPAR_EP_DISPATCH_RESULT_INIT;
}

/* Says how many kernels run on the rank's GPU. */
static int kernels_now(void)
{
    return atomic_load(&controls_find()->running[0]);
}

/* The call waits for an event on another stream. No kernel of it runs before the event has happened. */
static void come_after_other_stream(bench *b)
{
    cu_stream other;
    float *y = b->sees.host;
    expar_event *held = NULL, *recorded = NULL;
    expar_ep_combine_result result = EXPAR_EP_COMBINE_RESULT_INIT;
    expar_ep_combine_args from = combine_args(b);
    CHECK_OK(CUDA_CALL(StreamCreate, &other, CU_STREAM_NON_BLOCKING));
    CHECK_OK(CUDA_CALL(MemsetD8Async, b->y, 0xff, BYTES, b->one.stream));
    CHECK_OK(CUDA_CALL(StreamSynchronize, b->one.stream));
    CHECK_OK(expar_event_create(&held));
    CHECK_OK(expar_event_stream_wait(held, other));
    CHECK_OK(expar_event_record(other, &recorded));
    from.wait_event = recorded;
    if (!returns_early()) CHECK_OK(expar_event_signal(held));
    if (!CHECK_OK(expar_ep_combine(b->one.ep, &from, &result))) return;
    check_returned(result.event);
    if (returns_early()) CHECK(kernels_now() == 0, "a kernel runs before the event that its call waits for");
    if (returns_early()) CHECK_OK(expar_event_signal(held));
    await_end(result.event);
    CHECK_OK(CUDA_CALL(MemcpyDtoHAsync, y, b->y, BYTES, b->one.stream));
    CHECK_OK(CUDA_CALL(StreamSynchronize, b->one.stream));
    check_values(y, b->rank, "sums of a combine that waited for an event");
    expar_event_release(recorded);
    expar_event_release(held);
    CHECK_OK(CUDA_CALL(StreamDestroy, other));
}

/* Another stream waits for the event of a call that has not ended. */
static void follow_on_other_stream(bench *b)
{
    cu_stream other;
    float *y = b->sees.host;
    expar_event *held = NULL;
    expar_ep_combine_result result = EXPAR_EP_COMBINE_RESULT_INIT;
    const expar_ep_combine_args from = combine_args(b);
    CHECK_OK(CUDA_CALL(StreamCreate, &other, CU_STREAM_NON_BLOCKING));
    CHECK_OK(CUDA_CALL(MemsetD8Async, b->y, 0xff, BYTES, b->one.stream));
    CHECK_OK(expar_event_create(&held));
    CHECK_OK(expar_event_stream_wait(held, b->one.stream));
    if (!returns_early()) CHECK_OK(expar_event_signal(held));
    if (!CHECK_OK(expar_ep_combine(b->one.ep, &from, &result))) return;
    check_returned(result.event);
    CHECK_OK(expar_event_stream_wait(result.event, other));
    CHECK_OK(CUDA_CALL(MemcpyDtoHAsync, y, b->y, BYTES, other));
    if (returns_early()) CHECK_OK(expar_event_signal(held));
    CHECK_OK(CUDA_CALL(StreamSynchronize, other));
    check_values(y, b->rank, "sums that another stream read after the combine");
    await_end(result.event);
    expar_event_release(held);
    CHECK_OK(CUDA_CALL(StreamDestroy, other));
}

/* ---- what is rejected -------------------------------------------------------------------------------------------- */

static cu_graph capture_combine(bench *b, expar_status expected)
{
    const cu_stream stream = b->one.stream;
    cu_graph graph = NULL;
    expar_ep_combine_args from = combine_args(b);
    from.async_finish = 0;
    CHECK_OK(CUDA_CALL(StreamBeginCapture, stream, CU_CAPTURE_THREAD_LOCAL));
    CHECK_STATUS(expected, expar_ep_combine(b->one.ep, &from, NULL));
    if (expected != EXPAR_OK) CHECK_TEXT("expar_ep_combine", "the stream is being captured", "shares its GPU");
    CHECK_OK(CUDA_CALL(StreamEndCapture, stream, &graph));
    return graph;
}

/* On all ranks, since none learns it from another one. */
static void reject_captures(bench *b)
{
    CHECK_OK(CUDA_CALL(GraphDestroy, capture_combine(b, EXPAR_ERR_UNSUPPORTED)));
}

static void reject_many_sms(bench *b)
{
    expar_ep_combine_args from = combine_args(b);
    from.num_sms = INT32_MAX;
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_ep_combine(b->one.ep, &from, NULL));
    CHECK_TEXT("expar_ep_combine", "num_sms is 2147483647", "SMs of GPU 0");
}

static void combine_as_ever(bench *b)
{
    float y[TOKENS * IDLE_HIDDEN];
    expar_ep_combine_args from = combine_args(b);
    from.async_finish = 0;
    CHECK_OK(CUDA_CALL(MemsetD8Async, b->y, 0xff, BYTES, b->one.stream));
    if (!CHECK_OK(expar_ep_combine(b->one.ep, &from, NULL))) return;
    CHECK_OK(CUDA_CALL(MemcpyDtoH, y, b->y, BYTES));
    check_values(y, b->rank, "sums after rejections");
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

enum { LAUNCHES = 3 };

/* The stream spoils y before each launch, and copies it after. A call that is made meanwhile comes after the launches
   before it. The graph is destroyed while its last launch may still be under way. */
static void replay_combines(bench *b)
{
    const cu_stream stream = b->one.stream;
    cu_graph_exec exec = NULL;
    float *y = b->sees.host;
    cu_graph graph = capture_combine(b, EXPAR_OK);
    CHECK_OK(CUDA_CALL(GraphInstantiate, &exec, graph, 0));
    CHECK_OK(CUDA_CALL(GraphDestroy, graph));
    for (int i = 0; i < LAUNCHES && check_failures() == 0; i++) {
        CHECK_OK(CUDA_CALL(MemsetD8Async, b->y, 0xff, BYTES, stream));
        CHECK_OK(CUDA_CALL(GraphLaunch, exec, stream));
        CHECK_OK(CUDA_CALL(GraphLaunch, exec, stream));
        CHECK_OK(CUDA_CALL(MemcpyDtoHAsync, y, b->y, BYTES, stream));
        combine_as_ever(b);
        CHECK_OK(CUDA_CALL(StreamSynchronize, stream));
        check_values(y, b->rank, "sums of a replay");
    }
    CHECK_OK(CUDA_CALL(GraphLaunch, exec, stream));
    CHECK_OK(CUDA_CALL(GraphExecDestroy, exec));
    CHECK_OK(expar_ep_query(b->one.ep));
}

/* ---- a call that fails before its stream comes to it ------------------------------------------------------------- */

/* The group fails while the stream still waits for work before the call. The call ends all the same. What the stream
   comes to later uses none of its memory: y stays as it was. */
static void fail_before_turn(bench *b)
{
    float *y = b->sees.host;
    expar_event *held = NULL;
    expar_ep_combine_result result = EXPAR_EP_COMBINE_RESULT_INIT;
    const expar_ep_combine_args from = combine_args(b);
    CHECK_OK(CUDA_CALL(MemsetD8Async, b->y, 0, BYTES, b->one.stream));
    CHECK_OK(expar_event_create(&held));
    CHECK_OK(expar_event_stream_wait(held, b->one.stream));
    if (!CHECK_OK(expar_ep_combine(b->one.ep, &from, &result))) return;
    CHECK_OK(expar_group_abort(b->one.ep->base.group));
    CHECK_STATUS(EXPAR_ERR_ABORTED, expar_event_wait(result.event));
    CHECK_STATUS(EXPAR_ERR_ABORTED, expar_ep_combine(b->one.ep, &from, NULL));
    CHECK_OK(expar_event_signal(held));
    CHECK_OK(CUDA_CALL(MemcpyDtoHAsync, y, b->y, BYTES, b->one.stream));
    CHECK_OK(CUDA_CALL(StreamSynchronize, b->one.stream));
    for (int i = 0; i < TOKENS * IDLE_HIDDEN && check_failures() == 0; i++)
        CHECK(y[i] == 0, "element %d of y was written by a call that had failed", i);
    expar_event_release(result.event);
    expar_event_release(held);
}

static void trial_failure(expar_group *group, void *shared)
{
    bench b;
    (void)shared;
    if (!bench_begin(&b, group)) return;
    order_on_stream(&b);
    if (check_failures() == 0) fail_before_turn(&b);
    expar_ep_handle_release(b.came.handle);
    expar_ep_output_release(b.came.output);
    (void)expar_ep_destroy(b.one.ep);
}

/* ---- a context that is lost -------------------------------------------------------------------------------------- */

/* A kernel of the caller's breaks the context of rank 0, whose call has not had its turn. */
static void lose_context(bench *b)
{
    expar_event *held = NULL;
    expar_ep_combine_result result = EXPAR_EP_COMBINE_RESULT_INIT;
    const expar_ep_combine_args from = combine_args(b);
    CHECK_OK(expar_event_create(&held));
    CHECK_OK(expar_event_stream_wait(held, b->one.stream));
    if (!CHECK_OK(expar_ep_combine(b->one.ep, &from, &result))) return;
    if (b->rank == 0)
        setenv("FAKE_FAULT", "1", 1);
    else
        CHECK_OK(expar_event_signal(held));
    const expar_status lost = b->rank == 0 ? EXPAR_ERR_CUDA : EXPAR_ERR_PEER;
    CHECK_STATUS(lost, expar_event_wait(result.event));
    CHECK_TEXT("expar_ep_combine", "rank 0", "700");
    CHECK_STATUS(lost, expar_ep_combine(b->one.ep, &from, &result));
    CHECK_TEXT("poisoned", "rank 0", "700");
    unsetenv("FAKE_FAULT");
    if (b->rank == 0) CHECK_OK(expar_event_signal(held));
    expar_event_release(result.event);
    expar_event_release(held);
}

static void trial_loss(expar_group *group, void *shared)
{
    bench b;
    (void)shared;
    if (!bench_begin(&b, group)) return;
    order_on_stream(&b);
    if (check_failures() == 0) lose_context(&b);
    expar_ep_handle_release(b.came.handle);
    expar_ep_output_release(b.came.output);
    (void)expar_ep_destroy(b.one.ep);
}

/* The context of rank 0 is lost after the launches of a graph. The wait for their ends says so. */
static void trial_loss_at_end(expar_group *group, void *shared)
{
    bench b;
    (void)shared;
    if (!bench_begin(&b, group)) return;
    order_on_stream(&b);
    if (check_failures() == 0) replay_combines(&b);
    CHECK_OK(CUDA_CALL(StreamSynchronize, b.one.stream));
    CHECK_OK(expar_barrier_all(group));
    expar_ep_handle_release(b.came.handle);
    expar_ep_output_release(b.came.output);
    executor *exec = b.one.ep->base.exec;
    if (b.rank == 0) setenv("FAKE_FAULT", "1", 1);
    CHECK_STATUS(b.rank == 0 ? EXPAR_ERR_CUDA : EXPAR_OK, exec->ops->await(exec, "the buffer's end"));
    if (b.rank == 0) CHECK_TEXT("700");
    (void)expar_ep_destroy(b.one.ep);
    unsetenv("FAKE_FAULT");
}

static void trial(expar_group *group, void *shared)
{
    bench b;
    (void)shared;
    if (!bench_begin(&b, group)) return;
    order_on_stream(&b);
    if (check_failures() == 0) drop_rows(&b);
    if (check_failures() == 0) order_on_stream(&b);
    if (check_failures() == 0) follow_on_other_stream(&b);
    if (check_failures() == 0) come_after_other_stream(&b);
    if (check_failures() == 0 && returns_early()) replay_combines(&b);
    if (check_failures() == 0 && !returns_early()) reject_captures(&b);
    if (check_failures() == 0) reject_many_sms(&b);
    if (check_failures() == 0) combine_as_ever(&b);
    bench_end(&b);
}

static void test_calls(void **state)
{
    (void)state;
    const ranks_plan plan = {.kind = kind, .size = RANKS, .ranks_per_node = 1};
    assert_true(ranks_run(&plan, trial, NULL));
}

static void test_failure(void **state)
{
    (void)state;
    const ranks_plan plan = {.kind = kind, .size = RANKS, .ranks_per_node = 1};
    if (!returns_early()) skip();
    assert_true(ranks_run(&plan, trial_failure, NULL));
}

static void test_loss(void **state)
{
    (void)state;
    const ranks_plan plan = {.kind = kind, .size = RANKS, .ranks_per_node = 1};
    if (!returns_early()) skip();
    assert_true(ranks_run(&plan, trial_loss, NULL));
}

static void test_loss_at_end(void **state)
{
    (void)state;
    const ranks_plan plan = {.kind = kind, .size = RANKS, .ranks_per_node = 1};
    if (!returns_early()) skip();
    assert_true(ranks_run(&plan, trial_loss_at_end, NULL));
}

int main(int argc, char **argv)
{
    kind = argc > 1 && strcmp(argv[1], "processes") == 0 ? RANKS_PROCESSES : RANKS_THREADS;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_calls), cmocka_unit_test(test_failure),
                                       cmocka_unit_test(test_loss), cmocka_unit_test(test_loss_at_end)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

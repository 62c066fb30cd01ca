/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated driver, with streams that run by themselves (FAKE_ASYNC=1). Calls return at once, and work waits for
 * other work as on a real one. It also shows what a caller may do with its memory, streams and graphs meanwhile. */
#include "cuda/find_controls.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define BYTES 64

typedef struct bench {
    fake_controls *controls;
    cuda_device *gpu;
    cu_module module;
    cu_function spin;
    cu_stream streams[2]; /* neither waits for the null stream, nor that for them */
    cu_address memory;
    unsigned char *pinned;
} bench;
static bench b;

#define NEED(call) assert_int_equal((call), EXPAR_OK)

static int set_up(void **state)
{
    (void)state;
    NEED(cuda_device_open(0, &b.gpu));
    b.controls = controls_find();
    assert_non_null(b.controls);
    NEED(cuda_enter(b.gpu));
    NEED(CUDA_CALL(ModuleLoadData, &b.module, "a kernel that is slow"));
    NEED(CUDA_CALL(ModuleGetFunction, &b.spin, b.module, FAKE_SPIN));
    for (int i = 0; i < 2; i++)
        NEED(CUDA_CALL(StreamCreate, &b.streams[i], CU_STREAM_NON_BLOCKING));
    NEED(CUDA_CALL(MemAlloc, &b.memory, BYTES));
    NEED(CUDA_CALL(MemHostAlloc, (void **)&b.pinned, BYTES, CU_HOST_PORTABLE));
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    NEED(CUDA_CALL(CtxSynchronize, ));
    assert_int_equal(atomic_load(&b.controls->held), 0);
    NEED(CUDA_CALL(MemFreeHost, b.pinned));
    NEED(CUDA_CALL(MemFree, b.memory));
    for (int i = 0; i < 2; i++)
        NEED(CUDA_CALL(StreamDestroy, b.streams[i]));
    NEED(CUDA_CALL(ModuleUnload, b.module));
    cuda_leave();
    cuda_device_close(b.gpu);
    return 0;
}

static void put_spin(cu_stream stream, const atomic_int *end)
{
    fake_spin_args args = {end};
    const cuda_launch launch = {.function = b.spin, .stream = stream, .blocks = 1, .threads = 1};
    NEED(cuda_launch_kernel(&launch, (void *[]){&args}));
}

static void set_one(void *of)
{
    atomic_store((atomic_int *)of, 1);
}

static bool is_idle(cu_stream stream)
{
    cu_result result = cuda_driver()->StreamQuery(stream);
    assert_true(result == CU_OK || result == CU_ERROR_NOT_READY);
    return result == CU_OK;
}

/* All that a stream has waits for the kernel, and nothing that another one has. */
static void calls_return_at_once(void **state)
{
    static unsigned char seen[BYTES];
    atomic_int end = 0, called = 0, other = 0;
    cu_event event;
    (void)state;
    NEED(CUDA_CALL(EventCreate, &event, 0));
    NEED(CUDA_CALL(MemsetD8, b.memory, 1, BYTES));
    put_spin(b.streams[0], &end);
    NEED(CUDA_CALL(MemsetD8Async, b.memory, 2, BYTES, b.streams[0]));
    NEED(CUDA_CALL(LaunchHostFunc, b.streams[0], set_one, &called));
    NEED(CUDA_CALL(EventRecord, event, b.streams[0]));
    NEED(CUDA_CALL(MemcpyDtoHAsync, seen, b.memory, BYTES, b.streams[1]));
    NEED(CUDA_CALL(LaunchHostFunc, b.streams[1], set_one, &other));
    NEED(CUDA_CALL(StreamSynchronize, b.streams[1]));
    assert_int_equal(seen[0], 1);
    assert_int_equal(atomic_load(&other), 1);
    assert_int_equal(atomic_load(&called), 0);
    assert_false(is_idle(b.streams[0]));
    assert_int_equal(cuda_driver()->EventQuery(event), CU_ERROR_NOT_READY);
    atomic_store(&end, 1);
    NEED(CUDA_CALL(EventSynchronize, event));
    assert_int_equal(atomic_load(&called), 1);
    assert_true(is_idle(b.streams[0]));
    NEED(CUDA_CALL(MemcpyDtoH, seen, b.memory, BYTES));
    assert_int_equal(seen[0], 2);
    NEED(CUDA_CALL(EventDestroy, event));
}

/* It waits for what the stream had when the event was recorded, and not for later work. */
static void streams_wait_for_events(void **state)
{
    atomic_int first = 0, second = 0, called = 0;
    cu_event event;
    (void)state;
    NEED(CUDA_CALL(EventCreate, &event, 0));
    put_spin(b.streams[0], &first);
    NEED(CUDA_CALL(EventRecord, event, b.streams[0]));
    put_spin(b.streams[0], &second);
    NEED(CUDA_CALL(StreamWaitEvent, b.streams[1], event, 0));
    NEED(CUDA_CALL(EventDestroy, event));
    NEED(CUDA_CALL(LaunchHostFunc, b.streams[1], set_one, &called));
    assert_false(is_idle(b.streams[1]));
    assert_int_equal(atomic_load(&called), 0);
    atomic_store(&first, 1);
    NEED(CUDA_CALL(StreamSynchronize, b.streams[1]));
    assert_int_equal(atomic_load(&called), 1);
    assert_false(is_idle(b.streams[0]));
    atomic_store(&second, 1);
    NEED(CUDA_CALL(StreamSynchronize, b.streams[0]));
}

/* The null stream and those that were made to, both ways; the others never. */
static void the_null_stream_waits(void **state)
{
    atomic_int first = 0, second = 0, called = 0;
    cu_stream blocking;
    (void)state;
    NEED(CUDA_CALL(StreamCreate, &blocking, 0));
    put_spin(NULL, &first);
    put_spin(blocking, &second);
    NEED(CUDA_CALL(LaunchHostFunc, NULL, set_one, &called));
    assert_true(is_idle(b.streams[0]));
    assert_true(controls_await(&b.controls->running[0], 1));
    atomic_store(&first, 1);
    while (b.controls->held > 2)
        NEED(CUDA_CALL(StreamSynchronize, b.streams[0]));
    assert_int_equal(atomic_load(&called), 0);
    assert_false(is_idle(NULL));
    atomic_store(&second, 1);
    NEED(CUDA_CALL(StreamSynchronize, NULL));
    assert_int_equal(atomic_load(&called), 1);
    assert_true(is_idle(blocking));
    NEED(CUDA_CALL(StreamDestroy, blocking));
}

/* Pinned memory is read when the stream comes there; what else there is when the call returns. */
static void memory_is_read(void **state)
{
    unsigned char own[BYTES], seen[BYTES];
    atomic_int end = 0;
    (void)state;
    memset(own, 3, BYTES);
    memset(b.pinned, 4, BYTES);
    put_spin(b.streams[0], &end);
    NEED(CUDA_CALL(MemcpyHtoDAsync, b.memory, own, BYTES / 2, b.streams[0]));
    NEED(CUDA_CALL(MemcpyHtoDAsync, b.memory + BYTES / 2, b.pinned, BYTES / 2, b.streams[0]));
    memset(own, 5, BYTES);
    memset(b.pinned, 6, BYTES);
    atomic_store(&end, 1);
    NEED(CUDA_CALL(MemcpyDtoHAsync, seen, b.memory, BYTES, b.streams[0]));
    assert_int_equal(seen[0], 3);
    assert_int_equal(seen[BYTES / 2], 6);
}

/* A stream that is destroyed goes on; the next one neither waits for it nor has its number. */
static void a_stream_that_has_gone(void **state)
{
    atomic_int end = 0, called = 0;
    unsigned long long before, after;
    (void)state;
    put_spin(b.streams[0], &end);
    NEED(CUDA_CALL(LaunchHostFunc, b.streams[0], set_one, &called));
    NEED(CUDA_CALL(StreamGetId, b.streams[0], &before));
    NEED(CUDA_CALL(StreamDestroy, b.streams[0]));
    NEED(CUDA_CALL(StreamCreate, &b.streams[0], CU_STREAM_NON_BLOCKING));
    NEED(CUDA_CALL(StreamGetId, b.streams[0], &after));
    assert_true(before != after);
    NEED(CUDA_CALL(StreamSynchronize, b.streams[0]));
    assert_int_equal(atomic_load(&called), 0);
    atomic_store(&end, 1);
    NEED(CUDA_CALL(CtxSynchronize, ));
    assert_int_equal(atomic_load(&called), 1);
}

static void count(void *of)
{
    atomic_fetch_add((atomic_int *)of, 1);
}

/* Objects of a graph go with it, after all that it has put on streams. */
static void graphs_run_after(void **state)
{
    atomic_int first = 0, second = 0, gone = 0;
    cu_graph graph;
    cu_graph_exec exec;
    cu_user_object object;
    (void)state;
    NEED(CUDA_CALL(StreamBeginCapture, b.streams[0], CU_CAPTURE_THREAD_LOCAL));
    atomic_store(&second, 1); /* here captures run kernels, too */
    put_spin(b.streams[0], &second);
    int capturing;
    cu_graph inner;
    unsigned long long number;
    NEED(CUDA_CALL(StreamGetCaptureInfo, b.streams[0], &capturing, &number, &inner, NULL, NULL));
    NEED(CUDA_CALL(UserObjectCreate, &object, &gone, count, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    NEED(CUDA_CALL(GraphRetainUserObject, inner, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
    NEED(CUDA_CALL(StreamEndCapture, b.streams[0], &graph));
    atomic_store(&second, 0);
    NEED(CUDA_CALL(GraphInstantiate, &exec, graph, 0));
    NEED(CUDA_CALL(GraphDestroy, graph));
    put_spin(b.streams[0], &first);
    NEED(CUDA_CALL(GraphLaunch, exec, b.streams[0]));
    assert_int_equal(atomic_load(&gone), 0);
    NEED(CUDA_CALL(GraphExecDestroy, exec));
    assert_int_equal(atomic_load(&gone), 0);
    atomic_store(&first, 1);
    assert_int_equal(atomic_load(&gone), 0);
    assert_false(is_idle(b.streams[0]));
    atomic_store(&second, 1);
    NEED(CUDA_CALL(StreamSynchronize, b.streams[0]));
    assert_true(controls_await(&gone, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(calls_return_at_once, set_up, tear_down),
        cmocka_unit_test_setup_teardown(streams_wait_for_events, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_null_stream_waits, set_up, tear_down),
        cmocka_unit_test_setup_teardown(memory_is_read, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_stream_that_has_gone, set_up, tear_down),
        cmocka_unit_test_setup_teardown(graphs_run_after, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

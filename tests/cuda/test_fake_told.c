/* SPDX-License-Identifier: Apache-2.0 */
/* What one rank cannot do is told to all, on a driver that plays GPUs (fake/fake.c): the rank returns its own error,
 * the others EXPAR_ERR_REMOTE with its reason, nobody waits in vain, and the buffer takes the next call. */
#include "cuda/cuda.h"
#include "shmem/kind.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#define RANKS 2
#define ODD   1 /* the rank that something is wrong with */
/* Only a rank that waits in vain meets it, and then the test has failed. */
#define TIMEOUT_MS 5000

/* One rank, with a stream of its own. It has no tokens: so much of the kernels is played. */
typedef struct actor {
    expar_group *group;
    bool odd;
    cuda_device *gpu;
    cu_stream stream;
    expar_ep *ep;
    expar_dispatch_result came; /* of a dispatch that was made */
} actor;

static bool begin(actor *one, expar_group *group)
{
    *one = (actor){.group = group, .odd = group->rank == ODD};
    one->came = (expar_dispatch_result)EXPAR_DISPATCH_RESULT_INIT;
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    config.max_tokens = 4;
    config.max_row_bytes = 128;
    config.max_topk = 1;
    config.max_experts = group->size;
    config.device = (expar_device){.type = EXPAR_CUDA};
    if (!CHECK_OK(cuda_device_open(0, &one->gpu)) || !CHECK_OK(cuda_enter(one->gpu))) return false;
    CHECK_OK(CUDA_CALL(StreamCreate, &one->stream, CU_STREAM_NON_BLOCKING));
    return CHECK_OK(expar_ep_create(group, &config, &one->ep));
}

static void end(actor *one)
{
    expar_ep_output_release(one->came.output);
    expar_ep_handle_destroy(one->came.handle);
    CHECK_OK(expar_ep_destroy(one->ep));
    CHECK_OK(CUDA_CALL(StreamDestroy, one->stream));
    cuda_leave();
    cuda_device_close(one->gpu);
}

static expar_tensor none_of(expar_dtype dtype, int64_t columns)
{
    expar_tensor t = expar_tensor_2d(NULL, dtype, 0, columns);
    t.device = (expar_device){.type = EXPAR_CUDA};
    return t;
}

static expar_dispatch_args dispatch_args(const actor *one, expar_dtype dtype)
{
    expar_dispatch_args args = EXPAR_DISPATCH_ARGS_INIT;
    args.x = none_of(dtype, 32);
    args.topk_idx = none_of(EXPAR_I32, 1);
    args.num_experts = one->group->size;
    args.stream = one->stream;
    return args;
}

static expar_combine_args combine_args(const actor *one)
{
    expar_combine_args args = EXPAR_COMBINE_ARGS_INIT;
    args.x = args.y = none_of(EXPAR_F32, 32);
    args.handle = one->came.handle;
    args.stream = one->stream;
    return args;
}

/* A whole dispatch, whose handle stays. */
static bool dispatch(actor *one, expar_dtype dtype)
{
    expar_dispatch_args args = dispatch_args(one, dtype);
    expar_ep_output_release(one->came.output);
    expar_ep_handle_destroy(one->came.handle);
    one->came = (expar_dispatch_result)EXPAR_DISPATCH_RESULT_INIT;
    return CHECK_OK(expar_dispatch(one->ep, &args, &one->came));
}

static void combine(actor *one)
{
    expar_combine_args args = combine_args(one);
    CHECK_OK(expar_combine(one->ep, &args));
}

/* What this rank must hear of the odd rank's error. */
static void hear(const actor *one, expar_status status, expar_status odd, const char *call, const char *word)
{
    CHECK_STATUS(one->odd ? odd : EXPAR_ERR_REMOTE, status);
    CHECK_TEXT(call, word);
    if (!one->odd) CHECK_TEXT("rank 1 refused");
}

static void run(ranks_body body)
{
    kind_run((ranks_plan){.timeout_ms = TIMEOUT_MS}, RANKS, body);
}

/* ---- calls without a stream -----------------------------------------------------------------------------------------
 */

static const char default_stream[] = "stream is the default one";

/* The very first calls: no stream has been seen yet. */
static void default_streams(expar_group *group, void *shared)
{
    (void)shared;
    actor one;
    if (!begin(&one, group)) return;
    expar_dispatch_args args = dispatch_args(&one, EXPAR_F32);
    args.stream = NULL;
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_dispatch(one.ep, &args, &one.came));
    CHECK_TEXT("expar_dispatch", default_stream);
    if (!one.odd) args.stream = one.stream;
    hear(&one, expar_dispatch(one.ep, &args, &one.came), EXPAR_ERR_ARGUMENT, "expar_dispatch", default_stream);
    if (!dispatch(&one, EXPAR_F32)) return;
    expar_combine_args back = combine_args(&one);
    if (one.odd) back.stream = NULL;
    hear(&one, expar_combine(one.ep, &back), EXPAR_ERR_ARGUMENT, "expar_combine", default_stream);
    combine(&one);
    end(&one);
}

/* Of ranks that share it; each process has its own. */
static void the_default_stream_is_refused(void **state)
{
    (void)state;
    if (kind_of_ranks == RANKS_PROCESSES) skip();
    run(default_streams);
}

static void unreadable_arguments(expar_group *group, void *shared)
{
    (void)shared;
    actor one;
    if (!begin(&one, group)) return;
    for (int32_t round = 0; round < 2 && !check_failures(); round++) {
        expar_dispatch_args args = dispatch_args(&one, EXPAR_F32);
        expar_dispatch_result unused = EXPAR_DISPATCH_RESULT_INIT;
        const expar_dispatch_args *given = one.odd ? NULL : &args;
        hear(&one, expar_dispatch(one.ep, given, &unused), EXPAR_ERR_NULL, "expar_dispatch", "args is NULL");
        if (one.odd) args.struct_size = 1;
        hear(&one, expar_dispatch(one.ep, &args, &unused), EXPAR_ERR_ARGUMENT, "expar_dispatch", "args.struct_size");
        if (!dispatch(&one, EXPAR_F32)) return;
        expar_combine_args back = combine_args(&one);
        const expar_combine_args *given_back = one.odd ? NULL : &back;
        hear(&one, expar_combine(one.ep, given_back), EXPAR_ERR_NULL, "expar_combine", "args is NULL");
    }
    combine(&one);
    end(&one);
}

static void arguments_that_cannot_be_read(void **state)
{
    (void)state;
    run(unreadable_arguments);
}

/* In a capture nothing is told; behind it all is again. */
static void after_a_capture(expar_group *group, void *shared)
{
    (void)shared;
    actor one;
    cu_graph graph;
    if (!begin(&one, group)) return;
    expar_dispatch_args args = dispatch_args(&one, EXPAR_F32);
    CHECK_OK(CUDA_CALL(StreamBeginCapture, one.stream, CU_CAPTURE_THREAD_LOCAL));
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_dispatch(one.ep, &args, &one.came));
    CHECK_TEXT("num_worst_tokens is 0 while the stream is being captured");
    CHECK_OK(CUDA_CALL(StreamEndCapture, one.stream, &graph));
    const expar_dispatch_args *given = one.odd ? NULL : &args;
    hear(&one, expar_dispatch(one.ep, given, &one.came), EXPAR_ERR_NULL, "expar_dispatch", "args is NULL");
    if (dispatch(&one, EXPAR_F32)) combine(&one);
    end(&one);
}

static void refusals_after_a_capture(void **state)
{
    (void)state;
    run(after_a_capture);
}

/* ---- kernels --------------------------------------------------------------------------------------------------------
 */

/* Behind a dispatch of rows that cannot be added, which needs no kernel to add them. */
static void a_combine_without_kernels(expar_group *group, void *shared)
{
    (void)shared;
    actor one;
    if (!begin(&one, group) || !dispatch(&one, EXPAR_F8E4M3)) return;
    if (one.odd) setenv("FAKE_REFUSES", "combine", 1);
    for (int32_t round = 0; round < 2 && !check_failures(); round++) {
        expar_combine_args args = combine_args(&one);
        hear(&one, expar_combine(one.ep, &args), EXPAR_ERR_CUDA, "expar_combine", "combine.cu: nvrtcCompileProgram");
    }
    unsetenv("FAKE_REFUSES");
    combine(&one);
    if (dispatch(&one, EXPAR_F32)) combine(&one);
    end(&one);
}

/* On one rank only: threads share what is compiled. */
static void kernels_of_a_combine_that_do_not_compile(void **state)
{
    (void)state;
    if (kind_of_ranks == RANKS_THREADS) skip();
    run(a_combine_without_kernels);
}

/* A launch that fails reaches nobody: the others wait in vain, and no later call can make up for it. What is left of
   the buffer says so at once. */
static void launches_that_fail(expar_group *group, void *shared)
{
    actor one;
    bool in_combine = *(const bool *)shared;
    if (!begin(&one, group) || !dispatch(&one, EXPAR_F32)) return;
    expar_dispatch_args args = dispatch_args(&one, EXPAR_F32);
    expar_dispatch_result result = EXPAR_DISPATCH_RESULT_INIT;
    expar_combine_args back = combine_args(&one);
    setenv("FAKE_LAUNCH", "0", 1);
    CHECK_STATUS(EXPAR_ERR_CUDA, in_combine ? expar_combine(one.ep, &back) : expar_dispatch(one.ep, &args, &result));
    CHECK_TEXT("cuLaunchKernelEx");
    unsetenv("FAKE_LAUNCH");
    CHECK_STATUS(EXPAR_ERR_CUDA, expar_combine(one.ep, &back));
    CHECK_TEXT("expar_combine: the buffer is poisoned",
               in_combine ? "expar_combine: " : "expar_dispatch: ", "cuLaunchKernelEx");
    CHECK_STATUS(EXPAR_ERR_CUDA, expar_dispatch(one.ep, &args, &result));
    CHECK_TEXT("expar_dispatch: the buffer is poisoned", "cuLaunchKernelEx");
    end(&one);
}

static void a_launch_that_fails_poisons_the_buffer(void **state)
{
    (void)state;
    for (int32_t i = 0; i < 2; i++) {
        bool in_combine = i == 1;
        const ranks_plan plan = {.kind = kind_of_ranks, .size = 1};
        assert_true(ranks_run(&plan, launches_that_fail, &in_combine));
    }
}

/* ---- a context that is lost -----------------------------------------------------------------------------------------
 */

/* By a kernel of the caller's, for one: the driver does not come to the ends of calls any more. Events end all the
   same, for those who wait, for those who ask, and with the buffer. */
static void lost_ends(expar_group *group, void *shared)
{
    (void)shared;
    actor one;
    expar_event *events[3] = {0};
    int done = 0;
    if (!begin(&one, group) || !dispatch(&one, EXPAR_F32)) return;
    setenv("FAKE_FAULT", "1", 1);
    for (int i = 0; i < 3; i++) {
        expar_combine_args args = combine_args(&one);
        args.async_finish = 1;
        args.event = &events[i];
        CHECK_OK(expar_combine(one.ep, &args));
    }
    CHECK_STATUS(EXPAR_ERR_CUDA, expar_event_wait(events[0]));
    CHECK_TEXT("expar_combine", "cuEventQuery", "700");
    while (!done)
        CHECK_OK(expar_event_query(events[1], &done));
    CHECK_STATUS(EXPAR_ERR_CUDA, expar_event_wait(events[1]));
    end(&one);
    unsetenv("FAKE_FAULT");
    CHECK_STATUS(EXPAR_ERR_CUDA, expar_event_wait(events[2]));
    CHECK_TEXT("expar_combine", "destroyed before the GPU came to the end of the call");
    for (int i = 0; i < 3; i++)
        expar_event_destroy(events[i]);
}

static void events_of_a_lost_context(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 1, lost_ends);
}

/* ---- events to wait for ---------------------------------------------------------------------------------------------
 */

typedef struct signaller {
    pthread_t thread;
    expar_event *event;
    atomic_bool signalled; /* set before the event happens */
} signaller;

static void *signal_soon(void *argument)
{
    signaller *self = argument;
    const struct timespec span = {0, 30000000};
    nanosleep(&span, NULL);
    atomic_store(&self->signalled, true);
    return (void *)(intptr_t)expar_event_signal(self->event);
}

static void begin_to_signal(signaller *self)
{
    CHECK_OK(expar_event_create(&self->event));
    atomic_init(&self->signalled, false);
    if (pthread_create(&self->thread, NULL, signal_soon, self)) abort();
}

/* The call has returned. */
static void end_of_signal(signaller *self)
{
    void *status;
    CHECK(atomic_load(&self->signalled), "the call did not wait for wait_event");
    pthread_join(self->thread, &status);
    CHECK_OK((expar_status)(intptr_t)status);
    expar_event_destroy(self->event);
}

/* Dispatch, dispatch with a handle, and combine, that return by themselves, behind an event of the caller's. */
static void calls_behind_an_event(expar_group *group, void *shared)
{
    (void)shared;
    actor one;
    if (!begin(&one, group) || !dispatch(&one, EXPAR_F32)) return;
    for (int cached = 0; cached < 2; cached++) {
        signaller before;
        expar_dispatch_args args = dispatch_args(&one, EXPAR_F32);
        expar_dispatch_result result = EXPAR_DISPATCH_RESULT_INIT;
        if (cached) args.topk_idx = EXPAR_TENSOR_NONE;
        if (cached) args.handle = one.came.handle;
        begin_to_signal(&before);
        args.wait_event = before.event;
        args.async_finish = 1;
        if (!CHECK_OK(expar_dispatch(one.ep, &args, &result))) return;
        end_of_signal(&before);
        CHECK_OK(expar_event_wait(result.event));
        expar_event_destroy(result.event);
        expar_ep_output_release(result.output);
        expar_ep_handle_destroy(result.handle);
    }
    signaller before;
    expar_event *event = NULL;
    expar_combine_args args = combine_args(&one);
    begin_to_signal(&before);
    args.wait_event = before.event;
    args.async_finish = 1;
    args.event = &event;
    CHECK_OK(expar_combine(one.ep, &args));
    end_of_signal(&before);
    CHECK_OK(expar_event_wait(event));
    expar_event_destroy(event);
    end(&one);
}

static void calls_wait_for_their_events(void **state)
{
    (void)state;
    run(calls_behind_an_event);
}

/* ---- results ------------------------------------------------------------------------------------------------------
 */

/* The last thing that a dispatch puts on its stream is its event. */
static void an_end_that_cannot_be_told(expar_group *group, void *shared)
{
    (void)shared;
    actor one;
    if (!begin(&one, group)) return;
    const expar_dispatch_result untouched = EXPAR_DISPATCH_RESULT_INIT;
    expar_dispatch_result result = untouched;
    expar_dispatch_args args = dispatch_args(&one, EXPAR_F32);
    args.async_finish = 1;
    setenv("FAKE_HOST", "0", 1);
    CHECK_STATUS(EXPAR_ERR_CUDA, expar_dispatch(one.ep, &args, &result));
    CHECK_TEXT("cuLaunchHostFunc");
    CHECK(memcmp(&result, &untouched, sizeof result) == 0, "the result was written");
    unsetenv("FAKE_HOST");
    if (!CHECK_OK(expar_dispatch(one.ep, &args, &one.came))) return;
    CHECK_OK(expar_event_wait(one.came.event));
    expar_event_destroy(one.came.event);
    combine(&one);
    end(&one);
}

static void results_of_a_dispatch_that_fails_last(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 1, an_end_that_cannot_be_told);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_default_stream_is_refused),
        cmocka_unit_test(arguments_that_cannot_be_read),
        cmocka_unit_test(refusals_after_a_capture),
        cmocka_unit_test(kernels_of_a_combine_that_do_not_compile),
        cmocka_unit_test(a_launch_that_fails_poisons_the_buffer),
        cmocka_unit_test(events_of_a_lost_context),
        cmocka_unit_test(calls_wait_for_their_events),
        cmocka_unit_test(results_of_a_dispatch_that_fails_last),
    };
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

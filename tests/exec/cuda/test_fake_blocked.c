/* SPDX-License-Identifier: Apache-2.0 */
/* Calls whose stream does not come to them, on a simulated driver (cuda/fake/fake.c): something stands there that does
 * not end. They end with the group, and not before; what they left on the stream may run at any later time. Ranks
 * without tokens. */
#include "cuda/find_controls.h"
#include "ep/harness/idle_rank.h"
#include "ep/normal/normal.h"
#include "exec/cuda/core/gpu.h"
#include "shmem/kind.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

/* ---- another thread ---------------------------------------------------------------------------------------------- */

/* Looks of the driver's callers that show that one of them waits. */
#define LOOKS 100

typedef struct helper {
    pthread_t thread;
    expar_group *group; /* to be aborted once a call waits; NULL: none */
    fake_controls *controls;
    int looks;           /* of those that wait, so far */
    int64_t hold_ns;     /* how long a call is to wait before its stream goes on; 0: until it ends */
    atomic_int returned; /* 1: the call has, by its thread */
    bool in_time;
} helper;

static void await_looks(const fake_controls *controls, int looks)
{
    int left_ms = 60000;
    while (atomic_load(&controls->looks) < looks && left_ms-- > 0)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static void *help(void *argument)
{
    helper *h = argument;
    await_looks(h->controls, h->looks + LOOKS);
    if (h->group) expar_group_abort(h->group);
    if (h->hold_ns) {
        nanosleep(&(struct timespec){.tv_nsec = h->hold_ns}, NULL);
        h->in_time = !atomic_load(&h->returned);
        atomic_store(&h->controls->hold, 0);
    } else {
        h->in_time = controls_await(&h->returned, 1);
        if (!h->in_time) atomic_store(&h->controls->hold, 0);
    }
    return NULL;
}

/* From now on streams come to no kernel. */
static bool begin_to_hold(helper *h)
{
    h->controls = controls_find();
    if (!CHECK(h->controls, "another driver is open")) return false;
    h->looks = atomic_load(&h->controls->looks);
    atomic_store(&h->controls->hold, 1);
    if (pthread_create(&h->thread, NULL, help, h)) abort();
    return true;
}

/* The call has returned. */
static void end_of_help(helper *h, const char *what)
{
    atomic_store(&h->returned, 1);
    pthread_join(h->thread, NULL);
    CHECK(h->in_time, "%s", what);
}

/* Lets streams go on once somebody waits for them. */
static void *go_on(void *argument)
{
    helper *h = argument;
    await_looks(h->controls, h->looks + LOOKS);
    h->in_time = atomic_load(&h->controls->looks) >= h->looks + LOOKS;
    atomic_store(&h->controls->hold, 0);
    return NULL;
}

/* A thread that destroys the buffer waits for the work on its stream. The driver's thread that has told an end may
   still be on its way out then. */
static void end_after_the_stream(idle_rank *one, helper *h)
{
    CHECK(atomic_load(&h->controls->held) > 0, "no kernel is left on the stream");
    h->looks = atomic_load(&h->controls->looks);
    if (pthread_create(&h->thread, NULL, go_on, h)) abort();
    expar_ep_output_release(one->came.output);
    expar_ep_handle_release(one->came.handle);
    CHECK_OK(expar_ep_destroy(one->ep));
    CHECK(controls_await(&h->controls->held, 0), "the buffer went before its kernels had run");
    pthread_join(h->thread, NULL);
    CHECK(h->in_time, "expar_ep_destroy did not wait for the stream");
    CHECK_OK(CUDA_CALL(StreamDestroy, one->stream));
    cuda_leave();
    cuda_device_close(one->gpu);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

typedef expar_status call_fn(const idle_rank *one);

static expar_status dispatch(const idle_rank *one, const expar_ep_dispatch_args *args)
{
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    expar_status status = expar_ep_dispatch(one->ep, args, &result);
    expar_ep_output_release(result.output);
    expar_ep_handle_release(result.handle);
    return status;
}

static expar_status fresh(const idle_rank *one)
{
    const expar_ep_dispatch_args args = idle_dispatch_args(one, EXPAR_F32);
    return dispatch(one, &args);
}

static expar_status cached(const idle_rank *one)
{
    expar_ep_dispatch_args args = idle_dispatch_args(one, EXPAR_F32);
    args.topk_idx = EXPAR_TENSOR_NONE;
    args.handle = one->came.handle;
    return dispatch(one, &args);
}

static expar_status combine(const idle_rank *one)
{
    const expar_ep_combine_args args = idle_combine_args(one);
    return expar_ep_combine(one->ep, &args, NULL);
}

/* ---- an abort ---------------------------------------------------------------------------------------------------- */

static void trial_abort(expar_group *group, void *shared)
{
    call_fn *const *call = shared;
    idle_rank one;
    helper h = {.group = group};
    if (!idle_begin(&one, group) || !idle_dispatch(&one, EXPAR_F32) || !begin_to_hold(&h)) return;
    CHECK_STATUS(EXPAR_ERR_ABORTED, (*call)(&one));
    CHECK_TEXT("the stream has not reached the call", "has aborted the group");
    end_of_help(&h, "the call did not end with the group");
    CHECK_STATUS(EXPAR_ERR_ABORTED, (*call)(&one));
    CHECK_TEXT("poisoned", "the stream has not reached the call");
    end_after_the_stream(&one, &h);
}

static void run_abort(call_fn *call)
{
    const ranks_plan plan = {.kind = kind_of_ranks, .size = 1};
    assert_true(ranks_run(&plan, trial_abort, &call));
}

static void a_dispatch_ends_with_the_group(void **state)
{
    (void)state;
    run_abort(fresh);
}

static void a_dispatch_with_a_handle_ends_with_the_group(void **state)
{
    (void)state;
    run_abort(cached);
}

static void a_combine_ends_with_the_group(void **state)
{
    (void)state;
    run_abort(combine);
}

/* ---- a rank that goes -------------------------------------------------------------------------------------------- */

/* Rank 1, once rank 0 waits (which only a thread of its process sees). */
static void leave(idle_rank *one)
{
    const fake_controls *controls = controls_find();
    if (controls && one->group->threads) await_looks(controls, atomic_load(&controls->looks) + LOOKS);
    CHECK_OK(expar_group_abort(one->group));
    idle_end(one);
}

/* Rank 1 leaves behind a dispatch, and no stream comes to what rank 0 launches then. True on rank 0. */
static bool begin_without_peer(idle_rank *one, helper *h, expar_group *group)
{
    if (!idle_begin(one, group) || !idle_dispatch(one, EXPAR_F32)) return false;
    CHECK_OK(expar_barrier_all(group));
    if (group->rank == 0) return begin_to_hold(h);
    leave(one);
    return false;
}

static void trial_loss(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    helper h = {0};
    if (!begin_without_peer(&one, &h, group)) return;
    CHECK_STATUS(EXPAR_ERR_PEER, combine(&one));
    CHECK_TEXT("the stream has not reached the call", "rank 1");
    end_of_help(&h, "the call did not end with its peer");
    end_after_the_stream(&one, &h);
}

static void a_call_ends_with_its_peer(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, trial_loss);
}

/* ---- ranks that share a GPU -------------------------------------------------------------------------------------- */

/* The second call waits for the first, which stands on the stream, before it puts anything after it. */
static void trial_next(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    helper h = {0};
    expar_ep_combine_result done = EXPAR_EP_COMBINE_RESULT_INIT;
    if (!begin_without_peer(&one, &h, group)) return;
    expar_ep_combine_args args = idle_combine_args(&one);
    args.async_finish = 1;
    CHECK_OK(expar_ep_combine(one.ep, &args, &done));
    CHECK_STATUS(EXPAR_ERR_PEER, fresh(&one));
    CHECK_TEXT("the stream has not reached the call", "rank 1");
    end_of_help(&h, "the call behind another did not end with the group");
    end_after_the_stream(&one, &h);
    CHECK_STATUS(EXPAR_ERR_PEER, expar_event_wait(done.event));
    expar_event_release(done.event);
}

static void the_next_call_ends_with_the_group(void **state)
{
    (void)state;
    if (kind_of_ranks == RANKS_PROCESSES) skip();
    kind_run((ranks_plan){0}, 2, trial_next);
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

static expar_status wait_for(expar_event *event)
{
    return expar_event_wait(event);
}

static expar_status ask_for(expar_event *event)
{
    int done = 0;
    while (!done)
        CHECK_OK(expar_event_query(event, &done));
    return expar_event_wait(event);
}

/* A call that nobody waited for. Its work on the stream tells nobody once it comes. */
static void trial_event(expar_group *group, void *shared)
{
    expar_status (*const *way)(expar_event *) = shared;
    idle_rank one;
    helper h = {.group = group};
    expar_ep_combine_result done = EXPAR_EP_COMBINE_RESULT_INIT;
    if (!idle_begin(&one, group) || !idle_dispatch(&one, EXPAR_F32) || !begin_to_hold(&h)) return;
    expar_ep_combine_args args = idle_combine_args(&one);
    args.async_finish = 1;
    CHECK_OK(expar_ep_combine(one.ep, &args, &done));
    CHECK_STATUS(EXPAR_ERR_ABORTED, (*way)(done.event));
    CHECK_TEXT("expar_ep_combine", "the stream has not reached the call", "has aborted the group");
    end_of_help(&h, "the event did not happen with the group's end");
    expar_event_release(done.event);
    end_after_the_stream(&one, &h);
}

static void events_end_with_the_group(void **state)
{
    (void)state;
    expar_status (*const ways[])(expar_event *) = {wait_for, ask_for};
    for (size_t i = 0; i < ARRAY_LENGTH(ways); i++) {
        const ranks_plan plan = {.kind = kind_of_ranks, .size = 1};
        expar_status (*way)(expar_event *) = ways[i];
        assert_true(ranks_run(&plan, trial_event, &way));
    }
}

/* ---- a buffer that is abandoned ---------------------------------------------------------------------------------- */

static bool make_low_latency(const idle_rank *one, expar_ll **ll)
{
    expar_ll_config config = EXPAR_LL_CONFIG_INIT;
    config.device = (expar_device){EXPAR_CUDA, 0};
    config.max_tokens = 4;
    config.hidden = IDLE_HIDDEN;
    config.max_topk = config.num_experts = 1;
    return CHECK_OK(expar_ll_create(one->group, &config, ll));
}

/* Its call's event happens, and what stands on the stream, which comes later, finds nothing of the buffer. */
static void trial_abandoned(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    expar_ll *ll;
    expar_ll_dispatch_result came = EXPAR_LL_DISPATCH_RESULT_INIT;
    expar_ll_dispatch_args args = EXPAR_LL_DISPATCH_ARGS_INIT;
    if (!idle_begin(&one, group) || !make_low_latency(&one, &ll)) return;
    fake_controls *controls = controls_find();
    if (!CHECK(controls, "another driver is open")) return;
    args.x = idle_tensor(EXPAR_BF16, IDLE_HIDDEN);
    args.topk_idx = idle_tensor(EXPAR_I64, 1);
    args.stream = one.stream;
    args.async_finish = 1;
    atomic_store(&controls->hold, 1);
    CHECK_OK(expar_ll_dispatch(ll, &args, &came));
    CHECK(atomic_load(&controls->held) > 0, "no kernel is left on the stream");
    CHECK_OK(expar_ll_abandon(ll));
    CHECK_STATUS(EXPAR_ERR_ABORTED, expar_event_wait(came.event));
    CHECK_TEXT("expar_ll_dispatch", "the buffer has been abandoned on this rank");
    atomic_store(&controls->hold, 0);
    CHECK_OK(CUDA_CALL(StreamSynchronize, one.stream));
    expar_event_release(came.event);
    expar_ep_output_release(came.output);
    expar_ll_handle_release(came.handle);
    idle_end(&one);
}

static void events_end_with_their_buffer(void **state)
{
    (void)state;
    const ranks_plan plan = {.kind = kind_of_ranks, .size = 1};
    assert_true(ranks_run(&plan, trial_abandoned, NULL));
}

/* In a call that waits for its stream. The result is passed to the thread that looks at it. */
typedef struct caller {
    const idle_rank *one;
    expar_status status;
    char text[512];
} caller;

static void *call_in_vain(void *argument)
{
    caller *c = argument;
    expar_ep_dispatch_args args = idle_dispatch_args(c->one, EXPAR_F32);
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    c->status = cuda_enter(c->one->gpu);
    if (c->status != EXPAR_OK) return NULL;
    c->status = expar_ep_dispatch(c->one->ep, &args, &result);
    snprintf(c->text, sizeof c->text, "%s", expar_last_error());
    cuda_leave();
    return NULL;
}

/* In normal mode another thread of the rank's is in a call, which ends by it. Then the event of a call before it
   happens, and the rest is as above. */
static void trial_abandoned_rows(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    pthread_t thread;
    caller c = {.one = &one};
    expar_ep_combine_result done = EXPAR_EP_COMBINE_RESULT_INIT;
    if (!idle_begin(&one, group) || !idle_dispatch(&one, EXPAR_F32)) return;
    fake_controls *controls = controls_find();
    if (!CHECK(controls, "another driver is open")) return;
    expar_ep_combine_args args = idle_combine_args(&one);
    args.async_finish = 1;
    atomic_store(&controls->hold, 1);
    CHECK_OK(expar_ep_combine(one.ep, &args, &done));
    CHECK(atomic_load(&controls->held) > 0, "no kernel is left on the stream");
    const int looks = atomic_load(&controls->looks);
    if (pthread_create(&thread, NULL, call_in_vain, &c)) abort();
    CHECK(controls_await(&one.ep->base.busy, 1), "the other thread does not come to its call");
    await_looks(controls, looks + LOOKS);
    CHECK_OK(expar_ep_abandon(one.ep));
    pthread_join(thread, NULL);
    CHECK(c.status == EXPAR_ERR_ABORTED && strstr(c.text, "the buffer has been abandoned on this rank"),
          "the call ended with %s (%s)", expar_status_string(c.status), c.text);
    CHECK_STATUS(EXPAR_ERR_ABORTED, expar_event_wait(done.event));
    CHECK_TEXT("expar_ep_combine on rank 0: ", "the buffer has been abandoned on this rank");
    atomic_store(&controls->hold, 0);
    CHECK_OK(CUDA_CALL(StreamSynchronize, one.stream));
    expar_event_release(done.event);
    idle_forget(&one);
    CHECK_OK(CUDA_CALL(StreamDestroy, one.stream));
    cuda_leave();
    cuda_device_close(one.gpu);
}

static void events_of_rows_end_with_their_buffer(void **state)
{
    (void)state;
    const ranks_plan plan = {.kind = kind_of_ranks, .size = 1};
    assert_true(ranks_run(&plan, trial_abandoned_rows, NULL));
}

/* ---- a sound group ----------------------------------------------------------------------------------------------- */

#define SHORT_MS 20

/* However long the stream takes: nobody is silent. */
static void trial_patience(expar_group *group, void *shared)
{
    call_fn *const *call = shared;
    idle_rank one;
    helper h = {.hold_ns = 5 * SHORT_MS * 1000000};
    if (!idle_begin(&one, group) || !idle_dispatch(&one, EXPAR_F32)) return;
    kind_set_timeout(group, SHORT_MS);
    if (!begin_to_hold(&h)) return;
    CHECK_OK((*call)(&one));
    end_of_help(&h, "the call returned before its stream had come to it");
    idle_end(&one);
}

static void a_slow_stream_is_waited_for(void **state)
{
    (void)state;
    call_fn *const calls[] = {fresh, cached, combine};
    for (size_t i = 0; i < ARRAY_LENGTH(calls); i++) {
        const ranks_plan plan = {.kind = kind_of_ranks, .size = 1};
        call_fn *call = calls[i];
        assert_true(ranks_run(&plan, trial_patience, &call));
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_dispatch_ends_with_the_group),
        cmocka_unit_test(a_dispatch_with_a_handle_ends_with_the_group),
        cmocka_unit_test(a_combine_ends_with_the_group),
        cmocka_unit_test(a_call_ends_with_its_peer),
        cmocka_unit_test(the_next_call_ends_with_the_group),
        cmocka_unit_test(events_end_with_the_group),
        cmocka_unit_test(events_end_with_their_buffer),
        cmocka_unit_test(events_of_rows_end_with_their_buffer),
        cmocka_unit_test(a_slow_stream_is_waited_for),
    };
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

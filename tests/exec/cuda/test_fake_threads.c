/* SPDX-License-Identifier: Apache-2.0 */
/* Two threads of one rank that call on two buffers of a group, on the simulated driver. The rank's calls follow each
 * other whole, a call that waits for an event delays nobody, and a stream is told by its number. */
#include "cuda/find_controls.h"
#include "ep/harness/idle_rank.h"
#include "exec/event.h"
#include "shmem/kind.h"

#include <pthread.h>

#define CALLS 1000

/* A thread's buffer, and its stream. */
typedef struct caller {
    pthread_t thread;
    idle_rank *one;
    expar_ep *ep;
    cu_stream stream;
    expar_event *wait_event;
    int32_t calls;
    expar_status status; /* of the last call */
} caller;

/* Fresh dispatches, until one fails. */
static void *call(void *argument)
{
    caller *c = argument;
    if ((c->status = cuda_enter(c->one->gpu)) != EXPAR_OK) return NULL;
    for (int32_t i = 0; i < c->calls && c->status == EXPAR_OK; i++) {
        expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
        expar_ep_dispatch_args args = idle_dispatch_args(c->one, EXPAR_F32);
        args.stream = c->stream;
        args.wait_event = c->wait_event;
        c->status = expar_ep_dispatch(c->ep, &args, &result);
        expar_ep_output_release(result.output);
        expar_ep_handle_release(result.handle);
    }
    cuda_leave();
    return NULL;
}

static void begin(caller *c)
{
    CHECK(pthread_create(&c->thread, NULL, call, c) == 0, "no thread");
}

static void end(caller *c)
{
    pthread_join(c->thread, NULL);
    CHECK(c->status == EXPAR_OK, "%s", expar_status_string(c->status));
}

/* Two callers, the second with a buffer and a stream of its own. */
static bool open_two(idle_rank *one, caller *two, expar_group *group)
{
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    if (!idle_begin(one, group)) return false;
    config.max_tokens = 4;
    config.max_row_bytes = IDLE_HIDDEN * sizeof(float);
    config.max_topk = 1;
    config.max_experts = group->size;
    config.device = (expar_device){.type = EXPAR_CUDA};
    two[0] = (caller){.one = one, .ep = one->ep, .stream = one->stream, .calls = 1};
    two[1] = (caller){.one = one, .calls = 1};
    return CHECK_OK(CUDA_CALL(StreamCreate, &two[1].stream, CU_STREAM_NON_BLOCKING)) &&
           CHECK_OK(expar_ep_create(group, &config, &two[1].ep));
}

static void close_two(idle_rank *one, caller *two)
{
    CHECK_OK(expar_ep_destroy(two[1].ep));
    CHECK_OK(CUDA_CALL(StreamDestroy, two[1].stream));
    idle_end(one);
}

static void run(ranks_body body)
{
    const ranks_plan plan = {.kind = RANKS_THREADS, .size = 1};
    assert_true(ranks_run(&plan, body, NULL));
}

/* ---- whole calls ------------------------------------------------------------------------------------------------- */

/* How many kernels were launched between those of a call on another stream: each call has two, one after the other. */
static int32_t strangers(const fake_controls *controls, int first, int launches)
{
    int32_t count = 0;
    for (int i = first; i < first + launches; i += 2)
        count += atomic_load(&controls->streams[i % FAKE_LAUNCHES]) !=
                 atomic_load(&controls->streams[(i + 1) % FAKE_LAUNCHES]);
    return count;
}

static void trial_at_once(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    caller two[2];
    if (!open_two(&one, two, group)) return;
    fake_controls *controls = controls_find();
    if (!CHECK(controls, "another driver is open")) return;
    int first = atomic_load(&controls->launches);
    two[0].calls = two[1].calls = CALLS;
    for (int i = 0; i < 2; i++)
        begin(&two[i]);
    for (int i = 0; i < 2; i++)
        end(&two[i]);
    int launches = atomic_load(&controls->launches) - first;
    CHECK(launches == 4 * CALLS && launches <= FAKE_LAUNCHES, "%d kernels, expected %d", launches, 4 * CALLS);
    CHECK(strangers(controls, first, launches) == 0, "%d calls were not whole", strangers(controls, first, launches));
    close_two(&one, two);
}

static void calls_of_two_threads_follow_each_other(void **state)
{
    (void)state;
    run(trial_at_once);
}

/* ---- an event ---------------------------------------------------------------------------------------------------- */

/* That happens when the other thread's call has returned. */
static void trial_with_event(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    caller two[2];
    expar_event *event;
    if (!open_two(&one, two, group) || !CHECK_OK(event_create_for_call(&event))) return;
    fake_controls *controls = controls_find();
    if (!CHECK(controls, "another driver is open")) return;
    two[0].wait_event = event;
    int begun = atomic_load(&controls->begun);
    begin(&two[0]);
    CHECK(controls_await(&controls->begun, begun + 1), "the first call did not begin");
    begin(&two[1]);
    end(&two[1]);
    event_finish(event, EXPAR_OK);
    end(&two[0]);
    expar_event_release(event);
    close_two(&one, two);
}

static void a_call_that_waits_for_an_event_holds_nobody_up(void **state)
{
    (void)state;
    run(trial_with_event);
}

/* ---- streams ----------------------------------------------------------------------------------------------------- */

/* By one name another stream in each thread: the second call has to wait for the first. */
static void trial_by_one_name(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    if (!idle_begin(&one, group)) return;
    fake_controls *controls = controls_find();
    if (!CHECK(controls, "another driver is open")) return;
    caller mine = {.one = &one, .ep = one.ep, .stream = FAKE_THREADS_STREAM, .calls = 2}, other = mine;
    other.calls = 1;
    call(&mine);
    CHECK(mine.status == EXPAR_OK, "%s", expar_last_error());
    int others = atomic_load(&controls->others);
    begin(&other);
    end(&other);
    CHECK(atomic_load(&controls->others) == others + 1, "%d waits, expected 1",
          atomic_load(&controls->others) - others);
    idle_end(&one);
}

static void streams_of_one_name_are_told_apart(void **state)
{
    (void)state;
    run(trial_by_one_name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(calls_of_two_threads_follow_each_other),
                                       cmocka_unit_test(a_call_that_waits_for_an_event_holds_nobody_up),
                                       cmocka_unit_test(streams_of_one_name_are_told_apart)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* How calls on GPUs end, on a simulated driver (cuda/fake/fake.c): when they return, what they leave, and what becomes
 * of those whose end the driver never tells. */
#include "ep/harness/idle_rank.h"
#include "shmem/kind.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#define RANKS 2

static void run(ranks_body body)
{
    kind_run((ranks_plan){0}, RANKS, body);
}

/* ---- a context that is lost -------------------------------------------------------------------------------------- */

static void combine_by_itself(idle_rank *one, expar_event **event)
{
    expar_ep_combine_args args = idle_combine_args(one);
    args.async_finish = 1;
    expar_ep_combine_result done = EXPAR_EP_COMBINE_RESULT_INIT;
    CHECK_OK(expar_ep_combine(one->ep, &args, &done));
    *event = done.event;
}

/* By a kernel of the caller's, for one: the driver tells of no end of a call any more. A call that another one has come
   after ended well, as that one's kernel shows. Other events end all the same, for those who wait, for those who ask,
   and with the buffer. */
static void lost_ends(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    expar_event *events[4] = {0};
    int done = 0;
    if (!idle_begin(&one, group) || !idle_dispatch(&one, EXPAR_F32)) return;
    setenv("FAKE_FAULT", "1", 1);
    for (int i = 0; i < 2; i++)
        combine_by_itself(&one, &events[i]);
    CHECK_STATUS(EXPAR_ERR_CUDA, expar_event_wait(events[1]));
    CHECK_TEXT("expar_ep_combine", "cuEventQuery", "700");
    CHECK_OK(expar_event_wait(events[0]));
    combine_by_itself(&one, &events[2]);
    while (!done)
        CHECK_OK(expar_event_query(events[2], &done));
    CHECK_STATUS(EXPAR_ERR_CUDA, expar_event_wait(events[2]));
    combine_by_itself(&one, &events[3]);
    idle_end(&one);
    unsetenv("FAKE_FAULT");
    CHECK_STATUS(EXPAR_ERR_CUDA, expar_event_wait(events[3]));
    /* The guard may have looked at the mark before the buffer was destroyed. */
    if (!strstr(expar_last_error(), "cuEventQuery"))
        CHECK_TEXT("expar_ep_combine", "destroyed before the GPU came to the end of the call");
    for (int i = 0; i < 4; i++)
        expar_event_release(events[i]);
}

static void events_of_a_lost_context(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 1, lost_ends);
}

/* ---- events to wait for ------------------------------------------------------------------------------------------ */

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
    expar_event_release(self->event);
}

/* Dispatch, dispatch with a handle, and combine, that return by themselves, after an event of the caller's. */
static void calls_after_an_event(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    if (!idle_begin(&one, group) || !idle_dispatch(&one, EXPAR_F32)) return;
    for (int cached = 0; cached < 2; cached++) {
        signaller before;
        expar_ep_dispatch_args args = idle_dispatch_args(&one, EXPAR_F32);
        expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
        if (cached) args.topk_idx = EXPAR_TENSOR_NONE;
        if (cached) args.handle = one.came.handle;
        begin_to_signal(&before);
        args.wait_event = before.event;
        args.async_finish = 1;
        if (!CHECK_OK(expar_ep_dispatch(one.ep, &args, &result))) return;
        end_of_signal(&before);
        CHECK_OK(expar_event_wait(result.event));
        expar_event_release(result.event);
        expar_ep_output_release(result.output);
        expar_ep_handle_release(result.handle);
    }
    signaller before;
    expar_ep_combine_result done = EXPAR_EP_COMBINE_RESULT_INIT;
    expar_ep_combine_args args = idle_combine_args(&one);
    begin_to_signal(&before);
    args.wait_event = before.event;
    args.async_finish = 1;
    CHECK_OK(expar_ep_combine(one.ep, &args, &done));
    end_of_signal(&before);
    CHECK_OK(expar_event_wait(done.event));
    expar_event_release(done.event);
    idle_end(&one);
}

static void calls_wait_for_their_events(void **state)
{
    (void)state;
    run(calls_after_an_event);
}

/* ---- what is not known on the host ------------------------------------------------------------------------------- */

static expar_ep_handle_info info_of(const expar_ep_handle *handle)
{
    expar_ep_handle_info info = EXPAR_EP_HANDLE_INFO_INIT;
    CHECK_OK(expar_ep_handle_get_info(handle, &info));
    return info;
}

static void handles_with_and_without_counts(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    if (!idle_begin(&one, group) || !idle_dispatch(&one, EXPAR_F32)) return;
    expar_ep_handle_info info = info_of(one.came.handle);
    CHECK(info.num_recv_tokens == 0 && info.num_nodes == 1 && !info.tokens_per_node, "R is %d",
          (int)info.num_recv_tokens);
    CHECK(info.rank_prefix && info.rank_prefix[RANKS - 1] == 0, "no counts that the call has waited for");
    CHECK(info.channel_prefix && info.channel_prefix[RANKS * info.num_channels - 1] == 0, "no counts of channels");
    expar_ep_dispatch_args args = idle_dispatch_args(&one, EXPAR_F32);
    expar_ep_dispatch_result worst = EXPAR_EP_DISPATCH_RESULT_INIT;
    args.num_worst_tokens = 4;
    if (!CHECK_OK(expar_ep_dispatch(one.ep, &args, &worst))) return;
    info = info_of(worst.handle);
    CHECK(info.num_recv_tokens == -1 && !info.rank_prefix && !info.channel_prefix && !info.tokens_per_node,
          "R is %d, and there are counts", (int)info.num_recv_tokens);
    expar_ep_output_release(worst.output);
    expar_ep_handle_release(worst.handle);
    idle_end(&one);
}

static void handles_tell_what_is_known(void **state)
{
    (void)state;
    run(handles_with_and_without_counts);
}

static void counts_on_the_host(expar_group *group, void *shared)
{
    (void)shared;
    int32_t counts[RANKS];
    expar_ep_layout layout = EXPAR_EP_LAYOUT_INIT;
    const expar_tensor idx = idle_tensor(EXPAR_I32, 1);
    layout.tokens_per_rank = counts;
    CHECK_STATUS(EXPAR_ERR_DEVICE, expar_ep_get_layout(group, &idx, RANKS, &layout));
    CHECK_TEXT("expar_ep_get_layout", "layout.tokens_per_rank", "is host memory; expected memory of GPU 0");
}

static void counts_lie_where_the_indices_do(void **state)
{
    (void)state;
    run(counts_on_the_host);
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* The last thing that a dispatch puts on its stream is the mark of its event. */
static void an_end_that_cannot_be_told(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    if (!idle_begin(&one, group)) return;
    const expar_ep_dispatch_result untouched = EXPAR_EP_DISPATCH_RESULT_INIT;
    expar_ep_dispatch_result result = untouched;
    expar_ep_dispatch_args args = idle_dispatch_args(&one, EXPAR_F32);
    args.async_finish = 1;
    setenv("FAKE_CONTEXT", "0", 1);
    CHECK_STATUS(EXPAR_ERR_CUDA, expar_ep_dispatch(one.ep, &args, &result));
    CHECK_TEXT("cuCtxGetId");
    CHECK(memcmp(&result, &untouched, sizeof result) == 0, "the result was written");
    unsetenv("FAKE_CONTEXT");
    if (!CHECK_OK(expar_ep_dispatch(one.ep, &args, &one.came))) return;
    CHECK_OK(expar_event_wait(one.came.event));
    expar_event_release(one.came.event);
    idle_combine(&one);
    idle_end(&one);
}

static void results_of_a_dispatch_that_fails_last(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 1, an_end_that_cannot_be_told);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_of_a_lost_context),
        cmocka_unit_test(calls_wait_for_their_events),
        cmocka_unit_test(handles_tell_what_is_known),
        cmocka_unit_test(counts_lie_where_the_indices_do),
        cmocka_unit_test(results_of_a_dispatch_that_fails_last),
    };
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

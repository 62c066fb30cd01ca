/* SPDX-License-Identifier: Apache-2.0 */
/* Work that is put on streams after a kernel that may be waiting for another rank, as the simulated driver sees it
 * (cuda/fake/fake.c). Ranks of a process that share a GPU put nothing there, process ranks put all their work. The
 * driver lets no stream come to its end, and counts. Ranks without tokens. */
#include "cuda/find_controls.h"
#include "ep/harness/idle_rank.h"
#include "ep/normal/normal.h"
#include "shmem/kind.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#define RANKS 2

/* Lets streams come to their ends, once that was looked for in vain for a while, and records how much was put on them
   by then. */
typedef struct watch {
    pthread_t thread;
    fake_controls *controls;
    int before, work; /* kernels, copies, waits */
    bool looked;
    atomic_bool over; /* the rank that was to look for an end has not */
} watch;

static int work_of(const fake_controls *controls)
{
    return atomic_load(&controls->launches) + atomic_load(&controls->others);
}

static void *watch_launches(void *argument)
{
    watch *w = argument;
    int left_ms = 60000, looks = atomic_load(&w->controls->looks);
    while (!(w->looked = atomic_load(&w->controls->looks) >= looks + 1000) && !atomic_load(&w->over) && left_ms-- > 0)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    w->work = work_of(w->controls) - w->before;
    atomic_store(&w->controls->unfinished, 0);
    return NULL;
}

/* Both ranks make the call that they are ready for, and the first watches both: so many kernels, and nothing after
   them. */
static void check_after(const idle_rank *one, const expar_ep_dispatch_args *args, int expected, const char *what)
{
    watch w = {.controls = controls_find()};
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    bool watches = one->group->rank == 0 && CHECK(w.controls, "another driver is open");
    if (watches) {
        w.before = work_of(w.controls);
        atomic_store(&w.controls->unfinished, 1);
        pthread_create(&w.thread, NULL, watch_launches, &w);
    }
    CHECK_OK(expar_barrier_all(one->group));
    CHECK_OK(expar_ep_dispatch(one->ep, args, &result));
    if (watches) pthread_join(w.thread, NULL);
    CHECK_OK(expar_barrier_all(one->group));
    CHECK(!watches || w.looked, "%s: nobody looked", what);
    CHECK(!watches || w.work == expected, "%s: %d kernels, copies and waits, expected %d", what, w.work, expected);
    if (args->async_finish) CHECK_OK(expar_event_wait(result.event));
    expar_event_release(result.event);
    expar_ep_output_release(result.output);
    expar_ep_handle_release(result.handle);
}

static void dispatch(const idle_rank *one, const expar_ep_dispatch_args *args)
{
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    if (!CHECK_OK(expar_ep_dispatch(one->ep, args, &result))) return;
    expar_ep_output_release(result.output);
    expar_ep_handle_release(result.handle);
}

/* A call that is waited for: after it none of this rank's kernels may be waiting, and the next one need not look for
   their end. It may look at its own stream now and then, where the kernels that it waits for take their time. */
static void make_calm(const idle_rank *one)
{
    const expar_ep_dispatch_args args = idle_dispatch_args(one, EXPAR_F32);
    watch w = {.controls = controls_find()};
    const bool watches = one->group->rank == 0 && CHECK(w.controls, "another driver is open");
    dispatch(one, &args);
    CHECK_OK(expar_barrier_all(one->group));
    if (watches) {
        atomic_store(&w.controls->unfinished, 1);
        pthread_create(&w.thread, NULL, watch_launches, &w);
    }
    CHECK_OK(expar_barrier_all(one->group));
    dispatch(one, &args);
    CHECK_OK(expar_barrier_all(one->group));
    atomic_store(&w.over, true);
    if (watches) pthread_join(w.thread, NULL);
    CHECK(!w.looked, "looked for the end of a call that was waited for");
    CHECK_OK(expar_barrier_all(one->group));
}

/* ---- within a call ----------------------------------------------------------------------------------------------- */

/* The rows of a dispatch of the worst-case size come after notify. With an expert-major output kernels follow the
   rows, with a handle a copy before them. */
static void trial_within(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    if (!idle_begin(&one, group)) return;
    expar_ep_dispatch_args args = idle_dispatch_args(&one, EXPAR_F32);
    args.num_worst_tokens = 4;
    make_calm(&one);
    check_after(&one, &args, RANKS, "rows behind notify");
    args.expert_major = 1;
    if (!CHECK_OK(expar_ep_dispatch(one.ep, &args, &one.came))) return;
    args.num_worst_tokens = 0;
    args.async_finish = 1;
    make_calm(&one);
    check_after(&one, &args, 2 * RANKS, "kernels behind rows");
    args.handle = one.came.handle;
    args.topk_idx = EXPAR_TENSOR_NONE;
    make_calm(&one);
    check_after(&one, &args, RANKS, "a copy behind rows");
    idle_end(&one);
}

static void nothing_within_a_call(void **state)
{
    (void)state;
    if (kind_of_ranks == RANKS_PROCESSES) skip();
    kind_run((ranks_plan){0}, RANKS, trial_within);
}

/* ---- between calls ----------------------------------------------------------------------------------------------- */

/* On another stream, where the call before would have to be waited for. */
static void check_next(idle_rank *one, const char *what)
{
    cu_stream other;
    if (!CHECK_OK(CUDA_CALL(StreamCreate, &other, CU_STREAM_NON_BLOCKING))) return;
    expar_ep_dispatch_args args = idle_dispatch_args(one, EXPAR_F32);
    args.stream = other;
    check_after(one, &args, 0, what);
    CHECK_OK(CUDA_CALL(StreamDestroy, other));
}

/* A call of the worst-case size, without an event: nobody is told. */
static void reject_untold(const idle_rank *one)
{
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    expar_ep_dispatch_args args = idle_dispatch_args(one, EXPAR_F32);
    args.num_worst_tokens = 4;
    args.topk_idx.dtype = EXPAR_BF16;
    CHECK_STATUS(EXPAR_ERR_DTYPE, expar_ep_dispatch(one->ep, &args, &result));
}

/* Calls that nobody has waited for: of the worst-case size, refused ones of these, and those with an event. */
static void trial_between(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    expar_ep_combine_result done = EXPAR_EP_COMBINE_RESULT_INIT;
    if (!idle_begin(&one, group) || !idle_dispatch(&one, EXPAR_F32)) return;
    expar_ep_dispatch_args args = idle_dispatch_args(&one, EXPAR_F32);
    args.num_worst_tokens = 4;
    dispatch(&one, &args);
    check_next(&one, "behind a dispatch of the worst-case size");
    reject_untold(&one);
    check_next(&one, "behind a refused one");
    expar_ep_combine_args back = idle_combine_args(&one);
    back.async_finish = 1;
    CHECK_OK(expar_ep_combine(one.ep, &back, &done));
    check_next(&one, "behind a combine");
    CHECK_OK(expar_event_wait(done.event));
    expar_event_release(done.event);
    idle_end(&one);
}

static void nothing_between_calls(void **state)
{
    (void)state;
    if (kind_of_ranks == RANKS_PROCESSES) skip();
    kind_run((ranks_plan){0}, RANKS, trial_between);
}

/* ---- a context of one's own -------------------------------------------------------------------------------------- */

/* No stream comes to its end, and nobody looks. */
static void trial_alone(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    if (!idle_begin(&one, group)) return;
    fake_controls *controls = controls_find();
    if (!CHECK(controls, "another driver is open")) return;
    atomic_store(&controls->unfinished, 1);
    int looks = atomic_load(&controls->looks);
    expar_ep_dispatch_args args = idle_dispatch_args(&one, EXPAR_F32);
    args.num_worst_tokens = 4;
    for (int i = 0; i < 3; i++)
        dispatch(&one, &args);
    CHECK(atomic_load(&controls->looks) == looks, "%d looks", atomic_load(&controls->looks) - looks);
    atomic_store(&controls->unfinished, 0);
    idle_end(&one);
}

static void process_ranks_do_not_look(void **state)
{
    (void)state;
    if (kind_of_ranks == RANKS_THREADS) skip();
    kind_run((ranks_plan){0}, RANKS, trial_alone);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_within_a_call), cmocka_unit_test(nothing_between_calls),
                                       cmocka_unit_test(process_ranks_do_not_look)};
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Waits of kernels, on the simulated driver. A rank that is late by many time-outs is waited for, in every kind of call
 * and in graphs. A wait ends when nobody will come to it, and says why. One whose own host does not run ends by itself.
 * Ranks without tokens. */
#include "base/interrupt.h"
#include "ep/harness/idle_rank.h"
#include "ep/normal/normal.h"
#include "exec/cuda/normal/normal_gpu.h"
#include "shmem/kind.h"
#include <expar/interrupt.h>

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#define RANKS 2
#define LATE  1 /* the rank that is */
/* The time-out, and how late the rank is: long enough for the guard to ask, too. */
#define SHORT_MS 250
#define LATE_MS  1000

static void rest_ms(int64_t span_ms)
{
    nanosleep(&(struct timespec){.tv_sec = span_ms / 1000, .tv_nsec = span_ms % 1000 * 1000000}, NULL);
}

/* Without a limit for those who answer. */
static void set_timeout(expar_group *group, int64_t timeout_ms)
{
    group->sym->timeout_ms = group->boot->timeout_ms = timeout_ms;
}

/* ---- the other rank ---------------------------------------------------------------------------------------------- */

static bool may_come(const boot_answer *answer)
{
    return answer->ended == EXPAR_OK;
}

static bool has_given_up(const boot_answer *answer)
{
    return answer->ended != EXPAR_OK;
}

/* Until it answers so of its calls on the buffer, as it would those of a graph that this rank launches. */
static void await_other(const idle_rank *one, const expar_ep *ep, bool (*is_so)(const boot_answer *answer))
{
    const int64_t until_ms = ranks_clock_ms() + RANKS_TIMEOUT_MS;
    const int32_t other = 1 - one->group->rank;
    boot *ctl = one->group->boot;
    const boot_topic topic = {.kind = BOOT_KIND_BUFFER,
                              .object = ep->base.number,
                              .number = boot_graph_number(ctl, BOOT_KIND_BUFFER, ep->base.number)};
    bool so = false;
    while (!so && ranks_clock_ms() < until_ms) {
        boot_answer answers[RANKS] = {{0}};
        answers[other].asked = true;
        ctl->ops->ask(ctl, &topic, answers, INT64_C(1000000000));
        so = answers[other].came && is_so(&answers[other]);
        if (!so) rest_ms(2);
    }
    CHECK(so, "rank %d did not come to it", other);
}

/* ---- late -------------------------------------------------------------------------------------------------------- */

typedef enum late_call { FRESH, WORST, CACHED, COMBINE, ASYNC, NUM_CALLS } late_call;

static expar_status dispatch(const idle_rank *one, late_call call)
{
    expar_ep_dispatch_args args = idle_dispatch_args(one, EXPAR_F32);
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    if (call == WORST) args.num_worst_tokens = 4;
    if (call == CACHED) {
        args.topk_idx = EXPAR_TENSOR_NONE;
        args.num_experts = 0;
        args.handle = one->came.handle;
    }
    expar_status status = expar_ep_dispatch(one->ep, &args, &result);
    expar_ep_output_release(result.output);
    expar_ep_handle_release(result.handle);
    return status;
}

static expar_status combine(const idle_rank *one, bool async)
{
    expar_ep_combine_result done = EXPAR_EP_COMBINE_RESULT_INIT;
    expar_ep_combine_args args = idle_combine_args(one);
    args.async_finish = async;
    expar_status status = expar_ep_combine(one->ep, &args, &done);
    if (status == EXPAR_OK && async) status = expar_event_wait(done.event);
    expar_event_release(done.event);
    return status;
}

static expar_status trial(const idle_rank *one, late_call call)
{
    return call == COMBINE || call == ASYNC ? combine(one, call == ASYNC) : dispatch(one, call);
}

static bool begin(idle_rank *one, expar_group *group)
{
    if (!idle_begin(one, group) || !idle_dispatch(one, EXPAR_F32)) return false;
    CHECK_OK(expar_group_barrier(group));
    return true;
}

static void trial_late(expar_group *group, void *shared)
{
    idle_rank one;
    (void)shared;
    if (!begin(&one, group)) return;
    set_timeout(group, SHORT_MS);
    for (int i = 0; i < NUM_CALLS && !check_failures(); i++) {
        if (group->rank == LATE) rest_ms(LATE_MS);
        CHECK_OK(trial(&one, (late_call)i));
    }
    CHECK_OK(gpu_await(one.ep->base.exec, "the test"));
    CHECK_OK(expar_ep_query(one.ep));
    idle_end(&one);
}

static void late_ranks_are_waited_for(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, RANKS, trial_late);
}

/* The host does not know of their launches. */
static void trial_late_graph(expar_group *group, void *shared)
{
    idle_rank one;
    cu_graph graph = NULL;
    cu_graph_exec exec = NULL;
    (void)shared;
    if (!begin(&one, group)) return;
    expar_ep_combine_args args = idle_combine_args(&one);
    CHECK_OK(CUDA_CALL(StreamBeginCapture, one.stream, CU_CAPTURE_THREAD_LOCAL));
    CHECK_OK(expar_ep_combine(one.ep, &args, NULL));
    CHECK_OK(CUDA_CALL(StreamEndCapture, one.stream, &graph));
    CHECK_OK(CUDA_CALL(GraphInstantiate, &exec, graph, 0));
    CHECK_OK(expar_group_barrier(group));
    set_timeout(group, SHORT_MS);
    for (int i = 0; i < 2; i++) {
        /* Also once the guard has had nothing to do for long. */
        if (i) rest_ms(1500);
        if (group->rank == LATE) rest_ms(LATE_MS);
        CHECK_OK(CUDA_CALL(GraphLaunch, exec, one.stream));
        CHECK_OK(CUDA_CALL(StreamSynchronize, one.stream));
        CHECK_OK(expar_ep_query(one.ep));
    }
    CHECK_OK(CUDA_CALL(GraphExecDestroy, exec));
    CHECK_OK(CUDA_CALL(GraphDestroy, graph));
    idle_end(&one);
}

static void late_launches_are_waited_for(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, RANKS, trial_late_graph);
}

/* ---- stopped, and gone ------------------------------------------------------------------------------------------- */

/* Less than what makes a rank silent. */
#define STOPPED_MS 1500

static void *wake_soon(void *argument)
{
    const expar_group *group = argument;
    rest_ms(STOPPED_MS);
    if (kill(group->boot->places[LATE].pid, SIGCONT)) abort();
    return NULL;
}

/* A rank that is stopped gives no answer, and then it goes on. */
static void trial_stopped(expar_group *group, void *shared)
{
    idle_rank one;
    pthread_t thread;
    (void)shared;
    if (!begin(&one, group)) return;
    for (int i = 0; i < 2 && !check_failures(); i++) {
        if (group->rank == LATE) {
            raise(SIGSTOP);
        } else if (pthread_create(&thread, NULL, wake_soon, group)) {
            abort();
        }
        CHECK_OK(trial(&one, i ? FRESH : COMBINE));
        if (group->rank != LATE) pthread_join(thread, NULL);
        CHECK_OK(expar_group_barrier(group));
    }
    idle_end(&one);
}

static void stopped_ranks_that_go_on(void **state)
{
    (void)state;
    if (kind_of_ranks == RANKS_THREADS) skip();
    kind_run((ranks_plan){0}, RANKS, trial_stopped);
}

/* Late, and then dead: the others name it. */
static void trial_death(expar_group *group, void *shared)
{
    idle_rank one;
    (void)shared;
    if (!begin(&one, group)) return;
    if (group->rank == LATE) {
        rest_ms(LATE_MS);
        _exit(0);
    }
    CHECK_STATUS(EXPAR_ERR_PEER, trial(&one, COMBINE));
    CHECK_TEXT("expar_ep_combine", "no header from rank 1", "rank 1 died");
    CHECK_STATUS(EXPAR_ERR_PEER, expar_ep_query(one.ep));
    idle_end(&one);
}

static void late_ranks_that_die(void **state)
{
    (void)state;
    if (kind_of_ranks == RANKS_THREADS) skip();
    kind_run((ranks_plan){0}, RANKS, trial_death);
}

/* ---- ends -------------------------------------------------------------------------------------------------------- */

/* A graph that one rank does not launch: later than that it may not be. */
static void trial_limit(expar_group *group, void *shared)
{
    idle_rank one;
    cu_graph graph = NULL;
    cu_graph_exec exec = NULL;
    (void)shared;
    if (!begin(&one, group)) return;
    expar_ep_combine_args args = idle_combine_args(&one);
    CHECK_OK(CUDA_CALL(StreamBeginCapture, one.stream, CU_CAPTURE_THREAD_LOCAL));
    CHECK_OK(expar_ep_combine(one.ep, &args, NULL));
    CHECK_OK(CUDA_CALL(StreamEndCapture, one.stream, &graph));
    CHECK_OK(CUDA_CALL(GraphInstantiate, &exec, graph, 0));
    CHECK_OK(expar_group_barrier(group));
    if (group->rank != LATE) {
        group->boot->late_limit_ms = 200;
        CHECK_OK(CUDA_CALL(GraphLaunch, exec, one.stream));
        CHECK_OK(CUDA_CALL(StreamSynchronize, one.stream));
        CHECK_STATUS(EXPAR_ERR_PEER, expar_ep_query(one.ep));
        CHECK_TEXT("the late limit", "no header from rank 1", "rank 1 is alive but has not come to this call");
        CHECK_STATUS(EXPAR_ERR_PEER, expar_ep_combine(one.ep, &args, NULL));
        CHECK_TEXT("poisoned", "the late limit");
        group->boot->late_limit_ms = 0;
    } else {
        /* In a barrier it would be awaited by way of that. */
        await_other(&one, one.ep, has_given_up);
    }
    CHECK_OK(expar_group_barrier(group));
    CHECK_OK(CUDA_CALL(GraphExecDestroy, exec));
    CHECK_OK(CUDA_CALL(GraphDestroy, graph));
    idle_end(&one);
}

static void a_launch_that_does_not_come(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, RANKS, trial_limit);
}

/* Each waits in a call on another buffer: neither will ever come to the other's. */
static void trial_circle(expar_group *group, void *shared)
{
    idle_rank one, other;
    expar_ep *second = NULL;
    const expar_ep_config config = idle_config(group);
    (void)shared;
    if (!idle_begin(&one, group) || !CHECK_OK(expar_ep_create(group, &config, &second))) return;
    other = one;
    other.ep = second;
    other.came = (expar_ep_dispatch_result)EXPAR_EP_DISPATCH_RESULT_INIT;
    if (!idle_dispatch(&one, EXPAR_F32) || !idle_dispatch(&other, EXPAR_F32)) return;
    CHECK_OK(expar_group_barrier(group));
    set_timeout(group, 400);
    const idle_rank *mine = group->rank ? &other : &one;
    CHECK_STATUS(EXPAR_ERR_PEER, combine(mine, true));
    CHECK_TEXT("expar_ep_combine", "no header from rank");
    const bool told = strstr(expar_last_error(), "a deadlock") || strstr(expar_last_error(), "does not come any more");
    CHECK(told, "%s", expar_last_error());
    set_timeout(group, RANKS_TIMEOUT_MS);
    /* This rank's wait in a barrier would be a part of the same circle. */
    await_other(mine, group->rank ? one.ep : second, has_given_up);
    CHECK_OK(expar_group_barrier(group));
    idle_forget(&other);
    CHECK_OK(expar_ep_destroy(second));
    idle_end(&one);
}

static void calls_in_a_circle_end(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, RANKS, trial_circle);
}

/* The pulse has stopped, as far as the kernel knows. */
static void trial_orphan(expar_group *group, void *shared)
{
    idle_rank one;
    (void)shared;
    if (!begin(&one, group)) return;
    if (group->rank != LATE) {
        gpu_of(one.ep->base.exec)->core.place.orphan_ns = 1000000;
        CHECK_STATUS(EXPAR_ERR_PEER, trial(&one, COMBINE));
        CHECK_TEXT("no header from rank 1", "(seen 0", "this rank's process did not run for 0.0 s");
    }
    CHECK_OK(expar_group_barrier(group));
    idle_end(&one);
}

static void a_kernel_without_its_host_ends(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, RANKS, trial_orphan);
}

/* After an hour, or as the environment says. */
static void trial_orphan_limits(expar_group *group, void *shared)
{
    static const struct {
        const char *text;
        int64_t milliseconds;
    } limits[] = {{NULL, 3600000}, {"1.5", 1500}};
    (void)shared;
    for (int i = 0; i < 2; i++) {
        idle_rank one;
        if (limits[i].text) setenv("EXPAR_CUDA_ORPHAN_TIMEOUT", limits[i].text, 1);
        if (!idle_begin(&one, group)) return;
        const int64_t ns = gpu_of(one.ep->base.exec)->core.place.orphan_ns;
        CHECK(ns == limits[i].milliseconds * 1000000, "%lld ns", (long long)ns);
        idle_end(&one);
    }
    expar_ep *ep = NULL;
    const expar_ep_config config = idle_config(group);
    setenv("EXPAR_CUDA_ORPHAN_TIMEOUT", "soon", 1);
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_ep_create(group, &config, &ep));
    CHECK_TEXT("EXPAR_CUDA_ORPHAN_TIMEOUT", "soon");
    unsetenv("EXPAR_CUDA_ORPHAN_TIMEOUT");
}

static void the_environment_says_when(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 1, trial_orphan_limits);
}

/* ---- calls that are refused in a capture ------------------------------------------------------------------------- */

typedef struct recorded {
    cu_graph graph;
    cu_graph_exec exec; /* NULL: nothing is in it */
} recorded;

/* A combine on the rank's stream: as it should be, or one that no graph may have. */
static void capture_combine(const idle_rank *one, bool rejected, recorded *out)
{
    expar_ep_combine_result done = EXPAR_EP_COMBINE_RESULT_INIT;
    expar_ep_combine_args args = idle_combine_args(one);
    if (rejected) args.async_finish = 1;
    CHECK_OK(CUDA_CALL(StreamBeginCapture, one->stream, CU_CAPTURE_THREAD_LOCAL));
    CHECK_STATUS(rejected ? EXPAR_ERR_ARGUMENT : EXPAR_OK, expar_ep_combine(one->ep, &args, &done));
    CHECK_OK(CUDA_CALL(StreamEndCapture, one->stream, &out->graph));
    out->exec = NULL;
    if (!rejected) CHECK_OK(CUDA_CALL(GraphInstantiate, &out->exec, out->graph, 0));
}

static void forget_graph(const recorded *one)
{
    if (one->exec) CHECK_OK(CUDA_CALL(GraphExecDestroy, one->exec));
    CHECK_OK(CUDA_CALL(GraphDestroy, one->graph));
}

static void launch(const idle_rank *one, const recorded *graph)
{
    CHECK_OK(CUDA_CALL(GraphLaunch, graph->exec, one->stream));
    CHECK_OK(CUDA_CALL(StreamSynchronize, one->stream));
}

/* One rank's graph has no such call, whatever it launches: the other learns of it. */
static void trial_rejected(expar_group *group, void *shared)
{
    idle_rank one;
    recorded graph;
    (void)shared;
    if (!begin(&one, group)) return;
    capture_combine(&one, group->rank == LATE, &graph);
    CHECK_OK(expar_group_barrier(group));
    if (group->rank != LATE) {
        launch(&one, &graph);
        CHECK_STATUS(EXPAR_ERR_PEER, expar_ep_query(one.ep));
        CHECK_TEXT("rank 1 does not come any more", "EXPAR_ERR_ARGUMENT", "async_finish");
    }
    CHECK_OK(expar_group_barrier(group));
    forget_graph(&graph);
    idle_end(&one);
}

static void who_rejects_in_a_capture_is_not_awaited(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, RANKS, trial_rejected);
}

/* Waits until the guard no longer takes an earlier wait of a kernel for one that lasts. It moves the pulse on at each
 * look, and a kernel's word is old after four. */
static void await_pulses(const idle_rank *one)
{
    const uint64_t *orders = &gpu_of(one->ep->base.exec)->core.report->orders;
    const uint64_t first = gpu_orders_beat(__atomic_load_n(orders, __ATOMIC_RELAXED));
    const int64_t until_ms = ranks_clock_ms() + RANKS_TIMEOUT_MS;
    uint64_t pulses = 0;
    while (pulses < 8 && ranks_clock_ms() < until_ms) {
        rest_ms(2);
        pulses = (gpu_orders_beat(__atomic_load_n(orders, __ATOMIC_RELAXED)) - first) & GPU_BEAT_MASK;
    }
    CHECK(pulses >= 8, "the guard has looked %llu times", (unsigned long long)pulses);
}

/* All have refused a call, or one has, and then all capture it rightly: who is late in that is waited for. One that has
 * refused it alone is so once it has captured it; until then it might never come. */
static void trial_rejected_first(expar_group *group, void *shared)
{
    idle_rank one;
    recorded rejected, graph;
    (void)shared;
    if (!begin(&one, group)) return;
    for (int alone = 0; alone < 2; alone++) {
        if (alone) {
            await_pulses(&one);
            CHECK_OK(expar_group_barrier(group));
        }
        if (!alone || group->rank == LATE) {
            capture_combine(&one, true, &rejected);
            forget_graph(&rejected);
        }
        CHECK_OK(expar_group_barrier(group));
        set_timeout(group, SHORT_MS);
        /* On this driver what is captured runs at once, too. Who refused alone has begun it rightly by then. */
        if (!alone && group->rank == LATE) rest_ms(LATE_MS);
        if (alone && group->rank != LATE) await_other(&one, one.ep, may_come);
        capture_combine(&one, false, &graph);
        if (group->rank == LATE) rest_ms(LATE_MS);
        launch(&one, &graph);
        CHECK_OK(expar_ep_query(one.ep));
        forget_graph(&graph);
        set_timeout(group, RANKS_TIMEOUT_MS);
        CHECK_OK(expar_group_barrier(group));
    }
    idle_end(&one);
}

static void who_captures_it_after_all_is_awaited(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, RANKS, trial_rejected_first);
}

/* ---- interrupts -------------------------------------------------------------------------------------------------- */

static int stop(void *context)
{
    return atomic_load((const atomic_int *)context);
}

/* Its header of that call has gone out; to the next one it does not come, and the other rank learns why. */
static void trial_interrupt(expar_group *group, void *shared)
{
    static atomic_int stops;
    idle_rank one;
    (void)shared;
    if (!begin(&one, group)) return;
    if (group->rank != LATE) {
        atomic_store(&stops, 1);
        CHECK_OK(expar_interrupt_set(stop, &stops));
        CHECK_STATUS(EXPAR_ERR_INTERRUPTED, trial(&one, COMBINE));
        CHECK_TEXT("expar_ep_combine", "interrupted");
        CHECK_OK(expar_interrupt_set(NULL, NULL));
        CHECK_STATUS(EXPAR_ERR_INTERRUPTED, trial(&one, COMBINE));
        CHECK_TEXT("poisoned");
    }
    CHECK_OK(expar_group_barrier(group));
    if (group->rank == LATE) {
        CHECK_OK(trial(&one, COMBINE));
        CHECK_STATUS(EXPAR_ERR_PEER, trial(&one, FRESH));
        CHECK_TEXT("does not come any more", "EXPAR_ERR_INTERRUPTED");
    }
    idle_end(&one);
}

static void an_interrupt_ends_a_call(void **state)
{
    (void)state;
    if (kind_of_ranks == RANKS_THREADS) skip(); /* the program's function is asked by the barrier of the others, too */
    kind_run((ranks_plan){0}, RANKS, trial_interrupt);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(late_ranks_are_waited_for),
        cmocka_unit_test(late_launches_are_waited_for),
        cmocka_unit_test(stopped_ranks_that_go_on),
        cmocka_unit_test(late_ranks_that_die),
        cmocka_unit_test(a_launch_that_does_not_come),
        cmocka_unit_test(calls_in_a_circle_end),
        cmocka_unit_test(who_rejects_in_a_capture_is_not_awaited),
        cmocka_unit_test(who_captures_it_after_all_is_awaited),
        cmocka_unit_test(a_kernel_without_its_host_ends),
        cmocka_unit_test(the_environment_says_when),
        cmocka_unit_test(an_interrupt_ends_a_call),
    };
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

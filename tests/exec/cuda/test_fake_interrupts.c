/* SPDX-License-Identifier: Apache-2.0 */
/* Waits of the host for its GPU, on the simulated driver: the program's interrupt ends them. Ranks without tokens, one
 * a group. */
#include "cuda/find_controls.h"
#include "ep/harness/idle_rank.h"
#include "shmem/kind.h"
#include <expar/interrupt.h>

#include <pthread.h>
#include <sched.h>

static fake_controls *controls;
static pthread_t program; /* the thread whose waits it ends */

static int stop(void *context)
{
    (void)context;
    return pthread_equal(pthread_self(), program) != 0;
}

static void run(ranks_body body)
{
    assert_true(ranks_run(&(ranks_plan){.kind = RANKS_THREADS, .size = 1}, body, NULL));
}

/* ---- a buffer's own memory --------------------------------------------------------------------------------------- */

/* The GPU does not come to what the buffer's making has put there. */
static void create_in_vain(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    expar_ep_config config = idle_config(group);
    expar_ep *ep = NULL;
    if (!idle_begin(&one, group)) return;
    controls = controls_find();
    program = pthread_self();
    CHECK_OK(expar_interrupt_set(stop, NULL));
    atomic_store(&controls->unfinished, 1);
    CHECK_STATUS(EXPAR_ERR_INTERRUPTED, expar_ep_create(group, &config, &ep));
    CHECK_TEXT("expar_ep_create", "the buffer's memory", "interrupted");
    atomic_store(&controls->unfinished, 0);
    CHECK_OK(expar_interrupt_set(NULL, NULL));
    CHECK_OK(expar_ep_create(group, &config, &ep));
    CHECK_OK(expar_ep_destroy(ep));
    idle_end(&one);
}

static void making_a_buffer_is_interrupted(void **state)
{
    (void)state;
    run(create_in_vain);
}

/* ---- another thread's call --------------------------------------------------------------------------------------- */

/* Another buffer of the rank's, whose kernels do not run: it waits for its counts. */
static void *dispatch_held(void *argument)
{
    idle_rank *other = argument;
    if (!CHECK_OK(cuda_enter(other->gpu))) return NULL;
    idle_dispatch(other, EXPAR_F32);
    cuda_leave();
    return NULL;
}

/* Until that call has put something on its stream, and so has its place. */
static bool await_launches(int before)
{
    const int64_t end_ns = clock_ns() + (int64_t)60 * 1000000000;
    while (atomic_load(&controls->launches) == before && clock_ns() < end_ns)
        sched_yield();
    return atomic_load(&controls->launches) > before;
}

static void wait_for_a_call(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one, other;
    pthread_t thread;
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    if (!idle_begin(&one, group) || !idle_begin(&other, group)) return;
    controls = controls_find();
    program = pthread_self();
    /* Kernels that are compiled with a first call are there. */
    idle_dispatch(&one, EXPAR_F32);
    idle_dispatch(&other, EXPAR_F32);
    const expar_ep_dispatch_args args = idle_dispatch_args(&one, EXPAR_F32);
    const int launches = atomic_load(&controls->launches);
    atomic_store(&controls->hold, 1);
    CHECK(pthread_create(&thread, NULL, dispatch_held, &other) == 0, "no thread");
    CHECK(await_launches(launches), "the other call does not come to its kernel");
    CHECK_OK(expar_interrupt_set(stop, NULL));
    CHECK_STATUS(EXPAR_ERR_INTERRUPTED, expar_ep_dispatch(one.ep, &args, &result));
    CHECK_TEXT("expar_ep_dispatch", "this rank's calls before", "interrupted");
    CHECK_OK(expar_interrupt_set(NULL, NULL));
    atomic_store(&controls->hold, 0);
    pthread_join(thread, NULL);
    idle_end(&other);
    idle_end(&one);
}

static void waiting_for_another_threads_call_is_interrupted(void **state)
{
    (void)state;
    run(wait_for_a_call);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(making_a_buffer_is_interrupted),
        cmocka_unit_test(waiting_for_another_threads_call_is_interrupted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

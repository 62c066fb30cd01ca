/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's process calls exit() at a random point of an engine's run: between two calls, or from another thread while
 * one is under way. Its handlers give memory back and abandon what there is, in either order; or there are none. It
 * ends as it should, and the others are told of it. The seed is printed; with EXPAR_TEST_SEED it gives the same
 * exits again, as far as threads are not concerned. */
#include "group/calls.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS     4
#define MOST_STEPS 40
#define MOST_US    15000

typedef enum handlers { ABANDON_FIRST, RELEASE_FIRST, GROUP_ALONE, NONE, HANDLERS } handlers;

/* Drawn before the ranks are made, but for `ended`: survivors that have been told, in memory that processes share. */
typedef struct scene {
    const calls_rows *rows;
    uint64_t seed; /* of the calls' order, the same on all ranks */
    int32_t victim, step, delay_us;
    bool by_thread;
    handlers handlers;
    _Atomic int32_t ended;
} scene;

/* ---- the handlers ------------------------------------------------------------------------------------------------ */

/* The process's own; for handlers, which take no arguments. */
static calls_view engine;
static const scene *simulated;

static void abandon_all(void)
{
    if (simulated->handlers != GROUP_ALONE) {
        expar_ep_abandon(engine.last);
        expar_ep_abandon(engine.ep);
        expar_ll_abandon(engine.ll_last);
        expar_ll_abandon(engine.ll);
    }
    expar_group_abandon(engine.group);
}

static void release_all(bool handle_first)
{
    trial_release(&engine.before, handle_first);
    lowlat_clean(&engine.ll_before);
}

/* A thread that is in a call goes on with what it uses: that is not to be given back. */
static void end_engine(void)
{
    const bool releases = !simulated->by_thread;
    if (releases && simulated->handlers == RELEASE_FIRST) release_all(true);
    abandon_all();
    if (releases && simulated->handlers != RELEASE_FIRST) release_all(false);
    if (simulated->handlers == GROUP_ALONE) abandon_all();
}

static void *exit_soon(void *argument)
{
    const scene *s = argument;
    nanosleep(&(struct timespec){.tv_nsec = 1000 * (long)s->delay_us}, NULL);
    exit(EXIT_SUCCESS);
}

/* ---- one run ----------------------------------------------------------------------------------------------------- */

/* Those that touch no memory of the group's outside of the call: it may be gone. */
static const char *const safe_calls[] = {"group_barrier",      "group_allgather", "malloc",
                                         "barrier_all",        "create",          "route",
                                         "dispatch",           "cached dispatch", "worst case",
                                         "async dispatch",     "combine",         "async combine",
                                         "ll create",          "ll dispatch",     "ll dispatch's hook",
                                         "ll async dispatch",  "ll combine",      "ll combine's hook",
                                         "ll reduced combine", "ll async combine"};
static const char *const more_calls[] = {"sync", "reduce", "alltoall", "fcollect"};

static const calls_call *draw_call(random_source *random, bool by_thread)
{
    const int64_t safe = ARRAY_LENGTH(safe_calls), more = ARRAY_LENGTH(more_calls);
    const int64_t i = random_between(random, 0, (by_thread ? safe : safe + more) - 1);
    return calls_find(i < safe ? safe_calls[i] : more_calls[i - safe]);
}

/* The other thread ends the process. */
static _Noreturn void await_exit(void)
{
    for (;;)
        pause();
}

/* Until a call fails; the victim ends at its step, or in the meantime. */
static void live(scene *s)
{
    random_source random = random_start(s->seed);
    const bool victim = engine.group->rank == s->victim;
    pthread_t thread;
    if (victim && s->by_thread && pthread_create(&thread, NULL, exit_soon, s)) abort();
    for (int32_t step = 0;; step++) {
        if (victim && !s->by_thread && step == s->step) exit(EXIT_SUCCESS);
        const calls_call *call = draw_call(&random, s->by_thread);
        expar_status status = call->make(&engine);
        /* The next call of that rank writes where this rank looks now. */
        if (status == EXPAR_OK && call->kind == CALLS_HEAPS) status = expar_barrier_all(engine.group);
        if (status == EXPAR_OK) continue;
        if (victim) await_exit();
        CHECK(status == EXPAR_ERR_PEER, "%s: %s", call->name, expar_last_error());
        break;
    }
}

static void stay(scene *s)
{
    const int64_t until_ms = ranks_clock_ms() + RANKS_TIMEOUT_MS;
    atomic_fetch_add(&s->ended, 1);
    while (atomic_load(&s->ended) < CALLS_RANKS - 1 && ranks_clock_ms() < until_ms)
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
}

/* One of the survivors ends by its handlers as well. */
static void trial_rank(expar_group *group, void *shared)
{
    scene *s = shared;
    char name[16];
    simulated = s;
    if (!calls_open(&engine, group, s->rows)) return;
    if (s->handlers != NONE && atexit(end_engine)) abort();
    live(s);
    snprintf(name, sizeof name, "rank %d", s->victim);
    CHECK_TEXT(name);
    /* Others may still be in the call before, and wait for this rank there. */
    CHECK_STATUS(EXPAR_ERR_PEER, expar_group_barrier(group));
    stay(s);
    if (group->rank == (s->victim + 1) % CALLS_RANKS) {
        fflush(NULL);
        exit(check_failures() ? EXIT_FAILURE : EXIT_SUCCESS);
    }
    calls_close(&engine);
    CHECK_OK(expar_group_destroy(group));
}

/* ---- rounds ------------------------------------------------------------------------------------------------------ */

static void draw(scene *s, const calls_rows *rows, random_source *random)
{
    *s = (scene){.rows = rows, .seed = random_bits(random)};
    s->victim = (int32_t)random_between(random, 0, CALLS_RANKS - 1);
    s->step = (int32_t)random_between(random, 0, MOST_STEPS - 1);
    s->delay_us = (int32_t)random_between(random, 0, MOST_US - 1);
    s->by_thread = random_once_in(random, 2);
    s->handlers = (handlers)random_between(random, 0, HANDLERS - 1);
}

static bool trial_round(scene *s)
{
    const ranks_plan plan = {
        .kind = RANKS_PROCESSES, .size = CALLS_RANKS, .heap_bytes = CALLS_HEAP_BYTES, .ends_itself = true};
    if (ranks_run(&plan, trial_rank, s)) return true;
    print_message("victim %d, %s %d, handlers %d\n", s->victim, s->by_thread ? "us" : "step",
                  s->by_thread ? s->delay_us : s->step, (int)s->handlers);
    return false;
}

static void test_exits(void **state)
{
    (void)state;
    const int64_t rounds = random_test_rounds(ROUNDS);
    random_source random = random_start(random_test_seed("test_exit"));
    calls_rows rows = calls_rows_make();
    scene *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    bool passed = s != MAP_FAILED;
    for (int64_t round = 0; round < rounds && passed; round++) {
        draw(s, &rows, &random);
        passed = trial_round(s);
    }
    munmap(s, sizeof *s);
    calls_rows_free(&rows);
    assert_true(passed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_exits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Who waits tells the log for whom, ever more rarely. The minutes go by on a clock that the late rank moves on while
 * the other one waits; ranks are threads, who read one clock. */
#include "group/calls.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* So far the clock moves on at once; to what it has moved on in the end the fourth warning has come (10, 30, 70 and
   150 s, each at the next step), and the fifth (310 s) has not. */
#define STEP_S 25
#define STEPS  10

/* Seconds by which the clock is ahead. Added to by the late rank, read by all threads; relaxed: a thread that reads an
   old value reads the new one later. */
static _Atomic int64_t ahead_s;

/* Before those of libc, also for expar. */
int clock_gettime(clockid_t clock, struct timespec *now)
{
    const long result = syscall(SYS_clock_gettime, clock, now);
    if (result == 0 && clock == CLOCK_MONOTONIC) now->tv_sec += atomic_load_explicit(&ahead_s, memory_order_relaxed);
    return (int)result;
}

/* The kernel's clock is not ahead: the wait is one by the other clock for as long. */
int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *lock, const struct timespec *end)
{
    struct timespec its = *end;
    its.tv_sec -= atomic_load_explicit(&ahead_s, memory_order_relaxed);
    return pthread_cond_clockwait(condition, lock, CLOCK_MONOTONIC, &its);
}

/* ---- the log ----------------------------------------------------------------------------------------------------- */

#define MOST_LINES 16

/* What one rank has told. Written by its thread, in which the sink runs, and read by it. */
typedef struct told {
    int32_t count;
    char lines[MOST_LINES][400];
} told;
static _Thread_local told *own; /* NULL: the thread is no rank's */

static void take_line(void *context, expar_log_level level, int32_t rank, const char *place, const char *text)
{
    (void)context, (void)rank;
    if (!own || level != EXPAR_LOG_WARN || !strstr(place, "boot/wait.c"))
        fprintf(stderr, "%s: %s\n", place, text);
    else if (own->count < MOST_LINES)
        snprintf(own->lines[own->count++], sizeof own->lines[0], "%s", text);
}

/* From one to the next it takes at least twice as long each time; none is told before 10 s. */
static void check_lines(const told *self, const calls_call *call)
{
    const char *whom = call->kind == CALLS_OPEN ? "no rank is silent" : "rank 2 is alive but has not come to this call";
    long last = 0, pause = 10;
    for (int32_t i = 0; i < self->count; i++) {
        long seconds = 0;
        const char *line = self->lines[i];
        CHECK(sscanf(line, "for %ld s in ", &seconds) == 1 && seconds >= last + pause, "after %ld s: %s", last, line);
        CHECK(strstr(line, call->said) && strstr(line, ", waiting") && strstr(line, whom), "%s: %s", call->name, line);
        pause = i > 0 ? 2 * pause : 20;
        last = seconds;
    }
    CHECK(self->count == 4, "%d lines in %s", self->count, call->name);
}

/* ---- ranks ------------------------------------------------------------------------------------------------------- */

/* The others look at what they wait for after each step. */
static void let_time_pass(expar_group *group)
{
    calls_await_waiting(group, CALLS_RANKS - 1, 0);
    for (int64_t step = 1; step <= STEPS && check_failures() == 0; step++) {
        atomic_fetch_add_explicit(&ahead_s, STEP_S, memory_order_relaxed);
        calls_await_waiting(group, CALLS_RANKS - 1, step * STEP_S * INT64_C(1000000000));
    }
}

static void wait_for_long(calls_view *v, const calls_call *call)
{
    told lines = {0};
    own = &lines;
    CHECK_OK(call->make(v));
    own = NULL;
    check_lines(&lines, call);
}

static void play_calls(expar_group *group, void *shared)
{
    static const char *const names[] = {"group_barrier", "barrier_all", "reduce",    "sync",    "wait",
                                        "create",        "dispatch",    "combine",   "destroy", "ll create",
                                        "ll dispatch",   "ll combine",  "ll destroy"};
    calls_view v;
    if (!calls_open(&v, group, shared)) return;
    for (size_t i = 0; i < ARRAY_LENGTH(names) && check_failures() == 0; i++) {
        const calls_call *call = calls_find(names[i]);
        if (group->rank == CALLS_LATE) {
            let_time_pass(group);
            CHECK_OK(call->make(&v));
        } else {
            wait_for_long(&v, call);
        }
        CHECK_OK(expar_barrier_all(group));
    }
    calls_close(&v);
}

static void test_long_waits_are_told(void **state)
{
    (void)state;
    calls_rows rows = calls_rows_make();
    const ranks_plan plan = {.kind = RANKS_THREADS,
                             .size = CALLS_RANKS,
                             .heap_bytes = CALLS_HEAP_BYTES,
                             .late_limit_ms = INT64_C(24) * 3600 * 1000};
    expar_log_set(take_line, NULL);
    const bool passed = ranks_run(&plan, play_calls, &rows);
    expar_log_set(NULL, NULL);
    calls_rows_free(&rows);
    assert_true(passed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_long_waits_are_told)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Clocked work of a wait: a waiting rank logs for whom it waits, ever more rarely. It also asks the program at least
 * every 100 ms whether to go on. The late rank moves the clock on while the others wait; ranks are threads, who read
 * one clock. */
#include "group/calls.h"

#include <expar/interrupt.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* The clock moves on by this much at once. At its last value the fourth warning has come (10, 30, 70 and 150 s, each at
   the next step), and the fifth (310 s) has not. */
#define STEP_S 25
#define STEPS  10

/* By how much the clock is ahead, and what it would show without that where it stands (0: it goes). Written by the late
   rank, read by all threads; relaxed: a thread that reads an old value reads the new one later. */
static _Atomic int64_t ahead_ns, stands_at_ns;

#define SECOND_NS INT64_C(1000000000)

static int64_t span_ns(const struct timespec *span)
{
    return span->tv_sec * SECOND_NS + span->tv_nsec;
}

static struct timespec span_of(int64_t ns)
{
    return (struct timespec){.tv_sec = ns / SECOND_NS, .tv_nsec = ns % SECOND_NS};
}

static int64_t kernels_ns(void)
{
    struct timespec now = {0};
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    return span_ns(&now);
}

static int64_t shown_ns(void)
{
    const int64_t stands = atomic_load_explicit(&stands_at_ns, memory_order_relaxed);
    return (stands ? stands : kernels_ns()) + atomic_load_explicit(&ahead_ns, memory_order_relaxed);
}

/* Before those of libc, also for expar. */
int clock_gettime(clockid_t clock, struct timespec *now)
{
    if (clock != CLOCK_MONOTONIC) return (int)syscall(SYS_clock_gettime, clock, now);
    *now = span_of(shown_ns());
    return 0;
}

/* The kernel's clock is another one: the wait is one by that for as long. */
int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *lock, const struct timespec *end)
{
    const struct timespec its = span_of(span_ns(end) - shown_ns() + kernels_ns());
    return pthread_cond_clockwait(condition, lock, CLOCK_MONOTONIC, &its);
}

/* ---- the log ----------------------------------------------------------------------------------------------------- */

#define MOST_LINES 16

/* The messages of one rank. Written by its thread, in which the sink runs, and read by it. */
typedef struct told {
    int32_t count;
    char lines[MOST_LINES][700];
} told;
static _Thread_local told *own; /* NULL: the thread is no rank's */

static void take_line(void *context, expar_log_level level, int32_t rank, const char *place, const char *text)
{
    (void)context, (void)rank;
    if (!own || level != EXPAR_LOG_WARN || !strstr(place, "boot/inquiry_late.c"))
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
        /* The option or variable that ends it. */
        CHECK(strstr(line, "EXPAR_LATE_LIMIT") && strstr(line, "late_limit_ms"), "%s: %s", call->name, line);
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
        atomic_fetch_add_explicit(&ahead_ns, STEP_S * SECOND_NS, memory_order_relaxed);
        calls_await_waiting(group, CALLS_RANKS - 1, step * STEP_S * SECOND_NS);
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

static const char *const names[] = {"group_barrier", "barrier_all", "reduce",    "sync",    "wait",
                                    "create",        "dispatch",    "combine",   "destroy", "ll create",
                                    "ll dispatch",   "ll combine",  "ll destroy"};

/* Each of the calls: what the late rank does before it comes, and how the others wait. */
static void trial_each(expar_group *group, const calls_rows *rows, void (*let_pass)(expar_group *group),
                       void (*wait)(calls_view *v, const calls_call *call))
{
    calls_view v;
    if (!calls_open(&v, group, rows)) return;
    for (size_t i = 0; i < ARRAY_LENGTH(names) && check_failures() == 0; i++) {
        const calls_call *call = calls_find(names[i]);
        if (group->rank == CALLS_LATE) {
            let_pass(group);
            CHECK_OK(call->make(&v));
        } else {
            wait(&v, call);
        }
        CHECK_OK(expar_barrier_all(group));
    }
    calls_close(&v);
}

static void trial_calls(expar_group *group, void *shared)
{
    trial_each(group, shared, let_time_pass, wait_for_long);
}

/* ---- asking ------------------------------------------------------------------------------------------------------ */

#define ASK_NS    INT64_C(100000000)
#define QUESTIONS 4

/* How often the waits of each rank have asked. Added to by them, read by the late rank. */
static _Atomic int64_t asked[CALLS_RANKS];

static int note_question(void *context)
{
    atomic_fetch_add((_Atomic int64_t *)context, 1);
    return 0;
}

/* The clock stands but for what it is moved on by here: nobody asks without that. */
static void let_them_ask(expar_group *group)
{
    calls_await_waiting(group, CALLS_RANKS - 1, 0);
    atomic_store_explicit(&stands_at_ns, kernels_ns(), memory_order_relaxed);
    for (int32_t i = 0; i < QUESTIONS && check_failures() == 0; i++) {
        const int64_t before[] = {atomic_load(&asked[0]), atomic_load(&asked[1])};
        const int64_t until_ns = kernels_ns() + 30 * SECOND_NS;
        atomic_fetch_add_explicit(&ahead_ns, ASK_NS, memory_order_relaxed);
        for (int32_t r = 0; r < CALLS_RANKS - 1; r++) {
            while (atomic_load(&asked[r]) == before[r] && kernels_ns() < until_ns)
                nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
            CHECK(atomic_load(&asked[r]) > before[r], "rank %d has not asked for 100 ms", (int)r);
        }
    }
    atomic_store_explicit(&stands_at_ns, 0, memory_order_relaxed);
}

static void wait_and_ask(calls_view *v, const calls_call *call)
{
    CHECK_OK(expar_interrupt_set_thread(note_question, &asked[v->group->rank]));
    CHECK(call->make(v) == EXPAR_OK, "%s: %s", call->name, expar_last_error());
    CHECK_OK(expar_interrupt_set_thread(NULL, NULL));
}

static void trial_asking(expar_group *group, void *shared)
{
    trial_each(group, shared, let_them_ask, wait_and_ask);
}

static void test_programs_are_asked_in_time(void **state)
{
    (void)state;
    calls_rows rows = calls_rows_make();
    const ranks_plan plan = {.kind = RANKS_THREADS,
                             .size = CALLS_RANKS,
                             .heap_bytes = CALLS_HEAP_BYTES,
                             .late_limit_ms = INT64_C(24) * 3600 * 1000};
    const bool passed = ranks_run(&plan, trial_asking, &rows);
    calls_rows_free(&rows);
    assert_true(passed);
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
    const bool passed = ranks_run(&plan, trial_calls, &rows);
    expar_log_set(NULL, NULL);
    calls_rows_free(&rows);
    assert_true(passed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_long_waits_are_told),
                                       cmocka_unit_test(test_programs_are_asked_in_time)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

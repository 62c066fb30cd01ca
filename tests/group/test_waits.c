/* SPDX-License-Identifier: Apache-2.0 */
/* Late is not dead: a rank that comes many time-outs after the others to any call is waited for, and all bytes are
 * right. How late a rank is, is told by what the others say of their waits: nothing here is measured. */
#include "group/calls.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SHORT_MS  100
#define TIME_OUTS 3 /* that the others have waited before the late one comes */

static void come_late(expar_group *group, void *shared)
{
    calls_view v;
    if (!calls_open(&v, group, shared)) return;
    group->boot->timeout_ms = SHORT_MS;
    for (int32_t i = 0; i < (shared ? calls_count : calls_count_without_rows); i++) {
        const bool late = group->rank == CALLS_LATE;
        if (late && !calls_await_waiting(group, CALLS_RANKS - 1, TIME_OUTS * SHORT_MS * INT64_C(1000000))) return;
        if (!CHECK(calls_all[i].make(&v) == EXPAR_OK, "%s: %s", calls_all[i].name, expar_last_error())) return;
        CHECK_OK(expar_barrier_all(group));
        if (check_failures() > 0) return;
    }
    calls_close(&v);
}

static void test_late_ranks_are_waited_for(void **state)
{
    (void)state;
    calls_rows rows = calls_rows_make();
    ranks_plan plan = {.kind = kind_of_ranks, .size = CALLS_RANKS, .heap_bytes = CALLS_HEAP_BYTES};
    plan.ranks_per_node = kind_ranks_per_node(&plan);
    const bool passed = ranks_run(&plan, come_late, calls_have_rows() ? &rows : NULL);
    calls_rows_free(&rows);
    assert_true(passed);
}

/* ---- while a group is made --------------------------------------------------------------------------------------- */

#define SET_UP_MS 500

/* The time that this process takes to make its heap. Set before a group is joined. */
static int64_t heap_takes_ms;

/* Replaces that of libc, also for expar: a heap is made right after the joining. */
int memfd_create(const char *name, unsigned flags)
{
    const int64_t span_ms = heap_takes_ms;
    heap_takes_ms = 0;
    nanosleep(&(struct timespec){.tv_sec = span_ms / 1000, .tv_nsec = span_ms % 1000 * 1000000}, NULL);
    return (int)syscall(SYS_memfd_create, name, flags);
}

static void look_at_group(expar_group *group, void *shared)
{
    (void)shared;
    CHECK_OK(expar_barrier_all(group));
}

/* One rank is so long about its heap; the others wait for it in the first exchanges of the group. */
static void test_a_late_heap_is_waited_for(void **state)
{
    (void)state;
    ranks_plan plan = {
        .kind = RANKS_PROCESSES, .size = CALLS_RANKS, .heap_bytes = (size_t)4 << 20, .timeout_ms = SET_UP_MS};
    ranks_host host;
    pid_t pids[CALLS_RANKS];
    bool late = false, good = true;
    if (kind_of_ranks == RANKS_THREADS) skip();
    plan.ranks_per_node = kind_ranks_per_node(&plan);
    assert_true(ranks_host_start(&host));
    for (int32_t r = 0; r < CALLS_RANKS; r++) {
        heap_takes_ms = r == CALLS_LATE ? TIME_OUTS * SET_UP_MS : 0;
        assert_true((pids[r] = ranks_fork(&plan, &host.id, r, look_at_group, NULL)) > 0);
    }
    for (int32_t r = 0; r < CALLS_RANKS; r++)
        good &= ranks_wait(pids[r], ranks_clock_ms() + RANKS_TIMEOUT_MS, &late) == 0;
    assert_true(ranks_host_stop(&host) & good & !late);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_late_ranks_are_waited_for),
        cmocka_unit_test(test_a_late_heap_is_waited_for),
    };
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

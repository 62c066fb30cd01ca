/* SPDX-License-Identifier: Apache-2.0 */
/* The others wait in each kind of call for a rank that is late, and then it dies, leaves, abandons the buffer, or is
 * stopped. Or it destroys the group while they are in a barrier. They learn that at once, from the control sockets; of
 * one that stays stopped they learn that it is silent; of one that goes on, nothing. */
#include "group/calls.h"

#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define TIMEOUT_MS 1000
/* That all others have waited before anything happens. */
#define WAITED_MS 100

typedef enum fate { DIES, LEAVES, IS_ABOUT_TO_LEAVE, ABANDONS_BUFFER, STOPS_A_WHILE, STAYS_STOPPED } fate;

/* Between ranks and the test; in memory that processes share. `ended` counts survivors, raised by each once. */
typedef struct scene {
    const calls_rows *rows;
    const calls_call *call;
    fate fate;
    _Atomic int32_t ended;
} scene;

/* One for each way in which ranks meet. */
static bool is_of_few(const calls_call *call)
{
    return call == calls_find("group_barrier") || call == calls_find("barrier_all") || call == calls_find("sync");
}

static bool is_of_buffer(const calls_call *call)
{
    return call->kind == CALLS_BUFFER || call->kind == CALLS_EVENT || call->kind == CALLS_END;
}

/* ---- ranks ------------------------------------------------------------------------------------------------------- */

static void await_survivors(const scene *s)
{
    const int64_t until_ms = ranks_clock_ms() + RANKS_TIMEOUT_MS;
    while (atomic_load(&s->ended) < CALLS_RANKS - 1 && ranks_clock_ms() < until_ms)
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
}

static void stay_alive(calls_view *v, scene *s)
{
    if (s->fate == STOPS_A_WHILE) {
        raise(SIGSTOP);
        CHECK_OK(s->call->make(v));
    } else {
        calls_abandon(v, s->call);
    }
}

/* In between: it has begun to leave, and the others have heard no good-bye. */
static void hold_up(void *context)
{
    await_survivors(context);
}

static void leave(const calls_view *v, scene *s)
{
    static sym_listener held_up = {.failed = hold_up};
    held_up.context = s;
    if (s->fate == IS_ABOUT_TO_LEAVE) sym_listen(v->group->sym, &held_up);
    CHECK_OK(expar_group_abandon(v->group));
    await_survivors(s);
}

static void meet_fate(calls_view *v, scene *s)
{
    if (!calls_await_waiting(v->group, CALLS_RANKS - 1, WAITED_MS * INT64_C(1000000))) return;
    if (s->fate == DIES) raise(SIGKILL);
    if (s->fate == STAYS_STOPPED) raise(SIGSTOP);
    if (s->fate == LEAVES || s->fate == IS_ABOUT_TO_LEAVE)
        leave(v, s);
    else
        stay_alive(v, s);
}

static void learn_of_it(const calls_view *v, const scene *s)
{
    static const char *const told[] = {[DIES] = " died",
                                       [LEAVES] = "left the group",
                                       [IS_ABOUT_TO_LEAVE] = "rank 2 does not come any more: EXPAR_ERR_ABORTED: "
                                                             "it has left the group",
                                       [ABANDONS_BUFFER] = "abandoned the buffer",
                                       [STAYS_STOPPED] = "silent: rank 2"};
    CHECK_TEXT("rank 2");
    /* Over a network it may be the network that tells. */
    if (v->group->sym->all_mapped && v->group->boot->places[0].pid > 0) CHECK_TEXT(told[s->fate]);
}

static void survive(calls_view *v, scene *s)
{
    const bool all_well = s->fate == STOPS_A_WHILE || s->call->kind == CALLS_END;
    CHECK_STATUS(all_well ? EXPAR_OK : EXPAR_ERR_PEER, s->call->make(v));
    if (!all_well) learn_of_it(v, s);
    atomic_fetch_add(&s->ended, 1);
    await_survivors(s);
}

/* A group that has lost nobody goes on, with another buffer. */
static void go_on(calls_view *v, const scene *s)
{
    CHECK_OK(expar_group_barrier(v->group));
    if (s->fate == ABANDONS_BUFFER && calls_replace(v)) {
        CHECK_OK(calls_find("combine")->make(v));
        CHECK_OK(calls_find("ll combine")->make(v));
    }
    CHECK_OK(expar_barrier_all(v->group));
}

static void trial_rank(expar_group *group, void *shared)
{
    scene *s = shared;
    calls_view v;
    if (!calls_open(&v, group, s->rows)) return;
    if (s->fate == STAYS_STOPPED) kind_set_silence(group, TIMEOUT_MS);
    if (group->rank == CALLS_LATE)
        meet_fate(&v, s);
    else
        survive(&v, s);
    if (s->fate == STOPS_A_WHILE || s->fate == ABANDONS_BUFFER) go_on(&v, s);
    calls_close(&v);
    const bool has_left = group->rank == CALLS_LATE && (s->fate == LEAVES || s->fate == IS_ABOUT_TO_LEAVE);
    if (!has_left) CHECK_OK(expar_group_destroy(group));
}

/* The late rank destroys the group while the others are in a barrier. */
static void destroy_rank(expar_group *group, void *shared)
{
    (void)shared;
    if (group->rank == CALLS_LATE) {
        CHECK(calls_await_waiting(group, CALLS_RANKS - 1, WAITED_MS * INT64_C(1000000)), "the others do not wait");
    } else {
        CHECK_STATUS(EXPAR_ERR_PEER, expar_barrier_all(group));
        CHECK_TEXT("expar_barrier_all", "rank 2");
        CHECK(!strstr(expar_last_error(), "timed out"), "it waited until the time-out");
    }
    CHECK_OK(expar_group_destroy(group));
}

/* ---- the test's part --------------------------------------------------------------------------------------------- */

/* One scene under way; of thread ranks `passed` alone. */
typedef struct show {
    scene *s;
    ranks_host host;
    pid_t pids[CALLS_RANKS];
    bool passed;
} show;

static ranks_plan make_plan(void)
{
    ranks_plan plan = {.kind = kind_of_ranks, .size = CALLS_RANKS, .heap_bytes = CALLS_HEAP_BYTES, .ends_itself = true};
    plan.ranks_per_node = kind_ranks_per_node(&plan);
    return plan;
}

static void begin(show *one, scene *s)
{
    const ranks_plan plan = make_plan();
    *one = (show){.s = s};
    if (kind_of_ranks == RANKS_THREADS) {
        one->passed = ranks_run(&plan, trial_rank, s);
        return;
    }
    assert_true(ranks_host_start(&one->host));
    for (int32_t r = 0; r < CALLS_RANKS; r++)
        assert_true((one->pids[r] = ranks_fork(&plan, &one->host.id, r, trial_rank, s)) > 0);
}

static void await_stop(const show *one)
{
    siginfo_t info = {0};
    const int64_t until_ms = ranks_clock_ms() + RANKS_TIMEOUT_MS;
    while (waitid(P_PID, (id_t)one->pids[CALLS_LATE], &info, WEXITED | WSTOPPED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == 0 && ranks_clock_ms() < until_ms)
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    assert_true(info.si_code == CLD_STOPPED);
}

/* All have been stopped for a while by then. */
static void wake_all(const show *shows, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        await_stop(&shows[i]);
    nanosleep(&(struct timespec){.tv_nsec = WAITED_MS * 1000000}, NULL);
    for (int32_t i = 0; i < count; i++)
        kill(shows[i].pids[CALLS_LATE], SIGCONT);
}

static void see_through(show *one)
{
    const fate its = one->s->fate;
    const int64_t until_ms = ranks_clock_ms() + 2 * RANKS_TIMEOUT_MS;
    bool late = false;
    if (kind_of_ranks == RANKS_THREADS) return;
    one->passed = true;
    for (int32_t r = 0; r < CALLS_RANKS; r++) {
        if (r == CALLS_LATE && its == STAYS_STOPPED) kill(one->pids[r], SIGKILL);
        const int status = ranks_wait(one->pids[r], until_ms, &late);
        const bool killed = r == CALLS_LATE && (its == DIES || its == STAYS_STOPPED);
        one->passed &= killed ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL : status == 0;
    }
    one->passed &= !late;
}

/* In each of these calls; side by side, since they wait most of the time. */
static void trial_all(fate its, bool (*fits)(const calls_call *call))
{
    calls_rows rows = calls_rows_make();
    const bool have_rows = calls_have_rows();
    const int32_t most = have_rows ? calls_count : calls_count_without_rows;
    scene *scenes =
        mmap(NULL, (size_t)most * sizeof *scenes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    show *shows = calloc((size_t)most, sizeof *shows);
    int32_t count = 0;
    bool passed = true;
    assert_true(scenes != MAP_FAILED && shows);
    for (int32_t i = 0; i < most; i++) {
        if (!calls_is_of_today(i) || (fits && !fits(&calls_all[i]))) continue;
        scenes[count] = (scene){.rows = have_rows ? &rows : NULL, .call = &calls_all[i], .fate = its};
        begin(&shows[count], &scenes[count]);
        count++;
    }
    if (its == STOPS_A_WHILE) wake_all(shows, count);
    for (int32_t i = 0; i < count; i++) {
        see_through(&shows[i]);
        if (!shows[i].passed) print_message("in %s\n", scenes[i].call->name);
        passed &= shows[i].passed;
    }
    for (int32_t i = count - 1; i >= 0 && kind_of_ranks == RANKS_PROCESSES; i--) /* later ones hold what ends earlier */
        passed &= ranks_host_stop(&shows[i].host);
    free(shows);
    munmap(scenes, (size_t)most * sizeof *scenes);
    calls_rows_free(&rows);
    assert_true(passed);
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static void test_leaves(void **state)
{
    (void)state;
    trial_all(LEAVES, NULL);
}

static void test_is_about_to_leave(void **state)
{
    (void)state;
    trial_all(IS_ABOUT_TO_LEAVE, is_of_few);
}

static void test_destroys_the_group(void **state)
{
    (void)state;
    const ranks_plan plan = make_plan();
    assert_true(ranks_run(&plan, destroy_rank, NULL));
}

static void test_abandons_the_buffer(void **state)
{
    (void)state;
    if (!calls_have_rows()) skip();
    trial_all(ABANDONS_BUFFER, is_of_buffer);
}

static void test_dies(void **state)
{
    (void)state;
    if (kind_of_ranks == RANKS_THREADS) skip();
    trial_all(DIES, NULL);
}

static void test_stops_a_while(void **state)
{
    (void)state;
    if (kind_of_ranks == RANKS_THREADS) skip();
    trial_all(STOPS_A_WHILE, NULL);
}

static void test_stays_stopped(void **state)
{
    (void)state;
    if (kind_of_ranks == RANKS_THREADS) skip();
    trial_all(STAYS_STOPPED, NULL);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_leaves),
        cmocka_unit_test(test_is_about_to_leave),
        cmocka_unit_test(test_destroys_the_group),
        cmocka_unit_test(test_abandons_the_buffer),
        cmocka_unit_test(test_dies),
        cmocka_unit_test(test_stops_a_while),
        cmocka_unit_test(test_stays_stopped),
    };
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

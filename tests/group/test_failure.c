/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that abort, are killed, or fall silent, in every call that waits: the others get an error that names them, and
 * can leave. Deadlines are generous; the times are printed. */
#include "boot/sockets/sockets.h"
#include "shmem/kind.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RANKS       4
#define VICTIM      2
#define HEAP_BYTES  ((size_t)4 << 20)
#define DEADLINE_MS 60000

/* In every rank's heap. */
typedef struct words {
    uint64_t signal;   /* of survivors that are about to wait for an abort; else it never comes */
    uint64_t turn;     /* of the ring of survivors */
    uint64_t goodbyes; /* of survivors */
    uint64_t data[1024];
} words;

/* Nobody leaves before the others are done with him. A wait would hear of the first one that has left. */
static void part(expar_group *group, words *w)
{
    int holds = 0;
    int64_t until_ms = ranks_clock_ms() + DEADLINE_MS;
    for (int32_t pe = 0; pe < RANKS; pe++)
        if (pe != VICTIM) CHECK_OK(expar_atomic_add_u64(group, &w->goodbyes, 1, pe));
    while (!holds && ranks_clock_ms() < until_ms && check_failures() == 0) {
        CHECK_OK(expar_test_u64(group, &w->goodbyes, EXPAR_CMP_EQ, RANKS - 1, &holds));
        sched_yield();
    }
    CHECK(holds, "%llu survivors are done", (unsigned long long)w->goodbyes);
}

/* ---- both kinds: a rank aborts and leaves ------------------------------------------------------------------------ */

/* The victim aborts and destroys its group when all others have no more to do than to wait for it. */
static void one_aborts(expar_group *group, void *shared)
{
    (void)shared;
    uint64_t *ready;
    CHECK_OK(expar_calloc(group, 1, sizeof *ready, (void **)&ready));
    CHECK_OK(expar_atomic_add_u64(group, ready, 1, VICTIM));
    if (group->rank == VICTIM) {
        CHECK_OK(expar_signal_wait_until(group, ready, EXPAR_CMP_EQ, RANKS, NULL));
        CHECK_OK(expar_group_abort(group));
        CHECK_STATUS(EXPAR_ERR_ABORTED, expar_barrier_all(group));
        CHECK_STATUS(EXPAR_ERR_ABORTED, expar_group_barrier(group));
        return;
    }
    CHECK_STATUS(EXPAR_ERR_PEER, expar_barrier_all(group));
    /* It says that it has aborted before it leaves. */
    if (!strstr(expar_last_error(), "rank 2 does not come any more: EXPAR_ERR_ABORTED: it has aborted the group"))
        CHECK_TEXT("left the group");
    CHECK_STATUS(EXPAR_ERR_PEER, expar_barrier_all(group));
}

static void test_one_aborts(void **state)
{
    (void)state;
    kind_run((ranks_plan){.heap_bytes = HEAP_BYTES}, RANKS, one_aborts);
}

static void *abort_soon(void *argument)
{
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL); /* so that the other thread mostly waits by now */
    expar_group_abort(argument);
    return NULL;
}

/* Another thread of the victim ends its wait in a collective over the control sockets, to which no other rank comes.
   The others have come to the wait before, and stay until all know of the victim. If two ranks are found to have left
   at once, the lower one is reported first. */
static void abort_from_a_thread(expar_group *group, void *shared)
{
    (void)shared;
    pthread_t thread;
    void *block;
    words *w;
    CHECK_OK(expar_calloc(group, 1, sizeof *w, (void **)&w));
    if (group->rank != VICTIM) {
        CHECK_OK(expar_atomic_add_u64(group, &w->signal, 1, VICTIM));
        CHECK_STATUS(EXPAR_ERR_PEER, expar_barrier_all(group));
        CHECK_TEXT("rank 2 has left the group");
        part(group, w);
        return;
    }
    CHECK_OK(expar_signal_wait_until(group, &w->signal, EXPAR_CMP_EQ, RANKS - 1, NULL));
    CHECK(pthread_create(&thread, NULL, abort_soon, group) == 0, "thread");
    CHECK_STATUS(EXPAR_ERR_ABORTED, expar_malloc(group, 64, &block));
    CHECK_TEXT("expar_malloc");
    pthread_join(thread, NULL);
}

static void test_abort_from_a_thread(void **state)
{
    (void)state;
    kind_run((ranks_plan){.heap_bytes = HEAP_BYTES}, RANKS, abort_from_a_thread);
}

/* ---- processes: one is killed or stopped while all others wait --------------------------------------------------- */

typedef enum phase { IN_BARRIER, IN_WAIT, IN_RMA, IN_MALLOC, IN_CONTROL, PHASES } phase;
static const char *const phase_names[PHASES] = {"barrier", "wait", "put and quiet", "malloc", "control barrier"};
#define SILENCE_MS 1500
#define ASKED_NS   INT64_C(600000000)

/* Between the test and its ranks; in memory that all share. */
typedef struct stage {
    phase where;
    bool silence;             /* the victim is stopped, not killed */
    _Atomic int32_t waiting;  /* ranks that are about to wait; written by the ranks, read by the test */
    _Atomic int32_t stopped;  /* 1 once the victim is; written by the test, read by the ranks */
    _Atomic int64_t ended_ms; /* when the last survivor had its error */
    _Atomic int32_t held;     /* 1 once the monitor of rank HELD looks no more; written by it, read by the test */
    _Atomic int32_t leaving;  /* 1 once rank LEAVER is about to; written by that rank, read by HELD */
    _Atomic int32_t failed;   /* 1 once rank HELD's own operation has; written by it, read by its other thread */
} stage;

/* Over the network the victim's end is found out by the operations themselves, over mapped memory by the monitor. */
static expar_status put_until_failure(expar_group *group, words *w, int32_t pe)
{
    expar_status status = EXPAR_OK;
    for (int64_t until_ms = ranks_clock_ms() + DEADLINE_MS; status == EXPAR_OK && ranks_clock_ms() < until_ms;) {
        status = expar_put(group, w->data, w->data, sizeof w->data, pe);
        if (status == EXPAR_OK) status = expar_quiet(group);
    }
    return status;
}

/* Returns whether data arrives in a stopped rank's memory: it is mapped, or a network device in software of this rank
   writes there. */
static bool arrives_unnoticed(const expar_group *group)
{
    const char *only = getenv("EXPAR_TRANSPORTS");
    return sym_at(group->sym, VICTIM, 0) || (only && strcmp(only, "gda") == 0);
}

static expar_status wait_in(expar_group *group, const stage *s, words *w)
{
    void *block;
    bool unnoticed = s->silence && arrives_unnoticed(group);
    switch (s->where) {
    case IN_RMA:
        if (!unnoticed) return put_until_failure(group, w, VICTIM);
        return expar_signal_wait_until(group, &w->signal, EXPAR_CMP_EQ, 1, NULL);
    case IN_BARRIER:
        return expar_barrier_all(group);
    case IN_WAIT:
        return expar_signal_wait_until(group, &w->signal, EXPAR_CMP_EQ, 1, NULL);
    case IN_MALLOC:
        return expar_malloc(group, 64, &block);
    case IN_CONTROL:
    case PHASES:
        break;
    }
    return expar_group_barrier(group);
}

/* Operations under way to the dead are reported once, and after that nothing hinders the living. */
static void quiet_once_told(expar_group *group)
{
    expar_status status = expar_quiet(group);
    if (status != EXPAR_OK) CHECK_TEXT("expar_quiet", "rank 2");
    CHECK_OK(expar_quiet(group));
    CHECK_OK(expar_fence(group));
}

/* A collective over the control sockets may fail before the monitor has told of the death. */
static void lose_touch(expar_group *group, words *w)
{
    int64_t until_ms = ranks_clock_ms() + DEADLINE_MS;
    while (expar_put(group, w->data, w->data, 8, VICTIM) == EXPAR_OK && ranks_clock_ms() < until_ms)
        sched_yield();
    CHECK_STATUS(EXPAR_ERR_PEER, expar_put(group, w->data, w->data, 8, VICTIM));
    CHECK_TEXT("rank 2");
    CHECK_STATUS(EXPAR_ERR_PEER, expar_get(group, w->data, w->data, 8, VICTIM));
    CHECK_TEXT("rank 2");
}

/* Over the network silence is noticed by the operations to whom is silent. */
static void find_silence(expar_group *group, words *w)
{
    expar_status status = expar_put(group, w->data, w->data, 8, VICTIM);
    if (status == EXPAR_OK) status = expar_quiet(group);
    CHECK(status == EXPAR_ERR_PEER, "a stopped rank was put to: %s", expar_status_string(status));
    CHECK_TEXT("rank 2");
}

/* After a failed collective the first begins when the others have waited for longer than it takes to ask around. */
static void come_late(const expar_group *group, const stage *s)
{
    const boot_topic any = {.kind = BOOT_KIND_ALL};
    if (group->rank == 0 && s->where == IN_CONTROL && !s->silence) kind_await_waiting(group, &any, RANKS - 2, ASKED_NS);
}

/* The survivors put, signal and wait among themselves. */
static void go_round(expar_group *group, const stage *s, words *w)
{
    int32_t next = (group->rank + 1) % RANKS == VICTIM ? (VICTIM + 1) % RANKS : (group->rank + 1) % RANKS;
    come_late(group, s);
    for (uint64_t round = 1; round <= 20; round++) {
        CHECK_OK(expar_put_signal(group, w->data, &round, sizeof round, &w->turn, round, EXPAR_SIGNAL_SET, next));
        CHECK_OK(expar_fence(group));
        CHECK_OK(expar_signal_wait_until(group, &w->turn, EXPAR_CMP_GE, round, NULL));
        CHECK(w->data[0] >= round, "round %llu: %llu", (unsigned long long)round, (unsigned long long)w->data[0]);
    }
    CHECK_OK(expar_quiet(group));
}

static void check_first_error(const expar_group *group, const stage *s)
{
    bool unnoticed = arrives_unnoticed(group);
    CHECK_TEXT("rank 2");
    if (s->silence && s->where == IN_BARRIER && group->sym->all_mapped) CHECK_TEXT("not come: rank 2");
    if (s->silence && (unnoticed || s->where != IN_RMA)) CHECK_TEXT("silent: rank 2");
}

/* For the barrier the text says who has not come: all others are there before the victim is stopped. In other calls
   they come after that, so that it is stopped before it can have done its part. */
static void await_stop(expar_group *group, const stage *s)
{
    int64_t until_ms = ranks_clock_ms() + DEADLINE_MS;
    while (s->where != IN_BARRIER && !atomic_load(&s->stopped) && ranks_clock_ms() < until_ms)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    kind_set_silence(group, SILENCE_MS);
}

/* The victim's part: until it is killed, or stopped and then killed. */
static void fall(const expar_group *group, stage *s)
{
    const boot_topic barrier = {.kind = BOOT_KIND_BARRIER, .number = UINT64_MAX};
    if (s->silence && s->where == IN_BARRIER) kind_await_waiting(group, &barrier, RANKS - 1, 0);
    atomic_fetch_add(&s->waiting, 1);
    for (;;)
        pause();
}

static void survive(expar_group *group, void *shared)
{
    stage *s = shared;
    words *w;
    CHECK_OK(expar_calloc(group, 1, sizeof *w, (void **)&w));
    CHECK_OK(expar_group_barrier(group));
    if (group->rank == VICTIM) fall(group, s);
    atomic_fetch_add(&s->waiting, 1);
    if (s->silence) await_stop(group, s);
    CHECK_STATUS(EXPAR_ERR_PEER, wait_in(group, s, w));
    check_first_error(group, s);
    atomic_store(&s->ended_ms, ranks_clock_ms());
    if (s->silence && s->where == IN_RMA && !arrives_unnoticed(group)) find_silence(group, w);
    kind_set_silence(group, RANKS_TIMEOUT_MS);
    lose_touch(group, w);
    quiet_once_told(group);
    go_round(group, s, w);
    part(group, w);
    if (s->silence) kind_set_silence(group, SILENCE_MS); /* leaving waits for all whose end is not known */
}

static void await_all_waiting(const stage *s)
{
    int64_t deadline_ms = ranks_clock_ms() + DEADLINE_MS;
    while (atomic_load(&s->waiting) < RANKS) {
        assert_true(ranks_clock_ms() < deadline_ms);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL); /* so that they mostly sleep; nothing hangs on it */
}

/* Its monitor may answer until then. */
static void await_stopped(pid_t pid, stage *s)
{
    siginfo_t info;
    assert_int_equal(waitid(P_PID, (id_t)pid, &info, WSTOPPED | WEXITED | WNOWAIT), 0);
    assert_int_equal(info.si_code, CLD_STOPPED);
    atomic_store(&s->stopped, 1);
}

/* The state of one loss under way, for the test. */
typedef struct trial {
    stage *s;
    ranks_host host;
    pid_t pids[RANKS];
    int64_t start_ms; /* when the victim was struck */
} trial;

/* Until all ranks wait. */
static void begin(trial *p, ranks_body body, phase where, bool silence)
{
    ranks_plan plan = {.kind = RANKS_PROCESSES, .size = RANKS, .heap_bytes = HEAP_BYTES};
    plan.ranks_per_node = kind_ranks_per_node(&plan);
    p->s = mmap(NULL, sizeof *p->s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(p->s != MAP_FAILED);
    *p->s = (stage){.where = where, .silence = silence};
    assert_true(ranks_host_start(&p->host));
    for (int32_t r = 0; r < RANKS; r++)
        assert_true((p->pids[r] = ranks_fork(&plan, &p->host.id, r, body, p->s)) > 0);
    await_all_waiting(p->s);
}

static void strike(trial *p, phase where, bool silence)
{
    begin(p, survive, where, silence);
    p->start_ms = ranks_clock_ms();
    assert_int_equal(kill(p->pids[VICTIM], silence ? SIGSTOP : SIGKILL), 0);
    if (silence) await_stopped(p->pids[VICTIM], p->s);
}

static void finish(trial *p)
{
    const int64_t until_ms = ranks_clock_ms() + DEADLINE_MS;
    bool late = false;
    for (int32_t r = 0; r < RANKS; r++)
        if (r != VICTIM) assert_int_equal(ranks_wait(p->pids[r], until_ms, &late), 0);
    assert_false(late);
    print_message("%s, rank %d %s: known to all after %lld ms\n", phase_names[p->s->where], VICTIM,
                  p->s->silence ? "stopped" : "killed", (long long)(atomic_load(&p->s->ended_ms) - p->start_ms));
    if (p->s->silence) kill(p->pids[VICTIM], SIGKILL);
    int status = ranks_wait(p->pids[VICTIM], until_ms, NULL);
    assert_true(WIFSIGNALED(status));
}

static void end(trial *p)
{
    assert_true(ranks_host_stop(&p->host));
    munmap(p->s, sizeof *p->s);
}

static void test_killed(void **state)
{
    (void)state;
    for (int where = 0; where < PHASES; where++) {
        trial p;
        strike(&p, (phase)where, false);
        finish(&p);
        end(&p);
    }
}

/* All at once, since most of their time is waiting for time-outs; but one begins when the victim before is stopped. */
static void test_stopped(void **state)
{
    (void)state;
    trial trials[PHASES];
    if (netns_on()) return; /* test_netns_faults cuts the cable instead */
    for (int where = 0; where < PHASES; where++)
        strike(&trials[where], (phase)where, true);
    for (int where = 0; where < PHASES; where++)
        finish(&trials[where]);
    for (int where = PHASES - 1; where >= 0; where--) /* later ones hold what ends the earlier ones */
        end(&trials[where]);
}

/* ---- processes: one gives another up as silent, and ends --------------------------------------------------------- */

#define ENDING 1

/* Its program ends with the error, without a good-bye, before the others have waited for so long. A mapped rank is told
   by a word in its memory, the others on their lines. */
static void end_by_silence(expar_group *group, void *shared)
{
    stage *s = shared;
    CHECK_OK(expar_group_barrier(group));
    atomic_fetch_add(&s->waiting, 1);
    while (group->rank == VICTIM)
        pause();
    if (group->rank == ENDING) {
        sym_fail(group->sym, SYM_PEER_SILENT, VICTIM);
        _exit(check_failures() ? 1 : 0);
    }
    CHECK_STATUS(EXPAR_ERR_PEER, expar_barrier_all(group));
    CHECK_TEXT("rank 2 fell silent");
}

static void test_silence_explains_an_end(void **state)
{
    (void)state;
    trial p;
    begin(&p, end_by_silence, IN_BARRIER, false);
    for (int32_t r = 0; r < RANKS; r++)
        if (r != VICTIM) assert_int_equal(ranks_wait(p.pids[r], ranks_clock_ms() + DEADLINE_MS, NULL), 0);
    kill(p.pids[VICTIM], SIGKILL);
    assert_true(WIFSIGNALED(ranks_wait(p.pids[VICTIM], ranks_clock_ms() + DEADLINE_MS, NULL)));
    end(&p);
}

#define LATER 3 /* dies, while one that was called silent lives */

static bool is_told(const expar_group *group)
{
    const sym_control *own = sym_at(group->sym, group->rank, 0);
    return atomic_load_explicit(&own->told, memory_order_acquire) != 0;
}

/* One rank gives another up, and both live on. Then a third dies, of whom that says nothing. */
static void outlive_a_silence(expar_group *group, void *shared)
{
    stage *s = shared;
    CHECK_OK(expar_group_barrier(group));
    if (group->rank == ENDING) sym_fail(group->sym, SYM_PEER_SILENT, VICTIM);
    while (group->rank == 0 && sym_at(group->sym, ENDING, 0) && !is_told(group))
        sched_yield();
    atomic_fetch_add(&s->waiting, 1);
    while (group->rank != 0)
        pause();
    CHECK_STATUS(EXPAR_ERR_PEER, expar_barrier_all(group));
    CHECK_TEXT("rank 3 died");
}

static void test_silence_of_one_is_no_death_of_another(void **state)
{
    (void)state;
    trial p;
    const int64_t until_ms = ranks_clock_ms() + DEADLINE_MS;
    begin(&p, outlive_a_silence, IN_BARRIER, false);
    assert_int_equal(kill(p.pids[LATER], SIGKILL), 0);
    assert_int_equal(ranks_wait(p.pids[0], until_ms, NULL), 0);
    for (int32_t r = 1; r < RANKS; r++) {
        kill(p.pids[r], SIGKILL);
        assert_true(WIFSIGNALED(ranks_wait(p.pids[r], until_ms, NULL)));
    }
    end(&p);
}

/* ---- processes: one leaves for a death that another has not heard of --------------------------------------------- */

#define HELD   0
#define LEAVER 3
/* For how long the monitor comes late, once it could know. Too short makes the test weaker, not wrong. */
#define LATE_NS 200000000

typedef struct holder {
    expar_group *group;
    stage *s;
} holder;

/* A monitor that has no core: it looks into nothing that has closed. */
static void *hold_monitor(void *argument)
{
    const holder *own = argument;
    boot_sockets *sockets = (boot_sockets *)own->group->boot;
    int64_t until_ms = ranks_clock_ms() + DEADLINE_MS;
    pthread_mutex_lock(&sockets->read_lock);
    atomic_store(&own->s->held, 1);
    while (!atomic_load(&own->s->leaving) && !atomic_load(&own->s->failed) && ranks_clock_ms() < until_ms)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    nanosleep(&(struct timespec){.tv_nsec = LATE_NS}, NULL);
    pthread_mutex_unlock(&sockets->read_lock);
    return NULL;
}

/* Small puts that return at once are complete, or have failed, after a quiet. */
static expar_status complete_until_failure(expar_group *group, words *w, int32_t pe)
{
    expar_status status = EXPAR_OK;
    for (int64_t until_ms = ranks_clock_ms() + DEADLINE_MS; status == EXPAR_OK && ranks_clock_ms() < until_ms;) {
        status = expar_put_nbi(group, w->data, w->data, 8, pe);
        if (status == EXPAR_OK) status = expar_quiet(group);
    }
    return status;
}

static void put_to_leaver(expar_group *group, stage *s, words *w)
{
    pthread_t thread;
    holder own = {group, s};
    CHECK(pthread_create(&thread, NULL, hold_monitor, &own) == 0, "thread");
    CHECK_STATUS(EXPAR_ERR_PEER,
                 s->where == IN_WAIT ? complete_until_failure(group, w, LEAVER) : put_until_failure(group, w, LEAVER));
    CHECK_TEXT("rank 2");
    CHECK_STATUS(EXPAR_ERR_PEER, expar_put(group, w->data, w->data, 8, LEAVER));
    CHECK_TEXT("rank 2");
    atomic_store(&s->failed, 1);
    pthread_join(thread, NULL);
}

/* Where memory is mapped no operation fails, and the monitor alone tells. */
static void leave_by_death(expar_group *group, void *shared)
{
    stage *s = shared;
    words *w;
    CHECK_OK(expar_calloc(group, 1, sizeof *w, (void **)&w));
    CHECK_OK(expar_group_barrier(group));
    const bool mapped = sym_at(group->sym, group->rank == HELD ? LEAVER : HELD, 0) != NULL;
    if (group->rank == HELD && mapped) atomic_store(&s->held, 1);
    if (group->rank == VICTIM) fall(group, s);
    atomic_fetch_add(&s->waiting, 1);
    if (group->rank == HELD && !mapped) {
        put_to_leaver(group, s, w);
        return;
    }
    CHECK_STATUS(EXPAR_ERR_PEER, expar_signal_wait_until(group, &w->signal, EXPAR_CMP_EQ, 1, NULL));
    CHECK_TEXT("rank 2");
    if (group->rank == LEAVER) atomic_store(&s->leaving, 1);
}

static void kill_after(phase where)
{
    trial p;
    begin(&p, leave_by_death, where, false);
    const int64_t until_ms = ranks_clock_ms() + DEADLINE_MS;
    while (!atomic_load(&p.s->held) && ranks_clock_ms() < until_ms)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    assert_int_equal(kill(p.pids[VICTIM], SIGKILL), 0);
    finish(&p);
    end(&p);
}

static void test_a_death_explains_a_leaving(void **state)
{
    (void)state;
    kill_after(IN_RMA);
    kill_after(IN_WAIT);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest thread_tests[] = {cmocka_unit_test(test_one_aborts),
                                              cmocka_unit_test(test_abort_from_a_thread)};
    const struct CMUnitTest process_tests[] = {
        cmocka_unit_test(test_one_aborts),
        cmocka_unit_test(test_abort_from_a_thread),
        cmocka_unit_test(test_killed),
        cmocka_unit_test(test_stopped),
        cmocka_unit_test(test_silence_explains_an_end),
        cmocka_unit_test(test_a_death_explains_a_leaving),
        cmocka_unit_test(test_silence_of_one_is_no_death_of_another),
    };
    kind_read(argc, argv);
    return kind_of_ranks == RANKS_THREADS ? cmocka_run_group_tests(thread_tests, NULL, NULL)
                                          : cmocka_run_group_tests(process_tests, NULL, NULL);
}

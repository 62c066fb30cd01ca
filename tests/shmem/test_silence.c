/* SPDX-License-Identifier: Apache-2.0 */
/* A rank is stopped, or does not come, while others wait for each other and for it. Every error names that rank and no
 * other, and the others go on among themselves. All scenes of one group size run at once, because they mostly wait for
 * time-outs. Waits for words and control barriers are in tests/group/test_failure.c. */
#include "pgas/team/team.h"
#include "shmem/kind.h"

#include <expar/collective.h>

#include <assert.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define VICTIM      2
#define MOST_RANKS  5
#define SILENCE_MS  1000
#define DEADLINE_MS 60000
#define MOST_SCENES 5
#define ITEMS       ((size_t)8)

/* In every rank's heap. */
typedef struct block {
    uint64_t source[MOST_RANKS * ITEMS], dest[MOST_RANKS * ITEMS];
    uint64_t mail[MOST_RANKS];
} block;

/* One rank's view. */
typedef struct view {
    expar_group *group;
    expar_team *world;
    block *b;
} view;

/* Between a test and its ranks; in memory that all share. `call` and the two members after it are written before the
   ranks are made. The counters are raised by each rank once, `go` is set by the test or a rank. */
typedef struct scene {
    int32_t call, size;
    bool inside;             /* the victim is stopped in the call, else before it */
    _Atomic int32_t ready;   /* ranks that are about to call */
    _Atomic int32_t go;      /* the victim is stopped, or will not come */
    _Atomic int32_t blaming; /* ranks whose call failed */
    _Atomic int32_t heard;   /* survivors whose call has ended */
    _Atomic int32_t done;    /* survivors who need the others no more */
    kind_vigil vigil;        /* of those who wait for one that stays away */
} scene;

/* ---- the calls --------------------------------------------------------------------------------------------------- */

static expar_status call_sync(const view *v)
{
    return expar_team_sync(v->world);
}

static expar_status call_broadcast(const view *v)
{
    return expar_broadcast(v->world, v->b->dest, v->b->source, sizeof v->b->mail, VICTIM);
}

static expar_status call_reduce(const view *v)
{
    return expar_sum_reduce_u64(v->world, v->b->dest, v->b->source, ITEMS);
}

static expar_status call_alltoall(const view *v)
{
    return expar_alltoall(v->world, v->b->dest, v->b->source, ITEMS * sizeof(uint64_t));
}

static expar_status call_barrier_all(const view *v)
{
    return expar_barrier_all(v->group);
}

static expar_status call_malloc(const view *v)
{
    void *more;
    return expar_malloc(v->group, 64, &more);
}

typedef enum call_number { SYNC, BROADCAST, REDUCE, ALLTOALL, BARRIER_ALL, MALLOC, CALLS } call_number;
static expar_status (*const calls[CALLS])(const view *) = {call_sync,     call_broadcast,   call_reduce,
                                                           call_alltoall, call_barrier_all, call_malloc};

/* ---- a rank ------------------------------------------------------------------------------------------------------ */

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static void await_count(const _Atomic int32_t *counter, int32_t count)
{
    const int64_t until_ms = ranks_clock_ms() + DEADLINE_MS;
    while (atomic_load(counter) < count && ranks_clock_ms() < until_ms)
        nap();
    CHECK(atomic_load(counter) >= count, "%d of %d came", atomic_load(counter), count);
}

static void meet(_Atomic int32_t *counter, int32_t count)
{
    atomic_fetch_add(counter, 1);
    await_count(counter, count);
}

static view look(expar_group *group)
{
    view v = {.group = group};
    CHECK_OK(expar_calloc(group, 1, sizeof *v.b, (void **)&v.b));
    CHECK_OK(expar_team_get_world(group, &v.world));
    CHECK_OK(expar_group_barrier(group));
    return v;
}

/* Only the victim is gone; all others put to and get from each other. */
static void go_on(const view *v, scene *s)
{
    const int32_t me = v->group->rank;
    kind_set_silence(v->group, RANKS_TIMEOUT_MS);
    meet(&s->heard, s->size - 1);
    if (expar_quiet(v->group) != EXPAR_OK) CHECK_TEXT("rank 2"); /* told once of what was under way to it */
    for (int32_t pe = 0; pe < s->size; pe++) {
        uint64_t mine = 100 + (uint64_t)me, back = 0;
        if (pe == VICTIM) continue;
        CHECK_OK(expar_put(v->group, &v->b->mail[me], &mine, sizeof mine, pe));
        CHECK_OK(expar_quiet(v->group));
        CHECK_OK(expar_get(v->group, &back, &v->b->mail[me], sizeof back, pe));
        CHECK(back == mine, "rank %d gave back %llu", pe, (unsigned long long)back);
    }
    meet(&s->done, s->size - 1);
    kind_set_silence(v->group, SILENCE_MS); /* leaving waits for all whose end is not known */
}

static void check_loss(const view *v, const char *how)
{
    CHECK_TEXT("rank 2");
    if (v->group->sym->all_mapped) CHECK_TEXT(how);
    for (int32_t pe = 0; pe < v->group->size; pe++)
        if (pe != VICTIM) CHECK_OK(sym_check_pe(v->group->sym, pe, "a survivor"));
}

/* ---- stopped ----------------------------------------------------------------------------------------------------- */

/* Until the victim, which has been let into the call alone, waits for somebody there. */
static void await_inside(const view *v, const scene *s)
{
    const boot_topic barrier = {.kind = BOOT_KIND_BARRIER, .number = UINT64_MAX};
    const boot_topic world = {.kind = BOOT_KIND_TEAM, .object = TEAM_WORLD_SLOT};
    const boot_topic topic = s->call == BARRIER_ALL ? barrier : world;
    const int64_t until_ms = ranks_clock_ms() + DEADLINE_MS;
    boot_answer answers[MOST_RANKS] = {[VICTIM] = {.asked = true}};
    while (!answers[VICTIM].waits && ranks_clock_ms() < until_ms)
        v->group->boot->ops->ask(v->group->boot, &topic, answers, INT64_C(5000000000));
    CHECK(answers[VICTIM].waits, "the victim waits for nobody");
}

static void survive(expar_group *group, void *shared)
{
    scene *s = shared;
    const view v = look(group);
    if (group->rank == VICTIM) {
        atomic_fetch_add(&s->ready, 1);
        if (s->inside) (void)calls[s->call](&v);
        for (;;) /* until it is killed */
            pause();
    }
    if (s->inside) await_inside(&v, s);
    atomic_fetch_add(&s->ready, 1);
    await_count(&s->go, 1);
    kind_set_silence(group, SILENCE_MS);
    expar_status status = calls[s->call](&v);
    if (status != EXPAR_OK) {
        CHECK_STATUS(EXPAR_ERR_PEER, status);
        check_loss(&v, "silent: rank 2");
        atomic_fetch_add(&s->blaming, 1);
    }
    go_on(&v, s);
}

/* The state of a scene under way, for the test. */
typedef struct trial {
    scene *s;
    ranks_host host;
    pid_t pids[MOST_RANKS];
} trial;

static void begin(trial *p, scene *s)
{
    ranks_plan plan = {.kind = RANKS_PROCESSES, .size = s->size, .heap_bytes = (size_t)4 << 20};
    plan.ranks_per_node = kind_ranks_per_node(&plan);
    *p = (trial){.s = s};
    assert_true(ranks_host_start(&p->host));
    for (int32_t r = 0; r < s->size; r++)
        assert_true((p->pids[r] = ranks_fork(&plan, &p->host.id, r, survive, s)) > 0);
}

static void stop_victim(const trial *p)
{
    int status;
    const int64_t until_ms = ranks_clock_ms() + DEADLINE_MS;
    while (atomic_load(&p->s->ready) < p->s->size && ranks_clock_ms() < until_ms)
        nap();
    assert_int_equal(kill(p->pids[VICTIM], SIGSTOP), 0);
    assert_int_equal(waitpid(p->pids[VICTIM], &status, WUNTRACED), p->pids[VICTIM]);
    assert_true(WIFSTOPPED(status));
    atomic_store(&p->s->go, 1);
}

/* False when some rank's checks failed, or it had to be killed. */
static bool finish(trial *p)
{
    const int64_t until_ms = ranks_clock_ms() + 2 * DEADLINE_MS;
    bool late = false, good = true;
    for (int32_t r = 0; r < p->s->size; r++)
        if (r != VICTIM && ranks_wait(p->pids[r], until_ms, &late) != 0) good = false;
    kill(p->pids[VICTIM], SIGKILL);
    if (!WIFSIGNALED(ranks_wait(p->pids[VICTIM], until_ms, NULL))) good = false;
    return good && !late;
}

/* Stopped before it comes all miss it; stopped inside some have heard of it what they need. */
static bool trial_out(trial *p)
{
    const bool good = finish(p);
    const int32_t blaming = atomic_load(&p->s->blaming);
    const bool right = p->s->inside ? blaming > 0 : blaming == p->s->size - 1;
    if (!good || !right)
        print_message("call %d of %d ranks, stopped %s: %d blame\n", p->s->call, p->s->size,
                      p->s->inside ? "inside" : "before", blaming);
    return good && right;
}

/* All at once. The scenes' `call` and `inside` are given. */
static void stop_in(int32_t size, const scene *given, int32_t count)
{
    scene *scenes = mmap(NULL, MOST_SCENES * sizeof *scenes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    trial trials[MOST_SCENES];
    bool good = true;
    assert_true(scenes != MAP_FAILED);
    for (int32_t i = 0; i < count; i++) {
        scenes[i] = (scene){.call = given[i].call, .size = size, .inside = given[i].inside};
        begin(&trials[i], &scenes[i]);
    }
    for (int32_t i = 0; i < count; i++)
        stop_victim(&trials[i]);
    for (int32_t i = 0; i < count; i++)
        if (!trial_out(&trials[i])) good = false;
    for (int32_t i = count - 1; i >= 0; i--) /* later ones hold what ends the earlier ones */
        if (!ranks_host_stop(&trials[i].host)) good = false;
    assert_true(good);
    munmap(scenes, MOST_SCENES * sizeof *scenes);
}

static void test_stopped(void **state)
{
    (void)state;
    static const scene of_4[] = {
        {.call = SYNC}, {.call = REDUCE}, {.call = BARRIER_ALL}, {.call = MALLOC}, {.call = SYNC, .inside = true}};
    static const scene of_5[] = {
        {.call = SYNC}, {.call = BROADCAST}, {.call = ALLTOALL}, {.call = BARRIER_ALL, .inside = true}};
    static_assert(ARRAY_LENGTH(of_4) <= MOST_SCENES && ARRAY_LENGTH(of_5) <= MOST_SCENES, "there is room for all");
    stop_in(4, of_4, (int32_t)ARRAY_LENGTH(of_4));
    stop_in(5, of_5, (int32_t)ARRAY_LENGTH(of_5));
}

/* ---- alive, but it does not come --------------------------------------------------------------------------------- */

/* The call has been made before, so that all who tell each other something in it are connected. */
static void stay_away(expar_group *group, void *shared)
{
    scene *s = shared;
    const view v = look(group);
    kind_watcher watcher;
    CHECK_OK(calls[s->call](&v));
    if (group->rank == VICTIM) {
        await_count(&s->done, s->size - 1);
        return;
    }
    kind_watch_begin(&watcher, group, &s->vigil);
    CHECK_STATUS(EXPAR_ERR_PEER, calls[s->call](&v));
    CHECK_TEXT("rank 2 is alive but has not come to this call");
    kind_watch_end(&watcher);
    check_loss(&v, "rank 2");
    go_on(&v, s);
}

static void run_shared(int32_t size, int32_t call, ranks_body body)
{
    scene *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ranks_plan plan = {.kind = kind_of_ranks, .size = size, .heap_bytes = (size_t)4 << 20};
    plan.ranks_per_node = kind_ranks_per_node(&plan);
    assert_true(s != MAP_FAILED);
    *s = (scene){.call = call, .size = size, .vigil.size = size - 1};
    assert_true(ranks_run(&plan, body, s));
    munmap(s, sizeof *s);
}

static void test_away(void **state)
{
    (void)state;
    static const call_number some[] = {SYNC, BARRIER_ALL};
    for (size_t i = 0; i < ARRAY_LENGTH(some); i++)
        run_shared(4 + (int32_t)i % 2, (int32_t)some[i], stay_away);
}

/* Two roots of one broadcast: each waits for the other. */
static void disagree(expar_group *group, void *shared)
{
    scene *s = shared;
    const view v = look(group);
    kind_set_silence(group, SILENCE_MS);
    CHECK_STATUS(EXPAR_ERR_PEER, expar_broadcast(v.world, v.b->dest, v.b->source, 8, 1 - group->rank));
    CHECK_TEXT("circle");
    meet(&s->done, 2);
}

static void test_circle(void **state)
{
    (void)state;
    run_shared(2, BROADCAST, disagree);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest thread_tests[] = {cmocka_unit_test(test_away), cmocka_unit_test(test_circle)};
    const struct CMUnitTest process_tests[] = {cmocka_unit_test(test_stopped), cmocka_unit_test(test_away),
                                               cmocka_unit_test(test_circle)};
    kind_read(argc, argv);
    return kind_of_ranks == RANKS_THREADS ? cmocka_run_group_tests(thread_tests, NULL, NULL)
                                          : cmocka_run_group_tests(process_tests, NULL, NULL);
}

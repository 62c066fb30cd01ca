/* SPDX-License-Identifier: Apache-2.0 */
/* A member is killed while all are in collectives: the others hear its name, and go on in teams without it. Ranks are
 * processes; once for each kind of collective, with another victim each time. */
#include "shmem/kind.h"

#include <expar/collective.h>

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

#define RANKS       4
#define PAIRS       6
#define DEADLINE_MS 120000
#define LARGE       ((size_t)20000)

/* Shared by the test and its ranks. `kind` and `victim` are written before the ranks are made. */
typedef struct scene {
    int32_t kind, victim;
    _Atomic int32_t calls[RANKS];  /* that a rank has ended; written by it, read by the test */
    _Atomic int32_t noticed, done; /* ranks; counted by them */
} scene;

/* One rank's view. */
typedef struct stage {
    expar_group *group;
    expar_team *world;
    uint8_t *dest, *source; /* of RANKS times LARGE, strided */
} stage;

/* ---- the calls --------------------------------------------------------------------------------------------------- */

static size_t bytes_of(int32_t number)
{
    return number % 2 == 0 ? 64 : LARGE;
}

static expar_status call_barrier_all(const stage *s, int32_t number)
{
    (void)number;
    return expar_barrier_all(s->group);
}

static expar_status call_sync(const stage *s, int32_t number)
{
    (void)number;
    return expar_team_sync(s->world);
}

static expar_status call_broadcast(const stage *s, int32_t number)
{
    return expar_broadcast(s->world, s->dest, s->source, bytes_of(number), number / 2 % RANKS);
}

static expar_status call_fcollect(const stage *s, int32_t number)
{
    return expar_fcollect(s->world, s->dest, s->source, bytes_of(number));
}

static expar_status call_collect(const stage *s, int32_t number)
{
    return expar_collect(s->world, s->dest, s->source, s->group->rank == 1 ? 0 : bytes_of(number));
}

static expar_status call_alltoall(const stage *s, int32_t number)
{
    return expar_alltoall(s->world, s->dest, s->source, bytes_of(number));
}

static expar_status call_alltoalls(const stage *s, int32_t number)
{
    return expar_alltoalls(s->world, s->dest, s->source, 2, 2, 8, bytes_of(number) / 16);
}

static expar_status call_reduce(const stage *s, int32_t number)
{
    return expar_sum_reduce_u8(s->world, s->dest, s->source, bytes_of(number));
}

static expar_status (*const kinds[])(const stage *, int32_t) = {call_barrier_all, call_sync,    call_broadcast,
                                                                call_fcollect,    call_collect, call_alltoall,
                                                                call_alltoalls,   call_reduce};

/* ---- a rank ------------------------------------------------------------------------------------------------------ */

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* All who live have come. */
static void meet(_Atomic int32_t *came)
{
    const int64_t start_ms = ranks_clock_ms();
    atomic_fetch_add(came, 1);
    while (atomic_load(came) < RANKS - 1 && ranks_clock_ms() - start_ms < DEADLINE_MS)
        nap();
}

/* Every two ranks, in one order on all. */
static void split_pairs(const stage *s, expar_team *pairs[PAIRS])
{
    int32_t next = 0;
    for (int32_t low = 0; low < RANKS; low++)
        for (int32_t high = low + 1; high < RANKS; high++)
            CHECK_OK(expar_team_split_strided(s->world, low, high - low, 2, NULL, &pairs[next++]));
}

static void go_on(const stage *s, expar_team *pair)
{
    uint64_t *dest = (uint64_t *)(void *)s->dest, mine = (uint64_t)s->group->rank + 1, *source = (void *)s->source;
    CHECK_OK(expar_team_sync(pair));
    (void)expar_quiet(s->group); /* may tell once more of what was under way to the dead */
    CHECK_OK(expar_team_barrier(pair));
    CHECK_OK(expar_fcollect(pair, dest, &mine, sizeof mine));
    CHECK(dest[0] + dest[1] > mine && (dest[0] == mine || dest[1] == mine), "fcollect of a pair");
    *source = mine;
    CHECK_OK(expar_sum_reduce_u64(pair, dest + 2, source, 1));
    CHECK(dest[2] == dest[0] + dest[1], "a sum of a pair");
    CHECK_OK(expar_broadcast(pair, dest + 3, source, sizeof mine, 1));
    CHECK(dest[3] == dest[1], "broadcast of a pair");
    CHECK_OK(expar_team_sync(pair));
}

static void work(expar_group *group, void *shared)
{
    scene *s = shared;
    stage own = {.group = group};
    expar_team *pairs[PAIRS];
    char victim[16];
    expar_status status = EXPAR_OK;
    const int64_t start_ms = ranks_clock_ms();
    snprintf(victim, sizeof victim, "rank %d", s->victim);
    CHECK_OK(expar_malloc(group, 2 * RANKS * LARGE, (void **)&own.dest));
    CHECK_OK(expar_calloc(group, 2 * RANKS, LARGE, (void **)&own.source));
    CHECK_OK(expar_team_get_world(group, &own.world));
    split_pairs(&own, pairs);
    for (int32_t i = 0; status == EXPAR_OK && ranks_clock_ms() - start_ms < DEADLINE_MS; i++) {
        status = kinds[s->kind](&own, i);
        atomic_fetch_add(&s->calls[group->rank], 1);
    }
    CHECK_STATUS(EXPAR_ERR_PEER, status);
    CHECK_TEXT(victim);
    CHECK_STATUS(EXPAR_ERR_PEER, kinds[s->kind](&own, 0));
    CHECK_TEXT(victim);
    meet(&s->noticed);
    for (int32_t low = 0, i = 0; low < RANKS; low++)
        for (int32_t high = low + 1; high < RANKS; high++, i++)
            if (pairs[i] && low != s->victim && high != s->victim) go_on(&own, pairs[i]);
    meet(&s->done);
}

/* ---- the test ---------------------------------------------------------------------------------------------------- */

static void strike(scene *s, const pid_t *pids, int32_t calls)
{
    const int64_t deadline_ms = ranks_clock_ms() + DEADLINE_MS;
    for (int32_t r = 0; r < RANKS; r++)
        while (atomic_load(&s->calls[r]) < calls && ranks_clock_ms() < deadline_ms)
            sched_yield();
    assert_int_equal(kill(pids[s->victim], SIGKILL), 0);
}

static void kill_one(scene *s)
{
    ranks_plan plan = {.kind = RANKS_PROCESSES, .size = RANKS};
    ranks_host host;
    pid_t pids[RANKS];
    plan.ranks_per_node = kind_ranks_per_node(&plan);
    assert_true(ranks_host_start(&host));
    for (int32_t r = 0; r < RANKS; r++)
        assert_true((pids[r] = ranks_fork(&plan, &host.id, r, work, s)) > 0);
    strike(s, pids, 10 + 3 * s->kind);
    for (int32_t r = 0; r < RANKS; r++) {
        int status = ranks_wait(pids[r], ranks_clock_ms() + 2 * DEADLINE_MS, NULL);
        assert_true(r == s->victim ? WIFSIGNALED(status) : status == 0);
    }
    assert_true(ranks_host_stop(&host));
}

static void test_death(void **state)
{
    (void)state;
    scene *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(s != MAP_FAILED);
    for (int32_t kind = 0; kind < (int32_t)ARRAY_LENGTH(kinds); kind++) {
        memset(s, 0, sizeof *s);
        s->kind = kind;
        s->victim = (kind * 3 + 1) % RANKS;
        kill_one(s);
    }
    munmap(s, sizeof *s);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_death)};
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

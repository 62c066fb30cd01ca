/* SPDX-License-Identifier: Apache-2.0 */
/* A rank dies, or falls silent, and the teams without it go on: barriers, collectives, splits, contexts, puts and gets
 * among the living. They go on even with a rank whose operations to the lost one are still under way. A rank that
 * touches the lost one is told its name. On process ranks only. */
#include "shmem/kind.h"

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS       6
#define VICTIM      5
#define DEADLINE_MS 120000
#define SILENCE_MS  3000
#define WORDS       ((size_t)8 << 10)

/* Between the test and its ranks; in memory that all share. */
typedef struct scene {
    bool silence;          /* stopped, not killed */
    _Atomic int32_t ready; /* ranks; written by them, read by the test */
    _Atomic bool struck;   /* written by the test, read by the ranks */
    _Atomic int32_t done;  /* ranks; nobody leaves before all who live are done, since leaving ends collectives, too */
} scene;

typedef struct stage {
    const scene *scene;
    expar_group *group;
    expar_team *world, *team; /* team: all but the victim */
    expar_ctx *ctx;           /* of team */
    uint64_t *dest, *source;  /* [RANKS][WORDS] symmetric */
} stage;

static void stage_make(stage *s, expar_group *group, const scene *plot)
{
    *s = (stage){.scene = plot, .group = group};
    CHECK_OK(expar_team_get_world(group, &s->world));
    CHECK_OK(expar_team_split_strided(s->world, 0, 1, VICTIM, NULL, &s->team));
    if (s->team) CHECK_OK(expar_ctx_create(s->team, NULL, &s->ctx));
    CHECK_OK(expar_calloc(group, RANKS * WORDS, sizeof *s->dest, (void **)&s->dest));
    CHECK_OK(expar_calloc(group, RANKS * WORDS, sizeof *s->source, (void **)&s->source));
    CHECK_OK(expar_group_barrier(group));
}

/* ---- among the living -------------------------------------------------------------------------------------------- */

static uint64_t value_of(int32_t member, uint64_t round, size_t i)
{
    return (uint64_t)(member + 1) * 1000000 + round * 10000 + i;
}

static void fill(const stage *s, const expar_team *team, uint64_t round)
{
    for (size_t i = 0; i < RANKS * WORDS; i++)
        s->source[i] = value_of(expar_team_my_pe(team), round, i);
}

static void broadcast(const stage *s, expar_team *team, uint64_t round, size_t words)
{
    uint64_t wrong = 0;
    int32_t root = (int32_t)round % expar_team_n_pes(team);
    CHECK_OK(expar_broadcast(team, s->dest, s->source, words * sizeof *s->dest, root));
    for (size_t i = 0; i < words; i++)
        wrong += s->dest[i] != value_of(root, round, i);
    CHECK(wrong == 0, "broadcast of %zu words: %llu wrong", words, (unsigned long long)wrong);
}

static void reduce(const stage *s, expar_team *team, uint64_t round, size_t words)
{
    uint64_t wrong = 0;
    CHECK_OK(expar_sum_reduce_u64(team, s->dest, s->source, words));
    for (size_t i = 0; i < words; i++) {
        uint64_t sum = 0;
        for (int32_t member = 0; member < expar_team_n_pes(team); member++)
            sum += value_of(member, round, i);
        wrong += s->dest[i] != sum;
    }
    CHECK(wrong == 0, "sum of %zu words: %llu wrong", words, (unsigned long long)wrong);
}

static void exchange(const stage *s, expar_team *team, uint64_t round, size_t words)
{
    uint64_t wrong = 0;
    size_t me = (size_t)expar_team_my_pe(team);
    CHECK_OK(expar_alltoall(team, s->dest, s->source, words * sizeof *s->dest));
    for (size_t member = 0; member < (size_t)expar_team_n_pes(team); member++)
        for (size_t i = 0; i < words; i++)
            wrong += s->dest[member * words + i] != value_of((int32_t)member, round, me * words + i);
    CHECK(wrong == 0, "alltoall of %zu words: %llu wrong", words, (unsigned long long)wrong);
}

static void meet_on(const stage *s, expar_team *team)
{
    static const size_t words[] = {3, WORDS};
    for (uint64_t round = 0; round < 4 && check_failures() == 0; round++) {
        fill(s, team, round);
        for (size_t i = 0; i < ARRAY_LENGTH(words); i++) {
            CHECK_OK(expar_team_sync(team));
            broadcast(s, team, round, words[i]);
            CHECK_OK(expar_team_sync(team));
            reduce(s, team, round, words[i]);
            CHECK_OK(expar_team_sync(team));
            exchange(s, team, round, words[i]);
        }
    }
}

/* Puts and gets on a context of the team. */
static void talk_on(const stage *s)
{
    int32_t size = expar_team_n_pes(s->team), next = (expar_team_my_pe(s->team) + 1) % size;
    uint64_t word = 0, old = 0, *at = &s->dest[WORDS + (size_t)expar_team_my_pe(s->team)];
    CHECK_OK(expar_ctx_put_nbi(s->ctx, at, s->source, sizeof word, next));
    CHECK_OK(expar_ctx_quiet(s->ctx));
    CHECK_OK(expar_ctx_get(s->ctx, &word, at, sizeof word, next));
    CHECK(word == s->source[0], "the word came back as %llu", (unsigned long long)word);
    CHECK_OK(expar_ctx_atomic_fetch_add_u64(s->ctx, at, 1, next, &old));
    CHECK(old == word, "it was %llu", (unsigned long long)old);
    CHECK_OK(expar_ctx_quiet(s->ctx));
}

/* Teams that are made later, of those who are there. */
static void split_again(const stage *s)
{
    expar_team *every_other;
    CHECK_OK(expar_team_split_strided(s->team, 0, 2, 3, NULL, &every_other));
    if (every_other) meet_on(s, every_other);
    CHECK_OK(expar_team_destroy(every_other));
}

/* ---- the lost one ------------------------------------------------------------------------------------------------ */

/* This rank begins something with the victim and leaves it under way; the collectives do not mind. */
static void begin_with_the_lost(const stage *s)
{
    expar_status status = EXPAR_OK;
    int64_t until_ms = ranks_clock_ms() + (s->scene->silence ? 0 : DEADLINE_MS);
    do
        status = expar_put_nbi(s->group, s->dest, s->source, sizeof *s->source, VICTIM);
    while (status == EXPAR_OK && ranks_clock_ms() < until_ms);
    CHECK(status == (s->scene->silence ? EXPAR_OK : EXPAR_ERR_PEER), "%s", expar_status_string(status));
}

/* OK, or the name of the lost one. */
static void check_told(expar_status status)
{
    CHECK(status == EXPAR_OK || status == EXPAR_ERR_PEER, "%s", expar_status_string(status));
    if (status == EXPAR_ERR_PEER) CHECK_TEXT("rank 5");
}

/* Until this rank, too, has noticed it: till then a put is a store that goes through. */
static void await_death(const stage *s)
{
    const int64_t until_ms = ranks_clock_ms() + DEADLINE_MS;
    while (sym_check_pe(s->group->sym, VICTIM, "test") == EXPAR_OK && ranks_clock_ms() < until_ms)
        sched_yield();
}

static void touch_the_dead(const stage *s)
{
    uint64_t word;
    void *block;
    await_death(s);
    CHECK_STATUS(EXPAR_ERR_PEER, expar_put(s->group, s->dest, s->source, 8, VICTIM));
    CHECK_TEXT("rank 5");
    CHECK_STATUS(EXPAR_ERR_PEER, expar_get(s->group, &word, s->dest, 8, VICTIM));
    CHECK_TEXT("rank 5");
    CHECK_STATUS(EXPAR_ERR_PEER, expar_team_sync(s->world));
    CHECK_TEXT("rank 5");
    CHECK_STATUS(EXPAR_ERR_PEER, expar_barrier_all(s->group));
    CHECK_TEXT("rank 5");
    CHECK_STATUS(EXPAR_ERR_PEER, expar_malloc(s->group, 64, &block));
    CHECK_TEXT("rank 5");
}

/* Stores into the memory of a rank that is stopped go through; over a network it must answer. */
static void touch_the_silent(const stage *s)
{
    uint64_t word;
    if (sym_at(s->group->sym, VICTIM, 0)) return;
    kind_set_silence(s->group, SILENCE_MS);
    CHECK_STATUS(EXPAR_ERR_PEER, expar_get(s->group, &word, s->dest, 8, VICTIM));
    CHECK_TEXT("rank 5");
    kind_set_silence(s->group, RANKS_TIMEOUT_MS);
    CHECK_STATUS(EXPAR_ERR_PEER, expar_put(s->group, s->dest, s->source, 8, VICTIM));
    CHECK_TEXT("rank 5");
}

/* Operations under way are given up after the time-out, unless the victim has answered before it was stopped. */
static void end_with_the_lost(const stage *s)
{
    kind_set_silence(s->group, SILENCE_MS);
    check_told(expar_quiet(s->group));
    kind_set_silence(s->group, RANKS_TIMEOUT_MS);
}

/* ---- the test ---------------------------------------------------------------------------------------------------- */

static void part(scene *plot)
{
    int64_t until_ms = ranks_clock_ms() + DEADLINE_MS;
    atomic_fetch_add(&plot->done, 1);
    while (atomic_load(&plot->done) < RANKS - 1 && ranks_clock_ms() < until_ms)
        sched_yield();
}

static void await_strike(scene *plot)
{
    int64_t until_ms = ranks_clock_ms() + DEADLINE_MS;
    atomic_fetch_add(&plot->ready, 1);
    while (!atomic_load(&plot->struck) && ranks_clock_ms() < until_ms)
        sched_yield();
}

static void outlive(expar_group *group, void *shared)
{
    scene *plot = shared;
    stage s;
    stage_make(&s, group, plot);
    await_strike(plot);
    while (group->rank == VICTIM)
        pause();
    if (group->rank == 0) begin_with_the_lost(&s);
    meet_on(&s, s.team);
    if (group->rank == 0 && plot->silence) end_with_the_lost(&s);
    check_told(expar_team_barrier(s.team));
    CHECK_OK(expar_team_barrier(s.team));
    talk_on(&s);
    split_again(&s);
    if (plot->silence)
        touch_the_silent(&s);
    else
        touch_the_dead(&s);
    meet_on(&s, s.team);
    CHECK_OK(expar_ctx_destroy(s.ctx));
    CHECK_OK(expar_team_sync(s.team));
    part(plot);
    if (plot->silence) kind_set_silence(group, SILENCE_MS); /* leaving waits for all whose end is not known */
}

static void strike(scene *plot, pid_t victim)
{
    int64_t deadline_ms = ranks_clock_ms() + DEADLINE_MS;
    while (atomic_load(&plot->ready) < RANKS && ranks_clock_ms() < deadline_ms)
        sched_yield();
    assert_int_equal(kill(victim, plot->silence ? SIGSTOP : SIGKILL), 0);
    atomic_store(&plot->struck, true);
}

static void lose_one(bool silence)
{
    scene *plot = mmap(NULL, sizeof *plot, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(plot != MAP_FAILED);
    plot->silence = silence;
    ranks_plan plan = {.kind = RANKS_PROCESSES, .size = RANKS};
    plan.ranks_per_node = kind_ranks_per_node(&plan);
    ranks_host host;
    pid_t pids[RANKS];
    assert_true(ranks_host_start(&host));
    for (int32_t r = 0; r < RANKS; r++)
        assert_true((pids[r] = ranks_fork(&plan, &host.id, r, outlive, plot)) > 0);
    strike(plot, pids[VICTIM]);
    int64_t deadline_ms = ranks_clock_ms() + 2 * DEADLINE_MS;
    for (int32_t r = 0; r < VICTIM; r++)
        assert_int_equal(ranks_wait(pids[r], deadline_ms, NULL), 0);
    if (silence) kill(pids[VICTIM], SIGKILL);
    int status = ranks_wait(pids[VICTIM], deadline_ms, NULL);
    assert_true(WIFSIGNALED(status));
    assert_true(ranks_host_stop(&host));
    munmap(plot, sizeof *plot);
}

static void test_one_is_killed(void **state)
{
    (void)state;
    lose_one(false);
}

/* Time-outs of several seconds: on one host. */
static void test_one_is_stopped(void **state)
{
    (void)state;
    if (netns_on()) skip();
    lose_one(true);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_is_killed), cmocka_unit_test(test_one_is_stopped)};
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

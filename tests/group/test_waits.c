/* SPDX-License-Identifier: Apache-2.0 */
/* Late is not dead: a rank that comes many time-outs after the others to any call is waited for; ranks that wait for
 * each other in different calls are told so after the time-out, with all of these calls; one whose call was refused
 * is not waited for. How late a rank is, is told by what the others say of their waits: nothing here is measured. */
#include "pgas/team/team.h"
#include "shmem/kind.h"

#include <expar/collective.h>

#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>

#define RANKS      3
#define LATE       2
#define TIMEOUT_MS 400
#define TIME_OUTS  4 /* that the others have waited before the late one comes */
#define ITEMS      ((size_t)4)

/* In every rank's heap. */
typedef struct block {
    uint64_t source[RANKS * ITEMS], dest[RANKS * ITEMS];
    uint64_t mail, lock;
} block;

typedef struct view {
    expar_group *group;
    expar_team *world;
    block *b;
} view;

static bool is_late(const view *v)
{
    return v->group->rank == LATE;
}

/* ---- the calls --------------------------------------------------------------------------------------------------- */

static void do_barrier_all(const view *v)
{
    CHECK_OK(expar_barrier_all(v->group));
}

static void do_sync(const view *v)
{
    CHECK_OK(expar_team_sync(v->world));
}

static void do_reduce(const view *v)
{
    CHECK_OK(expar_sum_reduce_u64(v->world, v->b->dest, v->b->source, ITEMS));
}

static void do_alltoall(const view *v)
{
    CHECK_OK(expar_alltoall(v->world, v->b->dest, v->b->source, ITEMS * sizeof(uint64_t)));
}

static void do_broadcast(const view *v)
{
    CHECK_OK(expar_broadcast(v->world, v->b->dest, v->b->source, sizeof v->b->mail, LATE));
}

static void do_control(const view *v)
{
    CHECK_OK(expar_group_barrier(v->group));
}

static void do_malloc(const view *v)
{
    void *more;
    if (CHECK_OK(expar_malloc(v->group, 64, &more))) CHECK_OK(expar_free(v->group, more));
}

/* The late one changes the words that the others wait for. */
static void do_wait(const view *v)
{
    const uint64_t one = 1;
    if (!is_late(v)) CHECK_OK(expar_wait_until_u64(v->group, &v->b->mail, EXPAR_CMP_EQ, 1, NULL));
    for (int32_t pe = 0; pe < RANKS && is_late(v); pe++)
        CHECK_OK(expar_put(v->group, &v->b->mail, &one, sizeof one, pe));
    if (is_late(v)) CHECK_OK(expar_quiet(v->group));
}

/* The late one has had the lock before. */
static void do_lock(const view *v)
{
    if (!is_late(v)) CHECK_OK(expar_lock_set(v->group, &v->b->lock));
    CHECK_OK(expar_lock_clear(v->group, &v->b->lock));
}

typedef struct call {
    const char *name;
    void (*make)(const view *v);
    boot_topic topic;
} call;

static const call calls[] = {
    {"barrier_all", do_barrier_all, {.kind = BOOT_KIND_BARRIER, .number = UINT64_MAX}},
    {"sync", do_sync, {.kind = BOOT_KIND_TEAM, .object = TEAM_WORLD_SLOT}},
    {"reduce", do_reduce, {.kind = BOOT_KIND_TEAM, .object = TEAM_WORLD_SLOT}},
    {"alltoall", do_alltoall, {.kind = BOOT_KIND_TEAM, .object = TEAM_WORLD_SLOT}},
    {"broadcast", do_broadcast, {.kind = BOOT_KIND_TEAM, .object = TEAM_WORLD_SLOT}},
    {"group_barrier", do_control, {.kind = BOOT_KIND_CONTROL, .number = UINT64_MAX}},
    {"malloc", do_malloc, {.kind = BOOT_KIND_CONTROL, .number = UINT64_MAX}},
    {"wait", do_wait, {.kind = BOOT_KIND_NONE}},
    {"lock", do_lock, {.kind = BOOT_KIND_NONE}},
};

/* ---- late by many time-outs -------------------------------------------------------------------------------------- */

/* Until all others say that they have waited there for so long. */
static bool await_waiting(expar_group *group, const boot_topic *topic, int64_t waited_ns)
{
    const int64_t until_ms = ranks_clock_ms() + RANKS_TIMEOUT_MS;
    int32_t waiting = 0;
    while (waiting < group->size - 1 && ranks_clock_ms() < until_ms) {
        boot_answer answers[RANKS] = {{0}};
        for (int32_t r = 0; r < group->size; r++)
            answers[r].asked = r != group->rank;
        group->boot->ops->ask(group->boot, topic, answers, INT64_C(1000000000));
        waiting = 0;
        for (int32_t r = 0; r < group->size; r++)
            waiting += answers[r].came && answers[r].waits && answers[r].waited_ns >= waited_ns;
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    return CHECK(waiting == group->size - 1, "%d wait", waiting);
}

static view look(expar_group *group)
{
    view v = {.group = group};
    CHECK_OK(expar_calloc(group, 1, sizeof *v.b, (void **)&v.b));
    CHECK_OK(expar_team_world(group, &v.world));
    return v;
}

static void come_late(expar_group *group, void *shared)
{
    (void)shared;
    const view v = look(group);
    if (is_late(&v)) CHECK_OK(expar_lock_set(group, &v.b->lock));
    CHECK_OK(expar_barrier_all(group));
    group->boot->timeout_ms = TIMEOUT_MS;
    for (size_t i = 0; i < ARRAY_LENGTH(calls); i++) {
        if (is_late(&v) && !await_waiting(group, &calls[i].topic, TIME_OUTS * TIMEOUT_MS * INT64_C(1000000))) return;
        calls[i].make(&v);
        if (check_failures() > 0) return;
        CHECK_OK(expar_barrier_all(group));
    }
}

static void test_late_ranks_are_waited_for(void **state)
{
    (void)state;
    kind_run((ranks_plan){.heap_bytes = 4 << 20}, RANKS, come_late);
}

/* ---- deadlocks --------------------------------------------------------------------------------------------------- */

/* All stay until all have ended, or who ends later would see the first leave. `ended` counts them; in memory that
   processes share. */
static void stay(expar_group *group, _Atomic int32_t *ended)
{
    const int64_t until_ms = ranks_clock_ms() + RANKS_TIMEOUT_MS;
    atomic_fetch_add(ended, 1);
    while (atomic_load(ended) < group->size && ranks_clock_ms() < until_ms)
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
}

/* Whoever is not the first to find it may hear that another one has given up, for that reason. */
static bool heard_of_it(void)
{
    return strstr(expar_last_error(), "does not come any more") != NULL;
}

static void in_two_calls(expar_group *group, void *shared)
{
    CHECK_OK(expar_barrier_all(group));
    group->boot->timeout_ms = TIMEOUT_MS;
    CHECK_STATUS(EXPAR_ERR_PEER, group->rank == 0 ? expar_barrier_all(group) : expar_group_barrier(group));
    CHECK_TEXT("a deadlock", "in barrier (number ", "waiting for rank 1", "in expar_group_barrier");
    stay(group, shared);
}

static void in_a_circle(expar_group *group, void *shared)
{
    expar_team *world, *teams[3] = {NULL, NULL, NULL};
    CHECK_OK(expar_team_world(group, &world));
    CHECK_OK(expar_team_split_strided(world, 0, 1, 2, NULL, &teams[0])); /* ranks 0 and 1 */
    CHECK_OK(expar_team_split_strided(world, 1, 1, 2, NULL, &teams[1])); /* 1 and 2 */
    CHECK_OK(expar_team_split_strided(world, 0, 2, 2, NULL, &teams[2])); /* 0 and 2 */
    CHECK_OK(expar_barrier_all(group));
    group->boot->timeout_ms = TIMEOUT_MS;
    CHECK_STATUS(EXPAR_ERR_PEER, expar_team_sync(teams[group->rank]));
    CHECK_TEXT("a deadlock");
    if (!heard_of_it()) CHECK_TEXT("rank 0 is in ", "rank 1 is in ", "rank 2 is in ", "for rank 0", "for rank 2");
    stay(group, shared);
}

/* No late limit ends it. */
static void run_until_all_end(int32_t size, ranks_body body)
{
    _Atomic int32_t *ended = mmap(NULL, sizeof *ended, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ranks_plan plan = {
        .kind = kind_of_ranks, .size = size, .heap_bytes = (size_t)4 << 20, .late_limit_ms = RANKS_TIMEOUT_MS};
    plan.ranks_per_node = kind_ranks_per_node(&plan);
    assert_true(ended != MAP_FAILED);
    assert_true(ranks_run(&plan, body, ended));
    munmap(ended, sizeof *ended);
}

static void test_two_calls(void **state)
{
    (void)state;
    run_until_all_end(2, in_two_calls);
}

static void test_circle_of_three(void **state)
{
    (void)state;
    run_until_all_end(3, in_a_circle);
}

/* ---- one that does not come -------------------------------------------------------------------------------------- */

static void refuse(expar_group *group, void *shared)
{
    (void)shared;
    char byte = 0;
    CHECK_OK(expar_barrier_all(group));
    if (group->rank == 1) {
        CHECK_STATUS(EXPAR_ERR_NULL, expar_group_broadcast(group, NULL, 1, 0));
        while (sym_check(group->sym, "test") == EXPAR_OK) /* until the other one has left */
            nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
        return;
    }
    CHECK_STATUS(EXPAR_ERR_PEER, expar_group_broadcast(group, &byte, 1, 0));
    CHECK_TEXT("rank 1 does not come any more", "EXPAR_ERR_NULL", "data is NULL");
}

static void test_who_refuses_is_not_waited_for(void **state)
{
    (void)state;
    kind_run((ranks_plan){.heap_bytes = 4 << 20}, 2, refuse);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_late_ranks_are_waited_for),
        cmocka_unit_test(test_two_calls),
        cmocka_unit_test(test_circle_of_three),
        cmocka_unit_test(test_who_refuses_is_not_waited_for),
    };
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

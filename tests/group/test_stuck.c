/* SPDX-License-Identifier: Apache-2.0 */
/* Waits that end though all who are awaited answer. Ranks that wait for each other in different calls are told so after
 * the time-out, with all of these calls. A late limit names the late rank, and what it is doing. A rank whose call was
 * rejected is not waited for. */
#include "group/calls.h"
#include "pgas/team/team.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>

#define TIMEOUT_MS 400

/* Between ranks; in memory that processes share. Each word counts ranks, raised by each once. */
typedef struct scene {
    const calls_rows *rows;
    const calls_call *call;
    _Atomic int32_t waiting; /* the others wait for the late one, which alone writes it; or have met */
    _Atomic int32_t ended;
} scene;

static void await_count(const _Atomic int32_t *counter, int32_t count)
{
    const int64_t until_ms = ranks_clock_ms() + RANKS_TIMEOUT_MS;
    while (atomic_load(counter) < count && ranks_clock_ms() < until_ms)
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
}

/* All stay until all have ended, or who ends later would see the first leave. */
static void stay(const expar_group *group, scene *s)
{
    atomic_fetch_add(&s->ended, 1);
    await_count(&s->ended, group->size);
}

/* No late limit of the harness ends it. */
static void run_scene(int32_t size, ranks_body body, const scene *given)
{
    scene *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ranks_plan plan = {.kind = kind_of_ranks, .size = size, .heap_bytes = CALLS_HEAP_BYTES};
    plan.ranks_per_node = kind_ranks_per_node(&plan);
    assert_true(s != MAP_FAILED);
    *s = (scene){.rows = given->rows, .call = given->call};
    const bool passed = ranks_run(&plan, body, s);
    munmap(s, sizeof *s);
    if (!passed && given->call) print_message("in %s\n", given->call->name);
    assert_true(passed);
}

/* ---- deadlocks --------------------------------------------------------------------------------------------------- */

/* A rank that is not the first to find it may hear that another one has given up, for that reason. */
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
    CHECK_OK(expar_team_get_world(group, &world));
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

static void test_two_calls(void **state)
{
    (void)state;
    run_scene(2, in_two_calls, &(scene){0});
}

static void test_circle_of_three(void **state)
{
    (void)state;
    run_scene(3, in_a_circle, &(scene){0});
}

/* ---- deadlocks of calls on buffers ------------------------------------------------------------------------------- */

static void set_timeout(const calls_view *v)
{
    CHECK_OK(expar_barrier_all(v->group));
    v->group->boot->timeout_ms = TIMEOUT_MS;
}

/* Two buffers in different order; rank 2 is with rank 1. */
static void in_two_buffers(expar_group *group, void *shared)
{
    scene *s = shared;
    calls_view v;
    if (!calls_open(&v, group, s->rows)) return;
    expar_ep *const one = v.ep, *const two = v.last;
    set_timeout(&v);
    if (group->rank > 0) v.ep = two;
    CHECK_STATUS(EXPAR_ERR_PEER, calls_find(group->rank > 0 ? "dispatch" : "combine")->make(&v));
    v.ep = one;
    CHECK_TEXT("a deadlock");
    if (!heard_of_it())
        CHECK_TEXT("rank 0 is in expar_ep_combine: ", "on buffer 1", "in expar_ep_dispatch: ", "on buffer 2",
                   "waiting for rank 0");
    stay(group, s);
    group->boot->timeout_ms = RANKS_TIMEOUT_MS;
    CHECK_OK(expar_group_barrier(group)); /* the group is sound, and buffers are replaced */
    if (calls_replace(&v)) CHECK_OK(calls_find("dispatch")->make(&v));
    calls_close(&v);
}

/* A call on a buffer, where rank 1 is awaited, one of a team with rank 2, and one over control sockets. */
static void in_three_calls(expar_group *group, void *shared)
{
    scene *s = shared;
    calls_view v;
    expar_team *pair;
    if (!calls_open(&v, group, s->rows)) return;
    CHECK_OK(expar_team_split_strided(v.world, 1, 1, 2, NULL, &pair));
    set_timeout(&v);
    if (group->rank == 1) v.world = pair;
    static const char *const names[] = {"dispatch", "sync", "group_barrier"};
    CHECK_STATUS(EXPAR_ERR_PEER, calls_find(names[group->rank])->make(&v));
    CHECK_TEXT("a deadlock");
    if (!heard_of_it())
        CHECK_TEXT("rank 0 is in expar_ep_dispatch: ", "on buffer 1), waiting for rank 1", "rank 1 is in ",
                   "waiting for rank 2", "rank 2 is in expar_group_barrier", "waiting for rank 0");
    stay(group, s);
    calls_close(&v);
}

/* Headers of one buffer's calls tell at once. */
static void in_two_calls_of_a_buffer(expar_group *group, void *shared)
{
    scene *s = shared;
    calls_view v;
    if (!calls_open(&v, group, s->rows)) return;
    CHECK_STATUS(EXPAR_ERR_MISMATCH, calls_find(group->rank ? "combine" : "dispatch")->make(&v));
    CHECK_TEXT("rank 1 called expar_ep_combine while rank 0 called expar_ep_dispatch");
    CHECK_OK(calls_find("combine")->make(&v));
    calls_close(&v);
}

/* Rank 0 in normal mode, the others in low-latency mode. */
static void in_both_modes(expar_group *group, void *shared)
{
    scene *s = shared;
    calls_view v;
    if (!calls_open(&v, group, s->rows)) return;
    set_timeout(&v);
    CHECK_STATUS(EXPAR_ERR_PEER, calls_find(group->rank ? "ll dispatch's hook" : "combine")->make(&v));
    CHECK_TEXT("a deadlock");
    if (!heard_of_it())
        CHECK_TEXT("rank 0 is in expar_ep_combine: ", "on buffer 1",
                   "in expar_ll_dispatch: low-latency dispatch: counts", "on buffer 3", "waiting for rank 0");
    stay(group, s);
    group->boot->timeout_ms = RANKS_TIMEOUT_MS;
    CHECK_OK(expar_group_barrier(group)); /* the group is sound, and buffers are replaced */
    if (calls_replace(&v)) {
        CHECK_OK(calls_find("ll dispatch")->make(&v));
        CHECK_OK(calls_find("dispatch")->make(&v));
    }
    calls_close(&v);
}

/* A call of one kind on rank 0, of the other kind on the others: each kind has its own message headers. */
static void in_two_kinds(expar_group *group, void *shared)
{
    scene *s = shared;
    calls_view v;
    if (!calls_open(&v, group, s->rows)) return;
    set_timeout(&v);
    CHECK_STATUS(EXPAR_ERR_PEER, calls_find(group->rank ? "ll combine" : "ll dispatch")->make(&v));
    CHECK_TEXT("a deadlock");
    if (!heard_of_it())
        CHECK_TEXT("rank 0 is in expar_ll_dispatch: ", "in expar_ll_combine: ", "on buffer 3", "waiting for rank 0");
    stay(group, s);
    group->boot->timeout_ms = RANKS_TIMEOUT_MS;
    CHECK_OK(expar_group_barrier(group));
    if (calls_replace(&v)) CHECK_OK(calls_find("ll combine")->make(&v));
    calls_close(&v);
}

static void run_with_rows(ranks_body body)
{
    if (!calls_have_rows()) skip();
    calls_rows rows = calls_rows_make();
    run_scene(CALLS_RANKS, body, &(scene){.rows = &rows});
    calls_rows_free(&rows);
}

static void test_two_buffers(void **state)
{
    (void)state;
    run_with_rows(in_two_buffers);
}

static void test_three_calls(void **state)
{
    (void)state;
    run_with_rows(in_three_calls);
}

static void test_both_modes(void **state)
{
    (void)state;
    run_with_rows(in_both_modes);
}

static void test_two_kinds(void **state)
{
    (void)state;
    run_with_rows(in_two_kinds);
}

static void test_two_calls_of_a_buffer(void **state)
{
    (void)state;
    run_with_rows(in_two_calls_of_a_buffer);
}

/* ---- late limits ------------------------------------------------------------------------------------------------- */

#define LIMIT_MS 150

typedef struct limiter {
    pthread_t thread;
    expar_group *group;
    scene *s;
} limiter;

/* Only once all wait for the late one is nobody else late. */
static void *set_limit(void *argument)
{
    const limiter *self = argument;
    await_count(&self->s->waiting, 1);
    self->group->boot->late_limit_ms = LIMIT_MS;
    return NULL;
}

static void limit(expar_group *group, void *shared)
{
    scene *s = shared;
    const bool late = group->rank == CALLS_LATE;
    limiter l = {.group = group, .s = s};
    calls_view v;
    if (!calls_open(&v, group, s->rows)) return;
    if (late) {
        calls_await_waiting(group, CALLS_RANKS - 1, 0);
        atomic_store(&s->waiting, 1);
    } else {
        if (pthread_create(&l.thread, NULL, set_limit, &l)) abort();
        CHECK_STATUS(s->call->kind == CALLS_END ? EXPAR_OK : EXPAR_ERR_PEER, s->call->make(&v));
        if (s->call->kind != CALLS_END) CHECK_TEXT("the late limit");
        if (strcmp(s->call->name, "lock") == 0) CHECK_TEXT("expar_lock_set: after rank ");
        if (s->call->kind == CALLS_OPEN) /* who will change a word is not known, so all are told of */
            CHECK_TEXT("no rank is silent", "rank 2 is waiting for no rank; it last called ", "of the heap holds ",
                       ", waited for ", ": any rank may change it");
        else if (s->call->kind != CALLS_END && !heard_of_it())
            CHECK_TEXT("rank 2 is alive but has not come to this call: it is waiting for no rank; it last called ");
        pthread_join(l.thread, NULL);
    }
    stay(group, s);
    calls_close(&v);
}

static void test_late_limits(void **state)
{
    (void)state;
    calls_rows rows = calls_rows_make();
    const bool have_rows = calls_have_rows();
    for (int32_t i = 0; i < (have_rows ? calls_count : calls_count_without_rows); i++)
        if (calls_is_of_today(i))
            run_scene(CALLS_RANKS, limit, &(scene){.rows = have_rows ? &rows : NULL, .call = &calls_all[i]});
    calls_rows_free(&rows);
}

/* ---- one that does not come -------------------------------------------------------------------------------------- */

static void reject(expar_group *group, void *shared)
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

static void test_who_rejects_is_not_waited_for(void **state)
{
    (void)state;
    kind_run((ranks_plan){.heap_bytes = 4 << 20}, 2, reject);
}

/* The first to come to a broadcast, its root, does not wait there for the others, which may still write what they have
   reduced before. */
static expar_status broadcast_and_sync(const calls_view *v)
{
    const expar_status status = expar_broadcast(v->world, &v->b->dest[1], v->b->source, 8, 0);
    return status == EXPAR_OK ? expar_team_sync(v->world) : status;
}

static expar_status meet(const calls_view *v, int lap)
{
    if (lap == 0) return expar_group_barrier(v->group);
    if (lap == 1) return expar_team_sync(v->world);
    if (lap == 2) return expar_free(v->group, v->spare);
    return lap == 3 ? expar_sum_reduce_u64(v->world, v->b->dest, v->b->source, 1) : broadcast_and_sync(v);
}

/* All are refused one call, and so come to the next one, however late. */
static void rejected_by_all(expar_group *group, void *shared)
{
    scene *s = shared;
    calls_view v;
    if (!calls_open(&v, group, NULL)) return;
    group->boot->timeout_ms = TIMEOUT_MS;
    for (int lap = 0; lap < 5; lap++) {
        if (lap % 2 == 0) CHECK_STATUS(EXPAR_ERR_NULL, expar_group_broadcast(group, NULL, 1, 0));
        if (lap != 2) CHECK_STATUS(EXPAR_ERR_RANGE, expar_broadcast(v.world, v.b->dest, v.b->source, 8, 2));
        if (group->rank == 1) {
            await_count(&s->ended, lap); /* what the other one waits in is of this round */
            calls_await_waiting(group, 1, TIMEOUT_MS * INT64_C(1000000));
        }
        CHECK_OK(meet(&v, lap));
        if (group->rank == 0) atomic_fetch_add(&s->ended, 1);
    }
}

static void test_who_was_rejected_may_be_late(void **state)
{
    (void)state;
    run_scene(2, rejected_by_all, &(scene){0});
}

/* ---- formed teams, which share a channel ------------------------------------------------------------------------- */

/* Ranks 0 and 1, and 1 and 2; NULL where this rank is no member. */
typedef struct formed_pairs {
    calls_view v;
    expar_team *low, *high;
} formed_pairs;

static bool form_pairs(formed_pairs *p, expar_group *group)
{
    if (!calls_open(&p->v, group, NULL)) return false;
    group->boot->timeout_ms = TIMEOUT_MS;
    p->low = p->high = NULL;
    return (group->rank == 2 || CHECK_OK(expar_team_form(group, 0, 1, 2, &p->low))) &&
           (group->rank == 0 || CHECK_OK(expar_team_form(group, 1, 1, 2, &p->high)));
}

static void reject_low(const formed_pairs *p)
{
    CHECK_STATUS(EXPAR_ERR_RANGE, expar_broadcast(p->low, p->v.b->dest, p->v.b->source, 8, 2));
}

/* Both of the low pair are refused the same calls, between which one of them meets another rank: it waits for its mate,
   however late. */
static void rejected_in_pairs(expar_group *group, void *shared)
{
    scene *s = shared;
    formed_pairs p;
    if (!form_pairs(&p, group)) return;
    if (p.low) reject_low(&p);
    if (p.high) CHECK_OK(expar_team_sync(p.high));
    if (p.low) reject_low(&p);
    if (group->rank == 0) {
        const boot_topic in_low = team_topic(p.low);
        kind_await_waiting(group, &in_low, 1, TIMEOUT_MS * INT64_C(1000000));
    }
    if (p.low) CHECK_OK(expar_team_sync(p.low));
    stay(group, s);
}

static void test_who_was_rejected_in_a_formed_team_may_be_late(void **state)
{
    (void)state;
    run_scene(3, rejected_in_pairs, &(scene){0});
}

/* Rank 1 is refused a call that rank 0 is in, and goes on with rank 2. */
static void rejected_by_one_of_a_pair(expar_group *group, void *shared)
{
    scene *s = shared;
    formed_pairs p;
    if (!form_pairs(&p, group)) return;
    if (group->rank == 1) reject_low(&p);
    if (p.high) CHECK_OK(expar_team_sync(p.high));
    atomic_fetch_add(&s->waiting, group->rank > 0);
    if (group->rank == 0) {
        await_count(&s->waiting, 2);
        CHECK_STATUS(EXPAR_ERR_PEER, expar_team_sync(p.low));
        CHECK_TEXT("rank 1 does not come any more", "EXPAR_ERR_RANGE", "root 2");
    }
    stay(group, s);
}

static void test_who_rejects_in_a_formed_team_is_not_waited_for(void **state)
{
    (void)state;
    run_scene(3, rejected_by_one_of_a_pair, &(scene){0});
}

/* ---- collectives over the heaps ---------------------------------------------------------------------------------- */

/* Each with one argument that does not do where `wrong` is set. */
static expar_status wrong_strides(const calls_view *v, bool wrong)
{
    return expar_alltoalls(v->world, v->b->dest, v->b->source, wrong ? 0 : 1, 1, 8, 2);
}

static expar_status wrong_count(const calls_view *v, bool wrong)
{
    return expar_sum_reduce_u64(v->world, v->b->dest, v->b->source, wrong ? SIZE_MAX / 4 : 2);
}

static void keep_first(void *into, const void *from, size_t count)
{
    (void)into;
    (void)from;
    (void)count;
}

static expar_status wrong_function(const calls_view *v, bool wrong)
{
    return expar_reduce(v->world, v->b->dest, v->b->source, 2, 8, wrong ? NULL : keep_first);
}

static expar_status wrong_members(const calls_view *v, bool wrong)
{
    expar_team *made;
    return expar_team_split_strided(v->world, 0, 1, wrong ? 3 : 2, NULL, &made);
}

static expar_status wrong_range(const calls_view *v, bool wrong)
{
    expar_team *rows, *columns;
    return expar_team_split_2d(v->world, wrong ? 0 : 2, NULL, NULL, &rows, &columns);
}

typedef struct rejected_call {
    expar_status (*make)(const calls_view *v, bool wrong);
    const char *why;
} rejected_call;

static void reject_over_heaps(expar_group *group, void *shared)
{
    const rejected_call *call = shared;
    calls_view v;
    if (!calls_open(&v, group, NULL)) return;
    const expar_status status = call->make(&v, group->rank == 1);
    CHECK(group->rank == 1 ? status != EXPAR_OK && status != EXPAR_ERR_PEER : status == EXPAR_ERR_PEER, "%s",
          expar_last_error());
    CHECK_TEXT(call->why);
    if (group->rank != 1) CHECK_TEXT("rank 1 does not come any more");
    while (group->rank == 1 && sym_check(group->sym, "test") == EXPAR_OK) /* until the other one has left */
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
}

static void test_who_rejects_a_collective_is_not_waited_for(void **state)
{
    (void)state;
    static const rejected_call calls[] = {{wrong_strides, "dest_stride 0"},
                                          {wrong_count, "count 4611686018427387903"},
                                          {wrong_function, "combine is NULL"},
                                          {wrong_members, "size 3, expected 1 to 2"},
                                          {wrong_range, "x_range 0"}};
    ranks_plan plan = {.kind = kind_of_ranks, .size = 2, .heap_bytes = 4 << 20};
    plan.ranks_per_node = kind_ranks_per_node(&plan);
    for (size_t i = 0; i < ARRAY_LENGTH(calls); i++)
        assert_true(ranks_run(&plan, reject_over_heaps, (void *)(uintptr_t)&calls[i]));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_calls),
        cmocka_unit_test(test_circle_of_three),
        cmocka_unit_test(test_two_buffers),
        cmocka_unit_test(test_three_calls),
        cmocka_unit_test(test_two_calls_of_a_buffer),
        cmocka_unit_test(test_both_modes),
        cmocka_unit_test(test_two_kinds),
        cmocka_unit_test(test_late_limits),
        cmocka_unit_test(test_who_rejects_is_not_waited_for),
        cmocka_unit_test(test_who_was_rejected_may_be_late),
        cmocka_unit_test(test_who_was_rejected_in_a_formed_team_may_be_late),
        cmocka_unit_test(test_who_rejects_in_a_formed_team_is_not_waited_for),
        cmocka_unit_test(test_who_rejects_a_collective_is_not_waited_for),
    };
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

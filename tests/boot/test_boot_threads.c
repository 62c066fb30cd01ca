/* SPDX-License-Identifier: Apache-2.0 */
/* Operations among ranks that are threads of one process. */
#include "boot/collectives.h"
#include "boot/squad.h"
#include "boot/unit.h"

#include <stdatomic.h>
#include <string.h>

#define LONG_MS 60000

static expar_status all_collectives(boot *group, void *context)
{
    (void)context;
    int fds[CREW_MAX];
    BODY_CHECK(group->threads && strcmp(group->ops->name, "threads") == 0);
    BODY_OK(collectives_check_all(group));
    BODY_OK(collectives_check_errors(group));
    BODY_CHECK(group->ops->exchange_fds(group, 0, fds) == EXPAR_ERR_UNSUPPORTED);
    group->ops->leave(group, true);
    return EXPAR_OK;
}

static void collectives_of_any_size(void **state)
{
    (void)state;
    static const int32_t sizes[] = {1, 2, 3, 8};
    for (size_t i = 0; i < ARRAY_LENGTH(sizes); i++) {
        squad_rank ranks[CREW_MAX];
        squad_run(ranks, sizes[i], LONG_MS, all_collectives, NULL);
        squad_assert_ok(ranks, sizes[i]);
    }
}

static void bad_arguments_are_rejected(void **state)
{
    (void)state;
    boot *groups[1] = {NULL};
    assert_int_equal(boot_join_threads(0, LONG_MS, groups), EXPAR_ERR_RANGE);
    assert_int_equal(boot_join_threads(1 << 20, LONG_MS, groups), EXPAR_ERR_RANGE);
    assert_int_equal(boot_join_threads(1, 0, groups), EXPAR_ERR_RANGE);
    assert_null(groups[0]);
}

/* ---- somebody does not come -------------------------------------------------------------------------------------- */

enum { LATE_RANKS = 3 };

typedef struct late_scene {
    boot *_Atomic groups[LATE_RANKS]; /* of those who wait; written by them, read by the late one */
    atomic_int given_up;              /* ranks; raised by each once */
    atomic_bool limited;              /* the late one has set the others' limits, and touches their groups no more */
} late_scene;

/* Until it has looked in vain: or the other one would take it for late, too. */
static void await_waiting(boot *group, int32_t rank)
{
    const boot_topic barrier = {.kind = BOOT_KIND_CONTROL, .number = 1};
    boot_answer answers[LATE_RANKS] = {{0}};
    while (!answers[rank].waits || answers[rank].waited_ns == 0) {
        answers[rank].asked = true;
        group->ops->ask(group, &barrier, answers, 0);
        sched_yield();
    }
}

/* Rank 1 stays away until the others have given up. Their limit begins when both wait. */
static expar_status one_is_late(boot *group, void *context)
{
    late_scene *scene = context;
    atomic_store(&scene->groups[group->rank], group);
    if (group->rank == 1) {
        for (int32_t r = 0; r < group->size; r += 2)
            await_waiting(group, r);
        for (int32_t r = 0; r < group->size; r += 2)
            atomic_load(&scene->groups[r])->late_limit_ms = 100;
        atomic_store(&scene->limited, true);
        while (atomic_load(&scene->given_up) < group->size - 1)
            sched_yield();
    }
    expar_status status = group->ops->barrier(group);
    atomic_fetch_add(&scene->given_up, 1);
    BODY_CHECK(status == EXPAR_ERR_PEER);
    BODY_CHECK(strstr(expar_last_error(), "waiting for rank 1; rank 1 is alive but has not come"));
    BODY_CHECK(group->ops->barrier(group) == EXPAR_ERR_PEER);
    while (!atomic_load(&scene->limited))
        sched_yield();
    group->ops->leave(group, false);
    return EXPAR_OK;
}

static void late_rank_is_named(void **state)
{
    (void)state;
    squad_rank ranks[CREW_MAX];
    late_scene scene = {.given_up = 0};
    squad_run(ranks, LATE_RANKS, LONG_MS, one_is_late, &scene);
    squad_assert_ok(ranks, LATE_RANKS);
}

typedef struct gone_note {
    atomic_int count;
    _Atomic int32_t rank;
    atomic_bool clean;
} gone_note;

static void note_gone(void *context, int32_t rank, bool clean)
{
    gone_note *note = context;
    atomic_store(&note->rank, rank);
    atomic_store(&note->clean, clean);
    atomic_fetch_add(&note->count, 1);
}

static expar_status one_leaves(boot *group, void *context)
{
    (void)context;
    gone_note note = {0};
    BODY_OK(group->ops->watch(group, note_gone, &note));
    BODY_CHECK(group->ops->watch(group, note_gone, &note) == EXPAR_ERR_STATE);
    BODY_OK(group->ops->barrier(group));
    if (group->rank != 2) {
        BODY_CHECK(group->ops->barrier(group) == EXPAR_ERR_PEER);
        BODY_CHECK(strstr(expar_last_error(), "rank 2 has left"));
        while (atomic_load(&note.count) == 0)
            sched_yield();
        BODY_CHECK(atomic_load(&note.rank) == 2 || atomic_load(&note.count) > 1);
        BODY_CHECK(atomic_load(&note.clean));
    }
    group->ops->leave(group, false);
    return EXPAR_OK;
}

static void leaving_is_seen(void **state)
{
    (void)state;
    squad_rank ranks[CREW_MAX];
    squad_run(ranks, 3, LONG_MS, one_leaves, NULL);
    squad_assert_ok(ranks, 3);
}

/* ---- abort ------------------------------------------------------------------------------------------------------- */

static expar_status wait_in_barrier(boot *group, void *context)
{
    atomic_bool *leave = context;
    if (group->rank == 0) {
        expar_status status = group->ops->barrier(group);
        BODY_CHECK(status == EXPAR_ERR_ABORTED);
        BODY_CHECK(group->ops->barrier(group) == EXPAR_ERR_ABORTED);
        atomic_store(leave, true);
    } else {
        while (!atomic_load(leave))
            sched_yield();
    }
    group->ops->leave(group, false);
    return EXPAR_OK;
}

static void abort_ends_a_wait(void **state)
{
    (void)state;
    boot *groups[2];
    squad_rank ranks[2];
    atomic_bool leave = false;
    assert_int_equal(boot_join_threads(2, LONG_MS, groups), EXPAR_OK);
    squad_start(&ranks[0], groups[0], wait_in_barrier, &leave);
    groups[0]->ops->abort(groups[0]);
    squad_start(&ranks[1], groups[1], wait_in_barrier, &leave);
    pthread_join(ranks[0].thread, NULL);
    pthread_join(ranks[1].thread, NULL);
    squad_assert_ok(ranks, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_of_any_size), cmocka_unit_test(bad_arguments_are_rejected),
        cmocka_unit_test(late_rank_is_named),      cmocka_unit_test(leaving_is_seen),
        cmocka_unit_test(abort_ends_a_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

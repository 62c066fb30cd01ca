/* SPDX-License-Identifier: Apache-2.0 */
/* A group that stands loses a rank: by death, by leaving, by silence. */
#include "boot/collectives.h"
#include "boot/crew.h"
#include "boot/unit.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SIZE 4

/* What the monitor reported. */
typedef struct gone_note {
    atomic_int counts[SIZE];
    atomic_bool clean[SIZE];
} gone_note;

static void note_gone(void *context, int32_t rank, bool clean)
{
    gone_note *note = context;
    atomic_store(&note->clean[rank], clean);
    atomic_fetch_add(&note->counts[rank], 1);
}

static void await_gone(gone_note *note, int32_t rank)
{
    while (atomic_load(&note->counts[rank]) == 0)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static expar_status join(int32_t rank, const expar_unique_id *id, boot **out)
{
    boot_request request = crew_request(id, rank, SIZE);
    return boot_join_sockets(&request, out);
}

static void run_ok(crew_body body)
{
    expar_unique_id id;
    assert_int_equal(expar_unique_id_create(&id), EXPAR_OK);
    crew_run_ok(SIZE, body, &id);
    assert_int_equal(expar_unique_id_retire(&id), EXPAR_OK);
}

/* ---- the monitor ----------------------------------------------------------------------------------------------------
 */

/* Rank 2 dies; the others see it without touching the group, and it is no one else. */
static expar_status see_a_death(int32_t rank, void *context)
{
    boot *group;
    gone_note note = {0};
    BODY_OK(join(rank, context, &group));
    BODY_OK(group->ops->watch(group, note_gone, &note));
    BODY_CHECK(group->ops->watch(group, note_gone, &note) == EXPAR_ERR_STATE);
    BODY_OK(collectives_check_size(group, 1000));
    if (rank == 2) raise(SIGKILL);
    await_gone(&note, 2);
    BODY_CHECK(!atomic_load(&note.clean[2]));
    /* The survivors still have each other: rank 0 is no server, and its own sockets stand. */
    BODY_CHECK(group->ops->barrier(group) == EXPAR_ERR_PEER);
    BODY_CHECK(strstr(expar_last_error(), "rank 2 (pid ") && strstr(expar_last_error(), "died"));
    BODY_CHECK(group->ops->barrier(group) == EXPAR_ERR_PEER);
    BODY_CHECK(strstr(expar_last_error(), "rank 2 (pid "));
    BODY_CHECK(atomic_load(&note.counts[2]) == 1);
    group->ops->leave(group, false);
    return EXPAR_OK;
}

static void death_is_seen(void **state)
{
    (void)state;
    crew ranks;
    expar_unique_id id;
    assert_int_equal(expar_unique_id_create(&id), EXPAR_OK);
    crew_start(&ranks, SIZE, see_a_death, &id);
    crew_finish(&ranks);
    for (int32_t rank = 0; rank < SIZE; rank++) {
        if (rank != 2) crew_assert_error(&ranks, rank, EXPAR_OK, "");
    }
    assert_true(WIFSIGNALED(ranks.outcomes[2].wait_status));
    assert_int_equal(expar_unique_id_retire(&id), EXPAR_OK);
}

/* Rank 1 leaves by itself: a good-bye, no death. */
static expar_status see_a_leave(int32_t rank, void *context)
{
    boot *group;
    gone_note note = {0};
    BODY_OK(join(rank, context, &group));
    BODY_OK(group->ops->watch(group, note_gone, &note));
    BODY_OK(group->ops->barrier(group));
    if (rank != 1) {
        await_gone(&note, 1);
        BODY_CHECK(atomic_load(&note.clean[1]));
        BODY_CHECK(group->ops->barrier(group) == EXPAR_ERR_PEER);
        BODY_CHECK(strstr(expar_last_error(), "has left the group"));
    }
    group->ops->leave(group, false);
    return EXPAR_OK;
}

static void leaving_is_seen(void **state)
{
    (void)state;
    run_ok(see_a_leave);
}

/* A sound end: no rank is ever reported, though all go at different moments. */
static expar_status leave_in_order(int32_t rank, void *context)
{
    boot *group;
    gone_note note = {0};
    BODY_OK(join(rank, context, &group));
    BODY_OK(group->ops->watch(group, note_gone, &note));
    nanosleep(&(struct timespec){.tv_nsec = rank * 10000000}, NULL);
    group->ops->leave(group, true);
    for (int32_t peer = 0; peer < SIZE; peer++)
        BODY_CHECK(atomic_load(&note.counts[peer]) == 0);
    return EXPAR_OK;
}

static void sound_end_is_silent(void **state)
{
    (void)state;
    run_ok(leave_in_order);
}

/* Data that waits unread before the good-bye neither wakes the monitor nor hides the good-bye. */
static expar_status leave_behind_data(int32_t rank, void *context)
{
    boot *group;
    gone_note note = {0};
    unsigned char data[64] = {0}, all[64 * SIZE];
    BODY_OK(join(rank, context, &group));
    BODY_OK(group->ops->watch(group, note_gone, &note));
    BODY_OK(group->ops->barrier(group));
    if (rank == 0) {
        await_gone(&note, 1);
        BODY_CHECK(atomic_load(&note.clean[1]));
    } else {
        group->timeout_ms = 200;
        BODY_CHECK(group->ops->allgather(group, data, all, sizeof data) == EXPAR_ERR_PEER);
    }
    group->ops->leave(group, false);
    return EXPAR_OK;
}

static void data_hides_no_goodbye(void **state)
{
    (void)state;
    run_ok(leave_behind_data);
}

/* As above with descriptors that nobody takes: a peek at the socket ends behind the first. */
static expar_status leave_behind_descriptors(int32_t rank, void *context)
{
    boot *group;
    gone_note note = {0};
    int fds[SIZE];
    BODY_OK(join(rank, context, &group));
    BODY_OK(group->ops->watch(group, note_gone, &note));
    BODY_OK(group->ops->barrier(group));
    if (rank == 0) {
        await_gone(&note, 1);
        BODY_CHECK(atomic_load(&note.clean[1]));
    } else {
        group->timeout_ms = 200;
        BODY_CHECK(group->ops->exchange_fds(group, STDERR_FILENO, fds) == EXPAR_ERR_PEER);
    }
    group->ops->leave(group, false);
    return EXPAR_OK;
}

static void descriptors_hide_no_goodbye(void **state)
{
    (void)state;
    run_ok(leave_behind_descriptors);
}

/* ---- in the middle of a collective ----------------------------------------------------------------------------------
 */

/* Rank 3 is in the middle of a large allgather with the others when it dies. */
static expar_status die_in_collective(int32_t rank, void *context)
{
    static unsigned char mine[EXPAR_CONTROL_MAX_BYTES], all[SIZE * EXPAR_CONTROL_MAX_BYTES];
    boot *group;
    expar_status status;
    BODY_OK(join(rank, context, &group));
    if (rank == 3) alarm(1); /* SIGALRM kills */
    do {
        status = group->ops->allgather(group, mine, all, sizeof mine);
    } while (status == EXPAR_OK);
    if (status != EXPAR_ERR_PEER || !strstr(expar_last_error(), "rank 3 (pid ") || !strstr(expar_last_error(), "died"))
        return error_prefix(EXPAR_ERR_STATE, "expected the death of rank 3");
    group->ops->leave(group, false);
    return EXPAR_OK;
}

static void death_in_a_collective(void **state)
{
    (void)state;
    crew ranks;
    expar_unique_id id;
    assert_int_equal(expar_unique_id_create(&id), EXPAR_OK);
    crew_start(&ranks, SIZE, die_in_collective, &id);
    crew_finish(&ranks);
    for (int32_t rank = 0; rank < 3; rank++)
        crew_assert_error(&ranks, rank, EXPAR_OK, "");
    assert_true(WIFSIGNALED(ranks.outcomes[3].wait_status));
    assert_int_equal(expar_unique_id_retire(&id), EXPAR_OK);
}

/* Rank 0 stops; the others' time-outs name it. */
static expar_status fall_silent(int32_t rank, void *context)
{
    boot *group;
    BODY_OK(join(rank, context, &group));
    BODY_OK(group->ops->barrier(group));
    if (rank == 0) raise(SIGSTOP);
    group->timeout_ms = 300;
    BODY_CHECK(group->ops->barrier(group) == EXPAR_ERR_PEER);
    BODY_CHECK(strstr(expar_last_error(), "time-out after 300 ms; still awaited: rank 0"));
    group->ops->leave(group, false);
    return EXPAR_OK;
}

static void silence_is_named(void **state)
{
    (void)state;
    crew ranks;
    expar_unique_id id;
    int status;
    assert_int_equal(expar_unique_id_create(&id), EXPAR_OK);
    crew_start(&ranks, SIZE, fall_silent, &id);
    assert_int_equal(waitpid(ranks.pids[0], &status, WUNTRACED), ranks.pids[0]);
    assert_true(WIFSTOPPED(status));
    for (int32_t rank = 1; rank < SIZE; rank++) {
        siginfo_t info;
        assert_int_equal(waitid(P_PID, (id_t)ranks.pids[rank], &info, WEXITED | WNOWAIT), 0);
    }
    kill(ranks.pids[0], SIGKILL);
    crew_finish(&ranks);
    for (int32_t rank = 1; rank < SIZE; rank++)
        crew_assert_error(&ranks, rank, EXPAR_OK, "");
    assert_int_equal(expar_unique_id_retire(&id), EXPAR_OK);
}

/* ---- abort ----------------------------------------------------------------------------------------------------------
 */

static void *abort_soon(void *argument)
{
    boot *group = argument;
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    group->ops->abort(group);
    return NULL;
}

/* Rank 0 waits for somebody who will not come until rank 0 is gone. */
static expar_status abort_a_wait(int32_t rank, void *context)
{
    boot *group;
    gone_note note = {0};
    BODY_OK(join(rank, context, &group));
    BODY_OK(group->ops->watch(group, note_gone, &note));
    if (rank == 0) {
        pthread_t thread;
        BODY_CHECK(pthread_create(&thread, NULL, abort_soon, group) == 0);
        BODY_CHECK(group->ops->barrier(group) == EXPAR_ERR_ABORTED);
        pthread_join(thread, NULL);
        BODY_CHECK(group->ops->barrier(group) == EXPAR_ERR_ABORTED);
    } else {
        await_gone(&note, 0);
        BODY_CHECK(atomic_load(&note.clean[0]));
    }
    group->ops->leave(group, false);
    return EXPAR_OK;
}

static void abort_ends_a_wait(void **state)
{
    (void)state;
    run_ok(abort_a_wait);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(death_is_seen),
        cmocka_unit_test(leaving_is_seen),
        cmocka_unit_test(sound_end_is_silent),
        cmocka_unit_test(data_hides_no_goodbye),
        cmocka_unit_test(descriptors_hide_no_goodbye),
        cmocka_unit_test(death_in_a_collective),
        cmocka_unit_test(silence_is_named),
        cmocka_unit_test(abort_ends_a_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

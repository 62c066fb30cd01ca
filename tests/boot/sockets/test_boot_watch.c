/* SPDX-License-Identifier: Apache-2.0 */
/* A group that stands loses a rank: by death, by leaving, by silence. */
#include "boot/collectives.h"
#include "boot/crew.h"
#include "boot/sockets/sockets.h"
#include "boot/unit.h"
#include "boot/wire/wire.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SIZE 4

/* The reports of the monitor. */
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

/* Ranks that have seen all they had to; in memory that all share. */
static atomic_int *done;

/* Waits for all but the lost rank. No rank leaves before all are done; otherwise a slow rank would see it leave
   instead. */
static void await_others(void)
{
    int64_t deadline_ns = clock_ns() + (int64_t)20 * 1000 * 1000 * 1000;
    atomic_fetch_add(done, 1);
    while (atomic_load(done) < SIZE - 1 && clock_ns() < deadline_ns)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static expar_status join(int32_t rank, const expar_unique_id *id, boot **out)
{
    boot_request request = crew_request(id, rank, SIZE);
    return boot_join_sockets(&request, out);
}

static expar_status join_watching(int32_t rank, const expar_unique_id *id, gone_note *note, boot **out)
{
    BODY_OK(join(rank, id, out));
    return (*out)->ops->watch(*out, note_gone, note);
}

static void run_ok(crew_body body)
{
    expar_unique_id id;
    assert_int_equal(expar_unique_id_create(&id), EXPAR_OK);
    crew_run_ok(SIZE, body, &id);
    assert_int_equal(expar_unique_id_retire(&id), EXPAR_OK);
}

/* ---- the monitor ------------------------------------------------------------------------------------------------- */

/* Rank 2 dies; the others see it without touching the group, and it is no one else. */
static expar_status see_a_death(int32_t rank, void *context)
{
    boot *group;
    gone_note note = {0};
    BODY_OK(join_watching(rank, context, &note, &group));
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
    await_others();
    group->ops->leave(group, false);
    return EXPAR_OK;
}

static void death_is_seen(void **state)
{
    (void)state;
    crew ranks;
    expar_unique_id id;
    assert_int_equal(expar_unique_id_create(&id), EXPAR_OK);
    atomic_store(done, 0);
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
    BODY_OK(join_watching(rank, context, &note, &group));
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
    BODY_OK(join_watching(rank, context, &note, &group));
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

/* Rank 0 does not come to a collective in which the others leave. Unread data of it neither wakes the monitor nor hides
   the good-bye after it. */
static expar_status leave_behind(int32_t rank, const expar_unique_id *id, expar_status (*collective)(boot *group))
{
    boot *group;
    gone_note note = {0};
    BODY_OK(join_watching(rank, id, &note, &group));
    BODY_OK(group->ops->barrier(group));
    if (rank == 0) {
        await_gone(&note, 1);
        BODY_CHECK(atomic_load(&note.clean[1]));
    } else {
        group->late_limit_ms = 200;
        BODY_CHECK(collective(group) == EXPAR_ERR_PEER);
    }
    group->ops->leave(group, false);
    return EXPAR_OK;
}

static expar_status send_data(boot *group)
{
    unsigned char data[64] = {0}, all[64 * SIZE];
    return group->ops->allgather(group, data, all, sizeof data);
}

static expar_status leave_behind_data(int32_t rank, void *context)
{
    return leave_behind(rank, context, send_data);
}

static void data_hides_no_goodbye(void **state)
{
    (void)state;
    run_ok(leave_behind_data);
}

/* No rank takes these: a peek at the socket ends after the first. */
static expar_status send_descriptors(boot *group)
{
    int fds[SIZE];
    return group->ops->exchange_fds(group, STDERR_FILENO, fds);
}

static expar_status leave_behind_descriptors(int32_t rank, void *context)
{
    return leave_behind(rank, context, send_descriptors);
}

static void descriptors_hide_no_goodbye(void **state)
{
    (void)state;
    run_ok(leave_behind_descriptors);
}

/* ---- in the middle of a collective ------------------------------------------------------------------------------- */

/* Rank 3 is in the middle of a large allgather with the others when it dies. Who has all it needs of rank 3 for that
   one sees only that another, which has not, has left; and is told why. */
static expar_status die_in_collective(int32_t rank, void *context)
{
    static unsigned char mine[EXPAR_CONTROL_MAX_BYTES], all[SIZE * EXPAR_CONTROL_MAX_BYTES];
    boot *group;
    expar_status status;
    BODY_OK(join(rank, context, &group));
    BODY_OK(group->ops->barrier(group)); /* all are in */
    if (rank == 3) alarm(1);             /* SIGALRM kills */
    do {
        status = group->ops->allgather(group, mine, all, sizeof mine);
    } while (status == EXPAR_OK);
    group->ops->leave(group, false);
    return status;
}

static void death_in_a_collective(void **state)
{
    (void)state;
    crew ranks;
    expar_unique_id id;
    assert_int_equal(expar_unique_id_create(&id), EXPAR_OK);
    crew_start(&ranks, SIZE, die_in_collective, &id);
    crew_finish(&ranks);
    for (int32_t rank = 0; rank < 3; rank++) {
        crew_assert_error(&ranks, rank, EXPAR_ERR_PEER, "rank 3 (pid ");
        crew_assert_error(&ranks, rank, EXPAR_ERR_PEER, "died");
    }
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
    BODY_CHECK(strstr(expar_last_error(), "barrier: timed out after 3000 ms without an answer; silent: rank 0"));
    await_others();
    group->ops->leave(group, false);
    return EXPAR_OK;
}

/* Rank 0 stops itself in the body; the others end theirs well. */
static void stop_rank_0(crew_body body)
{
    crew ranks;
    expar_unique_id id;
    int status;
    assert_int_equal(expar_unique_id_create(&id), EXPAR_OK);
    atomic_store(done, 0);
    crew_start(&ranks, SIZE, body, &id);
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

static void silence_is_named(void **state)
{
    (void)state;
    stop_rank_0(fall_silent);
}

/* ---- asking ------------------------------------------------------------------------------------------------------ */

#define ANSWER_NS ((int64_t)30 * 1000 * 1000 * 1000)

static const boot_topic topic = {.kind = BOOT_KIND_TEAM, .object = 5};

/* Asks all others. */
static void ask_all(boot *group, boot_answer answers[SIZE], int64_t wait_ns)
{
    for (int32_t rank = 0; rank < SIZE; rank++)
        answers[rank] = (boot_answer){.asked = rank != group->rank};
    group->ops->ask(group, &topic, answers, wait_ns);
}

/* The same again and again until all have answered but `mute`, which stays silent. */
static void ask_until_all_but(boot *group, int32_t mute)
{
    boot_answer answers[SIZE];
    bool all;
    do {
        ask_all(group, answers, ANSWER_NS / 150);
        all = true;
        for (int32_t peer = 0; peer < SIZE; peer++)
            if (peer != group->rank) all &= answers[peer].came == (peer != mute);
    } while (!all);
}

/* Frames that wait unread, with a descriptor too, are in nobody's way, and no good-bye; and stay whole. */
static expar_status answer_beside_data(int32_t rank, void *context)
{
    boot *group;
    gone_note note = {0};
    boot_answer answers[SIZE];
    int fds[SIZE];
    BODY_OK(join_watching(rank, context, &note, &group));
    boot_wait wait;
    boot_wait_begin(&wait, group, &topic, "sum");
    boot_wait_for(&wait, (rank + 1) % SIZE);
    if (rank != 1)
        BODY_OK(boot_wait_look(&wait));
    else
        boot_note_ended(group, &topic, EXPAR_ERR_MEMORY, "no room");
    if (rank == 3) boot_note_blamed(group, 2);
    BODY_OK(group->ops->barrier(group));
    if (rank == 0) {
        for (int32_t peer = 1; peer < SIZE; peer++)
            BODY_CHECK(wire_wait(((boot_sockets *)group)->fds[peer], POLLIN, clock_ns() + ANSWER_NS));
        ask_all(group, answers, ANSWER_NS);
        for (int32_t peer = 1; peer < SIZE; peer++) {
            const boot_answer *one = &answers[peer];
            BODY_CHECK(one->came && one->blamed == (peer == 3 ? 2 : -1));
            if (peer == 1) {
                BODY_CHECK(!one->waits && one->ended == EXPAR_ERR_MEMORY && strcmp(one->reason, "no room") == 0);
            } else {
                BODY_CHECK(one->waits && one->rank == (peer + 1) % SIZE && one->ended == EXPAR_OK);
                BODY_CHECK(one->topic.kind == topic.kind && one->topic.object == topic.object);
                BODY_CHECK(strstr(one->doing, "in sum, waiting for rank "));
            }
        }
    }
    BODY_OK(group->ops->exchange_fds(group, STDERR_FILENO, fds));
    for (int32_t peer = 0; peer < SIZE; peer++) {
        if (peer != rank) close(fds[peer]);
        BODY_CHECK(atomic_load(&note.counts[peer]) == 0);
    }
    boot_wait_end(&wait);
    group->ops->leave(group, true);
    return EXPAR_OK;
}

static void answers_come_beside_data(void **state)
{
    (void)state;
    run_ok(answer_beside_data);
}

/* Noise on a line costs its sender the answers, and nobody anything else. */
static expar_status send_noise(int32_t rank, void *context)
{
    boot *group;
    gone_note note = {0};
    boot_answer answers[SIZE];
    BODY_OK(join_watching(rank, context, &note, &group));
    BODY_OK(group->ops->barrier(group));
    if (rank == 1) {
        unsigned char noise[256];
        size_t moved = 0;
        memset(noise, 0xa5, sizeof noise);
        BODY_CHECK(wire_push(((boot_sockets *)group)->lines[0], noise, sizeof noise, &moved) == WIRE_DONE);
        ask_until_all_but(group, 0);
    } else if (rank == 2) {
        ask_all(group, answers, ANSWER_NS);
        BODY_CHECK(answers[0].came && answers[1].came && answers[3].came);
    }
    BODY_OK(group->ops->barrier(group));
    group->ops->leave(group, true);
    return EXPAR_OK;
}

static void noise_gets_no_answer(void **state)
{
    (void)state;
    run_ok(send_noise);
}

/* A stopped rank gives no answer; the others do. */
static expar_status ask_the_stopped(int32_t rank, void *context)
{
    boot *group;
    gone_note note = {0};
    BODY_OK(join_watching(rank, context, &note, &group));
    BODY_OK(group->ops->barrier(group));
    if (rank == 0) raise(SIGSTOP);
    ask_until_all_but(group, 0);
    await_others(); /* a rank that has left gives no answer either */
    group->ops->leave(group, false);
    return EXPAR_OK;
}

static void stopped_gives_no_answer(void **state)
{
    (void)state;
    stop_rank_0(ask_the_stopped);
}

/* ---- abort ------------------------------------------------------------------------------------------------------- */

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
    BODY_OK(join_watching(rank, context, &note, &group));
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

static int share_done(void **state)
{
    (void)state;
    done = mmap(NULL, sizeof *done, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return done == MAP_FAILED;
}

static int unshare_done(void **state)
{
    (void)state;
    return munmap(done, sizeof *done);
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
        cmocka_unit_test(answers_come_beside_data),
        cmocka_unit_test(noise_gets_no_answer),
        cmocka_unit_test(stopped_gives_no_answer),
        cmocka_unit_test(abort_ends_a_wait),
    };
    return cmocka_run_group_tests(tests, share_done, unshare_done);
}

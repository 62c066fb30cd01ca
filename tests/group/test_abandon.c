/* SPDX-License-Identifier: Apache-2.0 */
/* A rank that abandons its group: in any state, from any thread, waiting for no rank; the others learn of it. */
#include "shmem/kind.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define RANKS      4
#define LEAVER     2
#define HEAP_BYTES ((size_t)4 << 20)

/* Ranks that know that the leaver has gone. Shared by all of them, processes too. */
static atomic_int *knowing;

static bool all_know(void)
{
    return atomic_load(knowing) >= RANKS - 1;
}

/* Nobody goes before the others know whose leaving it was: of two that are found to have left at once either may be
   told. */
static void wait_for_knowing(void)
{
    const int64_t deadline_ms = ranks_clock_ms() + RANKS_TIMEOUT_MS;
    while (!all_know() && ranks_clock_ms() < deadline_ms)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static void leave_knowing(expar_group *group)
{
    atomic_fetch_add(knowing, 1);
    wait_for_knowing();
    CHECK_OK(expar_group_abandon(group));
}

/* Bodies end the group on every rank: the others' collectives have failed by then. */
static void run(ranks_body body)
{
    atomic_store(knowing, 0);
    kind_run((ranks_plan){.heap_bytes = HEAP_BYTES, .ends_itself = true}, RANKS, body);
}

/* ---- the others learn -------------------------------------------------------------------------------------------- */

/* They wait for the leaver in collectives of every sort: over the control sockets, over the heaps, and in between. */
static void one_leaves(expar_group *group, void *shared)
{
    expar_status (*const *wait)(expar_group *) = shared;
    if (group->rank == LEAVER) {
        CHECK_OK(expar_group_abandon(group));
        return;
    }
    CHECK_STATUS(EXPAR_ERR_PEER, (*wait)(group));
    CHECK_TEXT("rank 2", "left the group");
    CHECK_STATUS(EXPAR_ERR_PEER, (*wait)(group));
    leave_knowing(group);
}

static expar_status wait_by_control(expar_group *group)
{
    return expar_group_barrier(group);
}

static expar_status wait_by_heap(expar_group *group)
{
    return expar_barrier_all(group);
}

static expar_status wait_by_memory(expar_group *group)
{
    void *block;
    return expar_malloc(group, 64, &block);
}

static void test_the_others_learn_who_has_gone(void **state)
{
    (void)state;
    static expar_status (*const waits[])(expar_group *) = {wait_by_control, wait_by_heap, wait_by_memory};
    for (size_t i = 0; i < sizeof waits / sizeof waits[0]; i++) {
        const ranks_plan plan = {.kind = kind_of_ranks,
                                 .size = RANKS,
                                 .ranks_per_node = kind_ranks_per_node(&(ranks_plan){.size = RANKS}),
                                 .heap_bytes = HEAP_BYTES,
                                 .ends_itself = true};
        atomic_store(knowing, 0);
        assert_true(ranks_run(&plan, one_leaves, (void *)(uintptr_t)&waits[i]));
        assert_true(all_know());
    }
}

/* All at once, in no order. */
static void all_leave(expar_group *group, void *shared)
{
    (void)shared;
    CHECK_OK(expar_group_abandon(group));
}

static void test_all_leave(void **state)
{
    (void)state;
    run(all_leave);
}

/* ---- twice, and after the end ------------------------------------------------------------------------------------ */

static void leave_again(expar_group *group, void *shared)
{
    (void)shared;
    int32_t rank = expar_group_rank(group);
    CHECK_OK(expar_group_abandon(group));
    CHECK_OK(expar_group_abandon(group));
    CHECK_STATUS(EXPAR_ERR_STATE, expar_group_destroy(group));
    CHECK_TEXT("expar_group_destroy", "destroyed or abandoned");
    CHECK_STATUS(EXPAR_ERR_STATE, expar_group_barrier(group));
    CHECK_STATUS(EXPAR_ERR_STATE, expar_group_abort(group));
    CHECK(expar_group_rank(group) == rank, "the rank was %d", (int)rank);
    CHECK_OK(expar_group_abandon(NULL));
}

static void test_twice_has_no_effect(void **state)
{
    (void)state;
    run(leave_again);
}

static void leave_after_the_end(expar_group *group, void *shared)
{
    (void)shared;
    CHECK_OK(expar_group_destroy(group));
    CHECK_OK(expar_group_abandon(group));
    CHECK_STATUS(EXPAR_ERR_STATE, expar_group_destroy(group));
}

static void test_after_the_end_it_has_no_effect(void **state)
{
    (void)state;
    run(leave_after_the_end);
}

/* ---- while a thread of this rank is in a call -------------------------------------------------------------------- */

typedef struct waiter {
    pthread_t thread;
    expar_group *group;
    atomic_int *began;
    expar_status (*wait)(expar_group *group);
    int32_t rank;
    expar_status ended;
    int64_t failures;
} waiter;

static void *wait_there(void *argument)
{
    waiter *self = argument;
    check_begin(self->rank);
    atomic_store(self->began, 1);
    self->ended = self->wait(self->group);
    self->failures = check_failures();
    return NULL;
}

static void waiter_start(waiter *self, expar_group *group, atomic_int *began, expar_status (*wait)(expar_group *))
{
    *self = (waiter){.group = group, .began = began, .wait = wait, .rank = expar_group_rank(group)};
    if (pthread_create(&self->thread, NULL, wait_there, self)) abort();
    while (!atomic_load(began))
        sched_yield();
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL); /* so that it mostly waits by now; any state will do */
}

/* Nobody else comes to what a thread of the leaver waits in; that ends there, as `ended`, or with EXPAR_ERR_STATE where
   it had not begun yet. */
static void leave_beside(expar_group *group, expar_status (*wait)(expar_group *group), expar_status ended)
{
    atomic_int began;
    waiter one;
    atomic_init(&began, 0);
    if (group->rank != LEAVER) {
        CHECK_STATUS(EXPAR_ERR_PEER, expar_barrier_all(group));
        CHECK_OK(expar_group_abandon(group));
        return;
    }
    waiter_start(&one, group, &began, wait);
    CHECK_OK(expar_group_abandon(group));
    pthread_join(one.thread, NULL);
    CHECK(one.ended == ended || one.ended == EXPAR_ERR_STATE, "the call ended with %s", expar_status_string(one.ended));
}

static void leave_beside_a_wait(expar_group *group, void *shared)
{
    (void)shared;
    leave_beside(group, wait_by_control, EXPAR_ERR_ABORTED);
}

static void test_a_call_of_another_thread_ends(void **state)
{
    (void)state;
    run(leave_beside_a_wait);
}

/* The last barrier, to which the others do not come. */
static void leave_beside_the_end(expar_group *group, void *shared)
{
    (void)shared;
    leave_beside(group, expar_group_destroy, EXPAR_OK);
}

static void test_a_destroy_of_another_thread_ends(void **state)
{
    (void)state;
    run(leave_beside_the_end);
}

/* From several threads at once: one does it, for the others it has no effect. */
static void leave_by_many(expar_group *group, void *shared)
{
    (void)shared;
    atomic_int began;
    waiter many[4];
    atomic_init(&began, 0);
    for (int i = 0; i < 4; i++) {
        many[i] = (waiter){.group = group, .began = &began, .wait = expar_group_abandon, .rank = group->rank};
        if (pthread_create(&many[i].thread, NULL, wait_there, &many[i])) abort();
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(many[i].thread, NULL);
        CHECK(many[i].ended == EXPAR_OK, "abandon gave %s", expar_status_string(many[i].ended));
    }
}

static void test_by_several_threads(void **state)
{
    (void)state;
    run(leave_by_many);
}

/* ---- children of fork -------------------------------------------------------------------------------------------- */

/* The child is no rank: what it does with the group disturbs nobody. */
static void child_leaves(expar_group *group, void *shared)
{
    (void)shared;
    pid_t child = fork();
    if (child == 0) _exit(expar_group_abandon(group) == EXPAR_OK && expar_group_abandon(group) == EXPAR_OK ? 0 : 1);
    CHECK_OK(expar_group_barrier(group));
    int status = child > 0 ? ranks_wait(child, ranks_clock_ms() + RANKS_TIMEOUT_MS, NULL) : -1;
    CHECK(status == 0, "the child ended with wait status %#x", (unsigned)status);
    CHECK_OK(expar_group_barrier(group));
    CHECK_OK(expar_barrier_all(group));
    CHECK_OK(expar_group_destroy(group));
}

static void test_a_child_of_fork_disturbs_nobody(void **state)
{
    (void)state;
    if (kind_of_ranks != RANKS_PROCESSES) skip();
    run(child_leaves);
}

/* As a handler of atexit has it, which runs in children that exit, too. */
static void child_destroys(expar_group *group, void *shared)
{
    (void)shared;
    pid_t child = fork();
    if (child == 0) {
        const bool rejected = expar_group_destroy(group) == EXPAR_ERR_STATE &&
                              strstr(expar_last_error(), "expar_group_destroy: this process, ") &&
                              strstr(expar_last_error(), "was forked by rank");
        _exit(rejected && expar_group_destroy(group) == EXPAR_ERR_STATE ? 0 : 1);
    }
    const int status = child > 0 ? ranks_wait(child, ranks_clock_ms() + RANKS_TIMEOUT_MS, NULL) : -1;
    CHECK(status == 0, "the child ended with wait status %#x", (unsigned)status);
    CHECK_OK(expar_group_barrier(group));
    CHECK_OK(expar_barrier_all(group));
    CHECK_OK(expar_group_destroy(group));
}

static void test_a_child_of_fork_destroys_nothing(void **state)
{
    (void)state;
    if (kind_of_ranks != RANKS_PROCESSES) skip();
    run(child_destroys);
}

/* Lives until the others know that its parent has gone. */
static _Noreturn void outlive_parent(expar_group *group, int ready)
{
    expar_group_abandon(group);
    close(ready);
    wait_for_knowing();
    _exit(EXIT_SUCCESS);
}

/* A child that lives on has no part in what tells the others that its parent is gone. */
static void child_lives_on(expar_group *group, void *shared)
{
    (void)shared;
    if (group->rank != LEAVER) {
        kind_set_timeout(group, RANKS_TIMEOUT_MS / 2);
        CHECK_STATUS(EXPAR_ERR_PEER, expar_barrier_all(group));
        CHECK_TEXT("rank 2 died");
        leave_knowing(group);
        return;
    }
    int ready[2];
    char byte;
    if (pipe(ready)) abort();
    if (fork() == 0) {
        close(ready[0]);
        outlive_parent(group, ready[1]);
    }
    close(ready[1]);
    CHECK(read(ready[0], &byte, 1) == 0, "the child said something");
    _exit(EXIT_SUCCESS);
}

static void test_a_child_does_not_keep_its_parent_alive(void **state)
{
    (void)state;
    if (kind_of_ranks != RANKS_PROCESSES) skip();
    run(child_lives_on);
    assert_true(all_know());
}

int main(int argc, char **argv)
{
    kind_read(argc, argv);
    knowing = mmap(NULL, sizeof *knowing, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (knowing == MAP_FAILED) abort();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_others_learn_who_has_gone),
        cmocka_unit_test(test_all_leave),
        cmocka_unit_test(test_twice_has_no_effect),
        cmocka_unit_test(test_after_the_end_it_has_no_effect),
        cmocka_unit_test(test_a_call_of_another_thread_ends),
        cmocka_unit_test(test_a_destroy_of_another_thread_ends),
        cmocka_unit_test(test_by_several_threads),
        cmocka_unit_test(test_a_child_of_fork_disturbs_nobody),
        cmocka_unit_test(test_a_child_of_fork_destroys_nothing),
        cmocka_unit_test(test_a_child_does_not_keep_its_parent_alive),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

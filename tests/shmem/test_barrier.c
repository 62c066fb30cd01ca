/* SPDX-License-Identifier: Apache-2.0 */
/* The barrier: nobody leaves before all have come, for every size, for large epochs, and across simulated nodes. */
#include "shmem/kind.h"

#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <time.h>

#define ROUNDS 500
/* Over a network, where a round takes ten times as long; the nights have all (EXPAR_TEST_ROUNDS). */
#define FAR_ROUNDS 100

static uint64_t num_rounds(const expar_group *group)
{
    if (netns_on()) return netns_rounds(ROUNDS);
    return group->sym->all_mapped || getenv("EXPAR_TEST_ROUNDS") ? ROUNDS : FAR_ROUNDS;
}

/* Everybody writes its round to everybody before the barrier, and must read all of them after it. */
static void rounds(expar_group *group, uint64_t first, uint64_t *marks)
{
    for (uint64_t round = first; round < first + num_rounds(group) && check_failures() == 0; round++) {
        for (int32_t pe = 0; pe < group->size; pe++)
            CHECK_OK(expar_put(group, &marks[group->rank], &round, sizeof round, pe));
        CHECK_OK(expar_barrier_all(group));
        for (int32_t from = 0; from < group->size; from++) {
            uint64_t seen = 0;
            CHECK_OK(expar_get(group, &seen, &marks[from], sizeof seen, group->rank));
            CHECK(seen == round || seen == round + 1, "round %llu: rank %d had %llu", (unsigned long long)round, from,
                  (unsigned long long)seen);
        }
    }
}

static void many_rounds(expar_group *group, void *shared)
{
    (void)shared;
    uint64_t *marks;
    CHECK_OK(expar_calloc(group, (size_t)group->size, sizeof *marks, (void **)&marks));
    rounds(group, 1, marks);
    CHECK_OK(expar_free(group, marks));
}

static void test_all_sizes(void **state)
{
    (void)state;
    for (int32_t size = 1; size <= 9; size += netns_on() ? 3 : 1)
        kind_run((ranks_plan){.heap_bytes = 4 << 20}, size, many_rounds);
}

/* As after that many barriers: the words are compared as 64 bits all along. */
static void far_epochs(expar_group *group, void *shared)
{
    (void)shared;
    static const uint64_t starts[] = {UINT32_MAX, INT64_MAX};
    uint64_t *marks;
    CHECK_OK(expar_calloc(group, (size_t)group->size, sizeof *marks, (void **)&marks));
    for (size_t i = 0; i < ARRAY_LENGTH(starts); i++) {
        CHECK_OK(expar_group_barrier(group)); /* not over the heap */
        group->sym->barrier_epoch = starts[i] - netns_rounds(100);
        rounds(group, 10000 * (i + 1), marks);
    }
    CHECK_OK(expar_free(group, marks));
}

static void test_far_epochs(void **state)
{
    (void)state;
    kind_run((ranks_plan){.heap_bytes = 4 << 20}, 5, far_epochs);
}

/* A rank reads in the mapped heaps of others who has come: on one node all missing ranks, on a node of two the other
   one. Elsewhere the error names the rank that should have told it. */
static const char *seen_missing(const expar_group *group)
{
    if (group->sym->all_mapped) return "1, 3";
    if (group->sym->some_mapped) return group->rank == 0 ? "rank 1" : "rank 3";
    return group->rank == 0 ? "rank 3" : "rank 1";
}

/* Ranks 1 and 3 do not come; the others hear exactly that, at once again on later calls, and can leave. */
static void some_stay_away(expar_group *group, void *shared)
{
    kind_watcher watcher;
    CHECK_OK(expar_barrier_all(group));
    if (group->rank % 2 == 1) {
        while (sym_check(group->sym, "test") == EXPAR_OK) /* until the others have left */
            nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
        return;
    }
    kind_watch_begin(&watcher, group, shared);
    CHECK_STATUS(EXPAR_ERR_PEER, expar_barrier_all(group));
    kind_watch_end(&watcher);
    if (group->sym->failure >> 32 == SYM_PEER_SILENT) { /* else another one was faster and has left already */
        CHECK_TEXT("expar_barrier_all", seen_missing(group));
        CHECK_STATUS(EXPAR_ERR_PEER, expar_barrier_all(group));
        CHECK_TEXT("did not come");
    }
}

static void test_silence_is_named(void **state)
{
    (void)state;
    kind_vigil *vigil = mmap(NULL, sizeof *vigil, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ranks_plan plan = {.kind = kind_of_ranks, .size = 4, .heap_bytes = 4 << 20};
    plan.ranks_per_node = kind_ranks_per_node(&plan);
    assert_true(vigil != MAP_FAILED);
    vigil->size = 2;
    assert_true(ranks_run(&plan, some_stay_away, vigil));
    munmap(vigil, sizeof *vigil);
}

/* For three thread ranks: rank 2's, written by it before it comes to the barrier, read by rank 0. */
static _Atomic(sym *) who_waits;

static uint64_t barrier_word_offset(int32_t word)
{
    return offsetof(sym_control, barrier) + (uint64_t)word * sizeof(uint64_t);
}

static void tell_rank_2(expar_group *group, int32_t word, uint64_t epoch)
{
    CHECK_OK(sym_word_set(group->sym, 2, barrier_word_offset(word), epoch));
}

/* Rank 2 tells this once it has heard of this rank. */
static void hear_rank_2(const expar_group *group, uint64_t epoch)
{
    const _Atomic uint64_t *word = sym_at(group->sym, group->rank, barrier_word_offset(1));
    while (atomic_load(word) < epoch)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* Until rank 2 knows that a rank has left, and then as long again as it may take to look. */
static void await_its_loss(void)
{
    const struct timespec step = {.tv_nsec = 20000000};
    sym *waiting = NULL;
    while (!(waiting = atomic_load(&who_waits)) || atomic_load(&waiting->failure) == 0)
        nanosleep(&step, NULL);
    nanosleep(&step, NULL);
}

/* Rank 1 is out of the barrier and leaves, rank 2 still waits there for rank 0's second word. The words of those two
   are simulated. */
static void one_leaves(expar_group *group, void *shared)
{
    (void)shared;
    const uint64_t epoch = group->sym->barrier_epoch + 1;
    if (group->rank == 2) {
        atomic_store(&who_waits, group->sym);
        CHECK_OK(expar_barrier_all(group));
        CHECK_STATUS(EXPAR_ERR_PEER, expar_barrier_all(group));
        CHECK_TEXT("rank 1 has left the group");
    } else if (group->rank == 1) {
        tell_rank_2(group, 0, epoch);
        hear_rank_2(group, epoch);
        CHECK_OK(expar_group_abort(group));
    } else {
        await_its_loss();
        tell_rank_2(group, 1, epoch);
    }
}

static void test_who_has_come_may_leave(void **state)
{
    (void)state;
    const ranks_plan plan = {.kind = RANKS_THREADS, .size = 3, .heap_bytes = 4 << 20};
    if (kind_of_ranks != RANKS_THREADS || getenv("EXPAR_TRANSPORTS")) skip();
    assert_true(ranks_run(&plan, one_leaves, NULL));
}

/* Where heaps are neither mapped nor reached by atomics the control sockets carry the barrier. */
static void across_nodes(expar_group *group, void *shared)
{
    (void)shared;
    CHECK(!group->sym->all_mapped, "all PEs are mapped although there are nodes");
    for (int round = 0; round < 20; round++)
        CHECK_OK(expar_barrier_all(group));
    CHECK(group->sym->barrier_epoch == 0, "the heap's barrier was used");
}

static void test_across_nodes(void **state)
{
    (void)state;
    const char *before = getenv("EXPAR_TRANSPORTS");
    setenv("EXPAR_TRANSPORTS", "p2p", 1);
    kind_run((ranks_plan){.heap_bytes = 4 << 20, .ranks_per_node = 2}, 4, across_nodes);
    if (before)
        setenv("EXPAR_TRANSPORTS", before, 1);
    else
        unsetenv("EXPAR_TRANSPORTS");
}

/* Words of the control page that so few ranks do not need. */
static uint64_t spare_word_offset(void)
{
    return barrier_word_offset(SYM_BARRIER_ROUNDS - 1);
}

static void await_spare_word(const expar_group *group)
{
    const _Atomic uint64_t *word = sym_at(group->sym, group->rank, spare_word_offset());
    while (atomic_load(word) == 0)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* Before rank 1 comes, something overwrites the word at rank 0 that it sets. Rank 0 must not take that for its coming,
   and rank 1 must not wait for rank 0 then. */
static void a_word_is_overwritten(expar_group *group, void *shared)
{
    const uint64_t *garbage = shared;
    CHECK_OK(expar_barrier_all(group));
    CHECK_OK(expar_group_barrier(group)); /* not over the heap */
    if (group->rank == 1) CHECK_OK(sym_word_set(group->sym, 0, barrier_word_offset(0), *garbage));
    CHECK_OK(expar_group_barrier(group));
    if (group->rank == 0) {
        CHECK_STATUS(EXPAR_ERR_PEER, expar_barrier_all(group));
        CHECK_TEXT("rank 1's word here", "has been overwritten");
        CHECK_STATUS(EXPAR_ERR_PEER, expar_barrier_all(group));
        CHECK_OK(sym_word_set(group->sym, 1, spare_word_offset(), 1));
        await_spare_word(group);
        return;
    }
    /* Rank 0 has told rank 1 of this barrier before it looked, so that one ends well, and the next one does not. */
    await_spare_word(group);
    CHECK_OK(expar_barrier_all(group));
    CHECK_STATUS(EXPAR_ERR_PEER, expar_barrier_all(group));
    CHECK_OK(sym_word_set(group->sym, 0, spare_word_offset(), 1));
}

static void test_overwritten_words(void **state)
{
    (void)state;
    uint64_t garbage[] = {UINT64_MAX, UINT64_C(0x5555555555555555), UINT64_C(1) << 33};
    for (size_t i = 0; i < ARRAY_LENGTH(garbage); i++) {
        ranks_plan plan = {.kind = kind_of_ranks, .size = 2, .heap_bytes = 4 << 20};
        plan.ranks_per_node = kind_ranks_per_node(&plan);
        assert_true(ranks_run(&plan, a_word_is_overwritten, &garbage[i]));
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_sizes),        cmocka_unit_test(test_far_epochs),
        cmocka_unit_test(test_silence_is_named), cmocka_unit_test(test_who_has_come_may_leave),
        cmocka_unit_test(test_across_nodes),     cmocka_unit_test(test_overwritten_words),
    };
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The doorbell alone: no wake-up is ever lost. Sleeps here are bounded by DEADLINE_NS only, which no sleeper may reach.
   */
#include "shmem/doorbell.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define DEADLINE_NS ((int64_t)30 * 1000000000)
#define MAX_PLAYERS 8
#define MAX_THREADS 3

/* Shared by all players: a doorbell and a flag for each, and who missed a wake-up. */
typedef struct table {
    sym_doorbell doorbells[MAX_PLAYERS];
    /* Written by the player before (release), read by the owner (acquire). */
    _Alignas(64) _Atomic uint64_t flags[MAX_PLAYERS][MAX_THREADS];
    /* Sleeps that met the deadline; written by all, read at the end. */
    _Atomic uint64_t lost;
} table;

typedef struct player {
    pthread_t thread;
    table *table;
    int number, players, lane, rounds;
    bool local;
} player;

/* Where the flag would lie in a heap: lanes far from each other. */
static uint64_t flag_offset(int number, int lane)
{
    return ((uint64_t)number * MAX_THREADS + (uint64_t)lane) << 20;
}

static void await_flag(const player *self, uint64_t value)
{
    sym_doorbell *doorbell = &self->table->doorbells[self->number];
    const _Atomic uint64_t *flag = &self->table->flags[self->number][self->lane];
    while (atomic_load_explicit(flag, memory_order_acquire) < value) {
        uint32_t rings;
        doorbell_arm(doorbell, doorbell_range(flag_offset(self->number, self->lane), sizeof *flag), &rings);
        if (atomic_load_explicit(flag, memory_order_acquire) >= value) return;
        int64_t start_ns = clock_ns();
        doorbell_sleep(doorbell, rings, DEADLINE_NS, self->local);
        if (clock_ns() - start_ns >= DEADLINE_NS) atomic_fetch_add(&self->table->lost, 1);
    }
}

/* Delays of no to a few hundred loads shift the two sides of the handshake against each other. */
static void dawdle(uint64_t *random, const _Atomic uint64_t *word)
{
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    for (uint64_t i = *random >> 56; i > 0; i--)
        (void)atomic_load_explicit(word, memory_order_relaxed);
}

/* A token goes round; each passes it by a flag and a ring of the doorbell. */
static void *trial(void *argument)
{
    player *self = argument;
    int next = (self->number + 1) % self->players;
    _Atomic uint64_t *next_flag = &self->table->flags[next][self->lane];
    /* Both ways to fence, side by side. */
    if (self->number % 2 == 0) doorbell_open(&self->table->doorbells[self->number]);
    uint64_t random = (uint64_t)self->number * 977 + (uint64_t)self->lane + 1;
    for (int round = 1; round <= self->rounds; round++) {
        if (self->number > 0) await_flag(self, (uint64_t)round);
        dawdle(&random, next_flag);
        atomic_store_explicit(next_flag, (uint64_t)round, memory_order_release);
        /* As a flag of the library's own is announced, and as a put. */
        if (round % 2)
            doorbell_ring(&self->table->doorbells[next], self->local);
        else
            doorbell_ring_put(&self->table->doorbells[next], flag_offset(next, self->lane), sizeof *next_flag,
                              self->local);
        if (self->number == 0) await_flag(self, (uint64_t)round);
    }
    return NULL;
}

static table *new_table(void)
{
    table *t = mmap(NULL, sizeof *t, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(t != MAP_FAILED);
    return t;
}

/* `lanes` threads of every player wait on its one doorbell, each for its own token. */
static void trial_threads(int players, int lanes, int rounds)
{
    table *t = new_table();
    player all[MAX_PLAYERS][MAX_THREADS];
    for (int p = 0; p < players; p++)
        for (int l = 0; l < lanes; l++) {
            all[p][l] =
                (player){.table = t, .number = p, .players = players, .lane = l, .rounds = rounds, .local = true};
            assert_int_equal(pthread_create(&all[p][l].thread, NULL, trial, &all[p][l]), 0);
        }
    for (int p = 0; p < players; p++)
        for (int l = 0; l < lanes; l++) {
            pthread_join(all[p][l].thread, NULL);
            assert_int_equal(atomic_load(&t->flags[p][l]), rounds);
        }
    assert_int_equal(atomic_load(&t->lost), 0);
    munmap(t, sizeof *t);
}

static void test_threads(void **state)
{
    (void)state;
    for (int players = 2; players <= MAX_PLAYERS; players *= 2)
        trial_threads(players, 1, 20000 / players);
}

static void test_several_sleepers_on_one_doorbell(void **state)
{
    (void)state;
    trial_threads(2, MAX_THREADS, 4000);
    trial_threads(4, MAX_THREADS, 2000);
}

static void test_processes(void **state)
{
    (void)state;
    enum { PLAYERS = 4, ROUNDS = 5000 };
    table *t = new_table();
    pid_t children[PLAYERS];
    for (int p = 0; p < PLAYERS; p++) {
        children[p] = fork();
        assert_true(children[p] >= 0);
        if (children[p] == 0) {
            trial(&(player){.table = t, .number = p, .players = PLAYERS, .rounds = ROUNDS});
            _exit(0);
        }
    }
    for (int p = 0; p < PLAYERS; p++) {
        int status;
        assert_int_equal(waitpid(children[p], &status, 0), children[p]);
        assert_int_equal(status, 0);
        assert_int_equal(atomic_load(&t->flags[p][0]), ROUNDS);
    }
    assert_int_equal(atomic_load(&t->lost), 0);
    munmap(t, sizeof *t);
}

/* A doorbell at which nobody sleeps is not rung: that is what makes ringing cheap. */
static void test_nobody_asleep(void **state)
{
    (void)state;
    sym_doorbell doorbell = {0};
    uint32_t rings;
    doorbell_ring(&doorbell, true);
    assert_int_equal(atomic_load(&doorbell.rings), 0);
    doorbell_arm(&doorbell, doorbell_range(0, 1), &rings);
    doorbell_ring(&doorbell, true);
    doorbell_ring(&doorbell, true);
    assert_int_equal(atomic_load(&doorbell.rings), 1);
    assert_int_equal(atomic_load(&doorbell.watched), 0);
    int64_t start_ns = clock_ns();
    doorbell_sleep(&doorbell, rings, DEADLINE_NS, true); /* rang since it was armed: returns at once */
    assert_true(clock_ns() - start_ns < DEADLINE_NS);
}

/* Puts wake those who watch words that they may have changed, and nobody else. */
static void test_puts_elsewhere(void **state)
{
    (void)state;
    sym_doorbell doorbell = {0};
    uint32_t rings;
    const uint64_t low = (uint64_t)1 << 20, high = (uint64_t)5 << 20, far = (uint64_t)1 << 50, length = 4096;
    doorbell_arm(&doorbell, doorbell_range(low, 8), &rings);
    doorbell_ring_put(&doorbell, low + length, length, true);
    doorbell_ring_put(&doorbell, low - length, length - 256, true);
    doorbell_ring_put(&doorbell, high, 8, true);
    assert_int_equal(atomic_load(&doorbell.rings), 0);
    doorbell_arm(&doorbell, doorbell_range(high, 8), &rings); /* somebody else, who watches another word */
    doorbell_ring_put(&doorbell, high + length, length, true);
    assert_int_equal(atomic_load(&doorbell.rings), 0);
    doorbell_ring_put(&doorbell, high, 8, true);
    assert_int_equal(atomic_load(&doorbell.rings), 1);
    assert_int_equal(atomic_load(&doorbell.watched), 0);
    doorbell_ring_put(&doorbell, low, 8, true); /* nobody watches any more */
    assert_int_equal(atomic_load(&doorbell.rings), 1);
    doorbell_arm(&doorbell, doorbell_range(low, 8), &rings);
    doorbell_ring_put(&doorbell, 0, low + 8, true); /* from far below into it */
    assert_int_equal(atomic_load(&doorbell.rings), 2);
    doorbell_arm(&doorbell, doorbell_range(far, 8), &rings);
    doorbell_ring_put(&doorbell, far + 4, 4, true);
    assert_int_equal(atomic_load(&doorbell.rings), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nobody_asleep), cmocka_unit_test(test_puts_elsewhere),
        cmocka_unit_test(test_threads),       cmocka_unit_test(test_several_sleepers_on_one_doorbell),
        cmocka_unit_test(test_processes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

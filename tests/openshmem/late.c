/* SPDX-License-Identifier: Apache-2.0 */
/* PE 0 computes for hours while the others wait for it, and nobody's wait times out. Nor does the test take that long.
 * A waiting PE has a clock that is an hour further each time it is read, and PE 0 is late until all have seen five
 * hours. */
#include "expect.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { ENOUGH = 5, HOUR_S = 3600 };

/* Hours by which this PE's clock is ahead, and those of its present wait. Added to by its first thread while it waits,
   read by all its threads and by PE 0. Relaxed: nothing else hangs on them. */
static _Atomic long ahead, waited;
static _Atomic bool waits; /* written by the first thread, which is the only one that minds */
static pthread_t first_thread;
static long guard, word, numbers[2];

/* Before that of libc, also for expar. */
__attribute__((visibility("default"))) int clock_gettime(clockid_t clock, struct timespec *now)
{
    long result = syscall(SYS_clock_gettime, clock, now);
    if (result != 0 || clock != CLOCK_MONOTONIC) return (int)result;
    if (atomic_load_explicit(&waits, memory_order_relaxed) && pthread_equal(pthread_self(), first_thread)) {
        atomic_fetch_add_explicit(&ahead, 1, memory_order_relaxed);
        atomic_fetch_add_explicit(&waited, 1, memory_order_relaxed);
    }
    now->tv_sec += HOUR_S * atomic_load_explicit(&ahead, memory_order_relaxed);
    return 0;
}

static void in_wait(void)
{
    shmem_wait_until(&word, SHMEM_CMP_EQ, 1l);
}

static void end_wait(void)
{
    for (int pe = 1; pe < shmem_n_pes(); pe++)
        shmem_p(&word, 1l, pe);
}

static void in_lock(void)
{
    shmem_set_lock(&guard);
    shmem_clear_lock(&guard);
}

static void end_lock(void)
{
    shmem_clear_lock(&guard);
}

static void in_broadcast(void)
{
    EXPECT(shmem_broadcast(SHMEM_TEAM_WORLD, &numbers[0], &numbers[1], 1, 0) == 0);
}

/* The work of the others, and of PE 0 when it comes. */
static void (*const steps[][2])(void) = {
    {shmem_barrier_all, shmem_barrier_all},
    {in_wait, end_wait},
    {in_lock, end_lock},
    {in_broadcast, in_broadcast},
};

int main(void)
{
    shmem_init();
    first_thread = pthread_self();
    if (shmem_my_pe() == 0) shmem_set_lock(&guard);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        atomic_store_explicit(&waited, 0, memory_order_relaxed);
        shmem_barrier_all();
        if (shmem_my_pe() > 0) {
            atomic_store_explicit(&waits, true, memory_order_relaxed);
            steps[i][0]();
            atomic_store_explicit(&waits, false, memory_order_relaxed);
        } else {
            for (int pe = 1; pe < shmem_n_pes(); pe++)
                while (shmem_g((const long *)&waited, pe) < ENOUGH) {
                }
            steps[i][1]();
        }
        shmem_barrier_all();
    }
    shmem_finalize();
    return 0;
}

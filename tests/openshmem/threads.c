/* SPDX-License-Identifier: Apache-2.0 */
/* Several threads of each PE communicate at once. */
#include "expect.h"

#include <pthread.h>

enum { THREADS = 3, ROUNDS = 300 };
static long counters[THREADS], words[THREADS];

static void *work(void *argument)
{
    const int t = *(const int *)argument, next = (shmem_my_pe() + 1) % shmem_n_pes();
    for (int i = 0; i < ROUNDS; i++) {
        shmem_atomic_inc(&counters[t], next);
        shmem_p(&words[t], (long)i, next);
        shmem_wait_until(&words[t], SHMEM_CMP_GE, (long)i);
    }
    return NULL;
}

int main(void)
{
    int provided = -1, numbers[THREADS];
    pthread_t threads[THREADS];
    shmem_init_thread(SHMEM_THREAD_MULTIPLE, &provided);
    EXPECT(provided == SHMEM_THREAD_MULTIPLE);
    for (int t = 0; t < THREADS; t++) {
        numbers[t] = t;
        EXPECT(pthread_create(&threads[t], NULL, work, &numbers[t]) == 0);
    }
    for (int t = 0; t < THREADS; t++)
        EXPECT(pthread_join(threads[t], NULL) == 0);
    shmem_barrier_all();
    for (int t = 0; t < THREADS; t++)
        EXPECT(counters[t] == ROUNDS && words[t] == ROUNDS - 1);
    shmem_finalize();
    return 0;
}

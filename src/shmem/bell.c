/* SPDX-License-Identifier: Apache-2.0 */
/* The doorbell: a futex in the control page, and the handshake that keeps its users from missing each other. */
#include "shmem/bell.h"
#include "mem/fence.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

void bell_arm(sym_bell *bell, uint32_t *rings)
{
    /* Before asleep is set: a writer that takes it down raises rings after this load, and the futex sees the
     * difference. */
    *rings = atomic_load_explicit(&bell->rings, memory_order_relaxed);
    atomic_store_explicit(&bell->asleep, 1, memory_order_seq_cst);
    /* Partner: the fence in bell_ring. Either the writer sees asleep, or the caller's next look sees the flag. */
    fence_full();
}

void bell_sleep(sym_bell *bell, uint32_t rings, int64_t limit_ns, bool local)
{
    struct timespec limit = {.tv_sec = limit_ns / 1000000000, .tv_nsec = limit_ns % 1000000000};
    int operation = local ? FUTEX_WAIT_PRIVATE : FUTEX_WAIT;
    /* Woken, interrupted, late or not asleep at all: the caller looks again in every case. */
    syscall(SYS_futex, &bell->rings, operation, rings, &limit, NULL, 0);
}

void bell_ring(sym_bell *bell, bool local)
{
    /* Partner: the fence in bell_arm. */
    fence_full();
    if (atomic_load_explicit(&bell->asleep, memory_order_relaxed) == 0) return;
    /* One of several writers takes the word down and wakes; the others save the system call. */
    if (atomic_exchange_explicit(&bell->asleep, 0, memory_order_seq_cst) == 0) return;
    atomic_fetch_add_explicit(&bell->rings, 1, memory_order_seq_cst);
    syscall(SYS_futex, &bell->rings, local ? FUTEX_WAKE_PRIVATE : FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The doorbell: a futex in the control page, and the handshake that keeps its users from missing each other. */
#include "shmem/doorbell.h"

#include <limits.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

_Atomic bool doorbell_is_fenced;

void doorbell_open(sym_doorbell *doorbell)
{
    /* Asked for at every opening: a child of this process would have to ask again. */
    bool granted = syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0;
    atomic_store_explicit(&doorbell_is_fenced, granted, memory_order_release);
    atomic_store_explicit(&doorbell->fences, granted, memory_order_relaxed);
}

/* Returns the smallest range that holds both; watched may be 0. */
static uint64_t widened(uint64_t watched, uint64_t range)
{
    if (watched == 0) return range;
    const uint32_t first = (uint32_t)watched < (uint32_t)range ? (uint32_t)watched : (uint32_t)range;
    const uint64_t bound = watched > range ? watched : range; /* the upper 32 bits decide */
    return (bound >> DOORBELL_BOUND_SHIFT) << DOORBELL_BOUND_SHIFT | first;
}

void doorbell_arm(sym_doorbell *doorbell, uint64_t range, uint32_t *rings)
{
    /* Read before watched is set. A writer that clears watched raises rings after this load, and the futex sees the
       difference. */
    *rings = atomic_load_explicit(&doorbell->rings, memory_order_relaxed);
    uint64_t before = atomic_load_explicit(&doorbell->watched, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&doorbell->watched, &before, widened(before, range),
                                                  memory_order_seq_cst, memory_order_relaxed)) {
    }
    /* Partner: the fence in doorbell_look, which registered writers leave to this call. Either the writer sees watched,
       or the caller's next check sees the flag. */
    if (atomic_load_explicit(&doorbell->fences, memory_order_relaxed))
        syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0);
    fence_full();
}

void doorbell_sleep(sym_doorbell *doorbell, uint32_t rings, int64_t limit_ns, bool local)
{
    struct timespec limit = {.tv_sec = limit_ns / 1000000000, .tv_nsec = limit_ns % 1000000000};
    int operation = local ? FUTEX_WAIT_PRIVATE : FUTEX_WAIT;
    /* Woken, interrupted, late or not asleep at all: the caller checks again in every case. */
    syscall(SYS_futex, &doorbell->rings, operation, rings, &limit, NULL, 0);
}

void doorbell_wake(sym_doorbell *doorbell, bool local)
{
    /* Only one of several writers clears the word and wakes; the others save the system call. */
    if (atomic_exchange_explicit(&doorbell->watched, 0, memory_order_seq_cst) == 0) return;
    atomic_fetch_add_explicit(&doorbell->rings, 1, memory_order_seq_cst);
    syscall(SYS_futex, &doorbell->rings, local ? FUTEX_WAKE_PRIVATE : FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

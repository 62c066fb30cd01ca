/* SPDX-License-Identifier: Apache-2.0 */
/* Counted objects: who holds one, and what is left of it when nobody does.
 *
 * The record of an object that has come to its end is kept for a while, so that whoever uses it again, or gives it back
 * a second time, finds out and does not come upon memory of something else. */
#include "ep/life.h"

#include <stdlib.h>

bool ep_life_hold(ep_life *life)
{
    int32_t held = atomic_load_explicit(&life->references, memory_order_relaxed);
    /* Relaxed: whoever holds one more has a reference already, or is told that there is none. */
    while (held > 0 && !atomic_compare_exchange_weak_explicit(&life->references, &held, held + 1, memory_order_relaxed,
                                                              memory_order_relaxed)) {
    }
    return held > 0;
}

ep_life_end ep_life_drop(ep_life *life)
{
    int32_t held = atomic_load_explicit(&life->references, memory_order_relaxed);
    /* Acquire and release: the last one sees all that the others did before it takes the object apart. */
    while (held > 0 && !atomic_compare_exchange_weak_explicit(&life->references, &held, held - 1, memory_order_acq_rel,
                                                              memory_order_relaxed)) {
    }
    return held > 1 ? EP_LIFE_HELD : held == 1 ? EP_LIFE_LAST : EP_LIFE_SPENT;
}

void ep_life_keep(ep_spent *spent, void *record)
{
    pthread_mutex_lock(&spent->lock);
    void *oldest = spent->records[spent->next];
    spent->records[spent->next] = record;
    spent->next = (spent->next + 1) % EP_SPENT_RECORDS;
    pthread_mutex_unlock(&spent->lock);
    free(oldest);
}

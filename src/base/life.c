/* SPDX-License-Identifier: Apache-2.0 */
/* Counted objects: their references, and the records that stay after their end.
 *
 * The record of an object that has ended is kept for a while. So a caller that uses the object again, or releases it
 * twice, gets an error and does not access another object's memory. */
#include "base/life.h"

#include <stdlib.h>
#include <string.h>

bool life_hold(life_record *self)
{
    int32_t held = atomic_load_explicit(&self->references, memory_order_relaxed);
    /* Relaxed: a thread that takes a reference has one already, or is told that there is none. */
    while (held > 0 && !atomic_compare_exchange_weak_explicit(&self->references, &held, held + 1, memory_order_relaxed,
                                                              memory_order_relaxed)) {
    }
    return held > 0;
}

bool life_drop(life_record *self, uint64_t magic)
{
    if (self->magic != magic) return false;
    int32_t held = atomic_load_explicit(&self->references, memory_order_relaxed);
    /* Acquire and release: the last one sees all that the others did before it destroys the object. */
    while (held > 0 && !atomic_compare_exchange_weak_explicit(&self->references, &held, held - 1, memory_order_acq_rel,
                                                              memory_order_relaxed)) {
    }
    if (held == 1) self->end(self);
    return held > 0;
}

expar_status life_check(const life_kind *kind, const char *call, const void *object)
{
    if (!object) return error_set(EXPAR_ERR_NULL, "%s: %s is NULL", call, kind->noun);
    if (life_alive(object, kind->magic)) return EXPAR_OK;
    return error_set(EXPAR_ERR_HANDLE, "%s: %s %p is not a living %s; it has been released as often as %s", call,
                     kind->noun, object, kind->noun, kind->taken);
}

expar_status life_retain(const life_kind *kind, const char *call, void *object)
{
    const expar_status status = life_check(kind, call, object);
    return status != EXPAR_OK || life_hold(object) ? status : life_check(kind, call, object);
}

void life_release(const life_kind *kind, const char *call, void *object)
{
    if (!object || life_drop(object, kind->magic)) return;
    LOG(LOG_WARN, "%s: %s %p is not a living %s; it has been released as often as %s", call, kind->noun, object,
        kind->noun, kind->taken);
}

/* With the lock held. NULL: there are no more than `least`. */
static void *take_oldest(life_spent *spent, int32_t least)
{
    if (spent->count <= least) return NULL;
    void *record = spent->records[spent->oldest];
    spent->oldest = (spent->oldest + 1) % (int32_t)ARRAY_LENGTH(spent->records);
    spent->count--;
    return record;
}

void life_keep(life_spent *spent, void *record)
{
    const int32_t spare = (int32_t)ARRAY_LENGTH(spent->records);
    pthread_mutex_lock(&spent->lock);
    void *oldest = take_oldest(spent, spare - 1);
    spent->records[(spent->oldest + spent->count++) % spare] = record;
    pthread_mutex_unlock(&spent->lock);
    free(oldest);
}

void *life_renew(life_spent *spent, size_t bytes)
{
    pthread_mutex_lock(&spent->lock);
    void *oldest = take_oldest(spent, LIFE_SPENT_RECORDS);
    pthread_mutex_unlock(&spent->lock);
    return oldest ? memset(oldest, 0, bytes) : calloc(1, bytes);
}

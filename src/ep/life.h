/* SPDX-License-Identifier: Apache-2.0 */
/* Counted objects of ep that callers hold: handles and outputs. Private to this folder. */
#ifndef EXPAR_EP_LIFE_H
#define EXPAR_EP_LIFE_H

#include "base/base.h"
#include <pthread.h>
#include <stdatomic.h>

/* The first member of such an object. */
typedef struct ep_life {
    uint64_t magic; /* what it is; written once, and still there when it has come to its end */
    /* The caller's, and one for each call that finishes by itself and uses it. 0: it has come to its end. By all who
       hold it; the last drop sees what came before the others (acquire, release). */
    _Atomic int32_t references;
} ep_life;

static inline ep_life ep_life_begin(uint64_t magic)
{
    return (ep_life){.magic = magic, .references = 1};
}
static inline bool ep_life_alive(const ep_life *life, uint64_t magic)
{
    return life->magic == magic && atomic_load_explicit(&life->references, memory_order_relaxed) > 0;
}
/* One more reference; false: it has come to its end. */
bool ep_life_hold(ep_life *life);

typedef enum ep_life_end { EP_LIFE_HELD, EP_LIFE_LAST, EP_LIFE_SPENT } ep_life_end;
/* One less. EP_LIFE_LAST: the caller takes the object apart, and gives its record to ep_life_keep. EP_LIFE_SPENT: there
   was none to give back. */
ep_life_end ep_life_drop(ep_life *life);

/* Records of objects that have come to their end, until as many others have. */
#define EP_SPENT_RECORDS 256
typedef struct ep_spent {
    pthread_mutex_t lock; /* guards the rest */
    void *records[EP_SPENT_RECORDS];
    int32_t next; /* the oldest */
} ep_spent;
#define EP_SPENT_NONE                                                                                                  \
    {                                                                                                                  \
        .lock = PTHREAD_MUTEX_INITIALIZER                                                                              \
    }
/* `record`: what malloc gave; it is freed when it is the oldest. */
void ep_life_keep(ep_spent *spent, void *record);

#endif

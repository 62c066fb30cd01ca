/* SPDX-License-Identifier: Apache-2.0 */
/* Counted objects that callers hold, and what is left of one when nobody does. */
#ifndef EXPAR_BASE_LIFE_H
#define EXPAR_BASE_LIFE_H

#include "base/base.h"
#include <pthread.h>
#include <stdatomic.h>

/* The first member of such an object. */
typedef struct life_record {
    uint64_t magic; /* what it is; written once, and still there when it has come to its end */
    /* The caller's, and one for each call that uses it meanwhile. 0: it has come to its end. By all who hold it; the
       last drop sees what came before the others (acquire, release). */
    _Atomic int32_t references;
} life_record;

static inline life_record life_begin(uint64_t magic)
{
    return (life_record){.magic = magic, .references = 1};
}
static inline bool life_alive(const life_record *self, uint64_t magic)
{
    return self->magic == magic && atomic_load_explicit(&self->references, memory_order_relaxed) > 0;
}
/* One more reference; false: it has come to its end. */
bool life_hold(life_record *self);

typedef enum life_end { LIFE_HELD, LIFE_LAST, LIFE_SPENT } life_end;
/* One less. LIFE_LAST: the caller takes the object apart, and gives its record to life_keep. LIFE_SPENT: there
   was none to give back. */
life_end life_drop(life_record *self, uint64_t magic);

/* Records of objects that have come to their end, until as many others have; beyond, there is room for those that new
   objects are to take. */
#define LIFE_SPENT_RECORDS 256
#define LIFE_SPENT_ROOM    64
typedef struct life_spent {
    pthread_mutex_t lock; /* guards the rest */
    void *records[LIFE_SPENT_RECORDS + LIFE_SPENT_ROOM];
    int32_t oldest, count;
} life_spent;
#define LIFE_SPENT_NONE                                                                                                \
    {                                                                                                                  \
        .lock = PTHREAD_MUTEX_INITIALIZER                                                                              \
    }
/* `record`: what malloc gave; it is freed when it is the oldest, and there is no room. */
void life_keep(life_spent *spent, void *record);
/* Zeros for the record of a new object, all of `bytes`: the oldest that is kept, once there are more than have to be,
   so that whoever makes and ends objects in turn allocates nothing; else calloc's. NULL: no memory. */
void *life_renew(life_spent *spent, size_t bytes);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Counted objects that callers hold, and the records that stay after their end. */
#ifndef EXPAR_BASE_LIFE_H
#define EXPAR_BASE_LIFE_H

#include "base/base.h"
#include <pthread.h>
#include <stdatomic.h>

/* The first member of such an object. */
typedef struct life_record {
    /* kind of the object; written once, and kept after its end */
    uint64_t magic;
    /* Destroys the object, which begins with this record, and passes the record to life_keep. The thread that drops the
       last reference calls it. Written once. */
    void (*end)(void *object);
    /* References: the caller's, and one for each call that uses the object meanwhile. 0: it has ended. All holders
       change it; the last drop sees what came before the others (acquire, release). */
    _Atomic int32_t references;
} life_record;

static inline life_record life_begin(uint64_t magic, void (*end)(void *object))
{
    return (life_record){.magic = magic, .end = end, .references = 1};
}
static inline bool life_alive(const life_record *self, uint64_t magic)
{
    return self->magic == magic && atomic_load_explicit(&self->references, memory_order_relaxed) > 0;
}
/* Takes a reference; false: the object has ended. */
bool life_hold(life_record *self);

/* Drops a reference; the last one ends the object. false: there was no reference to drop. */
bool life_drop(life_record *self, uint64_t magic);

/* A kind of object, for the public calls that check it, take a reference, or drop one. */
typedef struct life_kind {
    uint64_t magic;
    const char *noun;  /* "event" */
    const char *taken; /* what a call that takes a reference does: "retained" */
} life_kind;
/* `object` is the caller's, and begins with its record. EXPAR_ERR_NULL, EXPAR_ERR_HANDLE. */
expar_status life_check(const life_kind *kind, const char *call, const void *object);
expar_status life_retain(const life_kind *kind, const char *call, void *object);
/* Warns of a reference that is not there. NULL is allowed. */
void life_release(const life_kind *kind, const char *call, void *object);

/* The record of an object that has ended is kept until this many others have ended. Beyond that number, new objects
   reuse records. */
#define LIFE_SPENT_RECORDS 256
#define LIFE_SPENT_SPACE   64
typedef struct life_spent {
    /* guards the other members */
    pthread_mutex_t lock;
    void *records[LIFE_SPENT_RECORDS + LIFE_SPENT_SPACE];
    int32_t oldest, count;
} life_spent;
#define LIFE_SPENT_NONE                                                                                                \
    {                                                                                                                  \
        .lock = PTHREAD_MUTEX_INITIALIZER                                                                              \
    }
/* `record` must be from malloc. If too many are kept, it is freed once it is the oldest. */
void life_keep(life_spent *spent, void *record);
/* Returns `bytes` of zeros for the record of a new object. It is the oldest kept record, once there are more than must
   be kept, else one of calloc. So a caller that makes and ends objects in turn allocates nothing. NULL: no memory. */
void *life_renew(life_spent *spent, size_t bytes);

#endif

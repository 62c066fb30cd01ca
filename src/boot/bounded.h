/* SPDX-License-Identifier: Apache-2.0 */
/* bounded: calls into a library that may wait for ever. A separate thread makes them, and the caller waits until a
 * deadline. */
#ifndef EXPAR_BOOT_BOUNDED_H
#define EXPAR_BOOT_BOUNDED_H

#include "base/base.h"
#include <pthread.h>

/* First member of a work item, which is allocated on the heap. */
typedef struct bounded {
    /* the thread runs it */
    void (*work)(struct bounded *self);
    /* frees the whole item when the last reference is dropped */
    void (*dispose)(struct bounded *self);
    /* guards the two below */
    pthread_mutex_t lock;
    /* one of the caller and one of the thread */
    int references;
    bool done;
    pthread_cond_t ended;
} bounded;

/* Starts the work. On failure the work has been disposed of. */
expar_status bounded_start(bounded *self, void (*work)(bounded *self), void (*dispose)(bounded *self));
/* Waits until the work is done. Returns false at end_ns (clock_ns), or when the program asks to stop (interrupt_came).
   The item's data then still belongs to the thread. */
bool bounded_wait(bounded *self, int64_t end_ns);
/* Drops the caller's reference. */
void bounded_drop(bounded *self);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* bounded: calls into a library that may wait for ever, made by a thread of their own and waited for to a deadline. */
#ifndef EXPAR_BOOT_BOUNDED_H
#define EXPAR_BOOT_BOUNDED_H

#include "base/base.h"
#include <pthread.h>

/* First member of a piece of work, which stands on the heap. */
typedef struct bounded {
    void (*work)(struct bounded *self);    /* by the thread */
    void (*dispose)(struct bounded *self); /* frees it all; by the last holder */
    pthread_mutex_t lock;                  /* guards the two below */
    int references;                        /* the caller and the thread */
    bool done;
    pthread_cond_t ended;
} bounded;

/* Starts the work; on failure it has been disposed of. */
expar_status bounded_start(bounded *self, void (*work)(bounded *self), void (*dispose)(bounded *self));
/* Waits until the work is done; false at end_ns (clock_ns), or
   when the program wants no more (interrupt_came). What the work has written is then still its own. */
bool bounded_wait(bounded *self, int64_t end_ns);
/* The caller lets go of it. */
void bounded_drop(bounded *self);

#endif

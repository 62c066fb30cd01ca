/* SPDX-License-Identifier: Apache-2.0 */
/* interrupt: asks the program whether a wait shall go on (expar/interrupt.h). Every wait on the host calls this at
 * least every INTERRUPT_NS. */
#ifndef EXPAR_BASE_INTERRUPT_H
#define EXPAR_BASE_INTERRUPT_H

#include "base/base.h"
#include <pthread.h>
#include <stdatomic.h>

/* The longest sleep of a wait, and the shortest time between two questions. */
#define INTERRUPT_NS ((int64_t)50 * 1000 * 1000)

/* Returns EXPAR_ERR_INTERRUPTED, with `what` in the text, when the program says so; else EXPAR_OK. *asked_ns belongs to
   the wait: when it last asked; 0 at its beginning. */
expar_status interrupt_look(int64_t *asked_ns, const char *what);
/* Between the two calls this thread's interrupt_look does not ask. They enclose short steps that would leave others'
   words half changed if they were interrupted. Pairs may nest. */
void interrupt_defer(void);
void interrupt_undefer(void);
/* interrupt_look for code that waits in many places, which can only report that they gave up. Between begin and take,
   interrupt_came in that thread is true once the program has said so, and stays true. Outside of them it is false and
   does not ask. take returns `status`, or EXPAR_ERR_INTERRUPTED in place of an error that the interrupt caused. */
void interrupt_begin(void);
bool interrupt_came(void);
expar_status interrupt_take(expar_status status, const char *what);

/* From now on this thread's waits also end once *told is true. The thread for which this one works sets it; relaxed,
   because it orders nothing. NULL: there is no such word. */
void interrupt_follow(const atomic_bool *told);
/* From now on this thread's waits also end at that time (clock_ns), as if the program had said so. So an abandoned
   operation does not wait for long. 0: there is no such time. */
void interrupt_at(int64_t end_ns);

/* Waits for the condition, whose clock is CLOCK_MONOTONIC, for INTERRUPT_NS at most. */
void interrupt_cond_wait(pthread_cond_t *condition, pthread_mutex_t *lock);
/* Takes a lock that other threads hold while they wait themselves. EXPAR_ERR_INTERRUPTED: it is not taken. */
expar_status interrupt_lock(pthread_mutex_t *lock, const char *what);
/* Calls pthread_cond_init, with that clock. */
void interrupt_cond_init(pthread_cond_t *condition);

/* ---- threads ----------------------------------------------------------------------------------------------------- */

/* Returns a number that only the calling thread has in this process, never 0. */
uint32_t thread_number(void);
/* The calling thread waits for another thread of this process, not for a rank, until thread_rest_end. Calls may
   nest. */
void thread_rest_begin(void);
void thread_rest_end(void);
/* Returns whether that thread does so now. */
bool thread_is_resting(uint32_t number);

#endif

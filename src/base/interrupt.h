/* SPDX-License-Identifier: Apache-2.0 */
/* interrupt: asks the program whether a wait is to go on (expar/interrupt.h). Whatever waits on the host comes here at
 * least every INTERRUPT_NS, whatever it waits for. */
#ifndef EXPAR_BASE_INTERRUPT_H
#define EXPAR_BASE_INTERRUPT_H

#include "base/base.h"
#include <pthread.h>
#include <stdatomic.h>

/* The longest sleep of a wait, and the least from one question to the next. */
#define INTERRUPT_NS ((int64_t)50 * 1000 * 1000)

/* EXPAR_ERR_INTERRUPTED, with `what` in the text, when the program says so; else EXPAR_OK. *asked_ns: of the wait, when
   it was last asked; 0 at its beginning. */
expar_status interrupt_look(int64_t *asked_ns, const char *what);
/* Between the two this thread's interrupt_look asks nobody: for a short step that leaves others' words half changed
   where it is given up. Pairs may nest. */
void interrupt_defer(void);
void interrupt_undefer(void);
/* interrupt_look for what waits in many places, which can only say that they gave up. Between begin and take, in that
   thread, interrupt_came is true once the program has said so, and stays it; else it is false and asks nobody. take
   gives `status`, or EXPAR_ERR_INTERRUPTED in place of an error that came of it. */
void interrupt_begin(void);
bool interrupt_came(void);
expar_status interrupt_take(expar_status status, const char *what);

/* From now on this thread's waits end, too, once *told is true, which whoever it works for sets (relaxed: it says no
   more than that); NULL: they look at no such word. */
void interrupt_follow(const atomic_bool *told);
/* From now on this thread's waits end, too, when that time has come (clock_ns), as if the program had said so: what is
   given up waits for nobody for long. 0: they know no such time. */
void interrupt_at(int64_t end_ns);

/* Waits for the condition, whose clock is CLOCK_MONOTONIC, for INTERRUPT_NS at most. */
void interrupt_cond_wait(pthread_cond_t *condition, pthread_mutex_t *lock);
/* Takes a lock that other threads hold for as long as they wait themselves. EXPAR_ERR_INTERRUPTED: it is not taken. */
expar_status interrupt_lock(pthread_mutex_t *lock, const char *what);
/* For pthread_cond_init, with that clock. */
void interrupt_cond_init(pthread_cond_t *condition);

/* ---- threads ----------------------------------------------------------------------------------------------------- */

/* A number of the calling thread's own in this process, never 0. */
uint32_t thread_number(void);
/* The calling thread waits for another one of this process, not for a rank, or does so no more. Calls may nest. */
void thread_rest_begin(void);
void thread_rest_end(void);
/* Whether that thread does now. */
bool thread_is_resting(uint32_t number);

#endif

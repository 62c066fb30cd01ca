/* SPDX-License-Identifier: Apache-2.0 */
/* interrupt: the program's function, and how waits call it. */
#include "base/interrupt.h"
#include <expar/interrupt.h>

#include <stdatomic.h>
#include <time.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    expar_interrupt_fn fn;
    void *context;
} hook; /* guarded by lock */
/* Whether there is a function. Written under lock, read by all waits. Relaxed: a wait that reads an old value asks once
   more, or once less. */
static atomic_bool hooked;

/* Conditions that only this thread's waits check. */
static _Thread_local struct {
    expar_interrupt_fn fn; /* expar_interrupt_set_thread */
    void *context;
    const atomic_bool *told; /* set by interrupt_follow; NULL: none */
    int64_t end_ns;          /* set by interrupt_at; 0: never */
} own;

/* listens: between interrupt_begin and interrupt_take. came: the program has asked to stop meanwhile. */
static _Thread_local bool listens, came;
/* Number of calls of interrupt_defer that have not been undone. */
static _Thread_local int32_t deferred;

expar_status expar_interrupt_set(expar_interrupt_fn fn, void *context)
{
    pthread_mutex_lock(&lock);
    hook.fn = fn;
    hook.context = context;
    atomic_store_explicit(&hooked, fn != NULL, memory_order_relaxed);
    pthread_mutex_unlock(&lock);
    return EXPAR_OK;
}

expar_status expar_interrupt_set_thread(expar_interrupt_fn fn, void *context)
{
    own.fn = fn;
    own.context = context;
    return EXPAR_OK;
}

void interrupt_follow(const atomic_bool *told)
{
    own.told = told;
}

void interrupt_at(int64_t end_ns)
{
    own.end_ns = end_ns;
}

static bool is_anybody_asked(void)
{
    return own.fn || own.told || own.end_ns || atomic_load_explicit(&hooked, memory_order_relaxed);
}

/* Called without the lock: fn may wait for a lock of the thread that sets another function. */
static bool ask_program(void)
{
    if (own.told && atomic_load_explicit(own.told, memory_order_relaxed)) return true;
    if (own.end_ns && clock_ns() >= own.end_ns) return true;
    if (own.fn && own.fn(own.context) != 0) return true;
    if (!atomic_load_explicit(&hooked, memory_order_relaxed)) return false;
    pthread_mutex_lock(&lock);
    expar_interrupt_fn fn = hook.fn;
    void *context = hook.context;
    pthread_mutex_unlock(&lock);
    return fn && fn(context) != 0;
}

expar_status interrupt_look(int64_t *asked_ns, const char *what)
{
    if (!is_anybody_asked() || deferred > 0) return EXPAR_OK;
    const int64_t now_ns = clock_ns();
    if (*asked_ns != 0 && now_ns - *asked_ns < INTERRUPT_NS) return EXPAR_OK;
    *asked_ns = now_ns;
    return ask_program() ? error_set(EXPAR_ERR_INTERRUPTED, "%s: interrupted", what) : EXPAR_OK;
}

void interrupt_defer(void)
{
    deferred++;
}

void interrupt_undefer(void)
{
    deferred--;
}

void interrupt_begin(void)
{
    listens = true;
    came = false;
}

bool interrupt_came(void)
{
    if (listens && !came && ask_program()) came = true;
    return came;
}

expar_status interrupt_take(expar_status status, const char *what)
{
    const bool failed = came && status != EXPAR_OK;
    listens = came = false;
    if (!failed) return status;
    return error_set(EXPAR_ERR_INTERRUPTED, "%s: interrupted", what);
}

void interrupt_cond_wait(pthread_cond_t *condition, pthread_mutex_t *held)
{
    const int64_t end_ns = clock_ns() + INTERRUPT_NS;
    const struct timespec end = {.tv_sec = end_ns / 1000000000, .tv_nsec = end_ns % 1000000000};
    (void)pthread_cond_timedwait(condition, held, &end);
}

/* Returns when a wait for a lock that begins now must end. It uses the clock that may be set, since ThreadSanitizer
   does not see locks that are taken with another one. */
static struct timespec lock_end(void)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_nsec += (long)INTERRUPT_NS;
    end.tv_sec += end.tv_nsec / 1000000000;
    end.tv_nsec %= 1000000000;
    return end;
}

expar_status interrupt_lock(pthread_mutex_t *wanted, const char *what)
{
    int64_t asked_ns = 0;
    bool taken = pthread_mutex_trylock(wanted) == 0;
    expar_status status = EXPAR_OK;
    while (!taken && status == EXPAR_OK) {
        const struct timespec end = lock_end();
        taken = pthread_mutex_timedlock(wanted, &end) == 0;
        if (!taken) status = interrupt_look(&asked_ns, what);
    }
    return status;
}

void interrupt_cond_init(pthread_cond_t *condition)
{
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &clock);
    pthread_condattr_destroy(&clock);
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

#define RESTING_SLOTS 4096

static _Atomic uint32_t last_number;
/* How often the threads with that number, modulo the slots, rest. They change it, any thread reads it. Relaxed, because
   each value stands for itself. Two threads in one slot are taken for one, which only makes a text less exact. */
static _Atomic uint32_t resting[RESTING_SLOTS];

uint32_t thread_number(void)
{
    static _Thread_local uint32_t number;
    while (number == 0)
        number = atomic_fetch_add_explicit(&last_number, 1, memory_order_relaxed) + 1;
    return number;
}

void thread_rest_begin(void)
{
    atomic_fetch_add_explicit(&resting[thread_number() % RESTING_SLOTS], 1, memory_order_relaxed);
}

void thread_rest_end(void)
{
    atomic_fetch_sub_explicit(&resting[thread_number() % RESTING_SLOTS], 1, memory_order_relaxed);
}

bool thread_is_resting(uint32_t number)
{
    return atomic_load_explicit(&resting[number % RESTING_SLOTS], memory_order_relaxed) > 0;
}

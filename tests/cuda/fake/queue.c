/* SPDX-License-Identifier: Apache-2.0 */
/* Pending work of streams in the simulated driver: kernels, host functions, copies, and waits for events or words. Each
 * runs in a thread of its own, after those that the driver's rules put before it. Where streams do not run by
 * themselves, only kernels that a test holds (controls.h), and work that waits for them, are pending. With FAKE_ASYNC=1
 * all work is, so that calls return at once, as the real driver's do. */
#include "fake.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct work {
    struct work *next; /* younger */
    stream_lane lane;
    unsigned long long number;
    int device;            /* whose context it was put there in */
    void (*run)(void *of); /* NULL: a wait */
    void *of;
    stream_lane other; /* a wait for what this one had up to the mark; 0: none */
    unsigned long long mark;
    const uint32_t *word; /* a wait until it is at least the value; NULL: none */
    uint32_t value;
    bool begun;              /* guarded by lock: it runs */
    pthread_cond_t told;     /* with lock: it may run, since other work has run to its end */
    _Alignas(16) char own[]; /* what run is given, where that is copied */
} work;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved =
    PTHREAD_COND_INITIALIZER;          /* with lock: some work has run to its end; for those who wait for it */
static work *oldest;                   /* guarded by lock: what has not run to its end */
static unsigned long long last_number; /* guarded by lock */

#ifndef FAKE_ASYNC_DEFAULT
#define FAKE_ASYNC_DEFAULT 0
#endif

bool streams_run_apart(void)
{
    return setting("FAKE_ASYNC", FAKE_ASYNC_DEFAULT);
}

/* ---- order ------------------------------------------------------------------------------------------------------- */

/* The null stream and those that were not made as non-blocking wait for each other. */
static bool holds_up(const stream_lane *older, const stream_lane *younger)
{
    if (older->number == younger->number) return true;
    if (older->device != younger->device) return false;
    return (older->is_null && younger->blocking) || (older->blocking && younger->is_null);
}

/* Whether work up to that mark holds the lane up. With the lock. */
static bool has_before(const stream_lane *lane, unsigned long long mark)
{
    const work *one = oldest;
    while (one && one->number <= mark && !holds_up(&one->lane, lane))
        one = one->next;
    return one && one->number <= mark;
}

static bool word_has_come(const work *self)
{
    return !self->word || (int32_t)(__atomic_load_n(self->word, __ATOMIC_ACQUIRE) - self->value) >= 0;
}

/* With the lock. */
static bool may_run(const work *self)
{
    return word_has_come(self) && !atomic_load(&fake_controls_of()->hold) &&
           !has_before(&self->lane, self->number - 1) && !(self->mark && has_before(&self->other, self->mark));
}

/* A test's words and orders come without a signal. With the lock. */
static void rest(pthread_cond_t *signal, long most_ns)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += most_ns;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(signal, &lock, &until);
}

/* ---- work -------------------------------------------------------------------------------------------------------- */

/* Wakes the work that may run now. There may be much that may not. With the lock. */
static void tell_next(void)
{
    for (work *one = oldest; one; one = one->next)
        if (!one->begun && may_run(one)) pthread_cond_signal(&one->told);
}

static void forget(work *self)
{
    pthread_mutex_lock(&lock);
    work **place = &oldest;
    while (*place != self)
        place = &(*place)->next;
    *place = self->next;
    atomic_fetch_sub(&fake_controls_of()->held, 1);
    tell_next();
    pthread_cond_broadcast(&moved);
    pthread_mutex_unlock(&lock);
    pthread_cond_destroy(&self->told);
    free(self);
}

/* Work after other work is told when that has run. There may be much of it, so it seldom looks by itself. With the
   lock. */
static long rest_of(const work *self)
{
    const bool next =
        !has_before(&self->lane, self->number - 1) && !(self->mark && has_before(&self->other, self->mark));
    return self->word && next ? 200000 : next ? 1000000 : 10000000;
}

static void *run_work(void *argument)
{
    work *self = argument;
    pthread_mutex_lock(&lock);
    while (!may_run(self))
        rest(&self->told, rest_of(self));
    self->begun = true;
    pthread_mutex_unlock(&lock);
    enter_device(self->device);
    if (self->run) self->run(self->of);
    forget(self);
    return NULL;
}

/* Puts it after all others, and starts it; bytes of `of` are copied, 0: it is given as it is. With the lock. */
static void add(const work *what, size_t bytes)
{
    work **place = &oldest, *self = calloc(1, sizeof *self + bytes);
    pthread_t thread;
    if (!self) abort();
    *self = *what;
    if (bytes) self->of = memcpy(self->own, what->of, bytes);
    pthread_cond_init(&self->told, NULL);
    self->number = ++last_number;
    self->device = current_device();
    while (*place)
        place = &(*place)->next;
    *place = self;
    atomic_fetch_add(&fake_controls_of()->held, 1);
    if (pthread_create(&thread, NULL, run_work, self)) abort();
    pthread_detach(thread);
}

unsigned long long queue_mark(const stream_lane *lane)
{
    pthread_mutex_lock(&lock);
    unsigned long long mark = has_before(lane, last_number) ? last_number : 0;
    pthread_mutex_unlock(&lock);
    return mark;
}

bool queue_has(const stream_lane *lane, unsigned long long mark)
{
    pthread_mutex_lock(&lock);
    bool found = mark && has_before(lane, mark);
    pthread_mutex_unlock(&lock);
    return found;
}

void queue_await(const stream_lane *lane, unsigned long long mark)
{
    pthread_mutex_lock(&lock);
    while (mark && has_before(lane, mark))
        rest(&moved, 1000000);
    pthread_mutex_unlock(&lock);
}

void queue_await_all(int device)
{
    pthread_mutex_lock(&lock);
    const unsigned long long mark = last_number;
    for (const work *one = oldest; one && one->number <= mark;) {
        if (one->device != device) {
            one = one->next;
            continue;
        }
        rest(&moved, 1000000);
        one = oldest;
    }
    pthread_mutex_unlock(&lock);
}

bool queue_put(const stream_lane *lane, queue_when when, void (*run)(void *of), void *of, size_t bytes)
{
    const bool apart = streams_run_apart();
    pthread_mutex_lock(&lock);
    bool put = apart || (when != QUEUE_APART && has_before(lane, last_number)) ||
               (when == QUEUE_HELD && atomic_load(&fake_controls_of()->hold));
    if (put) add(&(work){.lane = *lane, .run = run, .of = of}, bytes);
    pthread_mutex_unlock(&lock);
    return put;
}

void queue_wait(const stream_lane *lane, const stream_lane *other, unsigned long long mark)
{
    pthread_mutex_lock(&lock);
    if (mark && lane->number != other->number && has_before(other, mark))
        add(&(work){.lane = *lane, .other = *other, .mark = mark}, 0);
    pthread_mutex_unlock(&lock);
}

void queue_wait_word(const stream_lane *lane, const uint32_t *word, uint32_t value)
{
    pthread_mutex_lock(&lock);
    add(&(work){.lane = *lane, .word = word, .value = value}, 0);
    pthread_mutex_unlock(&lock);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that their streams have not come to, and host functions and waits for events behind them, in the driver that
 * plays GPUs: a test holds them (controls.h), or a word that they wait for. Each runs in a thread of its own, behind
 * those that its stream had before; copies do not wait for them. */
#include "fake.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct held_work {
    struct held_work *next; /* younger */
    cu_stream stream;
    unsigned long long number;
    int device;
    cu_host_fn run; /* with context; NULL: a kernel or a wait */
    void *context;
    kernel_grid grid;
    cu_function function; /* NULL: a wait for the next two, or for the word behind them */
    cu_stream other;
    unsigned long long mark;
    const uint32_t *word; /* NULL: none */
    uint32_t value;
    _Alignas(16) char arguments[];
} held_work;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static held_work *oldest;              /* guarded by lock: those that have not run to their ends */
static unsigned long long last_number; /* guarded by lock */

static void rest(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* On the stream, before that one; NULL: at all. With the lock. */
static bool has_older(cu_stream stream, const held_work *than)
{
    const held_work *one = oldest;
    while (one != than && one->stream != stream)
        one = one->next;
    return one != than;
}

/* Work up to that mark. With the lock. */
static bool has_before(cu_stream stream, unsigned long long mark)
{
    const held_work *one = oldest;
    while (one && (one->stream != stream || one->number > mark))
        one = one->next;
    return one != NULL;
}

static bool word_has_come(const held_work *self)
{
    return !self->word || (int32_t)(__atomic_load_n(self->word, __ATOMIC_ACQUIRE) - self->value) >= 0;
}

static bool may_run(const held_work *self)
{
    if (!word_has_come(self)) return false;
    pthread_mutex_lock(&lock);
    bool may = !atomic_load(&fake_controls_of()->hold) && !has_older(self->stream, self) &&
               !has_before(self->other, self->mark);
    pthread_mutex_unlock(&lock);
    return may;
}

static void forget(held_work *self)
{
    pthread_mutex_lock(&lock);
    held_work **place = &oldest;
    while (*place != self)
        place = &(*place)->next;
    *place = self->next;
    pthread_mutex_unlock(&lock);
    atomic_fetch_sub(&fake_controls_of()->held, 1);
    free(self);
}

static void *run_held(void *argument)
{
    held_work *self = argument;
    while (!may_run(self))
        rest();
    enter_device(self->device);
    if (self->run)
        self->run(self->context);
    else if (self->function)
        run_kernel(self->function, &self->grid, self->arguments);
    forget(self);
    return NULL;
}

/* With the lock: behind all others. bytes: of a kernel's arguments. */
static held_work *add(cu_stream stream, size_t bytes)
{
    held_work **place = &oldest, *self = calloc(1, sizeof *self + bytes);
    if (!self) abort();
    while (*place)
        place = &(*place)->next;
    self->stream = stream;
    self->number = ++last_number;
    self->device = current_device();
    atomic_fetch_add(&fake_controls_of()->held, 1);
    return *place = self;
}

static void start(held_work *self)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, run_held, self)) abort();
    pthread_detach(thread);
}

bool hold_kernel(cu_stream stream, cu_function function, const kernel_grid *grid, const void *arguments, bool *played)
{
    const size_t bytes = kernel_argument_bytes(function);
    pthread_mutex_lock(&lock);
    bool behind = atomic_load(&fake_controls_of()->hold) || has_older(stream, NULL);
    held_work *self = behind && bytes ? add(stream, bytes) : NULL;
    pthread_mutex_unlock(&lock);
    *played = self != NULL;
    if (!self) return behind;
    self->function = function;
    self->grid = *grid;
    memcpy(self->arguments, arguments, bytes);
    start(self);
    return true;
}

unsigned long long held_mark(cu_stream stream)
{
    unsigned long long mark = 0;
    pthread_mutex_lock(&lock);
    for (const held_work *one = oldest; one; one = one->next)
        if (one->stream == stream) mark = one->number;
    pthread_mutex_unlock(&lock);
    return mark;
}

void hold_wait(cu_stream stream, cu_stream other, unsigned long long mark)
{
    pthread_mutex_lock(&lock);
    held_work *self = stream != other && has_before(other, mark) ? add(stream, 0) : NULL;
    pthread_mutex_unlock(&lock);
    if (!self) return;
    self->other = other;
    self->mark = mark;
    start(self);
}

void hold_word(cu_stream stream, const uint32_t *word, uint32_t value)
{
    pthread_mutex_lock(&lock);
    held_work *self = add(stream, 0);
    pthread_mutex_unlock(&lock);
    self->word = word;
    self->value = value;
    start(self);
}

bool hold_host(cu_stream stream, cu_host_fn run, void *context)
{
    pthread_mutex_lock(&lock);
    held_work *self = has_older(stream, NULL) ? add(stream, 0) : NULL;
    pthread_mutex_unlock(&lock);
    if (!self) return false;
    self->run = run;
    self->context = context;
    start(self);
    return true;
}

bool holds_kernels(cu_stream stream)
{
    pthread_mutex_lock(&lock);
    bool found = has_older(stream, NULL);
    pthread_mutex_unlock(&lock);
    return found;
}

void await_held_kernels(cu_stream stream)
{
    while (holds_kernels(stream))
        rest();
}

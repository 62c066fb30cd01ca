/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that their streams have not come to, in the driver that plays GPUs: a test holds them (desk.h). Each runs in
 * a thread of its own, behind those that its stream had before; copies and host functions do not wait for them. */
#include "fake.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct held_kernel {
    struct held_kernel *next; /* younger */
    cu_stream stream;
    cu_function function;
    int device;
    char arguments[];
} held_kernel;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static held_kernel *oldest; /* guarded by lock: those that have not run to their ends */

static void rest(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* On the stream, before that one; NULL: at all. With the lock. */
static bool has_older(cu_stream stream, const held_kernel *than)
{
    const held_kernel *one = oldest;
    while (one != than && one->stream != stream)
        one = one->next;
    return one != than;
}

static bool may_run(const held_kernel *self)
{
    pthread_mutex_lock(&lock);
    bool may = !atomic_load(&fake_desk_of()->hold) && !has_older(self->stream, self);
    pthread_mutex_unlock(&lock);
    return may;
}

static void forget(held_kernel *self)
{
    pthread_mutex_lock(&lock);
    held_kernel **place = &oldest;
    while (*place != self)
        place = &(*place)->next;
    *place = self->next;
    pthread_mutex_unlock(&lock);
    atomic_fetch_sub(&fake_desk_of()->held, 1);
    free(self);
}

static void *run_held(void *argument)
{
    held_kernel *self = argument;
    while (!may_run(self))
        rest();
    enter_device(self->device);
    run_kernel(self->function, self->arguments);
    forget(self);
    return NULL;
}

static void add(held_kernel *self)
{
    held_kernel **place = &oldest;
    while (*place)
        place = &(*place)->next;
    *place = self;
    atomic_fetch_add(&fake_desk_of()->held, 1);
}

bool hold_kernel(cu_stream stream, cu_function function, const void *arguments, bool *played)
{
    const size_t bytes = kernel_argument_bytes(function);
    pthread_mutex_lock(&lock);
    bool behind = atomic_load(&fake_desk_of()->hold) || has_older(stream, NULL);
    held_kernel *self = behind && bytes ? calloc(1, sizeof *self + bytes) : NULL;
    if (self) {
        self->stream = stream;
        self->function = function;
        self->device = current_device();
        memcpy(self->arguments, arguments, bytes);
        add(self);
    }
    pthread_mutex_unlock(&lock);
    pthread_t thread;
    *played = self != NULL;
    if (self && pthread_create(&thread, NULL, run_held, self)) abort();
    if (self) pthread_detach(thread);
    return behind;
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
    atomic_fetch_add(&fake_desk_of()->awaited, 1);
    while (holds_kernels(stream))
        rest();
    atomic_fetch_sub(&fake_desk_of()->awaited, 1);
}

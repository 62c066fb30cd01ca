/* SPDX-License-Identifier: Apache-2.0 */
/* Ends of calls that somebody is told of: by a host function on the stream, which the driver calls when the stream has
 * come there. Where the context is lost it never does; and something of the caller's may stand before it for ever. Then
 * whoever looks tells, in the latter case once the group has failed, or the executor when it goes. */
#include "base/interrupt.h"
#include "exec/cuda/gpu.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

/* Known to the driver, to the event that it finishes, and to whoever looks after that. */
typedef struct ending {
    gpu_executor *self;  /* guarded by lock; NULL: somebody tells, or has told, how the call ended */
    struct ending *next; /* guarded by lock */
    int64_t seen_ns;     /* when somebody who looks first saw that the group has failed; 0: not yet. Guarded by lock */
    uint64_t ticket;
    executor_done_fn done;
    void *context;
    atomic_int references; /* the driver's and the keeper's; who gives the last one back (acq_rel) frees it */
} ending;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static ending *all; /* guarded by lock: those that the driver has not come to yet; in a lost context it never does */
static gpu_executor *left_behind; /* guarded by lock: those whose kernels may still come */

static void drop(void *context)
{
    ending *end = context;
    if (atomic_fetch_sub_explicit(&end->references, 1, memory_order_acq_rel) == 1) free(end);
}

/* The executor, for the one who is to tell how the call ended; else NULL. It stays until one is taken off `endings`. */
static gpu_executor *claim(ending *end)
{
    pthread_mutex_lock(&lock);
    gpu_executor *self = end->self;
    end->self = NULL;
    pthread_mutex_unlock(&lock);
    return self;
}

static void endings_leave(gpu_executor *self)
{
    atomic_fetch_sub_explicit(&self->endings, 1, memory_order_release);
}

/* With this thread's last error: the driver does not come to it, or has not yet. */
static void tell_lost(gpu_executor *self, const ending *end, expar_status status)
{
    const ep_verdict none = {.rank = -1};
    end->done(end->context, status, &none, 0);
    endings_leave(self);
}

/* The memory that the call gives back may serve later ones: they follow it on the GPU all the same. */
static expar_status look_at_group(ending *end, const gpu_executor *self)
{
    pthread_mutex_lock(&lock);
    expar_status status = gpu_look_at_group(self, &end->seen_ns, "on the GPU");
    pthread_mutex_unlock(&lock);
    return status;
}

static void endings_look(void *context)
{
    ending *end = context;
    pthread_mutex_lock(&lock);
    gpu_executor *self = end->self;
    if (self) atomic_fetch_add_explicit(&self->endings, 1, memory_order_relaxed);
    pthread_mutex_unlock(&lock);
    if (!self) return;
    expar_status status = gpu_order_look(self);
    if (status == EXPAR_OK) status = look_at_group(end, self);
    if (status != EXPAR_OK && claim(end)) tell_lost(self, end, status);
    endings_leave(self);
}

static void ending_forget(ending *end)
{
    pthread_mutex_lock(&lock);
    ending **place = &all;
    while (*place != end)
        place = &(*place)->next;
    *place = end->next;
    pthread_mutex_unlock(&lock);
    drop(end);
}

static void end_of_call(void *context)
{
    ending *end = context;
    gpu_executor *self = claim(end);
    if (self) {
        ep_verdict verdict;
        int32_t dropped = gpu_verdict_read(self, end->ticket, &verdict);
        end->done(end->context, gpu_check(&self->base, "on the GPU"), &verdict, dropped);
        endings_leave(self);
    }
    ending_forget(end);
}

static ending *remember(gpu_executor *self, uint64_t ticket, executor_done_fn done, void *context)
{
    ending *end = malloc(sizeof *end);
    if (!end) return NULL;
    *end = (ending){.self = self, .ticket = ticket, .done = done, .context = context};
    atomic_init(&end->references, 2);
    atomic_fetch_add_explicit(&self->endings, 1, memory_order_relaxed);
    pthread_mutex_lock(&lock);
    end->next = all;
    all = end;
    pthread_mutex_unlock(&lock);
    return end;
}

/* The mark before the host function: streams that wait for the call need not wait for that. */
static expar_status put_end(const gpu_executor *self, const exec_call *call, ending *end, cuda_mark **mark)
{
    expar_status status = cuda_enter(self->device);
    if (status != EXPAR_OK) return status;
    status = cuda_mark_make(call->stream, mark);
    if (status == EXPAR_OK) status = CUDA_CALL(LaunchHostFunc, call->stream, end_of_call, end);
    cuda_leave();
    return status;
}

expar_status gpu_tell(executor *base, const exec_call *call, executor_done_fn done, void *context, event_keeper *keeper)
{
    gpu_executor *self = gpu_of(base);
    cuda_mark *mark = NULL;
    ending *end = remember(self, call->ticket, done, context);
    if (!end) return error_set(EXPAR_ERR_MEMORY, "no memory for the end of a call");
    expar_status status = put_end(self, call, end, &mark);
    if (status == EXPAR_OK) {
        *keeper = (event_keeper){.look = endings_look, .drop = drop, .context = end, .mark = mark};
        return EXPAR_OK;
    }
    cuda_mark_give(mark);
    endings_leave(self);
    ending_forget(end);
    drop(end);
    return status;
}

/* One that nobody has told yet. */
static ending *find_untold(const gpu_executor *self)
{
    pthread_mutex_lock(&lock);
    ending *end = all;
    while (end && end->self != self)
        end = end->next;
    if (end) atomic_fetch_add_explicit(&end->references, 1, memory_order_relaxed);
    pthread_mutex_unlock(&lock);
    return end;
}

static bool has_endings(const gpu_executor *self)
{
    return atomic_load_explicit(&self->endings, memory_order_acquire) > 0;
}

static void tell_untold(gpu_executor *self, expar_status code, const char *why)
{
    ending *end;
    while ((end = find_untold(self))) {
        if (claim(end)) tell_lost(self, end, error_set(code, "%s", why));
        drop(end);
    }
    while (has_endings(self))
        sched_yield();
}

void gpu_endings_close(gpu_executor *self)
{
    const int64_t end_ns = clock_ns() + self->sym->timeout_ms * 1000000;
    int64_t asked_ns = 0;
    while (has_endings(self) && clock_ns() < end_ns && gpu_order_look(self) == EXPAR_OK &&
           interrupt_look(&asked_ns, "the ends of calls") == EXPAR_OK)
        sched_yield();
    tell_untold(self, EXPAR_ERR_CUDA, "the buffer was destroyed before the GPU came to the end of the call");
}

/* For good, and so that whoever looks for lost memory finds it. */
static void leave_behind(gpu_executor *self)
{
    pthread_mutex_lock(&lock);
    self->left_next = left_behind;
    left_behind = self;
    pthread_mutex_unlock(&lock);
}

bool gpu_endings_abandon(gpu_executor *self, int64_t wait_ns)
{
    static const char why[] = "the buffer has been abandoned on this rank";
    if (gpu_order_has_ended(self, wait_ns)) return true;
    gpu_end_waits(self, error_set(EXPAR_ERR_ABORTED, why));
    if (gpu_order_has_ended(self, wait_ns)) return true;
    tell_untold(self, EXPAR_ERR_ABORTED, why);
    leave_behind(self);
    return false;
}

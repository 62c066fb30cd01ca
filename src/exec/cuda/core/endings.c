/* SPDX-License-Identifier: Apache-2.0 */
/* Reports the ends of calls to those who asked. It puts no host function on the stream, since that would delay the work
 * after it. A call has ended if a later call of the buffer has opened, as that call's kernel says in pinned memory. A
 * call has also ended if the driver says that the mark after it has passed.
 *
 * A thread that waits for a call's event asks about its mark. For calls that nobody asks about, the guard asks at each
 * beat (guard.c), and the next call reads what kernels have told.
 *
 * If the context is lost, the thread that looks reports that. If other work on the caller's stream never ends, it
 * reports the call as lost once the group has failed. When the executor ends, it reports all calls that are left. */
#include "base/interrupt.h"
#include "exec/cuda/core/gpu.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

/* The executor knows it until its end is reported. The event that it finishes knows it, too. */
typedef struct gpu_ending {
    gpu_core *self;          /* Guarded by lock; NULL: a thread reports, or has reported, how the call ended */
    struct gpu_ending *next; /* guarded by lock */
    int64_t seen_ns;         /* Guarded by lock. When a look first saw that the group has failed; 0: not yet */
    uint64_t ticket;
    cuda_mark *mark; /* after the call */
    executor_done_fn done;
    void *context;
    atomic_int references; /* One of the executor, one of the keeper. Dropping the last one (acq_rel) frees the
                              object */
} gpu_ending;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static gpu_core *left_behind; /* guarded by lock: executors whose kernels may still run */

static void drop(void *context)
{
    gpu_ending *end = context;
    if (atomic_fetch_sub_explicit(&end->references, 1, memory_order_acq_rel) > 1) return;
    cuda_mark_give(end->mark);
    free(end);
}

static void hold(gpu_ending *end)
{
    atomic_fetch_add_explicit(&end->references, 1, memory_order_relaxed);
}

/* The caller holds the lock. */
static void unlink_ending(gpu_core *self, gpu_ending *end)
{
    gpu_ending **place = &self->first_ending;
    while (*place != end)
        place = &(*place)->next;
    *place = end->next;
    if (!*place) self->last_ending = place;
}

/* Claims the right to report how the call ended. Returns the executor and takes over its reference, or returns NULL if
   another thread has claimed it. The executor stays until one is subtracted from `endings`. */
static gpu_core *claim(gpu_ending *end)
{
    pthread_mutex_lock(&lock);
    gpu_core *self = end->self;
    end->self = NULL;
    if (self) unlink_ending(self, end);
    pthread_mutex_unlock(&lock);
    return self;
}

bool gpu_endings_enter(gpu_core *self)
{
    if (atomic_fetch_add_explicit(&self->endings, 1, memory_order_relaxed) > 0) return true;
    gpu_endings_leave(self);
    return false;
}

void gpu_endings_leave(gpu_core *self)
{
    atomic_fetch_sub_explicit(&self->endings, 1, memory_order_release);
}

/* ---- telling ----------------------------------------------------------------------------------------------------- */

/* Reports that the call has ended on the GPU. */
static void tell_ended(gpu_ending *end)
{
    gpu_core *self = claim(end);
    if (!self) return;
    ep_vote vote;
    int32_t dropped;
    expar_status status = gpu_ending_read(self, end->ticket, &vote, &dropped);
    end->done(end->context, status, &vote, dropped);
    drop(end);
    gpu_endings_leave(self);
}

/* Reports this thread's last error as the call's end: the GPU has not run the call, and may never do so. */
static void tell_lost(gpu_ending *end, expar_status status)
{
    gpu_core *self = claim(end);
    if (!self) return;
    const ep_vote none = {.rank = -1};
    end->done(end->context, status, &none, 0);
    drop(end);
    gpu_endings_leave(self);
}

/* A call that is reported as lost gives memory back. Later calls may use it, since they follow this call on the GPU. */
static expar_status look_at_group(gpu_ending *end, const gpu_core *self)
{
    pthread_mutex_lock(&lock);
    expar_status status = gpu_look_at_group(self, &end->seen_ns, "on the GPU");
    pthread_mutex_unlock(&lock);
    return status;
}

/* Asks the driver about the mark. False: the call is still running. */
static bool look(gpu_ending *end, const gpu_core *self)
{
    bool passed = false;
    expar_status status = cuda_mark_query(end->mark, &passed);
    if (passed) {
        tell_ended(end);
        return true;
    }
    if (status == EXPAR_OK) status = look_at_group(end, self);
    if (status != EXPAR_OK) tell_lost(end, status);
    return status != EXPAR_OK;
}

/* event_keeper.look */
static void endings_look(void *context)
{
    gpu_ending *end = context;
    pthread_mutex_lock(&lock);
    gpu_core *self = end->self;
    if (self) atomic_fetch_add_explicit(&self->endings, 1, memory_order_relaxed);
    pthread_mutex_unlock(&lock);
    if (!self) return;
    look(end, self);
    gpu_endings_leave(self);
}

/* ---- those of an executor ---------------------------------------------------------------------------------------- */

/* Returns the oldest call whose end is not reported yet, with a reference. */
static gpu_ending *first_untold(const gpu_core *self)
{
    pthread_mutex_lock(&lock);
    gpu_ending *end = self->first_ending;
    if (end) hold(end);
    pthread_mutex_unlock(&lock);
    return end;
}

/* A call of the buffer opens only after all earlier ones have ended. */
static bool ending_is_over(const gpu_core *self, const gpu_ending *end)
{
    return end->ticket < __atomic_load_n(&self->report->opened, __ATOMIC_ACQUIRE);
}

void gpu_endings_reap(gpu_core *self, bool all)
{
    if (!gpu_endings_enter(self)) return;
    bool goes_on = true;
    const bool asks = all || gpu_has_told(self);
    while (goes_on) {
        gpu_ending *end = first_untold(self);
        if (!end) break;
        const bool over = ending_is_over(self, end);
        if (over) tell_ended(end);
        goes_on = over || (asks && look(end, self));
        drop(end);
    }
    gpu_endings_leave(self);
}

static void remember(gpu_core *self, gpu_ending *end)
{
    atomic_fetch_add_explicit(&self->endings, 1, memory_order_relaxed);
    pthread_mutex_lock(&lock);
    if (!self->first_ending) self->last_ending = &self->first_ending;
    *self->last_ending = end;
    self->last_ending = &end->next;
    pthread_mutex_unlock(&lock);
    gpu_guard_note_told(self);
}

expar_status gpu_tell(executor *base, const exec_call *call, executor_done_fn done, void *context, event_keeper *keeper)
{
    gpu_core *self = gpu_core_of(base);
    cuda_mark *mark = NULL;
    gpu_endings_reap(self, false);
    gpu_ending *end = malloc(sizeof *end);
    if (!end) return error_set(EXPAR_ERR_MEMORY, "no memory for the end of a call");
    expar_status status = cuda_enter(self->device);
    if (status == EXPAR_OK) {
        status = cuda_mark_make_in(self->device, call->stream, call->captured ? call->capture : 0, &mark);
        cuda_leave();
    }
    if (status != EXPAR_OK) {
        free(end);
        return status;
    }
    *end = (gpu_ending){.self = self, .ticket = call->ticket, .mark = mark, .done = done, .context = context};
    atomic_init(&end->references, 2);
    cuda_mark_hold(mark);
    *keeper = (event_keeper){.look = endings_look, .drop = drop, .context = end, .mark = mark};
    remember(self, end);
    return EXPAR_OK;
}

/* ---- the end of an executor -------------------------------------------------------------------------------------- */

static bool has_endings(const gpu_core *self)
{
    return atomic_load_explicit(&self->endings, memory_order_acquire) > 0;
}

static void tell_untold(gpu_core *self, expar_status code, const char *why)
{
    gpu_ending *end;
    while ((end = first_untold(self))) {
        tell_lost(end, error_set(code, "%s", why));
        drop(end);
    }
    while (has_endings(self))
        sched_yield();
}

void gpu_endings_close(gpu_core *self)
{
    const int64_t end_ns = clock_ns() + self->sym->timeout_ms * 1000000;
    int64_t asked_ns = 0;
    while (has_endings(self) && clock_ns() < end_ns && gpu_order_look(self) == EXPAR_OK &&
           interrupt_look(&asked_ns, "the ends of calls") == EXPAR_OK) {
        gpu_endings_reap(self, true);
        sched_yield();
    }
    tell_untold(self, EXPAR_ERR_CUDA, "the buffer was destroyed before the GPU came to the end of the call");
}

/* Keeps the executor for ever, in a list where leak checkers find it. */
static void leave_behind(gpu_core *self)
{
    pthread_mutex_lock(&lock);
    self->left_next = left_behind;
    left_behind = self;
    pthread_mutex_unlock(&lock);
}

bool gpu_endings_abandon(gpu_core *self, int64_t wait_ns)
{
    static const char why[] = "the buffer has been abandoned on this rank";
    if (gpu_order_has_ended(self, wait_ns)) return true;
    gpu_end_waits(self, error_set(EXPAR_ERR_ABORTED, why));
    if (gpu_order_has_ended(self, wait_ns)) return true;
    tell_untold(self, EXPAR_ERR_ABORTED, why);
    leave_behind(self);
    return false;
}

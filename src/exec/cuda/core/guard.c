/* SPDX-License-Identifier: Apache-2.0 */
/* The guard is a host thread for the waits of kernels, since kernels cannot ask their peers for their state. Each rank
 * has one while it has buffers on GPUs.
 *
 * It moves the pulse of each buffer on. A kernel whose wait lasts from one pulse to another says in pinned memory which
 * rank it awaits, for what, and in which call. So short waits say nothing. Graphs speak as calls do, although the host
 * does not know of their launches.
 *
 * At each beat the guard looks at the awaited ranks, as a wait of the host does (boot_wait). While they answer, the
 * kernel waits on. If nobody will end the wait, the guard keeps the reason and makes the buffer's kernels leave by the
 * abort word.
 *
 * The guard sleeps when no call is pending and no captured graph can be launched. It stays awake for a while after the
 * last call, so that calls in quick succession need not wake it. */
#include "base/knobs.h"
#include "exec/cuda/core/gpu.h"
#include "group/group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The most buffers whose ends of calls are reported in one beat. */
#define MOST_TOLD 16

struct gpu_guard {
    group_attachment attachment;
    pthread_t thread; /* runs while there are executors */
    pthread_mutex_t lock;
    pthread_cond_t change;
    gpu_core *first; /* guarded by lock, which the guard holds while it looks at the buffers */
    bool closing;    /* guarded by lock */
    /* When the guard last had something to do. Only its thread uses it. */
    int64_t active_ns;
    /* The guard sleeps or is about to. Its thread sets it before it looks once more. A thread that begins or ends a
       call reads it after its change to what the guard looks at. Both sides are sequentially consistent. */
    atomic_bool sleeping;
};

/* ---- what kernels say -------------------------------------------------------------------------------------------- */

static uint64_t beats_of(const gpu_core *self)
{
    return gpu_orders_beat(__atomic_load_n(&self->report->orders, __ATOMIC_RELAXED));
}

static gpu_awaited await_of(const gpu_core *self, int32_t rank)
{
    return gpu_await_read(__atomic_load_n(&self->watch.awaits[rank], __ATOMIC_RELAXED));
}

/* Says whether the wait is still going on. A kernel that waits speaks at every beat. Where processes share a GPU in
   turns, it may not run for some beats. Its wait then goes on, but the guard does not look at it. */
static bool is_fresh(const gpu_core *self, const gpu_awaited *await)
{
    return await->wait != GPU_WAIT_NONE &&
           ((beats_of(self) - await->beat) & GPU_BEAT_MASK) < knob_count(KNOB_CUDA_GUARD_FRESH_BEATS);
}

/* Finds the lasting wait that spoke last. False: there is none. */
static bool find_await(const gpu_core *self, gpu_awaited *out)
{
    const uint64_t fresh = knob_count(KNOB_CUDA_GUARD_FRESH_BEATS);
    uint64_t least = fresh;
    for (int32_t r = 0; r < self->sym->size; r++) {
        const gpu_awaited await = await_of(self, r);
        const uint64_t age = (beats_of(self) - await.beat) & GPU_BEAT_MASK;
        if (r == self->sym->rank || !is_fresh(self, &await) || age >= least) continue;
        least = age;
        *out = await;
    }
    return least < fresh;
}

static bool guard_is_awaited(const void *context, int32_t rank)
{
    const gpu_core *self = context;
    const gpu_awaited await = await_of(self, rank);
    return is_fresh(self, &await) && await.epoch == self->watch.epoch;
}

/* ---- one beat ---------------------------------------------------------------------------------------------------- */

static const char *const what_is_awaited[] = {"a kernel",
                                              "headers on the GPU",
                                              "advertisements on the GPU",
                                              "ends of rows on the GPU",
                                              "free slots on the GPU",
                                              "rows on the GPU",
                                              "low-latency dispatch: message headers on the GPU",
                                              "low-latency dispatch: acknowledgements of earlier rows on the GPU",
                                              "low-latency dispatch: rows on the GPU",
                                              "low-latency dispatch: weights on the GPU",
                                              "low-latency combine: message headers on the GPU",
                                              "low-latency combine: acknowledgements of earlier rows on the GPU",
                                              "low-latency combine: rows on the GPU",
                                              "low-latency combine: weights on the GPU"};

/* Calls get topics of their own only where hosts and GPUs count them alike. They do not in buffers with graphs: replays
   move the epoch, captured calls do not. They do not in low-latency mode either, where kernels count each kind
   separately. All calls of such a buffer share one topic. */
static boot_topic topic_of(const gpu_core *self, uint32_t epoch)
{
    const bool alike =
        self->topic_kind == BOOT_KIND_BUFFER && !atomic_load_explicit(&self->watch.in_graphs, memory_order_relaxed);
    const boot_kind kind = (boot_kind)self->topic_kind;
    const uint64_t number = alike ? epoch : boot_graph_number(self->sym->boot, kind, self->number);
    return (boot_topic){.kind = self->topic_kind, .object = self->number, .number = number};
}

static void guard_end_wait(gpu_core *self)
{
    gpu_watch *watch = &self->watch;
    if (watch->waits) boot_wait_end(&watch->wait);
    watch->waits = false;
}

static void guard_begin_wait(gpu_core *self, const gpu_awaited *await)
{
    gpu_watch *watch = &self->watch;
    const boot_topic topic = topic_of(self, await->epoch);
    boot_wait_begin(&watch->wait, self->sym->boot, &topic, what_is_awaited[await->wait]);
    watch->wait.for_caller = true;
    watch->wait.missed_alone = watch->wait.tolerant = self->lose != NULL;
    watch->wait.late_limit_ms = self->late_limit_ms;
    watch->wait.misses = guard_is_awaited;
    watch->wait.context = self;
    watch->epoch = await->epoch;
    watch->waits = true;
}

/* ---- without those who are lost ---------------------------------------------------------------------------------- */

/* Says whether the rank has died or left. A silent rank may answer again, so it does not count as gone. */
static bool guard_finds_gone(const gpu_core *self, int32_t rank)
{
    const uint8_t gone = atomic_load_explicit(&self->sym->gone[rank], memory_order_acquire);
    return gone == SYM_PEER_DIED || gone == SYM_PEER_LEFT;
}

/* Makes kernels go on without the ranks for which their wait has failed. */
static void lose_awaited(gpu_core *self)
{
    const boot_wait *wait = &self->watch.wait;
    char why[512];
    bool any = false;
    snprintf(why, sizeof why, "%s", expar_last_error());
    for (int32_t r = 0; r < self->sym->size; r++) {
        if (r == self->sym->rank || !guard_is_awaited(self, r)) continue;
        if (!guard_finds_gone(self, r) && !(wait->silent && wait->silent[r]) && wait->culprit != r) continue;
        self->lose(self, r, why);
        any = true;
    }
    /* Other ranks await the rank to blame, and the rank that this one awaits is held up by that. So this rank loses the
       awaited one. */
    for (int32_t r = 0; r < self->sym->size && !any; r++) {
        any = r != self->sym->rank && guard_is_awaited(self, r);
        if (any) self->lose(self, r, why);
    }
}

/* As sym_wait_look, but a rank that has died or left counts as lost. */
static expar_status look_tolerantly(gpu_core *self)
{
    const char *what = self->watch.wait.what;
    expar_status status = sym_check_self(self->sym, what);
    for (int32_t r = 0; r < self->sym->size && status == EXPAR_OK; r++)
        if (r != self->sym->rank && guard_is_awaited(self, r) && guard_finds_gone(self, r))
            status = error_set(EXPAR_ERR_PEER, "%s: rank %d died, or has left the group", what, r);
    if (status == EXPAR_OK) status = boot_wait_look(&self->watch.wait);
    if (status != EXPAR_ERR_PEER) return status;
    lose_awaited(self);
    guard_end_wait(self);
    return EXPAR_OK;
}

/* ---- looking ----------------------------------------------------------------------------------------------------- */

/* Ends the waits of the buffer's kernels, and tells others that this rank does not come to the call. */
static void guard_end_topic(gpu_core *self, expar_status status, uint64_t number)
{
    const boot_topic topic = {.kind = self->topic_kind, .object = self->number, .number = number};
    gpu_end_waits(self, status);
    boot_note_ended(self->sym->boot, &topic, status, expar_last_error());
}

/* True: kernels of this buffer wait, or did so until lately. */
static bool look_at_wait(gpu_core *self)
{
    gpu_watch *watch = &self->watch;
    gpu_awaited await;
    bool waits = !gpu_group_failed(self) && find_await(self, &await);
    if (!waits || (watch->waits && watch->epoch != await.epoch)) guard_end_wait(self);
    if (!waits) return false;
    if (await.beat != beats_of(self)) return true;
    if (!watch->waits) guard_begin_wait(self, &await);
    expar_status status = self->lose ? look_tolerantly(self) : sym_wait_look(self->sym, &watch->wait);
    if (status == EXPAR_OK) return true;
    guard_end_topic(self, status, watch->wait.topic.number);
    guard_end_wait(self);
    return true;
}

void gpu_guard_end_calls(gpu_core *self, expar_status status)
{
    if (!gpu_group_failed(self)) guard_end_topic(self, status, topic_of(self, 0).number);
}

/* Says whether the buffer's calls have ended. It asks the driver only while no kernel waits. If a kernel holds the
   driver up, as during a module's load, the question would block, and nobody else would look after that kernel. */
static bool is_settled(gpu_core *self)
{
    gpu_watch *watch = &self->watch;
    const unsigned marked = atomic_load(&watch->marked);
    if (atomic_load(&watch->begun) != marked) return false;
    if (watch->settled == marked) return true;
    if (!gpu_order_has_ended(self, 0)) return false;
    watch->settled = marked;
    return true;
}

/* True: there is more to do for this buffer. */
static bool beat(gpu_core *self)
{
    bool waits = look_at_wait(self);
    if (self->look) self->look(self);
    if (self->segments) gpu_segments_serve(self->segments);
    /* Kernels that see the new pulse also see which ranks were lost before it. */
    __atomic_fetch_add(&self->report->orders, GPU_BEAT, __ATOMIC_RELEASE);
    if (waits || atomic_load_explicit(&self->watch.in_graphs, memory_order_relaxed)) return true;
    return !is_settled(self);
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */

static bool is_idle(const gpu_core *self)
{
    const gpu_watch *watch = &self->watch;
    return atomic_load(&watch->begun) == watch->settled && atomic_load(&watch->marked) == watch->settled;
}

/* Does not ask the driver. The caller holds the lock. */
static bool has_work(const gpu_guard *guard)
{
    for (const gpu_core *one = guard->first; one; one = one->watch.next)
        if (!is_idle(one) || atomic_load_explicit(&one->watch.in_graphs, memory_order_relaxed) ||
            atomic_load_explicit(&one->endings, memory_order_relaxed) > 0)
            return true;
    return false;
}

/* Reports ends of calls without the lock, since a thread that hears of one may destroy a buffer. The caller holds the
   lock, which is released meanwhile. */
static void tell_ends(gpu_guard *guard)
{
    gpu_core *these[MOST_TOLD];
    int count = 0;
    for (gpu_core *one = guard->first; one && count < MOST_TOLD; one = one->watch.next)
        if (gpu_endings_enter(one)) these[count++] = one;
    if (!count) return;
    pthread_mutex_unlock(&guard->lock);
    for (int i = 0; i < count; i++) {
        gpu_endings_reap(these[i], true);
        gpu_endings_leave(these[i]);
    }
    pthread_mutex_lock(&guard->lock);
}

static void rest_for(gpu_guard *guard, int64_t span_ns)
{
    const int64_t end_ns = clock_ns() + span_ns;
    const struct timespec end = {.tv_sec = end_ns / 1000000000, .tv_nsec = end_ns % 1000000000};
    pthread_cond_timedwait(&guard->change, &guard->lock, &end);
}

static void sleep_until_called(gpu_guard *guard)
{
    atomic_store(&guard->sleeping, true);
    while (!guard->closing && !has_work(guard))
        pthread_cond_wait(&guard->change, &guard->lock);
    atomic_store(&guard->sleeping, false);
    guard->active_ns = clock_ns();
}

static void *guard_main(void *argument)
{
    gpu_guard *guard = argument;
    pthread_mutex_lock(&guard->lock);
    guard->active_ns = clock_ns();
    while (!guard->closing) {
        bool busy = false;
        for (gpu_core *one = guard->first; one; one = one->watch.next)
            busy |= beat(one);
        tell_ends(guard);
        if (busy) guard->active_ns = clock_ns();
        if (busy || clock_ns() - guard->active_ns < knob(KNOB_CUDA_GUARD_LINGER_NS))
            rest_for(guard, knob(KNOB_CUDA_GUARD_BEAT_NS));
        else
            sleep_until_called(guard);
    }
    pthread_mutex_unlock(&guard->lock);
    return NULL;
}

static void wake(gpu_guard *guard)
{
    if (!atomic_load(&guard->sleeping)) return;
    pthread_mutex_lock(&guard->lock);
    pthread_cond_signal(&guard->change);
    pthread_mutex_unlock(&guard->lock);
}

void gpu_guard_note_begin(gpu_core *self)
{
    atomic_fetch_add(&self->watch.begun, 1);
    wake(self->watch.guard);
}

void gpu_guard_note_end(gpu_core *self)
{
    atomic_fetch_add(&self->watch.marked, 1);
    wake(self->watch.guard);
}

void gpu_guard_note_told(gpu_core *self)
{
    wake(self->watch.guard);
}

void gpu_guard_note_captured(gpu_core *self)
{
    atomic_store_explicit(&self->watch.in_graphs, true, memory_order_relaxed);
}

bool gpu_guard_sees_wait(const gpu_core *self)
{
    gpu_guard *guard = self->watch.guard;
    gpu_awaited await;
    pthread_mutex_lock(&guard->lock);
    const gpu_core *one = guard->first;
    while (one && !find_await(one, &await))
        one = one->watch.next;
    pthread_mutex_unlock(&guard->lock);
    return one != NULL;
}

/* ---- with the buffer --------------------------------------------------------------------------------------------- */

/* All buffers are destroyed before the group, and the thread ended with the last of them. */
static void guard_end(group_attachment *attachment)
{
    gpu_guard *guard = (gpu_guard *)attachment;
    pthread_cond_destroy(&guard->change);
    pthread_mutex_destroy(&guard->lock);
    free(guard);
}

/* Returns the group's guard; NULL: out of memory. */
static gpu_guard *guard_of(expar_group *group)
{
    gpu_guard *guard = (gpu_guard *)group_kept(group, guard_end);
    if (guard || !(guard = calloc(1, sizeof *guard))) return guard;
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&guard->lock, NULL);
    pthread_cond_init(&guard->change, &clock);
    pthread_condattr_destroy(&clock);
    guard->attachment.end = guard_end;
    group_keep(group, &guard->attachment);
    return guard;
}

expar_status gpu_guard_hold(gpu_core *self)
{
    gpu_guard *guard = guard_of(self->group);
    if (!guard) return error_set(EXPAR_ERR_MEMORY, "CUDA executor: no memory");
    pthread_mutex_lock(&guard->lock);
    bool first = !guard->first;
    self->watch.guard = guard;
    self->watch.next = guard->first;
    guard->first = self;
    pthread_mutex_unlock(&guard->lock);
    if (!first) return EXPAR_OK;
    guard->closing = false;
    int error = pthread_create(&guard->thread, NULL, guard_main, guard);
    if (error == 0) return EXPAR_OK;
    guard->first = NULL;
    self->watch.guard = NULL;
    return error_set(EXPAR_ERR_SYSTEM, "cannot start the thread that looks after kernels' waits: %s", strerror(error));
}

void gpu_guard_release(gpu_core *self)
{
    gpu_guard *guard = self->watch.guard;
    if (!guard) return;
    self->watch.guard = NULL;
    pthread_mutex_lock(&guard->lock);
    gpu_core **place = &guard->first;
    while (*place != self)
        place = &(*place)->watch.next;
    *place = self->watch.next;
    guard_end_wait(self);
    const bool last = guard->closing = !guard->first;
    pthread_cond_signal(&guard->change);
    pthread_mutex_unlock(&guard->lock);
    if (last) pthread_join(guard->thread, NULL);
}

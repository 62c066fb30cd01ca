/* SPDX-License-Identifier: Apache-2.0 */
/* The delaying and reordering shim.
 *
 * Puts and atomics without a result are kept, with a copy of what the caller may change, until their time has come; a
 * thread carries out whichever is due. A fence raises the epoch of what comes after it: nothing starts before all of
 * earlier epochs to the same PE has been carried out and is complete. Calls that wait do so after a
 * delay of their own. */
#include "shim.h"
#include "base/interrupt.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* An operation that waits for its time. */
typedef struct kept {
    struct kept *next;
    transport_request request;
    transport_batch *batch;
    int64_t due_ns;
    uint64_t epoch;
    bool running;
    uint8_t copy[]; /* of the source, when request.source points here */
} kept;

typedef struct shim {
    transport base; /* first */
    transport *inner;
    const transport_site *site;
    shim_plan plan;
    pthread_t thread;
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    kept *list;
    uint64_t epoch, random;
    uint32_t posts;
    expar_status failed; /* the first that a kept operation without a batch ended with; told by quiet */
    bool stops, held;
} shim;

static shim *shim_of(const transport *self)
{
    return (shim *)(uintptr_t)self;
}

/* A linear congruential step; the upper bits are random enough to shuffle by. */
static uint64_t draw(shim *s)
{
    s->random = s->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return s->random >> 33;
}

static int64_t draw_delay(shim *s)
{
    if (s->plan.rarest_ns > 0 && draw(s) % 16 == 0) return (int64_t)(draw(s) * 4099 % (uint64_t)s->plan.rarest_ns);
    return s->plan.longest_ns > 0 ? (int64_t)(draw(s) * 4099 % (uint64_t)s->plan.longest_ns) : 0;
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */

static bool is_held_back(const shim *s, const kept *k)
{
    for (const kept *other = s->list; other; other = other->next)
        if (other->request.pe == k->request.pe && other->epoch < k->epoch) return true;
    return false;
}

static uint64_t oldest_epoch(const shim *s)
{
    uint64_t oldest = UINT64_MAX;
    for (const kept *k = s->list; k; k = k->next)
        if (k->epoch < oldest) oldest = k->epoch;
    return oldest;
}

/* The one with the earliest time among those that may start; NULL: there is none. */
static kept *find_next(const shim *s)
{
    kept *best = NULL;
    uint64_t oldest = oldest_epoch(s);
    for (kept *k = s->list; k; k = k->next)
        if (!k->running && (!best || k->due_ns < best->due_ns) && (k->epoch == oldest || !is_held_back(s, k))) best = k;
    return best;
}

static void unlink_kept(shim *s, kept *k)
{
    kept **at = &s->list;
    while (*at != k)
        at = &(*at)->next;
    *at = k->next;
}

/* Gives the core to others, and sleeps where the answer is long in coming. */
static void leave_core(uint32_t turn)
{
    enum { YIELDS = 32 };
    if (turn < YIELDS)
        sched_yield();
    else
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
}

/* Complete at its target when it returns. */
static expar_status carry_out(shim *s, const transport_request *request)
{
    transport *inner = s->inner;
    transport_batch batch = {0};
    uint32_t turn = 0;
    expar_status status = transport_post(inner, s->site, request, &batch);
    while (status == EXPAR_OK && atomic_load_explicit(&batch.left, memory_order_acquire) > 0) {
        status = s->site->check(s->site->context, request->pe, "shim");
        if (!inner->ops->progress || !inner->ops->progress(inner)) leave_core(turn++);
    }
    if (status != EXPAR_OK) return status;
    return (expar_status)atomic_load_explicit(&batch.status, memory_order_relaxed);
}

static void finish(shim *s, kept *k, expar_status status)
{
    unlink_kept(s, k);
    if (status != EXPAR_OK && !k->batch && s->failed == EXPAR_OK) s->failed = status;
    if (k->batch) {
        if (status != EXPAR_OK) atomic_store_explicit(&k->batch->status, (int32_t)status, memory_order_relaxed);
        atomic_fetch_sub_explicit(&k->batch->left, 1, memory_order_release);
    }
    free(k);
    pthread_cond_broadcast(&s->changed);
    if (s->site->arrived) s->site->arrived(s->site->context);
}

static void sleep_until(shim *s, int64_t due_ns)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    int64_t ns = until.tv_nsec + (due_ns - clock_ns());
    until.tv_sec += ns / 1000000000;
    until.tv_nsec = ns % 1000000000;
    if (ns > 0) pthread_cond_timedwait(&s->changed, &s->lock, &until);
}

static void *run(void *argument)
{
    shim *s = argument;
    pthread_mutex_lock(&s->lock);
    while (!s->stops) {
        kept *next = s->held ? NULL : find_next(s);
        if (!next) {
            pthread_cond_wait(&s->changed, &s->lock);
        } else if (next->due_ns > clock_ns()) {
            sleep_until(s, next->due_ns);
        } else {
            next->running = true;
            pthread_mutex_unlock(&s->lock);
            expar_status status = carry_out(s, &next->request);
            pthread_mutex_lock(&s->lock);
            finish(s, next, status);
        }
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

static expar_status keep(shim *s, const transport_request *request, transport_batch *batch, bool copies)
{
    kept *k = malloc(sizeof *k + (copies ? request->bytes : 0));
    if (!k) return error_set(EXPAR_ERR_MEMORY, "shim: no memory for an operation of %zu bytes", request->bytes);
    *k = (kept){.request = *request, .batch = batch};
    if (copies && request->bytes > 0) memcpy(k->copy, request->source, request->bytes);
    if (copies) k->request.source = k->copy;
    if (batch) atomic_fetch_add_explicit(&batch->left, 1, memory_order_relaxed);
    pthread_mutex_lock(&s->lock);
    k->due_ns = clock_ns() + draw_delay(s);
    if ((request->signals || request->flagged) && request->bytes >= s->plan.row_bytes) k->due_ns += s->plan.rows_ns;
    k->epoch = s->epoch;
    k->next = s->list;
    s->list = k;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return EXPAR_OK;
}

static expar_status shim_post(transport *self, const transport_request *request, transport_batch *batch)
{
    shim *s = shim_of(self);
    pthread_mutex_lock(&s->lock);
    bool busy = s->plan.busy_every > 0 && ++s->posts % s->plan.busy_every == 0;
    pthread_mutex_unlock(&s->lock);
    return busy ? EXPAR_ERR_BUSY : keep(s, request, batch, request->copies);
}

static kept *find_of_batch(const shim *s, const transport_batch *batch)
{
    kept *k = s->list;
    while (k && k->batch != batch)
        k = k->next;
    return k;
}

/* Operations that have started are completed first. */
static void drop_batch(shim *s, const transport_batch *batch)
{
    for (kept *k = find_of_batch(s, batch); k; k = find_of_batch(s, batch)) {
        if (k->running)
            pthread_cond_wait(&s->changed, &s->lock);
        else
            finish(s, k, EXPAR_ERR_PEER);
    }
}

static void shim_drop(transport *self, int32_t pe, transport_batch *batch)
{
    shim *s = shim_of(self);
    (void)pe;
    pthread_mutex_lock(&s->lock);
    drop_batch(s, batch);
    pthread_mutex_unlock(&s->lock);
}

/* For calls that wait. */
static void delay(shim *s)
{
    pthread_mutex_lock(&s->lock);
    int64_t delay_ns = draw_delay(s);
    pthread_mutex_unlock(&s->lock);
    nanosleep(&(struct timespec){.tv_sec = delay_ns / 1000000000, .tv_nsec = delay_ns % 1000000000}, NULL);
}

static bool holds_epoch_before(const shim *s, int32_t pe, uint64_t epoch)
{
    for (const kept *k = s->list; k; k = k->next)
        if (k->request.pe == pe && k->epoch < epoch) return true;
    return false;
}

/* Waits until nothing of earlier epochs to pe is kept. */
static void await_epoch(shim *s, int32_t pe, uint64_t epoch)
{
    pthread_mutex_lock(&s->lock);
    while (holds_epoch_before(s, pe, epoch))
        pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

static uint64_t next_epoch(shim *s)
{
    pthread_mutex_lock(&s->lock);
    uint64_t epoch = ++s->epoch;
    pthread_mutex_unlock(&s->lock);
    return epoch;
}

static uint64_t epoch_now(shim *s)
{
    pthread_mutex_lock(&s->lock);
    uint64_t epoch = s->epoch;
    pthread_mutex_unlock(&s->lock);
    return epoch;
}

static expar_status shim_run(transport *self, const transport_request *request)
{
    shim *s = shim_of(self);
    const bool is_put = request->kind == TRANSPORT_KIND_PUT;
    if (is_put || !request->dest) return keep(s, request, NULL, is_put);
    await_epoch(s, request->pe, epoch_now(s));
    delay(s);
    return s->inner->ops->run(s->inner, request);
}

static expar_status shim_fence(transport *self)
{
    shim *s = shim_of(self);
    next_epoch(s);
    return s->inner->ops->fence(s->inner);
}

/* Those of batches are settled apart. */
static bool keeps_plain(const shim *s)
{
    for (const kept *k = s->list; k; k = k->next)
        if (!k->batch) return true;
    return false;
}

static expar_status shim_quiet(transport *self)
{
    shim *s = shim_of(self);
    next_epoch(s);
    pthread_mutex_lock(&s->lock);
    while (keeps_plain(s))
        pthread_cond_wait(&s->changed, &s->lock);
    expar_status failed = s->failed;
    s->failed = EXPAR_OK;
    pthread_mutex_unlock(&s->lock);
    if (failed != EXPAR_OK) return error_set(failed, "quiet: a delayed operation failed");
    return s->inner->ops->quiet(s->inner);
}

/* A caller that gives up drops operations that have not been carried out by then. */
static expar_status shim_settle(transport *self, transport_batch *batch)
{
    shim *s = shim_of(self);
    int64_t asked_ns = 0;
    expar_status status = EXPAR_OK;
    pthread_mutex_lock(&s->lock);
    while (status == EXPAR_OK && find_of_batch(s, batch)) { /* others' operations may be in it, too */
        sleep_until(s, clock_ns() + INTERRUPT_NS);
        pthread_mutex_unlock(&s->lock);
        status = interrupt_look(&asked_ns, "quiet");
        pthread_mutex_lock(&s->lock);
    }
    drop_batch(s, batch);
    pthread_mutex_unlock(&s->lock);
    const expar_status failed = (expar_status)atomic_exchange(&batch->status, EXPAR_OK);
    if (status != EXPAR_OK || failed == EXPAR_OK) return status;
    return error_set(failed, "quiet: a delayed operation failed");
}

/* ---- passed through ---------------------------------------------------------------------------------------------- */

static expar_status shim_add(transport *self, transport_memory memory)
{
    transport *inner = shim_of(self)->inner;
    return inner->ops->add ? inner->ops->add(inner, memory) : EXPAR_OK;
}

static expar_status shim_grow(transport *self, transport_memory memory, uint64_t offset, uint64_t bytes)
{
    transport *inner = shim_of(self)->inner;
    return inner->ops->grow ? inner->ops->grow(inner, memory, offset, bytes) : EXPAR_OK;
}

static expar_status shim_register_own(transport *self, void *address, uint64_t bytes)
{
    transport *inner = shim_of(self)->inner;
    return inner->ops->register_own ? inner->ops->register_own(inner, address, bytes) : EXPAR_OK;
}

static void shim_unregister_own(transport *self, const void *address)
{
    transport *inner = shim_of(self)->inner;
    if (inner->ops->unregister_own) inner->ops->unregister_own(inner, address);
}

/* No loads and stores: they would pass the delays by. */
static unsigned shim_reach(const transport *self, int32_t pe, transport_memory memory)
{
    const transport *inner = shim_of(self)->inner;
    return inner->ops->reach(inner, pe, memory) & ~(unsigned)TRANSPORT_MAP;
}

static void *shim_map(const transport *self, int32_t pe, transport_memory memory, uint64_t offset)
{
    (void)self;
    (void)pe;
    (void)memory;
    (void)offset;
    return NULL;
}

static bool shim_progress(transport *self)
{
    transport *inner = shim_of(self)->inner;
    return inner->ops->progress ? inner->ops->progress(inner) : false;
}

static void shim_close(transport *self)
{
    shim *s = shim_of(self);
    pthread_mutex_lock(&s->lock);
    s->stops = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    while (s->list) {
        kept *k = s->list;
        s->list = k->next;
        free(k);
    }
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    s->inner->ops->close(s->inner);
    free(s);
}

static const transport_ops shim_ops = {
    .name = "shim",
    .add = shim_add,
    .grow = shim_grow,
    .register_own = shim_register_own,
    .unregister_own = shim_unregister_own,
    .reach = shim_reach,
    .map = shim_map,
    .run = shim_run,
    .post = shim_post,
    .drop = shim_drop,
    .fence = shim_fence,
    .quiet = shim_quiet,
    .settle = shim_settle,
    .progress = shim_progress,
    .close = shim_close,
};

void shim_hold(transport *self, bool held)
{
    shim *s = shim_of(self);
    pthread_mutex_lock(&s->lock);
    s->held = held;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

size_t shim_count(transport *self)
{
    shim *s = shim_of(self);
    size_t count = 0;
    pthread_mutex_lock(&s->lock);
    for (const kept *k = s->list; k; k = k->next)
        count++;
    pthread_mutex_unlock(&s->lock);
    return count;
}

expar_status shim_open(transport *inner, const transport_site *site, const shim_plan *plan, transport **out)
{
    shim *s = calloc(1, sizeof *s);
    if (!s) return error_set(EXPAR_ERR_MEMORY, "shim: no memory");
    *s = (shim){.base.ops = &shim_ops, .inner = inner, .site = site, .plan = *plan, .random = plan->seed};
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    if (pthread_create(&s->thread, NULL, run, s) != 0) {
        free(s);
        return error_set(EXPAR_ERR_SYSTEM, "shim: its thread cannot be started");
    }
    *out = &s->base;
    return EXPAR_OK;
}

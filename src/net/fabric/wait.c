/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for one's own operations. Whoever waits makes the progress: spins, yields, then sleeps until something comes.
 */
#include "net/fabric/fabric.h"

#include <poll.h>
#include <sched.h>
#include <unistd.h>

#define YIELDS         4
#define FIRST_SLEEP_NS 1000000
#define LAST_SLEEP_NS  20000000

/* A wait in progress. */
typedef struct patience {
    fabric *f;
    const char *what;
    int32_t pe; /* who is waited for */
    uint32_t turn;
    int64_t since_ns; /* of the last thing that happened; 0 until the first reading */
} patience;

bool fabric_arm(fabric *f)
{
    struct fid *fids[FABRIC_MAX_CHANNELS];
    for (int32_t i = 0; i < f->num_channels; i++)
        fids[i] = &f->channels[i].cq->fid;
    return fi_trywait(f->fabric, fids, f->num_channels) == 0;
}

static void drain(int event)
{
    uint64_t count;
    while (read(event, &count, sizeof count) == sizeof count) {
    }
}

static void ring(int event)
{
    uint64_t one = 1;
    if (write(event, &one, sizeof one) != sizeof one) LOG(LOG_DEBUG, "fabric: an event is full, so it rings already");
}

void fabric_sleep(fabric *f, int64_t limit_ns, int extra_fd)
{
    struct pollfd polls[FABRIC_MAX_CHANNELS + 2];
    struct timespec limit = {.tv_sec = limit_ns / 1000000000, .tv_nsec = limit_ns % 1000000000};
    nfds_t count = (nfds_t)f->num_channels;
    for (int32_t i = 0; i < f->num_channels; i++)
        polls[i] = (struct pollfd){.fd = f->channels[i].wait_fd, .events = POLLIN};
    polls[count++] = (struct pollfd){.fd = f->nudge_event, .events = POLLIN};
    if (extra_fd >= 0) polls[count++] = (struct pollfd){.fd = extra_fd, .events = POLLIN};
    atomic_fetch_add_explicit(&f->sleepers, 1, memory_order_relaxed);
    ppoll(polls, count, &limit, NULL);
    atomic_fetch_sub_explicit(&f->sleepers, 1, memory_order_relaxed);
    drain(f->nudge_event);
}

void fabric_attend(fabric *f, int change)
{
    int32_t left = atomic_fetch_add(&f->attendants, change) + change;
    /* This thread may have taken what a sleeper waits for. */
    if (change < 0 && atomic_load_explicit(&f->sleepers, memory_order_relaxed) > 0) ring(f->nudge_event);
    if (left == 0 && (change == 0 || atomic_load(&f->naps))) ring(f->wake_event);
}

static expar_status lost(patience *p)
{
    fabric *f = p->f;
    fabric_channel *c = fabric_channel_of(f, p->pe);
    atomic_store_explicit(&f->lost[p->pe], FABRIC_LOST, memory_order_relaxed);
    pthread_mutex_lock(&c->lock);
    fabric_drop(c, p->pe, NULL);
    pthread_mutex_unlock(&c->lock);
    return error_set(EXPAR_ERR_PEER, "%s: rank %d did not answer for %lld ms", p->what, p->pe,
                     (long long)f->site->timeout_ms);
}

static expar_status turn(patience *p)
{
    fabric *f = p->f;
    if (fabric_progress(f)) {
        p->turn = 0;
        p->since_ns = 0;
        return EXPAR_OK;
    }
    uint32_t number = p->turn++;
    expar_status status = f->site->check(f->site->context, p->pe, p->what);
    if (status != EXPAR_OK || number < f->spins) return status;
    if (number < f->spins + YIELDS) {
        sched_yield();
        return EXPAR_OK;
    }
    int64_t now_ns = clock_ns(), limit_ns = FIRST_SLEEP_NS * (int64_t)(number - f->spins - YIELDS + 1);
    if (p->since_ns == 0) p->since_ns = now_ns;
    if (now_ns - p->since_ns > f->site->timeout_ms * 1000000) return lost(p);
    /* Completions lie in a queue until they are read, so what arming brings is not slept over. */
    if (fabric_arm(f)) fabric_sleep(f, limit_ns < LAST_SLEEP_NS ? limit_ns : LAST_SLEEP_NS, -1);
    return EXPAR_OK;
}

static expar_status post_all(patience *p, fabric_sending *sending, transport_batch *batch, bool stage)
{
    expar_status status;
    while ((status = fabric_post(p->f, sending, batch, stage)) == EXPAR_ERR_BUSY && (status = turn(p)) == EXPAR_OK) {
    }
    return status;
}

expar_status fabric_post_soon(fabric *f, const char *what, fabric_sending *sending, transport_batch *batch, bool stage)
{
    patience p = {.f = f, .what = what, .pe = sending->request->pe};
    expar_status status = fabric_post(f, sending, batch, stage);
    if (status != EXPAR_ERR_BUSY) return status;
    fabric_attend(f, 1);
    status = post_all(&p, sending, batch, stage);
    fabric_attend(f, -1);
    return status;
}

void fabric_abandon(fabric *f, int32_t pe, const transport_batch *batch)
{
    fabric_channel *c = fabric_channel_of(f, pe);
    pthread_mutex_lock(&c->lock);
    fabric_drop(c, pe, batch);
    pthread_mutex_unlock(&c->lock);
}

expar_status fabric_run(fabric *f, const char *what, const transport_request *request)
{
    transport_batch batch = {0};
    fabric_sending sending = {.request = request};
    patience p = {.f = f, .what = what, .pe = request->pe};
    fabric_attend(f, 1);
    expar_status status = post_all(&p, &sending, &batch, true);
    while (status == EXPAR_OK && atomic_load_explicit(&batch.left, memory_order_acquire) > 0)
        status = turn(&p);
    fabric_attend(f, -1);
    if (status != EXPAR_OK) {
        fabric_abandon(f, request->pe, &batch);
        return status;
    }
    status = (expar_status)atomic_load_explicit(&batch.status, memory_order_relaxed);
    return status == EXPAR_OK ? EXPAR_OK : error_set(status, "%s: an operation to rank %d failed", what, request->pe);
}

/* The PE that the oldest operation up to `number` goes to; -1: all of them are complete. */
static int32_t oldest_pe(fabric_channel *c, uint64_t number)
{
    pthread_mutex_lock(&c->lock);
    const fabric_op *op = c->oldest;
    while (op && op->dropped && op->number <= number)
        op = op->next;
    int32_t pe = op && op->number <= number ? op->pe : -1;
    pthread_mutex_unlock(&c->lock);
    return pe;
}

static expar_status quiet_channel(fabric *f, fabric_channel *c)
{
    patience p = {.f = f, .what = "quiet"};
    expar_status status = EXPAR_OK;
    pthread_mutex_lock(&c->lock);
    uint64_t number = c->posted;
    pthread_mutex_unlock(&c->lock);
    while (status == EXPAR_OK && (p.pe = oldest_pe(c, number)) >= 0)
        status = turn(&p);
    /* Told once: those who go on with others are not held up by it again. */
    if (status != EXPAR_OK) fabric_abandon(f, p.pe, NULL);
    return status;
}

/* Operations of the past that failed, told once. */
static expar_status tell_failures(fabric *f)
{
    for (int32_t pe = 0; pe < f->size; pe++) {
        uint8_t failed = FABRIC_LOST_UNTOLD;
        if (atomic_compare_exchange_strong_explicit(&f->lost[pe], &failed, FABRIC_LOST, memory_order_relaxed,
                                                    memory_order_relaxed))
            return error_set(EXPAR_ERR_PEER, "quiet: an operation to rank %d failed", pe);
    }
    return EXPAR_OK;
}

expar_status fabric_quiet(fabric *f)
{
    expar_status status = EXPAR_OK;
    fabric_attend(f, 1);
    for (int32_t i = 0; i < f->num_channels && status == EXPAR_OK; i++)
        status = quiet_channel(f, &f->channels[i]);
    fabric_attend(f, -1);
    return status == EXPAR_OK ? tell_failures(f) : status;
}

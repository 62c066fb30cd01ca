/* SPDX-License-Identifier: Apache-2.0 */
/* Waits for the caller's own operations. The waiting thread drives the network: it spins, yields, then sleeps until
 * something arrives. */
#include "base/interrupt.h"
#include "base/knobs.h"
#include "net/fabric/fabric.h"

#include <sched.h>

/* A wait in progress. */
typedef struct fabric_wait {
    fabric *f;
    const char *what;
    int32_t pe; /* the awaited PE */
    uint32_t turn;
    uint32_t answers;            /* answers of pe at the last look */
    transport_patience patience; /* since pe's last answer */
    int64_t interrupt_ns;
    bool interrupted;
} fabric_wait;

static void look_to(fabric_wait *w, int32_t pe)
{
    uint32_t answers = atomic_load_explicit(&w->f->answers[pe], memory_order_relaxed);
    if (pe != w->pe || answers != w->answers) w->patience = (transport_patience){0};
    w->pe = pe;
    w->answers = answers;
}

static int64_t fabric_timeout_ms(const fabric *f)
{
    return f->opened ? f->site->timeout_ms : f->site->boot->timeout_ms;
}

static expar_status silent(fabric_wait *w)
{
    fabric *f = w->f;
    atomic_store_explicit(&f->lost[w->pe], true, memory_order_relaxed);
    fabric_drop(f, w->pe, NULL, EXPAR_ERR_PEER);
    char where[FABRIC_ADDRESS_TEXT];
    fabric_address_text(f, w->pe, where);
    return fabric_peer_error(f, w->pe, "%s: rank %d at %s did not answer for %lld ms", w->what, w->pe, where,
                             (long long)((clock_ns() - w->patience.since_ns) / 1000000));
}

/* While the group forms, all ranks are here and none is late. A PE that is not reached within the time-out for that
   never is, even if it answers on its line. */
static bool is_unreached(const fabric_wait *w)
{
    return !w->f->opened && w->patience.since_ns != 0 &&
           clock_ns() - w->patience.since_ns > fabric_timeout_ms(w->f) * 1000000;
}

static expar_status unreached(const fabric_wait *w)
{
    char where[FABRIC_ADDRESS_TEXT];
    fabric_address_text(w->f, w->pe, where);
    return error_set(
        EXPAR_ERR_UNSUPPORTED,
        "%s: rank %d at %s has not been reached within %lld ms (EXPAR_BOOTSTRAP_TIMEOUT): is its interface "
        "up, and open to this host? EXPAR_FABRIC_INTERFACE names another",
        w->what, w->pe, where, (long long)fabric_timeout_ms(w->f));
}

/* Makes one step of waiting for an answer of pe. */
static expar_status fabric_wait_turn(fabric_wait *w, int32_t pe)
{
    fabric *f = w->f;
    look_to(w, pe);
    if (fabric_progress(f)) {
        w->turn = 0;
        return EXPAR_OK;
    }
    uint32_t number = w->turn++;
    expar_status status = f->site->check(f->site->context, pe, w->what);
    if (status != EXPAR_OK || number < f->spins) return status;
    const uint32_t turns = f->spins + knob_count(KNOB_FABRIC_YIELDS);
    if (number < turns) {
        sched_yield();
        return EXPAR_OK;
    }
    status = interrupt_look(&w->interrupt_ns, w->what);
    w->interrupted = status != EXPAR_OK;
    if (w->interrupted) return status;
    const int64_t limit_ns = knob(KNOB_FABRIC_SLEEP_NS) * (int64_t)(number - turns + 1);
    const int64_t most_ns = knob(KNOB_FABRIC_MOST_SLEEP_NS);
    if (is_unreached(w)) return unreached(w);
    if (!transport_waits_on(f->site, &w->patience, pe, clock_ns())) return silent(w);
    /* Completions stay in a queue until they are read, so the thread does not sleep over those that arming brings. */
    if (fabric_arm(f) && fabric_sleep(f, limit_ns < most_ns ? limit_ns : most_ns, -1)) w->turn = 0;
    return EXPAR_OK;
}

static expar_status post_all(fabric_wait *w, fabric_sending *sending, transport_batch *batch)
{
    expar_status status;
    while ((status = fabric_post(w->f, sending, batch)) == EXPAR_ERR_BUSY &&
           (status = fabric_wait_turn(w, fabric_full_of(w->f, sending->request->pe))) == EXPAR_OK) {
    }
    return status;
}

expar_status fabric_post_soon(fabric *f, const char *what, fabric_sending *sending, transport_batch *batch)
{
    fabric_wait w = {.f = f, .what = what, .pe = -1};
    expar_status status = fabric_post(f, sending, batch);
    if (status != EXPAR_ERR_BUSY) return status;
    fabric_attend(f, 1);
    status = post_all(&w, sending, batch);
    fabric_attend(f, -1);
    return status;
}

expar_status fabric_run(fabric *f, const char *what, const transport_request *request)
{
    transport_batch batch = {0};
    fabric_sending sending = {.request = request};
    fabric_wait w = {.f = f, .what = what, .pe = -1};
    fabric_attend(f, 1);
    expar_status status = post_all(&w, &sending, &batch);
    while (status == EXPAR_OK && atomic_load_explicit(&batch.left, memory_order_acquire) > 0)
        status = fabric_wait_turn(&w, request->pe);
    fabric_attend(f, -1);
    if (status != EXPAR_OK) {
        fabric_drop(f, request->pe, &batch, status);
        return status;
    }
    if (atomic_load_explicit(&batch.status, memory_order_relaxed) == EXPAR_OK) return EXPAR_OK;
    status = fabric_explain(f, request->pe, what);
    if (status != EXPAR_OK) return status;
    return fabric_peer_error(f, request->pe, "%s: an operation to rank %d failed", what, request->pe);
}

/* Returns the PE of the batch's oldest incomplete operation up to `number`; -1: all of them are complete. */
static int32_t oldest_pe(fabric_channel *c, const transport_batch *batch, uint64_t number)
{
    pthread_mutex_lock(&c->lock);
    const fabric_op *op = c->oldest;
    while (op && op->number <= number && op->batch != batch)
        op = op->next;
    int32_t pe = op && op->number <= number ? op->pe : -1;
    pthread_mutex_unlock(&c->lock);
    return pe;
}

/* Waits for the operations that were posted before. Gives up a PE that does not answer, and goes on waiting for the
   others. */
static void settle_channel(fabric_wait *w, fabric_channel *c, const transport_batch *batch)
{
    int32_t pe;
    pthread_mutex_lock(&c->lock);
    uint64_t number = c->posted;
    pthread_mutex_unlock(&c->lock);
    while ((pe = oldest_pe(c, batch, number)) >= 0) {
        /* After an interrupt all operations in progress are given up, whatever their PE. */
        expar_status status = w->interrupted ? EXPAR_ERR_INTERRUPTED : fabric_wait_turn(w, pe);
        if (status != EXPAR_OK) fabric_drop(w->f, pe, batch, status);
    }
}

/* That the PE is gone is a better text than that an operation failed. If it left because of another rank, that rank's
   name is better still. */
static expar_status failure_of(fabric *f, const char *what, int32_t pe)
{
    expar_status status = fabric_explain(f, pe, what);
    if (status != EXPAR_OK) return status;
    return fabric_peer_error(f, pe, "%s: an operation to rank %d failed, or was not answered for %lld ms", what, pe,
                             (long long)fabric_timeout_ms(f));
}

expar_status fabric_settle(fabric *f, const char *what, transport_batch *batch)
{
    fabric_wait w = {.f = f, .what = what, .pe = -1};
    fabric_attend(f, 1);
    for (int32_t i = 0; i < f->num_channels; i++)
        settle_channel(&w, &f->channels[i], batch);
    fabric_attend(f, -1);
    /* The failure is reported once. */
    const int32_t failed = atomic_exchange_explicit(&batch->status, EXPAR_OK, memory_order_relaxed);
    if (w.interrupted) return error_set(EXPAR_ERR_INTERRUPTED, "%s: interrupted", what);
    if (failed == EXPAR_OK) return EXPAR_OK;
    return failure_of(f, what, atomic_load_explicit(&batch->pe, memory_order_relaxed));
}

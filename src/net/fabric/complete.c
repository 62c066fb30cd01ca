/* SPDX-License-Identifier: Apache-2.0 */
/* Operations come back: their data goes to its destination, and their records are free again. */
#include "net/fabric/fabric.h"

#include <string.h>

#define ENTRIES_AT_ONCE 16

void fabric_op_unlink(fabric_channel *c, fabric_op *op)
{
    if (op->previous)
        op->previous->next = op->next;
    else
        c->oldest = op->next;
    if (op->next)
        op->next->previous = op->previous;
    else
        c->newest = op->previous;
    op->next = c->unused;
    c->unused = op;
    c->in_flight[op->pe]--;
}

/* Lowers the batch of an op. Release: a thread that sees 0 also sees the data and the status. */
static void tell_batch(fabric_op *op, expar_status status)
{
    transport_batch *batch = op->batch;
    op->batch = NULL;
    op->dest = NULL;
    if (!batch) return;
    if (status != EXPAR_OK) {
        atomic_store_explicit(&batch->pe, op->pe, memory_order_relaxed);
        atomic_store_explicit(&batch->status, (int32_t)status, memory_order_relaxed);
    }
    atomic_fetch_sub_explicit(&batch->left, 1, memory_order_release);
}

static void end_op(fabric *f, fabric_channel *c, fabric_op *op, expar_status status)
{
    fabric_op *after = op->after;
    if (status != EXPAR_OK) atomic_store_explicit(&f->lost[op->pe], true, memory_order_relaxed);
    fabric_op_unlink(c, op);
    tell_batch(op, status);
    if (after) fabric_op_release(f, c, after, status);
}

/* Returns false if there is no free space; the op is late then. */
static bool send_rest(fabric *f, fabric_channel *c, fabric_op *op)
{
    ssize_t code = fabric_post_rest(f, c, op);
    if (code != 0 && code != -FI_EAGAIN) end_op(f, c, op, EXPAR_ERR_PEER);
    return code != -FI_EAGAIN;
}

static void finish(fabric *f, fabric_channel *c, fabric_op *op, expar_status status)
{
    if (!op->leads) atomic_fetch_add_explicit(&f->answers[op->pe], 1, memory_order_relaxed);
    if (status == EXPAR_OK && op->dest) memcpy(op->dest, op->stage + op->result_at, op->bytes);
    /* An op that was given up has no next operation. */
    if (status != EXPAR_OK || !(op->confirms || op->signals) || !op->batch) {
        end_op(f, c, op, status);
    } else if (!send_rest(f, c, op)) {
        op->late = true;
        c->num_late++;
    }
}

void fabric_op_release(fabric *f, fabric_channel *c, fabric_op *signal, expar_status status)
{
    if (status != EXPAR_OK) signal->status = status;
    if (--signal->references == 0) finish(f, c, signal, signal->status);
}

static void send_late(fabric *f, fabric_channel *c)
{
    for (fabric_op *op = c->oldest, *next; op && c->num_late > 0; op = next) {
        next = op->next;
        if (!op->late) continue;
        if (!send_rest(f, c, op)) return;
        op->late = false;
        c->num_late--;
    }
}

static bool take_error(fabric *f, fabric_channel *c)
{
    struct fi_cq_err_entry entry = {0};
    if (fi_cq_readerr(c->cq, &entry, 0) != 1) return false;
    fabric_op *op = entry.op_context;
    if (!op) return true;
    LOG(LOG_INFO, "fabric: an operation to rank %d failed: %s", op->pe, f->library->strerror(entry.err));
    finish(f, c, op, EXPAR_ERR_PEER);
    return true;
}

bool fabric_channel_poll(fabric *f, fabric_channel *c)
{
    struct fi_cq_entry entries[ENTRIES_AT_ONCE];
    if (c->num_late > 0) send_late(f, c);
    ssize_t count = fi_cq_read(c->cq, entries, ENTRIES_AT_ONCE);
    if (count == -FI_EAVAIL) return take_error(f, c);
    /* A completion without a context is not ours, for example a foreign process's write with immediate data. */
    for (ssize_t i = 0; i < count; i++)
        if (entries[i].op_context) finish(f, c, entries[i].op_context, EXPAR_OK);
    return count > 0;
}

bool fabric_progress(fabric *f)
{
    bool happened = false;
    for (int32_t i = 0; i < f->num_channels; i++) {
        fabric_channel *c = &f->channels[i];
        /* The thread that holds the lock makes progress, or is about to. */
        if (pthread_mutex_trylock(&c->lock) != 0) continue;
        happened |= fabric_channel_poll(f, c);
        pthread_mutex_unlock(&c->lock);
    }
    return happened;
}

/* The thread that polls writes what arrives, under the lock. */
void fabric_behold(fabric *f)
{
    for (int32_t i = 0; i < f->num_channels; i++) {
        pthread_mutex_lock(&f->channels[i].lock);
        pthread_mutex_unlock(&f->channels[i].lock);
    }
}

void fabric_drop(fabric *f, int32_t pe, const transport_batch *batch, expar_status status)
{
    fabric_channel *c = fabric_channel_of(f, pe);
    pthread_mutex_lock(&c->lock);
    for (fabric_op *op = c->oldest, *next; op; op = next) {
        next = op->next;
        if (op->pe != pe || !op->batch || (batch && op->batch != batch)) continue;
        bool late = op->late;
        tell_batch(op, status); /* a signal that follows several pieces is ended by the last of them */
        if (!late) continue;
        /* The op has come back already. */
        c->num_late--;
        fabric_op_unlink(c, op);
    }
    pthread_mutex_unlock(&c->lock);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Operations come back: their data is handed over, their records are free again. */
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
}

static void finish(fabric_channel *c, fabric_op *op, expar_status status)
{
    transport_batch *batch = op->batch;
    if (status == EXPAR_OK && op->dest) memcpy(op->dest, op->stage + op->result_at, op->bytes);
    op->batch = NULL;
    op->dest = NULL;
    c->completed++;
    fabric_op_unlink(c, op);
    if (!batch) return;
    if (status != EXPAR_OK) atomic_store_explicit(&batch->status, (int32_t)status, memory_order_relaxed);
    /* Release: who sees 0 sees the data and the status. */
    atomic_fetch_sub_explicit(&batch->left, 1, memory_order_release);
}

static bool take_error(fabric *f, fabric_channel *c)
{
    struct fi_cq_err_entry entry = {0};
    if (fi_cq_readerr(c->cq, &entry, 0) != 1) return false;
    fabric_op *op = entry.op_context;
    if (!op) return true;
    LOG(LOG_INFO, "fabric: an operation to rank %d failed: %s", op->pe, f->library->strerror(entry.err));
    atomic_store_explicit(&f->lost[op->pe], op->batch || op->dropped ? FABRIC_LOST : FABRIC_LOST_UNTOLD,
                          memory_order_relaxed);
    finish(c, op, EXPAR_ERR_PEER);
    return true;
}

bool fabric_channel_poll(fabric *f, fabric_channel *c)
{
    struct fi_cq_entry entries[ENTRIES_AT_ONCE];
    ssize_t count = fi_cq_read(c->cq, entries, ENTRIES_AT_ONCE);
    if (count == -FI_EAVAIL) return take_error(f, c);
    for (ssize_t i = 0; i < count; i++)
        finish(c, entries[i].op_context, EXPAR_OK);
    return count > 0;
}

bool fabric_progress(fabric *f)
{
    bool happened = false;
    for (int32_t i = 0; i < f->num_channels; i++) {
        fabric_channel *c = &f->channels[i];
        /* Whoever holds the lock makes progress, or is about to. */
        if (pthread_mutex_trylock(&c->lock) != 0) continue;
        happened |= fabric_channel_poll(f, c);
        pthread_mutex_unlock(&c->lock);
    }
    return happened;
}

void fabric_drop(fabric_channel *c, int32_t pe, const transport_batch *batch)
{
    for (fabric_op *op = c->oldest; op; op = op->next) {
        if (op->pe != pe || (batch && op->batch != batch)) continue;
        op->dropped = true;
        op->batch = NULL;
        op->dest = NULL;
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Requests to the owner of device memory. Large operations go in pieces: while the owner copies one, the next one
 * travels. The owner carries out a rank's requests in their order. */
#include "shmem/copies/parts.h"

#include <string.h>

/* An operation of one caller. Failures of earlier requests are not its own. */
typedef struct mail_op {
    const char *what;
    /* its first request */
    uint64_t first;
    /* its first failure, as the owner tells it */
    expar_status status;
} mail_op;

static uint64_t mail_count(const _Atomic uint64_t *count)
{
    return atomic_load_explicit(count, memory_order_relaxed);
}

static void set_count(_Atomic uint64_t *count, uint64_t value)
{
    atomic_store_explicit(count, value, memory_order_relaxed);
}

static expar_status owner_failed(const mail_op *op, int32_t pe, expar_status status)
{
    return error_set(status, "%s: rank %d, which owns the memory, could not do it: %s", op->what, pe,
                     expar_status_string(status));
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

/* Takes the answers that have come. */
static void mail_collect(copies *self, int32_t pe, mail_op *op)
{
    mail_peer *peer = &self->peers[pe];
    uint64_t number = mail_count(&peer->answered) + 1;
    for (; number <= mail_count(&peer->sent); number++) {
        const uint64_t slot = mail_slot(self, pe, MAIL_ANSWERS, number);
        if (!mail_arrived(self, slot, number)) break;
        const expar_status status = (expar_status)mail_head_at(self, slot)->status;
        expar_status *first = number >= op->first ? &op->status : &peer->failed;
        if (*first == EXPAR_OK) *first = status;
        set_count(&peer->answered, number);
    }
}

static bool slot_is_free(const mail_peer *peer, uint64_t number)
{
    const transport_batch *batch = &peer->batches[number % MAIL_SLOTS];
    return number <= mail_count(&peer->answered) + MAIL_SLOTS &&
           atomic_load_explicit(&batch->left, memory_order_acquire) == 0;
}

static bool is_answered(const mail_peer *peer, uint64_t number)
{
    return mail_count(&peer->answered) >= number;
}

/* Reports a message that the network has lost. No answer to it will come. */
static expar_status check_messages(copies *self, int32_t pe)
{
    transport *via = mail_carrier(self, pe);
    mail_peer *peer = &self->peers[pe];
    for (int i = 0; i < MAIL_SLOTS; i++) {
        transport_batch *batch = &peer->batches[i];
        if (atomic_load_explicit(&batch->left, memory_order_acquire) > 0) continue;
        if (atomic_load_explicit(&batch->status, memory_order_relaxed) == EXPAR_OK) continue;
        expar_status status = via->ops->settle(via, batch);
        return status == EXPAR_OK ? error_set(EXPAR_ERR_PEER, "a message to rank %d was lost", pe) : status;
    }
    return EXPAR_OK;
}

/* Gives up what has no answer. Requests to a lost peer are rejected before they come here. */
static void mail_give_up(mail_peer *peer)
{
    peer->broken = true;
    set_count(&peer->answered, mail_count(&peer->sent));
}

static expar_status mail_wait(copies *self, int32_t pe, mail_op *op,
                              bool (*ready)(const mail_peer *peer, uint64_t number), uint64_t number)
{
    mail_peer *peer = &self->peers[pe];
    expar_status status = EXPAR_OK;
    mail_collect(self, pe, op);
    if (ready(peer, number)) return EXPAR_OK;
    sym_rest rest = sym_rest_begin_among(self->sym, op->what, (sym_ranks){.start = pe, .stride = 1, .size = 1});
    boot_wait_for(&rest.wait, pe);
    while (!ready(peer, number) && (status = check_messages(self, pe)) == EXPAR_OK &&
           (status = sym_rest_turn(&rest)) == EXPAR_OK)
        mail_collect(self, pe, op);
    sym_rest_end(&rest);
    if (status == EXPAR_ERR_PEER) mail_give_up(peer);
    return status;
}

/* ---- sending ----------------------------------------------------------------------------------------------------- */

static expar_status mail_begin(copies *self, int32_t pe, mail_op *op)
{
    mail_peer *peer = &self->peers[pe];
    pthread_mutex_lock(&peer->lock);
    expar_status status = sym_check_pe(self->sym, pe, op->what);
    op->first = mail_count(&peer->sent) + 1;
    if (status == EXPAR_OK && peer->broken)
        status = error_set(EXPAR_ERR_PEER, "%s: an earlier request to rank %d has been given up", op->what, pe);
    return status;
}

/* Waits for a free slot, and fills it from `head` and the data. */
static expar_status mail_write(copies *self, int32_t pe, mail_op *op, const mail_head *head, mem_side data)
{
    const uint64_t number = mail_count(&self->peers[pe].sent) + 1;
    mail_head *image = mail_head_at(self, mail_slot(self, pe, MAIL_OWN_REQUESTS, number));
    expar_status status = mail_wait(self, pe, op, slot_is_free, number);
    if (status != EXPAR_OK) return status;
    memcpy(image, head, offsetof(mail_head, flag));
    atomic_store_explicit(&image->flag, number << 32, memory_order_relaxed);
    return data.at ? mem_copier_copy(self->copier, mail_data(image, head->bytes), data, head->bytes) : EXPAR_OK;
}

static expar_status mail_send(copies *self, int32_t pe, mail_op *op, const mail_head *head, mem_side data)
{
    mail_peer *peer = &self->peers[pe];
    const uint64_t number = mail_count(&peer->sent) + 1;
    expar_status status = mail_write(self, pe, op, head, data);
    if (status != EXPAR_OK) return status;
    const transport_request message = mail_message(self, pe, MAIL_OWN_REQUESTS, MAIL_REQUESTS, number);
    status = transport_post(mail_carrier(self, pe), &self->sym->site, &message, &peer->batches[number % MAIL_SLOTS]);
    if (status != EXPAR_OK) return error_prefix(status, "%s", op->what);
    set_count(&peer->sent, number);
    sym_ring(self->sym, pe);
    return EXPAR_OK;
}

/* ends: the caller waits for the answers to all requests of the operation. */
static expar_status mail_end(copies *self, int32_t pe, mail_op *op, expar_status status, bool waits)
{
    mail_peer *peer = &self->peers[pe];
    if (status == EXPAR_OK && waits) status = mail_wait(self, pe, op, is_answered, mail_count(&peer->sent));
    if (status == EXPAR_OK && op->status != EXPAR_OK) status = owner_failed(op, pe, op->status);
    pthread_mutex_unlock(&peer->lock);
    return status;
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

static uint64_t mail_piece_bytes(const copies *self, uint64_t bytes, uint64_t at)
{
    const uint64_t most = mail_most(self);
    return bytes - at < most ? bytes - at : most;
}

expar_status mail_put(copies *self, int32_t pe, uint64_t offset, mem_side source, uint64_t bytes, bool waits)
{
    mail_op op = {.what = "put to device memory"};
    expar_status status = mail_begin(self, pe, &op);
    for (uint64_t at = 0; at < bytes && status == EXPAR_OK; at += mail_most(self)) {
        const mail_head head = {.kind = MAIL_PUT, .offset = offset + at, .bytes = mail_piece_bytes(self, bytes, at)};
        status = mail_send(self, pe, &op, &head, mem_side_after(source, at));
    }
    return mail_end(self, pe, &op, status, waits);
}

/* Takes the data from the answer to the operation's piece at `at`. */
static expar_status take_piece(copies *self, int32_t pe, mail_op *op, mem_side dest, uint64_t bytes, uint64_t at)
{
    const uint64_t number = op->first + at / mail_most(self), piece = mail_piece_bytes(self, bytes, at);
    expar_status status = mail_wait(self, pe, op, is_answered, number);
    if (status != EXPAR_OK || op->status != EXPAR_OK) return status;
    mail_head *head = mail_head_at(self, mail_slot(self, pe, MAIL_ANSWERS, number));
    return mem_copier_copy(self->copier, mem_side_after(dest, at), mail_data(head, piece), piece);
}

expar_status mail_get(copies *self, int32_t pe, uint64_t offset, mem_side dest, uint64_t bytes)
{
    mail_op op = {.what = "get from device memory"};
    uint64_t asked = 0;
    expar_status status = mail_begin(self, pe, &op);
    for (uint64_t at = 0; at < bytes && status == EXPAR_OK; at += mail_most(self)) {
        while (asked < bytes && asked < at + MAIL_SLOTS * mail_most(self) && status == EXPAR_OK) {
            const mail_head head = {
                .kind = MAIL_GET, .offset = offset + asked, .bytes = mail_piece_bytes(self, bytes, asked)};
            status = mail_send(self, pe, &op, &head, (mem_side){0});
            asked += mail_most(self);
        }
        if (status == EXPAR_OK) status = take_piece(self, pe, &op, dest, bytes, at);
    }
    return mail_end(self, pe, &op, status, true);
}

expar_status mail_change(copies *self, const transport_request *change, bool waits)
{
    mail_op op = {.what = "atomic on device memory"};
    const mail_head head = {.kind = MAIL_CHANGE,
                            .op = (uint32_t)change->op,
                            .offset = change->offset,
                            .bytes = change->bytes,
                            .operand = change->operand,
                            .compare = change->compare};
    expar_status status = mail_begin(self, change->pe, &op);
    if (status == EXPAR_OK) status = mail_send(self, change->pe, &op, &head, (mem_side){0});
    if (status == EXPAR_OK && change->dest) {
        const uint64_t number = mail_count(&self->peers[change->pe].sent);
        status = mail_wait(self, change->pe, &op, is_answered, number);
        const mail_head *answer = mail_head_at(self, mail_slot(self, change->pe, MAIL_ANSWERS, number));
        if (status == EXPAR_OK && op.status == EXPAR_OK) memcpy(change->dest, &answer->operand, change->bytes);
    }
    return mail_end(self, change->pe, &op, status, waits);
}

expar_status mail_settle(copies *self, int32_t pe)
{
    mail_peer *peer = &self->peers[pe];
    mail_op op = {.what = "device memory", .first = UINT64_MAX};
    expar_status status = EXPAR_OK;
    pthread_mutex_lock(&peer->lock);
    if (!is_answered(peer, mail_count(&peer->sent)))
        status = mail_wait(self, pe, &op, is_answered, mail_count(&peer->sent));
    if (status == EXPAR_OK && peer->failed != EXPAR_OK) status = owner_failed(&op, pe, peer->failed);
    peer->failed = EXPAR_OK;
    pthread_mutex_unlock(&peer->lock);
    return status;
}

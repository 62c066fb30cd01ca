/* SPDX-License-Identifier: Apache-2.0 */
/* Links: operations on a peer, by mapped memory or by transports. */
#include "link/parts.h"
#include "mem/fence.h"
#include "shmem/kinds.h"

#include <assert.h>
#include <string.h>

/* ---- mapped memory ----------------------------------------------------------------------------------------------- */

/* Release: partner of the acquire by which the owner polls the word. */
static void store_flag(const link_peer *peer, const link_flag *flag)
{
    _Atomic uint64_t *word = link_at(peer, flag->offset);
    if (flag->adds)
        atomic_fetch_add_explicit(word, flag->word, memory_order_release);
    else
        atomic_store_explicit(word, flag->word, memory_order_release);
    sym_ring(peer->sym, peer->pe);
}

static void store_data(const link_peer *peer, const link_data *data)
{
    if (data->bytes > 0) memcpy(link_at(peer, data->offset), data->source, data->bytes);
}

/* ---- transports -------------------------------------------------------------------------------------------------- */

/* Counts a message if it was passed to a transport. */
static expar_status link_count_message(const link_peer *peer, expar_status status, const link_data *data,
                                       uint64_t after)
{
    if (status != EXPAR_OK || !peer->counts) return status;
    atomic_fetch_add_explicit(&peer->counts->messages, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&peer->counts->bytes, data->bytes + after, memory_order_relaxed);
    atomic_fetch_add_explicit(&peer->counts->rows, data->rows, memory_order_relaxed);
    return EXPAR_OK;
}

/* Counts a flag without data if it was passed to a transport. */
static expar_status link_count_flag(const link_peer *peer, expar_status status)
{
    if (status != EXPAR_OK || !peer->counts) return status;
    atomic_fetch_add_explicit(&peer->counts->flags, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&peer->counts->bytes, sizeof(uint64_t), memory_order_relaxed);
    return EXPAR_OK;
}

static transport_request put_of(const link_peer *peer, const link_data *data)
{
    return (transport_request){.kind = TRANSPORT_KIND_PUT,
                               .pe = peer->pe,
                               .memory = (uint8_t)peer->memory,
                               .offset = data->offset,
                               .source = data->source,
                               .bytes = data->bytes,
                               .on_device = peer->on_device,
                               .copies = data->copies,
                               .leads = data->ordered};
}

static transport_atomic_op flag_op(const link_flag *flag)
{
    return flag->adds ? TRANSPORT_ADD : TRANSPORT_SET;
}

static expar_status post_flag(const link_peer *peer, const link_flag *flag, link_batch *batch)
{
    const link_change word = {
        .op = flag_op(flag), .bytes = sizeof flag->word, .operand = flag->word, .offset = flag->offset};
    return link_change_word(peer, &word, batch);
}

static expar_status post_together(const link_peer *peer, const link_data *data, const link_flag *flag,
                                  link_batch *batch)
{
    transport_request put = put_of(peer, data);
    put.signals = true;
    put.signal_memory = (uint8_t)peer->words_memory;
    put.op = flag_op(flag);
    put.operand = flag->word;
    put.signal_offset = flag->offset;
    expar_status status = link_post(peer, peer->data, &put, batch);
    if (status == EXPAR_OK) sym_ring(peer->sym, peer->pe);
    return status;
}

/* Two transports do not order their operations: the flag is sent when the data has arrived. */
static expar_status post_apart(const link_peer *peer, const link_data *data, const link_flag *flag, link_batch *batch)
{
    link_batch own = {0};
    const transport_request put = put_of(peer, data);
    error_kept kept;
    error_keep(&kept, link_post(peer, peer->data, &put, &own));
    expar_status status = link_quiet(peer->sym, &own); /* also for operations that were posted before a failure */
    if (kept.status != EXPAR_OK) return error_restore(&kept);
    return status == EXPAR_OK ? post_flag(peer, flag, batch) : link_named(peer, status);
}

/* A put or a get of a GPU's memory, complete when it returns. */
static expar_status carry_pieces(const link_peer *peer, const transport_request *request)
{
    return link_named(peer, kinds_carry_pieces(peer->sym, request));
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

expar_status link_put(const link_peer *peer, const link_data *data, link_batch *batch)
{
    if (peer->mapped || data->bytes == 0) {
        store_data(peer, data);
        return EXPAR_OK;
    }
    const transport_request put = put_of(peer, data);
    if (link_uses_pieces(peer)) return carry_pieces(peer, &put);
    return link_count_message(peer, link_post(peer, peer->data, &put, batch), data, 0);
}

expar_status link_put_now(const link_peer *peer, const link_data *data)
{
    const transport_request put = put_of(peer, data);
    if (link_uses_pieces(peer)) return carry_pieces(peer, &put);
    return peer->data->ops->run(peer->data, &put);
}

static transport_request get_of(const link_peer *peer, void *dest, uint64_t offset, size_t bytes)
{
    return (transport_request){.kind = TRANSPORT_KIND_GET,
                               .pe = peer->pe,
                               .memory = (uint8_t)peer->memory,
                               .offset = offset,
                               .dest = dest,
                               .bytes = bytes,
                               .on_device = peer->on_device};
}

expar_status link_get(const link_peer *peer, void *dest, uint64_t offset, size_t bytes, link_batch *batch)
{
    const transport_request get = get_of(peer, dest, offset, bytes);
    if (link_uses_pieces(peer)) return carry_pieces(peer, &get);
    return link_post(peer, peer->data, &get, batch);
}

expar_status link_get_now(const link_peer *peer, void *dest, uint64_t offset, size_t bytes)
{
    const transport_request get = get_of(peer, dest, offset, bytes);
    if (link_uses_pieces(peer)) return carry_pieces(peer, &get);
    return peer->data->ops->run(peer->data, &get);
}

static transport_request atomic_of(const link_peer *peer, const link_change *change)
{
    return (transport_request){.kind = TRANSPORT_KIND_ATOMIC,
                               .pe = peer->pe,
                               .memory = (uint8_t)peer->words_memory,
                               .offset = change->offset,
                               .dest = change->old,
                               .bytes = change->bytes,
                               .op = change->op,
                               .operand = change->operand,
                               .compare = change->compare};
}

/* A transport of this host may have changed the word, so the peer may still sleep on its doorbell. */
static expar_status changed(const link_peer *peer, const link_change *change, expar_status status)
{
    if (status == EXPAR_OK && change->op != TRANSPORT_FETCH) sym_ring(peer->sym, peer->pe);
    return status;
}

expar_status link_change_word(const link_peer *peer, const link_change *change, link_batch *batch)
{
    const transport_request word = atomic_of(peer, change);
    return changed(peer, change, link_post(peer, peer->words, &word, batch));
}

expar_status link_change_now(const link_peer *peer, const link_change *change)
{
    const transport_request word = atomic_of(peer, change);
    return changed(peer, change, peer->words->ops->run(peer->words, &word));
}

expar_status link_set_flag(const link_peer *peer, const link_flag *flag, link_batch *batch)
{
    if (!peer->mapped) return link_count_flag(peer, post_flag(peer, flag, batch));
    store_flag(peer, flag);
    return EXPAR_OK;
}

/* Sends the flag at the end of the data as a separate operation. */
static expar_status put_end_apart(const link_peer *peer, const link_data *data, link_batch *batch)
{
    link_data before = *data;
    link_flag flag = {.word = 0};
    before.ordered = false;
    before.bytes -= sizeof flag.word;
    flag.offset = before.offset + before.bytes;
    memcpy(&flag.word, (const uint8_t *)data->source + before.bytes, sizeof flag.word);
    return link_put_flag(peer, &before, &flag, batch);
}

/* Returns whether one transport carries both the data and the flag at its end. */
static bool flag_goes_along(const link_peer *peer)
{
    return !peer->mapped && peer->data == peer->words;
}

static expar_status put_end(const link_peer *peer, const link_data *data, link_batch *batch)
{
    if (!flag_goes_along(peer)) return put_end_apart(peer, data, batch);
    transport_request put = put_of(peer, data);
    put.flagged = true;
    expar_status status = link_post(peer, peer->data, &put, batch);
    if (status == EXPAR_OK) sym_ring(peer->sym, peer->pe);
    return data->bytes > sizeof(uint64_t) ? link_count_message(peer, status, data, 0) : link_count_flag(peer, status);
}

expar_status link_put_flag(const link_peer *peer, const link_data *data, const link_flag *flag, link_batch *batch)
{
    if (!flag) return put_end(peer, data, batch);
    if (peer->mapped) store_data(peer, data);
    if (peer->mapped || data->bytes == 0) return link_set_flag(peer, flag, batch);
    if (link_uses_pieces(peer)) {
        const transport_request put = put_of(peer, data);
        expar_status arrived = carry_pieces(peer, &put);
        return arrived == EXPAR_OK ? post_flag(peer, flag, batch) : arrived;
    }
    const bool apart = peer->data != peer->words && !link_goes_by_ring(peer, batch);
    expar_status status = apart ? post_apart(peer, data, flag, batch) : post_together(peer, data, flag, batch);
    return link_count_message(peer, status, data, sizeof flag->word);
}

static_assert(LINK_MOST_PIECES == TRANSPORT_MOST_AHEAD + 1, "the last piece is the put, the others go ahead of it");

/* Sends the pieces as one message if that is possible; returns whether it did, and the status. */
static bool put_joined(const link_peer *peer, const link_piece *pieces, uint32_t num_pieces, expar_status *status)
{
    const link_piece *last = &pieces[num_pieces - 1];
    transport_ahead ahead[TRANSPORT_MOST_AHEAD];
    if (num_pieces < 2 || !last->data.ordered || !flag_goes_along(peer) || !peer->data->ops->joins) return false;
    transport_request put = put_of(peer, &last->data);
    put.flagged = true;
    put.ahead = ahead;
    put.num_ahead = num_pieces - 1;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < put.num_ahead; i++) {
        const link_data *data = &pieces[i].data;
        ahead[i] = (transport_ahead){.offset = data->offset, .source = data->source, .bytes = data->bytes};
        bytes += data->bytes;
    }
    if (!peer->data->ops->joins(peer->data, &put)) return false;
    *status = link_post(peer, peer->data, &put, last->batch);
    if (*status == EXPAR_OK) sym_ring(peer->sym, peer->pe);
    link_count_message(peer, *status, &last->data, bytes);
    return true;
}

static void keep_first(error_kept *first, expar_status status)
{
    if (status != EXPAR_OK && first->status == EXPAR_OK) error_keep(first, status);
}

/* Pieces that cannot join the last one join the one before it, if they can. */
expar_status link_put_pieces(const link_peer *peer, const link_piece *pieces, uint32_t num_pieces)
{
    error_kept first = {.status = EXPAR_OK};
    expar_status status = EXPAR_OK;
    uint32_t joined = num_pieces;
    while (joined > 0 && !put_joined(peer, pieces, joined, &status))
        joined--;
    if (joined > 0) keep_first(&first, status);
    for (uint32_t i = joined; i < num_pieces; i++) {
        keep_first(&first, link_quiet(peer->sym, pieces[i].batch));
        keep_first(&first, put_end(peer, &pieces[i].data, pieces[i].batch));
    }
    return error_restore(&first);
}

expar_status link_fetch(const link_peer *peer, uint64_t offset, uint64_t *word, link_batch *batch)
{
    const link_change fetch = {.op = TRANSPORT_FETCH, .bytes = sizeof *word, .offset = offset, .old = word};
    if (!peer->mapped) return link_change_word(peer, &fetch, batch);
    *word = atomic_load_explicit((_Atomic uint64_t *)link_at(peer, offset), memory_order_acquire);
    return EXPAR_OK;
}

__attribute__((no_sanitize("thread"))) uint64_t link_peek(const _Atomic uint64_t *word)
{
    return atomic_load_explicit(word, memory_order_relaxed);
}

/* ---- order ------------------------------------------------------------------------------------------------------- */

expar_status link_quiet(sym *self, link_batch *batch)
{
    const bool ended = link_is_quiet(batch); /* reads the end before the status */
    const bool sound = atomic_load_explicit(&batch->status, memory_order_relaxed) == EXPAR_OK;
    return ended && sound ? EXPAR_OK : sym_settle(self, batch);
}

static void drop_by(transport *via, int32_t pe, link_batch *batch)
{
    if (via->ops->drop) via->ops->drop(via, pe, batch);
}

void link_drop(const link_peer *peer, link_batch *batch)
{
    if (peer->mapped || link_is_quiet(batch)) return;
    drop_by(peer->data, peer->pe, batch);
    if (peer->words != peer->data) drop_by(peer->words, peer->pe, batch);
}

expar_status link_fence(const link_peer *peer, link_batch *batch)
{
    if (!peer->mapped) return link_quiet(peer->sym, batch);
    fence_release();
    return EXPAR_OK;
}

/* ---- counts ------------------------------------------------------------------------------------------------------ */

link_sent link_sent_of(const link_counts *counts)
{
    link_sent sent = {0};
    if (!counts) return sent;
    sent.messages = atomic_load_explicit(&counts->messages, memory_order_relaxed);
    sent.flags = atomic_load_explicit(&counts->flags, memory_order_relaxed);
    sent.bytes = atomic_load_explicit(&counts->bytes, memory_order_relaxed);
    sent.rows = atomic_load_explicit(&counts->rows, memory_order_relaxed);
    return sent;
}

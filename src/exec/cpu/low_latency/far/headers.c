/* SPDX-License-Identifier: Apache-2.0 */
/* Message headers and acknowledgements for ranks that are not mapped. A network message costs both ends more than its
 * bytes. So words go ahead of the data that follow them to the same rank, in one message if the network can do that
 * (link_put_pieces):
 *
 * - A header goes ahead of the first piece of its call. That piece must be the only one, and must leave with the
 *   header,
 * since the rank's slot is known to be free. The header is put off only until that piece has been put together, and
 * waits for no rank.
 * - The acknowledgement of a call that was received in the call itself goes ahead of the next header to the rank, of
 *   either
 * kind. Until then only a rank that is two calls ahead by hooks waits for it, and that rank asks for it (ll_far_ask). A
 * hook's acknowledgement leaves at once. Everything that was put off leaves before a call waits for any rank
 * (ll_far_flush).
 *
 * So a call of few tokens is one message to each far rank. With masks arrival is awaited. Then nothing is put off, and
 * each is a message of its own, in the same order. */
#include "base/knobs.h"
#include "exec/cpu/low_latency/far/links.h"

static link_data read_data(const ll_cpu *self, const ll_far_rank *rank)
{
    return (link_data){.offset = self->buffer + rank->read_at,
                       .source = &rank->read,
                       .bytes = sizeof rank->read,
                       .copies = true,
                       .ordered = ll_far_orders(self)};
}

static link_data unit_data(const ll_cpu *self, const ll_far_rank *rank)
{
    return (link_data){.offset = self->buffer + rank->unit_at,
                       .source = rank->unit,
                       .bytes = (size_t)ll_header_text_at(&self->shape, rank->header_kind),
                       .copies = true,
                       .ordered = ll_far_orders(self)};
}

/* Takes the data that are put off for the rank, in the order in which they go. */
static uint32_t take_held(const ll_cpu *self, ll_far_rank *rank, link_piece *pieces)
{
    uint32_t count = 0;
    if (rank->holds_read) pieces[count++] = (link_piece){read_data(self, rank), &rank->reads[rank->read_kind]};
    if (rank->holds_header) pieces[count++] = (link_piece){unit_data(self, rank), &rank->units[rank->header_kind]};
    /* Workers send to the same rank; nothing is put off by then. */
    if (count > 0) rank->holds_read = rank->holds_header = false;
    return count;
}

/* These waits may mask the rank. */
static void send_tolerantly(const ll_cpu *self, int32_t pe, const link_piece *piece)
{
    ll_far_await_batch(self, pe, piece->batch);
    if (ll_is_masked(self, pe)) return;
    ll_far_keep(self, pe, link_put_flag(&self->links->ranks[pe].link, &piece->data, NULL, piece->batch));
}

static void far_send_pieces(const ll_cpu *self, int32_t pe, const link_piece *pieces, uint32_t count)
{
    if (!self->masks) ll_far_keep(self, pe, link_put_pieces(&self->links->ranks[pe].link, pieces, count));
    for (uint32_t i = 0; self->masks && i < count; i++)
        send_tolerantly(self, pe, &pieces[i]);
}

static void far_release(const ll_cpu *self, int32_t pe)
{
    link_piece pieces[LINK_MOST_PIECES];
    far_send_pieces(self, pe, pieces, take_held(self, &self->links->ranks[pe], pieces));
}

void ll_far_put(const ll_cpu *self, int32_t pe, const link_data *data, link_batch *batch)
{
    link_piece pieces[LINK_MOST_PIECES];
    uint32_t count = take_held(self, &self->links->ranks[pe], pieces);
    pieces[count++] = (link_piece){*data, batch};
    far_send_pieces(self, pe, pieces, count);
}

void ll_far_flush(const ll_cpu *self)
{
    for (int32_t r = 0; r < self->shape.ranks; r++) {
        const ll_far_rank *rank = &self->links->ranks[r];
        if (rank->holds_read || rank->holds_header) far_release(self, r);
    }
}

/* ---- headers ----------------------------------------------------------------------------------------------------- */

/* A rank that has a header also has the earlier words about masks: for example, that it is no longer masked. */
static void await_told(const ll_cpu *self, int32_t pe)
{
    const ll_far_wait wait = {.self = self->links->cpu, .pe = pe};
    if (!self->masks || ll_far_has_failed(self->links) || ll_is_masked(self, pe)) return;
    ll_far_keep(self, pe, ll_far_wait_on(&wait));
    ll_far_await_batch(self, pe, &self->links->ranks[pe].words.batch);
}

/* Sends the text of a rejection before the words that announce it, although it lies after them. */
static void send_text(const ll_cpu *self, ll_kind kind, int32_t pe, uint64_t unit)
{
    ll_far_rank *rank = &self->links->ranks[pe];
    const uint64_t at = ll_header_text_at(&self->shape, kind);
    const link_data text = {.offset = self->buffer + unit + at,
                            .source = (const uint8_t *)rank->unit + at,
                            .bytes = EP_REJECTION_TEXT,
                            .copies = true,
                            .ordered = ll_far_orders(self)};
    ll_far_keep(self, pe, link_put(&rank->link, &text, &rank->units[kind]));
    ll_far_await_batch(self, pe, &rank->units[kind]);
}

/* The rank's `unit` is about to leave, its last word after the others. Returns false if the rank has been masked. */
static bool hold_header(const ll_cpu *self, const ll_call *call, int32_t pe)
{
    const ll_kind kind = call->kind;
    ll_far_rank *rank = &self->links->ranks[pe];
    const uint64_t unit = ll_header_at(&self->space, kind, self->sym->rank, call->epoch);
    ll_far_await_batch(self, pe, &rank->units[kind]);
    await_told(self, pe);
    if (call->rejection.status != EXPAR_OK && !ll_is_masked(self, pe)) send_text(self, kind, pe, unit);
    if (ll_is_masked(self, pe)) return false;
    rank->unconfirmed = ll_far_orders(self);
    rank->unit_at = unit;
    rank->header_kind = kind;
    rank->holds_header = true;
    ll_step(self);
    return true;
}

/* Says whether the only piece to the rank goes with the header, since the rank's slot is already known to be free. */
static bool piece_follows(const ll_cpu *self, ll_kind kind, uint64_t epoch, int32_t pe)
{
    return ll_far_orders(self) && self->links->ranks[pe].pieces == 1 &&
           ll_credit_of(self, kind, epoch, pe) == LL_CREDIT_GIVEN;
}

/* Sends the words that near ranks get by stores, and the first piece of the rows that come back, as one network
   message. */
void ll_far_header(const ll_cpu *self, const ll_call *call, const ll_sends *sends, int32_t pe)
{
    const ll_kind kind = call->kind;
    const int32_t words = ll_words_of_header(&self->shape, kind);
    const bool rejected = call->rejection.status != EXPAR_OK;
    uint64_t *unit = self->links->ranks[pe].unit;
    for (int32_t word = 0; word < words; word++)
        unit[word] = ll_header_says(self, call, sends, pe, word);
    if (kind == LL_DISPATCH && sends) unit[words - 1] = ll_word(call->epoch, (uint32_t)self->links->returns[pe]);
    if (rejected) memcpy(unit + words, call->rejection.text, EP_REJECTION_TEXT);
    const bool soon = !rejected && piece_follows(self, kind, call->epoch, pe);
    if (hold_header(self, call, pe) && !soon) far_release(self, pe);
}

/* ---- acknowledgements -------------------------------------------------------------------------------------------- */

void ll_far_read(const ll_cpu *self, ll_kind kind, int32_t pe, uint64_t at, uint64_t word, bool whole)
{
    ll_far_rank *rank = &self->links->ranks[pe];
    rank->read_at = at;
    rank->read = word;
    rank->read_kind = kind;
    rank->holds_read = true;
    ll_step(self);
    if (!whole || !ll_far_orders(self)) far_release(self, pe);
}

/* ---- asking for acknowledgements --------------------------------------------------------------------------------- */

/* An answer to an earlier question may have the same stamp: that of a call 2^32 - 4 calls before. */
static bool has_answer(const ll_far_question *question, uint64_t at, uint64_t epoch)
{
    return question->asked_at == at && question->asked == epoch && link_is_quiet(&question->batch) &&
           ll_word_is_of(question->answer, epoch);
}

/* Each rank stores its acknowledgements for itself, too (ll_call_close). The network fetches them from there while that
   rank waits elsewhere, or does something else. The last word of a slot is the right one or an older one: no rank reads
   the slot anew before this rank has sent to it. */
ll_credit ll_far_ask(const ll_cpu *self, ll_kind kind, int32_t pe, uint64_t epoch)
{
    ll_far_rank *rank = &self->links->ranks[pe];
    ll_far_question *question = &rank->question;
    const uint64_t at = ll_read_at(&self->space, kind, pe, epoch);
    if (!ll_far_orders(self)) return LL_CREDIT_AWAITED; /* none is put off */
    if (has_answer(question, at, epoch)) return LL_CREDIT_GIVEN;
    if (question->missed_at != at || question->missed != epoch) {
        question->missed_at = at;
        question->missed = epoch;
        question->since_ns = clock_ns();
    }
    if (!link_is_quiet(&question->batch) || clock_ns() - question->since_ns < knob(KNOB_CPU_FAR_ASK_NS))
        return LL_CREDIT_AWAITED;
    ll_far_await_batch(self, pe, &question->batch); /* it is quiet; a failure is kept */
    if (ll_far_has_failed(self->links)) return LL_CREDIT_REJECTS;
    question->asked_at = at;
    question->asked = epoch;
    question->since_ns = clock_ns();
    ll_far_keep(self, pe, link_fetch(&rank->link, self->buffer + at, &question->answer, &question->batch));
    return has_answer(question, at, epoch) ? LL_CREDIT_GIVEN : LL_CREDIT_AWAITED;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Messages to and from ranks that are not mapped. The messages of a call to one rank are put together in pieces, each
 * of which is one put. So a row costs a copy, and a rank costs one put for each piece, all under way at once. The place
 * of a piece follows from the number of messages, which the header tells, and from the form, which all ranks share. */
#include "exec/cpu/low_latency/far/links.h"

#include <string.h>

/* Bytes from one message of a piece to the next. */
static size_t message_pitch(const ll_dispatch *d)
{
    return ep_round(d->self->space.header_bytes + d->row_bytes + (uint64_t)d->scales * sizeof(uint32_t), EP_LINE_BYTES);
}

static uint64_t piece_flag(const ll_dispatch *d, int32_t source, int32_t piece)
{
    const ll_cpu *self = d->self;
    return ll_message_piece_flag_at(&self->space, &self->shape, source, ll_slot_of_epoch(d->step->call.epoch), piece);
}

/* ---- send -------------------------------------------------------------------------------------------------------- */

void ll_far_dispatch_plan(const ll_cpu *self, bool goes)
{
    const ll_sends *sends = &self->sends;
    const int32_t locals = self->shape.local_experts;
    for (int32_t r = 0; r < self->shape.ranks; r++) {
        self->links->ranks[r].pieces = goes ? ll_pieces(sends->messages[r]) : 0;
        if (!goes) continue;
        self->links->due_sums[r] = sends->messages[r];
        self->links->due_rows[r] = 0;
        for (int32_t l = 0; l < locals; l++)
            self->links->due_rows[r] += sends->counts[(int64_t)r * locals + l];
    }
    if (goes) ll_far_place_returns(self);
}

/* Finds the token of each message to the far ranks of this round, and lists all their pieces. The first piece of each
   rank comes before the second one of any. Returns how many there are. */
static int32_t list_pieces(const ll_dispatch *d)
{
    const ll_cpu *self = d->self;
    const ll_sends *sends = &self->sends;
    const int32_t most = ll_pieces(self->shape.tokens);
    int32_t count = 0;
    for (int32_t t = 0; t < d->step->tokens; t++)
        for (int32_t i = sends->first[t]; i < sends->first[t + 1]; i++)
            self->links->tokens[(int64_t)sends->targets[i].rank * self->shape.tokens + sends->targets[i].message] = t;
    for (int32_t piece = 0; piece < most; piece++)
        for (int32_t i = 0; i + 1 < self->shape.ranks; i++) {
            const int32_t pe = ll_peer_in_turn(self, i);
            if (!ll_is_far(self, pe) || self->progress[pe] != SEND_NOW || piece >= ll_pieces(sends->messages[pe]))
                continue;
            self->links->pieces[count++] = (ll_far_piece){.pe = pe, .piece = piece};
        }
    return count;
}

static const ll_target *target_of(const ll_sends *sends, int32_t token, int32_t pe)
{
    const ll_target *target = &sends->targets[sends->first[token]];
    while (target->rank != pe)
        target++;
    return target;
}

static void send_piece(const ll_dispatch *d, const ll_scratch *scratch, const ll_far_piece *piece)
{
    const ll_cpu *self = d->self;
    const uint64_t epoch = d->step->call.epoch;
    const size_t pitch = message_pitch(d), bytes = d->row_bytes + (size_t)d->scales * sizeof(uint32_t);
    const int32_t rows = ll_piece_rows(self->sends.messages[piece->pe], piece->piece);
    const int32_t *tokens =
        self->links->tokens + (int64_t)piece->pe * self->shape.tokens + (int64_t)piece->piece * LL_PIECE_ROWS;
    const ll_parcel to = {
        .pe = piece->pe, .flag = piece_flag(d, self->sym->rank, piece->piece), .word = ll_word(epoch, 1)};
    ll_slot *slot = ll_far_take(self, LL_DISPATCH, epoch);
    for (int32_t i = 0; i < rows; i++) {
        uint8_t *message = slot->bytes + (size_t)i * pitch;
        ll_dispatch_header(d, (ll_header *)message, tokens[i], target_of(&self->sends, tokens[i], piece->pe));
        memcpy(message + self->space.header_bytes, ll_dispatch_payload(d, tokens[i], scratch), bytes);
    }
    ll_far_send(self, slot, rows, pitch, &to);
}

static void send_pieces(const void *context, const ll_scratch *scratch, int32_t begin, int32_t end)
{
    const ll_dispatch *d = context;
    for (int32_t i = begin; i < end; i++)
        send_piece(d, scratch, &d->self->links->pieces[i]);
}

void ll_far_dispatch_send(const ll_dispatch *d)
{
    const int32_t pieces = list_pieces(d);
    ll_share_out(d->self, pieces, (uint64_t)pieces * LL_PIECE_ROWS * d->row_bytes, send_pieces, d);
}

/* ---- receive ----------------------------------------------------------------------------------------------------- */

/* Pieces come in any order, but are taken in their own, as messages are. */
int32_t ll_far_messages_came(const ll_dispatch *d, int32_t source, int32_t came, int32_t all)
{
    const uint64_t epoch = d->step->call.epoch;
    int32_t piece = came / LL_PIECE_ROWS, message = came;
    while (message < all && ll_far_found(d->self, piece_flag(d, source, piece), epoch))
        message += ll_piece_rows(all, piece++);
    return message - came;
}

const uint8_t *ll_far_message(const ll_dispatch *d, int32_t source, int32_t message)
{
    const int32_t piece = message / LL_PIECE_ROWS, rows = ll_piece_rows(d->record->told[source].messages, piece);
    const uint8_t *end = ll_here(d->self, piece_flag(d, source, piece));
    return end - (size_t)(rows - message % LL_PIECE_ROWS) * message_pitch(d);
}

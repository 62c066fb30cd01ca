/* SPDX-License-Identifier: Apache-2.0 */
/* Opening units and read words to ranks that are not mapped. Each by itself would be a message, which costs both ends
 * more than its bytes; so what something else follows to the same rank goes ahead of that, in one (link_put_joined):
 *
 *   - a unit ahead of the first piece of its call, where that is the only one and leaves with it, since the rank's half
 *     is free already. It is put off for no longer than it takes to put that piece together, and waits for nobody;
 *   - the read word of a call that was received in the call itself ahead of the next unit to the rank, of either kind.
 *     In between nobody awaits it but who is two calls ahead by hooks, and that asks for it (ll_far_ask). A hook's read
 *     word leaves at once, and all that is put off before a call waits for anybody (ll_far_flush).
 *
 * So a call of few tokens is one message to each far rank. With masks, which awaited confirmations are for, and by
 * networks that do not join, each is a message of its own, in the same order. */
#include "base/knobs.h"
#include "exec/cpu/low_latency/far/links.h"

/* What is put off for one rank, in the order in which it goes. */
typedef struct far_parts {
    link_data parts[TRANSPORT_MOST_AHEAD + 1];
    uint32_t count;
} far_parts;

static link_data read_data(const ll_cpu *self, const ll_far_rank *rank)
{
    return (link_data){.offset = self->buffer + rank->read_at,
                       .source = &rank->read,
                       .bytes = sizeof rank->read,
                       .copies = true,
                       .leads = ll_far_leads(self)};
}

static link_data unit_data(const ll_cpu *self, const ll_far_rank *rank)
{
    return (link_data){.offset = self->buffer + rank->unit_at,
                       .source = rank->unit,
                       .bytes = (size_t)ll_unit_text_at(&self->shape, rank->unit_kind),
                       .copies = true,
                       .leads = ll_far_leads(self)};
}

static far_parts held_parts(const ll_cpu *self, const ll_far_rank *rank)
{
    far_parts held = {.count = 0};
    if (rank->holds_read) held.parts[held.count++] = read_data(self, rank);
    if (rank->holds_unit) held.parts[held.count++] = unit_data(self, rank);
    return held;
}

static void send_read(const ll_cpu *self, int32_t pe)
{
    ll_far_rank *rank = &self->links->ranks[pe];
    transport_batch *batch = &rank->reads[rank->read_kind];
    const link_data data = read_data(self, rank);
    if (!rank->holds_read) return;
    rank->holds_read = false;
    ll_far_await_batch(self, pe, batch);
    if (!ll_is_masked(self, pe)) ll_far_keep(self, pe, link_put_flagged(&rank->link, &data, batch));
}

/* The unit's batch is quiet since it was put off (ll_far_unit). */
static void send_unit_words(const ll_cpu *self, int32_t pe)
{
    ll_far_rank *rank = &self->links->ranks[pe];
    const link_data data = unit_data(self, rank);
    if (!rank->holds_unit) return;
    rank->holds_unit = false;
    ll_far_keep(self, pe, link_put_flagged(&rank->link, &data, &rank->units[rank->unit_kind]));
}

/* Whether all that is put off has left, with the data behind it or, where that is NULL, the last of it in its place. */
static bool far_send_joined(const ll_cpu *self, int32_t pe, const link_data *data, transport_batch *batch)
{
    ll_far_rank *rank = &self->links->ranks[pe];
    far_parts all = held_parts(self, rank);
    expar_status status;
    if (data) all.parts[all.count++] = *data;
    if (!ll_far_leads(self) || all.count < 2) return false;
    if (!link_put_joined(&rank->link, all.parts, all.count, batch, &status)) return false;
    rank->holds_read = rank->holds_unit = false;
    ll_far_keep(self, pe, status);
    return true;
}

static void far_release(const ll_cpu *self, int32_t pe)
{
    ll_far_rank *rank = &self->links->ranks[pe];
    if (rank->holds_unit && far_send_joined(self, pe, NULL, &rank->units[rank->unit_kind])) return;
    send_read(self, pe);
    send_unit_words(self, pe);
}

void ll_far_put(const ll_cpu *self, int32_t pe, const link_data *data, transport_batch *batch)
{
    if (far_send_joined(self, pe, data, batch)) return;
    far_release(self, pe);
    ll_far_keep(self, pe, link_put_flagged(&self->links->ranks[pe].link, data, batch));
}

void ll_far_flush(const ll_cpu *self)
{
    for (int32_t r = 0; r < self->shape.ranks; r++) {
        const ll_far_rank *rank = &self->links->ranks[r];
        if (rank->holds_read || rank->holds_unit) far_release(self, r);
    }
}

/* ---- units ------------------------------------------------------------------------------------------------------- */

/* Whoever has a unit has what it was told of masks before: that it is masked no more. */
static void await_told(const ll_cpu *self, int32_t pe)
{
    const ll_far_wait wait = {.self = self->links->cpu, .pe = pe};
    if (!self->masks || ll_far_has_failed(self->links) || ll_is_masked(self, pe)) return;
    ll_far_keep(self, pe, ll_far_wait_on(&wait));
    ll_far_await_batch(self, pe, &self->links->ranks[pe].words.batch);
}

/* The text of a refusal, which is behind the words that tell of it, goes before them. */
static void send_text(const ll_cpu *self, ll_kind kind, int32_t pe, uint64_t unit)
{
    ll_far_rank *rank = &self->links->ranks[pe];
    const uint64_t at = ll_unit_text_at(&self->shape, kind);
    const link_data text = {.offset = self->buffer + unit + at,
                            .source = (const uint8_t *)rank->unit + at,
                            .bytes = EP_REFUSAL_TEXT,
                            .copies = true,
                            .leads = ll_far_leads(self)};
    ll_far_keep(self, pe, link_put(&rank->link, &text, &rank->units[kind]));
    ll_far_await_batch(self, pe, &rank->units[kind]);
}

/* The rank's `unit` is to leave, its last word behind the others. False: the rank has been masked. */
static bool hold_unit(const ll_cpu *self, const ll_call *call, ll_kind kind, int32_t pe)
{
    ll_far_rank *rank = &self->links->ranks[pe];
    const uint64_t unit = ll_unit_at(&self->space, kind, self->sym->rank, call->epoch);
    ll_far_await_batch(self, pe, &rank->units[kind]);
    await_told(self, pe);
    if (call->refusal.status != EXPAR_OK && !ll_is_masked(self, pe)) send_text(self, kind, pe, unit);
    if (ll_is_masked(self, pe)) return false;
    rank->led = ll_far_leads(self);
    rank->unit_at = unit;
    rank->unit_kind = kind;
    rank->holds_unit = true;
    ll_step(self);
    return true;
}

/* The rank's half may be known to be free already; then the only piece to it goes with the unit. */
static bool piece_follows(const ll_cpu *self, ll_kind kind, uint64_t epoch, int32_t pe)
{
    return ll_far_leads(self) && self->links->ranks[pe].pieces == 1 &&
           ll_door_of(self, kind, epoch, pe) == LL_DOOR_OPEN;
}

/* The words that near ranks get by stores (post_unit), as one message of the network's. */
void ll_far_unit(const ll_cpu *self, const ll_call *call, ll_kind kind, const ll_sends *sends, int32_t pe)
{
    const uint64_t epoch = call->epoch;
    const int32_t locals = kind == LL_DISPATCH ? self->shape.local_experts : 0;
    const uint64_t text_at = ll_unit_text_at(&self->shape, kind);
    const bool refused = call->refusal.status != EXPAR_OK;
    uint64_t *unit = self->links->ranks[pe].unit;
    unit[LL_UNIT_STATUS] = ll_word(epoch, (uint32_t)call->refusal.status);
    unit[LL_UNIT_TAG] = ll_word(epoch, ll_form_tag(&call->form));
    unit[LL_UNIT_ROUTE] = ll_word(epoch, call->form.route);
    unit[LL_UNIT_MESSAGES] =
        ll_word(epoch, sends ? (uint32_t)sends->messages[pe] : (uint32_t)ll_unit_region(self, kind, epoch));
    for (int32_t l = 0; l < locals; l++)
        unit[LL_UNIT_COUNTS + l] = ll_word(epoch, sends ? (uint32_t)sends->counts[pe * locals + l] : 0);
    if (kind == LL_DISPATCH)
        unit[LL_UNIT_COUNTS + locals] = ll_word(epoch, sends ? (uint32_t)self->links->returns[pe] : 0);
    if (refused) memcpy((uint8_t *)unit + text_at, call->refusal.text, EP_REFUSAL_TEXT);
    const bool soon = !refused && piece_follows(self, kind, epoch, pe);
    if (hold_unit(self, call, kind, pe) && !soon) far_release(self, pe);
}

/* ---- read words -------------------------------------------------------------------------------------------------- */

void ll_far_read(const ll_cpu *self, ll_kind kind, int32_t pe, uint64_t at, uint64_t word, bool whole)
{
    ll_far_rank *rank = &self->links->ranks[pe];
    rank->read_at = at;
    rank->read = word;
    rank->read_kind = kind;
    rank->holds_read = true;
    ll_step(self);
    if (!whole || !ll_far_leads(self)) far_release(self, pe);
}

/* ---- asking for read words --------------------------------------------------------------------------------------- */

static bool has_answer(const ll_far_question *question, uint64_t at, uint64_t epoch)
{
    return question->asked_at == at && link_is_quiet(&question->batch) && ll_word_is_of(question->answer, epoch);
}

/* Each rank stores its read words for itself, too (ll_call_close), and the network brings them from there while that
   rank waits elsewhere, or does something else. The last word of a half is the right one or an older one: nobody reads
   the half anew before this rank has sent to it. */
ll_door ll_far_ask(const ll_cpu *self, ll_kind kind, int32_t pe, uint64_t epoch)
{
    ll_far_rank *rank = &self->links->ranks[pe];
    ll_far_question *question = &rank->question;
    const uint64_t at = ll_read_at(&self->space, kind, pe, epoch);
    if (!ll_far_leads(self)) return LL_DOOR_SHUT; /* none is put off */
    if (has_answer(question, at, epoch)) return LL_DOOR_OPEN;
    if (question->missed_at != at || question->missed != epoch) {
        question->missed_at = at;
        question->missed = epoch;
        question->since_ns = clock_ns();
    }
    if (!link_is_quiet(&question->batch) || clock_ns() - question->since_ns < knob(KNOB_CPU_FAR_ASK_NS))
        return LL_DOOR_SHUT;
    ll_far_await_batch(self, pe, &question->batch); /* it is quiet; a failure is kept */
    if (ll_far_has_failed(self->links)) return LL_DOOR_REFUSES;
    question->asked_at = at;
    question->since_ns = clock_ns();
    ll_far_keep(self, pe, link_fetch(&rank->link, self->buffer + at, &question->answer, &question->batch));
    return has_answer(question, at, epoch) ? LL_DOOR_OPEN : LL_DOOR_SHUT;
}

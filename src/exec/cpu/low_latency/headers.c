/* SPDX-License-Identifier: Apache-2.0 */
/* Message headers and acknowledgements. They tell ranks about each other's calls, and when a slot is free.
 *
 * Headers leave without waiting for any rank, since each is kept four times. But a slot whose last call was not read
 * here (it was rejected, or is still open) says nothing about where the others are. So such a send first waits for all
 * headers of the call between. It also keeps the headers of the open call, which it is about to overtake. */
#include "exec/cpu/low_latency/far.h"

#include <stdio.h>
#include <string.h>

static const char *const kind_names[] = {"dispatch", "combine"};
static const char *const header_phases[] = {"low-latency dispatch: message headers",
                                            "low-latency combine: message headers"};

/* ---- a message header -------------------------------------------------------------------------------------------- */

static uint64_t header_word(const ll_cpu *self, ll_kind kind, uint64_t epoch, int32_t source, int32_t word)
{
    return ll_look(self, ll_header_at(&self->space, kind, source, epoch) + (uint64_t)word * 8);
}

/* Says whether all words of the header are here. Each is complete by itself, and the status comes last if stores keep
   their order. The words of a far rank's header are complete only after the last one, which is read first. */
static bool header_has_come(const ll_cpu *self, ll_kind kind, uint64_t epoch, int32_t source)
{
    const int32_t words = ll_words_of_header(&self->shape, kind);
    const uint64_t last = ll_header_at(&self->space, kind, source, epoch) + (uint64_t)(words - 1) * 8;
    if (ll_is_far(self, source) && !self->far->found(self, last, epoch)) return false;
    for (int32_t i = LL_HEADER_STATUS; i < words; i++)
        if (!ll_word_is_of(header_word(self, kind, epoch, source, i), epoch)) return false;
    return true;
}

/* Checks that words of a header that has not come belong to no later call: no rank is ahead of a rank that still awaits
   its header. With masks this does not hold, since ranks that have masked this one go on without it. Nor does it hold
   once stamps have begun again. Of a far rank's header only the last word may be read before it has come: the network
   may be writing the others. */
static expar_status look_at_message_header(const ll_cpu *self, ll_kind kind, uint64_t epoch, int32_t source)
{
    const int32_t words = ll_words_of_header(&self->shape, kind);
    if (self->masks || ll_stamp(epoch) != epoch) return EXPAR_OK;
    for (int32_t i = ll_is_far(self, source) ? words - 1 : LL_HEADER_STATUS; i < words; i++) {
        const uint64_t word = header_word(self, kind, epoch, source, i);
        if (word >> 32 > epoch)
            return error_set(EXPAR_ERR_PEER,
                             "low-latency %s: word %d of rank %d's message header holds 0x%016llx in call %llu: "
                             "its memory has been overwritten",
                             kind_names[kind], i, source, (unsigned long long)word, (unsigned long long)epoch);
    }
    return EXPAR_OK;
}

uint64_t ll_header_says(const ll_cpu *self, const ll_call *call, const ll_sends *sends, int32_t pe, int32_t word)
{
    const int32_t locals = self->shape.local_experts;
    const bool goes = call->kind == LL_COMBINE || (sends && word < LL_HEADER_COUNTS + locals);
    const int32_t *counts = sends ? &sends->counts[pe * locals] : NULL;
    const uint32_t messages = sends ? (uint32_t)sends->messages[pe] : (uint32_t)ll_region_here(self, call->epoch);
    if (word == LL_HEADER_STATUS) return ll_word(call->epoch, (uint32_t)call->rejection.status);
    return ll_word(call->epoch, ll_header_value(word, &call->form, call->form.route, goes, messages, counts));
}

/* Stores the header at one peer, the status last. */
static void post_message_header(const ll_cpu *self, const ll_call *call, const ll_sends *sends, int32_t pe)
{
    const ll_kind kind = call->kind;
    const uint64_t unit = ll_header_at(&self->space, kind, self->sym->rank, call->epoch);
    const int32_t words = ll_words_of_header(&self->shape, kind);
    if (call->rejection.status != EXPAR_OK)
        memcpy(ll_at(self, pe, unit + ll_header_text_at(&self->shape, kind)), call->rejection.text, EP_REJECTION_TEXT);
    for (int32_t i = 1; i <= words; i++) {
        const int32_t word = i < words ? i : LL_HEADER_STATUS;
        ll_store(self, pe, unit + (uint64_t)word * 8, ll_header_says(self, call, sends, pe, word));
    }
    ll_step(self);
    sym_ring(self->sym, pe);
}

/* Sends headers to all ranks that get one. */
static void post_message_headers(const ll_cpu *self, const ll_call *call, const ll_sends *sends)
{
    for (int32_t i = 0; i + 1 < self->shape.ranks; i++) {
        const int32_t pe = ll_peer_in_turn(self, i);
        if (ll_is_masked(self, pe) || !ll_has_met(self, pe)) continue;
        if (ll_is_far(self, pe))
            self->far->unit(self, call, sends, pe);
        else
            post_message_header(self, call, sends, pe);
    }
}

/* Says whether the rows that go back to the source, or their sums, fit into the memory for them. Each count has been
   checked. */
static bool returns_fit(const ll_cpu *self, const ll_told *told, const int32_t *counts)
{
    int64_t rows = 0;
    for (int32_t l = 0; l < self->shape.local_experts && self->shape.exact; l++)
        rows += counts[l];
    if (rows < told->messages) rows = told->messages;
    const int64_t pieces = (rows + LL_PIECE_ROWS - 1) / LL_PIECE_ROWS;
    return told->returns >= 0 && told->returns + pieces <= (int64_t)self->space.return_pieces;
}

/* Data from a peer must fit the buffer, whatever has happened to the peer. */
static void check_told(const ll_cpu *self, ll_told *told, int32_t source, const int32_t *counts)
{
    const ll_header_bounds bounds = {self->shape.tokens, -1, ll_rows_at_most(&self->shape)};
    int32_t most = bounds.messages;
    char seen[64] = "";
    if (!ll_count_can_be(LL_HEADER_MESSAGES, (uint32_t)told->messages, bounds))
        snprintf(seen, sizeof seen, "%d messages", told->messages);
    for (int32_t l = 0; counts && !seen[0] && l < self->shape.local_experts; l++)
        if (!ll_count_can_be(LL_HEADER_COUNTS + l, (uint32_t)counts[l], bounds)) {
            snprintf(seen, sizeof seen, "%d rows for expert %d of rank %d", counts[l], l, self->sym->rank);
            most = bounds.rows;
        }
    if (counts && !seen[0] && ll_is_far(self, source) && !returns_fit(self, told, counts))
        snprintf(seen, sizeof seen, "rows back from piece %d on, of %llu in all", told->returns,
                 (unsigned long long)self->space.return_pieces);
    if (!seen[0]) return;
    told->status = EXPAR_ERR_PEER;
    snprintf(told->text, sizeof told->text, "rank %d has told what cannot be: %s, of %d at most", source, seen, most);
}

/* Copies a header that has come into the record of its call. */
static void take_header(const ll_cpu *self, ll_record *record, ll_kind kind, uint64_t epoch, int32_t source)
{
    ll_told *told = &record->told[source];
    int32_t *counts = kind == LL_DISPATCH ? record->counts + (int64_t)source * self->shape.local_experts : NULL;
    const uint64_t unit = ll_header_at(&self->space, kind, source, epoch);
    told->got = true;
    told->status = (int32_t)header_word(self, kind, epoch, source, LL_HEADER_STATUS);
    told->tag = (uint32_t)header_word(self, kind, epoch, source, LL_HEADER_TAG);
    told->route = (uint32_t)header_word(self, kind, epoch, source, LL_HEADER_ROUTE);
    told->messages = kind == LL_DISPATCH ? (int32_t)header_word(self, kind, epoch, source, LL_HEADER_MESSAGES) : 0;
    for (int32_t l = 0; counts && l < self->shape.local_experts; l++)
        counts[l] = (int32_t)header_word(self, kind, epoch, source, LL_HEADER_COUNTS + l);
    if (counts && ll_is_far(self, source))
        told->returns = (int32_t)header_word(self, kind, epoch, source, LL_HEADER_COUNTS + self->shape.local_experts);
    if (told->status != EXPAR_OK) {
        memcpy(told->text, ll_here(self, unit + ll_header_text_at(&self->shape, kind)), EP_REJECTION_TEXT);
        told->text[EP_REJECTION_TEXT - 1] = '\0';
    }
    check_told(self, told, source, counts);
}

/* ---- a call opens ------------------------------------------------------------------------------------------------ */

/* The headers of an epoch, for a wait. */
typedef struct headers_context {
    const ll_cpu *self;
    ll_kind kind;
    uint64_t epoch;
} headers_context;

static ll_due header_due(const void *context, int32_t rank)
{
    const headers_context *units = context;
    const bool skip = rank == units->self->sym->rank || ll_is_masked(units->self, rank);
    return (ll_due){.came = skip || header_has_come(units->self, units->kind, units->epoch, rank), .all = 1};
}

/* The slot's last call, two epochs ago, was not read here: waits until all ranks have made the call between. */
static expar_status headers_await_between(ll_cpu *self, const ll_call *call, ll_record *record)
{
    static const char *const phases[] = {"low-latency dispatch: counts of the call before",
                                         "low-latency combine: message headers of the call before"};
    const ll_kind kind = call->kind;
    const headers_context units = {.self = self, .kind = kind, .epoch = call->epoch - 1};
    ll_wait wait = {
        .cpu = self, .call = call, .what = phases[kind], .of = "message headers", .due = header_due, .context = &units};
    expar_status status = EXPAR_OK;
    for (int32_t r = 0; r < self->shape.ranks && status == EXPAR_OK; r++) {
        while (status == EXPAR_OK && header_due(&units, r).came == 0)
            status = ll_wait_turn(&wait, false);
        if (status == EXPAR_OK && record->epoch && !record->told[r].got && !ll_is_masked(self, r))
            take_header(self, record, kind, record->epoch, r);
    }
    return ll_wait_end(&wait, status);
}

/* This rank's own part of a record is what its headers say. */
static void begin_record(ll_cpu *self, const ll_call *call, const ll_sends *sends)
{
    ll_record *record = ll_record_of(self, call->kind, call->epoch);
    const int32_t own = self->sym->rank, locals = self->shape.local_experts;
    record->epoch = call->epoch;
    for (int32_t r = 0; r < self->shape.ranks; r++)
        record->told[r].got = false;
    record->told[own] = (ll_told){.got = true,
                                  .status = call->rejection.status,
                                  .messages = sends ? sends->messages[own] : 0,
                                  .tag = ll_form_tag(&call->form),
                                  .route = call->form.route};
    memcpy(record->told[own].text, call->rejection.text, EP_REJECTION_TEXT);
    if (sends)
        memcpy(record->counts + (int64_t)own * locals, sends->counts + (int64_t)own * locals,
               (size_t)locals * sizeof(int32_t));
}

static bool rejects(const ll_call *call)
{
    return !ll_status_goes_on(call->rejection.status);
}

/* Opens a call. At this point all ranks may be told about it. */
static expar_status open_call(ll_cpu *self, ll_call *call, const ll_sends *sends)
{
    const ll_kind kind = call->kind;
    call->epoch = ++self->epochs[kind];
    ll_record *record = ll_record_of(self, kind, call->epoch);
    if (self->masks) self->masks->steps++;
    if (self->far) self->far->spread(self);
    if (record->epoch || record->unread) {
        if (self->far) self->far->flush(self);
        expar_status status = headers_await_between(self, call, record);
        if (status != EXPAR_OK) return status;
    }
    /* No acknowledgement has told others where this slot lies: this header does. */
    if (self->masks && kind == LL_COMBINE && !record->epoch && record->unread)
        ll_region_settle(self, ll_slot_of_epoch(call->epoch));
    call->open = !rejects(call);
    record->unread = !call->open;
    if (!call->open) sends = NULL;
    if (call->open) begin_record(self, call, sends);
    if (self->far && kind == LL_COMBINE) self->far->await(self, kind, call->epoch - 1);
    post_message_headers(self, call, sends);
    return self->far ? self->far->check(self, header_phases[kind]) : EXPAR_OK;
}

expar_status ll_call_open(ll_cpu *self, ll_call *call, const ll_sends *sends)
{
    call->open = true;
    expar_status status = ll_meet(self, call);
    return status == EXPAR_OK && call->open ? open_call(self, call, sends) : status;
}

/* The check passes, and the peer's slot lies in the region that it has named. */
static ll_credit open_credit(const ll_cpu *self, ll_kind kind, int32_t pe, uint32_t region)
{
    if (self->masks && kind == LL_COMBINE) self->masks->peer_regions[pe] = ll_region_told(region, self->shape.regions);
    return LL_CREDIT_GIVEN;
}

/* Says whether the rank has read the data of the epoch, and returns its acknowledgement. */
static bool was_read(const ll_cpu *self, ll_kind kind, uint64_t epoch, int32_t pe, uint64_t *read)
{
    const uint64_t at = ll_read_at(&self->space, kind, pe, epoch);
    if (ll_is_far(self, pe) && !self->far->found(self, at, epoch)) return false;
    *read = ll_look(self, at);
    return ll_read_opens(*read, ll_stamp(epoch));
}

ll_credit ll_credit_of(const ll_cpu *self, ll_kind kind, uint64_t epoch, int32_t pe)
{
    if (pe == self->sym->rank) return LL_CREDIT_GIVEN;
    if (ll_is_masked(self, pe)) return LL_CREDIT_REJECTS;
    if (epoch < 3) return open_credit(self, kind, pe, 0);
    uint64_t read;
    if (was_read(self, kind, epoch - 2, pe, &read)) return open_credit(self, kind, pe, (uint32_t)read);
    if (ll_is_far(self, pe) && !header_has_come(self, kind, epoch, pe))
        return self->far->ask(self, kind, pe, epoch - 2);
    const ll_credit credit = ll_header_opens(header_word(self, kind, epoch, pe, LL_HEADER_STATUS), ll_stamp(epoch));
    if (credit != LL_CREDIT_GIVEN || !self->masks) return credit;
    const uint64_t region = header_word(self, kind, epoch, pe, LL_HEADER_MESSAGES);
    return ll_word_is_of(region, epoch) ? open_credit(self, kind, pe, (uint32_t)region) : LL_CREDIT_AWAITED;
}

/* ---- a call is received ------------------------------------------------------------------------------------------ */

static ll_due told_due(const void *context, int32_t rank)
{
    const ll_record *record = context;
    return (ll_due){.came = record->told[rank].got, .all = 1};
}

/* Takes the headers that have come since the last look, and returns how many are still missing. It looks at all ranks
   in each turn, so that no rank's wait holds up another one's. */
static int32_t take_headers(ll_cpu *self, const ll_call *call, ll_wait *wait, bool *moved, expar_status *status)
{
    const ll_kind kind = call->kind;
    ll_record *record = ll_record_of(self, kind, call->epoch);
    int32_t missing = 0;
    *moved = false;
    for (int32_t r = 0; r < self->shape.ranks; r++) {
        if (record->told[r].got || ll_is_masked(self, r)) continue;
        if (header_has_come(self, kind, call->epoch, r)) {
            take_header(self, record, kind, call->epoch, r);
            ll_wait_came(wait, r);
            *moved = true;
        } else {
            missing++;
            if (*status == EXPAR_OK) *status = look_at_message_header(self, kind, call->epoch, r);
        }
    }
    return missing;
}

/* A rank that has left the buffer for good says so in its headers. */
static expar_status mask_parted(ll_cpu *self, const ll_record *record, int32_t rank)
{
    const ll_told *told = &record->told[rank];
    if (!self->masks || ll_is_masked(self, rank) || told->status != EXPAR_ERR_PEER) return EXPAR_OK;
    return ll_mask(self, rank, told->text);
}

/* Without masks a wait ends once any rank has left for good. Others may have learned that in another call, and never
   come to this one. */
static expar_status find_parted(const ll_cpu *self, const ll_record *record)
{
    for (int32_t r = 0; r < self->shape.ranks && !self->masks; r++) {
        const ll_told *told = &record->told[r];
        if (told->got && told->status == EXPAR_ERR_PEER) return error_set(EXPAR_ERR_PEER, "%s", told->text);
    }
    return EXPAR_OK;
}

expar_status ll_headers_await(ll_cpu *self, const ll_call *call)
{
    static const char *const phases[] = {"low-latency dispatch: counts", "low-latency combine: message headers"};
    ll_record *record = ll_record_of(self, call->kind, call->epoch);
    ll_wait wait = {.cpu = self,
                    .call = call,
                    .what = phases[call->kind],
                    .of = "message headers",
                    .due = told_due,
                    .context = record,
                    .receives = true};
    expar_status status = EXPAR_OK;
    bool moved;
    if (self->far) self->far->flush(self);
    while (status == EXPAR_OK && take_headers(self, call, &wait, &moved, &status) > 0) {
        if (moved && status == EXPAR_OK) status = find_parted(self, record);
        if (status == EXPAR_OK) status = ll_wait_turn(&wait, moved);
    }
    for (int32_t r = 0; r < self->shape.ranks && status == EXPAR_OK; r++)
        status = mask_parted(self, record, r);
    return ll_wait_end(&wait, status);
}

static bool has_form(const ll_told *told, const ll_form *form)
{
    return ll_is_same_call(told->tag, told->route, ll_form_tag(form), form->route);
}

bool ll_call_mismatches(ll_cpu *self, const ll_call *call)
{
    const ll_record *record = ll_record_of(self, call->kind, call->epoch);
    for (int32_t r = 0; r < self->shape.ranks; r++)
        if (ll_sends_data(self, record, r) && !has_form(&record->told[r], &call->form)) return true;
    return false;
}

/* Names the first rank that rejected, or else the first whose form differs. */
void ll_call_judge(ll_cpu *self, ll_call *call)
{
    const ll_record *record = ll_record_of(self, call->kind, call->epoch);
    call->vote = (ep_vote){.rank = -1};
    for (int32_t r = 0; r < self->shape.ranks && call->vote.rank < 0; r++) {
        const ll_told *told = &record->told[r];
        if (told->status == EXPAR_OK || ll_is_masked(self, r)) continue;
        call->vote.rank = r;
        call->vote.reason.status = told->status;
        memcpy(call->vote.reason.text, told->text, EP_REJECTION_TEXT);
    }
    for (int32_t r = 0; r < self->shape.ranks && call->vote.rank < 0; r++) {
        const ll_told *told = &record->told[r];
        const ll_form form = ll_form_of(told->tag, told->route);
        if (!has_form(told, &call->form) && !ll_is_masked(self, r))
            ep_vote_differ(&call->vote, r, &form, &call->form, sizeof form);
    }
}

/* ---- a call was read --------------------------------------------------------------------------------------------- */

/* Clears the flags of a slot. All its data have been read, and no rank may write the next ones yet. */
static void flags_sweep(const ll_cpu *self, ll_kind kind, uint64_t epoch)
{
    const ll_space *space = &self->space;
    const uint64_t share = (uint64_t)self->shape.ranks * space->flag_share_bytes, slot = epoch & 1;
    const uint64_t rows = (uint64_t)self->shape.tokens * (uint64_t)space->places * 8;
    const uint64_t region = (uint64_t)ll_region_here(self, epoch) * LL_SLOTS;
    if (self->far) self->far->clear(self, kind, (int32_t)slot, ll_region_here(self, epoch));
    if (kind == LL_DISPATCH) {
        memset(ll_here(self, space->message_flags + slot * share), 0, (size_t)share);
        return;
    }
    memset(ll_here(self, space->row_flags + (region + slot) * rows), 0, (size_t)rows);
    if (self->shape.reduced) memset(ll_here(self, space->weight_flags + slot * share), 0, (size_t)share);
}

void ll_call_close(ll_cpu *self, const ll_call *call, bool mismatched)
{
    const ll_kind kind = call->kind;
    ll_record *record = ll_record_of(self, kind, call->epoch);
    record->epoch = 0;
    if (self->masks) self->masks->steps++;
    if (mismatched) {
        record->unread = true;
        return;
    }
    if (call->epoch - record->swept >= LL_SWEEP_CALLS) {
        flags_sweep(self, kind, call->epoch);
        record->swept = call->epoch;
    }
    if (self->masks && kind == LL_COMBINE) ll_region_settle(self, ll_slot_of_epoch(call->epoch));
    const uint64_t word = ll_word(call->epoch, (uint32_t)ll_header_region(self, kind, call->epoch));
    const uint64_t at = ll_read_at(&self->space, kind, self->sym->rank, call->epoch);
    if (self->far) ll_store(self, self->sym->rank, at, word);
    for (int32_t i = 0; i + 1 < self->shape.ranks; i++) {
        const int32_t pe = ll_peer_in_turn(self, i);
        if (ll_is_masked(self, pe)) continue;
        if (ll_is_far(self, pe)) {
            self->far->read(self, kind, pe, at, word, call->whole);
            continue;
        }
        ll_store(self, pe, at, word);
        ll_step(self);
        sym_ring(self->sym, pe);
    }
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

void ll_cpu_retire(executor *base, uint32_t epoch, const ep_rejection *rejection)
{
    (void)epoch;
    ll_cpu *self = ll_cpu_of(base);
    /* A rank that learns from the headers that this rank has left then knows that it needs no region for it. */
    if (self->masks) ll_masker_part(self);
    if (self->far) self->far->part(self, true);
    for (int kind = 0; kind < LL_KINDS; kind++) {
        const ll_call call = {.kind = (ll_kind)kind, .epoch = self->epochs[kind] + 1, .rejection = *rejection};
        const ll_record *record = ll_record_of(self, call.kind, call.epoch);
        if (!record->epoch && !record->unread) post_message_headers(self, &call, NULL);
    }
    if (self->far) self->far->part(self, false);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Records across nodes. A rank posts each record to the ranks of its node as always, and once to every other node.
 * There it goes to the rank of its rail, with everything that the node's ranks must know. That rank passes it on to
 * them as the source would have posted it, its own copy last. So a rank that has heard from all has passed on
 * everything that came by its rail, and no rank on the node waits for it any more.
 *
 * The thread that awaits the records passes them on, and only those of that call. So the two parities are enough here,
 * too: a rank that passes on a record of call n + 2 has opened that call. So all ranks of its node have judged call n +
 * 1. */
#include "base/interrupt.h"
#include "base/knobs.h"
#include "exec/cpu/nodes/rails.h"

#include <string.h>

/* ---- posting ----------------------------------------------------------------------------------------------------- */

static void fill_rail_counts(const cpu_executor *self, ep_rail_header *header, const ep_routing *routing, int32_t node)
{
    const cpu_rails *rails = self->rails;
    const size_t channels = (size_t)routing->channels, locals = (size_t)routing->local_experts;
    int32_t *counts = rail_header_counts(self, header, routing->local_experts);
    memcpy(counts, rail_records_out(routing, node), channels * sizeof *counts);
    counts += channels;
    for (int32_t l = 0; l < rails->shape.each; l++) {
        const size_t pe = (size_t)node * (size_t)rails->shape.each + (size_t)l;
        memcpy(counts, routing->channel_prefix + pe * channels, channels * sizeof *counts);
        memcpy(counts + channels, routing->expert_counts + pe * locals, locals * sizeof *counts);
        counts += channels + locals;
    }
}

/* Returns the bytes of the counts that stand before a header. */
static size_t rail_counts_bytes(const cpu_executor *self, const ep_routing *counts)
{
    if (!counts) return 0;
    return sizeof(int32_t) * ep_rail_counts(self->rails->shape.each, counts->channels, counts->local_experts);
}

/* Returns the flag of headers and replies. Those of a call whose records have grown come a second time in its epoch. */
static uint64_t header_wait_word(const cpu_executor *self, uint32_t epoch)
{
    const uint64_t again = ep_word(epoch, 2);
    return self->rails->again == again ? again : ep_word(epoch, 1);
}

/* Waits like the other waits of a call, which are soon over. If it takes longer than a network does, link_quiet waits
   on, and finds out which rank is silent. */
static expar_status await_header(cpu_executor *self, uint32_t epoch)
{
    const link_batch *batch = &self->rails->headers[epoch & 1];
    const int64_t end_ns = clock_ns() + knob(KNOB_CPU_FAR_SETTLE_NS);
    sym_rest rest = sym_rest_begin(self->sym, "a header to other nodes");
    rest.halt = &self->halted;
    expar_status status = EXPAR_OK;
    while (!link_is_quiet(batch) && status == EXPAR_OK && clock_ns() < end_ns)
        status = sym_rest_turn(&rest);
    sym_rest_end(&rest);
    if (status == EXPAR_OK) status = link_quiet(self->sym, &self->rails->headers[epoch & 1]);
    return rail_ended(self, status);
}

expar_status rail_header_post(cpu_executor *self, uint32_t epoch, const ep_form *form, const ep_rejection *rejection,
                              const ep_routing *counts, bool rows_follow)
{
    cpu_rails *rails = self->rails;
    const int32_t nodes = rails->shape.nodes;
    const size_t before = rail_counts_bytes(self, counts);
    link_batch *batch = &rails->headers[epoch & 1];
    expar_status status = link_quiet(self->sym, batch);
    if (counts) rail_layout(counts);
    rails->form = *form;
    rails->counted = counts != NULL;
    for (int32_t i = 0; i < nodes - 1 && status == EXPAR_OK; i++) {
        const int32_t node = rail_node_in_turn(rails, i);
        ep_rail_header *header = rail_at(self, ep_rail_outgoing_at(&rails->space, nodes, epoch, node));
        const uint64_t there = self->buffer + ep_rail_header_at(&rails->space, nodes, epoch, rails->node);
        header->form = *form;
        header->rejection = *rejection;
        header->with_counts = counts != NULL;
        header->growth = self->growth;
        if (counts) fill_rail_counts(self, header, counts, node);
        atomic_store_explicit(&header->flag, header_wait_word(self, epoch), memory_order_relaxed);
        const link_data data = {
            .offset = there - before, .source = (const uint8_t *)header - before, .bytes = before + sizeof *header};
        cpu_step(self);
        status = link_put_flag(&rails->links[node], &data, NULL, batch);
    }
    status = rail_ended(self, status);
    return status == EXPAR_OK && rows_follow ? await_header(self, epoch) : status;
}

void rail_retirement_post(cpu_executor *self, uint32_t epoch, const ep_rejection *rejection)
{
    const ep_form none = {0};
    error_kept kept;
    error_save(&kept);
    rail_linger_begin(self);
    rail_header_post(self, epoch, &none, rejection, NULL, false);
    rail_linger_end();
    error_put_back(&kept);
}

static uint64_t rail_record_at(const cpu_rails *rails, ep_mailbox mailbox, uint32_t epoch, int32_t node)
{
    const int32_t nodes = rails->shape.nodes;
    return mailbox == EP_MAILBOX_HEADER  ? ep_rail_header_at(&rails->space, nodes, epoch, node)
           : mailbox == EP_MAILBOX_REPLY ? ep_rail_reply_at(&rails->space, nodes, epoch, node)
                                         : ep_rail_done_at(&rails->space, nodes, epoch, node);
}

static uint64_t awaited_word(const cpu_executor *self, ep_mailbox mailbox, uint32_t epoch)
{
    return mailbox == EP_MAILBOX_COMPLETION ? ep_word(epoch, 1) : header_wait_word(self, epoch);
}

/* A reply that rejects the call goes before its flag. Any other record is only a flag, in one message. The first row of
   another rank may use the same wire as soon as this rank's node has its reply. */
static expar_status post_record(cpu_executor *self, ep_mailbox mailbox, uint32_t epoch, const ep_rejection *rejection,
                                int32_t node)
{
    cpu_rails *rails = self->rails;
    const uint64_t there = self->buffer + rail_record_at(rails, mailbox, epoch, rails->node);
    const uint64_t word = awaited_word(self, mailbox, epoch);
    const bool rejects = rejection && rejection->status;
    const link_flag flag = {.offset = there, .word = rejects ? word | EP_REPLY_REJECTS : word};
    cpu_step(self);
    if (!rejects) return link_set_flag(&rails->links[node], &flag, &rails->flags);
    const link_data data = {.offset = there + offsetof(ep_rail_reply, rejection),
                            .source = rejection,
                            .bytes = sizeof *rejection,
                            .copies = true};
    return link_put_flag(&rails->links[node], &data, &flag, &rails->flags);
}

expar_status rail_post(cpu_executor *self, ep_mailbox mailbox, uint32_t epoch, const ep_rejection *rejection)
{
    const cpu_rails *rails = self->rails;
    expar_status status = EXPAR_OK;
    for (int32_t i = 0; i < rails->shape.nodes - 1 && status == EXPAR_OK; i++)
        status = post_record(self, mailbox, epoch, rejection, rail_node_in_turn(rails, i));
    return rail_ended(self, status);
}

/* All rows are here, so the call has succeeded, whatever the result of this is: a rank that cannot be told any more has
   left. */
static void settle_dones(cpu_executor *self)
{
    error_kept kept;
    error_save(&kept);
    interrupt_defer();
    if (link_quiet(self->sym, &self->rails->flags) == EXPAR_OK)
        self->rails->unconfirmed = false;
    else
        LOG(LOG_INFO, "the end of a call did not come to another node: %s", expar_last_error());
    interrupt_undefer();
    error_put_back(&kept);
}

void rail_end(cpu_executor *self, const ep_routing *routing)
{
    settle_dones(self);
    rail_masks_settle(routing);
}

/* ---- what has come ----------------------------------------------------------------------------------------------- */

/* Looks in the memory of pe, which is mapped; reading this rank's own memory drives the network. A header's flag comes
   with the rest of the header. If it has come in part, it does not equal the awaited one yet. */
static bool rail_has_come(const cpu_executor *self, int32_t pe, ep_mailbox mailbox, uint32_t epoch, int32_t node)
{
    const uint64_t offset = rail_record_at(self->rails, mailbox, epoch, node) +
                            (mailbox == EP_MAILBOX_HEADER ? offsetof(ep_rail_header, flag) : 0);
    const _Atomic uint64_t *flag = sym_at(self->sym, pe, self->buffer + offset);
    const uint64_t awaited = awaited_word(self, mailbox, epoch);
    if (mailbox == EP_MAILBOX_HEADER) {
        if (link_peek(flag) != awaited) return false;
        sym_behold(self->sym);
    }
    const uint64_t word = atomic_load_explicit(flag, memory_order_acquire);
    return (mailbox == EP_MAILBOX_REPLY ? word & ~(uint64_t)EP_REPLY_REJECTS : word) == awaited;
}

bool rail_done_is_here(const cpu_executor *self, uint32_t epoch, int32_t source)
{
    const ep_rails *shape = &self->rails->shape;
    const int32_t node = ep_node_of(shape, source), pe = ep_rail_of(shape, self->rails->node, source);
    return node != self->rails->node && rail_has_come(self, pe, EP_MAILBOX_COMPLETION, epoch, node);
}

/* Says whether this rank's mailbox has the source's completion flag. */
static bool done_was_passed_on(const cpu_executor *self, uint32_t epoch, int32_t source)
{
    const _Atomic uint64_t *flag =
        cpu_at(self, self->sym->rank, ep_completion_at(&self->space, self->shape.ranks, epoch, source));
    return ep_word_value(atomic_load_explicit(flag, memory_order_acquire), epoch) == 1;
}

bool rail_owes_done(const cpu_executor *self, uint32_t epoch, int32_t rank)
{
    const ep_rails *shape = &self->rails->shape;
    if (rank == self->sym->rank || ep_node_of(shape, rank) != self->rails->node) return false;
    for (int32_t node = 0; node < shape->nodes; node++) {
        const int32_t source = ep_rail_of(shape, node, rank);
        if (rail_done_is_here(self, epoch, source) && !done_was_passed_on(self, epoch, source)) return true;
    }
    return false;
}

/* ---- checks of a header ------------------------------------------------------------------------------------------ */

/* Returns the number of experts of a rank, by the form that came. */
static int32_t locals_of(const cpu_executor *self, const ep_rail_header *header)
{
    return header->form.experts / self->shape.ranks;
}

/* Says whether a header that must have counts lacks them. It must have them if its form is this rank's, which has
   counts, and it does not reject the call. Another form ends the call in any case. */
static bool lacks_counts(const cpu_executor *self, const ep_rail_header *header)
{
    const cpu_rails *rails = self->rails;
    if (header->rejection.status || !rails->counted) return false;
    return ep_is_same_form(&header->form, &rails->form);
}

/* Data from the network are checked before they are used. The kind must be a known one. Counts become places in memory
   later, so their sums over all ranks must fit. An error names the value. */
static expar_status look_at_step(int64_t step, int64_t most, const char *what, int32_t channel)
{
    if (step >= 0 && step <= most) return EXPAR_OK;
    return error_set(EXPAR_ERR_PEER, "%lld %s in channel %d, of %lld at most", (long long)step, what, channel,
                     (long long)most);
}

static int64_t step_of(const int32_t *prefix, int32_t channel)
{
    return (int64_t)prefix[channel] - ep_prefix_before(prefix, channel);
}

static expar_status look_at_records(const cpu_executor *self, const int32_t *records)
{
    const int32_t most = INT32_MAX / self->shape.ranks;
    expar_status status = EXPAR_OK;
    for (int32_t c = 0; c < self->shape.channels && status == EXPAR_OK; c++)
        status = look_at_step(step_of(records, c), (int64_t)most - ep_prefix_before(records, c), "records", c);
    return status;
}

/* Checks the counts for the local rank: no channel has more rows than records. */
static expar_status look_at_counts(const cpu_executor *self, const ep_rail_header *header, const int32_t *records,
                                   const int32_t *counts)
{
    const int32_t channels = self->shape.channels, most = INT32_MAX / self->shape.ranks;
    expar_status status = EXPAR_OK;
    for (int32_t c = 0; c < channels && status == EXPAR_OK; c++)
        status = look_at_step(step_of(counts, c), step_of(records, c), "rows", c);
    for (int32_t e = 0; e < locals_of(self, header) && status == EXPAR_OK; e++)
        if (counts[channels + e] < 0 || counts[channels + e] > most)
            status = error_set(EXPAR_ERR_PEER, "%d rows for its expert %d", counts[channels + e], e);
    return status;
}

static expar_status look_at_header(const cpu_executor *self, const ep_rail_header *header)
{
    const int32_t channels = self->shape.channels, kind = header->form.kind, locals = locals_of(self, header);
    if (kind < 0 || kind > EP_ROUTE) return error_set(EXPAR_ERR_PEER, "a call of kind %d, which is none", kind);
    if (header->with_counts != 1 && (header->with_counts != 0 || lacks_counts(self, header)))
        return error_set(EXPAR_ERR_PEER, "with_counts %d in a call of kind %d", header->with_counts, kind);
    if (header->growth < EP_GROWTH_NONE || header->growth > EP_GROWTH_REQUESTED)
        return error_set(EXPAR_ERR_PEER, "growth %d in a call of kind %d", header->growth, kind);
    if (header->with_counts && (locals < 0 || locals > self->shape.local_experts))
        return error_set(EXPAR_ERR_PEER, "%d experts, where the buffer takes %d a rank", header->form.experts,
                         self->shape.local_experts);
    if (!header->with_counts) return EXPAR_OK;
    const int32_t *records = rail_header_counts(self, header, locals), *counts = records + channels;
    expar_status status = look_at_records(self, records);
    for (int32_t l = 0; l < self->rails->shape.each && status == EXPAR_OK; l++) {
        status = look_at_counts(self, header, records, counts);
        if (status != EXPAR_OK) return error_prefix(status, "for rank %d", self->near_first + l);
        counts += channels + locals;
    }
    return status;
}

/* ---- passing on -------------------------------------------------------------------------------------------------- */

static void pass_rejection(ep_rejection *to, const ep_rejection *from)
{
    *to = *from;
    to->text[sizeof to->text - 1] = 0;
}

/* Writes the header's counts for the local rank, as its source would have posted them. */
static void pass_counts(const cpu_executor *self, const ep_rail_header *from, ep_header *to, int32_t local)
{
    const int32_t channels = self->shape.channels, each = self->rails->shape.each;
    const size_t stride = (size_t)channels + (size_t)locals_of(self, from);
    const int32_t *counts = rail_header_counts(self, from, locals_of(self, from)) + channels;
    int32_t *sent = (int32_t *)((uint8_t *)to + self->space.header_sent);
    memcpy(to + 1, counts + (size_t)local * stride, stride * sizeof *counts);
    for (int32_t l = 0; l < each; l++)
        sent[self->near_first + l] = counts[(size_t)l * stride + (size_t)channels - 1];
}

static void pass_header(cpu_executor *self, uint32_t epoch, int32_t source, int32_t local, const ep_rail_header *from)
{
    const int32_t pe = self->near_first + local;
    ep_header *header = cpu_at(self, pe, ep_header_at(&self->space, self->shape.ranks, epoch, source));
    header->form = from->form;
    pass_rejection(&header->rejection, &from->rejection);
    header->spare.growth = from->growth;
    if (from->with_counts) pass_counts(self, from, header, local);
    cpu_record_publish(self, EP_MAILBOX_HEADER, epoch, pe, &header->flag);
    /* The header of a rank that has left ends the wait for all others. */
    if (from->rejection.status == EXPAR_ERR_PEER) sym_ring(self->sym, pe);
}

static void pass_reply(cpu_executor *self, uint32_t epoch, int32_t source, int32_t local, const ep_rail_reply *from)
{
    static const ep_rejection none;
    const uint64_t flag = atomic_load_explicit(&from->flag, memory_order_relaxed);
    const int32_t pe = self->near_first + local;
    ep_reply *reply = cpu_at(self, pe, ep_reply_at(&self->space, self->shape.ranks, epoch, source));
    pass_rejection(&reply->rejection, flag & EP_REPLY_REJECTS ? &from->rejection : &none);
    cpu_record_publish(self, EP_MAILBOX_REPLY, epoch, pe, &reply->flag);
}

static void pass_completion(cpu_executor *self, uint32_t epoch, int32_t source, int32_t local)
{
    const int32_t pe = self->near_first + local;
    _Atomic uint64_t *done = cpu_at(self, pe, ep_completion_at(&self->space, self->shape.ranks, epoch, source));
    cpu_record_publish(self, EP_MAILBOX_COMPLETION, epoch, pe, done);
}

static expar_status pass_it_on(cpu_executor *self, ep_mailbox mailbox, uint32_t epoch, int32_t node)
{
    const cpu_rails *rails = self->rails;
    const int32_t each = rails->shape.each, source = ep_rail_of(&rails->shape, node, self->sym->rank);
    const void *record = rail_at(self, rail_record_at(rails, mailbox, epoch, node));
    sym_behold(self->sym);
    const expar_status seen = mailbox == EP_MAILBOX_HEADER ? look_at_header(self, record) : EXPAR_OK;
    if (seen != EXPAR_OK) return error_prefix(seen, "rank %d has told what cannot be", source);
    for (int32_t i = 0; i < each; i++) {
        const int32_t local = (rails->local + 1 + i) % each;
        if (mailbox == EP_MAILBOX_HEADER)
            pass_header(self, epoch, source, local, record);
        else if (mailbox == EP_MAILBOX_REPLY)
            pass_reply(self, epoch, source, local, record);
        else
            pass_completion(self, epoch, source, local);
    }
    return EXPAR_OK;
}

static uint64_t *passed_of(const cpu_rails *rails, ep_mailbox mailbox, uint32_t epoch)
{
    return rails->passed + ((size_t)mailbox * 2 + (epoch & 1)) * (size_t)rails->shape.nodes;
}

/* Checks the flag of a record that has not come. */
static expar_status look_at_rail_flag(const cpu_executor *self, ep_mailbox mailbox, uint32_t epoch, int32_t node)
{
    const uint32_t most = mailbox == EP_MAILBOX_HEADER ? 2 : mailbox == EP_MAILBOX_REPLY ? EP_REPLY_REJECTS | 2 : 1;
    const uint64_t offset = rail_record_at(self->rails, mailbox, epoch, node) +
                            (mailbox == EP_MAILBOX_HEADER ? offsetof(ep_rail_header, flag) : 0);
    const uint64_t word = link_peek(rail_at(self, offset));
    if (ep_word_is_sound(word, epoch, most)) return EXPAR_OK;
    return cpu_word_spoilt(ep_rail_of(&self->rails->shape, node, self->sym->rank), "a flag", word, epoch);
}

expar_status rail_relay(cpu_executor *self, ep_mailbox mailbox, uint32_t epoch)
{
    const cpu_rails *rails = self->rails;
    const uint64_t awaited = awaited_word(self, mailbox, epoch);
    uint64_t *passed = passed_of(rails, mailbox, epoch);
    expar_status status = EXPAR_OK;
    for (int32_t i = 0; i < rails->shape.nodes - 1 && status == EXPAR_OK; i++) {
        const int32_t node = rail_node_in_turn(rails, i);
        if (passed[node] == awaited) continue;
        if (!rail_has_come(self, self->sym->rank, mailbox, epoch, node)) {
            status = look_at_rail_flag(self, mailbox, epoch, node);
            continue;
        }
        status = pass_it_on(self, mailbox, epoch, node);
        passed[node] = awaited;
    }
    return status;
}

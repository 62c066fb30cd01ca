/* SPDX-License-Identifier: Apache-2.0 */
/* The records by which ranks open a call (header: `header`), advertise their outputs (`reply`) and close it (completion
 * flag: `done`).
 *
 * Every rank posts each record to every rank, itself included, so each phase is also a meeting of all. A poster fills
 * the record, then stores its flag (release); the owner polls the flag (acquire) and reads. The owner's counter counts
 * posts. The post that makes the set complete rings the doorbell, so a sleeping owner wakes once for each phase and not
 * for each record. The counter only decides about waking: flags tell what has come.
 *
 * Across nodes a rank posts to the ranks of its node. The records of others come over the network (nodes.h), and the
 * thread that waits here passes them on. Everything else is the same. */
#include "exec/cpu/normal/nodes.h"

#include <stdio.h>
#include <string.h>

/* Returns the i-th peer, counted from the next rank on, so that not all ranks start with the first one. */
static int32_t peer_in_turn(const cpu_executor *self, int32_t i)
{
    return self->near_first + (self->sym->rank - self->near_first + 1 + i) % self->near_ranks;
}

static void count_arrival(cpu_executor *self, ep_mailbox mailbox, uint32_t epoch, int32_t pe)
{
    /* All posters write this, and only they read it. Each use of a parity adds exactly N. No post of the use after next
       comes before this one is complete, so a multiple of N means "complete". */
    _Atomic uint64_t *counter = cpu_at(self, pe, ep_counter_at(&self->space, mailbox, epoch));
    cpu_step(self);
    uint64_t before = atomic_fetch_add_explicit(counter, 1, memory_order_acq_rel);
    if ((before + 1) % (uint64_t)self->shape.ranks == 0) sym_ring(self->sym, pe);
}

void cpu_record_publish(cpu_executor *self, ep_mailbox mailbox, uint32_t epoch, int32_t pe, _Atomic uint64_t *flag)
{
    cpu_step(self);
    atomic_store_explicit(flag, ep_word(epoch, 1), memory_order_release);
    count_arrival(self, mailbox, epoch, pe);
}

/* all: after these, adds what this rank sends to each, so that the other ranks learn where its rows begin. */
static void fill_counts(const cpu_executor *self, ep_header *header, const ep_routing *routing, int32_t pe, bool all)
{
    int32_t *counts = (int32_t *)(header + 1), locals = routing->local_experts;
    memcpy(counts, routing->channel_prefix + (int64_t)pe * routing->channels,
           (size_t)routing->channels * sizeof(int32_t));
    memcpy(counts + routing->channels, routing->expert_counts + (int64_t)pe * locals, (size_t)locals * sizeof(int32_t));
    int32_t *sent = (int32_t *)((uint8_t *)header + self->space.header_sent);
    for (int32_t r = 0; all && r < routing->ranks; r++)
        sent[r] = ep_rows_to(routing, r);
}

static ep_advert advert_to(const cpu_adverts *adverts, int32_t pe)
{
    ep_advert advert = adverts->advert;
    if (adverts->rank_prefix) advert.first_row = ep_prefix_before(adverts->rank_prefix, pe);
    return advert;
}

/* Posts the header to this node's ranks. */
static void post_header_near(cpu_executor *self, uint32_t epoch, const ep_form *form, const ep_rejection *rejection,
                             const cpu_adverts *adverts, const ep_routing *counts)
{
    for (int32_t i = 0; i < self->near_ranks; i++) {
        int32_t pe = peer_in_turn(self, i);
        ep_header *header = cpu_at(self, pe, ep_header_at(&self->space, self->shape.ranks, epoch, self->sym->rank));
        header->form = *form;
        header->rejection = *rejection;
        if (adverts) header->advert = advert_to(adverts, pe);
        header->spare.growth = self->growth;
        if (counts) fill_counts(self, header, counts, pe, self->nodes || form->kind == EP_ROUTE);
        cpu_record_publish(self, EP_MAILBOX_HEADER, epoch, pe, &header->flag);
    }
}

/* Other nodes get the header first, since they are far away. If rows follow all headers at once (with advertisements in
   these), the ranks here get this one's header when it has arrived there. Otherwise their rows, on the same wire, would
   delay it, and so the rows of other nodes. */
expar_status cpu_header_post(cpu_executor *self, uint32_t epoch, const ep_form *form, const ep_rejection *rejection,
                             const cpu_adverts *adverts, const ep_routing *counts)
{
    const cpu_nodes_ops *nodes = self->nodes;
    const bool rows_follow = adverts != NULL;
    expar_status status = nodes ? nodes->header_post(self, epoch, form, rejection, counts, rows_follow) : EXPAR_OK;
    post_header_near(self, epoch, form, rejection, adverts, counts);
    return status;
}

/* This node gets the header first. Its ranks learn of it only by this, since other nodes pass headers on only to their
   own ranks. They are woken for it, although their sets of records are not complete. */
void cpu_retirement_post(cpu_executor *self, uint32_t epoch, const ep_rejection *rejection)
{
    const ep_form none = {0};
    post_header_near(self, epoch, &none, rejection, NULL, NULL);
    for (int32_t i = 0; i < self->near_ranks; i++)
        sym_ring(self->sym, self->near_first + i);
    if (self->nodes) self->nodes->retire(self, epoch, rejection);
}

expar_status cpu_reply_post(cpu_executor *self, uint32_t epoch, const ep_rejection *rejection,
                            const cpu_adverts *adverts)
{
    expar_status status = self->nodes ? self->nodes->post(self, EP_MAILBOX_REPLY, epoch, rejection) : EXPAR_OK;
    for (int32_t i = 0; i < self->near_ranks; i++) {
        int32_t pe = peer_in_turn(self, i);
        ep_reply *reply = cpu_at(self, pe, ep_reply_at(&self->space, self->shape.ranks, epoch, self->sym->rank));
        reply->rejection = *rejection;
        reply->advert = advert_to(adverts, pe);
        cpu_record_publish(self, EP_MAILBOX_REPLY, epoch, pe, &reply->flag);
    }
    return status;
}

expar_status cpu_done_post(cpu_executor *self, uint32_t epoch)
{
    self->sound_at_done = sym_is_sound(self->sym);
    expar_status status = self->nodes ? self->nodes->post(self, EP_MAILBOX_COMPLETION, epoch, NULL) : EXPAR_OK;
    for (int32_t i = 0; i < self->near_ranks; i++) {
        int32_t pe = peer_in_turn(self, i);
        _Atomic uint64_t *done =
            cpu_at(self, pe, ep_completion_at(&self->space, self->shape.ranks, epoch, self->sym->rank));
        cpu_record_publish(self, EP_MAILBOX_COMPLETION, epoch, pe, done);
    }
    return status;
}

static _Atomic uint64_t *flag_of(const cpu_executor *self, ep_mailbox mailbox, uint32_t epoch, int32_t source)
{
    int32_t ranks = self->shape.ranks;
    uint64_t at = mailbox == EP_MAILBOX_HEADER  ? ep_header_at(&self->space, ranks, epoch, source)
                  : mailbox == EP_MAILBOX_REPLY ? ep_reply_at(&self->space, ranks, epoch, source)
                                                : ep_completion_at(&self->space, ranks, epoch, source);
    return cpu_at(self, self->sym->rank, at);
}

static bool has_come(const cpu_executor *self, ep_mailbox mailbox, uint32_t epoch, int32_t source)
{
    uint64_t word = atomic_load_explicit(flag_of(self, mailbox, epoch, source), memory_order_acquire);
    return ep_word_value(word, epoch) == 1;
}

/* A rank that has given the buffer up says so in its header to every rank. A rank that has this header waits for no
   other: some may have learned it in another call, and never come to this one. The leaving rank has passed on before
   what the ranks of its node need, and passes nothing on any more. *seen: arrivals at the last look. */
static expar_status look_for_retired(cpu_executor *self, uint32_t epoch, uint64_t *seen)
{
    const _Atomic uint64_t *counter =
        cpu_at(self, self->sym->rank, ep_counter_at(&self->space, EP_MAILBOX_HEADER, epoch));
    const uint64_t arrivals = atomic_load_explicit(counter, memory_order_acquire);
    if (arrivals == *seen) return EXPAR_OK;
    *seen = arrivals;
    for (int32_t r = 0; r < self->shape.ranks; r++) {
        if (!has_come(self, EP_MAILBOX_HEADER, epoch, r)) continue;
        const ep_rejection *rejection = &cpu_header_from(self, epoch, r)->rejection;
        if (rejection->status == EXPAR_ERR_PEER)
            return error_set(EXPAR_ERR_PEER, "%.*s", EP_REJECTION_TEXT - 1, rejection->text);
    }
    return EXPAR_OK;
}

/* Checks the flag of a rank whose record has not come. */
static expar_status look_at_flag(const cpu_executor *self, ep_mailbox mailbox, uint32_t epoch, int32_t source)
{
    const uint64_t word = atomic_load_explicit(flag_of(self, mailbox, epoch, source), memory_order_relaxed);
    if (ep_word_is_sound(word, epoch, 1)) return EXPAR_OK;
    return cpu_word_spoilt(source, "a flag", word, epoch);
}

static expar_status look_around(cpu_executor *self, ep_mailbox mailbox, uint32_t epoch, uint64_t *seen)
{
    const expar_status status = self->nodes ? self->nodes->relay(self, mailbox, epoch) : EXPAR_OK;
    if (status != EXPAR_OK || mailbox != EP_MAILBOX_HEADER) return status;
    return look_for_retired(self, epoch, seen);
}

/* The wait has ended because a rank does not come any more. A rank that has left said so first in its header. */
static expar_status name_retired(cpu_executor *self, ep_mailbox mailbox, uint32_t epoch, expar_status status)
{
    error_kept kept;
    uint64_t seen = 0;
    if (status != EXPAR_ERR_PEER || mailbox != EP_MAILBOX_HEADER) return status;
    error_keep(&kept, status);
    const expar_status told = look_for_retired(self, epoch, &seen);
    return told == EXPAR_OK ? error_restore(&kept) : told;
}

/* Adds to the error text which ranks did not come. */
static expar_status name_missing(const cpu_executor *self, ep_mailbox mailbox, uint32_t epoch, expar_status status)
{
    static const char *const records[] = {"header", "advertisement", "end of rows"};
    char missing[256] = "";
    size_t length = 0;
    for (int32_t r = 0; r < self->shape.ranks && length < sizeof missing - 24; r++)
        if (!has_come(self, mailbox, epoch, r))
            length += (size_t)snprintf(missing + length, sizeof missing - length, "%srank %d", length ? ", " : "", r);
    return error_prefix(status, "no %s from %s", records[mailbox], missing);
}

/* The source of a completion flag that has reached this node may have left: it has done its part. The rank of this node
   that passes the flag on is missing instead, also if its own flag has come. */
static bool is_missing(const void *context, int32_t rank)
{
    const cpu_missing *missing = context;
    const cpu_executor *self = missing->self;
    const bool come = has_come(self, missing->mailbox, missing->epoch, rank);
    if (!self->nodes || missing->mailbox != EP_MAILBOX_COMPLETION) return !come;
    if (!come && !self->nodes->done_is_here(self, missing->epoch, rank)) return true;
    return self->nodes->owes_done(self, missing->epoch, rank);
}

void cpu_expect(sym_rest *rest, const cpu_missing *missing)
{
    const cpu_executor *self = missing->self;
    const bool in_graphs = atomic_load_explicit(&self->in_graphs, memory_order_relaxed);
    const uint64_t number =
        in_graphs ? boot_graph_number(self->sym->boot, BOOT_KIND_BUFFER, self->number) : missing->epoch;
    const boot_topic topic = {.kind = BOOT_KIND_BUFFER, .object = self->number, .number = number};
    sym_rest_expect_all(rest, &topic, is_missing, missing);
}

expar_status cpu_mailbox_await(cpu_executor *self, ep_mailbox mailbox, uint32_t epoch, const char *what)
{
    sym_rest rest = sym_rest_begin(self->sym, what);
    rest.halt = &self->halted;
    const cpu_missing missing = {.self = self, .mailbox = mailbox, .epoch = epoch};
    cpu_expect(&rest, &missing);
    /* A rank that has posted its completion flag, and has left since this rank posted its own, leaves nothing of the
       call undone. If it left before that, it has broken the call off, and its program may use the memory that it sends
       from. */
    if (mailbox == EP_MAILBOX_COMPLETION && self->sound_at_done) sym_rest_outlast(&rest, is_missing, &missing);
    expar_status status = EXPAR_OK;
    int32_t next = 0;
    uint64_t seen = 0;
    for (;;) {
        int32_t before = next;
        status = look_around(self, mailbox, epoch, &seen);
        if (status != EXPAR_OK) break;
        while (next < self->shape.ranks && has_come(self, mailbox, epoch, next))
            next++;
        if (next == self->shape.ranks) break;
        status = look_at_flag(self, mailbox, epoch, next);
        if (status != EXPAR_OK) break;
        cpu_step(self);
        /* Other ranks open this call after the one before it, which they complete as this rank does: while its rows
           move here no rank is late. */
        if (next != before || atomic_load_explicit(&self->moving, memory_order_relaxed)) sym_rest_progress(&rest);
        status = sym_rest_turn(&rest);
        if (status != EXPAR_OK) break;
    }
    bool timed_out = rest.timed_out;
    sym_rest_end(&rest);
    if (status == EXPAR_OK && mailbox == EP_MAILBOX_HEADER) cpu_records_heard(self);
    return name_retired(self, mailbox, epoch, timed_out ? name_missing(self, mailbox, epoch, status) : status);
}

const ep_header *cpu_header_from(const cpu_executor *self, uint32_t epoch, int32_t source)
{
    return cpu_at(self, self->sym->rank, ep_header_at(&self->space, self->shape.ranks, epoch, source));
}

const ep_reply *cpu_reply_from(const cpu_executor *self, uint32_t epoch, int32_t source)
{
    return cpu_at(self, self->sym->rank, ep_reply_at(&self->space, self->shape.ranks, epoch, source));
}

/* Copies the rejection as it came; a broken peer's text may lack its end. */
static void vote_blame(ep_vote *vote, int32_t rank, const ep_rejection *rejection)
{
    vote->rank = rank;
    vote->reason = *rejection;
    vote->reason.text[EP_REJECTION_TEXT - 1] = '\0';
}

/* All ranks see the same headers, so all come to the same result of the vote (ep_header_stands). */
void cpu_header_judge(const cpu_executor *self, uint32_t epoch, ep_vote *vote)
{
    const ep_form *form0 = &cpu_header_from(self, epoch, 0)->form;
    int32_t least = ep_ballot(EP_STAND_AGREES, 0);
    for (int32_t r = 0; r < self->shape.ranks; r++) {
        const ep_header *header = cpu_header_from(self, epoch, r);
        const int32_t ballot = ep_ballot(ep_header_stands(header->rejection.status, &header->form, form0), r);
        if (ballot < least) least = ballot;
    }
    *vote = (ep_vote){.rank = ep_ballot_rank(least)};
    if (vote->rank < 0) return;
    const ep_header *against = cpu_header_from(self, epoch, vote->rank);
    if (ep_ballot_stand(least) == EP_STAND_DIFFERS)
        ep_vote_differ(vote, vote->rank, &against->form, form0, sizeof *form0);
    else
        vote_blame(vote, vote->rank, &against->rejection);
}

void cpu_reply_judge(const cpu_executor *self, uint32_t epoch, ep_vote *vote)
{
    *vote = (ep_vote){.rank = -1};
    for (int32_t r = 0; r < self->shape.ranks && vote->rank < 0; r++) {
        const ep_reply *reply = cpu_reply_from(self, epoch, r);
        if (reply->rejection.status == EXPAR_OK) continue;
        vote_blame(vote, r, &reply->rejection);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a buffer for ranks that are not mapped: how they are made, which operations calls use, and how they
 * end. */
#include "base/interrupt.h"
#include "base/knobs.h"
#include "exec/cpu/low_latency/far/links.h"

#include <stdlib.h>

/* ---- the end ----------------------------------------------------------------------------------------------------- */

/* Between the two calls this thread's waits for the network end soon, since the buffer has been given up. The limit is
   link.linger from the first time on. */
static void far_linger_begin(const ll_cpu *self)
{
    ll_links *far = self->links;
    if (far->gone_ns == 0) far->gone_ns = clock_ns() + knob(KNOB_LINK_LINGER_NS);
    interrupt_at(far->gone_ns);
}

static void far_linger_end(void)
{
    interrupt_at(0);
}

static void far_part(const ll_cpu *self, bool begins)
{
    if (!begins) {
        far_linger_end();
        return;
    }
    far_linger_begin(self);
    ll_far_flush(self);
}

/* Data that are still under way when the wait ends are dropped. A masked rank may be stopped: a sound buffer lingers
   for it, too. */
static void settle(const ll_cpu *self, const ll_far_rank *rank, link_batch *batch, bool sound)
{
    const bool lingers = sound && ll_is_masked(self, rank->link.pe);
    if (lingers) far_linger_begin(self);
    link_quiet(self->sym, batch);
    if (lingers) far_linger_end();
}

static void settle_rank(const ll_cpu *self, ll_far_rank *rank, bool sound)
{
    for (int kind = 0; kind < LL_KINDS; kind++) {
        settle(self, rank, &rank->units[kind], sound);
        settle(self, rank, &rank->reads[kind], sound);
    }
    settle(self, rank, &rank->weights, sound);
    settle(self, rank, &rank->question.batch, sound);
    settle(self, rank, &rank->words.batch, sound);
}

/* Sends the last acknowledgement once more. When it is there, everything that was sent before is, too. A rank that has
   got none yet has 0 in its place. */
static void far_send_last(const ll_cpu *self, ll_far_rank *rank)
{
    const uint64_t at = rank->read_at ? rank->read_at : ll_read_at(&self->space, LL_DISPATCH, self->sym->rank, 0);
    const link_data data = {
        .offset = self->buffer + at, .source = &rank->read, .bytes = sizeof rank->read, .copies = true};
    link_put_flag(&rank->link, &data, NULL, &rank->reads[LL_DISPATCH]);
}

static void settle_all(const ll_cpu *self, bool sound)
{
    ll_links *far = self->links;
    for (int32_t r = 0; r < self->shape.ranks; r++)
        if (far->ranks[r].unconfirmed) far_send_last(self, &far->ranks[r]);
    for (int32_t r = 0; r < self->shape.ranks; r++)
        settle_rank(self, &far->ranks[r], sound);
    for (uint64_t i = 0; i < ll_staged(&self->shape); i++)
        settle(self, &far->ranks[far->slots[i].pe], &far->slots[i].batch, sound);
}

static void far_free(ll_cpu *self)
{
    ll_links *far = self->links;
    pthread_mutex_destroy(&far->lock);
    free(far->ranks);
    free(far->slots);
    free(far->turn);
    free(far->blocks);
    free(far->units);
    free(far->weights);
    ll_far_pieces_free(far);
    free(far);
    self->links = NULL;
    self->far = NULL;
}

void ll_far_end(ll_cpu *self, bool sound)
{
    error_kept before;
    if (!self->links) return;
    error_save(&before);
    if (!sound) far_linger_begin(self);
    if (self->links->slots) settle_all(self, sound);
    far_linger_end();
    error_put_back(&before);
    far_free(self);
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

static const ll_far_ops far_ops = {
    .unit = ll_far_header,
    .read = ll_far_read,
    .found = ll_far_found,
    .ask = ll_far_ask,
    .flush = ll_far_flush,
    .await = ll_far_await,
    .check = ll_far_check,
    .clear = ll_far_clear,
    .part = far_part,
    .dispatch_plan = ll_far_dispatch_plan,
    .dispatch_send = ll_far_dispatch_send,
    .messages_came = ll_far_messages_came,
    .message = ll_far_message,
    .combine_plan = ll_far_combine_plan,
    .send_weights = ll_far_combine_weights,
    .send_rows = ll_far_combine_rows,
    .combine_expect = ll_far_combine_expect,
    .row_came = ll_far_row_came,
    .row = ll_far_row,
    .spread = ll_far_spread,
    .masker = ll_far_masker,
    .linger = ll_far_linger,
    .set_aside = ll_far_set_aside,
    .conclude = ll_far_conclude,
};

static expar_status far_no_memory(void)
{
    return error_set(EXPAR_ERR_MEMORY, "no memory for a low-latency buffer");
}

static expar_status open_links(ll_cpu *self, bool unmapped)
{
    expar_status status = EXPAR_OK;
    for (int32_t r = 0; r < self->shape.ranks && status == EXPAR_OK; r++) {
        ll_far_rank *rank = &self->links->ranks[r];
        status = link_open(self->sym, r, unmapped, &self->links->counts, &rank->link);
        if (status == EXPAR_OK) self->bases[r] = link_at(&rank->link, self->buffer);
    }
    return status;
}

static expar_status make_stage(const ll_cpu *self)
{
    ll_links *far = self->links;
    const size_t weights = (size_t)self->shape.ranks * (size_t)self->shape.tokens * (size_t)self->shape.topk;
    far->slots = calloc((size_t)ll_staged(&self->shape), sizeof *far->slots);
    far->turn = calloc(LL_STAGED, sizeof *far->turn);
    far->units = malloc((size_t)self->shape.ranks * (size_t)self->space.unit_bytes[LL_DISPATCH]);
    if (self->shape.reduced) far->weights = malloc(weights * sizeof *far->weights);
    if (!far->slots || !far->turn || !far->units || (self->shape.reduced && !far->weights)) return far_no_memory();
    for (uint64_t i = 0; i < ll_staged(&self->shape); i++)
        far->slots[i] = (ll_slot){.bytes = ll_here(self, self->space.stage + i * self->space.message_piece_bytes),
                                  .in_turn = i < LL_STAGED};
    for (int32_t i = 0; i < LL_STAGED; i++)
        far->turn[i] = &far->slots[i];
    for (int32_t r = 0; r < self->shape.ranks; r++)
        far->ranks[r].unit = far->units + (uint64_t)r * self->space.unit_bytes[LL_DISPATCH] / sizeof *far->units;
    return EXPAR_OK;
}

/* Makes the memory from which words about masks are sent. */
static expar_status make_words(const ll_cpu *self)
{
    ll_links *far = self->links;
    const size_t words = (size_t)self->space.clean_bytes / sizeof(uint64_t);
    if (!self->shape.masking) return EXPAR_OK;
    far->blocks = calloc((size_t)self->shape.ranks * words, sizeof *far->blocks);
    if (!far->blocks) return far_no_memory();
    for (int32_t r = 0; r < self->shape.ranks; r++)
        far->ranks[r].words = (far_words){
            .cleans = &far->ranks[r].link, .maskers = &far->ranks[r].link, .block = far->blocks + (size_t)r * words};
    return EXPAR_OK;
}

static bool any_is_far(const ll_cpu *self)
{
    for (int32_t r = 0; r < self->shape.ranks; r++)
        if (ll_is_far(self, r)) return true;
    return false;
}

expar_status ll_far_make(ll_cpu *self, bool unmapped)
{
    self->links = calloc(1, sizeof *self->links);
    if (!self->links) return far_no_memory();
    self->links->cpu = self;
    pthread_mutex_init(&self->links->lock, NULL);
    self->bases = calloc((size_t)self->shape.ranks, sizeof *self->bases);
    self->links->ranks = calloc((size_t)self->shape.ranks, sizeof *self->links->ranks);
    if (!self->bases || !self->links->ranks) return far_no_memory();
    expar_status status = open_links(self, unmapped);
    if (status != EXPAR_OK) return status;
    if (any_is_far(self)) {
        self->far = &far_ops;
        self->base.sent = &self->links->counts;
        status = make_stage(self);
        if (status == EXPAR_OK) status = ll_far_pieces_make(self);
        return status == EXPAR_OK ? make_words(self) : status;
    }
    far_free(self);
    return EXPAR_OK;
}

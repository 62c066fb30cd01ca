/* SPDX-License-Identifier: Apache-2.0 */
/* Clean: the ranks that come agree on who they are, and begin anew: masks, epochs, halves.
 *
 * Nobody leads, for whoever did might be lost. Each rank says that it has come, and waits for all others but those that
 * are lost. Then it says whom it sees (its view), and looks at the views of those. Where all are the same that is the
 * decision; else it says again what is left: the ranks that all of them see. Views only shrink, so this ends. A rank
 * that has decided says so before it goes on, and whoever awaits it takes its decision over: so those that have gone on
 * and those that come later agree, whoever is lost in between.
 *
 * A rank that was stopped meanwhile, and is in nobody's view any more, finds that out by the others' views and
 * decisions. It begins anew, and waits for the next clean of the others. What a rank says carries the number of its
 * attempt, and those that have ended (`seen`) count no more; that of a rank that was left out has not, as long as it
 * does not know. */
#include "exec/cpu/low_latency/cpu.h"

#include <string.h>

enum { STEP_COME = 1 };

typedef struct ll_clean {
    ll_cpu *self;
    ll_masks *masks;
    const ll_call *call;
    uint32_t step; /* of this rank */
    bool decided;
    bool again; /* this attempt is lost */
} ll_clean;

/* ---- words ------------------------------------------------------------------------------------------------------- */

static int32_t set_words(const ll_clean *c)
{
    return (c->self->shape.ranks + 63) / 64;
}

static bool has_bit(const uint64_t *set, int32_t rank)
{
    return (set[rank / 64] >> (rank % 64)) & 1;
}

static uint64_t clean_word(const ll_clean *c, int32_t source, int32_t word)
{
    return ll_look(c->self, ll_clean_at(&c->self->space, source, word));
}

/* This rank's own, at all ranks: also at those that are masked, which may come. */
static void say(const ll_clean *c, int32_t word, uint64_t value)
{
    for (int32_t r = 0; r < c->self->shape.ranks; r++)
        ll_store(c->self, r, ll_clean_at(&c->self->space, c->self->sym->rank, word), value);
}

static void say_set(const ll_clean *c, int32_t set, const uint64_t *bits)
{
    for (int32_t w = 0; w < set_words(c); w++)
        say(c, LL_CLEAN_VIEWS + set * set_words(c) + w, bits[w]);
}

static void say_stage(const ll_clean *c, uint32_t step)
{
    say(c, LL_CLEAN_STAGE, (uint64_t)c->masks->attempt << 32 | step);
    for (int32_t r = 0; r < c->self->shape.ranks; r++)
        sym_ring(c->self->sym, r);
}

static uint32_t attempt_of(uint64_t stage)
{
    return (uint32_t)(stage >> 32);
}

/* A set that a rank has said, if it stayed while it was read; the word that vouches for it. */
static bool read_set(const ll_clean *c, int32_t source, int32_t set, int32_t voucher, uint64_t *bits)
{
    const uint64_t before = clean_word(c, source, voucher);
    for (int32_t w = 0; w < set_words(c); w++)
        bits[w] = clean_word(c, source, LL_CLEAN_VIEWS + set * set_words(c) + w);
    return clean_word(c, source, voucher) == before;
}

/* ---- who comes --------------------------------------------------------------------------------------------------- */

static void come(ll_clean *c, const ll_clean_step *step)
{
    ll_masks *masks = c->masks;
    const uint64_t *epochs = c->self->epochs;
    masks->attempt++;
    c->again = false;
    say(c, LL_CLEAN_STAGE, (uint64_t)masks->attempt << 32);
    say(c, LL_CLEAN_ERA, masks->era);
    say(c, LL_CLEAN_CALLS, step->calls);
    for (int kind = 0; kind < LL_KINDS; kind++)
        say(c, LL_CLEAN_EPOCHS + kind, epochs[kind]);
    say(c, LL_CLEAN_STATUS, (uint64_t)step->call.refusal.status);
    say_stage(c, STEP_COME);
    for (int32_t r = 0; r < c->self->shape.ranks; r++) {
        masks->in_view[r] = 1;
        masks->taken[r] = 0;
    }
}

/* The rank's attempt has come to a decision, which leaves this rank out. */
static bool has_ended_without(const ll_clean *c, int32_t rank, uint32_t attempt)
{
    const int32_t own = c->self->sym->rank, first = LL_CLEAN_VIEWS + (LL_CLEAN_SETS - 1) * set_words(c);
    if (clean_word(c, rank, LL_CLEAN_DECIDED) != attempt) return false;
    return !((clean_word(c, rank, first + own / 64) >> (own % 64)) & 1);
}

/* Takes what the rank has said on its coming, if it has. */
static bool take_coming(const ll_clean *c, int32_t rank)
{
    ll_masks *masks = c->masks;
    const uint64_t stage = clean_word(c, rank, LL_CLEAN_STAGE);
    uint64_t *constants = masks->constants + (int64_t)rank * LL_CLEAN_VIEWS;
    if (masks->taken[rank]) return true;
    if (attempt_of(stage) <= masks->seen[rank] || (uint32_t)stage < STEP_COME) return false;
    if (has_ended_without(c, rank, attempt_of(stage))) return false;
    for (int32_t w = LL_CLEAN_ERA; w < LL_CLEAN_VIEWS; w++)
        constants[w] = clean_word(c, rank, w);
    if (attempt_of(clean_word(c, rank, LL_CLEAN_STAGE)) != attempt_of(stage)) return false;
    masks->taken[rank] = attempt_of(stage);
    return true;
}

static ll_due coming_due(const void *context, int32_t rank)
{
    const ll_clean *c = context;
    return (ll_due){.came = take_coming(c, rank), .all = 1};
}

/* ---- views ------------------------------------------------------------------------------------------------------- */

/* The rank has gone on behind the attempt that was taken of it. */
static bool has_decided(const ll_clean *c, int32_t rank)
{
    return c->masks->taken[rank] && clean_word(c, rank, LL_CLEAN_DECIDED) == c->masks->taken[rank];
}

static bool has_restarted(const ll_clean *c, int32_t rank)
{
    return attempt_of(clean_word(c, rank, LL_CLEAN_STAGE)) != c->masks->taken[rank];
}

static bool has_viewed(const ll_clean *c, int32_t rank)
{
    return (uint32_t)clean_word(c, rank, LL_CLEAN_STAGE) >= c->step || has_restarted(c, rank) || has_decided(c, rank);
}

/* A rank in the view is behind this step: it may have left out whom this rank still awaits there. */
static bool is_ahead(const ll_clean *c, int32_t rank)
{
    const uint64_t stage = clean_word(c, rank, LL_CLEAN_STAGE);
    return has_decided(c, rank) || (!has_restarted(c, rank) && (uint32_t)stage > c->step);
}

static ll_due view_due(const void *context, int32_t rank)
{
    const ll_clean *c = context;
    return (ll_due){.came = has_viewed(c, rank), .all = 1};
}

static bool all_have_come(const ll_clean *c)
{
    for (int32_t r = 0; r < c->self->shape.ranks; r++)
        if (c->masks->in_view[r] && !take_coming(c, r)) return false;
    return true;
}

static bool step_is_over(const ll_clean *c)
{
    bool all = true;
    for (int32_t r = 0; r < c->self->shape.ranks; r++) {
        if (r == c->self->sym->rank || !c->masks->in_view[r]) continue;
        if (is_ahead(c, r)) return true;
        all = all && has_viewed(c, r);
    }
    return all;
}

/* What is awaited of those in the view, as long as they are there, for texts; and whether that has come to its end. */
typedef struct ll_clean_wait {
    const char *what;
    ll_due (*due)(const void *context, int32_t rank);
    bool (*over)(const ll_clean *c);
} ll_clean_wait;

static expar_status clean_await(const ll_clean *c, const ll_clean_wait *how)
{
    ll_wait wait = {.cpu = c->self,
                    .call = c->call,
                    .what = how->what,
                    .of = "words",
                    .due = how->due,
                    .context = c,
                    .view = c->masks->in_view};
    expar_status status = EXPAR_OK;
    while (status == EXPAR_OK && !how->over(c))
        status = ll_wait_turn(&wait, false);
    return ll_wait_end(&wait, status);
}

static void say_view(ll_clean *c)
{
    uint64_t *own = c->masks->views;
    memset(own, 0, (size_t)set_words(c) * sizeof *own);
    for (int32_t r = 0; r < c->self->shape.ranks; r++)
        own[r / 64] |= (uint64_t)c->masks->in_view[r] << (r % 64);
    c->step++;
    say_set(c, (int32_t)(c->step & 1), own);
    say_stage(c, c->step);
}

/* A decision that the rank has come to, or why this rank is in none. */
static void take_decision(ll_clean *c, int32_t rank)
{
    uint64_t *other = c->masks->views + set_words(c);
    if (!read_set(c, rank, LL_CLEAN_SETS - 1, LL_CLEAN_DECIDED, other) || !has_decided(c, rank)) return;
    c->decided = has_bit(other, c->self->sym->rank);
    c->again = !c->decided;
    if (c->again) c->masks->seen[rank] = c->masks->taken[rank];
    for (int32_t r = 0; r < c->self->shape.ranks && c->decided; r++)
        c->masks->in_view[r] = has_bit(other, r);
}

/* Leaves out of this rank's view whom the other does not see. True: its view was this rank's, in the same step. */
static bool meet_view(ll_clean *c, int32_t rank)
{
    const uint64_t *own = c->masks->views;
    uint64_t *other = c->masks->views + set_words(c);
    const uint64_t stage = clean_word(c, rank, LL_CLEAN_STAGE);
    if (!read_set(c, rank, (int32_t)(stage & 1), LL_CLEAN_STAGE, other)) return false;
    if (attempt_of(stage) != c->masks->taken[rank] || (uint32_t)stage < c->step) return false;
    if (!has_bit(other, c->self->sym->rank)) {
        c->again = true;
        c->masks->seen[rank] = c->masks->taken[rank];
        return false;
    }
    for (int32_t r = 0; r < c->self->shape.ranks; r++)
        c->masks->in_view[r] = c->masks->in_view[r] && has_bit(other, r);
    return (uint32_t)stage == c->step && memcmp(own, other, (size_t)set_words(c) * sizeof *own) == 0;
}

/* Those who have begun anew, without a decision, are taken anew. */
static void take_again(const ll_clean *c)
{
    for (int32_t r = 0; r < c->self->shape.ranks; r++)
        if (c->masks->in_view[r] && has_restarted(c, r) && !has_decided(c, r)) c->masks->taken[r] = 0;
}

/* One step: a decision, a smaller view, or nothing more to come of this attempt. */
static expar_status clean_round(ll_clean *c)
{
    static const ll_clean_wait views = {.what = "low-latency clean: views", .due = view_due, .over = step_is_over};
    const int32_t own = c->self->sym->rank, ranks = c->self->shape.ranks;
    say_view(c);
    expar_status status = clean_await(c, &views);
    if (status != EXPAR_OK) return status;
    for (int32_t r = 0; r < ranks && !c->decided && !c->again; r++)
        if (r != own && c->masks->in_view[r] && has_decided(c, r)) take_decision(c, r);
    bool same = !c->decided && !c->again;
    for (int32_t r = 0; r < ranks && !c->decided && !c->again; r++) {
        if (r == own || !has_bit(c->masks->views, r)) continue;
        same = c->masks->in_view[r] && meet_view(c, r) && same;
    }
    c->decided = c->decided || (same && !c->again);
    return EXPAR_OK;
}

/* Until the ranks of the view, this one among them, have all decided for it, or some of them have. */
static expar_status agree(ll_clean *c, const ll_clean_step *step)
{
    static const ll_clean_wait coming = {
        .what = "low-latency clean: ranks that come", .due = coming_due, .over = all_have_come};
    expar_status status = EXPAR_OK;
    while (status == EXPAR_OK && !c->decided) {
        c->step = STEP_COME;
        come(c, step);
        while (status == EXPAR_OK && !c->decided && !c->again) {
            status = clean_await(c, &coming);
            if (status == EXPAR_OK) status = clean_round(c);
            if (!c->decided && !c->again) take_again(c);
        }
    }
    return status;
}

/* ---- the decision ------------------------------------------------------------------------------------------------ */

static void say_decision(const ll_clean *c)
{
    uint64_t *set = c->masks->views;
    memset(set, 0, (size_t)set_words(c) * sizeof *set);
    for (int32_t r = 0; r < c->self->shape.ranks; r++)
        set[r / 64] |= (uint64_t)c->masks->in_view[r] << (r % 64);
    say_set(c, LL_CLEAN_SETS - 1, set);
    say(c, LL_CLEAN_DECIDED, c->masks->attempt);
    for (int32_t r = 0; r < c->self->shape.ranks; r++) {
        sym_ring(c->self->sym, r);
        if (c->masks->in_view[r]) c->masks->seen[r] = c->masks->taken[r];
    }
}

/* The most that any of the view has said. */
static uint64_t most_said(const ll_clean *c, int32_t word)
{
    uint64_t most = 0;
    for (int32_t r = 0; r < c->self->shape.ranks; r++) {
        const uint64_t said = c->masks->constants[(int64_t)r * LL_CLEAN_VIEWS + word];
        if (c->masks->in_view[r] && said > most) most = said;
    }
    return most;
}

static void clean_find_refusal(const ll_clean *c, ll_call *call)
{
    call->verdict = (ll_verdict){.rank = -1};
    for (int32_t r = 0; r < c->self->shape.ranks && call->verdict.rank < 0; r++) {
        const uint64_t status = c->masks->constants[(int64_t)r * LL_CLEAN_VIEWS + LL_CLEAN_STATUS];
        if (!c->masks->in_view[r] || status == EXPAR_OK) continue;
        call->verdict.rank = r;
        call->verdict.reason = (ep_refusal){.status = (int32_t)status, .text = "a call is open there"};
    }
}

/* Who is not in the view is masked, and knows where halves have lain until now. */
static void set_masks(const ll_clean *c)
{
    ll_masks *masks = c->masks;
    for (int32_t r = 0; r < c->self->shape.ranks; r++) {
        const bool masked = !masks->in_view[r];
        for (int half = 0; half < LL_HALVES && masked && !masks->masked[r]; half++)
            masks->knows[r][half] = (int8_t)masks->region[half];
        masks->masked[r] = masked;
        masks->since[r] = UINT64_MAX;
        if (masked) ll_masker_tell(c->self, r, masks->era);
    }
}

/* Epochs go on behind all that any word of these ranks carries, with the same halves. */
static expar_status begin_anew(const ll_clean *c, ll_clean_step *step)
{
    ll_cpu *self = c->self;
    c->masks->era = (uint32_t)most_said(c, LL_CLEAN_ERA) + 1;
    step->calls = most_said(c, LL_CLEAN_CALLS);
    for (int kind = 0; kind < LL_KINDS; kind++) {
        self->epochs[kind] = (most_said(c, LL_CLEAN_EPOCHS + kind) + 1) / 2 * 2 + 2;
        for (int half = 0; half < LL_HALVES; half++) {
            self->records[kind][half].epoch = 0;
            self->records[kind][half].unread = false;
        }
    }
    set_masks(c);
    if (!ll_regions_suffice(self))
        return error_set(EXPAR_ERR_PEER,
                         "masked ranks that are neither dead nor back may still write to all %d regions of this buffer",
                         self->shape.regions);
    for (int half = 0; half < LL_HALVES; half++)
        ll_region_settle(self, half);
    return EXPAR_OK;
}

/* Of a clean that awaits its hooks, which would be lost by it. */
static expar_status check_closed(const ll_cpu *self)
{
    for (int kind = 0; kind < LL_KINDS; kind++)
        for (int half = 0; half < LL_HALVES; half++)
            if (self->records[kind][half].epoch)
                return error_set(EXPAR_ERR_STATE, "a %s is open; expected its hook to be called first",
                                 kind == LL_DISPATCH ? "dispatch" : "combine");
    return EXPAR_OK;
}

expar_status ll_cpu_mask_clean(ll_executor *base, ll_clean_step *step)
{
    ll_cpu *self = ll_cpu_of(base);
    ll_clean c = {.self = self, .masks = self->masks, .call = &step->call};
    expar_status checked = check_closed(self);
    if (checked != EXPAR_OK) step->call.refusal = ep_refusal_of(checked);
    expar_status status = agree(&c, step);
    if (status != EXPAR_OK) return status;
    say_decision(&c);
    clean_find_refusal(&c, &step->call);
    return step->call.verdict.rank < 0 ? begin_anew(&c, step) : EXPAR_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Clean: the ranks that come agree on who they are, and begin anew: masks, epochs, halves.
 *
 * Nobody leads, for whoever did might be lost. Each rank says that it has come, and waits for all others but those that
 * are lost. Then it says whom it sees, and in which attempt of theirs (its view), and looks at the views of those.
 * Where all are the same that is the decision; else it says again what is left: the ranks that all of them see. Views
 * only shrink, so this ends. A rank that has decided says so before it goes on, with all that follows from it, and
 * whoever is in that decision, and still in this clean, takes it over, at whatever step and in whatever attempt: so
 * those that have gone on and those that come later agree, whoever is lost in between.
 *
 * A rank that was stopped meanwhile, and is in nobody's view any more, finds that out by the others' views and
 * decisions. It begins a new attempt, and waits for the next clean of the others, or for a decision that was made with
 * it before they left it out. An attempt that has come to a decision counts no more. (tests/models/clean.pml is a model
 * of this, which shows what goes wrong where views tell no attempts, or decisions are taken over in steps alone.) */
#include "exec/cpu/low_latency/cpu.h"

#include <string.h>

enum { STEP_COME = 1 };

/* What a decision comes to: the most that any of its ranks has said. */
typedef struct ll_result {
    uint64_t words[LL_CLEAN_RESULTS]; /* calls, epochs, refusal: as LL_CLEAN_RESULT */
} ll_result;
enum { RESULT_CALLS = 0, RESULT_EPOCHS = 1, RESULT_REFUSAL = 3 };

typedef struct ll_clean {
    ll_cpu *self;
    ll_masks *masks;
    const ll_call *call;
    uint32_t begun; /* this rank's first attempt */
    uint32_t step;  /* of this rank */
    bool decided;
    bool again; /* this attempt is lost */
    ll_result result;
} ll_clean;

/* ---- words ------------------------------------------------------------------------------------------------------- */

static int32_t set_words(const ll_clean *c)
{
    return (c->self->shape.ranks + 1) / 2;
}

static size_t set_bytes(const ll_clean *c)
{
    return (size_t)c->self->shape.ranks * sizeof(uint32_t);
}

static int32_t set_at(const ll_clean *c, int32_t set)
{
    return LL_CLEAN_SET + set * set_words(c);
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

static void say_set(const ll_clean *c, int32_t set, const uint32_t *attempts)
{
    const int32_t ranks = c->self->shape.ranks;
    for (int32_t w = 0; w < set_words(c); w++) {
        const uint64_t second = 2 * w + 1 < ranks ? attempts[2 * w + 1] : 0;
        say(c, set_at(c, set) + w, second << 32 | attempts[2 * w]);
    }
}

static void ring_all(const ll_clean *c)
{
    for (int32_t r = 0; r < c->self->shape.ranks; r++)
        sym_ring(c->self->sym, r);
}

static void say_stage(const ll_clean *c, uint32_t step)
{
    say(c, LL_CLEAN_STAGE, (uint64_t)c->masks->attempt << 32 | step);
    ring_all(c);
}

static uint32_t attempt_of(uint64_t stage)
{
    return (uint32_t)(stage >> 32);
}

static uint32_t set_entry(const ll_clean *c, int32_t source, int32_t set, int32_t rank)
{
    return (uint32_t)(clean_word(c, source, set_at(c, set) + rank / 2) >> (rank % 2 * 32));
}

/* A set that a rank has said. Whether it stayed while it was read is seen by the word that vouches for it. */
static void read_set(const ll_clean *c, int32_t source, int32_t set, uint32_t *attempts)
{
    for (int32_t r = 0; r < c->self->shape.ranks; r++)
        attempts[r] = set_entry(c, source, set, r);
}

/* ---- decisions of others ----------------------------------------------------------------------------------------- */

/* The rank's last decision, into `other` and *result; the attempt that has come to it. 0: there is none. */
static uint32_t read_decision(const ll_clean *c, int32_t rank, ll_result *result)
{
    const uint64_t decided = clean_word(c, rank, LL_CLEAN_DECIDED);
    if (decided == 0) return 0;
    read_set(c, rank, LL_CLEAN_SETS - 1, c->masks->other);
    for (int i = 0; i < LL_CLEAN_RESULTS; i++)
        result->words[i] = clean_word(c, rank, LL_CLEAN_RESULT + i);
    return clean_word(c, rank, LL_CLEAN_DECIDED) == decided ? (uint32_t)decided : 0;
}

/* Whether this rank is in it, in an attempt of this clean: else it is none of its business, or an old one. */
static bool decides_with(const ll_clean *c, int32_t rank)
{
    const int32_t own = c->self->sym->rank;
    if (rank == own || !c->masks->in_view[rank] || clean_word(c, rank, LL_CLEAN_DECIDED) == 0) return false;
    return set_entry(c, rank, LL_CLEAN_SETS - 1, own) >= c->begun;
}

static bool is_decided(const ll_clean *c)
{
    for (int32_t r = 0; r < c->self->shape.ranks; r++)
        if (decides_with(c, r)) return true;
    return false;
}

static void take_decision(ll_clean *c, int32_t rank)
{
    const ll_masks *masks = c->masks;
    ll_result result;
    if (read_decision(c, rank, &result) == 0 || masks->other[c->self->sym->rank] < c->begun) return;
    c->decided = true;
    c->result = result;
    memcpy(masks->view, masks->other, set_bytes(c));
}

static void take_decisions(ll_clean *c)
{
    for (int32_t r = 0; r < c->self->shape.ranks && !c->decided; r++)
        if (decides_with(c, r)) take_decision(c, r);
}

/* ---- who comes --------------------------------------------------------------------------------------------------- */

static void come(ll_clean *c, const ll_clean_step *step)
{
    ll_masks *masks = c->masks;
    const uint64_t *epochs = c->self->epochs;
    masks->attempt++;
    c->again = false;
    c->step = STEP_COME;
    say(c, LL_CLEAN_STAGE, (uint64_t)masks->attempt << 32);
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

/* Takes what the rank has said on its coming, if it has. */
static bool take_coming(const ll_clean *c, int32_t rank)
{
    ll_masks *masks = c->masks;
    const uint64_t stage = clean_word(c, rank, LL_CLEAN_STAGE);
    uint64_t *said = masks->said + (int64_t)rank * LL_CLEAN_SAID;
    if (masks->taken[rank]) return true;
    if (attempt_of(stage) <= masks->seen[rank] || (uint32_t)stage < STEP_COME) return false;
    if (clean_word(c, rank, LL_CLEAN_DECIDED) == attempt_of(stage)) return false;
    for (int32_t w = LL_CLEAN_CALLS; w < LL_CLEAN_SAID; w++)
        said[w] = clean_word(c, rank, w);
    if (attempt_of(clean_word(c, rank, LL_CLEAN_STAGE)) != attempt_of(stage)) return false;
    masks->taken[rank] = attempt_of(stage);
    return true;
}

static ll_due coming_due(const void *context, int32_t rank)
{
    const ll_clean *c = context;
    return (ll_due){.came = take_coming(c, rank), .all = 1};
}

static bool all_have_come(const ll_clean *c)
{
    if (is_decided(c)) return true;
    for (int32_t r = 0; r < c->self->shape.ranks; r++)
        if (c->masks->in_view[r] && !take_coming(c, r)) return false;
    return true;
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

static bool step_is_over(const ll_clean *c)
{
    bool all = true;
    if (is_decided(c)) return true;
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
    uint32_t *view = c->masks->view;
    for (int32_t r = 0; r < c->self->shape.ranks; r++)
        view[r] = c->masks->in_view[r] ? c->masks->taken[r] : 0;
    c->step++;
    say_set(c, (int32_t)(c->step & 1), view);
    say_stage(c, c->step);
}

static void left_out_by(ll_clean *c, int32_t rank)
{
    c->again = true;
    c->masks->seen[rank] = c->masks->taken[rank];
}

/* A rank of the view has gone on, from the attempt that was taken of it, without this one. */
static void find_left_out(ll_clean *c)
{
    const int32_t own = c->self->sym->rank;
    for (int32_t r = 0; r < c->self->shape.ranks && !c->again; r++) {
        ll_result result;
        if (r == own || !c->masks->in_view[r] || !has_decided(c, r)) continue;
        if (read_decision(c, r, &result) == c->masks->taken[r] && c->masks->other[own] < c->begun) left_out_by(c, r);
    }
}

/* Leaves out of this rank's view whom the other does not see. True: its view was this rank's, in the same step. */
static bool meet_view(ll_clean *c, int32_t rank)
{
    const ll_masks *masks = c->masks;
    const uint64_t stage = clean_word(c, rank, LL_CLEAN_STAGE);
    if (attempt_of(stage) != masks->taken[rank] || (uint32_t)stage < c->step) return false;
    read_set(c, rank, (int32_t)(stage & 1), masks->other);
    if (clean_word(c, rank, LL_CLEAN_STAGE) != stage) return false;
    if (masks->other[c->self->sym->rank] == 0) {
        left_out_by(c, rank);
        return false;
    }
    for (int32_t r = 0; r < c->self->shape.ranks; r++)
        masks->in_view[r] = masks->in_view[r] && masks->other[r];
    return (uint32_t)stage == c->step && memcmp(masks->view, masks->other, set_bytes(c)) == 0;
}

/* Those who have begun anew, without a decision, are taken anew. */
static void take_again(const ll_clean *c)
{
    for (int32_t r = 0; r < c->self->shape.ranks; r++)
        if (c->masks->in_view[r] && has_restarted(c, r) && !has_decided(c, r)) c->masks->taken[r] = 0;
}

/* The most that any of the view has said. */
static uint64_t most_said(const ll_clean *c, int32_t word)
{
    uint64_t most = 0;
    for (int32_t r = 0; r < c->self->shape.ranks; r++) {
        const uint64_t said = c->masks->said[(int64_t)r * LL_CLEAN_SAID + word];
        if (c->masks->view[r] && said > most) most = said;
    }
    return most;
}

static uint64_t clean_find_refusal(const ll_clean *c)
{
    for (int32_t r = 0; r < c->self->shape.ranks; r++) {
        const uint64_t status = c->masks->said[(int64_t)r * LL_CLEAN_SAID + LL_CLEAN_STATUS];
        if (c->masks->view[r] && status != EXPAR_OK) return (uint64_t)r << 32 | status;
    }
    return 0;
}

/* All of the view have the same, of the same attempts. */
static void decide(ll_clean *c)
{
    c->decided = true;
    c->result.words[RESULT_CALLS] = most_said(c, LL_CLEAN_CALLS);
    for (int kind = 0; kind < LL_KINDS; kind++)
        c->result.words[RESULT_EPOCHS + kind] = most_said(c, LL_CLEAN_EPOCHS + kind);
    c->result.words[RESULT_REFUSAL] = clean_find_refusal(c);
}

/* One step: a decision, a smaller view, or nothing more to come of this attempt. */
static expar_status clean_round(ll_clean *c)
{
    static const ll_clean_wait views = {.what = "low-latency clean: views", .due = view_due, .over = step_is_over};
    const int32_t own = c->self->sym->rank, ranks = c->self->shape.ranks;
    say_view(c);
    expar_status status = clean_await(c, &views);
    if (status != EXPAR_OK) return status;
    take_decisions(c);
    if (!c->decided) find_left_out(c);
    bool same = !c->decided && !c->again;
    for (int32_t r = 0; r < ranks && !c->decided && !c->again; r++) {
        if (r == own || !c->masks->view[r]) continue;
        same = c->masks->in_view[r] && meet_view(c, r) && same;
    }
    if (same && !c->again) decide(c);
    return EXPAR_OK;
}

/* All that are awaited have come: a step; but some may have come to a decision meanwhile. */
static expar_status clean_step(ll_clean *c)
{
    static const ll_clean_wait coming = {
        .what = "low-latency clean: ranks that come", .due = coming_due, .over = all_have_come};
    expar_status status = clean_await(c, &coming);
    if (status != EXPAR_OK) return status;
    const bool decided = is_decided(c);
    take_decisions(c);
    if (decided) return EXPAR_OK;
    status = clean_round(c);
    if (!c->decided && !c->again) take_again(c);
    return status;
}

/* Until the ranks of the view, this one among them, have all decided for it, or some of them have. */
static expar_status agree(ll_clean *c, const ll_clean_step *step)
{
    expar_status status = EXPAR_OK;
    while (status == EXPAR_OK && !c->decided) {
        come(c, step);
        while (status == EXPAR_OK && !c->decided && !c->again)
            status = clean_step(c);
    }
    return status;
}

/* ---- the decision ------------------------------------------------------------------------------------------------ */

static void say_decision(const ll_clean *c)
{
    ll_masks *masks = c->masks;
    say(c, LL_CLEAN_DECIDED, 0);
    say_set(c, LL_CLEAN_SETS - 1, masks->view);
    for (int i = 0; i < LL_CLEAN_RESULTS; i++)
        say(c, LL_CLEAN_RESULT + i, c->result.words[i]);
    say(c, LL_CLEAN_DECIDED, masks->attempt);
    ring_all(c);
    for (int32_t r = 0; r < c->self->shape.ranks; r++)
        if (masks->view[r] > masks->seen[r]) masks->seen[r] = masks->view[r];
}

static void clean_judge(const ll_clean *c, ll_call *call)
{
    const uint64_t refusal = c->result.words[RESULT_REFUSAL];
    call->verdict = (ll_verdict){.rank = -1};
    if (refusal == 0) return;
    call->verdict.rank = (int32_t)(refusal >> 32);
    call->verdict.reason = (ep_refusal){.status = (int32_t)(uint32_t)refusal, .text = "a call is open there"};
}

/* Who is not in the view is masked, and knows where halves have lain until now. */
static void set_masks(const ll_clean *c)
{
    ll_masks *masks = c->masks;
    for (int32_t r = 0; r < c->self->shape.ranks; r++) {
        const bool masked = masks->view[r] == 0;
        for (int half = 0; half < LL_HALVES && masked && !masks->masked[r]; half++)
            masks->knows[r][half] = (int8_t)masks->region[half];
        masks->masked[r] = masked;
        masks->since[r] = UINT64_MAX;
        if (masked)
            ll_masker_tell(c->self, r, true);
        else
            masks->with[r] = masks->view[r];
    }
}

/* Epochs go on behind all that any word of these ranks carries, with the same halves. */
static expar_status begin_anew(const ll_clean *c, ll_clean_step *step)
{
    ll_cpu *self = c->self;
    c->masks->era++;
    step->calls = c->result.words[RESULT_CALLS];
    for (int kind = 0; kind < LL_KINDS; kind++) {
        self->epochs[kind] = (c->result.words[RESULT_EPOCHS + kind] + 1) / 2 * 2 + 2;
        for (int half = 0; half < LL_HALVES; half++) {
            self->records[kind][half].epoch = 0;
            self->records[kind][half].unread = false;
        }
    }
    set_masks(c);
    if (!ll_regions_suffice(self))
        return error_set(EXPAR_ERR_PEER,
                         "masked ranks that are neither dead nor gone nor back may still write to all %d regions of "
                         "this buffer",
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
    ll_clean c = {.self = self, .masks = self->masks, .call = &step->call, .begun = self->masks->attempt + 1};
    expar_status checked = check_closed(self);
    if (checked != EXPAR_OK) step->call.refusal = ep_refusal_of(checked);
    expar_status status = agree(&c, step);
    if (status != EXPAR_OK) return status;
    say_decision(&c);
    clean_judge(&c, &step->call);
    return step->call.verdict.rank < 0 ? begin_anew(&c, step) : EXPAR_OK;
}

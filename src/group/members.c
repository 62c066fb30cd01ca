/* SPDX-License-Identifier: Apache-2.0 */
/* Agreement of a clean (expar_ll_mask_clean): the ranks that take part agree on which ranks these are, and on new
 * masks, epochs and slots of the double buffers.
 *
 * There is no leader, because a leader might be lost. Each rank says that it has come, and waits for all others except
 * the lost ones. Then it publishes its view: the ranks that it sees, each with the number of that rank's attempt. It
 * reads the views of those ranks. If all views are equal, the view is the decision. Otherwise the rank publishes a
 * smaller view, which has only the ranks that are in all these views. Views only shrink, so this ends. A rank that has
 * decided publishes its decision, with all results, before it returns. Another rank takes over that decision if it is
 * still in this clean and belongs to the decided set, at any step and in any attempt. So ranks that have returned agree
 * with those that finish later, whichever rank is lost in between.
 *
 * A rank that stopped for a while may be in no view any more. It finds that out from the others' views and decisions.
 * Then it begins a new attempt, and waits for the others' next clean. It also accepts a decision that includes it and
 * was made before they left it out. After an attempt has reached a decision, its words no longer count.
 * tests/models/clean.pml is a model of this protocol. It shows what goes wrong if views do not name attempts, or if
 * decisions are taken over only between steps. */
#include "group/members.h"

#include <stdio.h>
#include <string.h>

enum { STEP_COME = 1 };
/* No clean reaches these limits: the number of steps, and the number of calls of a rank. A word at or above its limit
   is impossible. */
#define CLEAN_STEPS_END ((uint32_t)1 << 16)
#define CLEAN_CALLS_END ((uint64_t)1 << 62)

/* The result of a decision. Calls and epochs are the largest that a rank of the decided set has said. The rejection is
   that of the lowest rank that rejects. */
typedef struct agreed {
    uint64_t words[LL_CLEAN_RESULTS]; /* calls, epochs, rejection */
} agreed;
enum { RESULT_CALLS = 0, RESULT_EPOCHS = 1, RESULT_REJECTION = 3 };

typedef struct agreement {
    group_members *all;
    const members_ask *ask;
    uint32_t begun; /* this rank's first attempt in this clean */
    uint32_t step;  /* the step in which this rank is */
    bool decided;
    bool again; /* this attempt has failed; begin another one */
    agreed result;
} agreement;

/* ---- decisions of others ----------------------------------------------------------------------------------------- */

/* Reads the rank's last decision into `other` and *result; returns the attempt that reached it. 0: there is none. */
static uint32_t read_decision(const agreement *c, int32_t rank, agreed *result)
{
    const uint64_t decided = members_read_voucher(c->all, rank, LL_CLEAN_DECIDED);
    if (decided == 0) return 0;
    members_read_set(c->all, rank, LL_CLEAN_SETS - 1, c->all->other);
    for (int i = 0; i < LL_CLEAN_RESULTS; i++)
        result->words[i] = members_read(c->all, rank, members_result_at(c->all) + i);
    return members_read(c->all, rank, LL_CLEAN_DECIDED) == decided ? (uint32_t)decided : 0;
}

/* Returns whether `rank` has made a decision that includes this rank, in an attempt of this clean. Any other decision
   does not concern this rank, or belongs to an earlier clean. */
static bool decides_with(const agreement *c, int32_t rank)
{
    const int32_t own = c->all->sym->rank;
    if (rank == own || !c->all->in_view[rank] || members_read_voucher(c->all, rank, LL_CLEAN_DECIDED) == 0)
        return false;
    return members_read_entry(c->all, rank, LL_CLEAN_SETS - 1, own) >= c->begun;
}

static bool is_decided(const agreement *c)
{
    for (int32_t r = 0; r < c->all->sym->size; r++)
        if (decides_with(c, r)) return true;
    return false;
}

static void take_decision(agreement *c, int32_t rank)
{
    const group_members *all = c->all;
    agreed result;
    if (read_decision(c, rank, &result) == 0 || all->other[c->all->sym->rank] < c->begun) return;
    c->decided = true;
    c->result = result;
    memcpy(all->view, all->other, members_set_bytes(c->all));
}

static void take_decisions(agreement *c)
{
    for (int32_t r = 0; r < c->all->sym->size && !c->decided; r++)
        if (decides_with(c, r)) take_decision(c, r);
}

/* ---- ranks that come --------------------------------------------------------------------------------------------- */

static void come(agreement *c)
{
    group_members *all = c->all;
    all->attempt++;
    c->again = false;
    c->step = STEP_COME;
    members_say(c->all, LL_CLEAN_STAGE, (uint64_t)all->attempt << 32);
    members_say(c->all, LL_CLEAN_CALLS, c->ask->calls);
    for (int kind = 0; kind < LL_KINDS; kind++)
        members_say(c->all, LL_CLEAN_EPOCHS + kind, c->ask->epochs[kind]);
    members_say(c->all, LL_CLEAN_STATUS, (uint64_t)c->ask->status);
    members_say_stage(c->all, STEP_COME);
    for (int32_t r = 0; r < c->all->sym->size; r++) {
        all->in_view[r] = 1;
        all->taken[r] = 0;
    }
}

/* Reads the words that a rank writes when it comes, and records its attempt. Returns false if it has not come. An
   attempt that has ended does not count: over a network its decision may be here before the words of the rank's next
   attempt. */
static bool take_coming(const agreement *c, int32_t rank)
{
    group_members *all = c->all;
    const uint64_t stage = members_read_voucher(c->all, rank, LL_CLEAN_STAGE);
    uint64_t *said = all->said + (int64_t)rank * LL_CLEAN_SAID;
    if (all->taken[rank]) return true;
    if (members_attempt_of(stage) <= all->seen[rank] || (uint32_t)stage < STEP_COME) return false;
    if (members_read(c->all, rank, LL_CLEAN_DECIDED) >= members_attempt_of(stage)) return false;
    for (int32_t w = LL_CLEAN_CALLS; w < LL_CLEAN_SAID; w++)
        said[w] = members_read(c->all, rank, w);
    if (members_attempt_of(members_read(c->all, rank, LL_CLEAN_STAGE)) != members_attempt_of(stage)) return false;
    all->taken[rank] = members_attempt_of(stage);
    return true;
}

static bool all_have_come(const agreement *c)
{
    if (is_decided(c)) return true;
    for (int32_t r = 0; r < c->all->sym->size; r++)
        if (c->all->in_view[r] && !take_coming(c, r)) return false;
    return true;
}

/* ---- views ------------------------------------------------------------------------------------------------------- */

/* Returns whether the rank has decided in its attempt that take_coming has recorded (taken). */
static bool has_decided(const agreement *c, int32_t rank)
{
    return c->all->taken[rank] && members_read(c->all, rank, LL_CLEAN_DECIDED) == c->all->taken[rank];
}

static bool has_restarted(const agreement *c, int32_t rank)
{
    return members_attempt_of(members_read(c->all, rank, LL_CLEAN_STAGE)) != c->all->taken[rank];
}

static bool has_viewed(const agreement *c, int32_t rank)
{
    return (uint32_t)members_read(c->all, rank, LL_CLEAN_STAGE) >= c->step || has_restarted(c, rank) ||
           has_decided(c, rank);
}

/* Returns whether a rank of the view has passed this step. Such a rank may have left out a rank for which this one
   still waits. */
static bool is_ahead(const agreement *c, int32_t rank)
{
    const uint64_t stage = members_read(c->all, rank, LL_CLEAN_STAGE);
    return has_decided(c, rank) || (!has_restarted(c, rank) && (uint32_t)stage > c->step);
}

static bool step_is_over(const agreement *c)
{
    bool all = true;
    if (is_decided(c)) return true;
    for (int32_t r = 0; r < c->all->sym->size; r++) {
        if (r == c->all->sym->rank || !c->all->in_view[r]) continue;
        if (is_ahead(c, r)) return true;
        all = all && has_viewed(c, r);
    }
    return all;
}

/* A kind of wait: its name in error texts, whether the awaited event of one rank has happened, and whether the wait is
   over. */
typedef struct members_wait {
    const char *what;
    bool (*came)(const agreement *c, int32_t rank);
    bool (*over)(const agreement *c);
} members_wait;

/* A wait in progress. */
typedef struct members_rest {
    const agreement *c;
    const members_wait *how;
} members_rest;

static bool clean_misses(const void *context, int32_t rank)
{
    const members_rest *rest = context;
    if (!rest->c->all->in_view[rank]) return false;
    return !rest->how->came(rest->c, rank);
}

static sym_rest clean_rest_begin(const members_rest *context)
{
    const group_members *all = context->c->all;
    const boot_topic topic = {.kind = all->kind, .object = all->number, .number = context->c->ask->call};
    sym_rest rest = sym_rest_begin(all->sym, context->how->what);
    rest.halt = all->halted;
    sym_rest_expect_all(&rest, &topic, clean_misses, context);
    sym_rest_tolerate(&rest);
    rest.wait.late_limit_ms = all->late_limit_ms;
    return rest;
}

static void leave_out(const agreement *c, int32_t rank, const char *why)
{
    LOG(LOG_WARN, "rank %d is left out of the clean: %s", rank, why);
    c->all->in_view[rank] = 0;
}

/* Call this after a wait has failed. It removes from the view the ranks that made the wait fail. */
static void leave_out_lost(const members_rest *context, const sym_rest *rest)
{
    const agreement *c = context->c;
    char why[512];
    bool any = false;
    snprintf(why, sizeof why, "%s", expar_last_error());
    for (int32_t r = 0; r < c->all->sym->size; r++) {
        if (!sym_rest_has_lost(rest, r)) continue;
        leave_out(c, r, why);
        any = true;
    }
    /* If the rank to blame is not awaited here, it is one that the awaited ranks wait for. They do not come, so the
       first of them is left out. */
    for (int32_t r = 0; r < c->all->sym->size && !any; r++) {
        any = r != c->all->sym->rank && clean_misses(context, r);
        if (any) leave_out(c, r, why);
    }
}

/* Adds the ranks whose words are missing to the last error's text, as many as fit. Returns status. */
static expar_status clean_tell_missing(const members_rest *context, expar_status status)
{
    char text[512] = "";
    size_t length = 0;
    for (int32_t r = 0; r < context->c->all->sym->size; r++) {
        const size_t spare = sizeof text - length;
        if (!clean_misses(context, r)) continue;
        const int more = snprintf(text + length, spare, "; words of rank %d: 0 of 1", r);
        if (more < 0 || (size_t)more >= spare) break;
        length += (size_t)more;
    }
    text[length] = '\0';
    return error_set(status, "%s%s", expar_last_error(), text);
}

/* ---- impossible words -------------------------------------------------------------------------------------------- */

static bool calls_can_be(const uint64_t *calls_and_epochs)
{
    for (int i = 0; i <= LL_KINDS; i++)
        if (calls_and_epochs[i] >= CLEAN_CALLS_END) return false;
    return true;
}

/* Returns true also if the decision changes during the read. */
static bool decision_can_be(const agreement *c, int32_t rank)
{
    const uint64_t decided = members_read_voucher(c->all, rank, LL_CLEAN_DECIDED);
    uint64_t words[LL_CLEAN_RESULTS];
    for (int i = 0; i < LL_CLEAN_RESULTS; i++)
        words[i] = members_read(c->all, rank, members_result_at(c->all) + i);
    if (decided == 0 || members_read(c->all, rank, LL_CLEAN_DECIDED) != decided) return true;
    return decided <= UINT32_MAX && calls_can_be(&words[RESULT_CALLS]) &&
           words[RESULT_REJECTION] >> 32 < (uint64_t)c->all->sym->size;
}

static bool coming_can_be(const agreement *c, int32_t rank)
{
    return (uint32_t)members_read(c->all, rank, LL_CLEAN_STAGE) < CLEAN_STEPS_END &&
           (!c->all->taken[rank] || calls_can_be(c->all->said + (int64_t)rank * LL_CLEAN_SAID + LL_CLEAN_CALLS));
}

/* Leaves out each rank whose words are impossible. So this rank neither waits for it forever nor uses its numbers. */
static void leave_out_impossible(const agreement *c)
{
    for (int32_t r = 0; r < c->all->sym->size; r++) {
        if (r == c->all->sym->rank || !c->all->in_view[r]) continue;
        if (!coming_can_be(c, r))
            leave_out(c, r, "it has told a step, or calls, that cannot be");
        else if (!decision_can_be(c, r))
            leave_out(c, r, "it has told a decision that cannot be");
    }
}

/* ---- waits ------------------------------------------------------------------------------------------------------- */

/* Leaves out the ranks that the network does not reach. Such a rank does not get this rank's words, and completes the
   clean without it. */
static void leave_out_unreached(const agreement *c)
{
    for (int32_t r = 0; r < c->all->sym->size; r++)
        if (c->all->in_view[r] && c->all->cut_off[r]) leave_out(c, r, "the network does not reach it");
}

static expar_status clean_await(const agreement *c, const members_wait *how)
{
    const members_rest context = {.c = c, .how = how};
    expar_status status = EXPAR_OK;
    leave_out_impossible(c);
    while (status == EXPAR_OK && !how->over(c)) {
        sym_rest rest = clean_rest_begin(&context);
        do {
            members_step_done(c->all);
            members_spread(c->all);
            leave_out_unreached(c);
            leave_out_impossible(c);
            status = sym_rest_turn(&rest);
        } while (status == EXPAR_OK && !how->over(c));
        const bool lost = status == EXPAR_ERR_PEER;
        if (lost) leave_out_lost(&context, &rest);
        sym_rest_end(&rest);
        if (lost) status = EXPAR_OK;
    }
    return status == EXPAR_OK ? EXPAR_OK : clean_tell_missing(&context, status);
}

static void say_view(agreement *c)
{
    uint32_t *view = c->all->view;
    for (int32_t r = 0; r < c->all->sym->size; r++)
        view[r] = c->all->in_view[r] ? c->all->taken[r] : 0;
    c->step++;
    members_say_set(c->all, (int32_t)(c->step & 1), view);
    members_say_stage(c->all, c->step);
}

static void left_out_by(agreement *c, int32_t rank)
{
    c->again = true;
    c->all->seen[rank] = c->all->taken[rank];
}

/* Begins another attempt if a rank of the view has decided without this rank. Only a decision of that rank's recorded
   attempt (taken) counts. */
static void find_left_out(agreement *c)
{
    const int32_t own = c->all->sym->rank;
    for (int32_t r = 0; r < c->all->sym->size && !c->again; r++) {
        agreed result;
        if (r == own || !c->all->in_view[r] || !has_decided(c, r)) continue;
        if (read_decision(c, r, &result) == c->all->taken[r] && c->all->other[own] < c->begun) left_out_by(c, r);
    }
}

/* Reads the view of `rank`, and removes from this rank's view the ranks that are not in it. Returns true if both views
   were equal and of the same step. */
static bool meet_view(agreement *c, int32_t rank)
{
    const group_members *all = c->all;
    const uint64_t stage = members_read_voucher(c->all, rank, LL_CLEAN_STAGE);
    if (members_attempt_of(stage) != all->taken[rank] || (uint32_t)stage < c->step) return false;
    members_read_set(c->all, rank, (int32_t)(stage & 1), all->other);
    if (members_read(c->all, rank, LL_CLEAN_STAGE) != stage) return false;
    if (all->other[c->all->sym->rank] == 0) {
        left_out_by(c, rank);
        return false;
    }
    for (int32_t r = 0; r < c->all->sym->size; r++)
        all->in_view[r] = all->in_view[r] && all->other[r];
    return (uint32_t)stage == c->step && memcmp(all->view, all->other, members_set_bytes(c->all)) == 0;
}

/* Forgets the recorded attempt of each rank that has begun another one without a decision. The next step waits for its
   new words. */
static void take_again(const agreement *c)
{
    for (int32_t r = 0; r < c->all->sym->size; r++)
        if (c->all->in_view[r] && has_restarted(c, r) && !has_decided(c, r)) c->all->taken[r] = 0;
}

/* Returns the largest value that any rank of the view has said. */
static uint64_t most_said(const agreement *c, int32_t word)
{
    uint64_t most = 0;
    for (int32_t r = 0; r < c->all->sym->size; r++) {
        const uint64_t said = c->all->said[(int64_t)r * LL_CLEAN_SAID + word];
        if (c->all->view[r] && said > most) most = said;
    }
    return most;
}

static uint64_t clean_find_rejection(const agreement *c)
{
    for (int32_t r = 0; r < c->all->sym->size; r++) {
        const uint64_t status = c->all->said[(int64_t)r * LL_CLEAN_SAID + LL_CLEAN_STATUS];
        if (c->all->view[r] && status != EXPAR_OK) return (uint64_t)r << 32 | status;
    }
    return 0;
}

/* Call this when all ranks of the view have published the same view, with the same attempts. */
static void decide(agreement *c)
{
    c->decided = true;
    c->result.words[RESULT_CALLS] = most_said(c, LL_CLEAN_CALLS);
    for (int kind = 0; kind < LL_KINDS; kind++)
        c->result.words[RESULT_EPOCHS + kind] = most_said(c, LL_CLEAN_EPOCHS + kind);
    c->result.words[RESULT_REJECTION] = clean_find_rejection(c);
}

/* Publishes this rank's view and compares it with the others' views. The round ends with a decision, with a smaller
   view, or with c->again: this attempt has failed. */
static expar_status clean_round(agreement *c)
{
    static const members_wait views = {.what = "low-latency clean: views", .came = has_viewed, .over = step_is_over};
    const int32_t own = c->all->sym->rank, ranks = c->all->sym->size;
    say_view(c);
    expar_status status = clean_await(c, &views);
    if (status != EXPAR_OK) return status;
    take_decisions(c);
    if (!c->decided) find_left_out(c);
    bool same = !c->decided && !c->again;
    for (int32_t r = 0; r < ranks && !c->decided && !c->again; r++) {
        if (r == own || !c->all->view[r]) continue;
        same = c->all->in_view[r] && meet_view(c, r) && same;
    }
    if (same && !c->again) decide(c);
    return EXPAR_OK;
}

/* Waits until all ranks of the view have come, then makes a round. If a rank has decided meanwhile, its decision is
   taken over instead. */
static expar_status clean_step(agreement *c)
{
    static const members_wait coming = {
        .what = "low-latency clean: ranks that come", .came = take_coming, .over = all_have_come};
    expar_status status = clean_await(c, &coming);
    if (status != EXPAR_OK) return status;
    const bool decided = is_decided(c);
    take_decisions(c);
    if (decided) return EXPAR_OK;
    status = clean_round(c);
    if (!c->decided && !c->again) take_again(c);
    return status;
}

/* Repeats steps, and attempts if one fails, until this rank has decided or has taken over a decision. */
static expar_status agree(agreement *c)
{
    expar_status status = EXPAR_OK;
    while (status == EXPAR_OK && !c->decided) {
        come(c);
        while (status == EXPAR_OK && !c->decided && !c->again)
            status = clean_step(c);
    }
    return status;
}

/* ---- the decision ------------------------------------------------------------------------------------------------ */

static void say_decision(const agreement *c)
{
    group_members *all = c->all;
    members_say(c->all, LL_CLEAN_DECIDED, 0);
    members_say_set(c->all, LL_CLEAN_SETS - 1, all->view);
    for (int i = 0; i < LL_CLEAN_RESULTS; i++)
        members_say(c->all, members_result_at(c->all) + i, c->result.words[i]);
    members_say(c->all, LL_CLEAN_DECIDED, all->attempt);
    members_ring_all(c->all);
    for (int32_t r = 0; r < c->all->sym->size; r++)
        if (all->view[r] > all->seen[r]) all->seen[r] = all->view[r];
}

expar_status members_agree(group_members *members, members_ask *ask)
{
    agreement c = {.all = members, .ask = ask, .begun = members->attempt + 1};
    expar_status status = agree(&c);
    if (status != EXPAR_OK) return status;
    say_decision(&c);
    const uint64_t rejection = c.result.words[RESULT_REJECTION];
    ask->refuser = rejection ? (int32_t)(rejection >> 32) : -1;
    ask->rejection = (int32_t)(uint32_t)rejection;
    if (rejection) return EXPAR_OK;
    ask->calls = c.result.words[RESULT_CALLS];
    /* All ranks continue after an even epoch that is greater than every epoch in the words of these ranks. */
    for (int kind = 0; kind < LL_KINDS; kind++)
        ask->epochs[kind] = (c.result.words[RESULT_EPOCHS + kind] + 1) / 2 * 2 + 2;
    return EXPAR_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Isolated calls. The calls, the copies, the baseline and a mode's other contenders take turns. */
#include "bench/frame/report.h"
#include "bench/frame/session.h"
#include <stdio.h>

/* Two contests take turns with three others. A contest has its calls, the copies, and a baseline. A call with a hook is
   two contenders. */
#define MOST_CONTENDERS (2 * (2 * BENCH_CONTEST_CALLS + BENCH_MAX_COPIES + 1) + 3)

/* All contenders that take turns. */
struct turns {
    struct bench_session *session;
    const struct bench_mode *mode;
    struct bench_contest *contests;
    int num_contests;
    struct contender list[MOST_CONTENDERS], *others;
    int count;
};

/* ---- contenders -------------------------------------------------------------------------------------------------- */

static bool call_before(void *context)
{
    struct bench_call *call = context;
    bench_traffic_begin(call->session, &call->traffic);
    return true;
}

static bool call_after(void *context, bool check)
{
    struct bench_call *call = context;
    const struct bench_mode *mode = call->session->mode;
    if (!call->kind.hooked) bench_traffic_end(call->session, &call->traffic);
    if (!check) bench_late_note(&call->late, call->session);
    if (check && call->traffic.counted) call->verified &= mode->sent_right(call);
    if (check) call->verified &= mode->verify(call, bench_measured_salt(call->session));
    mode->release(call);
    return true;
}

static bool call_sent(void *context, bool check)
{
    struct bench_call *call = context;
    if (!check) bench_late_note(&call->late_send, call->session);
    return true;
}

static bool baseline_run(void *context)
{
    const struct bench_contest *contest = context;
    const struct bench_session *session = contest->session;
    const struct bench_baseline *baseline = session->world->baseline;
    const struct bench_kind *kind = bench_contest_kind(contest);
    return kind->combines ? baseline->combine(session->baseline, kind->reduced, session->y)
                          : baseline->dispatch(session->baseline);
}

static bool baseline_after(void *context, bool check)
{
    struct bench_contest *contest = context;
    const struct bench_session *session = contest->session;
    session->world->baseline->settle(session->baseline);
    if (check)
        contest->baseline_verified &= session->mode->verify_baseline(contest->calls[0], bench_measured_salt(session));
    return true;
}

static struct contender *add(struct turns *self, struct contender contender)
{
    self->list[self->count] = contender;
    return &self->list[self->count++];
}

/* Adds a call as one contender, or as two: sending and receiving. */
static void add_call(struct turns *self, struct bench_call *call, struct contender *own[2])
{
    const struct bench_mode *mode = self->mode;
    struct contender made = {
        .run = call->kind.combines ? mode->combine : mode->dispatch, .context = call, .series_us = call->series_us};
    made.before = call->kind.hooked ? NULL : call_before;
    made.after = call->kind.hooked ? call_sent : call_after;
    own[0] = add(self, made);
    if (call->kind.hooked)
        own[1] = add(self, (struct contender){.run = mode->receive, .after = call_after, .context = call});
}

static void add_contest(struct turns *self, struct bench_contest *contest)
{
    for (int i = 0; i < contest->num_calls; i++)
        add_call(self, contest->calls[i], contest->own[i]);
    contest->copies = &self->list[self->count];
    contest->num_copies = self->mode->limit_add(contest, contest->copies);
    self->count += contest->num_copies;
    if (self->session->baseline)
        contest->of_baseline =
            add(self, (struct contender){.run = baseline_run, .after = baseline_after, .context = contest});
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static bool open_call(struct bench_call *call)
{
    bool good = bench_late_open(&call->late, call->session) && bench_late_open(&call->late_send, call->session);
    return bench_all_true(call->session->world, good) && call->session->mode->open(call);
}

static void close_call(struct bench_call *call)
{
    call->session->mode->close(call);
    bench_late_close(&call->late);
    bench_late_close(&call->late_send);
}

static bool open_contest(struct turns *self, struct bench_contest *contest)
{
    bool good = !self->mode->limit_open || self->mode->limit_open(contest);
    contest->baseline_verified = true;
    for (int i = 0; i < contest->num_calls && good; i++)
        good = open_call(contest->calls[i]);
    return good;
}

static void close_contest(const struct turns *self, struct bench_contest *contest, bool sound)
{
    for (int i = 0; i < contest->num_calls; i++)
        close_call(contest->calls[i]);
    if (self->mode->limit_free) self->mode->limit_free(contest, sound);
}

/* ---- measuring --------------------------------------------------------------------------------------------------- */

/* Fills the rows. No rank may read them meanwhile. */
static bool fill(const struct turns *self, uint64_t salt)
{
    const struct bench_world *world = self->session->world;
    return bench_good(world, expar_barrier_all(world->group)) && self->mode->fill(self->contests->calls[0], salt) &&
           bench_good(world, expar_barrier_all(world->group));
}

/* Makes a first call and verifies it in full, so that bytes which it does not write are found. */
static bool first(struct bench_call *call)
{
    const struct bench_mode *mode = call->session->mode;
    const uint64_t salt = bench_first_salt(call->session);
    if (call->kind.combines && !bench_spoil_y(call->session)) return false;
    if (!(call->kind.combines ? mode->combine : mode->dispatch)(call)) return false;
    if (call->kind.hooked && !mode->receive(call)) return false;
    call->verified &= mode->verify(call, salt);
    mode->release(call);
    return true;
}

static bool measure(struct turns *self)
{
    const struct bench_session *session = self->session;
    const struct bench_mode *mode = self->mode;
    char label[BENCH_LABEL_BYTES];
    if (!fill(self, bench_first_salt(session))) return false;
    for (int i = 0; i < self->num_contests; i++)
        for (int c = 0; c < self->contests[i].num_calls; c++)
            if (!first(self->contests[i].calls[c])) return false;
    if (!fill(self, bench_measured_salt(session))) return false;
    for (int i = 0; i < self->num_contests && mode->limit_refill; i++)
        if (!mode->limit_refill(&self->contests[i])) return false;
    for (int i = 0; i < self->count; i++)
        self->list[i].settled = mode->settled;
    bench_session_label(session, self->contests->calls[0]->op, label);
    return bench_measure(session->world, session->options, label, self->list, self->count);
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

static const struct bench_late *late_of_limit(const struct bench_contest *contest, const struct bench_result *result)
{
    return result->num_copies ? contest->copies[bench_least_copy(result)].late : NULL;
}

/* The contenders that a call in one is compared with. */
static bool add_compared(const struct bench_contest *contest, const struct bench_call *call,
                         struct bench_result *result)
{
    const struct bench_session *session = contest->session;
    result->num_copies = contest->num_copies;
    for (int i = 0; i < contest->num_copies; i++)
        result->copies[i] = contest->copies[i].times;
    result->has_mpi = contest->of_baseline != NULL;
    if (contest->of_baseline) result->mpi = contest->of_baseline->times;
    const struct bench_late *limit = late_of_limit(contest, result);
    return (!limit || bench_late_find(limit, session, &result->limit)) &&
           bench_traffic_mean(session->world, &call->traffic, &result->traffic);
}

static bool add_result(const struct turns *self, const struct bench_contest *contest, const struct bench_call *call,
                       const char *phase, const struct contender *own, const struct bench_late *late,
                       struct bench_results *results)
{
    struct bench_result *result = bench_result_of(call, results);
    if (!result) return false;
    result->phase = phase;
    result->expar = own->times;
    result->verified &= contest->verified;
    if (self->others) self->mode->note_others(self->session, self->others, result);
    if (!bench_late_find(late, self->session, &result->breakdown)) return false;
    return (call->kind.hooked || add_compared(contest, call, result)) && self->mode->describe(call, result);
}

static bool add_results_of(const struct turns *self, const struct bench_contest *contest, const struct bench_call *call,
                           struct contender *const own[2], struct bench_results *results)
{
    if (call->unreported) return true;
    if (!call->kind.hooked) return add_result(self, contest, call, "call", own[0], &call->late, results);
    return add_result(self, contest, call, "send", own[0], &call->late_send, results) &&
           add_result(self, contest, call, "receive", own[1], &call->late, results);
}

static bool add_results(struct turns *self, struct bench_results *results)
{
    const struct bench_mode *mode = self->mode;
    const uint64_t salt = bench_measured_salt(self->session);
    const bool counted = !mode->counts_right || mode->counts_right(self->contests, self->num_contests);
    for (int i = 0; i < self->num_contests; i++) {
        struct bench_contest *contest = &self->contests[i];
        const bool mine = counted && mode->limit_verify(contest, salt) && contest->baseline_verified;
        contest->verified = bench_all_true(self->session->world, mine);
        for (int c = 0; c < contest->num_calls; c++)
            if (!add_results_of(self, contest, contest->calls[c], contest->own[c], results)) return false;
    }
    return true;
}

bool bench_isolated(struct bench_contest *contests, int count, struct bench_results *results)
{
    struct turns self = {
        .session = contests->session, .mode = contests->session->mode, .contests = contests, .num_contests = count};
    bool good = true;
    for (int i = 0; i < count && good; i++)
        good = open_contest(&self, &contests[i]);
    for (int i = 0; i < count && good; i++)
        add_contest(&self, &contests[i]);
    if (good && self.mode->add_others) {
        self.others = &self.list[self.count];
        self.count += self.mode->add_others(self.session, self.others);
    }
    good = good && measure(&self) && add_results(&self, results);
    for (int i = 0; i < count; i++)
        close_contest(&self, &contests[i], good);
    return good;
}

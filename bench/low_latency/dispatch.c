/* SPDX-License-Identifier: Apache-2.0 */
/* Dispatch in one call and in two, the copies, the baseline and round trips take turns. Before the measurement a first
 * call with other contents is verified in full; a call right behind the measured ones is verified again. */
#include "bench/low_latency/session.h"

/* Call, send, receive, copies, baseline, two round trips, a launch. */
#define MAX_CONTENDERS (3 + LL_MAX_COPIES + 1 + 2 + 1)

/* Calls of one kind: in one, or by a hook. */
struct dispatch_case {
    const struct ll_session *session;
    expar_ll_dispatch_args args;
    expar_ll_dispatch_result result;
    uint64_t calls;
    bool verified;
    struct bench_late late, late_send; /* of its last kernel; of the first of two */
    struct ll_traffic traffic;         /* of the last call that was one */
};

static bool dispatch_before(void *context)
{
    struct dispatch_case *self = context;
    ll_traffic_begin(self->session, &self->traffic);
    return true;
}

static bool dispatch_run(void *context)
{
    struct dispatch_case *self = context;
    self->result = (expar_ll_dispatch_result)EXPAR_LL_DISPATCH_RESULT_INIT;
    self->calls++;
    return bench_good(self->session->world, expar_ll_dispatch(self->session->ll, &self->args, &self->result));
}

static bool dispatch_receive(void *context)
{
    struct dispatch_case *self = context;
    return bench_good(self->session->world, expar_ll_hook_call(self->result.hook, self->session->world->stream));
}

static void dispatch_release(struct dispatch_case *self)
{
    expar_ll_hook_destroy(self->result.hook);
    expar_ep_output_release(self->result.output);
    expar_ll_handle_destroy(self->result.handle);
    self->result = (expar_ll_dispatch_result)EXPAR_LL_DISPATCH_RESULT_INIT;
}

static bool dispatch_after(void *context, bool check)
{
    struct dispatch_case *self = context;
    if (!self->args.hook) ll_traffic_end(self->session, &self->traffic);
    if (check) self->verified &= ll_traffic_verify_dispatch(self->session, &self->traffic);
    if (check)
        self->verified &= ll_verify_dispatch(self->session, ll_measured_salt(self->session), &self->result);
    else
        ll_late_note(&self->late, self->session);
    dispatch_release(self);
    return true;
}

static bool dispatch_sent(void *context, bool check)
{
    struct dispatch_case *self = context;
    if (!check) ll_late_note(&self->late_send, self->session);
    return true;
}

/* A first dispatch, verified in full. */
static bool dispatch_first(struct dispatch_case *self)
{
    const uint64_t salt = ll_first_salt(self->session);
    if (!ll_fill_x(self->session, salt) || !dispatch_run(self) || (self->result.hook && !dispatch_receive(self)))
        return false;
    self->verified &= ll_verify_dispatch(self->session, salt, &self->result);
    dispatch_release(self);
    return true;
}

/* ---- the baseline ------------------------------------------------------------------------------------------------ */

struct baseline_case {
    const struct ll_session *session;
    bool verified;
};

static bool baseline_run(void *context)
{
    const struct ll_session *session = ((struct baseline_case *)context)->session;
    return session->world->ll_baseline->dispatch(session->baseline);
}

static bool baseline_after(void *context, bool check)
{
    struct baseline_case *self = context;
    const struct ll_session *session = self->session;
    const struct ll_baseline *baseline = session->world->ll_baseline;
    baseline->settle(session->baseline);
    if (!check) return true;
    const struct ll_rows rows = {.rows = baseline->received(session->baseline),
                                 .counts = baseline->counts(session->baseline),
                                 .src_info = baseline->src_info(session->baseline)};
    self->verified &= ll_verify_rows(session, ll_measured_salt(session), &rows);
    return true;
}

/* ---- turns ------------------------------------------------------------------------------------------------------- */

/* All that take turns. */
struct turns {
    const struct ll_session *session;
    struct dispatch_case whole, hooked;
    struct baseline_case baseline;
    struct ll_limit *limit;
    struct contender list[MAX_CONTENDERS];
    /* In list; NULL: not there. */
    struct contender *of_whole, *of_send, *of_receive, *copies, *of_baseline, *launch, *trips;
    int count, num_copies;
    double messages, bytes; /* of a call and rank */
    bool verified;          /* limit, baseline, counts; on all ranks */
};

static struct contender *add_contender(struct turns *self, struct contender contender)
{
    self->list[self->count] = contender;
    return &self->list[self->count++];
}

static void add_turns(struct turns *self)
{
    const struct ll_session *session = self->session;
    const enum bench_phases phases = session->options->ll.phases;
    if (phases != BENCH_HOOKED)
        self->of_whole = add_contender(self, (struct contender){.before = dispatch_before,
                                                                .run = dispatch_run,
                                                                .after = dispatch_after,
                                                                .context = &self->whole});
    if (phases != BENCH_WHOLE) {
        self->of_send = add_contender(
            self, (struct contender){.run = dispatch_run, .after = dispatch_sent, .context = &self->hooked});
        self->of_receive = add_contender(
            self, (struct contender){.run = dispatch_receive, .after = dispatch_after, .context = &self->hooked});
    }
    self->copies = &self->list[self->count];
    self->num_copies = ll_limit_contenders(self->limit, self->copies);
    self->count += self->num_copies;
    if (session->baseline)
        self->of_baseline = add_contender(
            self, (struct contender){.run = baseline_run, .after = baseline_after, .context = &self->baseline});
    const struct ll_place *place = session->world->device->ll;
    if (place->launch)
        self->launch =
            add_contender(self, (struct contender){.run = place->launch, .context = (void *)(uintptr_t)session->world});
    if (!session->trip) return;
    self->trips = &self->list[self->count];
    self->count += place->trip_contenders(session->trip, self->trips);
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* Messages of a call, as the library has counted them: one for each (token, rank), this rank's own included. */
static bool count_messages(struct turns *self)
{
    const struct ll_session *session = self->session;
    const uint64_t calls = self->whole.calls + self->hooked.calls;
    expar_ll_stats stats = EXPAR_LL_STATS_INIT;
    if (!bench_good(session->world, expar_ll_get_stats(session->ll, &stats))) return false;
    self->verified = ll_verify_count(session, "messages of all dispatches", stats.dispatch_messages,
                                     calls * (uint64_t)session->problem->num_sent);
    return bench_mean(session->world, (double)stats.dispatch_messages / (double)calls, &self->messages);
}

static bool add_result(const struct turns *self, const char *phase, const struct contender *own,
                       const struct bench_late *late, struct ll_results *results)
{
    const struct ll_session *session = self->session;
    const struct dispatch_case *what = own->context;
    struct ll_result *result = ll_results_add(results);
    if (!result) return bench_complain(session->world, "out of memory");
    *result = (struct ll_result){.op = "dispatch",
                                 .phase = phase,
                                 .format = session->format->name,
                                 .dtype = session->problem->dtype,
                                 .tokens = session->problem->tokens,
                                 .workers = session->workers,
                                 .expar = own->times,
                                 .messages = self->messages,
                                 .bytes = self->bytes};
    if (self->launch) result->launch_us = self->launch->times.median_us;
    if (self->trips) session->world->device->ll->trip_times(self->trips, result);
    result->verified = bench_all_true(session->world, what->verified) && self->verified;
    if (!ll_late_find(late, session, &result->breakdown)) return false;
    if (own != self->of_whole) return true;
    if (!ll_traffic_mean(session->world, &what->traffic, &result->traffic)) return false;
    result->num_copies = self->num_copies;
    for (int i = 0; i < self->num_copies; i++)
        result->copies[i] = self->copies[i].times;
    if (!ll_late_find_limit(self->copies, session, result)) return false;
    result->has_mpi = self->of_baseline != NULL;
    if (self->of_baseline) result->mpi = self->of_baseline->times;
    return true;
}

static bool add_results(struct turns *self, struct ll_results *results)
{
    const struct ll_session *session = self->session;
    const struct problem *problem = session->problem;
    const size_t row_bytes = ll_format_row_bytes(session->format, problem->dtype, problem->hidden) +
                             4 * (size_t)ll_format_scales(session->format, problem->hidden);
    if (!count_messages(self)) return false;
    if (!bench_mean(session->world, (double)session->layout->num_rows * (double)row_bytes, &self->bytes)) return false;
    self->verified &= ll_limit_verify(self->limit, ll_measured_salt(session));
    self->verified = bench_all_true(session->world, self->verified && self->baseline.verified);
    if (self->of_whole && !add_result(self, "call", self->of_whole, &self->whole.late, results)) return false;
    if (self->of_send && !add_result(self, "send", self->of_send, &self->hooked.late_send, results)) return false;
    return !self->of_receive || add_result(self, "receive", self->of_receive, &self->hooked.late, results);
}

static bool measure(struct turns *self)
{
    const struct ll_session *session = self->session;
    add_turns(self);
    if (self->of_whole && !dispatch_first(&self->whole)) return false;
    if (self->of_send && !dispatch_first(&self->hooked)) return false;
    if (!ll_fill_x(session, ll_measured_salt(session)) || !ll_limit_refill(self->limit)) return false;
    return ll_session_measure(session, "dispatch", self->list, self->count);
}

static bool open_late(struct turns *self)
{
    const struct ll_session *session = self->session;
    return bench_all_true(session->world, ll_late_open(&self->whole.late, session) &&
                                              ll_late_open(&self->hooked.late, session) &&
                                              ll_late_open(&self->hooked.late_send, session));
}

bool ll_case_dispatch(struct ll_session *session, struct ll_results *results)
{
    struct turns self = {.session = session,
                         .whole = {.session = session, .args = ll_dispatch_args_of(session), .verified = true},
                         .baseline = {.session = session, .verified = true},
                         .limit = ll_limit_dispatch(session)};
    self.hooked = self.whole;
    self.hooked.args.hook = 1;
    if (!self.limit) return false;
    bool good = open_late(&self) && measure(&self) && add_results(&self, results);
    bench_late_close(&self.whole.late);
    bench_late_close(&self.hooked.late);
    bench_late_close(&self.hooked.late_send);
    ll_limit_free(self.limit, good);
    return good;
}

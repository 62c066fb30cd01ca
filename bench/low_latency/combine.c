/* SPDX-License-Identifier: Apache-2.0 */
/* Combine by both sums, in one call and in two, the copies, the baseline and round trips take turns. As with dispatch,
 * a first call with other contents and one right behind the measured ones are verified in full. */
#include "bench/low_latency/session.h"

/* For each sum: call, send, receive, copies, baseline; two round trips, a launch. */
#define MAX_CONTENDERS (2 * (3 + LL_MAX_COPIES + 1) + 2 + 1)

/* Calls of one kind: one sum, in one or by a hook. */
struct combine_case {
    const struct ll_session *session;
    expar_ll_combine_args args;
    expar_ll_combine_result result;
    uint64_t calls;
    bool verified;
    struct bench_late late, late_send; /* of its last kernel; of the first of two */
    struct ll_traffic traffic;         /* of the last call that was one */
};

/* One sum, with what it is compared with. */
struct combine_sum {
    bool reduced;
    struct combine_case whole, hooked, baseline;
    struct ll_limit *limit;
    struct contender *of_whole, *of_send, *of_receive, *copies, *of_baseline; /* NULL: not there */
    int num_copies;
    bool verified; /* limit, baseline; on all ranks */
};

/* All that take turns. */
struct combine_turns {
    const struct ll_session *session;
    expar_ll_handle *handle;
    struct combine_sum exact, reduced;
    struct contender list[MAX_CONTENDERS], *launch, *trips;
    int count;
};

static bool is_reduced(const struct combine_case *self)
{
    return self->args.sum == EXPAR_LL_REDUCED;
}

static bool combine_before(void *context)
{
    struct combine_case *self = context;
    ll_traffic_begin(self->session, &self->traffic);
    return true;
}

static bool combine_run(void *context)
{
    struct combine_case *self = context;
    self->result = (expar_ll_combine_result)EXPAR_LL_COMBINE_RESULT_INIT;
    self->calls++;
    return bench_good(self->session->world, expar_ll_combine(self->session->ll, &self->args, &self->result));
}

static bool combine_receive(void *context)
{
    struct combine_case *self = context;
    return bench_good(self->session->world, expar_ll_hook_call(self->result.hook, self->session->world->stream));
}

static void combine_release(struct combine_case *self)
{
    expar_ll_hook_destroy(self->result.hook);
    expar_ep_output_release(self->result.output);
    self->result = (expar_ll_combine_result)EXPAR_LL_COMBINE_RESULT_INIT;
}

static bool verify(const struct combine_case *self, uint64_t salt)
{
    const struct ll_session *session = self->session;
    return ll_verify_combine(session, salt, is_reduced(self), self->args.format == EXPAR_LL_LOGFMT, session->y);
}

static bool combine_after(void *context, bool check)
{
    struct combine_case *self = context;
    if (!self->args.hook) ll_traffic_end(self->session, &self->traffic);
    if (check) self->verified &= ll_traffic_verify_combine(self->session, is_reduced(self), &self->traffic);
    if (check)
        self->verified &= verify(self, ll_measured_salt(self->session));
    else
        ll_late_note(&self->late, self->session);
    combine_release(self);
    return true;
}

static bool combine_sent(void *context, bool check)
{
    struct combine_case *self = context;
    if (!check) ll_late_note(&self->late_send, self->session);
    return true;
}

/* A first combine, verified in full; what it leaves unwritten is seen. */
static bool combine_first(struct combine_case *self)
{
    const struct ll_session *session = self->session;
    if (!ll_spoil_y(session) || !combine_run(self) || (self->result.hook && !combine_receive(self))) return false;
    self->verified &= verify(self, ll_first_salt(session));
    combine_release(self);
    return true;
}

static bool baseline_run(void *context)
{
    const struct combine_case *self = context;
    const struct ll_session *session = self->session;
    const struct ll_baseline *baseline = session->world->ll_baseline;
    return is_reduced(self) ? baseline->combine_reduced(session->baseline, session->y)
                            : baseline->combine_exact(session->baseline, session->y);
}

static bool baseline_after(void *context, bool check)
{
    struct combine_case *self = context;
    self->session->world->ll_baseline->settle(self->session->baseline);
    if (check) self->verified &= verify(self, ll_measured_salt(self->session));
    return true;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* Dispatches once for the handle, with the weights, which a reduced sum needs. */
static bool make_handle(struct combine_turns *self)
{
    const struct ll_session *session = self->session;
    const struct problem *problem = session->problem;
    expar_ll_dispatch_args args = ll_dispatch_args_of(session);
    expar_ll_dispatch_result result = EXPAR_LL_DISPATCH_RESULT_INIT;
    args.topk_weights = ll_tensor(session, session->weights, EXPAR_F32, problem->tokens, problem->topk);
    if (!bench_good(session->world, expar_ll_dispatch(session->ll, &args, &result))) return false;
    expar_ep_output_release(result.output);
    self->handle = result.handle;
    return true;
}

static bool open_sum(struct combine_turns *self, struct combine_sum *sum, bool reduced)
{
    const struct ll_session *session = self->session;
    expar_ll_combine_args args = ll_combine_args_of(session);
    args.handle = self->handle;
    args.sum = reduced ? EXPAR_LL_REDUCED : EXPAR_LL_EXACT;
    *sum = (struct combine_sum){.reduced = reduced,
                                .whole = {.session = session, .args = args, .verified = true},
                                .limit = ll_limit_combine(session, reduced)};
    sum->hooked = sum->baseline = sum->whole;
    sum->hooked.args.hook = 1;
    return sum->limit && bench_all_true(session->world, ll_late_open(&sum->whole.late, session) &&
                                                            ll_late_open(&sum->hooked.late, session) &&
                                                            ll_late_open(&sum->hooked.late_send, session));
}

static void close_sum(struct combine_sum *sum, bool sound)
{
    bench_late_close(&sum->whole.late);
    bench_late_close(&sum->hooked.late);
    bench_late_close(&sum->hooked.late_send);
    ll_limit_free(sum->limit, sound);
}

static struct contender *add_contender(struct combine_turns *self, struct contender contender)
{
    self->list[self->count] = contender;
    return &self->list[self->count++];
}

static void add_sum(struct combine_turns *self, struct combine_sum *sum)
{
    const enum bench_phases phases = self->session->options->ll.phases;
    if (phases != BENCH_HOOKED)
        sum->of_whole = add_contender(
            self, (struct contender){
                      .before = combine_before, .run = combine_run, .after = combine_after, .context = &sum->whole});
    if (phases != BENCH_WHOLE) {
        sum->of_send =
            add_contender(self, (struct contender){.run = combine_run, .after = combine_sent, .context = &sum->hooked});
        sum->of_receive = add_contender(
            self, (struct contender){.run = combine_receive, .after = combine_after, .context = &sum->hooked});
    }
    sum->copies = &self->list[self->count];
    sum->num_copies = ll_limit_contenders(sum->limit, sum->copies);
    self->count += sum->num_copies;
    if (self->session->baseline)
        sum->of_baseline = add_contender(
            self, (struct contender){.run = baseline_run, .after = baseline_after, .context = &sum->baseline});
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* Rows that a call of this rank sends back. */
static int64_t rows_back(const struct ll_session *session, bool reduced)
{
    return reduced ? session->problem->num_received : session->layout->num_rows;
}

static uint64_t calls_of(const struct combine_sum *sum)
{
    return sum->whole.calls + sum->hooked.calls;
}

/* All rows that the library has counted, of both sums. */
static bool counts_are_right(const struct combine_turns *self)
{
    const struct ll_session *session = self->session;
    expar_ll_stats stats = EXPAR_LL_STATS_INIT;
    if (!bench_good(session->world, expar_ll_get_stats(session->ll, &stats))) return false;
    const uint64_t expected = calls_of(&self->exact) * (uint64_t)rows_back(session, false) +
                              calls_of(&self->reduced) * (uint64_t)rows_back(session, true);
    return ll_verify_count(session, "rows of all combines", stats.combine_rows, expected);
}

static bool add_result(const struct combine_turns *self, const struct combine_sum *sum, const char *phase,
                       const struct contender *own, const struct bench_late *late, struct ll_results *results)
{
    const struct ll_session *session = self->session;
    const struct problem *problem = session->problem;
    const struct combine_case *what = own->context;
    struct ll_result *result = ll_results_add(results);
    if (!result) return bench_complain(session->world, "out of memory");
    *result = (struct ll_result){.op = "combine",
                                 .sum = sum->reduced ? "reduced" : "exact",
                                 .phase = phase,
                                 .format = session->format->name,
                                 .dtype = problem->dtype,
                                 .tokens = problem->tokens,
                                 .workers = session->workers,
                                 .expar = own->times};
    if (self->launch) result->launch_us = self->launch->times.median_us;
    if (self->trips) session->world->device->ll->trip_times(self->trips, result);
    result->verified = bench_all_true(session->world, what->verified) && sum->verified;
    if (!bench_mean(session->world, (double)rows_back(session, sum->reduced), &result->messages)) return false;
    result->bytes = result->messages * (double)problem->row_bytes;
    if (!ll_late_find(late, session, &result->breakdown)) return false;
    if (own != sum->of_whole) return true;
    if (!ll_traffic_mean(session->world, &what->traffic, &result->traffic)) return false;
    result->num_copies = sum->num_copies;
    for (int i = 0; i < sum->num_copies; i++)
        result->copies[i] = sum->copies[i].times;
    if (!ll_late_find_limit(sum->copies, session, result)) return false;
    result->has_mpi = sum->of_baseline != NULL;
    if (sum->of_baseline) result->mpi = sum->of_baseline->times;
    return true;
}

static bool add_results_of(struct combine_turns *self, struct combine_sum *sum, struct ll_results *results)
{
    const struct ll_session *session = self->session;
    if (!sum->limit) return true;
    const bool mine = counts_are_right(self) && ll_limit_verify(sum->limit, ll_measured_salt(session));
    sum->verified = bench_all_true(session->world, mine && sum->baseline.verified);
    if (sum->of_whole && !add_result(self, sum, "call", sum->of_whole, &sum->whole.late, results)) return false;
    if (sum->of_send && !add_result(self, sum, "send", sum->of_send, &sum->hooked.late_send, results)) return false;
    return !sum->of_receive || add_result(self, sum, "receive", sum->of_receive, &sum->hooked.late, results);
}

/* ---- all together ------------------------------------------------------------------------------------------------ */

static bool open_sums(struct combine_turns *self)
{
    const struct bench_options *options = self->session->options;
    const bool reduced = options->ll.reduced && self->session->format->plain;
    if (options->ll.exact && !open_sum(self, &self->exact, false)) return false;
    if (reduced && !open_sum(self, &self->reduced, true)) return false;
    if (options->ll.exact) add_sum(self, &self->exact);
    if (reduced) add_sum(self, &self->reduced);
    const struct bench_world *world = self->session->world;
    const struct ll_place *place = world->device->ll;
    if (place->launch)
        self->launch =
            add_contender(self, (struct contender){.run = place->launch, .context = (void *)(uintptr_t)world});
    if (!self->session->trip) return true;
    self->trips = &self->list[self->count];
    self->count += place->trip_contenders(self->session->trip, self->trips);
    return true;
}

static bool first_of(struct combine_sum *sum)
{
    if (sum->of_whole && !combine_first(&sum->whole)) return false;
    return !sum->of_send || combine_first(&sum->hooked);
}

static bool measure(struct combine_turns *self)
{
    const struct ll_session *session = self->session;
    if (!ll_fill_rows(session, ll_first_salt(session))) return false;
    if (!first_of(&self->exact) || !first_of(&self->reduced)) return false;
    if (!ll_fill_rows(session, ll_measured_salt(session))) return false;
    if (self->exact.limit && !ll_limit_refill(self->exact.limit)) return false;
    return ll_session_measure(session, "combine", self->list, self->count);
}

bool ll_case_combine(struct ll_session *session, struct ll_results *results)
{
    struct combine_turns self = {.session = session};
    bool good = make_handle(&self) && open_sums(&self) && measure(&self);
    good = good && add_results_of(&self, &self.exact, results) && add_results_of(&self, &self.reduced, results);
    close_sum(&self.exact, good);
    close_sum(&self.reduced, good);
    expar_ll_handle_destroy(self.handle);
    return good;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Measures loops of low-latency mode: dispatches back to back, combines back to back, and decodes: a dispatch and the
 * combine of its tokens, in whole calls and by hooks. Outputs are released at once. The contents change before the loop
 * that is checked, so that rows which its last call left unwritten cannot look right. */
#include "bench/frame/patterns.h"
#include "bench/low_latency/session.h"
#include <stdio.h>

struct decode_case {
    const struct ll_session *session;
    enum bench_pattern pattern;
    const char *op;
    bool dispatches, combines; /* both: a decode */
    bool hooked, reduced, verified;
    expar_ll_dispatch_args dispatch_args;
    expar_ll_dispatch_result result; /* of the last dispatch, until it is released */
    expar_ll_combine_args combine_args;
    expar_ll_handle *handle; /* of combines without dispatches */
};

static bool on_gpu(const struct decode_case *self)
{
    return self->session->world->place.type == EXPAR_CUDA;
}

/* ---- one call ---------------------------------------------------------------------------------------------------- */

/* Receives by the call's hook, if it has one. */
static bool receive(const struct decode_case *self, expar_ll_hook *hook)
{
    const struct bench_world *world = self->session->world;
    return !hook || bench_good(world, expar_ll_hook_call(hook, world->stream));
}

static bool dispatch(struct decode_case *self)
{
    const struct bench_world *world = self->session->world;
    expar_ll_dispatch_result *result = &self->result;
    *result = (expar_ll_dispatch_result)EXPAR_LL_DISPATCH_RESULT_INIT;
    if (!bench_good(world, expar_ll_dispatch(self->session->ll, &self->dispatch_args, result))) return false;
    if (!receive(self, result->hook)) return false;
    return !on_gpu(self) || bench_good(world, expar_ep_output_read_on(result->output, world->stream));
}

static bool combine(struct decode_case *self)
{
    const struct bench_world *world = self->session->world;
    expar_ll_combine_result result = EXPAR_LL_COMBINE_RESULT_INIT;
    self->combine_args.handle = self->dispatches ? self->result.handle : self->handle;
    if (!bench_good(world, expar_ll_combine(self->session->ll, &self->combine_args, &result))) return false;
    bool good = receive(self, result.hook);
    expar_ll_hook_destroy(result.hook);
    expar_ep_output_release(result.output);
    return good;
}

static void release(struct decode_case *self)
{
    expar_ll_hook_destroy(self->result.hook);
    expar_ep_output_release(self->result.output);
    expar_ll_handle_destroy(self->result.handle);
    self->result = (expar_ll_dispatch_result)EXPAR_LL_DISPATCH_RESULT_INIT;
}

/* Calls have no events: on the CPU they have ended when they return, on a GPU they lie on the stream. */
static bool decode_call(void *context, bool last, expar_event **event)
{
    struct decode_case *self = context;
    (void)event;
    if (self->dispatches && !dispatch(self)) return false;
    if (self->combines && !combine(self)) return false;
    if (!last) release(self);
    return true;
}

/* ---- between loops ----------------------------------------------------------------------------------------------- */

static bool fill(const struct decode_case *self, uint64_t salt)
{
    const struct ll_session *session = self->session;
    if (self->dispatches && !ll_fill_x(session, salt)) return false;
    return !self->combines || (ll_fill_rows(session, salt) && ll_spoil_y(session));
}

static bool verify(const struct decode_case *self)
{
    const struct ll_session *session = self->session;
    const uint64_t salt = ll_measured_salt(session);
    const bool coded = self->combine_args.format == EXPAR_LL_LOGFMT;
    bool good = true;
    /* With LogFMT the dispatch carries plain rows, which the session's format does not describe. */
    if (self->dispatches && session->format->dispatched) good = ll_verify_dispatch(session, salt, &self->result);
    if (self->combines) good = ll_verify_combine(session, salt, self->reduced, coded, session->y) && good;
    return good;
}

static bool decode_after(void *context, int turn)
{
    struct decode_case *self = context;
    const struct ll_session *session = self->session;
    bool good = bench_good(session->world, expar_ll_query(session->ll));
    if (turn == BENCH_LOOPS) good = good && fill(self, ll_measured_salt(session));
    if (turn > BENCH_LOOPS) self->verified = good && verify(self);
    release(self);
    return good;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* Reduced sums need the weights with the dispatch. */
static void set_dispatch_args(struct decode_case *self)
{
    const struct ll_session *session = self->session;
    const struct problem *problem = session->problem;
    self->dispatch_args = ll_dispatch_args_of(session);
    self->dispatch_args.hook = self->hooked;
    if (self->reduced)
        self->dispatch_args.topk_weights =
            ll_tensor(session, session->weights, EXPAR_F32, problem->tokens, problem->topk);
}

static void set_combine_args(struct decode_case *self)
{
    self->combine_args = ll_combine_args_of(self->session);
    self->combine_args.sum = self->reduced ? EXPAR_LL_REDUCED : EXPAR_LL_EXACT;
    self->combine_args.hook = self->hooked;
}

static bool make_handle(struct decode_case *self)
{
    if (!dispatch(self)) return false;
    self->handle = self->result.handle;
    self->result.handle = NULL;
    release(self);
    return true;
}

static bool open_case(struct decode_case *self)
{
    set_dispatch_args(self);
    set_combine_args(self);
    const struct bench_world *world = self->session->world;
    if (!bench_all_true(world, fill(self, ll_first_salt(self->session)))) return false;
    return bench_all_true(world, self->dispatches || make_handle(self));
}

static void close_case(struct decode_case *self)
{
    release(self);
    expar_ll_handle_destroy(self->handle);
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* Counts messages and bytes of this rank's call, as for isolated calls; a decode has the sum of both. */
static void count(const struct decode_case *self, double *messages, double *bytes)
{
    const struct ll_session *session = self->session;
    const struct problem *problem = session->problem;
    const double rows = (double)session->layout->num_rows;
    const size_t row_bytes = ll_format_row_bytes(session->format, problem->dtype, problem->hidden) +
                             4 * (size_t)ll_format_scales(session->format, problem->hidden);
    *messages = *bytes = 0;
    if (self->dispatches) {
        *messages += (double)problem->num_sent;
        *bytes += rows * (double)row_bytes;
    }
    if (self->combines) {
        const double back = self->reduced ? (double)problem->num_received : rows;
        *messages += back;
        *bytes += back * (double)problem->row_bytes;
    }
}

static bool add_result(const struct decode_case *self, const struct bench_loop_times *times, struct ll_results *results)
{
    const struct ll_session *session = self->session;
    const struct bench_world *world = session->world;
    double messages, bytes;
    struct ll_result *result = ll_results_add(results);
    if (!result) return bench_complain(world, "out of memory");
    *result = (struct ll_result){.op = self->op,
                                 .pattern = self->pattern,
                                 .loop = *times,
                                 .phase = self->hooked ? "hooks" : "call",
                                 .format = session->format->name,
                                 .dtype = session->problem->dtype,
                                 .tokens = session->problem->tokens,
                                 .workers = session->workers,
                                 .expar = times->share,
                                 .verified = bench_all_true(world, self->verified)};
    if (self->combines) result->sum = self->reduced ? "reduced" : "exact";
    count(self, &messages, &bytes);
    return bench_mean(world, messages, &result->messages) && bench_mean(world, bytes, &result->bytes);
}

static bool measure(struct decode_case self, struct ll_results *results)
{
    const struct ll_session *session = self.session;
    struct bench_loop loop = {.call = decode_call, .after = decode_after, .context = &self};
    struct bench_loop_times times = {0};
    char label[64];
    snprintf(label, sizeof label, "ll %s %s, %lld tokens", bench_pattern_name(self.pattern), self.op,
             (long long)session->problem->tokens);
    bool good = open_case(&self) && bench_loop_measure(session->world, session->options, label, &loop, &times) &&
                add_result(&self, &times, results);
    close_case(&self);
    return good;
}

/* ---- all patterns ------------------------------------------------------------------------------------------------ */

static bool wants_sum(const struct ll_session *session, bool reduced)
{
    const struct ll_options *ll = &session->options->ll;
    return reduced ? ll->reduced && session->format->wire != EXPAR_LL_LOGFMT : ll->exact;
}

static bool measure_steady(const struct ll_session *session, struct ll_results *results)
{
    const struct bench_options *options = session->options;
    struct decode_case self = {.session = session, .pattern = BENCH_STEADY, .op = "dispatch", .dispatches = true};
    if (options->dispatch && session->format->dispatched && !measure(self, results)) return false;
    if (!options->combine || !session->format->combined) return true;
    self.op = "combine";
    self.dispatches = false;
    self.combines = true;
    for (int reduced = 0; reduced < 2; reduced++) {
        self.reduced = reduced;
        if (wants_sum(session, reduced) && !measure(self, results)) return false;
    }
    return true;
}

static bool measure_decode(const struct ll_session *session, bool reduced, struct ll_results *results)
{
    const enum bench_phases phases = session->options->ll.decode_phases;
    struct decode_case self = {.session = session,
                               .pattern = BENCH_DECODE,
                               .op = "pair",
                               .dispatches = true,
                               .combines = true,
                               .reduced = reduced};
    if (!wants_sum(session, reduced)) return true;
    if (phases != BENCH_HOOKED && !measure(self, results)) return false;
    self.hooked = true;
    return phases == BENCH_WHOLE || measure(self, results);
}

bool ll_case_loops(struct ll_session *session, struct ll_results *results)
{
    const unsigned patterns = session->options->patterns;
    const struct ll_place *place = session->world->device->ll;
    if (place->clocks && !place->clocks(session, false)) return false;
    if (patterns & BENCH_STEADY && !measure_steady(session, results)) return false;
    if (!(patterns & BENCH_DECODE)) return true;
    return measure_decode(session, false, results) && measure_decode(session, true, results);
}

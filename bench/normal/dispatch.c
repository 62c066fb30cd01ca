/* SPDX-License-Identifier: Apache-2.0 */
/* Dispatch, fresh and cached, and what layout and notify add: expar, the copies and the baseline take turns. Before the
 * measurement a first call with other contents is verified in full, so that what a later call left unwritten cannot
 * look right; a call right behind the measured ones, with their contents, is verified again. */
#include "bench/normal/session.h"
#include <stdlib.h>
#include <string.h>

/* Fresh, cached, copies, baseline. */
#define MAX_CONTENDERS (2 + BENCH_MAX_COPIES + 1)

struct dispatch_case {
    const struct bench_session *session;
    expar_dispatch_args args;
    expar_dispatch_result result;
    expar_ep_handle *handle; /* of an uncached dispatch; cached ones repeat it */
    bool cached, direct, verified;
    struct bench_late late;       /* of the measured calls */
    struct bench_traffic traffic; /* of the last call */
};

static bool dispatch_before(void *context)
{
    struct dispatch_case *self = context;
    bench_traffic_begin(self->session, &self->traffic);
    return true;
}

static bool dispatch_run(void *context)
{
    struct dispatch_case *self = context;
    self->result = (expar_dispatch_result)EXPAR_DISPATCH_RESULT_INIT;
    return bench_good(self->session->world, expar_dispatch(self->session->ep, &self->args, &self->result));
}

static void dispatch_release(struct dispatch_case *self)
{
    expar_ep_output_release(self->result.output);
    expar_ep_handle_destroy(self->result.handle);
}

/* ---- verifying --------------------------------------------------------------------------------------------------- */

/* Compares the last call's result. */
static bool verify(const struct dispatch_case *self, uint64_t salt)
{
    return bench_look_dispatch(self->session, salt, &self->result, self->cached);
}

static bool dispatch_after(void *context, bool check)
{
    struct dispatch_case *self = context;
    bench_traffic_end(self->session, &self->traffic);
    if (!check) bench_session_note(self->session, &self->late);
    if (check) self->verified &= bench_traffic_verify(self->session, false, &self->traffic);
    if (check) self->verified &= verify(self, bench_measured_salt(self->session));
    self->verified &= self->result.num_recv_tokens == self->session->problem->num_received;
    self->direct &= self->result.path == EXPAR_PATH_DIRECT;
    dispatch_release(self);
    return true;
}

/* The copies' own output: a limit that copies less or elsewhere would be none. */
static bool verify_copies(const struct bench_session *session)
{
    const struct bench_world *world = session->world;
    const struct problem *problem = session->problem;
    if (!session->pushed) return true;
    const void *rows = world->device->view(world, session->pushed, (size_t)problem->num_received * problem->row_bytes);
    bool good = rows && verify_rows(problem, bench_measured_salt(session), rows);
    world->device->unview(world, rows);
    return good;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static void dispatch_open(struct dispatch_case *self, const struct bench_session *session, expar_path path, bool cached)
{
    *self = (struct dispatch_case){.session = session,
                                   .args = bench_dispatch_args(session, path),
                                   .cached = cached,
                                   .direct = true,
                                   .verified = true};
}

/* A first dispatch, verified in full; its handle is kept when later ones are to repeat it. */
static bool dispatch_first(struct dispatch_case *self)
{
    const struct bench_session *session = self->session;
    if (!bench_fill_x(session, bench_first_salt(session)) || !dispatch_run(self)) return false;
    bool cached = self->cached;
    self->cached = false;
    self->verified &= verify(self, bench_first_salt(session));
    self->cached = cached;
    if (cached) {
        self->handle = self->result.handle;
        self->result.handle = NULL;
        self->args.handle = self->handle;
        self->args.topk_idx = self->args.topk_weights = EXPAR_TENSOR_NONE;
    }
    dispatch_release(self);
    return true;
}

/* ---- the baseline ------------------------------------------------------------------------------------------------ */

struct baseline_case {
    const struct bench_session *session;
    bool verified;
};

static bool baseline_run(void *context)
{
    const struct bench_session *session = ((struct baseline_case *)context)->session;
    return session->world->baseline->dispatch(session->baseline);
}

static bool baseline_after(void *context, bool check)
{
    struct baseline_case *self = context;
    const struct bench_session *session = self->session;
    const void *rows = session->world->baseline->received(session->baseline);
    session->world->baseline->settle(session->baseline);
    if (check) self->verified &= verify_rows(session->problem, bench_measured_salt(session), rows);
    return true;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* All that take turns. */
struct turns {
    struct bench_session *session;
    struct dispatch_case fresh, cached;
    struct baseline_case baseline;
    struct contender list[MAX_CONTENDERS];
    struct contender *of_fresh, *of_cached, *copies, *of_baseline; /* in list; NULL: does not take part */
    int count, num_copies;
    bool copied; /* rightly, on all ranks */
};

bool bench_wants_dispatch(const struct bench_session *session, bool cached)
{
    const struct bench_options *options = session->options;
    return options->dispatch && options->cached != (cached ? BENCH_UNCACHED : BENCH_CACHED);
}

static struct contender dispatch_contender(struct dispatch_case *self)
{
    return (struct contender){.before = dispatch_before, .run = dispatch_run, .after = dispatch_after, .context = self};
}

static void add_turns(struct turns *self)
{
    const struct bench_session *session = self->session;
    bool layout = session->options->layout;
    if (layout || bench_wants_dispatch(session, false)) {
        self->of_fresh = &self->list[self->count++];
        *self->of_fresh = dispatch_contender(&self->fresh);
    }
    if (layout || bench_wants_dispatch(session, true)) {
        self->of_cached = &self->list[self->count++];
        *self->of_cached = dispatch_contender(&self->cached);
    }
    self->copies = &self->list[self->count];
    self->num_copies = session->world->device->add_copies(self->session, false, self->copies);
    self->count += self->num_copies;
    if (!session->baseline) return;
    self->baseline = (struct baseline_case){.session = session, .verified = true};
    self->of_baseline = &self->list[self->count++];
    *self->of_baseline = (struct contender){.run = baseline_run, .after = baseline_after, .context = &self->baseline};
}

static bool add_result(struct turns *self, const struct contender *own, struct bench_results *results)
{
    const struct bench_session *session = self->session;
    const struct problem *problem = session->problem;
    const struct dispatch_case *what = own->context;
    struct bench_result *result = bench_results_add(results);
    if (!result) return bench_complain(session->world, "out of memory");
    *result = (struct bench_result){.op = "dispatch",
                                    .path = bench_all_true(session->world, what->direct) ? "direct" : "queue",
                                    .cached = what->cached,
                                    .dtype = problem->dtype,
                                    .workers = session->workers,
                                    .tokens = problem->tokens,
                                    .expar = own->times,
                                    .num_copies = self->num_copies,
                                    .has_mpi = self->of_baseline != NULL,
                                    .row_bytes = problem->row_bytes};
    for (int i = 0; i < self->num_copies; i++)
        result->copies[i] = self->copies[i].times;
    if (self->of_baseline) result->mpi = self->of_baseline->times;
    result->verified =
        bench_all_true(session->world, what->verified && (!self->of_baseline || self->baseline.verified)) &&
        self->copied;
    return bench_session_late(session, &what->late, &result->breakdown) &&
           bench_session_limit_late(session, self->copies, result) &&
           bench_traffic_mean(session->world, &what->traffic, &result->traffic) &&
           bench_mean(session->world, (double)problem->num_received * (double)problem->row_bytes, &result->bytes);
}

/* The difference of the two dispatches, iteration by iteration. It may be below 0 where noise is larger. */
static bool add_layout(struct turns *self, struct bench_results *results)
{
    const struct bench_session *session = self->session;
    int iters = session->options->iters;
    double *more_us = calloc((size_t)iters, sizeof *more_us);
    struct bench_result *result = bench_results_add(results);
    if (!result || !more_us) {
        free(more_us);
        return bench_complain(session->world, "out of memory");
    }
    for (int i = 0; i < iters; i++)
        more_us[i] = self->of_fresh->series_us[i] - self->of_cached->series_us[i];
    *result = (struct bench_result){.op = "layout",
                                    .path = bench_all_true(session->world, self->fresh.direct) ? "direct" : "queue",
                                    .dtype = session->problem->dtype,
                                    .workers = session->workers,
                                    .tokens = session->problem->tokens,
                                    .expar = bench_summary(more_us, iters)};
    result->verified = bench_all_true(session->world, self->fresh.verified && self->cached.verified);
    free(more_us);
    return true;
}

static bool add_results(struct turns *self, struct bench_results *results)
{
    const struct bench_session *session = self->session;
    self->copied = bench_all_true(session->world, verify_copies(session));
    if (bench_wants_dispatch(session, false) && !add_result(self, self->of_fresh, results)) return false;
    if (bench_wants_dispatch(session, true) && !add_result(self, self->of_cached, results)) return false;
    return !session->options->layout || add_layout(self, results);
}

static bool open_late(struct turns *self)
{
    const bool opened = bench_session_moments(self->session, &self->fresh.late) &&
                        bench_session_moments(self->session, &self->cached.late);
    return bench_all_true(self->session->world, opened);
}

static bool measure(struct turns *self)
{
    const struct bench_session *session = self->session;
    add_turns(self);
    if (!open_late(self) || !bench_fill_x(session, bench_first_salt(session))) return false;
    if (self->of_fresh && !dispatch_first(&self->fresh)) return false;
    if (self->of_cached && !dispatch_first(&self->cached)) return false;
    if (!bench_fill_x(session, bench_measured_salt(session))) return false;
    if (!session->options->layout) return bench_session_measure(session, "dispatch", self->list, self->count);
    size_t iters = (size_t)session->options->iters;
    self->of_fresh->series_us = calloc(iters, sizeof(double));
    self->of_cached->series_us = calloc(iters, sizeof(double));
    if (!self->of_fresh->series_us || !self->of_cached->series_us)
        return bench_complain(session->world, "out of memory");
    return bench_session_measure(session, "dispatch", self->list, self->count);
}

bool bench_case_dispatch(struct bench_session *session, expar_path path, struct bench_results *results)
{
    struct turns self = {.session = session};
    dispatch_open(&self.fresh, session, path, false);
    dispatch_open(&self.cached, session, path, true);
    bool good = measure(&self) && add_results(&self, results);
    expar_ep_handle_destroy(self.cached.handle);
    bench_late_close(&self.fresh.late);
    bench_late_close(&self.cached.late);
    if (self.of_fresh) free(self.of_fresh->series_us);
    if (self.of_cached) free(self.of_cached->series_us);
    return good;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* One operation, measured: expar, the two ways to copy, and the baseline take turns. Before the measurement a first
 * call with other contents is verified in full, so that what a later call left unwritten cannot look right; the last
 * measured call is verified again. */
#include "bench.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Two fillings of the rows that differ everywhere. */
static uint64_t first_salt(const struct bench_session *session)
{
    return 2 * session->options->seed + 1;
}

static uint64_t measured_salt(const struct bench_session *session)
{
    return 2 * session->options->seed + 2;
}

static bool call_good(const struct bench_session *session, expar_status status)
{
    if (status != EXPAR_OK)
        fprintf(stderr, "expar bench: rank %d: %s: %s\n", session->world->rank, expar_status_string(status),
                expar_last_error());
    return status == EXPAR_OK;
}

static bool barrier(const struct bench_session *session)
{
    return call_good(session, expar_barrier_all(session->world->group));
}

static void describe(char *label, size_t bytes, const char *op, const struct bench_session *session)
{
    snprintf(label, bytes, "%s, %lld tokens", op, (long long)session->problem->tokens);
}

static void set_copies(struct contender *contenders, struct copy_limit *limit)
{
    contenders[1] = (struct contender){.run = copy_limit_memcpy, .context = limit};
    contenders[2] = (struct contender){.run = copy_limit_nontemporal, .context = limit};
}

static bool finish(const struct bench_session *session, const struct contender *contenders, int count, bool verified,
                   struct bench_result *result)
{
    const struct problem *problem = session->problem;
    result->tokens = problem->tokens;
    result->expar = contenders[0].times;
    result->copy = contenders[1].times;
    result->nt_copy = contenders[2].times;
    result->has_mpi = count > 3;
    if (count > 3) result->mpi = contenders[3].times;
    result->verified = bench_all_true(session->world, verified);
    return bench_mean(session->world, (double)problem->num_received * (double)problem->row_bytes, &result->bytes);
}

/* ---- dispatch --------------------------------------------------------------------------------------------------- */

struct dispatch_case {
    const struct bench_session *session;
    expar_dispatch_args args;
    expar_dispatch_result result;
    expar_ep_handle *handle; /* of an uncached dispatch; cached ones repeat it */
    bool cached, direct, verified;
};

static bool dispatch_run(void *context)
{
    struct dispatch_case *self = context;
    self->result = (expar_dispatch_result)EXPAR_DISPATCH_RESULT_INIT;
    return call_good(self->session, expar_dispatch(self->session->ep, &self->args, &self->result));
}

static void dispatch_release(struct dispatch_case *self)
{
    expar_ep_output_release(self->result.output);
    expar_ep_handle_destroy(self->result.handle);
}

static bool dispatch_after(void *context, bool last)
{
    struct dispatch_case *self = context;
    const struct problem *problem = self->session->problem;
    if (last) self->verified &= verify_dispatch(problem, measured_salt(self->session), &self->result, self->cached);
    self->verified &= self->result.num_recv_tokens == problem->num_received;
    self->direct &= self->result.path == EXPAR_PATH_DIRECT;
    dispatch_release(self);
    return true;
}

static void fill_x(const struct bench_session *session, uint64_t salt)
{
    const struct problem *problem = session->problem;
    for (int64_t token = 0; token < problem->tokens; token++)
        pattern_row(problem->dtype, pattern_key(salt, problem->rank, token), problem->hidden,
                    (unsigned char *)session->x + (size_t)token * problem->row_bytes);
}

static void dispatch_open(struct dispatch_case *self, const struct bench_session *session, expar_path path, bool cached)
{
    const struct problem *problem = session->problem;
    void *experts = (void *)problem_routing_of(problem, problem->rank);
    *self = (struct dispatch_case){.session = session, .cached = cached, .direct = true, .verified = true};
    self->args = (expar_dispatch_args)EXPAR_DISPATCH_ARGS_INIT;
    self->args.x = expar_tensor_2d(session->x, problem->dtype, problem->tokens, problem->hidden);
    self->args.topk_idx = expar_tensor_2d(experts, EXPAR_I32, problem->tokens, problem->topk);
    self->args.topk_weights = expar_tensor_2d(session->weights, EXPAR_F32, problem->tokens, problem->topk);
    self->args.num_experts = problem->experts;
    self->args.path = path;
}

/* A first dispatch, verified in full; its handle is kept when later ones are to repeat it. */
static bool dispatch_first(struct dispatch_case *self)
{
    const struct bench_session *session = self->session;
    fill_x(session, first_salt(session));
    if (!dispatch_run(self)) return false;
    self->verified &= verify_dispatch(session->problem, first_salt(session), &self->result, false);
    if (self->cached) {
        self->handle = self->result.handle;
        self->result.handle = NULL;
        self->args.handle = self->handle;
        self->args.topk_idx = self->args.topk_weights = EXPAR_TENSOR_NONE;
    }
    dispatch_release(self);
    fill_x(session, measured_salt(session));
    return true;
}

struct baseline_case {
    const struct bench_session *session;
    bool verified;
};

static bool baseline_dispatch_run(void *context)
{
    const struct bench_session *session = ((struct baseline_case *)context)->session;
    return session->world->baseline->dispatch(session->baseline);
}

static bool baseline_dispatch_after(void *context, bool last)
{
    struct baseline_case *self = context;
    const void *rows = self->session->world->baseline->received(self->session->baseline);
    if (last) self->verified &= verify_rows(self->session->problem, measured_salt(self->session), rows);
    return true;
}

bool bench_case_dispatch(struct bench_session *session, expar_path path, bool cached, struct bench_result *result)
{
    struct dispatch_case self;
    struct baseline_case baseline = {.session = session, .verified = true};
    struct contender contenders[4] = {{.run = dispatch_run, .after = dispatch_after, .context = &self}};
    int count = session->baseline ? 4 : 3;
    char label[64];

    dispatch_open(&self, session, path, cached);
    set_copies(contenders, session->push);
    contenders[3] =
        (struct contender){.run = baseline_dispatch_run, .after = baseline_dispatch_after, .context = &baseline};
    describe(label, sizeof label, "dispatch", session);
    bool good = dispatch_first(&self) && bench_measure(session->world, session->options, label, contenders, count);
    expar_ep_handle_destroy(self.handle);
    if (!good) return false;
    /* The copies' own output: a limit that copies less or elsewhere would be none. */
    bool copied = verify_rows(session->problem, measured_salt(session), session->rows);
    result->op = "dispatch";
    result->cached = cached;
    result->path = bench_all_true(session->world, self.direct) ? "direct" : "queue";
    return finish(session, contenders, count, self.verified && baseline.verified && copied, result);
}

/* ---- combine ---------------------------------------------------------------------------------------------------- */

struct combine_case {
    const struct bench_session *session;
    expar_combine_args args;
    expar_ep_handle *handle;
    bool verified;
};

static bool combine_run(void *context)
{
    struct combine_case *self = context;
    return call_good(self->session, expar_combine(self->session->ep, &self->args));
}

static bool combine_after(void *context, bool last)
{
    struct combine_case *self = context;
    const struct bench_session *session = self->session;
    if (last) self->verified &= verify_combine(session->problem, measured_salt(session), session->y);
    return true;
}

/* The experts' outputs: a row for each received one, with this rank and the row's number as its name. */
static void fill_rows(const struct bench_session *session, uint64_t salt)
{
    const struct problem *problem = session->problem;
    for (int64_t i = 0; i < problem->num_received; i++)
        pattern_row(problem->dtype, pattern_key(salt, problem->rank, i), problem->hidden,
                    session->rows + (size_t)i * problem->row_bytes);
}

/* Dispatches once for the handle. */
static bool combine_open(struct combine_case *self, const struct bench_session *session, expar_path path)
{
    const struct problem *problem = session->problem;
    struct dispatch_case dispatch;
    *self = (struct combine_case){.session = session, .verified = true};
    dispatch_open(&dispatch, session, EXPAR_PATH_AUTO, false);
    if (!dispatch_run(&dispatch)) return false;
    expar_ep_output_release(dispatch.result.output);
    self->handle = dispatch.result.handle;
    self->args = (expar_combine_args)EXPAR_COMBINE_ARGS_INIT;
    self->args.x = expar_tensor_2d(session->rows, problem->dtype, problem->num_received, problem->hidden);
    self->args.handle = self->handle;
    self->args.path = path;
    self->args.y = expar_tensor_2d(session->y, problem->dtype, problem->tokens, problem->hidden);
    return true;
}

/* A first combine, verified in full. Rows change only while nobody reads them. */
static bool combine_first(struct combine_case *self)
{
    const struct bench_session *session = self->session;
    memset(session->y, 0xff, (size_t)session->problem->tokens * session->problem->row_bytes);
    fill_rows(session, first_salt(session));
    if (!barrier(session) || !combine_run(self)) return false;
    self->verified &= verify_combine(session->problem, first_salt(session), session->y);
    if (!barrier(session)) return false;
    fill_rows(session, measured_salt(session));
    return true;
}

static bool baseline_combine_run(void *context)
{
    const struct bench_session *session = ((struct baseline_case *)context)->session;
    return session->world->baseline->combine(session->baseline, session->rows, session->y);
}

static bool baseline_combine_after(void *context, bool last)
{
    struct baseline_case *self = context;
    const struct bench_session *session = self->session;
    if (last) self->verified &= verify_combine(session->problem, measured_salt(session), session->y);
    return true;
}

bool bench_case_combine(struct bench_session *session, expar_path path, struct bench_result *result)
{
    struct combine_case self;
    struct baseline_case baseline = {.session = session, .verified = true};
    struct contender contenders[4] = {{.run = combine_run, .after = combine_after, .context = &self}};
    int count = session->baseline ? 4 : 3;
    char label[64];

    set_copies(contenders, session->pull);
    contenders[3] =
        (struct contender){.run = baseline_combine_run, .after = baseline_combine_after, .context = &baseline};
    describe(label, sizeof label, "combine", session);
    bool good = combine_open(&self, session, path) && combine_first(&self) &&
                bench_measure(session->world, session->options, label, contenders, count);
    expar_ep_handle_destroy(self.handle);
    if (!good) return false;
    result->op = "combine";
    result->cached = false;
    result->path = path == EXPAR_PATH_QUEUE ? "queue" : "direct"; /* AUTO: the rows lie in symmetric memory */
    return finish(session, contenders, count, self.verified && baseline.verified, result);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Combine: expar, the copies and the baseline take turns. As with dispatch, a first call with other contents and one
 * right behind the measured ones are verified in full. */
#include "bench/normal/session.h"

struct combine_case {
    const struct bench_session *session;
    expar_combine_args args;
    expar_ep_handle *handle;
    bool verified;
    struct bench_late late;       /* of the measured calls */
    struct bench_traffic traffic; /* of the last call */
};

/* Compares y of the last call. each: as in verify_combine; the baseline knows no nodes. */
static bool verify(const struct bench_session *session, uint64_t salt, int each)
{
    return bench_look_sums(session, salt, VERIFY_FILLED, each);
}

static bool barrier(const struct bench_session *session)
{
    return bench_good(session->world, expar_barrier_all(session->world->group));
}

static bool combine_before(void *context)
{
    struct combine_case *self = context;
    bench_traffic_begin(self->session, &self->traffic);
    return true;
}

static bool combine_run(void *context)
{
    struct combine_case *self = context;
    return bench_good(self->session->world, expar_combine(self->session->ep, &self->args));
}

static bool combine_after(void *context, bool check)
{
    struct combine_case *self = context;
    bench_traffic_end(self->session, &self->traffic);
    if (!check) bench_session_note(self->session, &self->late);
    if (check) self->verified &= bench_traffic_verify(self->session, true, &self->traffic);
    if (check) self->verified &= verify(self->session, bench_measured_salt(self->session), self->session->world->each);
    return true;
}

/* Dispatches once for the handle. */
static bool combine_open(struct combine_case *self, const struct bench_session *session, expar_path path)
{
    const struct bench_world *world = session->world;
    const struct problem *problem = session->problem;
    expar_dispatch_args args = bench_dispatch_args(session, EXPAR_PATH_AUTO);
    expar_dispatch_result result = EXPAR_DISPATCH_RESULT_INIT;
    if (!bench_good(world, expar_dispatch(session->ep, &args, &result))) return false;
    expar_ep_output_release(result.output);
    *self = (struct combine_case){.session = session, .handle = result.handle, .verified = true};
    self->args = (expar_combine_args)EXPAR_COMBINE_ARGS_INIT;
    self->args.x = bench_tensor(world, session->rows, problem->dtype, problem->num_received, problem->hidden);
    self->args.handle = self->handle;
    self->args.path = path;
    self->args.y = bench_tensor(world, session->y, problem->dtype, problem->tokens, problem->hidden);
    self->args.stream = world->stream;
    return bench_all_true(world, bench_session_moments(session, &self->late));
}

/* A first combine, verified in full. Rows change only while nobody reads them. */
static bool combine_first(struct combine_case *self)
{
    const struct bench_session *session = self->session;
    uint64_t salt = bench_first_salt(session);
    if (!bench_spoil_y(session) || !bench_fill_rows(session, salt)) return false;
    if (!barrier(session) || !combine_run(self)) return false;
    self->verified &= verify(session, salt, session->world->each);
    return barrier(session) && bench_fill_rows(session, bench_measured_salt(session));
}

struct baseline_case {
    const struct bench_session *session;
    bool verified;
};

static bool baseline_run(void *context)
{
    const struct bench_session *session = ((struct baseline_case *)context)->session;
    return session->world->baseline->combine(session->baseline, session->rows, session->y);
}

static bool baseline_after(void *context, bool check)
{
    struct baseline_case *self = context;
    self->session->world->baseline->settle(self->session->baseline);
    if (check) self->verified &= verify(self->session, bench_measured_salt(self->session), self->session->world->size);
    return true;
}

static bool add_result(const struct bench_session *session, const struct combine_case *what,
                       const struct contender *contenders, int num_copies, bool verified, struct bench_result *result)
{
    const struct problem *problem = session->problem;
    result->op = "combine";
    result->dtype = problem->dtype;
    result->workers = session->workers;
    result->tokens = problem->tokens;
    result->row_bytes = problem->row_bytes;
    result->expar = contenders[0].times;
    result->num_copies = num_copies;
    for (int i = 0; i < num_copies; i++)
        result->copies[i] = contenders[1 + i].times;
    result->has_mpi = session->baseline != NULL;
    if (session->baseline) result->mpi = contenders[1 + num_copies].times;
    result->verified = bench_all_true(session->world, verified);
    return bench_session_late(session, &what->late, &result->breakdown) &&
           bench_session_limit_late(session, contenders + 1, result) &&
           bench_traffic_mean(session->world, &what->traffic, &result->traffic) &&
           bench_mean(session->world, (double)problem->num_received * (double)problem->row_bytes, &result->bytes);
}

bool bench_case_combine(struct bench_session *session, expar_path path, struct bench_results *results)
{
    struct combine_case self = {.session = session};
    struct baseline_case baseline = {.session = session, .verified = true};
    struct contender contenders[2 + BENCH_MAX_COPIES] = {
        {.before = combine_before, .run = combine_run, .after = combine_after, .context = &self}};
    int num_copies = session->world->device->add_copies(session, true, contenders + 1), count = 1 + num_copies;
    if (session->baseline)
        contenders[count++] = (struct contender){.run = baseline_run, .after = baseline_after, .context = &baseline};
    bool good = combine_open(&self, session, path) && combine_first(&self) &&
                bench_session_measure(session, "combine", contenders, count);
    expar_ep_handle_destroy(self.handle);
    struct bench_result *result = good ? bench_results_add(results) : NULL;
    if (good && !result) good = bench_complain(session->world, "out of memory");
    if (good) {
        result->path = path == EXPAR_PATH_QUEUE ? "queue" : "direct"; /* AUTO: the rows lie in symmetric memory */
        good = add_result(session, &self, contenders, num_copies, self.verified && baseline.verified, result);
    }
    bench_late_close(&self.late);
    return good;
}

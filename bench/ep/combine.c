/* SPDX-License-Identifier: Apache-2.0 */
/* Combine: expar, the copies and the baseline take turns. As with dispatch, a first call with other contents and one
 * right behind the measured ones are verified in full. */
#include "bench/ep/session.h"
#include <string.h>

struct combine_case {
    const struct bench_session *session;
    int serving;
    const expar_combine_args *args;
    bool verified;
    struct bench_late late;       /* of the measured calls */
    struct bench_traffic traffic; /* of the last call */
};

/* Of y, which the host may have to fetch. each: as in verify_combine; the baseline knows no nodes. */
static bool verify(const struct bench_session *session, uint64_t salt, int each)
{
    const struct bench_world *world = session->world;
    const struct problem *problem = session->problem;
    const void *y = world->device->view(world, session->y, (size_t)problem->tokens * problem->row_bytes);
    bool good = y && verify_combine(problem, salt, each, y);
    world->device->unview(world, y);
    return good;
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
    bench_session_serve(self->session, self->serving);
    return bench_good(self->session->world, expar_combine(self->session->ep, self->args));
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

/* So that what a first call leaves unwritten is seen. */
static bool spoil_y(const struct bench_session *session)
{
    const struct bench_world *world = session->world;
    size_t bytes = (size_t)session->problem->tokens * session->problem->row_bytes;
    void *draft = world->device->draft(world, session->y, bytes);
    if (!draft) return bench_complain(world, "out of memory");
    memset(draft, 0xff, bytes);
    return world->device->commit(world, session->y, draft, bytes);
}

/* A first combine of each serving, verified in full. Rows change only while nobody reads them. */
static bool combine_first(struct combine_case *cases, int count)
{
    const struct bench_session *session = cases->session;
    uint64_t salt = bench_first_salt(session);
    if (!bench_fill_rows(session, salt)) return false;
    for (int i = 0; i < count; i++) {
        if (!spoil_y(session) || !barrier(session) || !combine_run(&cases[i])) return false;
        cases[i].verified &= verify(session, salt, session->world->each);
    }
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
    if (check) self->verified &= verify(self->session, bench_measured_salt(self->session), self->session->world->size);
    return true;
}

/* ---- all that take turns ----------------------------------------------------------------------------------------- */

/* A combine and the copies of each serving; the baseline. */
#define MAX_CONTENDERS (BENCH_MAX_SERVINGS * (1 + BENCH_MAX_COPIES) + 1)

struct combines {
    struct bench_session *session;
    expar_path path;
    expar_combine_args args;
    expar_ep_handle *handle;
    struct combine_case cases[BENCH_MAX_SERVINGS];
    struct baseline_case baseline;
    struct contender list[MAX_CONTENDERS];
    struct contender *own[BENCH_MAX_SERVINGS], *of_baseline; /* in list; copies stand behind their own */
    int num_copies[BENCH_MAX_SERVINGS];
    int count, num_cases;
};

static bool open_late(struct combines *self)
{
    bool opened = true;
    for (int i = 0; i < self->num_cases; i++)
        opened &= bench_session_moments(self->session, &self->cases[i].late);
    return bench_all_true(self->session->world, opened);
}

/* Dispatches once for the handle. */
static bool combines_open(struct combines *self)
{
    const struct bench_session *session = self->session;
    const struct bench_world *world = session->world;
    const struct problem *problem = session->problem;
    expar_dispatch_args args = bench_dispatch_args(session, EXPAR_PATH_AUTO);
    expar_dispatch_result result = EXPAR_DISPATCH_RESULT_INIT;
    if (!bench_good(world, expar_dispatch(session->ep, &args, &result))) return false;
    expar_ep_output_release(result.output);
    self->handle = result.handle;
    self->args = (expar_combine_args)EXPAR_COMBINE_ARGS_INIT;
    self->args.x = bench_tensor(world, session->rows, problem->dtype, problem->num_received, problem->hidden);
    self->args.handle = self->handle;
    self->args.path = self->path;
    self->args.y = bench_tensor(world, session->y, problem->dtype, problem->tokens, problem->hidden);
    self->args.stream = world->stream;
    return true;
}

static void combines_add(struct combines *self, int serving)
{
    struct contender *own = &self->list[self->count++];
    self->cases[serving] =
        (struct combine_case){.session = self->session, .serving = serving, .args = &self->args, .verified = true};
    *own = (struct contender){
        .before = combine_before, .run = combine_run, .after = combine_after, .context = &self->cases[serving]};
    self->own[serving] = own;
    self->session->serving = serving;
    self->num_copies[serving] = self->session->world->device->add_copies(self->session, true, own + 1);
    self->count += self->num_copies[serving];
}

static bool add_result(const struct combines *self, int serving, struct bench_results *results)
{
    const struct bench_session *session = self->session;
    const struct problem *problem = session->problem;
    const struct combine_case *what = &self->cases[serving];
    const struct contender *own = self->own[serving];
    struct bench_result *result = bench_results_add(results);
    if (!result) return bench_complain(session->world, "out of memory");
    *result = (struct bench_result){.op = "combine",
                                    /* AUTO: the rows lie in symmetric memory. */
                                    .path = self->path == EXPAR_PATH_QUEUE ? "queue" : "direct",
                                    .serving = session->options->servings[serving],
                                    .dtype = problem->dtype,
                                    .workers = session->workers,
                                    .tokens = problem->tokens,
                                    .row_bytes = problem->row_bytes,
                                    .expar = own->times,
                                    .num_copies = self->num_copies[serving],
                                    .has_mpi = self->of_baseline != NULL};
    for (int i = 0; i < result->num_copies; i++)
        result->copies[i] = own[1 + i].times;
    if (self->of_baseline) result->mpi = self->of_baseline->times;
    result->verified = bench_all_true(session->world, what->verified && self->baseline.verified);
    return bench_session_late(session, &what->late, result) &&
           bench_traffic_mean(session->world, &what->traffic, &result->traffic) &&
           bench_mean(session->world, (double)problem->num_received * (double)problem->row_bytes, &result->bytes);
}

bool bench_case_combine(struct bench_session *session, expar_path path, struct bench_results *results)
{
    struct combines self = {.session = session,
                            .path = path,
                            .baseline = {.session = session, .verified = true},
                            .num_cases = session->options->num_servings};
    for (int i = 0; i < self.num_cases; i++)
        combines_add(&self, i);
    if (session->baseline) {
        self.of_baseline = &self.list[self.count++];
        *self.of_baseline = (struct contender){.run = baseline_run, .after = baseline_after, .context = &self.baseline};
    }
    bool good = open_late(&self) && combines_open(&self) && combine_first(self.cases, self.num_cases) &&
                bench_session_measure(session, "combine", self.list, self.count);
    expar_ep_handle_destroy(self.handle);
    for (int i = 0; i < self.num_cases; i++) {
        good = good && add_result(&self, i, results);
        bench_late_close(&self.cases[i].late);
    }
    return good;
}

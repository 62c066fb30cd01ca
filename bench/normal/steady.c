/* SPDX-License-Identifier: Apache-2.0 */
/* Measures loops: dispatches back to back (fresh, and with a handle), combines back to back, and layers: a dispatch
 * with a handle, work on its rows, their combine. Calls are asynchronous, each output is released at once, and combines
 * read rows in the caller's own memory, as with an engine. The contents change before the loop that is checked, so that
 * rows which its last call left unwritten cannot look right. */
#include "bench/frame/patterns.h"
#include "bench/normal/session.h"
#include <stdio.h>
#include <stdlib.h>

struct steady_case {
    const struct bench_session *session;
    enum bench_pattern pattern;
    const char *op;
    bool dispatches, combines; /* both: a layer */
    bool cached, verified;
    expar_dispatch_args dispatch_args;
    expar_dispatch_result result; /* of the last dispatch, until it is released */
    expar_combine_args combine_args;
    expar_ep_handle *handle; /* of all calls; NULL: dispatches are fresh */
    void *rows;              /* [R][H] what combines read: the caller's own memory */
    expar_ep_stats before, after;
};

static bool on_gpu(const struct steady_case *self)
{
    return self->session->world->place.type == EXPAR_CUDA;
}

static size_t rows_bytes(const struct steady_case *self)
{
    return (size_t)self->session->problem->num_received * self->session->problem->row_bytes;
}

/* ---- one call ---------------------------------------------------------------------------------------------------- */

/* On a GPU the stream reads the rows. The library is told here, as for an engine's tensors, whose deleters cannot tell
   it. */
static bool dispatch(struct steady_case *self, expar_event **event)
{
    const struct bench_world *world = self->session->world;
    self->result = (expar_dispatch_result)EXPAR_DISPATCH_RESULT_INIT;
    if (!bench_good(world, expar_dispatch(self->session->ep, &self->dispatch_args, &self->result))) return false;
    *event = self->result.event;
    self->result.event = NULL;
    return !on_gpu(self) || bench_good(world, expar_ep_output_read_on(self->result.output, world->stream));
}

/* Copies the rows to the caller's own memory, on a GPU by the stream. This stands for the experts' work. */
static bool work(const struct steady_case *self)
{
    const struct bench_world *world = self->session->world;
    return world->device->copy(world, self->rows, self->result.recv_x.data, rows_bytes(self));
}

static bool combine(struct steady_case *self, expar_event **event)
{
    self->combine_args.event = event;
    return bench_good(self->session->world, expar_combine(self->session->ep, &self->combine_args));
}

static void release(struct steady_case *self)
{
    expar_ep_output_release(self->result.output);
    expar_ep_handle_destroy(self->result.handle);
    self->result = (expar_dispatch_result)EXPAR_DISPATCH_RESULT_INIT;
}

static bool steady_call(void *context, bool last, expar_event **event)
{
    struct steady_case *self = context;
    if (self->dispatches && !dispatch(self, event)) return false;
    if (self->dispatches && self->combines) {
        expar_event_destroy(*event);
        *event = NULL;
        if (!work(self)) return false;
    }
    if (self->combines && !combine(self, event)) return false;
    if (!last) release(self);
    return true;
}

/* ---- between loops ----------------------------------------------------------------------------------------------- */

static bool get_stats(const struct steady_case *self, expar_ep_stats *stats)
{
    *stats = (expar_ep_stats)EXPAR_EP_STATS_INIT;
    return bench_good(self->session->world, expar_ep_get_stats(self->session->ep, stats));
}

/* Rows of a steady combine are the experts' outputs; those of a layer are the tokens that came. */
static bool fill(const struct steady_case *self, uint64_t salt)
{
    if (self->dispatches) return bench_fill_x(self->session, salt);
    return bench_fill_rows_at(self->session, salt, self->rows);
}

static bool verify(const struct steady_case *self)
{
    const struct bench_session *session = self->session;
    const uint64_t salt = bench_measured_salt(session);
    const enum verify_rows_of rows_of = self->dispatches ? VERIFY_RETURNED : VERIFY_FILLED;
    bool good = true;
    if (self->dispatches) good = bench_look_dispatch(session, salt, &self->result, self->cached);
    if (self->combines) good = bench_look_sums(session, salt, rows_of, session->world->each) && good;
    return good;
}

/* All calls of this rank have ended, so nobody reads its tensors any more. */
static bool steady_after(void *context, int turn)
{
    struct steady_case *self = context;
    const struct bench_session *session = self->session;
    bool good = bench_good(session->world, expar_ep_query(session->ep));
    if (turn == 0) good = good && get_stats(self, &self->before);
    if (turn == BENCH_LOOPS) {
        good = good && get_stats(self, &self->after) && fill(self, bench_measured_salt(session));
        if (self->combines) good = good && bench_spoil_y(session);
    }
    if (turn > BENCH_LOOPS) self->verified = good && verify(self);
    release(self);
    return good;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* On the CPU a layer waits for its rows, since the host copies them. On GPUs a fresh dispatch waits for its counts in
   any case, and the pool can grow only where the call is not asynchronous. */
static bool dispatches_asynchronously(const struct steady_case *self)
{
    return on_gpu(self) ? self->cached : !self->combines;
}

static bool make_handle(struct steady_case *self)
{
    const struct bench_session *session = self->session;
    expar_dispatch_args args = bench_dispatch_args(session, EXPAR_PATH_AUTO);
    expar_dispatch_result result = EXPAR_DISPATCH_RESULT_INIT;
    if (!bench_good(session->world, expar_dispatch(session->ep, &args, &result))) return false;
    expar_ep_output_release(result.output);
    self->handle = result.handle;
    return true;
}

static void set_dispatch_args(struct steady_case *self, expar_path path)
{
    expar_dispatch_args *args = &self->dispatch_args;
    *args = bench_dispatch_args(self->session, path);
    args->async_finish = dispatches_asynchronously(self);
    args->handle = self->handle;
    if (self->handle) args->topk_idx = args->topk_weights = EXPAR_TENSOR_NONE;
}

static void set_combine_args(struct steady_case *self, expar_path path)
{
    const struct bench_session *session = self->session;
    const struct bench_world *world = session->world;
    const struct problem *problem = session->problem;
    expar_combine_args *args = &self->combine_args;
    *args = (expar_combine_args)EXPAR_COMBINE_ARGS_INIT;
    args->x = bench_tensor(world, self->rows, problem->dtype, problem->num_received, problem->hidden);
    args->y = bench_tensor(world, session->y, problem->dtype, problem->tokens, problem->hidden);
    args->handle = self->handle;
    args->path = path;
    args->async_finish = 1;
    args->stream = world->stream;
}

static bool open_case(struct steady_case *self, expar_path path)
{
    const struct bench_session *session = self->session;
    const struct bench_world *world = session->world;
    bool good = true;
    if (self->combines) {
        self->rows = world->device->alloc(world, rows_bytes(self));
        good = self->rows || bench_complain(world, "out of memory");
    }
    good = bench_all_true(world, good);
    if (good && (self->cached || self->combines)) good = make_handle(self);
    set_dispatch_args(self, path);
    set_combine_args(self, path);
    return bench_all_true(world, good && fill(self, bench_first_salt(session)));
}

static void close_case(struct steady_case *self)
{
    release(self);
    expar_ep_handle_destroy(self->handle);
    self->session->world->device->free(self->session->world, self->rows);
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static bool put_together(const struct bench_world *world, const expar_ep_stats *mine, struct bench_buffer *out)
{
    expar_ep_stats *all = calloc((size_t)world->size, sizeof *all);
    bool good = all && bench_good(world, expar_group_allgather(world->group, mine, all, sizeof *mine));
    for (int rank = 0; rank < world->size && good; rank++) {
        out->growths += all[rank].growths;
        out->direct_calls += all[rank].direct_calls;
        out->queue_calls += all[rank].queue_calls;
        out->other_blocks += all[rank].other_blocks;
        out->used_high_bytes = larger(out->used_high_bytes, all[rank].used_high_bytes);
        out->reserved_high_bytes = larger(out->reserved_high_bytes, all[rank].reserved_high_bytes);
    }
    free(all);
    return good;
}

static bool add_result(const struct steady_case *self, const struct bench_loop_times *times,
                       struct bench_results *results)
{
    const struct bench_session *session = self->session;
    const struct bench_world *world = session->world;
    const int ways = self->dispatches + self->combines;
    struct bench_result *result = bench_results_add(results);
    if (!result) return bench_complain(world, "out of memory");
    *result = (struct bench_result){.op = self->op,
                                    .pattern = self->pattern,
                                    .loop = *times,
                                    .cached = self->cached && !self->combines,
                                    .dtype = session->problem->dtype,
                                    .workers = session->workers,
                                    .tokens = session->problem->tokens,
                                    .expar = times->share,
                                    .row_bytes = session->problem->row_bytes,
                                    .verified = bench_all_true(world, self->verified)};
    if (!put_together(world, &self->before, &result->before) || !put_together(world, &self->after, &result->after))
        return false;
    result->path = result->after.queue_calls > result->before.queue_calls ? "queue" : "direct";
    return bench_mean(world, (double)rows_bytes(self) * ways, &result->bytes);
}

static bool measure(struct steady_case *self, expar_path path, struct bench_results *results)
{
    const struct bench_session *session = self->session;
    struct bench_loop loop = {.call = steady_call, .after = steady_after, .context = self};
    struct bench_loop_times times = {0};
    char label[64];
    snprintf(label, sizeof label, "%s %s, %lld tokens", bench_pattern_name(self->pattern), self->op,
             (long long)session->problem->tokens);
    bool good = open_case(self, path) && bench_loop_measure(session->world, session->options, label, &loop, &times) &&
                add_result(self, &times, results);
    close_case(self);
    return good;
}

static bool measure_dispatch(struct bench_session *session, expar_path path, bool cached, struct bench_results *results)
{
    struct steady_case self = {
        .session = session, .pattern = BENCH_STEADY, .op = "dispatch", .dispatches = true, .cached = cached};
    return measure(&self, path, results);
}

static bool measure_combine(struct bench_session *session, expar_path path, struct bench_results *results)
{
    struct steady_case self = {.session = session, .pattern = BENCH_STEADY, .op = "combine", .combines = true};
    return measure(&self, path, results);
}

static bool measure_layer(struct bench_session *session, expar_path path, struct bench_results *results)
{
    struct steady_case self = {.session = session,
                               .pattern = BENCH_LAYER,
                               .op = "layer",
                               .dispatches = true,
                               .combines = true,
                               .cached = true};
    return measure(&self, path, results);
}

bool bench_case_loops(struct bench_session *session, expar_path path, struct bench_results *results)
{
    const struct bench_options *options = session->options;
    const struct bench_device *device = session->world->device;
    const bool steady = options->patterns & BENCH_STEADY, added = expar_dtype_bytes(session->problem->dtype) > 1;
    const expar_path way = path == EXPAR_PATH_QUEUE ? path : EXPAR_PATH_AUTO;
    if (device->clocks && !device->clocks(session, false)) return false;
    if (steady && bench_wants_dispatch(session, false) && !measure_dispatch(session, way, false, results)) return false;
    if (steady && bench_wants_dispatch(session, true) && !measure_dispatch(session, way, true, results)) return false;
    if (steady && options->combine && added && !measure_combine(session, way, results)) return false;
    return !(options->patterns & BENCH_LAYER) || !added || measure_layer(session, way, results);
}

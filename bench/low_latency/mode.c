/* SPDX-License-Identifier: Apache-2.0 */
/* The table of low-latency mode: the tensors and the buffer of a session, and its cases. */
#include "bench/low_latency/mode.h"
#include "bench/frame/measure.h"
#include "bench/frame/patterns.h"
#include "bench/low_latency/late.h"

/* ---- sessions ---------------------------------------------------------------------------------------------------- */

/* Multiplies the numbers of the pattern by 0.5. They are then below 1 in magnitude, as LogFMT requires. */
static void halve(expar_dtype dtype, size_t elements, void *rows)
{
    uint16_t *halves = rows;
    uint32_t *words = rows;
    for (size_t j = 0; j < elements; j++)
        if (dtype == EXPAR_F32)
            words[j] -= UINT32_C(1) << 23;
        else
            halves[j] = (uint16_t)(halves[j] - (dtype == EXPAR_BF16 ? 1 << 7 : 1 << 10));
}

/* The expert whose rows are written, and the filling. */
struct rows_of {
    int expert;
    uint64_t salt;
};

static void write_rows(const struct bench_session *session, const void *how, void *draft)
{
    const struct rows_of *of = how;
    const struct problem *problem = session->problem;
    const int32_t count = session->layout->counts[of->expert];
    pattern_rows(problem, of->salt, of->expert, count, draft);
    halve(problem->dtype, (size_t)count * (size_t)problem->hidden, draft);
}

bool ll_fill_rows(const struct bench_session *session, uint64_t salt)
{
    const struct ll_layout *layout = session->layout;
    const size_t row_bytes = session->problem->row_bytes;
    bool good = true;
    for (int l = 0; l < layout->local_experts && good; l++) {
        const struct rows_of of = {.expert = session->problem->rank * layout->local_experts + l, .salt = salt};
        unsigned char *first = (unsigned char *)session->rows + (size_t)(l * layout->rows_per_expert) * row_bytes;
        good = bench_session_write(session, first, (size_t)layout->counts[of.expert] * row_bytes, write_rows, &of);
    }
    return good;
}

static bool make_global_scale(struct bench_session *session)
{
    static const float value = LL_NVFP4_GLOBAL;
    const struct bench_world *world = session->world;
    session->global_scale = world->device->alloc(world, sizeof value);
    if (!session->global_scale) return false;
    float *draft = world->device->draft(world, session->global_scale, sizeof value);
    if (draft) *draft = value;
    return draft && world->device->commit(world, session->global_scale, draft, sizeof value);
}

static bool make(struct bench_session *session)
{
    const struct bench_world *world = session->world;
    session->layout = ll_layout_create(session->problem);
    if (session->layout) {
        session->rows_bytes = (size_t)session->layout->local_experts * (size_t)session->layout->rows_per_expert *
                              session->problem->row_bytes;
        session->rows = world->device->ll->reserve(world, session->rows_bytes);
    }
    if (!session->rows || !make_global_scale(session)) return bench_complain(world, "out of memory");
    return ll_fill_rows(session, bench_first_salt(session));
}

static expar_ll_config config_of(const struct bench_session *session)
{
    const struct bench_options *options = session->options;
    const struct bench_world *world = session->world;
    const struct problem *problem = session->problem;
    expar_ll_config config = EXPAR_LL_CONFIG_INIT;
    config.max_tokens = (int32_t)(problem->tokens ? problem->tokens : 1);
    config.hidden = problem->hidden;
    config.max_topk = problem->topk;
    config.num_experts = problem->experts;
    config.max_row_bytes = config.hidden * (int64_t)expar_dtype_bytes(problem->dtype);
    config.num_threads = world->place.type == EXPAR_CUDA ? 0 : session->workers;
    config.num_sms = world->place.type == EXPAR_CUDA ? session->workers : 0;
    config.device = world->place;
    config.sums =
        (options->ll.exact ? 1 << EXPAR_LL_SUM_EXACT : 0) | (options->ll.reduced ? 1 << EXPAR_LL_SUM_REDUCED : 0);
    return config;
}

static bool create(struct bench_session *session)
{
    const struct bench_world *world = session->world;
    const expar_ll_config config = config_of(session);
    return bench_good(world, expar_ll_create(world->group, &config, &session->ll));
}

/* Counts the buffer, and the rows of experts: on the CPU only those that are there are ever touched. */
static uint64_t bytes(const struct bench_session *session)
{
    const struct problem *problem = session->problem;
    const expar_ll_config config = config_of(session);
    const uint64_t received = (uint64_t)problem->num_received * problem->row_bytes;
    const uint64_t all = (uint64_t)problem->num_ranks * (uint64_t)problem->tokens * problem->row_bytes *
                         (uint64_t)(problem->experts / problem->num_ranks);
    size_t buffer = 0;
    if (expar_ll_get_buffer_size(&config, problem->num_ranks, &buffer) != EXPAR_OK) buffer = 0;
    return buffer + (session->world->place.type == EXPAR_CUDA ? all : received);
}

static bool end(struct bench_session *session)
{
    const struct bench_world *world = session->world;
    bool good = bench_good(world, expar_ll_destroy(session->ll));
    world->device->ll->unreserve(world, session->rows, session->rows_bytes);
    world->device->free(world, session->global_scale);
    ll_layout_free(session->layout);
    return good;
}

bool ll_site_open(struct bench_session *session)
{
    const struct bench_world *world = session->world;
    if (world->size > 1) session->trip = world->device->ll->trip_create(world);
    return world->size == 1 || session->trip;
}

void ll_site_close(struct bench_session *session, bool sound)
{
    session->world->device->ll->trip_free(session->trip, sound);
}

/* Returns whether there is a baseline: MPI carries rows without a format. */
static bool has_baseline(const struct bench_session *session)
{
    return session->format->plain;
}

int ll_list_rows(const struct bench_options *options, struct bench_rows *rows)
{
    const struct ll_options *ll = &options->ll;
    int count = 0;
    for (int d = 0; d < options->num_dtypes && ll->num_formats == 0; d++)
        rows[count++] = (struct bench_rows){options->dtypes[d], ll_format_plain(options->dtypes[d])};
    for (int f = 0; f < ll->num_formats; f++) {
        const struct ll_format *format = &ll_formats[ll->formats[f]];
        for (int d = 0; d < (format->plain ? 1 : options->num_dtypes); d++)
            rows[count++] = (struct bench_rows){format->plain ? format->dtype : options->dtypes[d], format};
    }
    return count;
}

/* ---- what calls are compared with -------------------------------------------------------------------------------- */

static bool limit_open(struct bench_contest *contest)
{
    contest->limit = ll_limit_create(contest->session, bench_contest_kind(contest));
    return contest->limit != NULL;
}

static int limit_add(struct bench_contest *contest, struct contender *contenders)
{
    return ll_limit_contenders(contest->limit, contenders);
}

static bool limit_refill(struct bench_contest *contest)
{
    return ll_limit_refill(contest->limit);
}

static bool limit_verify(const struct bench_contest *contest, uint64_t salt)
{
    return ll_limit_verify(contest->limit, salt);
}

static void limit_free(struct bench_contest *contest, bool sound)
{
    ll_limit_free(contest->limit, sound);
}

/* Adds an empty launch and round trips of a flag. */
static int add_others(const struct bench_session *session, struct contender *contenders)
{
    const struct bench_world *world = session->world;
    const struct ll_place *place = world->device->ll;
    int count = 0;
    if (place->launch)
        contenders[count++] = (struct contender){.run = place->launch, .context = (void *)(uintptr_t)world};
    return session->trip ? count + place->trip_contenders(session->trip, contenders + count) : count;
}

static void note_others(const struct bench_session *session, const struct contender *others,
                        struct bench_result *result)
{
    const struct ll_place *place = session->world->device->ll;
    if (place->launch) result->launch_us = others->times.median_us;
    if (session->trip) place->trip_times(others + (place->launch != NULL), result);
}

/* ---- isolated calls ---------------------------------------------------------------------------------------------- */

static struct ll_case call_of(struct bench_session *session, const char *op, struct bench_kind kind)
{
    return (struct ll_case){.frame = {.session = session, .kind = kind, .op = op, .verified = true}};
}

/* Makes a contest of the calls of a kind, without and with a hook. */
static struct bench_contest contest_of(struct bench_session *session, const char *op, struct bench_kind kind,
                                       struct ll_case calls[2])
{
    const enum bench_phases phases = session->options->ll.phases;
    struct bench_contest contest = {.session = session};
    for (int hooked = 0; hooked < 2; hooked++) {
        if (phases == (hooked ? BENCH_WHOLE : BENCH_HOOKED)) continue;
        kind.hooked = hooked;
        calls[hooked] = call_of(session, op, kind);
        contest.calls[contest.num_calls++] = &calls[hooked].frame;
    }
    return contest;
}

static bool measure_dispatches(struct bench_session *session, struct bench_results *results)
{
    const struct bench_kind kind = {.pattern = BENCH_ISOLATED, .dispatches = true};
    struct ll_case calls[2];
    struct bench_contest contest = contest_of(session, "dispatch", kind, calls);
    return bench_isolated(&contest, 1, results);
}

static bool measure_combines(struct bench_session *session, struct bench_results *results)
{
    const struct ll_options *ll = &session->options->ll;
    struct bench_kind kind = {.pattern = BENCH_ISOLATED, .combines = true};
    struct ll_case calls[2][2];
    struct bench_contest contests[2];
    int count = 0;
    if (ll->exact) contests[count++] = contest_of(session, "combine", kind, calls[0]);
    kind.reduced = true;
    if (ll->reduced && session->format->plain) contests[count++] = contest_of(session, "combine", kind, calls[1]);
    return count == 0 || bench_isolated(contests, count, results);
}

static bool isolated(struct bench_session *session, struct bench_results *results)
{
    const struct bench_options *options = session->options;
    const struct ll_format *format = session->format;
    if (options->dispatch && format->dispatched && !measure_dispatches(session, results)) return false;
    return !options->combine || !format->combined || measure_combines(session, results);
}

/* ---- loops ------------------------------------------------------------------------------------------------------- */

static bool measure_loop(struct bench_session *session, const char *op, struct bench_kind kind,
                         struct bench_results *results)
{
    struct ll_case call = call_of(session, op, kind);
    return bench_loops(&call.frame, results);
}

static bool wants_sum(const struct bench_session *session, bool reduced)
{
    const struct ll_options *ll = &session->options->ll;
    return reduced ? ll->reduced && session->format->wire != EXPAR_LL_FORMAT_LOGFMT : ll->exact;
}

static bool measure_steady(struct bench_session *session, struct bench_results *results)
{
    const struct bench_options *options = session->options;
    const struct bench_kind dispatches = {.pattern = BENCH_STEADY, .dispatches = true};
    if (options->dispatch && session->format->dispatched && !measure_loop(session, "dispatch", dispatches, results))
        return false;
    if (!options->combine || !session->format->combined) return true;
    for (int reduced = 0; reduced < 2; reduced++) {
        const struct bench_kind combines = {.pattern = BENCH_STEADY, .combines = true, .reduced = reduced};
        if (wants_sum(session, reduced) && !measure_loop(session, "combine", combines, results)) return false;
    }
    return true;
}

static bool measure_decode(struct bench_session *session, bool reduced, struct bench_results *results)
{
    const enum bench_phases phases = session->options->ll.decode_phases;
    struct bench_kind kind = {.pattern = BENCH_DECODE, .dispatches = true, .combines = true, .reduced = reduced};
    if (!wants_sum(session, reduced)) return true;
    if (phases != BENCH_HOOKED && !measure_loop(session, "pair", kind, results)) return false;
    kind.hooked = true;
    return phases == BENCH_WHOLE || measure_loop(session, "pair", kind, results);
}

static bool measure_pairs(struct bench_session *session, bool reduced, struct bench_results *results)
{
    const struct bench_kind kind = {.pattern = BENCH_PERIOD, .dispatches = true, .combines = true, .reduced = reduced};
    struct ll_case call = call_of(session, "pair", kind);
    return !wants_sum(session, reduced) || bench_period_measure(&call.frame, results);
}

static bool loops(struct bench_session *session, struct bench_results *results)
{
    const unsigned patterns = session->options->patterns;
    if (patterns & BENCH_STEADY && !measure_steady(session, results)) return false;
    if (patterns & BENCH_DECODE && !(measure_decode(session, false, results) && measure_decode(session, true, results)))
        return false;
    return !bench_patterns_period(session->options) ||
           (measure_pairs(session, false, results) && measure_pairs(session, true, results));
}

/* ---- the mode ---------------------------------------------------------------------------------------------------- */

const struct bench_mode ll_mode = {
    .number = BENCH_LOW_LATENCY,
    .name = "low_latency",
    .title = "low-latency mode, ",
    .label = "ll ",
    .settled = true,
    .spans = &ll_spans,
    .report = &ll_report,
    .list_rows = ll_list_rows,
    .isolated = isolated,
    .loops = loops,
    .make = make,
    .create = create,
    .end = end,
    .bytes = bytes,
    .has_baseline = has_baseline,
    .open = ll_open,
    .close = ll_close,
    .fill = ll_fill,
    .dispatch = ll_dispatch,
    .combine = ll_combine,
    .receive = ll_receive,
    .in_loop = ll_in_loop,
    .ended = ll_ended,
    .verify = ll_verify,
    .verify_baseline = ll_verify_baseline,
    .release = ll_release,
    .sent_right = ll_sent_right,
    .counts_right = ll_counts_right,
    .flows = ll_flows,
    .amounts = ll_amounts,
    .describe = ll_describe,
    .limit_open = limit_open,
    .limit_add = limit_add,
    .limit_refill = limit_refill,
    .limit_verify = limit_verify,
    .limit_free = limit_free,
    .add_others = add_others,
    .note_others = note_others,
};

/* SPDX-License-Identifier: Apache-2.0 */
/* A result's words and numbers, and the numbers that follow from its times. */
#include "bench/frame/patterns.h"
#include "bench/frame/report.h"
#include "bench/frame/session.h"
#include <math.h>

int bench_least_copy(const struct bench_result *result)
{
    int least = 0;
    for (int i = 1; i < result->num_copies; i++)
        if (result->copies[i].median_us < result->copies[least].median_us) least = i;
    return least;
}

/* Returns a / b, or 0 if b is 0. */
static double ratio(double a, double b)
{
    return b > 0 ? a / b : 0;
}

static void view_shape(const struct bench_world *world, const struct bench_options *options, struct bench_view *view)
{
    const struct bench_result *r = view->result;
    double *n = view->numbers;
    n[AT_CACHED] = r->cached;
    n[AT_RANKS] = world->size;
    n[AT_NODES] = world->nodes;
    n[AT_TOKENS] = (double)r->tokens;
    n[AT_HIDDEN] = options->hidden;
    n[AT_TOPK] = options->topk;
    n[AT_EXPERTS] = options->experts;
    n[AT_WORKERS] = r->workers;
    n[AT_VERIFIED] = r->verified;
    view->words[WORD_OP] = view->words[WORD_OPERATION] = r->op;
    view->words[WORD_SUM] = r->sum;
    view->words[WORD_PHASE] = r->phase;
    view->words[WORD_FORMAT] = r->format;
    view->words[WORD_DTYPE] = expar_dtype_string(r->dtype);
    view->words[WORD_PATH] = world->nodes > 1 ? "network" : r->path;
    view->words[WORD_INSIDE_PATH] = r->path;
    view->words[WORD_ROUTING] = options->routing;
    view->words[WORD_PATTERN] = bench_pattern_name(r->pattern ? r->pattern : BENCH_ISOLATED);
}

static void view_buffer(const struct bench_buffer *buffer, double *n)
{
    const uint64_t counts[] = {buffer->growths,      buffer->direct_calls,    buffer->queue_calls,
                               buffer->other_blocks, buffer->used_high_bytes, buffer->reserved_high_bytes};
    for (int i = 0; i < 6; i++)
        n[i] = (double)counts[i];
}

static void view_host(const struct bench_loop_times *loop, double *n)
{
    n[AT_HOST] = loop->host_us;
    n[AT_HOST_P99] = loop->host_p99_us;
}

/* Sets the numbers of pairs. Their spread is that of periods, not of trials. */
static void view_period(const struct bench_period *period, double *n)
{
    n[AT_PERIOD] = period->pair_us;
    n[AT_GAP] = period->gap_us;
    n[AT_DISPATCH_FLOOR] = period->dispatch_us;
    n[AT_COMBINE_FLOOR] = period->combine_us;
    n[AT_DRIFT] = period->drift;
    n[AT_SPREAD] = period->spread;
}

static void view_times(struct bench_view *view)
{
    const struct bench_result *r = view->result;
    double *n = view->numbers;
    n[AT_MEDIAN] = r->expar.median_us;
    n[AT_MIN] = r->expar.min_us;
    n[AT_P99] = r->expar.p99_us;
    n[AT_BYTES] = r->bytes;
    n[AT_GBPS] = ratio(r->bytes, r->expar.median_us) * 1e-3; /* 10^9 bytes a second */
    n[AT_MESSAGES] = r->messages;
    n[AT_SPREAD] = r->expar.spread;
    if (r->links.known) n[AT_BUS_GBPS] = ratio((double)r->links.most_bytes, r->expar.median_us) * 1e-3;
    if (r->expar.slowest_us > 0) {
        n[AT_SLOWEST] = r->expar.slowest_us;
        n[AT_SLOWEST_RANK] = r->expar.slowest_rank;
        n[AT_MEAN_RANK] = r->expar.mean_rank_us;
    }
    if (r->has_trip) n[AT_TRIP] = r->trip_us;
    if (r->has_raw_trip) n[AT_RAW_TRIP] = r->raw_trip_us;
    if (!bench_is_loop(r)) {
        n[AT_LAUNCH] = r->launch_us;
        return;
    }
    if (r->period.known)
        view_period(&r->period, n);
    else
        view_host(&r->loop, n);
    view_buffer(&r->before, n + AT_BUFFER_BEFORE);
    view_buffer(&r->after, n + AT_BUFFER_AFTER);
}

/* Sets the numbers of the limit: that of the copies, or across nodes that of the network. */
static void view_compared(const struct bench_world *world, struct bench_view *view)
{
    const struct bench_result *r = view->result;
    const bool across = world->nodes > 1;
    const double limit_us = r->num_copies ? r->copies[bench_least_copy(r)].median_us : 0;
    double *n = view->numbers;
    if (r->num_copies) n[across ? AT_NETWORK_LIMIT : AT_COPY_LIMIT] = limit_us;
    if (r->num_copies) n[across ? AT_NETWORK_FRACTION : AT_COPY_FRACTION] = ratio(limit_us, r->expar.median_us);
    if (!r->has_mpi) return;
    n[AT_MPI] = r->mpi.median_us;
    n[AT_SPEEDUP] = ratio(r->mpi.median_us, r->expar.median_us);
    n[AT_LIMIT_SPEEDUP] = ratio(r->mpi.median_us, limit_us); /* more is not to be had by copies */
}

static void view_traffic(struct bench_view *view)
{
    const struct bench_traffic *t = &view->result->traffic;
    double *n = view->numbers;
    if (!t->counted) return;
    n[AT_NET_BYTES] = t->sent.bytes;
    n[AT_NET_KB] = t->sent.bytes * 1e-3;
    n[AT_NET_MESSAGES] = t->sent.messages;
    n[AT_NET_FLAGS] = t->sent.flags;
    n[AT_NET_ROWS] = t->sent.rows;
    n[AT_NODE_BYTES] = t->inside_rows * (double)view->result->row_bytes;
    n[AT_NODE_KB] = n[AT_NODE_BYTES] * 1e-3;
    n[AT_NODE_ROWS] = t->inside_rows;
    view->words[WORD_NODE_PATH] = view->result->path;
}

/* Sets the numbers of a kernel. first: its first span. */
static void view_kernel(const struct bench_breakdown *b, int first, int count, double *n)
{
    if (!b->known) return;
    n[AT_KERNEL] = b->kernel_us;
    n[AT_START] = b->start_us;
    if (b->late_rank >= 0) n[AT_LATE_RANK] = b->late_rank;
    for (int i = first; i < count; i++)
        n[AT_SPANS + i] = b->us[i];
}

void bench_view_of(const struct bench_world *world, const struct bench_options *options, const struct bench_mode *mode,
                   const struct bench_result *result, struct bench_view *view)
{
    const struct bench_spans *spans = mode->spans;
    *view = (struct bench_view){.result = result, .words = {[WORD_MODE] = mode->name}};
    for (int i = 0; i < VIEW_NUMBERS; i++)
        view->numbers[i] = NAN;
    view_shape(world, options, view);
    view_times(view);
    view_compared(world, view);
    view_traffic(view);
    view_kernel(&result->breakdown, result->breakdown.notified ? 0 : spans->first, spans->count, view->numbers);
    view_kernel(&result->limit, spans->limit_first, spans->count, view->numbers + AT_LIMIT);
    mode->report->name_operation(view, sizeof view->operation);
}

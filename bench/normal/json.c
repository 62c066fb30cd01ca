/* SPDX-License-Identifier: Apache-2.0 */
/* Results as one JSON object: the machine, what was asked for, a list of results. */
#include "bench/frame/json.h"
#include "bench/frame/machine.h"
#include "bench/frame/patterns.h"
#include "bench/normal/session.h"
#include <jansson.h>
#include <stdio.h>

/* ---- what was asked for ------------------------------------------------------------------------------------------ */

static json_t *workers_json(const struct bench_world *world, const struct bench_options *options)
{
    json_t *list = json_array();
    for (int i = 0; i < options->num_workers; i++) {
        int workers = options->workers[i] ? options->workers[i] : world->device->default_workers(world);
        json_array_append_new(list, json_integer(workers));
    }
    return bench_json_one_or_list(list);
}

static json_t *config_json(const struct bench_world *world, const struct bench_options *o)
{
    static const char *const cached[] = {"no", "yes", "both"}, *const paths[] = {"auto", "direct", "queue"};
    json_t *config = json_pack(
        "{s:i, s:i, s:s, s:o, s:i, s:i, s:i, s:o, s:s, s:i, s:i, s:o, s:s, s:s, s:I}", "ranks", world->size, "nodes",
        world->nodes, "device", world->device->name, "tokens", bench_json_tokens(o), "hidden", o->hidden, "topk",
        o->topk, "experts", o->experts, "dtype", bench_json_dtypes(o), "routing", o->routing, "iters", o->iters,
        "warmup", o->warmup, world->device->workers, workers_json(world, o), "path",
        o->all_paths ? "all" : paths[o->path], "cached", cached[o->cached], "seed", (json_int_t)o->seed);
    json_object_set_new(config, "pattern", bench_patterns_json(o));
    if (o->cuda) json_object_set_new(config, "gpus", json_integer(o->num_gpus));
    return config;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* Across nodes bare puts take the copies' place. */
static void add_copies(json_t *json, const struct bench_world *world, const struct bench_result *r)
{
    const bool across = world->nodes > 1, limited = r->num_copies > 0;
    const double limit_us = bench_limit_us(r), fraction = bench_fraction_of_limit(r);
    json_object_set_new(json, "copy_limit_us", bench_json_real_or_null(limited && !across, limit_us));
    json_object_set_new(json, "fraction_of_copy_limit", bench_json_real_or_null(limited && !across, fraction));
    for (int i = 0; i < r->num_copies; i++)
        json_object_set_new(json, world->device->copies[i], json_real(r->copies[i].median_us));
    if (!across) return;
    json_object_set_new(json, "network_limit_us", bench_json_real_or_null(limited, limit_us));
    json_object_set_new(json, "fraction_of_network_limit", bench_json_real_or_null(limited, fraction));
}

static void add_traffic(json_t *json, const struct bench_result *r)
{
    const struct bench_traffic *t = &r->traffic;
    json_object_set_new(json, "network",
                        json_pack("{s:f, s:f, s:f, s:f}", "bytes", t->sent.bytes, "messages", t->sent.messages, "flags",
                                  t->sent.flags, "rows", t->sent.rows));
    json_object_set_new(json, "node",
                        json_pack("{s:f, s:f, s:s}", "bytes", t->inside_rows * (double)r->row_bytes, "rows",
                                  t->inside_rows, "path", r->path));
}

static json_t *breakdown_json(const struct bench_breakdown *b, int first)
{
    json_t *json = json_object();
    for (int i = first; i < BENCH_SPANS; i++) {
        char name[32];
        snprintf(name, sizeof name, "%s_us", bench_span_names[i]);
        json_object_set_new(json, name, json_real(b->us[i]));
    }
    json_object_set_new(json, "late_rank", json_integer(b->late_rank));
    return json;
}

static void add_kernels(json_t *json, const struct bench_result *r)
{
    if (r->breakdown.known) {
        json_object_set_new(json, "kernel_us", json_real(r->breakdown.kernel_us));
        json_object_set_new(json, "breakdown", breakdown_json(&r->breakdown, bench_first_span(&r->breakdown)));
    }
    if (r->limit.known) {
        json_object_set_new(json, "copy_limit_kernel_us", json_real(r->limit.kernel_us));
        json_object_set_new(json, "copy_limit_breakdown", breakdown_json(&r->limit, BENCH_ROWS));
    }
}

static json_t *buffer_json(const struct bench_buffer *b)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "growths", (json_int_t)b->growths, "direct_calls",
                     (json_int_t)b->direct_calls, "queue_calls", (json_int_t)b->queue_calls, "other_blocks",
                     (json_int_t)b->other_blocks, "used_high_bytes", (json_int_t)b->used_high_bytes,
                     "reserved_high_bytes", (json_int_t)b->reserved_high_bytes);
}

static void add_loop(json_t *json, const struct bench_result *r)
{
    json_object_set_new(json, "host_us", json_real(r->loop.host_us));
    json_object_set_new(json, "host_p99_us", json_real(r->loop.host_p99_us));
    json_object_set_new(json, "buffer_before", buffer_json(&r->before));
    json_object_set_new(json, "buffer_after", buffer_json(&r->after));
}

static json_t *result_json(const struct bench_world *world, const struct bench_result *r)
{
    json_t *json =
        json_pack("{s:s, s:s, s:s, s:s, s:b, s:I, s:f, s:f, s:f, s:f, s:f}", "op", r->op, "mode", "normal", "dtype",
                  expar_dtype_string(r->dtype), "path", world->nodes > 1 ? "network" : r->path, "cached", r->cached,
                  "tokens", (json_int_t)r->tokens, "median_us", r->expar.median_us, "min_us", r->expar.min_us, "p99_us",
                  r->expar.p99_us, "bytes", r->bytes, "gbps", bench_gbps(r));
    json_object_set_new(json, "pattern", json_string(bench_pattern_name(bench_pattern_of(r))));
    add_copies(json, world, r);
    if (bench_is_loop(r)) add_loop(json, r);
    json_object_set_new(json, world->device->workers, json_integer(r->workers));
    json_object_set_new(json, "verified", json_boolean(r->verified));
    add_kernels(json, r);
    if (r->traffic.counted) add_traffic(json, r);
    if (r->has_mpi) {
        json_object_set_new(json, "mpi_us", json_real(r->mpi.median_us));
        json_object_set_new(json, "speedup_over_mpi", json_real(bench_speedup(r)));
    }
    return json;
}

void bench_report_json(const struct bench_world *world, const struct bench_options *options,
                       const struct bench_results *results)
{
    json_t *list = json_array();
    for (int i = 0; i < results->count; i++)
        json_array_append_new(list, result_json(world, &results->items[i]));
    json_t *object = json_pack("{s:o, s:o, s:o}", "machine", bench_machine(options->cuda), "config",
                               config_json(world, options), "results", list);
    json_dumpf(object, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(8));
    printf("\n");
    json_decref(object);
}

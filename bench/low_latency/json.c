/* SPDX-License-Identifier: Apache-2.0 */
/* Results as one JSON object: the machine, what was asked for, a list of results. */
#include "bench/frame/json.h"
#include "bench/frame/machine.h"
#include "bench/frame/patterns.h"
#include "bench/low_latency/session.h"
#include <jansson.h>
#include <stdio.h>

/* ---- what was asked for ------------------------------------------------------------------------------------------ */

static json_t *formats_json(const struct bench_options *options)
{
    json_t *list = json_array();
    for (int i = 0; i < options->ll.num_formats; i++)
        json_array_append_new(list, json_string(ll_formats[options->ll.formats[i]].name));
    for (int i = 0; i < options->num_dtypes && options->ll.num_formats == 0; i++)
        json_array_append_new(list, json_string(ll_format_plain(options->dtypes[i])->name));
    return bench_json_one_or_list(list);
}

/* Those that were not given as the device chooses. */
static json_t *workers_json(const struct bench_world *world, const struct bench_options *options)
{
    const int usual = world->device->ll->default_workers(world);
    json_t *list = json_array();
    for (int i = 0; i < options->num_workers; i++)
        json_array_append_new(list, json_integer(options->workers[i] ? options->workers[i] : usual));
    return bench_json_one_or_list(list);
}

static json_t *config_json(const struct bench_world *world, const struct bench_options *o)
{
    static const char *const hooks[] = {"no", "yes", "both"};
    const char *sum = !o->ll.exact ? "reduced" : !o->ll.reduced ? "exact" : "both";
    json_t *config =
        json_pack("{s:i, s:i, s:s, s:o, s:i, s:i, s:i, s:o, s:o, s:s, s:s, s:s, s:i, s:i, s:o, s:I}", "ranks",
                  world->size, "nodes", world->nodes, "device", world->device->name, "tokens", bench_json_tokens(o),
                  "hidden", o->hidden, "topk", o->topk, "experts", o->experts, "dtype", bench_json_dtypes(o), "format",
                  formats_json(o), "sum", sum, "hook", hooks[o->ll.phases], "routing", o->routing, "iters", o->iters,
                  "warmup", o->warmup, world->device->workers, workers_json(world, o), "seed", (json_int_t)o->seed);
    json_object_set_new(config, "pattern", bench_patterns_json(o));
    if (o->cuda) json_object_set_new(config, "gpus", json_integer(o->num_gpus));
    return config;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

static json_t *breakdown_json(const struct ll_breakdown *b)
{
    json_t *json = json_object();
    json_object_set_new(json, "start_us", json_real(b->start_us));
    for (int i = 0; i < LL_SPANS; i++) {
        char name[32];
        snprintf(name, sizeof name, "%s_us", ll_span_names[i]);
        json_object_set_new(json, name, json_real(b->us[i]));
    }
    json_object_set_new(json, "late_rank", b->late_rank < 0 ? json_null() : json_integer(b->late_rank));
    return json;
}

static void add_kernels(json_t *json, const struct ll_result *r)
{
    if (r->breakdown.known) {
        json_object_set_new(json, "kernel_us", json_real(r->breakdown.kernel_us));
        json_object_set_new(json, "breakdown", breakdown_json(&r->breakdown));
    }
    if (r->limit.known) {
        json_object_set_new(json, "copy_limit_kernel_us", json_real(r->limit.kernel_us));
        json_object_set_new(json, "copy_limit_breakdown", breakdown_json(&r->limit));
    }
}

static json_t *traffic_json(const struct bench_sent *sent)
{
    return json_pack("{s:f, s:f, s:f, s:f}", "bytes", sent->bytes, "messages", sent->messages, "flags", sent->flags,
                     "rows", sent->rows);
}

static json_t *result_json(const struct bench_world *world, const struct ll_result *r)
{
    const bool across = world->nodes > 1, limited = r->num_copies > 0;
    json_t *copies = json_array();
    for (int i = 0; i < r->num_copies; i++)
        json_array_append_new(copies, json_real(r->copies[i].median_us));
    json_t *json = json_pack("{s:s, s:s, s:s?, s:s, s:s, s:s, s:s, s:I, s:f, s:f, s:f, s:f, s:f, s:f}", "op", r->op,
                             "mode", "low_latency", "sum", r->sum, "phase", r->phase, "format", r->format, "dtype",
                             expar_dtype_string(r->dtype), "path", world->nodes > 1 ? "network" : "direct", "tokens",
                             (json_int_t)r->tokens, "median_us", r->expar.median_us, "min_us", r->expar.min_us,
                             "p99_us", r->expar.p99_us, "bytes", r->bytes, "gbps", ll_gbps(r), "messages", r->messages);
    json_object_set_new(json, "pattern", json_string(bench_pattern_name(ll_pattern_of(r))));
    if (ll_is_loop(r)) {
        json_object_set_new(json, "host_us", json_real(r->loop.host_us));
        json_object_set_new(json, "host_p99_us", json_real(r->loop.host_p99_us));
    }
    json_object_set_new(json, "copy_limit_us", bench_json_real_or_null(limited && !across, ll_limit_us(r)));
    json_object_set_new(json, across ? "puts_us" : "copies_us", copies);
    json_object_set_new(json, "fraction_of_copy_limit",
                        bench_json_real_or_null(limited && !across, ll_fraction_of_limit(r)));
    if (across) json_object_set_new(json, "network_limit_us", bench_json_real_or_null(limited, ll_limit_us(r)));
    if (across)
        json_object_set_new(json, "fraction_of_network_limit",
                            bench_json_real_or_null(limited, ll_fraction_of_limit(r)));
    if (r->traffic.counted) json_object_set_new(json, "network", traffic_json(&r->traffic.sent));
    json_object_set_new(json, "round_trip_us", bench_json_real_or_null(r->has_trip, r->trip_us));
    json_object_set_new(json, "raw_round_trip_us", bench_json_real_or_null(r->has_raw_trip, r->raw_trip_us));
    json_object_set_new(json, world->device->workers, json_integer(r->workers));
    json_object_set_new(json, "verified", json_boolean(r->verified));
    if (world->place.type == EXPAR_CUDA && !ll_is_loop(r))
        json_object_set_new(json, "launch_us", json_real(r->launch_us));
    add_kernels(json, r);
    if (r->has_mpi) {
        json_object_set_new(json, "mpi_us", json_real(r->mpi.median_us));
        json_object_set_new(json, "speedup_over_mpi", json_real(ll_speedup(r)));
        json_object_set_new(json, across ? "network_limit_speedup_over_mpi" : "copy_limit_speedup_over_mpi",
                            json_real(ll_copy_speedup(r)));
    }
    return json;
}

void ll_report_json(const struct bench_world *world, const struct bench_options *options,
                    const struct ll_results *results)
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

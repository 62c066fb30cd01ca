/* SPDX-License-Identifier: Apache-2.0 */
/* Results as one JSON object: the machine, the options, and a list of results. */
#include "bench/frame/json.h"
#include "bench/frame/machine.h"
#include "bench/frame/patterns.h"
#include "bench/frame/report.h"
#include "bench/frame/session.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- what was asked for ------------------------------------------------------------------------------------------ */

json_t *bench_json_one_or_list(json_t *list)
{
    if (json_array_size(list) != 1) return list;
    json_t *only = json_incref(json_array_get(list, 0));
    json_decref(list);
    return only;
}

static json_t *tokens_json(const struct bench_options *options)
{
    json_t *list = json_array();
    for (int i = 0; i < options->num_tokens; i++)
        json_array_append_new(list, json_integer(options->tokens[i]));
    return bench_json_one_or_list(list);
}

static json_t *dtypes_json(const struct bench_options *options)
{
    json_t *list = json_array();
    for (int i = 0; i < options->num_dtypes; i++)
        json_array_append_new(list, json_string(expar_dtype_string(options->dtypes[i])));
    return bench_json_one_or_list(list);
}

/* Returns the workers. Numbers that were not given are the device's defaults. */
static json_t *workers_json(const struct bench_world *world, const struct bench_options *options,
                            const struct bench_mode *mode)
{
    const struct bench_site *site = world->device->sites[mode->number];
    json_t *list = json_array();
    for (int i = 0; i < options->num_workers; i++) {
        const int workers = options->workers[i] ? options->workers[i] : site->default_workers(world);
        json_array_append_new(list, json_integer(workers));
    }
    return bench_json_one_or_list(list);
}

static json_t *config_json(const struct bench_world *world, const struct bench_options *o,
                           const struct bench_mode *mode)
{
    const struct bench_report *report = mode->report;
    json_t *config = json_pack("{s:i, s:i, s:s, s:o, s:i, s:i, s:i, s:o}", "ranks", world->size, "nodes", world->nodes,
                               "device", world->device->name, "tokens", tokens_json(o), "hidden", o->hidden, "topk",
                               o->topk, "experts", o->experts, "dtype", dtypes_json(o));
    if (report->config_of_rows) report->config_of_rows(o, config);
    json_object_set_new(config, "routing", json_string(o->routing));
    json_object_set_new(config, "iters", json_integer(o->iters));
    json_object_set_new(config, "warmup", json_integer(o->warmup));
    json_object_set_new(config, world->device->workers, workers_json(world, o, mode));
    if (report->config_of_calls) report->config_of_calls(o, config);
    json_object_set_new(config, "seed", json_integer((json_int_t)o->seed));
    json_object_set_new(config, "pattern", bench_patterns_json(o));
    if (o->cuda) json_object_set_new(config, "gpus", json_integer(o->num_gpus));
    return config;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

static void add_copies(const struct bench_world *world, const struct bench_field *field, const struct bench_result *r,
                       json_t *json)
{
    json_t *list = json_array();
    for (int i = 0; i < r->num_copies; i++) {
        json_t *median = json_real(r->copies[i].median_us);
        if (!field->name) json_object_set(json, world->device->copies[i], median);
        json_array_append_new(list, median);
    }
    if (field->name) json_object_set(json, field->name, list);
    json_decref(list);
}

/* Returns the value of a field; NULL: there is none. */
static json_t *value_of(const struct bench_field *field, const struct bench_view *view)
{
    if (field->kind == FIELD_WORD) return view->words[field->at] ? json_string(view->words[field->at]) : NULL;
    const double number = view->numbers[field->at];
    if (isnan(number)) return NULL;
    if (field->kind == FIELD_FLAG) return json_boolean(number > 0);
    return field->kind == FIELD_COUNT ? json_integer(llround(number)) : json_real(number);
}

/* Adds a member to the object, or to a nested object, which is created if there is a value. */
static void add_value(const char *name, bool or_null, json_t *value, json_t *json)
{
    const char *dot = strchr(name, '.');
    char object[32];
    if (dot) {
        snprintf(object, sizeof object, "%.*s", (int)(dot - name), name);
        if (value && !json_object_get(json, object)) json_object_set_new(json, object, json_object());
        json = json_object_get(json, object);
        name = dot + 1;
    }
    if (!value && or_null && json) value = json_null();
    if (value) json_object_set_new(json, name, value);
}

static json_t *links_json(const struct bench_links *links)
{
    json_t *list = json_array();
    for (int i = 0; i < links->count; i++) {
        const struct bench_link *link = &links->items[i];
        json_array_append_new(list, json_pack("{s:s, s:i, s:i, s:I, s:I}", "class", link->class, "from", link->from,
                                              "to", link->to, "bytes", (json_int_t)link->bytes, "messages",
                                              (json_int_t)link->messages));
    }
    return list;
}

static json_t *result_json(const struct bench_world *world, unsigned run, const struct bench_mode *mode,
                           const struct bench_view *view)
{
    json_t *json = json_object();
    for (const struct bench_field *field = mode->report->json; field->kind; field++) {
        if ((field->when & run) != field->when) continue;
        if (field->kind == FIELD_COPIES)
            add_copies(world, field, view->result, json);
        else
            add_value(field->name ? field->name : world->device->workers, field->or_null, value_of(field, view), json);
    }
    if (view->result->links.known) json_object_set_new(json, "links", links_json(&view->result->links));
    return json;
}

static json_t *load_json(const struct bench_options *options, const struct bench_load *load)
{
    json_t *choices = json_array();
    for (int i = 0; i < options->experts; i++)
        json_array_append_new(choices, json_integer(load->choices[i]));
    return json_pack("{s:I, s:o}", "tokens", (json_int_t)load->tokens, "choices", choices);
}

json_t *bench_report_json(const struct bench_world *world, const struct bench_options *options,
                          const struct bench_mode *mode, const struct bench_results *results)
{
    json_t *list = json_array();
    for (int i = 0; i < results->count; i++) {
        struct bench_view view;
        bench_view_of(world, options, mode, &results->items[i], &view);
        json_array_append_new(list, result_json(world, bench_report_run(world, options), mode, &view));
    }
    json_t *object = bench_json_object(options, config_json(world, options, mode), list);
    if (object && results->load.choices) json_object_set_new(object, "expert_load", load_json(options, &results->load));
    return object;
}

json_t *bench_json_object(const struct bench_options *options, json_t *config, json_t *results)
{
    char date[32];
    struct tm utc;
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&options->started, &utc));
    json_t *command = json_string(options->command);
    if (!command) command = json_string("not UTF-8");
    json_t *machine = bench_machine(options->cuda);
    if (machine && options->load[0] >= 0)
        json_object_set_new(machine, "load",
                            json_pack("[f, f, f]", options->load[0], options->load[1], options->load[2]));
    return json_pack("{s:i, s:s, s:o, s:o, s:o, s:o}", "schema_version", BENCH_JSON_SCHEMA, "date", date, "command",
                     command, "machine", machine, "config", config, "results", results);
}

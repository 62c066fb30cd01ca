/* SPDX-License-Identifier: Apache-2.0 */
/* Results of `expar bench rma --device cuda` as JSON, CSV, or tables for a person. */
#include "bench/frame/json.h"
#include "bench/frame/output.h"
#include "bench/frame/report.h"
#include "bench/gpu/rma.h"
#include "table.h"
#include <stdio.h>
#include <string.h>

/* Returns 10^9 bytes a second. A device in software says nothing about those of a real one, so requests have none. */
static double gbps(const rma_gpu_result *r)
{
    const bool counts = strcmp(r->way, rma_gpu_way_names[RMA_GPU_GDA]) != 0 && r->times.median_us > 0;
    return counts ? (double)r->bytes / r->times.median_us * 1e-3 : 0;
}

static double fraction(const rma_gpu_result *r)
{
    return r->baseline && r->times.median_us > 0 ? r->bare.median_us / r->times.median_us : 0;
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static json_t *result_json(const rma_gpu_result *r, int num_ranks)
{
    json_t *json =
        json_pack("{s:s, s:s, s:s, s:s, s:i, s:I, s:f, s:f, s:f, s:b}", "op", r->op, "way", r->way, "memory", r->memory,
                  "scope", r->scope, "ranks", num_ranks, "bytes", (json_int_t)r->bytes, "median_us", r->times.median_us,
                  "min_us", r->times.min_us, "p99_us", r->times.p99_us, "verified", r->verified);
    if (gbps(r) > 0) json_object_set_new(json, "gbps", json_real(gbps(r)));
    if (!r->baseline) return json;
    json_object_set_new(json, "baseline", json_string(r->baseline));
    json_object_set_new(json, "baseline_us", json_real(r->bare.median_us));
    json_object_set_new(json, "baseline_min_us", json_real(r->bare.min_us));
    json_object_set_new(json, "fraction_of_baseline", json_real(fraction(r)));
    return json;
}

static json_t *rate_json(const rma_gpu_rate *r)
{
    json_t *json =
        json_pack("{s:s, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:b}", "way", r->way, "bytes", 8, "commands_per_s",
                  r->commands_per_s, "completed_per_s", r->completed_per_s, "mean_us", r->mean_us, "median_us",
                  r->times.median_us, "min_us", r->times.min_us, "p99_us", r->times.p99_us, "verified", r->verified);
    if (r->rings > 0) {
        json_object_set_new(json, "rings", json_integer(r->rings));
        return json;
    }
    json_object_set_new(json, "requests", json_real(r->requests));
    json_object_set_new(json, "request_bytes", json_real(r->request_bytes));
    json_object_set_new(json, "doorbells", json_real(r->doorbells));
    json_object_set_new(json, "device_us", json_real(r->device_us));
    return json;
}

/* All that is printed. */
struct printed {
    const struct bench_options *options;
    const rma_gpu_results *results;
};

static json_t *object_of(const void *all)
{
    const struct printed *printed = all;
    const struct bench_options *options = printed->options;
    json_t *sizes = json_array(), *list = json_array(), *rates = json_array();
    for (int i = 0; i < options->rma.num_sizes; i++)
        json_array_append_new(sizes, json_integer((json_int_t)options->rma.sizes_bytes[i]));
    for (int i = 0; i < printed->results->count; i++)
        json_array_append_new(list, result_json(&printed->results->list[i], options->num_ranks));
    for (int i = 0; i < printed->results->num_rates; i++)
        json_array_append_new(rates, rate_json(&printed->results->rates[i]));
    json_t *config = json_pack("{s:i, s:i, s:s, s:i, s:o, s:s, s:s, s:i}", "ranks", options->num_ranks, "nodes",
                               options->nodes, "device", "cuda", "gpus", options->num_gpus, "sizes", sizes, "ops",
                               options->rma.ops ? options->rma.ops : "all", "transports",
                               options->rma.transports ? options->rma.transports : "all", "iters", options->iters);
    json_t *object = bench_json_object(options, config, list);
    json_object_set_new(object, "commands", rates);
    return object;
}

/* ---- CSV --------------------------------------------------------------------------------------------------------- */

static void print_csv_result(const struct bench_options *options, const rma_gpu_result *r)
{
    printf("%s,%s,%s,%s,%d,%d,%zu,%.4f,%.4f,%.4f,%.4f,", r->op, r->way, r->memory, r->scope, options->num_ranks,
           options->nodes, r->bytes, r->times.median_us, r->times.min_us, r->times.p99_us, gbps(r));
    if (r->baseline)
        printf("%s,%.4f,%.4f,%.4f", r->baseline, r->bare.median_us, r->bare.min_us, fraction(r));
    else
        printf(",,,");
    printf(",,,,,,,,,%d\n", r->verified);
}

static void print_csv_rate(const struct bench_options *options, const rma_gpu_rate *r)
{
    printf("command,%s,,,%d,%d,8,%.4f,%.4f,%.4f,,,,,,", r->way, options->num_ranks, options->nodes, r->times.median_us,
           r->times.min_us, r->times.p99_us);
    if (r->rings > 0)
        printf("%d,%.4f,%.0f,%.0f,,,,", r->rings, r->mean_us, r->commands_per_s, r->completed_per_s);
    else
        printf(",%.4f,%.0f,%.0f,%.4f,%.1f,%.4f,%.4f", r->mean_us, r->commands_per_s, r->completed_per_s, r->requests,
               r->request_bytes, r->doorbells, r->device_us);
    printf(",%d\n", r->verified);
}

static void print_csv(const struct bench_options *options, const rma_gpu_results *results)
{
    printf("op,way,memory,scope,ranks,nodes,bytes,median_us,min_us,p99_us,gbps,baseline,baseline_us,baseline_min_us,"
           "fraction_of_baseline,rings,mean_us,commands_per_s,completed_per_s,requests,request_bytes,doorbells,"
           "device_us,verified\n");
    for (int i = 0; i < results->count; i++)
        print_csv_result(options, &results->list[i]);
    for (int i = 0; i < results->num_rates; i++)
        print_csv_rate(options, &results->rates[i]);
}

/* ---- tables ------------------------------------------------------------------------------------------------------ */

typedef struct rma_column {
    const char *title;
    int drop;
    const char *legend;
} rma_column;

static void add_columns(struct table *table, const rma_column *columns, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        table_column(table, columns[i].title, TABLE_RIGHT);
        table_drop(table, columns[i].drop);
        table_legend(table, columns[i].legend);
    }
    table_column(table, "verified", TABLE_LEFT);
}

static void add_number(struct table *table, bool present, int decimals, double number)
{
    if (present)
        table_cell(table, "%.*f", decimals, number);
    else
        table_skip(table);
}

static bool print_results(const rma_gpu_results *results)
{
    static const rma_column columns[] = {
        {"bytes", 0, "of one operation"},
        {"median us", 0, "of one operation: a put until quiet, a put_signal half of a round trip"},
        {"min us", 3, NULL},
        {"p99 us", 4, NULL},
        {"GB/s", 5, "10^9 bytes a second; not of requests, whose device is one in software"},
        {"bare us", 6, "a kernel with loads, stores and flags of its own, or cuMemcpyAsync"},
        {"of it", 0, "bare us / median us"},
    };
    struct table *table = table_new();
    table_column(table, "operation", TABLE_LEFT);
    table_column(table, "way", TABLE_LEFT);
    table_column(table, "memory", TABLE_LEFT);
    table_column(table, "scope", TABLE_LEFT);
    add_columns(table, columns, sizeof columns / sizeof *columns);
    for (int i = 0; i < results->count; i++) {
        const rma_gpu_result *r = &results->list[i];
        table_row(table);
        table_cell(table, "%s", r->op);
        table_cell(table, "%s", r->way);
        table_cell(table, "%s", r->memory);
        table_cell(table, "%s", r->scope);
        table_cell(table, "%zu", r->bytes);
        add_number(table, true, 3, r->times.median_us);
        add_number(table, true, 3, r->times.min_us);
        add_number(table, true, 3, r->times.p99_us);
        add_number(table, gbps(r) > 0, 2, gbps(r));
        add_number(table, r->baseline != NULL, 3, r->bare.median_us);
        add_number(table, r->baseline != NULL, 2, fraction(r));
        table_verdict(table, r->verified);
    }
    return table_print(table, stdout);
}

static bool print_rates(const rma_gpu_results *results)
{
    static const rma_column columns[] = {
        {"rings", 0, "of a rank, for commands to threads of the host"},
        {"commands/s", 0, "words of 8 bytes that threads of a kernel issue"},
        {"complete/s", 0, "that are issued and waited for, with many on their way"},
        {"mean us", 0, "from the issue of one word until its thread sees its end"},
        {"p99 us", 0, NULL},
        {"device us", 0, "the software device's part of it, from the doorbell on"},
        {"request bytes", 0, "that a word takes in a queue"},
        {"doorbells", 0, "rung for a word, with many on their way"},
    };
    if (!results->num_rates) return true;
    struct table *table = table_new();
    table_column(table, "posted by", TABLE_LEFT);
    add_columns(table, columns, sizeof columns / sizeof *columns);
    for (int i = 0; i < results->num_rates; i++) {
        const rma_gpu_rate *r = &results->rates[i];
        const bool requests = r->rings == 0;
        table_row(table);
        table_cell(table, "%s", r->way);
        add_number(table, !requests, 0, r->rings);
        add_number(table, true, 0, r->commands_per_s);
        add_number(table, true, 0, r->completed_per_s);
        add_number(table, true, 3, r->mean_us);
        add_number(table, true, 3, r->times.p99_us);
        add_number(table, requests, 3, r->device_us);
        add_number(table, requests, 1, r->request_bytes);
        add_number(table, requests, 3, r->doorbells);
        table_verdict(table, r->verified);
    }
    printf("\n");
    return table_print(table, stdout);
}

static bool print_tables(const struct bench_options *options, const rma_gpu_results *results)
{
    int num_wrong = 0;
    for (int i = 0; i < results->count; i++)
        num_wrong += !results->list[i].verified;
    for (int i = 0; i < results->num_rates; i++)
        num_wrong += !results->rates[i].verified;
    printf("%d ranks on %d GPU%s and %d node%s; median of %d turns\n\n", options->num_ranks, options->num_gpus,
           options->num_gpus == 1 ? "" : "s", options->nodes, options->nodes == 1 ? "" : "s", options->iters);
    if ((results->count && !print_results(results)) || !print_rates(results)) return false;
    printf("\n");
    bench_verdict_bytes(num_wrong, results->count + results->num_rates);
    return true;
}

static bool print_others(const void *all)
{
    const struct printed *p = all;
    if (p->options->format == BENCH_TABLE) return print_tables(p->options, p->results);
    print_csv(p->options, p->results);
    return true;
}

bool rma_gpu_report(const struct bench_options *options, const rma_gpu_results *results)
{
    const struct printed printed = {options, results};
    const struct bench_printer printer = {.object = object_of, .print = print_others, .results = &printed};
    bench_warn_of_noise(options, 0, "");
    return bench_output(options, &printer);
}

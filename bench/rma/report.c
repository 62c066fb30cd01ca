/* SPDX-License-Identifier: Apache-2.0 */
/* Results of `expar bench rma` as JSON, CSV, or a table for a person. */
#include "bench/frame/report.h"
#include "bench/frame/json.h"
#include "bench/frame/output.h"
#include "bench/rma/rma.h"
#include "table.h"
#include <stdio.h>

/* Returns 10^9 bytes a second; 0 if bytes are not counted. */
static double gbps(double bytes, const struct bench_times *times)
{
    return times->median_us > 0 ? bytes / times->median_us * 1e-3 : 0;
}

static double fraction(const struct bench_times *of, const struct rma_result *result)
{
    return result->expar.median_us > 0 ? of->median_us / result->expar.median_us : 0;
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static json_t *result_json(const struct rma_result *r, int num_ranks)
{
    json_t *json =
        json_pack("{s:s, s:s, s:s, s:i, s:I, s:f, s:f, s:f, s:b}", "op", r->op, "metric", r->metric, "transport",
                  r->transport, "ranks", num_ranks, "bytes", (json_int_t)r->bytes, "median_us", r->expar.median_us,
                  "min_us", r->expar.min_us, "p99_us", r->expar.p99_us, "verified", r->verified);
    if (r->moved_bytes > 0) json_object_set_new(json, "gbps", json_real(gbps(r->moved_bytes, &r->expar)));
    if (r->has_base) {
        json_object_set_new(json, "baseline", json_string(r->baseline));
        json_object_set_new(json, "baseline_us", json_real(r->base.median_us));
        json_object_set_new(json, "baseline_min_us", json_real(r->base.min_us));
        json_object_set_new(json, "fraction_of_baseline", json_real(fraction(&r->base, r)));
    }
    if (r->has_flag) {
        json_object_set_new(json, "flag_us", json_real(r->flag.median_us));
        json_object_set_new(json, "fraction_of_flag", json_real(fraction(&r->flag, r)));
    }
    return json;
}

static json_t *transports_json(const struct rma_transport_note *notes)
{
    json_t *list = json_array();
    for (; notes->name; notes++)
        json_array_append_new(list, json_pack("{s:s, s:s}", "name", notes->name, "note", notes->text));
    return list;
}

static json_t *producers_json(const struct rma_results *results)
{
    json_t *list = json_array();
    for (int i = 0; i < results->num_producers; i++) {
        const struct rma_producer *p = &results->producers[i];
        json_array_append_new(
            list, json_pack("{s:s, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:b}", "by", p->by, "bytes",
                            (json_int_t)p->bytes, "commands_per_s", p->commands_per_s, "requests", p->requests,
                            "request_bytes", p->request_bytes, "doorbells", p->doorbells, "completion_us",
                            p->completion.median_us, "completion_min_us", p->completion.min_us, "completion_p99_us",
                            p->completion.p99_us, "device_us", p->device_us, "verified", p->verified));
    }
    return list;
}

/* All that is printed. */
struct printed {
    const struct bench_options *options;
    const struct rma_results *results;
};

static json_t *object_of(const void *all)
{
    const struct printed *printed = all;
    const struct bench_options *options = printed->options;
    json_t *sizes = json_array(), *list = json_array();
    for (int i = 0; i < options->rma.num_sizes; i++)
        json_array_append_new(sizes, json_integer((json_int_t)options->rma.sizes_bytes[i]));
    for (int i = 0; i < printed->results->count; i++)
        json_array_append_new(list, result_json(&printed->results->list[i], options->num_ranks));
    json_t *config =
        json_pack("{s:i, s:i, s:s, s:o, s:s, s:o, s:i, s:i, s:I}", "ranks", options->num_ranks, "nodes", options->nodes,
                  "device", "cpu", "sizes", sizes, "ops", options->rma.ops ? options->rma.ops : "all", "transports",
                  transports_json(printed->results->notes), "iters", options->iters, "warmup", options->warmup, "seed",
                  (json_int_t)options->seed);
    json_t *object = bench_json_object(options, config, list);
    if (printed->results->num_producers) json_object_set_new(object, "producers", producers_json(printed->results));
    return object;
}

/* ---- CSV --------------------------------------------------------------------------------------------------------- */

static void print_csv(const struct bench_options *options, const struct rma_result *results, int count)
{
    printf("op,metric,transport,ranks,nodes,bytes,median_us,min_us,p99_us,gbps,baseline,baseline_us,"
           "baseline_min_us,fraction_of_baseline,flag_us,verified\n");
    for (int i = 0; i < count; i++) {
        const struct rma_result *r = &results[i];
        printf("%s,%s,%s,%d,%d,%zu,%.4f,%.4f,%.4f,%.4f,", r->op, r->metric, r->transport, options->num_ranks,
               options->nodes, r->bytes, r->expar.median_us, r->expar.min_us, r->expar.p99_us,
               gbps(r->moved_bytes, &r->expar));
        if (r->has_base)
            printf("%s,%.4f,%.4f,%.4f,", r->baseline, r->base.median_us, r->base.min_us, fraction(&r->base, r));
        else
            printf(",,,,");
        if (r->has_flag) printf("%.4f", r->flag.median_us);
        printf(",%d\n", r->verified);
    }
}

/* ---- table ------------------------------------------------------------------------------------------------------- */

static struct table *new_table(void)
{
    static const struct {
        const char *title;
        int drop;
        const char *legend;
    } columns[] = {
        {"bytes", 0, "of one operation"},
        {"median us", 0, "of one operation, its completion included"},
        {"min us", 3, NULL},
        {"p99 us", 4, NULL},
        {"GB/s", 5, "bytes of operations on rank 0, 10^9 bytes a second"},
        {"baseline us", 6, "the same without expar, in turns with it"},
        {"its min us", 1, NULL},
        {"of it", 0, "baseline us / median us"},
        {"flag us", 2, "a bare flag instead of an operation"},
    };
    struct table *table = table_new();
    table_column(table, "operation", TABLE_LEFT);
    table_column(table, "measure", TABLE_LEFT);
    table_column(table, "by", TABLE_LEFT);
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        table_column(table, columns[i].title, TABLE_RIGHT);
        table_drop(table, columns[i].drop);
        table_legend(table, columns[i].legend);
    }
    table_column(table, "verified", TABLE_LEFT);
    return table;
}

/* Adds a number with its decimals, or an empty cell. */
static void add_number(struct table *table, bool present, int decimals, double number)
{
    if (present)
        table_cell(table, "%.*f", decimals, number);
    else
        table_skip(table);
}

static void add_row(struct table *table, const struct rma_result *r)
{
    table_row(table);
    table_cell(table, "%s", r->op);
    table_cell(table, "%s", r->metric);
    table_cell(table, "%s", r->transport);
    table_cell(table, "%zu", r->bytes);
    add_number(table, true, 3, r->expar.median_us);
    add_number(table, true, 3, r->expar.min_us);
    add_number(table, true, 3, r->expar.p99_us);
    add_number(table, r->moved_bytes > 0, 2, gbps(r->moved_bytes, &r->expar));
    add_number(table, r->has_base, 3, r->base.median_us);
    add_number(table, r->has_base, 3, r->base.min_us);
    add_number(table, r->has_base, 2, fraction(&r->base, r));
    add_number(table, r->has_flag, 3, r->flag.median_us);
    table_verdict(table, r->verified);
}

/* Names the result that is furthest from what its baseline takes. */
static void print_verdict(const struct rma_result *results, int count)
{
    const struct rma_result *least = NULL;
    int num_wrong = 0;
    for (int i = 0; i < count; i++) {
        const struct rma_result *r = &results[i];
        num_wrong += !r->verified;
        if (r->has_base && (!least || fraction(&r->base, r) < fraction(&least->base, least))) least = r;
    }
    printf("\n");
    if (least)
        printf("Least of all, %s of %zu bytes over %s has %.2f of the speed of %s.\n", least->op, least->bytes,
               least->transport, fraction(&least->base, least), least->baseline);
    bench_verdict_bytes(num_wrong, count);
}

/* Prints what threads pay that write requests themselves, and what the device adds. */
static bool print_producers(const struct rma_results *results)
{
    static const struct {
        const char *title, *legend;
    } columns[] = {
        {"bytes", "of a message"},
        {"commands/s", "puts that the caller issues in a second; a proxy posts them later"},
        {"request bytes", "that a message takes in a queue"},
        {"doorbells", "rung for a message, when many are posted"},
        {"complete us", "from the post of one message to its completion"},
        {"device us", "the software device's part of it, from the doorbell on"},
    };
    if (!results->num_producers) return true;
    struct table *table = table_new();
    table_column(table, "posted by", TABLE_LEFT);
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        table_column(table, columns[i].title, TABLE_RIGHT);
        table_legend(table, columns[i].legend);
    }
    table_column(table, "verified", TABLE_LEFT);
    for (int i = 0; i < results->num_producers; i++) {
        const struct rma_producer *p = &results->producers[i];
        table_row(table);
        table_cell(table, "%s", p->by);
        table_cell(table, "%zu", p->bytes);
        table_cell(table, "%.0f", p->commands_per_s);
        table_cell(table, "%.1f", p->request_bytes);
        table_cell(table, "%.3f", p->doorbells);
        table_cell(table, "%.3f", p->completion.median_us);
        table_cell(table, "%.3f", p->device_us);
        table_verdict(table, p->verified);
    }
    printf("\n");
    return table_print(table, stdout);
}

static bool print_table(const struct bench_options *options, const struct rma_results *results)
{
    struct table *table = new_table();
    for (int i = 0; i < results->count; i++)
        add_row(table, &results->list[i]);
    printf("%d ranks on %d node%s; median of %d turns\n", options->num_ranks, options->nodes,
           options->nodes == 1 ? "" : "s", options->iters);
    for (const struct rma_transport_note *notes = results->notes; notes->name; notes++)
        printf("%s: %s\n", notes->name, notes->text);
    printf("\n");
    if (!table_print(table, stdout) || !print_producers(results)) return false;
    print_verdict(results->list, results->count);
    return true;
}

static bool print_others(const void *all)
{
    const struct printed *p = all;
    if (p->options->format == BENCH_TABLE) return print_table(p->options, p->results);
    print_csv(p->options, p->results->list, p->results->count);
    return true;
}

bool rma_report(const struct bench_options *options, const struct rma_results *results)
{
    const struct printed printed = {options, results};
    const struct bench_printer printer = {.object = object_of, .print = print_others, .results = &printed};
    bench_warn_of_noise(options, 0, "");
    return bench_output(options, &printer);
}

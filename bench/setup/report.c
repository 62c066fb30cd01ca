/* SPDX-License-Identifier: Apache-2.0 */
/* Results of `expar bench setup` as JSON, CSV, or a table for a person. */
#include "bench/frame/report.h"
#include "bench/frame/json.h"
#include "bench/frame/output.h"
#include "bench/setup/setup.h"
#include "table.h"
#include <stdio.h>

/* All that is printed. */
struct printed {
    const struct bench_world *world;
    const struct bench_options *options;
    const struct setup_result *results;
    int count;
};

static json_t *object_of(const void *all)
{
    const struct printed *printed = all;
    const struct bench_world *world = printed->world;
    const struct bench_options *options = printed->options;
    const struct setup_result *results = printed->results;
    const int count = printed->count;
    json_t *list = json_array();
    for (int i = 0; i < count; i++)
        json_array_append_new(list, json_pack("{s:s, s:f, s:f, s:f, s:b}", "what", results[i].what, "median_us",
                                              results[i].times.median_us, "min_us", results[i].times.min_us, "p99_us",
                                              results[i].times.p99_us, "verified", results[i].verified));
    json_t *config = json_pack("{s:i, s:i, s:s, s:i, s:i}", "ranks", world->size, "nodes", world->nodes, "device",
                               "cpu", "iters", options->iters, "warmup", options->warmup);
    return bench_json_object(options, config, list);
}

static void print_csv(const struct bench_world *world, const struct setup_result *results, int count)
{
    printf("what,ranks,nodes,median_us,min_us,p99_us,verified\n");
    for (int i = 0; i < count; i++)
        printf("%s,%d,%d,%.1f,%.1f,%.1f,%d\n", results[i].what, world->size, world->nodes, results[i].times.median_us,
               results[i].times.min_us, results[i].times.p99_us, results[i].verified);
}

static void print_place(const struct bench_world *world)
{
    printf("%d ranks", world->size);
    if (world->nodes > 1) printf(" on %d nodes", world->nodes);
}

static bool print_table(const struct bench_world *world, const struct bench_options *options,
                        const struct setup_result *results, int count)
{
    struct table *table = table_new();
    table_column(table, "set-up of", TABLE_LEFT);
    table_column(table, "median ms", TABLE_RIGHT);
    table_column(table, "min ms", TABLE_RIGHT);
    table_column(table, "p99 ms", TABLE_RIGHT);
    table_column(table, "verified", TABLE_LEFT);
    int num_wrong = 0;
    for (int i = 0; i < count; i++) {
        num_wrong += !results[i].verified;
        table_row(table);
        table_cell(table, "%s", results[i].what);
        table_cell(table, "%.2f", results[i].times.median_us * 1e-3);
        table_cell(table, "%.2f", results[i].times.min_us * 1e-3);
        table_cell(table, "%.2f", results[i].times.p99_us * 1e-3);
        table_verdict(table, results[i].verified);
    }
    print_place(world);
    printf(", buffers without limits; median of %d turns\n\n", options->iters);
    if (!table_print(table, stdout)) return false;
    printf("\n");
    bench_verdict_bytes(num_wrong, count);
    return true;
}

static bool print_others(const void *all)
{
    const struct printed *p = all;
    if (p->options->format == BENCH_TABLE) return print_table(p->world, p->options, p->results, p->count);
    print_csv(p->world, p->results, p->count);
    return true;
}

bool setup_report(const struct bench_world *world, const struct bench_options *options,
                  const struct setup_result *results, int count)
{
    const struct printed printed = {world, options, results, count};
    const struct bench_printer printer = {.object = object_of, .print = print_others, .results = &printed};
    bench_warn_of_noise(options, 0, "");
    return bench_output(options, &printer);
}

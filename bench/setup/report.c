/* SPDX-License-Identifier: Apache-2.0 */
/* Results of `expar bench setup` as JSON, CSV, or a table for a person. */
#include "bench/frame/json.h"
#include "bench/setup/setup.h"
#include "table.h"
#include <stdio.h>

static void print_json(const struct bench_world *world, const struct bench_options *options,
                       const struct setup_result *results, int count)
{
    json_t *list = json_array();
    for (int i = 0; i < count; i++)
        json_array_append_new(list, json_pack("{s:s, s:f, s:f, s:f, s:b}", "what", results[i].what, "median_us",
                                              results[i].times.median_us, "min_us", results[i].times.min_us, "p99_us",
                                              results[i].times.p99_us, "verified", results[i].verified));
    json_t *config = json_pack("{s:i, s:i, s:s, s:i, s:i}", "ranks", world->size, "nodes", world->nodes, "device",
                               "cpu", "iters", options->iters, "warmup", options->warmup);
    bench_json_print(false, config, list);
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
    for (int i = 0; i < count; i++) {
        table_row(table);
        table_cell(table, "%s", results[i].what);
        table_cell(table, "%.2f", results[i].times.median_us * 1e-3);
        table_cell(table, "%.2f", results[i].times.min_us * 1e-3);
        table_cell(table, "%.2f", results[i].times.p99_us * 1e-3);
        table_verdict(table, results[i].verified);
    }
    print_place(world);
    printf(", buffers without limits; median of %d turns\n\n", options->iters);
    return table_print(table, stdout);
}

bool setup_report(const struct bench_world *world, const struct bench_options *options,
                  const struct setup_result *results, int count)
{
    if (options->format == BENCH_TABLE) return print_table(world, options, results, count);
    if (options->format == BENCH_JSON)
        print_json(world, options, results, count);
    else
        print_csv(world, results, count);
    return true;
}

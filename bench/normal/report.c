/* SPDX-License-Identifier: Apache-2.0 */
/* Results as CSV, or a table for a person, and what follows from the times. */
#include "bench/frame/patterns.h"
#include "bench/normal/session.h"
#include "table.h"
#include <stdio.h>
#include <string.h>

/* ---- what follows from the times --------------------------------------------------------------------------------- */

int bench_least_copy(const struct bench_result *result)
{
    int least = 0;
    for (int i = 1; i < result->num_copies; i++)
        if (result->copies[i].median_us < result->copies[least].median_us) least = i;
    return least;
}

double bench_limit_us(const struct bench_result *result)
{
    return result->num_copies ? result->copies[bench_least_copy(result)].median_us : 0;
}

double bench_fraction_of_limit(const struct bench_result *result)
{
    return result->expar.median_us > 0 ? bench_limit_us(result) / result->expar.median_us : 0;
}

double bench_gbps(const struct bench_result *result)
{
    return result->expar.median_us > 0 ? result->bytes / result->expar.median_us * 1e-3 : 0;
}

double bench_speedup(const struct bench_result *result)
{
    return result->expar.median_us > 0 ? result->mpi.median_us / result->expar.median_us : 0;
}

/* ---- words for the spans ----------------------------------------------------------------------------------------- */

const char *const bench_span_names[BENCH_SPANS] = {"layout", "hellos", "wait",  "counts", "gap",
                                                   "open",   "rows",   "warps", "ranks",  "close"};

/* ---- CSV --------------------------------------------------------------------------------------------------------- */

static void print_csv_row(const struct bench_options *o, const struct bench_world *world, const struct bench_result *r)
{
    printf("%s,normal,%s,%s,%d,%d,%lld,%d,%d,%d,\"%s\",%.3f,%.3f,%.3f,%.0f,%.4f,", r->op, expar_dtype_string(r->dtype),
           world->nodes > 1 ? "network" : r->path, r->cached, world->size, (long long)r->tokens, o->hidden, o->topk,
           o->experts, o->routing, r->expar.median_us, r->expar.min_us, r->expar.p99_us, r->bytes, bench_gbps(r));
    if (r->num_copies)
        printf("%.3f,%.4f,", bench_limit_us(r), bench_fraction_of_limit(r));
    else
        printf(",,");
    printf("%d,%d,", r->workers, r->verified);
    if (r->has_mpi)
        printf("%.3f,%.4f", r->mpi.median_us, bench_speedup(r));
    else
        printf(",");
}

/* Behind a row's other members; what layout lacks is left out. */
static void print_csv_traffic(const struct bench_world *world, const struct bench_result *r)
{
    const struct bench_traffic *t = &r->traffic;
    printf(",%d,%s,", world->nodes, r->path);
    if (t->counted)
        printf("%.0f,%.0f,%.0f,%.0f,%.0f,%.0f", t->sent.bytes, t->sent.messages, t->sent.flags, t->sent.rows,
               t->inside_rows * (double)r->row_bytes, t->inside_rows);
    else
        printf(",,,,,");
}

/* Follows all other members. An isolated call has no host time. */
static void print_csv_loop(const struct bench_result *r)
{
    printf(",%s,", bench_pattern_name(bench_pattern_of(r)));
    if (bench_is_loop(r))
        printf("%.3f,%.3f", r->loop.host_us, r->loop.host_p99_us);
    else
        printf(",");
}

static void print_csv(const struct bench_world *world, const struct bench_options *options,
                      const struct bench_results *results)
{
    printf("op,mode,dtype,path,cached,ranks,tokens,hidden,topk,experts,routing,median_us,min_us,p99_us,bytes,gbps,"
           "%s_limit_us,fraction_of_%s_limit,%s,verified,mpi_us,speedup_over_mpi%s%s\n",
           world->nodes > 1 ? "network" : "copy", world->nodes > 1 ? "network" : "copy", world->device->workers,
           world->nodes > 1
               ? ",nodes,node_path,network_bytes,network_messages,network_flags,network_rows,node_bytes,node_rows"
               : "",
           bench_patterns_loop(options) ? ",pattern,host_us,host_p99_us" : "");
    for (int i = 0; i < results->count; i++) {
        print_csv_row(options, world, &results->items[i]);
        if (world->nodes > 1) print_csv_traffic(world, &results->items[i]);
        if (bench_patterns_loop(options)) print_csv_loop(&results->items[i]);
        printf("\n");
    }
}

/* ---- table ------------------------------------------------------------------------------------------------------- */

/* What each line begins with. */
static struct table *new_table(const struct bench_world *world)
{
    struct table *table = table_new();
    table_column(table, "operation", TABLE_LEFT);
    table_column(table, "path", TABLE_LEFT);
    table_column(table, "dtype", TABLE_LEFT);
    table_column(table, world->device->workers, TABLE_RIGHT);
    table_column(table, "tokens", TABLE_RIGHT);
    return table;
}

static void add_line(struct table *table, const struct bench_result *r, const char *what, const char *way)
{
    table_row(table);
    table_cell(table, "%s%s", what, r->cached && what == r->op ? " cached" : "");
    table_cell(table, "%s", way);
    table_cell(table, "%s", expar_dtype_string(r->dtype));
    table_cell(table, "%d", r->workers);
    table_cell(table, "%lld", (long long)r->tokens);
}

static void add_head(struct table *table, const struct bench_result *r)
{
    add_line(table, r, r->op, r->path);
}

static void add_limit(struct table *table, const struct bench_result *r)
{
    if (r->num_copies) {
        table_cell(table, "%.1f", bench_limit_us(r));
        table_cell(table, "%.2f", bench_fraction_of_limit(r));
    } else {
        table_skip(table);
        table_skip(table);
    }
}

static void add_mpi(struct table *table, const struct bench_result *r)
{
    table_cell(table, "%.1f", r->mpi.median_us);
    table_cell(table, "%.2fx", bench_speedup(r));
}

/* Columns that only some runs have. */
struct columns {
    bool mpi, loops;
};

static void add_result(struct table *table, const struct bench_result *r, const struct columns *columns)
{
    add_head(table, r);
    if (columns->loops) table_cell(table, "%s", bench_pattern_name(bench_pattern_of(r)));
    table_cell(table, "%.1f", r->expar.median_us);
    table_cell(table, "%.1f", r->expar.min_us);
    table_cell(table, "%.1f", r->expar.p99_us);
    if (bench_is_loop(r)) table_cell(table, "%.1f", r->loop.host_us);
    if (columns->loops && !bench_is_loop(r)) table_skip(table);
    table_cell(table, "%.2f", bench_gbps(r));
    add_limit(table, r);
    if (columns->mpi) add_mpi(table, r);
    table_verdict(table, r->verified);
}

static void add_columns(struct table *table, const struct bench_world *world, const struct columns *columns)
{
    static const char *const times[] = {"median us", "min us", "p99 us"};
    if (columns->loops) table_column(table, "pattern", TABLE_LEFT);
    for (size_t i = 0; i < sizeof times / sizeof *times; i++)
        table_column(table, times[i], TABLE_RIGHT);
    if (columns->loops) table_column(table, "host us", TABLE_RIGHT);
    table_column(table, "GB/s", TABLE_RIGHT);
    table_column(table, world->nodes > 1 ? "puts us" : "copy us", TABLE_RIGHT);
    table_column(table, world->nodes > 1 ? "of puts" : "of copy", TABLE_RIGHT);
    if (columns->mpi) table_column(table, "MPI us", TABLE_RIGHT);
    if (columns->mpi) table_column(table, "faster", TABLE_RIGHT);
    table_column(table, "verified", TABLE_LEFT);
}

static bool print_results(const struct bench_world *world, const struct bench_options *options,
                          const struct bench_results *results)
{
    const struct columns columns = {.mpi = results->count > 0 && results->items[0].has_mpi,
                                    .loops = bench_patterns_loop(options)};
    struct table *table = new_table(world);
    add_columns(table, world, &columns);
    for (int i = 0; i < results->count; i++)
        add_result(table, &results->items[i], &columns);
    return table_print(table, stdout);
}

static void add_spans(struct table *table, const struct bench_breakdown *b, int first)
{
    for (int i = 0; i < BENCH_SPANS; i++) {
        if (i == BENCH_OPEN) table_cell(table, "%.1f", b->kernel_us);
        if (i < first)
            table_skip(table);
        else
            table_cell(table, "%.1f", b->us[i]);
    }
    table_cell(table, "%d", b->late_rank);
}

/* The call's, and below it those of its copy limit, which has nothing to open, by the way that it goes. */
static void add_breakdown(struct table *table, const struct bench_world *world, const struct bench_result *r)
{
    const char *copy = world->device->copies[bench_least_copy(r)]; /* "push_us" */
    char way[16];
    snprintf(way, sizeof way, "%.*s", (int)strcspn(copy, "_"), copy);
    add_head(table, r);
    add_spans(table, &r->breakdown, bench_first_span(&r->breakdown));
    if (!r->limit.known) return;
    add_line(table, r, "copy limit", way);
    add_spans(table, &r->limit, BENCH_ROWS);
}

/* A row for each result that has a breakdown; nothing where none has. */
static bool print_breakdowns(const struct bench_world *world, const struct bench_results *results)
{
    struct table *table = new_table(world);
    bool any = false;
    for (int i = 0; i < BENCH_SPANS; i++) {
        if (i == BENCH_OPEN) table_column(table, "kernel", TABLE_RIGHT);
        table_column(table, bench_span_names[i], TABLE_RIGHT);
    }
    table_column(table, "late", TABLE_RIGHT);
    for (int i = 0; i < results->count; i++) {
        if (results->items[i].breakdown.known) add_breakdown(table, world, &results->items[i]);
        any |= results->items[i].breakdown.known;
    }
    if (any)
        printf("\nWhere the time of calls and of the copy limit's kernel goes on all ranks, us, and which rank is "
               "late\n\n");
    return table_print(table, stdout);
}

static void add_traffic(struct table *table, const struct bench_result *r)
{
    const struct bench_traffic *t = &r->traffic;
    add_head(table, r);
    table_cell(table, "%.1f", t->sent.rows);
    table_cell(table, "%.1f", t->sent.messages);
    table_cell(table, "%.1f", t->sent.flags);
    table_cell(table, "%.1f", t->sent.bytes * 1e-3);
    table_cell(table, "%.1f", t->inside_rows);
    table_cell(table, "%.1f", t->inside_rows * (double)r->row_bytes * 1e-3);
}

/* A row for each result that was counted; nothing inside a node. */
static bool print_traffic(const struct bench_world *world, const struct bench_results *results)
{
    static const char *const titles[] = {"net rows", "net messages", "net flags", "net KB", "node rows", "node KB"};
    if (world->nodes == 1) return true;
    struct table *table = new_table(world);
    for (size_t i = 0; i < sizeof titles / sizeof *titles; i++)
        table_column(table, titles[i], TABLE_RIGHT);
    for (int i = 0; i < results->count; i++)
        if (results->items[i].traffic.counted) add_traffic(table, &results->items[i]);
    printf(
        "\nWhat a call of a rank sends to other nodes, as counted at the provider, and moves inside its own; mean over "
        "ranks\n\n");
    return table_print(table, stdout);
}

static void print_nodes(const struct bench_world *world)
{
    if (world->nodes > 1) printf(" on %d nodes", world->nodes);
}

static bool print_tables(const struct bench_world *world, const struct bench_options *o,
                         const struct bench_results *results)
{
    printf("%d ranks", world->size);
    print_nodes(world);
    printf(", rows of %d elements, top-%d of %d experts, %s routing; median of %d iterations", o->hidden, o->topk,
           o->experts, o->routing, o->iters);
    if (bench_patterns_loop(o)) printf("; of patterns: a call's share of %d loops of as many calls", BENCH_LOOPS);
    printf("\n\n");
    return print_results(world, o, results) && print_breakdowns(world, results) && print_traffic(world, results);
}

bool bench_report(const struct bench_world *world, const struct bench_options *options,
                  const struct bench_results *results)
{
    if (options->format == BENCH_TABLE) return print_tables(world, options, results);
    if (options->format == BENCH_JSON)
        bench_report_json(world, options, results);
    else
        print_csv(world, options, results);
    return true;
}

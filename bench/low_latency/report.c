/* SPDX-License-Identifier: Apache-2.0 */
/* Results as CSV, or a table for a person, and what follows from the times. */
#include "bench/frame/patterns.h"
#include "bench/low_latency/session.h"
#include "table.h"
#include <stdio.h>

/* ---- what follows from the times --------------------------------------------------------------------------------- */

int ll_least_copy(const struct ll_result *result)
{
    int least = 0;
    for (int i = 1; i < result->num_copies; i++)
        if (result->copies[i].median_us < result->copies[least].median_us) least = i;
    return least;
}

double ll_limit_us(const struct ll_result *result)
{
    return result->num_copies ? result->copies[ll_least_copy(result)].median_us : 0;
}

double ll_fraction_of_limit(const struct ll_result *result)
{
    return result->expar.median_us > 0 ? ll_limit_us(result) / result->expar.median_us : 0;
}

double ll_gbps(const struct ll_result *result)
{
    return result->expar.median_us > 0 ? result->bytes / result->expar.median_us * 1e-3 : 0;
}

double ll_speedup(const struct ll_result *result)
{
    return result->expar.median_us > 0 ? result->mpi.median_us / result->expar.median_us : 0;
}

double ll_copy_speedup(const struct ll_result *result)
{
    const double limit_us = ll_limit_us(result);
    return limit_us > 0 ? result->mpi.median_us / limit_us : 0;
}

/* ---- CSV --------------------------------------------------------------------------------------------------------- */

/* Nothing where there is none. */
static void print_csv_number(bool there, double number, char behind)
{
    if (there) printf("%.4f", number);
    putchar(behind);
}

static void print_csv_breakdown(const struct ll_breakdown *b)
{
    print_csv_number(b->known, b->kernel_us, ',');
    print_csv_number(b->known, b->start_us, ',');
    for (int i = 0; i < LL_SPANS; i++)
        print_csv_number(b->known, b->us[i], ',');
    if (b->known && b->late_rank >= 0) printf("%d", b->late_rank);
}

static void print_csv_kernels(const struct ll_result *r)
{
    print_csv_number(!ll_is_loop(r), r->launch_us, ',');
    print_csv_breakdown(&r->breakdown);
    putchar(',');
    print_csv_breakdown(&r->limit);
}

static void print_csv_kernel_names(const char *prefix)
{
    printf(",%skernel_us,%sstart_us,", prefix, prefix);
    for (int i = 0; i < LL_SPANS; i++)
        printf("%s%s_us,", prefix, ll_span_names[i]);
    printf("%slate_rank", prefix);
}

static void print_csv_traffic(const struct bench_world *world, const struct ll_result *r)
{
    const bool counted = r->traffic.counted;
    printf(",%d,", world->nodes);
    print_csv_number(counted, r->traffic.sent.bytes, ',');
    print_csv_number(counted, r->traffic.sent.messages, ',');
    print_csv_number(counted, r->traffic.sent.flags, ',');
    if (counted) printf("%.4f", r->traffic.sent.rows);
}

static void print_csv_compared(const struct bench_options *o, const struct bench_world *world,
                               const struct ll_result *r)
{
    if (o->cuda) {
        print_csv_kernels(r);
        return;
    }
    if (r->has_mpi)
        printf("%.3f,%.4f,%.4f", r->mpi.median_us, ll_speedup(r), ll_copy_speedup(r));
    else
        printf(",,");
    if (world->nodes > 1) print_csv_traffic(world, r);
}

/* Follows all other members. An isolated call has no host time. */
static void print_csv_loop(const struct ll_result *r)
{
    printf(",%s,", bench_pattern_name(ll_pattern_of(r)));
    print_csv_number(ll_is_loop(r), r->loop.host_us, ',');
    if (ll_is_loop(r)) printf("%.4f", r->loop.host_p99_us);
}

static void print_csv_row(const struct bench_options *o, const struct bench_world *world, const struct ll_result *r)
{
    printf("%s,low_latency,%s,%s,%s,%s,%s,%d,%lld,%d,%d,%d,\"%s\",%.3f,%.3f,%.3f,%.0f,%.4f,%.1f,", r->op,
           r->sum ? r->sum : "", r->phase, r->format, expar_dtype_string(r->dtype),
           world->nodes > 1 ? "network" : "direct", world->size, (long long)r->tokens, o->hidden, o->topk, o->experts,
           o->routing, r->expar.median_us, r->expar.min_us, r->expar.p99_us, r->bytes, ll_gbps(r), r->messages);
    if (r->num_copies)
        printf("%.3f,%.4f,", ll_limit_us(r), ll_fraction_of_limit(r));
    else
        printf(",,");
    print_csv_number(r->has_trip, r->trip_us, ',');
    print_csv_number(r->has_raw_trip, r->raw_trip_us, ',');
    printf("%d,%d,", r->workers, r->verified);
    print_csv_compared(o, world, r);
    if (bench_patterns_loop(o)) print_csv_loop(r);
    printf("\n");
}

static void print_csv(const struct bench_world *world, const struct bench_options *options,
                      const struct ll_results *results)
{
    const char *const limit = world->nodes > 1 ? "network" : "copy";
    printf("op,mode,sum,phase,format,dtype,path,ranks,tokens,hidden,topk,experts,routing,median_us,min_us,p99_us,bytes,"
           "gbps,messages,%s_limit_us,fraction_of_%s_limit,round_trip_us,raw_round_trip_us,%s,verified,",
           limit, limit, world->device->workers);
    if (options->cuda) {
        printf("launch_us");
        print_csv_kernel_names("");
        print_csv_kernel_names("copy_limit_");
    } else {
        printf("mpi_us,speedup_over_mpi,%s_limit_speedup_over_mpi%s", limit,
               world->nodes > 1 ? ",nodes,network_bytes,network_messages,network_flags,network_rows" : "");
    }
    printf("%s\n", bench_patterns_loop(options) ? ",pattern,host_us,host_p99_us" : "");
    for (int i = 0; i < results->count; i++)
        print_csv_row(options, world, &results->items[i]);
}

/* ---- table ------------------------------------------------------------------------------------------------------- */

/* Columns that only some runs have. */
struct columns {
    bool cuda, trips, mpi, nodes, loops;
};

/* pattern is NULL for the copies that a call is compared with. */
static void add_shape_and_times(struct table *table, const struct ll_result *r, const struct bench_times *times,
                                const char *pattern, const struct columns *columns)
{
    table_cell(table, "%s", r->format);
    table_cell(table, "%lld", (long long)r->tokens);
    table_cell(table, "%d", r->workers);
    if (columns->loops) table_cell(table, "%s", pattern ? pattern : "");
    table_cell(table, "%.1f", times->median_us);
    table_cell(table, "%.1f", times->min_us);
    table_cell(table, "%.1f", times->p99_us);
    if (ll_is_loop(r)) table_cell(table, "%.1f", r->loop.host_us);
    if (columns->loops && !ll_is_loop(r)) table_skip(table);
}

static void add_head(struct table *table, const struct ll_result *r, const struct columns *columns)
{
    const bool apart = r->phase[0] != 'c';
    table_row(table);
    table_cell(table, "%s%s%s%s%s", r->op, r->sum ? " " : "", r->sum ? r->sum : "", apart ? ", " : "",
               apart ? r->phase : "");
    add_shape_and_times(table, r, &r->expar, bench_pattern_name(ll_pattern_of(r)), columns);
    table_cell(table, "%.2f", ll_gbps(r));
    table_cell(table, "%.1f", r->messages);
}

/* Two cells, of numbers that there may be none of. */
static void add_pair(struct table *table, bool there, const char *first_form, double first, const char *second_form,
                     double second)
{
    if (there) {
        table_cell(table, first_form, first);
        table_cell(table, second_form, second);
    } else {
        table_skip(table);
        table_skip(table);
    }
}

/* Adds a cell, which is empty where there is no such number. */
static void add_number(struct table *table, bool there, double number)
{
    if (there)
        table_cell(table, "%.2f", number);
    else
        table_skip(table);
}

/* Kernel time, its spans, and who was late in it. */
static void add_kernel(struct table *table, const struct ll_breakdown *b)
{
    for (int i = 0; i < LL_SPANS + 3 && !b->known; i++)
        table_skip(table);
    if (!b->known) return;
    table_cell(table, "%.1f", b->kernel_us);
    table_cell(table, "%.1f", b->start_us);
    for (int i = 0; i < LL_SPANS; i++)
        table_cell(table, "%.1f", b->us[i]);
    if (b->late_rank >= 0)
        table_cell(table, "%d", b->late_rank);
    else
        table_skip(table);
}

/* Rows, messages and KB that a call of a rank sends to other nodes. */
static void add_traffic(struct table *table, const struct ll_result *r)
{
    add_pair(table, r->traffic.counted, "%.1f", r->traffic.sent.rows, "%.1f", r->traffic.sent.messages);
    if (r->traffic.counted)
        table_cell(table, "%.1f", r->traffic.sent.bytes * 1e-3);
    else
        table_skip(table);
}

static void add_result(struct table *table, const struct ll_result *r, const struct columns *columns)
{
    const bool mpi = columns->mpi;
    add_head(table, r, columns);
    add_pair(table, r->num_copies > 0, "%.1f", ll_limit_us(r), "%.2f", ll_fraction_of_limit(r));
    if (columns->nodes) add_traffic(table, r);
    if (columns->trips && columns->nodes) add_number(table, r->has_trip, r->trip_us);
    if (columns->trips && !columns->nodes && !columns->cuda)
        add_pair(table, r->has_trip, "%.2f", r->trip_us, "%.2f", r->raw_trip_us);
    if (columns->trips && columns->cuda) add_number(table, !ll_is_loop(r), r->raw_trip_us);
    if (columns->cuda) add_number(table, !ll_is_loop(r), r->launch_us);
    if (columns->cuda) add_kernel(table, &r->breakdown);
    if (mpi) add_pair(table, r->has_mpi, "%.1f", r->mpi.median_us, "%.2fx", ll_speedup(r));
    if (mpi && r->has_mpi) table_cell(table, "%.2fx", ll_copy_speedup(r));
    if (mpi && !r->has_mpi) table_skip(table);
    table_verdict(table, r->verified);
}

/* Below its call, on GPUs: the copies by themselves, under the same columns. */
static void add_limit(struct table *table, const struct ll_result *r, const struct columns *columns)
{
    table_row(table);
    table_cell(table, "copy limit");
    add_shape_and_times(table, r, &r->copies[ll_least_copy(r)], NULL, columns);
    /* GB/s, messages, copy us, of copy, raw us, launch us */
    for (int i = 0; i < 5 + columns->trips; i++)
        table_skip(table);
    add_kernel(table, &r->limit);
    table_skip(table); /* verified with the call */
}

static void add_columns(struct table *table, const struct columns *columns)
{
    static const char *const times[] = {"median us", "min us", "p99 us"};
    table_column(table, "operation", TABLE_LEFT);
    table_column(table, "format", TABLE_LEFT);
    table_column(table, "tokens", TABLE_RIGHT);
    table_column(table, columns->cuda ? "SMs" : "threads", TABLE_RIGHT);
    if (columns->loops) table_column(table, "pattern", TABLE_LEFT);
    for (size_t i = 0; i < sizeof times / sizeof *times; i++)
        table_column(table, times[i], TABLE_RIGHT);
    if (columns->loops) table_column(table, "host us", TABLE_RIGHT);
    table_column(table, "GB/s", TABLE_RIGHT);
    table_column(table, "messages", TABLE_RIGHT);
    table_column(table, columns->nodes ? "puts us" : "copy us", TABLE_RIGHT);
    table_column(table, columns->nodes ? "of puts" : "of copy", TABLE_RIGHT);
    if (columns->nodes) {
        table_column(table, "net rows", TABLE_RIGHT);
        table_column(table, "net messages", TABLE_RIGHT);
        table_column(table, "net KB", TABLE_RIGHT);
    }
    if (columns->trips && !columns->cuda) table_column(table, "trip us", TABLE_RIGHT);
    if (columns->trips && !columns->nodes) table_column(table, "raw us", TABLE_RIGHT);
    if (columns->cuda) {
        table_column(table, "launch us", TABLE_RIGHT);
        table_column(table, "kernel us", TABLE_RIGHT);
        table_column(table, "start", TABLE_RIGHT);
        for (int i = 0; i < LL_SPANS; i++)
            table_column(table, ll_span_names[i], TABLE_RIGHT);
        table_column(table, "late", TABLE_RIGHT);
    }
    if (columns->mpi) table_column(table, "MPI us", TABLE_RIGHT);
    if (columns->mpi) table_column(table, "faster", TABLE_RIGHT);
    if (columns->mpi) table_column(table, columns->nodes ? "puts faster" : "copy faster", TABLE_RIGHT);
    table_column(table, "verified", TABLE_LEFT);
}

static bool print_table(const struct bench_world *world, const struct bench_options *o,
                        const struct ll_results *results)
{
    const struct columns columns = {.cuda = o->cuda,
                                    .trips = world->size > 1,
                                    .mpi = world->ll_baseline != NULL,
                                    .nodes = world->nodes > 1,
                                    .loops = bench_patterns_loop(o)};
    printf("low-latency mode, %d ranks", world->size);
    if (columns.nodes) printf(" on %d nodes", world->nodes);
    printf(", rows of %d elements, top-%d of %d experts, %s routing; median of %d iterations", o->hidden, o->topk,
           o->experts, o->routing, o->iters);
    if (columns.loops) printf("; of patterns: a call's share of %d loops of as many calls", BENCH_LOOPS);
    printf("\n\n");
    struct table *table = table_new();
    add_columns(table, &columns);
    for (int i = 0; i < results->count; i++) {
        add_result(table, &results->items[i], &columns);
        if (results->items[i].limit.known) add_limit(table, &results->items[i], &columns);
    }
    return table_print(table, stdout);
}

bool ll_report(const struct bench_world *world, const struct bench_options *options, const struct ll_results *results)
{
    if (options->format == BENCH_TABLE) return print_table(world, options, results);
    if (options->format == BENCH_JSON)
        ll_report_json(world, options, results);
    else
        print_csv(world, options, results);
    return true;
}

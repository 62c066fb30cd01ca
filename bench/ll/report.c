/* SPDX-License-Identifier: Apache-2.0 */
/* Results as CSV, or a table for a person, and what follows from the times. */
#include "bench/ll/session.h"
#include "table.h"
#include <math.h>
#include <stdio.h>

/* ---- what follows from the times --------------------------------------------------------------------------------- */

double ll_copy_limit_us(const struct ll_result *result)
{
    double least_us = result->num_copies ? result->copies[0].median_us : 0;
    for (int i = 1; i < result->num_copies; i++)
        least_us = fmin(least_us, result->copies[i].median_us);
    return least_us;
}

double ll_fraction_of_copy_limit(const struct ll_result *result)
{
    return result->expar.median_us > 0 ? ll_copy_limit_us(result) / result->expar.median_us : 0;
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
    const double limit_us = ll_copy_limit_us(result);
    return limit_us > 0 ? result->mpi.median_us / limit_us : 0;
}

/* ---- CSV --------------------------------------------------------------------------------------------------------- */

static void print_csv_row(const struct bench_options *o, int num_ranks, const struct ll_result *r)
{
    printf("%s,low_latency,%s,%s,%s,%s,direct,%d,%lld,%d,%d,%d,\"%s\",%.3f,%.3f,%.3f,%.0f,%.4f,%.1f,", r->op,
           r->sum ? r->sum : "", r->phase, r->format, expar_dtype_string(r->dtype), num_ranks, (long long)r->tokens,
           o->hidden, o->topk, o->experts, o->routing, r->expar.median_us, r->expar.min_us, r->expar.p99_us, r->bytes,
           ll_gbps(r), r->messages);
    if (r->num_copies)
        printf("%.3f,%.4f,", ll_copy_limit_us(r), ll_fraction_of_copy_limit(r));
    else
        printf(",,");
    if (r->has_trip)
        printf("%.4f,%.4f,", r->trip_us, r->raw_trip_us);
    else
        printf(",,");
    printf("%d,%d,", r->workers, r->verified);
    if (r->has_mpi)
        printf("%.3f,%.4f,%.4f\n", r->mpi.median_us, ll_speedup(r), ll_copy_speedup(r));
    else
        printf(",,\n");
}

static void print_csv(const struct bench_world *world, const struct bench_options *options,
                      const struct ll_results *results)
{
    printf("op,mode,sum,phase,format,dtype,path,ranks,tokens,hidden,topk,experts,routing,median_us,min_us,p99_us,bytes,"
           "gbps,messages,copy_limit_us,fraction_of_copy_limit,round_trip_us,raw_round_trip_us,threads,verified,mpi_us,"
           "speedup_over_mpi,copy_limit_speedup_over_mpi\n");
    for (int i = 0; i < results->count; i++)
        print_csv_row(options, world->size, &results->items[i]);
}

/* ---- table ------------------------------------------------------------------------------------------------------- */

static void add_head(struct table *table, const struct ll_result *r)
{
    const bool apart = r->phase[0] != 'c';
    table_row(table);
    table_cell(table, "%s%s%s%s%s", r->op, r->sum ? " " : "", r->sum ? r->sum : "", apart ? ", " : "",
               apart ? r->phase : "");
    table_cell(table, "%s", r->format);
    table_cell(table, "%lld", (long long)r->tokens);
    table_cell(table, "%d", r->workers);
    table_cell(table, "%.1f", r->expar.median_us);
    table_cell(table, "%.1f", r->expar.min_us);
    table_cell(table, "%.1f", r->expar.p99_us);
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

static void add_result(struct table *table, const struct ll_result *r, bool trips, bool mpi)
{
    add_head(table, r);
    add_pair(table, r->num_copies > 0, "%.1f", ll_copy_limit_us(r), "%.2f", ll_fraction_of_copy_limit(r));
    if (trips) add_pair(table, r->has_trip, "%.2f", r->trip_us, "%.2f", r->raw_trip_us);
    if (mpi) add_pair(table, r->has_mpi, "%.1f", r->mpi.median_us, "%.2fx", ll_speedup(r));
    if (mpi && r->has_mpi) table_cell(table, "%.2fx", ll_copy_speedup(r));
    if (mpi && !r->has_mpi) table_skip(table);
    table_verdict(table, r->verified);
}

static bool print_table(const struct bench_world *world, const struct bench_options *o,
                        const struct ll_results *results)
{
    static const char *const titles[] = {"tokens", "threads",  "median us", "min us", "p99 us",
                                         "GB/s",   "messages", "copy us",   "of copy"};
    const bool trips = world->size > 1, mpi = world->ll_baseline != NULL;
    printf("low-latency mode, %d ranks, rows of %d elements, top-%d of %d experts, %s routing; median of %d "
           "iterations\n\n",
           world->size, o->hidden, o->topk, o->experts, o->routing, o->iters);
    struct table *table = table_new();
    table_column(table, "operation", TABLE_LEFT);
    table_column(table, "format", TABLE_LEFT);
    for (size_t i = 0; i < sizeof titles / sizeof *titles; i++)
        table_column(table, titles[i], TABLE_RIGHT);
    if (trips) table_column(table, "trip us", TABLE_RIGHT);
    if (trips) table_column(table, "raw us", TABLE_RIGHT);
    if (mpi) table_column(table, "MPI us", TABLE_RIGHT);
    if (mpi) table_column(table, "faster", TABLE_RIGHT);
    if (mpi) table_column(table, "copy faster", TABLE_RIGHT);
    table_column(table, "verified", TABLE_LEFT);
    for (int i = 0; i < results->count; i++)
        add_result(table, &results->items[i], trips, mpi);
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

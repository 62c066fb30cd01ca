/* SPDX-License-Identifier: Apache-2.0 */
/* Results as CSV, or a table for a person, and what follows from the times. */
#include "bench.h"
#include <math.h>
#include <stdio.h>

/* ---- what follows from the times -------------------------------------------------------------------------------- */

double bench_copy_limit_us(const struct bench_result *result)
{
    double least_us = result->num_copies ? result->copies[0].median_us : 0;
    for (int i = 1; i < result->num_copies; i++)
        least_us = fmin(least_us, result->copies[i].median_us);
    return least_us;
}

double bench_fraction_of_copy_limit(const struct bench_result *result)
{
    return result->expar.median_us > 0 ? bench_copy_limit_us(result) / result->expar.median_us : 0;
}

double bench_gbps(const struct bench_result *result)
{
    return result->expar.median_us > 0 ? result->bytes / result->expar.median_us * 1e-3 : 0;
}

double bench_speedup(const struct bench_result *result)
{
    return result->expar.median_us > 0 ? result->mpi.median_us / result->expar.median_us : 0;
}

/* ---- words for the spans ---------------------------------------------------------------------------------------- */

const char *const bench_span_names[BENCH_SPANS] = {"layout", "hellos", "wait", "counts",
                                                   "gap",    "open",   "rows", "close"};

/* ---- CSV -------------------------------------------------------------------------------------------------------- */

static void print_csv_row(const struct bench_options *o, int num_ranks, const struct bench_result *r)
{
    printf("%s,normal,%s,%s,%d,%d,%lld,%d,%d,%d,\"%s\",%.3f,%.3f,%.3f,%.0f,%.4f,", r->op, expar_dtype_string(r->dtype),
           r->path, r->cached, num_ranks, (long long)r->tokens, o->hidden, o->topk, o->experts, o->routing,
           r->expar.median_us, r->expar.min_us, r->expar.p99_us, r->bytes, bench_gbps(r));
    if (r->num_copies)
        printf("%.3f,%.4f,", bench_copy_limit_us(r), bench_fraction_of_copy_limit(r));
    else
        printf(",,");
    printf("%d,%d,", r->workers, r->verified);
    if (r->has_mpi)
        printf("%.3f,%.4f\n", r->mpi.median_us, bench_speedup(r));
    else
        printf(",\n");
}

static void print_csv(const struct bench_world *world, const struct bench_options *options,
                      const struct bench_results *results)
{
    printf("op,mode,dtype,path,cached,ranks,tokens,hidden,topk,experts,routing,median_us,min_us,p99_us,bytes,gbps,"
           "copy_limit_us,fraction_of_copy_limit,%s,verified,mpi_us,speedup_over_mpi\n",
           world->device->workers);
    for (int i = 0; i < results->count; i++)
        print_csv_row(options, world->size, &results->items[i]);
}

/* ---- table ------------------------------------------------------------------------------------------------------ */

static void print_limit(const struct bench_result *r)
{
    if (r->num_copies)
        printf("%10.1f %8.2f  ", bench_copy_limit_us(r), bench_fraction_of_copy_limit(r));
    else
        printf("%10s %8s  ", "", "");
}

static void print_head(const struct bench_result *r)
{
    char op[32];
    snprintf(op, sizeof op, "%s%s", r->op, r->cached ? " cached" : "");
    printf("%-15s %-6s %-6s %7d %6lld ", op, r->path, expar_dtype_string(r->dtype), r->workers, (long long)r->tokens);
}

static void print_table_row(const struct bench_result *r, bool mpi)
{
    print_head(r);
    printf("%10.1f %10.1f %10.1f %8.2f ", r->expar.median_us, r->expar.min_us, r->expar.p99_us, bench_gbps(r));
    print_limit(r);
    if (mpi) printf("%10.1f %6.2fx  ", r->mpi.median_us, bench_speedup(r));
    printf("%s\n", r->verified ? "yes" : "NO");
}

static void print_titles(const struct bench_world *world)
{
    printf("%-15s %-6s %-6s %7s %6s ", "operation", "path", "dtype", world->device->workers, "tokens");
}

static void print_breakdown(const struct bench_result *r)
{
    print_head(r);
    for (int i = 0; i < BENCH_SPANS; i++)
        if (i < bench_first_span(&r->breakdown))
            printf(" %7s", "");
        else
            printf(" %7.1f", r->breakdown.us[i]);
    printf("\n");
}

/* A row for each result that has a breakdown; nothing where none has. */
static void print_breakdowns(const struct bench_world *world, const struct bench_results *results)
{
    bool any = false;
    for (int i = 0; i < results->count; i++)
        any |= results->items[i].has_breakdown;
    if (!any) return;
    printf("\nWhere the time of the last measured call went on rank 0, us\n\n");
    print_titles(world);
    for (int i = 0; i < BENCH_SPANS; i++)
        printf(" %7s", bench_span_names[i]);
    printf("\n");
    for (int i = 0; i < results->count; i++)
        if (results->items[i].has_breakdown) print_breakdown(&results->items[i]);
}

static void print_table(const struct bench_world *world, const struct bench_options *o,
                        const struct bench_results *results)
{
    bool mpi = results->count > 0 && results->items[0].has_mpi;
    printf("%d ranks, rows of %d elements, top-%d of %d experts, %s routing; median of %d iterations\n\n", world->size,
           o->hidden, o->topk, o->experts, o->routing, o->iters);
    print_titles(world);
    printf("%10s %10s %10s %8s %10s %8s  ", "median us", "min us", "p99 us", "GB/s", "copy us", "of copy");
    if (mpi) printf("%10s %7s  ", "MPI us", "faster");
    printf("verified\n");
    for (int i = 0; i < results->count; i++)
        print_table_row(&results->items[i], mpi);
    print_breakdowns(world, results);
}

void bench_report(const struct bench_world *world, const struct bench_options *options,
                  const struct bench_results *results)
{
    if (options->format == BENCH_JSON)
        bench_report_json(world, options, results);
    else if (options->format == BENCH_CSV)
        print_csv(world, options, results);
    else
        print_table(world, options, results);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Results as JSON, CSV, or a table for a person. */
#include "bench.h"
#include "machine.h"
#include <jansson.h>
#include <math.h>
#include <stdio.h>

struct report {
    const struct bench_options *options;
    int num_ranks, threads;
};

/* ---- what follows from the times -------------------------------------------------------------------------------- */

static double copy_limit_us(const struct bench_result *result)
{
    return fmin(result->copy.median_us, result->nt_copy.median_us);
}

static double fraction_of_copy_limit(const struct bench_result *result)
{
    return result->expar.median_us > 0 ? copy_limit_us(result) / result->expar.median_us : 0;
}

/* 10^9 bytes a second. */
static double gbps(const struct bench_result *result)
{
    return result->expar.median_us > 0 ? result->bytes / result->expar.median_us * 1e-3 : 0;
}

static double speedup(const struct bench_result *result)
{
    return result->expar.median_us > 0 ? result->mpi.median_us / result->expar.median_us : 0;
}

/* ---- JSON ------------------------------------------------------------------------------------------------------- */

static json_t *tokens_json(const struct bench_options *options)
{
    if (options->num_tokens == 1) return json_integer(options->tokens[0]);
    json_t *list = json_array();
    for (int i = 0; i < options->num_tokens; i++)
        json_array_append_new(list, json_integer(options->tokens[i]));
    return list;
}

static json_t *config_json(const struct report *report)
{
    const struct bench_options *o = report->options;
    static const char *const cached[] = {"no", "yes", "both"}, *const paths[] = {"auto", "direct", "queue"};
    return json_pack("{s:i, s:i, s:s, s:o, s:i, s:i, s:i, s:s, s:s, s:i, s:i, s:i, s:s, s:s, s:I}", "ranks",
                     report->num_ranks, "nodes", 1, "device", "cpu", "tokens", tokens_json(o), "hidden", o->hidden,
                     "topk", o->topk, "experts", o->experts, "dtype", expar_dtype_string(o->dtype), "routing",
                     o->routing, "iters", o->iters, "warmup", o->warmup, "threads", report->threads, "path",
                     o->all_paths ? "all" : paths[o->path], "cached", cached[o->cached], "seed", (json_int_t)o->seed);
}

static json_t *result_json(const struct report *report, const struct bench_result *r)
{
    json_t *json = json_pack("{s:s, s:s, s:s, s:s, s:b, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:i, s:b}",
                             "op", r->op, "mode", "normal", "dtype", expar_dtype_string(report->options->dtype), "path",
                             r->path, "cached", r->cached, "tokens", (json_int_t)r->tokens, "median_us",
                             r->expar.median_us, "min_us", r->expar.min_us, "p99_us", r->expar.p99_us, "bytes",
                             r->bytes, "gbps", gbps(r), "copy_limit_us", copy_limit_us(r), "memcpy_us",
                             r->copy.median_us, "nontemporal_us", r->nt_copy.median_us, "fraction_of_copy_limit",
                             fraction_of_copy_limit(r), "threads", report->threads, "verified", r->verified);
    if (r->has_mpi) {
        json_object_set_new(json, "mpi_us", json_real(r->mpi.median_us));
        json_object_set_new(json, "speedup_over_mpi", json_real(speedup(r)));
    }
    return json;
}

static void print_json(const struct report *report, const struct bench_result *results, int count)
{
    json_t *list = json_array();
    for (int i = 0; i < count; i++)
        json_array_append_new(list, result_json(report, &results[i]));
    json_t *object =
        json_pack("{s:o, s:o, s:o}", "machine", bench_machine(), "config", config_json(report), "results", list);
    json_dumpf(object, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(8));
    printf("\n");
    json_decref(object);
}

/* ---- CSV -------------------------------------------------------------------------------------------------------- */

static void print_csv(const struct report *report, const struct bench_result *results, int count)
{
    const struct bench_options *o = report->options;
    printf("op,mode,dtype,path,cached,ranks,tokens,hidden,topk,experts,routing,median_us,min_us,p99_us,bytes,gbps,"
           "copy_limit_us,fraction_of_copy_limit,threads,verified,mpi_us,speedup_over_mpi\n");
    for (int i = 0; i < count; i++) {
        const struct bench_result *r = &results[i];
        printf("%s,normal,%s,%s,%d,%d,%lld,%d,%d,%d,\"%s\",%.3f,%.3f,%.3f,%.0f,%.4f,%.3f,%.4f,%d,%d,", r->op,
               expar_dtype_string(o->dtype), r->path, r->cached, report->num_ranks, (long long)r->tokens, o->hidden,
               o->topk, o->experts, o->routing, r->expar.median_us, r->expar.min_us, r->expar.p99_us, r->bytes, gbps(r),
               copy_limit_us(r), fraction_of_copy_limit(r), report->threads, r->verified);
        if (r->has_mpi) printf("%.3f,%.4f", r->mpi.median_us, speedup(r));
        printf("%s\n", r->has_mpi ? "" : ",");
    }
}

/* ---- table ------------------------------------------------------------------------------------------------------ */

static void print_table_row(const struct bench_result *r, bool mpi)
{
    char op[32];
    snprintf(op, sizeof op, "%s%s", r->op, r->cached ? " cached" : "");
    printf("%-15s %-6s %6lld %10.1f %10.1f %10.1f %8.2f %10.1f %8.2f  ", op, r->path, (long long)r->tokens,
           r->expar.median_us, r->expar.min_us, r->expar.p99_us, gbps(r), copy_limit_us(r), fraction_of_copy_limit(r));
    if (mpi) printf("%10.1f %6.2fx  ", r->mpi.median_us, speedup(r));
    printf("%s\n", r->verified ? "yes" : "NO");
}

static void print_table(const struct report *report, const struct bench_result *results, int count)
{
    const struct bench_options *o = report->options;
    bool mpi = count > 0 && results[0].has_mpi;
    printf("%d ranks, %d thread%s each; %s rows of %d, top-%d of %d experts, %s routing; median of %d iterations\n\n",
           report->num_ranks, report->threads, report->threads == 1 ? "" : "s", expar_dtype_string(o->dtype), o->hidden,
           o->topk, o->experts, o->routing, o->iters);
    printf("%-15s %-6s %6s %10s %10s %10s %8s %10s %8s  ", "operation", "path", "tokens", "median us", "min us",
           "p99 us", "GB/s", "copy us", "of copy");
    if (mpi) printf("%10s %7s  ", "MPI us", "faster");
    printf("verified\n");
    for (int i = 0; i < count; i++)
        print_table_row(&results[i], mpi);
}

void bench_report(const struct bench_options *options, int num_ranks, int threads, const struct bench_result *results,
                  int count)
{
    struct report report = {.options = options, .num_ranks = num_ranks, .threads = threads};
    if (options->format == BENCH_JSON)
        print_json(&report, results, count);
    else if (options->format == BENCH_CSV)
        print_csv(&report, results, count);
    else
        print_table(&report, results, count);
}

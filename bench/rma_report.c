/* SPDX-License-Identifier: Apache-2.0 */
/* Results of `expar bench rma` as JSON, CSV, or a table for a person. */
#include "machine.h"
#include "rma.h"
#include <stdio.h>

/* 10^9 bytes a second; 0 where bytes are not counted. */
static double gbps(double bytes, const struct bench_times *times)
{
    return times->median_us > 0 ? bytes / times->median_us * 1e-3 : 0;
}

static double fraction(const struct bench_times *of, const struct rma_result *result)
{
    return result->expar.median_us > 0 ? of->median_us / result->expar.median_us : 0;
}

/* ---- JSON ------------------------------------------------------------------------------------------------------- */

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

static void print_json(const struct bench_options *options, const struct rma_transport_note *notes,
                       const struct rma_result *results, int count)
{
    json_t *sizes = json_array(), *list = json_array();
    for (int i = 0; i < options->rma.num_sizes; i++)
        json_array_append_new(sizes, json_integer((json_int_t)options->rma.sizes_bytes[i]));
    for (int i = 0; i < count; i++)
        json_array_append_new(list, result_json(&results[i], options->num_ranks));
    json_t *config = json_pack("{s:i, s:i, s:s, s:o, s:s, s:o, s:i, s:i, s:I}", "ranks", options->num_ranks, "nodes",
                               options->nodes, "device", "cpu", "sizes", sizes, "ops",
                               options->rma.ops ? options->rma.ops : "all", "transports", transports_json(notes),
                               "iters", options->iters, "warmup", options->warmup, "seed", (json_int_t)options->seed);
    json_t *object = json_pack("{s:o, s:o, s:o}", "machine", bench_machine(), "config", config, "results", list);
    json_dumpf(object, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(8));
    printf("\n");
    json_decref(object);
}

/* ---- CSV -------------------------------------------------------------------------------------------------------- */

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

/* ---- table ------------------------------------------------------------------------------------------------------ */

static void print_row(const struct rma_result *r)
{
    printf("%-10s %-11s %-7s %9zu %11.3f %11.3f %11.3f ", r->op, r->metric, r->transport, r->bytes, r->expar.median_us,
           r->expar.min_us, r->expar.p99_us);
    if (r->moved_bytes > 0)
        printf("%8.2f ", gbps(r->moved_bytes, &r->expar));
    else
        printf("%8s ", "");
    if (r->has_base)
        printf("%11.3f %11.3f %6.2f ", r->base.median_us, r->base.min_us, fraction(&r->base, r));
    else
        printf("%11s %11s %6s ", "", "", "");
    if (r->has_flag)
        printf("%9.3f ", r->flag.median_us);
    else
        printf("%9s ", "");
    printf("%s\n", r->verified ? "yes" : "NO");
}

static void print_table(const struct bench_options *options, const struct rma_transport_note *notes,
                        const struct rma_result *results, int count)
{
    printf("%d ranks on %d node%s; median of %d turns\n", options->num_ranks, options->nodes,
           options->nodes == 1 ? "" : "s", options->iters);
    for (; notes->name; notes++)
        printf("%s: %s\n", notes->name, notes->text);
    printf("\n%-10s %-11s %-7s %9s %11s %11s %11s %8s %11s %11s %6s %9s %s\n", "operation", "measure", "by", "bytes",
           "median us", "min us", "p99 us", "GB/s", "baseline us", "its min us", "of it", "flag us", "verified");
    for (int i = 0; i < count; i++)
        print_row(&results[i]);
}

void rma_report(const struct bench_options *options, const struct rma_transport_note *notes,
                const struct rma_result *results, int count)
{
    if (options->format == BENCH_JSON)
        print_json(options, notes, results, count);
    else if (options->format == BENCH_CSV)
        print_csv(options, results, count);
    else
        print_table(options, notes, results, count);
}

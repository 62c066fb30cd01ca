/* SPDX-License-Identifier: Apache-2.0 */
/* Output of low-latency mode. */
#include "bench/frame/report.h"
#include "bench/frame/json.h"
#include "bench/low_latency/format.h"
#include "bench/low_latency/late.h"
#include "bench/low_latency/mode.h"
#include <stdio.h>

/* Fields whose names have a suffix, for the numbers from `at` on (AT_LIMIT: the copy roofline's). */
#define SPANS(prefix, suffix, at, decimals)                                                                            \
    FIELD(prefix "send" suffix, NUMBER, (at) + AT_SPANS + LL_SEND, decimals, ON_GPU, .drop = 3),                       \
        FIELD(prefix "warps" suffix, NUMBER, (at) + AT_SPANS + LL_WARPS, decimals, ON_GPU, .drop = 3),                 \
        FIELD(prefix "ranks" suffix, NUMBER, (at) + AT_SPANS + LL_RANKS, decimals, ON_GPU, .drop = 3),                 \
        FIELD(prefix "wire" suffix, NUMBER, (at) + AT_SPANS + LL_WIRE, decimals, ON_GPU, .drop = 3),                   \
        FIELD(prefix "place" suffix, NUMBER, (at) + AT_SPANS + LL_PLACE, decimals, ON_GPU, .drop = 3),                 \
        FIELD(prefix "close" suffix, NUMBER, (at) + AT_SPANS + LL_CLOSE, decimals, ON_GPU, .drop = 3)
#define CSV_KERNEL(prefix, at)                                                                                         \
    FIELD(prefix "kernel_us", NUMBER, (at) + AT_KERNEL, 4, ON_GPU),                                                    \
        FIELD(prefix "start_us", NUMBER, (at) + AT_START, 4, ON_GPU), SPANS(prefix, "_us", at, 4),                     \
        FIELD(prefix "late_rank", COUNT, (at) + AT_LATE_RANK, 0, ON_GPU)
#define JSON_KERNEL(prefix, at)                                                                                        \
    FIELD(prefix "kernel_us", NUMBER, (at) + AT_KERNEL), FIELD(prefix "breakdown.start_us", NUMBER, (at) + AT_START),  \
        SPANS(prefix "breakdown.", "_us", at, 0),                                                                      \
        FIELD(prefix "breakdown.late_rank", COUNT, (at) + AT_LATE_RANK, .or_null = true)

static const struct bench_field csv[] = {
    FIELD("op", WORD, WORD_OP),
    FIELD("mode", WORD, WORD_MODE),
    FIELD("sum", WORD, WORD_SUM),
    FIELD("phase", WORD, WORD_PHASE),
    FIELD("format", WORD, WORD_FORMAT),
    FIELD("dtype", WORD, WORD_DTYPE),
    FIELD("path", WORD, WORD_PATH),
    FIELDS_CSV_SHAPE,
    FIELD("messages", NUMBER, AT_MESSAGES, 1),
    FIELDS_CSV_LIMIT,
    FIELD("round_trip_us", NUMBER, AT_TRIP, 4),
    FIELD("raw_round_trip_us", NUMBER, AT_RAW_TRIP, 4),
    FIELD(NULL, COUNT, AT_WORKERS),
    FIELD("verified", FLAG, AT_VERIFIED),
    FIELD("launch_us", NUMBER, AT_LAUNCH, 4, ON_GPU),
    CSV_KERNEL("", 0),
    CSV_KERNEL("copy_limit_", AT_LIMIT),
    FIELD("mpi_us", NUMBER, AT_MPI, 3, ON_CPU),
    FIELD("speedup_over_mpi", NUMBER, AT_SPEEDUP, 4, ON_CPU),
    FIELD("copy_limit_speedup_over_mpi", NUMBER, AT_LIMIT_SPEEDUP, 4, ON_CPU | ON_NODE),
    FIELD("network_limit_speedup_over_mpi", NUMBER, AT_LIMIT_SPEEDUP, 4, ON_CPU | ON_NODES),
    FIELD("nodes", COUNT, AT_NODES, 0, ON_NODES),
    FIELD("network_bytes", NUMBER, AT_NET_BYTES, 4, ON_NODES),
    FIELD("network_messages", NUMBER, AT_NET_MESSAGES, 4, ON_NODES),
    FIELD("network_flags", NUMBER, AT_NET_FLAGS, 4, ON_NODES),
    FIELD("network_rows", NUMBER, AT_NET_ROWS, 4, ON_NODES),
    FIELD("pattern", WORD, WORD_PATTERN, 0, WITH_LOOPS),
    FIELD("host_us", NUMBER, AT_HOST, 4, WITH_LOOPS),
    FIELD("host_p99_us", NUMBER, AT_HOST_P99, 4, WITH_LOOPS),
    FIELDS_CSV_PERIOD,
    {0},
};

static const struct bench_field json[] = {
    FIELD("op", WORD, WORD_OP),
    FIELD("mode", WORD, WORD_MODE),
    FIELD("sum", WORD, WORD_SUM, .or_null = true),
    FIELD("phase", WORD, WORD_PHASE),
    FIELD("format", WORD, WORD_FORMAT),
    FIELD("dtype", WORD, WORD_DTYPE),
    FIELD("path", WORD, WORD_PATH),
    FIELDS_JSON_TIMES,
    FIELD("messages", NUMBER, AT_MESSAGES),
    FIELD("pattern", WORD, WORD_PATTERN),
    FIELDS_JSON_HOST,
    FIELDS_JSON_PERIOD,
    FIELD("copy_limit_us", NUMBER, AT_COPY_LIMIT, .or_null = true),
    FIELD("copies_us", COPIES, 0, 0, ON_NODE),
    FIELD("puts_us", COPIES, 0, 0, ON_NODES),
    FIELD("fraction_of_copy_limit", NUMBER, AT_COPY_FRACTION, .or_null = true),
    FIELDS_JSON_NETWORK_LIMIT,
    FIELDS_JSON_NETWORK,
    FIELD("round_trip_us", NUMBER, AT_TRIP, .or_null = true),
    FIELD("raw_round_trip_us", NUMBER, AT_RAW_TRIP, .or_null = true),
    FIELD(NULL, COUNT, AT_WORKERS),
    FIELD("verified", FLAG, AT_VERIFIED),
    FIELD("launch_us", NUMBER, AT_LAUNCH, 0, ON_GPU),
    JSON_KERNEL("", 0),
    JSON_KERNEL("copy_limit_", AT_LIMIT),
    FIELD("mpi_us", NUMBER, AT_MPI),
    FIELD("speedup_over_mpi", NUMBER, AT_SPEEDUP),
    FIELD("copy_limit_speedup_over_mpi", NUMBER, AT_LIMIT_SPEEDUP, 0, ON_NODE),
    FIELD("network_limit_speedup_over_mpi", NUMBER, AT_LIMIT_SPEEDUP, 0, ON_NODES),
    {0},
};

static const struct bench_field results[] = {
    FIELD("operation", WORD, WORD_OPERATION),
    FIELD("format", WORD, WORD_FORMAT, .drop = 13),
    FIELD("tokens", COUNT, AT_TOKENS),
    FIELD("SMs", COUNT, AT_WORKERS, 0, ON_GPU, .drop = 7),
    FIELD("threads", COUNT, AT_WORKERS, 0, ON_CPU, .drop = 4),
    FIELD("pattern", WORD, WORD_PATTERN, 0, WITH_LOOPS, .drop = 13),
    FIELDS_TABLE_TIMES,
    FIELDS_TABLE_PERIOD,
    FIELD("messages", NUMBER, AT_MESSAGES, 1, .drop = 5, .legend = "of a call and rank, the mean over ranks"),
    FIELDS_TABLE_LIMIT,
    FIELDS_TABLE_BARS,
    FIELD("net rows", NUMBER, AT_NET_ROWS, 1, ON_NODES, .drop = 4),
    FIELD("net messages", NUMBER, AT_NET_MESSAGES, 1, ON_NODES, .drop = 4),
    FIELD("net KB", NUMBER, AT_NET_KB, 1, ON_NODES, .drop = 4, .legend = "what a call of a rank sends to other nodes"),
    FIELD("trip us", NUMBER, AT_TRIP, 2, ON_CPU | WITH_TRIPS, .drop = 7,
          .legend = "a flag from rank 0 to another and back, by the library's signals"),
    FIELD("raw us", NUMBER, AT_RAW_TRIP, 2, ON_NODE | WITH_TRIPS, .drop = 7,
          .legend = "the same by bare stores and loads"),
    FIELD("launch us", NUMBER, AT_LAUNCH, 2, ON_GPU, .drop = 4, .legend = "an empty kernel"),
    FIELDS_TABLE_MPI,
    FIELD("verified", FLAG, AT_VERIFIED, .drop = 15, .legend = "whether every byte was right"),
    {0},
};

static const struct bench_field breakdowns[] = {
    FIELD("operation", WORD, WORD_OPERATION),
    FIELD("format", WORD, WORD_FORMAT, .drop = 2),
    FIELD("tokens", COUNT, AT_TOKENS),
    FIELD("median us", NUMBER, AT_MEDIAN, 1, .drop = 4),
    FIELD("min us", NUMBER, AT_MIN, 1, .drop = 1),
    FIELD("p99 us", NUMBER, AT_P99, 1, .drop = 1),
    FIELD("kernel us", NUMBER, AT_KERNEL, 1,
          .legend = "from the first warp's start to the end, on the slowest rank; it is the sum of send to close"),
    FIELD("start", NUMBER, AT_START, 1, .drop = 2, .legend = "when the last warp began"),
    SPANS("", "", 0, 1),
    FIELD("late", COUNT, AT_LATE_RANK, 0, .drop = 2, .legend = "the rank that was the last to send most often"),
    {0},
};

static const struct bench_table tables[] = {
    {.fields = results, .needs = -1},
    {"Where the time of calls and of the copy limit's kernel goes on all ranks, us, and which rank is late", breakdowns,
     AT_KERNEL, true},
};

/* Names the operation of a row, and says if it is not one call. */
static void name_operation(struct bench_view *view, size_t bytes)
{
    const struct bench_result *r = view->result;
    const bool apart = r->phase[0] != 'c';
    snprintf(view->operation, bytes, "%s%s%s%s%s", r->op, r->sum ? " " : "", r->sum ? r->sum : "", apart ? ", " : "",
             apart ? r->phase : "");
    view->words[WORD_OPERATION] = view->operation;
}

/* Shows the copies as their own row. They are verified with the call. */
static void view_limit(const struct bench_world *world, const struct bench_view *call, struct bench_view *limit)
{
    const struct bench_times *times = &call->result->copies[bench_least_copy(call->result)];
    (void)world;
    limit->words[WORD_FORMAT] = call->words[WORD_FORMAT];
    limit->numbers[AT_MEDIAN] = times->median_us;
    limit->numbers[AT_MIN] = times->min_us;
    limit->numbers[AT_P99] = times->p99_us;
}

static json_t *formats_json(const struct bench_options *options)
{
    struct bench_rows rows[BENCH_MAX_DTYPES * BENCH_MAX_FORMATS];
    json_t *list = json_array();
    const int all = options->ll.num_formats ? options->ll.num_formats : ll_list_rows(options, rows);
    for (int i = 0; i < all; i++) {
        const struct ll_format *format = options->ll.num_formats ? &ll_formats[options->ll.formats[i]] : rows[i].format;
        json_array_append_new(list, json_string(format->name));
    }
    return bench_json_one_or_list(list);
}

static void config_of_rows(const struct bench_options *options, json_t *config)
{
    static const char *const hooks[] = {"no", "yes", "both"};
    const char *sum = !options->ll.exact ? "reduced" : !options->ll.reduced ? "exact" : "both";
    json_object_set_new(config, "format", formats_json(options));
    json_object_set_new(config, "sum", json_string(sum));
    json_object_set_new(config, "hook", json_string(hooks[options->ll.phases]));
}

const struct bench_report ll_report = {
    .csv = csv,
    .json = json,
    .tables = tables,
    .num_tables = sizeof tables / sizeof *tables,
    .name_operation = name_operation,
    .view_limit = view_limit,
    .config_of_rows = config_of_rows,
};

/* SPDX-License-Identifier: Apache-2.0 */
/* Output of normal mode. */
#include "bench/frame/report.h"
#include "bench/normal/late.h"
#include "bench/normal/mode.h"
#include <stdio.h>
#include <string.h>

/* Names with a suffix, of numbers from `at` on (AT_LIMIT: the copy roofline's). */
#define NOTIFY_SPANS(prefix, suffix)                                                                                   \
    FIELD(prefix "layout" suffix, NUMBER, AT_SPANS + BENCH_LAYOUT, 1, .drop = 8),                                      \
        FIELD(prefix "headers" suffix, NUMBER, AT_SPANS + BENCH_HEADERS, 1, .drop = 8),                                \
        FIELD(prefix "wait" suffix, NUMBER, AT_SPANS + BENCH_WAIT, 1, .drop = 8),                                      \
        FIELD(prefix "counts" suffix, NUMBER, AT_SPANS + BENCH_COUNTS, 1, .drop = 8),                                  \
        FIELD(prefix "gap" suffix, NUMBER, AT_SPANS + BENCH_GAP, 1, .drop = 8)
#define KERNEL_SPANS(prefix, suffix, at)                                                                               \
    FIELD(prefix "open" suffix, NUMBER, (at) + AT_SPANS + BENCH_OPEN, 1, .drop = 8),                                   \
        FIELD(prefix "rows" suffix, NUMBER, (at) + AT_SPANS + BENCH_ROWS, 1, .drop = 8),                               \
        FIELD(prefix "warps" suffix, NUMBER, (at) + AT_SPANS + BENCH_WARPS, 1, .drop = 8),                             \
        FIELD(prefix "ranks" suffix, NUMBER, (at) + AT_SPANS + BENCH_RANKS, 1, .drop = 8),                             \
        FIELD(prefix "close" suffix, NUMBER, (at) + AT_SPANS + BENCH_CLOSE, 1, .drop = 8)

static const struct bench_field csv[] = {
    FIELD("op", WORD, WORD_OP),
    FIELD("mode", WORD, WORD_MODE),
    FIELD("dtype", WORD, WORD_DTYPE),
    FIELD("path", WORD, WORD_PATH),
    FIELD("cached", FLAG, AT_CACHED),
    FIELDS_CSV_SHAPE,
    FIELDS_CSV_LIMIT,
    FIELD(NULL, COUNT, AT_WORKERS),
    FIELD("verified", FLAG, AT_VERIFIED),
    FIELD("mpi_us", NUMBER, AT_MPI, 3),
    FIELD("speedup_over_mpi", NUMBER, AT_SPEEDUP, 4),
    FIELD("nodes", COUNT, AT_NODES, 0, ON_NODES),
    FIELD("node_path", WORD, WORD_INSIDE_PATH, 0, ON_NODES),
    FIELD("network_bytes", NUMBER, AT_NET_BYTES, 0, ON_NODES),
    FIELD("network_messages", NUMBER, AT_NET_MESSAGES, 0, ON_NODES),
    FIELD("network_flags", NUMBER, AT_NET_FLAGS, 0, ON_NODES),
    FIELD("network_rows", NUMBER, AT_NET_ROWS, 0, ON_NODES),
    FIELD("node_bytes", NUMBER, AT_NODE_BYTES, 0, ON_NODES),
    FIELD("node_rows", NUMBER, AT_NODE_ROWS, 0, ON_NODES),
    FIELD("pattern", WORD, WORD_PATTERN, 0, WITH_LOOPS),
    FIELD("host_us", NUMBER, AT_HOST, 3, WITH_LOOPS),
    FIELD("host_p99_us", NUMBER, AT_HOST_P99, 3, WITH_LOOPS),
    FIELDS_CSV_PERIOD,
    {0},
};

#define BUFFER(object, at)                                                                                             \
    FIELD(object ".growths", COUNT, (at)), FIELD(object ".direct_calls", COUNT, (at) + 1),                             \
        FIELD(object ".queue_calls", COUNT, (at) + 2), FIELD(object ".other_blocks", COUNT, (at) + 3),                 \
        FIELD(object ".used_high_bytes", COUNT, (at) + 4), FIELD(object ".reserved_high_bytes", COUNT, (at) + 5)

static const struct bench_field json[] = {
    FIELD("op", WORD, WORD_OP),
    FIELD("mode", WORD, WORD_MODE),
    FIELD("dtype", WORD, WORD_DTYPE),
    FIELD("path", WORD, WORD_PATH),
    FIELD("cached", FLAG, AT_CACHED),
    FIELDS_JSON_TIMES,
    FIELD("pattern", WORD, WORD_PATTERN),
    FIELD("copy_limit_us", NUMBER, AT_COPY_LIMIT, .or_null = true),
    FIELD("fraction_of_copy_limit", NUMBER, AT_COPY_FRACTION, .or_null = true),
    FIELD(NULL, COPIES, 0),
    FIELDS_JSON_NETWORK_LIMIT,
    FIELDS_JSON_HOST,
    FIELDS_JSON_PERIOD,
    BUFFER("buffer_before", AT_BUFFER_BEFORE),
    BUFFER("buffer_after", AT_BUFFER_AFTER),
    FIELD(NULL, COUNT, AT_WORKERS),
    FIELD("verified", FLAG, AT_VERIFIED),
    FIELD("kernel_us", NUMBER, AT_KERNEL),
    NOTIFY_SPANS("breakdown.", "_us"),
    KERNEL_SPANS("breakdown.", "_us", 0),
    FIELD("breakdown.late_rank", COUNT, AT_LATE_RANK),
    FIELD("copy_limit_kernel_us", NUMBER, AT_LIMIT + AT_KERNEL),
    KERNEL_SPANS("copy_limit_breakdown.", "_us", AT_LIMIT),
    FIELD("copy_limit_breakdown.late_rank", COUNT, AT_LIMIT + AT_LATE_RANK),
    FIELDS_JSON_NETWORK,
    FIELD("node.bytes", NUMBER, AT_NODE_BYTES),
    FIELD("node.rows", NUMBER, AT_NODE_ROWS),
    FIELD("node.path", WORD, WORD_NODE_PATH),
    FIELD("mpi_us", NUMBER, AT_MPI),
    FIELD("speedup_over_mpi", NUMBER, AT_SPEEDUP),
    {0},
};

/* The start of each line of each table. */
#define TABLE_HEAD                                                                                                     \
    FIELD("operation", WORD, WORD_OPERATION), FIELD("path", WORD, WORD_INSIDE_PATH, .drop = 5),                        \
        FIELD("dtype", WORD, WORD_DTYPE, .drop = 7), FIELD(NULL, COUNT, AT_WORKERS, .drop = 4),                        \
        FIELD("tokens", COUNT, AT_TOKENS)

static const struct bench_field results[] = {
    TABLE_HEAD,
    FIELD("pattern", WORD, WORD_PATTERN, 0, WITH_LOOPS, .drop = 13),
    FIELDS_TABLE_TIMES,
    FIELDS_TABLE_PERIOD,
    FIELDS_TABLE_LIMIT,
    FIELDS_TABLE_BARS,
    FIELDS_TABLE_MPI,
    FIELD("verified", FLAG, AT_VERIFIED, .drop = 15, .legend = "whether every byte was right"),
    {0},
};

static const struct bench_field breakdowns[] = {
    TABLE_HEAD,
    NOTIFY_SPANS("", ""),
    FIELD("kernel", NUMBER, AT_KERNEL, 1),
    KERNEL_SPANS("", "", 0),
    FIELD("late", COUNT, AT_LATE_RANK),
    {0},
};

static const struct bench_field traffic[] = {
    TABLE_HEAD,
    FIELD("net rows", NUMBER, AT_NET_ROWS, 1),
    FIELD("net messages", NUMBER, AT_NET_MESSAGES, 1),
    FIELD("net flags", NUMBER, AT_NET_FLAGS, 1),
    FIELD("net KB", NUMBER, AT_NET_KB, 1),
    FIELD("node rows", NUMBER, AT_NODE_ROWS, 1),
    FIELD("node KB", NUMBER, AT_NODE_KB, 1),
    {0},
};

static const struct bench_table tables[] = {
    {.fields = results, .needs = -1},
    {"Where the time of calls and of the copy limit's kernel goes on all ranks, us, and which rank is late", breakdowns,
     AT_KERNEL, true},
    {"What a call of a rank sends to other nodes, as counted at the provider, and moves inside its own; mean over "
     "ranks",
     traffic, AT_NET_ROWS, false},
};

static void name_operation(struct bench_view *view, size_t bytes)
{
    snprintf(view->operation, bytes, "%s%s", view->result->op, view->result->cached ? " cached" : "");
    view->words[WORD_OPERATION] = view->operation;
}

/* Shows the copies under the name of their way: "push" of "push_us". */
static void view_limit(const struct bench_world *world, const struct bench_view *call, struct bench_view *limit)
{
    const char *copy = world->device->copies[bench_least_copy(call->result)];
    snprintf(limit->operation, sizeof limit->operation, "%.*s", (int)strcspn(copy, "_"), copy);
    limit->words[WORD_INSIDE_PATH] = limit->operation;
    limit->words[WORD_DTYPE] = call->words[WORD_DTYPE];
}

static void config_of_calls(const struct bench_options *options, json_t *config)
{
    static const char *const cached[] = {"no", "yes", "both"}, *const paths[] = {"auto", "direct", "queue"};
    json_object_set_new(config, "path", json_string(options->all_paths ? "all" : paths[options->path]));
    json_object_set_new(config, "cached", json_string(cached[options->cached]));
}

const struct bench_report normal_report = {
    .csv = csv,
    .json = json,
    .tables = tables,
    .num_tables = sizeof tables / sizeof *tables,
    .name_operation = name_operation,
    .view_limit = view_limit,
    .config_of_calls = config_of_calls,
};

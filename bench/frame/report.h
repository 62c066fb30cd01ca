/* SPDX-License-Identifier: Apache-2.0 */
/* report: results as a table, CSV or JSON. A mode lists the fields of each, in their order; report.c and json.c print
 * them. */
#ifndef EXPAR_BENCH_FRAME_REPORT_H
#define EXPAR_BENCH_FRAME_REPORT_H

#include "bench/frame/results.h"
#include <jansson.h>

struct bench_mode;

/* ---- a result as it is printed ----------------------------------------------------------------------------------- */

/* Words; NULL: none. */
enum bench_word {
    WORD_OP,
    WORD_OPERATION, /* op, and what tells calls of it apart */
    WORD_MODE,
    WORD_SUM,
    WORD_PHASE,
    WORD_FORMAT,
    WORD_DTYPE,
    WORD_PATH,        /* "network" across nodes */
    WORD_INSIDE_PATH, /* inside a node */
    WORD_NODE_PATH,   /* the same, where traffic is counted */
    WORD_ROUTING,
    WORD_PATTERN,
    VIEW_WORDS
};

/* Numbers; NAN: none. */
enum bench_number {
    AT_CACHED,
    AT_RANKS,
    AT_NODES,
    AT_TOKENS,
    AT_HIDDEN,
    AT_TOPK,
    AT_EXPERTS,
    AT_WORKERS,
    AT_VERIFIED,
    AT_MEDIAN,
    AT_MIN,
    AT_P99,
    AT_PERIOD, /* of pairs */
    AT_GAP,
    AT_DISPATCH_FLOOR,
    AT_COMBINE_FLOOR,
    AT_DRIFT,
    AT_HOST, /* of loops */
    AT_HOST_P99,
    AT_BYTES,
    AT_GBPS,
    AT_BUS_GBPS,
    AT_SLOWEST, /* of ranks' own times */
    AT_SLOWEST_RANK,
    AT_MEAN_RANK,
    AT_SPREAD,
    AT_MESSAGES,
    AT_COPY_LIMIT, /* on one node */
    AT_COPY_FRACTION,
    AT_NETWORK_LIMIT, /* across nodes */
    AT_NETWORK_FRACTION,
    AT_MPI,
    AT_SPEEDUP,
    AT_LIMIT_SPEEDUP,
    AT_TRIP,
    AT_RAW_TRIP,
    AT_LAUNCH,
    AT_NET_BYTES,
    AT_NET_KB,
    AT_NET_MESSAGES,
    AT_NET_FLAGS,
    AT_NET_ROWS,
    AT_NODE_BYTES,
    AT_NODE_KB,
    AT_NODE_ROWS,
    AT_BUFFER_BEFORE, /* as struct bench_buffer */
    AT_BUFFER_AFTER = AT_BUFFER_BEFORE + 6,
    AT_KERNEL = AT_BUFFER_AFTER + 6, /* as struct bench_breakdown */
    AT_START,
    AT_LATE_RANK,
    AT_SPANS,
    AT_LIMIT = AT_SPANS + BENCH_MOST_SPANS - AT_KERNEL, /* AT_LIMIT + AT_KERNEL …: the same of the copy roofline */
    VIEW_NUMBERS = AT_LIMIT + AT_SPANS + BENCH_MOST_SPANS
};

struct bench_view {
    const struct bench_result *result;
    const char *words[VIEW_WORDS];
    double numbers[VIEW_NUMBERS];
    char operation[64];
};

/* ---- what is printed of it --------------------------------------------------------------------------------------- */

enum bench_field_kind {
    FIELD_END,
    FIELD_WORD,
    FIELD_QUOTED, /* in CSV */
    FIELD_NUMBER,
    FIELD_TIMES, /* 2.00x */
    FIELD_PERCENT,
    FIELD_BAR, /* in tables */
    FIELD_COUNT,
    FIELD_FLAG,
    FIELD_COPIES /* in JSON: a list, or, without a name, each by the device's */
};

/* The runs that have a field: all named conditions must hold. */
enum {
    ON_CPU = 1,
    ON_GPU = 2,
    ON_NODE = 4,
    ON_NODES = 8,
    WITH_LOOPS = 16,
    WITH_TRIPS = 32,
    WITH_MPI = 64,
    WITH_PERIOD = 128
};

struct bench_field {
    const char *name; /* NULL: the device's word for workers. In JSON "a.b" is b in an object a */
    enum bench_field_kind kind;
    int at; /* of enum bench_word or enum bench_number */
    int decimals;
    unsigned when;
    bool or_null; /* in JSON: null where there is none, and in an object only if that is there */
    /* In tables: when the column drops (table_drop), and the words that explain it (table_legend). */
    int drop;
    const char *legend;
};

#define FIELD(word, form, ...)                                                                                         \
    {                                                                                                                  \
        .name = word, .kind = FIELD_##form, .at = __VA_ARGS__                                                          \
    }

/* A table of results. */
struct bench_table {
    const char *heading; /* NULL: none */
    const struct bench_field *fields;
    int needs;   /* a number that results in it have; -1: all are */
    bool limits; /* below a call stands its copy roofline, where its kernel's time is known */
};

struct bench_report {
    const struct bench_field *csv, *json;
    const struct bench_table *tables;
    int num_tables;
    /* Names calls of one operation differently. */
    void (*name_operation)(struct bench_view *view, size_t bytes);
    /* The copy roofline's view begins as its call's, without numbers but these. */
    void (*view_limit)(const struct bench_world *world, const struct bench_view *call, struct bench_view *limit);
    /* Options beside those of both modes: for rows, and for calls; NULL: nothing. */
    void (*config_of_rows)(const struct bench_options *options, json_t *config);
    void (*config_of_calls)(const struct bench_options *options, json_t *config);
};

/* These fields are in the CSV of both modes. */
#define FIELDS_CSV_SHAPE                                                                                               \
    FIELD("ranks", COUNT, AT_RANKS), FIELD("tokens", COUNT, AT_TOKENS), FIELD("hidden", COUNT, AT_HIDDEN),             \
        FIELD("topk", COUNT, AT_TOPK), FIELD("experts", COUNT, AT_EXPERTS), FIELD("routing", QUOTED, WORD_ROUTING),    \
        FIELD("median_us", NUMBER, AT_MEDIAN, 3), FIELD("min_us", NUMBER, AT_MIN, 3),                                  \
        FIELD("p99_us", NUMBER, AT_P99, 3), FIELD("bytes", NUMBER, AT_BYTES, 0), FIELD("gbps", NUMBER, AT_GBPS, 4),    \
        FIELD("bus_gbps", NUMBER, AT_BUS_GBPS, 4), FIELD("slowest_rank_us", NUMBER, AT_SLOWEST, 3),                    \
        FIELD("mean_rank_us", NUMBER, AT_MEAN_RANK, 3), FIELD("spread", NUMBER, AT_SPREAD, 4)
#define FIELDS_CSV_LIMIT                                                                                               \
    FIELD("copy_limit_us", NUMBER, AT_COPY_LIMIT, 3, ON_NODE),                                                         \
        FIELD("fraction_of_copy_limit", NUMBER, AT_COPY_FRACTION, 4, ON_NODE),                                         \
        FIELD("network_limit_us", NUMBER, AT_NETWORK_LIMIT, 3, ON_NODES),                                              \
        FIELD("fraction_of_network_limit", NUMBER, AT_NETWORK_FRACTION, 4, ON_NODES)
/* These fields are in the JSON of both modes. */
#define FIELDS_JSON_TIMES                                                                                              \
    FIELD("tokens", COUNT, AT_TOKENS), FIELD("median_us", NUMBER, AT_MEDIAN), FIELD("min_us", NUMBER, AT_MIN),         \
        FIELD("p99_us", NUMBER, AT_P99), FIELD("spread", NUMBER, AT_SPREAD),                                           \
        FIELD("slowest_rank_us", NUMBER, AT_SLOWEST, .or_null = true), FIELD("slowest_rank", COUNT, AT_SLOWEST_RANK),  \
        FIELD("mean_rank_us", NUMBER, AT_MEAN_RANK), FIELD("bytes", COUNT, AT_BYTES), FIELD("gbps", NUMBER, AT_GBPS),  \
        FIELD("bus_gbps", NUMBER, AT_BUS_GBPS, .or_null = true)
#define FIELDS_JSON_PERIOD                                                                                             \
    FIELD("pair_period_us", NUMBER, AT_PERIOD), FIELD("gap_us", NUMBER, AT_GAP),                                       \
        FIELD("dispatch_floor_us", NUMBER, AT_DISPATCH_FLOOR), FIELD("combine_floor_us", NUMBER, AT_COMBINE_FLOOR),    \
        FIELD("drift", NUMBER, AT_DRIFT)
#define FIELDS_CSV_PERIOD                                                                                              \
    FIELD("pair_period_us", NUMBER, AT_PERIOD, 3, WITH_PERIOD), FIELD("gap_us", NUMBER, AT_GAP, 3, WITH_PERIOD),       \
        FIELD("dispatch_floor_us", NUMBER, AT_DISPATCH_FLOOR, 3, WITH_PERIOD),                                         \
        FIELD("combine_floor_us", NUMBER, AT_COMBINE_FLOOR, 3, WITH_PERIOD),                                           \
        FIELD("drift", NUMBER, AT_DRIFT, 4, WITH_PERIOD)
#define FIELDS_TABLE_PERIOD                                                                                            \
    FIELD("period us", NUMBER, AT_PERIOD, 1, WITH_PERIOD, .drop = 19,                                                  \
          .legend = "from one pair of calls to the next, on the median rank"),                                         \
        FIELD("dispatch us", NUMBER, AT_DISPATCH_FLOOR, 1, WITH_PERIOD, .drop = 14,                                    \
              .legend = "of it the dispatch, on the fastest rank, by a chain of its own"),                             \
        FIELD("combine us", NUMBER, AT_COMBINE_FLOOR, 1, WITH_PERIOD, .drop = 14,                                      \
              .legend = "the same of the combine"),                                                                    \
        FIELD("gap us", NUMBER, AT_GAP, 1, WITH_PERIOD, .drop = 8, .legend = "between two pairs"),                     \
        FIELD("drift %", PERCENT, AT_DRIFT, 0, WITH_PERIOD, .drop = 8,                                                 \
              .legend = "how much longer the last quarter of a trial takes than the first")
#define FIELDS_JSON_HOST FIELD("host_us", NUMBER, AT_HOST), FIELD("host_p99_us", NUMBER, AT_HOST_P99)
#define FIELDS_JSON_NETWORK_LIMIT                                                                                      \
    FIELD("network_limit_us", NUMBER, AT_NETWORK_LIMIT, 0, ON_NODES, true),                                            \
        FIELD("fraction_of_network_limit", NUMBER, AT_NETWORK_FRACTION, 0, ON_NODES, true)
#define FIELDS_JSON_NETWORK                                                                                            \
    FIELD("network.bytes", NUMBER, AT_NET_BYTES), FIELD("network.messages", NUMBER, AT_NET_MESSAGES),                  \
        FIELD("network.flags", NUMBER, AT_NET_FLAGS), FIELD("network.rows", NUMBER, AT_NET_ROWS)

/* These columns are in the tables of both modes. Orders of dropping: the least goes first. */
#define FIELDS_TABLE_TIMES                                                                                             \
    FIELD("median us", NUMBER, AT_MEDIAN, 1,                                                                           \
          .legend = "last end - first start over all ranks; the median of iterations"),                                \
        FIELD("min us", NUMBER, AT_MIN, 1, .drop = 6), FIELD("p99 us", NUMBER, AT_P99, 1, .drop = 9),                  \
        FIELD("spread %", PERCENT, AT_SPREAD, 0, .drop = 10,                                                           \
              .legend = "width of the middle 80 % of iterations, as a share of the median"),                           \
        FIELD("mean us", NUMBER, AT_MEAN_RANK, 1, .drop = 1, .legend = "a rank's own time: the mean over ranks"),      \
        FIELD("worst us", NUMBER, AT_SLOWEST, 1, .drop = 2, .legend = "the same of the slowest rank"),                 \
        FIELD("host us", NUMBER, AT_HOST, 1, WITH_LOOPS, .drop = 11,                                                   \
              .legend = "the host's time in a call, of the slowest rank"),                                             \
        FIELD("rows GB/s", NUMBER, AT_GBPS, 2, .drop = 8,                                                              \
              .legend = "rows into a rank's output, its own included, 10^9 bytes a second"),                           \
        FIELD("bus GB/s", NUMBER, AT_BUS_GBPS, 2, .drop = 3,                                                           \
              .legend = "bytes over the busiest link between two ranks")
#define FIELDS_TABLE_LIMIT                                                                                             \
    FIELD("copy us", NUMBER, AT_COPY_LIMIT, 1, ON_NODE, .drop = 16,                                                    \
          .legend = "the copy limit: bare copies of the same rows, in turns with the calls"),                          \
        FIELD("of copy", NUMBER, AT_COPY_FRACTION, 2, ON_NODE, .drop = 18, .legend = "copy us / median us"),           \
        FIELD("puts us", NUMBER, AT_NETWORK_LIMIT, 1, ON_NODES, .drop = 16,                                            \
              .legend = "the network limit: bare puts of the same rows, in turns with the calls"),                     \
        FIELD("of puts", NUMBER, AT_NETWORK_FRACTION, 2, ON_NODES, .drop = 18, .legend = "puts us / median us")
#define FIELDS_TABLE_BARS                                                                                              \
    FIELD("0      1", BAR, AT_COPY_FRACTION, 0, ON_NODE, .drop = 14),                                                  \
        FIELD("0      1", BAR, AT_NETWORK_FRACTION, 0, ON_NODES, .drop = 14)
#define FIELDS_TABLE_MPI                                                                                               \
    FIELD("MPI us", NUMBER, AT_MPI, 1, WITH_MPI, .drop = 12),                                                          \
        FIELD("faster", TIMES, AT_SPEEDUP, 2, WITH_MPI, .drop = 17, .legend = "MPI us / median us")

/* ---- report.c, json.c -------------------------------------------------------------------------------------------- */

/* Prints as the options say, and judges on stderr whether the times can be trusted. False after saying why not. */
bool bench_report(const struct bench_world *world, const struct bench_options *options, const struct bench_mode *mode,
                  const struct bench_results *results);
/* Returns the object of all results; NULL: memory ran out. */
json_t *bench_report_json(const struct bench_world *world, const struct bench_options *options,
                          const struct bench_mode *mode, const struct bench_results *results);
/* Returns the bits of a run by which fields are chosen. The next function computes the words and numbers of one
   result. */
unsigned bench_report_run(const struct bench_world *world, const struct bench_options *options);
void bench_view_of(const struct bench_world *world, const struct bench_options *options, const struct bench_mode *mode,
                   const struct bench_result *result, struct bench_view *view);

/* A spread above which times of different runs do not compare. */
#define BENCH_WIDE_SPREAD 0.5

/* ---- verdict.c --------------------------------------------------------------------------------------------------- */

/* Prints the sentences that judge a table: the share of the limit, and whether all bytes were right. */
void bench_verdict(const struct bench_world *world, const struct bench_options *options, const struct bench_mode *mode,
                   const struct bench_results *results);
/* Prints the sentence about bytes. num_wrong of count results were wrong. */
void bench_verdict_bytes(int num_wrong, int count);
/* Warns on stderr if the machine was busy before the start, or if the iterations of an operation spread widely. */
void bench_warn_of_noise(const struct bench_options *options, double spread, const char *operation);

/* Returns the index of the fastest copy. There must be at least one. */
int bench_least_copy(const struct bench_result *result);

#endif

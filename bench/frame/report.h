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
    AT_HOST, /* of loops */
    AT_HOST_P99,
    AT_BYTES,
    AT_GBPS,
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
    FIELD_COUNT,
    FIELD_FLAG,
    FIELD_COPIES /* in JSON: a list, or, without a name, each by the device's */
};

/* The runs that have a field: all named conditions must hold. */
enum { ON_CPU = 1, ON_GPU = 2, ON_NODE = 4, ON_NODES = 8, WITH_LOOPS = 16, WITH_TRIPS = 32, WITH_MPI = 64 };

struct bench_field {
    const char *name; /* NULL: the device's word for workers. In JSON "a.b" is b in an object a */
    enum bench_field_kind kind;
    int at; /* of enum bench_word or enum bench_number */
    int decimals;
    unsigned when;
    bool or_null; /* in JSON: null where there is none, and in an object only if that is there */
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
        FIELD("p99_us", NUMBER, AT_P99, 3), FIELD("bytes", NUMBER, AT_BYTES, 0), FIELD("gbps", NUMBER, AT_GBPS, 4)
#define FIELDS_CSV_LIMIT                                                                                               \
    FIELD("copy_limit_us", NUMBER, AT_COPY_LIMIT, 3, ON_NODE),                                                         \
        FIELD("fraction_of_copy_limit", NUMBER, AT_COPY_FRACTION, 4, ON_NODE),                                         \
        FIELD("network_limit_us", NUMBER, AT_NETWORK_LIMIT, 3, ON_NODES),                                              \
        FIELD("fraction_of_network_limit", NUMBER, AT_NETWORK_FRACTION, 4, ON_NODES)
/* These fields are in the JSON of both modes. */
#define FIELDS_JSON_TIMES                                                                                              \
    FIELD("tokens", COUNT, AT_TOKENS), FIELD("median_us", NUMBER, AT_MEDIAN), FIELD("min_us", NUMBER, AT_MIN),         \
        FIELD("p99_us", NUMBER, AT_P99), FIELD("bytes", NUMBER, AT_BYTES), FIELD("gbps", NUMBER, AT_GBPS)
#define FIELDS_JSON_HOST FIELD("host_us", NUMBER, AT_HOST), FIELD("host_p99_us", NUMBER, AT_HOST_P99)
#define FIELDS_JSON_NETWORK_LIMIT                                                                                      \
    FIELD("network_limit_us", NUMBER, AT_NETWORK_LIMIT, 0, ON_NODES, true),                                            \
        FIELD("fraction_of_network_limit", NUMBER, AT_NETWORK_FRACTION, 0, ON_NODES, true)
#define FIELDS_JSON_NETWORK                                                                                            \
    FIELD("network.bytes", NUMBER, AT_NET_BYTES), FIELD("network.messages", NUMBER, AT_NET_MESSAGES),                  \
        FIELD("network.flags", NUMBER, AT_NET_FLAGS), FIELD("network.rows", NUMBER, AT_NET_ROWS)

/* ---- report.c, json.c -------------------------------------------------------------------------------------------- */

/* Prints as the options say. False: memory ran out, and stderr says so. */
bool bench_report(const struct bench_world *world, const struct bench_options *options, const struct bench_mode *mode,
                  const struct bench_results *results);
void bench_report_json(const struct bench_world *world, const struct bench_options *options,
                       const struct bench_mode *mode, const struct bench_results *results);
/* Returns the bits of a run by which fields are chosen. The next function computes the words and numbers of one
   result. */
unsigned bench_report_run(const struct bench_world *world, const struct bench_options *options);
void bench_view_of(const struct bench_world *world, const struct bench_options *options, const struct bench_mode *mode,
                   const struct bench_result *result, struct bench_view *view);
/* Returns the index of the fastest copy. There must be at least one. */
int bench_least_copy(const struct bench_result *result);

#endif

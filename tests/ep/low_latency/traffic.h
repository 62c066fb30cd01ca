/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks' input of a low-latency dispatch and its combines, drawn from a seed, with the oracle's results. Made by
 * one thread before the ranks start; they read it only. */
#ifndef TESTS_EP_LOW_LATENCY_TRAFFIC_H
#define TESTS_EP_LOW_LATENCY_TRAFFIC_H

#include "ep/harness/traffic.h"
#include "ep/low_latency/oracle.h"
#include <expar/low_latency.h>

typedef struct lowlat_plan {
    int32_t num_ranks, max_tokens, hidden, topk, num_experts;
    oracle_type type;
    llo_format format;
    bool wide; /* topk_idx is int64, else int32 */
    bool with_weights;
    routing_kind routing;
    int64_t disturb;           /* chances for slots of -1; 0: none */
    const int64_t *num_tokens; /* [N] */
} lowlat_plan;

/* The rows that one rank must get from the dispatch. */
typedef struct lowlat_arrival {
    int32_t *count, *src_info; /* [L], [L][N*B] */
    int64_t *range;            /* [L][N] */
    void *x;                   /* [L][N*B][H] in the format */
    uint32_t *scales;          /* [L][N*B][S] */
    int64_t messages;          /* that it sends */
} lowlat_arrival;

typedef struct lowlat_traffic {
    llo_job job;
    bool wide, with_weights;
    oracle_input *inputs;     /* [N]; weights are those of the dispatch, or NULL */
    int32_t *map;             /* of llo_map_make */
    lowlat_arrival *arrivals; /* [N] */
} lowlat_traffic;

lowlat_traffic *lowlat_traffic_make(const lowlat_plan *plan, random_source *random);
/* Works out the arrivals anew, after a test has changed inputs by hand. */
void lowlat_traffic_settle(lowlat_traffic *t);
void lowlat_traffic_free(lowlat_traffic *t);

int32_t lowlat_locals(const llo_job *job); /* L */
int64_t lowlat_places(const llo_job *job); /* N*B */
expar_dtype lowlat_dtype(oracle_type type);
expar_ll_format lowlat_format(llo_format format);

/* The ranks' input of a combine, and the sums that each must get. */
typedef struct lowlat_answers {
    llo_job job;          /* the dispatch's, with the combine's type and weights */
    oracle_input *inputs; /* [N] */
    expar_ll_sum sum;
    bool logfmt; /* rows travel so */
    void **x;    /* [N] → [L][N*B][H]; what no token has sent is NaN */
    void **y;    /* [N] → [T][H] */
    void **most; /* with logfmt, likewise: each element is one from y to most; else NULL */
} lowlat_answers;

/* Weights of its own, but for a reduced combine whose dispatch had some. */
lowlat_answers *lowlat_answers_make(const lowlat_traffic *t, oracle_type type, expar_ll_sum sum, random_source *random);
/* Lets rows of an exact combine travel in LogFMT, most of them small enough to be coded. */
void lowlat_answers_code(lowlat_answers *a, const lowlat_traffic *t);
void lowlat_answers_free(lowlat_answers *a, const lowlat_traffic *t);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Traffic: what all ranks put into a dispatch and a combine, drawn from a seed, with what the oracle says must come
 * out.
 *
 * Made by one thread before the ranks start; they read it only. */
#ifndef TESTS_EP_HARNESS_TRAFFIC_H
#define TESTS_EP_HARNESS_TRAFFIC_H

#include "oracle/oracle.h"
#include "oracle/routings.h"
#include <expar/expar.h>

typedef struct traffic_plan {
    int32_t num_ranks, ranks_per_node; /* 0: all */
    int32_t hidden, topk, num_experts, expert_alignment;
    oracle_type type;
    bool wide; /* topk_idx is int64, else int32 */
    bool with_weights;
    routing_kind routing;
    int64_t disturb;           /* chances for routing_disturb; 0: none */
    const int64_t *num_tokens; /* [N] */
} traffic_plan;

/* Rows of 24 elements, K 3, two experts a rank: for tests that are about something else. num_tokens stays the
   caller's. */
traffic_plan traffic_plan_small(int32_t num_ranks, int32_t ranks_per_node, const int64_t *num_tokens);

/* The rows that one rank must get from the dispatch. */
typedef struct traffic_arrival {
    int64_t num_rows;     /* R */
    void *x;              /* [R][H] */
    int64_t *topk_idx;    /* [R][K] */
    uint32_t *weights;    /* [R][K]; NULL without */
    int32_t *per_expert;  /* [L] */
    int32_t *rank_prefix; /* [N] */
} traffic_arrival;

typedef struct traffic {
    oracle_job job;
    bool wide, with_weights;
    oracle_input *inputs;      /* [N] */
    traffic_arrival *arrivals; /* [N] */
} traffic;

traffic *traffic_make(const traffic_plan *plan, random_source *random);
/* The same routing with new rows, for a cached dispatch: no weights. */
traffic *traffic_repeat(const traffic *first, random_source *random);
/* Works out the arrivals anew, after a test has changed inputs by hand. */
void traffic_settle(traffic *t);
void traffic_free(traffic *t);

size_t traffic_row_bytes(const traffic *t);
expar_dtype traffic_dtype(const traffic *t);
int32_t traffic_local_experts(const traffic *t);

/* The ranks' input of a combine, and the sums that each must get. */
typedef struct answers {
    int32_t num_ranks;
    bool with_weights;
    void **x;           /* [N] → [R][H] */
    uint32_t **weights; /* [N] → [R][K] */
    void **y;           /* [N] → [T][H] */
    uint32_t **summed;  /* [N] → [T][K] */
} answers;

answers *answers_make(const traffic *t, bool with_weights, random_source *random);
void answers_free(answers *a);

/* Calls of several forms on one buffer, each with what goes back. All zero at its beginning. */
#define TRAFFIC_MOST_FORMS 4
typedef struct traffic_forms {
    int32_t count;
    traffic *traffic[TRAFFIC_MOST_FORMS];
    answers *answers[TRAFFIC_MOST_FORMS];
} traffic_forms;

/* Answers have weights where the traffic has. */
void traffic_forms_add(traffic_forms *f, const traffic_plan *plan, random_source *random);
void traffic_forms_free(traffic_forms *f);

/* count elements: mostly of moderate size, some rows with NaN, infinities, signed zeros, denormals and
   large numbers. */
void traffic_fill_rows(random_source *random, oracle_type type, int64_t rows, int64_t width, void *array);
/* calloc that ends the program instead of failing; never NULL. */
void *traffic_alloc(size_t count, size_t bytes);

#endif

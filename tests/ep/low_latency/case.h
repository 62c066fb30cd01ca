/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of low-latency calls whose results are computed on the spot, by formulas: for tests of one thing each. */
#ifndef TESTS_EP_LOW_LATENCY_CASE_H
#define TESTS_EP_LOW_LATENCY_CASE_H

#include <expar/expar.h>
#include <stdbool.h>

#define CASE_MOST_RANKS 18

typedef struct ll_case {
    int32_t ranks, max_tokens, hidden, topk, experts;
    int32_t tokens[CASE_MOST_RANKS]; /* T of each rank */
    uint32_t seed;                   /* of the routing */
    int32_t threads;                 /* of each rank; 0: the library chooses */
    int32_t sms;                     /* likewise, where ranks have GPUs */
    bool wide_idx;                   /* topk_idx is int64 */
    bool weights;                    /* travel along */
    bool lend;                       /* results lie in the caller's memory */
    expar_ll_sum sum;
    expar_ll_format format;
    bool logfmt; /* of the combine */
} ll_case;

/* Three ranks, of which none has as many tokens as another. */
extern const ll_case case_example;
expar_ll_config case_config(const ll_case *c);
/* Expert of a slot, or -1; no two slots of a token have the same. */
int32_t case_expert(const ll_case *c, int32_t rank, int32_t token, int32_t k);
/* The row that comes back for a rank's token of that round, in LogFMT. */
int64_t case_coded_bytes(const ll_case *c, uint32_t number, int32_t rank, int32_t token, int32_t expert);

/* One dispatch of a rank, with its arguments' memory, and what the caller gets. x is FP32. */
typedef struct ll_round {
    const ll_case *c;
    int32_t rank;
    uint32_t number; /* goes into x */
    float *x, *weights;
    void *idx;
    expar_ll_dispatch_args dispatch;
    expar_ll_dispatch_result received;
    float *expert_x; /* the experts' rows, in dispatch's layout */
    float *lent_x, *lent_y;
    int32_t *lent_count;
    void *encoded; /* scratch of the check: one row and its scales */
    expar_ll_combine_args combine;
    expar_ll_combine_result combined;
} ll_round;

ll_round *round_make(const ll_case *c, int32_t rank, uint32_t number);
void round_free(ll_round *round);
/* The calls, and, without a hook in their arguments, the checks of what came; false when a check failed. */
bool round_dispatch(ll_round *round, expar_ll *ll);
bool round_combine(ll_round *round, expar_ll *ll);
/* Each, for calls with hooks: calls it, then checks. */
bool round_dispatch_hook(ll_round *round);
bool round_combine_hook(ll_round *round);
bool round_check_dispatch(const ll_round *round);
bool round_check_combine(const ll_round *round);
/* Fills what the experts give back, and the arguments of a combine. */
void round_prepare_combine(ll_round *round);
/* A round by itself: dispatch and combine as the case has them. */
bool round_trial(const ll_case *c, int32_t rank, expar_ll *ll, uint32_t number);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Traffic of a group of which some ranks have masked one, and that rank the others: the same tokens three times, with
 * what the oracle says for each. */
#ifndef TESTS_EP_LOW_LATENCY_MASKED_H
#define TESTS_EP_LOW_LATENCY_MASKED_H

#include "ep/low_latency/traffic.h"

typedef enum masked_view {
    MASKED_NOBODY, /* all ranks hear each other */
    MASKED_VICTIM, /* of the others: without the victim */
    MASKED_OTHERS, /* of the victim: alone */
    MASKED_BOTH,   /* of the others: without the victim and the second one */
    MASKED_VIEWS
} masked_view;

typedef struct masked_traffic {
    int32_t num_ranks, victim, second; /* the rank behind the victim */
    lowlat_traffic *there[MASKED_VIEWS];
    lowlat_answers *back[MASKED_VIEWS]; /* rows of a token are the same in all views */
    uint8_t *masks;                     /* [MASKED_VIEWS][N] */
} masked_traffic;

/* plan->num_tokens stays the caller's; FP32 answers where the traffic is, else BF16. */
masked_traffic *masked_traffic_make(const lowlat_plan *plan, int32_t victim, expar_ll_sum sum, uint64_t seed);
void masked_traffic_free(masked_traffic *m);
/* What the mask query of `rank` must give: [N]. */
static inline const uint8_t *masked_of(const masked_traffic *m, int32_t rank)
{
    return m->masks + (rank == m->victim ? MASKED_OTHERS : MASKED_VICTIM) * m->num_ranks;
}

/* A plan for so many ranks, of few tokens; tokens: [N], filled. */
lowlat_plan masked_plan(int32_t num_ranks, int64_t *tokens, random_source *random);
/* A config for it, with masks. */
expar_ll_config masked_config(const lowlat_plan *plan);

#endif

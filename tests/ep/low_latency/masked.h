/* SPDX-License-Identifier: Apache-2.0 */
/* Traffic of a group of which some ranks have masked one, and that rank the others: the same tokens three times, with
 * what the oracle says for each. */
#ifndef TESTS_EP_LOW_LATENCY_MASKED_H
#define TESTS_EP_LOW_LATENCY_MASKED_H

#include "ep/low_latency/traffic.h"
#include <stdlib.h>

typedef enum masked_view {
    MASKED_NOBODY, /* all ranks hear each other */
    MASKED_VICTIM, /* of the others: without the victim */
    MASKED_OTHERS, /* of the victim: alone */
    MASKED_BOTH,   /* of the others: without the victim and the second one */
    MASKED_VIEWS
} masked_view;

typedef struct masked_traffic {
    int32_t num_ranks, victim, second; /* the rank after the victim */
    lowlat_traffic *there[MASKED_VIEWS];
    lowlat_answers *back[MASKED_VIEWS]; /* rows of a token are the same in all views */
    uint8_t *masks;                     /* [MASKED_VIEWS][N] */
} masked_traffic;

/* plan->num_tokens stays the caller's; FP32 answers where the traffic is, else BF16. */
masked_traffic *masked_traffic_make(const lowlat_plan *plan, int32_t victim, expar_ll_sum sum, uint64_t seed);
void masked_traffic_free(masked_traffic *m);
/* The expected mask query of `rank`: [N]. */
static inline const uint8_t *masked_of(const masked_traffic *m, int32_t rank)
{
    return m->masks + (rank == m->victim ? MASKED_OTHERS : MASKED_VICTIM) * m->num_ranks;
}

/* A plan for so many ranks, of few tokens; tokens: [N], filled. */
lowlat_plan masked_plan(int32_t num_ranks, int64_t *tokens, random_source *random);
/* A config for it, with masks. */
expar_ll_config masked_config(const lowlat_plan *plan);
/* A reserve in which a buffer of so many bytes fits. */
static inline expar_ll_config masked_reserve(const expar_ll_config *config, size_t bytes)
{
    expar_ll_config reserve = EXPAR_LL_CONFIG_INIT;
    reserve.masking = 1;
    reserve.device = config->device;
    reserve.num_threads = config->num_threads;
    reserve.late_limit_ms = config->late_limit_ms;
    reserve.reserve_bytes = bytes;
    return reserve;
}

/* Makes the buffer; with EXPAR_TEST_RESERVED=1 as a reserve, in which each rank lays it out. Inline, so that names mean
   what they mean to who calls (mirror_ll.h). */
static inline expar_status masked_create(expar_group *group, const expar_ll_config *config, expar_ll **ll)
{
    size_t bytes = 0;
    if (!getenv("EXPAR_TEST_RESERVED")) return expar_ll_create(group, config, ll);
    expar_status status = expar_ll_get_buffer_size(config, expar_group_size(group), &bytes);
    const expar_ll_config reserve = masked_reserve(config, bytes);
    if (status == EXPAR_OK) status = expar_ll_create(group, &reserve, ll);
    return status == EXPAR_OK ? expar_ll_set_shape(*ll, config, NULL) : status;
}

#endif

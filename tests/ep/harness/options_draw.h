/* SPDX-License-Identifier: Apache-2.0 */
/* Draws deals and moves with any options that a buffer takes. */
#ifndef TESTS_EP_HARNESS_OPTIONS_DRAW_H
#define TESTS_EP_HARNESS_OPTIONS_DRAW_H

#include "ep/harness/deal.h"

typedef struct options_limits {
    const expar_ep_config *config;
    int32_t num_ranks;
    int32_t ranks_per_node; /* 0: one node */
    bool ample_pool;        /* DIRECT always fits */
} options_limits;

deal *options_draw_deal(const options_limits *limits, random_source *random);
/* MOVE_DISPATCH or MOVE_REPEAT. refused: one rank's arguments are wrong. */
deal_move *options_draw_dispatch(const options_limits *limits, const deal *d, move_kind kind, bool rejected,
                                 random_source *random);
deal_move *options_draw_combine(const options_limits *limits, const deal *d, bool rejected, random_source *random);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* How ranks of a test reach each other, by the environment that it was started with. EXPAR_TEST_UNMAPPED=1: by
 * transports alone, though memory is mapped. EXPAR_TEST_NODES=1: on simulated nodes, so that some are mapped and others
 * not. EXPAR_TRANSPORTS, the library's own, without mapped memory. */
#ifndef TESTS_EP_LOW_LATENCY_REACH_H
#define TESTS_EP_LOW_LATENCY_REACH_H

#include <expar/low_latency.h>
#include <stdbool.h>
#include <stdlib.h>

static inline int32_t reach_unmapped(void)
{
    return getenv("EXPAR_TEST_UNMAPPED") != NULL;
}

/* For so many ranks: two nodes, or nodes of one rank where the ranks do not make two; 0: one node. */
static inline int32_t reach_ranks_per_node(int32_t ranks)
{
    if (!getenv("EXPAR_TEST_NODES") || ranks == 1) return 0;
    return ranks % 2 == 0 ? ranks / 2 : 1;
}

/* Buffers of normal mode without limits are for ranks that are mapped. */
static inline bool reach_is_mapped(void)
{
    return !getenv("EXPAR_TEST_NODES") && !getenv("EXPAR_TRANSPORTS");
}

/* For the oracle: ranks of a node, which adds its rows by itself; 0: all. */
static inline int32_t reach_oracle_ranks(int32_t ranks)
{
    return getenv("EXPAR_TRANSPORTS") ? 1 : reach_ranks_per_node(ranks);
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* nodes: what of an operation goes across nodes, by the routing alone: a token once to each other node that it has an
 * expert on, to the rank there with the source's place in its node; and back from there, once. Rows that this or that
 * rank of a node hands to another one of it stay inside. */
#ifndef EXPAR_BENCH_NORMAL_NODES_H
#define EXPAR_BENCH_NORMAL_NODES_H

#include "bench/normal/session.h"

/* Of a rank. The same rows move in a combine, the other way. */
struct nodes_share {
    int64_t out;    /* tokens' records to other nodes */
    int64_t in;     /* records from there */
    int64_t inside; /* rows that it receives from other ranks of its node: their own tokens', and those they forward */
};

/* What bench_cpu_nodes does as bench_device. */
bool nodes_open(struct bench_session *session);
void nodes_close(struct bench_session *session, bool sound);
int nodes_add_limits(struct bench_session *session, bool combine, struct contender *contenders);
struct bench_sent nodes_sent(const expar_ep *ep);
struct bench_sent nodes_ll_sent(const expar_ll *ll);

#endif

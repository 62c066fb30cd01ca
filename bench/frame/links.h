/* SPDX-License-Identifier: Apache-2.0 */
/* links: bytes and messages of a call over each link, by the routing. A link leads from one rank to another one. Its
 * class is "memory" inside a node of the CPU; "nvlink", "pcie" or "device" (one GPU) between GPUs; or "network". Rows
 * that a rank keeps take no link. */
#ifndef EXPAR_BENCH_FRAME_LINKS_H
#define EXPAR_BENCH_FRAME_LINKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bench_call;
struct bench_world;

struct bench_link {
    const char *class;
    int from, to;
    int64_t bytes, messages;
};

/* A call counts here what goes from each rank to each other one. */
struct bench_flow {
    int size;
    int64_t *bytes, *messages; /* [size][size] */
};

/* Adds one message. Nothing is added for a rank's own. */
static inline void bench_flow_add(struct bench_flow *flow, int from, int to, size_t bytes)
{
    if (from == to) return;
    flow->bytes[from * flow->size + to] += (int64_t)bytes;
    flow->messages[from * flow->size + to]++;
}

/* The links of one call that carry anything, by `from`, then by `to`. */
struct bench_links {
    bool known;
    struct bench_link *items;
    int count;
    int64_t most_bytes; /* over the busiest one */
};

/* Finds the links of a call. Local. False: memory ran out. The caller frees items. */
bool bench_links_find(const struct bench_call *call, struct bench_links *links);

#endif

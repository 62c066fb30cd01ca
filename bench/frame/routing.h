/* SPDX-License-Identifier: Apache-2.0 */
/* routing: chooses the experts of each token, for all ranks at once. With the same seed it is the same on every rank.
 *
 *   uniform   K distinct experts, all with the same probability
 *   zipf[:ALPHA]
 *             K distinct experts, the i-th most popular with weight 1/i^ALPHA (1); the seed decides which are popular
 *   incast[:HOT,FRACTION]
 *             each of K distinct experts is one of HOT popular ones (an eighth of all, at least one) with probability
 *             FRACTION (0.9)
 *   skew:RATIO
 *             K distinct experts; one rank has RATIO times as many of them as each other rank has on average, as far as
 *             it has experts. Below 1 it has fewer, and with 0 none. The seed chooses the rank
 *   grouped   8 groups of experts; each token picks 4 groups, then K distinct experts in them
 *   onehot    every token goes to one and the same expert, and nowhere else
 *   FILE.npy  recorded: int16, int32 or int64, [layer][token][k] or [token][k]; rows are used one after another, again
 *             from the start when they run out */
#ifndef EXPAR_BENCH_FRAME_ROUTING_H
#define EXPAR_BENCH_FRAME_ROUTING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ROUTING_MAX_TOPK    128
#define ROUTING_MAX_EXPERTS 65536

struct routing_shape {
    int num_ranks;
    int64_t tokens; /* of each rank */
    int topk, experts;
};

/* True for the name of a file. */
bool routing_is_file(const char *name);
/* True for the name of a generator, with numbers after it that are in range. */
bool routing_is_known(const char *name);
/* Says in `error` why a generator or the file cannot make such a routing. For a file, topk 0 and experts 0 are filled
   in from it (experts: the least multiple of num_ranks that holds its indices). */
bool routing_check(const char *name, struct routing_shape *shape, char *error, size_t error_bytes);
/* Returns [N][T][K]; the caller frees it. NULL after saying in `error` why not. */
int32_t *routing_make(const char *name, const struct routing_shape *shape, uint64_t seed, char *error,
                      size_t error_bytes);

#endif

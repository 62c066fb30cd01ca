/* SPDX-License-Identifier: Apache-2.0 */
/* network: measures the network limit. All ranks at once make bare puts of as many bytes as an operation must carry to
 * other nodes, over the library's provider. A turn ends when all of a rank's puts have been delivered. Low-latency mode
 * compares with rows: each is a put with a signal, and a turn ends when the others' rows have come. */
#ifndef EXPAR_BENCH_FRAME_NETWORK_H
#define EXPAR_BENCH_FRAME_NETWORK_H

#include "bench/frame/measure.h"

struct network_limit;

/* Each peer's bytes by one put, and by puts of NETWORK_PIECE bytes. */
enum { NETWORK_WHOLE, NETWORK_PIECES, NETWORK_WAYS };
#define NETWORK_PIECE ((size_t)64 << 10)

/* Makes the limit. bytes: [N] bytes for each other rank. row: the bytes of a row, of which `bytes` are multiples, if
   rows are put one by one; else 0. Collective; NULL on some rank after saying why not. */
struct network_limit *network_limit_create(const struct bench_world *world, const size_t *bytes, size_t row);
/* Appends a contender for each way, or for rows one, and returns their number. */
int network_limit_contenders(struct network_limit *limit, struct contender *contenders);
/* Verifies that the received bytes are those that the others have put. */
bool network_limit_verify(const struct network_limit *limit);
/* Collective, unless not sound. */
void network_limit_free(struct network_limit *limit, bool sound);

#endif

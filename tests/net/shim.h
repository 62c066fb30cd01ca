/* SPDX-License-Identifier: Apache-2.0 */
/* shim: a transport that passes operations to another one late and in another order, for tests of layers above
 * transports. The order of the contract stays: fence, quiet, and blocking calls. */
#ifndef TESTS_NET_SHIM_H
#define TESTS_NET_SHIM_H

#include "net/transport.h"

typedef struct shim_plan {
    uint64_t seed;      /* same seed, same calls: same delays and order */
    int64_t longest_ns; /* of a delay */
    int64_t rarest_ns;  /* of one delay in 16, which others overtake by far; 0: none is longer */
    int64_t rows_ns;    /* beside it, of puts of so many bytes with a signal: whatever else is sent overtakes them */
    size_t row_bytes;
    uint32_t busy_every; /* post turns one in so many away with EXPAR_ERR_BUSY; 0: none */
} shim_plan;

/* Over `inner`, which it owns from then on. A thread carries the operations out. */
expar_status shim_open(transport *inner, const transport_site *site, const shim_plan *plan, transport **out);

/* While held, nothing that is kept is carried out; nothing that waits for it comes to its end. */
void shim_hold(transport *shim, bool held);
/* Operations that are kept. */
size_t shim_count(transport *shim);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Definitions that the files of this folder share. Private to link. */
#ifndef EXPAR_LINK_PARTS_H
#define EXPAR_LINK_PARTS_H

#include "link/link.h"
#include "net/transport.h"

/* The proxy's ring does not know batches. */
static inline bool link_goes_by_ring(const link_peer *peer, const link_batch *batch)
{
    return peer->proxy && !batch;
}
/* Passes an operation to the ring or to `via`; waits while there is no free space. */
expar_status link_post(const link_peer *peer, transport *via, const transport_request *request, link_batch *batch);
/* Returns the status; puts the call's name before the text of an error. */
expar_status link_named(const link_peer *peer, expar_status status);

/* Returns whether data pass through pinned pieces: the caller's side is memory of a GPU, and the peer's is not. */
static inline bool link_uses_pieces(const link_peer *peer)
{
    return peer->on_device && peer->memory != TRANSPORT_DEVICE;
}

#endif

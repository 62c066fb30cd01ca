/* SPDX-License-Identifier: Apache-2.0 */
/* Posts operations that are completed later: to the proxy's ring, or to a transport. */
#include "link/parts.h"

static proxy_command command_of(const transport_request *r)
{
    proxy_command command = {.pe = r->pe,
                             .offset = r->offset,
                             .bytes = r->bytes,
                             .signal = r->signal_offset,
                             .op = (uint8_t)r->op,
                             .memory = r->memory,
                             .signal_memory = r->signal_memory,
                             .operand = r->operand,
                             .compare = r->compare};
    switch (r->kind) {
    case TRANSPORT_KIND_PUT:
        command.kind = r->signals ? PROXY_PUT_SIGNAL : PROXY_PUT;
        command.local = (uintptr_t)r->source;
        break;
    case TRANSPORT_KIND_GET:
        command.kind = PROXY_GET;
        command.local = (uintptr_t)r->dest;
        break;
    case TRANSPORT_KIND_ATOMIC:
        command.kind = PROXY_ATOMIC;
        command.local = (uintptr_t)r->dest;
        break;
    }
    return command;
}

expar_status link_named(const link_peer *peer, expar_status status)
{
    return status == EXPAR_OK || !peer->call ? status : error_prefix(status, "%s", peer->call);
}

expar_status link_post(const link_peer *peer, transport *via, const transport_request *request, link_batch *batch)
{
    if (!link_goes_by_ring(peer, batch)) return link_named(peer, transport_post(via, &peer->sym->site, request, batch));
    const proxy_command command = command_of(request);
    return proxy_issue(peer->proxy, peer->call, &command);
}

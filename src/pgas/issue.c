/* SPDX-License-Identifier: Apache-2.0 */
/* The way out of operations that are started and completed later: the proxy's ring, or a transport's post. */
#include "pgas/ops.h"

static proxy_command command_of(const transport_request *r)
{
    proxy_command command = {.pe = r->pe,
                             .offset = r->offset,
                             .bytes = r->bytes,
                             .signal = r->signal_offset,
                             .op = (uint16_t)r->op,
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

expar_status ops_start(const ops_origin *from, transport *via, const transport_request *request)
{
    sym *self = from->group->sym;
    if (ops_goes_by_proxy(from)) {
        const proxy_command command = command_of(request);
        return proxy_issue(self->proxy, from->call, &command);
    }
    transport_request started = *request;
    started.copies = request->kind == TRANSPORT_KIND_PUT && !from->nbi;
    expar_status status = transport_post(via, &self->site, &started, from->batch);
    return status == EXPAR_OK ? EXPAR_OK : error_prefix(status, "%s", from->call);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* meet: brings one rank to the others. */
#include "boot/meet/meet.h"
#include "boot/meet/mesh.h"
#include "boot/meet/rendezvous.h"
#include "boot/meet/server.h"

#include <errno.h>

/* Finds where the ranks meet and what they prove. */
static expar_status find_rendezvous(const boot_request *request, int64_t deadline_ns, address *where,
                                    unique_id_parts *parts)
{
    expar_status status = unique_id_unpack(&request->id, parts);
    if (status != EXPAR_OK) return status;
    if (!request->have_id) return address_parse(request->meeting, deadline_ns, where);
    if (address_from_ip(&parts->ip, where)) return EXPAR_OK;
    return error_set(EXPAR_ERR_ARGUMENT, "unique id: it names no address");
}

/* With a meeting, rank 0 is the rendezvous while it joins. */
static expar_status serve_meeting(const boot_request *request, const address *where, const unique_id_parts *parts,
                                  boot_server **out)
{
    int listener = address_listen(where);
    if (listener >= 0) return boot_server_start(listener, parts->secret, out);
    if (errno == EADDRINUSE)
        return error_set(
            EXPAR_ERR_BOOTSTRAP,
            "someone listens at the meeting place %s already, or a connection has its port (for a minute after "
            "its end, too): is another rank 0 of this job joining?",
            request->meeting);
    if (errno == EADDRNOTAVAIL)
        return error_set(EXPAR_ERR_BOOTSTRAP,
                         "the meeting place %s is not on this host: start rank 0 there, or set MASTER_ADDR to its host",
                         request->meeting);
    return error_errno("rank 0 cannot listen at the meeting place %s", request->meeting);
}

static expar_status ranks_meet(const boot_request *request, const address *where, const unique_id_parts *parts,
                               int64_t deadline_ns, boot_joined *all)
{
    mesh control;
    rendezvous entrance;
    auth_key key;
    auth_key_derive(parts->secret, &key);
    expar_status status = rendezvous_open(&entrance, where, &key, request, deadline_ns);
    if (status != EXPAR_OK) return status;
    status = mesh_open(&control);
    if (status == EXPAR_OK) status = rendezvous_enter(&entrance, request, &all->places[request->rank], &control);
    address_ip_format(&control.contact.tcp, all->ip);
    if (status == EXPAR_OK) status = mesh_connect(&control, &entrance, request, all->fds, all->places);
    mesh_close(&control);
    rendezvous_close(&entrance);
    return status;
}

expar_status boot_meet(const boot_request *request, boot_joined *all)
{
    address where;
    unique_id_parts parts;
    boot_server *server = NULL;
    const int64_t deadline_ns = clock_ns() + request->timeout_ms * 1000000;
    expar_status status = find_rendezvous(request, deadline_ns, &where, &parts);
    if (status == EXPAR_OK && !request->have_id && request->rank == 0)
        status = serve_meeting(request, &where, &parts, &server);
    if (status == EXPAR_OK) status = ranks_meet(request, &where, &parts, deadline_ns, all);
    boot_server_stop(server);
    return status == EXPAR_OK ? EXPAR_OK
                              : error_prefix(status, "joining as rank %d of %d", request->rank, request->size);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* join: how a process becomes a rank: rendezvous, control sockets, boot. */
#include "boot/boot.h"
#include "boot/place.h"
#include "boot/rendezvous.h"
#include "boot/server.h"
#include "boot/sockets.h"
#include "boot/unique_id.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static expar_status request_check(const boot_request *request)
{
    if (request->size < 1 || request->size > BOOT_MAX_RANKS)
        return error_set(EXPAR_ERR_RANGE, "join: size is %d, expected 1 to %d", request->size, BOOT_MAX_RANKS);
    if (request->rank < 0 || request->rank >= request->size)
        return error_set(EXPAR_ERR_RANGE, "join: rank is %d, expected 0 to %d", request->rank, request->size - 1);
    if (request->timeout_ms < 1 || request->timeout_ms > BOOT_MAX_TIMEOUT_MS)
        return error_set(EXPAR_ERR_RANGE, "join: timeout_ms is %lld, expected 1 to %lld",
                         (long long)request->timeout_ms, (long long)BOOT_MAX_TIMEOUT_MS);
    if (request->size > 1 && !request->have_id && !request->meeting[0])
        return error_set(EXPAR_ERR_ARGUMENT, "join: a group of %d ranks needs a unique id or a meeting place",
                         request->size);
    return EXPAR_OK;
}

/* Where the ranks meet and what they prove. */
static expar_status find_rendezvous(const boot_request *request, address *where, unique_id_parts *parts)
{
    expar_status status = unique_id_unpack(&request->id, parts);
    if (status != EXPAR_OK) return status;
    if (!request->have_id) return address_parse(request->meeting, where);
    if (address_from_ip(&parts->ip, where)) return EXPAR_OK;
    return error_set(EXPAR_ERR_ARGUMENT, "unique id: it names no address");
}

/* In a meeting rank 0 is the rendezvous, for as long as it joins. */
static expar_status serve_meeting(const boot_request *request, const address *where, const unique_id_parts *parts,
                                  boot_server **out)
{
    int listener = address_listen(where);
    if (listener >= 0) return boot_server_start(listener, parts->secret, out);
    if (errno == EADDRINUSE)
        return error_set(EXPAR_ERR_BOOTSTRAP,
                         "someone listens at the meeting place %s already: is another rank 0 of this job joining?",
                         request->meeting);
    if (errno == EADDRNOTAVAIL)
        return error_set(EXPAR_ERR_BOOTSTRAP,
                         "the meeting place %s is not on this host: start rank 0 there, or set MASTER_ADDR to its host",
                         request->meeting);
    return error_errno("rank 0 cannot listen at the meeting place %s", request->meeting);
}

/* What a rank has when all have met. */
typedef struct joined {
    int *fds;           /* [HELLO_LINES · size] */
    boot_place *places; /* [size] */
    char ip[BOOT_IP_TEXT];
} joined;

static expar_status ranks_meet(const boot_request *request, const address *where, const unique_id_parts *parts,
                               joined *all)
{
    mesh control;
    rendezvous entrance;
    auth_key key;
    int64_t deadline_ns = clock_ns() + request->timeout_ms * 1000000;
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

static expar_status meet_somewhere(const boot_request *request, joined *all)
{
    address where;
    unique_id_parts parts;
    boot_server *server = NULL;
    expar_status status = find_rendezvous(request, &where, &parts);
    if (status == EXPAR_OK && !request->have_id && request->rank == 0)
        status = serve_meeting(request, &where, &parts, &server);
    if (status == EXPAR_OK) status = ranks_meet(request, &where, &parts, all);
    boot_server_stop(server);
    return status == EXPAR_OK ? EXPAR_OK
                              : error_prefix(status, "joining as rank %d of %d", request->rank, request->size);
}

static expar_status joined_make(const boot_request *request, joined *all)
{
    const size_t size = (size_t)request->size;
    all->fds = malloc(HELLO_LINES * size * sizeof *all->fds);
    all->places = calloc(size, sizeof *all->places);
    if (all->fds) memset(all->fds, -1, HELLO_LINES * size * sizeof *all->fds);
    if (!all->fds || !all->places) return error_set(EXPAR_ERR_MEMORY, "join: out of memory");
    place_find(&all->places[request->rank]);
    return EXPAR_OK;
}

static void joined_end(const boot_request *request, joined *all)
{
    for (int32_t i = 0; all->fds && i < HELLO_LINES * request->size; i++)
        wire_close(&all->fds[i]);
    free(all->fds);
    free(all->places);
}

expar_status boot_join_sockets(const boot_request *request, boot **out)
{
    expar_status status = request_check(request);
    if (status == EXPAR_OK) status = auth_ready();
    if (status != EXPAR_OK) return status;
    joined all = {0};
    status = joined_make(request, &all);
    if (status == EXPAR_OK && request->size > 1) status = meet_somewhere(request, &all);
    if (status == EXPAR_OK) status = boot_sockets_create(request, all.fds, all.places, out);
    if (status != EXPAR_OK) {
        joined_end(request, &all);
        return status;
    }
    memcpy((*out)->ip, all.ip, sizeof all.ip);
    return EXPAR_OK;
}

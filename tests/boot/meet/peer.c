/* SPDX-License-Identifier: Apache-2.0 */
/* peer: a connection to the rendezvous made by hand. */
#include "boot/meet/peer.h"
#include "boot/place.h"

#include <poll.h>

int peer_connect(const expar_unique_id *id)
{
    unique_id_parts parts;
    address where;
    if (unique_id_unpack(id, &parts) != EXPAR_OK || !address_from_ip(&parts.ip, &where)) return -1;
    int fd = address_connect(&where);
    if (fd >= 0 && wire_wait(fd, POLLOUT, clock_ns() + PEER_WAIT_NS) && address_connect_error(fd) == 0) return fd;
    wire_close(&fd);
    return -1;
}

bool peer_prove(int fd, const expar_unique_id *id)
{
    unique_id_parts parts;
    auth_key key;
    auth proof;
    if (unique_id_unpack(id, &parts) != EXPAR_OK) return false;
    auth_key_derive(parts.secret, &key);
    auth_begin(&proof, &key, AUTH_CONNECTS, AUTH_RENDEZVOUS);
    return auth_run(&proof, fd, clock_ns() + PEER_WAIT_NS) == WIRE_DONE;
}

handshake peer_handshake(int32_t rank, int32_t size)
{
    handshake greeting;
    boot_place place;
    boot_request request = {.rank = rank, .size = size, .timeout_ms = 20000, .heap_bytes = 1 << 20};
    handshake_contact contact = {.unix_name = "nobody-listens-here"};
    place_find(&place);
    handshake_fill(&request, &place, &contact, &greeting);
    return greeting;
}

bool peer_send_handshake(int fd, const handshake *greeting)
{
    return wire_send_frame(fd, WIRE_HANDSHAKE, greeting, sizeof *greeting, clock_ns() + PEER_WAIT_NS) == WIRE_DONE;
}

int peer_enter(const expar_unique_id *id, int32_t rank, int32_t size)
{
    wire_inbox inbox = {0};
    handshake greeting = peer_handshake(rank, size);
    int fd = peer_connect(id);
    if (fd >= 0 && peer_prove(fd, id) && peer_send_handshake(fd, &greeting) &&
        wire_receive_frame(fd, &inbox, clock_ns() + PEER_WAIT_NS) == WIRE_DONE && inbox.header.kind == WIRE_WELCOME)
        return fd;
    wire_close(&fd);
    return -1;
}

bool peer_await_frame(int fd, wire_inbox *inbox)
{
    wire_result result;
    do {
        wire_inbox_clear(inbox);
        result = wire_receive_frame(fd, inbox, clock_ns() + PEER_WAIT_NS);
    } while (result == WIRE_DONE && inbox->header.kind == WIRE_WELCOME);
    return result == WIRE_DONE;
}

/* Whatever comes before the end (the nonce and proof of a server) is no frame and does not count. */
bool peer_await_close(int fd)
{
    unsigned char sink[4096];
    for (;;) {
        size_t moved = 0;
        wire_result result = wire_pull(fd, sink, sizeof sink, &moved);
        if (result == WIRE_CLOSED) return true;
        if (!wire_wait(fd, POLLIN, clock_ns() + PEER_WAIT_NS)) return false;
    }
}

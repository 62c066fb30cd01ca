/* SPDX-License-Identifier: Apache-2.0 */
/* client: one connection to the rendezvous. It is unknown until it has proved that it knows the secret. */
#ifndef EXPAR_BOOT_MEET_CLIENT_H
#define EXPAR_BOOT_MEET_CLIENT_H

#include "boot/meet/handshake.h"
#include "boot/wire/wire.h"

typedef enum client_state {
    CLIENT_STRANGER, /* the handshake is in progress */
    CLIENT_KNOWN,    /* has proved the secret; its greeting is awaited */
    CLIENT_MEMBER,   /* a rank of the running attempt */
    CLIENT_LEAVING   /* was told the end; it is dropped when that is sent */
} client_state;

typedef struct client {
    int fd;
    client_state state;
    int32_t rank; /* of a member */
    int64_t since_ns;
    auth auth;
    wire_inbox inbox;
    wire_outbox outbox;
    unsigned char payload[HANDSHAKE_LIMIT_BYTES];
} client;

/* Takes ownership of the socket. NULL: out of memory (the socket is closed). */
client *client_create(int fd, const auth_key *key);
void client_destroy(client *self);
/* Makes one step on a socket that is ready. WIRE_DONE: a frame is in the inbox. WIRE_BAD, WIRE_CLOSED: drop the
   client. */
wire_result client_step(client *self);
/* Sends a frame, now or as the socket takes it. */
void client_tell(client *self, wire_kind kind, const void *payload, size_t bytes);
/* Sends a frame as the last word. */
void client_dismiss(client *self, wire_kind kind, const void *payload, size_t bytes);
short client_events(const client *self);

#endif

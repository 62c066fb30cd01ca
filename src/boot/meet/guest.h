/* SPDX-License-Identifier: Apache-2.0 */
/* guest: one connection to the rendezvous: a stranger until it has proved that it knows the secret. */
#ifndef EXPAR_BOOT_MEET_GUEST_H
#define EXPAR_BOOT_MEET_GUEST_H

#include "boot/meet/hello.h"
#include "boot/wire/wire.h"

typedef enum guest_state {
    GUEST_STRANGER, /* the handshake runs */
    GUEST_KNOWN,    /* has proved the secret; its hello is awaited */
    GUEST_MEMBER,   /* a rank of the running attempt */
    GUEST_LEAVING   /* was told the end; goes when that is sent */
} guest_state;

typedef struct guest {
    int fd;
    guest_state state;
    int32_t rank; /* of a member */
    int64_t since_ns;
    auth auth;
    wire_inbox inbox;
    wire_outbox outbox;
    unsigned char payload[HELLO_LIMIT_BYTES];
} guest;

/* Takes the socket. NULL: out of memory (the socket is closed). */
guest *guest_create(int fd, const auth_key *key);
void guest_destroy(guest *self);
/* One step on a socket that is ready. WIRE_DONE: a frame is in the inbox. WIRE_BAD, WIRE_CLOSED: to be dropped. */
wire_result guest_step(guest *self);
/* Sends a frame, now or as the socket takes it. */
void guest_tell(guest *self, wire_kind kind, const void *payload, size_t bytes);
/* The same as the last word. */
void guest_dismiss(guest *self, wire_kind kind, const void *payload, size_t bytes);
short guest_events(const guest *self);

#endif

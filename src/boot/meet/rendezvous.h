/* SPDX-License-Identifier: Apache-2.0 */
/* rendezvous: a rank's connection to the rendezvous, open until the control sockets stand. */
#ifndef EXPAR_BOOT_MEET_RENDEZVOUS_H
#define EXPAR_BOOT_MEET_RENDEZVOUS_H

#include "boot/meet/handshake.h"
#include "boot/meet/mesh.h"
#include "boot/wire/wire.h"

/* How much longer than its own time-out a rank waits for the rendezvous to give a reason. */
#define RENDEZVOUS_GRACE_NS ((int64_t)10000 * 1000 * 1000)

typedef struct rendezvous {
    address where;
    const boot_request *request;
    /* rank 0 may not listen yet: retry. Else the id is served now, or never will be */
    bool meeting;
    auth_key key;
    int64_t deadline_ns;
    int fd;
    /* its payload is on the heap */
    wire_inbox inbox;
} rendezvous;

/* `request` must live as long. */
expar_status rendezvous_open(rendezvous *self, const address *where, const auth_key *key, const boot_request *request,
                             int64_t deadline_ns);
/* Sends the rank's `handshake`, and again if the rendezvous wants so, until the table comes. The table then lies in the
 * inbox, checked. Opens the TCP listener of `control` if it is needed. */
expar_status rendezvous_enter(rendezvous *self, const boot_request *request, const boot_place *place, mesh *control);
/* Sets the error for a closed connection, or for a frame that ends the try. */
expar_status rendezvous_verdict(const rendezvous *self);
expar_status rendezvous_lost(const rendezvous *self);
/* Names the process that is silent if the rendezvous does not answer; for texts. */
const char *rendezvous_server(const rendezvous *self);
void rendezvous_close(rendezvous *self);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* rendezvous: a rank's connection to the rendezvous, open until the control sockets stand. */
#ifndef EXPAR_BOOT_MEET_RENDEZVOUS_H
#define EXPAR_BOOT_MEET_RENDEZVOUS_H

#include "boot/meet/hello.h"
#include "boot/meet/mesh.h"
#include "boot/wire/wire.h"

/* How much longer than its own time-out a rank waits for the rendezvous to say why. */
#define RENDEZVOUS_GRACE_NS ((int64_t)10000 * 1000 * 1000)

typedef struct rendezvous {
    address where;
    const boot_request *request;
    bool meeting; /* rank 0 may not listen yet: retry. Else the id is served, or it never will be */
    auth_key key;
    int64_t deadline_ns;
    int fd;
    wire_inbox inbox; /* payload on the heap */
} rendezvous;

/* `request` lives as long. */
expar_status rendezvous_open(rendezvous *self, const address *where, const auth_key *key, const boot_request *request,
                             int64_t deadline_ns);
/* Says hello until the table comes; it lies in the inbox then, checked. Opens the TCP listener of `control` where
 * needed. */
expar_status rendezvous_enter(rendezvous *self, const boot_request *request, const boot_place *place, mesh *control);
/* What an end of the connection, or a frame that ends the try, means. Sets the error. */
expar_status rendezvous_verdict(const rendezvous *self);
expar_status rendezvous_lost(const rendezvous *self);
/* Whose silence it is when the rendezvous does not answer; for texts. */
const char *rendezvous_server(const rendezvous *self);
void rendezvous_close(rendezvous *self);

#endif

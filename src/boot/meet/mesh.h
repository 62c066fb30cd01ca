/* SPDX-License-Identifier: Apache-2.0 */
/* mesh: control sockets between all pairs of ranks, two for each (boot_line).
 *
 * Every rank listens: at an abstract Unix name that cannot be guessed, and at a TCP port if the group spans hosts. It
 * connects to all lower ranks and accepts all higher ones, everything at once. On each connection both sides prove the
 * secret; then the connecting rank names itself, and the accepting one answers in kind. Meanwhile each rank listens to
 * the rendezvous, which knows first of a rank that died. */
#ifndef EXPAR_BOOT_MEET_MESH_H
#define EXPAR_BOOT_MEET_MESH_H

#include "boot/meet/handshake.h"
#include "boot/wire/wire.h"

typedef struct mesh {
    int unix_listener, tcp_listener; /* -1: none */
    handshake_contact contact;
} mesh;

struct rendezvous;

expar_status mesh_open(mesh *self);
/* Opens a port at the address by which this rank reaches the rendezvous. Does nothing if there is one already. */
expar_status mesh_listen_tcp(mesh *self, const address *local);
/* Connects to all ranks in the table that lies in the rendezvous' inbox. On success fds[line · size + rank] are filled
   (own: -1), places copied, and all other ranks are as far. On failure nothing is left open. */
expar_status mesh_connect(mesh *self, struct rendezvous *entrance, const boot_request *request, int *fds,
                          boot_place *places);
void mesh_close(mesh *self);

#endif

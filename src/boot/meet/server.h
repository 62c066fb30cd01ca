/* SPDX-License-Identifier: Apache-2.0 */
/* server: the rendezvous, a thread that brings the ranks of a group together, one group after another.
 *
 * It serves any number of connections at once, and none can delay another: all sockets are nonblocking. Connections
 * that have not proved the secret are limited in number and in time; the oldest is closed to make place. */
#ifndef EXPAR_BOOT_MEET_SERVER_H
#define EXPAR_BOOT_MEET_SERVER_H

#include "boot/wire/wire.h"

typedef struct boot_server boot_server;

/* Takes ownership of the listening socket, also on failure. */
expar_status boot_server_start(int listener, const unsigned char secret[AUTH_SECRET_BYTES], boot_server **out);
/* Waiting ranks are told to come again. NULL is allowed. */
void boot_server_stop(boot_server *server);

#endif

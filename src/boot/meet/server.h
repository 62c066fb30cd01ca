/* SPDX-License-Identifier: Apache-2.0 */
/* server: the rendezvous, a thread that brings the ranks of a group together, one group after another.
 *
 * Any number of connections are served at once and none can hold up another: all sockets are nonblocking. Who has not
 * proved the secret is one of a bounded number, the oldest of which gives way, and lives for a bounded time. */
#ifndef EXPAR_BOOT_MEET_SERVER_H
#define EXPAR_BOOT_MEET_SERVER_H

#include "boot/wire/wire.h"

typedef struct boot_server boot_server;

/* Takes the listening socket, also on failure. */
expar_status boot_server_start(int listener, const unsigned char secret[AUTH_SECRET_BYTES], boot_server **out);
/* Ranks that wait are told to come again. NULL is allowed. */
void boot_server_stop(boot_server *server);

#endif

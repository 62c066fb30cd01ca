/* SPDX-License-Identifier: Apache-2.0 */
/* Creates the boot of ranks that are processes, over the control sockets with which they have met. boot.h describes its
 * operations. Everything else in this folder is private.
 *
 * Called by join.c; calls meet.h for how the sockets lie, wire, registry.h, ranks.h and base.
 *
 *   sockets.c    the table of operations, the good-bye    watch.c   the monitor: a thread that sees peers go
 *   exchange.c   one frame to and from every peer, of     ask.c     its lines: which rank waits for which, and
 *                which all collectives are made                     which one died first */
#ifndef EXPAR_BOOT_SOCKETS_CREATE_H
#define EXPAR_BOOT_SOCKETS_CREATE_H

#include "boot/boot.h"

/* Takes ownership of fds (of both kinds, as boot_meet gives them) and places (freed with the boot). After a failure the
 * caller still owns them. */
expar_status boot_sockets_create(const boot_request *request, int *fds, boot_place *places, boot **out);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Making the boot of ranks that are processes, over the control sockets with which they have met. What it is beside
 * that stands in boot.h; everything else in this folder is private to it.
 *
 * Called by join.c; calls meet.h for how the sockets lie, wire, notes.h, ranks.h and base.
 *
 *   sockets.c    the table of operations, the good-bye    watch.c   the monitor: a thread that sees peers go
 *   exchange.c   one frame to and from every peer, of     ask.c     its lines: who waits for whom, and who
 *                which all collectives are made                     died first */
#ifndef EXPAR_BOOT_SOCKETS_CREATE_H
#define EXPAR_BOOT_SOCKETS_CREATE_H

#include "boot/boot.h"

/* Takes fds (of both kinds, as boot_meet gives them) and places (freed with the boot). On failure they stay the
 * caller's. */
expar_status boot_sockets_create(const boot_request *request, int *fds, boot_place *places, boot **out);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* meet: how the processes of a group find each other: ids, the rendezvous, control sockets between all pairs.
 *
 * Called by join.c (boot_meet), by launch (ids, the roll), by sockets, which takes over the finished control sockets,
 * and by programs through include/expar/group.h (unique ids). Calls wire, ranks.h and base.
 *
 *   meet.c         one rank's way: where to meet, the rendezvous, the mesh
 *   rendezvous.c   its connection to the rendezvous        mesh.c      control sockets to all others
 *   handshake.c        records of both, and their checks       session.c   one control socket on its way
 *   server.c       the rendezvous: a thread                client.c    one connection to it
 *   unique_id.c    ids, and the servers of those           attempt.c   one try to form a group there
 *                  that were made here                     roll.c      who is there when rank 0 is not
 *   reach.c        could ranks connect to an id? */
#ifndef EXPAR_BOOT_MEET_MEET_H
#define EXPAR_BOOT_MEET_MEET_H

#include "boot/wire/wire.h"
#include <expar/group.h>

/* ---- meeting (meet.c) -------------------------------------------------------------------------------------------- */

/* Two sockets stand between each pair of ranks. */
typedef enum boot_line {
    BOOT_LINE_CONTROL, /* for collectives */
    BOOT_LINE_ASK,     /* for the monitors (sockets/ask.h) */
    BOOT_LINES
} boot_line;

/* The result of meeting, for one rank. */
typedef struct boot_joined {
    /* [BOOT_LINES · size] sockets; fds[line · size + r] leads to rank r; own: -1 */
    int *fds;
    /* [size] */
    boot_place *places;
    /* as boot.ip */
    char ip[BOOT_IP_TEXT];
} boot_joined;

/* Brings this rank together with all others of a group of several. The arrays are the caller's: fds all -1, places with
   only the own one filled. On failure nothing is left open. Collective. */
expar_status boot_meet(const boot_request *request, boot_joined *all);

/* ---- unique ids (unique_id.c) ------------------------------------------------------------------------------------ */
/* The content of the 128 bytes of an expar_unique_id. */

typedef struct unique_id_parts {
    unsigned char secret[AUTH_SECRET_BYTES];
    /* family 0 for an id that only carries a secret (a meeting has its own address) */
    address_ip ip;
} unique_id_parts;

void unique_id_pack(const unique_id_parts *parts, expar_unique_id *id);
/* EXPAR_ERR_ARGUMENT if the bytes are not an id: another start, or a wrong checksum. */
expar_status unique_id_unpack(const expar_unique_id *id, unique_id_parts *parts);

/* ---- the roll (roll.c) ------------------------------------------------------------------------------------------- */
/* The roll tells which ranks of a job on one host are there when rank 0, which would know, is not. Each rank listens at
   an abstract Unix name that follows from user, job and rank. It never accepts: the name's existence is enough. */

#define ROLL_TEXT 160

/* Makes this rank visible until roll_close; request->rank must be set. */
void roll_answer(const char *job, boot_request *request);
/* Writes "here: 1-2, not here: 0,3". Returns a little later than it has looked, so that ranks whose time-out ends a
   moment later still find this rank. */
void roll_call(const boot_request *request, char text[ROLL_TEXT]);
void roll_close(boot_request *request);

#endif

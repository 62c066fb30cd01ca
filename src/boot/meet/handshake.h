/* SPDX-License-Identifier: Apache-2.0 */
/* handshake.h: the records of rendezvous and mesh, and the checks of a peer's records. A rank greets with a
   `handshake`.
 *
 * Records are plain structs in the byte order of the host; the magic number shows a peer of the other order. The prefix
 * of a `handshake` never changes between versions, so that two versions can tell each other apart. */
#ifndef EXPAR_BOOT_MEET_HANDSHAKE_H
#define EXPAR_BOOT_MEET_HANDSHAKE_H

#include "boot/wire/wire.h"

#define BOOT_PROTOCOL         5
#define HANDSHAKE_MAGIC       0x52415845u /* "EXAR" */
#define HANDSHAKE_LIMIT_BYTES 1024        /* of a greeting of any version */

typedef struct handshake_prefix {
    uint32_t magic, protocol;
    char version[24]; /* expar_version() of the sender */
    int32_t rank, size;
} handshake_prefix;

/* Where a rank accepts control sockets. */
typedef struct handshake_contact {
    char unix_name[ADDRESS_UNIX_BYTES];
    /* family 0: it accepts only from its own host */
    address_ip tcp;
} handshake_contact;

typedef struct handshake {
    handshake_prefix prefix;
    int32_t ranks_per_node;
    /* 0 */
    int32_t reserved;
    uint64_t heap_bytes;
    /* how long the sender will wait */
    int64_t timeout_ms;
    boot_place place;
    handshake_contact contact;
} handshake;
_Static_assert(sizeof(handshake) <= HANDSHAKE_LIMIT_BYTES, "a first message fits");

/* One rank in the table that all ranks get. The payload is handshake_table_head and then `size` of these. */
typedef struct handshake_entry {
    boot_place place;
    handshake_contact contact;
} handshake_entry;

#define HANDSHAKE_ATTEMPT_BYTES 16
typedef struct handshake_table_head {
    unsigned char attempt[HANDSHAKE_ATTEMPT_BYTES]; /* random: names this try to form a group */
    int32_t size;
    int32_t reserved; /* 0 */
} handshake_table_head;

static inline size_t handshake_table_bytes(int32_t size)
{
    return sizeof(handshake_table_head) + (size_t)size * sizeof(handshake_entry);
}

/* The first record on a control socket, sent by the connecting rank, and the answer to it. */
typedef struct handshake_mesh {
    uint32_t magic;
    int32_t from, to;
    int32_t line; /* boot_line */
    unsigned char attempt[HANDSHAKE_ATTEMPT_BYTES];
} handshake_mesh;

/* The reason why a try failed, as it is sent. */
typedef struct handshake_verdict {
    int32_t status;
    char text[508];
} handshake_verdict;

void handshake_fill(const boot_request *request, const boot_place *place, const handshake_contact *contact,
                    handshake *out);
/* Checks that a payload is a `handshake` of this version with valid values. Else `*verdict` says why not, and only the
   prefix of *out is set, as far as it is known (else rank -1, size 0). */
bool handshake_check(const void *payload, size_t bytes, handshake *out, handshake_verdict *verdict);
/* Checks that two ranks of one group agree; else `*verdict` names rank and field. */
bool handshake_agree(const handshake *group, const handshake *rank, handshake_verdict *verdict);
bool handshake_table_check(const void *payload, size_t bytes, int32_t size);

void verdict_set(handshake_verdict *verdict, expar_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Reads a received `handshake_verdict`. The result is always a failure, terminated and printable. */
void verdict_read(const void *payload, size_t bytes, handshake_verdict *verdict);

#endif

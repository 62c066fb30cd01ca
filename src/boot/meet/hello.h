/* SPDX-License-Identifier: Apache-2.0 */
/* hello.h: the records of rendezvous and mesh, and the checks of a peer's records. A rank greets with a `hello`.
 *
 * Records are plain structs in the byte order of the host; the magic number shows a peer of the other order. The prefix
 * of a `hello` never changes between versions, so that two versions can tell each other apart. */
#ifndef EXPAR_BOOT_MEET_HELLO_H
#define EXPAR_BOOT_MEET_HELLO_H

#include "boot/wire/wire.h"

#define BOOT_PROTOCOL     5
#define HELLO_MAGIC       0x52415845u /* "EXAR" */
#define HELLO_LIMIT_BYTES 1024        /* of a greeting of any version */

typedef struct hello_prefix {
    uint32_t magic, protocol;
    char version[24]; /* expar_version() of the sender */
    int32_t rank, size;
} hello_prefix;

/* Where a rank accepts control sockets. */
typedef struct hello_contact {
    char unix_name[ADDRESS_UNIX_BYTES];
    /* family 0: it accepts only from its own host */
    address_ip tcp;
} hello_contact;

typedef struct hello {
    hello_prefix prefix;
    int32_t ranks_per_node;
    /* 0 */
    int32_t reserved;
    uint64_t heap_bytes;
    /* how long the sender will wait */
    int64_t timeout_ms;
    boot_place place;
    hello_contact contact;
} hello;
_Static_assert(sizeof(hello) <= HELLO_LIMIT_BYTES, "a first message fits");

/* One rank in the table that all ranks get. The payload is hello_table_head and then `size` of these. */
typedef struct hello_entry {
    boot_place place;
    hello_contact contact;
} hello_entry;

#define HELLO_ATTEMPT_BYTES 16
typedef struct hello_table_head {
    unsigned char attempt[HELLO_ATTEMPT_BYTES]; /* random: names this try to form a group */
    int32_t size;
    int32_t reserved; /* 0 */
} hello_table_head;

static inline size_t hello_table_bytes(int32_t size)
{
    return sizeof(hello_table_head) + (size_t)size * sizeof(hello_entry);
}

/* The first record on a control socket, sent by the connecting rank, and the answer to it. */
typedef struct hello_mesh {
    uint32_t magic;
    int32_t from, to;
    int32_t line; /* boot_line */
    unsigned char attempt[HELLO_ATTEMPT_BYTES];
} hello_mesh;

/* The reason why a try failed, as it is sent. */
typedef struct hello_verdict {
    int32_t status;
    char text[508];
} hello_verdict;

void hello_fill(const boot_request *request, const boot_place *place, const hello_contact *contact, hello *out);
/* Checks that a payload is a `hello` of this version with valid values. Else `*verdict` says why not, and only the
   prefix of *out is set, as far as it is known (else rank -1, size 0). */
bool hello_check(const void *payload, size_t bytes, hello *out, hello_verdict *verdict);
/* Checks that two ranks of one group agree; else `*verdict` names rank and field. */
bool hello_agree(const hello *group, const hello *rank, hello_verdict *verdict);
bool hello_table_check(const void *payload, size_t bytes, int32_t size);

void verdict_set(hello_verdict *verdict, expar_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Reads a received `hello_verdict`. The result is always a failure, terminated and printable. */
void verdict_read(const void *payload, size_t bytes, hello_verdict *verdict);

#endif

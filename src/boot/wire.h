/* SPDX-License-Identifier: Apache-2.0 */
/* wire: bytes and frames through nonblocking sockets, every length bounded, every wait with a deadline.
 *
 * All sockets of boot are nonblocking and close-on-exec. A frame is a header and a payload; the reader says how long a
 * payload may be, and a longer one ends the connection before anything of it is read. */
#ifndef EXPAR_BOOT_WIRE_H
#define EXPAR_BOOT_WIRE_H

#include "base/base.h"

typedef enum wire_result {
    WIRE_DONE,   /* all of it moved */
    WIRE_AGAIN,  /* the socket would block: poll, then call again */
    WIRE_CLOSED, /* the other side is gone (end of stream, or a connection error: errno, 0 at end of stream) */
    WIRE_BAD     /* what came breaks the protocol */
} wire_result;

/* Moves bytes [*moved, bytes) of the buffer and advances *moved. */
wire_result wire_push(int fd, const void *data, size_t bytes, size_t *moved);
wire_result wire_pull(int fd, void *data, size_t bytes, size_t *moved);

/* What goes between a rank and the rendezvous. */
typedef enum wire_kind {
    WIRE_HELLO = 1, /* rank to rendezvous: hello */
    WIRE_WELCOME,   /* rendezvous to rank: the hello is accepted; from now on no end without a word */
    WIRE_TABLE,     /* rendezvous to rank: all are here, and where */
    WIRE_STANDS,    /* rank to rendezvous: its control sockets stand */
    WIRE_GO,        /* rendezvous to rank: everybody's do */
    WIRE_REFUSED,   /* either way: the try has failed, with a verdict */
    WIRE_LATER      /* rendezvous to rank: it closes; come again */
} wire_kind;

typedef struct wire_header {
    uint32_t kind;  /* wire_kind */
    uint32_t bytes; /* of the payload */
} wire_header;

/* One frame on its way in. The payload's buffer belongs to the owner and has `limit_bytes`. */
typedef struct wire_inbox {
    wire_header header;
    size_t have_bytes; /* of header and payload together */
    unsigned char *payload;
    size_t limit_bytes;
} wire_inbox;

/* WIRE_DONE: a whole frame is here; it stays until wire_inbox_clear. */
wire_result wire_inbox_pull(wire_inbox *inbox, int fd);
void wire_inbox_clear(wire_inbox *inbox);

/* Frames on their way out that the socket did not take at once. */
typedef struct wire_outbox {
    unsigned char *data;
    size_t bytes, sent_bytes;
} wire_outbox;

/* Queues one frame behind what waits. False: out of memory. */
bool wire_outbox_add(wire_outbox *outbox, wire_kind kind, const void *payload, size_t bytes);
wire_result wire_outbox_push(wire_outbox *outbox, int fd);
static inline bool wire_outbox_empty(const wire_outbox *outbox)
{
    return outbox->sent_bytes == outbox->bytes;
}
void wire_outbox_free(wire_outbox *outbox);

/* The same for one who has nothing else to do: WIRE_AGAIN means that the deadline has passed. */
wire_result wire_send_frame(int fd, wire_kind kind, const void *payload, size_t bytes, int64_t deadline_ns);
wire_result wire_receive_frame(int fd, wire_inbox *inbox, int64_t deadline_ns);

/* Polls one socket; false when the deadline has passed. */
bool wire_wait(int fd, short events, int64_t deadline_ns);
/* Milliseconds for poll() until a deadline: rounded up, 0 when it has passed, never more than an hour. */
int wire_poll_ms(int64_t deadline_ns);
/* TCP finds out by itself, whether or not anything is sent, that the peer's host has answered nothing for so long (10 s
   at least), and ends the connection. Other sockets are left alone: their peers are on this host. */
void wire_keep_alive(int fd, int64_t limit_ms);
/* Ends the connection for every process that may have inherited it, then closes. -1 is allowed. */
void wire_close(int *fd);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* wire: how bytes go between processes that do not trust each other yet: where sockets listen and connect, bytes and
 * frames through them, and the proof of the group's secret that comes before anything is parsed.
 *
 * Called by all of boot that has to do with processes: meet, launch, sockets, and join.c above them; calls base. It
 * knows how something goes through a socket, not what it means: records are checked where they are read.
 *
 *   address.c   names of sockets; listening, accepting, connecting
 *   wire.c      bytes and frames: every length is bounded, every wait has a deadline
 *   auth.c      both sides prove that they know the secret */
#ifndef EXPAR_BOOT_WIRE_WIRE_H
#define EXPAR_BOOT_WIRE_WIRE_H

#include "boot/boot.h"
#include <sys/socket.h>

/* ---- addresses (address.c) --------------------------------------------------------------------------------------- */
/* Where sockets listen and connect: abstract Unix names (no file system) and TCP. */

typedef struct address {
    struct sockaddr_storage storage;
    socklen_t bytes; /* 0: none */
} address;

#define ADDRESS_TEXT       160
#define ADDRESS_UNIX_BYTES 48 /* a name's characters, its end included */

/* "unix:NAME" or "tcp:HOST:PORT". A host's name is resolved until the deadline at most, or until the program wants no
   more (interrupt_came). EXPAR_ERR_ARGUMENT names the text; EXPAR_ERR_BOOTSTRAP: there is no address for the name. */
expar_status address_parse(const char *text, int64_t deadline_ns, address *out);
void address_format(const address *self, char text[ADDRESS_TEXT]);
/* False when the name is too long. */
bool address_from_unix_name(const char *name, address *out);
/* A name that nobody can guess: "expar-" and 32 random hexadecimal digits. */
void address_random_unix_name(char name[ADDRESS_UNIX_BYTES]);
/* The address of an interface of this host ("eth0"), or an IP address, with port 0. Wildcards are refused. Of several
   addresses of an interface the first of IPv4 counts, then of IPv6 those that are not link-local: such a one means
   nothing on another host. */
expar_status address_of_interface(const char *what, const char *text, address *out);

/* IP addresses as they travel: 4 or 16 bytes. family: AF_INET or AF_INET6 as 4 or 6; 0: none. */
typedef struct address_ip {
    uint16_t family, port;
    unsigned char bytes[16];
} address_ip;
bool address_from_ip(const address_ip *ip, address *out);
/* Without the port; "" for family 0. */
void address_ip_format(const address_ip *ip, char text[BOOT_IP_TEXT]);
/* family 0 for one that is not IP. */
void address_to_ip(const address *self, address_ip *ip);
bool address_is_loopback(const address *self);
bool address_is_unix(const address *self);

/* Nonblocking and close-on-exec. -1 and errno. */
int address_listen(const address *self);
int address_accept(int listener);
/* The connection may still be on its way (poll for POLLOUT, then address_connect_error). */
int address_connect(const address *self);
/* 0, or the errno with which connecting ended. */
int address_connect_error(int fd);
/* This end's address, port included. */
bool address_local(int fd, address *out);
/* True for TCP, and for a Unix socket whose other end runs as the same user. */
bool address_same_user(int fd);

/* ---- bytes and frames (wire.c) ----------------------------------------------------------------------------------- */
/* All sockets of boot are nonblocking and close-on-exec. A frame is a header and a payload; the reader says how long a
   payload may be, and a longer one ends the connection before anything of it is read. */

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

/* Polls one socket; false when the deadline has passed, or the program wants no more (interrupt_came). */
bool wire_wait(int fd, short events, int64_t deadline_ns);
/* Milliseconds for poll() until a deadline: rounded up, 0 when it has passed, never more than an hour. */
int wire_poll_ms(int64_t deadline_ns);
/* TCP finds out by itself, whether or not anything is sent, that the peer's host has answered nothing for so long (10 s
   at least), and ends the connection. Other sockets are left alone: their peers are on this host. */
void wire_keep_alive(int fd, int64_t limit_ms);
/* Ends the connection for every process that may have inherited it, then closes. -1 is allowed. */
void wire_close(int *fd);

/* ---- proof of the secret (auth.c) -------------------------------------------------------------------------------- */
/* Both ends of a connection prove that they know the group's secret, before either parses anything:
 *
 *   connecting side                      accepting side
 *      nonce c  ──────────►     ◄──────────  nonce s          32 random bytes each, sent at once
 *      HMAC(key, purpose 'C' c s)  ───►  ◄───  HMAC(key, purpose 'S' c s)
 *
 * The secret itself never travels; the side's letter stops a proof from being sent back to its author, and the purpose
 * stops one made for the rendezvous from serving at a control socket. Exactly 64 bytes are read. */

#define AUTH_SECRET_BYTES 16
#define AUTH_NONCE_BYTES  32
#define AUTH_PROOF_BYTES  32

typedef struct auth_key {
    unsigned char bytes[32];
} auth_key;

typedef enum auth_side { AUTH_CONNECTS = 'C', AUTH_ACCEPTS = 'S' } auth_side;
typedef enum auth_purpose { AUTH_RENDEZVOUS = 'R', AUTH_MESH = 'M' } auth_purpose;

/* One side of one handshake. */
typedef struct auth {
    auth_key key;
    auth_side side;
    auth_purpose purpose;
    unsigned char out[AUTH_NONCE_BYTES + AUTH_PROOF_BYTES];
    unsigned char in[AUTH_NONCE_BYTES + AUTH_PROOF_BYTES];
    size_t out_ready_bytes, out_sent_bytes, in_bytes;
} auth;

/* Prepares the cryptographic library; call before the others. EXPAR_ERR_SYSTEM. */
expar_status auth_ready(void);
void auth_key_derive(const unsigned char secret[AUTH_SECRET_BYTES], auth_key *key);
/* A secret of the right length from any text. */
void auth_secret_from_text(const char *text, unsigned char secret[AUTH_SECRET_BYTES]);

void auth_begin(auth *self, const auth_key *key, auth_side side, auth_purpose purpose);
/* WIRE_DONE: the other side knows the secret. WIRE_BAD: it does not. */
wire_result auth_step(auth *self, int fd);
/* True while bytes wait for room in the socket. */
bool auth_wants_to_write(const auth *self);
/* auth_step until it ends or the deadline passes (WIRE_AGAIN). */
wire_result auth_run(auth *self, int fd, int64_t deadline_ns);

#endif

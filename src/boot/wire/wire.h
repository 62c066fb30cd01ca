/* SPDX-License-Identifier: Apache-2.0 */
/* wire: how processes that do not trust each other yet exchange bytes: where sockets listen and connect, bytes and
 * frames through them. Before anything is parsed, both sides prove the group's secret.
 *
 * Called by the folders of boot for processes: meet, launch, sockets, and join.c above them; calls base. It knows how
 * data goes through a socket, not what the data means: readers of records check them.
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
#define ADDRESS_UNIX_BYTES 48 /* characters of a name, its end included */

/* Parses "unix:NAME" or "tcp:HOST:PORT". It resolves a host's name until the deadline at most, or until the program
   asks to stop (interrupt_came). EXPAR_ERR_ARGUMENT names the text; EXPAR_ERR_BOOTSTRAP: there is no address for the
   name. */
expar_status address_parse(const char *text, int64_t deadline_ns, address *out);
void address_format(const address *self, char text[ADDRESS_TEXT]);
/* Returns false if the name is too long. */
bool address_from_unix_name(const char *name, address *out);
/* Makes a name that cannot be guessed: "expar-" and 32 random hexadecimal digits. */
void address_random_unix_name(char name[ADDRESS_UNIX_BYTES]);
/* Gives the address of an interface of this host ("eth0"), or an IP address, with port 0. Wildcards are rejected. If an
   interface has several addresses, the first IPv4 address counts. Without one, the first IPv6 address counts that is
   not link-local, because a link-local one means nothing on another host. */
expar_status address_of_interface(const char *what, const char *text, address *out);

/* An IP address as it is sent: 4 or 16 bytes. family: 4 or 6 for AF_INET or AF_INET6; 0: none. */
typedef struct address_ip {
    uint16_t family, port;
    unsigned char bytes[16];
} address_ip;
bool address_from_ip(const address_ip *ip, address *out);
/* Formats an address without its port; "" for family 0. */
void address_ip_format(const address_ip *ip, char text[BOOT_IP_TEXT]);
/* Gives family 0 for an address that is not IP. */
void address_to_ip(const address *self, address_ip *ip);
bool address_is_loopback(const address *self);
bool address_is_unix(const address *self);

/* Returns a nonblocking, close-on-exec socket; on failure -1 and errno. */
int address_listen(const address *self);
int address_accept(int listener);
/* The connection may still be in progress (poll for POLLOUT, then address_connect_error). */
int address_connect(const address *self);
/* Returns 0, or the errno with which connecting ended. */
int address_connect_error(int fd);
/* Gives this end's address, port included. */
bool address_local(int fd, address *out);
/* Returns true for TCP, and for a Unix socket whose other end runs as the same user. */
bool address_same_user(int fd);

/* ---- bytes and frames (wire.c) ----------------------------------------------------------------------------------- */
/* All sockets of boot are nonblocking and close-on-exec. A frame is a header and a payload. The reader sets a limit for
   the payload; a longer one ends the connection before any of it is read. */

typedef enum wire_result {
    WIRE_DONE,   /* everything was moved */
    WIRE_AGAIN,  /* the socket would block: poll, then call again */
    WIRE_CLOSED, /* the other side is gone (end of stream, or a connection error: errno, 0 at end of stream) */
    WIRE_BAD     /* the data breaks the protocol */
} wire_result;

/* Moves bytes [*moved, bytes) of the buffer and advances *moved. */
wire_result wire_push(int fd, const void *data, size_t bytes, size_t *moved);
wire_result wire_pull(int fd, void *data, size_t bytes, size_t *moved);

/* Frames between a rank and the rendezvous. */
typedef enum wire_kind {
    WIRE_HANDSHAKE = 1, /* rank to rendezvous: the rank's greeting */
    WIRE_WELCOME,       /* rendezvous to rank: it accepts the greeting; from now on it gives a reason before it ends */
    WIRE_TABLE,         /* rendezvous to rank: all ranks are here, and where */
    WIRE_STANDS,        /* rank to rendezvous: its control sockets stand */
    WIRE_GO,            /* rendezvous to rank: the control sockets of all ranks stand */
    WIRE_REJECTED,      /* both directions: the try has failed, with its reason */
    WIRE_LATER          /* rendezvous to rank: it closes; the rank shall come again */
} wire_kind;

typedef struct wire_header {
    uint32_t kind;  /* wire_kind */
    uint32_t bytes; /* of the payload */
} wire_header;

/* An incoming frame. The owner allocates the payload's buffer, which has `limit_bytes`. */
typedef struct wire_inbox {
    wire_header header;
    size_t have_bytes; /* of header and payload together */
    unsigned char *payload;
    size_t limit_bytes;
} wire_inbox;

/* WIRE_DONE: a whole frame is here; it stays until wire_inbox_clear. */
wire_result wire_inbox_pull(wire_inbox *inbox, int fd);
void wire_inbox_clear(wire_inbox *inbox);

/* Outgoing frames that the socket did not take at once. */
typedef struct wire_outbox {
    unsigned char *data;
    size_t bytes, sent_bytes;
} wire_outbox;

/* Queues one frame after those that wait. False: out of memory. */
bool wire_outbox_add(wire_outbox *outbox, wire_kind kind, const void *payload, size_t bytes);
wire_result wire_outbox_push(wire_outbox *outbox, int fd);
static inline bool wire_outbox_empty(const wire_outbox *outbox)
{
    return outbox->sent_bytes == outbox->bytes;
}
void wire_outbox_free(wire_outbox *outbox);

/* Sends a frame and waits for that. WIRE_AGAIN: the deadline has passed. */
wire_result wire_send_frame(int fd, wire_kind kind, const void *payload, size_t bytes, int64_t deadline_ns);
wire_result wire_receive_frame(int fd, wire_inbox *inbox, int64_t deadline_ns);

/* Polls one socket. Returns false when the deadline has passed, or the program asks to stop (interrupt_came). */
bool wire_wait(int fd, short events, int64_t deadline_ns);
/* Returns the milliseconds for poll() until a deadline: rounded up, 0 when it has passed, never more than an hour. */
int wire_poll_ms(int64_t deadline_ns);
/* Lets TCP end the connection by itself when the peer's host has answered nothing for `limit_ms` (10 s at least). This
   works even if nothing is sent. Other sockets are left alone: their peers are on this host. */
void wire_keep_alive(int fd, int64_t limit_ms);
/* Replaces control characters in a text from a peer, which a terminal would obey where the text is shown. */
void wire_text_clean(char *text);
/* Returns whether a peer's text of at most that many bytes has an end and no control character. */
bool wire_text_fits(const char *text, size_t bytes);
/* Ends the connection for every process that may have inherited it, then closes. -1 is allowed. */
void wire_close(int *fd);

/* ---- proof of the secret (auth.c) -------------------------------------------------------------------------------- */
/* Both ends of a connection prove that they know the group's secret, before either parses anything:
 *
 *   connecting side                      accepting side
 *      nonce c  ──────────►     ◄──────────  nonce s          32 random bytes each, sent at once
 *      HMAC(key, purpose 'C' c s)  ───►  ◄───  HMAC(key, purpose 'S' c s)
 *
 * The secret itself is never sent. The side's letter stops a proof from being sent back to its author. The purpose
 * stops a proof made for the rendezvous from serving at a control socket. Exactly 64 bytes are read. */

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
/* Makes a secret of the right length from any text. */
void auth_secret_from_text(const char *text, unsigned char secret[AUTH_SECRET_BYTES]);

void auth_begin(auth *self, const auth_key *key, auth_side side, auth_purpose purpose);
/* WIRE_DONE: the other side knows the secret. WIRE_BAD: it does not. */
wire_result auth_step(auth *self, int fd);
/* Returns true while bytes wait for free space in the socket. */
bool auth_wants_to_write(const auth *self);
/* Calls auth_step until it ends or the deadline passes (WIRE_AGAIN). */
wire_result auth_run(auth *self, int fd, int64_t deadline_ns);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* session: one control socket on its way: connect, proof of the secret, names. */
#ifndef EXPAR_BOOT_MEET_SESSION_H
#define EXPAR_BOOT_MEET_SESSION_H

#include "boot/meet/handshake.h"
#include "boot/wire/wire.h"

typedef enum session_state {
    SESSION_IDLE, /* no socket: to be tried (again) at retry_ns */
    SESSION_CONNECT,
    SESSION_AUTH,
    SESSION_NAMES,
    SESSION_DONE /* the caller owns its socket */
} session_state;

typedef struct session {
    session_state state;
    auth_side side;
    int fd;
    /* the peer; for an accepted socket -1 until the peer has named itself */
    int32_t rank;
    auth auth;
    handshake_mesh mine, theirs;
    size_t mine_bytes, theirs_bytes;
    int64_t since_ns, retry_ns;
} session;

/* `names` says which rank this end is and which one it expects; to or from -1: not known yet. */
void session_start(session *self, int fd, auth_side side, const auth_key *key, const handshake_mesh *names);
/* WIRE_DONE: the socket is a control socket to self->rank. WIRE_CLOSED, WIRE_BAD: close it. */
wire_result session_step(session *self, int32_t size);
short session_events(const session *self);

#endif

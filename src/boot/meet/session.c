/* SPDX-License-Identifier: Apache-2.0 */
/* session: one control socket, until it is ready. */
#include "boot/meet/session.h"
#include "boot/meet/meet.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

void session_start(session *self, int fd, auth_side side, const auth_key *key, const handshake_mesh *names)
{
    int32_t rank = side == AUTH_CONNECTS ? names->to : -1;
    *self = (session){.state = side == AUTH_CONNECTS ? SESSION_CONNECT : SESSION_AUTH,
                      .side = side,
                      .fd = fd,
                      .rank = rank,
                      .mine = *names,
                      .since_ns = clock_ns()};
    auth_begin(&self->auth, key, side, AUTH_MESH);
}

/* Returns whether the other end belongs to this attempt, means this rank, and may connect here. */
static bool names_fit(const session *self, int32_t size)
{
    const handshake_mesh *mine = &self->mine, *theirs = &self->theirs;
    if (theirs->magic != HANDSHAKE_MAGIC || memcmp(theirs->attempt, mine->attempt, sizeof mine->attempt) != 0)
        return false;
    if (theirs->to != mine->from) return false;
    if (self->side == AUTH_CONNECTS) return theirs->from == mine->to && theirs->line == mine->line;
    if (theirs->line < 0 || theirs->line >= BOOT_LINES) return false;
    return theirs->from > mine->from && theirs->from < size;
}

static wire_result pull_names(session *self, int32_t size)
{
    wire_result result = wire_pull(self->fd, &self->theirs, sizeof self->theirs, &self->theirs_bytes);
    if (result != WIRE_DONE) return result;
    if (!names_fit(self, size)) return WIRE_BAD;
    self->rank = self->theirs.from;
    self->mine.to = self->rank;
    self->mine.line = self->theirs.line;
    return WIRE_DONE;
}

/* The connecting side speaks first. */
static wire_result exchange_names(session *self, int32_t size)
{
    wire_result result = WIRE_DONE;
    if (self->side == AUTH_ACCEPTS) result = pull_names(self, size);
    if (result == WIRE_DONE) result = wire_push(self->fd, &self->mine, sizeof self->mine, &self->mine_bytes);
    if (result == WIRE_DONE && self->side == AUTH_CONNECTS) result = pull_names(self, size);
    return result;
}

wire_result session_step(session *self, int32_t size)
{
    wire_result result = WIRE_DONE;
    if (self->state == SESSION_CONNECT) {
        errno = address_connect_error(self->fd);
        if (errno != 0) return WIRE_CLOSED;
        self->state = SESSION_AUTH;
    }
    if (self->state == SESSION_AUTH) {
        result = auth_step(&self->auth, self->fd);
        if (result == WIRE_DONE) self->state = SESSION_NAMES;
    }
    if (self->state == SESSION_NAMES) result = exchange_names(self, size);
    return result;
}

short session_events(const session *self)
{
    bool auth_writes = self->state == SESSION_AUTH && auth_wants_to_write(&self->auth);
    bool names_write = self->state == SESSION_NAMES && self->mine_bytes < sizeof self->mine &&
                       (self->side == AUTH_CONNECTS || self->rank >= 0);
    if (self->state == SESSION_CONNECT) return POLLOUT;
    return (short)(POLLIN | (auth_writes || names_write ? POLLOUT : 0));
}

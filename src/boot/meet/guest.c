/* SPDX-License-Identifier: Apache-2.0 */
/* guest: one connection to the rendezvous. */
#include "boot/meet/guest.h"

#include <poll.h>
#include <stdlib.h>

guest *guest_create(int fd, const auth_key *key)
{
    guest *self = calloc(1, sizeof *self);
    if (!self) {
        wire_close(&fd);
        return NULL;
    }
    self->fd = fd;
    self->rank = -1;
    self->since_ns = clock_ns();
    self->inbox = (wire_inbox){.payload = self->payload, .limit_bytes = sizeof self->payload};
    auth_begin(&self->auth, key, AUTH_ACCEPTS, AUTH_RENDEZVOUS);
    return self;
}

void guest_destroy(guest *self)
{
    wire_close(&self->fd);
    wire_outbox_free(&self->outbox);
    free(self);
}

wire_result guest_step(guest *self)
{
    if (self->state == GUEST_STRANGER) {
        wire_result result = auth_step(&self->auth, self->fd);
        if (result != WIRE_DONE) return result;
        self->state = GUEST_KNOWN;
    }
    if (!wire_outbox_empty(&self->outbox) && wire_outbox_push(&self->outbox, self->fd) == WIRE_CLOSED)
        return WIRE_CLOSED;
    if (self->state == GUEST_LEAVING) return wire_outbox_empty(&self->outbox) ? WIRE_CLOSED : WIRE_AGAIN;
    return wire_inbox_pull(&self->inbox, self->fd);
}

void guest_tell(guest *self, wire_kind kind, const void *payload, size_t bytes)
{
    if (!wire_outbox_add(&self->outbox, kind, payload, bytes)) {
        LOG(LOG_ERROR, "rendezvous: out of memory for a frame of %zu bytes to rank %d", bytes, self->rank);
        return;
    }
    /* A failure shows when the socket is read next. */
    (void)wire_outbox_push(&self->outbox, self->fd);
}

void guest_dismiss(guest *self, wire_kind kind, const void *payload, size_t bytes)
{
    guest_tell(self, kind, payload, bytes);
    self->state = GUEST_LEAVING;
    self->rank = -1;
    self->since_ns = clock_ns();
}

short guest_events(const guest *self)
{
    bool writes =
        !wire_outbox_empty(&self->outbox) || (self->state == GUEST_STRANGER && auth_wants_to_write(&self->auth));
    bool reads = self->state != GUEST_LEAVING;
    return (short)((reads ? POLLIN : 0) | (writes ? POLLOUT : 0));
}

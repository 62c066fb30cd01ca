/* SPDX-License-Identifier: Apache-2.0 */
/* client: one connection to the rendezvous. */
#include "boot/meet/client.h"

#include <poll.h>
#include <stdlib.h>

client *client_create(int fd, const auth_key *key)
{
    client *self = calloc(1, sizeof *self);
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

void client_destroy(client *self)
{
    wire_close(&self->fd);
    wire_outbox_free(&self->outbox);
    free(self);
}

wire_result client_step(client *self)
{
    if (self->state == CLIENT_STRANGER) {
        wire_result result = auth_step(&self->auth, self->fd);
        if (result != WIRE_DONE) return result;
        self->state = CLIENT_KNOWN;
    }
    if (!wire_outbox_empty(&self->outbox) && wire_outbox_push(&self->outbox, self->fd) == WIRE_CLOSED)
        return WIRE_CLOSED;
    if (self->state == CLIENT_LEAVING) return wire_outbox_empty(&self->outbox) ? WIRE_CLOSED : WIRE_AGAIN;
    return wire_inbox_pull(&self->inbox, self->fd);
}

void client_tell(client *self, wire_kind kind, const void *payload, size_t bytes)
{
    if (!wire_outbox_add(&self->outbox, kind, payload, bytes)) {
        LOG(LOG_ERROR, "rendezvous: out of memory for a frame of %zu bytes to rank %d", bytes, self->rank);
        return;
    }
    /* A failure shows when the socket is read next. */
    (void)wire_outbox_push(&self->outbox, self->fd);
}

void client_dismiss(client *self, wire_kind kind, const void *payload, size_t bytes)
{
    client_tell(self, kind, payload, bytes);
    self->state = CLIENT_LEAVING;
    self->rank = -1;
    self->since_ns = clock_ns();
}

short client_events(const client *self)
{
    bool writes =
        !wire_outbox_empty(&self->outbox) || (self->state == CLIENT_STRANGER && auth_wants_to_write(&self->auth));
    bool reads = self->state != CLIENT_LEAVING;
    return (short)((reads ? POLLIN : 0) | (writes ? POLLOUT : 0));
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Puts that touch on both sides go as one message. A put with a signal may only be the last of them, since its signal
 * would wait for the data of later ones. */
#include "net/proxy/parts.h"

static bool is_put(const flight *f)
{
    return f->command.kind == PROXY_PUT || f->command.kind == PROXY_PUT_SIGNAL;
}

static bool touches(const flight *a, const flight *b)
{
    const proxy_command *first = &a->command, *second = &b->command;
    return a->on_device == b->on_device && first->memory == second->memory &&
           first->offset + first->bytes == second->offset && first->local + first->bytes == second->local;
}

/* Memory of a GPU that touches may have been allocated apart, and no copy goes across. */
static bool is_one_block(const proxy *self, const flight *f, uint64_t bytes)
{
    bool on_device;
    return !f->on_device || proxy_find_local(self, &f->command, bytes, &on_device);
}

void proxy_join(proxy *self, flight *f)
{
    flight *last = f;
    f->message_bytes = f->command.bytes;
    f->num_joined = 0;
    while (last->command.kind == PROXY_PUT && last->next != PROXY_NONE) {
        flight *more = &self->flights[last->next];
        if (!is_put(more) || more->command.bytes == 0 || more->epoch != f->epoch || !touches(last, more)) return;
        const uint64_t bytes = f->message_bytes + more->command.bytes;
        if (bytes > PROXY_JOINED_BYTES || !is_one_block(self, f, bytes)) return;
        f->message_bytes = bytes;
        f->num_joined++;
        last = more;
    }
}

flight *proxy_last_joined(const proxy *self, flight *f)
{
    flight *last = f;
    for (uint32_t i = 0; i < f->num_joined; i++)
        last = &self->flights[last->next];
    return last;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Messages between a rank and the owner of device memory: where they stand, and how they travel. */
#include "shmem/copies/parts.h"

#include <assert.h>

static_assert(sizeof(mail_head) == 64 && offsetof(mail_head, flag) == 56, "the flag ends the message");

/* The network may store the word as bytes of a message; ThreadSanitizer does not check this read. */
__attribute__((no_sanitize("thread"))) static uint64_t mail_peek(const _Atomic uint64_t *flag)
{
    return atomic_load_explicit(flag, memory_order_relaxed);
}

bool mail_arrived(const copies *self, uint64_t slot, uint64_t number)
{
    const mail_head *head = mail_head_at(self, slot);
    if (mail_peek(&head->flag) >> 32 != (uint32_t)number) return false;
    sym_behold(self->sym);
    /* Acquire: partner of the release by which a rank of this node stores the flag. */
    return atomic_load_explicit(&head->flag, memory_order_acquire) >> 32 == (uint32_t)number;
}

transport_request mail_message(const copies *self, int32_t rank, mail_area area, mail_area to, uint64_t number)
{
    const mail_head *head = mail_head_at(self, mail_slot(self, rank, area, number));
    const bool has_data = head->kind == MAIL_PUT ? to == MAIL_REQUESTS : head->kind == MAIL_GET && to == MAIL_ANSWERS;
    const uint64_t room = has_data ? mail_room(head->bytes) : 0;
    const uint64_t slot = mail_slot(self, self->sym->rank, to, number) + self->slot_bytes - sizeof *head;
    return (transport_request){.kind = TRANSPORT_KIND_PUT,
                               .pe = rank,
                               .memory = TRANSPORT_PINNED,
                               .offset = self->offset + slot - room,
                               .source = (const uint8_t *)head - room,
                               .bytes = room + sizeof *head,
                               .flagged = true};
}

transport *mail_carrier(const copies *self, int32_t rank)
{
    return sym_ways(self->sym, TRANSPORT_PINNED, rank)->data;
}

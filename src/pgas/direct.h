/* SPDX-License-Identifier: Apache-2.0 */
/* The short way of the operations that are called most: where pe is reached by loads and stores and nothing is wrong
 * with the arguments, they are carried out here. All return false having done nothing where that is not so; the caller
 * then takes the long way, which also says what is wrong. Private to pgas. */
#ifndef EXPAR_PGAS_DIRECT_H
#define EXPAR_PGAS_DIRECT_H

#include "group/group.h"
#include "link/link.h"
#include "net/p2p/access.h"
#include "shmem/doorbell.h"
#include "shmem/kinds.h"
#include <expar/rma.h>

/* Where [address, address + bytes) of pe is mapped here; NULL: take the long way. */
static inline uint8_t *direct_at(const expar_group *group, const void *data, size_t bytes, int32_t pe)
{
    uint64_t offset;
    if (!group || (uint32_t)pe >= (uint32_t)group->size) return NULL;
    const sym *self = group->sym;
    if (!self->direct[pe] || !sym_heap_offset(self, data, bytes, &offset)) return NULL;
    /* Relaxed: a caller that sees a failure asks for it again, with order. */
    return atomic_load_explicit(&self->failure, memory_order_relaxed) == 0 ? self->direct[pe] + offset : NULL;
}

static inline sym_doorbell *direct_doorbell(const sym *self, int32_t pe)
{
    return &((sym_control *)self->direct[pe])->doorbell;
}

static inline bool direct_put(const expar_group *group, void *dest, const void *source, size_t bytes, int32_t pe)
{
    uint8_t *to = direct_at(group, dest, bytes, pe);
    if (!to || !source || bytes == 0 || kinds_is_device(group->sym, source)) return false;
    const sym *self = group->sym;
    p2p_store(to, source, bytes);
    doorbell_ring_put(direct_doorbell(self, pe), (uint64_t)(to - self->direct[pe]), bytes, self->by_threads);
    return true;
}

static inline bool direct_get(const expar_group *group, void *dest, const void *source, size_t bytes, int32_t pe)
{
    const uint8_t *from = direct_at(group, source, bytes, pe);
    if (!from || !dest || bytes == 0 || kinds_is_device(group->sym, dest)) return false;
    p2p_load(dest, from, bytes);
    return true;
}

/* Stores of one thread reach mapped memory in order; release keeps the data before the signal. */
static inline bool direct_put_signal(const expar_group *group, void *dest, const void *source, size_t bytes,
                                     uint64_t *signal, uint64_t value, expar_signal_op op, int32_t pe)
{
    _Atomic uint64_t *word = (_Atomic uint64_t *)(void *)direct_at(group, signal, sizeof *signal, pe);
    uint8_t *to = direct_at(group, dest, bytes, pe);
    bool is_set = op == EXPAR_SIGNAL_SET, is_known = is_set || op == EXPAR_SIGNAL_ADD;
    if (!word || !to || !source || bytes == 0 || !is_known || (uintptr_t)signal % sizeof *signal != 0) return false;
    if (kinds_is_device(group->sym, source)) return false;
    p2p_store(to, source, bytes);
    if (is_set)
        atomic_store_explicit(word, value, memory_order_release);
    else
        atomic_fetch_add_explicit(word, value, memory_order_release);
    doorbell_ring(direct_doorbell(group->sym, pe), group->sym->by_threads);
    return true;
}

/* The change's offset is not known yet: `word` is the caller's address. */
static inline bool direct_change(const expar_group *group, const link_change *change, const void *word, int32_t pe)
{
    uint8_t *at = direct_at(group, word, change->bytes, pe);
    if (!at || (uintptr_t)word % change->bytes != 0) return false;
    if (change->old && kinds_is_device(group->sym, change->old)) return false;
    const uint64_t old = p2p_change_word(at, change->bytes, change->op, change->operand, change->compare);
    if (change->old && change->bytes == 8) *(uint64_t *)change->old = old;
    if (change->old && change->bytes == 4) *(uint32_t *)change->old = (uint32_t)old;
    if (change->op != TRANSPORT_FETCH) doorbell_ring(direct_doorbell(group->sym, pe), group->sym->by_threads);
    return true;
}

#endif

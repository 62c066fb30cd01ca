/* SPDX-License-Identifier: Apache-2.0 */
/* Requests are carried out on registered memory: keys and bounds are checked, data moves, atomics change words.
 *
 * Words of 4 and 8 bytes are stored as one access with release order, and so is the last word of larger data. A thread
 * that finds a flag there sees all that arrived before it. */
#include "net/gda/nic/parts.h"

#include <endian.h>
#include <infiniband/mlx5dv.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE_BYTES = 32 << 10 }; /* of a copy to or from a window; a multiple of 8 */

static const nic_verdict well = {0};

/* ---- random numbers ---------------------------------------------------------------------------------------------- */

uint32_t nic_random(nic_table *table, uint32_t below)
{
    uint64_t mix = table->random += UINT64_C(0x9e3779b97f4a7c15);
    mix = (mix ^ mix >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    mix = (mix ^ mix >> 27) * UINT64_C(0x94d049bb133111eb);
    return (uint32_t)((mix ^ mix >> 31) >> 16) % below;
}

bool nic_chance(nic_table *table, uint32_t one_in)
{
    return one_in && nic_random(table, one_in) == 0;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

bool nic_is_lost(const nic_table *table, uint32_t port)
{
    for (size_t i = 0; i < table->num_lost; i++)
        if (table->lost[i] == port) return true;
    return false;
}

nic_place nic_find(const nic_table *table, uint32_t port, uint32_t key, uint64_t address, uint64_t bytes,
                   unsigned access, uint8_t *fault, unsigned *has)
{
    const nic_place nowhere = {0};
    *fault = NIC_WRONG_KEY;
    for (size_t i = 0; i < table->count; i++) {
        const nic_memory *m = &table->list[i];
        if (m->port != port || m->key != key) continue;
        *fault = NIC_WRONG_BOUNDS;
        if (address < m->address || bytes > m->bytes || address - m->address > m->bytes - bytes) return nowhere;
        *fault = NIC_WRONG_ACCESS;
        if ((m->access & access) != access) return nowhere;
        *has = m->access;
        return (nic_place){(uint8_t *)m->base + (address - m->address), m->window};
    }
    return nowhere;
}

static nic_place place_after(nic_place place, size_t bytes)
{
    return (nic_place){(uint8_t *)place.at + bytes, place.window};
}

static void store_word(void *dest, uint64_t value, size_t bytes)
{
    if (bytes == 8)
        __atomic_store_n((uint64_t *)dest, value, __ATOMIC_RELEASE);
    else
        __atomic_store_n((uint32_t *)dest, (uint32_t)value, __ATOMIC_RELEASE);
}

static bool perform_is_word(const void *at, size_t bytes)
{
    return (bytes == 4 || bytes == 8) && (uintptr_t)at % bytes == 0;
}

/* Bytes without an order among them. */
static bool store_plain(nic_place dest, const void *source, size_t bytes)
{
    if (dest.window) return dest.window->write(dest.window, dest.at, source, bytes);
    memcpy(dest.at, source, bytes);
    return true;
}

bool nic_store(nic_place dest, const void *source, size_t bytes)
{
    const size_t last = ((uintptr_t)dest.at + bytes) % 8 || bytes < 8 ? 0 : 8;
    uint64_t word = 0;
    if (dest.window) {
        if (last && bytes > last && !store_plain(dest, source, bytes - last)) return false;
        if (!last || bytes == last) return store_plain(dest, source, bytes);
        return store_plain(place_after(dest, bytes - last), (const uint8_t *)source + bytes - last, last);
    }
    if (perform_is_word(dest.at, bytes)) {
        memcpy(&word, source, bytes);
        store_word(dest.at, word, bytes);
    } else if (last && bytes > last) {
        memcpy(dest.at, source, bytes - last);
        memcpy(&word, (const uint8_t *)source + bytes - last, last);
        store_word((uint8_t *)dest.at + bytes - last, word, last);
    } else {
        memcpy(dest.at, source, bytes);
    }
    return true;
}

bool nic_load(void *dest, nic_place source, size_t bytes)
{
    uint64_t word;
    if (source.window) return source.window->read(source.window, dest, source.at, bytes);
    if (!perform_is_word(source.at, bytes)) {
        memcpy(dest, source.at, bytes);
        return true;
    }
    word = bytes == 8 ? __atomic_load_n((const uint64_t *)source.at, __ATOMIC_ACQUIRE)
                      : __atomic_load_n((const uint32_t *)source.at, __ATOMIC_ACQUIRE);
    memcpy(dest, &word, bytes);
    return true;
}

/* Copies from one place to another. What lies beyond a window passes through a piece of the stack. */
static bool perform_copy(nic_place dest, nic_place source, size_t bytes)
{
    uint8_t piece[PIECE_BYTES];
    if (!source.window && !perform_is_word(source.at, bytes)) return nic_store(dest, source.at, bytes);
    for (size_t at = 0; at < bytes; at += PIECE_BYTES) {
        const size_t part = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
        if (!nic_load(piece, place_after(source, at), part)) return false;
        if (!nic_store(place_after(dest, at), piece, part)) return false;
    }
    return true;
}

/* ---- data that is late ------------------------------------------------------------------------------------------- */

void nic_deliver(nic_parcel **list)
{
    for (nic_parcel *p = *list, *next; p; p = next) {
        next = p->next;
        nic_store(p->dest, p->data, p->bytes);
        free(p);
    }
    *list = NULL;
}

void nic_drop(nic_parcel **list)
{
    for (nic_parcel *p = *list, *next; p; p = next) {
        next = p->next;
        free(p);
    }
    *list = NULL;
}

/* Puts the data at the end of the list. Returns false where there is no memory for it, or the source is out of reach.
   */
static bool keep_late(nic_parcel **list, nic_place dest, nic_place source, size_t bytes)
{
    nic_parcel *p = malloc(sizeof *p + bytes);
    if (!p) return false;
    *p = (nic_parcel){.dest = dest, .bytes = bytes};
    if (!nic_load(p->data, source, bytes)) {
        free(p);
        return false;
    }
    while (*list)
        list = &(*list)->next;
    *list = p;
    return true;
}

/* Stores the second half before the first one, as packets arrive that took different ways. */
static bool store_shuffled(nic_place dest, nic_place source, size_t bytes)
{
    const size_t middle = bytes / 2 & ~(size_t)63;
    return perform_copy(place_after(dest, middle), place_after(source, middle), bytes - middle) &&
           perform_copy(dest, source, middle);
}

/* ---- transfers --------------------------------------------------------------------------------------------------- */

static nic_verdict no_local(uint8_t fault)
{
    return (nic_verdict){MLX5_CQE_SYNDROME_LOCAL_PROT_ERR, fault};
}
static nic_verdict no_remote(uint8_t fault)
{
    return (nic_verdict){MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR, fault};
}

static nic_verdict out_of_reach(void)
{
    return (nic_verdict){MLX5_CQE_SYNDROME_REMOTE_OP_ERR, NIC_OUT_OF_REACH};
}

static nic_place write_source(const nic_table *table, const nic_queue *q, const nic_request *r, uint8_t *fault)
{
    unsigned has;
    if (r->inlined) return (nic_place){.at = (void *)(uintptr_t)r->data};
    return nic_find(table, q->port, r->lkey, r->local, r->bytes, 0, fault, &has);
}

static nic_verdict perform_write(nic_table *table, nic_pair *pair, const nic_request *r)
{
    const nic_queue *q = &pair->plan;
    uint8_t fault;
    unsigned has;
    if (r->bytes == 0) return well;
    const nic_place source = write_source(table, q, r, &fault);
    if (!source.at) return no_local(fault);
    const nic_place dest = nic_find(table, q->peer_port, r->rkey, r->remote, r->bytes, NIC_REMOTE_WRITE, &fault, &has);
    if (!dest.at) return no_remote(fault);
    if (has & NIC_RELAXED && nic_chance(table, table->faults.overtake_one_in) &&
        keep_late(&pair->writes, dest, source, r->bytes))
        return well;
    if (r->bytes != 4 && r->bytes != 8 && nic_chance(table, table->faults.reroute_one_in) &&
        keep_late(&pair->rerouted, dest, source, r->bytes))
        return well;
    const bool shuffles = r->bytes > 128 && nic_chance(table, table->faults.shuffle_one_in);
    const bool stored = shuffles ? store_shuffled(dest, source, r->bytes) : perform_copy(dest, source, r->bytes);
    return stored ? well : out_of_reach();
}

static nic_verdict perform_read(nic_table *table, nic_pair *pair, const nic_request *r)
{
    const nic_queue *q = &pair->plan;
    uint8_t fault;
    unsigned has;
    if (r->bytes == 0) return well;
    const nic_place dest = nic_find(table, q->port, r->lkey, r->local, r->bytes, NIC_LOCAL_WRITE, &fault, &has);
    if (!dest.at) return no_local(fault);
    const nic_place source = nic_find(table, q->peer_port, r->rkey, r->remote, r->bytes, NIC_REMOTE_READ, &fault, &has);
    if (!source.at) return no_remote(fault);
    if (nic_chance(table, table->faults.late_reads_one_in) && keep_late(&pair->reads, dest, source, r->bytes))
        return well;
    if (pair->reads) nic_deliver(&pair->reads); /* answers arrive in order */
    return perform_copy(dest, source, r->bytes) ? well : out_of_reach();
}

static nic_verdict perform_dump(nic_table *table, const nic_pair *pair, const nic_request *r)
{
    uint8_t fault;
    unsigned has;
    return nic_find(table, pair->plan.port, r->lkey, r->local, r->bytes, 0, &fault, &has).at ? well : no_local(fault);
}

/* ---- atomics ----------------------------------------------------------------------------------------------------- */

/* Adds without a carry out of the bits that are set in `boundary`. */
static uint64_t add_masked(uint64_t a, uint64_t b, uint64_t boundary, uint32_t word_bytes)
{
    uint64_t sum = 0, carry = 0;
    for (uint32_t i = 0; i < word_bytes * 8; i++) {
        const uint64_t bits = (a >> i & 1) + (b >> i & 1) + carry;
        sum |= (bits & 1) << i;
        carry = boundary >> i & 1 ? 0 : bits >> 1;
    }
    return sum;
}

static uint64_t atomic_changed(const nic_request *r, uint64_t old)
{
    if (r->opcode == MLX5_OPCODE_ATOMIC_FA) return old + r->operand;
    if (r->opcode == MLX5_OPCODE_ATOMIC_MASKED_FA) return add_masked(old, r->operand, r->compare_mask, r->word_bytes);
    if ((old & r->compare_mask) != (r->compare & r->compare_mask)) return old;
    return (old & ~r->swap_mask) | (r->operand & r->swap_mask);
}

/* Such an atomic is one to requests of this device only, because its load and its store are apart. */
static bool change_beyond(const nic_request *r, nic_place word, uint64_t *old)
{
    *old = 0;
    if (!nic_load(old, word, r->word_bytes)) return false;
    const uint64_t changed = atomic_changed(r, *old);
    return changed == *old || nic_store(word, &changed, r->word_bytes);
}

static uint64_t atomic_change_word(const nic_request *r, void *word)
{
    if (r->word_bytes == 8) {
        uint64_t old = __atomic_load_n((uint64_t *)word, __ATOMIC_RELAXED);
        while (!__atomic_compare_exchange_n((uint64_t *)word, &old, atomic_changed(r, old), false, __ATOMIC_ACQ_REL,
                                            __ATOMIC_RELAXED)) {
        }
        return old;
    }
    uint32_t old = __atomic_load_n((uint32_t *)word, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n((uint32_t *)word, &old, (uint32_t)atomic_changed(r, old), false,
                                        __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
    }
    return old;
}

/* If the request was carried out before and its answer was lost, it gets the same answer, and the word stays. */
static nic_verdict perform_atomic(nic_table *table, nic_pair *pair, const nic_request *r)
{
    const nic_queue *q = &pair->plan;
    uint8_t fault;
    unsigned has;
    const nic_place result = nic_find(table, q->port, r->lkey, r->local, r->word_bytes, NIC_LOCAL_WRITE, &fault, &has);
    if (!result.at) return no_local(fault);
    const nic_place word =
        nic_find(table, q->peer_port, r->rkey, r->remote, r->word_bytes, NIC_REMOTE_ATOMIC, &fault, &has);
    if (!word.at) return no_remote(fault);
    if (!pair->answered || table->faults.atomics_twice) {
        if (word.window && !change_beyond(r, word, &pair->answer)) return out_of_reach();
        if (!word.window) pair->answer = atomic_change_word(r, word.at);
    }
    pair->answered = true;
    const uint64_t answer = r->word_bytes == 8 ? pair->answer : htobe32((uint32_t)pair->answer);
    if (pair->reads) nic_deliver(&pair->reads);
    return nic_store(result, &answer, r->word_bytes) ? well : out_of_reach();
}

nic_verdict nic_perform(nic_table *table, nic_pair *pair, const nic_request *r)
{
    const bool reaches = r->opcode != MLX5_OPCODE_NOP && r->opcode != NIC_OPCODE_DUMP;
    if (nic_waits(r)) nic_deliver(&pair->reads);
    if (reaches && nic_is_lost(table, pair->plan.peer_port))
        return (nic_verdict){MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR, NIC_GONE};
    if (nic_chance(table, table->faults.fail_one_in))
        return (nic_verdict){MLX5_CQE_SYNDROME_REMOTE_OP_ERR, NIC_INJECTED};
    if (nic_is_atomic(r) || r->opcode == MLX5_OPCODE_RDMA_READ) nic_deliver(&pair->rerouted);
    if (nic_is_atomic(r)) return perform_atomic(table, pair, r);
    switch (r->opcode) {
    case MLX5_OPCODE_RDMA_WRITE:
    case MLX5_OPCODE_RDMA_WRITE_IMM:
        return perform_write(table, pair, r);
    case MLX5_OPCODE_RDMA_READ:
        return perform_read(table, pair, r);
    case MLX5_OPCODE_NOP:
        return well;
    default:
        return perform_dump(table, pair, r);
    }
}

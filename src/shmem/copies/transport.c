/* SPDX-License-Identifier: Apache-2.0 */
/* The transport of device memory: what a rank reaches by copies, and what it asks the owner for. Puts and gets of other
 * memory come here if the caller's side is memory of a GPU. */
#include "shmem/changer.h"
#include "shmem/copies/parts.h"
#include "shmem/kinds.h"

#include <string.h>

/* ---- reach ------------------------------------------------------------------------------------------------------- */

static cu_address base_of(const copies *self, int32_t pe)
{
    return device_heap_bases(self->device)[pe];
}

/* Peers are reached by copies where loads and stores carry other memory, too. So settings choose for both alike. */
static bool is_direct(const copies *self, int32_t pe)
{
    const transport_ways *ways = sym_ways(self->sym, TRANSPORT_PINNED, pe);
    if (pe == self->sym->rank) return true;
    return base_of(self, pe) && !self->stages && ways->map && ways->map == ways->data;
}

bool copies_reaches(const sym *symmetric, int32_t pe)
{
    const copies *self = (const copies *)atomic_load_explicit(&symmetric->copies, memory_order_acquire);
    return self && is_direct(self, pe);
}

static bool sends_to(const sym *self, int32_t from, int32_t to)
{
    for (int32_t t = 0; t < self->num_transports; t++)
        if (sym_reach(self, from, to, TRANSPORT_PINNED, t) & TRANSPORT_PUT) return true;
    return false;
}

static bool exchanges_with(const copies *self, int32_t pe)
{
    const sym *symmetric = self->sym;
    return pe == symmetric->rank ||
           (sends_to(symmetric, symmetric->rank, pe) && sends_to(symmetric, pe, symmetric->rank));
}

static unsigned copies_reach(const transport *via, int32_t pe, transport_memory memory)
{
    const copies *self = (const copies *)via;
    unsigned reach = 0;
    if (memory != TRANSPORT_DEVICE) return 0;
    if (is_direct(self, pe) || exchanges_with(self, pe)) reach |= TRANSPORT_PUT | TRANSPORT_GET;
    if (exchanges_with(self, pe)) reach |= TRANSPORT_ATOMIC;
    return reach;
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

static mem_side caller_side(const copies *self, const transport_request *r, const void *at)
{
    return kinds_side(self->sym, at, r->bytes, r->on_device);
}

static mem_side peer_side(const copies *self, const transport_request *r)
{
    return (mem_side){.at = (void *)(uintptr_t)(base_of(self, r->pe) + r->offset), .kind = MEM_DEVICE};
}

static expar_status put_data(copies *self, const transport_request *r, bool waits)
{
    if (r->memory != TRANSPORT_DEVICE) return kinds_carry_pieces(self->sym, r);
    const mem_side source = caller_side(self, r, r->source);
    if (is_direct(self, r->pe)) return mem_copier_copy(self->copier, peer_side(self, r), source, r->bytes);
    return mail_put(self, r->pe, r->offset, source, r->bytes, waits);
}

static expar_status get_data(copies *self, const transport_request *r)
{
    if (r->memory != TRANSPORT_DEVICE) return kinds_carry_pieces(self->sym, r);
    const mem_side dest = caller_side(self, r, r->dest);
    if (is_direct(self, r->pe)) return mem_copier_copy(self->copier, dest, peer_side(self, r), r->bytes);
    return mail_get(self, r->pe, r->offset, dest, r->bytes);
}

static expar_status change_own(copies *self, const transport_request *r)
{
    uint64_t former = 0;
    expar_status status = owner_change(self, r->offset, r->bytes, r, r->dest ? &former : NULL);
    if (status == EXPAR_OK && r->dest) memcpy(r->dest, &former, r->bytes);
    return status;
}

/* Returns whether kernels change words meanwhile, so that a copy would not be atomic with them. Setting and reading a
   word by a copy is. */
static bool kernels_change(const copies *self, transport_atomic_op op)
{
    return changer_is_for(op) &&
           (device_heap_kernels_meet(self->device) || device_heap_atomics_by(self->device) == KERNEL_ATOMICS_NODE);
}

/* With EXPAR_DEVICE_ATOMICS=node there may be words that no kernel of this rank can change. */
static expar_status check_change(const copies *self, const transport_request *r)
{
    const sym *symmetric = self->sym;
    if (symmetric->nodes[r->pe] != symmetric->nodes[symmetric->rank])
        return error_set(EXPAR_ERR_UNSUPPORTED,
                         "an atomic on device memory of rank %d, which is on another node: EXPAR_DEVICE_ATOMICS=node",
                         r->pe);
    if (!device_heap_bases(self->device)[r->pe] || !device_heap_has_atomics(self->device, r->pe))
        return error_set(EXPAR_ERR_UNSUPPORTED,
                         "an atomic on device memory of rank %d, which this rank's GPU does not reach with atomics: "
                         "EXPAR_DEVICE_ATOMICS=node",
                         r->pe);
    if (device_heap_changer(self->device)) return EXPAR_OK;
    return error_set(EXPAR_ERR_UNSUPPORTED, "an atomic on device memory: EXPAR_DEVICE_ATOMICS=node leaves atomics to "
                                            "kernels, and the library's kernel for them could not be loaded");
}

/* Waits until the owner has carried out this rank's messages. */
static expar_status copies_settle_sent(copies *self, int32_t pe)
{
    if (atomic_load_explicit(&self->peers[pe].sent, memory_order_relaxed) == 0) return EXPAR_OK;
    return mail_settle(self, pe);
}

/* By a kernel on this rank's GPU. Earlier messages come first: a word that the owner set later would undo the
   change. */
static expar_status change_by_kernel(copies *self, const transport_request *r)
{
    uint64_t former = 0;
    expar_status status = check_change(self, r);
    if (status == EXPAR_OK) status = copies_settle_sent(self, r->pe);
    if (status != EXPAR_OK) return status;
    const changer_order order = {.word = device_heap_bases(self->device)[r->pe] + r->offset,
                                 .bytes = r->bytes,
                                 .op = r->op,
                                 .operand = r->operand,
                                 .compare = r->compare};
    status = changer_change(device_heap_changer(self->device), &order, &former);
    if (status != EXPAR_OK) return status;
    if (r->dest) memcpy(r->dest, &former, r->bytes);
    sym_ring(self->sym, r->pe);
    return EXPAR_OK;
}

static expar_status copies_change(copies *self, const transport_request *r, bool waits)
{
    if (kernels_change(self, r->op)) return change_by_kernel(self, r);
    return r->pe == self->sym->rank ? change_own(self, r) : mail_change(self, r, waits);
}

/* The owner's thread changes the word after the data, if both go to it. Other data are there already. */
static expar_status change_signal(copies *self, const transport_request *put, bool waits)
{
    const transport_request signal = {.kind = TRANSPORT_KIND_ATOMIC,
                                      .pe = put->pe,
                                      .memory = put->signal_memory,
                                      .offset = put->signal_offset,
                                      .bytes = sizeof put->operand,
                                      .op = put->op,
                                      .operand = put->operand};
    return copies_change(self, &signal, waits);
}

static expar_status carry(transport *via, const transport_request *r, bool waits)
{
    copies *self = (copies *)via;
    const bool takes_data = r->on_device && r->kind != TRANSPORT_KIND_ATOMIC;
    if (r->memory != TRANSPORT_DEVICE && !takes_data) return transport_reject(via, (transport_memory)r->memory);
    if (r->kind == TRANSPORT_KIND_GET) return get_data(self, r);
    if (r->kind == TRANSPORT_KIND_ATOMIC) return copies_change(self, r, waits);
    /* A kernel does not follow the owner's messages, as its thread does. */
    const bool ends = r->signals ? kernels_change(self, r->op) : waits;
    expar_status status = put_data(self, r, ends);
    return status == EXPAR_OK && r->signals ? change_signal(self, r, waits) : status;
}

static expar_status copies_run(transport *via, const transport_request *r)
{
    return carry(via, r, false);
}

/* Operations of a batch are complete when this returns, so the batch counts nothing. */
static expar_status copies_post(transport *via, const transport_request *r, transport_batch *batch)
{
    if (r->flagged) {
        const transport_request apart = transport_flag_apart(r);
        return carry(via, &apart, batch != NULL);
    }
    return carry(via, r, batch != NULL);
}

static expar_status quiet(transport *via)
{
    copies *self = (copies *)via;
    expar_status status = EXPAR_OK;
    for (int32_t pe = 0; pe < self->sym->size; pe++) {
        expar_status one = copies_settle_sent(self, pe);
        if (one != EXPAR_OK) status = one;
    }
    return status;
}

/* Another transport may overtake a message, so what is ordered has arrived. */
static expar_status copies_fence(transport *via)
{
    return quiet(via);
}

static expar_status copies_settle(transport *via, transport_batch *batch)
{
    (void)via, (void)batch;
    return EXPAR_OK;
}

const transport_ops transport_copies = {
    .name = "copies",
    .summary = "device memory, by copies of the driver and through its owner",
    .reach = copies_reach,
    .run = copies_run,
    .post = copies_post,
    .fence = copies_fence,
    .quiet = quiet,
    .settle = copies_settle,
};

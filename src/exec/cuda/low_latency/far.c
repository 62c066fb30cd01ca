/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers some of whose ranks are not mapped on some other one: on several nodes, or where the settings forbid mapped
 * memory. Such a buffer lies in the group's pinned heap, which networks reach and kernels use in place. Kernels store
 * to the ranks that this rank maps. For the others they write to send buffers, and pass commands to the rank's rings
 * (kernels/low_latency/far.h). */
#include "exec/cuda/low_latency/ll_gpu.h"
#include "group/group.h"
#include "link/link.h"
#include "proto/sends.h"

#include <stdlib.h>

_Static_assert(LL_GPU_PINNED == TRANSPORT_PINNED, "kernels name memory by this value (far.h)");
_Static_assert(LL_GPU_SET == TRANSPORT_SET, "kernels name operations by this value (far.h)");

static const char far_name[] = "the low-latency buffer";

/* ---- which way --------------------------------------------------------------------------------------------------- */

static const char *why_across(const ll_plan *plan)
{
    if (plan->shape->unmapped) return "config.unmapped is 1";
    if (plan->group->num_nodes > 1) return "the group spans several nodes";
    if (!link_all_mapped(plan->group->sym))
        return "the group's transports (EXPAR_TRANSPORTS) do not map all ranks' memory";
    return NULL;
}

/* Returns how many ranks that rank does not map. */
static int32_t count_far(const ll_gpu *self, int32_t rank)
{
    int32_t count = 0;
    for (int32_t pe = 0; pe < self->shape.ranks; pe++)
        count += pe != rank && (self->reach.unmapped || !sym_maps(self->core.sym, rank, pe));
    return count;
}

/* Blocks are equally large on all ranks. */
static int32_t most_far(const ll_gpu *self)
{
    int32_t most = 0;
    for (int32_t rank = 0; rank < self->shape.ranks; rank++) {
        const int32_t count = count_far(self, rank);
        most = count > most ? count : most;
    }
    return most;
}

expar_status ll_gpu_choose_reach(ll_gpu *self, const ll_plan *plan)
{
    const char *why = why_across(plan);
    self->across = why != NULL;
    self->reach.unmapped = plan->shape->unmapped;
    if (!why) return EXPAR_OK;
    if (plan->reserve_bytes)
        return error_set(EXPAR_ERR_UNSUPPORTED,
                         "config.reserve_bytes is given, and %s; expected 0 there: such buffers are made for a shape",
                         why);
    self->shape = ll_sends_shape(plan->shape);
    self->space = ll_space_of(&self->shape);
    self->reach.buffer_bytes = ep_round(self->space.total_bytes, 4096);
    self->totals.heap_bytes = ll_sends_all_bytes(&self->shape, most_far(self));
    return EXPAR_OK;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

cu_address ll_gpu_own(const ll_gpu *self)
{
    const gpu_core *core = &self->core;
    if (self->across) return (cu_address)(uintptr_t)kinds_at(core->sym, &self->reach.block);
    return device_heap_at(core->heap, core->place.buffer);
}

static expar_status take_rings(ll_gpu *self, int32_t device)
{
    uint64_t last;
    expar_status status = sym_rings_get(self->core.sym, device, &self->reach.rings);
    if (status != EXPAR_OK) return status;
    self->core.device = self->reach.rings->device;
    self->reach.failures = sym_rings_failures(self->reach.rings, &last);
    self->reach.before = sym_rings_sent(self->reach.rings);
    self->core.base.sent = &self->reach.sent;
    return EXPAR_OK;
}

expar_status ll_gpu_far_take(ll_gpu *self, int32_t device)
{
    sym *symmetric = self->core.sym;
    const kinds_request request = {.memory = TRANSPORT_PINNED,
                                   .device = device,
                                   .bytes = self->totals.heap_bytes,
                                   .alignment = 4096,
                                   .zeroed = true};
    const boot_matter matter = {.what = far_name, .rejected = "could not make its command rings"};
    void *block = NULL;
    expar_status status = kinds_agree(symmetric, far_name, &request, EXPAR_OK);
    if (status == EXPAR_OK) status = kinds_take(symmetric, far_name, &request, &block);
    if (status != EXPAR_OK) return status;
    kinds_find(symmetric, block, request.bytes, &self->reach.block);
    self->core.place.buffer = self->reach.block.offset;
    return sym_agree(symmetric, &matter, take_rings(self, device));
}

/* ---- how ranks are reached --------------------------------------------------------------------------------------- */

static expar_status reach_by_ring(const ll_gpu *self, int32_t rank, uint64_t sends)
{
    const transport_ways *ways = sym_ways(self->core.sym, TRANSPORT_PINNED, rank);
    const sym_rings *rings = self->reach.rings;
    if (!ways->data || !ways->words)
        return error_set(EXPAR_ERR_UNSUPPORTED, "no transport reaches pinned memory of rank %d with puts and atomics",
                         rank);
    self->reach.ranks[rank].port = rings->ports[sym_ring_to(rings, rank)];
    self->reach.ranks[rank].sends = (uint8_t *)(uintptr_t)sends;
    return EXPAR_OK;
}

static expar_status reach_ranks(ll_gpu *self)
{
    const sym *symmetric = self->core.sym;
    const kinds_place first = {.memory = TRANSPORT_PINNED};
    const uint64_t each = ll_sends_space_of(&self->shape, &self->space).total_bytes;
    uint64_t sends = ll_gpu_own(self) + self->reach.buffer_bytes;
    for (int32_t r = 0; r < self->shape.ranks; r++) {
        const bool own = r == symmetric->rank;
        if (own || (!self->reach.unmapped && sym_maps(symmetric, symmetric->rank, r)))
            self->reach.heaps[r] = (uint64_t)(uintptr_t)kinds_peer_on_device(symmetric, &first, r);
        if (self->reach.heaps[r]) continue;
        expar_status status = reach_by_ring(self, r, sends);
        if (status != EXPAR_OK) return status;
        sends += each;
    }
    return EXPAR_OK;
}

static void end_calls_for(gpu_core *core, int32_t rank, expar_status status)
{
    gpu_guard_end_calls(core, error_set(EXPAR_ERR_PEER, "low-latency data for rank %d was not sent: %s", rank,
                                        status == EXPAR_ERR_PEER ? "the rank died, left, or gave no answer"
                                                                 : expar_status_text(status)));
}

/* With masks, calls go on without a rank that data does not reach. Kernels mask it when they wait for it. */
static void lose_unreached(ll_gpu *self)
{
    for (int32_t r = 0; r < self->shape.ranks; r++) {
        const expar_status status = ll_gpu_is_far(self, r) ? sym_rings_failed_to(self->reach.rings, r) : EXPAR_OK;
        if (status == EXPAR_ERR_PEER)
            ll_gpu_lose(&self->core, r, "low-latency data for it was not sent: it died, left, or gave no answer");
        else if (status != EXPAR_OK)
            end_calls_for(&self->core, r, status);
    }
}

/* gpu_core.look: data that did not leave does not come to its rank. So this rank goes on no longer, and says why. */
static void ll_gpu_far_look(gpu_core *core)
{
    ll_gpu *self = ll_gpu_of(&core->base);
    uint64_t last = 0;
    if (self->reach.words) {
        lose_unreached(self);
        ll_gpu_words_spread(self);
        return;
    }
    if (sym_rings_failures(self->reach.rings, &last) == self->reach.failures) return;
    end_calls_for(core, proxy_failure_pe(last), (expar_status)proxy_failure_status(last));
}

expar_status ll_gpu_far_open(ll_gpu *self)
{
    const size_t ranks = (size_t)self->shape.ranks;
    self->reach.heaps = calloc(ranks, sizeof *self->reach.heaps);
    self->reach.ranks = calloc(ranks, sizeof *self->reach.ranks);
    if (!self->reach.heaps || !self->reach.ranks)
        return error_set(EXPAR_ERR_MEMORY, "no memory for a low-latency buffer");
    self->core.look = ll_gpu_far_look;
    return reach_ranks(self);
}

void ll_gpu_far_close(ll_gpu *self)
{
    free(self->reach.heaps);
    free(self->reach.ranks);
    self->reach.heaps = NULL;
    self->reach.ranks = NULL;
}

/* ---- what was sent ----------------------------------------------------------------------------------------------- */

/* The rings may also have sent for others meanwhile. Kernels count rows for each rank. */
void ll_gpu_count_sent(executor *base)
{
    ll_gpu *self = ll_gpu_of(base);
    link_counts *sent = &self->reach.sent;
    uint64_t rows = 0;
    if (!self->across) return;
    if (sym_rings_quiet(self->reach.rings, far_name) != EXPAR_OK) LOG(LOG_WARN, "%s", expar_last_error());
    const proxy_sent now = sym_rings_sent(self->reach.rings), *before = &self->reach.before;
    for (int32_t r = 0; r < self->shape.ranks; r++) {
        if (!ll_gpu_is_far(self, r)) continue;
        rows += __atomic_load_n(&self->counted[r].messages, __ATOMIC_RELAXED);
        rows += __atomic_load_n(&self->counted[r].rows, __ATOMIC_RELAXED);
    }
    atomic_store_explicit(&sent->messages, now.messages - before->messages, memory_order_relaxed);
    atomic_store_explicit(&sent->flags, now.flags - before->flags, memory_order_relaxed);
    atomic_store_explicit(&sent->bytes, now.bytes - before->bytes, memory_order_relaxed);
    atomic_store_explicit(&sent->rows, rows, memory_order_relaxed);
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

/* Commands of this rank read its send buffers, and write to other ranks' buffers. */
static bool far_is_quiet(const ll_gpu *self)
{
    if (!self->reach.rings || sym_rings_quiet(self->reach.rings, far_name) == EXPAR_OK) return true;
    LOG(LOG_WARN, "expar_ll_destroy: %s", expar_last_error());
    return false;
}

void ll_gpu_far_give(ll_gpu *self, bool *quiet)
{
    sym *symmetric = self->core.sym;
    if (!self->reach.block.offset) return;
    const bool own = *quiet && far_is_quiet(self);
    bool *all = calloc((size_t)symmetric->size, sizeof *all);
    const boot_matter matter = {
        .what = far_name, .rejected = "does not take part", .mine = &own, .all = all, .bytes = sizeof own};
    expar_status status = all ? sym_agree(symmetric, &matter, EXPAR_OK)
                              : sym_out_of_step(symmetric, far_name, error_set(EXPAR_ERR_MEMORY, "no memory"));
    *quiet = status == EXPAR_OK;
    for (int32_t r = 0; r < symmetric->size && *quiet; r++)
        *quiet = all[r];
    free(all);
    if (*quiet) status = kinds_give(symmetric, far_name, &self->reach.block);
    if (status != EXPAR_OK) LOG(LOG_WARN, "expar_ll_destroy: %s", expar_last_error());
    self->reach.block.offset = 0;
}

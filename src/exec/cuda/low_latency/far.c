/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers some of whose ranks are not mapped on some other one: on several nodes, or where the settings forbid mapped
 * memory. Such a buffer lies in the group's pinned heap, which networks reach and kernels use in place. Kernels store
 * to the ranks that this rank maps. For the others they write to send buffers. Then they write requests for a network
 * device, or pass commands to the rank's rings (kernels/low_latency/far.h). */
#include "exec/cuda/low_latency/ll_gpu.h"
#include "group/group.h"
#include "link/link.h"
#include "proto/sends.h"

#include <stdio.h>
#include <stdlib.h>

_Static_assert(LL_GPU_PINNED == TRANSPORT_PINNED, "kernels name memory by this value (far.h)");
_Static_assert(LL_GPU_SET == TRANSPORT_SET, "kernels name operations by this value (far.h)");

static const char far_name[] = "the low-latency buffer";

/* ---- which way --------------------------------------------------------------------------------------------------- */

static bool prefers_mapped(const ll_gpu *self)
{
    return self->reach.ways.list[0] == KERNEL_WAY_MAPPED;
}

static const char *why_across(const ll_gpu *self, const ll_plan *plan)
{
    if (plan->group->size == 1) return NULL;
    if (plan->shape->unmapped) return "config.unmapped is 1";
    if (plan->group->num_nodes > 1) return "the group spans several nodes";
    if (!link_all_mapped(plan->group->sym))
        return "the group's transports (EXPAR_TRANSPORTS) do not map all ranks' memory";
    if (!prefers_mapped(self)) return "EXPAR_DEVICE_TRANSPORTS does not begin with mapped";
    return NULL;
}

/* Returns how many ranks that rank may reach by other ways than mapped memory. */
static int32_t count_far(const ll_gpu *self, int32_t rank)
{
    int32_t count = 0;
    for (int32_t pe = 0; pe < self->shape.ranks; pe++)
        count += pe != rank && (self->reach.unmapped || !prefers_mapped(self) || !sym_maps(self->core.sym, rank, pe));
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

/* All ranks have the same settings, since these decide what the buffer is made of. */
static expar_status agree_on_ways(ll_gpu *self)
{
    char text[KERNEL_WAYS_BYTES] = "";
    expar_status status = kernel_ways_read(&self->reach.ways);
    if (status == EXPAR_OK) kernel_ways_text(&self->reach.ways, text);
    const boot_field field = {.name = "EXPAR_DEVICE_TRANSPORTS", .text = text};
    const boot_matter matter = {
        .what = far_name, .rejected = "cannot read its settings", .fields = &field, .num_fields = 1};
    return sym_agree(self->core.sym, &matter, status);
}

expar_status ll_gpu_choose_reach(ll_gpu *self, const ll_plan *plan)
{
    expar_status status = agree_on_ways(self);
    if (status != EXPAR_OK) return status;
    const char *why = why_across(self, plan);
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
    self->core.device = kinds_gpu(self->core.sym, TRANSPORT_PINNED);
    self->core.base.sent = &self->reach.sent;
    if (!kernel_ways_have(&self->reach.ways, KERNEL_WAY_PROXY)) return EXPAR_OK;
    expar_status status = sym_rings_get(self->core.sym, device, &self->reach.rings);
    if (status != EXPAR_OK) return status;
    self->reach.failures = sym_rings_failures(self->reach.rings, &last);
    self->reach.before = sym_rings_sent(self->reach.rings);
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

/* Returns why no request of kernels reaches the rank's pinned memory; NULL: they do. A queue that has failed is not
   used again. */
static const char *why_no_queue(const ll_gpu *self, int32_t rank)
{
    const sym *symmetric = self->core.sym;
    if (!sym_queues(symmetric, true, NULL))
        return "kernels have no queues (gda in EXPAR_TRANSPORTS, a device, and EXPAR_GDA_QUEUE_MEMORY=pinned or "
               "device)";
    if (!sym_queues_reach(symmetric, true, TRANSPORT_PINNED, rank, false)) return "the device does not reach it";
    return sym_queues_failed_to(symmetric, rank) == EXPAR_OK ? NULL : expar_last_error();
}

static const char *why_no_ring(const ll_gpu *self, int32_t rank)
{
    const transport_ways *ways = sym_ways(self->core.sym, TRANSPORT_PINNED, rank);
    return ways->data && ways->words ? NULL : "no transport reaches it with puts and atomics";
}

static bool maps(const ll_gpu *self, int32_t rank)
{
    return !self->reach.unmapped && sym_maps(self->core.sym, self->core.sym->rank, rank);
}

static expar_status reject_rank(const ll_gpu *self, int32_t rank)
{
    char ways[KERNEL_WAYS_BYTES], queue[ERROR_TEXT_BYTES];
    const char *no_queue = why_no_queue(self, rank), *no_ring = why_no_ring(self, rank);
    const bool has_gda = kernel_ways_have(&self->reach.ways, KERNEL_WAY_GDA) && no_queue;
    const bool has_proxy = kernel_ways_have(&self->reach.ways, KERNEL_WAY_PROXY) && no_ring;
    snprintf(queue, sizeof queue, "%s%s", has_gda ? "; gda: " : "", has_gda ? no_queue : "");
    kernel_ways_text(&self->reach.ways, ways);
    return error_set(EXPAR_ERR_UNSUPPORTED,
                     "no way of EXPAR_DEVICE_TRANSPORTS=%s leads to pinned memory of rank %d%s%s%s", ways, rank, queue,
                     has_proxy ? "; proxy: " : "", has_proxy ? no_ring : "");
}

/* Says how kernels reach the rank, if not by mapped memory. A rank by gda has a ring as well, if the settings name the
   proxy after it. */
static void reach_by(ll_gpu *self, int32_t rank, kernel_way way, uint64_t sends)
{
    const sym_rings *rings = self->reach.rings;
    ll_gpu_far *far = &self->reach.ranks[rank];
    if (way == KERNEL_WAY_GDA) far->view = sym_queues(self->core.sym, true, NULL);
    if (rings && !why_no_ring(self, rank)) far->port = rings->ports[sym_ring_to(rings, rank)];
    if (way == KERNEL_WAY_PROXY) self->reach.used_rings |= UINT32_C(1) << sym_ring_to(rings, rank);
    far->sends = (uint8_t *)(uintptr_t)sends;
    self->reach.by_queues |= way == KERNEL_WAY_GDA;
}

static expar_status reach_ranks(ll_gpu *self)
{
    const sym *symmetric = self->core.sym;
    const kinds_place first = {.memory = TRANSPORT_PINNED};
    const uint64_t each = ll_sends_space_of(&self->shape, &self->space).total_bytes;
    uint64_t sends = ll_gpu_own(self) + self->reach.buffer_bytes;
    for (int32_t r = 0; r < self->shape.ranks; r++) {
        const kernel_way way = r == symmetric->rank ? KERNEL_WAY_MAPPED
                                                    : kernel_ways_choose(&self->reach.ways, maps(self, r),
                                                                         !why_no_queue(self, r), !why_no_ring(self, r));
        if (way == KERNEL_WAY_NONE) return reject_rank(self, r);
        LOG(LOG_DEBUG, "low latency: rank %d is reached by %s", r, kernel_way_name(way));
        if (way == KERNEL_WAY_MAPPED) {
            self->reach.heaps[r] = (uint64_t)(uintptr_t)kinds_peer_on_device(symmetric, &first, r);
            continue;
        }
        reach_by(self, r, way, sends);
        sends += each;
    }
    return EXPAR_OK;
}

bool ll_gpu_posts_to(const ll_gpu *self, int32_t rank)
{
    return ll_gpu_is_far(self, rank) && __atomic_load_n(&self->reach.ranks[rank].view, __ATOMIC_RELAXED) != 0;
}

void ll_gpu_far_rouse(const ll_gpu *self)
{
    const sym_rings *rings = self->reach.rings;
    for (int32_t i = 0; rings && i < rings->count; i++)
        if (self->reach.used_rings >> i & 1) sym_ring_rouse(rings, i);
}

/* ---- data that was not sent -------------------------------------------------------------------------------------- */

static void end_calls_for(gpu_core *core, int32_t rank, expar_status status)
{
    gpu_guard_end_calls(core, error_set(EXPAR_ERR_PEER, "low-latency data for rank %d was not sent: %s", rank,
                                        status == EXPAR_ERR_PEER ? "the rank died, left, or gave no answer"
                                                                 : expar_status_text(status)));
}

/* With masks, calls go on without a rank that data does not reach. Kernels mask it when they wait for it. */
static void lose_unreached(ll_gpu *self, int32_t rank)
{
    const expar_status status = self->reach.rings ? sym_rings_failed_to(self->reach.rings, rank) : EXPAR_OK;
    if (status == EXPAR_ERR_PEER)
        ll_gpu_lose(&self->core, rank, "low-latency data for it was not sent: it died, left, or gave no answer");
    else if (status != EXPAR_OK)
        end_calls_for(&self->core, rank, status);
}

/* The same for a rank whose queue has failed. */
static void look_at_queue(ll_gpu *self, int32_t rank)
{
    expar_status status = sym_queues_failed_to(self->core.sym, rank);
    if (status == EXPAR_OK) return;
    error_prefix(status, "low-latency data for rank %d was not sent", rank);
    if (self->reach.words)
        ll_gpu_lose(&self->core, rank, expar_last_error());
    else
        gpu_guard_end_calls(&self->core, status);
}

/* gpu_core.look: data that did not leave does not come to its rank. So this rank goes on no longer, and says why. */
static void ll_gpu_far_look(gpu_core *core)
{
    ll_gpu *self = ll_gpu_of(&core->base);
    uint64_t last = 0;
    for (int32_t r = 0; r < self->shape.ranks; r++) {
        if (ll_gpu_posts_to(self, r))
            look_at_queue(self, r);
        else if (self->reach.words && ll_gpu_is_far(self, r))
            lose_unreached(self, r);
    }
    ll_gpu_words_spread(self);
    if (self->reach.words || !self->reach.rings) return;
    if (sym_rings_failures(self->reach.rings, &last) == self->reach.failures) return;
    end_calls_for(core, proxy_failure_pe(last), (expar_status)proxy_failure_status(last));
}

/* Lets parcels to the rank go by its ring. Nothing has gone there yet. */
static expar_status leave_queue(ll_gpu *self, int32_t rank)
{
    const gpu_core *core = &self->core;
    ll_gpu_far *far = &self->reach.ranks[rank];
    const cu_address there = (cu_address)(uintptr_t)(self->far + rank);
    if (!far->port) return EXPAR_OK;
    LOG(LOG_WARN, "low latency: rank %d is reached by the proxy from now on: %s", rank, expar_last_error());
    __atomic_store_n(&far->view, 0, __ATOMIC_RELAXED);
    self->reach.used_rings |= UINT32_C(1) << sym_ring_to(self->reach.rings, rank);
    expar_status status = cuda_enter(core->device);
    if (status != EXPAR_OK) return status;
    status = CUDA_CALL(MemcpyHtoDAsync, there, far, sizeof *far, core->own_stream);
    cuda_leave();
    return status == EXPAR_OK ? gpu_own_stream_await(&self->core) : status;
}

expar_status ll_gpu_far_forgive(ll_gpu *self, const uint32_t *view)
{
    expar_status status = EXPAR_OK;
    for (int32_t r = 0; r < self->shape.ranks && status == EXPAR_OK; r++) {
        if (!ll_gpu_is_far(self, r) || !view[r]) continue;
        if (self->reach.rings) sym_rings_forgive(self->reach.rings, r);
        if (ll_gpu_posts_to(self, r) && sym_queues_failed_to(self->core.sym, r) != EXPAR_OK)
            status = leave_queue(self, r);
    }
    return status;
}

expar_status ll_gpu_far_open(ll_gpu *self)
{
    const size_t ranks = (size_t)self->shape.ranks;
    self->reach.heaps = calloc(ranks, sizeof *self->reach.heaps);
    self->reach.ranks = calloc(ranks, sizeof *self->reach.ranks);
    if (!self->reach.heaps || !self->reach.ranks)
        return error_set(EXPAR_ERR_MEMORY, "no memory for a low-latency buffer");
    expar_status status = reach_ranks(self);
    if (status == EXPAR_OK) self->core.look = ll_gpu_far_look;
    return status;
}

void ll_gpu_far_close(ll_gpu *self)
{
    free(self->reach.heaps);
    free(self->reach.ranks);
    self->reach.heaps = NULL;
    self->reach.ranks = NULL;
}

/* ---- what was sent ----------------------------------------------------------------------------------------------- */

/* Adds what kernels have posted themselves. */
static void far_count_posted(ll_gpu *self, proxy_sent *sum)
{
    for (int32_t r = 0; r < self->shape.ranks; r++) {
        ll_gpu_far far = {0};
        const cu_address from = (cu_address)(uintptr_t)(self->far + r);
        if (!ll_gpu_is_far(self, r) || !self->far) continue;
        expar_status status = cuda_enter(self->core.device);
        if (status != EXPAR_OK) return;
        status = CUDA_CALL(MemcpyDtoHAsync, &far, from, sizeof far, self->core.own_stream);
        cuda_leave();
        if (status == EXPAR_OK) status = gpu_own_stream_await(&self->core);
        if (status != EXPAR_OK) return;
        sum->messages += far.posted;
        sum->flags += far.posted_words;
        sum->bytes += far.posted_bytes;
    }
}

/* The rings may also have sent for others meanwhile. Kernels count rows for each rank. */
void ll_gpu_count_sent(executor *base)
{
    ll_gpu *self = ll_gpu_of(base);
    link_counts *sent = &self->reach.sent;
    const proxy_sent *before = &self->reach.before;
    proxy_sent now = *before;
    uint64_t rows = 0;
    if (!self->across) return;
    if (self->reach.rings) {
        if (sym_rings_quiet(self->reach.rings, far_name) != EXPAR_OK) LOG(LOG_WARN, "%s", expar_last_error());
        now = sym_rings_sent(self->reach.rings);
    }
    if (self->reach.by_queues) far_count_posted(self, &now);
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

/* Commands and requests of this rank read its send buffers, and write to other ranks' buffers. */
static bool far_is_quiet(const ll_gpu *self)
{
    expar_status status = self->reach.rings ? sym_rings_quiet(self->reach.rings, far_name) : EXPAR_OK;
    if (status == EXPAR_OK && self->reach.by_queues) status = sym_queues_quiet(self->core.sym);
    if (status == EXPAR_OK) return true;
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

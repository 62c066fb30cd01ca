/* SPDX-License-Identifier: Apache-2.0 */
/* Segments of this rank's caller: they are found by address, posted to the peers, and dropped when they are freed. */
#include "exec/cuda/core/segments.h"
#include "base/knobs.h"
#include "exec/cuda/core/gpu.h"

#include <stdlib.h>

static const char mailbox_name[] = "the board of mapped memory";

/* ---- making ------------------------------------------------------------------------------------------------------ */

static gpu_segments *segments_new(sym *symmetric, device_heap *heap)
{
    const size_t places = (size_t)symmetric->size * SEGMENTS;
    gpu_segments *self = calloc(1, sizeof *self);
    if (!self) return NULL;
    self->sym = symmetric;
    self->rank = symmetric->rank;
    self->size = symmetric->size;
    self->heap = heap;
    atomic_init(&self->holders, 1);
    pthread_mutex_init(&self->lock, NULL);
    pthread_mutex_init(&self->peers_lock, NULL);
    self->shifts = calloc(places, sizeof *self->shifts);
    self->opened = calloc(places, sizeof *self->opened);
    self->seen = calloc((size_t)self->size, sizeof *self->seen);
    for (int32_t i = 0; i < SEGMENTS && self->shifts; i++)
        self->table[i].shifts = self->shifts + (size_t)i * (size_t)self->size;
    if (self->shifts && self->opened && self->seen) return self;
    gpu_segments_drop(self);
    return NULL;
}

void gpu_segments_drop(gpu_segments *self)
{
    if (atomic_fetch_sub_explicit(&self->holders, 1, memory_order_acq_rel) != 1) return;
    cuda_device_close(self->device);
    pthread_mutex_destroy(&self->lock);
    pthread_mutex_destroy(&self->peers_lock);
    free(self->shifts);
    free(self->opened);
    free((void *)self->seen);
    free(self);
}

/* Chooses how peers reach segments. All ranks get the same result. */
static segment_reach segments_choose_reach(const gpu_segments *self)
{
    int32_t gpus;
    (void)device_heap_devices(self->heap, &gpus);
    if (self->size == 1 || (self->sym->by_threads && gpus == 1)) return SEGMENTS_HERE;
    if (self->sym->by_threads) return SEGMENTS_BY_ACCESS;
    return self->size <= GPU_MOST_SHIFTED ? SEGMENTS_BY_HANDLE : SEGMENTS_NEVER;
}

/* Gives this rank's context access to the memory of another GPU of the process. */
static expar_status enable_access(const gpu_segments *self, int32_t gpu)
{
    cuda_device *peer = NULL;
    expar_status status = cuda_device_open(gpu, &peer);
    if (status != EXPAR_OK) return status;
    status = cuda_enter(self->device);
    if (status == EXPAR_OK) {
        const cu_result result = cuda_driver()->CtxEnablePeerAccess(peer->context, 0);
        if (result != CU_ERROR_PEER_ENABLED) status = cuda_status(result, __FILE__, __LINE__, "cuCtxEnablePeerAccess");
        cuda_leave();
    }
    cuda_device_close(peer);
    return status;
}

/* The driver may wait for kernels here, since no kernel of the group waits for this rank now. */
static bool enable_all_access(const gpu_segments *self)
{
    int32_t gpus;
    const int32_t *devices = device_heap_devices(self->heap, &gpus);
    for (int32_t i = 0; i < gpus; i++)
        if (devices[i] != self->device->index && enable_access(self, devices[i]) != EXPAR_OK) {
            LOG(LOG_INFO, "GPU %d does not read the caller's memory on GPU %d: %s", self->device->index, devices[i],
                expar_last_error());
            return false;
        }
    return true;
}

static bool has_all_mailboxes(const gpu_segments *self)
{
    for (int32_t r = 0; r < self->size; r++)
        if (!segments_mailbox(self, r)) return false;
    return true;
}

/* True if this rank can do what its reach needs. */
static bool segments_can_serve(const gpu_segments *self)
{
    if (self->reach == SEGMENTS_BY_ACCESS) return has_all_mailboxes(self) && enable_all_access(self);
    return self->reach == SEGMENTS_HERE || (self->reach == SEGMENTS_BY_HANDLE && has_all_mailboxes(self));
}

/* Takes the mailbox array. Collective, whatever a rank's reach is. If the host's heap lacks space, all ranks go without
   it. */
static expar_status segments_take_mailbox(gpu_segments *self)
{
    const uint64_t bytes = sizeof(segment_mailbox) + (uint64_t)SEGMENTS * (uint64_t)self->size * sizeof(segment_answer);
    expar_status status = sym_take(self->sym, mailbox_name, bytes, 64, &self->offset);
    if (status != EXPAR_OK) {
        self->offset = 0;
        if (self->reach != SEGMENTS_HERE) self->reach = SEGMENTS_NEVER;
        return status == EXPAR_ERR_MEMORY ? EXPAR_OK : status;
    }
    sym_clear(self->sym, self->offset, bytes);
    if (!segments_can_serve(self))
        self->reach = SEGMENTS_NEVER;
    else
        atomic_store_explicit(&segments_mailbox(self, self->rank)->serves, 1, memory_order_release);
    return EXPAR_OK;
}

expar_status gpu_segments_make(sym *symmetric, device_heap *heap, gpu_segments **out)
{
    int64_t wanted = 1;
    gpu_segments *self = segments_new(symmetric, heap);
    expar_status status =
        self ? env_int("EXPAR_MAP_SEGMENTS", 0, 1, &wanted) : error_set(EXPAR_ERR_MEMORY, "CUDA executor: no memory");
    if (status == EXPAR_OK) status = cuda_device_open(device_heap_device(heap)->index, &self->device);
    if (status != EXPAR_OK) {
        status = sym_reject(symmetric, mailbox_name, status);
        if (self) gpu_segments_drop(self);
        return status;
    }
    self->reach = wanted ? segments_choose_reach(self) : SEGMENTS_NEVER;
    status = segments_take_mailbox(self);
    if (status == EXPAR_OK)
        *out = self;
    else
        gpu_segments_drop(self);
    return status;
}

void gpu_segments_end(gpu_segments *self, bool quiet)
{
    if (!self) return;
    gpu_segments_close_peers(self, quiet);
    for (int32_t i = 0; i < SEGMENTS; i++)
        cuda_mark_give(self->table[i].mark);
    if (self->offset && quiet && sym_give(self->sym, mailbox_name, self->offset) != EXPAR_OK)
        LOG(LOG_WARN, "%s: %s", mailbox_name, expar_last_error());
    gpu_segments_drop(self);
}

void gpu_segments_freeze(gpu_segments *self)
{
    if (self) atomic_store_explicit(&self->frozen, true, memory_order_relaxed);
}

/* ---- what the driver knows --------------------------------------------------------------------------------------- */

/* Returns the number of the allocation at the address; 0: there is none. */
static uint64_t allocation_at(cu_address at)
{
    unsigned long long number = 0;
    if (cuda_driver()->PointerGetAttribute(&number, CU_POINTER_BUFFER_ID, at) != CU_OK) return 0;
    return number;
}

/* True for memory of cuMemAlloc. Only that has handles, and is accessible to contexts that have peer access. */
static bool is_plain(cu_address at)
{
    unsigned int capable = 0;
    return cuda_driver()->PointerGetAttribute(&capable, CU_POINTER_LEGACY_IPC, at) == CU_OK && capable;
}

static expar_status segment_find_allocation(cu_address at, segment *out)
{
    size_t bytes = 0;
    expar_status status = CUDA_CALL(MemGetAddressRange, &out->base, &bytes, at);
    out->bytes = bytes;
    out->allocation = allocation_at(at);
    if (status == EXPAR_OK && !out->allocation)
        return error_set(EXPAR_ERR_UNSUPPORTED, "the driver does not number the allocation at %p",
                         (void *)(uintptr_t)at);
    return status;
}

static expar_status segment_find_handle(cu_address base, cu_ipc_memory *out)
{
    int mode;
    expar_status status = gpu_leave_captures(&mode);
    if (status != EXPAR_OK) return status;
    status = CUDA_CALL(IpcGetMemHandle, out, base);
    gpu_return_to_captures(mode);
    return status;
}

/* ---- the mailbox array ------------------------------------------------------------------------------------------- */

static int32_t segment_place(const gpu_segments *self, const segment *one)
{
    return (int32_t)(one - self->table);
}

static void segment_post_kind(gpu_segments *self, const segment *one, segment_kind kind)
{
    segment_mailbox *mailbox = segments_mailbox(self, self->rank);
    atomic_store_explicit(&mailbox->posts[segment_place(self, one)].word, segment_word(one->number, kind),
                          memory_order_release);
    atomic_fetch_add_explicit(&mailbox->posted, 1, memory_order_release);
}

/* Counts the peers that have answered the post in this way. */
static int32_t segment_count_answers(const gpu_segments *self, const segment *one, segment_kind kind)
{
    int32_t count = 0;
    for (int32_t r = 0; r < self->size; r++) {
        if (r == self->rank) continue;
        const segment_answer *answer = segments_answer(self, self->rank, segment_place(self, one), r);
        count += atomic_load_explicit(&answer->word, memory_order_acquire) == segment_word(one->number, kind);
    }
    return count;
}

static bool segment_is_closed(const gpu_segments *self, const segment *one)
{
    return one->number == 0 || segment_count_answers(self, one, SEGMENT_CLOSED) == self->size - 1;
}

static bool segments_all_serve(gpu_segments *self)
{
    for (int32_t r = 0; r < self->size && !self->all_serve; r++)
        if (!atomic_load_explicit(&segments_mailbox(self, r)->serves, memory_order_acquire)) return false;
    self->all_serve = true;
    return true;
}

/* ---- the table; the caller holds the lock ------------------------------------------------------------------------ */

static void segment_set_state(gpu_segments *self, segment *one, segment_state state)
{
    const segment_state before = one->state;
    self->unsettled -= before == SEGMENT_ASKED || before == SEGMENT_STALE || before == SEGMENT_CLOSING;
    self->unsettled += state == SEGMENT_ASKED || state == SEGMENT_STALE || state == SEGMENT_CLOSING;
    one->state = state;
}

static bool segment_is_known(const segment *one)
{
    return one->state == SEGMENT_ASKED || one->state == SEGMENT_MAPPED || one->state == SEGMENT_UNMAPPED;
}

/* Drops a segment that is not used any more. No call has used one that is not mapped. */
static void segment_forget(gpu_segments *self, segment *one)
{
    if (one->state == SEGMENT_ASKED) segment_post_kind(self, one, SEGMENT_CLOSED);
    segment_set_state(self, one, one->state == SEGMENT_MAPPED ? SEGMENT_STALE : SEGMENT_CLOSING);
}

static void segment_take_answers(gpu_segments *self, segment *one)
{
    const int32_t opened = segment_count_answers(self, one, SEGMENT_OPEN);
    if (opened + segment_count_answers(self, one, SEGMENT_REJECTED) < self->size - 1) return;
    if (opened < self->size - 1) {
        segment_post_kind(self, one, SEGMENT_CLOSED);
        segment_set_state(self, one, SEGMENT_UNMAPPED);
        return;
    }
    for (int32_t r = 0; r < self->size; r++)
        one->shifts[r] = segments_answer(self, self->rank, segment_place(self, one), r)->shift;
    one->shifts[self->rank] = one->base - device_heap_bases(self->heap)[self->rank];
    segment_set_state(self, one, SEGMENT_MAPPED);
}

/* Peers ended their reads before this rank's calls that advertised the segment ended, unless a call was given up. */
static void segment_close_stale(gpu_segments *self, segment *one)
{
    bool passed = false;
    if (!one->mark || atomic_load_explicit(&self->frozen, memory_order_relaxed)) return;
    if (cuda_mark_query(one->mark, &passed) != EXPAR_OK || !passed) return;
    cuda_mark_give(one->mark);
    one->mark = NULL;
    segment_post_kind(self, one, SEGMENT_CLOSED);
    segment_set_state(self, one, SEGMENT_CLOSING);
}

static void segments_settle(gpu_segments *self)
{
    for (int32_t i = 0; i < SEGMENTS && self->unsettled > 0; i++) {
        segment *one = &self->table[i];
        if (one->state == SEGMENT_ASKED)
            segment_take_answers(self, one);
        else if (one->state == SEGMENT_STALE)
            segment_close_stale(self, one);
        else if (one->state == SEGMENT_CLOSING && segment_is_closed(self, one))
            segment_set_state(self, one, SEGMENT_EMPTY);
    }
}

static void segments_sweep(gpu_segments *self)
{
    for (int32_t i = 0; i < SEGMENTS; i++) {
        segment *one = &self->table[i];
        if (segment_is_known(one) && allocation_at(one->base) != one->allocation) segment_forget(self, one);
    }
}

/* Finds a segment that has long been idle, unless a place is about to be free. */
static segment *segments_find_idle(gpu_segments *self)
{
    segment *found = NULL;
    for (int32_t i = 0; i < SEGMENTS; i++) {
        segment *one = &self->table[i];
        if (one->state == SEGMENT_STALE || one->state == SEGMENT_CLOSING) return NULL;
        if (one->state == SEGMENT_ASKED || one->holders ||
            self->calls - one->used < knob_count(KNOB_CUDA_SEGMENT_IDLE_CALLS))
            continue;
        if (!found || one->used < found->used) found = one;
    }
    return found;
}

static segment *segments_find_place(gpu_segments *self)
{
    for (int32_t i = 0; i < SEGMENTS; i++)
        if (self->table[i].state == SEGMENT_EMPTY) return &self->table[i];
    segment *idle = segments_find_idle(self);
    if (idle) segment_forget(self, idle);
    return NULL;
}

static segment *segments_find_known(gpu_segments *self, cu_address at, uint64_t bytes)
{
    for (int32_t i = 0; i < SEGMENTS; i++) {
        segment *one = &self->table[i];
        if (!segment_is_known(one) || at < one->base || at - one->base >= one->bytes) continue;
        if (bytes <= one->bytes - (at - one->base)) return one;
    }
    return NULL;
}

/* True if peers may still map what lay at these addresses before: the driver does not map two segments at the same
   ones. */
static bool segments_overlap_closing(const gpu_segments *self, const segment *one)
{
    for (int32_t i = 0; i < SEGMENTS; i++) {
        const segment *other = &self->table[i];
        const bool goes = other->state == SEGMENT_STALE || other->state == SEGMENT_CLOSING;
        if (goes && one->base < other->base + other->bytes && other->base < one->base + one->bytes) return true;
    }
    return false;
}

static void segments_ask_for(gpu_segments *self, segment *one, cu_address at)
{
    if (segment_find_allocation(at, one) != EXPAR_OK || segments_overlap_closing(self, one)) return;
    one->used = self->calls;
    one->number = 0;
    if (segment_find_handle(one->base, &segments_mailbox(self, self->rank)->posts[segment_place(self, one)].handle) !=
        EXPAR_OK) {
        LOG(LOG_INFO, "rows at %p are copied: %s", (void *)(uintptr_t)at, expar_last_error());
        segment_set_state(self, one, SEGMENT_UNMAPPED);
        return;
    }
    one->number = ++self->numbers;
    segment_set_state(self, one, SEGMENT_ASKED);
    segment_post_kind(self, one, SEGMENT_OPEN);
}

/* Asks the peers to map the allocation at the address. This call copies its rows. */
static void segments_ask(gpu_segments *self, cu_address at)
{
    if (!segments_all_serve(self) || !is_plain(at)) return;
    segments_sweep(self);
    segment *one = segments_find_place(self);
    if (!one || cuda_enter(self->device) != EXPAR_OK) return;
    segments_ask_for(self, one, at);
    cuda_leave();
}

static bool segments_find_mapped(gpu_segments *self, cu_address at, uint64_t bytes, exec_mapping *out)
{
    if (self->unsettled > 0 && sym_is_sound(self->sym)) segments_settle(self);
    if (++self->calls % knob_count(KNOB_CUDA_SEGMENT_SWEEP_CALLS) == 0) segments_sweep(self);
    segment *one = segments_find_known(self, at, bytes);
    if (one && allocation_at(at) != one->allocation) {
        segment_forget(self, one);
        one = NULL;
    }
    if (!one) segments_ask(self, at);
    if (!one || one->state != SEGMENT_MAPPED) return false;
    one->used = self->calls;
    one->holders++;
    *out = (exec_mapping){.offset = at - one->base, .shifts = one->shifts, .held = one};
    return true;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

bool gpu_segments_find(gpu_segments *self, const void *data, uint64_t bytes, exec_mapping *out)
{
    const cu_address at = (cu_address)(uintptr_t)data;
    const exec_mapping here = {.offset = at - device_heap_bases(self->heap)[self->rank]};
    bool found = self->reach == SEGMENTS_HERE;
    if (found) *out = here;
    if (found || self->reach == SEGMENTS_NEVER) return found;
    gpu_segments_serve(self);
    pthread_mutex_lock(&self->lock);
    if (self->reach == SEGMENTS_BY_HANDLE)
        found = segments_find_mapped(self, at, bytes, out);
    else if ((found = segments_all_serve(self) && is_plain(at)))
        *out = here;
    pthread_mutex_unlock(&self->lock);
    return found;
}

void gpu_segments_release(gpu_segments *self, exec_mapping *mapping)
{
    segment *one = mapping->held;
    pthread_mutex_lock(&self->lock);
    one->holders--;
    pthread_mutex_unlock(&self->lock);
    mapping->held = NULL;
}

static void segments_mark(gpu_segments *self, void *stream)
{
    if (cuda_enter(self->device) != EXPAR_OK) return;
    for (int32_t i = 0; i < SEGMENTS; i++) {
        segment *one = &self->table[i];
        if (one->state != SEGMENT_STALE || one->mark || one->holders) continue;
        if (cuda_mark_make(stream, &one->mark) != EXPAR_OK) one->mark = NULL;
    }
    cuda_leave();
}

void gpu_segments_follow(gpu_segments *self, void *stream)
{
    if (self->reach != SEGMENTS_BY_HANDLE) return;
    pthread_mutex_lock(&self->lock);
    if (self->unsettled > 0) segments_mark(self, stream);
    pthread_mutex_unlock(&self->lock);
}

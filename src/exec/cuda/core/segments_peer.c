/* SPDX-License-Identifier: Apache-2.0 */
/* Opens and closes segments of peers as their owners ask for it. The driver may block such a call while kernels run. So
 * a thread of the library makes it (cuda_later), not a call and not the guard. */
#include "exec/cuda/core/segments.h"

static opened_segment *segment_opened(const gpu_segments *self, int32_t owner, int32_t place)
{
    return &self->opened[owner * SEGMENTS + place];
}

static void segment_give_answer(const gpu_segments *self, int32_t owner, int32_t place, uint64_t word, uint64_t shift)
{
    segment_answer *out = segments_answer(self, owner, place, self->rank);
    out->shift = shift;
    atomic_store_explicit(&out->word, word, memory_order_release);
}

/* The shift is the distance from the owner's heap to the segment, both as they are mapped here. */
static void segment_open(const gpu_segments *self, int32_t owner, int32_t place, uint64_t word)
{
    const cu_ipc_memory handle = segments_mailbox(self, owner)->posts[place].handle;
    const uint64_t number = word >> 2;
    opened_segment *one = segment_opened(self, owner, place);
    if (mem_ipc_open(self->device, &handle, &one->address) == EXPAR_OK) {
        segment_give_answer(self, owner, place, word, one->address - device_heap_bases(self->heap)[owner]);
        return;
    }
    one->address = 0;
    LOG(LOG_INFO, "memory of rank %d cannot be mapped, which copies its rows: %s", owner, expar_last_error());
    segment_give_answer(self, owner, place, segment_word(number, SEGMENT_REJECTED), 0);
}

static void segment_serve(const gpu_segments *self, int32_t owner, int32_t place)
{
    const uint64_t word = atomic_load_explicit(&segments_mailbox(self, owner)->posts[place].word, memory_order_acquire);
    opened_segment *one = segment_opened(self, owner, place);
    if (word == one->word) return;
    mem_ipc_close(self->device, one->address);
    one->address = 0;
    one->word = word;
    if (segment_kind_of(word) == SEGMENT_OPEN)
        segment_open(self, owner, place, word);
    else
        segment_give_answer(self, owner, place, word, 0);
}

static void segments_serve_all(gpu_segments *self)
{
    for (int32_t owner = 0; owner < self->size; owner++) {
        if (owner == self->rank) continue;
        const uint64_t posted = atomic_load_explicit(&segments_mailbox(self, owner)->posted, memory_order_acquire);
        if (posted == atomic_load_explicit(&self->seen[owner], memory_order_relaxed)) continue;
        for (int32_t place = 0; place < SEGMENTS; place++)
            segment_serve(self, owner, place);
        atomic_store_explicit(&self->seen[owner], posted, memory_order_relaxed);
    }
}

static void segments_run_task(cuda_task *task)
{
    gpu_segments *self = (gpu_segments *)task;
    log_set_rank(self->rank);
    pthread_mutex_lock(&self->peers_lock);
    if (!self->closed) segments_serve_all(self);
    pthread_mutex_unlock(&self->peers_lock);
    atomic_store_explicit(&self->serving, false, memory_order_release);
    gpu_segments_drop(self);
}

static bool segments_have_news(const gpu_segments *self)
{
    for (int32_t owner = 0; owner < self->size; owner++) {
        if (owner == self->rank) continue;
        const uint64_t posted = atomic_load_explicit(&segments_mailbox(self, owner)->posted, memory_order_relaxed);
        if (posted != atomic_load_explicit(&self->seen[owner], memory_order_relaxed)) return true;
    }
    return false;
}

/* If the group has failed, peers may be gone, and this rank keeps what it has mapped. */
void gpu_segments_serve(gpu_segments *self)
{
    if (!self || self->reach != SEGMENTS_BY_HANDLE || !sym_is_sound(self->sym)) return;
    if (!segments_have_news(self)) return;
    if (atomic_exchange_explicit(&self->serving, true, memory_order_acquire)) return;
    /* Relaxed: the per-GPU state holds it meanwhile. */
    atomic_fetch_add_explicit(&self->holders, 1, memory_order_relaxed);
    self->task.run = segments_run_task;
    cuda_later(&self->task);
}

void gpu_segments_close_peers(gpu_segments *self, bool quiet)
{
    pthread_mutex_lock(&self->peers_lock);
    self->closed = true;
    for (int32_t i = 0; quiet && self->opened && i < self->size * SEGMENTS; i++) {
        mem_ipc_close(self->device, self->opened[i].address);
        self->opened[i].address = 0;
    }
    pthread_mutex_unlock(&self->peers_lock);
}

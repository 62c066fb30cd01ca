/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses of the device heap, and how long they and their memory stay. This rank's own stay as long as the heap or
 * another holder holds them. Those of peers stay as long as the heap. */
#include "shmem/device_heap_parts.h"

#include <pthread.h>
#include <stdlib.h>

/* ---- pieces ------------------------------------------------------------------------------------------------------ */

expar_status heap_pieces_prepare(heap_pieces *pieces)
{
    uint64_t *bytes = realloc(pieces->bytes, (pieces->count + 1) * sizeof *bytes);
    if (!bytes) return error_set(EXPAR_ERR_MEMORY, "no memory");
    pieces->bytes = bytes;
    return EXPAR_OK;
}

void heap_pieces_add(heap_pieces *pieces, uint64_t bytes)
{
    pieces->bytes[pieces->count++] = bytes;
    pieces->total_bytes += bytes;
}

static void pieces_unmap(const heap_pieces *pieces, cu_address at)
{
    for (size_t i = 0; i < pieces->count; i++) {
        mem_chunk_unmap(at, pieces->bytes[i]);
        at += pieces->bytes[i];
    }
}

void heap_pieces_free(heap_pieces *pieces, cu_address at)
{
    pieces_unmap(pieces, at);
    free(pieces->bytes);
    *pieces = (heap_pieces){0};
}

/* ---- a rank's own ------------------------------------------------------------------------------------------------ */

static expar_status part_make(device_heap *self)
{
    device_part *part = calloc(1, sizeof *part);
    if (!part) return error_set(EXPAR_ERR_MEMORY, "no memory");
    atomic_init(&part->holders, 1);
    expar_status status = cuda_device_open(self->device->index, &part->device);
    if (status != EXPAR_OK) {
        free(part);
        return status;
    }
    self->part = part;
    return EXPAR_OK;
}

static void part_free_guests(device_part *part)
{
    for (int i = 0; i < DEVICE_HEAP_MOST_REGISTERED; i++)
        heap_pieces_free(&part->guests[i].pieces, part->base + part->guests[i].offset);
}

device_part *device_heap_hold(device_heap *self)
{
    /* Relaxed: the heap holds a reference meanwhile. */
    atomic_fetch_add_explicit(&self->part->holders, 1, memory_order_relaxed);
    return self->part;
}

void device_part_drop(device_part *part)
{
    if (!part || atomic_fetch_sub_explicit(&part->holders, 1, memory_order_acq_rel) != 1) return;
    heap_pieces_free(&part->symmetric, part->base);
    heap_pieces_free(&part->own, part->base + part->own_at);
    part_free_guests(part);
    if (part->base && part->range_bytes)
        mem_range_free(part->base, part->range_bytes);
    else if (part->closed)
        mem_ipc_free(part->device, part->base);
    cuda_device_close(part->device);
    free(part);
}

/* ---- addresses --------------------------------------------------------------------------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int64_t living; /* number of heaps of this process that have ranges; guarded by lock */
/* Parts of thread ranks that stay after a failure. Kernels of another rank may still be using them, and freeing memory
   under a kernel would end the GPU context of the whole process. Guarded by lock; dropped with the last heap of this
   process. */
static device_part *left;

static expar_status reserve_ranges(device_heap *self)
{
    const uint64_t bytes = 2 * self->range_bytes;
    expar_status status = EXPAR_OK;
    pthread_mutex_lock(&lock);
    self->counted = true;
    living++;
    pthread_mutex_unlock(&lock);
    for (int32_t r = 0; r < self->sym->size && status == EXPAR_OK; r++)
        if (heap_is_own(self, r) || (self->reaches[r] && !self->sym->by_threads))
            status = mem_range_reserve(bytes, &self->bases[r]);
    self->part->base = self->bases[self->sym->rank];
    self->part->range_bytes = bytes;
    self->part->own_at = self->range_bytes;
    return status;
}

expar_status heap_reserve(device_heap *self)
{
    expar_status status = part_make(self);
    return status == EXPAR_OK && self->kind == HEAP_CHUNKS ? reserve_ranges(self) : status;
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

static bool others_may_use(const device_heap *self, bool quiet)
{
    bool sound = quiet && atomic_load_explicit(&self->sym->failure, memory_order_acquire) == 0;
    return self->sym->by_threads && self->sym->size > 1 && !sound;
}

static void release_peers(device_heap *self)
{
    heap_registered_forget_peers(self);
    for (int32_t r = 0; r < self->sym->size; r++) {
        if (heap_is_own(self, r) || self->sym->by_threads || !self->bases[r]) continue;
        pieces_unmap(&self->chunks, self->bases[r]);
        pieces_unmap(&self->grown[r], self->bases[r] + self->range_bytes);
        mem_range_free(self->bases[r], 2 * self->range_bytes);
    }
}

static void drop_left(void)
{
    while (left) {
        device_part *one = left;
        left = one->next;
        device_part_drop(one);
    }
}

/* The symmetric part is freed now, even if the other one has holders. */
static void release_own(device_heap *self, bool leave)
{
    if (!leave) {
        heap_pieces_free(&self->part->symmetric, self->part->base);
        part_free_guests(self->part);
    }
    pthread_mutex_lock(&lock);
    if (leave) {
        self->part->next = left;
        left = self->part;
    }
    if (--living == 0) drop_left();
    pthread_mutex_unlock(&lock);
    if (!leave) device_part_drop(self->part);
}

void heap_release(device_heap *self, bool quiet)
{
    if (self->kind == HEAP_WHOLE && self->part) heap_whole_close(self, quiet);
    if (self->counted) {
        bool leave = others_may_use(self, quiet) && self->part->base;
        release_peers(self);
        release_own(self, leave);
    } else {
        device_part_drop(self->part);
    }
}

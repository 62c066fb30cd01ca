/* SPDX-License-Identifier: Apache-2.0 */
/* The memory behind the device heap. Growing has three steps that all ranks take together: make a piece (and agree that
 * all could), hand it round, map what came (and agree again). */
#include "shmem/device_heap_parts.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- addresses --------------------------------------------------------------------------------------------------- */

static bool is_own(const device_heap *self, int32_t r)
{
    return r == self->sym->rank;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int64_t living; /* heaps of this process that have ranges; guarded by lock */

expar_status heap_reserve(device_heap *self)
{
    expar_status status = EXPAR_OK;
    if (self->kind == HEAP_WHOLE) return EXPAR_OK;
    pthread_mutex_lock(&lock);
    self->has_ranges = true;
    living++;
    pthread_mutex_unlock(&lock);
    for (int32_t r = 0; r < self->sym->size && status == EXPAR_OK; r++)
        if (is_own(self, r) || !self->sym->by_threads) status = mem_range_reserve(self->range_bytes, &self->bases[r]);
    return status;
}

/* ---- chunks ------------------------------------------------------------------------------------------------------ */

/* Maps the peers' chunks; what was mapped before a failure is unmapped again. */
static expar_status map_peers(device_heap *self, const int *fds, uint64_t bytes)
{
    expar_status status = EXPAR_OK;
    int32_t r = 0;
    for (; r < self->sym->size && status == EXPAR_OK; r++) {
        mem_chunk peer = {0};
        if (is_own(self, r)) continue;
        status = mem_chunk_import(fds[r], bytes, &peer);
        if (status == EXPAR_OK)
            status = mem_chunk_map(&peer, self->bases[r] + self->mapped_bytes, self->devices, self->num_devices);
        mem_chunk_release(&peer);
        if (status != EXPAR_OK) error_prefix(status, "memory of rank %d", r);
    }
    if (status == EXPAR_OK) return EXPAR_OK;
    for (int32_t i = 0; i < r - 1; i++)
        if (!is_own(self, i)) mem_chunk_unmap(self->bases[i] + self->mapped_bytes, bytes);
    /* Those not imported are still open. */
    for (; r < self->sym->size; r++)
        if (!is_own(self, r)) close(fds[r]);
    return status;
}

static void unmap_peers(device_heap *self, uint64_t bytes)
{
    for (int32_t r = 0; r < self->sym->size; r++)
        if (!is_own(self, r)) mem_chunk_unmap(self->bases[r] + self->mapped_bytes, bytes);
}

/* Between processes. The chunk's descriptor is already made. Collective. */
static expar_status share_chunk(device_heap *self, const char *what, int fd, uint64_t bytes)
{
    boot *ctl = self->sym->boot;
    int *fds = calloc((size_t)ctl->size, sizeof *fds);
    if (!fds) return sym_out_of_step(self->sym, what, error_set(EXPAR_ERR_MEMORY, "no memory"));
    expar_status status = ctl->ops->exchange_fds(ctl, fd, fds);
    if (status == EXPAR_OK) {
        expar_status own = map_peers(self, fds, bytes);
        status = heap_agree(self, what, &(heap_word){0}, own);
        if (status != EXPAR_OK && own == EXPAR_OK) unmap_peers(self, bytes);
    } else {
        sym_out_of_step(self->sym, what, status);
    }
    free(fds);
    return status;
}

static expar_status make_chunk(device_heap *self, uint64_t bytes, mem_chunk *chunk, int *fd)
{
    cu_address at = self->bases[self->sym->rank] + self->mapped_bytes;
    expar_status status = mem_chunk_create(self->device, bytes, chunk);
    if (status == EXPAR_OK && !self->sym->by_threads) status = mem_chunk_export(chunk, fd);
    if (status == EXPAR_OK) status = mem_chunk_map(chunk, at, self->devices, self->num_devices);
    return status;
}

static expar_status grow_by_chunk(device_heap *self, const char *what, uint64_t bytes, const heap_word *wish)
{
    cu_address at = self->bases[self->sym->rank] + self->mapped_bytes;
    mem_chunk chunk = {0};
    int fd = -1;
    uint64_t *chunks = realloc(self->chunks, (self->num_chunks + 1) * sizeof *chunks);
    if (chunks) self->chunks = chunks;
    expar_status own = chunks ? make_chunk(self, bytes, &chunk, &fd) : error_set(EXPAR_ERR_MEMORY, "no memory");
    expar_status status = heap_agree(self, what, wish, own);
    if (status == EXPAR_OK && !self->sym->by_threads) status = share_chunk(self, what, fd, bytes);
    if (status == EXPAR_OK) {
        self->chunks[self->num_chunks++] = bytes;
        self->mapped_bytes += bytes;
    } else if (own == EXPAR_OK) {
        mem_chunk_unmap(at, bytes);
    }
    if (fd >= 0) close(fd);
    mem_chunk_release(&chunk); /* the mappings keep it */
    return status;
}

/* ---- the whole, by CUDA IPC -------------------------------------------------------------------------------------- */

static void close_peers(device_heap *self)
{
    for (int32_t r = 0; r < self->sym->size; r++) {
        if (is_own(self, r)) continue;
        mem_ipc_close(self->device, self->bases[r]);
        self->bases[r] = 0;
    }
}

static expar_status open_peers(device_heap *self, const cu_ipc_memory *handles)
{
    for (int32_t r = 0; r < self->sym->size; r++) {
        if (is_own(self, r)) continue;
        expar_status status = mem_ipc_open(self->device, &handles[r], &self->bases[r]);
        if (status != EXPAR_OK) return error_prefix(status, "memory of rank %d", r);
    }
    return EXPAR_OK;
}

static expar_status make_whole(device_heap *self, uint64_t bytes, mem_ipc *own)
{
    if (self->mapped_bytes == 0) return mem_ipc_create(self->device, bytes, own);
    return error_set(EXPAR_ERR_MEMORY,
                     "by CUDA IPC the device heap cannot grow beyond the %llu MiB that were taken first",
                     (unsigned long long)(self->mapped_bytes >> 20));
}

/* Two rounds, as with chunks: made, with the handles handed round, and opened. */
static expar_status agree_on_whole(device_heap *self, const char *what, uint64_t bytes, const heap_word *wish,
                                   mem_ipc *own)
{
    cu_ipc_memory *handles = calloc((size_t)self->sym->size, sizeof *handles);
    if (!handles) return sym_out_of_step(self->sym, what, error_set(EXPAR_ERR_MEMORY, "no memory"));
    heap_word with_handle = *wish;
    with_handle.mine = &own->handle;
    with_handle.all = handles;
    with_handle.mine_bytes = sizeof own->handle;
    expar_status status = heap_agree(self, what, &with_handle, make_whole(self, bytes, own));
    if (status == EXPAR_OK) {
        status = heap_agree(self, what, &(heap_word){0}, open_peers(self, handles));
        if (status != EXPAR_OK) close_peers(self);
    }
    free(handles);
    return status;
}

static expar_status take_whole(device_heap *self, const char *what, uint64_t bytes, const heap_word *wish)
{
    mem_ipc own = {0};
    expar_status status = agree_on_whole(self, what, bytes, wish, &own);
    if (status == EXPAR_OK) {
        self->bases[self->sym->rank] = own.address;
        self->mapped_bytes = bytes;
    } else {
        mem_ipc_free(self->device, own.address);
    }
    return status;
}

expar_status heap_grow(device_heap *self, const char *what, uint64_t end_bytes, const heap_word *wish)
{
    uint64_t bytes = align_up(end_bytes - self->mapped_bytes, self->unit_bytes);
    if (self->kind == HEAP_WHOLE) return take_whole(self, what, bytes, wish);
    return grow_by_chunk(self, what, bytes, wish);
}

/* ---- giving back ------------------------------------------------------------------------------------------------- */

/* A peer may have this rank's memory open until it has said that it closed it; a failed group cannot say so, and what
   is left goes with the process. Collective while the group is sound. */
static void release_whole(device_heap *self, bool quiet)
{
    close_peers(self);
    if (!self->mapped_bytes || !quiet) return;
    if (heap_agree(self, "device heap", &(heap_word){0}, EXPAR_OK) == EXPAR_OK)
        mem_ipc_free(self->device, self->bases[self->sym->rank]);
}

/* A rank's own range, left behind where ranks are threads and something failed: kernels of another rank may still be
   using it, and memory taken away under them would end the whole process's GPU context. */
typedef struct left_range {
    cuda_device *device;
    cu_address base;
    uint64_t range_bytes, *chunks;
    size_t num_chunks;
    struct left_range *next;
} left_range;

static left_range *left; /* guarded by lock; freed with the last heap of this process */

static void free_range(cu_address base, uint64_t range_bytes, const uint64_t *chunks, size_t num_chunks)
{
    uint64_t offset = 0;
    for (size_t i = 0; i < num_chunks; i++) {
        mem_chunk_unmap(base + offset, chunks[i]);
        offset += chunks[i];
    }
    mem_range_free(base, range_bytes);
}

static void leave_range(device_heap *self)
{
    left_range *one = malloc(sizeof *one);
    if (!one) return; /* it stays until the process ends */
    *one = (left_range){.device = self->device,
                        .base = self->bases[self->sym->rank],
                        .range_bytes = self->range_bytes,
                        .chunks = self->chunks,
                        .num_chunks = self->num_chunks,
                        .next = left};
    left = one;
    self->device = NULL;
    self->chunks = NULL;
}

static void free_left(void)
{
    while (left) {
        left_range *one = left;
        left = one->next;
        free_range(one->base, one->range_bytes, one->chunks, one->num_chunks);
        cuda_device_close(one->device);
        free(one->chunks);
        free(one);
    }
}

static bool others_may_use(const device_heap *self, bool quiet)
{
    bool sound = quiet && atomic_load_explicit(&self->sym->failure, memory_order_acquire) == 0;
    return self->sym->by_threads && self->sym->size > 1 && !sound;
}

static void release_ranges(device_heap *self, bool quiet)
{
    bool leave = others_may_use(self, quiet) && self->bases[self->sym->rank];
    for (int32_t r = 0; r < self->sym->size && !leave; r++)
        if (self->bases[r] && (is_own(self, r) || !self->sym->by_threads))
            free_range(self->bases[r], self->range_bytes, self->chunks, self->num_chunks);
    pthread_mutex_lock(&lock);
    if (leave) leave_range(self);
    if (--living == 0) free_left();
    pthread_mutex_unlock(&lock);
}

void heap_release(device_heap *self, bool quiet)
{
    if (self->kind == HEAP_WHOLE && self->bases) release_whole(self, quiet);
    if (self->has_ranges) release_ranges(self, quiet);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of the device heap. All ranks take three steps together to grow it. They make a piece and agree that all
 * could; they exchange descriptors; they map what arrives and agree again. */
#include "shmem/device_heap_parts.h"
#include "shmem/parts.h"

#include <stdlib.h>
#include <unistd.h>

/* ---- chunks ------------------------------------------------------------------------------------------------------ */

static void unmap_peers(const device_heap *self, const uint64_t *offsets, const uint64_t *bytes, int32_t end)
{
    for (int32_t r = 0; r < end; r++)
        if (!heap_is_own(self, r) && self->reaches[r] && bytes[r])
            mem_chunk_unmap(self->bases[r] + offsets[r], bytes[r]);
}

/* Ranks of other hosts have sent none. */
static void close_fd(int fd)
{
    if (fd >= 0) close(fd);
}

static expar_status map_one(device_heap *self, int32_t r, int fd, uint64_t offset, uint64_t bytes)
{
    mem_chunk peer = {0};
    if (!bytes || !self->reaches[r]) {
        close_fd(fd);
        return EXPAR_OK;
    }
    expar_status status = mem_chunk_import(fd, bytes, &peer);
    if (status == EXPAR_OK) status = mem_chunk_map(&peer, self->bases[r] + offset, self->devices, self->num_devices);
    mem_chunk_release(&peer);
    return status == EXPAR_OK ? EXPAR_OK : error_prefix(status, "memory of rank %d", r);
}

/* Maps the peers' chunks; after a failure it unmaps those that it had mapped. */
static expar_status map_peers(device_heap *self, const int *fds, const uint64_t *offsets, const uint64_t *bytes)
{
    expar_status status = EXPAR_OK;
    int32_t r = 0;
    for (; r < self->sym->size && status == EXPAR_OK; r++)
        if (!heap_is_own(self, r)) status = map_one(self, r, fds[r], offsets[r], bytes[r]);
    if (status == EXPAR_OK) return EXPAR_OK;
    unmap_peers(self, offsets, bytes, r - 1);
    /* Chunks that were not imported are still open. */
    for (; r < self->sym->size; r++)
        if (!heap_is_own(self, r)) close_fd(fds[r]);
    return status;
}

expar_status heap_chunks_share(device_heap *self, const char *what, int fd, const uint64_t *offsets,
                               const uint64_t *bytes)
{
    boot *ctl = self->sym->boot;
    int *fds = calloc((size_t)ctl->size, sizeof *fds);
    if (!fds) return sym_out_of_step(self->sym, what, error_set(EXPAR_ERR_MEMORY, "no memory"));
    expar_status status = ctl->ops->exchange_fds(ctl, fd, fds);
    if (status == EXPAR_OK) {
        heap_gate_close(self);
        expar_status own = map_peers(self, fds, offsets, bytes);
        heap_gate_open(self);
        status = heap_agree(self, what, &(heap_word){0}, own);
        if (status != EXPAR_OK && own == EXPAR_OK) unmap_peers(self, offsets, bytes, self->sym->size);
    } else {
        sym_out_of_step(self->sym, what, status);
    }
    free(fds);
    return status;
}

static expar_status make_chunk(const device_heap *self, uint64_t offset, uint64_t bytes, int *fd)
{
    mem_chunk chunk = {0};
    expar_status status = mem_chunk_create(self->device, bytes, &chunk);
    if (status == EXPAR_OK && !self->sym->by_threads) status = mem_chunk_export(&chunk, fd);
    if (status == EXPAR_OK)
        status = mem_chunk_map(&chunk, self->bases[self->sym->rank] + offset, self->devices, self->num_devices);
    mem_chunk_release(&chunk); /* the mappings keep the memory */
    if (status == EXPAR_OK || *fd < 0) return status;
    close(*fd);
    *fd = -1;
    return status;
}

expar_status heap_chunk_make(const device_heap *self, uint64_t offset, uint64_t bytes, int *fd)
{
    heap_gate_close(self);
    const expar_status status = make_chunk(self, offset, bytes, fd);
    heap_gate_open(self);
    return status;
}

void heap_chunk_unmake(const device_heap *self, uint64_t offset, uint64_t bytes)
{
    mem_chunk_unmap(self->bases[self->sym->rank] + offset, bytes);
}

/* Shares a piece of the same size at the same offset on all ranks. */
static expar_status share_alike(device_heap *self, const char *what, int fd, uint64_t bytes)
{
    const size_t size = (size_t)self->sym->size;
    uint64_t *numbers = calloc(2 * size, sizeof *numbers);
    if (!numbers) return sym_out_of_step(self->sym, what, error_set(EXPAR_ERR_MEMORY, "no memory"));
    for (size_t r = 0; r < size; r++) {
        numbers[r] = heap_mapped(self);
        numbers[size + r] = bytes;
    }
    expar_status status = heap_chunks_share(self, what, fd, numbers, numbers + size);
    free(numbers);
    return status;
}

static expar_status grow_by_chunk(device_heap *self, const char *what, uint64_t bytes, const heap_word *request)
{
    int fd = -1;
    const uint64_t before = heap_mapped(self);
    expar_status own = heap_pieces_prepare(&self->chunks);
    if (own == EXPAR_OK) own = heap_pieces_prepare(&self->part->symmetric);
    if (own == EXPAR_OK) own = heap_chunk_make(self, before, bytes, &fd);
    if (own == EXPAR_OK && before == 0) {
        own = heap_first_clear(self, self->bases[self->sym->rank]);
        if (own != EXPAR_OK) heap_chunk_unmake(self, before, bytes);
    }
    expar_status status = heap_agree(self, what, request, own);
    if (status == EXPAR_OK && !self->sym->by_threads) status = share_alike(self, what, fd, bytes);
    if (status == EXPAR_OK) {
        heap_pieces_add(&self->chunks, bytes);
        heap_pieces_add(&self->part->symmetric, bytes);
        atomic_store_explicit(&self->mapped_bytes, before + bytes, memory_order_release);
    } else if (own == EXPAR_OK) {
        heap_chunk_unmake(self, before, bytes);
    }
    if (fd >= 0) close(fd);
    return status;
}

/* ---- the whole, by CUDA IPC -------------------------------------------------------------------------------------- */

static void close_peers(device_heap *self)
{
    for (int32_t r = 0; r < self->sym->size; r++) {
        if (heap_is_own(self, r)) continue;
        mem_ipc_close(self->device, self->bases[r]);
        self->bases[r] = 0;
    }
}

static expar_status open_peers(device_heap *self, const cu_ipc_memory *handles)
{
    for (int32_t r = 0; r < self->sym->size; r++) {
        if (heap_is_own(self, r) || !self->reaches[r]) continue;
        expar_status status = mem_ipc_open(self->device, &handles[r], &self->bases[r]);
        if (status != EXPAR_OK) return error_prefix(status, "memory of rank %d", r);
    }
    return EXPAR_OK;
}

static expar_status make_whole(device_heap *self, uint64_t bytes, mem_ipc *own)
{
    const uint64_t mapped = heap_mapped(self);
    if (mapped == 0) {
        expar_status status = mem_ipc_create(self->device, bytes, own);
        return status == EXPAR_OK ? heap_first_clear(self, own->address) : status;
    }
    return error_set(EXPAR_ERR_MEMORY,
                     "by CUDA IPC the device heap cannot grow beyond the %llu MiB that were taken first%s",
                     (unsigned long long)(mapped >> 20), self->for_node ? " (EXPAR_DEVICE_HEAP_SIZE)" : "");
}

/* Two rounds, as with chunks: each rank makes its memory and exchanges its handle, then opens the others. */
static expar_status agree_on_whole(device_heap *self, const char *what, uint64_t bytes, const heap_word *request,
                                   mem_ipc *own)
{
    cu_ipc_memory *handles = calloc((size_t)self->sym->size, sizeof *handles);
    if (!handles) return sym_out_of_step(self->sym, what, error_set(EXPAR_ERR_MEMORY, "no memory"));
    heap_word with_handle = *request;
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

static expar_status take_whole(device_heap *self, const char *what, uint64_t bytes, const heap_word *request)
{
    mem_ipc own = {0};
    expar_status status = agree_on_whole(self, what, bytes, request, &own);
    if (status == EXPAR_OK) {
        self->bases[self->sym->rank] = self->part->base = own.address;
        atomic_store_explicit(&self->mapped_bytes, bytes, memory_order_release);
    } else {
        mem_ipc_free(self->device, own.address);
    }
    return status;
}

expar_status heap_grow(device_heap *self, const char *what, uint64_t end_bytes, const heap_word *request)
{
    const uint64_t mapped = heap_mapped(self);
    uint64_t bytes = end_bytes - mapped;
    if (self->kind == HEAP_WHOLE) {
        bytes = bytes < self->whole_bytes ? self->whole_bytes : bytes;
        return take_whole(self, what, align_up(bytes, self->unit_bytes), request);
    }
    if (self->for_node) bytes = sym_next_border(mapped, end_bytes, self->range_bytes) - mapped;
    return grow_by_chunk(self, what, align_up(bytes, self->unit_bytes), request);
}

/* A peer may have this rank's memory open until it has said that it closed it. In a failed group it cannot say so, and
   the memory stays until the process ends. */
void heap_whole_close(device_heap *self, bool quiet)
{
    close_peers(self);
    if (heap_mapped(self) && quiet)
        self->part->closed = heap_agree(self, "device heap", &(heap_word){0}, EXPAR_OK) == EXPAR_OK;
}

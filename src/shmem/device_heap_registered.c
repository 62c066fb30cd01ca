/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that callers have made, mapped into the device heap. All ranks take three steps together. They say what they
 * have, and each maps its own chunks at one offset. Processes then exchange the chunks one by one, and map what
 * arrives. The driver lets a chunk be mapped at several addresses, so the caller's own mapping stays as it is. */
#include "shmem/device_heap_parts.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

/* Says how much a rank registers. */
typedef struct guest_size {
    uint64_t chunks, bytes;
} guest_size;

/* A registration in progress. */
typedef struct registering {
    const char *what;
    const device_heap_memory *memory;
    int32_t number; /* of its records; -1: all are in use */
    /* this rank's chunks, in the order of addresses, and their bytes */
    mem_chunk *chunks;
    size_t num_chunks, capacity;
    uint64_t chunk_bytes;
    guest_size *sizes; /* [size] */
    /* [size][most]: the sizes of all ranks' chunks, after each rank's last one 0 */
    uint64_t *pieces;
    uint64_t most;
    uint64_t offset; /* 0: none yet */
} registering;

static bool is_between_processes(const device_heap *self)
{
    return !self->sym->by_threads && self->sym->size > 1;
}

/* ---- this rank's chunks ------------------------------------------------------------------------------------------ */

static expar_status chunk_add(registering *run, const mem_chunk *chunk)
{
    if (run->num_chunks == run->capacity) {
        const size_t capacity = run->capacity ? 2 * run->capacity : 16;
        mem_chunk *more = realloc(run->chunks, capacity * sizeof *more);
        if (!more) return error_set(EXPAR_ERR_MEMORY, "no memory");
        run->chunks = more;
        run->capacity = capacity;
    }
    run->chunks[run->num_chunks++] = *chunk;
    run->chunk_bytes += chunk->bytes;
    return EXPAR_OK;
}

/* The owner of a chunk says when he makes it whether processes may share it. */
static expar_status chunk_check_shared(const mem_chunk *chunk)
{
    int fd = -1;
    const expar_status status = mem_chunk_export(chunk, &fd);
    if (status != EXPAR_OK)
        return error_prefix(EXPAR_ERR_UNSUPPORTED,
                            "processes share memory that was made with CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR");
    close(fd);
    return EXPAR_OK;
}

static expar_status find_chunk(const device_heap *self, registering *run)
{
    mem_chunk chunk = {0};
    cu_address base = 0;
    const cu_address at = run->memory->address + run->chunk_bytes;
    expar_status status = mem_chunk_find(self->device, at, &base, &chunk);
    if (status == EXPAR_OK && base != at)
        status = error_set(EXPAR_ERR_ADDRESS, "%#llx is %llu bytes after the first byte of a chunk, expected that byte",
                           at, at - base);
    if (status == EXPAR_OK && is_between_processes(self)) status = chunk_check_shared(&chunk);
    if (status == EXPAR_OK) status = chunk_add(run, &chunk);
    if (status != EXPAR_OK) mem_chunk_release(&chunk);
    return status;
}

static expar_status check_overlap(const device_heap *self, const device_heap_memory *memory)
{
    uint64_t begin, end;
    for (int32_t i = 0; i < DEVICE_HEAP_MOST_REGISTERED; i++) {
        const cu_address other = self->registered[i].address;
        if (!device_heap_registered(self, i, &begin, &end)) continue;
        if (memory->address < other + (end - begin) && other < memory->address + memory->bytes)
            return error_set(EXPAR_ERR_ADDRESS, "%#llx to %#llx overlaps %#llx to %#llx, which is registered",
                             memory->address, memory->address + memory->bytes, other, other + (end - begin));
    }
    return EXPAR_OK;
}

/* The same on all ranks, except after a failure. */
static int32_t find_unused(const device_heap *self)
{
    uint64_t begin, end;
    for (int32_t i = 0; i < DEVICE_HEAP_MOST_REGISTERED; i++)
        if (!device_heap_registered(self, i, &begin, &end) && self->part->guests[i].pieces.count == 0) return i;
    return -1;
}

static expar_status find_chunks(const device_heap *self, registering *run)
{
    expar_status status = check_overlap(self, run->memory);
    run->number = find_unused(self);
    if (status == EXPAR_OK && run->number < 0)
        status = error_set(EXPAR_ERR_LIMIT, "%d ranges are registered, expected fewer than %d",
                           DEVICE_HEAP_MOST_REGISTERED, DEVICE_HEAP_MOST_REGISTERED);
    while (status == EXPAR_OK && run->chunk_bytes < run->memory->bytes)
        status = find_chunk(self, run);
    return status;
}

/* ---- records ----------------------------------------------------------------------------------------------------- */

static bool pieces_make(heap_pieces *pieces, uint64_t capacity)
{
    pieces->bytes = calloc(capacity > 0 ? capacity : 1, sizeof *pieces->bytes);
    return pieces->bytes != NULL;
}

static bool guests_make(const device_heap *self, const registering *run, heap_registered *entry)
{
    if (!is_between_processes(self)) return true;
    entry->guests = calloc((size_t)self->sym->size, sizeof *entry->guests);
    for (int32_t r = 0; entry->guests && r < self->sym->size; r++) {
        entry->guests[r].offset = run->offset;
        if (!pieces_make(&entry->guests[r].pieces, run->sizes[r].chunks)) return false;
    }
    return entry->guests != NULL;
}

static void guests_free(const device_heap *self, heap_registered *entry)
{
    for (int32_t r = 0; entry->guests && r < self->sym->size; r++)
        heap_pieces_free(&entry->guests[r].pieces, self->bases[r] + entry->guests[r].offset);
    free(entry->guests);
    entry->guests = NULL;
}

static void free_own(const device_heap *self, int32_t number)
{
    heap_guest *own = &self->part->guests[number];
    heap_pieces_free(&own->pieces, self->part->base + own->offset);
}

void heap_registered_forget_peers(device_heap *self)
{
    for (int32_t i = 0; i < DEVICE_HEAP_MOST_REGISTERED; i++)
        guests_free(self, &self->registered[i]);
}

void heap_registered_free(device_heap *self)
{
    mem_arena_destroy(self->guest_arena);
}

/* ---- registering ------------------------------------------------------------------------------------------------- */

/* The arenas are alike. */
static expar_status take_range(device_heap *self, registering *run)
{
    uint64_t bytes = 0, taken = 0;
    for (int32_t r = 0; r < self->sym->size; r++)
        if (run->sizes[r].bytes > bytes) bytes = run->sizes[r].bytes;
    if (!self->guest_arena) {
        expar_status status = mem_arena_create(self->range_bytes, &self->guest_arena);
        if (status != EXPAR_OK) return status;
    }
    if (!mem_arena_take(self->guest_arena, bytes, self->unit_bytes, &taken))
        return error_set(EXPAR_ERR_MEMORY, "no addresses for %llu bytes beside those that are registered",
                         (unsigned long long)bytes);
    run->offset = self->range_bytes + taken;
    return EXPAR_OK;
}

static expar_status map_own(const device_heap *self, const registering *run)
{
    heap_guest *own = &self->part->guests[run->number];
    const cu_address base = self->part->base + run->offset;
    expar_status status = EXPAR_OK;
    own->offset = run->offset;
    for (size_t i = 0; i < run->num_chunks && status == EXPAR_OK; i++) {
        status = mem_chunk_map(&run->chunks[i], base + own->pieces.total_bytes, self->devices, self->num_devices);
        if (status == EXPAR_OK) heap_pieces_add(&own->pieces, run->chunks[i].bytes);
    }
    return status;
}

static expar_status prepare_own(device_heap *self, registering *run)
{
    heap_registered *entry = &self->registered[run->number];
    expar_status status = take_range(self, run);
    if (status != EXPAR_OK) return status;
    if (!guests_make(self, run, entry) || !pieces_make(&self->part->guests[run->number].pieces, run->num_chunks))
        return error_set(EXPAR_ERR_MEMORY, "no memory");
    status = map_own(self, run);
    for (size_t i = 0; i < run->num_chunks; i++)
        run->pieces[(uint64_t)self->sym->rank * run->most + i] = run->chunks[i].bytes;
    return status;
}

/* A rank without a chunk of that number sends a descriptor of no memory, which no rank maps. */
static expar_status open_chunk(const registering *run, uint64_t number, int *fd)
{
    if (number < run->num_chunks) return mem_chunk_export(&run->chunks[number], fd);
    *fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return *fd >= 0 ? EXPAR_OK : error_errno("open /dev/null");
}

/* One chunk of each rank. bytes, offsets: [size], for heap_chunks_share. */
static expar_status share_one(device_heap *self, const registering *run, uint64_t number, uint64_t *offsets,
                              uint64_t *bytes)
{
    int fd = -1;
    heap_guest *guests = self->registered[run->number].guests;
    expar_status status = open_chunk(run, number, &fd);
    if (status != EXPAR_OK) return sym_out_of_step(self->sym, run->what, status);
    for (int32_t r = 0; r < self->sym->size; r++)
        bytes[r] = run->pieces[(uint64_t)r * run->most + number];
    status = heap_chunks_share(self, run->what, fd, offsets, bytes);
    close(fd);
    for (int32_t r = 0; r < self->sym->size && status == EXPAR_OK; r++) {
        if (bytes[r] && !heap_is_own(self, r) && self->reaches[r]) heap_pieces_add(&guests[r].pieces, bytes[r]);
        offsets[r] += bytes[r];
    }
    return status;
}

static expar_status share_all(device_heap *self, const registering *run)
{
    const size_t size = (size_t)self->sym->size;
    expar_status status = EXPAR_OK;
    uint64_t *numbers = calloc(2 * size, sizeof *numbers);
    if (!numbers) return sym_out_of_step(self->sym, run->what, error_set(EXPAR_ERR_MEMORY, "no memory"));
    for (size_t r = 0; r < size; r++)
        numbers[r] = run->offset;
    for (uint64_t i = 0; i < run->most && status == EXPAR_OK; i++)
        status = share_one(self, run, i, numbers, numbers + size);
    free(numbers);
    return status;
}

/* All ranks know how much each one has. */
static expar_status register_found(device_heap *self, registering *run)
{
    const uint64_t *mine = run->pieces + (uint64_t)self->sym->rank * run->most;
    expar_status own = prepare_own(self, run);
    const heap_word word = {.bytes = run->memory->bytes,
                            .offset = own == EXPAR_OK ? run->offset : BOOT_UNKNOWN,
                            .mine = mine,
                            .all = run->pieces,
                            .mine_bytes = run->most * sizeof *mine};
    expar_status status = heap_agree(self, run->what, &word, own);
    if (status == EXPAR_OK && is_between_processes(self)) status = share_all(self, run);
    heap_registered *entry = &self->registered[run->number];
    if (status == EXPAR_OK) {
        entry->address = run->memory->address;
        atomic_store_explicit(&entry->begin, run->offset, memory_order_relaxed);
        atomic_store_explicit(&entry->end, run->offset + run->memory->bytes, memory_order_release);
        return EXPAR_OK;
    }
    guests_free(self, entry);
    free_own(self, run->number);
    if (run->offset) mem_arena_give(self->guest_arena, run->offset - self->range_bytes, NULL);
    return status;
}

static expar_status register_chunks(device_heap *self, registering *run)
{
    expar_status own = find_chunks(self, run);
    const guest_size mine = {.chunks = run->num_chunks, .bytes = run->chunk_bytes};
    const heap_word word = {.bytes = run->memory->bytes, .mine = &mine, .all = run->sizes, .mine_bytes = sizeof mine};
    expar_status status = heap_agree(self, run->what, &word, own);
    if (status != EXPAR_OK) return status;
    for (int32_t r = 0; r < self->sym->size; r++)
        if (run->sizes[r].chunks > run->most) run->most = run->sizes[r].chunks;
    run->pieces = calloc((size_t)self->sym->size * run->most + 1, sizeof *run->pieces);
    if (!run->pieces) return sym_out_of_step(self->sym, run->what, error_set(EXPAR_ERR_MEMORY, "no memory"));
    return register_found(self, run);
}

/* Kernels find words of their barriers in the first block. */
static expar_status first_block_make(device_heap *self, const char *what)
{
    const heap_word first = {.bytes = self->first_bytes, .offset = BOOT_UNKNOWN};
    return heap_mapped(self) ? EXPAR_OK : heap_grow(self, what, self->first_bytes, &first);
}

expar_status device_heap_register(device_heap *self, const char *what, const device_heap_memory *memory,
                                  uint64_t *offset)
{
    registering run = {.what = what, .memory = memory};
    if (self->kind == HEAP_WHOLE)
        return error_set(EXPAR_ERR_UNSUPPORTED, "%s: by CUDA IPC processes do not share memory of cuMemCreate", what);
    expar_status status = first_block_make(self, what);
    if (status != EXPAR_OK) return status;
    run.sizes = calloc((size_t)self->sym->size, sizeof *run.sizes);
    if (!run.sizes) return sym_out_of_step(self->sym, what, error_set(EXPAR_ERR_MEMORY, "no memory"));
    status = register_chunks(self, &run);
    for (size_t i = 0; i < run.num_chunks; i++)
        mem_chunk_release(&run.chunks[i]); /* the mappings keep the memory */
    free(run.chunks);
    free(run.pieces);
    free(run.sizes);
    if (status == EXPAR_OK) *offset = run.offset;
    return status;
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

static int32_t find_registered(const device_heap *self, uint64_t offset)
{
    uint64_t begin, end;
    for (int32_t i = 0; i < DEVICE_HEAP_MOST_REGISTERED; i++)
        if (device_heap_registered(self, i, &begin, &end) && begin == offset) return i;
    return -1;
}

/* Memory is given back when no rank maps it any more: that is so for a rank that has passed the second agreement. */
expar_status device_heap_unregister(device_heap *self, const char *what, uint64_t offset, expar_status own)
{
    const int32_t number = find_registered(self, offset);
    if (own == EXPAR_OK && number < 0)
        own = error_set(EXPAR_ERR_ADDRESS, "no memory is registered at offset %llu", (unsigned long long)offset);
    expar_status status = heap_agree(self, what, &(heap_word){.offset = offset}, own);
    if (status != EXPAR_OK) return status;
    atomic_store_explicit(&self->registered[number].end, 0, memory_order_release);
    guests_free(self, &self->registered[number]);
    status = heap_agree(self, what, &(heap_word){0}, EXPAR_OK);
    if (status != EXPAR_OK) return status;
    free_own(self, number);
    mem_arena_give(self->guest_arena, offset - self->range_bytes, NULL);
    return EXPAR_OK;
}

/* ---- facts ------------------------------------------------------------------------------------------------------- */

bool device_heap_registered(const device_heap *self, int32_t number, uint64_t *begin, uint64_t *end)
{
    const heap_registered *entry = &self->registered[number];
    *end = atomic_load_explicit(&entry->end, memory_order_acquire);
    *begin = atomic_load_explicit(&entry->begin, memory_order_relaxed);
    return *end != 0;
}

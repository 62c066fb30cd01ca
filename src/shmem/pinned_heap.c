/* SPDX-License-Identifier: Apache-2.0 */
/* Pinned memory: a region on every rank that grows by all ranks together, registered with the driver piece by piece. */
#include "shmem/pinned_heap.h"
#include "shmem/device_heap_parts.h"
#include "shmem/parts.h"

#include <stdlib.h>

/* The arena's first block, so that no offset given to a caller is 0. */
#define FIRST_BYTES SYM_PINNED_BEGIN
/* Blocks are aligned to at most this, which all regions are. */
#define PIECE_UNIT ((uint64_t)2 << 20)

/* A rank's memory. Thread ranks use each other's, so it stays until the last of them drops it. */
typedef struct pinned_part {
    mem_region region;
    cuda_device *device;
    /* what is registered; only the owner changes it, while it has the heap */
    heap_pieces pieces;
    /* ranks that use it; dropping the last reference (acquire, release) frees everything */
    _Atomic int32_t holders;
} pinned_part;

struct pinned_heap {
    sym *sym;
    pinned_part *part;
    /* [size] for thread ranks: everybody's; else only this rank's */
    pinned_part **parts;
    /* [size] for thread ranks: their regions, for transports; else NULL */
    const mem_region **regions;
    /* [size] where each PE's heap is mapped here, or NULL */
    uint8_t **peers;
    /* what is registered of each mapped peer; between processes as many pieces as this rank's own */
    heap_pieces theirs;
    /* guarded by sym->lock */
    mem_arena *arena;
    /* how far each transport reaches; collective calls change it */
    uint64_t reached_bytes[TRANSPORT_MOST];
};

static const char create[] = "pinned heap";

static expar_status pinned_agree(const pinned_heap *self, const char *what, const heap_word *word, expar_status own)
{
    return heap_agree_on(self->sym, what, "the block's offset in the pinned heap", word, own);
}

static uint64_t pinned_grown(const pinned_heap *self)
{
    return atomic_load_explicit(&self->sym->pinned_bytes, memory_order_acquire);
}

/* ---- registering ------------------------------------------------------------------------------------------------- */

static void unregister_pieces(const cuda_device *device, heap_pieces *pieces, uint8_t *base)
{
    uint64_t at = 0;
    for (size_t i = 0; i < pieces->count && base; i++) {
        mem_host_unregister(device, base + at);
        at += pieces->bytes[i];
    }
}

/* Returns whether this rank registers the PE's memory itself: thread ranks share what the owner has registered. */
static bool registers(const pinned_heap *self, int32_t pe)
{
    return pe != self->sym->rank && !self->sym->by_threads && self->peers[pe];
}

static void unregister_peers(const pinned_heap *self, uint64_t at, int32_t end)
{
    for (int32_t pe = 0; pe < end; pe++)
        if (registers(self, pe)) mem_host_unregister(self->part->device, self->peers[pe] + at);
}

static expar_status register_peers(const pinned_heap *self, uint64_t at, uint64_t bytes)
{
    for (int32_t pe = 0; pe < self->sym->size; pe++) {
        if (!registers(self, pe)) continue;
        expar_status status = mem_host_register(self->part->device, self->peers[pe] + at, bytes);
        if (status == EXPAR_OK) continue;
        unregister_peers(self, at, pe);
        return error_prefix(status, "memory of rank %d", pe);
    }
    return EXPAR_OK;
}

/* ---- making and end ---------------------------------------------------------------------------------------------- */

static void pinned_part_drop(pinned_part *part)
{
    if (!part || atomic_fetch_sub_explicit(&part->holders, 1, memory_order_acq_rel) != 1) return;
    unregister_pieces(part->device, &part->pieces, part->region.base);
    if (part->region.base) mem_region_close(&part->region);
    cuda_device_close(part->device);
    free(part->pieces.bytes);
    free(part);
}

static expar_status pinned_part_make(const sym *symmetric, int32_t index, pinned_part **out)
{
    pinned_part *part = calloc(1, sizeof *part);
    if (!part) return error_set(EXPAR_ERR_MEMORY, "no memory");
    part->region.fd = -1;
    atomic_init(&part->holders, symmetric->by_threads ? symmetric->size : 1);
    expar_status status = cuda_device_open(index, &part->device);
    if (status == EXPAR_OK) status = mem_region_create(symmetric->heap.bytes, !symmetric->by_threads, &part->region);
    if (status == EXPAR_OK) {
        *out = part;
        return EXPAR_OK;
    }
    atomic_store_explicit(&part->holders, 1, memory_order_relaxed);
    pinned_part_drop(part);
    return status;
}

static pinned_heap *pinned_new(sym *symmetric)
{
    const size_t size = (size_t)symmetric->size;
    pinned_heap *self = calloc(1, sizeof *self);
    if (!self) return NULL;
    self->sym = symmetric;
    self->parts = calloc(size, sizeof(pinned_part *));
    self->regions = calloc(size, sizeof(const mem_region *));
    self->peers = calloc(size, sizeof *self->peers);
    if (self->parts && self->regions && self->peers) return self;
    pinned_heap_destroy(self);
    return NULL;
}

static expar_status pinned_make_own(pinned_heap *self, int32_t index)
{
    uint64_t first;
    expar_status status = pinned_part_make(self->sym, index, &self->part);
    /* Peers map no empty file. */
    if (status == EXPAR_OK) status = mem_region_open(&self->part->region, FIRST_BYTES);
    if (status == EXPAR_OK) status = mem_arena_create(self->part->region.bytes, &self->arena);
    if (status == EXPAR_OK && !mem_arena_take(self->arena, FIRST_BYTES, FIRST_BYTES, &first))
        status = error_set(EXPAR_ERR_MEMORY, "no memory");
    return status;
}

/* Thread ranks give each other their parts, and hold them from then on. If the group fails meanwhile, others may hold
   this rank's part without its knowledge: it stays. */
static expar_status pinned_meet(pinned_heap *self, expar_status own)
{
    const heap_word word = {.mine = &self->part, .all = self->parts, .mine_bytes = sizeof self->part};
    expar_status status = pinned_agree(self, create, &word, own);
    for (int32_t r = 0; r < self->sym->size; r++) {
        if (status != EXPAR_OK || !self->sym->by_threads)
            self->parts[r] = r == self->sym->rank ? self->part : NULL;
        else
            self->regions[r] = &self->parts[r]->region;
    }
    if (status != EXPAR_OK && self->part && sym_is_sound(self->sym))
        atomic_store_explicit(&self->part->holders, 1, memory_order_relaxed);
    return status;
}

static void find_peers(pinned_heap *self)
{
    for (int32_t pe = 0; pe < self->sym->size; pe++) {
        const transport_ways *ways = sym_ways(self->sym, TRANSPORT_PINNED, pe);
        if (ways->map) self->peers[pe] = ways->map->ops->map(ways->map, pe, TRANSPORT_PINNED, 0);
    }
    self->peers[self->sym->rank] = self->part->region.base;
}

expar_status pinned_heap_create(sym *symmetric, int32_t index, pinned_heap **out)
{
    pinned_heap *self = pinned_new(symmetric);
    if (!self) return sym_out_of_step(symmetric, create, error_set(EXPAR_ERR_MEMORY, "no memory"));
    expar_status status = pinned_meet(self, pinned_make_own(self, index));
    if (status == EXPAR_OK) {
        const transport_segment segment = {.region = &self->part->region,
                                           .peers = symmetric->by_threads ? self->regions : NULL,
                                           .gpu = self->part->device};
        status = sym_reach_add(symmetric, create, TRANSPORT_PINNED, &segment);
    }
    if (status != EXPAR_OK) {
        pinned_heap_destroy(self);
        return status;
    }
    find_peers(self);
    *out = self;
    return EXPAR_OK;
}

void pinned_heap_forget_peers(pinned_heap *self)
{
    if (!self) return;
    for (int32_t pe = 0; pe < self->sym->size; pe++)
        if (registers(self, pe)) unregister_pieces(self->part->device, &self->theirs, self->peers[pe]);
    self->theirs.count = 0;
}

void pinned_heap_destroy(pinned_heap *self)
{
    if (!self) return;
    for (int32_t r = 0; self->parts && r < self->sym->size; r++)
        pinned_part_drop(self->parts[r]);
    mem_arena_destroy(self->arena);
    free(self->theirs.bytes);
    free(self->parts);
    free(self->regions);
    free(self->peers);
    free(self);
}

/* ---- growing ----------------------------------------------------------------------------------------------------- */

/* Takes and registers this rank's memory. */
static expar_status grow_own(pinned_heap *self, uint64_t from, uint64_t border)
{
    mem_region *region = &self->part->region;
    expar_status status = heap_pieces_prepare(&self->part->pieces);
    if (status == EXPAR_OK) status = heap_pieces_prepare(&self->theirs);
    if (status == EXPAR_OK) status = mem_region_open(region, border);
    if (status == EXPAR_OK) status = mem_region_commit(region, &self->sym->budget, from, border - from);
    if (status != EXPAR_OK) return status;
    return mem_host_register(self->part->device, (uint8_t *)region->base + from, border - from);
}

/* All ranks have their own; now transports and peers. */
static expar_status grow_everywhere(pinned_heap *self, const char *what, uint64_t from, uint64_t border)
{
    expar_status status = sym_reach_grow(self->sym, TRANSPORT_PINNED, border, self->reached_bytes);
    if (status != EXPAR_OK) return status == EXPAR_ERR_MEMORY ? status : sym_out_of_step(self->sym, what, status);
    expar_status own = register_peers(self, from, border - from);
    status = pinned_agree(self, what, &(heap_word){0}, own);
    if (status != EXPAR_OK && own == EXPAR_OK) unregister_peers(self, from, self->sym->size);
    return status;
}

static expar_status pinned_grow(pinned_heap *self, const char *what, uint64_t end, const heap_word *request)
{
    const uint64_t from = pinned_grown(self), border = sym_next_border(from, end, self->part->region.bytes);
    expar_status own = grow_own(self, from, border);
    expar_status status = pinned_agree(self, what, request, own);
    if (status == EXPAR_OK) status = grow_everywhere(self, what, from, border);
    if (status == EXPAR_OK) {
        heap_pieces_add(&self->part->pieces, border - from);
        heap_pieces_add(&self->theirs, border - from);
        atomic_store_explicit(&self->sym->pinned_bytes, border, memory_order_release);
    } else if (own == EXPAR_OK) {
        mem_host_unregister(self->part->device, (uint8_t *)self->part->region.base + from);
    }
    return status;
}

/* ---- taking and giving ------------------------------------------------------------------------------------------- */

static expar_status pinned_take_offset(pinned_heap *self, heap_word *request)
{
    pthread_mutex_lock(&self->sym->lock);
    const bool taken = mem_arena_take(self->arena, request->bytes, request->alignment, &request->offset);
    pthread_mutex_unlock(&self->sym->lock);
    if (taken) return EXPAR_OK;
    return error_set(EXPAR_ERR_MEMORY,
                     "no space for %llu bytes of pinned memory, which has %zu bytes of addresses (EXPAR_HEAP_SIZE or "
                     "heap_bytes makes it larger)",
                     (unsigned long long)request->bytes, self->part->region.bytes);
}

static bool pinned_give_offset(pinned_heap *self, uint64_t offset)
{
    pthread_mutex_lock(&self->sym->lock);
    const bool given = mem_arena_give(self->arena, offset, NULL);
    pthread_mutex_unlock(&self->sym->lock);
    return given;
}

expar_status pinned_heap_take(pinned_heap *self, const char *what, uint64_t bytes, uint64_t alignment, uint64_t *offset)
{
    heap_word request = {.bytes = bytes, .alignment = alignment, .offset = BOOT_UNKNOWN};
    const expar_status own = pinned_take_offset(self, &request);
    const bool fits = own != EXPAR_OK || request.offset + bytes <= pinned_grown(self);
    expar_status status =
        fits ? pinned_agree(self, what, &request, own) : pinned_grow(self, what, request.offset + bytes, &request);
    if (status == EXPAR_OK)
        *offset = request.offset;
    else if (own == EXPAR_OK)
        pinned_give_offset(self, request.offset);
    return status;
}

expar_status pinned_heap_give(pinned_heap *self, const char *what, uint64_t offset, expar_status own)
{
    expar_status status = pinned_agree(self, what, &(heap_word){.offset = offset}, own);
    if (status != EXPAR_OK || pinned_give_offset(self, offset)) return status;
    /* The arenas are alike, so this fails on all ranks. */
    return error_set(EXPAR_ERR_ADDRESS, "%s: no block starts at offset %llu of the pinned heap", what,
                     (unsigned long long)offset);
}

/* ---- facts ------------------------------------------------------------------------------------------------------- */

const cuda_device *pinned_heap_device(const pinned_heap *self)
{
    return self->part->device;
}

bool pinned_heap_offset(const pinned_heap *self, const void *address, uint64_t bytes, uint64_t *offset)
{
    const uint64_t at = (uintptr_t)address - (uintptr_t)self->part->region.base, grown = pinned_grown(self);
    *offset = at;
    return at >= FIRST_BYTES && at < grown && bytes <= grown - at;
}

uint8_t *pinned_heap_base(const pinned_heap *self, int32_t pe)
{
    return self->peers[pe];
}

int32_t pinned_heap_registrar(const pinned_heap *self, int32_t pe)
{
    return (self->sym->by_threads ? self->parts[pe] : self->part)->device->index;
}

bool pinned_heap_block_bytes(pinned_heap *self, uint64_t offset, uint64_t *bytes)
{
    pthread_mutex_lock(&self->sym->lock);
    const bool found = mem_arena_block_bytes(self->arena, offset, bytes);
    pthread_mutex_unlock(&self->sym->lock);
    return found;
}

void pinned_heap_get_facts(pinned_heap *self, device_heap_facts *out)
{
    *out = (device_heap_facts){.first_bytes = FIRST_BYTES, .unit_bytes = PIECE_UNIT};
    pthread_mutex_lock(&self->sym->lock);
    mem_arena_get_stats(self->arena, &out->arena);
    pthread_mutex_unlock(&self->sym->lock);
    out->mapped_bytes = pinned_grown(self);
    out->chunks = self->part->pieces.count;
}

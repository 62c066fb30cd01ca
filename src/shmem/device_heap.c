/* SPDX-License-Identifier: Apache-2.0 */
/* The symmetric device heap: an arena on every rank that all use alike, and memory mapped behind it as it grows.
 *
 * As in the host's heap each call gathers every rank's wish before anything stays changed. Growing has three steps that
 * all ranks take together: make a chunk (and agree that all could), hand it round, map what came (and agree again). */
#include "shmem/device_heap.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The arena's first block, so that no offset given to a caller is 0. */
#define FIRST_BYTES 4096
/* Addresses of a heap: as much as the largest GPU has, in units of it. */
#define RANGE_UNIT ((uint64_t)1 << 30)
/* Larger than the driver's granularity only to take fewer chunks. */
#define CHUNK_UNIT_MIN ((uint64_t)2 << 20)
#define REASON_TEXT    232

/* What a rank can or wants; told to all. */
typedef struct heap_word {
    int32_t status; /* expar_status: why it cannot */
    char text[REASON_TEXT];
    uint64_t bytes, alignment, offset; /* of a take or give */
} heap_word;

/* Which GPU a rank has. */
typedef struct heap_card {
    cu_uuid uuid;
    char bus_id[32];
    uint64_t memory_bytes, unit_bytes;
    cu_address base; /* of its own heap: for ranks that are threads of this process */
} heap_card;

struct device_heap {
    sym *sym;
    cuda_device *device;
    int32_t *devices; /* [num_devices] GPUs of this process whose ranks map what this rank maps */
    int32_t num_devices;
    cu_address *bases; /* [size] */
    uint64_t range_bytes, unit_bytes;
    mem_arena *arena; /* guarded by sym->lock */
    uint64_t *chunks; /* [num_chunks] bytes of each, one behind the other */
    size_t num_chunks;
    uint64_t mapped_bytes; /* their sum */
};

/* ---- agreement -----------------------------------------------------------------------------------------------------
 */

static void note(heap_word *word, expar_status status)
{
    word->status = (int32_t)status;
    if (status == EXPAR_OK) return;
    strncpy(word->text, expar_last_error(), sizeof word->text - 1);
}

static expar_status judge(const device_heap *self, const char *what, const heap_word *all)
{
    const heap_word *mine = &all[self->sym->rank];
    if (mine->status != EXPAR_OK) return error_set((expar_status)mine->status, "%s: %s", what, mine->text);
    for (int32_t r = 0; r < self->sym->size; r++) {
        if (all[r].status == EXPAR_ERR_MEMORY)
            return error_set(EXPAR_ERR_MEMORY, "%s: rank %d: %s", what, r, all[r].text);
        if (all[r].status != EXPAR_OK) return error_set(EXPAR_ERR_REMOTE, "%s: rank %d: %s", what, r, all[r].text);
    }
    for (int32_t r = 1; r < self->sym->size; r++)
        if (all[r].bytes != all[0].bytes || all[r].alignment != all[0].alignment || all[r].offset != all[0].offset)
            return error_set(
                EXPAR_ERR_MISMATCH,
                "%s: rank %d has %llu bytes aligned to %llu at offset %llu of the device heap, rank 0 %llu "
                "aligned to %llu at %llu",
                what, r, (unsigned long long)all[r].bytes, (unsigned long long)all[r].alignment,
                (unsigned long long)all[r].offset, (unsigned long long)all[0].bytes,
                (unsigned long long)all[0].alignment, (unsigned long long)all[0].offset);
    return EXPAR_OK;
}

/* Collective: OK on all ranks, or on none. */
static expar_status agree(device_heap *self, const char *what, const heap_word *mine)
{
    sym *symmetric = self->sym;
    expar_status status = sym_check(symmetric, what);
    if (status != EXPAR_OK) return status;
    heap_word *all = calloc((size_t)symmetric->size, sizeof *all);
    if (!all) return sym_out_of_step(symmetric, what, error_set(EXPAR_ERR_MEMORY, "no memory"));
    status = symmetric->boot->ops->allgather(symmetric->boot, mine, all, sizeof *mine);
    status = status != EXPAR_OK ? sym_out_of_step(symmetric, what, status) : judge(self, what, all);
    free(all);
    return status;
}

/* ---- making --------------------------------------------------------------------------------------------------------
 */

static const char create[] = "device heap";

static expar_status check_hosts(const sym *symmetric)
{
    const boot_place *places = symmetric->boot->places;
    for (int32_t r = 0; r < symmetric->size; r++)
        if (places[r].host != places[symmetric->rank].host)
            return error_set(EXPAR_ERR_UNSUPPORTED, "ranks %d and %d run on different hosts; GPUs of one host only",
                             symmetric->rank, r);
    return EXPAR_OK;
}

static expar_status open_own(device_heap *self, int32_t index, heap_card *card)
{
    expar_status status = check_hosts(self->sym);
    if (status == EXPAR_OK) status = cuda_device_open(index, &self->device);
    if (status == EXPAR_OK) status = mem_chunk_granularity(self->device, &card->unit_bytes);
    if (status != EXPAR_OK) return status;
    card->uuid = self->device->uuid;
    memcpy(card->bus_id, self->device->bus_id, sizeof card->bus_id);
    card->memory_bytes = self->device->memory_bytes;
    return EXPAR_OK;
}

/* Whether this rank's GPU can reach that of rank r, and its index in this process. */
static expar_status check_reach(const device_heap *self, int32_t r, const heap_card *card, int32_t *index)
{
    cuda_link link = {0};
    int32_t own = self->device->index, rank = self->sym->rank;
    *index = cuda_device_find(&card->uuid);
    if (*index < 0)
        return error_set(EXPAR_ERR_UNSUPPORTED,
                         "the GPU of rank %d (%s) is not visible to rank %d: CUDA_VISIBLE_DEVICES must show every rank "
                         "the GPUs of all ranks of the host",
                         r, card->bus_id, rank);
    expar_status status = cuda_link_between(own, *index, &link);
    if (status == EXPAR_OK && !link.access)
        return error_set(EXPAR_ERR_UNSUPPORTED,
                         "no peer access between GPU %s of rank %d and GPU %s of rank %d (`nvidia-smi topo -p2p r` "
                         "shows which GPUs have it)",
                         self->device->bus_id, rank, card->bus_id, r);
    return status;
}

static void add_device(device_heap *self, int32_t index)
{
    for (int32_t i = 0; i < self->num_devices; i++)
        if (self->devices[i] == index) return;
    self->devices[self->num_devices++] = index;
}

/* Threads of one process map for all; a process maps for its own GPU. */
static expar_status find_devices(device_heap *self, const heap_card *cards)
{
    add_device(self, self->device->index);
    for (int32_t r = 0; r < self->sym->size; r++) {
        int32_t index = -1;
        expar_status status = check_reach(self, r, &cards[r], &index);
        if (status != EXPAR_OK) return status;
        if (self->sym->boot->threads) add_device(self, index);
        if (cards[r].memory_bytes > self->range_bytes) self->range_bytes = cards[r].memory_bytes;
        if (cards[r].unit_bytes > self->unit_bytes) self->unit_bytes = cards[r].unit_bytes;
    }
    self->range_bytes = align_up(self->range_bytes, RANGE_UNIT);
    return EXPAR_OK;
}

/* This rank's own range, and those for peers in other processes. */
static expar_status reserve_ranges(device_heap *self)
{
    uint64_t first;
    expar_status status = mem_arena_create(self->range_bytes, &self->arena);
    if (status == EXPAR_OK && !mem_arena_take(self->arena, FIRST_BYTES, FIRST_BYTES, &first))
        status = error_set(EXPAR_ERR_MEMORY, "no memory");
    for (int32_t r = 0; r < self->sym->size && status == EXPAR_OK; r++)
        if (r == self->sym->rank || !self->sym->boot->threads)
            status = mem_range_reserve(self->range_bytes, &self->bases[r]);
    return status;
}

/* Two rounds: what each rank's GPU is, then whether all reach all and have addresses. */
static expar_status meet(device_heap *self, int32_t index, heap_card *cards)
{
    boot *ctl = self->sym->boot;
    heap_card card = {.unit_bytes = CHUNK_UNIT_MIN};
    heap_word word = {0};
    note(&word, open_own(self, index, &card));
    expar_status status = agree(self, create, &word);
    if (status != EXPAR_OK) return status;
    status = ctl->ops->allgather(ctl, &card, cards, sizeof card);
    if (status != EXPAR_OK) return sym_out_of_step(self->sym, create, status);
    status = find_devices(self, cards);
    if (status == EXPAR_OK) status = reserve_ranges(self);
    note(&word, status);
    status = agree(self, create, &word);
    if (status != EXPAR_OK || !ctl->threads) return status;
    card.base = self->bases[self->sym->rank];
    status = ctl->ops->allgather(ctl, &card, cards, sizeof card);
    if (status != EXPAR_OK) return sym_out_of_step(self->sym, create, status);
    for (int32_t r = 0; r < self->sym->size; r++)
        self->bases[r] = cards[r].base;
    return EXPAR_OK;
}

expar_status device_heap_create(sym *symmetric, int32_t index, device_heap **out)
{
    size_t size = (size_t)symmetric->size;
    device_heap *self = calloc(1, sizeof *self);
    heap_card *cards = calloc(size, sizeof *cards);
    if (!self || !cards) goto no_memory;
    self->sym = symmetric;
    self->unit_bytes = CHUNK_UNIT_MIN;
    self->bases = calloc(size, sizeof *self->bases);
    self->devices = calloc(size + 1, sizeof *self->devices);
    if (!self->bases || !self->devices) goto no_memory;
    expar_status status = meet(self, index, cards);
    free(cards);
    if (status != EXPAR_OK) {
        device_heap_destroy(self);
        return status;
    }
    *out = self;
    return EXPAR_OK;
no_memory:
    free(cards);
    if (self) device_heap_destroy(self);
    return sym_out_of_step(symmetric, create, error_set(EXPAR_ERR_MEMORY, "no memory"));
}

/* A range that this rank reserved, with its chunks. */
static void free_range(device_heap *self, int32_t r)
{
    uint64_t offset = 0;
    for (size_t i = 0; i < self->num_chunks; i++) {
        mem_chunk_unmap(self->bases[r] + offset, self->chunks[i]);
        offset += self->chunks[i];
    }
    mem_range_free(self->bases[r], self->range_bytes);
}

/* Threads of one process share the mapping: where the group has failed, a kernel of another rank may still be using it,
   and memory taken away under it would end the whole process's GPU context. It stays until the process ends. */
static bool others_may_use(const device_heap *self)
{
    return self->sym->boot->threads && self->sym->size > 1 &&
           atomic_load_explicit(&self->sym->failure, memory_order_acquire) != 0;
}

void device_heap_destroy(device_heap *self)
{
    if (!self) return;
    bool keep = others_may_use(self);
    for (int32_t r = 0; self->bases && r < self->sym->size && !keep; r++)
        if (self->bases[r] && (r == self->sym->rank || !self->sym->boot->threads)) free_range(self, r);
    cuda_device_close(self->device);
    mem_arena_destroy(self->arena);
    free(self->chunks);
    free(self->bases);
    free(self->devices);
    free(self);
}

/* ---- growing -------------------------------------------------------------------------------------------------------
 */

/* Hands the chunk round and maps the peers'; what was mapped before a failure is unmapped again. */
static expar_status map_peers(device_heap *self, const int *fds, uint64_t bytes)
{
    expar_status status = EXPAR_OK;
    int32_t r = 0;
    for (; r < self->sym->size && status == EXPAR_OK; r++) {
        mem_chunk peer = {0};
        if (r == self->sym->rank) continue;
        status = mem_chunk_import(fds[r], bytes, &peer);
        if (status == EXPAR_OK)
            status = mem_chunk_map(&peer, self->bases[r] + self->mapped_bytes, self->devices, self->num_devices);
        mem_chunk_release(&peer);
        if (status != EXPAR_OK) error_prefix(status, "memory of rank %d", r);
    }
    if (status == EXPAR_OK) return EXPAR_OK;
    for (int32_t i = 0; i < r - 1; i++)
        if (i != self->sym->rank) mem_chunk_unmap(self->bases[i] + self->mapped_bytes, bytes);
    /* Those not imported are still open. */
    for (; r < self->sym->size; r++)
        if (r != self->sym->rank) close(fds[r]);
    return status;
}

static void unmap_peers(device_heap *self, uint64_t bytes)
{
    for (int32_t r = 0; r < self->sym->size; r++)
        if (r != self->sym->rank) mem_chunk_unmap(self->bases[r] + self->mapped_bytes, bytes);
}

/* Between processes. The chunk's descriptor is already made. Collective. */
static expar_status share_chunk(device_heap *self, const char *what, int fd, uint64_t bytes)
{
    boot *ctl = self->sym->boot;
    heap_word word = {0};
    int *fds = calloc((size_t)ctl->size, sizeof *fds);
    if (!fds) return sym_out_of_step(self->sym, what, error_set(EXPAR_ERR_MEMORY, "no memory"));
    expar_status status = ctl->ops->exchange_fds(ctl, fd, fds);
    if (status == EXPAR_OK) {
        expar_status own = map_peers(self, fds, bytes);
        note(&word, own);
        status = agree(self, what, &word);
        if (status != EXPAR_OK && own == EXPAR_OK) unmap_peers(self, bytes);
    } else {
        sym_out_of_step(self->sym, what, status);
    }
    free(fds);
    return status;
}

static expar_status make_own(device_heap *self, uint64_t bytes, mem_chunk *chunk, int *fd)
{
    cu_address at = self->bases[self->sym->rank] + self->mapped_bytes;
    expar_status status = mem_chunk_create(self->device, bytes, chunk);
    if (status == EXPAR_OK && !self->sym->boot->threads) status = mem_chunk_export(chunk, fd);
    if (status == EXPAR_OK) status = mem_chunk_map(chunk, at, self->devices, self->num_devices);
    return status;
}

/* Puts memory behind the heap up to end_bytes. `wish` is what all must agree on before anything is shared. Collective.
 */
static expar_status grow(device_heap *self, const char *what, uint64_t end_bytes, heap_word *wish)
{
    uint64_t bytes = align_up(end_bytes - self->mapped_bytes, self->unit_bytes);
    cu_address at = self->bases[self->sym->rank] + self->mapped_bytes;
    mem_chunk chunk = {0};
    int fd = -1;
    uint64_t *chunks = realloc(self->chunks, (self->num_chunks + 1) * sizeof *chunks);
    if (chunks) self->chunks = chunks;
    expar_status own = chunks ? make_own(self, bytes, &chunk, &fd) : error_set(EXPAR_ERR_MEMORY, "no memory");
    note(wish, own);
    expar_status status = agree(self, what, wish);
    if (status == EXPAR_OK && !self->sym->boot->threads) status = share_chunk(self, what, fd, bytes);
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

/* ---- taking and giving ---------------------------------------------------------------------------------------------
 */

static bool arena_take(device_heap *self, uint64_t bytes, uint64_t alignment, uint64_t *offset)
{
    pthread_mutex_lock(&self->sym->lock);
    bool taken = mem_arena_take(self->arena, bytes, alignment, offset);
    pthread_mutex_unlock(&self->sym->lock);
    return taken;
}

static bool arena_give(device_heap *self, uint64_t offset)
{
    pthread_mutex_lock(&self->sym->lock);
    bool given = mem_arena_give(self->arena, offset, NULL);
    pthread_mutex_unlock(&self->sym->lock);
    return given;
}

expar_status device_heap_take(device_heap *self, const char *what, uint64_t bytes, uint64_t alignment, uint64_t *offset)
{
    heap_word wish = {.bytes = bytes, .alignment = alignment};
    bool taken = arena_take(self, bytes, alignment, &wish.offset);
    if (!taken)
        note(&wish, error_set(EXPAR_ERR_MEMORY, "%llu bytes are more than GPU %d (%s) has", (unsigned long long)bytes,
                              self->device->index, self->device->name));
    bool fits = !taken || wish.offset + bytes <= self->mapped_bytes;
    expar_status status = fits ? agree(self, what, &wish) : grow(self, what, wish.offset + bytes, &wish);
    if (status == EXPAR_OK)
        *offset = wish.offset;
    else if (taken)
        arena_give(self, wish.offset);
    return status;
}

expar_status device_heap_give(device_heap *self, const char *what, uint64_t offset)
{
    expar_status status = agree(self, what, &(heap_word){.offset = offset});
    if (status != EXPAR_OK) return status;
    /* The arenas are alike, so this fails on all ranks or on none. */
    if (!arena_give(self, offset))
        return error_set(EXPAR_ERR_ADDRESS, "%s: no block starts at offset %llu of the device heap", what,
                         (unsigned long long)offset);
    return EXPAR_OK;
}

/* ---- facts ---------------------------------------------------------------------------------------------------------
 */

const cuda_device *device_heap_device(const device_heap *self)
{
    return self->device;
}

const cu_address *device_heap_bases(const device_heap *self)
{
    return self->bases;
}

cu_address device_heap_at(const device_heap *self, uint64_t offset)
{
    return self->bases[self->sym->rank] + offset;
}

bool device_heap_offset(const device_heap *self, cu_address address, uint64_t bytes, uint64_t *offset)
{
    cu_address base = self->bases[self->sym->rank];
    if (address < base || address - base >= self->mapped_bytes || bytes > self->mapped_bytes - (address - base))
        return false;
    *offset = address - base;
    return true;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The symmetric device heap: an arena on every rank, which all use alike, and memory that is mapped as the heap grows.
 *
 * As for the host's heap, each call gathers the requests of all ranks before any change becomes final. */
#include "shmem/device_heap_parts.h"
#include "shmem/kinds.h"

#include <stdlib.h>
#include <string.h>

/* The least size and the alignment of the first block. */
#define FIRST_UNIT ((uint64_t)4096)
/* The heap has as many addresses as the largest GPU has memory, rounded up to this. */
#define RANGE_UNIT ((uint64_t)1 << 30)
/* Larger than the driver's granularity only to have fewer chunks. */
#define CHUNK_UNIT_MIN ((uint64_t)2 << 20)
/* The default of EXPAR_DEVICE_HEAP_SIZE. */
#define WHOLE_BYTES ((uint64_t)256 << 20)

/* Describes a rank's GPU. */
typedef struct heap_card {
    cu_uuid uuid;
    char bus_id[32];
    uint64_t memory_bytes, unit_bytes;
    cu_address base; /* base of its own heap, for ranks that are threads of this process */
    uint64_t whole_bytes;
    int32_t kind;        /* heap_kind that it can use */
    bool prefers_mapped; /* by EXPAR_DEVICE_TRANSPORTS */
    bool meets_all;      /* its GPU reaches all PEs with atomics */
    int32_t atomics_by;  /* kernel_atomics */
} heap_card;

/* ---- agreement --------------------------------------------------------------------------------------------------- */

expar_status heap_agree_on(sym *self, const char *what, const char *block, const heap_word *word, expar_status own)
{
    const boot_field fields[] = {{.name = "the size in bytes", .value = word->bytes},
                                 {.name = "the alignment in bytes", .value = word->alignment},
                                 {.name = block, .value = word->offset}};
    const boot_matter matter = {.what = what,
                                .rejected = "cannot take part",
                                .common = EXPAR_ERR_MEMORY,
                                .lacks = "has no memory for it",
                                .fields = fields,
                                .num_fields = ARRAY_LENGTH(fields),
                                .mine = word->mine,
                                .all = word->all,
                                .bytes = word->mine_bytes};
    expar_status status = sym_check_come(self, what);
    if (status != EXPAR_OK) return status;
    status = sym_agree(self, &matter, own);
    /* The text of this rank's own error does not name the call yet. */
    return own != EXPAR_OK && status == own ? error_prefix(status, "%s", what) : status;
}

expar_status heap_agree(device_heap *self, const char *what, const heap_word *word, expar_status own)
{
    return heap_agree_on(self->sym, what, "the block's offset in the device heap", word, own);
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

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

/* Only by CUDA IPC the heap must have its final size from the start. */
static expar_status read_whole_bytes(const device_heap *self, heap_card *card)
{
    card->whole_bytes = self->for_node ? WHOLE_BYTES : 0;
    if (!self->for_node) return EXPAR_OK;
    return env_bytes("EXPAR_DEVICE_HEAP_SIZE", CHUNK_UNIT_MIN, UINT64_C(1) << 46, &card->whole_bytes);
}

/* Heaps of the library's own have no handles. */
static expar_status read_settings(const device_heap *self, heap_card *card)
{
    kernel_ways ways;
    kernel_atomics atomics_by = KERNEL_ATOMICS_AUTO;
    if (!self->for_node) return EXPAR_OK;
    expar_status status = kernel_ways_read(&ways);
    if (status == EXPAR_OK) status = kernel_atomics_read(&atomics_by);
    card->prefers_mapped = status == EXPAR_OK && ways.list[0] == KERNEL_WAY_MAPPED;
    card->atomics_by = (int32_t)atomics_by;
    return status;
}

/* Threads of one process share addresses. Processes send each other descriptors if they can. */
static expar_status choose_kind(const device_heap *self, int32_t *kind)
{
    int64_t forced = 0;
    expar_status status = env_int("EXPAR_CUDA_IPC", 0, 1, &forced);
    *kind = HEAP_CHUNKS;
    if (status == EXPAR_OK && !self->sym->by_threads && (forced || !mem_chunk_exportable(self->device)))
        *kind = HEAP_WHOLE;
    return status;
}

static expar_status open_own(device_heap *self, int32_t index, heap_card *card)
{
    expar_status status = self->for_node ? EXPAR_OK : check_hosts(self->sym);
    if (status == EXPAR_OK) status = cuda_device_open(index, &self->device);
    if (status == EXPAR_OK) status = choose_kind(self, &card->kind);
    if (status == EXPAR_OK) status = read_whole_bytes(self, card);
    if (status == EXPAR_OK) status = read_settings(self, card);
    if (status == EXPAR_OK && card->kind == HEAP_CHUNKS)
        status = mem_chunk_granularity(self->device, &card->unit_bytes);
    if (status != EXPAR_OK) return status;
    card->uuid = self->device->uuid;
    memcpy(card->bus_id, self->device->bus_id, sizeof card->bus_id);
    card->memory_bytes = self->device->memory_bytes;
    return EXPAR_OK;
}

/* Checks that this rank's GPU can reach that of rank r, and gives its index in this process. */
static expar_status check_reach(const device_heap *self, int32_t r, const heap_card *card, int32_t *index)
{
    cuda_link link = {0}, back = {0};
    int32_t own = self->device->index, rank = self->sym->rank;
    *index = cuda_device_find(&card->uuid);
    if (*index < 0)
        return error_set(EXPAR_ERR_UNSUPPORTED,
                         "the GPU of rank %d (%s) is not visible to rank %d: CUDA_VISIBLE_DEVICES must show every rank "
                         "the GPUs of all ranks of the host",
                         r, card->bus_id, rank);
    expar_status status = cuda_link_between(own, *index, &link);
    self->atomics[r] = status == EXPAR_OK && link.atomics;
    if (status == EXPAR_OK && link.access && self->for_node) {
        status = cuda_link_between(*index, own, &back);
        link.access = back.access;
    }
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

static uint64_t at_least(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Finds what all ranks' heaps have alike. */
static void find_common(device_heap *self, const heap_card *cards)
{
    for (int32_t r = 0; r < self->sym->size; r++) {
        self->range_bytes = at_least(self->range_bytes, cards[r].memory_bytes);
        self->unit_bytes = at_least(self->unit_bytes, cards[r].unit_bytes);
        self->whole_bytes = at_least(self->whole_bytes, cards[r].whole_bytes);
        if (cards[r].kind == HEAP_WHOLE) self->kind = HEAP_WHOLE;
    }
    self->range_bytes = align_up(at_least(self->range_bytes, self->whole_bytes), RANGE_UNIT);
}

/* Ranks of other nodes are out of reach, even on the same GPU. */
static expar_status check_rank(const device_heap *self, int32_t r, const heap_card *card, int32_t *index)
{
    const sym *symmetric = self->sym;
    if (self->for_node && symmetric->nodes[r] != symmetric->nodes[symmetric->rank])
        return error_set(EXPAR_ERR_UNSUPPORTED, "rank %d is on another node", r);
    return check_reach(self, r, card, index);
}

/* All ranks find the same. */
static expar_status find_atomics(device_heap *self, const heap_card *cards)
{
    self->atomics_by = (kernel_atomics)cards[0].atomics_by;
    for (int32_t r = 1; r < self->sym->size; r++)
        if (cards[r].atomics_by != cards[0].atomics_by)
            return error_set(EXPAR_ERR_MISMATCH, "EXPAR_DEVICE_ATOMICS is %s on rank 0 and %s on rank %d",
                             kernel_atomics_name((kernel_atomics)cards[0].atomics_by),
                             kernel_atomics_name((kernel_atomics)cards[r].atomics_by), r);
    return EXPAR_OK;
}

/* A process whose ranks are threads maps for all their GPUs; else it maps for its own GPU. */
static expar_status find_devices(device_heap *self, const heap_card *cards)
{
    find_common(self, cards);
    add_device(self, self->device->index);
    for (int32_t r = 0; r < self->sym->size; r++) {
        int32_t index = -1;
        expar_status status = check_rank(self, r, &cards[r], &index);
        self->reaches[r] = status == EXPAR_OK;
        if (status != EXPAR_OK && (!self->for_node || status != EXPAR_ERR_UNSUPPORTED)) return status;
        if (self->reaches[r] && self->sym->by_threads) add_device(self, index);
    }
    return EXPAR_OK;
}

static expar_status heap_open_range(device_heap *self)
{
    uint64_t first;
    expar_status status = mem_arena_create(self->range_bytes, &self->arena);
    if (status == EXPAR_OK && !mem_arena_take(self->arena, self->first_bytes, FIRST_UNIT, &first))
        status = error_set(EXPAR_ERR_MEMORY, "no memory");
    return status == EXPAR_OK ? heap_reserve(self) : status;
}

static bool meets_all(const device_heap *self, const heap_card *card)
{
    bool meets = card->prefers_mapped && self->atomics_by != KERNEL_ATOMICS_OWNER;
    for (int32_t r = 0; r < self->sym->size; r++)
        meets = meets && (heap_is_own(self, r) || (self->reaches[r] && self->atomics[r]));
    return meets;
}

/* Returns whether this rank's host changes words as kernels do, so that the two are atomic with each other. */
static bool host_meets_kernels(device_heap *self)
{
    if (changer_create(self->device, &self->changer) == EXPAR_OK) return true;
    LOG(LOG_WARN, "atomics of kernels on device memory: the host has no kernel for its own, so %s: %s",
        self->atomics_by == KERNEL_ATOMICS_NODE ? "it rejects them" : "owners do all atomics", expar_last_error());
    return false;
}

/* Two rounds: the first exchanges each rank's GPU; the second agrees that all reach all, and exchanges addresses. */
static expar_status heap_meet(device_heap *self, int32_t index, heap_card *cards)
{
    heap_card card = {.unit_bytes = CHUNK_UNIT_MIN};
    heap_word word = {.mine = &card, .all = cards, .mine_bytes = sizeof card};
    expar_status status = heap_agree(self, create, &word, open_own(self, index, &card));
    if (status != EXPAR_OK) return status;
    status = find_atomics(self, cards);
    if (status == EXPAR_OK) status = find_devices(self, cards);
    if (status == EXPAR_OK) status = heap_open_range(self);
    card.base = self->bases[self->sym->rank];
    card.meets_all = meets_all(self, &card);
    if (self->for_node && status == EXPAR_OK && (card.meets_all || self->atomics_by == KERNEL_ATOMICS_NODE))
        card.meets_all = host_meets_kernels(self) && card.meets_all;
    status = heap_agree(self, create, &word, status);
    for (int32_t r = 0; r < self->sym->size && status == EXPAR_OK && self->sym->by_threads; r++)
        self->bases[r] = self->reaches[r] ? cards[r].base : 0;
    self->kernels_meet = status == EXPAR_OK;
    for (int32_t r = 0; r < self->sym->size; r++)
        self->kernels_meet = self->kernels_meet && cards[r].meets_all;
    if (self->kernels_meet || self->atomics_by == KERNEL_ATOMICS_NODE) return status;
    changer_destroy(self->changer);
    self->changer = NULL;
    return status;
}

static device_heap *heap_new(sym *symmetric, bool for_node)
{
    const size_t size = (size_t)symmetric->size;
    device_heap *self = calloc(1, sizeof *self);
    if (!self) return NULL;
    self->sym = symmetric;
    self->for_node = for_node;
    self->unit_bytes = CHUNK_UNIT_MIN;
    self->first_bytes = for_node ? align_up(2 * KINDS_SYNC_ROWS * size * sizeof(uint64_t), FIRST_UNIT) : FIRST_UNIT;
    self->reaches = calloc(size, sizeof *self->reaches);
    self->atomics = calloc(size, sizeof *self->atomics);
    self->bases = calloc(size, sizeof *self->bases);
    self->quiet = calloc(size, sizeof *self->quiet);
    self->grown = calloc(size, sizeof *self->grown);
    self->devices = calloc(size + 1, sizeof *self->devices);
    if (self->bases && self->quiet && self->grown && self->devices && self->reaches && self->atomics) return self;
    device_heap_destroy(self, true);
    return NULL;
}

static expar_status heap_create(sym *symmetric, int32_t index, bool for_node, device_heap **out)
{
    device_heap *self = heap_new(symmetric, for_node);
    heap_card *cards = calloc((size_t)symmetric->size, sizeof *cards);
    expar_status status = self && cards ? heap_meet(self, index, cards)
                                        : sym_out_of_step(symmetric, create, error_set(EXPAR_ERR_MEMORY, "no memory"));
    free(cards);
    if (status != EXPAR_OK) {
        device_heap_destroy(self, true);
        return status;
    }
    *out = self;
    return EXPAR_OK;
}

expar_status device_heap_create(sym *symmetric, int32_t index, device_heap **out)
{
    return heap_create(symmetric, index, false, out);
}

expar_status device_heap_create_for_node(sym *symmetric, int32_t index, device_heap **out)
{
    return heap_create(symmetric, index, true, out);
}

void device_heap_destroy(device_heap *self, bool quiet)
{
    if (!self) return;
    heap_release(self, quiet);
    changer_destroy(self->changer);
    cuda_device_close(self->device);
    mem_arena_destroy(self->arena);
    heap_registered_free(self);
    free(self->chunks.bytes);
    for (int32_t r = 0; r < self->sym->size && self->grown; r++)
        free(self->grown[r].bytes);
    free(self->grown);
    free(self->bases);
    free(self->quiet);
    free(self->devices);
    free(self->atomics);
    free(self->reaches);
    free(self);
}

expar_status heap_first_clear(const device_heap *self, cu_address base)
{
    return self->for_node ? mem_device_clear(self->device, base, self->first_bytes) : EXPAR_OK;
}

/* ---- taking and giving ------------------------------------------------------------------------------------------- */

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
    heap_word request = {.bytes = bytes, .alignment = alignment, .offset = BOOT_UNKNOWN};
    expar_status own = EXPAR_OK;
    if (!arena_take(self, bytes, alignment, &request.offset))
        own = error_set(EXPAR_ERR_MEMORY, "%llu bytes are more than GPU %d (%s) has", (unsigned long long)bytes,
                        self->device->index, self->device->name);
    bool taken = own == EXPAR_OK, fits = !taken || request.offset + bytes <= heap_mapped(self);
    expar_status status =
        fits ? heap_agree(self, what, &request, own) : heap_grow(self, what, request.offset + bytes, &request);
    if (status == EXPAR_OK)
        *offset = request.offset;
    else if (taken)
        arena_give(self, request.offset);
    return status;
}

expar_status device_heap_give(device_heap *self, const char *what, uint64_t offset, bool *quiet)
{
    const bool own = !quiet || *quiet;
    const heap_word word = {.offset = offset, .mine = &own, .all = self->quiet, .mine_bytes = sizeof own};
    expar_status status = heap_agree(self, what, &word, EXPAR_OK);
    if (quiet) *quiet = status == EXPAR_OK;
    if (status != EXPAR_OK) return status;
    for (int32_t r = 0; r < self->sym->size && quiet; r++)
        *quiet = *quiet && self->quiet[r];
    /* Kernels of some rank may still be using the memory. */
    if (quiet && !*quiet) return EXPAR_OK;
    /* The arenas are alike, so this fails on all ranks or on none. */
    if (!arena_give(self, offset))
        return error_set(EXPAR_ERR_ADDRESS, "%s: no block starts at offset %llu of the device heap", what,
                         (unsigned long long)offset);
    return EXPAR_OK;
}

expar_status device_heap_reject(device_heap *self, const char *what, expar_status reason)
{
    const bool quiet = false;
    const heap_word word = {.bytes = BOOT_UNKNOWN,
                            .alignment = BOOT_UNKNOWN,
                            .offset = BOOT_UNKNOWN,
                            .mine = &quiet,
                            .all = self->quiet,
                            .mine_bytes = sizeof quiet};
    return heap_agree(self, what, &word, reason);
}

/* ---- facts ------------------------------------------------------------------------------------------------------- */

const cuda_device *device_heap_device(const device_heap *self)
{
    return self->device;
}

const int32_t *device_heap_devices(const device_heap *self, int32_t *count)
{
    *count = self->num_devices;
    return self->devices;
}

const cu_address *device_heap_bases(const device_heap *self)
{
    return self->bases;
}

cu_address device_heap_at(const device_heap *self, uint64_t offset)
{
    return self->bases[self->sym->rank] + offset;
}

/* Returns whether the range lies in the first `bytes` of a part. */
static bool lies_in(uint64_t at, uint64_t bytes, uint64_t begin, uint64_t part_bytes)
{
    return at >= begin && at - begin < part_bytes && bytes <= part_bytes - (at - begin);
}

bool device_heap_offset(const device_heap *self, cu_address address, uint64_t bytes, uint64_t *offset)
{
    const uint64_t mapped = heap_mapped(self);
    const cu_address base = self->bases[self->sym->rank];
    if (!base || address < base) return false;
    const uint64_t at = address - base;
    if (!lies_in(at, bytes, 0, mapped) &&
        !(device_heap_grows(self) && lies_in(at, bytes, self->range_bytes, device_heap_own_bytes(self))))
        return false;
    *offset = at;
    return true;
}

static bool finds_registered(const device_heap *self, uint64_t at, uint64_t bytes)
{
    uint64_t begin, end;
    for (int32_t i = 0; i < DEVICE_HEAP_MOST_REGISTERED; i++)
        if (device_heap_registered(self, i, &begin, &end) && lies_in(at, bytes, begin, end - begin)) return true;
    return false;
}

bool device_heap_finds(const device_heap *self, cu_address address, uint64_t bytes, uint64_t *offset)
{
    if (device_heap_offset(self, address, bytes, offset))
        return *offset >= self->first_bytes && *offset < self->range_bytes;
    *offset = address - self->bases[self->sym->rank];
    return finds_registered(self, *offset, bytes);
}

bool device_heap_serves(const device_heap *self, uint64_t offset, uint64_t bytes)
{
    uint64_t found;
    const uint64_t flag_bytes = KINDS_SYNC_ROWS * (uint64_t)self->sym->size * sizeof(uint64_t);
    if (!heap_mapped(self)) return false;
    return (self->for_node && lies_in(offset, bytes, 0, flag_bytes)) ||
           device_heap_finds(self, device_heap_at(self, offset), bytes, &found);
}

void device_heap_users_range(const device_heap *self, uint64_t *begin, uint64_t *end)
{
    *begin = self->first_bytes;
    *end = heap_mapped(self);
}

bool device_heap_has_atomics(const device_heap *self, int32_t pe)
{
    return self->atomics[pe];
}

kernel_atomics device_heap_atomics_by(const device_heap *self)
{
    return self->atomics_by;
}

changer *device_heap_changer(const device_heap *self)
{
    return self->changer;
}

bool device_heap_kernels_meet(const device_heap *self)
{
    return self->kernels_meet;
}

bool device_heap_maps(const device_heap *self, cu_address address)
{
    const uint64_t mapped = heap_mapped(self);
    for (int32_t r = 0; r < self->sym->size && mapped; r++)
        if (self->bases[r] && lies_in(address, 0, self->bases[r], mapped)) return true;
    return false;
}

bool device_heap_block_bytes(device_heap *self, uint64_t offset, uint64_t *bytes)
{
    pthread_mutex_lock(&self->sym->lock);
    const bool found = mem_arena_block_bytes(self->arena, offset, bytes);
    pthread_mutex_unlock(&self->sym->lock);
    return found;
}

void device_heap_get_facts(device_heap *self, device_heap_facts *out)
{
    *out = (device_heap_facts){.first_bytes = self->first_bytes, .unit_bytes = self->unit_bytes};
    pthread_mutex_lock(&self->sym->lock);
    mem_arena_get_stats(self->arena, &out->arena);
    pthread_mutex_unlock(&self->sym->lock);
    out->mapped_bytes = heap_mapped(self);
    out->chunks = self->kind == HEAP_WHOLE ? out->mapped_bytes > 0 : self->chunks.count;
}

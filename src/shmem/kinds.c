/* SPDX-License-Identifier: Apache-2.0 */
/* The heaps of the kinds of memory, by address and by kind. */
#include "shmem/kinds.h"
#include "shmem/copies/copies.h"
#include "shmem/pinned_heap.h"
#include <expar/memory.h>

#include <string.h>

static device_heap *device_of(const sym *self)
{
    return atomic_load_explicit(&self->device, memory_order_acquire);
}

static pinned_heap *pinned_of(const sym *self)
{
    return atomic_load_explicit(&self->pinned, memory_order_acquire);
}

const cuda_device *kinds_gpu(const sym *self, transport_memory memory)
{
    if (memory == TRANSPORT_DEVICE && device_of(self)) return device_heap_device(device_of(self));
    return memory == TRANSPORT_PINNED && pinned_of(self) ? pinned_heap_device(pinned_of(self)) : NULL;
}

int32_t kinds_device(const sym *self, transport_memory memory)
{
    const cuda_device *gpu = kinds_gpu(self, memory);
    return gpu ? gpu->index : -1;
}

/* ---- agreement --------------------------------------------------------------------------------------------------- */

/* The first allocation on a GPU chooses it, until the group ends. */
static expar_status request_check_device(const sym *self, const kinds_request *request)
{
    cuda_device facts;
    const transport_memory first = device_of(self) ? TRANSPORT_DEVICE : TRANSPORT_PINNED;
    const int32_t chosen = kinds_device(self, first);
    if (request->memory == TRANSPORT_HOST || (chosen >= 0 && chosen == request->device)) return EXPAR_OK;
    if (chosen < 0) return cuda_device_read(request->device, &facts);
    return error_set(EXPAR_ERR_ARGUMENT, "GPU %d, expected %d, which this rank's first %s memory was allocated for",
                     request->device, chosen, transport_memory_name(first));
}

expar_status kinds_agree(sym *self, const char *what, const kinds_request *request, expar_status own)
{
    const bool known = own == EXPAR_OK;
    const boot_field fields[] = {{.name = "options.kind", .text = known ? transport_memory_name(request->memory) : ""},
                                 {.name = "options.bytes", .value = known ? request->bytes : BOOT_UNKNOWN},
                                 {.name = "options.alignment", .value = known ? request->alignment : BOOT_UNKNOWN},
                                 {.name = "options.zeroed", .value = known ? request->zeroed : BOOT_UNKNOWN}};
    const boot_matter matter = {.what = what,
                                .rejected = "rejected its arguments",
                                .common = EXPAR_ERR_UNSUPPORTED,
                                .lacks = "has no GPU for it",
                                .fields = fields,
                                .num_fields = ARRAY_LENGTH(fields)};
    if (known) {
        own = request_check_device(self, request);
        if (own != EXPAR_OK) error_prefix(own, "%s: options.device", what);
    }
    expar_status status = sym_check_come(self, what);
    return status == EXPAR_OK ? sym_agree(self, &matter, own) : status;
}

bool kinds_exist(const sym *self)
{
    return device_of(self) || pinned_of(self);
}

expar_status kinds_agree_on_block(sym *self, const char *what, const kinds_place *place, expar_status own)
{
    const bool known = own == EXPAR_OK;
    const char *kind = place ? transport_memory_name(place->memory) : "no memory";
    const boot_field fields[] = {
        {.name = "the block's memory", .text = known ? kind : ""},
        {.name = "the block's offset there", .value = known ? (place ? place->offset : 0) : BOOT_UNKNOWN}};
    const boot_matter matter = {
        .what = what, .rejected = "rejected its arguments", .fields = fields, .num_fields = ARRAY_LENGTH(fields)};
    expar_status status = sym_check_come(self, what);
    return status == EXPAR_OK ? sym_agree(self, &matter, own) : status;
}

/* ---- taking and giving ------------------------------------------------------------------------------------------- */

/* Collective, as the three that follow. Each makes what is not there yet. */
static expar_status need_copier(sym *self, const char *what, int32_t index)
{
    mem_copier *made = NULL;
    if (kinds_copier(self)) return EXPAR_OK;
    const boot_matter matter = {.what = what,
                                .rejected = "could not prepare copies on its GPU",
                                .common = EXPAR_ERR_MEMORY,
                                .lacks = "has no memory for it"};
    expar_status status = sym_agree(self, &matter, mem_copier_create(index, self->registry, &made));
    if (status == EXPAR_OK)
        atomic_store_explicit(&self->copier, made, memory_order_release);
    else
        mem_copier_destroy(made);
    return status;
}

static expar_status need_pinned(sym *self, const char *what, int32_t index, pinned_heap **out)
{
    *out = pinned_of(self);
    if (*out) return EXPAR_OK;
    expar_status status = need_copier(self, what, index);
    if (status == EXPAR_OK) status = pinned_heap_create(self, index, out);
    if (status == EXPAR_OK) atomic_store_explicit(&self->pinned, *out, memory_order_release);
    return status;
}

static expar_status need_device_heap(sym *self, int32_t index, device_heap **out)
{
    *out = device_of(self);
    if (*out) return EXPAR_OK;
    expar_status status = device_heap_create_for_node(self, index, out);
    if (status == EXPAR_OK) atomic_store_explicit(&self->device, *out, memory_order_release);
    return status;
}

static expar_status need_device(sym *self, const char *what, int32_t index, device_heap **out)
{
    pinned_heap *pinned;
    expar_status status = need_device_heap(self, index, out);
    if (status != EXPAR_OK || atomic_load_explicit(&self->copies, memory_order_acquire)) return status;
    status = need_pinned(self, what, index, &pinned);
    return status == EXPAR_OK ? copies_create(self, what, *out, pinned, kinds_copier(self)) : status;
}

static expar_status kind_take_device(sym *self, const char *what, const kinds_request *request, uint64_t *offset)
{
    device_heap *heap;
    expar_status status = need_device(self, what, request->device, &heap);
    if (status != EXPAR_OK) return error_prefix(status, "%s", what);
    return device_heap_take(heap, what, request->bytes, request->alignment, offset);
}

static expar_status kind_take_pinned(sym *self, const char *what, const kinds_request *request, uint64_t *offset)
{
    pinned_heap *heap;
    expar_status status = need_pinned(self, what, request->device, &heap);
    if (status != EXPAR_OK) return error_prefix(status, "%s", what);
    return pinned_heap_take(heap, what, request->bytes, request->alignment, offset);
}

static expar_status kind_take(sym *self, const char *what, const kinds_request *request, uint64_t *offset)
{
    switch (request->memory) {
    case TRANSPORT_DEVICE:
        return kind_take_device(self, what, request, offset);
    case TRANSPORT_PINNED:
        return kind_take_pinned(self, what, request, offset);
    case TRANSPORT_HOST:
        break;
    }
    return sym_take(self, what, request->bytes, request->alignment, offset);
}

/* Zeros this rank's copy. By CUDA IPC the driver aligns memory as it likes. */
static expar_status prepare(sym *self, const kinds_request *request, void *block)
{
    if ((uintptr_t)block % request->alignment != 0)
        return error_set(EXPAR_ERR_UNSUPPORTED, "by CUDA IPC no memory is aligned to %llu bytes",
                         (unsigned long long)request->alignment);
    if (!request->zeroed) return EXPAR_OK;
    if (request->memory == TRANSPORT_DEVICE)
        return mem_device_clear(device_heap_device(device_of(self)), (cu_address)(uintptr_t)block, request->bytes);
    memset(block, 0, request->bytes);
    return EXPAR_OK;
}

/* After an error whose text is to stay. All ranks have the same one. */
static void take_back(sym *self, const char *what, const kinds_place *place, expar_status status)
{
    error_kept kept;
    error_keep(&kept, status);
    kinds_give(self, what, place);
    error_restore(&kept);
}

expar_status kinds_take(sym *self, const char *what, const kinds_request *request, void **out)
{
    kinds_place place = {.memory = request->memory};
    expar_status status = kind_take(self, what, request, &place.offset);
    if (status != EXPAR_OK) return status;
    void *block = kinds_at(self, &place);
    if (request->zeroed || request->alignment > KINDS_ALIGNMENT_DEVICE) {
        const boot_matter matter = {.what = what, .rejected = "could not prepare its memory"};
        status = sym_agree(self, &matter, prepare(self, request, block));
        if (status != EXPAR_OK) take_back(self, what, &place, status);
    }
    if (status == EXPAR_OK) *out = block;
    return status;
}

expar_status kinds_give(sym *self, const char *what, const kinds_place *place)
{
    if (place->memory == TRANSPORT_HOST) return sym_give(self, what, place->offset);
    const expar_status quiet = sym_quiet(self);
    if (quiet == EXPAR_ERR_INTERRUPTED) return quiet;
    if (place->memory == TRANSPORT_PINNED) return pinned_heap_give(pinned_of(self), what, place->offset, quiet);
    if (quiet != EXPAR_OK) return device_heap_reject(device_of(self), what, quiet);
    return device_heap_give(device_of(self), what, place->offset, NULL);
}

/* ---- memory of the caller's -------------------------------------------------------------------------------------- */

/* The GPU of the memory; it is not symmetric yet. */
static expar_status register_check(const sym *self, const char *what, const device_heap_memory *memory, int32_t *device)
{
    kinds_place symmetric;
    int32_t count;
    const void *address = (const void *)(uintptr_t)memory->address;
    expar_status status = cuda_device_count(&count);
    if (status != EXPAR_OK) return error_prefix(status, "%s", what);
    const cuda_place place = cuda_place_of(address);
    if (kinds_find(self, address, 1, &symmetric))
        return error_set(EXPAR_ERR_ADDRESS, "%s: address: %p is symmetric already", what, address);
    if (place.kind != CUDA_PLACE_DEVICE)
        return error_set(EXPAR_ERR_ADDRESS, "%s: address: %p is not memory of a GPU, expected memory of cuMemCreate",
                         what, address);
    *device = place.device;
    return EXPAR_OK;
}

/* Memory is of one kind, as far as its ends show. */
static expar_status own_memory_check(const sym *self, const char *what, const void *address, uint64_t bytes,
                                     bool *on_gpu)
{
    kinds_place symmetric;
    const uint8_t *last = (const uint8_t *)address + bytes - 1;
    const cuda_place first = cuda_place_of(address), end = cuda_place_of(last);
    if (kinds_find(self, address, 1, &symmetric) || kinds_find(self, last, 1, &symmetric))
        return error_set(EXPAR_ERR_ADDRESS, "%s: address: %p with %llu bytes is symmetric, and needs no registration",
                         what, address, (unsigned long long)bytes);
    if (first.kind != end.kind || first.device != end.device)
        return error_set(EXPAR_ERR_ADDRESS, "%s: address: %p with %llu bytes is memory of two kinds", what, address,
                         (unsigned long long)bytes);
    *on_gpu = first.kind != CUDA_PLACE_HOST;
    return EXPAR_OK;
}

/* Takes the registration back from the first `count` transports. Those that never had it do nothing. */
static void leave_transports(sym *self, const void *address, int32_t count)
{
    for (int32_t t = 0; t < count; t++) {
        transport *via = self->transports[t];
        if (via->ops->unregister_own) via->ops->unregister_own(via, address);
    }
}

/* All transports take the memory, or none does. */
static expar_status enter_transports(sym *self, void *address, uint64_t bytes)
{
    for (int32_t t = 0; t < self->num_transports; t++) {
        transport *via = self->transports[t];
        if (!via->ops->register_own) continue;
        expar_status status = via->ops->register_own(via, address, bytes);
        if (status == EXPAR_OK) continue;
        leave_transports(self, address, t);
        return status;
    }
    return EXPAR_OK;
}

expar_status kinds_register_own(sym *self, const char *what, void *address, uint64_t bytes)
{
    bool on_gpu;
    expar_status status = own_memory_check(self, what, address, bytes, &on_gpu);
    if (status != EXPAR_OK) return status;
    status = error_prefix(mem_registry_add(self->registry, address, bytes, on_gpu), "%s: address", what);
    if (status != EXPAR_OK || on_gpu) return status;
    status = error_prefix(enter_transports(self, address, bytes), "%s", what);
    if (status == EXPAR_OK) return status;
    error_kept kept;
    error_save(&kept);
    (void)mem_registry_remove(self->registry, address);
    error_put_back(&kept);
    return status;
}

expar_status kinds_unregister_own(sym *self, const char *what, const void *address)
{
    expar_status status = error_prefix(mem_registry_remove(self->registry, address), "%s: address", what);
    if (status == EXPAR_OK) leave_transports(self, address, self->num_transports);
    return status;
}

static expar_status agree_on_memory(sym *self, const char *what, const device_heap_memory *memory, expar_status own)
{
    const boot_field fields[] = {{.name = "bytes", .value = own == EXPAR_OK ? memory->bytes : BOOT_UNKNOWN}};
    const boot_matter matter = {.what = what,
                                .rejected = "rejected its arguments",
                                .common = EXPAR_ERR_UNSUPPORTED,
                                .lacks = "has no GPU for it",
                                .fields = fields,
                                .num_fields = ARRAY_LENGTH(fields)};
    expar_status status = sym_check_come(self, what);
    return status == EXPAR_OK ? sym_agree(self, &matter, own) : status;
}

expar_status kinds_register(sym *self, const char *what, const device_heap_memory *memory, expar_status own, void **out)
{
    device_heap *heap;
    uint64_t offset;
    kinds_request request = {.memory = TRANSPORT_DEVICE};
    if (own == EXPAR_OK) {
        own = register_check(self, what, memory, &request.device);
        if (own == EXPAR_OK) {
            own = request_check_device(self, &request);
            if (own != EXPAR_OK) error_prefix(own, "%s: address", what);
        }
    }
    expar_status status = agree_on_memory(self, what, memory, own);
    if (status != EXPAR_OK) return status;
    status = need_device(self, what, request.device, &heap);
    if (status != EXPAR_OK) return error_prefix(status, "%s", what);
    status = device_heap_register(heap, what, memory, &offset);
    if (status == EXPAR_OK) *out = (void *)(uintptr_t)device_heap_at(heap, offset);
    return status;
}

expar_status kinds_unregister(sym *self, const char *what, const kinds_place *place)
{
    const expar_status quiet = sym_quiet(self);
    if (quiet == EXPAR_ERR_INTERRUPTED) return quiet;
    return device_heap_unregister(device_of(self), what, place->offset, quiet);
}

bool kinds_registered_range(const sym *self, int32_t number, kinds_range *out)
{
    const device_heap *device = device_of(self);
    return device && device_heap_registered(device, number, &out->begin, &out->end);
}

bool kinds_find_registered(const sym *self, const kinds_place *place, kinds_range *out)
{
    if (place->memory != TRANSPORT_DEVICE) return false;
    for (int32_t i = 0; i < KINDS_MOST_REGISTERED; i++)
        if (kinds_registered_range(self, i, out) && place->offset >= out->begin && place->offset < out->end)
            return true;
    return false;
}

/* ---- addresses --------------------------------------------------------------------------------------------------- */

static bool find_elsewhere(const sym *self, const void *address, uint64_t bytes, kinds_place *out)
{
    const device_heap *device = device_of(self);
    const pinned_heap *pinned = pinned_of(self);
    if (pinned && pinned_heap_offset(pinned, address, bytes, &out->offset))
        out->memory = TRANSPORT_PINNED;
    else if (device && device_heap_finds(device, (cu_address)(uintptr_t)address, bytes, &out->offset))
        out->memory = TRANSPORT_DEVICE;
    else
        return false;
    return true;
}

bool kinds_find(const sym *self, const void *address, uint64_t bytes, kinds_place *out)
{
    kinds_place place = {.memory = TRANSPORT_HOST};
    if (!sym_offset(self, address, bytes, &place.offset) && !find_elsewhere(self, address, bytes, &place)) return false;
    *out = place;
    return true;
}

/* Addresses of the heaps are known without the driver. */
bool kinds_points_to_device(const sym *self, const void *address)
{
    uint64_t offset;
    const device_heap *device = device_of(self);
    const pinned_heap *pinned = pinned_of(self);
    if (device && device_heap_maps(device, (cu_address)(uintptr_t)address)) return true;
    if (sym_heap_offset(self, address, 1, &offset)) return false;
    if (pinned && pinned_heap_offset(pinned, address, 1, &offset)) return false;
    return cuda_place_of(address).kind != CUDA_PLACE_HOST;
}

bool kinds_serves_device(const sym *self, uint64_t offset, uint64_t bytes)
{
    const device_heap *device = device_of(self);
    return device && device_heap_serves(device, offset, bytes);
}

bool kinds_knows(const sym *self, const void *address, uint64_t bytes, bool *on_device)
{
    kinds_place place;
    if (!kinds_find(self, address, bytes, &place)) return mem_registry_holds(self->registry, address, bytes, on_device);
    *on_device = place.memory == TRANSPORT_DEVICE;
    return true;
}

mem_side kinds_side(const sym *self, const void *address, uint64_t bytes, bool device)
{
    uint64_t offset;
    const pinned_heap *pinned = pinned_of(self);
    mem_side side = {.at = (void *)(uintptr_t)address, .kind = device ? MEM_DEVICE : MEM_PAGEABLE};
    if (!device && pinned && pinned_heap_offset(pinned, address, bytes, &offset)) side.kind = MEM_PINNED;
    return side;
}

bool kinds_block_bytes(sym *self, const kinds_place *place, uint64_t *bytes)
{
    if (place->memory == TRANSPORT_DEVICE) return device_heap_block_bytes(device_of(self), place->offset, bytes);
    if (place->memory == TRANSPORT_PINNED) return pinned_heap_block_bytes(pinned_of(self), place->offset, bytes);
    return sym_block_bytes(self, place->offset, bytes);
}

void *kinds_peer_at(const sym *self, const kinds_place *place, int32_t pe)
{
    uint8_t *base = self->peers[pe];
    if (place->memory == TRANSPORT_DEVICE) base = (uint8_t *)(uintptr_t)device_heap_bases(device_of(self))[pe];
    if (place->memory == TRANSPORT_PINNED) base = pinned_heap_base(pinned_of(self), pe);
    return base ? base + place->offset : NULL;
}

void *kinds_at(const sym *self, const kinds_place *place)
{
    return kinds_peer_at(self, place, self->rank);
}

void *kinds_peer_on_device(const sym *self, const kinds_place *place, int32_t pe)
{
    return place->memory == TRANSPORT_HOST ? NULL : kinds_peer_at(self, place, pe);
}

bool kinds_users_range(const sym *self, transport_memory memory, kinds_range *out)
{
    *out = (kinds_range){.begin = SYM_CONTROL_BYTES};
    if (memory == TRANSPORT_HOST) {
        out->end = atomic_load_explicit(&self->grown_bytes, memory_order_acquire);
    } else if (memory == TRANSPORT_PINNED && pinned_of(self)) {
        out->begin = SYM_PINNED_BEGIN;
        out->end = atomic_load_explicit(&self->pinned_bytes, memory_order_acquire);
    } else if (memory == TRANSPORT_DEVICE && device_of(self)) {
        device_heap_users_range(device_of(self), &out->begin, &out->end);
    }
    return out->end > out->begin;
}

bool kinds_kernels_meet(const sym *self)
{
    const device_heap *device = device_of(self);
    return device && device_heap_kernels_meet(device);
}

kernel_atomics kinds_atomics_by(const sym *self)
{
    const device_heap *device = device_of(self);
    return device ? device_heap_atomics_by(device) : KERNEL_ATOMICS_AUTO;
}

bool kinds_has_gpu_atomics(const sym *self, transport_memory memory, int32_t pe)
{
    const device_heap *device = device_of(self);
    if (!device || memory == TRANSPORT_HOST) return false;
    if (memory == TRANSPORT_PINNED) return device_heap_device(device)->host_atomics;
    return device_heap_has_atomics(device, pe);
}

/* Loads and stores carry pinned memory where they carry data of the host's calls. */
void *kinds_peer_on_stream(const sym *self, const kinds_place *place, int32_t pe)
{
    const transport_ways *ways = sym_ways(self, place->memory, pe);
    if (place->memory == TRANSPORT_HOST) return NULL;
    if (place->memory == TRANSPORT_DEVICE && !copies_reaches(self, pe)) return NULL;
    if (place->memory == TRANSPORT_PINNED && pe != self->rank && (!ways->map || ways->map != ways->data)) return NULL;
    return kinds_peer_at(self, place, pe);
}

/* Ranks that are threads share what the owner has registered. */
void *kinds_peer_word_on_stream(const sym *self, const kinds_place *place, int32_t pe)
{
    const pinned_heap *pinned = pinned_of(self);
    if (place->memory == TRANSPORT_PINNED && pinned_heap_registrar(pinned, pe) != pinned_heap_device(pinned)->index)
        return NULL;
    return kinds_peer_on_stream(self, place, pe);
}

/* A driver may fail; then no rank goes on. */
expar_status kinds_copy(sym *self, const char *what, const kinds_place *dest, const kinds_place *source, uint64_t bytes)
{
    void *to = kinds_at(self, dest), *from = kinds_at(self, source);
    if (dest->memory != TRANSPORT_DEVICE) {
        memcpy(to, from, bytes);
        return EXPAR_OK;
    }
    const boot_matter matter = {.what = what, .rejected = "could not copy its block"};
    expar_status own = mem_device_copy(device_heap_device(device_of(self)), (cu_address)(uintptr_t)to,
                                       (cu_address)(uintptr_t)from, bytes);
    return sym_agree(self, &matter, own);
}

/* ---- statistics -------------------------------------------------------------------------------------------------- */

/* The first block is the library's, and so is that of messages in pinned memory. */
static void stats_of(const device_heap_facts *facts, uint64_t message_bytes, expar_heap_stats *out)
{
    const mem_arena_stats *arena = &facts->arena;
    const uint64_t own_bytes = facts->first_bytes + message_bytes, own_blocks = message_bytes > 0 ? 2 : 1;
    *out = (expar_heap_stats){.total_bytes = arena->total_bytes,
                              .used_bytes = arena->used_bytes - own_bytes,
                              .high_water_bytes = arena->high_water_bytes - own_bytes,
                              .largest_free_bytes = arena->largest_free_bytes,
                              .blocks = arena->blocks - own_blocks,
                              .grown_bytes = facts->mapped_bytes,
                              .memory_bytes = facts->mapped_bytes,
                              .holes = arena->holes,
                              .hole_bytes = arena->hole_bytes,
                              .largest_hole_bytes = arena->largest_hole_bytes,
                              .page_bytes = facts->unit_bytes,
                              .chunks = facts->chunks};
}

static void add_registered(const sym *self, transport_memory memory, expar_heap_stats *out)
{
    kinds_range range;
    const mem_registry_stats own = mem_registry_get_stats(self->registry);
    if (memory == TRANSPORT_HOST) {
        out->registered_ranges = own.host_ranges;
        out->registered_bytes = own.host_bytes;
    }
    if (memory != TRANSPORT_DEVICE) return;
    out->registered_ranges = own.gpu_ranges;
    out->registered_bytes = own.gpu_bytes;
    for (int32_t i = 0; i < KINDS_MOST_REGISTERED; i++) {
        if (!kinds_registered_range(self, i, &range)) continue;
        out->registered_ranges++;
        out->registered_bytes += range.end - range.begin;
    }
}

static void heap_get_stats(sym *self, transport_memory memory, expar_heap_stats *out)
{
    device_heap_facts facts;
    *out = (expar_heap_stats){0};
    if (memory == TRANSPORT_HOST) {
        sym_heap_stats(self, out);
        return;
    }
    if (kinds_device(self, memory) < 0) return;
    if (memory == TRANSPORT_DEVICE)
        device_heap_get_facts(device_of(self), &facts);
    else
        pinned_heap_get_facts(pinned_of(self), &facts);
    stats_of(&facts, memory == TRANSPORT_PINNED ? copies_message_bytes(self) : 0, out);
}

void kinds_get_stats(sym *self, transport_memory memory, expar_heap_stats *out)
{
    heap_get_stats(self, memory, out);
    add_registered(self, memory, out);
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

void kinds_end(sym *self, bool together)
{
    device_heap *device = device_of(self);
    if (!device && !pinned_of(self) && !kinds_copier(self)) return;
    if (together) {
        const boot_matter matter = {.what = "the end of the group", .rejected = "does not take part"};
        if (copies_quiet(self) != EXPAR_OK) LOG(LOG_WARN, "the end of the group: %s", expar_last_error());
        together = sym_agree(self, &matter, EXPAR_OK) == EXPAR_OK;
    }
    copies_destroy(self);
    mem_copier_destroy(kinds_copier(self));
    atomic_store_explicit(&self->copier, NULL, memory_order_release);
    atomic_store_explicit(&self->device, NULL, memory_order_release);
    device_heap_destroy(device, together);
    pinned_heap_forget_peers(pinned_of(self));
}

void kinds_free(sym *self)
{
    pinned_heap_destroy(pinned_of(self));
    atomic_store_explicit(&self->pinned, NULL, memory_order_relaxed);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls of expar/memory.h. */
#include "pgas/memory.h"
#include "group/group.h"
#include "pgas/device/handles.h"
#include "pgas/stream/stream.h"
#include "shmem/kinds.h"

#include <string.h>

#define DEFAULT_ALIGNMENT 128u
#define LARGEST_ALIGNMENT ((size_t)1 << 30)

/* The least alignment of blocks. */
static uint64_t least_alignment(transport_memory memory)
{
    return memory == TRANSPORT_DEVICE ? KINDS_ALIGNMENT_DEVICE : DEFAULT_ALIGNMENT;
}

/* Reasons of this rank alone not to take part with a size; the others are told. */
static expar_status memory_check(const char *what, size_t alignment, void *const *out)
{
    if (!out) return error_set(EXPAR_ERR_NULL, "%s: out is NULL", what);
    if (alignment == 0 || (alignment & (alignment - 1)) != 0 || alignment > LARGEST_ALIGNMENT)
        return error_set(EXPAR_ERR_ARGUMENT, "%s: alignment %zu, expected a power of two up to %zu", what, alignment,
                         LARGEST_ALIGNMENT);
    return EXPAR_OK;
}

static expar_status take_block(expar_group *group, const char *what, size_t alignment, size_t bytes, void **out)
{
    expar_status status = memory_check(what, alignment, out);
    if (status != EXPAR_OK) return sym_reject(group->sym, what, status);
    uint64_t offset;
    size_t least = alignment < DEFAULT_ALIGNMENT ? DEFAULT_ALIGNMENT : alignment;
    status = sym_take(group->sym, what, bytes, least, &offset);
    if (status != EXPAR_OK) return status;
    *out = offset == 0 ? NULL : (uint8_t *)group->sym->heap.base + offset;
    return EXPAR_OK;
}

expar_status memory_enter(expar_group *group, const char *what)
{
    if (!group) return error_set(EXPAR_ERR_NULL, "%s: group is NULL", what);
    return group_enter(group, what) ? EXPAR_OK : EXPAR_ERR_STATE;
}

expar_status memory_leave(expar_group *group, expar_status status)
{
    if (status == EXPAR_OK) handles_renew(group);
    group_leave(group);
    return status;
}

expar_status expar_malloc(expar_group *group, size_t bytes, void **out)
{
    static const char what[] = "expar_malloc";
    const expar_status status = memory_enter(group, what);
    if (status != EXPAR_OK) return group_ended(group, status);
    return group_ended(group, memory_leave(group, take_block(group, what, DEFAULT_ALIGNMENT, bytes, out)));
}

expar_status expar_align(expar_group *group, size_t alignment, size_t bytes, void **out)
{
    static const char what[] = "expar_align";
    const expar_status status = memory_enter(group, what);
    if (status != EXPAR_OK) return group_ended(group, status);
    return group_ended(group, memory_leave(group, take_block(group, what, alignment, bytes, out)));
}

static expar_status take_zeros(expar_group *group, const char *what, size_t count, size_t size, void **out)
{
    size_t bytes;
    void *block = NULL;
    if (size_mul_overflows(count, size, &bytes))
        return sym_reject(group->sym, what,
                          error_set(EXPAR_ERR_ARGUMENT,
                                    "%s: count %zu, expected at most %zu: elements of %zu bytes overflow", what, count,
                                    SIZE_MAX / size, size));
    expar_status status = take_block(group, what, DEFAULT_ALIGNMENT, bytes, out ? &block : NULL);
    if (status != EXPAR_OK) return status;
    if (block) {
        sym_clear(group->sym, (uint64_t)((uint8_t *)block - (uint8_t *)group->sym->heap.base), bytes);
        /* No peer writes before this rank's zeros. */
        status = sym_agree(group->sym, &(boot_matter){.what = what, .rejected = "has no zeros"}, EXPAR_OK);
    }
    if (status != EXPAR_OK) return error_prefix(status, "%s", what);
    *out = block;
    return EXPAR_OK;
}

expar_status expar_calloc(expar_group *group, size_t count, size_t size, void **out)
{
    static const char what[] = "expar_calloc";
    const expar_status status = memory_enter(group, what);
    if (status != EXPAR_OK) return group_ended(group, status);
    return group_ended(group, memory_leave(group, take_zeros(group, what, count, size, out)));
}

expar_status memory_agree_on_block(sym *self, const char *what, const kinds_place *place, expar_status own)
{
    if (kinds_exist(self)) return kinds_agree_on_block(self, what, place, own);
    return own == EXPAR_OK ? EXPAR_OK : sym_reject(self, what, own);
}

expar_status block_settle(const expar_group *group, const char *what)
{
    const expar_status status = handles_quiet(what, group);
    return status == EXPAR_OK ? sym_quiet(group->sym) : status;
}

static expar_status give_block(expar_group *group, const char *what, void *block)
{
    kinds_place place = {.memory = TRANSPORT_HOST};
    kinds_range range;
    expar_status own = EXPAR_OK;
    if (block && !kinds_find(group->sym, block, 1, &place))
        own = error_set(EXPAR_ERR_ADDRESS, "%s: %p is not in the symmetric heap", what, block);
    else if (block && kinds_find_registered(group->sym, &place, &range))
        own = error_set(EXPAR_ERR_ADDRESS, "%s: %p is registered memory, which expar_unregister_symmetric ends", what,
                        block);
    else
        own = block_settle(group, what);
    if (own == EXPAR_ERR_INTERRUPTED) return own; /* the call can be repeated */
    const expar_status status = memory_agree_on_block(group->sym, what, block ? &place : NULL, own);
    return status == EXPAR_OK ? kinds_give(group->sym, what, &place) : status;
}

expar_status expar_free(expar_group *group, void *block)
{
    static const char what[] = "expar_free";
    const expar_status status = memory_enter(group, what);
    if (status != EXPAR_OK) return group_ended(group, status);
    return group_ended(group, memory_leave(group, give_block(group, what, block)));
}

/* The bytes of a block that this rank holds; a reason to refuse when it is none. */
static expar_status find_block(sym *self, const char *what, const void *block, kinds_place *place, uint64_t *bytes)
{
    if (kinds_find(self, block, 1, place) && kinds_block_bytes(self, place, bytes)) return EXPAR_OK;
    return error_set(EXPAR_ERR_ADDRESS, "%s: no block of the symmetric heap starts at %p", what, block);
}

/* After an error whose text is to stay. */
static void block_give_back(sym *self, const char *what, const kinds_place *place)
{
    error_kept kept;
    error_keep(&kept, EXPAR_ERR_MISMATCH);
    kinds_give(self, what, place);
    error_restore(&kept);
}

/* All ranks have completed their operations. Taking is collective, so that whatever peers put into the old block has
   come before it is copied; giving is, so that nobody leaves before all have copied. Blocks that differ between the
   ranks fail the giving alike on all. */
static expar_status move_block(expar_group *group, const char *what, const kinds_place *old, uint64_t old_bytes,
                               uint64_t bytes, void **out)
{
    void *block;
    sym *const self = group->sym;
    const kinds_request request = {.memory = old->memory,
                                   .device = kinds_device(self, old->memory),
                                   .bytes = bytes,
                                   .alignment = least_alignment(old->memory)};
    expar_status status = kinds_take(self, what, &request, &block);
    if (status != EXPAR_OK) return status;
    kinds_place place;
    kinds_find(self, block, 1, &place);
    status = kinds_copy(self, what, &place, old, old_bytes < bytes ? old_bytes : bytes);
    if (status == EXPAR_OK) status = kinds_give(self, what, old);
    if (status == EXPAR_OK)
        *out = block;
    else if (status == EXPAR_ERR_MISMATCH)
        block_give_back(self, what, &place);
    return status;
}

static expar_status resize_block(expar_group *group, const char *what, void *block, size_t bytes, void **out)
{
    kinds_place place = {.memory = TRANSPORT_HOST};
    uint64_t old_bytes;
    if (!block && !kinds_exist(group->sym)) return take_block(group, what, DEFAULT_ALIGNMENT, bytes, out);
    expar_status status = out ? EXPAR_OK : error_set(EXPAR_ERR_NULL, "%s: out is NULL", what);
    if (status == EXPAR_OK && block) status = find_block(group->sym, what, block, &place, &old_bytes);
    if (status == EXPAR_OK && block) status = block_settle(group, what);
    if (status == EXPAR_ERR_INTERRUPTED) return status; /* the call can be repeated */
    status = memory_agree_on_block(group->sym, what, block ? &place : NULL, status);
    if (status != EXPAR_OK) return status;
    if (!block) return take_block(group, what, DEFAULT_ALIGNMENT, bytes, out);
    if (bytes > 0) return move_block(group, what, &place, old_bytes, bytes, out);
    status = kinds_give(group->sym, what, &place);
    if (status == EXPAR_OK) *out = NULL;
    return status;
}

expar_status expar_realloc(expar_group *group, void *block, size_t bytes, void **out)
{
    static const char what[] = "expar_realloc";
    const expar_status status = memory_enter(group, what);
    if (status != EXPAR_OK) return group_ended(group, status);
    return group_ended(group, memory_leave(group, resize_block(group, what, block, bytes, out)));
}

/* ---- kinds of memory --------------------------------------------------------------------------------------------- */

static const transport_memory memories[] = {[EXPAR_MEMORY_HOST] = TRANSPORT_HOST,
                                            [EXPAR_MEMORY_DEVICE] = TRANSPORT_DEVICE,
                                            [EXPAR_MEMORY_PINNED] = TRANSPORT_PINNED};

expar_status memory_find_kind(const char *what, const char *name, int kind, transport_memory *out)
{
    if ((unsigned)kind >= ARRAY_LENGTH(memories))
        return error_set(EXPAR_ERR_ARGUMENT, "%s: %s %d, expected EXPAR_MEMORY_HOST (0), _DEVICE (1) or _PINNED (2)",
                         what, name, kind);
    *out = memories[kind];
    return EXPAR_OK;
}

static expar_memory_kind memory_kind_of(transport_memory memory)
{
    return memory == TRANSPORT_DEVICE   ? EXPAR_MEMORY_DEVICE
           : memory == TRANSPORT_PINNED ? EXPAR_MEMORY_PINNED
                                        : EXPAR_MEMORY_HOST;
}

static expar_status options_check_alignment(const char *what, size_t alignment, transport_memory memory)
{
    const uint64_t most = memory == TRANSPORT_HOST ? LARGEST_ALIGNMENT : KINDS_ALIGNMENT_MAX;
    if ((alignment & (alignment - 1)) == 0 && alignment <= most) return EXPAR_OK;
    return error_set(EXPAR_ERR_ARGUMENT, "%s: options.alignment %zu, expected 0 or a power of two up to %llu", what,
                     alignment, (unsigned long long)most);
}

/* Checks what this rank alone can check, and fills the request. */
static expar_status options_read(const char *what, const expar_memory_options *given, void *const *out,
                                 kinds_request *request)
{
    expar_memory_options options = EXPAR_MEMORY_OPTIONS_INIT;
    if (!given) return error_set(EXPAR_ERR_NULL, "%s: options is NULL", what);
    if (given->struct_size < sizeof options.struct_size || given->struct_size > sizeof options)
        return error_set(EXPAR_ERR_ARGUMENT,
                         "%s: options.struct_size %zu, expected %zu to %zu (EXPAR_MEMORY_OPTIONS_INIT)", what,
                         given->struct_size, sizeof options.struct_size, sizeof options);
    if (!out) return error_set(EXPAR_ERR_NULL, "%s: out is NULL", what);
    memcpy(&options, given, given->struct_size);
    expar_status status = memory_find_kind(what, "options.kind", (int)options.kind, &request->memory);
    if (status == EXPAR_OK) status = options_check_alignment(what, options.alignment, request->memory);
    if (status == EXPAR_OK && request->memory == TRANSPORT_HOST && options.device != 0)
        status =
            error_set(EXPAR_ERR_ARGUMENT, "%s: options.device %d, expected 0 for host memory", what, options.device);
    if (status == EXPAR_OK && options.zeroed != 0 && options.zeroed != 1)
        status = error_set(EXPAR_ERR_ARGUMENT, "%s: options.zeroed %d, expected 0 or 1", what, options.zeroed);
    request->device = options.device;
    request->bytes = options.bytes;
    request->zeroed = options.zeroed == 1;
    const uint64_t least = least_alignment(request->memory);
    request->alignment = options.alignment < least ? least : options.alignment;
    return status;
}

static expar_status take_of_kind(expar_group *group, const char *what, const expar_memory_options *options, void **out)
{
    kinds_request request = {.memory = TRANSPORT_HOST};
    expar_status status = kinds_agree(group->sym, what, &request, options_read(what, options, out, &request));
    if (status != EXPAR_OK) return status;
    if (request.bytes == 0) {
        *out = NULL;
        return EXPAR_OK;
    }
    status = kinds_take(group->sym, what, &request, out);
    if (status == EXPAR_OK && request.memory != TRANSPORT_HOST) stream_prepare(group);
    return status;
}

expar_status expar_memory_alloc(expar_group *group, const expar_memory_options *options, void **out)
{
    static const char what[] = "expar_memory_alloc";
    const expar_status status = memory_enter(group, what);
    if (status != EXPAR_OK) return group_ended(group, status);
    return group_ended(group, memory_leave(group, take_of_kind(group, what, options, out)));
}

static expar_status address_find_place(expar_group *group, const char *what, const void *address,
                                       expar_memory_place *out)
{
    kinds_place place;
    if (!group) return error_set(EXPAR_ERR_NULL, "%s: group is NULL", what);
    if (!kinds_find(group->sym, address, 1, &place))
        return error_set(EXPAR_ERR_ADDRESS, "%s: address %p is not in a symmetric heap of this group", what, address);
    const expar_memory_place found = {.kind = memory_kind_of(place.memory),
                                      .device = kinds_device(group->sym, place.memory),
                                      .offset = place.offset,
                                      .device_address = kinds_peer_on_device(group->sym, &place, group->rank)};
    return struct_give(what, "place", "EXPAR_MEMORY_PLACE_INIT", &found, sizeof found, out);
}

expar_status expar_memory_get_place(expar_group *group, const void *address, expar_memory_place *place)
{
    return group_ended(group, address_find_place(group, "expar_memory_get_place", address, place));
}

/* ---- copies of other ranks --------------------------------------------------------------------------------------- */

static bool address_find_of(const expar_group *group, const void *address, int32_t pe, kinds_place *place)
{
    return group && pe >= 0 && pe < group->size && kinds_find(group->sym, address, 1, place);
}

void *expar_ptr(expar_group *group, const void *address, int32_t pe)
{
    kinds_place place;
    return address_find_of(group, address, pe, &place) ? kinds_peer_at(group->sym, &place, pe) : NULL;
}

void *expar_device_ptr(expar_group *group, const void *address, int32_t pe)
{
    kinds_place place;
    return address_find_of(group, address, pe, &place) ? kinds_peer_on_device(group->sym, &place, pe) : NULL;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls of expar/memory.h. */
#include "group/group.h"
#include <expar/memory.h>

#include <string.h>

#define DEFAULT_ALIGNMENT 128u
#define LARGEST_ALIGNMENT ((size_t)1 << 30)

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

/* A public call begins: the group stays while it runs, even if a thread abandons it meanwhile. EXPAR_OK: memory_leave
   ends it. */
static expar_status memory_enter(expar_group *group, const char *what)
{
    if (!group) return error_set(EXPAR_ERR_NULL, "%s: group is NULL", what);
    return group_enter(group, what) ? EXPAR_OK : EXPAR_ERR_STATE;
}

static expar_status memory_leave(expar_group *group, expar_status status)
{
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
        status = sym_barrier(group->sym); /* no peer writes before this rank's zeros */
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

static expar_status give_block(expar_group *group, const char *what, void *block)
{
    uint64_t offset = 0;
    if (block && !sym_offset(group->sym, block, 1, &offset))
        return sym_reject(group->sym, what,
                          error_set(EXPAR_ERR_ADDRESS, "%s: %p is not in the symmetric heap", what, block));
    return sym_give(group->sym, what, offset);
}

expar_status expar_free(expar_group *group, void *block)
{
    static const char what[] = "expar_free";
    const expar_status status = memory_enter(group, what);
    if (status != EXPAR_OK) return group_ended(group, status);
    return group_ended(group, memory_leave(group, give_block(group, what, block)));
}

/* The bytes of a block that this rank holds; a reason to refuse when it is none. */
static expar_status find_block(sym *self, const char *what, const void *block, uint64_t *offset, uint64_t *bytes)
{
    if (sym_offset(self, block, 1, offset) && sym_block_bytes(self, *offset, bytes)) return EXPAR_OK;
    return error_set(EXPAR_ERR_ADDRESS, "%s: no block of the symmetric heap starts at %p", what, block);
}

/* After an error whose text is to stay. */
static void block_give_back(sym *self, const char *what, uint64_t offset)
{
    error_kept kept;
    error_keep(&kept, EXPAR_ERR_MISMATCH);
    sym_give(self, what, offset);
    error_restore(&kept);
}

/* Taking is collective, so that whatever peers put into the old block has come before it is copied; giving is, so that
   nobody leaves before all have copied. Blocks that differ between the ranks fail the giving alike on all. */
static expar_status move_block(sym *self, const char *what, uint64_t old_offset, uint64_t old_bytes, uint64_t bytes,
                               void **out)
{
    uint64_t offset;
    uint8_t *base = self->heap.base;
    expar_status status = sym_quiet(self);
    if (status == EXPAR_OK) status = sym_take(self, what, bytes, DEFAULT_ALIGNMENT, &offset);
    if (status != EXPAR_OK) return status;
    memcpy(base + offset, base + old_offset, old_bytes < bytes ? old_bytes : bytes);
    status = sym_give(self, what, old_offset);
    if (status == EXPAR_OK)
        *out = base + offset;
    else if (status == EXPAR_ERR_MISMATCH)
        block_give_back(self, what, offset);
    return status;
}

static expar_status resize_block(expar_group *group, const char *what, void *block, size_t bytes, void **out)
{
    uint64_t old_offset, old_bytes;
    if (!block) return take_block(group, what, DEFAULT_ALIGNMENT, bytes, out);
    expar_status status = out ? EXPAR_OK : error_set(EXPAR_ERR_NULL, "%s: out is NULL", what);
    if (status == EXPAR_OK) status = find_block(group->sym, what, block, &old_offset, &old_bytes);
    if (status != EXPAR_OK) return sym_reject(group->sym, what, status);
    if (bytes > 0) return move_block(group->sym, what, old_offset, old_bytes, bytes, out);
    status = sym_give(group->sym, what, old_offset);
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

void *expar_ptr(expar_group *group, const void *address, int32_t pe)
{
    uint64_t offset;
    if (!group || pe < 0 || pe >= group->size || !sym_offset(group->sym, address, 1, &offset)) return NULL;
    return sym_at(group->sym, pe, offset);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls of expar/memory.h. */
#include "group/group.h"
#include <expar/memory.h>

#define DEFAULT_ALIGNMENT 128u
#define LARGEST_ALIGNMENT ((size_t)1 << 30)

/* Reasons of this rank alone not to take part with a size; the others are told. */
static expar_status check_request(const char *what, size_t alignment, void *const *out)
{
    if (!out) return error_set(EXPAR_ERR_NULL, "%s: out is NULL", what);
    if (alignment == 0 || (alignment & (alignment - 1)) != 0 || alignment > LARGEST_ALIGNMENT)
        return error_set(EXPAR_ERR_ARGUMENT, "%s: alignment %zu, expected a power of two up to %zu", what, alignment,
                         LARGEST_ALIGNMENT);
    return EXPAR_OK;
}

static expar_status allocate(expar_group *group, const char *what, size_t alignment, size_t bytes, void **out)
{
    if (!group) return error_set(EXPAR_ERR_NULL, "%s: group is NULL", what);
    expar_status status = check_request(what, alignment, out);
    if (status != EXPAR_OK) return sym_refuse(group->sym, what, status);
    uint64_t offset;
    size_t least = alignment < DEFAULT_ALIGNMENT ? DEFAULT_ALIGNMENT : alignment;
    status = sym_take(group->sym, what, bytes, least, &offset);
    if (status != EXPAR_OK) return status;
    *out = offset == 0 ? NULL : (uint8_t *)group->sym->heap.base + offset;
    return EXPAR_OK;
}

expar_status expar_malloc(expar_group *group, size_t bytes, void **out)
{
    return allocate(group, "expar_malloc", DEFAULT_ALIGNMENT, bytes, out);
}

expar_status expar_align(expar_group *group, size_t alignment, size_t bytes, void **out)
{
    return allocate(group, "expar_align", alignment, bytes, out);
}

expar_status expar_calloc(expar_group *group, size_t count, size_t size, void **out)
{
    static const char what[] = "expar_calloc";
    size_t bytes;
    void *block = NULL;
    if (!group) return error_set(EXPAR_ERR_NULL, "%s: group is NULL", what);
    if (size_mul_overflows(count, size, &bytes))
        return sym_refuse(group->sym, what,
                          error_set(EXPAR_ERR_ARGUMENT, "%s: %zu elements of %zu bytes overflow", what, count, size));
    expar_status status = allocate(group, what, DEFAULT_ALIGNMENT, bytes, out ? &block : NULL);
    if (status != EXPAR_OK) return status;
    if (block) {
        sym_clear(group->sym, (uint64_t)((uint8_t *)block - (uint8_t *)group->sym->heap.base), bytes);
        status = sym_barrier(group->sym); /* no peer writes before this rank's zeros */
    }
    if (status != EXPAR_OK) return error_prefix(status, "%s", what);
    *out = block;
    return EXPAR_OK;
}

expar_status expar_free(expar_group *group, void *block)
{
    static const char what[] = "expar_free";
    uint64_t offset = 0;
    if (!group) return error_set(EXPAR_ERR_NULL, "%s: group is NULL", what);
    if (block && !sym_offset(group->sym, block, 1, &offset))
        return sym_refuse(group->sym, what,
                          error_set(EXPAR_ERR_ADDRESS, "%s: %p is not in the symmetric heap", what, block));
    return sym_give(group->sym, what, offset);
}

void *expar_ptr(expar_group *group, const void *address, int32_t pe)
{
    uint64_t offset;
    if (!group || pe < 0 || pe >= group->size || !sym_offset(group->sym, address, 1, &offset)) return NULL;
    return sym_at(group->sym, pe, offset);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The symmetric heap: an arena on every rank that all ranks use alike.
 *
 * Each call gathers every rank's arguments over the control sockets before anything stays changed, so that all ranks
 * return the same answer. That takes some hundred microseconds: allocate at set-up. */
#include "shmem/sym.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Freed blocks from this size on give their pages back. */
#define DISCARD_BYTES ((uint64_t)64 << 10)

/* What a rank wants; told to all. */
typedef struct wish {
    uint64_t bytes, alignment; /* of a take; 0 for a give */
    uint64_t offset;           /* where it was taken, or what is given */
    int32_t status;            /* expar_status: why this rank can not */
    int32_t pad;
} wish;

/* A reason that lies in one rank's arguments; a full heap is everybody's. */
static bool is_refusal(const wish *w)
{
    return w->status != EXPAR_OK && w->status != EXPAR_ERR_MEMORY;
}

static expar_status compare_refusals(const sym *self, const char *what, const wish *all)
{
    if (is_refusal(&all[self->rank])) return (expar_status)all[self->rank].status;
    for (int32_t r = 0; r < self->size; r++)
        if (is_refusal(&all[r]))
            return error_set(EXPAR_ERR_REMOTE, "%s: rank %d refused its arguments: %s", what, r,
                             expar_status_text((expar_status)all[r].status));
    return EXPAR_OK;
}

static expar_status compare_sizes(const sym *self, const char *what, const wish *all)
{
    for (int32_t r = 1; r < self->size; r++)
        if (all[r].bytes != all[0].bytes || all[r].alignment != all[0].alignment)
            return error_set(EXPAR_ERR_MISMATCH,
                             "%s: rank %d asks for %llu bytes aligned to %llu, rank 0 for %llu aligned to %llu", what,
                             r, (unsigned long long)all[r].bytes, (unsigned long long)all[r].alignment,
                             (unsigned long long)all[0].bytes, (unsigned long long)all[0].alignment);
    return EXPAR_OK;
}

static expar_status compare_offsets(const sym *self, const char *what, const wish *all)
{
    for (int32_t r = 1; r < self->size; r++)
        if (all[r].offset != all[0].offset)
            return error_set(EXPAR_ERR_MISMATCH,
                             "%s: the block of rank %d has offset %llu in the heap, that of rank 0 %llu", what, r,
                             (unsigned long long)all[r].offset, (unsigned long long)all[0].offset);
    return EXPAR_OK;
}

static expar_status compare_room(const sym *self, const char *what, const wish *all)
{
    if (all[self->rank].status != EXPAR_OK) return (expar_status)all[self->rank].status;
    for (int32_t r = 0; r < self->size; r++)
        if (all[r].status != EXPAR_OK)
            return error_set(EXPAR_ERR_MEMORY, "%s: rank %d has no room in its symmetric heap", what, r);
    return EXPAR_OK;
}

/* Collective. The first two answers are the same on all ranks by themselves, the others since all see the same wishes.
 */
static expar_status agree(sym *self, const char *what, const wish *mine)
{
    expar_status status = sym_check(self, what);
    if (status != EXPAR_OK) return status;
    wish *all = calloc((size_t)self->size, sizeof *all);
    if (!all) return error_set(EXPAR_ERR_MEMORY, "%s: no memory for %d records", what, self->size);
    status = self->boot->ops->allgather(self->boot, mine, all, sizeof *mine);
    if (status != EXPAR_OK) status = sym_out_of_step(self, what, status);
    if (status == EXPAR_OK) status = compare_refusals(self, what, all);
    if (status == EXPAR_OK) status = compare_sizes(self, what, all);
    if (status == EXPAR_OK) status = compare_room(self, what, all);
    if (status == EXPAR_OK) status = compare_offsets(self, what, all);
    free(all);
    return status;
}

static expar_status heap_full(const sym *self, const char *what, const wish *mine)
{
    mem_arena_stats stats;
    mem_arena_get_stats(self->arena, &stats);
    return error_set(
        EXPAR_ERR_MEMORY,
        "%s: no room for %llu bytes aligned to %llu: %llu of %llu bytes are left, the largest free block has "
        "%llu (EXPAR_HEAP_SIZE or heap_bytes makes the heap larger)",
        what, (unsigned long long)mine->bytes, (unsigned long long)mine->alignment,
        (unsigned long long)(stats.total_bytes - stats.used_bytes), (unsigned long long)stats.total_bytes,
        (unsigned long long)stats.largest_free_bytes);
}

/* Takes from this rank's own arena and notes in mine how that went. */
static void take_locally(sym *self, const char *what, wish *mine)
{
    if (mine->bytes == 0) return;
    pthread_mutex_lock(&self->lock);
    if (!mem_arena_take(self->arena, mine->bytes, mine->alignment, &mine->offset))
        mine->status = heap_full(self, what, mine);
    pthread_mutex_unlock(&self->lock);
}

static bool give_locally(sym *self, uint64_t offset, uint64_t *bytes)
{
    pthread_mutex_lock(&self->lock);
    bool given = mem_arena_give(self->arena, offset, bytes);
    pthread_mutex_unlock(&self->lock);
    return given;
}

expar_status sym_take(sym *self, const char *what, uint64_t bytes, uint64_t alignment, uint64_t *offset)
{
    wish mine = {.bytes = bytes, .alignment = alignment};
    take_locally(self, what, &mine);
    expar_status status = agree(self, what, &mine);
    if (status == EXPAR_OK && bytes > 0 && (status = sym_grow(self, mine.offset + bytes)) != EXPAR_OK)
        sym_out_of_step(self, what, status);
    if (status != EXPAR_OK) {
        if (mine.offset != 0) give_locally(self, mine.offset, NULL);
        return status;
    }
    *offset = mine.offset;
    return EXPAR_OK;
}

expar_status sym_refuse(sym *self, const char *what, expar_status reason)
{
    return agree(self, what, &(wish){.status = (int32_t)reason});
}

expar_status sym_give(sym *self, const char *what, uint64_t offset)
{
    uint64_t bytes;
    expar_status status = sym_quiet(self);
    if (status == EXPAR_OK) status = agree(self, what, &(wish){.offset = offset});
    if (status != EXPAR_OK || offset == 0) return status;
    /* The arenas are alike, so this fails on all ranks or on none. */
    if (!give_locally(self, offset, &bytes))
        return error_set(EXPAR_ERR_ADDRESS, "%s: no block starts at offset %llu of the symmetric heap", what,
                         (unsigned long long)offset);
    /* No peer writes here again before the next collective take, to which this rank comes after the discarding. */
    if (bytes >= DISCARD_BYTES) mem_region_discard(&self->heap, offset, bytes);
    return EXPAR_OK;
}

void sym_clear(sym *self, uint64_t offset, uint64_t bytes)
{
    uint8_t *start = (uint8_t *)self->heap.base + offset;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t first = align_up(offset, page), last = (offset + bytes) & ~(page - 1);
    if (bytes < DISCARD_BYTES) {
        memset(start, 0, bytes);
        return;
    }
    mem_region_discard(&self->heap, first, last - first);
    memset(start, 0, first - offset);
    memset((uint8_t *)self->heap.base + last, 0, offset + bytes - last);
}

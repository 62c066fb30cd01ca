/* SPDX-License-Identifier: Apache-2.0 */
/* The symmetric heap: an arena on every rank, which all use alike.
 *
 * Each call gathers the arguments of all ranks over the control sockets before any change becomes final, so that all
 * ranks return the same answer. That takes some hundred microseconds: allocate at set-up. */
#include "base/knobs.h"
#include "shmem/parts.h"

#include <stdio.h>
#include <string.h>

/* The request of a rank. */
typedef struct request {
    uint64_t bytes, alignment; /* for a take; 0 for a give */
    uint64_t offset;           /* where the block was taken, or which one is given */
    expar_status status;       /* why this rank cannot, with the last error's text */
} request;

/* Collective. An error in one rank's arguments is returned by that rank only; a full heap is an error on all ranks. */
static expar_status request_agree(sym *self, const char *what, const request *mine)
{
    char lacks[64];
    const boot_field fields[] = {
        {.name = "the size in bytes", .value = mine->bytes},
        {.name = "the alignment in bytes", .value = mine->alignment},
        {.name = "the block's offset in the heap", .value = mine->status == EXPAR_OK ? mine->offset : BOOT_UNKNOWN}};
    const boot_matter matter = {.what = what,
                                .rejected = "rejected its arguments",
                                .common = EXPAR_ERR_MEMORY,
                                .lacks = lacks,
                                .fields = fields,
                                .num_fields = ARRAY_LENGTH(fields)};
    snprintf(lacks, sizeof lacks, "has no memory for its %llu bytes", (unsigned long long)mine->bytes);
    expar_status status = sym_check_come(self, what);
    return status == EXPAR_OK ? sym_agree(self, &matter, mine->status) : status;
}

static expar_status heap_full(const sym *self, const char *what, const request *mine)
{
    mem_arena_stats stats;
    mem_arena_get_stats(self->arena, &stats);
    return error_set(
        EXPAR_ERR_MEMORY,
        "%s: no space for %llu bytes aligned to %llu: %llu of %llu bytes are left, the largest free block has "
        "%llu (EXPAR_HEAP_SIZE or heap_bytes makes the heap larger)",
        what, (unsigned long long)mine->bytes, (unsigned long long)mine->alignment,
        (unsigned long long)(stats.total_bytes - stats.used_bytes), (unsigned long long)stats.total_bytes,
        (unsigned long long)stats.largest_free_bytes);
}

/* The memory that a block needs. If pages stay, all memory below the heap's border exists already, and a transport
   registers all up to the next border. */
typedef struct block_range {
    uint64_t offset, bytes;
} block_range;

static block_range range_of(const sym *self, const request *mine, uint64_t filled_bytes)
{
    uint64_t first = mine->offset, end = mine->offset + mine->bytes;
    uint64_t grown = atomic_load_explicit(&self->grown_bytes, memory_order_relaxed);
    if (!self->keeps_pages) return (block_range){.offset = first, .bytes = filled_bytes};
    if (end <= grown) return (block_range){0};
    first = first < grown ? first : grown;
    return (block_range){.offset = first, .bytes = sym_border(self, end) - first};
}

/* Takes from this rank's own arena and records the outcome in mine. */
static void take_locally(sym *self, const char *what, request *mine)
{
    if (mine->bytes == 0) return;
    pthread_mutex_lock(&self->lock);
    if (!mem_arena_take(self->arena, mine->bytes, mine->alignment, &mine->offset))
        mine->status = heap_full(self, what, mine);
    pthread_mutex_unlock(&self->lock);
    if (mine->status != EXPAR_OK) return;
    expar_status status = mem_region_open(&self->heap, sym_border(self, mine->offset + mine->bytes));
    mine->status = status == EXPAR_OK ? EXPAR_OK : error_prefix(status, "%s", what);
}

static expar_status no_memory(sym *self, const char *what, const request *mine)
{
    mem_arena_stats stats;
    pthread_mutex_lock(&self->lock);
    mem_arena_get_stats(self->arena, &stats);
    pthread_mutex_unlock(&self->lock);
    return error_prefix(EXPAR_ERR_MEMORY, "%s: no memory for %llu bytes, with %llu in use by other blocks", what,
                        (unsigned long long)mine->bytes, (unsigned long long)stats.used_bytes - mine->bytes);
}

static void commit(sym *self, const char *what, const block_range *range, request *mine)
{
    if (mine->bytes == 0 || mine->status != EXPAR_OK) return;
    expar_status status = mem_region_commit(&self->heap, &self->budget, range->offset, range->bytes);
    mine->status = status == EXPAR_ERR_MEMORY ? no_memory(self, what, mine) : status;
}

static bool give_locally(sym *self, uint64_t offset, uint64_t *bytes)
{
    pthread_mutex_lock(&self->lock);
    bool given = mem_arena_give(self->arena, offset, bytes);
    pthread_mutex_unlock(&self->lock);
    return given;
}

/* No peer writes here before the next collective take, and this rank comes to that after it has discarded the pages. */
static void drop_pages(sym *self, uint64_t offset, uint64_t bytes)
{
    if (bytes >= (uint64_t)knob(KNOB_HEAP_DISCARD_BYTES) && !self->keeps_pages)
        mem_region_discard(&self->heap, offset, bytes);
}

/* Agrees on sizes and offsets; then, for a block that needs much memory, agrees that all ranks have got it. */
static expar_status take_memory(sym *self, const char *what, uint64_t filled_bytes, request *mine)
{
    const block_range range = range_of(self, mine, filled_bytes);
    bool early = range.bytes <= (uint64_t)knob(KNOB_HEAP_EARLY_BYTES);
    if (early) commit(self, what, &range, mine);
    expar_status status = request_agree(self, what, mine);
    if (status != EXPAR_OK || early) return status;
    commit(self, what, &range, mine);
    return request_agree(self, what, mine);
}

expar_status sym_take(sym *self, const char *what, uint64_t bytes, uint64_t alignment, uint64_t *offset)
{
    return sym_take_partly(self, what, bytes, bytes, alignment, offset);
}

expar_status sym_take_partly(sym *self, const char *what, uint64_t bytes, uint64_t filled_bytes, uint64_t alignment,
                             uint64_t *offset)
{
    uint64_t taken;
    request mine = {.bytes = bytes, .alignment = alignment};
    take_locally(self, what, &mine);
    expar_status status = take_memory(self, what, filled_bytes, &mine);
    if (status == EXPAR_OK && bytes > 0) {
        status = sym_grow(self, mine.offset + bytes);
        if (status != EXPAR_OK && status != EXPAR_ERR_MEMORY) sym_out_of_step(self, what, status);
    }
    if (status != EXPAR_OK) {
        if (mine.offset != 0 && give_locally(self, mine.offset, &taken)) drop_pages(self, mine.offset, taken);
        return status;
    }
    sym_card_write(self);
    *offset = mine.offset;
    return EXPAR_OK;
}

expar_status sym_reject(sym *self, const char *what, expar_status reason)
{
    return request_agree(self, what, &(request){.bytes = BOOT_UNKNOWN, .alignment = BOOT_UNKNOWN, .status = reason});
}

expar_status sym_give(sym *self, const char *what, uint64_t offset)
{
    uint64_t bytes;
    const expar_status quiet = sym_quiet(self);
    if (quiet == EXPAR_ERR_INTERRUPTED) return quiet;
    const expar_status status = request_agree(self, what, &(request){.offset = offset, .status = quiet});
    if (status != EXPAR_OK || offset == 0) return status;
    /* The arenas are alike, so this fails on all ranks or on none. */
    if (!give_locally(self, offset, &bytes))
        return error_set(EXPAR_ERR_ADDRESS, "%s: no block starts at offset %llu of the symmetric heap", what,
                         (unsigned long long)offset);
    drop_pages(self, offset, bytes);
    sym_card_write(self);
    return EXPAR_OK;
}

bool sym_block_bytes(sym *self, uint64_t offset, uint64_t *bytes)
{
    pthread_mutex_lock(&self->lock);
    bool found = mem_arena_block_bytes(self->arena, offset, bytes);
    pthread_mutex_unlock(&self->lock);
    return found;
}

void sym_clear(sym *self, uint64_t offset, uint64_t bytes)
{
    memset((uint8_t *)self->heap.base + offset, 0, bytes);
}

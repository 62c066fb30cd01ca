/* SPDX-License-Identifier: Apache-2.0 */
/* The second part of the device heap, which follows the symmetric one. Each rank has as much of it as it asked for, and
 * all ranks map it. It grows and shrinks as the symmetric part grows: by all ranks together, or not at all. */
#include "shmem/device_heap_parts.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

void device_heap_guard(device_heap *self, const device_heap_gate *gate)
{
    self->gate = *gate;
}

bool device_heap_grows(const device_heap *self)
{
    return self->kind == HEAP_CHUNKS;
}

uint64_t device_heap_own_offset(const device_heap *self)
{
    return self->range_bytes;
}

uint64_t device_heap_own_space(const device_heap *self)
{
    return device_heap_grows(self) ? self->range_bytes : 0;
}

uint64_t device_heap_own_bytes(const device_heap *self)
{
    return self->grown[self->sym->rank].total_bytes;
}

static expar_status check_kind(const device_heap *self, const char *what)
{
    if (device_heap_grows(self)) return EXPAR_OK;
    return error_set(EXPAR_ERR_UNSUPPORTED, "%s: by CUDA IPC the device heap does not grow", what);
}

/* ---- growing ----------------------------------------------------------------------------------------------------- */

/* One growth in progress. */
typedef struct growth {
    uint64_t *offsets, *bytes; /* [size] where each rank's addition begins, and its size */
    int fd;
} growth;

static expar_status make_own(device_heap *self, uint64_t bytes, growth *grow)
{
    const uint64_t held = device_heap_own_bytes(self);
    expar_status status = EXPAR_OK;
    if (bytes > self->range_bytes - held)
        return error_set(EXPAR_ERR_MEMORY, "%llu bytes are more than GPU %d (%s) has beside the %llu that were taken",
                         (unsigned long long)bytes, self->device->index, self->device->name, (unsigned long long)held);
    for (int32_t r = 0; r < self->sym->size && status == EXPAR_OK; r++)
        status = heap_pieces_prepare(&self->grown[r]);
    if (status == EXPAR_OK) status = heap_pieces_prepare(&self->part->own);
    if (status == EXPAR_OK && bytes) return heap_chunk_make(self, self->range_bytes + held, bytes, &grow->fd);
    return status;
}

static bool adds_any(const device_heap *self, const growth *grow)
{
    for (int32_t r = 0; r < self->sym->size; r++)
        if (grow->bytes[r]) return true;
    return false;
}

/* A rank that adds nothing sends a descriptor of no memory, which no rank maps. */
static expar_status share(device_heap *self, const char *what, growth *grow)
{
    if (self->sym->by_threads) return EXPAR_OK;
    for (int32_t r = 0; r < self->sym->size; r++)
        grow->offsets[r] = self->range_bytes + self->grown[r].total_bytes;
    if (grow->fd < 0) grow->fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (grow->fd < 0) return sym_out_of_step(self->sym, what, error_errno("open /dev/null"));
    return heap_chunks_share(self, what, grow->fd, grow->offsets, grow->bytes);
}

static void note_growth(device_heap *self, const growth *grow)
{
    for (int32_t r = 0; r < self->sym->size; r++)
        if (grow->bytes[r]) heap_pieces_add(&self->grown[r], grow->bytes[r]);
    if (grow->bytes[self->sym->rank]) heap_pieces_add(&self->part->own, grow->bytes[self->sym->rank]);
}

static expar_status grow_by(device_heap *self, const char *what, uint64_t bytes, growth *grow)
{
    const heap_word word = {.mine = &bytes, .all = grow->bytes, .mine_bytes = sizeof bytes};
    expar_status own = make_own(self, bytes, grow);
    expar_status status = heap_agree(self, what, &word, own);
    if (status == EXPAR_OK && !adds_any(self, grow)) return EXPAR_OK;
    if (status == EXPAR_OK) status = share(self, what, grow);
    if (status == EXPAR_OK)
        note_growth(self, grow);
    else if (own == EXPAR_OK && bytes)
        heap_chunk_unmake(self, self->range_bytes + device_heap_own_bytes(self), bytes);
    return status;
}

static uint64_t in_units(const device_heap *self, uint64_t bytes)
{
    return bytes > UINT64_MAX - self->unit_bytes ? UINT64_MAX : align_up(bytes, self->unit_bytes);
}

expar_status device_heap_grow(device_heap *self, const char *what, uint64_t bytes)
{
    const size_t size = (size_t)self->sym->size;
    expar_status status = check_kind(self, what);
    if (status != EXPAR_OK) return status;
    uint64_t *numbers = calloc(2 * size, sizeof *numbers);
    if (!numbers) return sym_out_of_step(self->sym, what, error_set(EXPAR_ERR_MEMORY, "no memory"));
    growth grow = {.offsets = numbers, .bytes = numbers + size, .fd = -1};
    status = grow_by(self, what, in_units(self, bytes), &grow);
    if (grow.fd >= 0) close(grow.fd);
    free(numbers);
    return status;
}

/* ---- shrinking --------------------------------------------------------------------------------------------------- */

typedef struct shrinking {
    uint64_t pieces; /* number of pieces that the rank keeps */
    bool quiet;
} shrinking;

static void drop_last(heap_pieces *pieces)
{
    pieces->total_bytes -= pieces->bytes[--pieces->count];
}

/* Threads of one process have only one mapping, the owner's. */
static void shrink_one(device_heap *self, int32_t r, uint64_t keep)
{
    heap_pieces *pieces = &self->grown[r];
    const bool own = r == self->sym->rank;
    while (pieces->count > keep) {
        const uint64_t bytes = pieces->bytes[pieces->count - 1];
        const uint64_t at = self->range_bytes + pieces->total_bytes - bytes;
        if (own || (self->reaches[r] && !self->sym->by_threads)) mem_chunk_unmap(self->bases[r] + at, bytes);
        drop_last(pieces);
        if (own) drop_last(&self->part->own);
    }
}

/* Returns how many pieces must stay, and their total size. */
static uint64_t pieces_kept(const heap_pieces *pieces, uint64_t keep_bytes, uint64_t *bytes)
{
    uint64_t count = pieces->count;
    *bytes = pieces->total_bytes;
    while (count && *bytes - pieces->bytes[count - 1] >= keep_bytes)
        *bytes -= pieces->bytes[--count];
    return count;
}

uint64_t device_heap_own_kept(const device_heap *self, uint64_t keep_bytes)
{
    uint64_t bytes;
    pieces_kept(&self->grown[self->sym->rank], keep_bytes, &bytes);
    return bytes;
}

/* Returns whether all ranks may shrink, and any rank has something to free. */
static bool all_shrink(const device_heap *self, const shrinking *all)
{
    bool any = false;
    for (int32_t r = 0; r < self->sym->size; r++) {
        if (!all[r].quiet) return false;
        any = any || all[r].pieces < self->grown[r].count;
    }
    return any;
}

/* Memory is freed when no rank maps it any more: that is so for a rank that has passed the second agreement. */
static expar_status shrink_to(device_heap *self, const char *what, const shrinking *mine, shrinking *all)
{
    const heap_word word = {.mine = mine, .all = all, .mine_bytes = sizeof *mine};
    expar_status status = heap_agree(self, what, &word, EXPAR_OK);
    if (status != EXPAR_OK || !all_shrink(self, all)) return status;
    heap_gate_close(self);
    for (int32_t r = 0; r < self->sym->size; r++)
        shrink_one(self, r, all[r].pieces);
    heap_gate_open(self);
    return heap_agree(self, what, &(heap_word){0}, EXPAR_OK);
}

expar_status device_heap_shrink(device_heap *self, const char *what, uint64_t keep_bytes, bool quiet)
{
    uint64_t unused;
    const shrinking mine = {.pieces = pieces_kept(&self->grown[self->sym->rank], keep_bytes, &unused), .quiet = quiet};
    expar_status status = check_kind(self, what);
    if (status != EXPAR_OK) return status;
    shrinking *all = calloc((size_t)self->sym->size, sizeof *all);
    if (!all) return sym_out_of_step(self->sym, what, error_set(EXPAR_ERR_MEMORY, "no memory"));
    status = shrink_to(self, what, &mine, all);
    free(all);
    return status;
}

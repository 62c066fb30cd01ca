/* SPDX-License-Identifier: Apache-2.0 */
/* How full the symmetric heap is, and the card in its control page that tells so to other processes. */
#include "shmem/parts.h"
#include <expar/memory.h>

#include <string.h>

/* Changes with the layout of the card. */
#define CARD_MARK UINT64_C(0x6578706172310001)

void sym_heap_stats(sym *self, expar_heap_stats *out)
{
    mem_arena_stats now;
    pthread_mutex_lock(&self->lock);
    mem_arena_get_stats(self->arena, &now);
    pthread_mutex_unlock(&self->lock);
    *out = (expar_heap_stats){
        .total_bytes = now.total_bytes,
        .used_bytes = now.used_bytes,
        .high_water_bytes = now.high_water_bytes,
        .largest_free_bytes = now.largest_free_bytes,
        .blocks = now.blocks,
        .grown_bytes = atomic_load_explicit(&self->grown_bytes, memory_order_acquire),
        .memory_bytes = mem_region_memory(&self->heap),
        .holes = now.holes,
        .hole_bytes = now.hole_bytes,
        .largest_hole_bytes = now.largest_hole_bytes,
        .page_bytes = self->heap.page_bytes,
        .chunks = atomic_load_explicit(&self->chunks, memory_order_relaxed),
    };
}

/* Lists the members of the statistics that the card holds, in its order. */
static void card_members(expar_heap_stats *stats, uint64_t *members[SYM_CARD_WORDS])
{
    uint64_t *all[SYM_CARD_WORDS] = {
        &stats->total_bytes,
        &stats->used_bytes,
        &stats->high_water_bytes,
        &stats->largest_free_bytes,
        &stats->blocks,
        &stats->grown_bytes,
        &stats->holes,
        &stats->hole_bytes,
        &stats->chunks,
        &stats->largest_hole_bytes,
    };
    memcpy(members, all, sizeof all);
}

void sym_card_write(sym *self)
{
    sym_heap_card *card = &((sym_control *)self->heap.base)->card;
    expar_heap_stats now;
    uint64_t *members[SYM_CARD_WORDS];
    sym_heap_stats(self, &now);
    card_members(&now, members);
    for (size_t i = 0; i < SYM_CARD_WORDS; i++)
        atomic_store_explicit(&card->words[i], *members[i], memory_order_relaxed);
    card->rank = self->rank;
    card->size = self->size;
    atomic_store_explicit(&card->mark, CARD_MARK, memory_order_release);
}

bool sym_card_read(const sym_heap_card *card, expar_heap_stats *stats, int32_t *rank, int32_t *size)
{
    uint64_t *members[SYM_CARD_WORDS];
    if (atomic_load_explicit(&card->mark, memory_order_acquire) != CARD_MARK) return false;
    card_members(stats, members);
    for (size_t i = 0; i < SYM_CARD_WORDS; i++)
        *members[i] = atomic_load_explicit(&card->words[i], memory_order_relaxed);
    *rank = card->rank;
    *size = card->size;
    return true;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* How full the symmetric heap is: for this rank by a call, for tools by the card in the heap's control page. */
#include "group/group.h"
#include "shmem/parts.h"
#include <expar/memory.h>

#include <linux/magic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

/* Changes with the layout of the card. */
#define CARD_MARK UINT64_C(0x6578706172310001)

static void fill_stats(sym *self, expar_heap_stats *out)
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

static expar_status hand_over(const char *what, const expar_heap_stats *now, expar_heap_stats *stats)
{
    return struct_give(what, "EXPAR_HEAP_STATS_INIT", now, sizeof *now, stats);
}

expar_status expar_heap_get_stats(expar_group *group, expar_heap_stats *stats)
{
    static const char what[] = "expar_heap_get_stats";
    expar_heap_stats now;
    if (!group) return error_set(EXPAR_ERR_NULL, "%s: group is NULL", what);
    fill_stats(group->sym, &now);
    /* Not on the card, which every allocation writes anew: the kernel goes through the whole heap for it. */
    now.huge_bytes = mem_region_huge_bytes(&group->sym->heap);
    return hand_over(what, &now, stats);
}

/* ---- the card ---------------------------------------------------------------------------------------------------- */

/* What the card holds of the statistics, in its order. */
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
    fill_stats(self, &now);
    card_members(&now, members);
    for (size_t i = 0; i < SYM_CARD_WORDS; i++)
        atomic_store_explicit(&card->words[i], *members[i], memory_order_relaxed);
    card->rank = self->rank;
    card->size = self->size;
    atomic_store_explicit(&card->mark, CARD_MARK, memory_order_release);
}

static bool card_read(const sym_heap_card *card, expar_heap_stats *stats, int32_t *rank, int32_t *size)
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

/* The file's own block size does not tell: it is that of a huge page, too, where the kernel may lay one under a file by
   itself. */
static size_t page_bytes_of(int fd)
{
    struct statfs system;
    bool huge = fstatfs(fd, &system) == 0 && system.f_type == HUGETLBFS_MAGIC;
    return huge ? (size_t)system.f_bsize : (size_t)sysconf(_SC_PAGESIZE);
}

expar_status expar_heap_read_stats(int fd, expar_heap_stats *stats, int32_t *rank, int32_t *size)
{
    static const char what[] = "expar_heap_read_stats";
    expar_heap_stats now = {0};
    struct stat facts;
    if (!rank || !size) return error_set(EXPAR_ERR_NULL, "%s: %s is NULL", what, rank ? "size" : "rank");
    if (fstat(fd, &facts) != 0 || facts.st_size < SYM_CONTROL_BYTES)
        return error_set(EXPAR_ERR_ARGUMENT, "%s: descriptor %d is no symmetric heap's", what, fd);
    /* A file of huge pages is mapped by whole ones. */
    const size_t page_bytes = page_bytes_of(fd);
    const size_t bytes = page_bytes > SYM_CONTROL_BYTES ? page_bytes : SYM_CONTROL_BYTES;
    const sym_control *control = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (control == MAP_FAILED) return error_errno("%s: descriptor %d cannot be mapped", what, fd);
    now.memory_bytes = (uint64_t)facts.st_blocks * 512;
    now.page_bytes = page_bytes;
    bool is_card = card_read(&control->card, &now, rank, size);
    munmap((void *)(uintptr_t)control, bytes);
    if (is_card) return hand_over(what, &now, stats);
    return error_set(EXPAR_ERR_ARGUMENT, "%s: descriptor %d is no heap of this version of expar", what, fd);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* How full the symmetric heap is: for this rank by a call, for tools by the card in the heap's control page. */
#include "group/group.h"
#include "pgas/memory.h"
#include "shmem/kinds.h"

#include <linux/magic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

static expar_status stats_hand_over(const char *what, const expar_heap_stats *now, expar_heap_stats *stats)
{
    return struct_give(what, "stats", "EXPAR_HEAP_STATS_INIT", now, sizeof *now, stats);
}

/* The host's huge pages are not on the card, which every allocation writes anew: the kernel goes through the whole heap
   for them. */
static void stats_of_kind(sym *self, transport_memory memory, expar_heap_stats *now)
{
    kinds_get_stats(self, memory, now);
    if (memory == TRANSPORT_HOST) now->huge_bytes = mem_region_huge_bytes(&self->heap);
}

expar_status expar_heap_get_stats(expar_group *group, expar_heap_stats *stats)
{
    static const char what[] = "expar_heap_get_stats";
    expar_heap_stats now;
    if (!group) return group_ended(group, error_set(EXPAR_ERR_NULL, "%s: group is NULL", what));
    stats_of_kind(group->sym, TRANSPORT_HOST, &now);
    return group_ended(group, stats_hand_over(what, &now, stats));
}

expar_status expar_memory_get_stats(expar_group *group, expar_memory_kind kind, expar_heap_stats *stats)
{
    static const char what[] = "expar_memory_get_stats";
    expar_heap_stats now;
    transport_memory memory;
    if (!group) return group_ended(group, error_set(EXPAR_ERR_NULL, "%s: group is NULL", what));
    expar_status status = memory_find_kind(what, "kind", (int)kind, &memory);
    if (status != EXPAR_OK) return group_ended(group, status);
    stats_of_kind(group->sym, memory, &now);
    return group_ended(group, stats_hand_over(what, &now, stats));
}

/* ---- from outside ------------------------------------------------------------------------------------------------ */

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
    int32_t its_rank, its_size;
    if (!stats || !rank || !size)
        return call_ended(error_set(EXPAR_ERR_NULL, "%s: %s is NULL", what,
                                    !stats  ? "stats"
                                    : !rank ? "rank"
                                            : "size"));
    if (fstat(fd, &facts) != 0 || facts.st_size < SYM_CONTROL_BYTES)
        return call_ended(error_set(EXPAR_ERR_ARGUMENT, "%s: fd %d, expected that of a symmetric heap", what, fd));
    /* A file of huge pages is mapped by whole ones. */
    const size_t page_bytes = page_bytes_of(fd);
    const size_t bytes = page_bytes > SYM_CONTROL_BYTES ? page_bytes : SYM_CONTROL_BYTES;
    const sym_control *control = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (control == MAP_FAILED) return call_ended(error_errno("%s: fd %d cannot be mapped", what, fd));
    now.memory_bytes = (uint64_t)facts.st_blocks * 512;
    now.page_bytes = page_bytes;
    bool is_card = sym_card_read(&control->card, &now, &its_rank, &its_size);
    munmap((void *)(uintptr_t)control, bytes);
    if (!is_card)
        return call_ended(
            error_set(EXPAR_ERR_ARGUMENT, "%s: fd %d, expected that of a heap of this version of expar", what, fd));
    expar_status status = stats_hand_over(what, &now, stats);
    if (status == EXPAR_OK) {
        *rank = its_rank;
        *size = its_size;
    }
    return call_ended(status);
}

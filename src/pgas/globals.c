/* SPDX-License-Identifier: Apache-2.0 */
/* Symmetric global variables: the program's writable segment is copied into the symmetric heap, and those pages are
 * mapped over it. One page then has two addresses on its own rank; peers see it in the heap alone. */
#include "group/group.h"
#include <expar/globals.h>

#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

/* Whole pages. */
typedef struct segment {
    uintptr_t base, end;
} segment;

/* Pages that the loader made read-only after it had relocated them are not the program's to write. */
static void leave_out_relro(const struct dl_phdr_info *info, uint64_t page, segment *found)
{
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        if (header->p_type != PT_GNU_RELRO) continue;
        uintptr_t end = (uintptr_t)align_up(info->dlpi_addr + header->p_vaddr + header->p_memsz, page);
        if (end > found->base && end <= found->end) found->base = end;
    }
}

/* The first object listed is the program; its writable segments lie side by side. */
static int find_segment(struct dl_phdr_info *info, size_t bytes, void *context)
{
    (void)bytes;
    segment *found = context;
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        if (header->p_type != PT_LOAD || !(header->p_flags & PF_W)) continue;
        uintptr_t start = (info->dlpi_addr + header->p_vaddr) & ~(uintptr_t)(page - 1);
        uintptr_t end = (uintptr_t)align_up(info->dlpi_addr + header->p_vaddr + header->p_memsz, page);
        if (found->end == 0) found->base = start;
        if (end > found->end) found->end = end;
    }
    leave_out_relro(info, page, found);
    return 1;
}

/* Set by the process that shares its variables, once. Cleared when they did not fit and are where they were. Changed
   and read by any thread, all or nothing. */
static atomic_flag is_shared = ATOMIC_FLAG_INIT;

/* Word by word and unchecked: between variables there are bytes that belong to none, and an address sanitizer, rightly
   elsewhere, lets nobody read those. */
__attribute__((no_sanitize("address"), optimize("no-tree-loop-distribute-patterns"))) static void
copy_words(uint64_t *to, const uint64_t *from, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] = from[i];
}

static expar_status map_over(sym *self, const segment *program, uint64_t offset)
{
    const size_t bytes = program->end - program->base;
    copy_words((uint64_t *)((uint8_t *)self->heap.base + offset), (const uint64_t *)program->base, bytes / 8);
    void *at = mmap((void *)program->base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, self->heap.fd,
                    (off_t)offset);
    return at != MAP_FAILED ? EXPAR_OK : error_errno("mapping %zu bytes of variables", bytes);
}

expar_status expar_globals_share(expar_group *group)
{
    static const char call[] = "expar_globals_share";
    segment program = {0};
    uint64_t offset = 0;
    if (!group) return group_ended(group, error_set(EXPAR_ERR_NULL, "%s: group is NULL", call));
    sym *self = group->sym;
    if (self->heap.fd < 0)
        return group_ended(
            group, error_set(EXPAR_ERR_UNSUPPORTED, "%s: ranks that are threads share their variables anyhow", call));
    if (self->heap.page_bytes > (size_t)sysconf(_SC_PAGESIZE))
        return group_ended(
            group,
            sym_reject(self, call,
                       error_set(EXPAR_ERR_UNSUPPORTED,
                                 "%s: the heap of this rank has huge pages, on which variables cannot lie: make the "
                                 "group with EXPAR_HEAP_PAGES_SYSTEM",
                                 call)));
    if (atomic_flag_test_and_set(&is_shared))
        return group_ended(
            group, sym_reject(self, call, error_set(EXPAR_ERR_STATE, "%s: was called before in this process", call)));
    dl_iterate_phdr(find_segment, &program);
    const size_t bytes = program.end - program.base;
    expar_status status = sym_take(self, call, bytes, (uint64_t)sysconf(_SC_PAGESIZE), &offset);
    if (status != EXPAR_OK) {
        atomic_flag_clear(&is_shared);
        return group_ended(group, status);
    }
    status = map_over(self, &program, offset);
    if (status != EXPAR_OK) {
        /* The others have theirs: the group is not what they take it for. */
        sym_fail(self, SYM_PEER_SILENT, group->rank);
        return group_ended(group, error_prefix(status, "%s", call));
    }
    sym_alias(self, program.base, bytes, offset);
    return group_ended(group, sym_agree(self, &(boot_matter){.what = call, .rejected = "has no heap there"}, EXPAR_OK));
}

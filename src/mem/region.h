/* SPDX-License-Identifier: Apache-2.0 */
/* Regions. */
#ifndef EXPAR_MEM_REGION_H
#define EXPAR_MEM_REGION_H

#include "base/base.h"
#include "mem/available.h"

/* ---- region (region.c): a range of shared memory without a name in the file system ------------------------------- */

/* A range of addresses whose first `open_bytes` may be accessed. It maps a memfd (fd ≥ 0) that grows with them, or
   anonymous memory (fd -1), which serves ranks that are threads. Pages exist once they are committed or touched. Huge
   pages are asked for (madvise), or the region consists of pages of hugetlbfs. */
typedef struct mem_region {
    void *base;
    size_t bytes;
    /* whole pages; only grows */
    size_t open_bytes;
    /* for a region that was made here: the system's pages, or 2 MiB of hugetlbfs */
    size_t page_bytes;
    int fd;
    /* addresses after it that are reserved for another region */
    size_t following_bytes;
} mem_region;

/* Reserves only addresses: none of them is open yet. */
expar_status mem_region_create(size_t bytes, bool shareable, mem_region *out);
/* The same, and reserves following_bytes of addresses after it for mem_region_create_following; 0: none. */
expar_status mem_region_create_before(size_t bytes, size_t following_bytes, bool shareable, mem_region *out);
/* Makes a shareable region of huge pages of hugetlbfs, with memory for its first bytes; `bytes` is rounded up to whole
   pages. EXPAR_ERR_UNSUPPORTED: the system has none. EXPAR_ERR_MEMORY: too few are free. */
expar_status mem_region_create_huge(size_t bytes, size_t first_bytes, size_t following_bytes, mem_region *out);
/* Makes a region of the system's pages at the addresses that `before` has reserved after it, and gives up. Each of the
   two is closed by itself. Its file has its final length, and is sparse, so all of it is open. Anonymous memory is
   different: a range opens when it is committed. */
expar_status mem_region_create_following(mem_region *before, bool shareable, mem_region *out);
/* Maps all of a peer's region of at most `bytes` bytes from its descriptor, which is closed in any case. What the peer
   opens later is accessible without another call; nothing after that may be accessed. */
expar_status mem_region_map(int fd, size_t bytes, mem_region *out);
/* Maps also the region that follows it (mem_region_create_following): one range, in which both have the offsets that
   they have at the peer. following_fd -1: there is none. Closes both descriptors in any case. */
expar_status mem_region_map_both(int fd, size_t bytes, int following_fd, mem_region *out);
/* Opens the region up to `end`, at least. EXPAR_ERR_MEMORY: a limit of this process or the system, named. */
expar_status mem_region_open(mem_region *region, size_t end);
/* How much one thread at a time may commit before it checks the limits on memory again. */
typedef struct mem_budget {
    /* 0 at first */
    size_t vetted_bytes;
    /* ranks of the host, which commit as much at the same time */
    int32_t sharers;
} mem_budget;
/* Takes memory for an open range, so that lack of memory is EXPAR_ERR_MEMORY here and no signal on a later access. It
   stops before it uses up what the machine and this process's memory cgroup have left; a part of the range may have
   memory then. The contents of the range stay. */
expar_status mem_region_commit(const mem_region *region, mem_budget *budget, size_t offset, size_t bytes);
/* Frees the physical pages of a range, rounded inwards to whole pages; it reads as zero afterwards. */
void mem_region_discard(mem_region *region, size_t offset, size_t bytes);
/* Returns the memory of the region; 0 if the system does not say (anonymous memory). */
uint64_t mem_region_memory(const mem_region *region);
/* Returns how much of it huge pages map now, either of hugetlbfs or by the kernel's own choice. Reads /proc. */
uint64_t mem_region_huge_bytes(const mem_region *region);
void mem_region_close(mem_region *region);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Regions, and what memory is left for them. */
#ifndef EXPAR_MEM_REGION_H
#define EXPAR_MEM_REGION_H

#include "base/base.h"

/* ---- region (region.c): a range of shared memory without a name in the file system ------------------------------- */

/* A range of addresses of which the first `open_bytes` may be touched. Behind it is a memfd (fd ≥ 0) that grows with
   them, or anonymous memory (fd -1), which serves ranks that are threads. Pages exist once they are committed or
   touched. Huge pages are asked for (madvise), or it consists of those of hugetlbfs. */
typedef struct mem_region {
    void *base;
    size_t bytes;
    size_t open_bytes; /* whole pages; only grows */
    size_t page_bytes; /* of a region that was made here: the system's pages, or 2 MiB of hugetlbfs */
    int fd;
    size_t behind_bytes; /* addresses behind it that are reserved for another region */
} mem_region;

/* Reserves addresses alone: nothing of them is open yet. */
expar_status mem_region_create(size_t bytes, bool shareable, mem_region *out);
/* The same, and so many addresses behind it for mem_region_create_behind; 0: none. */
expar_status mem_region_create_before(size_t bytes, size_t behind_bytes, bool shareable, mem_region *out);
/* A shareable one of huge pages of hugetlbfs, with memory for its first bytes; `bytes` is rounded up to whole ones.
   EXPAR_ERR_UNSUPPORTED: the system knows none. EXPAR_ERR_MEMORY: too few are free. */
expar_status mem_region_create_huge(size_t bytes, size_t first_bytes, size_t behind_bytes, mem_region *out);
/* A region of the system's pages at the addresses that `before` has reserved behind it, and gives away: each of the two
   is closed by itself. Its file is as long as it will ever be, and sparse: all of it is open, but for anonymous memory,
   where a range opens as it is committed. */
expar_status mem_region_create_behind(mem_region *before, bool shareable, mem_region *out);
/* Maps all of a peer's region of at most `bytes` bytes from its descriptor, which is closed in any case. What the peer
   opens later is there without another call; nothing behind that may be touched. */
expar_status mem_region_map(int fd, size_t bytes, mem_region *out);
/* The same, with the one that lies behind it (mem_region_create_behind) there, too: one range in which both have the
   offsets that they have at the peer. behind_fd -1: there is none. Closes both descriptors in any case. */
expar_status mem_region_map_both(int fd, size_t bytes, int behind_fd, mem_region *out);
/* Opens the region up to `end`, at least. EXPAR_ERR_MEMORY: a limit of this process or the system, named. */
expar_status mem_region_open(mem_region *region, size_t end);
/* What one thread at a time may commit before the limits on memory are looked at again. */
typedef struct mem_budget {
    size_t vetted_bytes; /* 0 at first */
    int32_t sharers;     /* ranks of the host, which take as much at the same time */
} mem_budget;
/* Takes memory for an open range, so that lack of it is EXPAR_ERR_MEMORY here and no signal on a later touch. Stops
   short of what the machine and this process's memory cgroup have left; part of the range may have been taken then.
   What the range holds stays as it is. */
expar_status mem_region_commit(const mem_region *region, mem_budget *budget, size_t offset, size_t bytes);
/* Gives the physical pages of a range back; the range reads as zero afterwards. Rounded inwards to whole pages. */
void mem_region_discard(mem_region *region, size_t offset, size_t bytes);
/* The memory that the region has; 0 where the system does not say (anonymous memory). */
uint64_t mem_region_memory(const mem_region *region);
/* What of it is mapped by huge pages now, whether of hugetlbfs or by the kernel's own choice. Reads /proc. */
uint64_t mem_region_huge_bytes(const mem_region *region);
void mem_region_close(mem_region *region);

/* ---- room (room.c): what memory is left -------------------------------------------------------------------------- */

#define MEM_ROOM_TEXT 160
typedef struct mem_room {
    uint64_t bytes;            /* UINT64_MAX: no limit is known */
    char limit[MEM_ROOM_TEXT]; /* what sets it, for error texts */
} mem_room;
/* The least of what the machine has available and what the memory cgroups of this process leave (versions 1 and 2),
   page cache that can go counted as free. `root` stands before /proc and /sys; "" but in tests. */
void mem_room_find(const char *root, mem_room *out);

#endif

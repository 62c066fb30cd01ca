/* SPDX-License-Identifier: Apache-2.0 */
/* Regions: shared memory without a name in the file system, at a well aligned range of addresses. It is opened and
 * filled with pages as needed. */
#include "mem/huge.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* Every region has at least this alignment, for huge pages. Larger ones are aligned to their size, so that an offset's
   alignment is the address's alignment up to ALIGNMENT_MAX. */
#define ALIGNMENT_MIN ((size_t)2 << 20)
#define ALIGNMENT_MAX ((size_t)1 << 30)

#define REGION_SEALS F_SEAL_SHRINK

/* The largest part that a peer may have after its heap. */
#define FOLLOWING_MAX ((size_t)1 << 46)

/* Memory is committed in steps of this size; the limits are checked before each step. */
#define COMMIT_STEP_BYTES ((size_t)16 << 20)

/* Linux 5.14; C libraries before 2.35 do not name it. */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

static size_t region_alignment(size_t bytes)
{
    size_t alignment = ALIGNMENT_MIN;
    while (alignment < ALIGNMENT_MAX && alignment * 2 <= bytes)
        alignment *= 2;
    return alignment;
}

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* Returns the range's size in whole pages; 0 if it has no bytes or too many. */
static size_t whole_pages(size_t bytes, size_t page)
{
    size_t padded;
    if (bytes == 0 || size_add_overflows(bytes, page - 1, &padded)) return 0;
    return padded & ~(page - 1);
}

static expar_status no_address_space(size_t bytes)
{
    int error = errno;
    if (error != ENOMEM) return error_errno("cannot map a symmetric heap of %zu bytes", bytes);
    return error_set(EXPAR_ERR_MEMORY,
                     "cannot reserve %zu bytes of address space for a symmetric heap: make it smaller (EXPAR_HEAP_SIZE "
                     "or heap_bytes), or raise the limit on address space (ulimit -v)",
                     bytes);
}

/* Reserves an aligned range of addresses without memory. */
static expar_status reserve(size_t bytes, void **out)
{
    size_t alignment = region_alignment(bytes);
    size_t total;
    if (size_add_overflows(bytes, alignment, &total))
        return error_set(EXPAR_ERR_ARGUMENT, "a symmetric heap of %zu bytes does not fit the address space", bytes);
    uint8_t *raw = mmap(NULL, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED) return no_address_space(bytes);
    size_t lead = (size_t)(align_up((uintptr_t)raw, alignment) - (uintptr_t)raw);
    size_t tail = total - lead - bytes;
    if (lead > 0) munmap(raw, lead);
    if (tail > 0) munmap(raw + lead + bytes, tail);
    *out = raw + lead;
    return EXPAR_OK;
}

/* Maps reserved addresses. fd -1: anonymous memory, without any access so far. The caller keeps the descriptor. */
static expar_status map_at(int fd, void *base, size_t bytes)
{
    const int flags = MAP_FIXED | MAP_NORESERVE | MAP_SHARED;
    if (fd >= 0 && mmap(base, bytes, PROT_READ | PROT_WRITE, flags, fd, 0) == MAP_FAILED)
        return no_address_space(bytes);
    /* Both calls may fail without harm: the kernel may have no huge pages, and a core file without the heap is only
       smaller. */
    madvise(base, bytes, MADV_HUGEPAGE);
    madvise(base, bytes, MADV_DONTDUMP);
    return EXPAR_OK;
}

/* Also reserves following_bytes of addresses after it. */
static expar_status map_at_reserve(int fd, size_t bytes, size_t following_bytes, void **out)
{
    void *base = NULL;
    size_t total;
    if (size_add_overflows(bytes, following_bytes, &total))
        return error_set(EXPAR_ERR_ARGUMENT, "a symmetric heap of %zu bytes does not fit the address space", bytes);
    expar_status status = reserve(total, &base);
    if (status != EXPAR_OK) return status;
    status = map_at(fd, base, bytes);
    if (status == EXPAR_OK)
        *out = base;
    else
        munmap(base, total);
    return status;
}

/* Sealed against shrinking: if a peer made its file shorter, ranks that access it would be killed by SIGBUS. */
static expar_status sealed_memfd(int *out)
{
    int fd = memfd_create("expar-heap", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return error_errno("memfd_create for a symmetric heap");
    if (fcntl(fd, F_ADD_SEALS, REGION_SEALS) != 0) {
        expar_status status = error_errno("sealing a symmetric heap");
        close(fd);
        return status;
    }
    *out = fd;
    return EXPAR_OK;
}

static expar_status check_bytes(size_t bytes, size_t page, size_t *rounded)
{
    *rounded = whole_pages(bytes, page);
    if (*rounded > 0 && *rounded <= PTRDIFF_MAX) return EXPAR_OK;
    return error_set(EXPAR_ERR_ARGUMENT, "a symmetric heap of %zu bytes: expected 1 to %td", bytes, PTRDIFF_MAX);
}

/* Takes ownership of fd. */
static expar_status map_new(int fd, size_t bytes, size_t following_bytes, size_t page, mem_region *out)
{
    void *base;
    expar_status status = map_at_reserve(fd, bytes, following_bytes, &base);
    if (status == EXPAR_OK)
        *out = (mem_region){
            .base = base, .bytes = bytes, .page_bytes = page, .fd = fd, .following_bytes = following_bytes};
    else if (fd >= 0)
        close(fd);
    return status;
}

expar_status mem_region_create_before(size_t bytes, size_t following_bytes, bool shareable, mem_region *out)
{
    int fd = -1;
    size_t rounded;
    expar_status status = check_bytes(bytes, page_bytes(), &rounded);
    if (status == EXPAR_OK && shareable) status = sealed_memfd(&fd);
    if (status != EXPAR_OK) return status;
    return map_new(fd, rounded, whole_pages(following_bytes, page_bytes()), page_bytes(), out);
}

expar_status mem_region_create(size_t bytes, bool shareable, mem_region *out)
{
    return mem_region_create_before(bytes, 0, shareable, out);
}

expar_status mem_region_create_huge(size_t bytes, size_t first_bytes, size_t following_bytes, mem_region *out)
{
    int fd;
    size_t rounded;
    expar_status status = check_bytes(bytes, HUGE_BYTES, &rounded);
    if (status == EXPAR_OK) status = huge_memfd(REGION_SEALS, rounded, whole_pages(first_bytes, HUGE_BYTES), &fd);
    return status == EXPAR_OK ? map_new(fd, rounded, whole_pages(following_bytes, HUGE_BYTES), HUGE_BYTES, out)
                              : status;
}

/* A peer's file is mapped only if accesses to its opened part can never fault. */
static expar_status check_peer_file(int fd, size_t bytes)
{
    struct stat facts;
    if (fstat(fd, &facts) != 0) return error_errno("fstat of a peer's heap");
    if (facts.st_size <= 0 || (uint64_t)facts.st_size > bytes)
        return error_set(EXPAR_ERR_MISMATCH, "a peer's heap has %lld bytes, expected 1 to %zu",
                         (long long)facts.st_size, bytes);
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & REGION_SEALS) != REGION_SEALS)
        return error_set(EXPAR_ERR_MISMATCH, "a peer's heap is not sealed against shrinking");
    return EXPAR_OK;
}

/* Checked first, since the kernel answers a file that grows too large with a signal. */
static expar_status grow_file(int fd, size_t end)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && end > limit.rlim_cur)
        return error_set(
            EXPAR_ERR_MEMORY,
            "a symmetric heap cannot grow to %zu bytes: the limit on the size of files is %llu (ulimit -f)", end,
            (unsigned long long)limit.rlim_cur);
    if (ftruncate(fd, (off_t)end) == 0) return EXPAR_OK;
    error_errno("ftruncate of a symmetric heap to %zu bytes", end);
    return EXPAR_ERR_MEMORY;
}

expar_status mem_region_create_following(mem_region *before, bool shareable, mem_region *out)
{
    const size_t bytes = before->following_bytes;
    void *base = (uint8_t *)before->base + before->bytes;
    int fd = -1;
    expar_status status = shareable ? sealed_memfd(&fd) : EXPAR_OK;
    if (status == EXPAR_OK && shareable) status = grow_file(fd, bytes);
    if (status == EXPAR_OK) status = map_at(fd, base, bytes);
    if (status != EXPAR_OK) {
        if (fd >= 0) close(fd);
        return status;
    }
    *out = (mem_region){.base = base, .bytes = bytes, .open_bytes = bytes, .page_bytes = page_bytes(), .fd = fd};
    before->following_bytes = 0;
    return EXPAR_OK;
}

/* Gets the size of a peer's whole region from the length of its file. */
static expar_status following_bytes_of(int fd, size_t *bytes)
{
    struct stat facts;
    *bytes = 0;
    if (fd < 0) return EXPAR_OK;
    if (fstat(fd, &facts) != 0) return error_errno("fstat of a peer's pool");
    *bytes = whole_pages((size_t)facts.st_size, page_bytes());
    return check_peer_file(fd, FOLLOWING_MAX);
}

static expar_status map_both(int fd, size_t bytes, int following_fd, mem_region *out)
{
    void *base;
    size_t following;
    expar_status status = check_peer_file(fd, bytes);
    if (status == EXPAR_OK) status = following_bytes_of(following_fd, &following);
    if (status == EXPAR_OK) status = map_at_reserve(fd, bytes, following, &base);
    if (status != EXPAR_OK) return status;
    if (following > 0) status = map_at(following_fd, (uint8_t *)base + bytes, following);
    if (status == EXPAR_OK)
        *out = (mem_region){.base = base, .bytes = bytes + following, .fd = -1};
    else
        munmap(base, bytes + following);
    return status;
}

expar_status mem_region_map_both(int fd, size_t bytes, int following_fd, mem_region *out)
{
    expar_status status = map_both(fd, whole_pages(bytes, page_bytes()), following_fd, out);
    if (fd >= 0) close(fd);
    if (following_fd >= 0) close(following_fd);
    return status;
}

expar_status mem_region_map(int fd, size_t bytes, mem_region *out)
{
    return mem_region_map_both(fd, bytes, -1, out);
}

/* ---- opening and filling ----------------------------------------------------------------------------------------- */

expar_status mem_region_open(mem_region *region, size_t end)
{
    size_t border = whole_pages(end, region->page_bytes);
    if (border <= region->open_bytes) return EXPAR_OK;
    if (border > region->bytes)
        return error_set(EXPAR_ERR_ARGUMENT, "a symmetric heap of %zu bytes cannot grow to %zu", region->bytes, end);
    expar_status status = EXPAR_OK;
    uint8_t *closed = (uint8_t *)region->base + region->open_bytes;
    if (region->fd >= 0)
        status = region->page_bytes < HUGE_BYTES ? grow_file(region->fd, border) : EXPAR_OK;
    else if (mprotect(closed, border - region->open_bytes, PROT_READ | PROT_WRITE) != 0) {
        error_errno("mprotect of a symmetric heap up to %zu bytes", end);
        status = EXPAR_ERR_MEMORY;
    }
    if (status == EXPAR_OK) region->open_bytes = border;
    return status;
}

/* Allows the next step of `bytes` that are still to come, if there is free memory for all of them, and for a step of
   every sharer. */
static expar_status vet(mem_budget *budget, size_t bytes)
{
    mem_available spare;
    mem_available_find("", &spare);
    const size_t needed = bytes < COMMIT_STEP_BYTES ? bytes : COMMIT_STEP_BYTES;
    const uint64_t share = spare.bytes / (uint64_t)budget->sharers & ~(uint64_t)(page_bytes() - 1);
    if (share < needed || spare.bytes < bytes)
        return error_set(EXPAR_ERR_MEMORY, "%llu bytes of memory are left for %d ranks (%s), %zu more are needed",
                         (unsigned long long)spare.bytes, budget->sharers, spare.limit, bytes);
    budget->vetted_bytes = share < COMMIT_STEP_BYTES ? (size_t)share : COMMIT_STEP_BYTES;
    return EXPAR_OK;
}

/* Makes pages by a fault that reports instead of signalling. Older kernels allocate them through the file; if anonymous
   memory runs out, no signal is raised anyhow. */
static expar_status populate(const mem_region *region, size_t offset, size_t bytes)
{
    int result;
    do {
        result = madvise((uint8_t *)region->base + offset, bytes, MADV_POPULATE_WRITE);
    } while (result != 0 && (errno == EINTR || errno == EAGAIN));
    if (result != 0 && errno == EINVAL)
        result = region->fd < 0 ? 0 : fallocate(region->fd, 0, (off_t)offset, (off_t)bytes);
    if (result == 0) return EXPAR_OK;
    error_errno("the system has no memory for %zu more bytes", bytes);
    return EXPAR_ERR_MEMORY;
}

expar_status mem_region_commit(const mem_region *region, mem_budget *budget, size_t offset, size_t bytes)
{
    const size_t page = region->page_bytes;
    size_t at = offset & ~(page - 1), last = (size_t)align_up(offset + bytes, page);
    if (bytes == 0) return EXPAR_OK;
    if (region->fd < 0 && mprotect((uint8_t *)region->base + at, last - at, PROT_READ | PROT_WRITE) != 0) {
        error_errno("mprotect of %zu bytes", last - at);
        return EXPAR_ERR_MEMORY;
    }
    if (page >= HUGE_BYTES) return huge_take(region->fd, at, last - at);
    while (at < last) {
        expar_status status = budget->vetted_bytes == 0 ? vet(budget, last - at) : EXPAR_OK;
        size_t step = last - at < budget->vetted_bytes ? last - at : budget->vetted_bytes;
        if (status == EXPAR_OK) status = populate(region, at, step);
        if (status != EXPAR_OK) return status;
        budget->vetted_bytes -= step;
        at += step;
    }
    return EXPAR_OK;
}

uint64_t mem_region_memory(const mem_region *region)
{
    struct stat facts;
    return region->fd >= 0 && fstat(region->fd, &facts) == 0 ? (uint64_t)facts.st_blocks * 512 : 0;
}

void mem_region_discard(mem_region *region, size_t offset, size_t bytes)
{
    size_t page = region->page_bytes;
    size_t end;
    if (size_add_overflows(offset, bytes, &end) || end > region->open_bytes) return;
    size_t first = (size_t)align_up(offset, page);
    size_t last = end & ~(page - 1);
    if (first >= last) return;
    uint8_t *start = (uint8_t *)region->base + first;
    if (madvise(start, last - first, region->fd < 0 ? MADV_DONTNEED : MADV_REMOVE) == 0) return;
    /* A kernel that cannot punch holes keeps the pages, but the range must read as zero. */
    memset(start, 0, last - first);
}

void mem_region_close(mem_region *region)
{
    if (region->base) munmap(region->base, region->bytes + region->following_bytes);
    if (region->fd >= 0) close(region->fd);
    *region = (mem_region){.fd = -1};
}

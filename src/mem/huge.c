/* SPDX-License-Identifier: Apache-2.0 */
/* Huge pages: regions on pages of hugetlbfs, which the administrator has reserved, and how much of a region's memory is
 * huge, by any means. */
#include "mem/huge.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/memfd.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define POOL "/sys/kernel/mm/hugepages/hugepages-2048kB/"

static uint64_t pages_in(const char *path)
{
    unsigned long long pages = 0;
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    if (fscanf(file, "%llu", &pages) != 1) pages = 0;
    fclose(file);
    return pages;
}

static expar_status none_left(size_t bytes)
{
    return error_set(EXPAR_ERR_MEMORY,
                     "no huge pages for %zu more bytes: %" PRIu64 " of %" PRIu64
                     " pages of 2 MiB are free (vm.nr_hugepages says how many there are)",
                     bytes, pages_in(POOL "free_hugepages"), pages_in(POOL "nr_hugepages"));
}

expar_status huge_take(int fd, size_t offset, size_t bytes)
{
    int result;
    do {
        result = fallocate(fd, 0, (off_t)offset, (off_t)bytes);
    } while (result != 0 && errno == EINTR);
    if (result == 0) return EXPAR_OK;
    return errno == ENOSPC || errno == ENOMEM ? none_left(bytes) : error_errno("fallocate of %zu huge bytes", bytes);
}

static expar_status seal_and_take(int fd, int seals, size_t bytes, size_t first_bytes)
{
    if (fcntl(fd, F_ADD_SEALS, seals) != 0) return error_errno("sealing a symmetric heap of huge pages");
    if (ftruncate(fd, (off_t)bytes) != 0) return error_errno("ftruncate of huge pages to %zu bytes", bytes);
    return huge_take(fd, 0, first_bytes);
}

expar_status huge_memfd(int seals, size_t bytes, size_t first_bytes, int *out)
{
    int fd = memfd_create("expar-heap", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB | MFD_HUGE_2MB);
    if (fd < 0) {
        int error = errno;
        return error_set(EXPAR_ERR_UNSUPPORTED, "this system has no huge pages of 2 MiB: memfd_create: %s",
                         strerror(error));
    }
    expar_status status = seal_and_take(fd, seals, bytes, first_bytes);
    if (status == EXPAR_OK)
        *out = fd;
    else
        close(fd);
    return status;
}

/* ---- huge pages of a region -------------------------------------------------------------------------------------- */

/* Parses a line that begins a mapping: "FIRST-LAST …" in hexadecimal. */
static bool mapping_of(const char *line, uintptr_t *first)
{
    uintptr_t last;
    return sscanf(line, "%" SCNxPTR "-%" SCNxPTR " ", first, &last) == 2;
}

uint64_t mem_region_huge_bytes(const mem_region *region)
{
    static const char *const keys[] = {"AnonHugePages:", "ShmemPmdMapped:"};
    const uintptr_t base = (uintptr_t)region->base;
    char line[512];
    uint64_t sum = 0;
    bool inside = false;
    if (region->page_bytes >= HUGE_BYTES) return mem_region_memory(region);
    FILE *file = fopen("/proc/self/smaps", "re");
    if (!file) return 0;
    while (fgets(line, sizeof line, file)) {
        uintptr_t first;
        unsigned long long kilobytes;
        if (mapping_of(line, &first)) inside = first >= base && first - base < region->bytes;
        for (size_t i = 0; inside && i < ARRAY_LENGTH(keys); i++)
            if (strncmp(line, keys[i], strlen(keys[i])) == 0 && sscanf(line + strlen(keys[i]), "%llu", &kilobytes) == 1)
                sum += (uint64_t)kilobytes * 1024;
    }
    fclose(file);
    return sum;
}

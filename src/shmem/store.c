/* SPDX-License-Identifier: Apache-2.0 */
/* The part that follows a rank's heap: how many addresses it has, and which of its blocks stay until the group ends.
 * Addresses cost nothing else, because memory comes with the outputs. */
#include "shmem/parts.h"

#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#define GRAIN_BYTES ((uint64_t)2 << 20)
/* Limit for the heaps of all ranks that a process maps: half of what 47 bits address. */
#define PROCESS_BYTES ((uint64_t)1 << 46)
/* Limit for the parts of all thread ranks: ThreadSanitizer leaves few addresses to a process. */
#define THREADS_BYTES ((uint64_t)1 << 39)

static uint64_t lesser(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t machine_bytes(void)
{
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : PROCESS_BYTES;
}

static uint64_t limit_of(int resource)
{
    struct rlimit limit;
    if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return UINT64_MAX;
    return limit.rlim_cur;
}

void sym_strand(sym *self, mem_block *block)
{
    sym_stranded *one = malloc(sizeof *one);
    /* Without a record the block is never freed, and its store stays. */
    if (!one) return;
    pthread_mutex_lock(&self->lock);
    *one = (sym_stranded){.block = block, .next = self->stranded};
    self->stranded = one;
    pthread_mutex_unlock(&self->lock);
}

void sym_strand_end(sym *self)
{
    while (self->stranded) {
        sym_stranded *one = self->stranded;
        self->stranded = one->next;
        mem_block_release(one->block);
        free(one);
    }
}

size_t sym_store_reserve(size_t heap_bytes, int32_t ranks, bool by_threads)
{
    const uint64_t each = (by_threads ? THREADS_BYTES : PROCESS_BYTES) / (uint64_t)ranks;
    uint64_t bytes = machine_bytes();
    if (by_threads)
        bytes = lesser(bytes, each);
    else
        bytes = lesser(bytes, each > heap_bytes ? each - heap_bytes : 0);
    /* If addresses are limited, the heap must fit first. A file's length is limited, too. */
    bytes = lesser(bytes, limit_of(RLIMIT_AS) / (4 * (uint64_t)ranks));
    if (!by_threads) bytes = lesser(bytes, limit_of(RLIMIT_FSIZE));
    bytes -= bytes % GRAIN_BYTES;
    return (size_t)(bytes > 0 ? bytes : GRAIN_BYTES);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The symmetric heap, and the order of memory: fence, quiet, barriers, locks. */
#include "openshmem/shm.h"

/* A full heap is the caller's to deal with; all PEs see the same. */
static void *made(expar_status status, void *block)
{
    if (status == EXPAR_ERR_MEMORY) return NULL;
    shm_must(status);
    return block;
}

static bool uses_host(void)
{
    return shm.memory == EXPAR_MEMORY_HOST;
}

/* Takes pinned memory. */
static void *take_pinned(size_t bytes, size_t alignment, bool zeroed)
{
    void *block = NULL;
    expar_memory_options options = EXPAR_MEMORY_OPTIONS_INIT;
    options.kind = shm.memory;
    options.device = shm.device;
    options.bytes = bytes;
    options.alignment = alignment;
    options.zeroed = zeroed;
    expar_status status = expar_memory_alloc(shm.group, &options, &block);
    return made(status, block);
}

void *shmem_malloc(size_t size)
{
    void *block = NULL;
    if (!uses_host()) return take_pinned(size, 0, false);
    expar_status status = expar_malloc(shm.group, size, &block);
    return made(status, block);
}

void *shmem_malloc_with_hints(size_t size, long hints)
{
    (void)hints;
    return shmem_malloc(size);
}

void *shmem_calloc(size_t count, size_t size)
{
    void *block = NULL;
    if (!uses_host()) return take_pinned(shm_bytes(count, size), 0, true);
    expar_status status = expar_calloc(shm.group, count, size, &block);
    return made(status, block);
}

void *shmem_align(size_t alignment, size_t size)
{
    void *block = NULL;
    if (!uses_host()) return take_pinned(size, alignment, false);
    expar_status status = expar_align(shm.group, alignment, size, &block);
    return made(status, block);
}

void *shmem_realloc(void *ptr, size_t size)
{
    void *block = NULL;
    if (!uses_host() && !ptr) return take_pinned(size, 0, false);
    expar_status status = expar_realloc(shm.group, ptr, size, &block);
    return made(status, block);
}

void shmem_free(void *ptr)
{
    shm_must(expar_free(shm.group, ptr));
}

void shmem_fence(void)
{
    shm_must(expar_fence(shm.group));
}

void shmem_quiet(void)
{
    shm_must(expar_quiet(shm.group));
}

void shmem_barrier_all(void)
{
    shm_must(expar_barrier_all(shm.group));
}

void shmem_sync_all(void)
{
    shm_must(expar_team_sync(shm.world));
}

_Static_assert(sizeof(long) == sizeof(uint64_t), "a lock is a long");

void shmem_set_lock(long *lock)
{
    shm_must(expar_lock_set(shm.group, (uint64_t *)lock));
}

void shmem_clear_lock(long *lock)
{
    shm_must(expar_lock_clear(shm.group, (uint64_t *)lock));
}

int shmem_test_lock(long *lock)
{
    int taken;
    shm_must(expar_lock_test(shm.group, (uint64_t *)lock, &taken));
    return !taken;
}

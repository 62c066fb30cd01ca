/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of all kinds in tests: taking it, and writing and reading it as its owner does. Device memory is written and
 * read by the driver's copies. */
#ifndef TESTS_PGAS_MEMORIES_H
#define TESTS_PGAS_MEMORIES_H

#include "cuda/gpus.h"
#include "shmem/kind.h"

#include "cuda/cuda.h"

#define MAX_RANKS 8
#define KIB       ((size_t)1 << 10)
#define MIB       ((size_t)1 << 20)
#define KINDS     3

static int32_t num_gpus;

static const char *const kind_names[KINDS] = {"host", "device", "pinned"};

/* By CUDA IPC the first allocation fixes the size. */
static inline bool whole(void)
{
    return kind_of_ranks == RANKS_PROCESSES && getenv("EXPAR_CUDA_IPC");
}

static inline int32_t gpu_of(const expar_group *group)
{
    return group->rank % num_gpus;
}

static inline expar_memory_options options_of(const expar_group *group, expar_memory_kind kind, size_t bytes,
                                              size_t alignment)
{
    expar_memory_options options = EXPAR_MEMORY_OPTIONS_INIT;
    options.kind = kind;
    options.device = kind == EXPAR_MEMORY_HOST ? 0 : gpu_of(group);
    options.bytes = bytes;
    options.alignment = alignment;
    return options;
}

static inline void *take(expar_group *group, expar_memory_kind kind, size_t bytes, size_t alignment)
{
    void *block = NULL;
    const expar_memory_options options = options_of(group, kind, bytes, alignment);
    CHECK_OK(expar_memory_alloc(group, &options, &block));
    return block;
}

static inline void *take_zeros(expar_group *group, expar_memory_kind kind, size_t bytes)
{
    void *block = NULL;
    expar_memory_options options = options_of(group, kind, bytes, 0);
    options.zeroed = 1;
    CHECK_OK(expar_memory_alloc(group, &options, &block));
    return block;
}

/* ---- memory of any kind, from the host --------------------------------------------------------------------------- */

static inline void copy_on_gpu(const expar_group *group, void *to, const void *from, size_t bytes)
{
    cuda_device *device = NULL;
    if (!CHECK_OK(cuda_device_open(gpu_of(group), &device)) || !CHECK_OK(cuda_enter(device))) return;
    CHECK_OK(CUDA_CALL(MemcpyAsync, (cu_address)(uintptr_t)to, (cu_address)(uintptr_t)from, bytes, NULL));
    CHECK_OK(cuda_synchronize());
    cuda_leave();
    cuda_device_close(device);
}

static inline void write_to(const expar_group *group, expar_memory_kind kind, void *at, const void *from, size_t bytes)
{
    if (kind == EXPAR_MEMORY_DEVICE)
        copy_on_gpu(group, at, from, bytes);
    else
        memcpy(at, from, bytes);
}

static inline void read_from(const expar_group *group, expar_memory_kind kind, const void *at, void *to, size_t bytes)
{
    if (kind == EXPAR_MEMORY_DEVICE)
        copy_on_gpu(group, to, at, bytes);
    else
        memcpy(to, at, bytes);
}

static inline uint8_t pattern(uint32_t seed, size_t i)
{
    return (uint8_t)(seed * 37 + i * 11 + (i >> 8));
}

static inline void fill_block(const expar_group *group, expar_memory_kind kind, void *block, size_t bytes,
                              uint32_t seed)
{
    uint8_t *data = malloc(bytes);
    for (size_t i = 0; i < bytes; i++)
        data[i] = pattern(seed, i);
    write_to(group, kind, block, data, bytes);
    free(data);
}

static inline bool holds_pattern(const expar_group *group, expar_memory_kind kind, const void *block, size_t bytes,
                                 uint32_t seed)
{
    uint8_t *data = malloc(bytes);
    size_t wrong = 0;
    read_from(group, kind, block, data, bytes);
    for (size_t i = 0; i < bytes; i++)
        wrong += data[i] != pattern(seed, i);
    free(data);
    return CHECK(wrong == 0, "%zu of %zu bytes of %s memory are wrong", wrong, bytes, kind_names[kind]);
}

static inline bool holds_zeros(const expar_group *group, expar_memory_kind kind, const void *block, size_t bytes)
{
    uint8_t *data = malloc(bytes);
    size_t wrong = 0;
    read_from(group, kind, block, data, bytes);
    for (size_t i = 0; i < bytes; i++)
        wrong += data[i] != 0;
    free(data);
    return CHECK(wrong == 0, "%zu of %zu bytes of %s memory are not zero", wrong, bytes, kind_names[kind]);
}

#endif

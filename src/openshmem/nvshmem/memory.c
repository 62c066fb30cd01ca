/* SPDX-License-Identifier: Apache-2.0 */
/* Symmetric memory, and the handles by which kernels reach it. */
#include "openshmem/nvshmem/nv.h"

#include <stdio.h>
#include <string.h>

/* ---- kernels' handles -------------------------------------------------------------------------------------------- */

static bool nv_has_handle(nvshmem_team_t team)
{
    return expar_kernel_n_pes(&nv.handles[team]) > 0;
}

/* The copy for kernels of the GPU. */
static void show_handle(nvshmem_team_t team)
{
    if (!nv.table) return;
    exit_must(
        expar_put(nv.group, &nv.table[team], &nv.handles[team], sizeof nv.handles[team], expar_group_rank(nv.group)));
}

void nv_handle_make(nvshmem_team_t team)
{
    expar_device_options options = EXPAR_DEVICE_OPTIONS_INIT;
    if (nv.memory == NV_UNKNOWN || !nv.teams[team]) return;
    options.target = nv.memory == NV_DEVICE ? EXPAR_DEVICE_GPU : EXPAR_DEVICE_CPU;
    options.team = nv.teams[team];
    exit_must(expar_device_get(nv.group, &options, &nv.handles[team]));
    show_handle(team);
}

void nv_handle_drop(nvshmem_team_t team)
{
    memset(&nv.handles[team], 0, sizeof nv.handles[team]);
    show_handle(team);
}

void nv_check_kernels(void)
{
    for (nvshmem_team_t team = 0; nv.group && team < EXPAR_NV_TEAMS; team++) {
        expar_device_error error = EXPAR_DEVICE_ERROR_INIT;
        if (!nv.teams[team] || !nv_has_handle(team)) continue;
        exit_must(expar_device_get_error(&nv.handles[team], &error));
        if (error.status != EXPAR_OK) exit_fail(error.text);
    }
}

const expar_device_handle *expar_nvshmem_cpu_handle(nvshmem_team_t team)
{
    if (nv.memory != NV_HOST || team < 0 || team >= EXPAR_NV_TEAMS) return NULL;
    return nv_has_handle(team) ? &nv.handles[team] : NULL;
}

/* ---- the choice of the memory ------------------------------------------------------------------------------------ */

static expar_status nv_allocate_on_gpu(size_t bytes, size_t alignment, bool is_zeroed, void **block)
{
    expar_memory_options options = EXPAR_MEMORY_OPTIONS_INIT;
    options.kind = EXPAR_MEMORY_DEVICE;
    options.device = nv.device;
    options.bytes = bytes;
    options.alignment = alignment;
    options.zeroed = is_zeroed;
    return expar_memory_alloc(nv.group, &options, block);
}

void nv_prepare(void)
{
    if (nv.memory != NV_UNKNOWN) return;
    if (!nv.group) exit_fail("nvshmem_init has not been called");
    nv.device = nv_modules_device();
    const expar_status status = nv_allocate_on_gpu(sizeof nv.handles, 0, true, (void **)&nv.table);
    if (status == EXPAR_ERR_UNSUPPORTED) {
        if (expar_group_rank(nv.group) == 0)
            fprintf(stderr, "nvshmem: PE 0: symmetric memory is host memory: %s\n", expar_last_error());
        nv.memory = NV_HOST;
    } else {
        exit_must(status);
        nv.memory = NV_DEVICE;
    }
    for (nvshmem_team_t team = 0; team < EXPAR_NV_TEAMS; team++)
        nv_handle_make(team);
    const expar_nv_state state = {.world = nv.handles[NVSHMEM_TEAM_WORLD], .teams = nv.table};
    if (nv.memory == NV_DEVICE) nv_modules_begin(&state);
}

void expar_nvshmem_prepare(void)
{
    nv_prepare();
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* A full heap is the caller's to deal with; all PEs see the same. */
static void *nv_allocate(size_t bytes, size_t alignment, bool is_zeroed)
{
    void *block = NULL;
    expar_status status;
    nv_prepare();
    if (nv.memory == NV_DEVICE)
        status = nv_allocate_on_gpu(bytes, alignment, is_zeroed, &block);
    else if (is_zeroed)
        status = expar_calloc(nv.group, 1, bytes, &block);
    else
        status = alignment ? expar_align(nv.group, alignment, bytes, &block) : expar_malloc(nv.group, bytes, &block);
    if (status == EXPAR_ERR_MEMORY) return NULL;
    exit_must(status);
    return block;
}

void *nvshmem_malloc(size_t size)
{
    return nv_allocate(size, 0, false);
}

void *nvshmem_calloc(size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) exit_fail("nvshmem_calloc: count * size overflows");
    return nv_allocate(bytes, 0, true);
}

void *nvshmem_align(size_t alignment, size_t size)
{
    return nv_allocate(size, alignment, false);
}

void nvshmem_free(void *ptr)
{
    exit_must(expar_free(nv.group, ptr));
}

void *expar_nvshmem_ptr(const void *address, int pe)
{
    if (!nv.group || pe < 0 || pe >= expar_group_size(nv.group)) return NULL;
    return nv.memory == NV_DEVICE ? expar_device_ptr(nv.group, address, pe) : expar_ptr(nv.group, address, pe);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of callers in tests: ordinary memory, blocks of each heap, and other memory of a GPU. */
#ifndef TESTS_PGAS_CALLERS_H
#define TESTS_PGAS_CALLERS_H

#include "pgas/memories.h"

/* The caller's side of a call. */
typedef enum caller_memory { ORDINARY, OWN_HOST, OWN_DEVICE, OWN_PINNED, OUTSIDE, CALLERS } caller_memory;
static const char *const caller_names[CALLERS] = {"ordinary", "own host", "own device", "own pinned", "other CUDA"};

static inline expar_memory_kind kind_of_caller(caller_memory caller)
{
    return caller == OWN_DEVICE || caller == OUTSIDE ? EXPAR_MEMORY_DEVICE : EXPAR_MEMORY_HOST;
}

static inline void *take_outside(const expar_group *group, size_t bytes)
{
    cuda_device *device;
    cu_address at = 0;
    if (!CHECK_OK(cuda_device_open(gpu_of(group), &device)) || !CHECK_OK(cuda_enter(device))) return NULL;
    CHECK_OK(CUDA_CALL(MemAlloc, &at, bytes));
    cuda_leave();
    cuda_device_close(device);
    return (void *)(uintptr_t)at;
}

static inline void give_outside(const expar_group *group, void *at)
{
    cuda_device *device;
    if (!CHECK_OK(cuda_device_open(gpu_of(group), &device)) || !CHECK_OK(cuda_enter(device))) return;
    CHECK_OK(CUDA_CALL(MemFree, (cu_address)(uintptr_t)at));
    cuda_leave();
    cuda_device_close(device);
}

/* Takes `bytes` of each. */
static inline bool callers_take(expar_group *group, uint8_t *callers[CALLERS], size_t bytes)
{
    callers[ORDINARY] = malloc(bytes);
    callers[OWN_HOST] = take(group, EXPAR_MEMORY_HOST, bytes, 0);
    callers[OWN_DEVICE] = take(group, EXPAR_MEMORY_DEVICE, bytes, 0);
    callers[OWN_PINNED] = take(group, EXPAR_MEMORY_PINNED, bytes, 0);
    callers[OUTSIDE] = take_outside(group, bytes);
    for (int c = 0; c < CALLERS; c++)
        if (!callers[c]) return false;
    return true;
}

static inline void callers_give(expar_group *group, uint8_t *const callers[CALLERS])
{
    CHECK_OK(expar_free(group, callers[OWN_HOST]));
    CHECK_OK(expar_free(group, callers[OWN_DEVICE]));
    CHECK_OK(expar_free(group, callers[OWN_PINNED]));
    free(callers[ORDINARY]);
    give_outside(group, callers[OUTSIDE]);
}

#endif

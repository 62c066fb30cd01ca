/* SPDX-License-Identifier: Apache-2.0 */
/* Finds where an address points: to host or device memory, and of which device.
 *
 * Every tensor needs this, even in processes that do not use CUDA. So this opens no driver; it only uses a driver that
 * this library or another one has loaded. A driver that was not started answers with an error. */
#include "cuda/parts.h"

#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>

typedef cu_result (*attributes_fn)(unsigned number, int *attributes, void **values, cu_address address);

/* cuPointerGetAttributes of the driver, once the driver was seen loaded; a driver is never unloaded. Relaxed, because
   every thread finds the same. */
static _Atomic(attributes_fn) known;

/* How many libraries this process had ever loaded at the last unsuccessful search for the driver. A search for a
   missing library takes the loader through all its folders, twenty system calls and more. Relaxed: a thread that reads
   an old number searches once more. */
static _Atomic unsigned long long looked_at;

/* Until this time passes, the loader is not asked for that number either. For that it goes through all libraries: in
   some programs hundreds of cold cache lines. A driver takes much longer from its loading until its first address; one
   that this library opens ends the time itself. The time is of the coarse clock, so it lasts until a later tick, 10 ms
   at most. Relaxed: as above. */
#define TRUSTED_NS 1000000
static _Atomic int64_t trusted_until_ns;

void cuda_place_distrust(void)
{
    atomic_store_explicit(&trusted_until_ns, 0, memory_order_relaxed);
}

static int take_loads(struct dl_phdr_info *info, size_t bytes, void *loads)
{
    (void)bytes;
    *(unsigned long long *)loads = info->dlpi_adds;
    return 1; /* every library gives the same number, so one is enough */
}

static attributes_fn find_attributes(void)
{
    attributes_fn found = atomic_load_explicit(&known, memory_order_relaxed);
    if (found) return found;
    const int64_t now_ns = clock_coarse_ns();
    if (now_ns < atomic_load_explicit(&trusted_until_ns, memory_order_relaxed)) return NULL;
    /* Read before the search: libraries that are loaded meanwhile change the number. */
    unsigned long long loads = 0;
    dl_iterate_phdr(take_loads, &loads);
    if (loads == atomic_load_explicit(&looked_at, memory_order_relaxed)) {
        atomic_store_explicit(&trusted_until_ns, now_ns + TRUSTED_NS, memory_order_relaxed);
        return NULL;
    }
    void *library = dlopen(CUDA_DRIVER_LIBRARY, RTLD_NOW | RTLD_NOLOAD);
    if (library && cuda_symbol_find(library, "cuPointerGetAttributes", &found)) {
        atomic_store_explicit(&known, found, memory_order_relaxed);
        return found;
    }
    if (library) dlclose(library);
    atomic_store_explicit(&looked_at, loads, memory_order_relaxed);
    return NULL;
}

cuda_place cuda_place_of(const void *address)
{
    cuda_place host = {.kind = CUDA_PLACE_HOST, .device = -1};
    attributes_fn get = address ? find_attributes() : NULL;
    if (!get) return host;
    uint32_t type = 0, managed = 0;
    int device = -1, wanted[] = {CU_POINTER_MEMORY_TYPE, CU_POINTER_DEVICE_ORDINAL, CU_POINTER_IS_MANAGED};
    void *values[] = {&type, &device, &managed};
    /* Addresses that the driver does not know have no type of memory: those are ordinary host memory. */
    if (get(ARRAY_LENGTH(wanted), wanted, values, (cu_address)(uintptr_t)address) != CU_OK || type != CU_MEMORY_DEVICE)
        return host;
    return (cuda_place){.kind = managed ? CUDA_PLACE_MANAGED : CUDA_PLACE_DEVICE, .device = device};
}

bool cuda_knows(const void *address)
{
    attributes_fn get = address ? find_attributes() : NULL;
    uint32_t type = 0;
    int wanted[] = {CU_POINTER_MEMORY_TYPE};
    void *values[] = {&type};
    return get && get(ARRAY_LENGTH(wanted), wanted, values, (cu_address)(uintptr_t)address) == CU_OK && type != 0;
}

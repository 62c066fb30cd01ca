/* SPDX-License-Identifier: Apache-2.0 */
/* Stands before the driver's cuModuleUnload, and reads the module's count first. */
#include "gpu/delays.h"
#include "cuda/cuda.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>

typedef cu_result (*get_global_fn)(cu_address *at, size_t *bytes, cu_module module, const char *name);
typedef cu_result (*unload_fn)(cu_module module);

static get_global_fn get_global;
static unload_fn unload;
static _Atomic uint64_t made;

/* Modules without such a count have no delays in them. */
static cu_result count_and_unload(cu_module module)
{
    cu_address at;
    size_t bytes;
    uint64_t count = 0;
    if (get_global && get_global(&at, &bytes, module, "gpu_delays") == 0 && bytes == sizeof count &&
        CUDA_CALL(MemcpyDtoH, &count, at, sizeof count) == EXPAR_OK)
        atomic_fetch_add(&made, count);
    return unload(module);
}

void delays_watch(void)
{
    /* The table is filled once, here at the latest, and const to the library alone. */
    cu_driver *driver = (cu_driver *)(uintptr_t)cuda_driver();
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library || unload || cuda_open() != EXPAR_OK) return;
    *(void **)&get_global = dlsym(library, "cuModuleGetGlobal_v2");
    unload = driver->ModuleUnload;
    driver->ModuleUnload = count_and_unload;
}

uint64_t delays_made(void)
{
    return atomic_load(&made);
}

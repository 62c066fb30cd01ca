/* SPDX-License-Identifier: Apache-2.0 */
/* Modules of kernels. Each has a variable with the state of kernels, which is filled once kernels can run. Code of nvcc
 * is filled by the CUDA runtime (expar/compat/parts/target.h), and modules that the program loads by the driver. */
#include "openshmem/nvshmem/nv.h"

#include <dlfcn.h>
#include <string.h>

#define DRIVER   "libcuda.so.1"
#define VARIABLE "expar_nvshmem_state"
/* Modules that the program may have loaded at a time. */
#define MOST_LOADED 64

/* A CUmodule or a CUlibrary. */
typedef struct loaded {
    void *handle;
    bool is_library;
} loaded;

/* The lock guards all below. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static expar_nvshmem_module *modules;
static loaded loads[MOST_LOADED];
static size_t num_loads;
static expar_nv_state filled;
static bool is_filled;

/* ---- the driver -------------------------------------------------------------------------------------------------- */

/* The driver's function of that name; NULL: there is none. */
static void *driver_call(const char *name)
{
    static void *library;
    if (!library) library = dlopen(DRIVER, RTLD_NOW | RTLD_LOCAL);
    return library ? dlsym(library, name) : NULL;
}

/* Results are CUresult: 0 is success. */
typedef int (*get_device_fn)(int *device);
typedef int (*get_global_fn)(uint64_t *address, size_t *bytes, void *module, const char *name);
typedef int (*copy_fn)(uint64_t to, const void *from, size_t bytes);

/* Another number than 0: there is no such variable, or it is of another version. */
static int fill_loaded(const loaded *load)
{
    uint64_t address = 0;
    size_t bytes = 0;
    const char *name = load->is_library ? "cuLibraryGetGlobal" : "cuModuleGetGlobal_v2";
    get_global_fn get_global = (get_global_fn)(uintptr_t)driver_call(name);
    copy_fn copy = (copy_fn)(uintptr_t)driver_call("cuMemcpyHtoD_v2");
    if (!get_global || !copy) return NVSHMEMX_ERROR_NOT_SUPPORTED;
    if (get_global(&address, &bytes, load->handle, VARIABLE) != 0 || bytes != sizeof filled)
        return NVSHMEMX_ERROR_INVALID_VALUE;
    return copy(address, &filled, bytes) == 0 ? NVSHMEMX_SUCCESS : NVSHMEMX_ERROR_INTERNAL;
}

/* ---- nvcc's modules ---------------------------------------------------------------------------------------------- */

int32_t nv_modules_device(void)
{
    int device = -1;
    pthread_mutex_lock(&lock);
    if (modules) device = modules->device();
    pthread_mutex_unlock(&lock);
    if (device >= 0) return device;
    get_device_fn get_device = (get_device_fn)(uintptr_t)driver_call("cuCtxGetDevice");
    return get_device && get_device(&device) == 0 && device >= 0 ? device : 0;
}

static void fill_module(const expar_nvshmem_module *module)
{
    if (module->version != EXPAR_DEVICE_VERSION)
        exit_fail("a module of kernels was compiled with the headers of another version of expar");
    if (module->fill(&filled, sizeof filled) != 0)
        exit_fail("CUDA does not set " VARIABLE " in a module: is it compiled for this PE's GPU?");
}

void expar_nvshmem_module_add(expar_nvshmem_module *module)
{
    pthread_mutex_lock(&lock);
    module->next = modules;
    modules = module;
    if (is_filled) fill_module(module);
    pthread_mutex_unlock(&lock);
}

/* ---- the program's own modules ----------------------------------------------------------------------------------- */

static int add_loaded(void *handle, bool is_library)
{
    const loaded load = {.handle = handle, .is_library = is_library};
    int status = NVSHMEMX_SUCCESS;
    pthread_mutex_lock(&lock);
    if (num_loads == MOST_LOADED)
        status = NVSHMEMX_ERROR_NOT_SUPPORTED;
    else if (is_filled)
        status = fill_loaded(&load);
    if (status == NVSHMEMX_SUCCESS) loads[num_loads++] = load;
    pthread_mutex_unlock(&lock);
    if (status == NVSHMEMX_SUCCESS) return status;
    return expar_nvshmem_rejects("the module has no variable " VARIABLE ", or there are more than 64 modules", status);
}

static int remove_loaded(const void *handle)
{
    int status = NVSHMEMX_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    for (size_t i = num_loads; i-- > 0 && status != NVSHMEMX_SUCCESS;)
        if (loads[i].handle == handle) {
            loads[i] = loads[--num_loads];
            status = NVSHMEMX_SUCCESS;
        }
    pthread_mutex_unlock(&lock);
    return status;
}

int nvshmemx_cumodule_init(CUmodule module)
{
    return add_loaded(module, false);
}

int nvshmemx_culibrary_init(CUlibrary library)
{
    return add_loaded(library, true);
}

int nvshmemx_cumodule_finalize(CUmodule module)
{
    return remove_loaded(module);
}

int nvshmemx_culibrary_finalize(CUlibrary library)
{
    return remove_loaded(library);
}

/* ---- both -------------------------------------------------------------------------------------------------------- */

void nv_modules_begin(const expar_nv_state *state)
{
    pthread_mutex_lock(&lock);
    filled = *state;
    is_filled = true;
    for (const expar_nvshmem_module *module = modules; module; module = module->next)
        fill_module(module);
    for (size_t i = 0; i < num_loads; i++)
        if (fill_loaded(&loads[i]) != NVSHMEMX_SUCCESS) exit_fail("a module that was loaded has no " VARIABLE);
    pthread_mutex_unlock(&lock);
}

void nv_modules_end(void)
{
    pthread_mutex_lock(&lock);
    is_filled = false;
    pthread_mutex_unlock(&lock);
}

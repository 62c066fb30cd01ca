/* SPDX-License-Identifier: Apache-2.0 */
/* The driver API: opened once for the process. Its functions are found by name, and its results become statuses. */
#include "cuda/parts.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

/* Filled by open_driver, under `once`; constant afterwards. */
static struct {
    pthread_once_t once;
    error_kept failure; /* why it cannot be used */
    cu_driver functions;
    int32_t version;
} driver = {.once = PTHREAD_ONCE_INIT};

/* ISO C has no cast from an object pointer to a function pointer; POSIX promises that the bytes are the same. */
bool cuda_symbol_find(void *library, const char *symbol, void *function)
{
    void *found = dlsym(library, symbol);
    memcpy(function, &found, sizeof found);
    return found != NULL;
}

static expar_status find_functions(void *library)
{
#define FIND(member, symbol, parameters)                                                                               \
    if (!cuda_symbol_find(library, symbol, &driver.functions.member))                                                  \
        return error_set(EXPAR_ERR_UNSUPPORTED,                                                                        \
                         "CUDA is not available: the driver (" CUDA_DRIVER_LIBRARY                                     \
                         ") has no %s; expected NVIDIA's driver 525 (CUDA 12.0) or newer",                             \
                         symbol);
    CU_DRIVER_TABLE(FIND)
#undef FIND
    return EXPAR_OK;
}

static expar_status start_driver(void)
{
    cu_result result = driver.functions.Init(0);
    const char *name = "?";
    driver.functions.GetErrorName(result, &name);
    if (result == CU_ERROR_NO_DEVICE)
        return error_set(EXPAR_ERR_UNSUPPORTED,
                         "CUDA is not available: the driver sees no GPU (nvidia-smi lists them; CUDA_VISIBLE_DEVICES "
                         "may hide them)");
    if (result != CU_OK)
        return error_set(
            EXPAR_ERR_UNSUPPORTED,
            "CUDA is not available: cuInit: %s (does nvidia-smi work? The kernel module and " CUDA_DRIVER_LIBRARY
            " must be of one version)",
            name);
    int version = 0;
    if (driver.functions.DriverGetVersion(&version) == CU_OK) driver.version = version;
    return EXPAR_OK;
}

static expar_status driver_open_library(void)
{
    void *library = dlopen(CUDA_DRIVER_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return error_set(EXPAR_ERR_UNSUPPORTED,
                         "CUDA is not available: %s; install NVIDIA's driver, 525 or newer (in a container: start it "
                         "with the GPUs, e.g. --gpus all)",
                         dlerror());
    cuda_place_distrust();
    expar_status status = find_functions(library);
    if (status == EXPAR_OK) status = start_driver();
    /* A driver that has started stays open, because it has threads of its own. */
    return status;
}

static void open_driver(void)
{
    error_keep(&driver.failure, driver_open_library());
}

expar_status cuda_open(void)
{
    pthread_once(&driver.once, open_driver);
    return error_restore(&driver.failure);
}

const cu_driver *cuda_driver(void)
{
    return &driver.functions;
}

int32_t cuda_driver_version(void)
{
    return driver.version;
}

expar_status cuda_status(cu_result result, const char *file, int line, const char *call)
{
    if (result == CU_OK) return EXPAR_OK;
    const char *name = NULL, *text = NULL;
    driver.functions.GetErrorName(result, &name);
    driver.functions.GetErrorString(result, &text);
    error_text(file, line, "%s: %s %d (%s)", call, name ? name : "CUDA error", result, text ? text : "unknown");
    return result == CU_ERROR_OUT_OF_MEMORY ? EXPAR_ERR_MEMORY : EXPAR_ERR_CUDA;
}

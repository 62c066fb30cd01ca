/* SPDX-License-Identifier: Apache-2.0 */
/* libfabric, opened at run time: the library works without it. */
#include "net/fabric/fabric.h"

#include <dlfcn.h>
#include <stdlib.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static fabric_library opened;
static error_kept failure; /* why it could not be opened */

static bool library_find(void *handle, const char *name, void *function, size_t bytes)
{
    void *address = dlsym(handle, name);
    /* ISO C has no cast from an object's pointer to a function's; POSIX promises that this works. */
    if (address) __builtin_memcpy(function, &address, bytes);
    return address != NULL;
}

/* Two of the libraries that come with Debian's libfabric install signal handlers for crashes in the program, and then
   write files into its folder. These variables prevent that. */
static void keep_signals(void)
{
    setenv("IPATH_NO_BACKTRACE", "1", 0);
    setenv("HFI_NO_BACKTRACE", "1", 0);
}

/* Endpoints of rxm take pools of 1024 bounce buffers for messages of up to 16 KiB, 17 MB each, and clear them. This
   library only reads and writes remote memory, which uses none of them. Without the pools a rank of two takes 27 MB,
   with them 103 MB. */
static void keep_memory(void)
{
    setenv("FI_OFI_RXM_BUFFER_SIZE", "1024", 0);
}

/* The first query makes libfabric load its providers, some of which set variables of their own. */
static void load_providers(void)
{
    struct fi_info *info = NULL;
    if (opened.getinfo(FI_VERSION(1, 15), NULL, NULL, FI_PROV_ATTR_ONLY, NULL, &info) == 0) opened.freeinfo(info);
}

/* Returns NULL, or why the library cannot be opened. */
static const char *library_open(void)
{
    keep_signals();
    keep_memory();
    void *handle = dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
    if (handle && library_find(handle, "fi_getinfo", &opened.getinfo, sizeof opened.getinfo) &&
        library_find(handle, "fi_freeinfo", &opened.freeinfo, sizeof opened.freeinfo) &&
        library_find(handle, "fi_dupinfo", &opened.dupinfo, sizeof opened.dupinfo) &&
        library_find(handle, "fi_fabric", &opened.fabric, sizeof opened.fabric) &&
        library_find(handle, "fi_strerror", &opened.strerror, sizeof opened.strerror)) {
        load_providers();
        return NULL;
    }
    const char *reason = dlerror();
    return reason ? reason : "a function is missing";
}

static void open_once(void)
{
    env_change_begin();
    const char *reason = library_open();
    env_change_end();
    if (!reason) return;
    /* Made after the change of variables, since an error may look variables up. */
    error_keep(&failure, error_set(EXPAR_ERR_UNSUPPORTED,
                                   "libfabric cannot be loaded (%s); Debian: apt-get install libfabric1", reason));
}

expar_status fabric_library_open(const fabric_library **out)
{
    pthread_once(&once, open_once);
    if (error_restore(&failure) != EXPAR_OK) return failure.status;
    *out = &opened;
    return EXPAR_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Finds NVRTC: where the loader looks, in a CUDA toolkit, or in a Python wheel (PyTorch brings one). */
#include "base/shown.h"
#include "cuda/nvrtc.h"
#include "cuda/parts.h"

#include <dlfcn.h>
#include <glob.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    pthread_once_t once;
    error_kept failure; /* why it cannot be used */
    nvrtc_functions functions;
    /* the first one for which the driver is too old; version 0: none. Written once, as the others */
    nvrtc_functions newer;
} found = {.once = PTHREAD_ONCE_INIT};

static bool nvrtc_fill(void *library, nvrtc_functions *out)
{
#define FIND(member, type, parameters)                                                                                 \
    if (!cuda_symbol_find(library, "nvrtc" #member, &out->member)) return false;
    NVRTC_TABLE(FIND)
#undef FIND
    Dl_info info;
    int major = 0, minor = 0;
    void *symbol = dlsym(library, "nvrtcVersion");
    if (dladdr(symbol, &info) && info.dli_fname) snprintf(out->path, sizeof out->path, "%s", info.dli_fname);
    if (out->Version(&major, &minor) != 0) return false;
    out->version = major * 1000 + minor * 10;
    return true;
}

/* A driver does not load code from the compiler of a later major version. Without a driver the code is only compiled,
   so any version will do. */
bool nvrtc_is_newer(const nvrtc_functions *nvrtc)
{
    return cuda_driver_version() != 0 && nvrtc->version / 1000 > cuda_driver_version() / 1000;
}

void nvrtc_describe_newer(const nvrtc_functions *nvrtc, char *text, size_t bytes)
{
    const int32_t driver = cuda_driver_version();
    snprintf(
        text, bytes,
        "NVRTC %d.%d was found at %.200s, but the driver is %d.%d and cannot load what it compiles; expected NVRTC "
        "%d (or a newer driver)",
        nvrtc->version / 1000, nvrtc->version % 1000 / 10, nvrtc->path, driver / 1000, driver % 1000 / 10,
        driver / 1000);
}

/* Takes a library that can be used; with `any`, of any version. Records one that is too new. */
static bool take_library(const char *path, bool any)
{
    nvrtc_functions made = {0};
    /* A rejected library stays open, too: NVRTC, and its C++ library, leak memory when they are unloaded. */
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library) return false;
    if (nvrtc_fill(library, &made)) {
        if (any || !nvrtc_is_newer(&made)) {
            found.functions = made;
            return true;
        }
        if (!found.newer.version) found.newer = made;
    }
    dlclose(library);
    return false;
}

static bool try_library(const char *path)
{
    return take_library(path, false);
}

/* Tries the newest file that matches the pattern (names sort by version). */
static bool try_pattern(const char *format, const char *folder)
{
    char pattern[4096];
    glob_t matches;
    bool ok = false;
    if (snprintf(pattern, sizeof pattern, format, folder) >= (int)sizeof pattern) return false;
    if (glob(pattern, 0, NULL, &matches) != 0) return false;
    for (size_t i = matches.gl_pathc; i > 0 && !ok; i--)
        ok = try_library(matches.gl_pathv[i - 1]);
    globfree(&matches);
    return ok;
}

static bool try_loader(void)
{
    static const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
    for (size_t i = 0; i < ARRAY_LENGTH(names); i++)
        if (try_library(names[i])) return true;
    return false;
}

static bool try_toolkit(void)
{
    static const char *const variables[] = {"CUDA_HOME", "CUDA_PATH"};
    for (size_t i = 0; i < ARRAY_LENGTH(variables); i++) {
        const char *folder = env_foreign(variables[i]);
        if (folder && *folder && try_pattern("%s/lib64/libnvrtc.so.[0-9]*", folder)) return true;
    }
    return try_pattern("%s/lib64/libnvrtc.so.[0-9]*", "/usr/local/cuda");
}

/* Beside each folder of programs there may be a folder of Python packages, also in a virtual environment. */
static bool try_wheels(void)
{
    static const char wheel[] = "%s/lib/python3*/*-packages/nvidia/*/lib/libnvrtc.so.[0-9]*";
    const char *path = env_foreign("PATH"), *home = env_foreign("HOME");
    char *folders = strdup(path ? path : ""), *rest = NULL, local[4096];
    bool ok = false;
    for (char *one = folders ? strtok_r(folders, ":", &rest) : NULL; one && !ok; one = strtok_r(NULL, ":", &rest)) {
        char *end = strrchr(one, '/');
        if (!end || strcmp(end, "/bin") != 0) continue;
        *end = 0;
        ok = try_pattern(wheel, one);
    }
    free(folders);
    if (ok || !home || snprintf(local, sizeof local, "%s/.local", home) >= (int)sizeof local) return ok;
    return try_pattern(wheel, local);
}

static expar_status nvrtc_search(void)
{
    /* If there is a driver, its version counts. */
    (void)cuda_open();
    const char *told = env_string("EXPAR_NVRTC");
    if (told && take_library(told, true)) return EXPAR_OK;
    if (told)
        return error_set(EXPAR_ERR_UNSUPPORTED, "EXPAR_NVRTC is %s, which is no library of NVRTC 12 or newer",
                         SHOWN(told));
    if (try_loader() || try_toolkit() || try_wheels()) return EXPAR_OK;
    if (found.newer.version) {
        char text[ERROR_TEXT_BYTES];
        nvrtc_describe_newer(&found.newer, text, sizeof text);
        return error_set(EXPAR_ERR_UNSUPPORTED, "%s", text);
    }
    const int32_t driver = cuda_driver_version();
    return error_set(EXPAR_ERR_UNSUPPORTED,
                     "NVRTC (libnvrtc.so, which compiles kernels) was not found by the loader, in CUDA_HOME or "
                     "/usr/local/cuda, nor in Python's packages: install CUDA's toolkit or `pip install "
                     "nvidia-cuda-nvrtc%s`, or name the library in EXPAR_NVRTC",
                     driver != 0 && driver < 13000 ? "-cu12" : "");
}

static void find_once(void)
{
    error_keep(&found.failure, nvrtc_search());
}

expar_status nvrtc_open(const nvrtc_functions **out)
{
    pthread_once(&found.once, find_once);
    if (error_restore(&found.failure) != EXPAR_OK) return found.failure.status;
    *out = &found.functions;
    return EXPAR_OK;
}

expar_status cuda_nvrtc_find(const char **path, int32_t *version)
{
    const nvrtc_functions *functions;
    expar_status status = nvrtc_open(&functions);
    if (status != EXPAR_OK) return status;
    *path = functions->path;
    *version = functions->version;
    return EXPAR_OK;
}

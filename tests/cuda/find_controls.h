/* SPDX-License-Identifier: Apache-2.0 */
/* A test's way to the controls of the simulated driver and compiler. */
#ifndef TESTS_CUDA_FIND_CONTROLS_H
#define TESTS_CUDA_FIND_CONTROLS_H

#include "cuda/fake/controls.h"
#include "cuda/parts.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

/* NULL: another driver, or none, has been opened. */
static inline fake_controls *controls_find(void)
{
    fake_controls_function *controls_of = NULL;
    void *library = dlopen(CUDA_DRIVER_LIBRARY, RTLD_NOW | RTLD_NOLOAD);
    return library && cuda_symbol_find(library, "fake_controls_of", &controls_of) ? controls_of() : NULL;
}

static inline fake_compiler_controls *controls_find_compiler(void)
{
    fake_compiler_controls_function *controls_of = NULL;
    const char *path = getenv("EXPAR_NVRTC");
    void *library = path ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : NULL;
    return library && cuda_symbol_find(library, "fake_compiler_controls_of", &controls_of) ? controls_of() : NULL;
}

/* Until the count is the wanted one; false after a generous deadline. */
static inline bool controls_await(const atomic_int *count, int wanted)
{
    int left_ms = 60000;
    while (atomic_load(count) != wanted && left_ms-- > 0)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return left_ms >= 0;
}

#endif

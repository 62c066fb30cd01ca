/* SPDX-License-Identifier: Apache-2.0 */
/* The status of a test that needs the run-time compiler and cannot have it. */
#ifndef TESTS_CUDA_WITHOUT_NVRTC_H
#define TESTS_CUDA_WITHOUT_NVRTC_H

#include <expar/status.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Skipped, with the library's reason; failed where EXPAR_REQUIRE_KERNELS=1 asks for every kernel to be compiled. */
static inline int without_nvrtc(void)
{
    const char *required = getenv("EXPAR_REQUIRE_KERNELS");
    bool must = required && strcmp(required, "1") == 0;
    printf("%s: %s\n", must ? "failed, since EXPAR_REQUIRE_KERNELS=1" : "SKIPPED", expar_last_error());
    return must ? EXIT_FAILURE : 77;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of programs with NVSHMEM's names. Symmetric memory may be a GPU's, so it is read by gets of the own PE. */
#ifndef TESTS_NVSHMEM_EXPECT_H
#define TESTS_NVSHMEM_EXPECT_H

#include <nvshmem.h>
#include <nvshmemx.h>

#include <stdio.h>
#include <stdlib.h>

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "PE %d: %s:%d: %s\n", nvshmem_my_pe(), __FILE__, __LINE__, #condition);                    \
            nvshmem_global_exit(1);                                                                                    \
        }                                                                                                              \
    } while (0)

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* For the OpenSHMEM programs of this folder: a check that fails ends the job. */
#ifndef TESTS_OPENSHMEM_EXPECT_H
#define TESTS_OPENSHMEM_EXPECT_H

#include <shmem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: PE %d of %d: %s\n", __FILE__, __LINE__, shmem_my_pe(), shmem_n_pes(), #condition); \
            shmem_global_exit(1);                                                                                      \
        }                                                                                                              \
    } while (0)

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the reference arrays: .npy files, version 1, C order, of a dtype and size that the caller knows. */
#ifndef TESTS_DEMO_NPY_H
#define TESTS_DEMO_NPY_H

#include <stddef.h>

/* The `bytes` bytes of data of data/moe-lm/reference/<name>.npy, whose header must say dtype ("<f4") and shape ("(512,
   4)"). Fails the running test otherwise. The caller frees. */
void *npy_reference(const char *name, const char *dtype, const char *shape, size_t bytes);

#endif

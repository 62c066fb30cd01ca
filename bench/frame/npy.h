/* SPDX-License-Identifier: Apache-2.0 */
/* npy: a strict reader of integer arrays in NumPy's file format, versions 1.0 and 2.0
 * (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html). */
#ifndef EXPAR_BENCH_FRAME_NPY_H
#define EXPAR_BENCH_FRAME_NPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NPY_MAX_DIMS 4

struct npy {
    int num_dims;
    int64_t shape[NPY_MAX_DIMS];
    int64_t count;   /* product of the shape */
    int32_t *values; /* row-major */
};

/* int16, int32 or int64, little endian, C order, values that fit 32 bits, and not a byte more or less than the header
   says. Otherwise false, nothing to free, and `error` says what is wrong with which file. */
bool npy_read(const char *path, struct npy *array, char *error, size_t error_bytes);
void npy_free(struct npy *array);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Reads weights from a safetensors file: 8 bytes of little-endian header length, a JSON header that gives each tensor's
 * dtype, shape and place, then the data (format: https://github.com/huggingface/safetensors).
 *
 * The file is not trusted: length, JSON, dtypes, shapes and offsets are all checked when it is opened, and every
 * message names the tensor that it is about. */
#ifndef EXPAR_DEMO_SAFETENSORS_H
#define EXPAR_DEMO_SAFETENSORS_H

#include "failure.h"
#include <stdint.h>

#define SAFETENSORS_MAX_DIMS 8

typedef struct safetensors safetensors;

/* A reader's expectations of one tensor. */
typedef struct tensor_spec {
    const char *name;
    const char *dtype; /* "BF16" or "F32" */
    int32_t ndim;
    int64_t shape[SAFETENSORS_MAX_DIMS];
} tensor_spec;

/* Opens and checks. The tensors must fill the file's data without gap or overlap. */
bool safetensors_open(const char *path, safetensors **out, demo_error *error);
void safetensors_close(safetensors *file);

/* True if the tensor exists with this dtype and shape. */
bool safetensors_check(const safetensors *file, const tensor_spec *spec, demo_error *error);
/* Reads `count` elements from element `first` on (in row-major order) as FP32. Values that are not finite are
   rejected. */
bool safetensors_read(const safetensors *file, const tensor_spec *spec, int64_t first, int64_t count, float *values,
                      demo_error *error);

#endif

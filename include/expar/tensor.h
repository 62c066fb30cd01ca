/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors as arguments: views of memory that they do not own. */
#ifndef EXPAR_TENSOR_H
#define EXPAR_TENSOR_H

#include <expar/status.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Element types. Values are part of the ABI. */
typedef enum expar_dtype {
    EXPAR_BF16 = 1, /* bfloat16: 1 sign, 8 exponent, 7 mantissa bits */
    EXPAR_F16 = 2,  /* IEEE 754 binary16 */
    EXPAR_F32 = 3,  /* IEEE 754 binary32 */
    EXPAR_I32 = 4,
    EXPAR_I64 = 5,
    EXPAR_U8 = 6,     /* also booleans: 0 is false, anything else true */
    EXPAR_F8E4M3 = 7, /* 1 sign, 4 exponent, 3 mantissa bits; no infinities ("e4m3fn") */
    EXPAR_I8 = 8
} expar_dtype;

typedef enum expar_device_type { EXPAR_CPU = 1, EXPAR_CUDA = 2 } expar_device_type;

typedef struct expar_device {
    expar_device_type type;
    /* 0 on the CPU */
    int32_t index;
} expar_device;

#define EXPAR_TENSOR_MAX_DIMS 4

/* A view: never owns `data`. A tensor whose data is NULL and ndim is 0 (EXPAR_TENSOR_NONE) means "not
   given". A tensor with a zero extent may have data NULL. */
typedef struct expar_tensor {
    void *data;
    expar_dtype dtype;
    int32_t ndim;
    int64_t shape[EXPAR_TENSOR_MAX_DIMS];
    /* in elements, not bytes */
    int64_t strides[EXPAR_TENSOR_MAX_DIMS];
    expar_device device;
} expar_tensor;

#ifdef __cplusplus
#define EXPAR_TENSOR_NONE (expar_tensor{})
#else
#define EXPAR_TENSOR_NONE ((expar_tensor){0})
#endif

/* Contiguous row-major views of CPU memory, which the caller owns; extents are in elements. Nothing is checked here:
   calls check what they are given. Any thread. */
EXPAR_API expar_tensor expar_tensor_1d(void *data, expar_dtype dtype, int64_t n);
EXPAR_API expar_tensor expar_tensor_2d(void *data, expar_dtype dtype, int64_t rows, int64_t columns);
EXPAR_API expar_tensor expar_tensor_3d(void *data, expar_dtype dtype, int64_t blocks, int64_t rows, int64_t columns);
/* The same views of memory on a device. */
EXPAR_API expar_tensor expar_tensor_1d_on(expar_device device, void *data, expar_dtype dtype, int64_t n);
EXPAR_API expar_tensor expar_tensor_2d_on(expar_device device, void *data, expar_dtype dtype, int64_t rows,
                                          int64_t columns);
EXPAR_API expar_tensor expar_tensor_3d_on(expar_device device, void *data, expar_dtype dtype, int64_t blocks,
                                          int64_t rows, int64_t columns);

/* Bytes of one element; 0 for a value that is no dtype. Any thread. */
EXPAR_API size_t expar_dtype_bytes(expar_dtype dtype);
/* "bf16", "f16", "f32", "i32", "i64", "u8", "f8e4m3", "i8"; "?" for a value that is no dtype. Static storage. */
EXPAR_API const char *expar_dtype_string(expar_dtype dtype);

#ifdef __cplusplus
}
#endif
#endif

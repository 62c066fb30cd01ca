/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors from and to other libraries by DLPack, versions 1.x and the one before versions (0.x).
 *
 * The structs are those of the DLPack ABI under names of this library's own, so that a program may include DLPack's
 * header, too. An expar_dl_managed * is a DLManagedTensor *, an expar_dl_versioned * a DLManagedTensorVersioned *.
 * Source: DLPack, "C API (dlpack.h)", version 1.1. */
#ifndef EXPAR_DLPACK_H
#define EXPAR_DLPACK_H

#include <expar/status.h>
#include <expar/tensor.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The `version` of the calls below: the highest that the consumer reads, such as EXPAR_DLPACK_VERSION(1, 0). An export
   has that version, or 1.1 if that version is higher. */
#define EXPAR_DLPACK_VERSION(major, minor) ((uint32_t)(major) << 16 | (uint32_t)(minor))
/* The form from before versions existed, the same as every 0.x: a DLManagedTensor. */
#define EXPAR_DLPACK_UNVERSIONED ((uint32_t)0)

/* The values of `code` and `device_type` that expar knows. */
typedef enum expar_dl_code {
    EXPAR_DL_INT = 0,
    EXPAR_DL_UINT = 1,
    EXPAR_DL_FLOAT = 2,
    EXPAR_DL_BFLOAT = 4,
    EXPAR_DL_BOOL = 6,
    EXPAR_DL_FLOAT8_E4M3FN = 10 /* from 1.1 on */
} expar_dl_code;
typedef enum expar_dl_device_type {
    EXPAR_DL_CPU = 1,
    EXPAR_DL_CUDA = 2,
    EXPAR_DL_CUDA_HOST = 3,    /* pinned memory of the host */
    EXPAR_DL_CUDA_MANAGED = 13 /* memory that moves between host and GPU */
} expar_dl_device_type;

typedef struct expar_dl_device {
    /* expar_dl_device_type */
    int32_t device_type;
    int32_t device_id;
} expar_dl_device;

typedef struct expar_dl_dtype {
    /* expar_dl_code */
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
} expar_dl_dtype;

typedef struct expar_dl_tensor {
    void *data;
    expar_dl_device device;
    int32_t ndim;
    expar_dl_dtype dtype;
    /* [ndim] */
    int64_t *shape;
    /* [ndim] in elements; NULL: contiguous, the last dimension the fastest */
    int64_t *strides;
    uint64_t byte_offset;
} expar_dl_tensor;

/* 0.x */
typedef struct expar_dl_managed {
    expar_dl_tensor tensor;
    /* for the maker of the tensor */
    void *context;
    /* The owner of the tensor calls it once, when it no longer uses the tensor. NULL: nothing has to be freed. */
    void (*deleter)(struct expar_dl_managed *self);
} expar_dl_managed;

/* Bits of `flags`: the tensor must not be written to; the tensor is a copy that no other code sees. */
#define EXPAR_DL_READ_ONLY ((uint64_t)1)
#define EXPAR_DL_IS_COPIED ((uint64_t)2)

/* 1.x */
typedef struct expar_dl_versioned {
    uint32_t major, minor;
    void *context;
    /* as above; may be called whatever the version is */
    void (*deleter)(struct expar_dl_versioned *self);
    uint64_t flags;
    expar_dl_tensor tensor;
} expar_dl_versioned;

/* Makes a tensor of another library an argument of expar. managed: an expar_dl_managed * for a version 0.x, else an
   expar_dl_versioned *. It sets `tensor` to a view of the same memory. The owner of the struct `managed` keeps it as
   long as the view is used, and then calls its deleter. With writable 1 expar will write to the tensor; a read-only
   tensor is then EXPAR_ERR_ARGUMENT. Booleans come as u8, pinned memory as the CPU's, managed memory as the GPU's.
   Local; any thread. Errors: EXPAR_ERR_NULL, EXPAR_ERR_VERSION (a major version other than 1), EXPAR_ERR_DTYPE,
   EXPAR_ERR_SHAPE (more than EXPAR_TENSOR_MAX_DIMS dimensions, a negative extent), EXPAR_ERR_DEVICE,
   EXPAR_ERR_ARGUMENT. */
EXPAR_API expar_status expar_tensor_from_dlpack(const void *managed, uint32_t version, int32_t writable,
                                                expar_tensor *tensor);

/* Exports a tensor. *managed has the type that the version says, as above. It belongs to the consumer, who calls the
   deleter once, on any thread. The deleter calls release(context), which says that this consumer no longer uses the
   memory; release may be NULL. Strides are always given, byte_offset is 0, no flags are set. f8e4m3 has a code of its
   own from version 1.1 on. For consumers of earlier versions it is exported as 8-bit unsigned integers, and they must
   know what the bytes mean. Local; any thread. Errors: EXPAR_ERR_NULL (also of data, unless there is no element),
   EXPAR_ERR_VERSION (a major version other than 0 and 1), EXPAR_ERR_DTYPE, EXPAR_ERR_SHAPE, EXPAR_ERR_DEVICE,
   EXPAR_ERR_MEMORY. After an error release has not been called. */
EXPAR_API expar_status expar_tensor_to_dlpack(const expar_tensor *tensor, uint32_t version,
                                              void (*release)(void *context), void *context, void **managed);

#ifdef __cplusplus
}
#endif
#endif

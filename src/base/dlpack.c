/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors from and to other libraries: DLPack. */
#include "base/dlpack.h"
#include "base/base.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static_assert(sizeof(expar_dl_tensor) == 48 && sizeof(expar_dl_managed) == 64 && sizeof(expar_dl_versioned) == 80,
              "the structs of DLPack");

/* Versions from this one on have codes for FP8. */
#define VERSION_OF_FP8 EXPAR_DLPACK_VERSION(1, 1)
#define VERSION_MADE   EXPAR_DLPACK_VERSION(1, 1)

static uint32_t major_of(uint32_t version)
{
    return version >> 16;
}

/* ---- data types -------------------------------------------------------------------------------------------------- */

/* One row for each dtype. Booleans are only accepted; u8 is exported as what it is. */
static const struct {
    expar_dtype dtype;
    expar_dl_dtype dl;
} dtypes[] = {
    {EXPAR_BF16, {EXPAR_DL_BFLOAT, 16, 1}}, {EXPAR_F16, {EXPAR_DL_FLOAT, 16, 1}},
    {EXPAR_F32, {EXPAR_DL_FLOAT, 32, 1}},   {EXPAR_I32, {EXPAR_DL_INT, 32, 1}},
    {EXPAR_I64, {EXPAR_DL_INT, 64, 1}},     {EXPAR_U8, {EXPAR_DL_UINT, 8, 1}},
    {EXPAR_I8, {EXPAR_DL_INT, 8, 1}},       {EXPAR_F8E4M3, {EXPAR_DL_FLOAT8_E4M3FN, 8, 1}},
    {EXPAR_U8, {EXPAR_DL_BOOL, 8, 1}},
};

static expar_status dtype_from(const char *call, expar_dl_dtype dl, expar_dtype *out)
{
    for (size_t i = 0; i < ARRAY_LENGTH(dtypes); i++)
        if (dtypes[i].dl.code == dl.code && dtypes[i].dl.bits == dl.bits && dl.lanes == 1) {
            *out = dtypes[i].dtype;
            return EXPAR_OK;
        }
    return error_set(EXPAR_ERR_DTYPE,
                     "%s: dtype has code %d, %d bits and %d lanes; expected bfloat of 16, float of 16 or 32, int of 8, "
                     "32 or 64, uint or bool of 8, or float8_e4m3fn, with one lane",
                     call, dl.code, dl.bits, dl.lanes);
}

static expar_status dtype_to(const char *call, expar_dtype dtype, uint32_t version, expar_dl_dtype *out)
{
    if (dtype == EXPAR_F8E4M3 && version < VERSION_OF_FP8) dtype = EXPAR_U8;
    for (size_t i = 0; i < ARRAY_LENGTH(dtypes); i++)
        if (dtypes[i].dtype == dtype) {
            *out = dtypes[i].dl;
            return EXPAR_OK;
        }
    return error_set(EXPAR_ERR_DTYPE, "%s: tensor.dtype is %d; expected one of expar_dtype", call, (int)dtype);
}

/* ---- in ---------------------------------------------------------------------------------------------------------- */

static expar_status device_from(const char *call, expar_dl_device dl, expar_device *out)
{
    switch (dl.device_type) {
    case EXPAR_DL_CPU:
    case EXPAR_DL_CUDA_HOST:
        *out = (expar_device){.type = EXPAR_CPU};
        return EXPAR_OK;
    case EXPAR_DL_CUDA:
    case EXPAR_DL_CUDA_MANAGED:
        *out = (expar_device){.type = EXPAR_CUDA, .index = dl.device_id};
        return EXPAR_OK;
    }
    return error_set(EXPAR_ERR_DEVICE,
                     "%s: device_type is %d; expected 1 (CPU), 2 (CUDA), 3 (pinned) or 13 (CUDA, managed)", call,
                     dl.device_type);
}

static expar_status dims_from(const char *call, const expar_dl_tensor *dl, expar_tensor *out)
{
    if (dl->ndim < 0 || dl->ndim > EXPAR_TENSOR_MAX_DIMS)
        return error_set(EXPAR_ERR_SHAPE, "%s: ndim is %d; expected 0 to %d", call, dl->ndim, EXPAR_TENSOR_MAX_DIMS);
    if (dl->ndim > 0 && !dl->shape) return error_set(EXPAR_ERR_NULL, "%s: shape is NULL", call);
    int64_t step = 1;
    for (int32_t i = dl->ndim - 1; i >= 0; i--) {
        int64_t extent = dl->shape[i];
        if (extent < 0)
            return error_set(EXPAR_ERR_SHAPE, "%s: shape[%d] is %lld; expected 0 or more", call, i, (long long)extent);
        out->shape[i] = extent;
        out->strides[i] = dl->strides ? dl->strides[i] : step;
        if (size_mul_overflows(step, extent > 0 ? extent : 1, &step))
            return error_set(EXPAR_ERR_SHAPE, "%s: the extents multiply to more than 2^63 elements", call);
    }
    out->ndim = dl->ndim;
    return EXPAR_OK;
}

static expar_status view_from(const char *call, const expar_dl_tensor *dl, expar_tensor *out)
{
    expar_tensor made = EXPAR_TENSOR_NONE;
    expar_status status = dtype_from(call, dl->dtype, &made.dtype);
    if (status == EXPAR_OK) status = device_from(call, dl->device, &made.device);
    if (status == EXPAR_OK) status = dims_from(call, dl, &made);
    if (status != EXPAR_OK) return status;
    made.data = dl->data ? (unsigned char *)dl->data + dl->byte_offset : NULL;
    *out = made;
    return EXPAR_OK;
}

expar_status expar_tensor_from_dlpack(const void *managed, uint32_t version, int32_t writable, expar_tensor *tensor)
{
    static const char call[] = "expar_tensor_from_dlpack";
    if (!managed) return call_ended(error_set(EXPAR_ERR_NULL, "%s: managed is NULL", call));
    if (!tensor) return call_ended(error_set(EXPAR_ERR_NULL, "%s: tensor is NULL", call));
    const expar_dl_tensor *dl = &((const expar_dl_managed *)managed)->tensor;
    if (major_of(version) > 0) { /* the tensor itself says which one */
        const expar_dl_versioned *versioned = managed;
        if (versioned->major != 1)
            return call_ended(error_set(EXPAR_ERR_VERSION, "%s: the tensor is of DLPack %u.%u; expected 1.x", call,
                                        versioned->major, versioned->minor));
        if (writable && (versioned->flags & EXPAR_DL_READ_ONLY))
            return call_ended(error_set(EXPAR_ERR_ARGUMENT,
                                        "%s: the tensor is read only; expected one that may be written to", call));
        dl = &versioned->tensor;
    }
    return call_ended(view_from(call, dl, tensor));
}

/* ---- out --------------------------------------------------------------------------------------------------------- */

/* An exported tensor in one piece: the consumer has the address of one of the two. */
typedef struct parcel {
    union {
        expar_dl_managed managed;
        expar_dl_versioned versioned;
    } dl;
    int64_t shape[EXPAR_TENSOR_MAX_DIMS], strides[EXPAR_TENSOR_MAX_DIMS];
    void (*release)(void *context);
    void *context;
} parcel;

static void parcel_end(parcel *self)
{
    void (*release)(void *context) = self->release;
    void *context = self->context;
    free(self);
    if (release) release(context);
}

static void delete_managed(expar_dl_managed *managed)
{
    if (managed) parcel_end(managed->context);
}

static void delete_versioned(expar_dl_versioned *versioned)
{
    if (versioned) parcel_end(versioned->context);
}

static expar_status to_check(const char *call, const expar_tensor *tensor, uint32_t version, expar_dl_dtype *dtype)
{
    if (major_of(version) > 1)
        return error_set(EXPAR_ERR_VERSION, "%s: version is %u.%u; expected 0 or 1.x", call, major_of(version),
                         version & 0xffff);
    if (tensor->ndim < 0 || tensor->ndim > EXPAR_TENSOR_MAX_DIMS)
        return error_set(EXPAR_ERR_SHAPE, "%s: tensor.ndim is %d; expected 0 to %d", call, tensor->ndim,
                         EXPAR_TENSOR_MAX_DIMS);
    int64_t elements = 1;
    for (int32_t i = 0; i < tensor->ndim; i++) {
        if (tensor->shape[i] < 0)
            return error_set(EXPAR_ERR_SHAPE, "%s: tensor.shape[%d] is %lld; expected 0 or more", call, i,
                             (long long)tensor->shape[i]);
        elements = tensor->shape[i] && elements;
    }
    if (!tensor->data && tensor->ndim && elements)
        return error_set(EXPAR_ERR_NULL, "%s: tensor.data is NULL; expected memory of its elements", call);
    if (tensor->device.type != EXPAR_CPU && tensor->device.type != EXPAR_CUDA)
        return error_set(EXPAR_ERR_DEVICE, "%s: tensor.device.type is %d; expected 1 (CPU) or 2 (CUDA)", call,
                         (int)tensor->device.type);
    return dtype_to(call, tensor->dtype, version, dtype);
}

static void parcel_fill(parcel *self, const expar_tensor *tensor, expar_dl_dtype dtype, expar_dl_tensor *dl)
{
    for (int32_t i = 0; i < tensor->ndim; i++) {
        self->shape[i] = tensor->shape[i];
        self->strides[i] = tensor->strides[i];
    }
    *dl = (expar_dl_tensor){.data = tensor->data,
                            .device = {.device_type = tensor->device.type == EXPAR_CUDA ? EXPAR_DL_CUDA : EXPAR_DL_CPU,
                                       .device_id = tensor->device.index},
                            .ndim = tensor->ndim,
                            .dtype = dtype,
                            .shape = self->shape,
                            .strides = self->strides};
}

expar_status dlpack_make(const char *call, const expar_tensor *tensor, uint32_t version, void (*release)(void *context),
                         void *context, void **managed)
{
    if (!tensor) return error_set(EXPAR_ERR_NULL, "%s: tensor is NULL", call);
    if (!managed) return error_set(EXPAR_ERR_NULL, "%s: managed is NULL", call);
    expar_dl_dtype dtype;
    expar_status status = to_check(call, tensor, version, &dtype);
    if (status != EXPAR_OK) return status;
    parcel *self = calloc(1, sizeof *self);
    if (!self) return error_set(EXPAR_ERR_MEMORY, "%s: no memory for a tensor's record", call);
    self->release = release;
    self->context = context;
    if (major_of(version) == 0) {
        parcel_fill(self, tensor, dtype, &self->dl.managed.tensor);
        self->dl.managed.context = self;
        self->dl.managed.deleter = delete_managed;
        *managed = &self->dl.managed;
        return EXPAR_OK;
    }
    const uint32_t made = version < VERSION_MADE ? version : VERSION_MADE;
    parcel_fill(self, tensor, dtype, &self->dl.versioned.tensor);
    self->dl.versioned.major = major_of(made);
    self->dl.versioned.minor = made & 0xffff;
    self->dl.versioned.context = self;
    self->dl.versioned.deleter = delete_versioned;
    *managed = &self->dl.versioned;
    return EXPAR_OK;
}

expar_status expar_tensor_to_dlpack(const expar_tensor *tensor, uint32_t version, void (*release)(void *context),
                                    void *context, void **managed)
{
    return call_ended(dlpack_make("expar_tensor_to_dlpack", tensor, version, release, context, managed));
}

/* ---- for Python -------------------------------------------------------------------------------------------------- */

expar_status dlpack_check_python(const char *call, const expar_python_objects *python, const void *list)
{
    const char *missing = !python ? "python" : !list ? "list" : NULL;
    if (!missing && !python->capsule_new) missing = "python->capsule_new";
    if (!missing && !python->list_set_item) missing = "python->list_set_item";
    return missing ? error_set(EXPAR_ERR_NULL, "%s: %s is NULL", call, missing) : EXPAR_OK;
}

/* Returns a new object. NULL: the tensor has been given back, or Python keeps it for good. */
static void *tensor_object(const expar_python_objects *python, void *managed)
{
    void *object;
    return python->tensor_new(managed, &object) == 0 ? object : NULL;
}

/* The capsule has no destructor, so before dropping it give the tensor back. */
static void *capsule_object(const expar_python_objects *python, void *managed)
{
    void *object = python->capsule_new(managed, "dltensor", NULL);
    if (!object) delete_managed(managed);
    return object;
}

expar_status dlpack_put_in_list(const char *call, const expar_tensor *tensor, void (*release)(void *context),
                                void *context, const expar_python_objects *python, void *list, int32_t index)
{
    const bool whole = python->tensor_new != NULL;
    void *managed;
    expar_status status =
        dlpack_make(call, tensor, whole ? VERSION_MADE : EXPAR_DLPACK_UNVERSIONED, release, context, &managed);
    if (status != EXPAR_OK) {
        release(context);
        return status;
    }
    void *object = whole ? tensor_object(python, managed) : capsule_object(python, managed);
    /* The list takes ownership of the object in any case. */
    if (object && python->list_set_item(list, index, object) == 0) return EXPAR_OK;
    if (object && !whole) delete_managed(managed);
    return error_set(EXPAR_ERR_MEMORY, "%s: Python has no tensor, or no item %d in its list", call, index);
}

static expar_status views_check(const char *call, const expar_python_views *python, const void *tuple, const void *args)
{
    const char *missing = !python ? "python" : !tuple ? "tuple" : !args ? "args" : NULL;
    if (!missing && !python->tuple_get_item) missing = "python->tuple_get_item";
    if (!missing && !python->view) missing = "python->view";
    if (!missing && !python->none) missing = "python->none";
    if (!missing && !python->offsets) missing = "python->offsets";
    if (missing) return error_set(EXPAR_ERR_NULL, "%s: %s is NULL", call, missing);
    if (python->count < 0 || python->count > EXPAR_PYTHON_MAX_VIEWS)
        return error_set(EXPAR_ERR_LIMIT, "%s: python->count is %d; expected 0 to %d", call, python->count,
                         EXPAR_PYTHON_MAX_VIEWS);
    return EXPAR_OK;
}

/* A tensor without elements, and extents of 1, may have any strides. */
static void name_contiguous(expar_tensor *tensor)
{
    int64_t strides[EXPAR_TENSOR_MAX_DIMS] = {0}, step = 1;
    bool elements = true, contiguous = true;
    for (int32_t i = tensor->ndim - 1; i >= 0; i--) {
        const int64_t extent = tensor->shape[i];
        elements = elements && extent > 0;
        contiguous = contiguous && (extent == 1 || tensor->strides[i] == step);
        strides[i] = step;
        step *= extent > 0 ? extent : 1;
    }
    if (contiguous || !elements) memcpy(tensor->strides, strides, sizeof strides);
}

bool dlpack_look_alike(const expar_tensor *a, const expar_tensor *b)
{
    return a->dtype == b->dtype && a->ndim == b->ndim && a->device.type == b->device.type &&
           a->device.index == b->device.index && memcmp(a->shape, b->shape, sizeof a->shape) == 0 &&
           memcmp(a->strides, b->strides, sizeof a->strides) == 0;
}

expar_status dlpack_view_object(const char *call, expar_python_view_fn view, void *object, expar_tensor *out)
{
    expar_dl_tensor dl;
    if (view(object, &dl) != 0) return error_set(EXPAR_ERR_ARGUMENT, "%s: an item is no tensor", call);
    expar_status status = view_from(call, &dl, out);
    if (status == EXPAR_OK) name_contiguous(out);
    return status;
}

/* views[i].ndim is -1 for None. */
static expar_status views_look(const char *call, const expar_python_views *python, void *tuple, expar_tensor *views)
{
    for (int32_t i = 0; i < python->count; i++) {
        void *item = python->tuple_get_item(tuple, i);
        expar_dl_tensor dl;
        views[i].ndim = -1;
        if (item == python->none) continue;
        if (!item || python->view(item, &dl) != 0)
            return error_set(EXPAR_ERR_ARGUMENT, "%s: item %d of the tuple is no tensor", call, i);
        expar_status status = view_from(call, &dl, &views[i]);
        if (status != EXPAR_OK) return status;
        name_contiguous(&views[i]);
    }
    return EXPAR_OK;
}

expar_status expar_python_view_tensors(const expar_python_views *python, void *tuple, void *args)
{
    static const char call[] = "expar_python_view_tensors";
    expar_tensor views[EXPAR_PYTHON_MAX_VIEWS];
    expar_status status = views_check(call, python, tuple, args);
    if (status == EXPAR_OK) status = views_look(call, python, tuple, views);
    if (status != EXPAR_OK) return call_ended(status);
    int32_t differing = 0;
    for (int32_t i = 0; i < python->count; i++) {
        expar_tensor *there = (void *)((unsigned char *)args + python->offsets[i]);
        if (views[i].ndim < 0) continue;
        differing += !dlpack_look_alike(&views[i], there);
        *there = views[i];
    }
    *(int32_t *)(void *)((unsigned char *)args + python->differing_offset) = differing;
    return EXPAR_OK;
}

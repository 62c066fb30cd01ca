/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors and other arguments: each wrong one gets a status and a text that names it, its value, and
 * what was expected. */
#include "ep/call/call.h"
#include "exec/event.h"

#include <stdio.h>
#include <string.h>

#define ROW_UNIT 16

bool tensor_given(const expar_tensor *tensor)
{
    return tensor->data != NULL || tensor->ndim != 0;
}

ep_dtype_text ep_tell_dtype(expar_dtype dtype)
{
    ep_dtype_text told;
    /* By DLPack's codes: int, uint, float, a handle, bfloat, complex. */
    static const char *const kinds[] = {"i", "u", "f", "?", "bf", "c"};
    const int number = (int)dtype, foreign = number < 0 && number >= -0xfff ? -number : 0, kind = foreign >> 8;
    if (expar_dtype_bytes(dtype) > 0)
        snprintf(told.text, sizeof told.text, "%s", expar_dtype_string(dtype));
    else if (foreign > 0 && foreign % 8 == 0 && (foreign & 255) && kind < (int)(sizeof kinds / sizeof *kinds))
        snprintf(told.text, sizeof told.text, "%s%d", kinds[kind], foreign & 255);
    else
        snprintf(told.text, sizeof told.text, "%d", number);
    return told;
}

static _Thread_local bool vouched;

void ep_vouch_for_places(bool vouches)
{
    vouched = vouches;
}

expar_status ep_check_place(expar_device device, const char *name, const char *member, const void *data)
{
    return vouched ? EXPAR_OK : mem_check_place(device, name, member, data);
}

/* Checks the tensor's own device, and that of its address. */
static expar_status check_device(expar_device device, const char *name, const expar_tensor *tensor)
{
    if (tensor->device.type != device.type)
        return error_set(EXPAR_ERR_DEVICE, "%s lies on device type %s; expected %s", name,
                         ep_tell(&ep_names_device, tensor->device.type).text,
                         ep_tell(&ep_names_device, device.type).text);
    if (device.type == EXPAR_CUDA && tensor->device.index != device.index)
        return error_set(EXPAR_ERR_DEVICE, "%s lies on GPU %d; expected GPU %d, the buffer's", name,
                         tensor->device.index, device.index);
    if (!tensor->data) return EXPAR_OK;
    return ep_check_place(device, name, ".data", tensor->data);
}

static expar_status check_basics(expar_device device, const char *name, const expar_tensor *tensor)
{
    if (!tensor_given(tensor)) return error_set(EXPAR_ERR_NULL, "%s is not given", name);
    if (tensor->ndim != 2) return error_set(EXPAR_ERR_SHAPE, "%s has %d dimensions; expected 2", name, tensor->ndim);
    if (tensor->shape[0] < 0 || tensor->shape[1] < 0)
        return error_set(EXPAR_ERR_SHAPE, "%s has shape [%lld][%lld]; expected no negative extent", name,
                         (long long)tensor->shape[0], (long long)tensor->shape[1]);
    expar_status status = check_device(device, name, tensor);
    if (status != EXPAR_OK) return status;
    if (!tensor->data && tensor->shape[0] > 0 && tensor->shape[1] > 0)
        return error_set(EXPAR_ERR_NULL, "%s.data is NULL with shape [%lld][%lld]", name, (long long)tensor->shape[0],
                         (long long)tensor->shape[1]);
    return EXPAR_OK;
}

/* The bytes from the first element to the last must be a number. */
static expar_status check_extent(const char *name, const expar_tensor *tensor)
{
    int64_t elements, bytes;
    if (tensor->shape[0] <= 1) return EXPAR_OK;
    if (size_mul_overflows(tensor->shape[0], tensor->strides[0], &elements) ||
        size_mul_overflows(elements, (int64_t)expar_dtype_bytes(tensor->dtype), &bytes))
        return error_set(EXPAR_ERR_STRIDE,
                         "%s.strides[0] is %lld with %lld rows; expected them to span less than 2^63 bytes", name,
                         (long long)tensor->strides[0], (long long)tensor->shape[0]);
    return EXPAR_OK;
}

/* Each row contiguous, rows not overlapping. Strides of extents up to 1 do not matter. */
static expar_status check_strides(const char *name, const expar_tensor *tensor)
{
    if (tensor->shape[1] > 1 && tensor->strides[1] != 1)
        return error_set(EXPAR_ERR_STRIDE, "%s.strides[1] is %lld; expected 1 (each row contiguous)", name,
                         (long long)tensor->strides[1]);
    if (tensor->shape[0] > 1 && tensor->strides[0] < tensor->shape[1])
        return error_set(EXPAR_ERR_STRIDE, "%s.strides[0] is %lld; expected at least %lld", name,
                         (long long)tensor->strides[0], (long long)tensor->shape[1]);
    return EXPAR_OK;
}

static expar_status check_alignment(const char *name, const expar_tensor *tensor, size_t unit)
{
    if ((uintptr_t)tensor->data % unit)
        return error_set(EXPAR_ERR_ALIGNMENT, "%s.data is %p; expected a multiple of %zu", name, tensor->data, unit);
    return EXPAR_OK;
}

static expar_status check_row_bytes(const char *name, const expar_tensor *tensor, int64_t max_row_bytes)
{
    int64_t element = (int64_t)expar_dtype_bytes(tensor->dtype), hidden = tensor->shape[1];
    if (hidden < 1)
        return error_set(EXPAR_ERR_SHAPE, "%s has hidden size %lld; expected at least 1", name, (long long)hidden);
    if (hidden > max_row_bytes / element)
        return error_set(EXPAR_ERR_LIMIT,
                         "%s has rows of %lld elements of %lld bytes; this buffer holds rows up to %lld bytes "
                         "(config.max_row_bytes)",
                         name, (long long)hidden, (long long)element, (long long)max_row_bytes);
    if (hidden * element % ROW_UNIT)
        return error_set(EXPAR_ERR_SHAPE, "%s has rows of %lld bytes (hidden size %lld); expected a multiple of %d",
                         name, (long long)(hidden * element), (long long)hidden, ROW_UNIT);
    return check_extent(name, tensor);
}

expar_status ep_check_units(const char *name, const expar_tensor *tensor)
{
    int64_t element = (int64_t)expar_dtype_bytes(tensor->dtype);
    if (tensor_pitch(tensor) * element % ROW_UNIT)
        return error_set(EXPAR_ERR_ALIGNMENT,
                         "%s.strides[0] is %lld elements of %lld bytes; expected a multiple of %d bytes", name,
                         (long long)tensor_pitch(tensor), (long long)element, ROW_UNIT);
    return check_alignment(name, tensor, ROW_UNIT);
}

static bool is_quantised(expar_dtype dtype)
{
    return dtype == EXPAR_F8E4M3 || dtype == EXPAR_I8;
}

expar_status ep_check_rows(expar_device device, const char *name, const expar_tensor *tensor, int64_t max_row_bytes,
                           bool quantised)
{
    expar_status status = check_basics(device, name, tensor);
    if (status != EXPAR_OK) return status;
    bool is_float = tensor->dtype == EXPAR_BF16 || tensor->dtype == EXPAR_F16 || tensor->dtype == EXPAR_F32;
    if (!is_float && !(quantised && is_quantised(tensor->dtype)))
        return error_set(EXPAR_ERR_DTYPE, "%s.dtype is %s; expected bf16, f16%s", name,
                         ep_tell_dtype(tensor->dtype).text, quantised ? ", f32, f8e4m3 or i8" : " or f32");
    if ((status = check_strides(name, tensor)) != EXPAR_OK) return status;
    status = check_row_bytes(name, tensor, max_row_bytes);
    return status == EXPAR_OK ? ep_check_units(name, tensor) : status;
}

expar_status ep_check_matrix(expar_device device, const char *name, const expar_tensor *tensor, int64_t rows,
                             int64_t columns, expar_dtype dtype, expar_dtype other)
{
    expar_status status = check_basics(device, name, tensor);
    if (status != EXPAR_OK) return status;
    if (tensor->dtype != dtype && tensor->dtype != other)
        return error_set(EXPAR_ERR_DTYPE, "%s.dtype is %s; expected %s%s%s", name, ep_tell_dtype(tensor->dtype).text,
                         expar_dtype_string(dtype), other == dtype ? "" : " or ",
                         other == dtype ? "" : expar_dtype_string(other));
    if (tensor->shape[0] != rows || tensor->shape[1] != columns)
        return error_set(EXPAR_ERR_SHAPE, "%s has shape [%lld][%lld]; expected [%lld][%lld]", name,
                         (long long)tensor->shape[0], (long long)tensor->shape[1], (long long)rows, (long long)columns);
    if ((status = check_strides(name, tensor)) != EXPAR_OK) return status;
    if ((status = check_extent(name, tensor)) != EXPAR_OK) return status;
    return check_alignment(name, tensor, expar_dtype_bytes(tensor->dtype));
}

expar_status ep_check_vector(expar_device device, const char *name, const expar_tensor *tensor, expar_dtype dtype)
{
    if (tensor->ndim != 1) return error_set(EXPAR_ERR_SHAPE, "%s has %d dimensions; expected 1", name, tensor->ndim);
    if (tensor->shape[0] < 0)
        return error_set(EXPAR_ERR_SHAPE, "%s has shape [%lld]; expected no negative extent", name,
                         (long long)tensor->shape[0]);
    expar_status status = check_device(device, name, tensor);
    if (status != EXPAR_OK) return status;
    if (!tensor->data && tensor->shape[0] > 0)
        return error_set(EXPAR_ERR_NULL, "%s.data is NULL with shape [%lld]", name, (long long)tensor->shape[0]);
    if (tensor->dtype != dtype)
        return error_set(EXPAR_ERR_DTYPE, "%s.dtype is %s; expected %s", name, ep_tell_dtype(tensor->dtype).text,
                         expar_dtype_string(dtype));
    if (tensor->shape[0] > 1 && tensor->strides[0] != 1)
        return error_set(EXPAR_ERR_STRIDE, "%s.strides[0] is %lld; expected 1 (contiguous)", name,
                         (long long)tensor->strides[0]);
    return check_alignment(name, tensor, expar_dtype_bytes(dtype));
}

expar_status ep_check_arrays(expar_device device, const ep_array *arrays, size_t count)
{
    expar_status status = EXPAR_OK;
    for (size_t i = 0; status == EXPAR_OK && i < count; i++) {
        const ep_array *array = &arrays[i];
        if ((uintptr_t)array->data % array->unit)
            return error_set(EXPAR_ERR_ALIGNMENT, "%s is %p; expected a multiple of %zu", array->name, array->data,
                             array->unit);
        status = ep_check_place(device, array->name, "", array->data);
    }
    return status;
}

expar_status ep_check_flags(const ep_flag *flags, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (flags[i].value != 0 && flags[i].value != 1)
            return error_set(EXPAR_ERR_ARGUMENT, "%s is %d; expected 0 or 1", flags[i].name, flags[i].value);
    return EXPAR_OK;
}

/* Any strides, also negative ones; but the bytes from the first element to the furthest must be a number. */
static expar_status check_span(const char *name, const expar_tensor *tensor)
{
    int64_t part, span = 0, bytes;
    bool fits = true;
    for (int32_t i = 0; i < 2; i++) {
        fits = fits && !size_mul_overflows(tensor->shape[i] > 1 ? tensor->shape[i] - 1 : 0, tensor->strides[i], &part);
        fits = fits && part != INT64_MIN && !size_add_overflows(span, part < 0 ? -part : part, &span);
    }
    if (fits && !size_mul_overflows(span, (int64_t)expar_dtype_bytes(tensor->dtype), &bytes)) return EXPAR_OK;
    return error_set(EXPAR_ERR_STRIDE,
                     "%s.strides are [%lld, %lld] with shape [%lld][%lld]; expected them to span less than 2^63 bytes",
                     name, (long long)tensor->strides[0], (long long)tensor->strides[1], (long long)tensor->shape[0],
                     (long long)tensor->shape[1]);
}

expar_status ep_check_scales(expar_device device, const expar_tensor *scales, int64_t rows, int32_t max_scales)
{
    expar_status status = check_basics(device, "x_scales", scales);
    if (status != EXPAR_OK) return status;
    if (scales->dtype != EXPAR_F32 && scales->dtype != EXPAR_I32)
        return error_set(EXPAR_ERR_DTYPE, "x_scales.dtype is %s; expected f32 or i32",
                         ep_tell_dtype(scales->dtype).text);
    if (scales->shape[0] != rows)
        return error_set(EXPAR_ERR_SHAPE, "x_scales has %lld rows; expected %lld as x", (long long)scales->shape[0],
                         (long long)rows);
    if (scales->shape[1] < 1 || scales->shape[1] > max_scales)
        return error_set(EXPAR_ERR_LIMIT,
                         "x_scales has %lld scales a token; this buffer was created for 1 to %d (config.max_scales)",
                         (long long)scales->shape[1], max_scales);
    if ((status = check_span("x_scales", scales)) != EXPAR_OK) return status;
    return check_alignment("x_scales", scales, 4);
}

expar_status ep_check_columns(expar_device device, const char *name, const expar_tensor *tensor,
                              const expar_tensor *like)
{
    expar_status status = check_basics(device, name, tensor);
    if (status != EXPAR_OK) return status;
    if (tensor->dtype != like->dtype)
        return error_set(EXPAR_ERR_DTYPE, "%s.dtype is %s; expected %s", name, ep_tell_dtype(tensor->dtype).text,
                         expar_dtype_string(like->dtype));
    if (tensor->shape[1] != like->shape[1])
        return error_set(EXPAR_ERR_SHAPE, "%s has %lld columns; expected %lld", name, (long long)tensor->shape[1],
                         (long long)like->shape[1]);
    if ((status = check_span(name, tensor)) != EXPAR_OK) return status;
    return check_alignment(name, tensor, 16);
}

expar_status ep_check_wait_event(const expar_event *wait_event)
{
    if (!wait_event || event_alive(wait_event)) return EXPAR_OK;
    return error_set(EXPAR_ERR_HANDLE, "wait_event %p is not a living event; it has been released as often as retained",
                     (const void *)wait_event);
}

expar_status ep_check_experts(int32_t num_experts, int32_t ranks)
{
    if (num_experts < 1 || num_experts % ranks)
        return error_set(EXPAR_ERR_ARGUMENT, "num_experts is %d; expected a positive multiple of the %d ranks",
                         num_experts, ranks);
    return EXPAR_OK;
}

expar_status ep_copy_struct(const char *what, void *dest, size_t size, const void *source)
{
    if (!source) return error_set(EXPAR_ERR_NULL, "%s is NULL", what);
    size_t given;
    memcpy(&given, source, sizeof given);
    if (given < sizeof given || given > size)
        return error_set(EXPAR_ERR_ARGUMENT, "%s.struct_size is %zu; expected %zu to %zu (set it with the _INIT macro)",
                         what, given, sizeof given, size);
    memset(dest, 0, size);
    memcpy(dest, source, given);
    return EXPAR_OK;
}

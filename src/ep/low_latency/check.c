/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors as arguments of low-latency calls, beyond those of ep/call/check.c; and memory for those that are results. */
#include "ep/low_latency/ll.h"

#define ROW_UNIT 16

expar_status ll_check_dtype(const expar_ll *ll, const char *name, expar_dtype dtype)
{
    if (dtype != EXPAR_BF16 && dtype != EXPAR_F16 && dtype != EXPAR_F32)
        return error_set(EXPAR_ERR_DTYPE, "%s.dtype is %s; expected bf16, f16 or f32", name, ep_tell_dtype(dtype).text);
    if ((int32_t)expar_dtype_bytes(dtype) > ll->shape.element_bytes)
        return error_set(EXPAR_ERR_LIMIT,
                         "%s.dtype is %s; this buffer was created for elements of %d bytes (config.max_row_bytes)",
                         name, expar_dtype_string(dtype), ll->shape.element_bytes);
    const int64_t row_bytes = ll->shape.hidden * (int64_t)expar_dtype_bytes(dtype);
    if (row_bytes % ROW_UNIT == 0) return EXPAR_OK;
    return error_set(EXPAR_ERR_SHAPE,
                     "%s.dtype is %s, so that its rows of %d elements (config.hidden) have %lld bytes; expected a "
                     "multiple of %d",
                     name, expar_dtype_string(dtype), ll->shape.hidden, (long long)row_bytes, ROW_UNIT);
}

/* Checks the members of a tensor with any number of dimensions. */
static expar_status given_check_basics(const expar_ll *ll, const char *name, const expar_tensor *tensor, int32_t ndim)
{
    if (!tensor_given(tensor)) return error_set(EXPAR_ERR_NULL, "%s is not given", name);
    if (tensor->ndim != ndim)
        return error_set(EXPAR_ERR_SHAPE, "%s has %d dimensions; expected %d", name, tensor->ndim, ndim);
    if (!tensor->data) return error_set(EXPAR_ERR_NULL, "%s.data is NULL", name);
    if (tensor->device.type != ll->base.device.type || tensor->device.index != ll->base.device.index)
        return error_set(EXPAR_ERR_DEVICE, "%s lies on %s device %d; expected %s device %d, the buffer's", name,
                         ep_tell(&ep_names_device, tensor->device.type).text, tensor->device.index,
                         ep_tell(&ep_names_device, ll->base.device.type).text, ll->base.device.index);
    return ep_check_place(ll->base.device, name, ".data", tensor->data);
}

static expar_status given_check_shape(const char *name, const expar_tensor *tensor, const expar_tensor *wanted)
{
    for (int32_t i = 0; i < wanted->ndim; i++)
        if (tensor->shape[i] != wanted->shape[i])
            return error_set(EXPAR_ERR_SHAPE, "%s.shape[%d] is %lld; expected %lld", name, i,
                             (long long)tensor->shape[i], (long long)wanted->shape[i]);
    return EXPAR_OK;
}

static expar_status given_check_address(const char *name, const void *data, size_t unit)
{
    if ((uintptr_t)data % unit == 0) return EXPAR_OK;
    return error_set(EXPAR_ERR_ALIGNMENT, "%s.data is %p; expected a multiple of %zu", name, data, unit);
}

/* The last byte must have an address. */
static bool spans_too_much(const expar_tensor *tensor)
{
    int64_t experts, rows, sum, bytes;
    return size_mul_overflows(tensor->shape[0], tensor->strides[0], &experts) ||
           size_mul_overflows(tensor->shape[1], tensor->strides[1], &rows) || size_add_overflows(experts, rows, &sum) ||
           size_mul_overflows(sum, (int64_t)expar_dtype_bytes(tensor->dtype), &bytes);
}

static expar_status given_check_pitches(const char *name, const expar_tensor *tensor)
{
    const int64_t element = (int64_t)expar_dtype_bytes(tensor->dtype);
    if (tensor->strides[2] != 1 && tensor->shape[2] > 1)
        return error_set(EXPAR_ERR_STRIDE, "%s.strides[2] is %lld; expected 1 (each row contiguous)", name,
                         (long long)tensor->strides[2]);
    if (tensor->strides[1] < tensor->shape[2] || tensor->strides[0] < tensor->shape[2])
        return error_set(EXPAR_ERR_STRIDE, "%s.strides are [%lld, %lld, 1]; expected at least %lld", name,
                         (long long)tensor->strides[0], (long long)tensor->strides[1], (long long)tensor->shape[2]);
    if (spans_too_much(tensor))
        return error_set(EXPAR_ERR_STRIDE, "%s.strides are [%lld, %lld, 1]; expected them to span less than 2^63 bytes",
                         name, (long long)tensor->strides[0], (long long)tensor->strides[1]);
    if (tensor->strides[0] * element % ROW_UNIT || tensor->strides[1] * element % ROW_UNIT)
        return error_set(EXPAR_ERR_ALIGNMENT,
                         "%s.strides are [%lld, %lld, 1] elements of %lld bytes; expected multiples of %d bytes", name,
                         (long long)tensor->strides[0], (long long)tensor->strides[1], (long long)element, ROW_UNIT);
    return EXPAR_OK;
}

expar_tensor ll_rows_tensor(const expar_ll *ll, void *data, expar_dtype dtype)
{
    const int64_t rows = (int64_t)ll->shape.ranks * ll->shape.tokens;
    return expar_tensor_3d_on(ll->base.device, data, dtype, ll->shape.local_experts, rows, ll->shape.hidden);
}

expar_status ll_check_rows(const expar_ll *ll, const char *name, const expar_tensor *tensor, expar_dtype dtype)
{
    const expar_tensor wanted = ll_rows_tensor(ll, NULL, dtype);
    expar_status status = given_check_basics(ll, name, tensor, 3);
    if (status == EXPAR_OK) status = given_check_shape(name, tensor, &wanted);
    if (status == EXPAR_OK) status = given_check_pitches(name, tensor);
    return status == EXPAR_OK ? given_check_address(name, tensor->data, ROW_UNIT) : status;
}

expar_status ll_check_result(const expar_ll *ll, const char *name, const expar_tensor *tensor,
                             const expar_tensor *wanted)
{
    expar_status status = given_check_basics(ll, name, tensor, wanted->ndim);
    if (status == EXPAR_OK && tensor->dtype != wanted->dtype)
        status = error_set(EXPAR_ERR_DTYPE, "%s.dtype is %s; expected %s", name, ep_tell_dtype(tensor->dtype).text,
                           expar_dtype_string(wanted->dtype));
    if (status == EXPAR_OK) status = given_check_shape(name, tensor, wanted);
    for (int32_t i = 0; i < wanted->ndim && status == EXPAR_OK; i++)
        if (tensor->strides[i] != wanted->strides[i] && wanted->shape[i] > 1)
            status = error_set(EXPAR_ERR_STRIDE, "%s.strides[%d] is %lld; expected %lld", name, i,
                               (long long)tensor->strides[i], (long long)wanted->strides[i]);
    if (status != EXPAR_OK) return status;
    return given_check_address(name, tensor->data, wanted->ndim > 1 ? ROW_UNIT : expar_dtype_bytes(wanted->dtype));
}

expar_status ll_check_vector(const expar_ll *ll, const char *name, const expar_tensor *tensor, expar_dtype dtype,
                             int64_t n)
{
    if (!tensor_given(tensor)) return EXPAR_OK;
    const expar_tensor wanted = expar_tensor_1d_on(ll->base.device, NULL, dtype, n);
    return ll_check_result(ll, name, tensor, &wanted);
}

expar_status ll_check_topk(const expar_ll *ll, const expar_tensor *idx, const expar_tensor *weights, int64_t tokens)
{
    const int64_t topk = idx->shape[1];
    expar_status status = ep_check_matrix(ll->base.device, "topk_idx", idx, tokens, topk, EXPAR_I64, EXPAR_I32);
    if (status != EXPAR_OK) return status;
    if (topk < 1 || topk > ll->shape.topk)
        return error_set(EXPAR_ERR_LIMIT,
                         "topk_idx has %lld slots a token; this buffer was created for 1 to %d (config.max_topk)",
                         (long long)topk, ll->shape.topk);
    if (!tensor_given(weights)) return EXPAR_OK;
    return ep_check_matrix(ll->base.device, "topk_weights", weights, tokens, topk, EXPAR_F32, EXPAR_F32);
}

expar_status ll_check_manner(int32_t hook, int32_t async_finish)
{
    const ep_flag flags[] = {{"hook", hook}, {"async_finish", async_finish}};
    const expar_status wrong = ep_check_flags(flags, ARRAY_LENGTH(flags));
    if (wrong != EXPAR_OK || !hook || !async_finish) return wrong;
    return error_set(EXPAR_ERR_ARGUMENT, "hook is 1 and async_finish is 1; expected one of the two at most");
}

ep_route_view ll_route_view(const expar_tensor *idx, const expar_tensor *weights)
{
    return (ep_route_view){.idx = idx->data ? idx->data : "",
                           .idx_bytes = (int32_t)expar_dtype_bytes(idx->dtype),
                           .idx_pitch = tensor_pitch(idx),
                           .weights = tensor_given(weights) ? weights->data : NULL,
                           .weights_pitch = tensor_pitch(weights)};
}

expar_status ll_output_make(expar_ll *ll, uint64_t bytes, expar_ep_output **out)
{
    expar_ep_output *output = ep_output_make(&ll->base);
    if (!output) return error_set(EXPAR_ERR_MEMORY, "no memory for an output");
    *out = output;
    return ll->base.exec->ops->take(ll->base.exec, NULL, bytes, &output->block);
}

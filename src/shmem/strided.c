/* SPDX-License-Identifier: Apache-2.0 */
/* Strided put and get of expar/rma.h: one transport operation an element, or one in all where the elements touch. */
#include "shmem/ops.h"
#include "shmem/target.h"

static bool is_dense(const ops_strided *shape)
{
    return shape->dest_stride == 1 && shape->source_stride == 1;
}

/* Bytes from the first element's start to the last one's end; count is at least 1. */
static bool extent_overflows(const ops_strided *shape, ptrdiff_t stride, size_t *bytes)
{
    size_t steps;
    return size_mul_overflows(shape->count - 1, (size_t)stride, &steps) || size_add_overflows(steps, 1, &steps) ||
           size_mul_overflows(steps, shape->element_bytes, bytes);
}

static expar_status check_shape(const char *call, const ops_strided *shape)
{
    if (shape->dest_stride < 1)
        return error_set(EXPAR_ERR_ARGUMENT, "%s: dest_stride %td, expected 1 or more", call, shape->dest_stride);
    if (shape->source_stride < 1)
        return error_set(EXPAR_ERR_ARGUMENT, "%s: source_stride %td, expected 1 or more", call, shape->source_stride);
    if (shape->element_bytes == 0) return error_set(EXPAR_ERR_ARGUMENT, "%s: element_bytes is 0", call);
    return EXPAR_OK;
}

/* Checks everything, and gives the symmetric side's offset and the way to it. */
static expar_status check_call(const char *call, expar_group *group, const char *name, const void *symmetric,
                               ptrdiff_t stride, const ops_strided *shape, int32_t pe, uint64_t *offset,
                               transport **via)
{
    size_t bytes;
    if (extent_overflows(shape, stride, &bytes))
        return error_set(EXPAR_ERR_ARGUMENT, "%s: %zu elements of %zu bytes, %td apart, overflow", call, shape->count,
                         shape->element_bytes, stride);
    expar_status status = target_check_range(call, group, name, symmetric, bytes, offset);
    return status == EXPAR_OK ? target_transport(call, group, group->sym->reach_rma, pe, via) : status;
}

expar_status ops_iput(const char *call, expar_group *group, void *dest, const void *source, const ops_strided *shape,
                      int32_t pe)
{
    uint64_t offset;
    transport *via;
    expar_status status = target_check_pe(call, group, pe);
    if (status == EXPAR_OK) status = check_shape(call, shape);
    if (status != EXPAR_OK || shape->count == 0) return status;
    if (is_dense(shape)) return ops_put(call, group, dest, source, shape->count * shape->element_bytes, pe);
    if (!source) return error_set(EXPAR_ERR_NULL, "%s: source is NULL", call);
    status = check_call(call, group, "dest", dest, shape->dest_stride, shape, pe, &offset, &via);
    const size_t dest_step = (size_t)shape->dest_stride * shape->element_bytes;
    const size_t source_step = (size_t)shape->source_stride * shape->element_bytes;
    for (size_t i = 0; i < shape->count && status == EXPAR_OK; i++)
        status = via->ops->put(via, pe, offset + i * dest_step, (const uint8_t *)source + i * source_step,
                               shape->element_bytes);
    if (status == EXPAR_OK) sym_ring(group->sym, pe);
    return status;
}

expar_status ops_iget(const char *call, expar_group *group, void *dest, const void *source, const ops_strided *shape,
                      int32_t pe)
{
    uint64_t offset;
    transport *via;
    expar_status status = target_check_pe(call, group, pe);
    if (status == EXPAR_OK) status = check_shape(call, shape);
    if (status != EXPAR_OK || shape->count == 0) return status;
    if (is_dense(shape)) return ops_get(call, group, dest, source, shape->count * shape->element_bytes, pe);
    if (!dest) return error_set(EXPAR_ERR_NULL, "%s: dest is NULL", call);
    status = check_call(call, group, "source", source, shape->source_stride, shape, pe, &offset, &via);
    const size_t dest_step = (size_t)shape->dest_stride * shape->element_bytes;
    const size_t source_step = (size_t)shape->source_stride * shape->element_bytes;
    for (size_t i = 0; i < shape->count && status == EXPAR_OK; i++)
        status =
            via->ops->get(via, pe, (uint8_t *)dest + i * dest_step, offset + i * source_step, shape->element_bytes);
    return status;
}

expar_status expar_iput(expar_group *group, void *dest, const void *source, ptrdiff_t dest_stride,
                        ptrdiff_t source_stride, size_t element_bytes, size_t count, int32_t pe)
{
    return ops_iput("expar_iput", group, dest, source, &(ops_strided){dest_stride, source_stride, element_bytes, count},
                    pe);
}

expar_status expar_iget(expar_group *group, void *dest, const void *source, ptrdiff_t dest_stride,
                        ptrdiff_t source_stride, size_t element_bytes, size_t count, int32_t pe)
{
    return ops_iget("expar_iget", group, dest, source, &(ops_strided){dest_stride, source_stride, element_bytes, count},
                    pe);
}

#define STRIDED_DEFINE(T, S)                                                                                           \
    expar_status expar_iput_##S(expar_group *group, T *dest, const T *source, ptrdiff_t dest_stride,                   \
                                ptrdiff_t source_stride, size_t count, int32_t pe)                                     \
    {                                                                                                                  \
        return ops_iput("expar_iput_" #S, group, dest, source,                                                         \
                        &(ops_strided){dest_stride, source_stride, sizeof(T), count}, pe);                             \
    }                                                                                                                  \
    expar_status expar_iget_##S(expar_group *group, T *dest, const T *source, ptrdiff_t dest_stride,                   \
                                ptrdiff_t source_stride, size_t count, int32_t pe)                                     \
    {                                                                                                                  \
        return ops_iget("expar_iget_" #S, group, dest, source,                                                         \
                        &(ops_strided){dest_stride, source_stride, sizeof(T), count}, pe);                             \
    }
EXPAR_DATA_TYPES(STRIDED_DEFINE)

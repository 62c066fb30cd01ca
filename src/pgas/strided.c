/* SPDX-License-Identifier: Apache-2.0 */
/* Strided put and get of expar/rma.h and expar/context.h. They take one transport operation an element, all of them
 * started before the first is waited for, or one in all where the elements touch. */
#include "pgas/ops.h"
#include "pgas/target.h"

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

static expar_status strided_check_extent(const char *call, const ops_strided *shape, ptrdiff_t stride, size_t *bytes)
{
    if (!extent_overflows(shape, stride, bytes)) return EXPAR_OK;
    return error_set(EXPAR_ERR_ARGUMENT,
                     "%s: count %zu, expected fewer: %zu elements of %zu bytes, %td apart, overflow", call,
                     shape->count, shape->count, shape->element_bytes, stride);
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

/* The two sides of the elements: the symmetric one, by its argument's name, and the caller's. */
typedef struct strided_sides {
    const char *name;
    const void *symmetric, *local;
    ptrdiff_t stride; /* of the symmetric one */
} strided_sides;

/* Checks everything, and gives the symmetric side's offset and the way to it. */
static expar_status strided_check(const ops_origin *from, const strided_sides *sides, const ops_strided *shape,
                                  int32_t pe, uint64_t *offset, link_peer *out)
{
    size_t bytes;
    kinds_place place;
    expar_status status = strided_check_extent(from->call, shape, sides->stride, &bytes);
    if (status == EXPAR_OK)
        status = target_check_place(from->call, from->group, sides->name, sides->symmetric, bytes, &place);
    if (status != EXPAR_OK) return status;
    *offset = place.offset;
    return target_link(from, pe, place.memory, LINK_DATA, sides->local, out);
}

/* Bytes from one element to the next, on either side. */
static size_t step_bytes(const ops_strided *shape, ptrdiff_t stride)
{
    return (size_t)stride * shape->element_bytes;
}

expar_status ops_iput_from(const ops_origin *from, void *dest, const void *source, const ops_strided *shape, int32_t pe)
{
    size_t bytes;
    link_peer peer;
    link_data put = {.source = source, .bytes = shape->element_bytes, .copies = !from->nbi};
    expar_status status = target_check_pe(from->call, from->group, pe);
    if (status == EXPAR_OK) status = check_shape(from->call, shape);
    if (status != EXPAR_OK || shape->count == 0) return status;
    if (is_dense(shape)) {
        status = strided_check_extent(from->call, shape, 1, &bytes);
        return status == EXPAR_OK ? ops_put_from(from, dest, source, bytes, pe) : status;
    }
    if (!source) return error_set(EXPAR_ERR_NULL, "%s: source is NULL", from->call);
    const strided_sides sides = {"dest", dest, source, shape->dest_stride};
    status = strided_check(from, &sides, shape, pe, &put.offset, &peer);
    const uint64_t first = put.offset;
    for (size_t i = 0; i < shape->count && status == EXPAR_OK; i++) {
        put.offset = first + i * step_bytes(shape, shape->dest_stride);
        put.source = (const uint8_t *)source + i * step_bytes(shape, shape->source_stride);
        status = link_put(&peer, &put, from->batch);
    }
    if (status == EXPAR_OK) sym_ring(from->group->sym, pe);
    return status;
}

/* Starts the gets of all elements; the first one's source lies at the offset. */
static expar_status start_gets(const link_peer *peer, void *dest, uint64_t offset, const ops_strided *shape,
                               link_batch *batch)
{
    expar_status status = EXPAR_OK;
    for (size_t i = 0; i < shape->count && status == EXPAR_OK; i++)
        status = link_get(peer, (uint8_t *)dest + i * step_bytes(shape, shape->dest_stride),
                          offset + i * step_bytes(shape, shape->source_stride), shape->element_bytes, batch);
    return status;
}

/* Returns when all elements are here. */
static expar_status run_gets(const ops_origin *from, const link_peer *peer, void *dest, uint64_t offset,
                             const ops_strided *shape)
{
    link_batch batch = {0};
    expar_status status = start_gets(peer, dest, offset, shape, &batch);
    if (status != EXPAR_OK) {
        link_drop(peer, &batch);
        return status;
    }
    status = link_quiet(peer->sym, &batch);
    return status == EXPAR_OK ? EXPAR_OK : error_prefix(status, "%s", from->call);
}

expar_status ops_iget_from(const ops_origin *from, void *dest, const void *source, const ops_strided *shape, int32_t pe)
{
    size_t bytes;
    link_peer peer;
    uint64_t offset;
    expar_status status = target_check_pe(from->call, from->group, pe);
    if (status == EXPAR_OK) status = check_shape(from->call, shape);
    if (status != EXPAR_OK || shape->count == 0) return status;
    if (is_dense(shape)) {
        status = strided_check_extent(from->call, shape, 1, &bytes);
        return status == EXPAR_OK ? ops_get_from(from, dest, source, bytes, pe) : status;
    }
    if (!dest) return error_set(EXPAR_ERR_NULL, "%s: dest is NULL", from->call);
    const strided_sides sides = {"source", source, dest, shape->source_stride};
    status = strided_check(from, &sides, shape, pe, &offset, &peer);
    if (status != EXPAR_OK) return status;
    return from->nbi ? start_gets(&peer, dest, offset, shape, from->batch) : run_gets(from, &peer, dest, offset, shape);
}

/* ---- public: P is what names begin with, O declares the group or context, ON makes the origin -------------------- */

#define MOVE_DEFINE(P, O, ON, name, nbi, move)                                                                         \
    expar_status P##name(O, void *dest, const void *source, ptrdiff_t dest_stride, ptrdiff_t source_stride,            \
                         size_t element_bytes, size_t count, int32_t pe)                                               \
    {                                                                                                                  \
        ON(#P #name, nbi)                                                                                              \
        return group_ended(from.group, move(&from, dest, source,                                                       \
                                            &(ops_strided){dest_stride, source_stride, element_bytes, count}, pe));    \
    }
#define TYPED_DEFINE(P, O, ON, T, S, name, nbi, move)                                                                  \
    expar_status P##name##_##S(O, T *dest, const T *source, ptrdiff_t dest_stride, ptrdiff_t source_stride,            \
                               size_t count, int32_t pe)                                                               \
    {                                                                                                                  \
        ON(#P #name "_" #S, nbi)                                                                                       \
        return group_ended(                                                                                            \
            from.group, move(&from, dest, source, &(ops_strided){dest_stride, source_stride, sizeof(T), count}, pe));  \
    }

#define BYTES_DEFINE(P, O, ON)                                                                                         \
    MOVE_DEFINE(P, O, ON, iput, false, ops_iput_from)                                                                  \
    MOVE_DEFINE(P, O, ON, iget, false, ops_iget_from)                                                                  \
    MOVE_DEFINE(P, O, ON, iput_nbi, true, ops_iput_from)                                                               \
    MOVE_DEFINE(P, O, ON, iget_nbi, true, ops_iget_from)
#define STRIDED_DEFINE(P, O, ON, T, S)                                                                                 \
    TYPED_DEFINE(P, O, ON, T, S, iput, false, ops_iput_from)                                                           \
    TYPED_DEFINE(P, O, ON, T, S, iget, false, ops_iget_from)                                                           \
    TYPED_DEFINE(P, O, ON, T, S, iput_nbi, true, ops_iput_from)                                                        \
    TYPED_DEFINE(P, O, ON, T, S, iget_nbi, true, ops_iget_from)

BYTES_DEFINE(expar_, expar_group *group, OPS_ON_GROUP)
BYTES_DEFINE(expar_ctx_, expar_ctx *ctx, OPS_ON_CTX)
#define GROUP_DEFINE(T, S) STRIDED_DEFINE(expar_, expar_group *group, OPS_ON_GROUP, T, S)
#define CTX_DEFINE(T, S)   STRIDED_DEFINE(expar_ctx_, expar_ctx *ctx, OPS_ON_CTX, T, S)
EXPAR_DATA_TYPES(GROUP_DEFINE)
EXPAR_DATA_TYPES(CTX_DEFINE)

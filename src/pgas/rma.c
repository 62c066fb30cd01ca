/* SPDX-License-Identifier: Apache-2.0 */
/* Put and get of expar/rma.h and expar/context.h, in bytes, typed and single. */
#include "pgas/direct.h"
#include "pgas/ops.h"
#include "pgas/target.h"

expar_status ops_put_from(const ops_origin *from, void *dest, const void *source, size_t bytes, int32_t pe)
{
    link_peer peer;
    expar_group *group = from->group;
    if (ops_goes_straight(from) && direct_put(group, dest, source, bytes, pe)) return EXPAR_OK;
    kinds_place place;
    expar_status status = target_check_pe(from->call, group, pe);
    if (status != EXPAR_OK || bytes == 0) return status;
    if (!source) return error_set(EXPAR_ERR_NULL, "%s: source is NULL", from->call);
    status = target_check_place(from->call, group, "dest", dest, bytes, &place);
    if (status == EXPAR_OK) status = target_link(from, pe, place.memory, LINK_DATA, source, &peer);
    if (status != EXPAR_OK) return status;
    const link_data put = {.offset = place.offset, .source = source, .bytes = bytes, .copies = !from->nbi};
    status = from->nbi || from->batch ? link_put(&peer, &put, from->batch) : link_put_now(&peer, &put);
    if (status == EXPAR_OK) target_ring(group, pe, &place, bytes);
    return status;
}

expar_status ops_put(const char *call, expar_group *group, void *dest, const void *source, size_t bytes, int32_t pe)
{
    return ops_put_from(&(ops_origin){.call = call, .group = group}, dest, source, bytes, pe);
}

expar_status ops_get_from(const ops_origin *from, void *dest, const void *source, size_t bytes, int32_t pe)
{
    link_peer peer;
    kinds_place place;
    expar_group *group = from->group;
    if (ops_goes_straight(from) && direct_get(group, dest, source, bytes, pe)) return EXPAR_OK;
    expar_status status = target_check_pe(from->call, group, pe);
    if (status != EXPAR_OK || bytes == 0) return status;
    if (!dest) return error_set(EXPAR_ERR_NULL, "%s: dest is NULL", from->call);
    status = target_check_place(from->call, group, "source", source, bytes, &place);
    if (status == EXPAR_OK) status = target_link(from, pe, place.memory, LINK_DATA, dest, &peer);
    if (status != EXPAR_OK) return status;
    return from->nbi ? link_get(&peer, dest, place.offset, bytes, from->batch)
                     : link_get_now(&peer, dest, place.offset, bytes);
}

expar_status ops_get(const char *call, expar_group *group, void *dest, const void *source, size_t bytes, int32_t pe)
{
    return ops_get_from(&(ops_origin){.call = call, .group = group}, dest, source, bytes, pe);
}

expar_status expar_put(expar_group *group, void *dest, const void *source, size_t bytes, int32_t pe)
{
    if (direct_put(group, dest, source, bytes, pe)) return EXPAR_OK;
    return group_ended(group, ops_put("expar_put", group, dest, source, bytes, pe));
}

expar_status expar_get(expar_group *group, void *dest, const void *source, size_t bytes, int32_t pe)
{
    if (direct_get(group, dest, source, bytes, pe)) return EXPAR_OK;
    return group_ended(group, ops_get("expar_get", group, dest, source, bytes, pe));
}

expar_status expar_put_nbi(expar_group *group, void *dest, const void *source, size_t bytes, int32_t pe)
{
    OPS_ON_GROUP("expar_put_nbi", true)
    return group_ended(group, ops_put_from(&from, dest, source, bytes, pe));
}

expar_status expar_get_nbi(expar_group *group, void *dest, const void *source, size_t bytes, int32_t pe)
{
    OPS_ON_GROUP("expar_get_nbi", true)
    return group_ended(group, ops_get_from(&from, dest, source, bytes, pe));
}

/* ---- on a context ------------------------------------------------------------------------------------------------ */

#define CTX_MOVE_DEFINE(name, nbi, move)                                                                               \
    expar_status expar_ctx_##name(expar_ctx *ctx, void *dest, const void *source, size_t bytes, int32_t pe)            \
    {                                                                                                                  \
        OPS_ON_CTX("expar_ctx_" #name, nbi)                                                                            \
        return ctx_ended(ctx, move(&from, dest, source, bytes, pe));                                                   \
    }
CTX_MOVE_DEFINE(put, false, ops_put_from)
CTX_MOVE_DEFINE(get, false, ops_get_from)
CTX_MOVE_DEFINE(put_nbi, true, ops_put_from)
CTX_MOVE_DEFINE(get_nbi, true, ops_get_from)

/* ---- typed: P is what names begin with, O declares the group or context, ON makes the origin --------------------- */

typedef expar_status (*mover)(const ops_origin *from, void *dest, const void *source, size_t bytes, int32_t pe);

static expar_status move_elements(mover move, const ops_origin *from, void *dest, const void *source,
                                  size_t element_bytes, size_t count, int32_t pe)
{
    size_t bytes;
    if (size_mul_overflows(count, element_bytes, &bytes))
        return error_set(EXPAR_ERR_ARGUMENT, "%s: count %zu, expected at most %zu: elements of %zu bytes overflow",
                         from->call, count, SIZE_MAX / element_bytes, element_bytes);
    return move(from, dest, source, bytes, pe);
}

/* The typed calls that move a row of elements. */
#define MOVE_DEFINE(P, O, ON, T, S, name, nbi, move)                                                                   \
    expar_status P##name##_##S(O, T *dest, const T *source, size_t count, int32_t pe)                                  \
    {                                                                                                                  \
        ON(#P #name "_" #S, nbi)                                                                                       \
        return group_ended(from.group, move_elements(move, &from, dest, source, sizeof(T), count, pe));                \
    }
#define RMA_DEFINE(P, O, ON, T, S)                                                                                     \
    MOVE_DEFINE(P, O, ON, T, S, put, false, ops_put_from)                                                              \
    MOVE_DEFINE(P, O, ON, T, S, get, false, ops_get_from)                                                              \
    MOVE_DEFINE(P, O, ON, T, S, put_nbi, true, ops_put_from)                                                           \
    MOVE_DEFINE(P, O, ON, T, S, get_nbi, true, ops_get_from)                                                           \
    expar_status P##p_##S(O, T *dest, T value, int32_t pe)                                                             \
    {                                                                                                                  \
        ON(#P "p_" #S, false)                                                                                          \
        return group_ended(from.group, ops_put_from(&from, dest, &value, sizeof value, pe));                           \
    }                                                                                                                  \
    expar_status P##g_##S(O, const T *source, int32_t pe, T *value)                                                    \
    {                                                                                                                  \
        ON(#P "g_" #S, false)                                                                                          \
        return group_ended(from.group, ops_get_from(&from, value, source, sizeof *value, pe));                         \
    }
#define GROUP_DEFINE(T, S) RMA_DEFINE(expar_, expar_group *group, OPS_ON_GROUP, T, S)
#define CTX_DEFINE(T, S)   RMA_DEFINE(expar_ctx_, expar_ctx *ctx, OPS_ON_CTX, T, S)
EXPAR_DATA_TYPES(GROUP_DEFINE)
EXPAR_DATA_TYPES(CTX_DEFINE)

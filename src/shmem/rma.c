/* SPDX-License-Identifier: Apache-2.0 */
/* Put and get of expar/rma.h, in bytes, typed and single. Without a proxy the nbi forms are the plain ones: what is
 * complete at once is complete after quiet, too. */
#include "shmem/direct.h"
#include "shmem/ops.h"
#include "shmem/target.h"

static proxy_command command_of(proxy_kind kind, int32_t pe, uint64_t offset, const void *local, size_t bytes)
{
    return (proxy_command){
        .kind = (uint16_t)kind, .pe = pe, .offset = offset, .local = (uintptr_t)local, .bytes = bytes};
}

/* by: the proxy that is to carry it out; NULL: this thread does. */
static expar_status put(const char *call, expar_group *group, void *dest, const void *source, size_t bytes, int32_t pe,
                        proxy *by)
{
    uint64_t offset;
    transport *via;
    expar_status status = target_check_pe(call, group, pe);
    if (status != EXPAR_OK || bytes == 0) return status;
    if (!source) return error_set(EXPAR_ERR_NULL, "%s: source is NULL", call);
    status = target_check_range(call, group, "dest", dest, bytes, &offset);
    if (status == EXPAR_OK) status = target_transport(call, group, group->sym->reach_rma, pe, &via);
    if (status != EXPAR_OK) return status;
    const proxy_command command = command_of(PROXY_PUT, pe, offset, source, bytes);
    if (by) return proxy_issue(by, call, &command);
    status = via->ops->put(via, pe, offset, source, bytes);
    if (status == EXPAR_OK) sym_ring_put(group->sym, pe, offset, bytes); /* the target may wait for a word in it */
    return status;
}

expar_status ops_put(const char *call, expar_group *group, void *dest, const void *source, size_t bytes, int32_t pe)
{
    return put(call, group, dest, source, bytes, pe, NULL);
}

static expar_status put_nbi(const char *call, expar_group *group, void *dest, const void *source, size_t bytes,
                            int32_t pe)
{
    return put(call, group, dest, source, bytes, pe, group ? group->sym->proxy : NULL);
}

static expar_status get(const char *call, expar_group *group, void *dest, const void *source, size_t bytes, int32_t pe,
                        proxy *by)
{
    uint64_t offset;
    transport *via;
    expar_status status = target_check_pe(call, group, pe);
    if (status != EXPAR_OK || bytes == 0) return status;
    if (!dest) return error_set(EXPAR_ERR_NULL, "%s: dest is NULL", call);
    status = target_check_range(call, group, "source", source, bytes, &offset);
    if (status == EXPAR_OK) status = target_transport(call, group, group->sym->reach_rma, pe, &via);
    if (status != EXPAR_OK) return status;
    const proxy_command command = command_of(PROXY_GET, pe, offset, dest, bytes);
    return by ? proxy_issue(by, call, &command) : via->ops->get(via, pe, dest, offset, bytes);
}

expar_status ops_get(const char *call, expar_group *group, void *dest, const void *source, size_t bytes, int32_t pe)
{
    return get(call, group, dest, source, bytes, pe, NULL);
}

static expar_status get_nbi(const char *call, expar_group *group, void *dest, const void *source, size_t bytes,
                            int32_t pe)
{
    return get(call, group, dest, source, bytes, pe, group ? group->sym->proxy : NULL);
}

expar_status expar_put(expar_group *group, void *dest, const void *source, size_t bytes, int32_t pe)
{
    if (direct_put(group, dest, source, bytes, pe)) return EXPAR_OK;
    return ops_put("expar_put", group, dest, source, bytes, pe);
}

expar_status expar_get(expar_group *group, void *dest, const void *source, size_t bytes, int32_t pe)
{
    if (direct_get(group, dest, source, bytes, pe)) return EXPAR_OK;
    return ops_get("expar_get", group, dest, source, bytes, pe);
}

expar_status expar_put_nbi(expar_group *group, void *dest, const void *source, size_t bytes, int32_t pe)
{
    return put_nbi("expar_put_nbi", group, dest, source, bytes, pe);
}

expar_status expar_get_nbi(expar_group *group, void *dest, const void *source, size_t bytes, int32_t pe)
{
    return get_nbi("expar_get_nbi", group, dest, source, bytes, pe);
}

typedef expar_status (*mover)(const char *call, expar_group *group, void *dest, const void *source, size_t bytes,
                              int32_t pe);

static expar_status move_elements(mover move, const char *call, expar_group *group, void *dest, const void *source,
                                  size_t element_bytes, size_t count, int32_t pe)
{
    size_t bytes;
    if (size_mul_overflows(count, element_bytes, &bytes))
        return error_set(EXPAR_ERR_ARGUMENT, "%s: %zu elements of %zu bytes overflow", call, count, element_bytes);
    return move(call, group, dest, source, bytes, pe);
}

/* The typed calls that move a row of elements. */
#define MOVE_DEFINE(T, S, name, move)                                                                                  \
    expar_status expar_##name##_##S(expar_group *group, T *dest, const T *source, size_t count, int32_t pe)            \
    {                                                                                                                  \
        return move_elements(move, "expar_" #name "_" #S, group, dest, source, sizeof(T), count, pe);                  \
    }
#define RMA_DEFINE(T, S)                                                                                               \
    MOVE_DEFINE(T, S, put, ops_put)                                                                                    \
    MOVE_DEFINE(T, S, get, ops_get)                                                                                    \
    MOVE_DEFINE(T, S, put_nbi, put_nbi)                                                                                \
    MOVE_DEFINE(T, S, get_nbi, get_nbi)                                                                                \
    expar_status expar_p_##S(expar_group *group, T *dest, T value, int32_t pe)                                         \
    {                                                                                                                  \
        return ops_put("expar_p_" #S, group, dest, &value, sizeof value, pe);                                          \
    }                                                                                                                  \
    expar_status expar_g_##S(expar_group *group, const T *source, int32_t pe, T *value)                                \
    {                                                                                                                  \
        return ops_get("expar_g_" #S, group, value, source, sizeof *value, pe);                                        \
    }
EXPAR_DATA_TYPES(RMA_DEFINE)

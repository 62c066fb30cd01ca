/* SPDX-License-Identifier: Apache-2.0 */
/* put, get and p of expar/stream.h, on groups and contexts; fence, quiet and the queries. */
#include "pgas/stream/parts.h"
#include <expar/stream.h>

#include <string.h>

/* ---- put and get ------------------------------------------------------------------------------------------------- */

static expar_status carry_put(stream_job *job)
{
    const ops_origin from = stream_job_origin(job);
    return stream_job_settle(job, ops_put_from(&from, job->dest, job->source, job->bytes, job->pe));
}

static expar_status carry_get(stream_job *job)
{
    const ops_origin from = stream_job_origin(job);
    return stream_job_settle(job, ops_get_from(&from, job->dest, job->source, job->bytes, job->pe));
}

static expar_status put_job(stream_call *call, expar_status (*carry)(stream_job *self), void *dest, const void *source,
                            size_t bytes, int32_t pe)
{
    stream_job *job;
    expar_status status = stream_call_find_capture(call);
    if (status == EXPAR_OK) status = stream_job_make(call, carry, &job);
    if (status != EXPAR_OK) return status;
    job->dest = dest;
    job->source = source;
    job->bytes = bytes;
    job->pe = pe;
    return stream_job_put(call, call->service->operations, job);
}

static expar_status put_begun(stream_call *call, void *dest, const void *source, size_t bytes, int32_t pe)
{
    kinds_place place;
    link_peer peer;
    const ops_origin from = {.call = call->name, .group = call->group};
    expar_status status = target_check_pe(call->name, call->group, pe);
    if (status != EXPAR_OK || bytes == 0) return status;
    if (!source) return error_set(EXPAR_ERR_NULL, "%s: source is NULL", call->name);
    status = target_check_place(call->name, call->group, "dest", dest, bytes, &place);
    if (status == EXPAR_OK) status = target_link(&from, pe, place.memory, LINK_DATA, source, &peer);
    if (status != EXPAR_OK) return status;
    void *to = kinds_peer_on_stream(call->group->sym, &place, pe);
    if (to && stream_reaches(call, source, bytes)) return stream_copy(call, to, source, bytes);
    return put_job(call, carry_put, dest, source, bytes, pe);
}

static expar_status get_begun(stream_call *call, void *dest, const void *source, size_t bytes, int32_t pe)
{
    kinds_place place;
    link_peer peer;
    const ops_origin from = {.call = call->name, .group = call->group};
    expar_status status = target_check_pe(call->name, call->group, pe);
    if (status != EXPAR_OK || bytes == 0) return status;
    if (!dest) return error_set(EXPAR_ERR_NULL, "%s: dest is NULL", call->name);
    status = target_check_place(call->name, call->group, "source", source, bytes, &place);
    if (status == EXPAR_OK) status = target_link(&from, pe, place.memory, LINK_DATA, dest, &peer);
    if (status != EXPAR_OK) return status;
    const void *at = kinds_peer_on_stream(call->group->sym, &place, pe);
    if (at && stream_reaches(call, dest, bytes)) return stream_copy(call, dest, at, bytes);
    return put_job(call, carry_get, dest, source, bytes, pe);
}

typedef expar_status (*move)(stream_call *call, void *dest, const void *source, size_t bytes, int32_t pe);
static expar_status move_ended(stream_call *call, move moves, void *dest, const void *source, size_t bytes, int32_t pe)
{
    expar_status status = stream_call_begin_plain(call);
    if (status == EXPAR_OK) status = stream_call_end(call, moves(call, dest, source, bytes, pe));
    return group_ended(call->group, status);
}

#define MOVE_DEFINE(P, O, ON, name, moves)                                                                             \
    expar_status P##name##_on_stream(O, void *dest, const void *source, size_t bytes, int32_t pe, void *stream)        \
    {                                                                                                                  \
        ON(#P #name "_on_stream");                                                                                     \
        return move_ended(&call, moves, dest, source, bytes, pe);                                                      \
    }
MOVE_DEFINE(expar_, expar_group *group, STREAM_ON_GROUP, put, put_begun)
MOVE_DEFINE(expar_, expar_group *group, STREAM_ON_GROUP, get, get_begun)
MOVE_DEFINE(expar_ctx_, expar_ctx *ctx, STREAM_ON_CTX, put, put_begun)
MOVE_DEFINE(expar_ctx_, expar_ctx *ctx, STREAM_ON_CTX, get, get_begun)

/* ---- single elements --------------------------------------------------------------------------------------------- */

static expar_status carry_p(stream_job *job)
{
    const ops_origin from = stream_job_origin(job);
    return stream_job_settle(job, ops_put_from(&from, job->dest, &job->value, job->bytes, job->pe));
}

/* The low bytes of `value` are the element. */
static expar_status p_begun(stream_call *call, void *dest, uint64_t value, size_t bytes, int32_t pe)
{
    kinds_place place;
    link_peer peer;
    stream_job *job;
    const ops_origin from = {.call = call->name, .group = call->group};
    expar_status status = target_check_pe(call->name, call->group, pe);
    if (status == EXPAR_OK) status = target_check_place(call->name, call->group, "dest", dest, bytes, &place);
    if (status == EXPAR_OK && (uintptr_t)dest % bytes != 0)
        status = error_set(EXPAR_ERR_ALIGNMENT, "%s: dest: %p is not a multiple of %zu", call->name, dest, bytes);
    if (status == EXPAR_OK) status = target_link(&from, pe, place.memory, LINK_DATA, NULL, &peer);
    if (status != EXPAR_OK) return status;
    void *to = kinds_peer_word_on_stream(call->group->sym, &place, pe);
    if (to) return stream_store(call, to, value, bytes);
    status = stream_call_find_capture(call);
    if (status == EXPAR_OK) status = stream_job_make(call, carry_p, &job);
    if (status != EXPAR_OK) return status;
    job->dest = dest;
    job->value = value;
    job->bytes = bytes;
    job->pe = pe;
    return stream_job_put(call, call->service->operations, job);
}

static expar_status element_ended(stream_call *call, void *dest, uint64_t value, size_t bytes, int32_t pe)
{
    expar_status status = stream_call_begin_plain(call);
    if (status == EXPAR_OK) status = stream_call_end(call, p_begun(call, dest, value, bytes, pe));
    return group_ended(call->group, status);
}

#define P_DEFINE(P, O, ON, T, S)                                                                                       \
    expar_status P##p_##S##_on_stream(O, T *dest, T value, int32_t pe, void *stream)                                   \
    {                                                                                                                  \
        uint64_t bits = 0;                                                                                             \
        memcpy(&bits, &value, sizeof value);                                                                           \
        ON(#P "p_" #S "_on_stream");                                                                                   \
        return element_ended(&call, dest, bits, sizeof value, pe);                                                     \
    }
#define P_GROUP_DEFINE(T, S) P_DEFINE(expar_, expar_group *group, STREAM_ON_GROUP, T, S)
#define P_CTX_DEFINE(T, S)   P_DEFINE(expar_ctx_, expar_ctx *ctx, STREAM_ON_CTX, T, S)
EXPAR_DATA_TYPES(P_GROUP_DEFINE)
EXPAR_DATA_TYPES(P_CTX_DEFINE)

/* ---- order ------------------------------------------------------------------------------------------------------- */

/* Each operation has arrived when the stream comes here. */
static expar_status order_ended(stream_call *call)
{
    expar_status status = stream_call_begin_plain(call);
    if (status == EXPAR_OK) status = stream_call_end(call, EXPAR_OK);
    return group_ended(call->group, status);
}

#define ORDER_DEFINE(P, O, ON, name)                                                                                   \
    expar_status P##name##_on_stream(O, void *stream)                                                                  \
    {                                                                                                                  \
        int32_t pe = 0;                                                                                                \
        (void)pe;                                                                                                      \
        ON(#P #name "_on_stream");                                                                                     \
        return order_ended(&call);                                                                                     \
    }
ORDER_DEFINE(expar_, expar_group *group, STREAM_ON_GROUP, fence)
ORDER_DEFINE(expar_, expar_group *group, STREAM_ON_GROUP, quiet)
ORDER_DEFINE(expar_ctx_, expar_ctx *ctx, STREAM_ON_CTX, fence)
ORDER_DEFINE(expar_ctx_, expar_ctx *ctx, STREAM_ON_CTX, quiet)

/* ---- queries ----------------------------------------------------------------------------------------------------- */

expar_status expar_group_query(expar_group *group)
{
    static const char name[] = "expar_group_query";
    if (!group) return group_ended(group, error_set(EXPAR_ERR_NULL, "%s: group is NULL", name));
    return group_ended(group, error_prefix(stream_failure_take(group, NULL), "%s", name));
}

expar_status expar_ctx_query(expar_ctx *ctx)
{
    int32_t pe = 0;
    ops_origin from = {.call = "expar_ctx_query"};
    expar_status status = context_enter(ctx, &from, &pe);
    if (status == EXPAR_OK) status = error_prefix(stream_failure_take(from.group, ctx), "%s", from.call);
    return ctx_ended(ctx, status);
}

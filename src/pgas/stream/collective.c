/* SPDX-License-Identifier: Apache-2.0 */
/* Barriers and collectives of expar/stream.h. A team's collectives on streams have a thread and a channel of their own.
 * The thread makes the host's collective when the stream comes to the call. Formed teams share a thread and a
 * channel. */
#include "pgas/stream/parts.h"
#include <expar/collective.h>
#include <expar/stream.h>

/* ---- jobs -------------------------------------------------------------------------------------------------------- */

/* A graph may come after the end of its team. */
static expar_status check_alive(const stream_job *job)
{
    if (job->team->group && job->team->number == job->on_stream.number) return EXPAR_OK;
    return error_set(EXPAR_ERR_HANDLE, "the team was destroyed");
}

static expar_status carry_sync(stream_job *job)
{
    expar_status status = check_alive(job);
    if (status == EXPAR_OK) status = team_check(job->name, &job->on_stream);
    return status == EXPAR_OK ? team_sync(job->name, &job->on_stream) : status;
}

static expar_status carry_broadcast(stream_job *job)
{
    expar_status status = check_alive(job);
    if (status != EXPAR_OK) return status;
    return expar_broadcast(&job->on_stream, job->dest, job->source, job->bytes, job->pe);
}

static expar_status carry_fcollect(stream_job *job)
{
    expar_status status = check_alive(job);
    return status == EXPAR_OK ? expar_fcollect(&job->on_stream, job->dest, job->source, job->bytes) : status;
}

static expar_status carry_collect(stream_job *job)
{
    expar_status status = check_alive(job);
    return status == EXPAR_OK ? expar_collect(&job->on_stream, job->dest, job->source, job->bytes) : status;
}

static expar_status carry_alltoall(stream_job *job)
{
    expar_status status = check_alive(job);
    return status == EXPAR_OK ? expar_alltoall(&job->on_stream, job->dest, job->source, job->bytes) : status;
}

static expar_status carry_alltoalls(stream_job *job)
{
    expar_status status = check_alive(job);
    if (status != EXPAR_OK) return status;
    return expar_alltoalls(&job->on_stream, job->dest, job->source, job->dest_stride, job->source_stride, job->bytes,
                           job->count);
}

static expar_status carry_reduce(stream_job *job)
{
    expar_status status = check_alive(job);
    return status == EXPAR_OK ? job->reduce(job, &job->on_stream) : status;
}

/* ---- putting them on streams ------------------------------------------------------------------------------------- */

/* The arguments of a collective, and what of its memory is checked at once. */
typedef struct collective_args {
    expar_status (*carry)(stream_job *self);
    void *dest;
    const void *source;
    /* of dest and source; BYTES_OVERFLOW: a size overflows */
    size_t dest_bytes, source_bytes;
    size_t bytes, count;
    ptrdiff_t dest_stride, source_stride;
    int32_t root;
    bool source_is_symmetric;
    expar_status (*reduce)(const stream_job *self, expar_team *team);
} collective_args;
#define BYTES_OVERFLOW SIZE_MAX

static size_t product(size_t a, size_t b)
{
    size_t bytes;
    return size_mul_overflows(a, b, &bytes) ? BYTES_OVERFLOW : bytes;
}

static expar_status call_check_memory(const stream_call *call, const collective_args *args)
{
    kinds_place place;
    if (args->dest_bytes == BYTES_OVERFLOW || args->source_bytes == BYTES_OVERFLOW)
        return error_set(EXPAR_ERR_ARGUMENT, "%s: a size overflows", call->name);
    if (args->dest_stride < 1 || args->source_stride < 1)
        return error_set(EXPAR_ERR_ARGUMENT, "%s: strides %td and %td, expected 1 at least", call->name,
                         args->dest_stride, args->source_stride);
    expar_status status = EXPAR_OK;
    if (args->dest_bytes > 0)
        status = target_check_place(call->name, call->group, "dest", args->dest, args->dest_bytes, &place);
    if (status == EXPAR_OK && args->source_bytes > 0 && !args->source)
        status = error_set(EXPAR_ERR_NULL, "%s: source is NULL", call->name);
    if (status == EXPAR_OK && args->source_bytes > 0 && args->source_is_symmetric)
        status = target_check_place(call->name, call->group, "source", args->source, args->source_bytes, &place);
    return status;
}

static expar_status put_collective(const stream_call *call, const expar_team *team, const collective_args *args)
{
    stream_job *job;
    cuda_server *server;
    expar_status status = stream_collectives(call->service, team->slot, &server);
    if (status == EXPAR_OK) status = stream_job_make(call, args->carry, &job);
    if (status != EXPAR_OK) return status;
    job->dest = args->dest;
    job->source = args->source;
    job->bytes = args->bytes;
    job->count = args->count;
    job->dest_stride = args->dest_stride;
    job->source_stride = args->source_stride;
    job->pe = args->root;
    job->reduce = args->reduce;
    job->team = team;
    status = team_on_stream(call->name, team, &job->on_stream);
    if (status == EXPAR_OK) return stream_job_put(call, server, job);
    job->command.drop(&job->command);
    return status;
}

/* The other members wait on their streams: they are told if this one does not come. */
static expar_status note_rejection(const stream_call *call, const expar_team *team, expar_status status)
{
    expar_team on_stream;
    error_kept kept;
    error_keep(&kept, status);
    if (team_on_stream(call->name, team, &on_stream) != EXPAR_OK) return error_restore(&kept);
    return team_note(&on_stream, error_restore(&kept));
}

static expar_status collective_begun(const stream_call *call, const expar_team *team, const collective_args *args)
{
    expar_status status = call_check_memory(call, args);
    if (status == EXPAR_OK && (args->root < 0 || args->root >= team->size))
        status = error_set(EXPAR_ERR_RANGE, "%s: root %d, expected 0 to %d", call->name, args->root, team->size - 1);
    return status == EXPAR_OK ? put_collective(call, team, args) : note_rejection(call, team, status);
}

static expar_status enqueue_ended(const char *name, const expar_team *team, const collective_args *args, void *stream)
{
    stream_call call = {.name = name, .group = team ? team->group : NULL, .stream = stream};
    expar_status status = team_check(name, team);
    if (status == EXPAR_OK) status = stream_call_begin(&call);
    if (status == EXPAR_OK) status = stream_call_end(&call, collective_begun(&call, team, args));
    return team_ended(team, status);
}

/* ---- barriers ---------------------------------------------------------------------------------------------------- */

static const collective_args meeting = {.carry = carry_sync, .dest_stride = 1, .source_stride = 1};

expar_status expar_team_sync_on_stream(expar_team *team, void *stream)
{
    return enqueue_ended("expar_team_sync_on_stream", team, &meeting, stream);
}

/* All that the stream did before has arrived. */
expar_status expar_team_barrier_on_stream(expar_team *team, void *stream)
{
    return enqueue_ended("expar_team_barrier_on_stream", team, &meeting, stream);
}

/* The first use of teams is collective, and takes memory. */
static expar_status open_world(const stream_call *call, expar_team **world)
{
    team_table *table = team_table_of(call->group);
    expar_status status = EXPAR_OK;
    if (!table && call->capture)
        return error_set(EXPAR_ERR_STATE,
                         "%s: the group has no teams yet, and a capture cannot make them; expected "
                         "expar_team_get_world before",
                         call->name);
    if (!table) status = team_table_open(call->name, call->group, &table);
    if (status == EXPAR_OK) *world = &table->teams[TEAM_WORLD_SLOT];
    return status;
}

static expar_status meeting_ended(expar_group *group, const char *name, void *stream)
{
    expar_team *world;
    stream_call call = {.name = name, .group = group, .stream = stream};
    expar_status status = stream_call_begin(&call);
    if (status != EXPAR_OK) return group_ended(group, status);
    status = open_world(&call, &world);
    if (status == EXPAR_OK) status = team_check(name, world);
    if (status == EXPAR_OK) status = collective_begun(&call, world, &meeting);
    return group_ended(group, stream_call_end(&call, status));
}

expar_status expar_barrier_all_on_stream(expar_group *group, void *stream)
{
    return meeting_ended(group, "expar_barrier_all_on_stream", stream);
}

expar_status expar_sync_all_on_stream(expar_group *group, void *stream)
{
    return meeting_ended(group, "expar_sync_all_on_stream", stream);
}

/* ---- collectives ------------------------------------------------------------------------------------------------- */

static size_t members(const expar_team *team)
{
    return team && team->group ? (size_t)team->size : 1;
}

expar_status expar_broadcast_on_stream(expar_team *team, void *dest, const void *source, size_t bytes, int32_t root,
                                       void *stream)
{
    const collective_args args = {.carry = carry_broadcast,
                                  .dest = dest,
                                  .source = source,
                                  .dest_bytes = bytes,
                                  .source_bytes = bytes,
                                  .bytes = bytes,
                                  .dest_stride = 1,
                                  .source_stride = 1,
                                  .root = root,
                                  .source_is_symmetric = true};
    return enqueue_ended("expar_broadcast_on_stream", team, &args, stream);
}

expar_status expar_fcollect_on_stream(expar_team *team, void *dest, const void *source, size_t bytes, void *stream)
{
    const collective_args args = {.carry = carry_fcollect,
                                  .dest = dest,
                                  .source = source,
                                  .dest_bytes = product(bytes, members(team)),
                                  .source_bytes = bytes,
                                  .bytes = bytes,
                                  .dest_stride = 1,
                                  .source_stride = 1};
    return enqueue_ended("expar_fcollect_on_stream", team, &args, stream);
}

/* How many bytes come in all is known when all have come. */
expar_status expar_collect_on_stream(expar_team *team, void *dest, const void *source, size_t bytes, void *stream)
{
    const collective_args args = {.carry = carry_collect,
                                  .dest = dest,
                                  .source = source,
                                  .dest_bytes = bytes,
                                  .source_bytes = bytes,
                                  .bytes = bytes,
                                  .dest_stride = 1,
                                  .source_stride = 1};
    return enqueue_ended("expar_collect_on_stream", team, &args, stream);
}

expar_status expar_alltoall_on_stream(expar_team *team, void *dest, const void *source, size_t bytes, void *stream)
{
    const size_t all = product(bytes, members(team));
    const collective_args args = {.carry = carry_alltoall,
                                  .dest = dest,
                                  .source = source,
                                  .dest_bytes = all,
                                  .source_bytes = all,
                                  .bytes = bytes,
                                  .dest_stride = 1,
                                  .source_stride = 1};
    return enqueue_ended("expar_alltoall_on_stream", team, &args, stream);
}

/* From the first element of all blocks to the end of the last one. */
static size_t blocks_span_bytes(size_t elements, ptrdiff_t stride, size_t element_bytes)
{
    if (elements == 0 || stride < 1) return 0;
    const size_t before = product(elements - 1, (size_t)stride);
    return before >= BYTES_OVERFLOW - 1 ? BYTES_OVERFLOW : product(before + 1, element_bytes);
}

expar_status expar_alltoalls_on_stream(expar_team *team, void *dest, const void *source, ptrdiff_t dest_stride,
                                       ptrdiff_t source_stride, size_t element_bytes, size_t count, void *stream)
{
    const size_t elements = product(count, members(team));
    const collective_args args = {.carry = carry_alltoalls,
                                  .dest = dest,
                                  .source = source,
                                  .dest_bytes = blocks_span_bytes(elements, dest_stride, element_bytes),
                                  .source_bytes = blocks_span_bytes(elements, source_stride, element_bytes),
                                  .bytes = element_bytes,
                                  .count = count,
                                  .dest_stride = dest_stride,
                                  .source_stride = source_stride};
    return enqueue_ended("expar_alltoalls_on_stream", team, &args, stream);
}

/* ---- reductions -------------------------------------------------------------------------------------------------- */

static expar_status reduction_ended(const char *name, expar_team *team, void *dest, const void *source, size_t count,
                                    size_t element_bytes,
                                    expar_status (*reduce)(const stream_job *self, expar_team *team), void *stream)
{
    const size_t bytes = product(count, element_bytes);
    const collective_args args = {.carry = carry_reduce,
                                  .dest = dest,
                                  .source = source,
                                  .dest_bytes = bytes,
                                  .source_bytes = bytes,
                                  .count = count,
                                  .dest_stride = 1,
                                  .source_stride = 1,
                                  .reduce = reduce};
    return enqueue_ended(name, team, &args, stream);
}

#define REDUCE_DEFINE(T, S, operation)                                                                                 \
    static expar_status operation##_##S(const stream_job *job, expar_team *team)                                       \
    {                                                                                                                  \
        return expar_##operation##_reduce_##S(team, job->dest, job->source, job->count);                               \
    }                                                                                                                  \
    expar_status expar_##operation##_reduce_##S##_on_stream(expar_team *team, T *dest, const T *source, size_t count,  \
                                                            void *stream)                                              \
    {                                                                                                                  \
        return reduction_ended("expar_" #operation "_reduce_" #S "_on_stream", team, dest, source, count, sizeof(T),   \
                               operation##_##S, stream);                                                               \
    }
#define REDUCE_BITS_DEFINE(T, S)                                                                                       \
    REDUCE_DEFINE(T, S, and)                                                                                           \
    REDUCE_DEFINE(T, S, or)                                                                                            \
    REDUCE_DEFINE(T, S, xor)
#define REDUCE_NUMBERS_DEFINE(T, S)                                                                                    \
    REDUCE_DEFINE(T, S, min)                                                                                           \
    REDUCE_DEFINE(T, S, max)                                                                                           \
    REDUCE_DEFINE(T, S, sum)                                                                                           \
    REDUCE_DEFINE(T, S, prod)
EXPAR_INTEGER_TYPES(REDUCE_BITS_DEFINE)
EXPAR_DATA_TYPES(REDUCE_NUMBERS_DEFINE)

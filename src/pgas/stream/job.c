/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs: calls that a thread of the library carries out when a stream comes to them. */
#include "pgas/stream/parts.h"

#include <stdlib.h>

static stream_job *job_of(cuda_command *command)
{
    return (stream_job *)(void *)command;
}

static bool job_run(cuda_command *command)
{
    stream_job *job = job_of(command);
    expar_status status = job->carry(job);
    if (status != EXPAR_OK) stream_job_fail(job, status);
    return true;
}

static void job_stop(cuda_command *command)
{
    (void)command;
}

static void job_miss(cuda_command *command)
{
    stream_job_miss(job_of(command));
}

static void job_drop(cuda_command *command)
{
    free(job_of(command));
}

expar_status stream_job_make(const stream_call *call, expar_status (*carry)(stream_job *self), stream_job **out)
{
    stream_job *job = calloc(1, sizeof *job);
    if (!job) return error_set(EXPAR_ERR_MEMORY, "%s: no memory for the call", call->name);
    job->command.run = job_run;
    job->command.stop = job_stop;
    job->command.miss = job_miss;
    job->command.drop = job_drop;
    job->command.waits = true;
    job->service = call->service;
    job->name = call->name;
    job->ctx = call->ctx;
    job->carry = carry;
    *out = job;
    return EXPAR_OK;
}

expar_status stream_job_prepare(const stream_call *call, cuda_server *server, stream_job *job)
{
    return error_prefix(cuda_command_prepare(server, &job->command, call->capture), "%s", call->name);
}

void stream_job_cancel(stream_job *job)
{
    if (job->command.word)
        cuda_command_cancel(&job->command);
    else
        free(job);
}

expar_status stream_job_put(const stream_call *call, cuda_server *server, stream_job *job)
{
    expar_status status = EXPAR_OK;
    if (!call->capture) status = CUDA_CALL(StreamGetId, call->stream, &job->stream);
    if (status != EXPAR_OK) {
        stream_job_cancel(job);
        return error_prefix(status, "%s", call->name);
    }
    job->moment = cuda_moment();
    status = cuda_command_put(server, &job->command, call->stream, call->capture);
    return status == EXPAR_OK ? EXPAR_OK : error_prefix(status, "%s", call->name);
}

/* Non-blocking: the server settles the operation at once, and the stream keeps the source until then. */
ops_origin stream_job_origin(stream_job *job)
{
    return (ops_origin){.call = job->name, .group = job->service->group, .batch = &job->service->batch, .nbi = true};
}

expar_status stream_job_settle(stream_job *job, expar_status status)
{
    error_kept kept;
    error_keep(&kept, status);
    const expar_status settled = sym_settle(job->service->group->sym, &job->service->batch);
    return status == EXPAR_OK ? settled : error_restore(&kept);
}

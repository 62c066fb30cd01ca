/* SPDX-License-Identifier: Apache-2.0 */
/* Failures of calls on streams after they were put there. The first one of the group, and of each context, is kept
 * until a call returns it. */
#include "pgas/stream/parts.h"

#include <stdlib.h>
#include <string.h>

/* With the lock. Returns the place of the failure in the list; it holds NULL if there is none. */
static stream_failure **find_failure(stream_service *self, const expar_ctx *ctx)
{
    stream_failure **place = &self->failures;
    while (*place && (*place)->ctx != ctx)
        place = &(*place)->next;
    return place;
}

void stream_job_fail(const stream_job *job, expar_status status)
{
    stream_service *self = job->service;
    error_kept why;
    /* A collective's text may begin with the host's call. */
    if (strncmp(expar_last_error(), job->name, strlen(job->name)) != 0) error_prefix(status, "%s", job->name);
    error_keep(&why, group_ended(self->group, status));
    const uint64_t number = job->stream ? cuda_failure_keep(job->stream, job->moment, &why) : 0;
    stream_failure *made = malloc(sizeof *made);
    if (!made) return;
    *made = (stream_failure){.ctx = job->ctx, .number = number, .why = why};
    pthread_mutex_lock(&self->lock);
    stream_failure **place = find_failure(self, job->ctx);
    if (!*place) {
        *place = made;
        made = NULL;
    }
    pthread_mutex_unlock(&self->lock);
    free(made);
}

void stream_job_miss(const stream_job *job)
{
    error_kept why;
    error_keep(&why, error_set(EXPAR_ERR_STATE, "%s: the group had ended when the stream came to the call", job->name));
    if (job->stream) cuda_failure_keep(job->stream, job->moment, &why);
}

expar_status stream_failure_take(const expar_group *group, const expar_ctx *ctx)
{
    stream_service *self = stream_service_of(group);
    if (!self) return EXPAR_OK;
    pthread_mutex_lock(&self->lock);
    stream_failure **place = find_failure(self, ctx), *found = *place;
    if (found) *place = found->next;
    pthread_mutex_unlock(&self->lock);
    if (!found) return EXPAR_OK;
    cuda_failure_told(found->number);
    const expar_status status = error_restore(&found->why);
    free(found);
    return status;
}

void stream_failures_free(stream_service *self)
{
    while (self->failures) {
        stream_failure *next = self->failures->next;
        free(self->failures);
        self->failures = next;
    }
}

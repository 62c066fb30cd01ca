/* SPDX-License-Identifier: Apache-2.0 */
/* The state that a group's calls on streams share: its GPU, and the threads that streams ask. */
#include "pgas/stream/parts.h"

#include <stdlib.h>

/* The default of EXPAR_STREAM_CALLS. */
#define DEFAULT_CALLS 4096
/* A GPU has so many queues if the environment does not say more. */
#define DEFAULT_QUEUES 8

/* Held while some group's service is made. */
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;

/* Ends the threads, before the group's memory goes. */
static void service_leave(group_attachment *attachment)
{
    stream_service *self = (stream_service *)attachment;
    for (size_t s = 0; s < TEAM_SLOTS; s++)
        cuda_server_end(self->collectives[s]);
    cuda_server_end(self->operations);
    sym_settle(self->group->sym, &self->batch);
}

static void service_end(group_attachment *attachment)
{
    stream_service *self = (stream_service *)attachment;
    stream_failures_free(self);
    cuda_device_close(self->device);
    pthread_mutex_destroy(&self->lock);
    free(self);
}

stream_service *stream_service_of(const expar_group *group)
{
    return (stream_service *)group_kept(group, service_end);
}

/* The first memory of the group on a GPU, or pinned memory, has chosen the GPU. */
static int32_t gpu_of(const sym *self)
{
    const int32_t device = kinds_device(self, TRANSPORT_DEVICE);
    return device >= 0 ? device : kinds_device(self, TRANSPORT_PINNED);
}

/* A rank has a thread of its own besides the servers'. */
static cuda_server_plan server_plan(const expar_group *group, uint32_t words)
{
    return (cuda_server_plan){.rank = group->rank, .words = words, .crowded = sym_outnumbers(group->sym, 2)};
}

static expar_status service_make(expar_group *group, stream_service **out)
{
    stream_service *self = calloc(1, sizeof *self);
    if (!self) return error_set(EXPAR_ERR_MEMORY, "no memory for calls on streams");
    self->attachment.end = service_end;
    self->attachment.leave = service_leave;
    self->group = group;
    pthread_mutex_init(&self->lock, NULL);
    int64_t calls = DEFAULT_CALLS;
    expar_status status = env_int("EXPAR_STREAM_CALLS", 1, 1048576, &calls);
    self->queues = DEFAULT_QUEUES;
    if (status == EXPAR_OK) status = env_foreign_int("CUDA_DEVICE_MAX_CONNECTIONS", 1, INT32_MAX, &self->queues);
    if (status == EXPAR_OK) status = cuda_device_open(gpu_of(group->sym), &self->device);
    if (status == EXPAR_OK && (status = cuda_enter(self->device)) == EXPAR_OK) {
        const cuda_server_plan plan = server_plan(group, (uint32_t)calls);
        status = cuda_server_start(&plan, &self->operations);
        cuda_leave();
    }
    if (status == EXPAR_OK)
        *out = self;
    else
        service_end(&self->attachment);
    return status;
}

expar_status stream_service_open(expar_group *group, stream_service **out)
{
    *out = stream_service_of(group);
    if (*out) return EXPAR_OK;
    expar_status status = EXPAR_OK;
    pthread_mutex_lock(&making);
    *out = stream_service_of(group);
    if (!*out && (status = service_make(group, out)) == EXPAR_OK) group_keep(group, &(*out)->attachment);
    pthread_mutex_unlock(&making);
    return status;
}

void stream_prepare(expar_group *group)
{
    stream_service *unused;
    error_kept kept;
    error_save(&kept);
    if (stream_service_open(group, &unused) != EXPAR_OK) LOG(LOG_INFO, "calls on streams: %s", expar_last_error());
    error_put_back(&kept);
}

expar_status stream_collectives(stream_service *self, int32_t slot, cuda_server **out)
{
    expar_status status = EXPAR_OK;
    const cuda_server_plan plan = server_plan(self->group, 0);
    pthread_mutex_lock(&self->lock);
    if (!self->collectives[slot]) status = cuda_server_start(&plan, &self->collectives[slot]);
    *out = self->collectives[slot];
    pthread_mutex_unlock(&self->lock);
    return status;
}

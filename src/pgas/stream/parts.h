/* SPDX-License-Identifier: Apache-2.0 */
/* Definitions that the files of this folder share. Private to pgas/stream. */
#ifndef EXPAR_PGAS_STREAM_PARTS_H
#define EXPAR_PGAS_STREAM_PARTS_H

#include "cuda/command.h"
#include "pgas/ops.h"
#include "pgas/stream/stream.h"
#include "pgas/team/team.h"
#include "pgas/words.h"

/* ---- the group's part (service.c) -------------------------------------------------------------------------------- */

/* A failure that no call has returned yet. */
typedef struct stream_failure {
    struct stream_failure *next;
    const expar_ctx *ctx; /* NULL: the group's */
    uint64_t number;      /* of cuda_failure_keep; 0: in a graph, whose stream is not known */
    error_kept why;
} stream_failure;

/* The state that a group's calls on streams share; an object attached to the group. */
typedef struct stream_service {
    group_attachment attachment;
    expar_group *group;
    cuda_device *device;
    /* Carries out operations and looks at waits. Calls that may wait for ranks would hold up each other, so each team's
       collectives have a server of their own. */
    cuda_server *operations;
    link_batch batch; /* of operations; that server's thread alone uses it */
    /* Streams that wait for words now, and whether the program was told that they are many. That server's thread writes
       them, tests read them; relaxed, as each word stands for itself. */
    _Atomic int64_t waiting;
    atomic_bool told_of_many;
    /* of the GPU, which all streams of the process share (CUDA_DEVICE_MAX_CONNECTIONS) */
    int64_t queues;
    pthread_mutex_t lock;
    cuda_server *collectives[TEAM_SLOTS]; /* by slot, made at first use; guarded by lock */
    stream_failure *failures;             /* guarded by lock */
} stream_service;

/* Returns the group's service; NULL: there is none yet. */
stream_service *stream_service_of(const expar_group *group);
/* The same, and makes it if there is none yet. */
expar_status stream_service_open(expar_group *group, stream_service **out);
/* Gives the server of the slot's collectives, and starts it if there is none yet. */
expar_status stream_collectives(stream_service *service, int32_t slot, cuda_server **out);

/* ---- calls (call.c) ---------------------------------------------------------------------------------------------- */

/* A public call in progress. */
typedef struct stream_call {
    const char *name;
    expar_group *group;
    const expar_ctx *ctx; /* NULL: on the group, or on a team */
    void *stream;
    stream_service *service;
    bool entered;               /* the GPU's context was not current */
    unsigned long long capture; /* that the stream is in; 0: none, or not asked for yet */
} stream_call;

/* How the bodies of public calls begin: they make `call`, and on a context turn pe into a rank of the group. */
#define STREAM_ON_GROUP(public_name)                                                                                   \
    stream_call call = {.name = (public_name), .group = group, .stream = stream};                                      \
    (void)0
#define STREAM_ON_CTX(public_name)                                                                                     \
    stream_call call = {.name = (public_name), .ctx = ctx, .stream = stream};                                          \
    ops_origin from = {.call = call.name};                                                                             \
    const expar_status entered = context_enter(ctx, &from, &pe);                                                       \
    if (entered != EXPAR_OK) return ctx_ended(ctx, entered);                                                           \
    call.group = from.group

/* Checks the group and the stream, and enters the GPU. Fails if an earlier call has failed since. On EXPAR_OK,
   stream_call_end ends the call. */
expar_status stream_call_begin(stream_call *call);
/* The same for calls that the driver may carry out by itself, which need not know the capture. Such a call asks for it
   before it makes a job. */
expar_status stream_call_begin_plain(stream_call *call);
expar_status stream_call_find_capture(stream_call *call);
/* Returns `status`. */
expar_status stream_call_end(const stream_call *call, expar_status status);

/* Returns whether copies of the stream reach that memory of the caller's. The driver is not asked for symmetric
   memory. */
bool stream_reaches(const stream_call *call, const void *address, size_t bytes);
expar_status stream_copy(const stream_call *call, void *dest, const void *source, size_t bytes);
/* Stores an aligned word of 1, 2, 4 or 8 bytes whole, after all that the stream did before. */
expar_status stream_store(const stream_call *call, void *dest, uint64_t value, size_t bytes);

/* ---- jobs (job.c) ------------------------------------------------------------------------------------------------ */

/* Something that a server does for a stream. */
typedef struct stream_job {
    cuda_command command;
    stream_service *service;
    const char *name; /* of the public call */
    const expar_ctx *ctx;
    /* where the job was put; 0: in a graph */
    unsigned long long stream;
    uint64_t moment;
    /* Does it, in one go. NULL: the job is a wait. */
    expar_status (*carry)(struct stream_job *self);
    /* arguments, as far as the job has them */
    void *dest;
    const void *source;
    size_t bytes, count;
    ptrdiff_t dest_stride, source_stride;
    int32_t pe;
    ops_signal signal;
    uint64_t value;
    /* collectives: the team, and its number */
    const expar_team *team;
    expar_team on_stream;
    expar_status (*reduce)(const struct stream_job *self, expar_team *team);
    /* waits */
    words_type type;
    expar_cmp cmp;
    kinds_place place;
    boot_wait wait;
    uint32_t tellings;
    int64_t look_ns;
    bool waits;
} stream_job;

/* Makes a job of the call whose stream waits for it. `carry` as above. */
expar_status stream_job_make(const stream_call *call, expar_status (*carry)(stream_job *self), stream_job **out);
/* For calls that put something else on the stream before the job: after this the job finds a place there. On failure it
   frees the job. */
expar_status stream_job_prepare(const stream_call *call, cuda_server *server, stream_job *job);
/* Frees a job that is not put. */
void stream_job_cancel(stream_job *job);
/* Puts the job on the call's stream, and takes it over in any case. */
expar_status stream_job_put(const stream_call *call, cuda_server *server, stream_job *job);
/* The origin of a job's operation: it is complete after stream_job_settle. */
ops_origin stream_job_origin(stream_job *job);
/* Completes the job's operation at its target. Returns status, or the failure of the operation. */
expar_status stream_job_settle(stream_job *job, expar_status status);

/* ---- failures (failure.c) ---------------------------------------------------------------------------------------- */

/* Keeps the failure of a job, which is this thread's last error, for the next call and for events. */
void stream_job_fail(const stream_job *job, expar_status status);
/* The same for a job whose group has ended. */
void stream_job_miss(const stream_job *job);
void stream_failures_free(stream_service *service);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Streams and events of the driver that plays GPUs: what is put on a stream is done when the call returns,
 * and has come to its end, unless a test says that it has not, or holds the kernels (desk.h). An event is behind all
 * that its stream has. */
#include "fake.h"
#include <pthread.h>
#include <stdlib.h>

cu_result cuStreamCreate(cu_stream *stream, unsigned int flags)
{
    if (!has_context()) return INVALID_CONTEXT;
    (void)flags;
    *stream = calloc(1, 1);
    return CU_OK;
}
cu_result cuStreamDestroy_v2(cu_stream stream)
{
    if (!has_context()) return INVALID_CONTEXT;
    free(stream);
    return CU_OK;
}
cu_result cuStreamSynchronize(cu_stream stream)
{
    if (!has_context()) return INVALID_CONTEXT;
    await_held_kernels(stream);
    return CU_OK;
}
cu_result cuStreamGetId(cu_stream stream, unsigned long long *number)
{
    if (!has_context()) return INVALID_CONTEXT;
    static _Thread_local char mine;
    if (!setting("FAKE_STREAM", 1)) return INVALID_VALUE;
    *number = stream == FAKE_THREADS_STREAM ? (uintptr_t)&mine : (uintptr_t)stream;
    return CU_OK;
}
cu_result cuStreamQuery(cu_stream stream)
{
    if (!has_context()) return INVALID_CONTEXT;
    return note_look(stream) ? CU_OK : CU_ERROR_NOT_READY;
}
cu_result cuLaunchHostFunc(cu_stream stream, cu_host_fn run, void *context)
{
    if (!has_context()) return INVALID_CONTEXT;
    if (!setting("FAKE_HOST", 1)) return NOT_SUPPORTED;
    if (hold_host(stream, run, context)) return CU_OK;
    if (!setting("FAKE_FAULT", 0)) run(context);
    return CU_OK;
}
/* Of an event: where it was recorded last. */
static cu_stream *stream_of(cu_event event)
{
    return (cu_stream *)(void *)event;
}
cu_result cuEventCreate(cu_event *event, unsigned int flags)
{
    if (!has_context()) return INVALID_CONTEXT;
    (void)flags;
    *event = calloc(1, sizeof(cu_stream));
    return CU_OK;
}
cu_result cuEventRecord(cu_event event, cu_stream stream)
{
    if (!has_context()) return INVALID_CONTEXT;
    *stream_of(event) = stream;
    return CU_OK;
}
cu_result cuEventSynchronize(cu_event event)
{
    if (!has_context()) return INVALID_CONTEXT;
    if (setting("FAKE_FAULT", 0)) return ILLEGAL_ADDRESS;
    await_held_kernels(*stream_of(event));
    return CU_OK;
}
cu_result cuEventQuery(cu_event event)
{
    if (!has_context()) return INVALID_CONTEXT;
    if (setting("FAKE_FAULT", 0)) return ILLEGAL_ADDRESS;
    return note_look(*stream_of(event)) ? CU_OK : CU_ERROR_NOT_READY;
}
/* Streams that are being captured; the work itself is done at once all the same. */
#define CAPTURES 8
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cu_stream captured[CAPTURES]; /* guarded by lock */

static bool replace_captured(cu_stream from, cu_stream to)
{
    int i = 0;
    pthread_mutex_lock(&lock);
    while (i < CAPTURES && captured[i] != from)
        i++;
    bool found = i < CAPTURES;
    if (found) captured[i] = to;
    pthread_mutex_unlock(&lock);
    return found;
}

cu_result cuStreamBeginCapture_v2(cu_stream stream, int mode)
{
    (void)mode;
    return stream && replace_captured(NULL, stream) ? CU_OK : INVALID_VALUE;
}
cu_result cuStreamEndCapture(cu_stream stream, cu_graph *graph)
{
    *graph = NULL;
    return stream && replace_captured(stream, NULL) ? CU_OK : INVALID_VALUE;
}
cu_result cuStreamGetCaptureInfo_v2(cu_stream stream, int *capture_status, unsigned long long *id, cu_graph *graph,
                                    const cu_graph_node **dependencies, size_t *num_dependencies)
{
    (void)graph, (void)dependencies, (void)num_dependencies;
    note_begun();
    bool found = stream && replace_captured(stream, stream);
    *capture_status = found ? CU_CAPTURE_ACTIVE : CU_CAPTURE_NONE;
    if (id && found) *id = 1;
    return CU_OK;
}
cu_result cuEventRecordWithFlags(cu_event event, cu_stream stream, unsigned int flags)
{
    if (!has_context()) return INVALID_CONTEXT;
    (void)event, (void)stream, (void)flags;
    return CU_OK;
}
cu_result cuStreamWaitEvent(cu_stream stream, cu_event event, unsigned int flags)
{
    if (!has_context()) return INVALID_CONTEXT;
    (void)stream, (void)event, (void)flags;
    note_other();
    return CU_OK;
}
cu_result cuThreadExchangeStreamCaptureMode(int *mode)
{
    (void)mode;
    return CU_OK;
}
cu_result cuEventDestroy_v2(cu_event event)
{
    if (!has_context()) return INVALID_CONTEXT;
    free(event);
    return CU_OK;
}

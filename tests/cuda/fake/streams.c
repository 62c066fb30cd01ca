/* SPDX-License-Identifier: Apache-2.0 */
/* Streams and events of the simulated driver. Work on a stream is complete when the call returns, unless a test holds
 * the kernels (controls.h), or streams run by themselves (queue.c). An event follows all that its stream had when it
 * was recorded. */
#include "fake.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- captures -------------------------------------------------------------------------------------------------------
 * The work of a stream that is being captured is noted for the graph (graphs.c), and where captures run kernels done at
 * once all the same. As long as the capture goes on the graph is its number, and so what the graph holds is found by
 * that. */

/* Four ranks with nine captures at a time, of which eight have a stream of the library, too. */
#define CAPTURED 128
typedef struct captured_stream {
    cu_stream stream; /* NULL: none */
    unsigned long long capture;
} captured_stream;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static captured_stream captured[CAPTURED]; /* guarded by lock, as is the next */
static unsigned long long captures;        /* so far: the number of the last one */

/* The capture that the stream is in; 0: none. The lock is held. */
static unsigned long long find_capture(cu_stream stream)
{
    for (int i = 0; stream && i < CAPTURED; i++)
        if (captured[i].stream == stream) return captured[i].capture;
    return 0;
}

unsigned long long capture_of(cu_stream stream)
{
    pthread_mutex_lock(&lock);
    unsigned long long capture = find_capture(stream);
    pthread_mutex_unlock(&lock);
    return capture;
}

/* False: there is no place. The lock is held. */
static bool join(cu_stream stream, unsigned long long capture)
{
    for (int i = 0; stream && i < CAPTURED; i++) {
        if (captured[i].stream) continue;
        captured[i] = (captured_stream){stream, capture};
        return true;
    }
    return false;
}

/* ---- streams ----------------------------------------------------------------------------------------------------- */

typedef struct simulated_stream {
    struct simulated_stream *next;
    stream_lane lane;
} simulated_stream;
static simulated_stream *streams; /* guarded by lock */

static simulated_stream **place_of(cu_stream stream)
{
    simulated_stream **place = &streams;
    while (*place && (cu_stream)(void *)*place != stream)
        place = &(*place)->next;
    return place;
}

static unsigned long long new_number(void)
{
    static _Atomic unsigned long long last = FAKE_MOST_GPUS;
    return ++last;
}

stream_lane lane_of(cu_stream stream)
{
    static _Thread_local unsigned long long own[FAKE_MOST_GPUS];
    const int device = current_device();
    if (stream == FAKE_THREADS_STREAM && !own[device]) own[device] = new_number();
    if (stream == FAKE_THREADS_STREAM) return (stream_lane){.number = own[device], .device = device, .blocking = true};
    if ((uintptr_t)stream < (uintptr_t)FAKE_THREADS_STREAM)
        return (stream_lane){.number = 1 + (unsigned long long)device, .device = device, .is_null = true};
    pthread_mutex_lock(&lock);
    const simulated_stream *found = *place_of(stream);
    /* Tests take any address for one. */
    const stream_lane lane = found ? found->lane : (stream_lane){.number = (uintptr_t)stream, .device = device};
    pthread_mutex_unlock(&lock);
    return lane;
}

cu_result cuStreamCreate(cu_stream *stream, unsigned int flags)
{
    if (!has_context()) return INVALID_CONTEXT;
    simulated_stream *made = malloc(sizeof *made);
    if (!made) return CU_ERROR_OUT_OF_MEMORY;
    made->lane = (stream_lane){
        .number = new_number(), .device = current_device(), .blocking = !(flags & CU_STREAM_NON_BLOCKING)};
    pthread_mutex_lock(&lock);
    made->next = streams;
    streams = made;
    pthread_mutex_unlock(&lock);
    *stream = (cu_stream)(void *)made;
    return CU_OK;
}
/* Its work goes on. */
cu_result cuStreamDestroy_v2(cu_stream stream)
{
    if (!has_context()) return INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    simulated_stream **place = place_of(stream), *found = *place;
    if (found) *place = found->next;
    pthread_mutex_unlock(&lock);
    free(found);
    return found ? CU_OK : INVALID_VALUE;
}
cu_result cuStreamSynchronize(cu_stream stream)
{
    if (!has_context()) return INVALID_CONTEXT;
    if (context_is_lost()) return ILLEGAL_ADDRESS;
    const stream_lane lane = lane_of(stream);
    queue_await(&lane, queue_mark(&lane));
    return CU_OK;
}
cu_result cuStreamGetId(cu_stream stream, unsigned long long *number)
{
    if (!has_context()) return INVALID_CONTEXT;
    if (!setting("FAKE_STREAM", 1)) return INVALID_VALUE;
    *number = lane_of(stream).number;
    return CU_OK;
}
cu_result cuStreamQuery(cu_stream stream)
{
    if (!has_context()) return INVALID_CONTEXT;
    if (context_is_lost()) return ILLEGAL_ADDRESS;
    const stream_lane lane = lane_of(stream);
    return note_look(&lane, queue_mark(&lane)) ? CU_OK : CU_ERROR_NOT_READY;
}
cu_result cuLaunchHostFunc(cu_stream stream, cu_host_fn run, void *context)
{
    if (!has_context()) return INVALID_CONTEXT;
    const stream_lane lane = lane_of(stream);
    atomic_fetch_add(&fake_controls_of()->host_functions, 1);
    const bool graphed = capture_of(stream) != 0, lost = setting("FAKE_FAULT", 0);
    if (lost || (!graphed && queue_put(&lane, QUEUE_AFTER, run, context, 0))) return CU_OK;
    run(context);
    return CU_OK;
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

/* For an event: where it was recorded last. */
typedef struct event_record {
    stream_lane lane;
    unsigned long long capture; /* that the stream was in; 0: none */
    unsigned long long mark;    /* of work that the stream had not come to; 0: none */
    unsigned long long context; /* number of the event's own */
    bool timed;
    struct timespec when;      /* a timed one's stream came to it last */
    struct event_record *next; /* in the list of all; guarded by lock */
} event_record;
/* Those of contexts that have gone stay, since nobody gives them back. Guarded by lock. */
static event_record *events;

static event_record *record_of(cu_event event)
{
    return (event_record *)(void *)event;
}
static void set_record(cu_event event, event_record to)
{
    pthread_mutex_lock(&lock);
    to.context = record_of(event)->context;
    to.next = record_of(event)->next;
    to.timed = record_of(event)->timed;
    to.when = record_of(event)->when;
    *record_of(event) = to;
    pthread_mutex_unlock(&lock);
}
static event_record get_record(cu_event event)
{
    pthread_mutex_lock(&lock);
    event_record found = *record_of(event);
    pthread_mutex_unlock(&lock);
    return found;
}
/* The stream has come to an event, which may have gone. */
static void note_when(void *of)
{
    cu_event event;
    memcpy(&event, of, sizeof event);
    pthread_mutex_lock(&lock);
    event_record *found = events;
    while (found && found != record_of(event))
        found = found->next;
    if (found && !simulated_time(&found->when)) clock_gettime(CLOCK_MONOTONIC, &found->when);
    pthread_mutex_unlock(&lock);
}
void record(cu_stream stream, cu_event event)
{
    const stream_lane lane = lane_of(stream);
    if (get_record(event).timed && !queue_put(&lane, QUEUE_APART, note_when, &event, sizeof event)) note_when(&event);
    set_record(event, (event_record){.lane = lane, .mark = queue_mark(&lane)});
}
void wait_for(cu_stream stream, cu_event event)
{
    const event_record last = get_record(event);
    const stream_lane lane = lane_of(stream);
    queue_wait(&lane, &last.lane, last.mark);
}
cu_result cuEventCreate(cu_event *event, unsigned int flags)
{
    if (!has_context()) return INVALID_CONTEXT;
    *event = calloc(1, sizeof(event_record));
    record_of(*event)->timed = !(flags & CU_EVENT_NO_TIMING);
    record_of(*event)->context = context_number(current_device());
    pthread_mutex_lock(&lock);
    record_of(*event)->next = events;
    events = record_of(*event);
    pthread_mutex_unlock(&lock);
    return CU_OK;
}
cu_result cuEventRecord(cu_event event, cu_stream stream)
{
    if (!has_context()) return INVALID_CONTEXT;
    if (context_is_lost()) return ILLEGAL_ADDRESS;
    if (!setting("FAKE_RECORD", 1)) return ILLEGAL_ADDRESS;
    if (!context_lives(get_record(event).context)) return INVALID_CONTEXT;
    const unsigned long long capture = capture_of(stream);
    if (capture)
        set_record(event, (event_record){.lane = lane_of(stream), .capture = capture});
    else
        record(stream, event);
    return CU_OK;
}
cu_result cuEventElapsedTime(float *milliseconds, cu_event start, cu_event end)
{
    if (!has_context()) return INVALID_CONTEXT;
    const struct timespec from = get_record(start).when, to = get_record(end).when;
    *milliseconds = (float)((double)(to.tv_sec - from.tv_sec) * 1e3 + (double)(to.tv_nsec - from.tv_nsec) * 1e-6);
    return CU_OK;
}
static bool is_broken(void)
{
    return atomic_load(&fake_controls_of()->broken) || setting("FAKE_FAULT", 0) || context_is_lost();
}
cu_result cuEventSynchronize(cu_event event)
{
    if (!has_context()) return INVALID_CONTEXT;
    if (is_broken()) return ILLEGAL_ADDRESS;
    const event_record last = get_record(event);
    queue_await(&last.lane, last.mark);
    return CU_OK;
}
cu_result cuEventQuery(cu_event event)
{
    if (!has_context()) return INVALID_CONTEXT;
    if (is_broken()) return ILLEGAL_ADDRESS;
    const event_record last = get_record(event);
    if (!context_lives(last.context)) return INVALID_CONTEXT;
    return note_look(&last.lane, last.mark) ? CU_OK : CU_ERROR_NOT_READY;
}
cu_result cuStreamBeginCapture_v2(cu_stream stream, int mode)
{
    (void)mode;
    pthread_mutex_lock(&lock);
    bool begun = !find_capture(stream) && join(stream, captures + 1);
    captures += begun;
    pthread_mutex_unlock(&lock);
    return begun ? CU_OK : INVALID_VALUE;
}
/* The work of a graph, by the number of its capture. */
typedef struct held_object {
    cu_host_fn let_go;
    void *context;
    unsigned long long capture;
    struct held_object *next;
} held_object;
static held_object *objects; /* guarded by lock */

static void destroy_object(held_object *object)
{
    object->let_go(object->context);
    free(object);
}

void let_go_of(unsigned long long capture)
{
    held_object *gone = NULL;
    pthread_mutex_lock(&lock);
    for (held_object **place = &objects, *one; (one = *place);) {
        if (one->capture != capture) {
            place = &one->next;
            continue;
        }
        *place = one->next;
        one->next = gone;
        gone = one;
    }
    pthread_mutex_unlock(&lock);
    while (gone) {
        held_object *next = gone->next;
        destroy_object(gone);
        gone = next;
    }
}

/* With all streams that have joined it. */
cu_result cuStreamEndCapture(cu_stream stream, cu_graph *graph)
{
    *graph = NULL;
    pthread_mutex_lock(&lock);
    unsigned long long ended = find_capture(stream);
    for (int i = 0; ended && i < CAPTURED; i++)
        if (captured[i].stream && captured[i].capture == ended) captured[i].stream = NULL;
    pthread_mutex_unlock(&lock);
    if (ended) *graph = graph_close(ended);
    if (ended && !*graph) let_go_of(ended);
    return ended ? CU_OK : INVALID_VALUE;
}
cu_result cuUserObjectCreate(cu_user_object *object, void *context, cu_host_fn let_go, unsigned int references,
                             unsigned int flags)
{
    (void)references, (void)flags;
    held_object *made = calloc(1, sizeof *made);
    *made = (held_object){.let_go = let_go, .context = context};
    *object = (cu_user_object)(void *)made;
    return CU_OK;
}
cu_result cuUserObjectRelease(cu_user_object object, unsigned int references)
{
    (void)references;
    destroy_object((held_object *)(void *)object);
    return CU_OK;
}
cu_result cuGraphRetainUserObject(cu_graph graph, cu_user_object object, unsigned int references, unsigned int flags)
{
    (void)references, (void)flags;
    held_object *held = (held_object *)(void *)object;
    held->capture = (uintptr_t)graph;
    pthread_mutex_lock(&lock);
    held->next = objects;
    objects = held;
    pthread_mutex_unlock(&lock);
    return CU_OK;
}
cu_result cuStreamGetCaptureInfo_v2(cu_stream stream, int *capture_status, unsigned long long *id, cu_graph *graph,
                                    const cu_graph_node **dependencies, size_t *num_dependencies)
{
    (void)dependencies, (void)num_dependencies;
    note_begun();
    pthread_mutex_lock(&lock);
    unsigned long long capture = find_capture(stream);
    pthread_mutex_unlock(&lock);
    *capture_status = capture ? CU_CAPTURE_ACTIVE : CU_CAPTURE_NONE;
    if (id && capture) *id = capture;
    if (graph && capture) *graph = (cu_graph)(uintptr_t)capture;
    return CU_OK;
}
cu_result cuStreamIsCapturing(cu_stream stream, int *capture_status)
{
    pthread_mutex_lock(&lock);
    *capture_status = find_capture(stream) ? CU_CAPTURE_ACTIVE : CU_CAPTURE_NONE;
    pthread_mutex_unlock(&lock);
    return CU_OK;
}
cu_result cuEventRecordWithFlags(cu_event event, cu_stream stream, unsigned int flags)
{
    if (!has_context()) return INVALID_CONTEXT;
    const unsigned long long capture = capture_of(stream);
    if (!(flags & CU_EVENT_EXTERNAL)) return cuEventRecord(event, stream);
    if (!capture) return INVALID_VALUE;
    graph_add_event(capture, event, false);
    return CU_OK;
}
cu_result cuStreamWaitEvent(cu_stream stream, cu_event event, unsigned int flags)
{
    if (!has_context()) return INVALID_CONTEXT;
    if (context_is_lost()) return ILLEGAL_ADDRESS;
    note_other(flags & CU_EVENT_EXTERNAL);
    if (flags & CU_EVENT_EXTERNAL) {
        const unsigned long long into = capture_of(stream);
        if (into) graph_add_event(into, event, true);
        return into ? CU_OK : INVALID_VALUE;
    }
    pthread_mutex_lock(&lock);
    const unsigned long long capture = record_of(event)->capture, own = find_capture(stream);
    bool may = !capture || own == capture || (!own && join(stream, capture));
    pthread_mutex_unlock(&lock);
    if (!capture && !own) wait_for(stream, event);
    return may ? CU_OK : ISOLATION;
}
/* Memory of MemHostAlloc has one address. */
cu_result cuStreamWaitValue32_v2(cu_stream stream, cu_address word, uint32_t value, unsigned int flags)
{
    if (!has_context()) return INVALID_CONTEXT;
    if (context_is_lost()) return ILLEGAL_ADDRESS;
    if (flags != CU_WAIT_AT_LEAST) return INVALID_VALUE;
    if (atomic_load(&fake_controls_of()->no_words) || !setting("FAKE_WORDS", 1)) return NOT_SUPPORTED;
    const stream_lane lane = lane_of(stream);
    const unsigned long long capture = capture_of(stream);
    if (capture)
        graph_add_word(capture, (const uint32_t *)(uintptr_t)word, value);
    else
        queue_wait_word(&lane, (const uint32_t *)(uintptr_t)word, value);
    return CU_OK;
}
cu_result cuThreadExchangeStreamCaptureMode(int *mode)
{
    (void)mode;
    return setting("FAKE_MODES", 1) ? CU_OK : ILLEGAL_ADDRESS;
}
cu_result cuEventDestroy_v2(cu_event event)
{
    if (!has_context()) return INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    event_record **place = &events;
    while (*place != record_of(event))
        place = &(*place)->next;
    *place = record_of(event)->next;
    pthread_mutex_unlock(&lock);
    free(event);
    return CU_OK;
}

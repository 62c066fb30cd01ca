/* SPDX-License-Identifier: Apache-2.0 */
/* Streams of a rank's GPU in tests of calls on streams. */
#ifndef TESTS_PGAS_STREAM_STREAMS_H
#define TESTS_PGAS_STREAM_STREAMS_H

#include "pgas/callers.h"

/* Streams of ranks that share a GPU wait for each other, so each needs a queue of its own there. Before CUDA starts. */
static inline void stream_queues(void)
{
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

/* A stream, between stream_open and stream_close. The GPU is current to the thread meanwhile. */
typedef struct test_stream {
    cuda_device *device;
    cu_stream stream;
} test_stream;

static inline bool stream_open(const expar_group *group, test_stream *out)
{
    *out = (test_stream){0};
    return CHECK_OK(cuda_device_open(gpu_of(group), &out->device)) && CHECK_OK(cuda_enter(out->device)) &&
           CHECK_OK(CUDA_CALL(StreamCreate, &out->stream, CU_STREAM_NON_BLOCKING));
}

static inline void stream_await(const test_stream *s)
{
    CHECK_OK(CUDA_CALL(StreamSynchronize, s->stream));
}

static inline void stream_close(test_stream *s)
{
    stream_await(s);
    CHECK_OK(CUDA_CALL(StreamDestroy, s->stream));
    cuda_leave();
    cuda_device_close(s->device);
}

/* A graph of what is put on the stream between the two calls. */
static inline void capture_begin(const test_stream *s)
{
    CHECK_OK(CUDA_CALL(StreamBeginCapture, s->stream, CU_CAPTURE_THREAD_LOCAL));
}

static inline cu_graph_exec capture_end(const test_stream *s)
{
    cu_graph graph = NULL;
    cu_graph_exec exec = NULL;
    CHECK_OK(CUDA_CALL(StreamEndCapture, s->stream, &graph));
    if (!CHECK(graph != NULL, "there is nothing in the graph")) return NULL;
    CHECK_OK(CUDA_CALL(GraphInstantiate, &exec, graph, 0));
    CHECK_OK(CUDA_CALL(GraphDestroy, graph));
    return exec;
}

static inline uint64_t word_of(const expar_group *group, expar_memory_kind kind, const uint64_t *word)
{
    uint64_t value = 0;
    read_from(group, kind, word, &value, sizeof value);
    return value;
}

#endif

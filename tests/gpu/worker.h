/* SPDX-License-Identifier: Apache-2.0 */
/* The mirror's means: a thread's own stream and memory on a GPU (a `worker`), and the GPU memory that stands for the
 * symmetric heap of a buffer's ranks.
 *
 * With EXPAR_TEST_DEVICE=cpu they are other memory of the host's instead, and no GPU is needed: so the mirror of
 * low-latency calls is itself tested.
 *
 * A `worker` is made once and passed from thread to thread: making or freeing one may wait for kernels, and these for a
 * rank that is not there yet. It keeps its GPU's context until the process ends, too. */
#ifndef TESTS_GPU_WORKER_H
#define TESTS_GPU_WORKER_H

#include "mem/device.h"
#include <expar/expar.h>
#include <stdatomic.h>
#include <stdbool.h>

/* A piece of GPU memory that calls take from; it begins anew when none of them is under way. */
typedef struct arena {
    cu_address at;
    size_t bytes, used;
    atomic_int calls; /* under way; any thread of the rank */
} arena;

typedef struct worker {
    cuda_device *device; /* NULL: the host's memory, and calls on the CPU */
    cu_stream stream;
    arena own; /* out of the peers' reach */
    /* Data on its way to the GPU: a copy from ordinary memory may wait for the kernels ahead of it in the stream. */
    mem_pinned stage;
    size_t staged; /* bytes; begins anew with `own` */
    struct worker *next;
} worker;

/* A buffer that the mirror made. */
typedef struct buffer {
    const void *of; /* an expar_ep or an expar_ll */
    expar_ll *ll;   /* the latter; else NULL */
    expar_group *group;
    int32_t rank, device;
    arena shared; /* in the device heap; bytes 0 where that cannot grow */
    /* Stands for the memory of expar_ll_get_combine_buffer, of which the test sees `rows`; NULL until it is
       asked. */
    void *rows;
    expar_tensor rows_on;
    struct buffer *next;
} buffer;

/* Whether calls are simulated on the CPU. */
bool worker_is_host(void);
/* The device of a rank. */
expar_device worker_device(int32_t rank);

/* This thread's, on that GPU; its context is current then. */
worker *worker_of(int32_t device);
buffer *buffer_add(const void *of, expar_group *group, int32_t device);
/* NULL: not one of the mirror's. */
buffer *buffer_find(const void *of);
void buffer_drop(const void *of);

/* Memory that lies against its page as `host` does, so that a wrong alignment stays one. Ends the test when there is
   none. */
cu_address arena_take(arena *from, size_t bytes, const void *host);
/* True when it begins anew. */
bool arena_begin(arena *of);
void arena_end(arena *of);

/* In stream order, when `from` may change at once. */
void worker_send(worker *h, cu_address to, const void *from, size_t bytes);
/* Fetches written data, from any thread. Not on the calls' stream, where the copy would wait for later calls. Not
   straight to ordinary memory either, when the driver would delay the process's other ranks meanwhile. */
void worker_fetch(const worker *h, void *to, cu_address from, size_t bytes);
/* Overwrites it, in stream order. */
void worker_spoil(const worker *h, cu_address at, size_t bytes);
/* Until all that is on the stream is done. */
void worker_wait(const worker *h);

/* Trouble with the mirror itself ends the test. */
void mirror_need(expar_status status, const char *what);

#endif

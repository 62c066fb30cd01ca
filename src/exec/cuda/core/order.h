/* SPDX-License-Identifier: Apache-2.0 */
/* The order of a rank's calls on one GPU. It is private to order.c, which makes calls follow each other, and waiting.c,
 * where the host waits for them. */
#ifndef EXPAR_EXEC_CUDA_CORE_ORDER_H
#define EXPAR_EXEC_CUDA_CORE_ORDER_H

#include "exec/cuda/core/gpu.h"

#include <pthread.h>

/* The most captures at a time that have calls of a rank, each on streams of its own. */
#define CAPTURES 8

/* Nobody reports the end of a capture. A stream is in it until it ends, but the caller's stream may be destroyed by
   then. So a stream of the order's own joins each capture; it does no work there. */
typedef struct captured_calls {
    unsigned long long number; /* number of the capture; 0: none yet */
    cu_event inner;            /* after its last call, for its other streams */
    cu_stream witness;         /* in the capture until that ends; NULL: this place has had none */
} captured_calls;

typedef struct gpu_orders gpu_orders;

struct gpu_order {
    gpu_order *next;
    gpu_orders *orders; /* the list that it is in */
    int32_t device;     /* index */
    int32_t references; /* buffers that use it */
    /* The thread that makes a call holds it from gpu_take_place to gpu_end, and another one between gpu_order_close and
       gpu_order_open. It guards the members below. The events
       themselves stay as long as the order. */
    pthread_mutex_t lock;
    gpu_fallback *fallback;
    gpu_places *places;
    /* The lender's event, after the last call. Each launch of a graph with calls records it anew. */
    cu_event last;
    /* The number of the last call's stream, without calls of captures. */
    unsigned long long last_stream;
    captured_calls captures[CAPTURES];
    /* A call was made outside of captures, on `last_stream`. */
    bool has_last;
    /* The last kernel that was launched waits for ranks, and was not seen to go on. */
    bool may_wait;
    /* There were captured calls, so any stream may have the last call. */
    bool in_graphs;
};

#endif

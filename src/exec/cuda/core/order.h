/* SPDX-License-Identifier: Apache-2.0 */
/* The order of a rank's calls on one GPU, private to order.c, which makes calls follow each other, and waiting.c, where
 * the host waits for them. */
#ifndef EXPAR_EXEC_CUDA_CORE_ORDER_H
#define EXPAR_EXEC_CUDA_CORE_ORDER_H

#include "exec/cuda/core/gpu.h"

#include <pthread.h>

/* Captures that a rank's calls may take turns between, each on streams of its own. */
#define CAPTURES 8

/* When a capture ends nobody says. A stream is in it as long as it goes on; but a caller's may be gone by then. So one
   of the order's own joins each capture, and has nothing to do there. */
typedef struct captured_calls {
    unsigned long long number; /* of the capture; 0: none yet */
    cu_event inner;            /* behind its last call, for its other streams */
    cu_stream witness;         /* in the capture until it ends; NULL: this place has had none */
} captured_calls;

typedef struct gpu_orders gpu_orders;

struct gpu_order {
    gpu_order *next;
    gpu_orders *orders; /* of which it is one */
    int32_t device;     /* index */
    int32_t references; /* buffers that use it */
    /* Held by the thread that makes a call, from gpu_take_place to gpu_end. It guards what follows;
       the events themselves stay as long as the order. */
    pthread_mutex_t lock;
    gpu_lender *lender;
    gpu_places *places;
    cu_event last; /* the lender's; behind the last call, also of graphs: each launch of one records it anew */
    unsigned long long last_stream; /* number of the last call's, but for calls of captures */
    captured_calls captures[CAPTURES];
    bool has_last;  /* a call was made outside of captures, on `last_stream` */
    bool may_wait;  /* the last kernel that was launched waits for ranks, and was not seen to go on */
    bool in_graphs; /* any stream may have come last */
};

#endif

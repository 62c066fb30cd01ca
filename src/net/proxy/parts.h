/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of this folder share. Private to proxy. */
#ifndef EXPAR_NET_PROXY_PARTS_H
#define EXPAR_NET_PROXY_PARTS_H

#include "net/proxy/proxy.h"
#include <pthread.h>

/* ---- gate.c: where threads sleep until another one says that something may have changed -------------------------- */

typedef struct proxy_gate {
    pthread_mutex_t lock;
    pthread_cond_t opened;
    /* Threads that sleep or are about to. Written by them, under the lock; read by openers without it. Both put a full
       fence between that and the condition slept for, so that one of the two sees the other. */
    _Atomic int32_t sleepers;
} proxy_gate;

void proxy_gate_init(proxy_gate *gate);
void proxy_gate_destroy(proxy_gate *gate);
/* Sleeps until the gate is opened, at most limit_ns; not at all when is_over holds already. */
void proxy_gate_wait(proxy_gate *gate, bool (*is_over)(const void *context), const void *context, int64_t limit_ns);
/* Wakes all sleepers. The caller has stored what they may wait for. */
void proxy_gate_open(proxy_gate *gate);

/* ---- the objects ------------------------------------------------------------------------------------------------- */

/* Commands that are on their way at once: fewer than any provider's queue in use holds, with room left for the rank's
   blocking calls. A power of two. */
#define PROXY_IN_FLIGHT 64u

typedef enum flight_state {
    FLIGHT_WAITS = 0, /* to be posted */
    FLIGHT_POSTED,
    FLIGHT_ENDED
} flight_state;

/* A command that was taken. */
typedef struct flight {
    proxy_command command;
    flight_state state;
    bool signals;   /* the data are delivered, what remains is the signal */
    uint64_t epoch; /* how many fences came before it */
    transport *via; /* of the part that is posted */
    transport_batch batch;
} flight;

/* What the thread knows of a PE. */
typedef struct proxy_peer {
    uint64_t pass; /* in which the next three were found */
    bool busy;     /* its transport had no room */
    bool unfinished;
    uint64_t oldest_epoch;       /* of its unfinished flights */
    expar_status lost;           /* EXPAR_OK, or how all its commands end */
    transport_patience patience; /* since it was first seen to owe something; anew after each thing that it did */
} proxy_peer;

/* The thread's own, but for what says otherwise. */
struct proxy {
    proxy_plan plan;
    int32_t rank, size; /* copies: the site's boot may go before the proxy */
    proxy_ring *ring;
    size_t ring_bytes;
    proxy_port port;                 /* the producers' */
    uint64_t taken, done;            /* flights are the commands from done to taken - 1 */
    flight flights[PROXY_IN_FLIGHT]; /* by number modulo their count */
    proxy_peer *peers;               /* [size] */
    uint64_t pass, epoch;
    uint32_t failures;
    uint32_t idle_turns;
    bool attends; /* makes the network's progress */
    /* Failures that a quiet has told; compare-swapped by whoever tells, relaxed: it orders nothing. */
    _Atomic uint32_t told;
    /* Times that the thread has found a PE late and not gone: producers wait on. Raised by the thread, relaxed. */
    _Atomic uint32_t excuses;
    proxy_gate work;  /* the thread sleeps there; producers, and who sees completions, open it */
    proxy_gate moved; /* producers sleep there; the thread opens it when counters have moved */
    pthread_t thread;
    bool thread_runs;   /* the maker's */
    _Atomic bool stops; /* the thread shall end; written by the maker, read by the thread */
};

/* ---- flight.c: commands on their way ----------------------------------------------------------------------------- */

/* Copies the next command out, if there is one and room for it. */
bool proxy_take(proxy *self);
/* Moves every flight on as far as it goes; true when one did. */
bool proxy_move_flights(proxy *self);
/* Ends the flights to PEs that are gone, or silent for too long. */
void proxy_end_hopeless(proxy *self);
/* Ends all. */
void proxy_end_all(proxy *self);
/* Some flight has something to do, or its slot in the ring has. Any state that changes it opens `work`. */
bool proxy_has_work(const proxy *self);

/* ---- consumer.c -------------------------------------------------------------------------------------------------- */

/* The thread's main function; argument: the proxy. */
void *proxy_consume(void *argument);

static inline void proxy_between_steps(const proxy *self)
{
    if (self->plan.between_steps) self->plan.between_steps(self->plan.context);
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Definitions that the files of this folder share. Private to proxy. */
#ifndef EXPAR_NET_PROXY_PARTS_H
#define EXPAR_NET_PROXY_PARTS_H

#include "net/proxy/proxy.h"
#include <pthread.h>

/* ---- gate.c: where threads sleep until another one says that something may have changed -------------------------- */

typedef struct proxy_gate {
    pthread_mutex_t lock;
    pthread_cond_t opened;
    /* Number of threads that sleep or are about to. They write it under the lock; openers read it without. Both make a
       full fence between that and the condition of the sleep, so that one of the two sees the other. */
    _Atomic int32_t sleepers;
} proxy_gate;

void proxy_gate_init(proxy_gate *gate);
void proxy_gate_destroy(proxy_gate *gate);
/* Sleeps until the gate is opened, at most limit_ns; returns at once if is_over is true already. */
void proxy_gate_wait(proxy_gate *gate, bool (*is_over)(const void *context), const void *context, int64_t limit_ns);
/* Wakes all sleepers. Call it after storing what they may wait for. */
void proxy_gate_open(proxy_gate *gate);

/* ---- the objects ------------------------------------------------------------------------------------------------- */

/* The most commands in progress at once. It is below the queue size of every provider in use, with space left for the
   rank's blocking calls. A power of two. */
#define PROXY_IN_FLIGHT 64u

typedef enum flight_state {
    FLIGHT_WAITS = 0, /* to be posted */
    FLIGHT_POSTED,
    FLIGHT_ENDED
} flight_state;

/* A command that was taken from the ring. */
typedef struct flight {
    proxy_command command;
    flight_state state;
    /* the data is delivered, the signal remains */
    bool signals;
    /* number of fences before it */
    uint64_t epoch;
    /* transport of the part that is posted */
    transport *via;
    transport_batch batch;
} flight;

/* The state of a PE as the thread knows it. */
typedef struct proxy_peer {
    /* pass in which the next three were found */
    uint64_t pass;
    /* its transport had no free space */
    bool busy;
    bool unfinished;
    /* the oldest epoch of its unfinished flights */
    uint64_t oldest_epoch;
    /* EXPAR_OK, or the status with which all its commands end */
    expar_status lost;
    /* since it was first seen to owe something; starts anew after each thing that it did */
    transport_patience patience;
} proxy_peer;

/* The thread owns the members, except where a comment says otherwise. */
struct proxy {
    proxy_plan plan;
    /* copies: the site's boot may go before the proxy */
    int32_t rank, size;
    proxy_ring *ring;
    size_t ring_bytes;
    /* for the producers */
    proxy_port port;
    /* flights are the commands from done to taken - 1 */
    uint64_t taken, done;
    /* by number modulo their count */
    flight flights[PROXY_IN_FLIGHT];
    /* [size] */
    proxy_peer *peers;
    uint64_t pass, epoch;
    uint32_t failures;
    uint32_t idle_turns;
    /* it drives the network */
    bool attends;
    /* Number of failures that quiet calls have reported. The reporting thread compare-swaps it; relaxed, because it
       orders nothing. */
    _Atomic uint32_t told;
    /* How often the thread has found a PE late but not gone, so that producers wait on. The thread raises it;
       relaxed. */
    _Atomic uint32_t excuses;
    /* the thread sleeps there; producers, and threads that see completions, open it */
    proxy_gate work;
    /* producers sleep there; the thread opens it when counters have moved */
    proxy_gate moved;
    pthread_t thread;
    /* only the thread that made the proxy uses it */
    bool thread_runs;
    /* the thread shall end; the thread that made the proxy writes it, the proxy's thread reads it */
    _Atomic bool stops;
};

/* ---- flight.c: commands on their way ----------------------------------------------------------------------------- */

/* Copies the next command out of the ring, if there is one and a free flight for it. */
bool proxy_take(proxy *self);
/* Moves every flight on as far as it goes; true if one moved. */
bool proxy_move_flights(proxy *self);
/* Ends the flights to PEs that are gone, or silent for too long. */
void proxy_end_hopeless(proxy *self);
/* Ends all flights. */
void proxy_end_all(proxy *self);
/* Returns whether some flight, or its slot in the ring, has something to do. A change of any state that decides this
   opens `work`. */
bool proxy_has_work(const proxy *self);

/* ---- consumer.c -------------------------------------------------------------------------------------------------- */

/* The thread's main function; argument: the proxy. */
void *proxy_consume(void *argument);

static inline void proxy_between_steps(const proxy *self)
{
    if (self->plan.between_steps) self->plan.between_steps(self->plan.context);
}

#endif

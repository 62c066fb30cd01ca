/* SPDX-License-Identifier: Apache-2.0 */
/* proxy: a thread that carries out the commands of a ring (ring.h), by whatever transports lead to their PEs.
 *
 * Called by shmem, which owns one for a rank whose non-blocking operations go this way; calls transports. Producers are
 * threads of the rank; those that cannot make system calls use ring.h alone and are noticed by looking.
 *
 *   ring.h     layout, and what producers do      producer.c   threads of this process as producers; quiet
 *   flight.c   commands on their way              consumer.c   the thread: takes, posts, frees, sleeps
 *   gate.c     sleeping, and being woken          proxy.c      making and end
 *
 * Commands are taken in order. One that a transport has no room for is tried again, and none to its PE passes it
 * meanwhile; those to other PEs do. After a fence nothing goes out to a PE before all that came before the fence has
 * been delivered there. A PE that is gone, or silent for the time-out, turns its commands, now and later, into failed
 * ones; those to others go on. */
#ifndef EXPAR_NET_PROXY_PROXY_H
#define EXPAR_NET_PROXY_PROXY_H

#include "net/proxy/ring.h"
#include "net/transport.h"

typedef struct proxy proxy;

/* Commands reach no memory of a segment outside of these. */
typedef struct proxy_bounds {
    uint64_t begin;
    /* As it stands when a command is taken. Raised by the owner (release), read by the thread (acquire). NULL: there is
       no such segment. */
    const _Atomic uint64_t *end;
} proxy_bounds;

/* All pointers are borrowed; what they point to must be there when the first command is issued. */
typedef struct proxy_plan {
    const transport_site *site;
    const transport_ways *ways;     /* [TRANSPORT_MEMORIES][size] by which PEs are reached */
    const transport_driven *driven; /* those that need progress */
    proxy_bounds bounds[TRANSPORT_MEMORIES];
    uint32_t num_slots; /* of the ring: a power of two */
    uint64_t first;     /* number of the first command */
    int64_t nap_ns;     /* longest sleep without work: so late a producer is noticed that wakes nobody */
    /* Something that pe may wait for has been delivered to it. From the proxy's thread. */
    void (*delivered)(void *context, int32_t pe);
    /* For tests, which delay there: called between any two steps of the thread. NULL: nothing is. */
    void (*between_steps)(void *context);
    void *context;
} proxy_plan;

expar_status proxy_open(const proxy_plan *plan, proxy **out);
/* Ends the thread. What is not complete then is given up; later commands are lost. Before the transports close. */
void proxy_stop(proxy *self);
/* Stops it and frees all. NULL is allowed. */
void proxy_close(proxy *self);

/* Any thread of the process. Waits while the ring is full; EXPAR_ERR_PEER when that has no end. The command ends by
   itself, and quiet tells whether it failed. */
expar_status proxy_issue(proxy *self, const char *what, const proxy_command *command);
/* All commands that were issued before, by any thread, are delivered. EXPAR_ERR_…: one has failed since the last time
   that this was told; the text names the rank. */
expar_status proxy_quiet(proxy *self, const char *what);
/* Something may have come back from the network, or gone wrong. Any thread. */
void proxy_wake(proxy *self);
/* For producers with code of their own. */
proxy_port *proxy_port_of(proxy *self);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* proxy: a thread that performs the commands of a ring (ring.h), by the transports that reach their PEs.
 *
 * Called by shmem, which owns one for a rank whose non-blocking operations go this way; calls transports. Producers are
 * threads of the rank. Those that cannot make system calls use only ring.h, and the proxy notices them by polling.
 *
 *   ring.h     layout, and what producers do      producer.c   threads of this process as producers; quiet
 *   waits.h    waits of kernels                   take.c       commands from the ring, and their checks
 *   flight.c   commands in progress, PE by PE     join.c       puts that touch
 *   consumer.c the thread: turns, naps, end       crew.c       one thread that watches for several
 *   gate.c     sleeping, and being woken          proxy.c      creation and end
 *   serve.c    rings for kernels of a GPU, or of the CPU
 *
 * Commands are taken in order. If a transport has no free space for one, it is tried again. No command to the same PE
 * passes it meanwhile; those to other PEs do. After a fence nothing is sent to a PE before all that came before the
 * fence has been delivered there. Puts that touch on both sides go as one message. Messages and bytes on their way are
 * bounded for each PE. Commands to a PE that is gone, or silent for the time-out, fail, now and later; those to others
 * go on. */
#ifndef EXPAR_NET_PROXY_PROXY_H
#define EXPAR_NET_PROXY_PROXY_H

#include "cuda/cuda.h"
#include "net/proxy/ring.h"
#include "net/transport.h"

typedef struct proxy proxy;

/* Commands reach no memory of a segment outside these bounds. */
typedef struct proxy_bounds {
    uint64_t begin;
    /* Read when a command is taken. The owner raises it (release), the thread reads it (acquire). NULL: there is no
       such segment, or proxy_plan.serves knows it. */
    const _Atomic uint64_t *end;
} proxy_bounds;

/* Proxies whose producers are kernels, and of which one thread watches all rings when all are idle (crew.c). */
typedef struct proxy_crew proxy_crew;
expar_status proxy_crew_open(int32_t most, proxy_crew **out);
/* After all its proxies were closed. NULL is allowed. */
void proxy_crew_close(proxy_crew *crew);
/* Returns how often a thread has looked at all rings. */
uint64_t proxy_crew_looks(const proxy_crew *crew);

/* All pointers are borrowed; their targets must exist when the first command is issued. */
typedef struct proxy_plan {
    const transport_site *site;
    /* [TRANSPORT_MEMORIES][size] the transports that reach each PE */
    const transport_ways *ways;
    /* the transports that need progress */
    const transport_list *driven;
    proxy_bounds bounds[TRANSPORT_MEMORIES];
    /* Returns whether commands may reach these bytes; for memory without bounds. NULL: they may not. */
    bool (*serves)(void *context, transport_memory memory, uint64_t offset, uint64_t bytes);
    /* For commands with PROXY_FIND_LOCAL: returns whether the rank knows this memory. *on_device: a GPU has it. NULL:
       no memory is known. */
    bool (*find_local)(void *context, const void *at, uint64_t bytes, bool *on_device);
    /* Carries puts and gets if a GPU has their local memory. Its operations are complete when `post` returns. NULL:
       such commands fail. */
    transport *on_device;
    /* transports whose operations the thread ends itself; NULL: there are none */
    const transport_list *reaped;
    /* of the ring: a power of two */
    uint32_t num_slots;
    /* number of the first command */
    uint64_t first;
    /* longest sleep without work, and so the longest delay for a producer that wakes no thread */
    int64_t nap_ns;
    /* The producers are kernels, which wake nobody. The thread spins while a call uses the ring (proxy_expect). Else it
       naps for poll_ns at most; 0: it never naps. After a second without work the crew takes over. */
    bool kernels;
    int64_t poll_ns;
    /* How long the thread of a ring of kernels spins after its last command or announcement, before it naps. It drives
       the network meanwhile. */
    int64_t spin_ns;
    proxy_crew *crew;
    /* there are more threads than cores, so a thread without work yields, and soon naps though a call uses the ring */
    bool yields;
    /* A number that was claimed, and not published for so long, ends the ring; 0: it does not. */
    int64_t orphan_ns;
    /* Called from the proxy's thread when a command has failed, before a counter passes it. The command still has
       PROXY_FIND_LOCAL if its local memory is not known. NULL: no call. */
    void (*failed)(void *context, const proxy_command *command, expar_status status);
    /* Called from the proxy's thread when something that pe may wait for has been delivered to it. */
    void (*delivered)(void *context, int32_t pe);
    /* For tests, which delay there: called between any two steps of the thread. NULL: no call. */
    void (*between_steps)(void *context);
    void *context;
} proxy_plan;

expar_status proxy_open(const proxy_plan *plan, proxy **out);
/* Ends the thread. It first ends all waits on the ring, then gives up incomplete commands. Later commands are lost.
   Call it before the transports close. */
void proxy_stop(proxy *self);
/* Stops the proxy and frees everything. NULL is allowed. */
void proxy_close(proxy *self);

/* Issues a command. Any thread of the process. Waits while the ring is full; EXPAR_ERR_PEER if it stays full. The
   command ends by itself, and quiet tells whether it failed. */
expar_status proxy_issue(proxy *self, const char *what, const proxy_command *command);
/* Waits until all commands that were issued before, by any thread, are delivered. EXPAR_ERR_…: one has failed since the
   last report; the text names the rank. */
expar_status proxy_quiet(proxy *self, const char *what);
/* Call this when something may have come back from the network, or gone wrong. Any thread. It costs little where no
   command is in progress. */
void proxy_wake(proxy *self);
/* A kernel will use the ring soon: its thread spins for spin_ns at least. Any thread. */
void proxy_rouse(proxy *self);
/* A call is about to use the ring: its thread spins until the call's last command, PROXY_REST. Any thread. */
void proxy_expect(proxy *self);
/* The call has ended without PROXY_REST, as calls of programs' kernels do. Any thread. */
void proxy_release(proxy *self);
/* Ends the ring for good: all waits on it, and all its commands, end with the status. Any thread, also again. */
void proxy_poison(proxy *self, expar_status status);
/* Pins the ring for kernels of the GPU, and gives a port in its memory, with which link/device/ring.h works. No command
   was issued before. The device must stay open until the proxy is closed, or has left it. EXPAR_ERR_UNSUPPORTED: the
   driver cannot pin the ring in place. */
expar_status proxy_serve_gpu(proxy *self, const cuda_device *device, cu_address *port);
/* Gives a port for kernels that threads of this process run. No command was issued before. */
proxy_port *proxy_serve_cpu(proxy *self);
/* Waits until all commands that kernels have issued have ended, with success or not, or the ring has. No kernel issues
   any meanwhile, or they do not count. One thread of the rank at a time. */
expar_status proxy_quiet_kernels(proxy *self, const char *what);
/* Returns EXPAR_OK, or the status with which the ring has ended (proxy_poison, proxy_stop). Any thread. */
expar_status proxy_ending(const proxy *self);
/* Returns how many commands have failed, and why the last one did (proxy_failure); 0: none. Any thread. */
uint64_t proxy_last_failure(const proxy *self);
/* Returns the status of the last command to the PE that failed since the PE was forgiven; EXPAR_OK: none has. Any
   thread. */
expar_status proxy_failed_to(const proxy *self, int32_t pe);
/* Commands to the PE are tried again, although it was silent for the time-out. Without this they fail for good. Any
   thread. */
void proxy_forgive(proxy *self, int32_t pe);
/* Counts of what the thread has passed to transports so far. */
typedef struct proxy_sent {
    /* puts, of which one may carry several commands, each with the signal that follows it */
    uint64_t messages;
    /* atomics, and signals without data */
    uint64_t flags;
    /* of both; a signal has 8 */
    uint64_t bytes;
} proxy_sent;
/* Any thread; commands that have not ended may be missing. */
proxy_sent proxy_sent_of(const proxy *self);
/* Returns whether all commands to the PE before the number have ended, with success or not. Any thread. */
bool proxy_has_ended_to(const proxy *self, int32_t pe, uint64_t number);
/* No kernel uses the port any more. Also for a proxy that serves no GPU. */
void proxy_leave_gpu(proxy *self);
/* Returns the port, for producers with code of their own. */
proxy_port *proxy_port_of(proxy *self);

#endif

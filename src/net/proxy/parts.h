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

/* The most that one message carries of puts that touch. */
#define PROXY_JOINED_BYTES ((uint64_t)1 << 20)
/* Commands that are copied out of the ring before `consumed` is raised. */
#define PROXY_BATCH 64u
/* No flight comes after it. */
#define PROXY_NONE UINT32_MAX

typedef enum flight_state {
    FLIGHT_WAITS = 0, /* to be posted */
    FLIGHT_POSTED,
    FLIGHT_JOINED, /* the message of a flight before it carries its data */
    FLIGHT_ENDED
} flight_state;

/* A command that was taken from the ring. */
typedef struct flight {
    proxy_command command;
    flight_state state;
    uint64_t number;
    /* the data is delivered, the signal remains */
    bool signals;
    /* the message carries the signal of its last flight, too */
    bool carries_signal;
    /* its local memory is a GPU's */
    bool on_device;
    /* number of fences before it */
    uint64_t epoch;
    /* place of the next flight to the same PE, or PROXY_NONE */
    uint32_t next;
    /* how many flights after it its message carries, and the bytes of all */
    uint32_t num_joined;
    uint64_t message_bytes;
    /* transport of the part that is posted */
    transport *via;
    transport_batch batch;
} flight;

/* The state of a PE as the thread knows it. */
typedef struct proxy_peer {
    /* places of its unfinished flights, in the order of their numbers; PROXY_NONE: there are none */
    uint32_t first, last;
    /* one more than the number of the last command to this PE, and the counter that was last told */
    uint64_t end_number, told_number;
    /* messages and bytes on their way */
    uint32_t messages;
    uint64_t bytes;
    /* something was delivered in this pass */
    bool delivered;
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
    /* where the words lie with which a port in a GPU's memory begins */
    size_t image_at;
    /* the GPU that the ring serves, and the port there; NULL: it serves none. Only the owner uses them. */
    const cuda_device *gpu;
    cu_address gpu_port;
    /* for the producers */
    proxy_port port;
    /* flights are the commands from done to taken - 1 */
    uint64_t taken, done;
    /* [num_flights] by number modulo their count, a power of two */
    flight *flights;
    uint32_t num_flights;
    /* [size] */
    proxy_peer *peers;
    /* [num_active] the PEs with unfinished flights */
    int32_t *active;
    int32_t num_active;
    /* messages to a PE on their way at once, and bytes */
    uint32_t most_messages;
    uint64_t most_bytes;
    uint64_t epoch, moves;
    /* proxy_sent. The thread raises them, any thread reads them; relaxed, because they order nothing. */
    _Atomic uint64_t sent_messages, sent_flags, sent_bytes;
    /* [size] the status of the last command to each PE that failed; EXPAR_OK: none since the PE was forgiven. The
       thread stores it (release), any thread loads it (acquire). */
    _Atomic int32_t *failed_to;
    /* [size] commands to the PE are to be tried again. Any thread sets it (release), the thread clears it (acquire). */
    atomic_bool *forgiven;
    uint32_t failures, idle_turns;
    /* the thread has had no work for spin_ns, so it no longer spins without a call */
    bool tired;
    /* It has had none for so long that one thread watches for all rings (the knob proxy.rest). Then it does not spin
       for a call either. */
    bool resting;
    /* when its last work was, and when it last looked for what nothing will come of */
    int64_t busy_ns, judged_ns;
    /* when it first found that `taken` was claimed and not published; 0: it was not */
    int64_t hole_ns;
    /* Calls that use the ring. proxy_expect raises it, the thread at PROXY_REST and proxy_release lower it; relaxed,
       because it only decides whether the thread naps. */
    _Atomic int32_t users;
    /* EXPAR_OK, or the status with which proxy_poison ends all commands. Any thread stores it once (compare-swap), the
       proxy's thread reads it (acquire). */
    _Atomic int32_t poison;
    /* Number of failures that quiet calls have reported. The reporting thread compare-swaps it; relaxed, because it
       orders nothing. */
    _Atomic uint32_t told;
    /* How often the thread has found a PE late but not gone, so that producers wait on. The thread raises it;
       relaxed. */
    _Atomic uint32_t excuses;
    /* The thread is in a transport's post that may wait, and that looks after its PE itself. The thread writes it,
       producers read it, so that they wait on; relaxed. */
    _Atomic bool in_post;
    /* the thread sleeps there; producers, and threads that see completions, open it */
    proxy_gate work;
    /* producers sleep there; the thread opens it when counters have moved */
    proxy_gate moved;
    pthread_t thread;
    /* the ring's counters have changed since `moves` was raised */
    bool changed;
    /* it drives the network */
    bool attends;
    /* it serves kernels of the CPU, and their port lies at image_at; only the owner uses it */
    bool serves_cpu;
    /* only the thread that made the proxy uses it */
    bool thread_runs;
    /* the thread shall end; the thread that made the proxy writes it, the proxy's thread reads it */
    _Atomic bool stops;
    /* A call was announced, and the thread has not seen it. proxy_expect and proxy_rouse set it (release), the thread
       clears it (acquire). */
    _Atomic bool announced;
    /* The thread sleeps, or is about to, with commands in progress, so news of the network wake it. The thread writes
       it, proxy_wake reads it; the fences of the gate order it. */
    _Atomic bool awaits_news;
    /* naps of this thread as the crew's watcher since it last had work */
    uint32_t rests;
};

/* ---- take.c: from the ring to flights ---------------------------------------------------------------------------- */

/* Copies commands out of the ring, if there are some and free flights for them. */
bool proxy_take(proxy *self);
/* Returns whether proxy_take has something to do. */
bool proxy_can_take(const proxy *self);
/* Returns whether a number was claimed, and not published for orphan_ns. */
bool proxy_finds_hole(proxy *self, int64_t now_ns);

/* ---- producer.c -------------------------------------------------------------------------------------------------- */

/* Waits until all commands before the number have ended, or the ring has. */
expar_status proxy_await_end(proxy *self, const char *what, uint64_t number);

/* ---- flight.c: commands on their way ----------------------------------------------------------------------------- */

static inline flight *proxy_flight(const proxy *self, uint64_t number)
{
    return &self->flights[number & (self->num_flights - 1)];
}
/* Appends the flight to those of its PE. */
void proxy_begin_flight(proxy *self, flight *f);
/* Records the failure of a command that never was on its way; its PE may be none. */
void proxy_reject(proxy *self, flight *f, expar_status status);
/* Finds whose memory [local, local + bytes) is; false: it is not known. */
bool proxy_find_local(const proxy *self, const proxy_command *command, uint64_t bytes, bool *on_device);
/* Moves every flight on as far as it goes; true if one moved. */
bool proxy_move_flights(proxy *self);
/* Raises `done` as far as flights have ended; true if it moved. */
bool proxy_count_done(proxy *self);
/* Returns EXPAR_OK, or the status with which all commands to the PE end. A PE that is forgiven gets as much time as at
   first. One that is gone is found lost again. */
expar_status proxy_loss_of(proxy *self, int32_t pe);
/* Ends the flights to PEs that are gone, or silent for too long. */
void proxy_end_hopeless(proxy *self);
/* Ends all flights, and from then on each that is taken. */
void proxy_end_all(proxy *self, expar_status status);
/* Returns whether some flight, or its slot in the ring, has something to do. A change of any state that decides this
   opens `work`. */
bool proxy_has_work(const proxy *self);

/* ---- join.c: puts that touch ------------------------------------------------------------------------------------- */

/* Lets the message of a put carry the puts after it that touch it on both sides; sets message_bytes and num_joined. */
void proxy_join(proxy *self, flight *f);
/* Returns the last flight whose data the message carries. */
flight *proxy_last_joined(const proxy *self, flight *f);

/* ---- crew.c: several threads, of which one watches when there is nothing to do ----------------------------------- */

void proxy_crew_add(proxy_crew *crew, proxy *member);
void proxy_crew_remove(proxy_crew *crew, proxy *member);
/* Sleeps until there may be work for this thread. If it has the watch, it then looks at all rings of the crew. */
void proxy_crew_rest(proxy *self);
/* The thread has work, so another one must watch. */
void proxy_crew_leave_watch(proxy *self);

/* ---- consumer.c -------------------------------------------------------------------------------------------------- */

/* The thread begins or ends to drive the network. */
void proxy_attend(proxy *self, bool begins);
/* The thread's main function; argument: the proxy. */
void *proxy_consume(void *argument);

static inline void proxy_between_steps(const proxy *self)
{
    if (self->plan.between_steps) self->plan.between_steps(self->plan.context);
}

#endif

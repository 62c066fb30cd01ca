/* SPDX-License-Identifier: Apache-2.0 */
/* net: transports, the ways by which one PE's memory is reached from another.
 *
 * Called by shmem, which opens them, and by link, the way to them for all layers above; calls mem (regions), boot
 * (exchange of keys) and base. One folder a transport: p2p (mapped memory), fabric (a network by libfabric). A
 * transport joins by filling this table in a folder of its own (CONTRIBUTING: in five steps). Every one passes
 * tests/net/test_transport.c.
 *
 * Contract of the operations: `offset` is from the start of a segment, already checked against its size and within what
 * has grown; pe is one that `reach` named for that kind of operation on that kind of memory; words are aligned. All
 * operations may be called from any thread of the rank. */
#ifndef EXPAR_NET_TRANSPORT_H
#define EXPAR_NET_TRANSPORT_H

#include "base/base.h"
#include "boot/boot.h"
#include "mem/mem.h"

/* Kinds of memory that peers reach. A rank has one segment of each at most, and all ranks have the same. */
typedef enum transport_memory { TRANSPORT_HOST, TRANSPORT_PINNED, TRANSPORT_DEVICE } transport_memory;
#define TRANSPORT_MEMORIES 3
const char *transport_memory_name(transport_memory memory);

/* Memory of this rank that peers reach at the same offsets in theirs. */
typedef struct transport_segment {
    const mem_region *region; /* NULL: the ranks have no such memory */
    /* What lies behind it at the same offsets on all ranks, of each rank's own size: memory of outputs, that who maps
       the segment maps, too, and no network reaches. NULL: nothing. */
    const mem_region *behind;
    /* Thread ranks: peers[r] is rank r's region in this same process. Else NULL. */
    const mem_region *const *peers;
} transport_segment;

/* How a transport reaches a PE; a set. */
typedef enum transport_reach {
    TRANSPORT_MAP = 1, /* loads and stores at map(), which do what its put, get and atomics do */
    TRANSPORT_PUT = 2, /* put and signal */
    TRANSPORT_GET = 4,
    TRANSPORT_ATOMIC = 8,
    TRANSPORT_COHERENT = 16 /* its atomics and those of the PE's processor may meet on one word */
} transport_reach;

typedef enum transport_atomic_op {
    TRANSPORT_FETCH,
    TRANSPORT_SET,
    TRANSPORT_SWAP,
    TRANSPORT_COMPARE_SWAP,
    TRANSPORT_ADD,
    TRANSPORT_AND,
    TRANSPORT_OR,
    TRANSPORT_XOR
} transport_atomic_op;

/* A few bytes that go ahead of a put's data, in its message: copied when that is posted. */
typedef struct transport_ahead {
    uint64_t offset;
    const void *source;
    size_t bytes;
} transport_ahead;
#define TRANSPORT_MOST_AHEAD 2

/* One operation to be posted. */
typedef enum transport_kind { TRANSPORT_KIND_PUT, TRANSPORT_KIND_GET, TRANSPORT_KIND_ATOMIC } transport_kind;
typedef struct transport_request {
    transport_kind kind;
    int32_t pe;
    /* transport_memory that offset, and what goes ahead, is of, and that signal_offset is of. */
    uint8_t memory, signal_memory;
    uint64_t offset;
    const void *source; /* put: read until complete */
    void *dest;         /* get: written until complete. atomic: gets the old word of `bytes` bytes, or NULL */
    size_t bytes;       /* atomic: 4 or 8 */
    transport_atomic_op op;
    uint64_t operand, compare; /* in the low bytes */
    bool copies;               /* put: source is free again when post returns, which may take longer */
    bool signals;              /* put: once the data is there, the 64-bit word at signal_offset is changed by op (SET or
                                  ADD) and operand; complete when that has been done */
    uint64_t signal_offset;
    bool flagged; /* put without `signals`: its last 8 bytes, an aligned word there, are a flag. It comes behind all
                     before it, and may come in pieces, the lowest byte first: who has found its upper half sees all of
                     it, and what is before it, behind `behold`; else at most some of its lower bytes */
    bool leads;   /* put without `signals`: complete as soon as its source is free and no put that is posted to pe from
                   then on can come before it. That it is there is known once a later one that does not lead is
                   complete; of its failure behind that nobody is told */
    /* put with `flagged` and `leads` that `joins` has said yes to: these come before its data, in their order, as if
       each were such a put, posted before it. */
    const transport_ahead *ahead;
    uint32_t num_ahead;
} transport_request;

/* What was posted with it and is not complete. Owned by the poster, who may free it once `left` is 0 (acquire). */
typedef struct transport_batch {
    /* Raised by post, lowered by whoever sees a completion (release, after status). */
    _Atomic uint32_t left;
    /* expar_status of one that failed, and the PE that it went to. Written before left is lowered, the PE first. */
    _Atomic int32_t status;
    _Atomic int32_t pe;
} transport_batch;

/* What a transport needs of the rank that opens it; lives as long as the transport. */
typedef struct transport_site {
    boot *boot;
    transport_segment segments[TRANSPORT_MEMORIES]; /* by transport_memory */
    /* nodes[r]: the node number of rank r; a transport that maps memory must not reach across nodes. */
    const int32_t *nodes;
    int64_t timeout_ms; /* how long an operation may take of which nothing is heard, where there is no patience */
    bool crowded;       /* more ranks than cores on this host: give the core away early */
    /* EXPAR_OK while operations to pe may be waited for (-1: to anybody), else what ends them, with `what` in the text.
       Any thread. */
    expar_status (*check)(void *context, int32_t pe, const char *what);
    /* An operation to pe has failed, which the network noticed before anybody said why: waits until pe answers, or is
       known to have gone. As check. Any thread, without locks. */
    expar_status (*explain)(void *context, int32_t pe, const char *what);
    /* An error that names pe as lost goes to a caller. Any thread. */
    void (*told)(void *context, int32_t pe);
    /* Something may have come from the network: wakes those of this rank who wait for it. Any thread. */
    void (*arrived)(void *context);
    /* Nothing has been heard of pe here for waited_ns, with operations to it under way: how long (ns) they are to be
       waited for until this is asked again. 0: no longer, for pe does not answer on its line either, or is late by more
       than the late limit. Takes some 50 ms. NULL: only timeout_ms counts. Any thread. */
    int64_t (*patience)(void *context, int32_t pe, int64_t waited_ns);
    void *context;
} transport_site;

/* A wait for signs of a PE; all 0 at its beginning and after each sign. */
typedef struct transport_patience {
    int64_t since_ns, end_ns;
} transport_patience;
/* False: it is given up. now_ns: clock_ns (patience.c). */
bool transport_waits_on(const transport_site *site, transport_patience *wait, int32_t pe, int64_t now_ns);

typedef struct transport transport;

/* Operations of this rank that were handed to a network, and the bytes that they carry. */
typedef struct transport_count {
    uint64_t operations, bytes;
} transport_count;
typedef struct transport_traffic {
    transport_count puts, gets, atomics;
} transport_traffic;

typedef struct transport_ops {
    const char *name;
    const char *summary; /* whom it reaches, and by what, for people */
    /* Reaches all of its node, by loads and stores too, and nobody else: what stands behind it in the list is opened
       only where there are several nodes. */
    bool node_local;
    /* Makes this rank's end and exchanges what peers need to reach it; collective over site->boot, and all ranks return
       success or all fail. EXPAR_ERR_UNSUPPORTED: not to be had on (at least) one rank; the text says how to get it.
       Segments whose memory it does not know it leaves alone: `reach` says so. */
    expar_status (*open)(const transport_site *site, transport **out);
    /* Makes [offset, offset + bytes) of that segment of all ranks reachable; ranges do not overlap. Collective with
       equal arguments. EXPAR_ERR_UNSUPPORTED: it reaches no such memory. NULL: all of it is, from the start. */
    expar_status (*grow)(transport *self, transport_memory memory, uint64_t offset, uint64_t bytes);
    unsigned (*reach)(const transport *self, int32_t pe, transport_memory memory); /* set of transport_reach */
    /* NULL without TRANSPORT_MAP. */
    void *(*map)(const transport *self, int32_t pe, transport_memory memory, uint64_t offset);
    /* Carries out a request without a signal and without hints. A put: returns when its source may be reused. A get, or
       an atomic with a `dest`: when that is there. Else it is complete after quiet. */
    expar_status (*run)(transport *self, const transport_request *request);
    /* Starts an operation and returns. It is complete at its target, and the caller's memory free, when *batch has come
       to 0; with batch NULL after quiet. EXPAR_ERR_BUSY: no room, nothing was started; call progress, try again. */
    expar_status (*post)(transport *self, const transport_request *request, transport_batch *batch);
    /* Whether all of the put, with what goes ahead of it, is one message. NULL: never. */
    bool (*joins)(const transport *self, const transport_request *put);
    /* pe answers no more: what was posted to it with the batch is given up. From then on nothing touches the batch, nor
       the caller's memory but for the data of a large get or put. NULL: post never leaves anything under way. */
    void (*drop)(transport *self, int32_t pe, transport_batch *batch);
    /* Orders earlier operations without a batch before all later ones, to each PE. Fails as quiet does. */
    expar_status (*fence)(transport *self);
    /* All operations of this rank that have no batch are complete at their targets. Those that failed since the last
       one are told of once. */
    expar_status (*quiet)(transport *self);
    /* The same for those of a batch, whose status is EXPAR_OK again afterwards. NULL: what was posted is complete. */
    expar_status (*settle)(transport *self, transport_batch *batch);
    /* Moves on what this rank has under way, and serves what others ask of it; never sleeps. NULL: nothing ever needs
       it. True when something happened. */
    bool (*progress)(transport *self);
    /* What this rank's threads have brought in by now, the transport's own too, is seen by the caller from here on: not
       only a flag that it has found set, but all that the network wrote before. NULL: loads are enough. */
    void (*behold)(transport *self);
    /* change 1: a thread begins to call progress over and over; -1: it has ended. Meanwhile the transport's own thread
       leaves the work to it. 0: the caller goes to sleep on something else, so that thread must take over at once, and
       call `arrived`. NULL as progress. */
    void (*attend)(transport *self, int change);
    /* To be called before a sleep, while attending; the caller looks at its condition once more in between, since it
       may make progress. False: there is no need to sleep. NULL as progress. */
    bool (*arm)(transport *self);
    /* Sleeps until there is something to make progress with, at most limit_ns; false: there was nothing. NULL as
       progress. */
    bool (*sleep)(transport *self, int64_t limit_ns);
    /* One line for people on what it runs on and what its self-test found. NULL: nothing to tell. */
    void (*describe)(const transport *self, char *text, size_t text_bytes);
    /* Adds what it has handed to a network since it was opened. NULL: it uses none. */
    void (*add_traffic)(const transport *self, transport_traffic *sum);
    void (*close)(transport *self);
} transport_ops;

struct transport {
    const transport_ops *ops;
};

/* ---- all transports of this build (transports.c) ----------------------------------------------------------------- */

/* The transports in the order of preference, from 0; NULL behind the last one. */
const transport_ops *transport_at(size_t place);
/* The transport of that name; NULL when this build has none. */
const transport_ops *transport_find(const char *name, size_t name_length);
/* "p2p,fabric": those of this build, in the order of preference. */
const char *transport_names(void);

/* ---- what several layers make of them ---------------------------------------------------------------------------- */

/* By what a rank reaches one kind of memory of a PE; NULL: by nothing. */
typedef struct transport_ways {
    transport *map, *data, *words; /* loads and stores; puts and gets; atomics */
} transport_ways;

#define TRANSPORT_MOST 4 /* that a rank may have open */
/* The transports of a rank that need progress: all of them are driven, and looked at. Filled before anybody uses it. */
typedef struct transport_driven {
    transport *list[TRANSPORT_MOST];
    int32_t count;
} transport_driven;
/* progress, behold, attend and arm of each (driven.c). */
bool transport_progress_all(const transport_driven *driven);
void transport_behold_all(const transport_driven *driven);
void transport_attend_all(const transport_driven *driven, int change);
bool transport_arm_all(const transport_driven *driven);

/* Refuses memory that the transport does not know, by name. */
expar_status transport_refuse(const transport *self, transport_memory memory);

/* ---- on top of post (post.c) ------------------------------------------------------------------------------------- */

/* A put that is flagged as one with a signal: for transports that do not keep bytes in order. */
transport_request transport_flag_apart(const transport_request *put);

/* Posts, making progress while there is no room, for the site's time-out at most. */
expar_status transport_post(transport *self, const transport_site *site, const transport_request *request,
                            transport_batch *batch);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* net: transports, the ways by which one PE reaches the memory of another.
 *
 * Called by shmem, which opens them, and by link, through which all layers above use them; calls mem (regions), boot
 * (exchange of keys) and base. Each transport has a folder: p2p (mapped memory), fabric (a network, by libfabric). A
 * new transport fills this table in a folder of its own (CONTRIBUTING: in five steps). Every one passes
 * tests/net/test_transport.c.
 *
 * Contract of the operations. `offset` counts from the start of a segment; it has been checked against the segment's
 * size and against what has grown. `pe` is one that `reach` named for that kind of operation on that kind of memory.
 * Words are aligned. All operations may be called from any thread of the rank. */
#ifndef EXPAR_NET_TRANSPORT_H
#define EXPAR_NET_TRANSPORT_H

#include "base/base.h"
#include "boot/boot.h"
#include "mem/mem.h"

/* Kinds of memory that peers reach. A rank has at most one segment of each, and all ranks have the same ones. */
typedef enum transport_memory { TRANSPORT_HOST, TRANSPORT_PINNED, TRANSPORT_DEVICE } transport_memory;
#define TRANSPORT_MEMORIES 3
const char *transport_memory_name(transport_memory memory);

/* Memory of this rank; peers reach it at the offsets that they use in their own. */
typedef struct transport_segment {
    const mem_region *region; /* NULL: the ranks have no such memory */
    /* The part that follows the segment, at the same offset on all ranks, in a size that each rank chooses: memory of
       outputs. A rank that maps the segment maps this part, too, and no network reaches it. NULL: there is none. */
    const mem_region *behind;
    /* For thread ranks: peers[r] is rank r's region in this process. Else NULL. */
    const mem_region *const *peers;
} transport_segment;

/* Says how a transport reaches a PE; a set. */
typedef enum transport_reach {
    TRANSPORT_MAP = 1, /* by loads and stores at map(), which can do all that its put, get and atomics do */
    TRANSPORT_PUT = 2, /* put and signal */
    TRANSPORT_GET = 4,
    TRANSPORT_ATOMIC = 8,
    TRANSPORT_COHERENT = 16 /* its atomics and those of the PE's processor may be used on one word */
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

/* A few bytes that are sent before a put's data, in its message. They are copied when the put is posted. */
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
    /* transport_memory of offset and of the bytes sent ahead, and that of signal_offset. */
    uint8_t memory, signal_memory;
    uint64_t offset;
    /* put: read until complete */
    const void *source;
    /* get: written until complete. atomic: gets the old word of `bytes` bytes, or NULL */
    void *dest;
    /* atomic: 4 or 8 */
    size_t bytes;
    transport_atomic_op op;
    /* in the low bytes */
    uint64_t operand, compare;
    /* put: source is free again when post returns, which may take longer */
    bool copies;
    /* put: once the data is there, op (SET or ADD) with operand changes the 64-bit word at signal_offset. The put is
       complete when that has been done. */
    bool signals;
    uint64_t signal_offset;
    /* put without `signals`: its last 8 bytes, an aligned word there, are a flag. The flag arrives after everything
       before it. It may arrive in parts, the lowest byte first. A reader that has found its upper four bytes sees the
       whole put after `behold`; before, it sees at most some of the lower bytes. */
    bool flagged;
    /* put without `signals`: complete as soon as its source is free and no put that is posted to pe later can arrive
       before it. Its arrival is known once a later put that does not lead is complete. A failure after that is not
       reported. */
    bool leads;
    /* For a put with `flagged` and `leads` that `joins` has accepted. These bytes arrive before its data, in their
       order, as if each were such a put that was posted before it. */
    const transport_ahead *ahead;
    uint32_t num_ahead;
} transport_request;

/* The incomplete operations that were posted with it. Owned by the poster, who may free it once `left` is 0
   (acquire). */
typedef struct transport_batch {
    /* Post raises it; the thread that sees a completion lowers it (release, after status). */
    _Atomic uint32_t left;
    /* expar_status of a failed operation, and its PE. Written before left is lowered, the PE first. */
    _Atomic int32_t status;
    _Atomic int32_t pe;
} transport_batch;

/* The view of a rank that its transports get; lives as long as the transports. */
typedef struct transport_site {
    boot *boot;
    /* by transport_memory */
    transport_segment segments[TRANSPORT_MEMORIES];
    /* nodes[r]: the node number of rank r. A transport that maps memory must not reach across nodes. */
    const int32_t *nodes;
    /* how long an operation without any answer may take, if `patience` is NULL */
    int64_t timeout_ms;
    /* more ranks than cores on this host: waits yield early */
    bool crowded;
    /* EXPAR_OK while a thread may wait for operations to pe (-1: to any PE). Else the reason why not, with `what` in
       the text. Any thread. */
    expar_status (*check)(void *context, int32_t pe, const char *what);
    /* The network has failed an operation to pe before any other sign of a loss. Waits until pe answers, or is known to
       have gone. Returns as check. Any thread, without locks. */
    expar_status (*explain)(void *context, int32_t pe, const char *what);
    /* Call this when an error that names pe as lost goes to a caller. Any thread. */
    void (*told)(void *context, int32_t pe);
    /* Something may have arrived from the network: wakes the threads of this rank that wait for it. Any thread. */
    void (*arrived)(void *context);
    /* pe has been silent here for waited_ns, with operations to it in progress. Returns for how many ns to wait until
       the next call. 0: stop waiting, because pe does not answer on its line either, or is late by more than the late
       limit. Takes some 50 ms. NULL: only timeout_ms counts. Any thread. */
    int64_t (*patience)(void *context, int32_t pe, int64_t waited_ns);
    void *context;
} transport_site;

/* A wait for signs of a PE; all 0 at its beginning and after each sign. */
typedef struct transport_patience {
    int64_t since_ns, end_ns;
} transport_patience;
/* False: the wait is given up. now_ns: clock_ns (patience.c). */
bool transport_waits_on(const transport_site *site, transport_patience *wait, int32_t pe, int64_t now_ns);

typedef struct transport transport;

/* Operations of this rank that were passed to a network, and their bytes. */
typedef struct transport_count {
    uint64_t operations, bytes;
} transport_count;
typedef struct transport_traffic {
    transport_count puts, gets, atomics;
} transport_traffic;

typedef struct transport_ops {
    const char *name;
    /* which PEs it reaches, and by what, for people */
    const char *summary;
    /* Reaches exactly the PEs of its node, also by loads and stores. The transports after it in the list are opened
       only if there are several nodes. */
    bool node_local;
    /* Makes this rank's end and exchanges what peers need to reach it. Collective over site->boot; it succeeds on all
       ranks or fails on all. EXPAR_ERR_UNSUPPORTED: not available on (at least) one rank; the text says how to get it.
       A transport ignores segments of unknown memory, and `reach` says so. */
    expar_status (*open)(const transport_site *site, transport **out);
    /* Makes [offset, offset + bytes) of that segment of all ranks reachable; ranges do not overlap. Collective with
       equal arguments. EXPAR_ERR_UNSUPPORTED: it does not reach such memory. NULL: all memory is reachable from the
       start. */
    expar_status (*grow)(transport *self, transport_memory memory, uint64_t offset, uint64_t bytes);
    /* set of transport_reach */
    unsigned (*reach)(const transport *self, int32_t pe, transport_memory memory);
    /* NULL without TRANSPORT_MAP. */
    void *(*map)(const transport *self, int32_t pe, transport_memory memory, uint64_t offset);
    /* Performs a request without a signal and without hints. A put: returns when its source may be reused. A get, or an
       atomic with a `dest`: returns when the result is there. Another atomic is complete after quiet. */
    expar_status (*run)(transport *self, const transport_request *request);
    /* Starts an operation and returns. When *batch is 0 again, it is complete at its target and the caller's memory is
       free; with batch NULL, after quiet. EXPAR_ERR_BUSY: no free space, nothing was started; call progress, try
       again. */
    expar_status (*post)(transport *self, const transport_request *request, transport_batch *batch);
    /* Returns whether the whole put, with the bytes sent ahead, is one message. NULL: never. */
    bool (*joins)(const transport *self, const transport_request *put);
    /* pe does not answer any more: the operations to it that were posted with the batch are given up. From then on
       nothing touches the batch, nor the caller's memory except the data of a large get or put. NULL: post always
       completes operations. */
    void (*drop)(transport *self, int32_t pe, transport_batch *batch);
    /* Orders earlier operations without a batch before all later ones, to each PE. Fails as quiet does. */
    expar_status (*fence)(transport *self);
    /* Waits until all operations of this rank without a batch are complete at their targets. Failures since the last
       call are reported once. */
    expar_status (*quiet)(transport *self);
    /* The same for the operations of a batch, whose status is EXPAR_OK again afterwards. NULL: posted operations are
       complete. */
    expar_status (*settle)(transport *self, transport_batch *batch);
    /* Advances this rank's operations, and serves the requests of others; never sleeps. Returns true if something
       happened. NULL: never needed. */
    bool (*progress)(transport *self);
    /* Makes visible to the caller what this rank's threads, and the transport's own, have received so far. That
       includes all that the network wrote before a flag that the caller has found set. NULL: loads are enough. */
    void (*behold)(transport *self);
    /* change 1: a thread begins to call progress over and over; -1: it has ended. Meanwhile the transport's own thread
       leaves the work to it. 0: the caller goes to sleep on something else, so the transport's thread must take over at
       once, and call `arrived`. NULL as progress. */
    void (*attend)(transport *self, int change);
    /* Call this before a sleep, while attending. It may make progress, so the caller checks its condition once more
       before it sleeps. False: do not sleep. NULL as progress. */
    bool (*arm)(transport *self);
    /* Sleeps until progress can be made, at most limit_ns; false: it cannot. NULL as progress. */
    bool (*sleep)(transport *self, int64_t limit_ns);
    /* Writes one line for people: what it runs on and what its self-test found. NULL: there is nothing to write. */
    void (*describe)(const transport *self, char *text, size_t text_bytes);
    /* Adds what it has passed to a network since it was opened. NULL: it uses none. */
    void (*add_traffic)(const transport *self, transport_traffic *sum);
    void (*close)(transport *self);
} transport_ops;

struct transport {
    const transport_ops *ops;
};

/* ---- all transports of this build (transports.c) ----------------------------------------------------------------- */

/* Returns the transports in the order of preference, from 0; NULL after the last one. */
const transport_ops *transport_at(size_t place);
/* Returns the transport of that name; NULL if this build has none. */
const transport_ops *transport_find(const char *name, size_t name_length);
/* Returns the names of this build's transports, in the order of preference: "p2p,fabric". */
const char *transport_names(void);

/* ---- shared helpers of several layers ---------------------------------------------------------------------------- */

/* The transports by which a rank reaches one kind of memory of a PE; NULL: none. */
typedef struct transport_ways {
    transport *map, *data, *words; /* loads and stores; puts and gets; atomics */
} transport_ways;

#define TRANSPORT_MOST 4 /* the most transports that a rank may have open */
/* The transports of a rank that need progress; all of them are driven and checked. Filled before any thread uses it. */
typedef struct transport_driven {
    transport *list[TRANSPORT_MOST];
    int32_t count;
} transport_driven;
/* Call progress, behold, attend and arm of each (driven.c). */
bool transport_progress_all(const transport_driven *driven);
void transport_behold_all(const transport_driven *driven);
void transport_attend_all(const transport_driven *driven, int change);
bool transport_arm_all(const transport_driven *driven);

/* Rejects memory that the transport does not know, by name. */
expar_status transport_refuse(const transport *self, transport_memory memory);

/* ---- on top of post (post.c) ------------------------------------------------------------------------------------- */

/* Turns a put that is flagged into one with a signal: for transports that do not keep bytes in order. */
transport_request transport_flag_apart(const transport_request *put);

/* Posts; while there is no free space it makes progress, at most for the site's time-out. */
expar_status transport_post(transport *self, const transport_site *site, const transport_request *request,
                            transport_batch *batch);

#endif

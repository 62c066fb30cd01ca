/* SPDX-License-Identifier: Apache-2.0 */
/* net: transports, the ways by which one PE reaches the memory of another.
 *
 * shmem opens the transports, and link uses them for all layers above. They call mem (regions), boot (exchange of keys)
 * and base. Each transport has a folder: p2p (mapped memory), fabric (a network, by libfabric). A new transport fills
 * the table transport_ops in a folder of its own (CONTRIBUTING.md, "Adding a transport"). Each one passes
 * tests/net/test_transport.c.
 *
 * Contract of the operations. `offset` counts from the start of a segment. The caller has checked that it is inside the
 * segment, and inside the part that `grow` has made reachable. `pe` is a PE for which `reach` names that kind of
 * operation on that kind of memory. Words are aligned. Any thread of the rank may call any operation. */
#ifndef EXPAR_NET_TRANSPORT_H
#define EXPAR_NET_TRANSPORT_H

#include "base/base.h"
#include "boot/boot.h"
#include "mem/mem.h"

/* Kinds of memory that peers reach. A rank has at most one segment of each, and all ranks have the same ones. */
typedef enum transport_memory { TRANSPORT_HOST, TRANSPORT_PINNED, TRANSPORT_DEVICE } transport_memory;
#define TRANSPORT_MEMORIES 3
const char *transport_memory_name(transport_memory memory);

/* Memory of this rank. Peers reach it at the same offsets as their own. */
typedef struct transport_segment {
    const mem_region *region; /* NULL: the ranks have no such memory */
    /* Memory that follows the segment, for outputs. It starts at the same offset on all ranks, but each rank chooses
       its size. A rank that maps the segment maps this part, too; no network reaches it. NULL: there is none. */
    const mem_region *after;
    /* For thread ranks: peers[r] is rank r's region in this process. Else NULL. */
    const mem_region *const *peers;
    /* The rank's GPU, whose kernels access the memory at the same addresses; NULL: none do. */
    const struct cuda_device *gpu;
} transport_segment;

/* Says how a transport reaches a PE; a set. */
typedef enum transport_reach {
    TRANSPORT_MAP = 1, /* by loads and stores at map(); they can do all that put, get and atomics do */
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

/* A few bytes that a put's message carries before the data of the put. They are copied when the put is posted. */
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
    /* Values of transport_memory. `memory` is that of `offset` and of the bytes in `ahead`; the other is that of
       `signal_offset`. */
    uint8_t memory, signal_memory;
    /* put, get: the caller's side is memory of a GPU. Only the transport of device memory takes it. */
    bool on_device;
    uint64_t offset;
    /* put: read until complete */
    const void *source;
    /* get: written until complete. atomic: receives the old word, of `bytes` bytes; NULL: it is not wanted */
    void *dest;
    /* atomic: 4 or 8 */
    size_t bytes;
    transport_atomic_op op;
    /* in the low bytes */
    uint64_t operand, compare;
    /* put: the source may be reused when post returns; post may take longer for that reason */
    bool copies;
    /* put: once the data has arrived, `op` (SET or ADD) with `operand` changes the 64-bit word at signal_offset. The
       put is complete after that. */
    bool signals;
    uint64_t signal_offset;
    /* put without `signals`: the last 8 bytes of the data, an aligned word there, are a flag. The flag arrives after
       all data before it, but perhaps in parts, the lowest byte first. A reader that finds its upper four bytes calls
       `behold`, and then sees the whole put. Until then it may see some of the lower bytes. */
    bool flagged;
    /* put without `signals`: it is complete as soon as its source may be reused, and no later put to pe can arrive
       before it. It has surely arrived once a later put without `leads` is complete. If it fails after its own
       completion, the failure is not reported. */
    bool leads;
    /* Only for a put with `flagged` and `leads` for which `joins` is true. These bytes arrive before its data, in the
       order of this array. Each element acts like a put with `flagged` and `leads` that was posted earlier. */
    const transport_ahead *ahead;
    uint32_t num_ahead;
} transport_request;

/* Counts the incomplete operations that were posted with it. The caller of `post` owns it, and may free it once `left`
   is 0 (acquire). */
typedef struct transport_batch {
    /* The number of incomplete operations. `post` raises it; the thread that sees a completion lowers it (release),
       after it has written the two words below. */
    _Atomic uint32_t left;
    /* The expar_status of a failed operation, and its PE. They are written before `left` is lowered, the PE first. */
    _Atomic int32_t status;
    _Atomic int32_t pe;
} transport_batch;

/* All that transports know of their rank. It lives as long as the transports. */
typedef struct transport_site {
    boot *boot;
    /* by transport_memory */
    transport_segment segments[TRANSPORT_MEMORIES];
    /* nodes[r]: the node number of rank r. A transport that maps memory must not reach across nodes. */
    const int32_t *nodes;
    /* if `patience` is NULL: how long an operation may take while pe gives no answer */
    int64_t timeout_ms;
    /* this host has more ranks than cores, so waits yield early */
    bool crowded;
    /* cores of the host for each of its ranks: so many threads of a rank may spin; 0: none */
    int32_t cores_each;
    /* Returns EXPAR_OK while a thread may wait for operations on pe (-1: on any PE). Otherwise it returns the error
       that ends the wait, with `what` in the text. Any thread may call it. */
    expar_status (*check)(void *context, int32_t pe, const char *what);
    /* Call this when the network reports a failed operation, and nothing else shows that pe is lost. It waits until pe
       answers or is known to be gone, and returns like `check`. Any thread may call it, without locks. */
    expar_status (*explain)(void *context, int32_t pe, const char *what);
    /* Call this when a call returns an error that names pe as lost. Any thread may call it. */
    void (*told)(void *context, int32_t pe);
    /* Call this when data may have arrived from the network. It wakes this rank's threads that wait for it. Any thread
       may call it. */
    void (*arrived)(void *context);
    /* Call this when pe has not answered for waited_ns and operations on it are in progress. It returns for how many ns
       to wait until the next call. With 0 the wait must end: pe does not answer on its control socket either, or is
       later than the late limit. It takes some 50 ms. NULL: only timeout_ms counts. Any thread may call it. */
    int64_t (*patience)(void *context, int32_t pe, int64_t waited_ns);
    void *context;
} transport_site;

/* A wait for any answer of a PE. The caller sets it to 0 at the beginning and after each answer. */
typedef struct transport_patience {
    int64_t since_ns, end_ns;
} transport_patience;
/* Returns false if the wait must end. now_ns is the present clock_ns (patience.c). */
bool transport_waits_on(const transport_site *site, transport_patience *wait, int32_t pe, int64_t now_ns);

typedef struct transport transport;

/* Operations of this rank that were passed to a network, and their bytes. */
typedef struct transport_count {
    uint64_t operations, bytes;
} transport_count;
typedef struct transport_traffic {
    transport_count puts, gets, atomics;
    /* Requests that threads of the rank wrote for a network device themselves, in blocks and their bytes. */
    transport_count requests;
    uint64_t doorbells, completions;
    uint64_t device_ns; /* a device in software: from doorbell to completion, for all completions together */
} transport_traffic;

typedef struct transport_ops {
    const char *name;
    /* one line for people: which PEs it reaches, and by what means */
    const char *summary;
    /* It reaches exactly the PEs of this rank's node, also by loads and stores. If there is only one node, the
       transports after it in the list are not opened. */
    bool node_local;
    /* Opens the transport on this rank, and exchanges the keys and addresses that peers need to reach it. Collective
       over site->boot: it succeeds on all ranks or fails on all. EXPAR_ERR_UNSUPPORTED: it is not available on at least
       one rank; the text says how to get it. If the transport cannot reach a kind of memory, it ignores those segments,
       and `reach` says so. */
    expar_status (*open)(const transport_site *site, transport **out);
    /* The site has a segment of that kind now, which it had not when the transport was opened. Collective: all ranks
       call it at the same time. On failure the segment is out of reach on this rank, and it may be added again. NULL:
       the transport reaches only what there was from the start. */
    expar_status (*add)(transport *self, transport_memory memory);
    /* Makes [offset, offset + bytes) of the segment reachable on all ranks. Ranges do not overlap. Collective, with
       equal arguments. EXPAR_ERR_UNSUPPORTED: the transport does not reach such memory. NULL: all memory is reachable
       from the start. */
    expar_status (*grow)(transport *self, transport_memory memory, uint64_t offset, uint64_t bytes);
    /* Returns the address of what kernels need to carry out operations themselves; the transport's folder has its
       layout. on_gpu: kernels of the rank's GPU, in its memory; else kernels that the CPU runs. 0: they cannot, and so
       if this is NULL. *ordered (may be NULL): operations of a rank's kernels on one PE keep their order. */
    uint64_t (*kernels)(const transport *self, bool on_gpu, bool *ordered);
    /* Waits until all that kernels have started before has ended, with success or not. NULL: they start nothing. */
    expar_status (*quiet_kernels)(transport *self);
    /* For what kernels have started on the PE in an order of its own, which the transport's folder numbers. The first
       returns whether all before a number has ended, with success or not. The second returns EXPAR_OK, or why some of
       it has failed. Any thread may call them. NULL, both: kernels start nothing. */
    bool (*kernels_ended)(const transport *self, int32_t pe, uint64_t number);
    expar_status (*kernels_failed)(const transport *self, int32_t pe);
    /* Registers memory of the host outside the segments, in which sources and dests of this rank's operations lie. No
       operation needs that, but it may save a registration of its own. A range may be registered several times, and is
       kept until it was unregistered as often; other ranges do not overlap it. Not collective. NULL, both: the
       transport has no use for it. */
    expar_status (*register_own)(transport *self, void *address, uint64_t bytes);
    void (*unregister_own)(transport *self, const void *address);
    /* Returns the set of transport_reach for this memory of pe. */
    unsigned (*reach)(const transport *self, int32_t pe, transport_memory memory);
    /* Returns the address of the offset in pe's memory. NULL if `reach` never has TRANSPORT_MAP. */
    void *(*map)(const transport *self, int32_t pe, transport_memory memory, uint64_t offset);
    /* Performs a request that uses none of `copies`, `signals`, `flagged`, `leads` and `ahead`. After a put its source
       may be reused. After a get, or an atomic with `dest`, the result is there. Another atomic is complete after
       `quiet`. */
    expar_status (*run)(transport *self, const transport_request *request);
    /* Starts an operation and returns. The operation is complete at its target, and its source or dest is free, once
       batch->left is 0 again. With batch NULL that is so after `quiet`. EXPAR_ERR_BUSY: there is no free space and
       nothing was started; call `progress`, then try again. */
    expar_status (*post)(transport *self, const transport_request *request, transport_batch *batch);
    /* Returns whether one message can carry the whole put and its `ahead`. NULL: never. */
    bool (*joins)(const transport *self, const transport_request *put);
    /* Gives up the operations on pe that were posted with the batch, because pe does not answer any more. From then on
       nothing touches the batch, nor the caller's memory, except the data of a large get or put. NULL: posted
       operations always complete. */
    void (*drop)(transport *self, int32_t pe, transport_batch *batch);
    /* Orders earlier operations without a batch before all later ones, to each PE. Fails as quiet does. */
    expar_status (*fence)(transport *self);
    /* Waits until all operations of this rank without a batch are complete at their targets. It reports the failures
       since its last call, once. */
    expar_status (*quiet)(transport *self);
    /* The same for the operations of a batch. Afterwards the batch's status is EXPAR_OK again. NULL: operations are
       complete when `post` returns. */
    expar_status (*settle)(transport *self, transport_batch *batch);
    /* Advances this rank's operations, and serves the requests of others; never sleeps. Returns true if something
       happened. NULL: never needed. */
    bool (*progress)(transport *self);
    /* Ends those of this rank's operations that are complete, and does not wait. A thread that waits for its own
       operations calls it repeatedly. NULL: `progress` does that, or operations are complete when `post` returns. */
    void (*reap)(transport *self);
    /* Makes data visible to the calling thread: all that this rank's threads, and the transport's own, have received so
       far. So if the caller has found a flag, it then sees all that the network wrote before the flag. NULL: loads are
       enough. */
    void (*behold)(transport *self);
    /* Says which thread drives the transport. change 1: the caller begins to call `progress` repeatedly; -1: it has
       stopped. In between the transport's own thread pauses. change 0: the caller will sleep on something else, so the
       transport's thread must continue at once and call `arrived`. NULL if `progress` is NULL. */
    void (*attend)(transport *self, int change);
    /* Prepares `sleep`; the caller has called `attend` with 1. It may make progress, so the caller checks its condition
       once more before it sleeps. Returns false if the caller must not sleep. NULL if `progress` is NULL. */
    bool (*arm)(transport *self);
    /* Sleeps until progress can be made, but at most limit_ns. Returns false if nothing came in that time. NULL if
       `progress` is NULL. */
    bool (*sleep)(transport *self, int64_t limit_ns);
    /* Writes one line for people: what it runs on and what its self-test found. NULL: there is nothing to write. */
    void (*describe)(const transport *self, char *text, size_t text_bytes);
    /* Adds to *sum the operations that the transport has passed to a network since it was opened. NULL: it uses no
       network. */
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
/* Returns the names of this build's transports, in the order of preference: "p2p,fabric,gda". */
const char *transport_names(void);

/* ---- shared helpers of several layers ---------------------------------------------------------------------------- */

/* The transports by which a rank reaches one kind of memory of a PE; NULL: none. */
typedef struct transport_ways {
    transport *map, *data, *words; /* loads and stores; puts and gets; atomics */
} transport_ways;

#define TRANSPORT_MOST 4 /* the most transports that a rank may have open */
/* Transports of a rank that a thread calls repeatedly: those that need progress, or those with operations to reap. The
   list is complete before any thread uses it. */
typedef struct transport_list {
    transport *list[TRANSPORT_MOST];
    int32_t count;
} transport_list;
/* Call progress, reap, behold, attend or arm of each transport in the list (driven.c). */
bool transport_progress_all(const transport_list *driven);
void transport_reap_all(const transport_list *reaped);
void transport_behold_all(const transport_list *driven);
void transport_attend_all(const transport_list *driven, int change);
bool transport_arm_all(const transport_list *driven);

/* Returns the error for memory that the transport does not know; its text names the memory. */
expar_status transport_reject(const transport *self, transport_memory memory);

/* ---- on top of post (post.c) ------------------------------------------------------------------------------------- */

/* Turns a put with `flagged` into one with a signal, for transports that do not keep the order of bytes. */
transport_request transport_flag_apart(const transport_request *put);

/* Posts the request. While there is no free space it calls `progress`, at most for the site's time-out. */
expar_status transport_post(transport *self, const transport_site *site, const transport_request *request,
                            transport_batch *batch);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* fabric: the transport for networks that libfabric supports; private to this folder.
 *
 *   library.c   libfabric by dlopen             choose.c    which provider, and its quirks
 *   traffic.c   the class of its traffic
 *   channel.c   endpoints and their addresses   extent.c    registered memory, and where the peers' is
 *   key.c       keys of registered memory       admission.c who may connect, and when
 *   strangers.c ends what no rank connected
 *   post.c      operations leave                complete.c  operations come back
 *   wait.c      waiting for them, quiet         sleep.c     sleeping, and who makes the progress
 *   thread.c    progress while nobody waits     selftest.c  what the provider really does
 *   fabric.c    the table of operations
 *
 * A rank has one endpoint for each channel. Operations to pe use channel pe % channels, so that all operations to one
 * PE pass one queue. Each operation in progress has a record with a piece of staging memory. The data of small puts and
 * gets, and the operands and results of atomics, are there, so that a caller may give up at any time. */
#ifndef EXPAR_NET_FABRIC_H
#define EXPAR_NET_FABRIC_H

#include "net/transport.h"
#include <pthread.h>
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>

extern const transport_ops transport_fabric;

/* ---- library.c --------------------------------------------------------------------------------------------------- */

typedef struct fabric_library {
    int (*getinfo)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **);
    void (*freeinfo)(struct fi_info *);
    struct fi_info *(*dupinfo)(const struct fi_info *);
    int (*fabric)(struct fi_fabric_attr *, struct fid_fabric **, void *);
    const char *(*strerror)(int);
} fabric_library;

/* Opens the library once for the process; it stays open. EXPAR_ERR_UNSUPPORTED says what to install. */
expar_status fabric_library_open(const fabric_library **out);

/* ---- choose.c ---------------------------------------------------------------------------------------------------- */

/* How a provider is told where its endpoints shall be. */
typedef enum fabric_place {
    FABRIC_OWN_DEVICES, /* it finds its devices itself */
    FABRIC_NAMED,       /* by an address, an interface or a device, if the user names one */
    FABRIC_OVER_IP      /* likewise; otherwise it takes the address at which the ranks met */
} fabric_place;

/* Facts about a provider that it does not report itself. */
typedef struct fabric_quirks {
    const char *provider;
    /* the target's processor performs atomics, as atomic instructions */
    bool coherent;
    /* a put may complete before it has been delivered, in spite of FI_DELIVERY_COMPLETE */
    bool early;
    /* The bytes of one put are written in rising order, and those of a later put to the same PE after them. Threads of
       the target's process write them while they call the provider, so they hold the channel's lock. */
    bool ascends;
    fabric_place place;
    const char *note;
} fabric_quirks;

/* ---- the objects ------------------------------------------------------------------------------------------------- */

#define FABRIC_STAGE_BYTES  4096u
#define FABRIC_MAX_CHANNELS 16
#define FABRIC_NAME_BYTES   64u

/* One operation in progress. All members are guarded by the channel's lock. */
typedef struct fabric_op {
    /* first, because libfabric returns it */
    struct fi_context2 context;
    /* in a list: operations in progress in order of age; free records by next only */
    struct fabric_op *next, *previous;
    /* number in the order of posting */
    uint64_t number;
    int32_t pe;
    /* NULL: given up, no thread waits any more */
    transport_batch *batch;
    /* gets `bytes` bytes from stage at the end; NULL: they are not wanted */
    void *dest;
    size_t bytes;
    /* place of the result in stage */
    size_t result_at;
    /* [FABRIC_STAGE_BYTES] */
    uint8_t *stage;
    /* it comes back when it has left, which is no sign of the peer */
    bool leads;
    /* an early put: when it has come back, its last bytes are to be read */
    bool confirms;
    /* with `confirms`: memory of those last bytes */
    uint8_t last_memory;
    /* their offset there; `bytes` is their number */
    uint64_t last_at;
    /* `signal` is to be posted when this operation has come back */
    bool signals;
    /* it has come back, and there was no free space for the next operation of its record */
    bool late;
    /* an atomic */
    transport_request signal;
    /* For the pieces of a put: the record of the signal that follows them all. The signal is posted when no piece, and
       not the poster either, holds it back. */
    struct fabric_op *after;
    uint32_t references;
    /* status of the pieces that have come back */
    expar_status status;
} fabric_op;

typedef struct fabric_channel {
    pthread_mutex_t lock;
    struct fid_ep *ep;
    struct fid_cq *cq;
    struct fid_av *av;
    int wait_fd;
    /* socket at which libfabric accepts connections; -1: none was found */
    int listener;
    /* [size] addresses of the endpoints to which this channel sends */
    fi_addr_t *addresses;
    /* staging memory of all ops */
    uint8_t *staging;
    /* NULL if local memory needs no registration */
    struct fid_mr *staging_mr;
    /* [num_ops] */
    fabric_op *ops;
    uint32_t num_ops;
    fabric_op *unused, *oldest, *newest;
    /* number of the last posted operation */
    uint64_t posted;
    /* number of ops with `late` */
    uint32_t num_late;
    /* what the provider has accepted; guarded by lock */
    transport_traffic traffic;
    /* [size] records held by operations to each PE, given up or not; guarded by lock */
    uint32_t *in_flight;
} fabric_channel;

/* Memory that peers reach: a part of the heap, or the page of the self-test after its end. */
/* Data that peers need to reach a rank's part of an extent. */
typedef struct fabric_key {
    /* address: by which the rank's provider names the first byte */
    uint64_t key, address;
} fabric_key;

typedef struct fabric_extent {
    uint64_t offset, bytes;
    uint8_t *base;
    struct fid_mr *mr;
    fabric_key *peers; /* [size] */
} fabric_extent;

/* The grown part of a kind of memory. */
typedef struct fabric_segment {
    /* [max_extents], in the order of offsets */
    fabric_extent **extents;
    /* 0: there is no such segment */
    size_t max_extents;
    /* Grow writes it after the extent (release); posting threads read it (acquire). */
    _Atomic size_t num_extents;
} fabric_segment;

/* Memory of the caller that stays registered (own.c). */
typedef struct fabric_owns fabric_owns;

typedef struct fabric {
    /* first */
    transport base;
    const transport_site *site;
    int32_t rank, size;
    const fabric_library *library;
    const fabric_quirks *quirks;
    struct fi_info *info;
    /* the quirk of that name; false if libfabric was told to let the kernel write by itself */
    bool ascends;
    /* the class that was asked for, in libfabric's values; FI_TC_UNSPEC: none */
    uint32_t traffic_class;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    /* [num_channels] */
    fabric_channel *channels;
    int32_t num_channels;
    /* turns of a wait before it yields */
    uint32_t spins;
    fabric_segment segments[TRANSPORT_MEMORIES];
    fabric_owns *owns;
    /* page of the self-test, at the end of the host's segment */
    fabric_extent *page;
    /* records that one PE may hold, so that a silent PE does not stop the others */
    uint32_t most_in_flight;
    /* The batch of all operations that come without one; quiet waits for it. */
    transport_batch plain;
    /* [size] operations to the PE failed or were given up. The thread that finds out writes it; read without a lock.
       Relaxed, because it only makes later operations fail at once. */
    _Atomic bool *lost;
    /* [size] raised with each operation to the PE that comes back; waits for it read this. Relaxed, because it only
       delays a time-out. */
    _Atomic uint32_t *answers;
    pthread_t thread;
    bool thread_runs;
    /* the thread shall end; close writes it, the thread reads it when it wakes */
    _Atomic bool stops;
    /* eventfd that the thread polls; written by close, and by threads that leave the network to it */
    int wake_event;
    /* 1: the thread naps for long. The thread writes it, threads that end attending read it. Both accesses are
       sequentially consistent with attendants, so that one side sees the other. */
    _Atomic int32_t naps;
    /* eventfd that sleepers poll; written when other threads may have made their progress */
    int nudge_event;
    /* number of threads in fabric_sleep; relaxed: a sleeper that is missed sleeps until its limit */
    _Atomic int32_t sleepers;
    /* Number of threads that call progress over and over (transport_ops.attend); the thread leaves the work to them. */
    _Atomic int32_t attendants;
    /* Number of times that such a thread has begun. Relaxed: the thread only takes it as a sign that more will come. */
    _Atomic uint32_t visits;
    /* false until the self-test is over: all waits belong to set-up, with its time-out */
    bool opened;
    /* result of the self-test */
    char verdict[160];
} fabric;

static inline fabric_channel *fabric_channel_of(const fabric *f, int32_t pe)
{
    return &f->channels[pe % f->num_channels];
}
/* EXPAR_ERR_PEER with a text that names pe. */
expar_status fabric_peer_error(const fabric *f, int32_t pe, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Returns the error that tells why an operation to pe has failed; EXPAR_OK: nothing more is known. The caller holds no
   lock. */
expar_status fabric_explain(const fabric *f, int32_t pe, const char *what);
/* error_set with libfabric's text for `code` (negative, as it returns them) at the end. */
expar_status fabric_error(const fabric *f, expar_status status, int code, const char *what);

/* ---- choose.c: the choice ---------------------------------------------------------------------------------------- */

/* Sets info (of a provider that can do all that is needed), quirks and traffic_class. EXPAR_ERR_UNSUPPORTED says what
   was looked for. */
expar_status fabric_choose(fabric *f);

/* ---- traffic.c --------------------------------------------------------------------------------------------------- */

/* Reads the class that the user asks for. */
expar_status fabric_traffic_read(uint32_t *traffic_class);
/* Warns if the provider has not taken the class. */
void fabric_traffic_judge(const fabric *f);
#define FABRIC_TRAFFIC_TEXT 64
/* Describes the same for people; empty if no class is asked for. */
void fabric_traffic_text(const fabric *f, char text[FABRIC_TRAFFIC_TEXT]);

/* ---- channel.c --------------------------------------------------------------------------------------------------- */

expar_status fabric_channels_open(fabric *f);
/* Collective: tells all ranks where this one's endpoints are. mine: the result of this rank's opening so far. */
expar_status fabric_channels_connect(fabric *f, expar_status mine);
void fabric_channels_close(fabric *f);
#define FABRIC_ADDRESS_TEXT 96
/* Writes where pe's endpoint is, in the provider's notation, once all ranks have exchanged that; "?" if it cannot
   say. */
void fabric_address_text(const fabric *f, int32_t pe, char text[FABRIC_ADDRESS_TEXT]);

/* ---- key.c ------------------------------------------------------------------------------------------------------- */

/* Logs at level info if foreign processes may guess keys. */
expar_status fabric_keys_open(const fabric *f);
/* fi_mr_reg. If the provider leaves the key to its caller, this uses one that cannot be guessed. */
int fabric_register(const fabric *f, const void *base, size_t bytes, uint64_t access, struct fid_mr **out);

/* ---- admission.c ------------------------------------------------------------------------------------------------- */

/* Sets listener, once the endpoint is enabled. */
void fabric_admission_find(const fabric *f, fabric_channel *channel);
/* Drops new connections until fabric_admission_open. Best effort: a failure is logged. */
void fabric_admission_drop(const fabric_channel *channel);
/* From here on the other ranks may connect. No rank connects before all ranks have called this. */
void fabric_admission_open(const fabric *f);
/* Drops new connections again: all ranks are connected to each other. */
void fabric_admission_shut(const fabric *f);

/* ---- strangers.c ------------------------------------------------------------------------------------------------- */

/* Collective, after fabric_admission_shut: ends connections to this rank that no rank of the group has made. */
expar_status fabric_end_strangers(fabric *f);

/* ---- extent.c ---------------------------------------------------------------------------------------------------- */

/* Returns whether this rank has such a segment, and can tell libfabric how to register it. */
bool fabric_serves(const fabric *f, transport_memory memory);
/* Allocate the list of extents of one segment, or of all; false: out of memory. */
bool fabric_segment_make(fabric *f, transport_memory memory);
bool fabric_segments_make(fabric *f);
void fabric_segments_free(fabric *f);
/* Implements transport_ops.grow. */
expar_status fabric_segment_grow(fabric *f, transport_memory memory, uint64_t offset, uint64_t bytes);
/* Registers [base, base + bytes), which peers find at `offset`, and exchanges the keys; collective. */
expar_status fabric_extent_open(fabric *f, uint64_t offset, uint64_t bytes, uint8_t *base, fabric_extent **out);
void fabric_extent_close(fabric_extent *extent);
/* Returns the extent that holds an offset; NULL: none has grown there. */
const fabric_extent *fabric_extent_find(const fabric *f, transport_memory memory, uint64_t offset);
/* Registers memory, for the first channel's endpoint where the provider wants one. EXPAR_ERR_MEMORY says why not. */
expar_status fabric_register_for(const fabric *f, void *base, uint64_t bytes, uint64_t access, struct fid_mr **mr);
/* Gives libfabric's descriptor of local memory; NULL if it needs none. False: the memory must be staged. */
bool fabric_descriptor(const fabric *f, const void *local, size_t bytes, void **descriptor);

/* ---- own.c ------------------------------------------------------------------------------------------------------- */

/* NULL: no memory. */
fabric_owns *fabric_owns_new(void);
/* NULL is allowed. */
void fabric_owns_free(fabric_owns *owns);
/* Implement transport_ops.register_own and unregister_own. Providers that take any memory have no use for them. */
expar_status fabric_register_own(const fabric *f, void *address, uint64_t bytes);
void fabric_unregister_own(const fabric *f, const void *address);
/* Gives libfabric's descriptor of memory that was registered so. False: it was not. */
bool fabric_own_descriptor(fabric_owns *owns, const void *local, size_t bytes, void **descriptor);

/* ---- post.c ------------------------------------------------------------------------------------------------------ */

/* A request that is being posted. */
typedef struct fabric_sending {
    const transport_request *request;
    /* bytes that were posted */
    uint64_t done;
    /* record of the signal that follows several pieces; `sending` holds it back */
    fabric_op *after;
    /* libfabric's code, if it has rejected a piece for good */
    ssize_t rejection;
} fabric_sending;

/* Posts as much as there is free space for. EXPAR_ERR_BUSY: something is left; sending->done says from where. Small
   puts and gets use the stage: a put's source is free at once, and both can be given up. */
expar_status fabric_post(fabric *f, fabric_sending *sending, transport_batch *batch);
/* Returns whether the bytes of the put arrive in the order of their places, as far as fabric_behold makes them visible.
   It is one operation then, of a provider that is known for that order. */
bool fabric_comes_in_order(const fabric *f, const transport_request *put);
/* Implements transport_ops.joins. */
bool fabric_joins(const fabric *f, const transport_request *put);
/* Ends sending: releases the signal that follows the pieces, if there is one. It is sent if status is EXPAR_OK. */
void fabric_sending_end(fabric *f, fabric_sending *sending, expar_status status);
/* Posts the next operation of a record that has come back: the read that confirms a put, or else the signal. The lock
   is held. Returns as libfabric's calls: 0, or -FI_EAGAIN if there is no free space now. */
ssize_t fabric_post_rest(fabric *f, fabric_channel *channel, fabric_op *op);
/* Returns the PE whose answers free space for an operation to pe. */
int32_t fabric_full_of(fabric *f, int32_t pe);
/* Returns the atomic that follows a put. */
transport_request fabric_signal_of(const transport_request *put);

/* ---- complete.c -------------------------------------------------------------------------------------------------- */

/* A holder of the signal's record has ended, with `status`. The lock is held. */
void fabric_op_release(fabric *f, fabric_channel *channel, fabric_op *signal, expar_status status);
/* Takes the operations that have come back on a channel. The lock is held. */
bool fabric_channel_poll(fabric *f, fabric_channel *channel);
bool fabric_progress(fabric *f);
/* Implements transport_ops.behold. */
void fabric_behold(fabric *f);
/* Gives up operations to pe (of that batch; NULL: of any): they count as failed with `status`. They do not refer to the
   caller's memory afterwards, except a large one that the network itself reads or writes there. That may last until the
   endpoint is closed. */
void fabric_drop(fabric *f, int32_t pe, const transport_batch *batch, expar_status status);
void fabric_op_unlink(fabric_channel *channel, fabric_op *op);

/* ---- wait.c ------------------------------------------------------------------------------------------------------ */

/* Posts all of it, as soon as there is free space. */
expar_status fabric_post_soon(fabric *f, const char *what, fabric_sending *sending, transport_batch *batch);
/* Posts and waits until the operation is complete. */
expar_status fabric_run(fabric *f, const char *what, const transport_request *request);
/* Waits for the operations that were posted with the batch. Failures are reported once. */
expar_status fabric_settle(fabric *f, const char *what, transport_batch *batch);

/* ---- sleep.c ----------------------------------------------------------------------------------------------------- */

/* Call this before fabric_sleep. It may make progress; false: something is there already. */
bool fabric_arm(fabric *f);
/* Sleeps until something arrives, at most limit_ns; extra_fd (-1: none) ends it too. False: nothing arrived. */
bool fabric_sleep(fabric *f, int64_t limit_ns, int extra_fd);
/* Makes sleepers check again: other threads may have made the progress for which they sleep. */
void fabric_nudge(fabric *f);
/* Implements transport_ops.attend. */
void fabric_attend(fabric *f, int change);

/* ---- thread.c ---------------------------------------------------------------------------------------------------- */

expar_status fabric_thread_start(fabric *f);
void fabric_thread_stop(fabric *f);

/* ---- selftest.c -------------------------------------------------------------------------------------------------- */

/* Collective. Does puts, gets and atomics with the next rank, and connects to every rank. EXPAR_ERR_UNSUPPORTED if the
   provider does not do what it says. */
expar_status fabric_selftest(fabric *f);

#endif

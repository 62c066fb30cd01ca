/* SPDX-License-Identifier: Apache-2.0 */
/* fabric: the transport of networks that libfabric speaks to; private to this folder.
 *
 *   library.c   libfabric by dlopen             choose.c    which provider, and its quirks
 *   traffic.c   the class of its traffic
 *   channel.c   endpoints and their addresses   extent.c    registered memory, and where the peers' is
 *   key.c       keys of registered memory       door.c      who may connect, and when
 *   post.c      operations on their way         complete.c  operations come back
 *   wait.c      waiting for them, quiet         sleep.c     sleeping, and who makes the progress
 *   thread.c    progress while nobody waits     selftest.c  what the provider really does
 *   fabric.c    the table of operations
 *
 * A rank has one endpoint a channel. Operations to pe go out by channel pe % channels, so that all to one PE pass one
 * queue. Each operation on its way has a record with a piece of staging memory, in which the data of small puts, the
 * data of small gets, and the operands and results of atomics live, so that a caller may give up at any time. */
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

/* Opens it once for the process; it stays. EXPAR_ERR_UNSUPPORTED says what to install. */
expar_status fabric_library_open(const fabric_library **out);

/* ---- choose.c ---------------------------------------------------------------------------------------------------- */

/* How it is said where a provider's endpoints shall be. */
typedef enum fabric_place {
    FABRIC_OWN_DEVICES, /* it finds them itself */
    FABRIC_NAMED,       /* by an address, an interface or a device, where the user names one */
    FABRIC_OVER_IP      /* likewise; else it takes the address at which the ranks met */
} fabric_place;

/* What is known of a provider beyond what it says of itself. */
typedef struct fabric_quirks {
    const char *provider;
    bool coherent; /* atomics are carried out by the target's processor as atomic instructions */
    bool early;    /* a put may complete before it has been delivered, in spite of FI_DELIVERY_COMPLETE */
    /* The bytes of one put are written in rising order, and those of a later one to the PE behind them, by threads of
       the target's process that call the provider for it, and so hold the channel's lock. */
    bool ascends;
    fabric_place place;
    const char *note;
} fabric_quirks;

/* ---- the objects ------------------------------------------------------------------------------------------------- */

#define FABRIC_STAGE_BYTES  4096u
#define FABRIC_MAX_CHANNELS 16
#define FABRIC_NAME_BYTES   64u

/* One operation on its way. All members are guarded by the channel's lock. */
typedef struct fabric_op {
    struct fi_context2 context;        /* first: libfabric hands it back */
    struct fabric_op *next, *previous; /* in flight by age; free: next alone */
    uint64_t number;                   /* in the order of posting */
    int32_t pe;
    transport_batch *batch; /* NULL: given up, nobody waits any more */
    void *dest;             /* gets `bytes` bytes from stage at the end; NULL: nobody does */
    size_t bytes;
    size_t result_at;         /* where in stage */
    uint8_t *stage;           /* [FABRIC_STAGE_BYTES] */
    bool leads;               /* it comes back when it has left, which is no sign of the peer's */
    bool confirms;            /* an early put: when it has come back, its last bytes are to be read */
    uint8_t last_memory;      /* then: where they lie, */
    uint64_t last_at;         /* and their offset there; there are `bytes` of them */
    bool signals;             /* `signal` is to be posted when this has come back */
    bool late;                /* it has, and there was no room for what is to be posted then */
    transport_request signal; /* an atomic */
    /* A put in several pieces: they name the record of the signal behind them all, which itself is not posted until
       none of them, nor their poster, holds it back. */
    struct fabric_op *behind;
    uint32_t references;
    expar_status status; /* of the pieces that have come back */
} fabric_op;

typedef struct fabric_channel {
    pthread_mutex_t lock;
    struct fid_ep *ep;
    struct fid_cq *cq;
    struct fid_av *av;
    int wait_fd;
    int listener;              /* libfabric's socket, at which connections are accepted; -1: there is none to be seen */
    fi_addr_t *addresses;      /* [size] of the endpoints that this channel talks to */
    uint8_t *staging;          /* of all ops */
    struct fid_mr *staging_mr; /* NULL where local memory needs none */
    fabric_op *ops;            /* [num_ops] */
    uint32_t num_ops;
    fabric_op *unused, *oldest, *newest;
    uint64_t posted;           /* number of the last one */
    uint32_t num_late;         /* ops with `late` */
    transport_traffic traffic; /* handed to the provider with success; guarded by lock */
    uint32_t *in_flight;       /* [size] records that a PE's operations hold, given up or not; guarded by lock */
} fabric_channel;

/* Memory that peers reach: part of the heap, or the page of the self-test behind its end. */
/* What peers need of a rank's part of an extent. */
typedef struct fabric_key {
    uint64_t key, address; /* address: what the first byte is called by the rank's provider */
} fabric_key;

typedef struct fabric_extent {
    uint64_t offset, bytes;
    uint8_t *base;
    struct fid_mr *mr;
    fabric_key *peers; /* [size] */
} fabric_extent;

/* What has grown of a kind of memory. */
typedef struct fabric_segment {
    fabric_extent **extents; /* [max_extents], in the order of offsets */
    size_t max_extents;      /* 0: there is no such segment */
    /* Written by grow after the extent (release), read by posting threads (acquire). */
    _Atomic size_t num_extents;
} fabric_segment;

typedef struct fabric {
    transport base; /* first */
    const transport_site *site;
    int32_t rank, size;
    const fabric_library *library;
    const fabric_quirks *quirks;
    struct fi_info *info;
    bool ascends;           /* as its quirk, unless libfabric was told to let the kernel write by itself */
    uint32_t traffic_class; /* asked for, as libfabric writes it; FI_TC_UNSPEC: none is */
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    fabric_channel *channels; /* [num_channels] */
    int32_t num_channels;
    uint32_t spins; /* turns of a wait before it yields */
    fabric_segment segments[TRANSPORT_MEMORIES];
    fabric_extent *page;     /* of the self-test: found at the end of the host's segment */
    uint32_t most_in_flight; /* records that one PE may hold, so that a silent one does not stop the others */
    /* Of all operations that come without one: quiet waits for it. */
    transport_batch plain;
    /* [size] operations to the PE failed or were given up. Written by whoever finds out, read without a lock, relaxed:
       it only ends later operations at once. */
    _Atomic bool *lost;
    /* [size] raised with each operation to the PE that comes back, read by those who wait for it; relaxed: it only puts
       off a time-out. */
    _Atomic uint32_t *answers;
    pthread_t thread;
    bool thread_runs;
    _Atomic bool stops; /* the thread shall end; written by close, read by the thread when it wakes */
    int wake_event;     /* eventfd, polled by the thread: written by close, and by those who leave the network to it */
    /* 1: the thread naps for long. Written by it, read by those who end attending; both sequentially consistent with
       attendants, so that one sees the other. */
    _Atomic int32_t naps;
    int nudge_event;          /* eventfd, polled by sleepers: written when others may have made their progress */
    _Atomic int32_t sleepers; /* threads in fabric_sleep; relaxed: who is missed sleeps no longer than its limit */
    /* Threads that call progress over and over (transport_ops.attend), which the thread leaves the work to. */
    _Atomic int32_t attendants;
    /* How often one has come; relaxed: the thread only takes it for a sign that more will come. */
    _Atomic uint32_t visits;
    bool opened;       /* false until the self-test is over: all waits are those of set-up, with its time-out */
    char verdict[160]; /* of the self-test */
} fabric;

static inline fabric_channel *fabric_channel_of(const fabric *f, int32_t pe)
{
    return &f->channels[pe % f->num_channels];
}
/* EXPAR_ERR_PEER with a text that names pe. */
expar_status fabric_peer_error(const fabric *f, int32_t pe, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* An operation to pe has failed: the error that tells why; EXPAR_OK: nobody knows more. The caller holds no lock. */
expar_status fabric_explain(const fabric *f, int32_t pe, const char *what);
/* error_set with what libfabric says of `code` (negative as it returns them) behind the text. */
expar_status fabric_error(const fabric *f, expar_status status, int code, const char *what);

/* ---- choose.c: the choice ---------------------------------------------------------------------------------------- */

/* Sets info (one that can do all that is needed), quirks and traffic_class; EXPAR_ERR_UNSUPPORTED says what was looked
   for. */
expar_status fabric_choose(fabric *f);

/* ---- traffic.c --------------------------------------------------------------------------------------------------- */

/* What the user asks for. */
expar_status fabric_traffic_read(uint32_t *traffic_class);
/* Warns where the provider has not taken the class. */
void fabric_traffic_judge(const fabric *f);
#define FABRIC_TRAFFIC_TEXT 64
/* The same for people; empty where no class is asked for. */
void fabric_traffic_text(const fabric *f, char text[FABRIC_TRAFFIC_TEXT]);

/* ---- channel.c --------------------------------------------------------------------------------------------------- */

expar_status fabric_channels_open(fabric *f);
/* Collective: tells all ranks where this one's endpoints are. mine: how this rank's opening went so far. */
expar_status fabric_channels_connect(fabric *f, expar_status mine);
void fabric_channels_close(fabric *f);
#define FABRIC_ADDRESS_TEXT 96
/* Where pe's endpoint is, as the provider writes it, once all have introduced themselves; "?" where it cannot say. */
void fabric_address_text(const fabric *f, int32_t pe, char text[FABRIC_ADDRESS_TEXT]);

/* ---- key.c ------------------------------------------------------------------------------------------------------- */

/* Says at log level info where strangers may guess keys. */
expar_status fabric_keys_open(const fabric *f);
/* fi_mr_reg with a key that nobody can guess, where the provider leaves the choice to its caller. */
int fabric_register(const fabric *f, const void *base, size_t bytes, uint64_t access, struct fid_mr **out);

/* ---- door.c ------------------------------------------------------------------------------------------------------ */

/* Sets listener, once the endpoint is enabled. */
void fabric_door_find(const fabric *f, fabric_channel *channel);
/* Connections are dropped until the door is opened. Best effort: where it cannot be done, that is logged. */
void fabric_door_shut(const fabric_channel *channel);
/* From here on the other ranks may connect. No rank does before all doors are open. */
void fabric_doors_open(const fabric *f);
/* All ranks are connected to each other. */
void fabric_doors_shut(const fabric *f);

/* ---- extent.c ---------------------------------------------------------------------------------------------------- */

/* Whether this rank has such a segment, and libfabric is told how to register it. */
bool fabric_serves(const fabric *f, transport_memory memory);
/* Makes room for the extents of all segments; false: there is no memory. */
bool fabric_segments_make(fabric *f);
void fabric_segments_free(fabric *f);
/* As transport_ops.grow. */
expar_status fabric_segment_grow(fabric *f, transport_memory memory, uint64_t offset, uint64_t bytes);
/* Registers [base, base + bytes), which peers find at `offset`, and exchanges the keys; collective. */
expar_status fabric_extent_open(fabric *f, uint64_t offset, uint64_t bytes, uint8_t *base, fabric_extent **out);
void fabric_extent_close(fabric_extent *extent);
/* The extent that holds an offset; NULL: none has grown there. */
const fabric_extent *fabric_extent_find(const fabric *f, transport_memory memory, uint64_t offset);
/* What libfabric wants to know of local memory: NULL where it wants nothing. False: it must be staged. */
bool fabric_descriptor(const fabric *f, const void *local, size_t bytes, void **descriptor);

/* ---- post.c ------------------------------------------------------------------------------------------------------ */

/* A request on its way out. */
typedef struct fabric_sending {
    const transport_request *request;
    uint64_t done;     /* bytes that were posted */
    fabric_op *behind; /* record of the signal behind several pieces; held by this */
    ssize_t refusal;   /* libfabric's code, where it has refused a piece for good */
} fabric_sending;

/* Posts what there is room for; EXPAR_ERR_BUSY: something is left, sending->done says where. What is small goes by way
   of the stage, puts as gets: a put's source is free at once, and both can be given up. */
expar_status fabric_post(fabric *f, fabric_sending *sending, transport_batch *batch);
/* Whether the bytes of the put come in the order of their places there, as far as fabric_behold lets anybody see: it is
   one operation, of a provider that is known for that. */
bool fabric_comes_in_order(const fabric *f, const transport_request *put);
/* As transport_ops.joins. */
bool fabric_joins(const fabric *f, const transport_request *put);
/* Nothing more is sent: lets go of the signal behind what was, if there is one; it goes out where
   status is EXPAR_OK. */
void fabric_sending_end(fabric *f, fabric_sending *sending, expar_status status);
/* What is left of an op that has come back goes out by the same record: the read that confirms a put, or else the
   signal. The lock is held. As libfabric's calls: 0, or -FI_EAGAIN when there is no room now. */
ssize_t fabric_post_rest(fabric *f, fabric_channel *channel, fabric_op *op);
/* Whose answers make room for an operation to pe. */
int32_t fabric_full_of(fabric *f, int32_t pe);
/* The atomic behind a put. */
transport_request fabric_signal_of(const transport_request *put);

/* ---- complete.c -------------------------------------------------------------------------------------------------- */

/* Something that held the signal's record back has ended, with `status`; the lock is held. */
void fabric_op_release(fabric *f, fabric_channel *channel, fabric_op *signal, expar_status status);
/* Takes what has come back on a channel; the lock is held. */
bool fabric_channel_poll(fabric *f, fabric_channel *channel);
bool fabric_progress(fabric *f);
/* As transport_ops.behold. */
void fabric_behold(fabric *f);
/* Operations to pe (of that batch; NULL: of any) are given up: they count as failed with `status`. Nothing of them
   refers to the caller's memory afterwards, but for a large one that the network itself reads or writes there, which it
   may do until the endpoint is closed. */
void fabric_drop(fabric *f, int32_t pe, const transport_batch *batch, expar_status status);
void fabric_op_unlink(fabric_channel *channel, fabric_op *op);

/* ---- wait.c ------------------------------------------------------------------------------------------------------ */

/* Posts all, as soon as there is room. */
expar_status fabric_post_soon(fabric *f, const char *what, fabric_sending *sending, transport_batch *batch);
/* Posts and waits until it is complete. */
expar_status fabric_run(fabric *f, const char *what, const transport_request *request);
/* Waits for what has been posted with the batch. Failures are told once. */
expar_status fabric_settle(fabric *f, const char *what, transport_batch *batch);

/* ---- sleep.c ----------------------------------------------------------------------------------------------------- */

/* To be called before fabric_sleep. May make progress; false: something is there already. */
bool fabric_arm(fabric *f);
/* Sleeps until something comes, at most limit_ns; extra_fd (-1: none) ends it too. False: nothing came. */
bool fabric_sleep(fabric *f, int64_t limit_ns, int extra_fd);
/* Whoever sleeps looks again: others may have made the progress that he sleeps for. */
void fabric_nudge(fabric *f);
/* As transport_ops.attend. */
void fabric_attend(fabric *f, int change);

/* ---- thread.c ---------------------------------------------------------------------------------------------------- */

expar_status fabric_thread_start(fabric *f);
void fabric_thread_stop(fabric *f);

/* ---- selftest.c -------------------------------------------------------------------------------------------------- */

/* Collective. Puts, gets and atomics with the next rank, and a connection to every rank. EXPAR_ERR_UNSUPPORTED when the
   provider does not do what it says. */
expar_status fabric_selftest(fabric *f);

#endif

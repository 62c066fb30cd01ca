/* SPDX-License-Identifier: Apache-2.0 */
/* The gda transport: CPU threads as producers, on a device (device.h).
 *
 *     transport.c   the table of operations, opening and closing
 *     segments.c    registered memory: chunks of segments, keys of peers
 *     post.c        operations become requests
 *     own.c         memory of the caller that stays registered
 *     stage.c       copies of small data whose memory is not registered
 *     flights.c     requests that are not complete, until they are
 *     ringer.c      a thread that rings doorbells, where posting threads do not
 *     kernels.c     queues for kernels, in space.c's memory
 *     watch.c       the host's part while kernels use them
 *     options.c     the variables EXPAR_GDA_*
 *     software.c    the software NIC as a device, in a thread or in a process (program.c finds its program); devx/ has
 *                   those of mlx5 */
#ifndef EXPAR_NET_GDA_PARTS_H
#define EXPAR_NET_GDA_PARTS_H

#include "net/gda/device.h"
#include "net/gda/nic/nic.h"
#include "net/gda/space.h"
#include "net/transport.h"

#include <pthread.h>

enum {
    GDA_MOST = 64,             /* blocks of one submission */
    GDA_FLIGHTS = 512,         /* operations of a queue that are not complete; a power of two */
    GDA_CHUNKS = 1024,         /* of one segment */
    GDA_STAGE_BYTES = 4 << 20, /* for copies of all operations together */
    GDA_MOST_STAGED = 64 << 10 /* bytes of one copy; more data is registered for its operation */
};

/* An operation in progress. The holder of the transport's lock reads and writes it. */
typedef struct gda_flight {
    uint64_t end;           /* complete when the queue has reached this */
    transport_batch *batch; /* never NULL: operations without a batch are in `rest` */
    uint8_t *staged;        /* the copy of its data; NULL: none */
    void *back;             /* a get's data goes there from the copy */
    uint64_t back_bytes;    /* 0: nothing goes back */
    bool is_awaited;        /* the caller may reuse the source only after its end, and waits for that */
    gda_memory memory;      /* that was registered for it, if there is a handle */
    uint32_t result_bytes;  /* of an atomic; 0: this is none */
    uint64_t result;        /* number of the result slot */
    void *dest;             /* where the old word goes; NULL: nowhere */
} gda_flight;

/* One queue to a PE. */
typedef struct gda_lane {
    gda_queue queue;
    int32_t pe;
    /* Not 0 once a thread has given up the queue. The holder of the transport's lock stores it; see gda_queue.stop. */
    _Atomic uint64_t stop;
    gda_address address; /* for the peer */
    gda_flight *flights; /* [GDA_FLIGHTS], a ring */
    uint64_t begun, ended;
    bool is_failed; /* the first lane to a PE: a failure was reported to the site */
    uint64_t rung;  /* end of the requests for which the ringer has rung; its own */
    /* the end of the wait for the device, while something is in flight */
    transport_patience patience;
} gda_lane;

/* One kind of memory, with the tables of its keys. */
typedef struct gda_segment {
    bool is_open;
    uint8_t **peers;   /* [size] where this process has each rank's memory */
    uint32_t *regions; /* [size] its regions of the device; 0 where the device has none */
    uint64_t *remotes, *ends;
    uint32_t *lkeys, *rkeys;
    gda_memory *own; /* [GDA_CHUNKS], what was registered here */
    gda_keys keys;
} gda_segment;

/* Memory of the caller that was registered for more than one operation. */
typedef struct gda_own {
    gda_range range;
    gda_memory memory;
    uint32_t count; /* how often it was registered */
    int32_t place;  /* in the table of kernels; -1: they do not know it */
} gda_own;

/* Queues for kernels (kernels.c). */
typedef struct gda_kernels gda_kernels;

typedef struct gda {
    transport base; /* first: a transport of these operations is a gda */
    const transport_site *site;
    int32_t rank, size;
    gda_device *device;
    nic *nic; /* of a software device in a thread; else NULL */
    /* p2p over all ranks: it maps the peers' memory for a software device in a thread. NULL with others. */
    transport *mapped;
    transport_site whole;
    int32_t *one_node;
    gda_segment segments[TRANSPORT_MEMORIES];
    gda_options options;
    /* [num_lanes], the queues of a PE one after another */
    gda_lane *lanes;
    int32_t num_lanes;
    /* NULL: there are none. gda_kernels_open stores it (release), the threads of the transport load it (acquire). */
    _Atomic(gda_kernels *) kernels;
    bool kernels_failed;
    pthread_t ringer;
    bool has_ringer;
    /* Set when the transport is closed, read by the ringer; it orders nothing. */
    _Atomic bool ringer_ends;
    /* Guards all below, lanes and flights. The device's thread does not take it. */
    pthread_mutex_t lock;
    pthread_cond_t posted;
    gda_space stage; /* GDA_STAGE_BYTES for copies, registered as stage_memory */
    mem_arena *stage_arena;
    gda_memory stage_memory;
    gda_own *owns; /* [num_owns] */
    size_t num_owns;
    transport_batch rest; /* operations without a batch */
    /* Pieces of operations before the last one, which nobody awaits: they are complete before the last one is. */
    transport_batch pieces;
    bool device_is_gone; /* and that was logged */
    uint32_t next_queue; /* the queue of the next get or atomic */
    transport_traffic traffic;
    pthread_t reaper;
    bool has_reaper, ends;
} gda;

/* ---- segments.c -------------------------------------------------------------------------------------------------- */

expar_status gda_segment_open(gda *g, transport_memory memory);
void gda_segment_close(gda *g, transport_memory memory);
expar_status gda_segment_grow(gda *g, transport_memory memory, uint64_t offset, uint64_t bytes);

/* ---- post.c ------------------------------------------------------------------------------------------------------ */

expar_status gda_post_request(gda *g, const transport_request *request, transport_batch *batch);

/* ---- own.c ------------------------------------------------------------------------------------------------------- */

expar_status gda_register_own(gda *g, void *address, uint64_t bytes);
void gda_unregister_own(gda *g, const void *address);
void gda_close_owns(gda *g);
/* By the holder of the lock: finds registered memory that holds all of these bytes; NULL: there is none. */
const gda_range *gda_find_own(const gda *g, const void *address, uint64_t bytes);

/* ---- stage.c ----------------------------------------------------------------------------------------------------- */

expar_status gda_stage_open(gda *g);
void gda_stage_close(gda *g);
/* By the holder of the lock: returns whether there is memory for a copy of so many bytes. */
bool gda_stage_has_space(gda *g, uint64_t bytes);
/* By the holder of the lock: takes memory for a copy of so many bytes, and gives the range with its key. NULL: the data
   is too large, or too much is in use. */
void *gda_stage_take(gda *g, uint64_t bytes, gda_flight *flight, gda_range *range);
void gda_stage_give(gda *g, gda_flight *flight);

/* ---- flights.c --------------------------------------------------------------------------------------------------- */

/* Returns the shape of queues to PEs, for threads of the CPU. */
gda_plan gda_lane_plan(const gda *g);
/* Connects queues `first` and later of the device, as many as there are lanes, to those of all peers. Collective.
   address_of(of, i) returns the address of queue first + i. */
expar_status gda_connect_all(gda *g, const gda_address *(*address_of)(const void *of, int32_t i), const void *of,
                             uint32_t first);
/* Makes the queues, and connects them to those of all peers; the second is collective. */
expar_status gda_lanes_open(gda *g);
expar_status gda_lanes_connect(gda *g);
void gda_lanes_close(gda *g);
/* By the holder of the lock: ends the operations that are complete or have failed. Returns true if there were some. */
bool gda_reap(gda *g);
/* By the holder of the lock: if the device is gone, gives up all queues that have something in progress. */
void gda_watch_device(gda *g);
/* Waits, with the lock held, while `is_met` is false. It lets the lock go meanwhile. */
expar_status gda_wait(gda *g, bool (*is_met)(gda *g, const void *of), const void *of, const char *what);
/* Returns the lane of queue `number` to the PE. */
gda_lane *gda_lane_of(gda *g, int32_t pe, uint32_t number);
/* Returns the error of a lane's queue; EXPAR_OK where there is none. */
expar_status gda_lane_error(gda *g, gda_lane *lane);
/* Without the lock: returns the error of requests to the PE, or another one that explains it. The site is told. */
expar_status gda_explain(gda *g, int32_t pe, expar_status status);
expar_status gda_settle_batch(gda *g, transport_batch *batch);

/* ---- ringer.c ---------------------------------------------------------------------------------------------------- */

/* Starts the thread that rings for all queues that want it, unless it runs. Stops it. */
expar_status gda_ringer_start(gda *g);
void gda_ringer_stop(gda *g);

/* ---- kernels.c --------------------------------------------------------------------------------------------------- */

/* Makes queues for kernels where EXPAR_GDA_QUEUE_MEMORY asks for them, once. GDA_PLACE_HOST: `gpu` is not used.
   Collective. */
expar_status gda_kernels_open(gda *g, const cuda_device *gpu);
/* The device has been closed. */
void gda_kernels_close(gda *g);
/* Returns the address of the gda_view for kernels of the GPU, or of the CPU; 0: there is none. */
uint64_t gda_kernels_view(const gda *g, bool on_gpu);
/* Writes a few words about queues for kernels, to follow others; "" if there are none. */
void gda_kernels_describe(const gda *g, char *text, size_t text_bytes);
/* Passes new keys of that memory to kernels. */
expar_status gda_kernels_learn(gda *g, transport_memory memory);

/* ---- watch.c ----------------------------------------------------------------------------------------------------- */

/* Waits until requests that kernels have committed before have ended. It ends for a queue that has failed, too. */
expar_status gda_kernels_settle(gda *g);
/* Says whether the blocks before `end` of the first queue of kernels to the PE have ended. */
bool gda_kernels_have_ended(const gda *g, int32_t pe, uint64_t end);
/* Returns the error of requests on that queue; EXPAR_OK: none has failed. */
expar_status gda_kernels_error(const gda *g, int32_t pe);
/* Rings where kernels wait for that. Returns true if it has rung. By the ringer alone. */
bool gda_kernels_ring(gda_kernels *k);
/* Ends the waits of kernels for PEs that are out of reach, and logs failures of queues. By the reaper alone. */
void gda_kernels_watch(gda *g, gda_kernels *k);
/* Tells kernels of registered memory, or that it is no longer known. The lock is held. */
expar_status gda_kernels_know(const gda *g, const gda_own *own, bool known);
/* Adds the requests that kernels have written, and the doorbells for them. It reads memory of the GPU by copies. */
void gda_kernels_count(const gda *g, transport_traffic *sum);

#endif

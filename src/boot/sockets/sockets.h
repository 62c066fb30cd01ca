/* SPDX-License-Identifier: Apache-2.0 */
/* sockets: the boot of ranks that are processes: a control socket to every other rank, and a line beside it (ask.h). */
#ifndef EXPAR_BOOT_SOCKETS_SOCKETS_H
#define EXPAR_BOOT_SOCKETS_SOCKETS_H

#include "boot/sockets/ask.h"
#include <pthread.h>

/* The longest time between the ends of a rank's two sockets, as a network delivers them. */
#define BOOT_LAST_WORDS_NS ((int64_t)100 * 1000 * 1000)
/* A host that has answered nothing for this long counts as dead, even if waits have no time-out. */
#define BOOT_HOST_SILENT_MS 120000

/* Precedes everything on a control socket once the group stands. */
typedef struct frame_head {
    /* FRAME_MARK | frame_op */
    uint32_t mark;
    /* record size with which the sender was called */
    uint32_t record_bytes;
    /* broadcast: its root; else 0 */
    int32_t root;
    /* payload bytes that follow: record_bytes or 0 */
    uint32_t payload_bytes;
    /* 1: a descriptor travels with the first byte of this head */
    uint32_t with_fd;
} frame_head;

#define FRAME_MARK 0x45584600u
typedef enum frame_op {
    FRAME_BARRIER = 1,
    FRAME_ALLGATHER,
    FRAME_ALLTOALL,
    FRAME_BROADCAST,
    FRAME_FDS,
    FRAME_BYE /* the sender leaves; nothing follows */
} frame_op;
#define FRAME_OPS (FRAME_BYE + 1)

/* The exchange with one peer in one collective. */
typedef struct lane {
    frame_head out_head, in_head;
    const unsigned char *out;
    unsigned char *in;
    /* head and payload */
    size_t out_bytes, out_done_bytes;
    size_t in_done_bytes;
    /* received, or -1 */
    int fd;
    bool sent, received, lost;
    /* the peer's head fits this rank's call */
    bool fits;
} lane;

typedef struct watch watch;

typedef struct boot_sockets {
    boot base;
    /* [size] control socket of each rank, -1 for itself; then [size] lines */
    int *fds;
    /* [size] in fds */
    const int *lines;
    /* the target of base.notes */
    boot_registry registry;
    /* [size] */
    lane *lanes;
    /* [size + 1] */
    struct pollfd *polls;
    /* Held while a head is read, and while the monitor looks for a good-bye, so that the monitor never sees half a
       head. */
    pthread_mutex_t read_lock;
    /* [size] a good-bye has been read; guarded by read_lock */
    bool *byes;
    /* eventfd: abort writes it, a waiting collective polls it */
    int abort_event;
    /* Abort writes it (any thread), collectives read it. Relaxed: it publishes nothing, and the event wakes the
       reader. */
    atomic_bool aborted;
    /* the first failure after which the sockets may hold half a frame; only the owner's thread */
    error_kept broken;
    /* number of exchanges in which this rank has taken part; only the owner's thread */
    uint64_t exchanges;
    /* reads and writes the lines */
    asker *asker;
    /* NULL if the group has one rank */
    watch *watch;
} boot_sockets;

/* Describes a collective; see exchange.c. */
typedef struct exchange_call {
    frame_op op;
    /* record size */
    size_t bytes;
    /* only_from: the one rank that sends records, -1: all do */
    int32_t root, only_from;
    /* record for rank r at send + r·send_stride_bytes */
    const unsigned char *send;
    size_t send_stride_bytes;
    /* record of rank r at receive + r·receive_stride_bytes */
    unsigned char *receive;
    size_t receive_stride_bytes;
    /* descriptor for the ranks of this host, -1: none */
    int fd;
} exchange_call;

/* Exchanges one frame with every peer. EXPAR_ERR_MISMATCH: a peer is in another call or gives another size; all ranks
   are in step again then. EXPAR_ERR_PEER and others: the sockets are broken. Descriptors that arrived lie in
   lanes[r].fd, on success only. */
expar_status boot_exchange(boot_sockets *self, const exchange_call *call);
const char *boot_exchange_name(frame_op op);

/* Returns true if the peer has said good-bye; else it died. The caller holds read_lock. */
bool boot_sockets_said_bye(boot_sockets *self, int32_t rank);

/* The monitor answers peers from now on. */
expar_status watch_start(boot_sockets *sockets, watch **out);
/* Reports peers that go from now on, and those that have gone. False: that has been asked for before. */
bool watch_tell(watch *self, boot_gone_fn gone, void *context);
/* Returns the first rank that has gone, reported or not; -1: none. NULL is allowed. */
int32_t watch_first(watch *self, bool *clean);
/* From now on the monitor still answers peers, but reports none. */
void watch_hush(watch *self);
void watch_stop(watch *self);

#endif

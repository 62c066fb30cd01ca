/* SPDX-License-Identifier: Apache-2.0 */
/* sockets: the boot of ranks that are processes: a control socket to every other rank, and a line beside it (ask.h). */
#ifndef EXPAR_BOOT_SOCKETS_SOCKETS_H
#define EXPAR_BOOT_SOCKETS_SOCKETS_H

#include "boot/sockets/ask.h"
#include <pthread.h>

/* From the end of one of a rank's two sockets to that of the other, where a network brings it. */
#define BOOT_LAST_WORDS_NS ((int64_t)100 * 1000 * 1000)
/* A host that answers nothing for so long is as dead as one that says so, even where waits have no time-out. */
#define BOOT_HOST_SILENT_MS 120000

/* In front of everything on a control socket once the group stands. */
typedef struct frame_head {
    uint32_t mark;          /* FRAME_MARK | frame_op */
    uint32_t record_bytes;  /* the record size that the sender was called with */
    int32_t root;           /* broadcast: its root; else 0 */
    uint32_t payload_bytes; /* that follow: record_bytes or 0 */
    uint32_t with_fd;       /* 1: a descriptor travels with the first byte of this head */
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

/* What one peer sends and gets in one collective. */
typedef struct lane {
    frame_head out_head, in_head;
    const unsigned char *out;
    unsigned char *in;
    size_t out_bytes, out_done_bytes; /* head and payload */
    size_t in_done_bytes;
    int fd; /* received, or -1 */
    bool sent, received, lost;
    bool fits; /* its head says what this rank's does */
} lane;

typedef struct watch watch;

typedef struct boot_sockets {
    boot base;
    int *fds;             /* [size] control socket of each rank, -1 for itself; [size] lines behind them */
    const int *lines;     /* [size] in fds */
    boot_notes notes;     /* what base.notes points to */
    lane *lanes;          /* [size] */
    struct pollfd *polls; /* [size + 1] */
    /* Held while a head is read and while the monitor looks for a good-bye, so that it is never half consumed there. */
    pthread_mutex_t read_lock;
    bool *byes;      /* [size] under read_lock: a good-bye has been read */
    int abort_event; /* eventfd: written by abort, polled by a waiting collective */
    /* Written by abort (any thread), read by collectives. Relaxed: it publishes nothing, and the event wakes. */
    atomic_bool aborted;
    error_kept broken;  /* the first failure after which the sockets may hold half a frame; only the owner's thread */
    uint64_t exchanges; /* that this rank has come to; likewise */
    asker *asker;       /* of the lines */
    watch *watch;       /* NULL: of a rank alone */
} boot_sockets;

/* What a collective does; see exchange.c. */
typedef struct exchange_call {
    frame_op op;
    size_t bytes;              /* record size */
    int32_t root, only_from;   /* only_from: the one rank that sends records, -1: all do */
    const unsigned char *send; /* record for rank r at send + r·send_stride_bytes */
    size_t send_stride_bytes;
    unsigned char *receive; /* record of rank r at receive + r·receive_stride_bytes */
    size_t receive_stride_bytes;
    int fd; /* to hand to ranks of this host, -1: none */
} exchange_call;

/* One frame to and from every peer. EXPAR_ERR_MISMATCH: a peer is in another call or gives another size; all are in
   step again then. EXPAR_ERR_PEER and others: broken. Descriptors that came lie in lanes[r].fd, on success only. */
expar_status boot_exchange(boot_sockets *self, const exchange_call *call);
const char *boot_exchange_name(frame_op op);

/* True when the peer has said good-bye; else it died. The caller holds read_lock. */
bool boot_sockets_said_bye(boot_sockets *self, int32_t rank);

/* The monitor answers peers from now on. */
expar_status watch_start(boot_sockets *sockets, watch **out);
/* Tells of peers that go, and of those that have gone. False: that has been done before. */
bool watch_tell(watch *self, boot_gone_fn gone, void *context);
/* The first one that has gone, whether that has been told or not; -1: none. NULL is allowed. */
int32_t watch_first(watch *self, bool *clean);
/* From now on the monitor answers peers, but reports none. */
void watch_hush(watch *self);
void watch_stop(watch *self);

#endif

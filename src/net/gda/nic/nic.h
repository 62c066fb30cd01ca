/* SPDX-License-Identifier: Apache-2.0 */
/* The software NIC: an mlx5 device in software, for machines and tests without one.
 *
 * It shares nothing with the threads that post but memory: blocks, doorbell records and registers, completion entries,
 * and registered memory. It includes none of gda's formats. A foreign producer needs addresses and sizes only.
 *
 *     decode.c    reads requests with the structs of rdma-core's header, and checks every field
 *     perform.c   checks keys and bounds, and moves data
 *     nic.c       runs the queues
 *     process.c   a device in a process of its own, and orders to it (process.h)
 *
 * The device looks at a queue's record only after the queue's register was written. The register may come early; the
 * record says how far the requests go. Requests of one queue are carried out in order. A failed request gets an error
 * CQE, and those after it are flushed. */
#ifndef EXPAR_NET_GDA_NIC_H
#define EXPAR_NET_GDA_NIC_H

#include "base/base.h"

#include <stdatomic.h>

typedef struct nic nic;

/* Says what registered memory may be used for; a set. */
typedef enum nic_access {
    NIC_LOCAL_WRITE = 1,
    NIC_REMOTE_READ = 2,
    NIC_REMOTE_WRITE = 4,
    NIC_REMOTE_ATOMIC = 8,
    NIC_RELAXED = 16 /* writes to it may be overtaken by later ones (PCIe's relaxed ordering) */
} nic_access;

/* A way to memory that the device's thread cannot load and store, as that of a GPU. A call returns when all is done, so
   the order of calls is that of accesses. An aligned word of 4 or 8 bytes that is all of a call is one access. Returns
   false: the memory is out of reach. The device makes one call at a time. */
typedef struct nic_window nic_window;
struct nic_window {
    bool (*read)(nic_window *self, void *dest, const void *at, size_t bytes);
    bool (*write)(nic_window *self, void *at, const void *source, size_t bytes);
};

/* Registered memory. A port is what a rank has of a device: keys are known in one port. */
typedef struct nic_memory {
    uint32_t port, key;
    uint64_t address; /* of its first byte, as requests give it */
    uint64_t bytes;
    void *base; /* the first byte in the device's address space, or for the window */
    unsigned access;
    nic_window *window; /* NULL: loads and stores reach it */
} nic_memory;

/* A queue pair. Words are shared with its producers; gda's queue.h has who writes each of them, in what order. */
typedef struct nic_queue {
    uint32_t qpn, port;
    uint32_t peer_port, peer_qpn;
    uint32_t depth; /* in blocks of 64 bytes, a power of two */
    uint64_t first; /* index of the first request */
    /* To blocks, completions and cq_record, and to the record; NULL: loads and stores reach them. The register and the
       completions of receives are always reached so. */
    nic_window *window, *record_window;
    const void *blocks;
    const _Atomic uint32_t *record; /* two words: receive counter, send counter */
    _Atomic uint64_t *doorbell;     /* the device swaps it with 0 */
    /* completions; collapsed: one entry */
    bool collapsed;
    uint32_t cq_entries;
    _Atomic uint32_t *cqes;
    const _Atomic uint32_t *cq_record; /* entries that were read; collapsed: NULL */
    /* Receive requests, 0: none. A write with immediate takes one and leaves its memory alone. Their completions are
       not collapsed. */
    uint32_t num_receives;
    uint32_t receive_cq_entries;
    _Atomic uint32_t *receive_cqes;
} nic_queue;

/* Seeded trouble. A number n of those that say "one in" means: once in about n requests; 0: never. */
typedef struct nic_faults {
    uint64_t seed;
    uint32_t delay_turns;        /* a request waits for up to that many turns of the device */
    uint32_t drop_one_in;        /* it is lost on its way, and sent again */
    uint32_t lose_answer_one_in; /* it is carried out, its answer is lost, and it is sent again */
    uint32_t coalesce_one_in;    /* no CQE now: the next one stands for it, too */
    uint32_t shuffle_one_in;     /* a write's bytes arrive in pieces, in any order */
    uint32_t late_reads_one_in;  /* a read's data arrives after later requests, but before a fence or a CQE */
    uint32_t
        overtake_one_in; /* a write to NIC_RELAXED memory arrives when the queue is idle, so later ones overtake it */
    /* A write that is no single word takes another way, as with adaptive routing: later writes arrive before it. It
       arrives before the next read, atomic or CQE of its queue. */
    uint32_t reroute_one_in;
    uint32_t fail_one_in; /* it fails with GDA_SYNDROME_REMOTE_OPERATION, whether or not it asked for a CQE */
    uint32_t rnr_retries; /* attempts at a receiver without receive requests */
    bool atomics_twice;   /* a broken device: an atomic is carried out again if its answer was lost */
} nic_faults;

/* Counted by the device, for tests and for people. */
typedef struct nic_counts {
    uint64_t requests, completions, errors, flushed, rings, bad_rings, overruns, retries;
    uint64_t busy_ns; /* for all completions together, from the ring after the queue was idle to the completion */
} nic_counts;

expar_status nic_open(const nic_faults *faults, nic **out);
/* Stops the thread, if there is one. Memory and queues may be freed afterwards. */
void nic_close(nic *n);
/* Any thread may add memory and queues while the device runs. Errors: EXPAR_ERR_ARGUMENT, with the number and what was
   expected; EXPAR_ERR_MEMORY. */
expar_status nic_add_memory(nic *n, const nic_memory *memory);
void nic_remove_memory(nic *n, uint32_t port, uint32_t key);
expar_status nic_add_queue(nic *n, const nic_queue *queue);
/* Requests of the queue that were not carried out are dropped. The device does not touch its memory afterwards. */
void nic_remove_queue(nic *n, uint32_t port, uint32_t qpn);
/* The rank of that port is gone: requests to it fail after retries. */
void nic_lose_port(nic *n, uint32_t port);
/* The device stops answering, or goes on. */
void nic_hold(nic *n, bool held);
/* Runs the device by a thread of its own, until nic_close. The thread yields the core for spin_ns without work, and for
   some turns at least, before it sleeps between its looks. */
expar_status nic_start(nic *n, int64_t spin_ns);
/* Without a thread: looks at all queues once. Returns true if something happened. */
bool nic_turn(nic *n);
nic_counts nic_counted(nic *n);

#endif

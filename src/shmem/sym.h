/* SPDX-License-Identifier: Apache-2.0 */
/* shmem: the symmetric-memory layer of one rank: heap, transports, waiting, barrier, failure.
 *
 * Called by group (which owns one), ep and exec; calls mem, net, boot and base. The prefix is sym_ because shmem_ belongs to
 * OpenSHMEM. Public calls (memory.h, rma.h) are thin: they check arguments and come here. */
#ifndef EXPAR_SHMEM_SYM_H
#define EXPAR_SHMEM_SYM_H

#include "boot/boot.h"
#include "mem/mem.h"
#include "net/transport.h"
#include <pthread.h>
#include <stdatomic.h>

/* ---- control page: the first bytes of every PE's heap (control.h has the offsets for tests) ----------------------- */

/* A PE's doorbell. The sleeper raises `asleep`, full fence, looks again at what it waits for, and sleeps on `rings`; the
   writer stores its flag, full fence, reads `asleep`, and if it is not 0 raises `rings` and wakes. One of the two always
   sees the other. Every sleep is bounded all the same, since raw stores through expar_ptr ring nothing. */
typedef struct sym_bell {
    _Alignas(64) _Atomic uint32_t asleep; /* sleepers: written by the PE's own threads, read by all writers */
    _Alignas(64) _Atomic uint32_t rings;  /* futex word: written by all, read by the PE's own sleepers */
} sym_bell;

#define SYM_BARRIER_ROUNDS 32
typedef struct sym_control {
    sym_bell bell;
    /* Dissemination barrier: word r is set to the barrier's epoch by the PE 2^r below (release), read by the owner
       (acquire). Never cleared: epochs only grow. */
    _Alignas(64) _Atomic uint64_t barrier[SYM_BARRIER_ROUNDS];
} sym_control;
/* The heap proper starts here; offsets given to users are never 0. */
#define SYM_CONTROL_BYTES 4096

/* ---- failure ---------------------------------------------------------------------------------------------------- */

typedef enum sym_failure_kind { SYM_SOUND = 0, SYM_PEER_DIED, SYM_PEER_LEFT, SYM_ABORTED } sym_failure_kind;

typedef struct sym {
    boot *boot; /* borrowed from the group */
    int32_t rank, size;
    const int32_t *nodes; /* [size], borrowed */
    int64_t timeout_ms;
    bool crowded;         /* more ranks than cores on this host: give the core away early */
    mem_region heap;
    transport **reach_map;    /* [size] transport that maps the PE, or NULL */
    transport **reach_rma;    /* [size] */
    transport **reach_atomic; /* [size] */
    transport *p2p;
    uint8_t **peers;          /* [size] where the PE's heap is mapped here, or NULL */
    mem_arena *arena;         /* of offsets from SYM_CONTROL_BYTES on; guarded by lock */
    pthread_mutex_t lock;
    uint64_t barrier_epoch;   /* own count; barriers are called by one thread of a rank at a time */
    /* kind << 32 | rank. Written once, by the monitor or by abort (compare-swap from 0, release); read by every wait. */
    _Atomic uint64_t failure;
} sym;

/* Collective. heap_bytes includes the control page. peer_heaps as in transport_ops.open (threads), else NULL; with threads
   `heap` is this rank's region, made by the group; else sym makes it. */
expar_status sym_create(boot *boot, const int32_t *nodes, int64_t timeout_ms, size_t heap_bytes,
                        const mem_region *heap, const mem_region *const *peer_heaps, sym **out);
void sym_destroy(sym *sym);

/* Records the first failure and wakes this PE's sleepers. Any thread. */
void sym_fail(sym *sym, sym_failure_kind kind, int32_t rank);
/* EXPAR_OK while sound; else EXPAR_ERR_PEER or EXPAR_ERR_ABORTED, with a text that names the rank and `what` was being done. */
expar_status sym_check(sym *sym, const char *what);

/* ---- addresses ----------------------------------------------------------------------------------------------------- */

/* Offset of a local address in the heap; false when [address, address + bytes) is not wholly in the heap proper. */
bool sym_offset(const sym *sym, const void *address, size_t bytes, uint64_t *offset);
/* pe's heap at offset, as mapped here; NULL where it is not mapped. */
static inline void *sym_at(const sym *sym, int32_t pe, uint64_t offset)
{
    return sym->peers[pe] ? sym->peers[pe] + offset : NULL;
}
/* Collective allocation behind expar_malloc; `what` names the call in error texts. */
expar_status sym_take(sym *sym, const char *what, uint64_t bytes, uint64_t alignment, uint64_t *offset);
expar_status sym_give(sym *sym, const char *what, uint64_t offset);

/* ---- waiting ------------------------------------------------------------------------------------------------------- */

/* Wakes pe if it sleeps. To be called after the store (release) of a flag that it may wait for. */
void sym_ring(sym *sym, int32_t pe);

/* A wait in progress, for conditions of any shape:
 *
 *     sym_rest rest = sym_rest_begin(sym, "dispatch: rows");
 *     expar_status status = EXPAR_OK;
 *     while (!ready(…) && (status = sym_rest_turn(&rest)) == EXPAR_OK) {}
 *     sym_rest_end(&rest);
 *
 * A turn spins, then yields, then arms the bell (after which the caller looks once more), then sleeps, bounded. A caller
 * that saw progress but must wait on calls sym_rest_progress, which starts over: the time-out counts from the last progress.
 * A turn fails with EXPAR_ERR_PEER or EXPAR_ERR_ABORTED when the group has failed, and with EXPAR_ERR_PEER (text "timed out")
 * when nothing happened for the group's time-out; the caller then adds who was missing (error_prefix). */
typedef struct sym_rest {
    sym *sym;
    const char *what;
    int64_t since_ns; /* 0 until the first clock reading */
    uint32_t turn;
    uint32_t rings;   /* value of the futex word when armed */
    bool armed;
    bool timed_out;   /* set when a turn failed by time-out */
} sym_rest;
sym_rest sym_rest_begin(sym *sym, const char *what);
expar_status sym_rest_turn(sym_rest *rest);
void sym_rest_progress(sym_rest *rest);
void sym_rest_end(sym_rest *rest);

/* Over the heap, all PEs mapped. quiet first. */
expar_status sym_barrier(sym *sym);

#endif

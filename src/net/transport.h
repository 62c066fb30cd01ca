/* SPDX-License-Identifier: Apache-2.0 */
/* net: transports, the ways by which one PE's memory is reached from another.
 *
 * Called by shmem only; calls mem (regions), boot (exchange of keys) and base. One folder a transport: p2p (mapped
 * memory) is the first; a network joins by filling the same table. Every implementation passes
 * tests/net/test_transport.c.
 *
 * Contract of the operations: `offset` is from the start of the heap, already checked against its size; pe is one that
 * `reach` named for that kind of operation; words are aligned. All operations may be called from any thread of the
 * rank. */
#ifndef EXPAR_NET_TRANSPORT_H
#define EXPAR_NET_TRANSPORT_H

#include "base/base.h"
#include "boot/boot.h"
#include "mem/mem.h"

/* How a transport reaches a PE; a set. */
typedef enum transport_reach {
    TRANSPORT_MAP = 1, /* loads and stores at map() */
    TRANSPORT_PUT = 2, /* put and signal */
    TRANSPORT_GET = 4,
    TRANSPORT_ATOMIC = 8
} transport_reach;

typedef enum transport_atomic_op {
    TRANSPORT_FETCH,
    TRANSPORT_SET,
    TRANSPORT_SWAP,
    TRANSPORT_COMPARE_SWAP,
    TRANSPORT_ADD
} transport_atomic_op;

typedef struct transport transport;

typedef struct transport_ops {
    const char *name;
    /* Makes this rank's end and exchanges what peers need to reach `heap` (collective over `boot`). `nodes[r]` is the
       node number of rank r: a transport that maps memory must not reach across nodes. threads: peer_heaps[r] is rank
       r's region in this same process; else NULL. */
    expar_status (*open)(boot *boot, const mem_region *heap, const int32_t *nodes, const mem_region *const *peer_heaps,
                         transport **out);
    unsigned (*reach)(const transport *self, int32_t pe);             /* set of transport_reach */
    void *(*map)(const transport *self, int32_t pe, uint64_t offset); /* NULL without TRANSPORT_MAP */
    /* Returns when source may be reused. */
    expar_status (*put)(transport *self, int32_t pe, uint64_t offset, const void *source, size_t bytes);
    /* Returns when the data is here. */
    expar_status (*get)(transport *self, int32_t pe, void *dest, uint64_t offset, size_t bytes);
    /* bytes: 4 or 8. operand/compare are taken from, and *old (may be NULL) is given in, the low bytes. */
    expar_status (*atomic)(transport *self, int32_t pe, uint64_t offset, size_t bytes, transport_atomic_op op,
                           uint64_t operand, uint64_t compare, uint64_t *old);
    expar_status (*fence)(transport *self); /* orders earlier operations before later ones, to each PE */
    expar_status (*quiet)(transport *self); /* all operations complete at their targets */
    void (*close)(transport *self);
} transport_ops;

struct transport {
    const transport_ops *ops;
};

extern const transport_ops transport_p2p;

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the software NIC: requests as they were decoded, and what carries them out. */
#ifndef EXPAR_NET_GDA_NIC_PARTS_H
#define EXPAR_NET_GDA_NIC_PARTS_H

#include "net/gda/nic/nic.h"

/* Why a request fails. The vendor's syndrome says which field was wrong. */
typedef struct nic_verdict {
    uint8_t syndrome; /* 0: it is well */
    uint8_t vendor;   /* nic_fault */
} nic_verdict;

typedef enum nic_fault {
    NIC_WRONG_INDEX = 1,
    NIC_WRONG_QPN,
    NIC_WRONG_LENGTH, /* ds */
    NIC_WRONG_OPCODE,
    NIC_WRONG_FLAGS,
    NIC_WRONG_RESERVED, /* a field that must be 0 */
    NIC_WRONG_BYTES,
    NIC_WRONG_ALIGNMENT,
    NIC_WRONG_KEY,
    NIC_WRONG_BOUNDS,
    NIC_WRONG_ACCESS,
    NIC_WRONG_RECORD,
    NIC_GONE,     /* the peer */
    NIC_INJECTED, /* nic_faults asked for it */
    NIC_NO_RECEIVE,
    NIC_OUT_OF_REACH /* a window has failed */
} nic_fault;

enum { NIC_OPCODE_DUMP = 0x23, NIC_BLOCK_BYTES = 64, NIC_MOST_INLINE = 28, NIC_CQE_WORDS = 16 };

typedef struct nic_request {
    uint8_t opcode, opmod, flags;
    uint32_t blocks;
    uint64_t remote, local;
    uint32_t rkey, lkey;
    uint32_t bytes;
    uint32_t immediate; /* big-endian */
    bool inlined;
    uint8_t data[NIC_MOST_INLINE];
    /* atomics */
    uint32_t word_bytes;
    uint64_t operand, compare, swap_mask, compare_mask;
} nic_request;

/* Decodes the request at `index` of the queue, whose blocks before `end` were rung (decode.c). */
nic_verdict nic_decode(const nic_queue *queue, uint64_t index, uint64_t end, nic_request *out);
bool nic_is_atomic(const nic_request *request);
bool nic_waits(const nic_request *request); /* its fence mode waits for earlier reads */
bool nic_reports(const nic_request *request);

/* Where bytes lie. */
typedef struct nic_place {
    void *at; /* NULL: nowhere */
    nic_window *window;
} nic_place;

/* Data that arrives later than the request that it belongs to. */
typedef struct nic_parcel {
    struct nic_parcel *next;
    nic_place dest;
    size_t bytes;
    uint8_t data[];
} nic_parcel;

/* A queue with the device's own state; only the device's thread touches it after nic_add_queue. */
typedef struct nic_pair {
    nic_queue plan;
    uint64_t next, end; /* index of the next request to carry out; end of those that were rung */
    uint64_t cq_count;  /* completions written */
    uint64_t receives_taken, receive_cq_count;
    int64_t rung_ns;     /* when the device saw the first ring for requests that it has not carried out yet */
    uint32_t wait_turns; /* before the next request is looked at */
    uint32_t attempts;   /* at the next request */
    bool is_waiting;     /* the next request has got its delay */
    bool failed;
    /* A CQE that was held back: the index, if holds. */
    bool holds;
    uint64_t held_index;
    uint8_t held_opcode;
    /* the answer to the atomic at `next`, in case it is sent again */
    bool answered;
    uint64_t answer;
    nic_parcel *reads, *writes, *rerouted; /* in the order of the requests */
} nic_pair;

/* Memory and random numbers of a device (perform.c). */
typedef struct nic_table {
    nic_memory *list;
    size_t count, space;
    uint32_t *lost; /* ports that are gone */
    size_t num_lost;
    nic_faults faults;
    uint64_t random;
} nic_table;

bool nic_chance(nic_table *table, uint32_t one_in);
uint32_t nic_random(nic_table *table, uint32_t below);
bool nic_is_lost(const nic_table *table, uint32_t port);
/* Carries the request out. */
nic_verdict nic_perform(nic_table *table, nic_pair *pair, const nic_request *request);
/* Delivers what is late. What is out of reach is lost. */
void nic_deliver(nic_parcel **list);
/* Frees what is late. */
void nic_drop(nic_parcel **list);
/* Copies to memory that other threads read: the last word is stored with release order. Returns false: it is out of
   reach. */
bool nic_store(nic_place dest, const void *source, size_t bytes);
/* Reads memory in which words may change meanwhile. */
bool nic_load(void *dest, nic_place source, size_t bytes);
/* Finds `bytes` bytes at an address; nowhere, with the reason in *fault. */
nic_place nic_find(const nic_table *table, uint32_t port, uint32_t key, uint64_t address, uint64_t bytes,
                   unsigned access, uint8_t *fault, unsigned *has);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Definitions that the files of this folder share. Private to shmem/copies. */
#ifndef EXPAR_SHMEM_COPIES_PARTS_H
#define EXPAR_SHMEM_COPIES_PARTS_H

#include "shmem/copies/copies.h"

#include <stddef.h>

/* ---- messages ---------------------------------------------------------------------------------------------------- */

/* Requests to one owner that have no answer yet. The next one travels while the owner carries one out. */
enum { MAIL_SLOTS = 2 };

typedef enum mail_kind { MAIL_PUT = 1, MAIL_GET, MAIL_CHANGE } mail_kind;

/* A message: a request, or its answer. The data stand right before it, so data and head are one put. */
typedef struct mail_head {
    /* request: the place in the owner's device heap */
    uint64_t offset, bytes;
    /* request: as in transport_request; answer to MAIL_CHANGE: the former word in `operand` */
    uint64_t operand, compare;
    /* request: a mail_kind and a transport_atomic_op */
    uint32_t kind, op;
    /* answer: an expar_status */
    int32_t status;
    uint32_t spare[3];
    /* The message's number in the upper 32 bits; each direction between two ranks counts from 1. Its sender stores it
       last, after all before it (transport_request.flagged); its receiver reads it and calls sym_behold. The slot's
       next message is MAIL_SLOTS later, so the number differs from what the slot had before. */
    _Atomic uint64_t flag;
} mail_head;

/* The parts of a rank's block that belong to one other rank: its requests and its answers, as they arrive, and the
   images from which this rank's own leave. */
typedef enum mail_area { MAIL_REQUESTS, MAIL_ANSWERS, MAIL_OWN_REQUESTS, MAIL_OWN_ANSWERS } mail_area;
enum { MAIL_AREAS = 4 };

/* ---- state ------------------------------------------------------------------------------------------------------- */

/* This rank's requests to one owner. */
typedef struct mail_peer {
    /* held through a whole operation, so that its messages follow each other */
    pthread_mutex_t lock;
    /* Requests that were sent, and those that have been answered. The thread that holds the lock changes them. A quiet
       reads `sent` without the lock, to pass over ranks that were sent nothing. Relaxed is enough, because the caller
       knows its own operations. */
    _Atomic uint64_t sent, answered;
    /* messages on their way from each slot; guarded by lock */
    transport_batch batches[MAIL_SLOTS];
    /* the first failure of a request for which no caller waited; guarded by lock */
    expar_status failed;
    /* a request was lost: no more can be sent; guarded by lock */
    bool broken;
} mail_peer;

/* Another rank's requests to this one; only the owner's thread touches it. */
typedef struct mail_client {
    uint64_t served, answered;
    /* answers on their way from each slot */
    transport_batch batches[MAIL_SLOTS];
} mail_client;

typedef struct copies {
    /* first: a transport of these operations is a copies */
    transport base;
    sym *sym;
    device_heap *device;
    pinned_heap *pinned;
    mem_copier *copier;
    /* EXPAR_STAGE: device memory of other ranks is reached through messages alone */
    bool stages;
    /* the block of messages in the pinned heap; the same on all ranks */
    uint64_t offset, slot_bytes;
    uint8_t *block;
    /* [size] */
    mail_peer *peers;
    mail_client *clients;
    /* Held while the copier's own lane is used, and while a word is changed: by the owner's thread, and by this rank's
       callers that change its own words. */
    pthread_mutex_t owner_lock;
    pthread_t owner;
    bool owner_runs;
    /* set when the owner's thread shall end (release), which that thread reads (acquire) */
    _Atomic bool stops;
} copies;

/* ---- places ------------------------------------------------------------------------------------------------------ */

/* Offset of the slot of message `number` in a rank's block. */
static inline uint64_t mail_slot(const copies *self, int32_t rank, mail_area area, uint64_t number)
{
    const uint64_t slot = ((uint64_t)rank * MAIL_AREAS + area) * MAIL_SLOTS + number % MAIL_SLOTS;
    return slot * self->slot_bytes;
}

static inline mail_head *mail_head_at(const copies *self, uint64_t slot)
{
    return (mail_head *)(void *)(self->block + slot + self->slot_bytes - sizeof(mail_head));
}

/* Bytes before the head that data take: the message stays aligned to words. */
static inline uint64_t mail_room(uint64_t bytes)
{
    return align_up(bytes, sizeof(uint64_t));
}

static inline mem_side mail_data(mail_head *head, uint64_t bytes)
{
    return (mem_side){.at = (uint8_t *)head - mail_room(bytes), .kind = MEM_PINNED};
}

/* The most data of a message. */
static inline uint64_t mail_most(const copies *self)
{
    return self->slot_bytes - sizeof(mail_head);
}

static inline mem_side copies_own(const copies *self, uint64_t offset)
{
    return (mem_side){.at = (void *)(uintptr_t)device_heap_at(self->device, offset), .kind = MEM_DEVICE};
}

/* ---- messages (message.c) ---------------------------------------------------------------------------------------- */

/* Returns whether the message with this number has arrived in the slot; then all of it can be read. */
bool mail_arrived(const copies *self, uint64_t slot, uint64_t number);
/* Fills the put of the message that stands in `area` of this rank's block, to `to` at the rank. */
transport_request mail_message(const copies *self, int32_t rank, mail_area area, mail_area to, uint64_t number);
/* The transport of messages to the rank; NULL: there is none. */
transport *mail_carrier(const copies *self, int32_t rank);

/* ---- requests (mail.c) ------------------------------------------------------------------------------------------- */

/* All three return once the source may be reused; with `waits`, when the owner has done it all. A get always does. */
expar_status mail_put(copies *self, int32_t pe, uint64_t offset, mem_side source, uint64_t bytes, bool waits);
expar_status mail_get(copies *self, int32_t pe, uint64_t offset, mem_side dest, uint64_t bytes);
/* change: an atomic; the former word comes to change->dest, if that is not NULL. */
expar_status mail_change(copies *self, const transport_request *change, bool waits);
/* Waits for the answers to all requests to pe. Reports a failure once. */
expar_status mail_settle(copies *self, int32_t pe);

/* ---- the owner (owner.c) ----------------------------------------------------------------------------------------- */

/* Changes a word of this rank's own device memory, in the way of requests of others. */
expar_status owner_change(copies *self, uint64_t offset, uint64_t bytes, const transport_request *change,
                          uint64_t *former);
expar_status owner_start(copies *self);
void owner_stop(copies *self);

/* ---- the transport (transport.c) --------------------------------------------------------------------------------- */

extern const transport_ops transport_copies;

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The wait registry: what a rank says of its own waits, for peers that ask (boot_ops.ask). */
#ifndef EXPAR_BOOT_REGISTRY_H
#define EXPAR_BOOT_REGISTRY_H

#include "boot/boot.h"
#include <pthread.h>

#define REGISTRY_ENDED   64 /* objects of which an end is kept; the oldest is dropped */
#define REGISTRY_OBJECTS 64 /* objects of one kind are told apart by their number modulo this */

/* How an operation of several ranks has ended on this rank. */
typedef struct note_ended {
    /* from its number on */
    boot_topic topic;
    expar_status status;
    /* 0; or the record is by boot_note_rejected, and so not for good: how many calls had been rejected by then. For
       collectives: since all last met, even after the record itself has been forgotten (status is EXPAR_OK). */
    uint32_t rejected;
    /* a failed wait noted it; its call will soon say how it ends */
    bool passing;
    /* About that wait, even after the call has said how it ends. `culprit` is the rank to blame; -1: not known.
       `awaited` is the rank for which it waited in a circle; -1: it was in none. `waited_in` is the topic of that
       wait. */
    int32_t culprit, awaited;
    boot_topic waited_in;
    char reason[BOOT_REASON_TEXT];
} note_ended;

/* The last call on an object. The calling thread writes it, the monitor reads it (among thread ranks: the thread that
   asks). Relaxed, because each word stands for itself. */
typedef struct note_call {
    /* thread_number; 0: none yet */
    _Atomic uint32_t thread;
    _Atomic uint64_t number;
    const char *_Atomic name;
    /* how many calls boot_note_rejected was told of, collectives excepted; the calling thread raises it */
    _Atomic uint32_t rejected;
} note_call;

struct boot_registry {
    pthread_mutex_t lock;
    /* Guarded by lock: */
    boot_wait *waits;
    note_ended ended[REGISTRY_ENDED];
    /* Number of records ever made. Written under lock. A thread that reads it without the lock (relaxed) only wants to
       know whether there is any. */
    _Atomic uint32_t num_ended;
    /* Not guarded by lock: */
    note_call calls[BOOT_KINDS][REGISTRY_OBJECTS];
    /* the last call on any object */
    note_call last;
    /* 0, or 1 + the first rank that this one gave up. Any thread of the rank writes it, once; read as the calls are. */
    _Atomic uint64_t blamed;
};

void registry_init(boot_registry *self);
void registry_destroy(boot_registry *self);
/* Adds a wait to the registry, or removes it. */
void registry_add(boot_registry *self, boot_wait *wait);
void registry_remove(boot_registry *self, boot_wait *wait);
/* Records that the wait has failed. That stands for the end of the call until the call records its own. */
void registry_failed(boot_registry *self, const boot_wait *wait, expar_status status, const char *reason);
/* Records that the wait's end breaks a circle: this rank comes no more to the topic in which it is awaited there. */
void registry_broke(boot_registry *self, const boot_wait *wait, expar_status status, const char *reason);
/* Returns for how long the wait had lasted when it last looked without success. */
int64_t registry_looked_for_ns(const boot_wait *wait);
/* The same, but 0 if the waiting thread has not looked recently because it was delayed: the awaited event may have
   happened. */
int64_t registry_waited_ns(const boot_wait *wait, int64_t timeout_ns);
/* A look is recent if it is not older than this. */
#define REGISTRY_FRESH_NS(timeout_ns) ((timeout_ns) / 4 * 3)
/* Returns how many collectives this rank has rejected in the topic since all last met there; 0 for other topics. */
uint16_t registry_rejected(boot_registry *self, const boot_topic *topic);
/* Returns the thread that made the last call on the topic's object. */
uint32_t registry_caller(const boot_registry *self, const boot_topic *topic);
/* Writes a text as "in expar_ep_combine: … (call 7 on buffer 1), waiting for rank 2". */
void registry_describe(const boot_registry *self, const boot_wait *wait, char *text, size_t bytes);
/* Returns the rank that boot_note_blamed has recorded; -1: none. */
int32_t registry_blamed(const boot_registry *self);
/* Fills in this rank's answer; timeout_ms is that of this rank. */
void registry_read(boot_registry *self, const boot_topic *topic, int64_t timeout_ms, boot_answer *out);

#endif

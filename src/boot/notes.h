/* SPDX-License-Identifier: Apache-2.0 */
/* notes: what a rank says of its own waits, for peers who ask (boot_ops.ask). */
#ifndef EXPAR_BOOT_NOTES_H
#define EXPAR_BOOT_NOTES_H

#include "boot/boot.h"
#include <pthread.h>

#define NOTES_ENDED   64 /* objects of which an end is kept; the oldest goes */
#define NOTES_OBJECTS 64 /* objects of one kind are told apart by their number modulo this */

/* How what a rank does together with others has ended on it. */
typedef struct note_ended {
    boot_topic topic; /* from its number on */
    expar_status status;
    /* 0; or by boot_note_refused, and so not for good: how many calls had been refused so by then. Of collectives since
       all last met, also where the note itself has been forgotten (status is EXPAR_OK). */
    uint32_t refused;
    bool passing; /* noted by a wait that has failed; its call says soon how it ends */
    /* Of that wait, also once the call has said how it ends: who is to blame (-1: nobody knows), and where it was in a
       circle, for whom it was, and in what (-1: it was in none). */
    int32_t culprit, awaited;
    boot_topic waited_in;
    char reason[BOOT_REASON_TEXT];
} note_ended;

/* The last call on an object. Each word stands by itself, so relaxed order is enough: written by whoever calls, read by
   the monitor (thread ranks: by whoever asks). */
typedef struct note_call {
    _Atomic uint32_t thread; /* thread_number; 0: none yet */
    _Atomic uint64_t number;
    const char *_Atomic name;
    _Atomic uint32_t refused; /* calls, by boot_note_refused, but for collectives; raised by whoever calls */
} note_call;

struct boot_notes {
    pthread_mutex_t lock;
    /* Guarded by lock: */
    boot_wait *waits;
    note_ended ended[NOTES_ENDED];
    /* That ever were. Written under lock; who reads it without (relaxed) only wants to know whether there is any. */
    _Atomic uint32_t num_ended;
    /* Not: */
    note_call calls[BOOT_KINDS][NOTES_OBJECTS];
    note_call last; /* of all */
    /* 0, or 1 + the first rank that this one gave up. Written once by any thread of the rank; read as the calls. */
    _Atomic uint64_t blamed;
};

void notes_init(boot_notes *self);
void notes_destroy(boot_notes *self);
/* Takes a wait up, or out. */
void notes_add(boot_notes *self, boot_wait *wait);
void notes_remove(boot_notes *self, boot_wait *wait);
/* The wait has failed, and what becomes of its call is not noted yet: until then that is how it ends. */
void notes_failed(boot_notes *self, const boot_wait *wait, expar_status status, const char *reason);
/* The same for good of the topic in which this rank is awaited in a circle, which this wait's end breaks. */
void notes_broke(boot_notes *self, const boot_wait *wait, expar_status status, const char *reason);
/* For how long it had been looked for in vain when it was last looked at. */
int64_t notes_looked_for_ns(const boot_wait *wait);
/* The same; 0 where who waits has not looked of late, since it was held up: what it waits for may have come. */
int64_t notes_waited_ns(const boot_wait *wait, int64_t timeout_ns);
/* How long ago is of late. */
#define NOTES_FRESH_NS(timeout_ns) ((timeout_ns) / 4 * 3)
/* How many collectives this rank has refused in the topic since all last met there; of others 0. */
uint16_t notes_refused(boot_notes *self, const boot_topic *topic);
/* The thread that made the last call on the topic's object. */
uint32_t notes_caller(const boot_notes *self, const boot_topic *topic);
/* "in expar_ep_combine: offers (call 7 on buffer 1), waiting for rank 2" */
void notes_describe(const boot_notes *self, const boot_wait *wait, char *text, size_t bytes);
/* Whom boot_note_blamed has noted; -1: nobody. */
int32_t notes_blamed(const boot_notes *self);
/* Fills in what the rank answers, whose time-out it is. */
void notes_read(boot_notes *self, const boot_topic *topic, int64_t timeout_ms, boot_answer *out);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* ask: questions and answers between monitors: how a rank stands to a call. Also the first death, or the first rank
 * given up, which every rank tells all others.
 *
 * Every pair of ranks has a second control socket for this, its line. On the first socket an answer would have to wait
 * for a frame of a collective. If the rank has not come to that collective, the answer is needed most. A waiting thread
 * asks on the line itself. The monitor reads the lines, answers from the wait registry (registry.h), and passes answers
 * to the threads that asked. So a rank answers whatever its other threads do, unless it is stopped or cut off.
 *
 * A rank learns of a death by a closed socket or from another rank. It first tells all ranks on the lines, because its
 * caller may end the process as soon as it knows. So a rank that sees a socket close reads that rank's line to its end.
 * There it finds why the rank has gone, if it was because of another.
 *
 * A rank that gives up a silent rank also tells all ranks first. The silent rank may be alive, and silent only to the
 * teller. So the others keep the message, and use it only once the teller has gone. */
#ifndef EXPAR_BOOT_SOCKETS_ASK_H
#define EXPAR_BOOT_SOCKETS_ASK_H

#include "boot/registry.h"

#define ASK_MARK 0x45584100u
typedef enum ask_kind {
    ASK_QUESTION = 1,
    ASK_ANSWER,
    ASK_DEATH, /* `rank` has died, before any other that the sender knows of */
    ASK_BYE,   /* the sender has left in order; nothing follows */
    ASK_BLAME  /* the sender has given up `rank`, which is silent, or has heard so from a rank that left for it */
} ask_kind;

/* A record on a line. */
typedef struct ask_record {
    /* ASK_MARK | ask_kind */
    uint32_t mark;
    /* number of the question, equal in its answer; else 0 */
    uint32_t serial;
    /* of a question: its subject; of an answer: the topic of the wait; else 0 */
    boot_topic topic;
    /* A question, death or blame: 0 and -1, except for the rank that died or is blamed. An answer: as in
       boot_answer. */
    uint32_t waits, ended;
    int32_t rank, blamed;
    int64_t waited_ns;
    char doing[BOOT_DOING_TEXT], reason[BOOT_REASON_TEXT];
} ask_record;

/* Returns whether what arrived can be a record of a group of `size` ranks. */
bool ask_record_check(const ask_record *record, int32_t size);

typedef struct asker asker;

/* lines: [size] sockets, -1 for this rank itself. The caller keeps them, and the boot, whose wait registry is read. */
expar_status ask_open(const boot *self, const int *lines, asker **out);
void ask_close(asker *self);
/* Reads what has arrived from a peer. False: nothing more will come. Any thread. */
bool ask_hear(asker *self, int32_t peer);
/* Reads everything that a peer that is gone has said. A network may close its line later than its other socket, so this
   waits for the end of the line until the deadline. */
void ask_hear_out(asker *self, int32_t peer, int64_t deadline_ns);
/* This rank has seen the death of another: tells all ranks, unless it knows of an earlier death. Returns the first one.
   Any thread. */
int32_t ask_tell_death(asker *self, int32_t rank);
/* Returns the first death that this rank has seen or was told of; -1: none. Any thread. */
int32_t ask_first_death(asker *self);
/* This rank has given up another one: tells all ranks. Any thread. */
void ask_tell_blame(asker *self, int32_t rank);
/* Returns the rank that the peer first said it has given up; -1: none. Any thread. */
int32_t ask_blame_of(asker *self, int32_t peer);
/* Tells all ranks that this one leaves, and closes its side of the lines. Any thread. */
void ask_say_bye(asker *self);
/* Returns whether the peer has said so. Any thread. */
bool ask_heard_bye(asker *self, int32_t peer);
/* Implements boot_ops.ask. */
void ask_peers(asker *self, const boot_topic *topic, boot_answer *answers, int64_t wait_ns);

#endif

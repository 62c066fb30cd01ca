/* SPDX-License-Identifier: Apache-2.0 */
/* ask: how a rank stands to a call, asked and answered between monitors; and who died first or is given up, told by all
 * to all.
 *
 * Every pair of ranks has a second control socket for this, its line: on the first one an answer would have to wait
 * behind a frame whose collective the rank has not come to, which is when it matters. Whoever waits asks on the line
 * itself; the monitor reads the lines, answers from the notes (notes.h), and hands answers to who asked. So a rank
 * answers whatever its other threads do, unless it is stopped or cut off.
 *
 * Who learns of a death, by a closed socket or by being told, tells everybody on the lines before it does anything
 * else: its caller may end the process as soon as it knows. So whoever sees a socket close reads that rank's line to
 * its end, and finds there why the rank has gone, if it was because of another.
 *
 * Who gives a silent rank up tells everybody likewise, before it does anything else. That rank may be alive, and silent
 * to the teller alone: so the others keep what was told, and look at it once the teller has gone. */
#ifndef EXPAR_BOOT_SOCKETS_ASK_H
#define EXPAR_BOOT_SOCKETS_ASK_H

#include "boot/notes.h"

#define ASK_MARK 0x45584100u
typedef enum ask_kind {
    ASK_QUESTION = 1,
    ASK_ANSWER,
    ASK_DEATH, /* `rank` has died, before any other that the sender knows of */
    ASK_BYE,   /* the sender has left, of its own accord; nothing follows */
    ASK_BLAME  /* the sender has given `rank` up, which is silent, or has heard of that from one that went for it */
} ask_kind;

/* All that travels on a line. */
typedef struct ask_record {
    uint32_t mark;    /* ASK_MARK | ask_kind */
    uint32_t serial;  /* of the question; its answer has the same; else 0 */
    boot_topic topic; /* a question: what it is about; an answer: of the wait; else 0 */
    /* A question, death or blame: 0 and -1 but for the rank that died or is blamed. An answer: as boot_answer. */
    uint32_t waits, ended;
    int32_t rank, blamed;
    int64_t waited_ns;
    char doing[BOOT_DOING_TEXT], reason[BOOT_REASON_TEXT];
} ask_record;

/* Whether what came can be a record of a group of `size` ranks. */
bool ask_record_check(const ask_record *record, int32_t size);

typedef struct asker asker;

/* lines: [size] sockets, -1 for this rank itself; they and the boot, whose notes are read, stay the caller's. */
expar_status ask_open(const boot *self, const int *lines, asker **out);
void ask_close(asker *self);
/* Takes what came from a peer. False: nothing more will. Any thread. */
bool ask_hear(asker *self, int32_t peer);
/* The same of a peer that is gone, all that it has said: a network may bring the end of its line later than that of the
   other socket, which is waited for until the deadline. */
void ask_hear_out(asker *self, int32_t peer, int64_t deadline_ns);
/* This rank has seen the death of another: unless it knows of one before, tells all. Returns the first. Any thread. */
int32_t ask_tell_death(asker *self, int32_t rank);
/* The first death that this rank has seen or was told of; -1: none. Any thread. */
int32_t ask_first_death(asker *self);
/* This rank has given another one up: tells all. Any thread. */
void ask_tell_blame(asker *self, int32_t rank);
/* Whom the peer was first to say that it has given up; -1: nobody. Any thread. */
int32_t ask_blame_of(asker *self, int32_t peer);
/* Tells all that this rank leaves, and closes its side of the lines. Any thread. */
void ask_say_bye(asker *self);
/* The peer has told so. Any thread. */
bool ask_heard_bye(asker *self, int32_t peer);
/* As boot_ops.ask. */
void ask_peers(asker *self, const boot_topic *topic, boot_answer *answers, int64_t wait_ns);

#endif

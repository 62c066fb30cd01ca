/* SPDX-License-Identifier: Apache-2.0 */
/* ask: what a rank waits for, asked and answered between monitors.
 *
 * Every pair of ranks has a second control socket for this, its line: on the first one an answer would have to wait
 * behind a frame whose collective the rank has not come to, which is when it matters. Whoever waits asks on the line
 * itself; the monitor reads the lines, answers from the notes (notes.h), and hands answers to who asked. So a rank
 * answers whatever its other threads do, unless it is stopped or cut off. */
#ifndef EXPAR_BOOT_ASK_H
#define EXPAR_BOOT_ASK_H

#include "boot/notes.h"

#define ASK_MARK 0x45584100u
typedef enum ask_kind { ASK_QUESTION = 1, ASK_ANSWER } ask_kind;

/* All that travels on a line. */
typedef struct ask_record {
    uint32_t mark;   /* ASK_MARK | ask_kind */
    uint32_t serial; /* of the question; its answer has the same */
    int32_t subject;
    uint32_t doing; /* boot_doing; in a question BOOT_IDLE */
    int32_t rank;   /* that it is about, or -1 */
    int32_t blamed; /* or -1 */
} ask_record;

/* Whether what came can be a record of a group of `size` ranks. */
bool ask_record_check(const ask_record *record, int32_t size);

typedef struct ask_desk ask_desk;

/* lines: [size] sockets, -1 for this rank itself; they and the notes stay the caller's. */
expar_status ask_open(int32_t size, const int *lines, const boot_notes *notes, ask_desk **out);
void ask_close(ask_desk *self);
/* The monitor's: takes what came from a peer. False: nothing more will. */
bool ask_hear(ask_desk *self, int32_t peer);
/* As boot_ops.ask. */
void ask_peers(ask_desk *self, int32_t subject, boot_answer *answers, int64_t wait_ns);

#endif

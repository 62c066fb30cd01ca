/* SPDX-License-Identifier: Apache-2.0 */
/* Histories: calls of low-latency mode in a given order of their beginnings and ends over all ranks, with one of them
 * held between two steps of the protocol.
 *
 * The calls, one word each: D, and to which rank the tokens go: D1 to the one after their own, D2 to the second after,
 * D0 to any. Or C and the number of the dispatch whose handle it uses. After a colon stands how the call ends on each
 * rank: '.' well, A rejected, R told of another's rejection, M mismatched, S third of its kind. "D0:.. C0:RA"
 *
 * The deeds, one word each: the rank; s (starts) or e (ends); the call. Then, in this order: h, with a hook; +, the
 * next deed may begin as soon as this rank has gone on for a while, too. Last @, the rank stops at a step that the
 * player chooses until the next w has passed. "1w": rank 1 goes on for a while. "0s0h+@ 1s0 1w 0e0" */
#ifndef TESTS_EP_LOW_LATENCY_HISTORY_H
#define TESTS_EP_LOW_LATENCY_HISTORY_H

#include "ep/low_latency/script.h"

#define HISTORY_MAX_RANKS 3

typedef struct history {
    const char *name;
    int32_t ranks;
    const char *calls, *deeds;
} history;

/* Each rank that is to stop does so at its `stop`-th step; 0: does not. True when all results were right. */
bool history_trial(const history *h, int32_t stop);

#endif

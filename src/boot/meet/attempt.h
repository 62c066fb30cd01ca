/* SPDX-License-Identifier: Apache-2.0 */
/* attempt: one try to form a group at the rendezvous.
 *
 *   greeting of each rank  ◄─►  welcome
 *   all here: table to all ──►  "stands" from each
 *   all stand: go to all        the next try may start
 *
 * Any failure ends the try for all ranks with the same result: a rank of another version, ranks that disagree, a rank
 * that dies, a time-out. A rank of the failed try that comes only afterwards is told the same result, for a short
 * while. A rank that comes a second time starts the next try. */
#ifndef EXPAR_BOOT_MEET_ATTEMPT_H
#define EXPAR_BOOT_MEET_ATTEMPT_H

#include "boot/meet/client.h"

/* The state that is kept of the last failed try. */
typedef struct attempt_failure {
    handshake_verdict verdict;
    /* until then late ranks are told; 0: nothing to tell */
    int64_t until_ns;
    /* size of the group, and the size that the rejected rank gave, which may differ; ranks of both sizes belong to this
       try */
    int32_t size, culprit_size;
    /* number of processes that were told; when all were, nothing is left to tell */
    int32_t num_told;
    /* ranks that were told */
    bool told[BOOT_MAX_RANKS];
} attempt_failure;

typedef struct attempt {
    /* 0: no try is running */
    int32_t size;
    /* the greeting with which the others must agree */
    handshake first;
    /* [size] */
    handshake *handshakes;
    /* [size] NULL: has not come */
    client **members;
    /* [size] */
    bool *came;
    /* [size] its control sockets stand */
    bool *stands;
    int32_t num_came, num_standing;
    /* the earliest deadline of the ranks that wait */
    int64_t deadline_ns;
    attempt_failure failure;
} attempt;

/* Reads what has come from a client, and handles its frames. One may end the try, for this client or for all. Returns
   false if the client must be dropped. */
bool attempt_serve(attempt *self, client *from);
/* Call this when a client's connection is gone. */
void attempt_lost(attempt *self, client *member);
/* Ends the try when its time is over. */
void attempt_check_time(attempt *self, int64_t now_ns);
/* Returns INT64_MAX if there is none. */
int64_t attempt_deadline_ns(const attempt *self);
/* Ends the try because the rendezvous closes: the ranks are told to come again. */
void attempt_close(attempt *self);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* attempt: one try to form a group at the rendezvous.
 *
 *   hello from each rank   ◄─►  welcome
 *   all here: table to all ──►  "stands" from each
 *   all stand: go to all        the next try may start
 *
 * Whatever goes wrong on the way (a rank of another version, ranks that disagree, one that dies, time) ends the try for
 * all with the same verdict. A rank of the failed try that comes only after that is told the verdict too, for a short
 * while; one that comes a second time starts the next try. */
#ifndef EXPAR_BOOT_MEET_ATTEMPT_H
#define EXPAR_BOOT_MEET_ATTEMPT_H

#include "boot/meet/client.h"

/* What stays of the last try that failed. */
typedef struct attempt_failure {
    hello_verdict verdict;
    int64_t until_ns;           /* 0: nothing to tell */
    int32_t size, culprit_size; /* of the group; of the rank that was refused, which may differ: both are of this try */
    int32_t num_told;           /* processes that know; all of them: nothing is left to tell */
    bool told[BOOT_MAX_RANKS];  /* ranks that know */
} attempt_failure;

typedef struct attempt {
    int32_t size;     /* 0: no try is running */
    hello first;      /* what the others must agree with */
    hello *hellos;    /* [size] */
    client **members; /* [size] NULL: has not come */
    bool *came;       /* [size] */
    bool *stands;     /* [size] its control sockets stand */
    int32_t num_came, num_standing;
    int64_t deadline_ns; /* the earliest of those that wait */
    attempt_failure failure;
} attempt;

/* A frame from a client that is known. It may end the try, for this client or for all. False: the frame
   is out of place. */
bool attempt_frame(attempt *self, client *from);
/* A client's connection is gone. */
void attempt_lost(attempt *self, client *member);
/* Ends the try when its time is over. */
void attempt_check_time(attempt *self, int64_t now_ns);
/* INT64_MAX: none. */
int64_t attempt_deadline_ns(const attempt *self);
/* Ends the try because the rendezvous closes: the ranks are told to come again. */
void attempt_close(attempt *self);

#endif

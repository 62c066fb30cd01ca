/* SPDX-License-Identifier: Apache-2.0 */
/* A network of its own for each test of a program, and ranks on it whose progress the test sees. */
#ifndef TESTS_NETNS_STAGE_H
#define TESTS_NETNS_STAGE_H

#include "ep/harness/check.h"
#include "ep/harness/ranks.h"
#include "netns/netns.h"
#include <stdatomic.h>

#define STAGE_RANKS 4 /* at most */

typedef struct stage {
    netns net;
    /* In memory that the test shares with its ranks. Raised by the ranks, read by the test, which acts when enough has
       happened; relaxed: nothing else is told by them. */
    _Atomic int32_t steps, armed; /* armed: ranks that wait no longer than a test's own short time-out */
    _Atomic bool held;            /* ranks wait in stage_hold; set by the test before they start, cleared by it */
    _Atomic int32_t through;      /* ranks in stage_part; raised and read by them */
    int32_t number;               /* for bodies; set before the ranks start */
} stage;

/* cmocka's set-up, with two hosts or four, and tear-down; *state is the stage. */
int stage_set_up(void **state);
int stage_set_up_four(void **state);
int stage_tear_down(void **state);

/* Ranks of one group, their id served on host 0. */
typedef struct stage_ranks {
    ranks_host host;
    int32_t size;
    pid_t pids[STAGE_RANKS];
} stage_ranks;
void stage_start(stage *self, const ranks_plan *plan, ranks_body body, stage_ranks *out);
/* Waits until the ranks have raised it that far. */
void stage_await(const _Atomic int32_t *counter, int32_t count);
/* For bodies: waits until the test lets go. */
void stage_hold(const stage *self);
/* For bodies: waits until all ranks are here, without the network; false: some never came. */
bool stage_part(stage *self, int32_t size);
/* All have ended, in time and with no check failed. */
void stage_finish(stage_ranks *ranks);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* A network of its own for each test of a program, and ranks on it whose progress the test sees. */
#ifndef TESTS_NETNS_STAGE_H
#define TESTS_NETNS_STAGE_H

#include "ep/check.h"
#include "ep/ranks.h"
#include "netns/netns.h"
#include <stdatomic.h>

#define STAGE_RANKS 4 /* at most */

typedef struct stage {
    netns net;
    /* In memory that the test shares with its ranks. Written by the ranks, read by the test, which acts when enough has
       happened; relaxed: nothing else is told by it. */
    _Atomic int32_t steps;
    _Atomic bool held; /* rank 0 goes no further; set by the test before the ranks start, cleared by it (relaxed) */
    _Atomic int32_t through; /* ranks that need the others no more; raised by each once, read by all (relaxed) */
    int32_t number;          /* for bodies; set before the ranks start */
} stage;

/* cmocka's set-up and tear-down; *state is the stage. */
int stage_set_up(void **state);
int stage_tear_down(void **state);

/* Ranks of one group, their id served on host 0. */
typedef struct stage_ranks {
    ranks_host host;
    int32_t size;
    pid_t pids[STAGE_RANKS];
} stage_ranks;
void stage_start(stage *self, const ranks_plan *plan, ranks_body body, stage_ranks *out);
/* Waits until the ranks have made so many steps. */
void stage_await(const stage *self, int32_t steps);
/* For bodies: waits until the test lets go. */
void stage_hold(const stage *self);
/* For bodies: waits until all ranks are here, without the network; false: some never came. */
bool stage_part(stage *self, int32_t size);
/* All have ended, in time and with no check failed. */
void stage_finish(stage_ranks *ranks);

#endif

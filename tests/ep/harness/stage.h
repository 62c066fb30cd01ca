/* SPDX-License-Identifier: Apache-2.0 */
/* A stage: a group with one EP buffer and one symmetric area, for tests that play by hand. */
#ifndef TESTS_EP_HARNESS_STAGE_H
#define TESTS_EP_HARNESS_STAGE_H

#include "ep/harness/ranks.h"
#include "ep/harness/trial.h"

typedef struct stage {
    expar_group *group;
    expar_ep *ep;
    int32_t rank;
    trial_area area;
} stage;

typedef struct stage_plan {
    ranks_plan ranks;
    expar_ep_config config;
    size_t area_bytes;
    size_t spare_heap_bytes; /* for what the body makes itself */
} stage_plan;

/* Sizes for this traffic and no more; an ample pool. */
stage_plan stage_plan_for(const traffic *t, ranks_kind kind);

typedef void (*stage_body)(stage *s, void *shared);
/* Sets the stage on all ranks, runs, and clears it. True when no check failed. */
bool stage_run(const stage_plan *plan, stage_body body, void *shared);

/* Dispatch and combine by one path, both against the oracle; rows in the library's memory, or, for a direct combine, in
   the area. */
bool stage_round_trip(stage *s, const traffic *t, const answers *a, expar_ep_path path);
/* Process ranks that fit a machine: on a GPU each has a context of its own. */
#ifndef STAGE_MOST_PROCESSES
#define STAGE_MOST_PROCESSES 64
#endif

/* Ranks as threads, or as processes when the program's first argument says so. */
ranks_kind stage_kind(int argc, char **argv);

#endif

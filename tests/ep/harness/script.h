/* SPDX-License-Identifier: Apache-2.0 */
/* Scripts: random sequences of dispatches, repeated dispatches and combines on one buffer, several of them alive at
 * once.
 *
 * A script is drawn from a seed by one thread; then all ranks play it. */
#ifndef TESTS_EP_HARNESS_SCRIPT_H
#define TESTS_EP_HARNESS_SCRIPT_H

#include "ep/harness/ranks.h"
#include "ep/harness/trial.h"

/* Dispatches that may be alive at a time. */
#define SCRIPT_SLOTS 3

typedef enum script_kind {
    SCRIPT_DISPATCH, /* a new routing into the slot, in place of what was there */
    SCRIPT_REPEAT,   /* the slot's routing with new rows */
    SCRIPT_COMBINE,  /* answers to the slot's rows */
    SCRIPT_FORGET    /* frees the slot's first output, keeps its handle */
} script_kind;

typedef struct script_op {
    script_kind kind;
    int32_t slot;
    traffic *traffic; /* of dispatch and repeat: this op's own; of combine: the slot's */
    answers *answers;
    trial_choice *choices; /* [N] */
} script_op;

typedef struct script {
    uint64_t seed;
    ranks_plan ranks;
    expar_ep_config config;
    int32_t *threads; /* [N] worker threads of each rank */
    size_t area_bytes;
    bool ample_pool;
    int64_t num_ops;
    script_op *ops;
} script;

/* On such ranks; size 0: so many as are drawn. */
script *script_make_on(uint64_t seed, const ranks_plan *ranks, int64_t num_ops);
script *script_make(uint64_t seed, ranks_kind kind, int64_t num_ops);
/* Its buffer is made without the limits that its calls keep to. */
void script_forget_limits(script *s);
/* Runs it on its ranks, describes it in one line where that fails, and frees it. */
bool script_run(script *s);
/* The body of its ranks; shared is the script. */
void script_trial(expar_group *group, void *shared);

#endif

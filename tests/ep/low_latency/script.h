/* SPDX-License-Identifier: Apache-2.0 */
/* Scripts of low-latency mode: random sequences of dispatches and combines on one buffer, with calls of normal mode
 * between. Up to two of each kind are open on a rank, ended in any order. If wanted, there are calls that one rank gets
 * wrong.
 *
 * A script is drawn from a seed by one thread: for each rank which call it starts and which it ends, and how each must
 * end. Then all ranks play it. */
#ifndef TESTS_EP_LOW_LATENCY_SCRIPT_H
#define TESTS_EP_LOW_LATENCY_SCRIPT_H

#include "ep/harness/ranks.h"
#include "ep/harness/trial.h"
#include "ep/low_latency/trial.h"

/* Dispatches whose handles may be alive at a time. */
#define LOWLAT_SLOTS 3

/* One rank's error. */
typedef enum lowlat_trouble {
    LOWLAT_WELL,
    LOWLAT_REJECTED, /* an argument that it sees itself */
    LOWLAT_WRONG,    /* an index out of range; of dispatches */
    LOWLAT_MISMATCH, /* another form than the others' */
    LOWLAT_PENDING   /* ranks that have the call two before still open: EXPAR_ERR_STATE */
} lowlat_trouble;

typedef enum lowlat_kind { LOWLAT_DISPATCH, LOWLAT_COMBINE, LOWLAT_NORMAL } lowlat_kind;

/* One call of all ranks. */
typedef struct lowlat_op {
    lowlat_kind kind;
    int32_t slot;
    lowlat_traffic *traffic; /* of a dispatch: this op's own; of a combine: the slot's */
    lowlat_answers *answers;
    traffic *normal;
    answers *normal_answers;
    lowlat_trouble trouble;
    int32_t culprit;        /* the rank that is wrong */
    int32_t manner;         /* of being wrong */
    int32_t source;         /* of a combine: the op whose handle it uses */
    lowlat_choice *choices; /* [N] */
    expar_status *statuses; /* [N] how the call ends */
} lowlat_op;

/* A rank's next step. */
typedef enum lowlat_deed { LOWLAT_START, LOWLAT_END, LOWLAT_FORGET } lowlat_deed;
typedef struct lowlat_step {
    lowlat_deed deed;
    int32_t op;
} lowlat_step;

typedef struct lowlat_script {
    uint64_t seed;
    ranks_plan ranks;
    expar_ll_config config;
    bool with_trouble, with_normal;
    int32_t num_ops;
    lowlat_op *ops;
    lowlat_step **steps; /* [N] */
    int32_t *num_steps;  /* [N] */
    bool leaves_hooks;   /* some are never called */
    /* Called on each rank once it has its buffer; may be NULL. */
    void (*prepare)(void *context, expar_ll *ll, int32_t rank);
    void *prepare_context;
    /* Called by each rank before and after each of its steps, and with step -1 when one went wrong; may be NULL. */
    void (*around)(void *context, int32_t rank, int32_t step, bool begins);
    void *around_context;
} lowlat_script;

typedef struct lowlat_script_plan {
    ranks_kind kind;
    int32_t num_ranks; /* 0: drawn */
    int32_t num_ops;
    bool with_trouble;
    bool with_normal;
} lowlat_script_plan;

lowlat_script *lowlat_script_make(uint64_t seed, const lowlat_script_plan *plan);
void lowlat_script_free(lowlat_script *s);
/* A line on what it is about, and one for each op. */
void lowlat_script_print(const lowlat_script *s);
/* The body of its ranks; shared is the script. */
void lowlat_script_trial(expar_group *group, void *shared);

#endif

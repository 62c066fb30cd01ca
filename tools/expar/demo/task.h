/* SPDX-License-Identifier: Apache-2.0 */
/* The work of a run of the demo: the same on every rank, known and checked before any rank starts. */
#ifndef EXPAR_DEMO_TASK_H
#define EXPAR_DEMO_TASK_H

#include "prompts.h"
#include "sequence.h"
#include <expar/ep.h>

typedef struct demo_task {
    int32_t ranks;
    int32_t nodes; /* the nodes of sums: as asked for (0: one), or those of the group */
    int32_t bytes; /* new bytes of each text */
    expar_ep_path path;
    const compute_kind *kind; /* where the model runs */
    bool low_latency;         /* decode is in low-latency mode; prefill never is */
    bool json;
    char directory[4096]; /* of the model's files */
    model_config config;
    prompt_list prompts; /* prompt i is rank i % ranks's */
} demo_task;

/* Finds the model, and checks its files, the ranks and the prompts (the shipped ones when there are none yet). With
   directory NULL it looks in the source tree, then where the program is installed. */
bool demo_task_prepare(demo_task *task, const char *directory, demo_error *error);
void demo_task_free(demo_task *task);

/* Returns the number of prompts of a rank. */
int32_t demo_task_texts_of(const demo_task *task, int32_t rank);
/* Makes sequences of c from the prompts first, first + step, …. */
bool demo_task_sequences(const demo_task *task, compute *c, int32_t first, int32_t step, sequence_list *out,
                         demo_error *error);

#endif

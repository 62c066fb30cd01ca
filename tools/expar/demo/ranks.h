/* SPDX-License-Identifier: Apache-2.0 */
/* The parallel run: what every rank of the group does, and what it tells rank 0. */
#ifndef EXPAR_DEMO_RANKS_H
#define EXPAR_DEMO_RANKS_H

#include "generate.h"
#include "results.h"

/* Loads this rank's share of the model, generates its texts together with the others, and gathers all texts, loads and
   counts in *results (of demo_results_create) on every rank. Collective; the group must have task->ranks ranks.
   listener (may be NULL) hears this rank's own texts grow.
   A failure that all ranks learn of has a text on rank 0 only. */
bool demo_ranks_run(expar_group *group, const demo_task *task, generate_listener *listener, void *context,
                    demo_results *results, demo_error *error);

#endif

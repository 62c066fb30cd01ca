/* SPDX-License-Identifier: Apache-2.0 */
/* ranks: the parallel run of every rank, and the report of each to rank 0. */
#ifndef EXPAR_DEMO_RANKS_H
#define EXPAR_DEMO_RANKS_H

#include "generate.h"
#include "results.h"

/* Loads this rank's share of the model, and generates its texts together with the other ranks. It gathers all texts,
   loads and counts in *results (from demo_results_create) on every rank. Collective; the group must have task->ranks
   ranks. listener (may be NULL) is called for the bytes of this rank's own texts. If all ranks know of a failure, only
   rank 0 has a text of it. */
bool demo_ranks_run(expar_group *group, const demo_task *task, generate_listener *listener, void *context,
                    demo_results *results, demo_error *error);

#endif

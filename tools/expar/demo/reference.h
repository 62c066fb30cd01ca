/* SPDX-License-Identifier: Apache-2.0 */
/* The single-rank reference: the same prompts through a model that holds all experts, without group or dispatch. */
#ifndef EXPAR_DEMO_REFERENCE_H
#define EXPAR_DEMO_REFERENCE_H

#include "results.h"

/* Computes the reference of all prompts. It records in *results where its texts differ from the run's, and from the
   shipped ones.
*/
bool demo_reference_compare(const demo_task *task, demo_results *results, demo_error *error);

#endif

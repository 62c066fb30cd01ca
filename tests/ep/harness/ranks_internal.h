/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by ranks.c and ranks_process.c. */
#ifndef TESTS_EP_HARNESS_RANKS_INTERNAL_H
#define TESTS_EP_HARNESS_RANKS_INTERNAL_H

#include "ep/harness/ranks.h"

expar_group_options ranks_options(const ranks_plan *plan);
/* The body, the end of the group, and what comes after it; true when no check failed. */
bool ranks_carry_out(const ranks_plan *plan, expar_group *group, ranks_body body, void *shared);
bool ranks_run_processes(const ranks_plan *plan, ranks_body body, void *shared);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks as threads of this process. */
#ifndef EXPAR_DEMO_RANK_THREADS_H
#define EXPAR_DEMO_RANK_THREADS_H

#include "failure.h"
#include <expar/group.h>

/* The work of one rank; leaves the group. Returns its exit code. */
typedef int rank_body(expar_group *group, void *context);

/* Makes a group of `ranks` threads, as so many nodes, each of which runs `member`. Returns 0 if all did, else the first
   exit code that is not 0. An error of this function itself goes to *error. */
int rank_threads_run(int32_t ranks, int32_t nodes, rank_body *member, void *context, demo_error *error);

#endif

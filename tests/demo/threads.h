/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a function as every rank of a group of threads. */
#ifndef TESTS_DEMO_THREADS_H
#define TESTS_DEMO_THREADS_H

#include <expar/group.h>

/* The work of one rank. It must destroy nothing but what it made, and use no assertions: these belong to the first
   thread. */
typedef void rank_function(expar_group *group, void *context);

/* Makes a group of `ranks` threads, runs, destroys the group. Fails the running test when the group cannot be made or
 * left. */
void threads_run(int32_t ranks, rank_function *function, void *context);

#endif

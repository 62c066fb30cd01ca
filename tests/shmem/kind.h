/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of this folder run on thread ranks, or with the argument `processes` on process ranks. */
#ifndef TESTS_SHMEM_KIND_H
#define TESTS_SHMEM_KIND_H

#include "ep/check.h"
#include "ep/ranks.h"
#include "group/group.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static ranks_kind kind_of_ranks = RANKS_THREADS;

static inline void kind_read(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "processes") == 0) kind_of_ranks = RANKS_PROCESSES;
}

/* Runs the body on `size` ranks with the other members of *plan as given. */
static inline void kind_run(ranks_plan plan, int32_t size, ranks_body body)
{
    plan.kind = kind_of_ranks;
    plan.size = size;
    assert_true(ranks_run(&plan, body, NULL));
}

#endif

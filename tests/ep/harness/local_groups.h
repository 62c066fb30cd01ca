/* SPDX-License-Identifier: Apache-2.0 */
/* The groups of ranks that are threads, for tests of calls that are local to a rank: one thread makes the calls. */
#ifndef TESTS_EP_HARNESS_LOCAL_GROUPS_H
#define TESTS_EP_HARNESS_LOCAL_GROUPS_H

#include "oracle/unit.h"

#include <expar/group.h>
#include <pthread.h>

typedef struct local_groups {
    int32_t num_ranks, ranks_per_node;
    expar_group *groups[16];
} local_groups;

static inline local_groups local_groups_make(int32_t num_ranks, int32_t ranks_per_node)
{
    local_groups s = {.num_ranks = num_ranks, .ranks_per_node = ranks_per_node};
    expar_group_options options = EXPAR_GROUP_OPTIONS_INIT;
    options.ranks_per_node = ranks_per_node;
    options.heap_bytes = 1 << 20;
    assert_int_equal(expar_group_create_threads(num_ranks, &options, s.groups), EXPAR_OK);
    return s;
}

static inline void *local_groups_leave(void *group)
{
    return (void *)(intptr_t)expar_group_destroy(group);
}

/* Destroying is collective: one thread a rank. */
static inline void local_groups_end(local_groups *s)
{
    pthread_t threads[16];
    for (int32_t r = 0; r < s->num_ranks; r++)
        assert_int_equal(pthread_create(&threads[r], NULL, local_groups_leave, s->groups[r]), 0);
    for (int32_t r = 0; r < s->num_ranks; r++) {
        void *status;
        pthread_join(threads[r], &status);
        assert_int_equal((intptr_t)status, EXPAR_OK);
    }
}

#endif

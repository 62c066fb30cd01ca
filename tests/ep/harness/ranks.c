/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks as threads, and the common end of both kinds. */
#include "ep/harness/ranks.h"
#include "ep/harness/check.h"
#include "ep/harness/ranks_internal.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

expar_group_options ranks_options(const ranks_plan *plan)
{
    expar_group_options options = EXPAR_GROUP_OPTIONS_INIT;
    options.size = plan->size;
    options.ranks_per_node = plan->ranks_per_node;
    options.heap_bytes = plan->heap_bytes ? plan->heap_bytes : RANKS_HEAP_BYTES;
    options.heap_kind = plan->heap_kind;
    options.timeout_ms = plan->timeout_ms ? plan->timeout_ms : RANKS_TIMEOUT_MS;
    options.late_limit_ms = plan->late_limit_ms ? plan->late_limit_ms : RANKS_TIMEOUT_MS;
    return options;
}

bool ranks_carry_out(const ranks_plan *plan, expar_group *group, ranks_body body, void *shared)
{
    body(group, shared);
    if (!plan->ends_itself) {
        if (check_failures()) expar_group_abort(group);
        CHECK_OK(expar_group_destroy(group));
    }
    if (plan->after) plan->after(NULL, shared);
    return check_failures() == 0;
}

typedef struct thread_rank {
    pthread_t thread;
    const ranks_plan *plan;
    expar_group *group;
    int32_t rank;
    ranks_body body;
    void *shared;
    bool passed;
} thread_rank;

static void *thread_main(void *argument)
{
    thread_rank *self = argument;
    check_begin(self->rank);
    self->passed = ranks_carry_out(self->plan, self->group, self->body, self->shared);
    return NULL;
}

static bool run_threads(const ranks_plan *plan, ranks_body body, void *shared)
{
    expar_group_options options = ranks_options(plan);
    expar_group **groups = calloc((size_t)plan->size, sizeof *groups);
    thread_rank *ranks = calloc((size_t)plan->size, sizeof *ranks);
    check_begin(-1);
    if (!groups || !ranks) abort();
    bool passed = CHECK_OK(expar_group_create_threads(plan->size, &options, groups));
    if (!passed) goto free_ranks;
    for (int32_t r = 0; r < plan->size; r++) {
        ranks[r] = (thread_rank){.plan = plan, .group = groups[r], .rank = r, .body = body, .shared = shared};
        if (pthread_create(&ranks[r].thread, NULL, thread_main, &ranks[r])) abort();
    }
    for (int32_t r = 0; r < plan->size; r++) {
        pthread_join(ranks[r].thread, NULL);
        passed &= ranks[r].passed;
    }
free_ranks:
    free(ranks);
    free(groups);
    return passed;
}

bool ranks_run(const ranks_plan *plan, ranks_body body, void *shared)
{
    return plan->kind == RANKS_THREADS ? run_threads(plan, body, shared) : ranks_run_processes(plan, body, shared);
}

expar_group *ranks_join_again(expar_group *group)
{
    expar_unique_id id;
    expar_group *second = NULL;
    expar_group_options options = EXPAR_GROUP_OPTIONS_INIT;
    const bool first = expar_group_rank(group) == 0;
    memset(&id, 0, sizeof id);
    if (first) CHECK_OK(expar_unique_id_create(&id));
    CHECK_OK(expar_group_broadcast(group, &id, sizeof id, 0));
    options.id = &id;
    options.rank = expar_group_rank(group);
    options.size = expar_group_size(group);
    options.heap_bytes = (size_t)32 << 20;
    CHECK_OK(expar_group_create(&options, &second));
    CHECK_OK(expar_group_barrier(group));
    if (first) CHECK_OK(expar_unique_id_retire(&id));
    return second;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Starting threads and the group that they form. */
#include "rank_threads.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct rank_thread {
    pthread_t thread;
    expar_group *group;
    rank_body *member;
    void *context;
    int code;
} rank_thread;

static void *run(void *argument)
{
    rank_thread *self = argument;
    self->code = self->member(self->group, self->context);
    return NULL;
}

/* Returns the number of started threads. The groups of the others are left, so that no rank waits for them. */
static int32_t start(rank_thread *threads, int32_t ranks)
{
    int32_t started = 0;
    while (started < ranks && pthread_create(&threads[started].thread, NULL, run, &threads[started]) == 0)
        started++;
    for (int32_t r = started; r < ranks; r++) {
        expar_group_abort(threads[r].group);
        expar_group_destroy(threads[r].group);
    }
    return started;
}

/* From here on the threads own the groups. */
static int run_all(int32_t ranks, rank_thread *threads, demo_error *error)
{
    int32_t started = start(threads, ranks);
    for (int32_t r = 0; r < started; r++)
        pthread_join(threads[r].thread, NULL);
    int code = started == ranks || demo_fail(error, "only %d of %d threads could be started", started, ranks)
                   ? EXIT_SUCCESS
                   : EXIT_FAILURE;
    for (int32_t r = started - 1; r >= 0; r--)
        if (threads[r].code) code = threads[r].code;
    return code;
}

int rank_threads_run(int32_t ranks, int32_t nodes, rank_body *member, void *context, demo_error *error)
{
    expar_group_options wanted = EXPAR_GROUP_OPTIONS_INIT;

    expar_group **groups = demo_calloc(error, (size_t)ranks, sizeof(expar_group *));
    rank_thread *threads = demo_calloc(error, (size_t)ranks, sizeof *threads);
    if (nodes > 1) wanted.ranks_per_node = ranks / nodes;
    bool made =
        groups && threads && demo_check(error, "making the group", expar_group_create_threads(ranks, &wanted, groups));
    for (int32_t r = 0; r < ranks && made; r++)
        threads[r] = (rank_thread){.group = groups[r], .member = member, .context = context};
    int code = made ? run_all(ranks, threads, error) : EXIT_FAILURE;
    free(threads);
    free(groups);
    return code;
}

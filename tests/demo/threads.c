/* SPDX-License-Identifier: Apache-2.0 */
/* The threads of a group. */
#include "threads.h"

#include "cmocka_headers.h"
#include <pthread.h>

enum { MAX_RANKS = 32 };

typedef struct rank_thread {
    pthread_t thread;
    expar_group *group;
    rank_function *function;
    void *context;
    expar_status left;
} rank_thread;

static void *rank_main(void *argument)
{
    rank_thread *self = argument;
    self->function(self->group, self->context);
    self->left = expar_group_destroy(self->group);
    return NULL;
}

void threads_run(int32_t ranks, rank_function *function, void *context)
{
    expar_group *groups[MAX_RANKS];
    rank_thread threads[MAX_RANKS];
    assert_in_range(ranks, 1, MAX_RANKS);
    if (expar_group_create_threads(ranks, NULL, groups) != EXPAR_OK) fail_msg("%s", expar_last_error());
    for (int32_t r = 0; r < ranks; r++) {
        threads[r] = (rank_thread){.group = groups[r], .function = function, .context = context};
        assert_int_equal(pthread_create(&threads[r].thread, NULL, rank_main, &threads[r]), 0);
    }
    for (int32_t r = 0; r < ranks; r++)
        assert_int_equal(pthread_join(threads[r].thread, NULL), 0);
    for (int32_t r = 0; r < ranks; r++)
        assert_int_equal(threads[r].left, EXPAR_OK);
}

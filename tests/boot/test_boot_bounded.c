/* SPDX-License-Identifier: Apache-2.0 */
/* Work that may never end: the caller waits for it until a deadline, and the last of its two users frees it. */
#include "boot/bounded.h"
#include "boot/unit.h"

#include <semaphore.h>
#include <stdlib.h>

#define LONG_NS ((int64_t)60 * 1000 * 1000 * 1000)

typedef struct piece {
    bounded bound;
    sem_t *begin, *freed;
    int answer;
} piece;

static void work(bounded *bound)
{
    piece *p = (piece *)bound;
    while (sem_wait(p->begin) != 0) {
    }
    p->answer = 42;
}

static void dispose(bounded *bound)
{
    piece *p = (piece *)bound;
    sem_t *freed = p->freed;
    free(p);
    sem_post(freed);
}

static piece *start(sem_t *begin, sem_t *freed)
{
    piece *p = calloc(1, sizeof *p);
    assert_non_null(p);
    p->begin = begin;
    p->freed = freed;
    assert_int_equal(bounded_start(&p->bound, work, dispose), EXPAR_OK);
    return p;
}

static void its_result_is_the_callers(void **state)
{
    (void)state;
    sem_t begin, freed;
    sem_init(&begin, 0, 1);
    sem_init(&freed, 0, 0);
    piece *p = start(&begin, &freed);
    assert_true(bounded_wait(&p->bound, clock_ns() + LONG_NS));
    assert_int_equal(p->answer, 42);
    bounded_drop(&p->bound);
    assert_int_equal(sem_wait(&freed), 0);
    sem_destroy(&begin);
    sem_destroy(&freed);
}

static void it_is_given_up_and_ends_later(void **state)
{
    (void)state;
    int pieces_freed;
    sem_t begin, freed;
    sem_init(&begin, 0, 0);
    sem_init(&freed, 0, 0);
    piece *p = start(&begin, &freed);
    assert_false(bounded_wait(&p->bound, clock_ns() + 1000000));
    bounded_drop(&p->bound);
    sem_getvalue(&freed, &pieces_freed);
    assert_int_equal(pieces_freed, 0);
    sem_post(&begin);
    assert_int_equal(sem_wait(&freed), 0);
    sem_destroy(&begin);
    sem_destroy(&freed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(its_result_is_the_callers),
        cmocka_unit_test(it_is_given_up_and_ends_later),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

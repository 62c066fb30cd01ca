/* SPDX-License-Identifier: Apache-2.0 */
/* The worker pool: every share runs once a run, and a failure comes back with its text. */
#include "base/interrupt.h"
#include "exec/cpu/normal/cpu.h"
#include "oracle/unit.h"

#include <expar/interrupt.h>
#include <stdlib.h>
#include <string.h>

typedef struct tally {
    int32_t runs[8]; /* by worker; read by the caller after the run */
    int32_t failing; /* the worker that fails, or -1 */
} tally;

static expar_status count_run(void *context, int32_t worker)
{
    tally *t = context;
    t->runs[worker]++;
    if (worker == t->failing) return error_set(EXPAR_ERR_PEER, "worker %d was told to fail", worker);
    return EXPAR_OK;
}

static void every_share_runs_once_a_run(void **state)
{
    (void)state;
    for (int32_t n = 1; n <= 8; n++) {
        cpu_workers *workers;
        assert_int_equal(cpu_workers_create(n, &workers), EXPAR_OK);
        tally t = {.failing = -1};
        for (int32_t run = 1; run <= 200; run++) {
            assert_int_equal(cpu_workers_run(workers, n, count_run, &t), EXPAR_OK);
            for (int32_t w = 0; w < n; w++)
                assert_int_equal(t.runs[w], run);
        }
        cpu_workers_destroy(workers);
    }
}

static void a_failure_comes_back_with_its_text(void **state)
{
    (void)state;
    cpu_workers *workers;
    assert_int_equal(cpu_workers_create(4, &workers), EXPAR_OK);
    for (int32_t failing = 0; failing < 4; failing++) {
        tally t = {.failing = failing};
        assert_int_equal(cpu_workers_run(workers, 4, count_run, &t), EXPAR_ERR_PEER);
        char expected[] = "worker 0 was told";
        expected[7] = (char)('0' + failing);
        assert_non_null(strstr(expar_last_error(), expected));
        t.failing = -1;
        assert_int_equal(cpu_workers_run(workers, 4, count_run, &t), EXPAR_OK);
    }
    cpu_workers_destroy(workers);
}

/* A run takes as many as it is told, whatever there are and however many took part before. */
static void runs_of_different_widths(void **state)
{
    (void)state;
    static const int32_t widths[] = {1, 3, 8, 2, 5, 8, 1, 4};
    int32_t expected[8] = {0};
    cpu_workers *workers;
    tally t = {.failing = -1};
    assert_int_equal(cpu_workers_create(1, &workers), EXPAR_OK);
    for (int i = 0; i < 400; i++) {
        int32_t width = widths[i % 8];
        assert_int_equal(cpu_workers_grow(workers, width), width);
        assert_int_equal(cpu_workers_run(workers, width, count_run, &t), EXPAR_OK);
        for (int32_t w = 0; w < width; w++)
            expected[w]++;
        assert_memory_equal(t.runs, expected, sizeof expected);
    }
    cpu_workers_destroy(workers);
}

/* A thread that sleeps is not woken for less than it takes to wake it, unless the caller said how many are to work. */
static void calls_of_few_bytes_take_few_workers(void **state)
{
    (void)state;
    enum { THREADS = 4 };
    const int64_t worth = 256 << 10;
    const ep_shape shape = {.ranks = 1, .topk = 1};
    const exec_call plain = {0}, asks_for_three = {.num_sms = 3};
    cpu_executor self = {.shape = shape, .num_workers = THREADS, .chose_workers = true};
    assert_int_equal(cpu_workers_create(THREADS, &self.workers), EXPAR_OK);
    assert_int_equal(cpu_sources_make(&shape, THREADS, &self.sources), EXPAR_OK);
    const struct {
        int64_t bytes;
        int32_t workers;
    } cases[] = {{0, 1}, {14336, 1}, {worth - 1, 1}, {worth, 2}, {3 * worth, 4}, {1000 * worth, THREADS}};
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        cpu_call_workers(&self, &plain, cases[i].bytes);
        assert_int_equal(self.active, cases[i].workers);
        cpu_call_workers(&self, &asks_for_three, cases[i].bytes);
        assert_int_equal(self.active, 3);
    }
    self.chose_workers = false;
    cpu_call_workers(&self, &plain, 0);
    assert_int_equal(self.active, THREADS);
    free(self.sources.rows);
    cpu_workers_destroy(self.workers);
}

/* ---- interrupts of the caller ------------------------------------------------------------------------------------ */

/* Asked in the caller's thread alone. */
static int stop_later(void *context)
{
    int *questions = context;
    return ++*questions > 2;
}

/* Waits for what does not come. context: which worker has nothing to wait for, -1: none. */
static expar_status wait_for_ever(void *context, int32_t worker)
{
    const int32_t *idle = context;
    int64_t asked_ns = 0;
    expar_status status = EXPAR_OK;
    while (status == EXPAR_OK && worker != *idle)
        status = interrupt_look(&asked_ns, "for ever");
    return status;
}

/* Whether the caller itself waits for ranks, or only for its workers. */
static void an_interrupt_of_the_caller_ends_its_workers(void **state)
{
    (void)state;
    cpu_workers *workers;
    assert_int_equal(cpu_workers_create(3, &workers), EXPAR_OK);
    for (int32_t idle = -1; idle <= 0; idle++) {
        int questions = 0;
        assert_int_equal(expar_interrupt_set_thread(stop_later, &questions), EXPAR_OK);
        assert_int_equal(cpu_workers_run(workers, 3, wait_for_ever, &idle), EXPAR_ERR_INTERRUPTED);
        assert_non_null(strstr(expar_last_error(), "for ever: interrupted"));
        assert_true(questions > 2);
        assert_int_equal(expar_interrupt_set_thread(NULL, NULL), EXPAR_OK);
        tally t = {.failing = -1};
        assert_int_equal(cpu_workers_run(workers, 3, count_run, &t), EXPAR_OK);
    }
    cpu_workers_destroy(workers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_share_runs_once_a_run),
        cmocka_unit_test(a_failure_comes_back_with_its_text),
        cmocka_unit_test(runs_of_different_widths),
        cmocka_unit_test(calls_of_few_bytes_take_few_workers),
        cmocka_unit_test(an_interrupt_of_the_caller_ends_its_workers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Output of `expar bench rma` for results that were made by hand. */
#include "bench/bench.h"
#include "bench/rma/rma.h"
#include "cells.h"
#include "terminal.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void print_rma(void *argument)
{
    (void)argument;
    struct bench_options options;
    bench_options_init(&options);
    static const struct rma_transport_note notes[] = {{"p2p", "mapped"}, {0}};
    static const struct rma_result results[] = {
        {.op = "put", .metric = "latency", .transport = "p2p", .bytes = 8, .expar = {2, 1, 3}, .verified = true},
        {.op = "barrier", .metric = "latency", .transport = "p2p", .expar = {4, 3, 5}},
    };
    static const struct rma_producer producers[] = {{.by = "threads",
                                                     .bytes = 8,
                                                     .commands_per_s = 5000000,
                                                     .requests = 1,
                                                     .request_bytes = 64,
                                                     .doorbells = 0.25,
                                                     .completion = {7, 6, 8},
                                                     .device_us = 3,
                                                     .verified = true}};
    const struct rma_results all = {notes, results, 2, producers, 1};
    assert_true(rma_report(&options, &all));
}

static void table_of_results(void **state)
{
    (void)state;
    char *text = terminal_capture(false, print_rma, NULL);
    const char *head = cells_line(text, "operation "), *put = cells_line(text, "put ");
    assert_null(strchr(text, '\033'));
    assert_non_null(strstr(text, "p2p: mapped\n\noperation  measure  by "));
    cells_assert_under(head, "bytes", put, "8");
    cells_assert_under(head, "median us", put, "2.000");
    assert_null(strstr(head, "baseline us")); /* no result has one */
    assert_non_null(strstr(put, "  yes\n"));
    assert_non_null(strstr(cells_line(text, "barrier "), "  NO\n"));
    const char *producers = cells_line(text, "posted by "), *threads = cells_line(text, "threads ");
    cells_assert_under(producers, "commands/s", threads, "5000000");
    cells_assert_under(producers, "request bytes", threads, "64.0");
    cells_assert_under(producers, "doorbells", threads, "0.250");
    cells_assert_under(producers, "complete us", threads, "7.000");
    cells_assert_under(producers, "device us", threads, "3.000");
    free(text);
}

/* On a terminal what was not verified is to be seen at once. */
static void wrong_results_are_red(void **state)
{
    (void)state;
    char *text = terminal_capture(true, print_rma, NULL);
    assert_non_null(strstr(cells_line(text, "barrier "), "  \033[1;31mNO\033[0m\r\n"));
    assert_non_null(strstr(cells_line(text, "put "), "  yes\r\n"));
    free(text);
}

int main(void)
{
    unsetenv("NO_COLOR");
    setenv("TERM", "xterm", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_of_results),
        cmocka_unit_test(wrong_results_are_red),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

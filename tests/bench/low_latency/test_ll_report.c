/* SPDX-License-Identifier: Apache-2.0 */
/* The benchmark of low-latency mode prints results that were made by hand, as from GPUs. It shows where the time of
 * a call's kernel goes, and below it that of the copy roofline's kernel. */
#include "bench/bench.h"
#include "bench/gpu/gpu.h"
#include "bench/low_latency/late.h"
#include "cells.h"
#include "terminal.h"
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { NUMBERS = LL_SPANS + 3 }; /* of a kernel: its time, the last start, spans, who is late */

/* A dispatch with its limit; a combine's send alone, which has none; a combine whose limit nobody sends in. */
static const struct bench_result made[] = {
    {.op = "dispatch",
     .phase = "call",
     .format = "bf16",
     .dtype = EXPAR_BF16,
     .tokens = 16,
     .workers = 128,
     .expar = {20, 19, 22},
     .copies = {{8, 7, 9}},
     .num_copies = 1,
     .verified = true,
     .breakdown = {.known = true, .kernel_us = 16.5, .start_us = 1.5, .us = {6, 1, 2, 3, 4, 0.5}, .late_rank = 2},
     .limit = {.known = true, .kernel_us = 5.5, .start_us = 1.25, .us = {2, 0.5, 0.75, 0, 2.25, 0}, .late_rank = 3},
     .launch_us = 2.5},
    {.op = "combine",
     .sum = "exact",
     .phase = "send",
     .format = "bf16",
     .dtype = EXPAR_BF16,
     .tokens = 17,
     .workers = 128,
     .expar = {10, 9, 11},
     .breakdown = {.known = true, .kernel_us = 7.5, .us = {7.5}, .late_rank = 1}},
    {.op = "combine",
     .sum = "reduced",
     .phase = "call",
     .format = "bf16",
     .dtype = EXPAR_BF16,
     .tokens = 18,
     .workers = 128,
     .expar = {12, 11, 13},
     .copies = {{6, 5, 7}},
     .num_copies = 1,
     .breakdown = {.known = true, .kernel_us = 9.5, .us = {9.5}, .late_rank = 1},
     .limit = {.known = true, .kernel_us = 3.5, .us = {[LL_PLACE] = 3.5}, .late_rank = -1}},
};

static void print_report(void *argument)
{
    const enum bench_format *format = argument;
    struct bench_options options;
    bench_options_init(&options);
    options.cuda = options.ll.wanted = true;
    options.num_gpus = 4;
    options.topk = 8;
    options.experts = 256;
    options.workers[0] = 128;
    options.format = *format;
    cuda_device device = {.num_sms = 132};
    struct gpu_crew crew = {.options = &options};
    struct gpu_rank rank = {.device = &device, .crew = &crew};
    const struct bench_world world = {
        .size = 4, .nodes = 1, .each = 4, .device = &bench_cuda, .place = {.type = EXPAR_CUDA}, .gpu = &rank};
    struct bench_results results = {0};
    for (size_t i = 0; i < sizeof made / sizeof *made; i++) {
        struct bench_result *result = bench_results_add(&results);
        assert_non_null(result);
        *result = made[i];
    }
    assert_true(bench_report(&world, &options, &ll_mode, &results));
    free(results.items);
}

/* The output of bench_report; the caller frees it. */
static char *print(enum bench_format format)
{
    return terminal_capture(false, print_report, &format);
}

static double real(const json_t *object, const char *name)
{
    assert_true(json_is_number(json_object_get(object, name)));
    return json_number_value(json_object_get(object, name));
}

static void json_of_kernels(void **state)
{
    (void)state;
    char *text = print(BENCH_JSON);
    json_t *json = json_loads(text, 0, NULL);
    assert_non_null(json);
    const json_t *list = json_object_get(json, "results"), *dispatch = json_array_get(list, 0);
    const json_t *limit = json_object_get(dispatch, "copy_limit_breakdown"), *send = json_array_get(list, 1);
    assert_true(real(dispatch, "kernel_us") == 16.5 && real(dispatch, "copy_limit_kernel_us") == 5.5);
    assert_true(real(json_object_get(dispatch, "breakdown"), "place_us") == 4);
    assert_int_equal(json_object_size(limit), LL_SPANS + 2);
    assert_true(real(limit, "start_us") == 1.25 && real(limit, "send_us") == 2 && real(limit, "warps_us") == 0.5);
    assert_true(real(limit, "ranks_us") == 0.75 && real(limit, "wire_us") == 0 && real(limit, "place_us") == 2.25);
    assert_true(real(limit, "close_us") == 0 && real(limit, "late_rank") == 3);
    assert_true(real(send, "kernel_us") == 7.5);
    assert_null(json_object_get(send, "copy_limit_kernel_us"));
    assert_null(json_object_get(send, "copy_limit_breakdown"));
    limit = json_object_get(json_array_get(list, 2), "copy_limit_breakdown");
    assert_true(json_is_null(json_object_get(limit, "late_rank")));
    json_decref(json);
    free(text);
}

static void csv_of_kernels(void **state)
{
    (void)state;
    char *text = print(BENCH_CSV);
    assert_non_null(strstr(text, ",launch_us,kernel_us,start_us,send_us,warps_us,ranks_us,wire_us,place_us,close_us,"
                                 "late_rank,copy_limit_kernel_us,copy_limit_start_us,copy_limit_send_us,"
                                 "copy_limit_warps_us,copy_limit_ranks_us,copy_limit_wire_us,copy_limit_place_us,"
                                 "copy_limit_close_us,copy_limit_late_rank\n"));
    assert_non_null(strstr(text, ",2.5000,16.5000,1.5000,6.0000,1.0000,2.0000,3.0000,4.0000,0.5000,2,"
                                 "5.5000,1.2500,2.0000,0.5000,0.7500,0.0000,2.2500,0.0000,3\n"));
    assert_non_null(strstr(text, ",7.5000,0.0000,7.5000,0.0000,0.0000,0.0000,0.0000,0.0000,1,,,,,,,,,\n"));
    assert_non_null(strstr(text, ",3.5000,0.0000,0.0000,0.0000,0.0000,0.0000,3.5000,0.0000,\n"));
    free(text);
}

/* The limit stands below its call, under the same titles, and nowhere else. */
static void table_of_kernels(void **state)
{
    (void)state;
    static const char *const titles[] = {"kernel us", "start", "send",  "warps", "ranks",
                                         "wire",      "place", "close", "late"};
    static const char *const call[] = {"16.5", "1.5", "6.0", "1.0", "2.0", "3.0", "4.0", "0.5", "2"};
    static const char *const limit[] = {"5.5", "1.2", "2.0", "0.5", "0.8", "0.0", "2.2", "0.0", "3"};
    char *text = print(BENCH_TABLE);
    const char *results = cells_line(text, "operation "), *heading = strstr(text, "\nWhere the time of calls ");
    assert_non_null(heading);
    const char *head = cells_line(heading, "operation "), *below = cells_line(head, "copy limit ");
    assert_true(cells_line(results, "copy limit ") == below); /* not among the results */
    for (int i = 0; i < NUMBERS; i++) {
        cells_assert_under(head, titles[i], cells_line(head, "dispatch "), call[i]);
        cells_assert_under(head, titles[i], below, limit[i]);
    }
    cells_assert_under(head, "median us", below, "8.0");
    cells_assert_under(head, "p99 us", below, "9.0");
    cells_assert_under(head, "tokens", below, "16");
    cells_assert_under(results, "copy us", cells_line(results, "dispatch "), "8.0");
    cells_assert_under(results, "launch us", cells_line(results, "dispatch "), "2.50");
    const char *send = strstr(head, "\ncombine exact, send "), *last = strstr(head, "\ncombine reduced ");
    assert_true(below > cells_line(head, "dispatch ") && send > below && last > send);
    assert_true(strstr(send + 1, "\ncopy limit ") > last);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_of_kernels),
        cmocka_unit_test(csv_of_kernels),
        cmocka_unit_test(table_of_kernels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

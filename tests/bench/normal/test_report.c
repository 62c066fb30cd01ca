/* SPDX-License-Identifier: Apache-2.0 */
/* Output of the benchmark for results that were made by hand, as from GPUs: members, nulls, the better one of two
 * copies. */
#include "bench/bench.h"
#include "bench/gpu/gpu.h"
#include "bench/normal/late.h"
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

/* The list that grows, with a combine, a layout and a fresh dispatch. */
static void fill(struct bench_results *results)
{
    const struct bench_result made[] = {
        {.op = "combine",
         .path = "direct",
         .dtype = EXPAR_BF16,
         .workers = 12,
         .tokens = 128,
         .expar = {40, 38, 50},
         .copies = {{30, 29, 31}, {25, 24, 26}},
         .num_copies = 2,
         .verified = true,
         .breakdown = {.known = true, .kernel_us = 41.5, .us = {[BENCH_OPEN] = 3, 30, 0.25, 1.25, 7}, .late_rank = 2},
         .limit = {.known = true, .kernel_us = 21.5, .us = {[BENCH_ROWS] = 17, 2.5, 1.75, 0.25}, .late_rank = 3},
         .bytes = 4e6},
        {.op = "layout", .path = "direct", .dtype = EXPAR_F8E4M3, .workers = 12, .tokens = 128, .expar = {20, 19, 25}},
        {.op = "dispatch",
         .path = "direct",
         .dtype = EXPAR_BF16,
         .workers = 12,
         .tokens = 128,
         .expar = {41, 38, 50},
         .breakdown = {.known = true,
                       .notified = true,
                       .kernel_us = 42.5,
                       .us = {1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5, 9.5, 10.5}}},
    };
    for (int i = 0; i < 42; i++) {
        struct bench_result *result = bench_results_add(results);
        assert_non_null(result);
        *result = made[i % 3];
    }
    assert_int_equal(results->count, 42);
}

/* The columns of each pattern. */
struct print {
    enum bench_format format;
    unsigned patterns;
};

static void add_loop(struct bench_results *results)
{
    struct bench_result *result = bench_results_add(results);
    assert_non_null(result);
    *result = (struct bench_result){.op = "layer",
                                    .path = "queue",
                                    .pattern = BENCH_LAYER,
                                    .dtype = EXPAR_BF16,
                                    .workers = 12,
                                    .tokens = 128,
                                    .expar = {80, 79, 81},
                                    .loop = {.host_us = 60.5, .host_p99_us = 70.5},
                                    .before = {.growths = 1, .queue_calls = 2, .used_high_bytes = 4096},
                                    .after = {.growths = 3, .queue_calls = 9, .other_blocks = 4},
                                    .verified = true,
                                    .bytes = 8e6};
}

static void print_report(void *argument)
{
    const struct print *print = argument;
    struct bench_options options;
    bench_options_init(&options);
    options.topk = 8;
    options.experts = 256;
    options.workers[0] = 12;
    options.format = print->format;
    options.patterns = print->patterns;
    const struct bench_world world = {.size = 4, .nodes = 1, .each = 4, .device = &bench_cuda};
    struct bench_results results = {0};
    fill(&results);
    if (print->patterns & BENCH_LAYER) add_loop(&results);
    assert_true(bench_report(&world, &options, &normal_mode, &results));
    free(results.items);
}

/* The output of bench_report; the caller frees it. */
static char *print(enum bench_format format)
{
    struct print print = {format, BENCH_ISOLATED};
    return terminal_capture(false, print_report, &print);
}

/* The same with a pattern that is measured by loops. */
static char *print_patterns(enum bench_format format)
{
    struct print print = {format, BENCH_ISOLATED | BENCH_LAYER};
    return terminal_capture(false, print_report, &print);
}

static double real(const json_t *object, const char *name)
{
    assert_true(json_is_number(json_object_get(object, name)));
    return json_number_value(json_object_get(object, name));
}

/* The copy roofline has nothing to open, so that nothing is said of it. */
static void assert_limit_json(const json_t *result)
{
    const json_t *limit = json_object_get(result, "copy_limit_breakdown");
    assert_true(real(result, "copy_limit_kernel_us") == 21.5);
    assert_int_equal(json_object_size(limit), 5);
    assert_true(real(limit, "rows_us") == 17 && real(limit, "warps_us") == 2.5 && real(limit, "ranks_us") == 1.75);
    assert_true(real(limit, "close_us") == 0.25 && real(limit, "late_rank") == 3);
}

static void json_of_gpu_results(void **state)
{
    (void)state;
    char *text = print(BENCH_JSON);
    json_error_t error;
    json_t *json = json_loads(text, 0, &error);
    if (!json) fail_msg("%s in line %d", error.text, error.line);
    const json_t *config = json_object_get(json, "config"), *list = json_object_get(json, "results");
    const json_t *combine = json_array_get(list, 39), *layout = json_array_get(list, 40);
    const json_t *spans = json_object_get(json_array_get(list, 41), "breakdown");
    assert_int_equal(json_array_size(list), 42);
    assert_string_equal(json_string_value(json_object_get(config, "device")), "cuda");
    assert_int_equal(real(config, "sms"), 12);
    assert_true(real(combine, "copy_limit_us") == 25);
    assert_true(real(combine, "push_us") == 30);
    assert_true(real(combine, "pull_us") == 25);
    assert_true(real(combine, "fraction_of_copy_limit") == 0.625);
    assert_true(real(combine, "gbps") == 100);
    assert_true(real(json_object_get(combine, "breakdown"), "rows_us") == 30);
    assert_int_equal(json_object_size(json_object_get(combine, "breakdown")), 6);
    assert_true(real(json_object_get(combine, "breakdown"), "late_rank") == 2);
    assert_true(real(combine, "kernel_us") == 41.5);
    assert_limit_json(combine);
    static const char *const names[] = {"layout_us", "headers_us", "wait_us",  "counts_us", "gap_us",
                                        "open_us",   "rows_us",    "warps_us", "ranks_us",  "close_us"};
    assert_int_equal(json_object_size(spans), 11);
    for (int i = 0; i < 10; i++)
        assert_true(real(spans, names[i]) == i + 1.5);
    assert_true(json_is_null(json_object_get(layout, "copy_limit_us")));
    assert_true(json_is_null(json_object_get(layout, "fraction_of_copy_limit")));
    static const char *const of_stamps[] = {"kernel_us", "breakdown", "copy_limit_kernel_us", "copy_limit_breakdown"};
    for (int i = 0; i < 4; i++)
        assert_null(json_object_get(layout, of_stamps[i]));
    assert_string_equal(json_string_value(json_object_get(layout, "dtype")), "f8e4m3");
    json_decref(json);
    free(text);
}

static void csv_of_gpu_results(void **state)
{
    (void)state;
    char *text = print(BENCH_CSV);
    assert_non_null(strstr(text, ",fraction_of_copy_limit,sms,verified,"));
    assert_non_null(strstr(text, ",25.000,0.6250,12,1,,\n"));
    assert_non_null(strstr(text, "layout,normal,f8e4m3,direct,0,4,128,7168,8,256,\"uniform\",20.000,19.000,25.000,0,"
                                 "0.0000,,,,0.0000,,,12,0,,\n"));
    free(text);
}

static void table_of_gpu_results(void **state)
{
    (void)state;
    char *text = print(BENCH_TABLE);
    static const char *const titles[] = {"sms",    "tokens", "median us", "min us",
                                         "p99 us", "GB/s",   "copy us",   "of copy"};
    static const char *const combine[] = {"12", "128", "40.0", "38.0", "50.0", "100.00", "25.0", "0.62"};
    static const char *const layout[] = {"12", "128", "20.0", "19.0", "25.0", "0.00", "", ""};
    const char *head = cells_line(text, "operation ");
    assert_non_null(strstr(text, "4 ranks, rows of 7168 elements"));
    for (int i = 0; i < 8; i++) {
        cells_assert_under(head, titles[i], cells_line(head, "combine    direct  bf16 "), combine[i]);
        cells_assert_under(head, titles[i], cells_line(head, "layout     direct  f8e4m3 "), layout[i]);
    }
    assert_non_null(strstr(head, "  verified\n"));
    assert_non_null(strstr(cells_line(head, "combine "), "  yes\n"));
    assert_non_null(strstr(cells_line(head, "layout "), "  NO\n"));
    free(text);
}

static void breakdown_of_gpu_results(void **state)
{
    (void)state;
    static const char *const spans[] = {"layout", "headers", "wait",  "counts", "gap",   "kernel",
                                        "open",   "rows",    "warps", "ranks",  "close", "late"};
    static const char *const dispatch[] = {"1.5", "2.5", "3.5", "4.5", "5.5",  "42.5",
                                           "6.5", "7.5", "8.5", "9.5", "10.5", "0"};
    static const char *const combine[] = {"", "", "", "", "", "41.5", "3.0", "30.0", "0.2", "1.2", "7.0", "2"};
    static const char *const limit[] = {"", "", "", "", "", "21.5", "", "17.0", "2.5", "1.8", "0.2", "3"};
    char *text = print(BENCH_TABLE);
    const char *table = strstr(
        text, "\nWhere the time of calls and of the copy limit's kernel goes on all ranks, us, and which rank is "
              "late\n\n");
    assert_non_null(table);
    const char *head = cells_line(table, "operation ");
    for (int i = 0; i < 12; i++) {
        cells_assert_under(head, spans[i], cells_line(head, "dispatch "), dispatch[i]);
        cells_assert_under(head, spans[i], cells_line(head, "combine "), combine[i]);
        cells_assert_under(head, spans[i], cells_line(head, "copy limit  pull "), limit[i]);
    }
    free(text);
}

static void patterns_have_columns(void **state)
{
    (void)state;
    char *text = print_patterns(BENCH_TABLE);
    const char *head = cells_line(text, "operation "), *layer = cells_line(head, "layer "),
               *combine = cells_line(head, "combine ");
    cells_assert_under(head, "median us", layer, "80.0");
    cells_assert_under(head, "host us", layer, "60.5");
    cells_assert_under(head, "GB/s", layer, "100.00");
    cells_assert_under(head, "copy us", layer, "");
    cells_assert_under(head, "host us", combine, "");
    cells_assert_under(head, "copy us", combine, "25.0");
    assert_non_null(strstr(layer, " 128  layer "));
    assert_non_null(strstr(combine, " 128  isolated "));
    free(text);
    text = print_patterns(BENCH_CSV);
    assert_non_null(strstr(text, ",speedup_over_mpi,pattern,host_us,host_p99_us\n"));
    assert_non_null(strstr(text, ",25.000,0.6250,12,1,,,isolated,,\n"));
    assert_non_null(strstr(text, ",,,12,1,,,layer,60.500,70.500\n"));
    free(text);
}

static void patterns_have_members(void **state)
{
    (void)state;
    char *text = print_patterns(BENCH_JSON);
    json_t *json = json_loads(text, 0, NULL);
    assert_non_null(json);
    const json_t *list = json_object_get(json, "results"), *layer = json_array_get(list, 42);
    const json_t *before = json_object_get(layer, "buffer_before"), *after = json_object_get(layer, "buffer_after");
    assert_string_equal(json_string_value(json_object_get(layer, "pattern")), "layer");
    assert_string_equal(json_string_value(json_object_get(json_array_get(list, 0), "pattern")), "isolated");
    assert_null(json_object_get(json_array_get(list, 0), "host_us"));
    assert_true(real(layer, "host_us") == 60.5 && real(layer, "host_p99_us") == 70.5);
    assert_true(real(before, "growths") == 1 && real(before, "used_high_bytes") == 4096);
    assert_true(real(after, "growths") == 3 && real(after, "queue_calls") == 9 && real(after, "other_blocks") == 4);
    json_decref(json);
    free(text);
}

/* On a terminal what was not verified is to be seen at once. */
static void wrong_results_are_red(void **state)
{
    (void)state;
    struct print print = {BENCH_TABLE, BENCH_ISOLATED};
    char *text = terminal_capture(true, print_report, &print);
    assert_non_null(strstr(cells_line(text, "layout "), "  \033[1;31mNO\033[0m\r\n"));
    assert_non_null(strstr(cells_line(text, "combine "), "  yes\r\n"));
    free(text);
}

int main(void)
{
    unsetenv("NO_COLOR");
    setenv("TERM", "xterm", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_of_gpu_results),   cmocka_unit_test(csv_of_gpu_results),
        cmocka_unit_test(table_of_gpu_results),  cmocka_unit_test(breakdown_of_gpu_results),
        cmocka_unit_test(patterns_have_columns), cmocka_unit_test(patterns_have_members),
        cmocka_unit_test(wrong_results_are_red),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

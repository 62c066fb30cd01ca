/* SPDX-License-Identifier: Apache-2.0 */
/* What the benchmark prints of results that were made by hand, as from GPUs: members, nulls, the better one of two
 * copies. */
#include "gpu.h"
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
         .has_breakdown = true,
         .breakdown = {.us = {[BENCH_OPEN] = 3, [BENCH_ROWS] = 30, [BENCH_CLOSE] = 7}},
         .bytes = 4e6},
        {.op = "layout", .path = "direct", .dtype = EXPAR_F8E4M3, .workers = 12, .tokens = 128, .expar = {20, 19, 25}},
        {.op = "dispatch",
         .path = "direct",
         .dtype = EXPAR_BF16,
         .workers = 12,
         .tokens = 128,
         .expar = {41, 38, 50},
         .has_breakdown = true,
         .breakdown = {.notified = true, .us = {1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5}}},
    };
    for (int i = 0; i < 42; i++) {
        struct bench_result *result = bench_results_add(results);
        assert_non_null(result);
        *result = made[i % 3];
    }
    assert_int_equal(results->count, 42);
}

/* What bench_report prints; the caller's to free. */
static char *print(enum bench_format format)
{
    struct bench_options options;
    bench_options_init(&options);
    options.topk = 8;
    options.experts = 256;
    options.workers[0] = 12;
    options.format = format;
    const struct bench_world world = {.size = 4, .device = &bench_cuda};
    struct bench_results results = {0};
    fill(&results);
    FILE *file = tmpfile();
    fflush(stdout);
    int kept = dup(STDOUT_FILENO);
    assert_true(file && kept >= 0 && dup2(fileno(file), STDOUT_FILENO) >= 0);
    bench_report(&world, &options, &results);
    fflush(stdout);
    dup2(kept, STDOUT_FILENO);
    close(kept);
    char *text = calloc(1 << 16, 1);
    assert_non_null(text);
    rewind(file);
    assert_true(fread(text, 1, (1 << 16) - 1, file) > 0);
    fclose(file);
    free(results.items);
    return text;
}

static double real(const json_t *object, const char *name)
{
    assert_true(json_is_number(json_object_get(object, name)));
    return json_number_value(json_object_get(object, name));
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
    assert_int_equal(json_object_size(json_object_get(combine, "breakdown")), 3);
    static const char *const names[] = {"layout_us", "hellos_us", "wait_us", "counts_us",
                                        "gap_us",    "open_us",   "rows_us", "close_us"};
    assert_int_equal(json_object_size(spans), 8);
    for (int i = 0; i < 8; i++)
        assert_true(real(spans, names[i]) == i + 1.5);
    assert_true(json_is_null(json_object_get(layout, "copy_limit_us")));
    assert_true(json_is_null(json_object_get(layout, "fraction_of_copy_limit")));
    assert_null(json_object_get(layout, "breakdown"));
    assert_string_equal(json_string_value(json_object_get(layout, "dtype")), "f8e4m3");
    json_decref(json);
    free(text);
}

static void csv_and_table_of_gpu_results(void **state)
{
    (void)state;
    char *text = print(BENCH_CSV);
    assert_non_null(strstr(text, ",fraction_of_copy_limit,sms,verified,"));
    assert_non_null(strstr(text, ",25.000,0.6250,12,1,,\n"));
    assert_non_null(strstr(text, "layout,normal,f8e4m3,direct,0,4,128,7168,8,256,\"uniform\",20.000,19.000,25.000,0,"
                                 "0.0000,,,12,0,,\n"));
    free(text);
    text = print(BENCH_TABLE);
    assert_non_null(strstr(text, "4 ranks, rows of 7168 elements"));
    assert_non_null(strstr(text, "  layout  hellos    wait  counts     gap    open    rows   close\n"));
    assert_non_null(strstr(text, "     1.5     2.5     3.5     4.5     5.5     6.5     7.5     8.5\n"));
    assert_non_null(strstr(text, "                                             3.0    30.0     7.0\n"));
    assert_non_null(strstr(text, "  NO\n"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_of_gpu_results),
        cmocka_unit_test(csv_and_table_of_gpu_results),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

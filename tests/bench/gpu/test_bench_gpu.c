/* SPDX-License-Identifier: Apache-2.0 */
/* The benchmark on GPUs: every result is verified, by every operation, number of SMs, dtype and routing, with ranks
 * that share GPUs; and what is refused. Times are never judged. */
#include "bench/bench.h"
#include "capture.h"
#include "cuda/gpus.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static int32_t num_gpus;

static struct bench_options small(void)
{
    struct bench_options options;
    bench_options_init(&options);
    options.dispatch = options.combine = options.cuda = true;
    options.num_ranks = 2;
    options.num_gpus = num_gpus < 2 ? num_gpus : 2;
    options.hidden = 256;
    options.topk = 4;
    options.experts = 8;
    options.iters = 3;
    options.warmup = 1;
    options.cached = BENCH_BOTH;
    options.workers[0] = 4;
    options.format = BENCH_JSON;
    return options;
}

static const char *text_of(const json_t *object, const char *name)
{
    return json_string_value(json_object_get(object, name));
}

static void assert_sound(const json_t *result)
{
    assert_true(json_is_true(json_object_get(result, "verified")));
    assert_true(json_number_value(json_object_get(result, "median_us")) > 0);
    assert_true(json_number_value(json_object_get(result, "copy_limit_us")) > 0);
    assert_true(json_number_value(json_object_get(result, "fraction_of_copy_limit")) > 0);
}

static void each_operation_is_verified(void **state)
{
    (void)state;
    static const char *const ops[] = {"dispatch", "dispatch", "layout", "combine"};
    static const int num_spans[] = {11, 6, 0, 6}; /* layout is a difference of two */
    struct bench_options options = small();
    options.layout = true;
    options.num_tokens = 3;
    memcpy(options.tokens, (int64_t[]){0, 1, 37}, 3 * sizeof(int64_t));
    options.num_workers = 2;
    options.workers[1] = 7;
    json_t *json = capture_json(&options), *list = json_object_get(json, "results");
    assert_int_equal(json_array_size(list), 2 * 3 * 4);
    for (size_t i = 0; i < 24; i++) {
        const json_t *result = json_array_get(list, i);
        assert_string_equal(text_of(result, "op"), ops[i % 4]);
        assert_int_equal(json_is_true(json_object_get(result, "cached")), i % 4 == 1);
        assert_int_equal(json_integer_value(json_object_get(result, "sms")), i < 12 ? 4 : 7);
        assert_true(json_is_true(json_object_get(result, "verified")));
        if (i % 4 != 2) assert_sound(result);
        assert_int_equal(json_object_size(json_object_get(result, "breakdown")), num_spans[i % 4]);
    }
    assert_string_equal(text_of(json_object_get(json, "config"), "device"), "cuda");
    assert_true(json_array_size(json_object_get(json_object_get(json, "machine"), "gpus")) > 0);
    json_decref(json);
}

/* More ranks than GPUs, rows with scales, routings that leave some ranks without rows. */
static void every_dtype_and_routing_is_verified(void **state)
{
    (void)state;
    static const char *const routings[] = {"uniform", "zipf", "grouped", "onehot"};
    for (size_t i = 0; i < 4; i++) {
        struct bench_options options = small();
        options.routing = routings[i];
        options.num_ranks = 4;
        options.num_gpus = num_gpus < 4 ? num_gpus : 4;
        options.experts = 16;
        options.tokens[0] = 65;
        options.num_dtypes = 3;
        memcpy(options.dtypes, (expar_dtype[]){EXPAR_BF16, EXPAR_F8E4M3, EXPAR_F32}, 3 * sizeof(expar_dtype));
        json_t *json = capture_json(&options), *list = json_object_get(json, "results");
        assert_int_equal(json_array_size(list), 3 + 2 + 3);
        for (size_t r = 0; r < 8; r++)
            assert_sound(json_array_get(list, r));
        json_decref(json);
    }
}

/* Spans of a kernel, from `first` on, that make up its time, as in one iteration they do. */
static void assert_breakdown(const json_t *result, const char *kernel, const char *breakdown, int first)
{
    static const char *const spans[] = {"open_us", "rows_us", "warps_us", "ranks_us", "close_us"};
    const json_t *object = json_object_get(result, breakdown);
    const double kernel_us = json_number_value(json_object_get(result, kernel));
    double sum = 0;
    for (int i = first; i < 5; i++) {
        const json_t *span = json_object_get(object, spans[i]);
        if (!json_is_number(span) || json_number_value(span) < 0) fail_msg("%s: no %s", breakdown, spans[i]);
        sum += json_number_value(span);
    }
    assert_true(kernel_us > 0 && sum > kernel_us * 0.999 && sum < kernel_us * 1.001);
    assert_in_range(json_integer_value(json_object_get(object, "late_rank")), 0, 1);
    assert_true(json_number_value(json_object_get(object, "close_us")) < kernel_us);
}

/* The parts of calls and, by the same names but for the opening of a call, of the copies that they are compared with.
   */
static void test_kernels_are_told(void **state)
{
    (void)state;
    struct bench_options options = small();
    options.layout = true;
    options.iters = 1;
    options.tokens[0] = 37;
    json_t *json = capture_json(&options), *list = json_object_get(json, "results");
    assert_int_equal(json_array_size(list), 4);
    for (size_t i = 0; i < 4; i++) {
        const json_t *result = json_array_get(list, i), *limit = json_object_get(result, "copy_limit_breakdown");
        const bool measured = strcmp(text_of(result, "op"), "layout") != 0;
        assert_int_equal(json_object_size(limit), measured ? 5 : 0);
        if (!measured) continue;
        assert_breakdown(result, "kernel_us", "breakdown", 0);
        assert_breakdown(result, "copy_limit_kernel_us", "copy_limit_breakdown", 1);
    }
    json_decref(json);
}

static void test_kernels_without_stamps(void **state)
{
    (void)state;
    static const char *const of_stamps[] = {"kernel_us", "breakdown", "copy_limit_kernel_us", "copy_limit_breakdown"};
    struct bench_options options = small();
    options.tokens[0] = 5;
    options.unstamped = true;
    json_t *json = capture_json(&options), *list = json_object_get(json, "results");
    assert_int_equal(json_array_size(list), 3);
    for (size_t i = 0; i < 3 * 4; i++) {
        assert_sound(json_array_get(list, i / 4));
        assert_null(json_object_get(json_array_get(list, i / 4), of_stamps[i % 4]));
    }
    json_decref(json);
}

/* Beside isolated calls; the kernels of loops read no clocks. */
static void test_patterns_are_verified(void **state)
{
    (void)state;
    static const char *const ops[] = {"dispatch", "dispatch", "combine", "dispatch", "dispatch", "combine", "layer"};
    static const char *const patterns[] = {"isolated", "steady", "layer"};
    struct bench_options options = small();
    options.tokens[0] = 19;
    options.patterns = BENCH_ISOLATED | BENCH_STEADY | BENCH_LAYER;
    json_t *json = capture_json(&options), *list = json_object_get(json, "results");
    assert_int_equal(json_array_size(list), 7);
    for (size_t i = 0; i < 7; i++) {
        const json_t *result = json_array_get(list, i), *after = json_object_get(result, "buffer_after");
        assert_string_equal(text_of(result, "op"), ops[i]);
        assert_string_equal(text_of(result, "pattern"), patterns[i / 3]);
        assert_int_equal(json_is_true(json_object_get(result, "cached")), i == 1 || i == 4);
        assert_true(json_is_true(json_object_get(result, "verified")));
        assert_int_equal(json_is_object(json_object_get(result, "breakdown")), i < 3);
        if (i < 3) continue;
        assert_true(json_number_value(json_object_get(result, "host_us")) > 0);
        assert_true(json_is_integer(json_object_get(after, "growths")));
    }
    json_decref(json);
}

/* Moments are events of the stream; links have the classes of GPUs. */
static void test_patterns_period(void **state)
{
    (void)state;
    struct bench_options options = small();
    options.tokens[0] = 7;
    options.pairs = 2;
    options.patterns = BENCH_PERIOD;
    json_t *json = capture_json(&options), *list = json_object_get(json, "results");
    assert_int_equal(json_array_size(list), 2);
    for (size_t i = 0; i < 2; i++) {
        const json_t *result = json_array_get(list, i), *links = json_object_get(result, "links"), *link;
        size_t l;
        assert_true(json_is_true(json_object_get(result, "verified")));
        assert_true(json_number_value(json_object_get(result, "pair_period_us")) > 0);
        assert_true(json_number_value(json_object_get(result, "combine_floor_us")) > 0);
        json_array_foreach(links, l, link)
        {
            const char *class = text_of(link, "class");
            assert_true(!strcmp(class, "nvlink") || !strcmp(class, "pcie") || !strcmp(class, "device"));
        }
        assert_true(l > 0);
    }
    json_decref(json);
}

/* The caller codes rows by a kernel before each dispatch. */
static void test_patterns_period_of_coded_rows(void **state)
{
    (void)state;
    struct bench_options options = small();
    options.tokens[0] = 7;
    options.pairs = 2;
    options.patterns = BENCH_PERIOD;
    options.dtypes[0] = EXPAR_F8E4M3;
    json_t *json = capture_json(&options), *list = json_object_get(json, "results");
    assert_int_equal(json_array_size(list), 2);
    for (size_t i = 0; i < 2; i++) {
        const json_t *result = json_array_get(list, i);
        assert_true(json_is_true(json_object_get(result, "verified")));
        assert_string_equal(text_of(result, "dtype"), "f8e4m3");
        assert_true(json_number_value(json_object_get(result, "dispatch_floor_us")) > 0);
    }
    json_decref(json);
}

static void more_sms_than_there_are_are_rejected(void **state)
{
    (void)state;
    int code;
    struct bench_options options = small();
    options.num_gpus = 1;
    options.workers[0] = 1000;
    char *text = capture(STDERR_FILENO, &options, &code);
    assert_int_equal(code, 1);
    assert_non_null(strstr(text, "--sms 1000: GPU 0"));
    assert_non_null(strstr(text, "SMs for 2 ranks"));
    free(text);
}

static double member_of(const json_t *result, const char *object, const char *name)
{
    return json_number_value(json_object_get(json_object_get(result, object), name));
}

/* Every token goes to all ranks, but as one record to the other node. */
static void assert_across(const json_t *result, double tokens, double ranks_beside)
{
    assert_true(json_is_true(json_object_get(result, "verified")));
    assert_string_equal(text_of(result, "path"), "network");
    assert_true(json_number_value(json_object_get(result, "network_limit_us")) > 0);
    assert_true(member_of(result, "network", "rows") == tokens);
    assert_true(member_of(result, "network", "bytes") > tokens * 2 * 256);
    assert_true(member_of(result, "node", "rows") == 2 * tokens * ranks_beside);
}

/* Two simulated nodes, whose host carries calls out. Each rank has a GPU of its own, or shares one. */
static void test_nodes_are_verified(void **state)
{
    (void)state;
    for (int32_t each = 1; each <= 2; each++) {
        struct bench_options options = small();
        options.nodes = 2;
        options.num_ranks = 2 * each;
        options.num_gpus = num_gpus < options.num_ranks ? num_gpus : options.num_ranks;
        options.topk = options.experts;
        options.tokens[0] = 5;
        options.patterns = BENCH_ISOLATED | BENCH_STEADY;
        json_t *json = capture_json(&options), *list = json_object_get(json, "results");
        assert_int_equal(json_array_size(list), 6);
        for (size_t i = 0; i < 3; i++)
            assert_across(json_array_get(list, i), 5, each - 1);
        for (size_t i = 3; i < 6; i++)
            assert_true(json_is_true(json_object_get(json_array_get(list, i), "verified")));
        json_decref(json);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_operation_is_verified),
        cmocka_unit_test(every_dtype_and_routing_is_verified),
        cmocka_unit_test(test_kernels_are_told),
        cmocka_unit_test(test_kernels_without_stamps),
        cmocka_unit_test(test_patterns_are_verified),
        cmocka_unit_test(test_patterns_period),
        cmocka_unit_test(test_patterns_period_of_coded_rows),
        cmocka_unit_test(test_nodes_are_verified),
        cmocka_unit_test(more_sms_than_there_are_are_rejected),
    };
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    num_gpus = gpus_count(1);
    if (num_gpus == 0) return GPUS_SKIP;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

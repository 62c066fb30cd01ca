/* SPDX-License-Identifier: Apache-2.0 */
/* The benchmark of kernels' operations on symmetric memory, also on GPUs that the CPU simulates: every row is there and
 * verified, by each way. Times are never judged. */
#include "capture.h"
#include "cuda/gpus.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int32_t num_gpus;

static struct bench_options small(int ranks, const char *ways, const char *ops)
{
    struct bench_options options;
    bench_options_init(&options);
    options.cuda = options.rma.wanted = true;
    options.num_ranks = ranks;
    options.num_gpus = num_gpus < ranks ? num_gpus : ranks;
    options.rma.transports = ways;
    options.rma.ops = ops;
    options.rma.sizes_bytes[0] = 8;
    options.rma.sizes_bytes[1] = 4096;
    options.rma.num_sizes = 2;
    options.iters = 2;
    options.format = BENCH_JSON;
    return options;
}

static bool is(const json_t *object, const char *name, const char *value)
{
    const char *text = json_string_value(json_object_get(object, name));
    return text && strcmp(text, value) == 0;
}

static double number_of(const json_t *object, const char *name)
{
    const json_t *number = json_object_get(object, name);
    if (!json_is_number(number)) fail_msg("no number %s", name);
    return json_number_value(number);
}

/* Finds the only row of that kind. */
static const json_t *row_of(const json_t *json, const char *op, const char *way, const char *scope, double bytes)
{
    const json_t *found = NULL;
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(json, "results"), i, row)
    {
        if (!is(row, "op", op) || !is(row, "way", way) || !is(row, "scope", scope) || number_of(row, "bytes") != bytes)
            continue;
        assert_null(found);
        found = row;
    }
    if (!found) fail_msg("no row of %s by %s, %s, %.0f bytes", op, way, scope, bytes);
    assert_true(json_is_true(json_object_get(found, "verified")));
    assert_true(number_of(found, "min_us") > 0 && number_of(found, "min_us") <= number_of(found, "median_us"));
    assert_true(number_of(found, "median_us") <= number_of(found, "p99_us"));
    return found;
}

static void assert_baseline(const json_t *row, const char *baseline)
{
    const double fraction = number_of(row, "baseline_us") / number_of(row, "median_us");
    assert_true(is(row, "baseline", baseline));
    assert_true(number_of(row, "fraction_of_baseline") > fraction * 0.999);
    assert_true(number_of(row, "fraction_of_baseline") < fraction * 1.001);
}

/* All operations, scopes and sizes of a way. baseline NULL: there is none. */
static void assert_operations(const json_t *json, const char *way, const char *memory, const char *baseline)
{
    static const char *const ops[] = {"put", "get", "put_signal"}, *const scopes[] = {"thread", "warp", "block"};
    for (int op = 0; op < 3; op++)
        for (int scope = 0; scope < 3; scope++)
            for (int size = 0; size < 2; size++) {
                const json_t *row = row_of(json, ops[op], way, scopes[scope], size ? 4096 : 8);
                assert_true(is(row, "memory", memory));
                if (baseline)
                    assert_baseline(row, baseline);
                else
                    assert_null(json_object_get(row, "baseline"));
            }
}

static const json_t *rate_of(const json_t *json, size_t number, size_t count, const char *way)
{
    const json_t *rates = json_object_get(json, "commands"), *rate = json_array_get(rates, number);
    assert_int_equal(json_array_size(rates), count);
    assert_true(is(rate, "way", way) && json_is_true(json_object_get(rate, "verified")));
    assert_true(number_of(rate, "commands_per_s") > 0 && number_of(rate, "completed_per_s") > 0);
    assert_true(number_of(rate, "mean_us") > 0 && number_of(rate, "median_us") <= number_of(rate, "p99_us"));
    return rate;
}

static void test_mapped_memory_beside_bare_kernels(void **state)
{
    (void)state;
    const struct bench_options options = small(2, "mapped", NULL);
    json_t *json = capture_json(&options);
    assert_true(is(json_object_get(json, "config"), "device", "cuda"));
    assert_int_equal(json_array_size(json_object_get(json, "results")), 3 * 3 * 2 + 2);
    assert_operations(json, "mapped", "device", "bare kernel");
    assert_true(number_of(row_of(json, "put", "mapped", "block", 4096), "gbps") > 0);
    assert_baseline(row_of(json, "stream_put", "mapped", "stream", 4096), "cuMemcpyAsync");
    assert_int_equal(json_array_size(json_object_get(json, "commands")), 0);
    json_decref(json);
}

static void test_commands_inside_a_node(void **state)
{
    (void)state;
    const struct bench_options options = small(2, "proxy", NULL);
    json_t *json = capture_json(&options);
    assert_int_equal(json_array_size(json_object_get(json, "results")), 3 * 3 * 2);
    assert_operations(json, "proxy", "device", "bare kernel");
    const json_t *rate = rate_of(json, 0, 1, "proxy");
    assert_true(number_of(rate, "rings") == 1);
    assert_null(json_object_get(rate, "request_bytes"));
    json_decref(json);
}

/* A rank has as many rings as peers at most. */
static void test_commands_of_several_rings(void **state)
{
    (void)state;
    const struct bench_options options = small(5, "proxy", "commands");
    json_t *json = capture_json(&options);
    assert_int_equal(json_array_size(json_object_get(json, "results")), 0);
    assert_true(number_of(rate_of(json, 0, 2, "proxy"), "rings") == 1);
    assert_true(number_of(rate_of(json, 1, 2, "proxy"), "rings") == 4);
    json_decref(json);
}

#ifdef HAVE_FABRIC
static void test_commands_between_nodes(void **state)
{
    (void)state;
    struct bench_options options = small(2, "proxy", "put,put_signal");
    options.nodes = 2;
    json_t *json = capture_json(&options);
    assert_int_equal(json_array_size(json_object_get(json, "results")), 2 * 3 * 2);
    assert_null(json_object_get(row_of(json, "put_signal", "proxy", "warp", 8), "baseline"));
    json_decref(json);
}
#endif

#ifdef HAVE_GDA
/* A word travels in one block of 64 bytes. Bytes a second are not told. */
static void test_requests(void **state)
{
    (void)state;
    const struct bench_options options = small(2, "gda", NULL);
    setenv("EXPAR_TRANSPORTS", "p2p", 1);
    json_t *json = capture_json(&options);
    assert_string_equal(getenv("EXPAR_TRANSPORTS"), "p2p");
    assert_null(getenv("EXPAR_GDA_NIC"));
    unsetenv("EXPAR_TRANSPORTS");
    assert_int_equal(json_array_size(json_object_get(json, "results")), 3 * 3 * 2);
    assert_operations(json, "gda", "pinned", NULL);
    assert_null(json_object_get(row_of(json, "put", "gda", "block", 4096), "gbps"));
    const json_t *rate = rate_of(json, 0, 1, "gda");
    assert_true(number_of(rate, "requests") == 1 && number_of(rate, "request_bytes") == 64);
    assert_true(number_of(rate, "doorbells") > 0 && number_of(rate, "doorbells") <= 1);
    assert_true(number_of(rate, "device_us") > 0);
    assert_null(json_object_get(rate, "rings"));
    json_decref(json);
}
#endif

static void test_other_forms(void **state)
{
    (void)state;
    int code;
    struct bench_options options = small(2, "proxy", "put,commands");
    options.rma.num_sizes = 1;
    options.format = BENCH_CSV;
    char *text = capture(1, &options, &code);
    assert_int_equal(code, 0);
    assert_non_null(strstr(text, "op,way,memory,scope,ranks,nodes,bytes,median_us,"));
    assert_non_null(strstr(text, "\nput,proxy,device,block,2,1,8,"));
    assert_non_null(strstr(text, "\ncommand,proxy,,,2,1,8,"));
    for (const char *line = text; *line; line = strchr(line, '\n') + 1) {
        int commas = 0;
        for (const char *at = line; *at != '\n'; at++)
            commas += *at == ',';
        assert_int_equal(commas, 23);
    }
    free(text);
    options.format = BENCH_TABLE;
    text = capture(1, &options, &code);
    assert_int_equal(code, 0);
    assert_non_null(strstr(text, "\nput "));
    assert_non_null(strstr(text, "\nproxy "));
    free(text);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mapped_memory_beside_bare_kernels),
        cmocka_unit_test(test_commands_inside_a_node),
        cmocka_unit_test(test_commands_of_several_rings),
#ifdef HAVE_FABRIC
        cmocka_unit_test(test_commands_between_nodes),
#endif
#ifdef HAVE_GDA
        cmocka_unit_test(test_requests),
#endif
        cmocka_unit_test(test_other_forms),
    };
    num_gpus = gpus_count(1);
    if (num_gpus < 1) return GPUS_SKIP;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

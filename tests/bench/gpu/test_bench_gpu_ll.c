/* SPDX-License-Identifier: Apache-2.0 */
/* The benchmark of low-latency mode on GPUs, also on those that the CPU simulates: every row is there and verified,
 * with what it is compared with, and counts are right. Times are never judged. */
#include "bench/frame/routing.h"
#include "bench/low_latency/format.h"
#include "capture.h"
#include "cuda/gpus.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { TOPK = 3, EXPERTS = 6 };

static int32_t num_gpus;

static struct bench_options small(int ranks, int gpus)
{
    struct bench_options options;
    bench_options_init(&options);
    options.dispatch = options.combine = options.cuda = options.ll.wanted = true;
    options.num_ranks = ranks;
    options.num_gpus = num_gpus < gpus ? num_gpus : gpus;
    options.hidden = 256;
    options.topk = TOPK;
    options.experts = EXPERTS;
    options.iters = 1;
    options.warmup = 0;
    options.workers[0] = 2;
    options.format = BENCH_JSON;
    return options;
}

static void add_format_named(struct bench_options *options, const char *name)
{
    int f = 0;
    while (strcmp(ll_formats[f].name, name) != 0)
        f++;
    options->ll.formats[options->ll.num_formats++] = f;
}

static const char *text_of(const json_t *object, const char *name)
{
    return json_string_value(json_object_get(object, name));
}

static double number_of(const json_t *object, const char *name)
{
    const json_t *number = json_object_get(object, name);
    if (!json_is_number(number)) fail_msg("no number %s", name);
    return json_number_value(number);
}

/* Mean over ranks of the messages that go to them, and of the rows of their experts. */
static void count_traffic(int ranks, int tokens, double *messages, double *rows)
{
    const struct routing_shape shape = {.num_ranks = ranks, .tokens = tokens, .topk = TOPK, .experts = EXPERTS};
    char error[256];
    int32_t *routing = routing_make("uniform", &shape, 1, error, sizeof error);
    assert_non_null(routing);
    *messages = *rows = 0;
    for (int t = 0; t < ranks * tokens; t++)
        for (int rank = 0; rank < ranks; rank++) {
            int here = 0;
            for (int k = 0; k < TOPK; k++)
                here += routing[t * TOPK + k] / (EXPERTS / ranks) == rank;
            *rows += (double)here / ranks;
            *messages += (double)(here > 0) / ranks;
        }
    free(routing);
}

/* Spans that are there and make up the kernel's time, which in one iteration is no median of another call. */
static void assert_breakdown(const json_t *breakdown, double kernel_us, int ranks, bool sends)
{
    static const char *const spans[] = {"send_us", "warps_us", "ranks_us", "wire_us", "place_us", "close_us"};
    double sum = 0;
    assert_int_equal(json_object_size(breakdown), 8);
    for (size_t i = 0; i < sizeof spans / sizeof *spans; i++) {
        assert_true(number_of(breakdown, spans[i]) >= 0);
        sum += number_of(breakdown, spans[i]);
    }
    assert_true(kernel_us > 0 && sum > kernel_us * 0.999 && sum < kernel_us * 1.001);
    assert_in_range(number_of(breakdown, "start_us") * 1000, 0, kernel_us * 1001);
    if (sends) {
        assert_in_range(number_of(breakdown, "late_rank"), 0, ranks - 1);
        assert_true(number_of(breakdown, "place_us") + number_of(breakdown, "close_us") < kernel_us);
    } else {
        assert_true(json_is_null(json_object_get(breakdown, "late_rank")));
    }
}

/* Its kernel waits for nobody. One rank alone has messages to nobody, but adds rows up for itself (reduced). */
static void assert_limit(const json_t *result, int ranks)
{
    const json_t *breakdown = json_object_get(result, "copy_limit_breakdown");
    const char *sum = text_of(result, "sum");
    const bool sends = ranks > 1 || (sum && strcmp(sum, "reduced") == 0);
    assert_breakdown(breakdown, number_of(result, "copy_limit_kernel_us"), ranks, sends);
    assert_true(number_of(breakdown, "wire_us") == 0);
    assert_true(sends || number_of(breakdown, "place_us") > 0);
}

static void assert_no_limit(const json_t *result)
{
    assert_null(json_object_get(result, "copy_limit_kernel_us"));
    assert_null(json_object_get(result, "copy_limit_breakdown"));
}

/* Columns beside each call: the limit, the round trip where there are two ranks, the launch, and where the time goes.
   */
static void assert_compared(const json_t *result, int ranks)
{
    const bool whole = strcmp(text_of(result, "phase"), "call") == 0,
               sends = strcmp(text_of(result, "phase"), "receive");
    assert_true(json_is_true(json_object_get(result, "verified")));
    assert_true(number_of(result, "median_us") > 0 && number_of(result, "launch_us") > 0);
    assert_breakdown(json_object_get(result, "breakdown"), number_of(result, "kernel_us"), ranks, sends);
    if (whole) {
        assert_true(number_of(result, "copy_limit_us") > 0 && number_of(result, "fraction_of_copy_limit") > 0);
        assert_limit(result, ranks);
    } else {
        assert_true(json_is_null(json_object_get(result, "copy_limit_us")));
        assert_no_limit(result);
    }
    if (ranks > 1) assert_true(number_of(result, "raw_round_trip_us") >= 0);
    if (ranks == 1) assert_true(json_is_null(json_object_get(result, "raw_round_trip_us")));
}

static void assert_is(const json_t *result, const char *what, const char *phase, const char *format, int tokens,
                      double messages)
{
    char name[64];
    const char *sum = text_of(result, "sum");
    snprintf(name, sizeof name, "%s%s%s", text_of(result, "op"), sum ? " " : "", sum ? sum : "");
    assert_string_equal(name, what);
    assert_string_equal(text_of(result, "phase"), phase);
    assert_string_equal(text_of(result, "format"), format);
    assert_int_equal(number_of(result, "tokens"), tokens);
    assert_int_equal(number_of(result, "sms"), 2);
    assert_true(number_of(result, "messages") > messages - 0.01 && number_of(result, "messages") < messages + 0.01);
}

/* Formats and token counts one after another; of each the dispatch, then both sums. */
static void every_row_is_there(void **state)
{
    (void)state;
    static const int tokens[] = {1, 2, 4};
    struct bench_options options = small(2, 2);
    options.num_tokens = 3;
    for (int i = 0; i < 3; i++)
        options.tokens[i] = tokens[i];
    add_format_named(&options, "bf16");
    add_format_named(&options, "fp8");
    add_format_named(&options, "logfmt");
    add_format_named(&options, "nvfp4");
    json_t *json = capture_json(&options), *list = json_object_get(json, "results");
    assert_int_equal(json_array_size(list), 3 * (3 + 1 + 1 + 1));
    for (int t = 0; t < 3; t++) {
        double messages, rows;
        count_traffic(2, tokens[t], &messages, &rows);
        const size_t first = (size_t)t * 3;
        assert_is(json_array_get(list, first), "dispatch", "call", "bf16", tokens[t], messages);
        assert_is(json_array_get(list, first + 1), "combine exact", "call", "bf16", tokens[t], rows);
        assert_is(json_array_get(list, first + 2), "combine reduced", "call", "bf16", tokens[t], messages);
        assert_is(json_array_get(list, 9 + (size_t)t), "dispatch", "call", "fp8", tokens[t], messages);
        assert_is(json_array_get(list, 12 + (size_t)t), "combine exact", "call", "logfmt", tokens[t], rows);
        assert_is(json_array_get(list, 15 + (size_t)t), "dispatch", "call", "nvfp4", tokens[t], messages);
    }
    for (size_t i = 0; i < json_array_size(list); i++)
        assert_compared(json_array_get(list, i), 2);
    assert_string_equal(text_of(json_object_get(json, "config"), "device"), "cuda");
    assert_true(json_array_size(json_object_get(json_object_get(json, "machine"), "gpus")) > 0);
    json_decref(json);
}

/* Two simulated nodes: rows that leave a node are counted, and the bare puts of the same run are the limit. */
static void nodes_are_told_apart(void **state)
{
    (void)state;
    struct bench_options options = small(4, 1);
    options.nodes = 2;
    options.experts = 8;
    options.tokens[0] = 3;
    json_t *json = capture_json(&options), *list = json_object_get(json, "results");
    assert_int_equal(number_of(json_object_get(json, "config"), "nodes"), 2);
    assert_int_equal(json_array_size(list), 3);
    for (size_t i = 0; i < 3; i++) {
        const json_t *result = json_array_get(list, i), *network = json_object_get(result, "network"), *link;
        double messages = 0;
        size_t l;
        assert_true(json_is_true(json_object_get(result, "verified")));
        assert_string_equal(text_of(result, "path"), "network");
        assert_true(number_of(result, "network_limit_us") > 0 && number_of(result, "round_trip_us") > 0);
        json_array_foreach(json_object_get(result, "links"), l, link) if (!strcmp(text_of(link, "class"), "network"))
            messages += number_of(link, "messages");
        assert_true(messages > 0 && fabs(number_of(network, "rows") * 4 - messages) < 0.01);
        assert_true(number_of(network, "messages") > number_of(network, "rows"));
        assert_true(number_of(network, "bytes") > number_of(network, "rows") * 2 * 256);
    }
    json_decref(json);
}

/* Calls in two phases, ranks that share a GPU, and one that is alone, without tokens too. */
static void halves_and_shared_gpus(void **state)
{
    (void)state;
    static const char *const whats[] = {"dispatch", "combine exact", "combine reduced"};
    struct bench_options options = small(3, 1);
    double messages, rows;
    options.tokens[0] = 3;
    options.ll.phases = BENCH_HOOKED;
    json_t *json = capture_json(&options), *list = json_object_get(json, "results");
    count_traffic(3, 3, &messages, &rows);
    assert_int_equal(json_array_size(list), 6);
    for (size_t i = 0; i < 6; i++) {
        const json_t *result = json_array_get(list, i);
        assert_is(result, whats[i / 2], i % 2 ? "receive" : "send", "bf16", 3, i / 2 == 1 ? rows : messages);
        assert_compared(result, 3);
    }
    json_decref(json);
    options = small(1, 1);
    options.num_tokens = 2;
    options.tokens[0] = 0;
    options.tokens[1] = 5;
    json = capture_json(&options);
    list = json_object_get(json, "results");
    assert_int_equal(json_array_size(list), 6);
    for (size_t i = 3; i < 6; i++)
        assert_compared(json_array_get(list, i), 1);
    json_decref(json);
}

/* Without clocks there is nothing that they tell; all else is there. */
static void stamps_are_left_out(void **state)
{
    (void)state;
    struct bench_options options = small(2, 2);
    options.tokens[0] = 2;
    options.unstamped = true;
    json_t *json = capture_json(&options), *list = json_object_get(json, "results");
    assert_int_equal(json_array_size(list), 3);
    for (size_t i = 0; i < 3; i++) {
        const json_t *result = json_array_get(list, i);
        assert_true(json_is_true(json_object_get(result, "verified")));
        assert_true(number_of(result, "median_us") > 0 && number_of(result, "copy_limit_us") > 0);
        assert_null(json_object_get(result, "kernel_us"));
        assert_null(json_object_get(result, "breakdown"));
        assert_no_limit(result);
    }
    json_decref(json);
}

/* A dispatch and its combine back to back, in whole calls and by hooks, with no clocks in their kernels. */
static void decodes_are_verified(void **state)
{
    (void)state;
    struct bench_options options = small(2, 2);
    options.tokens[0] = 2;
    options.patterns = BENCH_STEADY | BENCH_DECODE;
    options.ll.reduced = false;
    add_format_named(&options, "fp8");
    json_t *json = capture_json(&options), *list = json_object_get(json, "results");
    static const char *const expected[3][3] = {
        {"dispatch", "call", "steady"}, {"pair", "call", "decode"}, {"pair", "hooks", "decode"}};
    assert_int_equal(json_array_size(list), 3);
    for (size_t i = 0; i < 3; i++) {
        const json_t *result = json_array_get(list, i);
        assert_string_equal(text_of(result, "op"), expected[i][0]);
        assert_string_equal(text_of(result, "phase"), expected[i][1]);
        assert_string_equal(text_of(result, "pattern"), expected[i][2]);
        assert_true(json_is_true(json_object_get(result, "verified")));
        assert_true(number_of(result, "median_us") > 0 && number_of(result, "host_us") > 0);
        assert_null(json_object_get(result, "launch_us"));
        assert_null(json_object_get(result, "breakdown"));
    }
    json_decref(json);
}

static int count_of(const char *text, char what, size_t length)
{
    int count = 0;
    for (size_t i = 0; i < length; i++)
        count += text[i] == what;
    return count;
}

/* As many values in each line as names in the first. */
static void csv_is_whole(void **state)
{
    (void)state;
    struct bench_options options = small(2, 2);
    int code, lines = 0;
    options.tokens[0] = 2;
    options.ll.phases = BENCH_WHOLE_AND_HOOKED;
    options.patterns = BENCH_ISOLATED | BENCH_DECODE;
    options.format = BENCH_CSV;
    char *text = capture(STDOUT_FILENO, &options, &code);
    const int commas = count_of(text, ',', strcspn(text, "\n"));
    assert_int_equal(code, 0);
    assert_non_null(strstr(text, ",sms,verified,launch_us,kernel_us,start_us,send_us,warps_us,ranks_us,wire_us,"));
    assert_non_null(strstr(text, ",late_rank,copy_limit_kernel_us,copy_limit_start_us,copy_limit_send_us,"));
    assert_non_null(strstr(text, ",copy_limit_late_rank,pattern,host_us,host_p99_us\n"));
    for (const char *line = text; *line; line += strcspn(line, "\n") + 1, lines++)
        assert_int_equal(count_of(line, ',', strcspn(line, "\n")), commas);
    assert_int_equal(lines, 1 + 9 + 4);
    free(text);
}

static void sharing_is_told(void **state)
{
    (void)state;
    struct bench_options options = small(3, 1);
    int code;
    options.tokens[0] = 1;
    options.combine = false;
    char *text = capture(STDERR_FILENO, &options, &code);
    assert_int_equal(code, 0);
    assert_non_null(strstr(text, "3 ranks on 1 GPU: up to 3 share one, so that times mean little"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_is_there),   cmocka_unit_test(halves_and_shared_gpus),
        cmocka_unit_test(stamps_are_left_out),  cmocka_unit_test(csv_is_whole),
        cmocka_unit_test(decodes_are_verified), cmocka_unit_test(sharing_is_told),
        cmocka_unit_test(nodes_are_told_apart),
    };
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    num_gpus = gpus_count(1);
    if (num_gpus == 0) return GPUS_SKIP;
    return cmocka_run_group_tests(tests, NULL, NULL);
}

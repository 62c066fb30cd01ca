/* SPDX-License-Identifier: Apache-2.0 */
/* expar bench ll as users run it: the members of its JSON, messages, its other forms, its rejections. Times are never
 * judged. */
#include "bench/frame/routing.h"
#include "printed.h"
#include "shell.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Arguments whose rows can be coded. */
#define CODED " --hidden 256 --topk 4 --experts 8 --iters 3 --warmup 1 "

static void assert_near(double value, double expected)
{
    assert_true(value > expected - 1e-3 * expected - 1e-6);
    assert_true(value < expected + 1e-3 * expected + 1e-6);
}

static void assert_sound(const json_t *result, int ranks)
{
    assert_string_equal(results_text(result, "mode"), "low_latency");
    assert_string_equal(results_text(result, "path"), "direct");
    assert_true(results_real(result, "min_us") <= results_real(result, "median_us"));
    assert_true(results_real(result, "median_us") <= results_real(result, "p99_us"));
    assert_true(results_real(result, "gbps") >= 0);
    assert_true(json_is_true(json_object_get(result, "verified")));
    if (ranks > 1) {
        assert_true(results_real(result, "round_trip_us") > 0);
        assert_true(results_real(result, "raw_round_trip_us") > 0);
    } else {
        assert_true(json_is_null(json_object_get(result, "round_trip_us")));
        assert_true(json_is_null(json_object_get(result, "raw_round_trip_us")));
    }
    if (strcmp(results_text(result, "phase"), "call") != 0 || results_real(result, "threads") != 1) {
        assert_true(json_is_null(json_object_get(result, "copy_limit_us")));
        return;
    }
    double limit = results_real(result, "copy_limit_us");
    assert_near(results_real(result, "fraction_of_copy_limit"), limit / results_real(result, "median_us"));
    const json_t *copies = json_object_get(result, "copies_us");
    assert_true(json_array_size(copies) >= 1);
    for (size_t i = 0; i < json_array_size(copies); i++)
        assert_true(json_real_value(json_array_get(copies, i)) >= limit);
}

static const json_t *result_at(const json_t *json, size_t i)
{
    const json_t *result = json_array_get(results_list(json), i);
    assert_non_null(result);
    return result;
}

static void assert_is(const json_t *result, const char *op, const char *sum, const char *phase, const char *format)
{
    assert_string_equal(results_text(result, "op"), op);
    assert_string_equal(results_text(result, "phase"), phase);
    assert_string_equal(results_text(result, "format"), format);
    if (sum)
        assert_string_equal(results_text(result, "sum"), sum);
    else
        assert_true(json_is_null(json_object_get(result, "sum")));
}

/* Calls of more threads have no copy roofline: its copies are one thread's. */
static void threads_of_a_rank(void **state)
{
    (void)state;
    json_t *json = results_of("ll dispatch combine -n 2 --tokens 9 --threads 1,2 --sum=exact" SMALL);
    const json_t *threads = json_object_get(json_object_get(json, "config"), "threads");
    assert_int_equal(json_array_size(threads), 2);
    assert_int_equal(json_array_size(results_list(json)), 4);
    for (size_t i = 0; i < 4; i++) {
        assert_is(result_at(json, i), i % 2 ? "combine" : "dispatch", i % 2 ? "exact" : NULL, "call", "bf16");
        assert_int_equal(results_real(result_at(json, i), "threads"), i < 2 ? 1 : 2);
        assert_sound(result_at(json, i), 2);
    }
    json_decref(json);
}

/* Mean over ranks of the pairs (token, rank) that a uniform routing has, walked through in the plainest way. */
static double messages_of(int ranks, int tokens)
{
    const struct routing_shape shape = {.num_ranks = ranks, .tokens = tokens, .topk = 4, .experts = 8};
    char error[256];
    int32_t *routing = routing_make("uniform", &shape, 1, error, sizeof error);
    int64_t count = 0;
    assert_non_null(routing);
    for (int t = 0; t < ranks * tokens; t++)
        for (int rank = 0; rank < ranks; rank++) {
            int goes = 0;
            for (int k = 0; k < 4; k++)
                goes |= routing[t * 4 + k] / (8 / ranks) == rank;
            count += goes;
        }
    free(routing);
    return (double)count / ranks;
}

/* One message for each (token, destination rank), as the library counts them; K rows back for a token, or as many as
   there were messages. */
static void messages_are_one_for_each_token_and_rank(void **state)
{
    (void)state;
    static const int ranks[] = {1, 2, 4}, tokens[] = {0, 1, 7};
    for (int i = 0; i < 3; i++) {
        char arguments[128];
        snprintf(arguments, sizeof arguments, "ll -n %d --tokens 0,1,7" SMALL, ranks[i]);
        json_t *json = results_of(arguments);
        assert_int_equal(json_array_size(results_list(json)), 9);
        for (int t = 0; t < 3; t++) {
            const json_t *dispatch = result_at(json, (size_t)t * 3), *exact = result_at(json, (size_t)t * 3 + 1),
                         *reduced = result_at(json, (size_t)t * 3 + 2);
            const double messages = messages_of(ranks[i], tokens[t]);
            assert_is(dispatch, "dispatch", NULL, "call", "bf16");
            assert_is(exact, "combine", "exact", "call", "bf16");
            assert_is(reduced, "combine", "reduced", "call", "bf16");
            assert_true(results_real(dispatch, "messages") == messages);
            assert_true(results_real(exact, "messages") == 4.0 * tokens[t]);
            assert_true(results_real(reduced, "messages") == messages);
            assert_true(results_real(dispatch, "bytes") == 4.0 * tokens[t] * 64 * 2);
            assert_true(results_real(reduced, "bytes") == messages * 64 * 2);
            for (size_t r = 0; r < 3; r++) {
                assert_int_equal(results_real(result_at(json, (size_t)t * 3 + r), "tokens"), tokens[t]);
                assert_sound(result_at(json, (size_t)t * 3 + r), ranks[i]);
            }
        }
        json_decref(json);
    }
}

/* All experts of a token on one rank: one message, whatever K is. */
static void experts_of_one_rank_are_one_message(void **state)
{
    (void)state;
    json_t *json = results_of("ll dispatch -n 1 --tokens 10 --dtype f32" SMALL);
    assert_int_equal(json_array_size(results_list(json)), 1);
    assert_true(results_real(result_at(json, 0), "messages") == 10);
    assert_true(results_real(result_at(json, 0), "bytes") == 10 * 4 * 64 * 4);
    assert_string_equal(results_text(result_at(json, 0), "dtype"), "f32");
    json_decref(json);
}

static void hooks_have_two_times(void **state)
{
    (void)state;
    json_t *json = results_of("ll -n 2 --tokens 5 --hook=both --sum exact" SMALL);
    static const char *const phases[] = {"call", "send", "receive"};
    assert_int_equal(json_array_size(results_list(json)), 6);
    for (size_t i = 0; i < 6; i++) {
        assert_is(result_at(json, i), i < 3 ? "dispatch" : "combine", i < 3 ? NULL : "exact", phases[i % 3], "bf16");
        assert_sound(result_at(json, i), 2);
    }
    json_decref(json);
    json = results_of("ll combine -n 2 --tokens 5 --hook --sum reduced" SMALL);
    assert_int_equal(json_array_size(results_list(json)), 2);
    for (size_t i = 0; i < 2; i++)
        assert_is(result_at(json, i), "combine", "reduced", phases[i + 1], "bf16");
    assert_string_equal(results_text(json_object_get(json, "config"), "hook"), "yes");
    assert_string_equal(results_text(json_object_get(json, "config"), "sum"), "reduced");
    json_decref(json);
}

/* Rows that are coded are dispatched, and compared with the definition; LogFMT's are combined by exact sums. */
static void every_format_is_verified(void **state)
{
    (void)state;
    json_t *json = results_of("ll -n 2 --tokens 9 --dtype bf16,f32 --format "
                              "f16,fp8,fp8_round,fp8_ue8m0,int8,nvfp4,logfmt" CODED);
    static const struct {
        const char *op, *sum, *format, *dtype;
        double element_bytes;
    } expected[] = {{"dispatch", NULL, "f16", "f16", 2},
                    {"combine", "exact", "f16", "f16", 2},
                    {"combine", "reduced", "f16", "f16", 2},
                    {"dispatch", NULL, "fp8", "bf16", 1 + 4.0 / 128},
                    {"dispatch", NULL, "fp8", "f32", 1 + 4.0 / 128},
                    {"dispatch", NULL, "fp8_round", "bf16", 1 + 4.0 / 128},
                    {"dispatch", NULL, "fp8_round", "f32", 1 + 4.0 / 128},
                    {"dispatch", NULL, "fp8_ue8m0", "bf16", 1 + 4.0 / 256},
                    {"dispatch", NULL, "fp8_ue8m0", "f32", 1 + 4.0 / 256},
                    {"dispatch", NULL, "int8", "bf16", 1 + 4.0 / 128},
                    {"dispatch", NULL, "int8", "f32", 1 + 4.0 / 128},
                    {"dispatch", NULL, "nvfp4", "bf16", 0.5 + 1.0 / 16},
                    {"dispatch", NULL, "nvfp4", "f32", 0.5 + 1.0 / 16},
                    {"combine", "exact", "logfmt", "bf16", 2},
                    {"combine", "exact", "logfmt", "f32", 4}};
    const size_t count = sizeof expected / sizeof *expected;
    assert_int_equal(json_array_size(results_list(json)), count);
    for (size_t i = 0; i < count; i++) {
        const json_t *result = result_at(json, i);
        assert_is(result, expected[i].op, expected[i].sum, "call", expected[i].format);
        assert_string_equal(results_text(result, "dtype"), expected[i].dtype);
        assert_sound(result, 2);
        if (i == 2) continue;
        assert_near(results_real(result, "bytes"), 9 * 4 * 256 * expected[i].element_bytes);
    }
    json_decref(json);
}

struct expected {
    const char *op, *sum, *phase, *pattern;
};

static void assert_patterns(const char *arguments, const char *format, const struct expected *expected, size_t count)
{
    json_t *json = results_of(arguments);
    assert_int_equal(json_array_size(results_list(json)), count);
    for (size_t i = 0; i < count; i++) {
        const json_t *result = result_at(json, i);
        assert_is(result, expected[i].op, expected[i].sum, expected[i].phase, format);
        assert_string_equal(results_text(result, "pattern"), expected[i].pattern);
        assert_true(json_is_true(json_object_get(result, "verified")));
        if (!strcmp(expected[i].pattern, "isolated")) {
            assert_sound(result, 2);
            assert_null(json_object_get(result, "host_us"));
            continue;
        }
        assert_true(results_real(result, "min_us") <= results_real(result, "median_us"));
        assert_true(results_real(result, "median_us") <= results_real(result, "p99_us"));
        assert_true(results_real(result, "host_us") > 0);
        assert_true(json_is_null(json_object_get(result, "copy_limit_us")));
    }
    json_decref(json);
}

static void patterns_stand_beside_isolated_calls(void **state)
{
    (void)state;
    static const struct expected all[] = {
        {"dispatch", NULL, "call", "isolated"},     {"combine", "exact", "call", "isolated"},
        {"combine", "reduced", "call", "isolated"}, {"dispatch", NULL, "call", "steady"},
        {"combine", "exact", "call", "steady"},     {"combine", "reduced", "call", "steady"},
        {"pair", "exact", "call", "decode"},        {"pair", "exact", "hooks", "decode"},
        {"pair", "reduced", "call", "decode"},      {"pair", "reduced", "hooks", "decode"}};
    assert_patterns("ll -n 2 --tokens 5 --pattern all" SMALL, "bf16", all, 10);
    assert_patterns("ll -n 2 --tokens 0 --pattern all" SMALL, "bf16", all, 10);
    assert_patterns("ll -n 2 --tokens 5 --pattern decode --hook --sum=exact" SMALL, "bf16", &all[7], 1);
    assert_patterns("ll dispatch -n 2 --tokens 5 --pattern all --hook=no" SMALL, "bf16",
                    (struct expected[]){all[0], all[3]}, 2);
}

static void pairs_have_a_period(void **state)
{
    (void)state;
    json_t *json = results_of("ll -n 2 --tokens 5 --pattern period --pairs 9 --format bf16,fp8,logfmt" CODED);
    static const char *const sums[] = {"exact", "reduced", "exact", "reduced", "exact"};
    assert_int_equal(json_array_size(results_list(json)), 5);
    for (size_t i = 0; i < 5; i++) {
        const json_t *pair = json_array_get(results_list(json), i);
        results_assert_period(pair);
        assert_string_equal(results_text(pair, "sum"), sums[i]);
    }
    json_decref(json);
}

/* An exact combine has a row for each expert, and a reduced one a row for each message. */
static void links_are_those_of_the_messages(void **state)
{
    (void)state;
    json_t *json = results_of("ll -n 2 --tokens 3 --topk 4 --experts 4 --hidden 128 --iters 2 --format bf16");
    static const int64_t messages[] = {6, 12, 6}; /* each token goes to both ranks, with two experts on each */
    for (size_t i = 0; i < 3; i++) {
        const json_t *result = json_array_get(results_list(json), i);
        assert_true(results_links(result, "memory", "messages") == messages[i]);
        assert_true(results_links(result, NULL, "bytes") == messages[i] * 128 * 2);
    }
    json_decref(json);
    json = results_of("ll dispatch -n 2 --tokens 3 --topk 4 --experts 4 --hidden 128 --iters 2 --format fp8");
    assert_true(results_links(json_array_get(results_list(json), 0), NULL, "bytes") == 6 * (128 + 4));
    json_decref(json);
    json = results_of("ll combine -n 2 --tokens 3 --topk 4 --experts 4 --hidden 128 --iters 2 --format logfmt");
    assert_true(results_links(json_array_get(results_list(json), 0), NULL, "bytes") == 12 * 168);
    json_decref(json);
}

/* A decode has rows of both ways, whatever the format codes of them. */
static void decodes_of_formats(void **state)
{
    (void)state;
    static const struct expected pairs[] = {{"pair", "exact", "call", "decode"},
                                            {"pair", "exact", "hooks", "decode"},
                                            {"pair", "reduced", "call", "decode"},
                                            {"pair", "reduced", "hooks", "decode"}};
    assert_patterns("ll -n 2 --tokens 9 --pattern decode --format fp8" CODED, "fp8", pairs, 4);
    assert_patterns("ll -n 2 --tokens 9 --pattern decode --format logfmt" CODED, "logfmt", pairs, 2);
}

static void routings_and_seeds(void **state)
{
    (void)state;
    static const char *const variants[] = {"--routing zipf", "--routing onehot", "--routing grouped --seed 9"};
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        char arguments[192];
        snprintf(arguments, sizeof arguments, "ll -n 4 --tokens 33 %s" SMALL, variants[i]);
        json_t *json = results_of(arguments);
        for (size_t r = 0; r < 3; r++)
            assert_sound(result_at(json, r), 4);
        json_decref(json);
    }
}

static void other_forms_of_output(void **state)
{
    (void)state;
    shell_expect("$EXPAR bench ll combine -n 2 --tokens 4 --sum exact" SMALL "--csv", 0,
                 "\ncombine,low_latency,exact,call,bf16,bf16,direct,2,4,64,4,8,", "");
    shell_expect("$EXPAR bench ll -n 2 --tokens 4" SMALL, 0, "low-latency mode, 2 ranks, ", "");
    shell_expect("$EXPAR bench ll -n 2 --tokens 4" SMALL, 0, "combine reduced", "");
    shell_expect("$EXPAR bench ll -n 2 --tokens 4" SMALL, 0, "  yes\n", "");
    shell_expect("$EXPAR bench ll -n 2 --tokens 4 --pattern decode" SMALL, 0, "\npair exact, hooks ", "");
    shell_expect("$EXPAR bench ll -n 2 --tokens 4 --pattern decode" SMALL "--csv", 0,
                 "_limit_speedup_over_mpi,pattern,host_us,host_p99_us\npair,low_latency,exact,call,bf16,", "");
    shell_expect("$EXPAR run -n 2 --no-prefix -- $EXPAR bench ll --tokens 4 --hidden 64 --topk 4 --iters 3", 0,
                 "low-latency mode, 2 ranks, rows of 64 elements, top-4 of 64 experts", "");
}

static void bad_options_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *arguments, *message;
    } cases[] = {
        {"--path queue", "--path: ll has none"},
        {"--cached", "--cached: ll has none"},
        {"--sms 2", "--sms: ll has none"},
        {"--sizes 8", "--sizes: only with rma"},
        {"layout", "layout: ll has none"},
        {"--device cuda --threads 2", "--threads: only on the CPU"},
        {"--format fp9", "--format 'fp9': one of bf16|f16|f32|fp8|fp8_round|fp8_ue8m0|int8|nvfp4|logfmt is expected"},
        {"--format bf16,,fp8", "--format ''"},
        {"--format f32,f32,f32,f32,f32,f32,f32,f32,f32,f32", "more than 9"},
        {"--format fp8 --hidden 200", "--hidden 200: --format fp8 codes groups of 128"},
        {"combine --format fp8", "--format fp8: is not combined"},
        {"dispatch --format logfmt", "--format logfmt: is not dispatched"},
        {"--format logfmt --sum reduced", "--format logfmt: of exact sums only"},
        {"--dtype fp8", "--dtype fp8: ll takes bf16, f16 or f32 rows"},
        {"--sum all", "--sum 'all': one of exact|reduced|both is expected"},
        {"dispatch --sum exact", "--sum: only with combine"},
        {"--hook=maybe", "--hook 'maybe': one of no|yes|both is expected"},
        {"--pattern layer", "--pattern 'layer': with ll one of isolated|steady|decode|period|all is expected"},
        {"combine --pattern decode", "--pattern 'decode': both operations are expected"},
        {"--topk 33", "--topk 33: ll takes at most 32"},
        {"--tokens 65536", "--tokens 65536: ll takes at most 65535"},
        {"--hidden 7", "no multiple of 16"},
        {"--experts 9 -n 2", "--experts 9 is no multiple of -n 2"},
        {"--nodes 3 -n 4", "--nodes 3 does not divide -n 4"},
        {"--json --csv", "--json and --csv: one of them"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char command[256];
        snprintf(command, sizeof command, "CUDA_VISIBLE_DEVICES= $EXPAR bench ll %s", cases[i].arguments);
        struct shell_result result = shell(command);
        if (result.code == 0 || !strstr(result.err, cases[i].message))
            fail_msg("`%s` gave %d: %s", command, result.code, result.err);
        shell_free(&result);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_of_a_rank),
        cmocka_unit_test(messages_are_one_for_each_token_and_rank),
        cmocka_unit_test(experts_of_one_rank_are_one_message),
        cmocka_unit_test(hooks_have_two_times),
        cmocka_unit_test(every_format_is_verified),
        cmocka_unit_test(patterns_stand_beside_isolated_calls),
        cmocka_unit_test(pairs_have_a_period),
        cmocka_unit_test(links_are_those_of_the_messages),
        cmocka_unit_test(decodes_of_formats),
        cmocka_unit_test(routings_and_seeds),
        cmocka_unit_test(other_forms_of_output),
        cmocka_unit_test(bad_options_are_named),
    };
    return cmocka_run_group_tests(tests, shell_setup, shell_teardown);
}

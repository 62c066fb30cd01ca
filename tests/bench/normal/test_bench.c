/* SPDX-License-Identifier: Apache-2.0 */
/* expar bench as users run it: the members of its JSON, its other forms, its rejections. Times are never judged. */
#include "printed.h"
#include "shell.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void one_result_for_each_operation(void **state)
{
    (void)state;
    static const int ranks[] = {1, 2, 4};
    static const int tokens[] = {0, 1, 7};
    for (int i = 0; i < 9; i++) {
        char arguments[128];
        snprintf(arguments, sizeof arguments, "dispatch combine -n %d --tokens %d" SMALL, ranks[i / 3], tokens[i % 3]);
        json_t *json = results_of(arguments);
        const json_t *config = json_object_get(json, "config");
        assert_int_equal(json_array_size(results_list(json)), 2);
        assert_string_equal(results_text(json_array_get(results_list(json), 0), "op"), "dispatch");
        assert_string_equal(results_text(json_array_get(results_list(json), 1), "op"), "combine");
        for (size_t r = 0; r < 2; r++)
            results_assert_sound(json_array_get(results_list(json), r));
        assert_int_equal(results_real(config, "ranks"), ranks[i / 3]);
        assert_int_equal(results_real(config, "tokens"), tokens[i % 3]);
        assert_int_equal(results_real(config, "topk"), 4);
        assert_true(strlen(results_text(json_object_get(json, "machine"), "cpu")) > 0);
        json_decref(json);
    }
}

/* With one rank every token is received once. */
static void bytes_are_those_of_the_rows(void **state)
{
    (void)state;
    json_t *json = results_of("all -n 1 --tokens 10 --dtype f32" SMALL);
    for (size_t r = 0; r < 2; r++)
        assert_true(results_real(json_array_get(results_list(json), r), "bytes") == 10 * 64 * 4);
    json_decref(json);
}

static void every_dtype_and_routing_is_verified(void **state)
{
    (void)state;
    static const char *const variants[] = {"--dtype bf16 --routing zipf", "--dtype f16 --routing onehot",
                                           "--dtype f32 --routing grouped --seed 9", "--threads 2 --routing uniform",
                                           "--sms 3"};
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        char arguments[192];
        snprintf(arguments, sizeof arguments, "all -n 2 --tokens 33 %s" SMALL, variants[i]);
        json_t *json = results_of(arguments);
        for (size_t r = 0; r < 2; r++)
            results_assert_sound(json_array_get(results_list(json), r));
        json_decref(json);
    }
}

static void recorded_routing_fills_in_topk_and_experts(void **state)
{
    (void)state;
    json_t *json = results_of("dispatch -n 4 --tokens 16 --hidden 64 --iters 2 --routing " RECORDED_ROUTING);
    assert_true(results_real(json_object_get(json, "config"), "topk") >= 1);
    assert_int_equal((int)results_real(json_object_get(json, "config"), "experts") % 4, 0);
    results_assert_sound(json_array_get(results_list(json), 0));
    json_decref(json);
}

/* The name of a file may be hostile. */
static void names_cannot_steer_a_terminal(void **state)
{
    (void)state;
    struct shell_result result =
        shell("cp " RECORDED_ROUTING " \"$TMP/$(printf 'a\\033[2J').npy\" && $EXPAR bench dispatch -n 2 --tokens 2 "
              "--hidden 64 --iters 2 --routing \"$TMP/$(printf 'a\\033[2J').npy\"");
    assert_int_equal(result.code, 0);
    assert_null(strchr(result.out, '\033'));
    assert_non_null(strstr(result.out, "\\x1b[2J"));
    shell_free(&result);
}

static void all_paths_and_cached(void **state)
{
    (void)state;
    json_t *json = results_of("all -n 2 --tokens 5 --path all --cached=both" SMALL);
    static const char *const expected[6][3] = {{"dispatch", "direct", "no"}, {"dispatch", "direct", "yes"},
                                               {"combine", "direct", "no"},  {"dispatch", "queue", "no"},
                                               {"dispatch", "queue", "yes"}, {"combine", "queue", "no"}};
    assert_int_equal(json_array_size(results_list(json)), 6);
    for (size_t i = 0; i < 6; i++) {
        const json_t *result = json_array_get(results_list(json), i);
        assert_string_equal(results_text(result, "op"), expected[i][0]);
        assert_string_equal(results_text(result, "path"), expected[i][1]);
        assert_int_equal(json_is_true(json_object_get(result, "cached")), !strcmp(expected[i][2], "yes"));
        results_assert_sound(result);
    }
    json_decref(json);
}

static void sweeps_by_list_and_range(void **state)
{
    (void)state;
    static const int expected[] = {0, 3, 4, 8, 9};
    json_t *json = results_of("dispatch -n 2 --tokens 0,3..9" SMALL);
    assert_int_equal(json_array_size(results_list(json)), 5);
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(results_real(json_array_get(results_list(json), i), "tokens"), expected[i]);
    json_decref(json);
}

static void lists_of_dtypes_and_threads(void **state)
{
    (void)state;
    json_t *json =
        results_of("all -n 2 --tokens 9 --hidden 256 --topk 4 --experts 8 --iters 2 --dtype fp8,f32 --threads 1,2");
    static const struct {
        const char *op, *dtype;
        int threads;
    } expected[] = {{"dispatch", "f8e4m3", 1}, {"dispatch", "f8e4m3", 2}, {"dispatch", "f32", 1},
                    {"combine", "f32", 1},     {"dispatch", "f32", 2},    {"combine", "f32", 2}};
    assert_int_equal(json_array_size(results_list(json)), 6);
    for (size_t i = 0; i < 6; i++) {
        const json_t *result = json_array_get(results_list(json), i);
        assert_string_equal(results_text(result, "op"), expected[i].op);
        assert_string_equal(results_text(result, "dtype"), expected[i].dtype);
        assert_int_equal(results_real(result, "threads"), expected[i].threads);
        results_assert_sound(result);
    }
    json_decref(json);
}

/* Layout and notify have nothing to be compared with. */
static void layout_is_a_difference(void **state)
{
    (void)state;
    json_t *json = results_of("layout -n 2 --tokens 9" SMALL);
    const json_t *result = json_array_get(results_list(json), 0);
    assert_int_equal(json_array_size(results_list(json)), 1);
    assert_string_equal(results_text(result, "op"), "layout");
    assert_true(results_real(result, "min_us") <= results_real(result, "median_us"));
    assert_true(json_is_null(json_object_get(result, "copy_limit_us")));
    assert_true(json_is_null(json_object_get(result, "fraction_of_copy_limit")));
    assert_true(json_is_true(json_object_get(result, "verified")));
    json_decref(json);
    json = results_of("dispatch layout -n 2 --tokens 9 --cached" SMALL);
    assert_int_equal(json_array_size(results_list(json)), 2);
    assert_true(json_is_true(json_object_get(json_array_get(results_list(json), 0), "cached")));
    json_decref(json);
}

struct expected {
    const char *op, *pattern, *cached;
};

static void assert_is(const json_t *result, const struct expected *expected)
{
    assert_string_equal(results_text(result, "op"), expected->op);
    assert_string_equal(results_text(result, "pattern"), expected->pattern);
    assert_int_equal(json_is_true(json_object_get(result, "cached")), !strcmp(expected->cached, "yes"));
    assert_true(json_is_true(json_object_get(result, "verified")));
}

/* Calls of 2 ranks in 5 loops of 3: so many the buffer has counted between its two states, and nothing has grown. */
static void assert_loop(const json_t *result, int calls)
{
    const json_t *before = json_object_get(result, "buffer_before"), *after = json_object_get(result, "buffer_after");
    static const char *const same[] = {"growths", "other_blocks", "used_high_bytes", "reserved_high_bytes"};
    const double direct = results_real(after, "direct_calls") - results_real(before, "direct_calls");
    const double queue = results_real(after, "queue_calls") - results_real(before, "queue_calls");
    assert_int_equal(direct + queue, 2 * 5 * 3 * calls);
    assert_string_equal(results_text(result, "path"), queue > 0 ? "queue" : "direct");
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        assert_true(results_real(after, same[i]) >= results_real(before, same[i]));
    assert_true(results_real(result, "min_us") <= results_real(result, "median_us"));
    assert_true(results_real(result, "median_us") <= results_real(result, "p99_us"));
    assert_true(results_real(result, "host_us") > 0);
    assert_true(results_real(result, "host_us") <= results_real(result, "host_p99_us"));
    assert_true(json_is_null(json_object_get(result, "copy_limit_us")));
}

static void patterns_stand_beside_isolated_calls(void **state)
{
    (void)state;
    static const struct expected expected[] = {{"dispatch", "isolated", "no"}, {"dispatch", "isolated", "yes"},
                                               {"combine", "isolated", "no"},  {"dispatch", "steady", "no"},
                                               {"dispatch", "steady", "yes"},  {"combine", "steady", "no"},
                                               {"layer", "layer", "no"}};
    json_t *json = results_of("all -n 2 --tokens 9 --cached=both --pattern all" SMALL);
    const json_t *patterns = json_object_get(json_object_get(json, "config"), "pattern");
    assert_int_equal(json_array_size(patterns), 3);
    assert_int_equal(json_array_size(results_list(json)), 7);
    for (size_t i = 0; i < 7; i++) {
        const json_t *result = json_array_get(results_list(json), i);
        assert_is(result, &expected[i]);
        if (i < 3) results_assert_sound(result);
        if (i < 3) assert_null(json_object_get(result, "host_us"));
        if (i >= 3) assert_loop(result, i == 6 ? 2 : 1);
    }
    json_decref(json);
}

/* Rows without a combine have no layer; both paths have their loops. */
static void patterns_of_dtypes_and_paths(void **state)
{
    (void)state;
    static const struct expected expected[] = {{"dispatch", "steady", "yes"}, {"dispatch", "steady", "yes"},
                                               {"dispatch", "steady", "yes"}, {"combine", "steady", "no"},
                                               {"layer", "layer", "no"},      {"dispatch", "steady", "yes"},
                                               {"combine", "steady", "no"},   {"layer", "layer", "no"}};
    json_t *json =
        results_of("all -n 2 --tokens 7 --hidden 256 --topk 4 --experts 8 --iters 3 --cached --dtype fp8,f32 "
                   "--path all --pattern layer,steady");
    assert_int_equal(json_array_size(results_list(json)), 8);
    for (size_t i = 0; i < 8; i++) {
        const json_t *result = json_array_get(results_list(json), i);
        assert_is(result, &expected[i]);
        assert_string_equal(results_text(result, "dtype"), i < 2 ? "f8e4m3" : "f32");
        assert_loop(result, !strcmp(expected[i].op, "layer") ? 2 : 1);
    }
    assert_string_equal(results_text(json_array_get(results_list(json), 5), "path"), "queue");
    json_decref(json);
}

/* A dispatch and the combine of its rows, with a handle and without, back to back. */
static void pairs_have_a_period(void **state)
{
    (void)state;
    static const char *const paths[] = {"auto", "queue"};
    for (int i = 0; i < 2; i++) {
        char arguments[160];
        snprintf(arguments, sizeof arguments,
                 "all -n 2 --tokens 9 --cached=both --path %s --pairs 9 --pattern isolated,period" SMALL, paths[i]);
        json_t *json = results_of(arguments);
        assert_int_equal(json_array_size(results_list(json)), 5);
        for (size_t r = 3; r < 5; r++) {
            const json_t *pair = json_array_get(results_list(json), r);
            results_assert_period(pair);
            assert_int_equal(json_is_true(json_object_get(pair, "cached")), r == 4);
            if (i == 1) assert_string_equal(results_text(pair, "path"), "queue");
        }
        assert_null(json_object_get(json_array_get(results_list(json), 0), "pair_period_us"));
        json_decref(json);
    }
    json_t *json = results_of("all -n 3 --tokens 0 --experts 9 --topk 2 --hidden 64 --pairs 2 --pattern period");
    results_assert_period(json_array_get(results_list(json), 0));
    json_decref(json);
    shell_expect("$EXPAR bench all -n 2 --tokens 4 --pairs 2 --pattern period" SMALL "--csv", 0,
                 ",pair_period_us,gap_us,dispatch_floor_us,combine_floor_us,drift\npair,normal,bf16,direct,0,", "");
}

/* Rows that the caller codes go as FP8, and return as BF16: a combine carries twice the bytes of a dispatch. Chains of
   other rows of the same run have neither. */
static void pairs_of_coded_rows_have_a_period(void **state)
{
    (void)state;
    json_t *json = results_of("all -n 2 --tokens 9 --hidden 256 --topk 3 --experts 8 --cached=both --pairs 9 "
                              "--pattern period --dtype fp8,bf16");
    double bytes[4], linked[4] = {0};
    assert_int_equal(json_array_size(results_list(json)), 4);
    for (size_t r = 0; r < 4; r++) {
        const json_t *pair = json_array_get(results_list(json), r), *links = json_object_get(pair, "links"), *link;
        size_t l;
        results_assert_period(pair);
        assert_string_equal(results_text(pair, "dtype"), r < 2 ? "f8e4m3" : "bf16");
        bytes[r] = results_real(pair, "bytes");
        json_array_foreach(links, l, link)
        {
            linked[r] += results_real(link, "bytes");
        }
    }
    assert_true(bytes[0] > 0 && bytes[0] * 4 == bytes[2] * 3 && bytes[1] == bytes[0]);
    assert_true(linked[0] > 0 && linked[0] * 4 == linked[2] * 3);
    json_decref(json);
    json = results_of("all -n 3 --tokens 0 --experts 9 --topk 2 --hidden 128 --pairs 2 --pattern period --dtype fp8");
    results_assert_period(json_array_get(results_list(json), 0));
    json_decref(json);
}

/* The last of two lists counts; without tokens there is nothing to carry. */
static void patterns_of_nothing(void **state)
{
    (void)state;
    json_t *json = results_of("combine -n 1 --tokens 0 --pattern all --pattern steady" SMALL);
    assert_int_equal(json_array_size(results_list(json)), 1);
    assert_string_equal(results_text(json_object_get(json, "config"), "pattern"), "steady");
    assert_true(json_is_true(json_object_get(json_array_get(results_list(json), 0), "verified")));
    json_decref(json);
}

static void assert_link(const json_t *link, const char *class, int from, int to, int rows)
{
    assert_string_equal(results_text(link, "class"), class);
    assert_int_equal(results_real(link, "from"), from);
    assert_int_equal(results_real(link, "to"), to);
    assert_int_equal(results_real(link, "messages"), rows);
    assert_int_equal(results_real(link, "bytes"), rows * 64 * 2);
}

/* All rows go to expert 1, which rank 0 has, and come back from there. */
static void links_are_those_of_the_routing(void **state)
{
    (void)state;
    json_t *json = results_of("all -n 4 --tokens 10 --routing onehot" SMALL);
    const json_t *dispatch = json_object_get(json_array_get(results_list(json), 0), "links");
    const json_t *combine = json_object_get(json_array_get(results_list(json), 1), "links");
    const json_t *load = json_object_get(json, "expert_load"), *choices = json_object_get(load, "choices");
    assert_int_equal(json_array_size(dispatch), 3);
    assert_int_equal(json_array_size(combine), 3);
    for (int rank = 1; rank < 4; rank++) {
        assert_link(json_array_get(dispatch, (size_t)rank - 1), "memory", rank, 0, 10);
        assert_link(json_array_get(combine, (size_t)rank - 1), "memory", 0, rank, 10);
    }
    assert_int_equal(results_real(load, "tokens"), 10);
    assert_int_equal(json_array_size(choices), 8);
    for (size_t e = 0; e < 8; e++)
        assert_int_equal(json_integer_value(json_array_get(choices, e)), e == 1 ? 40 : 0);
    json_decref(json);
    json = results_of("dispatch layout -n 1 --tokens 10" SMALL);
    assert_int_equal(json_array_size(json_object_get(json_array_get(results_list(json), 0), "links")), 0);
    assert_true(results_real(json_array_get(results_list(json), 0), "bus_gbps") == 0);
    json_decref(json);
}

/* A reader of many files needs the form, the date, the command, and how busy the machine was. */
static void the_run_is_described(void **state)
{
    (void)state;
    int numbers[6];
    json_t *json = results_of("dispatch -n 2 --tokens 3 --routing 'zipf:0.5'" SMALL);
    const json_t *load = json_object_get(json_object_get(json, "machine"), "load");
    assert_true(json_is_integer(json_object_get(json, "schema_version")));
    assert_int_equal(results_real(json, "schema_version"), 1);
    assert_int_equal(sscanf(results_text(json, "date"), "%4d-%2d-%2dT%2d:%2d:%2dZ", &numbers[0], &numbers[1],
                            &numbers[2], &numbers[3], &numbers[4], &numbers[5]),
                     6);
    assert_string_equal(results_text(json, "command"), "expar bench dispatch -n 2 --tokens 3 --routing zipf:0.5 "
                                                       "--hidden 64 --topk 4 --experts 8 --iters 3 --warmup 1 --json");
    assert_int_equal(json_array_size(load), 3);
    for (size_t i = 0; i < 3; i++)
        assert_true(json_number_value(json_array_get(load, i)) >= 0);
    json_decref(json);
}

static void output_goes_to_a_file(void **state)
{
    (void)state;
    static const char run[] = "$EXPAR bench combine -n 2 --tokens 4" SMALL;
    char command[512];
    snprintf(command, sizeof command, "echo old >$TMP/new && %s --csv --output $TMP/new && cat $TMP/new", run);
    shell_expect(command, 0, "op,mode,dtype", "");
    snprintf(command, sizeof command, "%s --json --output $TMP/a.json >$TMP/none && test ! -s $TMP/none && ls $TMP",
             run);
    shell_expect(command, 0, "a.json\n", "");
    snprintf(command, sizeof command, "%s --output $TMP/b.json && head -n 1 $TMP/b.json", run);
    shell_expect(command, 0, "{\n", "");
    snprintf(command, sizeof command, "%s --output $TMP/b.csv && head -n 1 $TMP/b.csv", run);
    shell_expect(command, 0, "op,mode,dtype", "");
    snprintf(command, sizeof command, "%s --csv --output $TMP/c.json && head -n 1 $TMP/c.json", run);
    shell_expect(command, 0, "op,mode,dtype", "");
    snprintf(command, sizeof command,
             "ln -sf new $TMP/link && %s --output $TMP/link && readlink $TMP/link && cat "
             "$TMP/new",
             run);
    shell_expect(command, 0, "new\n2 ranks, ", "");
    snprintf(command, sizeof command, "%s --output /dev/full; code=$?; test -c /dev/full && exit $code", run);
    shell_expect(command, 1, "", "cannot write /dev/full: No space left on device");
    shell_expect("$EXPAR bench --output $TMP/absent/file", 64, "", "absent/file: No such file or directory");
    shell_expect("$EXPAR bench --output $TMP", 64, "", "it is a folder");
    shell_expect("$EXPAR bench --output ''", 64, "", "--output '': a file is expected");
}

/* It is known before the routing is drawn, and before anything is allocated. */
static void too_little_memory_is_said_at_once(void **state)
{
    (void)state;
    shell_expect("$EXPAR bench -n 2 --tokens 4,1048576 --hidden 1048576 --dtype f32 --topk 1 --experts 2", 1, "",
                 "-n 2 --tokens 1048576 --hidden 1048576 takes about 8");
    shell_expect("$EXPAR bench ll -n 2 --tokens 65535 --hidden 1048576 --dtype f32 --topk 1 --experts 2", 1, "",
                 " GB are left for each (");
}

static void no_gpu_is_named(void **state)
{
    (void)state;
    shell_expect("CUDA_VISIBLE_DEVICES= $EXPAR bench --device cuda", 1, "", "--device cuda: ");
    shell_expect("CUDA_VISIBLE_DEVICES= $EXPAR bench --device cuda", 1, "", "CUDA is not available");
}

static void other_forms_of_output(void **state)
{
    (void)state;
    shell_expect("$EXPAR bench combine -n 2 --tokens 4" SMALL "--csv", 0, "\ncombine,normal,bf16,direct,0,2,4,64,4,8,",
                 "");
    shell_expect("$EXPAR bench -n 2 --tokens 4" SMALL, 0, "2 ranks, ", "");
    shell_expect("$EXPAR bench -n 2 --tokens 4" SMALL, 0, "  yes\n", "");
    shell_expect("$EXPAR bench combine -n 2 --tokens 4 --pattern steady" SMALL "--csv", 0,
                 ",verified,mpi_us,speedup_over_mpi,pattern,host_us,host_p99_us\ncombine,normal,bf16,", "");
    shell_expect("$EXPAR bench combine -n 2 --tokens 4 --pattern steady,isolated" SMALL, 0, " tokens  pattern ", "");
    shell_expect("$EXPAR bench combine -n 2 --tokens 4 --pattern steady" SMALL, 0,
                 "; of patterns: a call's share of 5 loops of as many calls\n", "");
}

static void runs_inside_a_job(void **state)
{
    (void)state;
    shell_expect("$EXPAR run -n 2 --no-prefix -- $EXPAR bench dispatch -n 2 --tokens 4" SMALL "--csv", 0, "\ndispatch,",
                 "");
    shell_expect("$EXPAR run -n 3 --no-prefix -- $EXPAR bench dispatch --tokens 4 --hidden 64 --topk 4 --iters 3", 0,
                 "3 ranks, rows of 64 elements, top-4 of 66 experts", "");
    shell_expect("$EXPAR run -n 3 -- $EXPAR bench dispatch -n 2 --tokens 4" SMALL, 64, "",
                 "-n 2, but this job has 3 ranks");
}

static void bad_options_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *arguments, *message;
        int code;
    } cases[] = {
        {"--gpus 2", "only with --device cuda", 64},
        {"--device cuda --mpi", "the baseline runs on the CPU only", 64},
        {"--json --csv", "--json and --csv: one of them", 64},
        {"rma --json --csv", "--json and --csv: one of them", 64},
        {"--threads 1 --sms 2", "--threads and --sms: one of them", 64},
        {"--device cuda --threads 2", "--threads: only on the CPU", 64},
        {"rma --tokens 4", "--tokens: rma has none", 64},
        {"rma --path queue", "--path: rma has none", 64},
        {"--sizes 8", "--sizes: only with rma", 64},
        {"--ops put", "--ops: only with rma", 64},
        {"--transports p2p", "--transports: only with rma", 64},
        {"combine --cached", "--cached: only with dispatch", 64},
        {"layout --mpi", "not of layout", 64},
        {"--device tpu", "one of cpu|cuda is expected", 64},
        {"--nodes 3 -n 4", "--nodes 3 does not divide -n 4", 64},
        {"--nodes 0", "--nodes '0': a number from 1", 64},
        {"--tokens x", "--tokens 'x'", 64},
        {"--tokens 9..3", "a number from 9 to", 64},
        {"--tokens 1,,2", "--tokens ''", 64},
        {"--tokens -1", "--tokens '-1'", 64},
        {"--hidden 0", "--hidden '0'", 64},
        {"--hidden 7", "no multiple of 16", 64},
        {"--topk 9 --experts 8 -n 2", "--topk 9 is more than --experts 8", 64},
        {"--experts 9 -n 2", "--experts 9 is no multiple of -n 2", 64},
        {"--dtype f64", "one of bf16|f16|f32|fp8 is expected", 64},
        {"--dtype bf16,,f32", "one of bf16|f16|f32|fp8 is expected", 64},
        {"--dtype f32,f32,f32,f32,f32", "more than 4", 64},
        {"combine --dtype fp8", "combine adds bf16, f16 or f32 rows", 64},
        {"--hidden 24 --dtype bf16,fp8", "a row has 24 bytes", 64},
        {"--threads 2,0", "--threads '0'", 64},
        {"--device cuda --sms 24,0", "--sms '0'", 64},
        {"--routing random", "--routing 'random'", 64},
        {"--routing absent.npy", "absent.npy: cannot be opened", 64},
        {"--routing grouped --experts 12 -n 2", "needs a multiple of 8 experts", 64},
        {"--iters 0", "--iters '0'", 64},
        {"--path sideways", "one of auto|direct|queue|all is expected", 64},
        {"--path copy_engine", "is not in this version", 64},
        {"--cached=maybe", "one of no|yes|both is expected", 64},
        {"--seed -4", "--seed '-4'", 64},
        {"--pattern fast", "--pattern 'fast': one of isolated|steady|layer|decode|period|all is expected", 64},
        {"--pattern steady,,layer", "--pattern '': one of isolated|steady|layer|decode|period|all is expected", 64},
        {"--pattern decode", "--pattern 'decode': without ll one of isolated|steady|layer|period|all is expected", 64},
        {"--pattern isolated,steady --mpi", "--pattern 'steady': with --mpi isolated is expected", 64},
        {"layout --pattern steady", "--pattern 'steady': isolated is expected beside it for layout", 64},
        {"dispatch --pattern layer", "--pattern 'layer': both operations are expected", 64},
        {"--dtype fp8 --pattern layer", "--pattern 'layer': a dtype that combine adds is expected, not fp8", 64},
        {"dispatch --pattern period", "--pattern 'period': both operations are expected", 64},
        {"--dtype fp8 --pattern period --hidden 64",
         "--hidden 64: with --pattern period callers code fp8 rows, by 128 elements; a multiple of 128 is expected",
         64},
        {"--pairs 4", "--pairs: only with --pattern period", 64},
        {"--pattern period --pairs 1", "--pairs '1': a number from 2", 64},
        {"rma --pattern steady", "--pattern: rma has none", 64},
        {"setup --pattern steady", "--pattern: setup has none", 64},
        {"--format fp8", "--format: only with ll", 64},
        {"--sum exact", "--sum: only with ll", 64},
        {"rma --hook", "--hook: only with ll", 64},
        {"ll --stamps no", "--stamps: only on GPUs", 64},
        {"ll --device cuda --stamps off", "--stamps 'off': one of no|yes is expected", 64},
        {"multiply", "one of dispatch|combine|all|layout|rma|ll|setup is expected", 64},
        {"''", "operation ''", 64},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char command[256];
        snprintf(command, sizeof command, "$EXPAR bench %s", cases[i].arguments);
        shell_expect(command, cases[i].code, "", cases[i].message);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_result_for_each_operation),
        cmocka_unit_test(bytes_are_those_of_the_rows),
        cmocka_unit_test(every_dtype_and_routing_is_verified),
        cmocka_unit_test(recorded_routing_fills_in_topk_and_experts),
        cmocka_unit_test(names_cannot_steer_a_terminal),
        cmocka_unit_test(all_paths_and_cached),
        cmocka_unit_test(sweeps_by_list_and_range),
        cmocka_unit_test(lists_of_dtypes_and_threads),
        cmocka_unit_test(layout_is_a_difference),
        cmocka_unit_test(patterns_stand_beside_isolated_calls),
        cmocka_unit_test(patterns_of_dtypes_and_paths),
        cmocka_unit_test(pairs_have_a_period),
        cmocka_unit_test(pairs_of_coded_rows_have_a_period),
        cmocka_unit_test(patterns_of_nothing),
        cmocka_unit_test(links_are_those_of_the_routing),
        cmocka_unit_test(the_run_is_described),
        cmocka_unit_test(output_goes_to_a_file),
        cmocka_unit_test(too_little_memory_is_said_at_once),
        cmocka_unit_test(no_gpu_is_named),
        cmocka_unit_test(other_forms_of_output),
        cmocka_unit_test(runs_inside_a_job),
        cmocka_unit_test(bad_options_are_named),
    };
    return cmocka_run_group_tests(tests, shell_setup, shell_teardown);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* `expar demo` as a user types it: what it prints, its JSON, its exit codes, and what it refuses. */
#include "cmocka_headers.h"
#include "config.h"
#include "effort.h"
#include "shell.h"
#include "shipped.h"
#include "weights_file.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static model_config config;

static int load(void **state)
{
    demo_error error;
    return model_config_load(MOE_LM_DIR, &config, &error) ? scratch_create(state) : -1;
}

static int unload(void **state)
{
    model_config_free(&config);
    return scratch_remove(state);
}

static json_t *run_json(const char *arguments)
{
    shell_output output = shell_expar(arguments, 0);
    json_error_t trouble;
    json_t *report = json_loads(output.text, 0, &trouble);
    if (output.code != 0 || !report) fail_msg("`expar %s` ended with %d: %s", arguments, output.code, output.text);
    free(output.text);
    return report;
}

/* Is `text` the shipped prompt with the first `bytes` bytes of its continuation? */
static void assert_shipped(const json_t *text, const model_sample *sample, int32_t bytes)
{
    assert_int_equal(json_string_length(text), sample->prompt_bytes + bytes);
    assert_memory_equal(json_string_value(text), sample->prompt, (size_t)sample->prompt_bytes);
    assert_memory_equal(json_string_value(text) + sample->prompt_bytes, sample->greedy, (size_t)bytes);
}

static void test_json_of_the_default_run(void **state)
{
    (void)state;
    json_t *report = run_json("demo --json --bytes " EFFORT_BYTES);
    const json_t *texts = json_object_get(report, "texts"), *load_list = json_object_get(report, "expert_load");
    assert_int_equal(json_array_size(texts), 8);
    for (size_t i = 0; i < 8; i++)
        assert_shipped(json_array_get(texts, i), &config.samples[i], EFFORT_CONTINUATION);
    assert_shipped(json_object_get(report, "text"), &config.samples[0], EFFORT_CONTINUATION);
    assert_true(json_is_true(json_object_get(report, "matches_reference")));
    assert_true(json_is_null(json_object_get(report, "first_difference")));
    assert_true(json_is_true(json_object_get(report, "matches_shipped")));
    assert_string_equal(json_string_value(json_object_get(report, "device")), "cpu");
    assert_string_equal(json_string_value(json_object_get(report, "prefill")), "normal");
    assert_string_equal(json_string_value(json_object_get(report, "decode")), "low_latency");
    assert_true(json_integer_value(json_object_get(report, "decode_heap_bytes")) > 0);
    assert_int_equal(json_integer_value(json_object_get(report, "ranks")), 8);
    assert_int_equal(json_integer_value(json_object_get(report, "nodes")), 1);
    assert_true(json_real_value(json_object_get(report, "tokens_per_second")) > 0);
    assert_true(json_integer_value(json_object_get(report, "bytes_moved")) > 0);
    assert_int_equal(json_array_size(load_list), 32);
    json_int_t load_sum = 0, tokens = 0;
    for (size_t e = 0; e < 32; e++)
        load_sum += json_integer_value(json_array_get(load_list, e));
    for (size_t i = 0; i < 8; i++)
        tokens += config.samples[i].prompt_bytes + EFFORT_CONTINUATION - 1;
    assert_int_equal(load_sum, tokens * 4 * 4); /* top 4 of 4 layers */
    json_decref(report);
}

static void test_path_and_ranks(void **state)
{
    (void)state;
    static const char *const paths[] = {"direct", "queue"};
    for (int i = 0; i < 2; i++) {
        char arguments[128];
        snprintf(arguments, sizeof arguments, "demo -n 2 --nodes 1 --device cpu --bytes 12 --path %s --json", paths[i]);
        json_t *report = run_json(arguments);
        assert_string_equal(json_string_value(json_object_get(report, "path")), paths[i]);
        assert_int_equal(json_integer_value(json_object_get(report, "ranks")), 2);
        assert_shipped(json_object_get(report, "text"), &config.samples[0], 12);
        json_decref(report);
    }
}

#ifdef HAVE_FABRIC
/* The same texts across nodes that the ranks play, and what crossed the network between them. */
static void test_nodes(void **state)
{
    (void)state;
    json_t *report = run_json("demo -n 4 --nodes 2 --bytes 4 --json");
    const json_t *network = json_object_get(report, "network");
    assert_true(json_is_true(json_object_get(report, "matches_reference")));
    assert_shipped(json_object_get(report, "text"), &config.samples[0], 4);
    assert_int_equal(json_integer_value(json_object_get(report, "nodes")), 2);
    static const char *const modes[] = {"normal", "low_latency"};
    for (int i = 0; i < 2; i++) {
        const json_t *mode = json_object_get(network, modes[i]);
        /* At least a header of each call: four ranks have two prompts each, or three bytes after the first. */
        assert_int_equal(json_integer_value(json_object_get(mode, "layers")), 4 * 4 * (i == 0 ? 2 : 3));
        assert_true(json_integer_value(json_object_get(mode, "messages")) >=
                    json_integer_value(json_object_get(mode, "layers")));
        assert_true(json_integer_value(json_object_get(mode, "bytes")) > 0);
    }
    json_decref(report);
}
#endif

/* Prints the same texts in either mode of decode, having moved the same bytes, and says which it was. */
static void test_decode_modes(void **state)
{
    (void)state;
    static const char *const typed[] = {"normal", "low-latency"}, *const told[] = {"normal", "low_latency"};
    static const char arguments[] = "demo -n 8 --bytes 12 --json --prompt 'The whale' --prompt 'So ' --decode ";
    json_t *reports[2];
    for (int i = 0; i < 2; i++) {
        char command[256];
        snprintf(command, sizeof command, "%s%s", arguments, typed[i]);
        reports[i] = run_json(command);
        assert_string_equal(json_string_value(json_object_get(reports[i], "decode")), told[i]);
        assert_string_equal(json_string_value(json_object_get(reports[i], "prefill")), "normal");
        assert_int_equal(json_integer_value(json_object_get(reports[i], "decode_heap_bytes")) > 0, i == 1);
    }
    static const char *const same[] = {"texts", "bytes_moved", "bytes_between_ranks", "expert_load", "path"};
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++)
        assert_true(json_equal(json_object_get(reports[0], same[i]), json_object_get(reports[1], same[i])));
    json_decref(reports[0]);
    json_decref(reports[1]);
}

static void test_own_prompts(void **state)
{
    (void)state;
    scratch_write("letter", "Dear \xe2\x80\x94 Sir, ", 14);
    char arguments[4096];
    snprintf(arguments, sizeof arguments, "demo -n 4 --json --bytes 5 --prompt 'The \xff' --file %s --prompt 'So '",
             scratch_path("letter"));
    json_t *report = run_json(arguments);
    const json_t *texts = json_object_get(report, "texts");
    assert_int_equal(json_array_size(texts), 3);
    assert_memory_equal(json_string_value(json_array_get(texts, 0)), "The \xef\xbf\xbd", 7);
    assert_memory_equal(json_string_value(json_array_get(texts, 1)), "Dear \xe2\x80\x94 Sir, ", 14);
    assert_memory_equal(json_string_value(json_array_get(texts, 2)), "So ", 3);
    assert_true(json_is_true(json_object_get(report, "matches_reference")));
    assert_true(json_is_null(json_object_get(report, "matches_shipped")));
    json_decref(report);
}

static void test_report_for_people(void **state)
{
    (void)state;
    shell_output output = shell_expar("demo -n 4 --bytes 10", 1);
    assert_int_equal(output.code, 0);
    for (int32_t i = 0; i < 8; i++) {
        char text[256];
        snprintf(text, sizeof text, "%.*s%.10s", config.samples[i].prompt_bytes, (char *)config.samples[i].prompt,
                 (char *)config.samples[i].greedy);
        shell_assert_says(&output, text);
    }
    shell_assert_says(&output, "\nprefill in normal mode, decode in low-latency mode (its buffer: 0.0");
    shell_assert_says(&output, "tokens/s");
    shell_assert_says(&output, "rank 3   expert 31   ");
    shell_assert_says(&output, "MB moved by dispatch and combine");
    shell_assert_says(&output, "path in normal mode: direct");
    shell_assert_says(&output, "equals the single-rank reference: yes (8 of 8 texts)");
    shell_assert_says(&output, "equals the continuation that came with the model: yes (8 of 8 texts)");
    assert_null(strchr(output.text, '\033'));
    free(output.text);
}

static void test_inside_a_group(void **state)
{
    (void)state;
    char arguments[4096];
    snprintf(arguments, sizeof arguments, "run -n 2 --no-prefix -- '%s' demo --json --bytes 7", EXPAR_COMMAND);
    json_t *report = run_json(arguments);
    assert_int_equal(json_integer_value(json_object_get(report, "ranks")), 2);
    assert_shipped(json_object_get(report, "text"), &config.samples[0], 7);
    json_decref(report);
    snprintf(arguments, sizeof arguments, "run -n 2 -- '%s' demo -n 4", EXPAR_COMMAND);
    shell_output output = shell_expar(arguments, 1);
    assert_int_not_equal(output.code, 0);
    shell_assert_says(&output, "-n 4 was given inside a group of 2 ranks");
    free(output.text);
}

static void test_help(void **state)
{
    (void)state;
    shell_output output = shell_expar("demo --help", 0);
    assert_int_equal(output.code, 0);
    shell_assert_says(&output, "--prompt=TEXT");
    shell_assert_says(&output, "expar demo -n 4");
    free(output.text);
}

static void assert_rejected(const char *arguments, const char *says)
{
    shell_output output = shell_expar(arguments, 1);
    assert_int_not_equal(output.code, 0);
    shell_assert_says(&output, says);
    shell_assert_says(&output, "expar demo: ");
    assert_null(strstr(output.text, "on the CPU")); /* nothing was started */
    free(output.text);
}

static void test_rejected(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"demo -n 3", "must divide 32"},
        {"demo -n 64", "must divide 32"},
        {"demo -n 0", "a number from 1 to"},
        {"demo -n x", "a number from 1 to"},
        {"demo -n 8 --nodes 3", "--nodes 3: the 8 ranks are shared out evenly"},
        {"demo --nodes 0", "a number from 1 to"},
        {"demo --device abacus", "cpu or cuda"},
        {"demo --path copy_engine", "auto, direct or queue"},
        {"demo --decode fast", "--decode 'fast': low-latency or normal is expected"},
        {"demo --bytes 0", "a number from 1 to"},
        {"demo --bytes 496", "context of 512"},
        {"demo --bytes 2147483647", "context of 512"},
        {"demo --prompt ''", "empty prompt"},
        {"demo --prompt ok --file /dev/null", "empty file"},
        {"demo --file /nonexistent", "No such file"},
        {"demo --model /nonexistent", "no config.json"},
        {"demo Call me Ishmael", "'Call' is no option"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_rejected(cases[i][0], cases[i][1]);
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    assert_rejected("demo --device cuda", "--device cuda: ");
    assert_rejected("demo --device cuda", "CUDA is not available");
    unsetenv("CUDA_VISIBLE_DEVICES");
}

/* Without a GPU that can be used, --gpu says so once, and the model runs on the CPU. */
static void test_gpu_falls_back(void **state)
{
    (void)state;
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    shell_output output = shell_expar("demo --gpu -n 2 --bytes 2 --json", 1);
    static const char says[] =
        "expar demo: the model runs on the CPU, because no GPU can be used: CUDA is not available";
    assert_int_equal(output.code, 0);
    shell_assert_says(&output, says);
    assert_null(strstr(strstr(output.text, says) + 1, "expar demo:"));
    free(output.text);
    assert_rejected("demo --gpu --device cuda", "--device cuda: ");
    unsetenv("CUDA_VISIBLE_DEVICES");
}

/* Writes the shipped config and these weights to the scratch folder, and makes `arguments` of it. */
static void write_model(const void *weights, size_t bytes, char arguments[4096])
{
    size_t count;
    void *shipped = shipped_read("config.json", &count);
    scratch_write("config.json", shipped, count);
    scratch_write("model.safetensors", weights, bytes);
    free(shipped);
    snprintf(arguments, 4096, "demo --bytes 8 -n 2 --model %s", scratch_path(""));
}

static void test_damaged_weights(void **state)
{
    (void)state;
    char arguments[4096];
    size_t count;
    uint8_t *weights = shipped_read("model.safetensors", &count);
    write_model(weights, count - 1, arguments);
    assert_rejected(arguments, "tensor 'g' ends at byte 14947328 of the data, but the file holds only 14947327");
    memset(weights + count - 512, 0xff, 512); /* 'g' is all NaN: found when the ranks load it */
    write_model(weights, count, arguments);
    shell_output output = shell_expar(arguments, 1);
    assert_int_not_equal(output.code, 0);
    shell_assert_says(&output, "expar demo: rank 0: ");
    shell_assert_says(&output, "tensor 'g' has a value that is not finite");
    assert_null(strstr(output.text, "on the CPU"));
    free(output.text);
    free(weights);
}

/* Other weights give other texts: equal to their own reference, but not to what was shipped. */
static void test_other_weights(void **state)
{
    (void)state;
    char arguments[4096];
    size_t count;
    uint8_t *weights = shipped_read("model.safetensors", &count);
    memset(weights + count - 512, 0, 512); /* 'g' is 0, so that all logits are equal and byte 0 is best */
    write_model(weights, count, arguments);
    shell_output output = shell_expar(arguments, 1);
    assert_int_not_equal(output.code, 0);
    shell_assert_says(&output, "equals the single-rank reference: yes (8 of 8 texts)");
    shell_assert_says(&output, "equals the continuation that came with the model: NO (0 of 8 texts)");
    shell_assert_says(&output, "Call me Ishmael. ????????");
    free(output.text);
    free(weights);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json_of_the_default_run),
        cmocka_unit_test(test_path_and_ranks),
#ifdef HAVE_FABRIC
        cmocka_unit_test(test_nodes),
#endif

        cmocka_unit_test(test_decode_modes),
        cmocka_unit_test(test_own_prompts),
        cmocka_unit_test(test_report_for_people),
        cmocka_unit_test(test_inside_a_group),
        cmocka_unit_test(test_help),
        cmocka_unit_test(test_rejected),
        cmocka_unit_test(test_gpu_falls_back),
        cmocka_unit_test(test_damaged_weights),
        cmocka_unit_test(test_other_weights),
    };
    return cmocka_run_group_tests(tests, load, unload);
}

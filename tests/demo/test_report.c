/* SPDX-License-Identifier: Apache-2.0 */
/* The small parts: reports of runs that went wrong, prompts, clean UTF-8. */
#include "cmocka_headers.h"
#include "report.h"
#include "utf8.h"
#include "weights_file.h"
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* ---- UTF-8 ------------------------------------------------------------------------------------------------------- */

static void test_utf8(void **state)
{
    (void)state;
#define BAD "\xef\xbf\xbd"
    static const char *const cases[][2] = {
        {"plain", "plain"},
        {"\xc3\xa9 \xe2\x80\x94 \xf0\x9f\x90\x8b", "\xc3\xa9 \xe2\x80\x94 \xf0\x9f\x90\x8b"},
        {"\x80", BAD},
        {"\xc3", BAD},
        {"\xe2\x80", BAD BAD},
        {"\xe2\x80x", BAD BAD "x"},
        {"\xc0\xaf", BAD BAD},                 /* overlong */
        {"\xe0\x9f\xbf", BAD BAD BAD},         /* overlong */
        {"\xed\xa0\x80", BAD BAD BAD},         /* a surrogate */
        {"\xf4\x90\x80\x80", BAD BAD BAD BAD}, /* beyond U+10FFFF */
        {"\xff\xfe", BAD BAD},
    };
#undef BAD
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char out[64];
        size_t bytes = utf8_clean((const uint8_t *)cases[i][0], strlen(cases[i][0]), out);
        assert_int_equal(bytes, strlen(cases[i][1]));
        assert_memory_equal(out, cases[i][1], bytes);
    }
}

/* ---- prompts ----------------------------------------------------------------------------------------------------- */

static void test_end_of_file(void **state)
{
    (void)state;
    demo_error error = {.text = ""};
    prompt_list list = {0};
    char text[300];
    memset(text, 'a', sizeof text);
    memcpy(text + 42, "\xe2\x80\x94", 3); /* the last 256 bytes begin with this character's last two */
    scratch_write("long", text, sizeof text);
    scratch_write("short", text, 40);
    assert_true(prompt_list_add_file(&list, scratch_path("long"), &error));
    assert_true(prompt_list_add_file(&list, scratch_path("short"), &error));
    assert_int_equal(list.count, 2);
    assert_int_equal(list.items[0].count, 255);
    assert_memory_equal(list.items[0].bytes, text + 45, 255);
    assert_int_equal(list.items[1].count, 40);
    prompt_list_free(&list);
}

static void test_too_many_prompts(void **state)
{
    (void)state;
    demo_error error = {.text = ""};
    prompt_list list = {0};
    for (int i = 0; i < PROMPTS_MAX; i++)
        assert_true(prompt_list_add_text(&list, "x", &error));
    assert_false(prompt_list_add_text(&list, "x", &error));
    assert_non_null(strstr(error.text, "256"));
    assert_int_equal(list.count, PROMPTS_MAX);
    prompt_list_free(&list);
}

/* ---- a run whose second text went wrong -------------------------------------------------------------------------- */

typedef struct wrong_run {
    demo_task task;
    demo_results results;
} wrong_run;

static void make_wrong_run(wrong_run *run)
{
    demo_error error = {.text = ""};
    *run = (wrong_run){.task = {.ranks = 2, .bytes = 3, .kind = &compute_cpu}};
    assert_true(prompt_list_add_text(&run->task.prompts, "One", &error));
    assert_true(prompt_list_add_text(&run->task.prompts, "Two", &error));
    if (!demo_task_prepare(&run->task, MOE_LM_DIR, &error)) fail_msg("%s", error.text);
    assert_true(demo_results_create(&run->task, &run->results, &error));
    run->results.seconds = 0.5;
    run->results.expert_load[7] = 10;
    run->results.expert_load[8] = 5;
    for (int i = 0; i < 2; i++) {
        memcpy(run->results.texts[i].bytes, i ? "Two\x1b!?" : "One...", 6);
        run->results.texts[i].differs_at = -1;
    }
    run->results.texts[1].differs_at = 4;
    run->results.texts[1].reference_byte = '#';
    run->results.texts[1].reference_gap = 0.25f;
}

static void free_wrong_run(wrong_run *run)
{
    demo_results_free(&run->results);
    demo_task_free(&run->task);
}

static void test_report_of_a_difference(void **state)
{
    (void)state;
    wrong_run run;
    char *text = NULL;
    size_t bytes = 0;
    make_wrong_run(&run);
    demo_printer printer = {.out = open_memstream(&text, &bytes), .task = &run.task};
    assert_non_null(printer.out);
    demo_report_byte(&printer, 1, 'x'); /* of another text: comes later */
    demo_report_byte(&printer, 0, '.');
    demo_report_byte(&printer, 0, '\x1b');
    demo_report_texts(&printer, &run.results);
    demo_report_figures(&printer, &run.results);
    fclose(printer.out);
    /* no escape code reaches a terminal */
    assert_non_null(strstr(text, "2 prompts, 3 bytes each\nprefill and decode in normal mode\n\nOne.?\n\nTwo?!?\n"));
    assert_non_null(strstr(text, "prompt 2: byte 4 is 0x21, the reference's 0x23; there its best logit led by 0.25"));
    assert_non_null(strstr(text, "equals the single-rank reference: NO (1 of 2 texts)"));
    assert_null(strstr(text, "came with the model"));
    assert_non_null(strstr(text, "6 tokens in 0.50 s: 12 tokens/s"));
    assert_non_null(strstr(text, "expert 7    ######################################## 10\n"));
    assert_non_null(strstr(text, "expert 8    ####################                     5\n"));
    assert_false(demo_results_match(&run.results));
    free(text);
    free_wrong_run(&run);
}

/* The lines before the first text. */
static char *head_of(const demo_task *task)
{
    char *text = NULL;
    size_t bytes = 0;
    demo_printer printer = {.out = open_memstream(&text, &bytes), .task = task};
    assert_non_null(printer.out);
    demo_report_byte(&printer, 0, '.');
    fclose(printer.out);
    return text;
}

static void test_modes_are_told(void **state)
{
    (void)state;
    wrong_run run;
    make_wrong_run(&run);
    run.task.low_latency = true;
    char *head = head_of(&run.task), expected[128];
    snprintf(expected, sizeof expected,
             "\nprefill in normal mode, decode in low-latency mode (its buffer: %.2f MB a rank)\n",
             (double)moe_low_latency_bytes(&run.task.config.sizes, 2, 1) / 1e6);
    assert_non_null(strstr(head, expected));
    free(head);
    free_wrong_run(&run);
}

static void test_json_of_a_difference(void **state)
{
    (void)state;
    wrong_run run;
    char *text = NULL;
    size_t bytes = 0;
    make_wrong_run(&run);
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    assert_true(demo_report_json(out, &run.task, &run.results));
    fclose(out);
    json_t *report = json_loads(text, 0, NULL);
    assert_true(json_is_false(json_object_get(report, "matches_reference")));
    assert_true(json_is_null(json_object_get(report, "matches_shipped")));
    assert_true(json_real_value(json_object_get(report, "tokens_per_second")) == 12.0);
    assert_string_equal(json_string_value(json_object_get(report, "text")), "One...");
    const json_t *first = json_object_get(report, "first_difference");
    assert_int_equal(json_integer_value(json_object_get(first, "prompt")), 2);
    assert_int_equal(json_integer_value(json_object_get(first, "byte")), 4);
    assert_int_equal(json_integer_value(json_object_get(first, "is")), 0x21);
    assert_int_equal(json_integer_value(json_object_get(first, "expected")), 0x23);
    assert_true(json_real_value(json_object_get(first, "logit_gap")) == 0.25);
    json_decref(report);
    free(text);
    free_wrong_run(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_utf8),
        cmocka_unit_test(test_end_of_file),
        cmocka_unit_test(test_too_many_prompts),
        cmocka_unit_test(test_report_of_a_difference),
        cmocka_unit_test(test_modes_are_told),
        cmocka_unit_test(test_json_of_a_difference),
    };
    return cmocka_run_group_tests(tests, scratch_create, scratch_remove);
}

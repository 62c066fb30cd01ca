/* SPDX-License-Identifier: Apache-2.0 */
/* The model over dispatch and combine equals the model on one rank: logits bit for bit, texts byte for byte. It does by
 * every path of normal mode and in low-latency mode, on every number of ranks. Also, ranks that disagree. */
#include "cmocka_headers.h"
#include "effort.h"
#include "npy.h"
#include "ranks.h"
#include "reference.h"
#include "threads.h"
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 512, V = 256, LAYERS = 4, TOP_K = 4, ROW_BYTES = 256 * 4 };

/* One way to run: how many ranks, which path, and which mode for decode (for the logits, for all). */
typedef struct variant {
    int32_t ranks;
    expar_ep_path path;
    bool low_latency;
} variant;

static void prepare(demo_task *task, const variant *v, int32_t bytes)
{
    demo_error error = {.text = ""};
    task->ranks = v->ranks;
    task->kind = &compute_cpu;
    task->path = v->path;
    task->low_latency = v->low_latency;
    task->bytes = bytes;
    if (!demo_task_prepare(task, MOE_LM_DIR, &error)) fail_msg("%s", error.text);
}

/* ---- logits ------------------------------------------------------------------------------------------------------ */

/* Rank r of a logits run goes over the first lengths[r] bytes of the reference text. */
typedef struct logits_run {
    const demo_task *task;
    const uint8_t *tokens;
    int32_t lengths[8];
    float *logits[8]; /* [lengths[r]][V] */
    demo_error errors[8];
    bool ok[8];
} logits_run;

static bool run_text(const model *m, moe *experts, const logits_run *run, int32_t rank, demo_error *error)
{
    int32_t length = run->lengths[rank];
    forward *f = NULL;
    sequence *text = NULL;
    batch_row rows[TOKENS];
    bool ok = forward_create(m, TOKENS, &f, error) &&
              (length == 0 || sequence_create(m->compute, run->tokens, length, 0, &text, error));
    for (int32_t i = 0; i < length; i++)
        rows[i] = (batch_row){text, i};
    ok = ok && forward_run(f, experts, rows, length, error);
    for (int32_t i = 0; ok && i < length; i++)
        ok = forward_logits(f, i, run->logits[rank] + (size_t)i * V, error);
    sequence_free(text);
    forward_free(f);
    return ok;
}

static bool create_experts(expar_group *group, const demo_task *task, const model *m, moe_counts *counts, moe **experts,
                           demo_error *error)
{
    return task->low_latency ? moe_low_latency_create(group, m, TOKENS, counts, experts, error)
                             : moe_normal_create(group, m, TOKENS, task->path, counts, experts, error);
}

static void logits_rank(expar_group *group, void *context)
{
    logits_run *run = context;
    const model_sizes *sizes = &run->task->config.sizes;
    int32_t rank = expar_group_rank(group), share = sizes->experts / run->task->ranks;
    demo_error *error = &run->errors[rank];
    compute *c = NULL;
    model *m = NULL;
    moe *experts = NULL;
    moe_counts counts = {0};
    run->ok[rank] =
        compute_cpu.create(sizes, rank, run->task->ranks, &c, error) &&
        model_load(run->task->directory, c, rank * share, share, &m, error) && moe_counts_create(m, &counts, error) &&
        create_experts(group, run->task, m, &counts, &experts, error) && run_text(m, experts, run, rank, error);
    if (experts) experts->free(experts);
    moe_counts_free(&counts);
    model_free(m);
    compute_free(c);
}

/* The logits of the whole text on one rank, summed in the order of `owners`. */
static float *local_logits(logits_run *run, int32_t owners)
{
    demo_error error = {.text = ""};
    const model_sizes *sizes = &run->task->config.sizes;
    compute *c = NULL;
    model *m = NULL;
    moe *experts = NULL;
    logits_run whole = *run;
    whole.lengths[0] = EFFORT_TEXT;
    whole.logits[0] = malloc(sizeof(float) * TOKENS * V);
    assert_non_null(whole.logits[0]);
    if (!compute_cpu.create(sizes, 0, 1, &c, &error) ||
        !model_load(run->task->directory, c, 0, sizes->experts, &m, &error) ||
        !moe_local_create(m, owners, 1, &experts, &error) || !run_text(m, experts, &whole, 0, &error))
        fail_msg("%s", error.text);
    experts->free(experts);
    model_free(m);
    compute_free(c);
    return whole.logits[0];
}

static void test_logits(void **state)
{
    const variant *v = *state;
    demo_task task = {0};
    prepare(&task, v, 1);
    uint8_t *tokens = npy_reference("tokens", "|u1", "(512,)", TOKENS);
    logits_run run = {
        .task = &task, .tokens = tokens, .lengths = {EFFORT_TEXT, 0, 1, 37, EFFORT_TEXT / 2, 3, 0, EFFORT_TEXT - 1}};
    for (int32_t r = 0; r < v->ranks; r++) {
        run.logits[r] = malloc(sizeof(float) * TOKENS * V);
        assert_non_null(run.logits[r]);
    }
    threads_run(v->ranks, logits_rank, &run);
    float *expected = local_logits(&run, v->ranks);
    for (int32_t r = 0; r < v->ranks; r++) {
        if (!run.ok[r]) fail_msg("rank %d: %s", r, run.errors[r].text);
        assert_memory_equal(run.logits[r], expected, (size_t)run.lengths[r] * V * sizeof(float));
        free(run.logits[r]);
    }
    free(expected);
    free(tokens);
    demo_task_free(&task);
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

typedef struct texts_run {
    const demo_task *tasks[8]; /* rank r's */
    demo_results results[8];
    demo_error errors[8];
    bool ok[8];
    _Atomic int32_t
        heard; /* bytes that listeners were told of, by all ranks; relaxed: read after the threads are joined */
} texts_run;

static void hear(void *context, int32_t number, uint8_t byte)
{
    texts_run *run = context;
    (void)number, (void)byte;
    atomic_fetch_add_explicit(&run->heard, 1, memory_order_relaxed);
}

static void texts_rank(expar_group *group, void *context)
{
    texts_run *run = context;
    int32_t r = expar_group_rank(group);
    run->ok[r] = demo_ranks_run(group, run->tasks[r], hear, run, &run->results[r], &run->errors[r]);
}

static void run_texts(texts_run *run, const demo_task *task)
{
    for (int32_t r = 0; r < task->ranks; r++) {
        if (!run->tasks[r]) run->tasks[r] = task;
        if (!demo_results_create(task, &run->results[r], &run->errors[r])) fail_msg("%s", run->errors[r].text);
    }
    threads_run(task->ranks, texts_rank, run);
}

static void free_texts(texts_run *run, int32_t ranks)
{
    for (int32_t r = 0; r < ranks; r++)
        demo_results_free(&run->results[r]);
}

/* Tokens that went through the layers: all but the last byte of each text. */
static int64_t passed_tokens(const demo_results *results)
{
    int64_t tokens = 0;
    for (int32_t i = 0; i < results->num_texts; i++)
        tokens += results->texts[i].count - 1;
    return tokens;
}

static void check_counts(const demo_task *task, const demo_results *results)
{
    int64_t load = 0, choices = passed_tokens(results) * LAYERS * TOP_K;
    for (int32_t e = 0; e < results->num_experts; e++)
        load += results->expert_load[e];
    assert_int_equal(load, choices);
    assert_true(results->bytes_moved <= 2 * choices * ROW_BYTES);
    assert_true(results->bytes_moved >= 2 * choices / TOP_K * ROW_BYTES);
    assert_true(results->bytes_between_ranks < results->bytes_moved);
    if (task->ranks == 1) {
        assert_int_equal(results->bytes_between_ranks, 0);
        assert_int_equal(results->bytes_moved, 2 * choices / TOP_K * ROW_BYTES);
    }
}

/* All ranks know the same texts, and these equal the reference. */
static void check_texts(const demo_task *task, texts_run *run)
{
    for (int32_t r = 0; r < task->ranks; r++) {
        if (!run->ok[r]) fail_msg("rank %d: %s", r, run->errors[r].text);
        demo_error error = {.text = ""};
        if (r == 0 && !demo_reference_compare(task, &run->results[0], &error)) fail_msg("%s", error.text);
        for (int32_t i = 0; i < task->prompts.count; i++)
            assert_memory_equal(run->results[r].texts[i].bytes, run->results[0].texts[i].bytes,
                                (size_t)run->results[0].texts[i].count);
    }
    for (int32_t i = 0; i < task->prompts.count; i++)
        assert_int_equal(run->results[0].texts[i].differs_at, -1);
    assert_true(demo_results_match(&run->results[0]));
    assert_int_equal(run->heard, task->prompts.count * task->bytes);
    assert_true(run->results[0].seconds > 0);
    check_counts(task, &run->results[0]);
}

static void test_shipped_texts(void **state)
{
    const variant *v = *state;
    demo_task task = {0};
    texts_run run = {0};
    prepare(&task, v, EFFORT_CONTINUATION);
    run_texts(&run, &task);
    check_texts(&task, &run);
    assert_int_equal(task.prompts.count, 8);
    for (int32_t i = 0; i < 8; i++) {
        const demo_text *text = &run.results[0].texts[i];
        assert_true(text->has_shipped && text->equals_shipped);
        assert_memory_equal(text->bytes + text->prompt_bytes, task.config.samples[i].greedy, EFFORT_CONTINUATION);
    }
    free_texts(&run, v->ranks);
    demo_task_free(&task);
}

/* Three, of very different lengths; one fills the context with nine bytes after it. */
static void add_own_prompts(prompt_list *prompts)
{
    demo_error error = {.text = ""};
    char sample[512];
    snprintf(sample, sizeof sample, "%s/sample.txt", MOE_LM_DIR);
    assert_true(prompt_list_add_text(prompts, "A", &error));
    assert_true(prompt_list_add_file(prompts, sample, &error));
    char longest[EFFORT_PROMPT + 1] = {0};
    memset(longest, 'w', EFFORT_PROMPT);
    assert_true(prompt_list_add_text(prompts, longest, &error));
}

/* More prompts than ranks, or fewer. */
static void test_own_prompts(void **state)
{
    const variant *v = *state;
    demo_task task = {0};
    texts_run run = {0};
    add_own_prompts(&task.prompts);
    prepare(&task, v, 9);
    run_texts(&run, &task);
    check_texts(&task, &run);
    assert_false(run.results[0].texts[0].has_shipped);
    free_texts(&run, v->ranks);
    demo_task_free(&task);
}

/* The modes of decode carry the same rows to the same experts, and write the same texts, also where ranks have none. */
static void test_modes_do_the_same(void **state)
{
    demo_task tasks[2] = {0};
    texts_run runs[2] = {0};
    for (int i = 0; i < 2; i++) {
        const variant v = {*(const int32_t *)*state, EXPAR_EP_PATH_AUTO, i == 1};
        add_own_prompts(&tasks[i].prompts);
        prepare(&tasks[i], &v, 9);
        run_texts(&runs[i], &tasks[i]);
        check_texts(&tasks[i], &runs[i]);
    }
    const demo_results *normal = &runs[0].results[0], *low_latency = &runs[1].results[0];
    for (int i = 0; i < 3; i++)
        assert_memory_equal(low_latency->texts[i].bytes, normal->texts[i].bytes, (size_t)normal->texts[i].count);
    assert_int_equal(low_latency->bytes_moved, normal->bytes_moved);
    assert_int_equal(low_latency->bytes_between_ranks, normal->bytes_between_ranks);
    assert_memory_equal(low_latency->expert_load, normal->expert_load,
                        (size_t)normal->num_experts * sizeof *normal->expert_load);
    for (int i = 0; i < 2; i++) {
        free_texts(&runs[i], tasks[i].ranks);
        demo_task_free(&tasks[i]);
    }
}

/* ---- trouble ----------------------------------------------------------------------------------------------------- */

static void assert_rejected(const texts_run *run, int32_t ranks, const char *says)
{
    for (int32_t r = 0; r < ranks; r++)
        assert_false(run->ok[r]);
    if (!strstr(run->errors[0].text, says)) fail_msg("\"%s\" does not say \"%s\"", run->errors[0].text, says);
    for (int32_t r = 1; r < ranks; r++)
        assert_string_equal(run->errors[r].text, "");
}

static void test_ranks_with_other_prompts(void **state)
{
    (void)state;
    const variant v = {4, EXPAR_EP_PATH_AUTO, true};
    demo_task task = {0}, other = {0};
    demo_error error = {.text = ""};
    texts_run run = {0};
    prepare(&task, &v, 4);
    assert_true(prompt_list_add_text(&other.prompts, "Other. ", &error));
    prepare(&other, &v, 4);
    run.tasks[2] = &other;
    run_texts(&run, &task);
    assert_rejected(&run, 4, "rank 2 was started with other prompts");
    free_texts(&run, 4);
    demo_task_free(&task);
    demo_task_free(&other);
}

/* It would be waited for in calls that it does not make. */
static void test_rank_with_another_mode(void **state)
{
    (void)state;
    const variant v = {2, EXPAR_EP_PATH_AUTO, true};
    demo_task task = {0}, other = {0};
    texts_run run = {0};
    prepare(&task, &v, 4);
    prepare(&other, &v, 4);
    other.low_latency = false;
    run.tasks[1] = &other;
    run_texts(&run, &task);
    assert_rejected(&run, 2, "rank 1 was started with other prompts, options");
    free_texts(&run, 2);
    demo_task_free(&task);
    demo_task_free(&other);
}

static void test_rank_without_weights(void **state)
{
    (void)state;
    const variant v = {4, EXPAR_EP_PATH_AUTO, true};
    demo_task task = {0}, lost = {0};
    texts_run run = {0};
    prepare(&task, &v, 4);
    prepare(&lost, &v, 4);
    snprintf(lost.directory, sizeof lost.directory, "/nonexistent");
    run.tasks[3] = &lost;
    run_texts(&run, &task);
    assert_rejected(&run, 4, "rank 3: /nonexistent/model.safetensors: cannot open");
    free_texts(&run, 4);
    demo_task_free(&task);
    demo_task_free(&lost);
}

static void test_ranks_must_divide_experts(void **state)
{
    (void)state;
    demo_error error = {.text = ""};
    for (int32_t ranks = 1; ranks <= 33; ranks++) {
        demo_task task = {.ranks = ranks, .bytes = 1};
        assert_int_equal(demo_task_prepare(&task, MOE_LM_DIR, &error), 32 % ranks == 0);
        if (32 % ranks) assert_non_null(strstr(error.text, "must divide 32"));
        demo_task_free(&task);
    }
}

/* ---- in normal mode, or with an argument ------------------------------------------------------------------------- */

/* Each number of ranks by one of the two paths; with the argument paths by the other; with low_latency in that mode. */
#define LOGITS(i)      cmocka_unit_test_prestate(test_logits, &variants[i])
#define SHIPPED(i)     cmocka_unit_test_prestate(test_shipped_texts, &variants[i])
#define OWN_PROMPTS(i) cmocka_unit_test_prestate(test_own_prompts, &variants[i])

#define NORMAL(a, b, c, d)                                                                                             \
    LOGITS(a), LOGITS(b), LOGITS(c), LOGITS(d), SHIPPED(a), SHIPPED(b), SHIPPED(c), SHIPPED(d), OWN_PROMPTS(a),        \
        OWN_PROMPTS(b), OWN_PROMPTS(c), OWN_PROMPTS(d)

static variant variants[] = {
    {1, EXPAR_EP_PATH_DIRECT, false}, {1, EXPAR_EP_PATH_QUEUE, false},  {2, EXPAR_EP_PATH_DIRECT, false},
    {2, EXPAR_EP_PATH_QUEUE, false},  {4, EXPAR_EP_PATH_DIRECT, false}, {4, EXPAR_EP_PATH_QUEUE, false},
    {8, EXPAR_EP_PATH_DIRECT, false}, {8, EXPAR_EP_PATH_QUEUE, false},
};

static int run_normal(void)
{
    const struct CMUnitTest tests[] = {
        NORMAL(0, 3, 4, 7),
        cmocka_unit_test(test_ranks_with_other_prompts),
        cmocka_unit_test(test_rank_without_weights),
        cmocka_unit_test(test_ranks_must_divide_experts),
    };
    return cmocka_run_group_tests_name("normal mode", tests, NULL, NULL);
}

static int run_other_paths(void)
{
    const struct CMUnitTest tests[] = {NORMAL(1, 2, 5, 6)};
    return cmocka_run_group_tests_name("normal mode by the other path", tests, NULL, NULL);
}

static int run_low_latency(void)
{
    static variant all[] = {{1, EXPAR_EP_PATH_AUTO, true},
                            {2, EXPAR_EP_PATH_AUTO, true},
                            {4, EXPAR_EP_PATH_AUTO, true},
                            {8, EXPAR_EP_PATH_AUTO, true}};
    static int32_t one = 1, two = 2, eight = 8;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_logits, &all[0]),
        cmocka_unit_test_prestate(test_logits, &all[1]),
        cmocka_unit_test_prestate(test_logits, &all[2]),
        cmocka_unit_test_prestate(test_logits, &all[3]),
        cmocka_unit_test_prestate(test_shipped_texts, &all[0]),
        cmocka_unit_test_prestate(test_shipped_texts, &all[1]),
        cmocka_unit_test_prestate(test_shipped_texts, &all[2]),
        cmocka_unit_test_prestate(test_shipped_texts, &all[3]),
        cmocka_unit_test_prestate(test_modes_do_the_same, &one),
        cmocka_unit_test_prestate(test_modes_do_the_same, &two),
        cmocka_unit_test_prestate(test_modes_do_the_same, &eight),
        cmocka_unit_test(test_rank_with_another_mode),
    };
    return cmocka_run_group_tests_name("low-latency mode", tests, NULL, NULL);
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "low_latency")) return run_low_latency();
    return argc > 1 && !strcmp(argv[1], "paths") ? run_other_paths() : run_normal();
}

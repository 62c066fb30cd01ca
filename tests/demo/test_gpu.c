/* SPDX-License-Identifier: Apache-2.0 */
/* The demo on GPUs. Every operation has the CPU's bits, and texts that ranks on GPUs grew equal the CPU's reference and
 * the shipped ones, whichever mode decodes. Ranks share GPUs where there are fewer. With `simulated` after the
 * program's name the CPU simulates the GPU, and does the demo's arithmetic, too (simulated_compute.h). */
#include "cmocka_headers.h"
#include "cuda/gpus.h"
#include "operations.h"
#include "rank_threads.h"
#include "ranks.h"
#include "reference.h"
#include "simulated_compute.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 24 };

/* One way to run: on what, how many ranks and nodes, how many bytes a text, and which mode for decode. */
typedef struct variant {
    const compute_kind *kind;
    int32_t ranks, bytes;
    bool low_latency;
    int32_t nodes;
} variant;

static void run_on(const compute_kind *kind, unsigned seed, operations_result *out)
{
    demo_error error = {.text = ""};
    compute *c = NULL;
    const model_sizes sizes = operations_sizes();
    if (!kind->create(&sizes, 0, 1, &c, &error)) fail_msg("%s", error.text);
    operations_run(c, seed, out);
    compute_free(c);
}

static void operations_have_the_bits_of_the_cpu(void **state)
{
    (void)state;
    static operations_result cpu, gpu;
    for (unsigned seed = 1; seed <= 5; seed++) {
        run_on(&compute_cpu, seed, &cpu);
        run_on(&compute_cuda, seed, &gpu);
        assert_memory_equal(gpu.embedded, cpu.embedded, sizeof cpu.embedded);
        assert_memory_equal(gpu.normed, cpu.normed, sizeof cpu.normed);
        assert_memory_equal(gpu.product, cpu.product, sizeof cpu.product);
        assert_memory_equal(gpu.keys, cpu.keys, sizeof cpu.keys);
        assert_memory_equal(gpu.attended, cpu.attended, sizeof cpu.attended);
        assert_memory_equal(gpu.scores, cpu.scores, sizeof cpu.scores);
        assert_memory_equal(gpu.chosen, cpu.chosen, sizeof cpu.chosen);
        assert_memory_equal(gpu.weights, cpu.weights, sizeof cpu.weights);
        assert_memory_equal(gpu.sums, cpu.sums, sizeof cpu.sums);
    }
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

typedef struct texts_run {
    demo_task task;
    demo_results results[8];
    demo_error errors[8];
} texts_run;

static int run_rank(expar_group *group, void *context)
{
    texts_run *run = context;
    int32_t rank = expar_group_rank(group);
    bool ok = demo_ranks_run(group, &run->task, NULL, NULL, &run->results[rank], &run->errors[rank]);
    return expar_group_destroy(group) == EXPAR_OK && ok ? 0 : 1;
}

/* Packed tests find the data where EXPAR_TEST_DATA says. */
static const char *model_folder(void)
{
    static char folder[4096];
    const char *packed = getenv("EXPAR_TEST_DATA");
    if (!packed) return MOE_LM_DIR;
    snprintf(folder, sizeof folder, "%s/moe-lm", packed);
    return folder;
}

static void texts_equal_the_reference(void **state)
{
    const variant *v = *state;
    const int32_t ranks = v->ranks;
    demo_error error = {.text = ""};
    texts_run run = {
        .task = {.ranks = ranks, .nodes = v->nodes, .bytes = v->bytes, .kind = v->kind, .low_latency = v->low_latency}};
    if (!demo_task_prepare(&run.task, model_folder(), &error)) fail_msg("%s", error.text);
    for (int32_t r = 0; r < ranks; r++)
        assert_true(demo_results_create(&run.task, &run.results[r], &error));
    int code = rank_threads_run(ranks, run.task.nodes, run_rank, &run, &error);
    for (int32_t r = 0; r < ranks; r++)
        if (run.errors[r].text[0]) fail_msg("rank %d: %s", r, run.errors[r].text);
    assert_int_equal(code, 0);
    if (!demo_reference_compare(&run.task, &run.results[0], &error)) fail_msg("%s", error.text);
    for (int32_t i = 0; i < run.results[0].num_texts; i++) {
        const demo_text *text = &run.results[0].texts[i];
        if (text->differs_at >= 0)
            fail_msg("prompt %d differs at byte %d, where the best logit led by %g", i, text->differs_at,
                     (double)text->reference_gap);
    }
    assert_true(demo_results_match(&run.results[0]));
    for (int32_t r = 0; r < ranks; r++)
        demo_results_free(&run.results[r]);
    demo_task_free(&run.task);
}

/* Fewer ranks, whose kernels the CPU carries out. */
static int run_simulated(void)
{
    static variant normal = {&compute_simulated, 2, 3, false, 1}, two = {&compute_simulated, 2, 6, true, 1},
                   four = {&compute_simulated, 4, 3, true, 1}, nodes = {&compute_simulated, 4, 3, true, 2};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(texts_equal_the_reference, &normal),
        cmocka_unit_test_prestate(texts_equal_the_reference, &two),
        cmocka_unit_test_prestate(texts_equal_the_reference, &four),
        cmocka_unit_test_prestate(texts_equal_the_reference, &nodes),
    };
    return cmocka_run_group_tests_name("simulated", tests, NULL, NULL);
}

static int run_on_gpus(void)
{
    static variant of[] = {{&compute_cuda, 1, BYTES, true, 1},  {&compute_cuda, 2, BYTES, true, 1},
                           {&compute_cuda, 4, BYTES, true, 1},  {&compute_cuda, 8, BYTES, true, 1},
                           {&compute_cuda, 2, BYTES, false, 1}, {&compute_cuda, 8, BYTES, false, 1}};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operations_have_the_bits_of_the_cpu),
        cmocka_unit_test_prestate(texts_equal_the_reference, &of[0]),
        cmocka_unit_test_prestate(texts_equal_the_reference, &of[1]),
        cmocka_unit_test_prestate(texts_equal_the_reference, &of[2]),
        cmocka_unit_test_prestate(texts_equal_the_reference, &of[3]),
        cmocka_unit_test_prestate(texts_equal_the_reference, &of[4]),
        cmocka_unit_test_prestate(texts_equal_the_reference, &of[5]),
    };
    return cmocka_run_group_tests_name("gpus", tests, NULL, NULL);
}

int main(int argc, char **argv)
{
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    if (gpus_count(1) == 0) return GPUS_SKIP;
    return argc > 1 && strcmp(argv[1], "simulated") == 0 ? run_simulated() : run_on_gpus();
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The model on one rank against the numbers that it was shipped with: every router decision, the experts' sums, the
 * logits, and the eight continuations, byte for byte. */
#include "cmocka_headers.h"
#include "effort.h"
#include "generate.h"
#include "kernels.h"
#include "npy.h"
#include "router.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 512, D = 256, V = 256, E = 32, K = 4, LAYERS = 4 };

/* FP32 sums in another order. The largest differences measured are 3.5e-5 for rows into the experts, 1.2e-4 for their
   sums (of a size up to 25), 8.4e-6 for weights. They are 9e-5 for logits; 3.3e-7 for weights made from the shipped
   rows. */
static const float ROW_TOLERANCE = 1e-4f, SUM_TOLERANCE = 3e-4f, WEIGHT_TOLERANCE = 2e-5f, LOGIT_TOLERANCE = 2e-4f;
static const float ROUTER_TOLERANCE = 1e-6f;

static model_config config;
static compute *cpu;
static model *whole;

static int load(void **state)
{
    (void)state;
    demo_error error;
    if (!model_config_load(MOE_LM_DIR, &config, &error) || !compute_cpu.create(&config.sizes, 0, 1, &cpu, &error) ||
        !model_load(MOE_LM_DIR, cpu, 0, config.sizes.experts, &whole, &error)) {
        fprintf(stderr, "%s\n", error.text);
        return -1;
    }
    return 0;
}

static int unload(void **state)
{
    (void)state;
    model_free(whole);
    compute_free(cpu);
    model_config_free(&config);
    return 0;
}

static float largest_difference(const float *a, const float *b, size_t count)
{
    float largest = 0;
    for (size_t i = 0; i < count; i++) {
        float difference = fabsf(a[i] - b[i]);
        if (!(difference <= largest)) largest = difference;
    }
    return largest;
}

static void assert_close(const char *what, int layer, const float *a, const float *b, size_t count, float tolerance)
{
    float largest = largest_difference(a, b, count);
    if (!(largest <= tolerance))
        fail_msg("%s of layer %d: differs by %g, allowed %g", what, layer, (double)largest, (double)tolerance);
}

static void *layer_array(int layer, const char *what, const char *dtype, int columns, size_t element_bytes)
{
    char name[64], shape[64];
    snprintf(name, sizeof name, "l%d_%s", layer, what);
    snprintf(shape, sizeof shape, "(512, %d)", columns);
    return npy_reference(name, dtype, shape, (size_t)TOKENS * (size_t)columns * element_bytes);
}

static void assert_same_choice(int layer, const int32_t *chosen)
{
    int64_t *expected = layer_array(layer, "topk_idx", "<i8", K, sizeof(int64_t));
    for (int i = 0; i < TOKENS * K; i++)
        if (chosen[i] != expected[i])
            fail_msg("layer %d, token %d, slot %d: expert %d, expected %d", layer, i / K, i % K, chosen[i],
                     (int)expected[i]);
    free(expected);
}

/* A MoE layer that compares what passes through it, and carries it out with the local one. */
typedef struct checking_moe {
    moe base;
    moe *inner;
    int layers_seen;
} checking_moe;

static bool checking_run(moe *base, int32_t layer, const routed_rows *rows, float *y, demo_error *error)
{
    checking_moe *self = (checking_moe *)base;
    assert_int_equal(rows->count, TOKENS);
    float *x = layer_array(layer, "x", "<f4", D, sizeof(float));
    float *weights = layer_array(layer, "topk_weights", "<f4", K, sizeof(float));
    float *sum = layer_array(layer, "y", "<f4", D, sizeof(float));
    assert_close("rows into the experts", layer, rows->x, x, TOKENS * D, ROW_TOLERANCE);
    assert_same_choice(layer, rows->topk_idx);
    assert_close("weights", layer, rows->topk_weights, weights, TOKENS * K, WEIGHT_TOLERANCE);
    bool ok = self->inner->run(self->inner, layer, rows, y, error);
    assert_true(ok);
    assert_close("experts' sums", layer, y, sum, TOKENS * D, SUM_TOLERANCE);
    self->layers_seen++;
    free(x);
    free(weights);
    free(sum);
    return ok;
}

static moe *local_moe(int32_t num_owners)
{
    demo_error error = {.text = ""};
    moe *experts = NULL;
    if (!moe_local_create(whole, num_owners, 1, &experts, &error)) fail_msg("%s", error.text);
    return experts;
}

/* The logits [rows][V] of the first `rows` tokens of `text`. */
static void run_logits(moe *experts, sequence *text, int32_t rows, float *logits)
{
    demo_error error = {.text = ""};
    forward *f = NULL;
    batch_row *batch = calloc((size_t)rows, sizeof *batch);
    assert_non_null(batch);
    for (int32_t i = 0; i < rows; i++)
        batch[i] = (batch_row){text, i};
    assert_true(forward_create(whole, rows, &f, &error));
    if (!forward_run(f, experts, batch, rows, &error)) fail_msg("%s", error.text);
    for (int32_t i = 0; i < rows; i++)
        assert_true(forward_logits(f, i, logits + (size_t)i * V, &error));
    forward_free(f);
    free(batch);
}

static sequence *reference_text(void)
{
    demo_error error = {.text = ""};
    sequence *text = NULL;
    uint8_t *tokens = npy_reference("tokens", "|u1", "(512,)", TOKENS);
    if (!sequence_create(cpu, tokens, TOKENS, 0, &text, &error)) fail_msg("%s", error.text);
    free(tokens);
    return text;
}

static void test_reference_sequence(void **state)
{
    (void)state;
    checking_moe check = {.base = {.run = checking_run}, .inner = local_moe(1)};
    sequence *text = reference_text();
    float *logits = malloc(TOKENS * V * sizeof *logits);
    assert_non_null(logits);
    run_logits(&check.base, text, TOKENS, logits);
    assert_int_equal(check.layers_seen, LAYERS);
    float *expected = npy_reference("logits", "<f4", "(512, 256)", TOKENS * V * sizeof(float));
    assert_close("logits", LAYERS, logits, expected, TOKENS * V, LOGIT_TOLERANCE);
    free(expected);
    free(logits);
    sequence_free(text);
    check.inner->free(check.inner);
}

/* The router alone, on the shipped rows. */
static void test_router(void **state)
{
    (void)state;
    for (int layer = 0; layer < LAYERS; layer++) {
        float *x = layer_array(layer, "x", "<f4", D, sizeof(float));
        float *expected = layer_array(layer, "topk_weights", "<f4", K, sizeof(float));
        static float scores[TOKENS * E], weights[TOKENS * K];
        static int32_t chosen[TOKENS * K];
        kernel_matmul(x, TOKENS, D, whole->layers[layer].wr, E, scores);
        kernel_sigmoid(scores, TOKENS * E);
        router_choose(scores, whole->layers[layer].bias, TOKENS, E, K, chosen, weights);
        assert_same_choice(layer, chosen);
        assert_close("weights", layer, weights, expected, TOKENS * K, ROUTER_TOLERANCE);
        free(x);
        free(expected);
    }
}

static void test_router_takes_the_lower_of_equals(void **state)
{
    (void)state;
    const float scores[2][6] = {{0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f}, {0.1f, 0.5f, 0.25f, 0.5f, 0.5f, 0.25f}};
    const float bias[6] = {0, 0, 0, 0, 0, 0}, bias_up[6] = {0.4f, 0, 0.25f, 0, 0, 0.5f};
    int32_t chosen[2][3];
    float weights[2][3];
    router_choose(&scores[0][0], bias, 2, 6, 3, &chosen[0][0], &weights[0][0]);
    const int32_t expected[2][3] = {{0, 1, 2}, {1, 3, 4}};
    assert_memory_equal(chosen, expected, sizeof chosen);
    router_choose(scores[1], bias_up, 1, 6, 3, chosen[0], weights[0]);
    const int32_t with_bias[3] = {5, 0, 1};
    assert_memory_equal(chosen[0], with_bias, sizeof with_bias);
    assert_true(weights[0][0] == 0.25f / 0.85f); /* scores without bias, divided by their sum */
}

/* A row's bits do not depend on what else is in the batch. */
static void test_batch_does_not_change_a_row(void **state)
{
    (void)state;
    enum { SHORT = 67 };
    moe *experts = local_moe(1);
    static float together[SHORT * V], alone[V];
    sequence *a = reference_text(), *b = reference_text();
    run_logits(experts, a, SHORT, together);
    demo_error error = {.text = ""};
    forward *f = NULL;
    assert_true(forward_create(whole, 1, &f, &error));
    for (int32_t i = 0; i < SHORT; i++) {
        const batch_row row = {b, i};
        assert_true(forward_run(f, experts, &row, 1, &error));
        assert_true(forward_logits(f, 0, alone, &error));
        assert_memory_equal(alone, together + (size_t)i * V, sizeof alone);
    }
    forward_free(f);
    sequence_free(a);
    sequence_free(b);
    experts->free(experts);
}

static void shipped_prompts(int32_t bytes, sequence_list *texts)
{
    demo_error error = {.text = ""};
    texts->items = calloc((size_t)config.num_samples, sizeof *texts->items);
    assert_non_null(texts->items);
    for (int32_t i = 0; i < config.num_samples; i++) {
        const model_sample *sample = &config.samples[i];
        if (!sequence_create(cpu, sample->prompt, sample->prompt_bytes, bytes, &texts->items[i], &error))
            fail_msg("%s", error.text);
        texts->count++;
    }
}

static void test_eight_continuations(void **state)
{
    int32_t num_owners = *(int32_t *)*state;
    demo_error error = {.text = ""};
    sequence_list texts = {0};
    shipped_prompts(EFFORT_CONTINUATION, &texts);
    assert_int_equal(texts.count, 8);
    moe *experts = local_moe(num_owners);
    forward *f = NULL;
    assert_true(forward_create(whole, generate_max_rows(&texts), &f, &error));
    const generate_plan plan = {
        .texts = &texts, .prefill = experts, .decode = experts, .prefill_rounds = 8, .bytes = EFFORT_CONTINUATION};
    if (!generate_run(f, &plan, &error)) fail_msg("%s", error.text);
    for (int32_t i = 0; i < 8; i++) {
        const sequence *text = texts.items[i];
        assert_int_equal(config.samples[i].greedy_bytes, 160);
        assert_int_equal(text->length, text->prompt_bytes + EFFORT_CONTINUATION);
        assert_memory_equal(text->text + text->prompt_bytes, config.samples[i].greedy, EFFORT_CONTINUATION);
    }
    forward_free(f);
    experts->free(experts);
    sequence_list_free(&texts);
}

static void test_context_is_a_limit(void **state)
{
    (void)state;
    demo_error error = {.text = ""};
    uint8_t prompt[513] = {0};
    sequence *text = NULL;
    assert_false(sequence_create(cpu, prompt, 353, 160, &text, &error));
    assert_non_null(strstr(error.text, "353"));
    assert_non_null(strstr(error.text, "512"));
    assert_false(sequence_create(cpu, prompt, 0, 160, &text, &error));
    assert_null(text);
    assert_true(sequence_create(cpu, prompt, 352, 160, &text, &error));
    sequence_free(text);
}

static void test_local_needs_all_experts(void **state)
{
    (void)state;
    demo_error error = {.text = ""};
    model *part = NULL;
    moe *experts = NULL;
    assert_true(model_load(MOE_LM_DIR, cpu, 8, 4, &part, &error));
    assert_false(moe_local_create(part, 1, 1, &experts, &error));
    assert_false(moe_local_create(whole, 5, 1, &experts, &error));
    assert_non_null(strstr(error.text, "5 owners"));
    assert_false(moe_local_create(whole, 4, 3, &experts, &error));
    assert_non_null(strstr(error.text, "4 owners on 3 nodes"));
    size_t matrix = (size_t)D * (size_t)config.sizes.expert_ffn;
    assert_memory_equal(part->layers[2].w2, whole->layers[2].w2 + 8 * matrix, 4 * matrix * sizeof(float));
    model_free(part);
}

int main(void)
{
    static int32_t one = 1, two = 2, eight = 8;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference_sequence),
        cmocka_unit_test(test_router),
        cmocka_unit_test(test_router_takes_the_lower_of_equals),
        cmocka_unit_test(test_batch_does_not_change_a_row),
        cmocka_unit_test_prestate(test_eight_continuations, &one),
        cmocka_unit_test_prestate(test_eight_continuations, &two),
        cmocka_unit_test_prestate(test_eight_continuations, &eight),
        cmocka_unit_test(test_context_is_a_limit),
        cmocka_unit_test(test_local_needs_all_experts),
    };
    return cmocka_run_group_tests(tests, load, unload);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The operations, one after another, on a batch of rows of two sequences. */
#include "operations.h"

#include "cmocka_headers.h"
#include <stdlib.h>
#include <string.h>

enum { FFN = 32, LAYERS = 2, VOCAB = 256, HEADS = 2, HALF = OP_HIDDEN / HEADS / 2, LAYER = 1 };

model_sizes operations_sizes(void)
{
    return (model_sizes){.vocab = VOCAB,
                         .hidden = OP_HIDDEN,
                         .layers = LAYERS,
                         .heads = HEADS,
                         .experts = OP_EXPERTS,
                         .top_k = OP_TOP_K,
                         .expert_ffn = FFN,
                         .context = OP_CAPACITY,
                         .rms_eps = 1e-5f,
                         .rope_theta = 10000.0f};
}

/* `count` numbers between -2 and 2 in memory of c. */
static float *numbers(compute *c, unsigned *seed, size_t count)
{
    demo_error error = {.text = ""};
    float *host = malloc(count * sizeof *host), *there = c->ops->alloc(c, count * sizeof *host, &error);
    assert_true(host && there);
    for (size_t i = 0; i < count; i++)
        host[i] = (float)(rand_r(seed) % 40001 - 20000) / 10000.0f;
    assert_true(c->ops->write(c, there, host, count * sizeof *host, &error));
    free(host);
    return there;
}

static void *spare(compute *c, size_t bytes)
{
    demo_error error = {.text = ""};
    void *memory = c->ops->alloc(c, bytes, &error);
    assert_non_null(memory);
    return memory;
}

/* Reads memory of c, and gives it back. */
static void take(compute *c, void *to, void *from, size_t bytes)
{
    demo_error error = {.text = ""};
    if (!c->ops->read(c, to, from, bytes, &error)) fail_msg("%s", error.text);
    c->ops->release(c, from);
}

/* Embedding, norm, product. */
static void run_rows(compute *c, unsigned *seed, operations_result *out)
{
    float *embedding = numbers(c, seed, VOCAB * OP_HIDDEN), *x = spare(c, sizeof out->embedded);
    float *g = numbers(c, seed, OP_HIDDEN), *normed = spare(c, sizeof out->normed);
    float *w = numbers(c, seed, OP_HIDDEN * OP_OUTPUTS), *y = spare(c, sizeof out->product);
    c->ops->embed(c, embedding, x);
    c->ops->rmsnorm(c, x, OP_ROWS, g, normed);
    c->ops->matmul(c, normed, OP_ROWS, OP_HIDDEN, w, OP_OUTPUTS, y);
    c->ops->add(c, y, w, OP_ROWS * OP_OUTPUTS);
    take(c, out->product, y, sizeof out->product);
    take(c, out->normed, normed, sizeof out->normed);
    take(c, out->embedded, x, sizeof out->embedded);
    c->ops->release(c, embedding);
    c->ops->release(c, g);
    c->ops->release(c, w);
}

static void run_attention(compute *c, unsigned *seed, operations_result *out)
{
    float *q = numbers(c, seed, OP_ROWS * OP_HIDDEN), *k = numbers(c, seed, OP_ROWS * OP_HIDDEN);
    float *v = numbers(c, seed, OP_ROWS * OP_HIDDEN), *attended = spare(c, sizeof out->attended);
    float *cosines = numbers(c, seed, OP_CAPACITY * HALF), *sines = numbers(c, seed, OP_CAPACITY * HALF);
    c->ops->file(c, LAYER, cosines, sines, q, k, v);
    c->ops->attend(c, LAYER, q, attended);
    take(c, out->attended, attended, sizeof out->attended);
    float *const rest[] = {q, k, v, cosines, sines};
    for (size_t i = 0; i < sizeof rest / sizeof rest[0]; i++)
        c->ops->release(c, rest[i]);
}

static void run_experts(compute *c, unsigned *seed, operations_result *out)
{
    const size_t matrices = (size_t)OP_EXPERTS * OP_HIDDEN * FFN;
    float *scores = numbers(c, seed, OP_ROWS * OP_EXPERTS), *bias = spare(c, OP_EXPERTS * sizeof(float));
    float *x = numbers(c, seed, OP_ROWS * OP_HIDDEN), *y = spare(c, sizeof out->sums);
    float *w1 = numbers(c, seed, matrices), *w3 = numbers(c, seed, matrices), *w2 = numbers(c, seed, matrices);
    int32_t *idx = spare(c, sizeof out->chosen);
    float *weights = spare(c, sizeof out->weights);
    const expert_weights w = {.w1 = w1, .w3 = w3, .w2 = w2, .first = 1, .count = OP_EXPERTS - 2};
    c->ops->sigmoid(c, scores, OP_ROWS * OP_EXPERTS);
    c->ops->choose(c, scores, bias, OP_ROWS, idx, weights);
    c->ops->run_experts(c, &w, &(routed_rows){OP_ROWS, x, idx, weights}, y);
    take(c, out->scores, scores, sizeof out->scores);
    take(c, out->chosen, idx, sizeof out->chosen);
    take(c, out->weights, weights, sizeof out->weights);
    take(c, out->sums, y, sizeof out->sums);
    float *const rest[] = {bias, x, w1, w3, w2};
    for (size_t i = 0; i < sizeof rest / sizeof rest[0]; i++)
        c->ops->release(c, rest[i]);
}

void operations_run(compute *c, unsigned seed, operations_result *out)
{
    demo_error error = {.text = ""};
    const size_t cache = (size_t)LAYERS * OP_CAPACITY * OP_HIDDEN;
    float *keys[2], *values[2];
    compute_row rows[OP_ROWS];
    memset(out, 0, sizeof *out);
    for (int s = 0; s < 2; s++) {
        keys[s] = numbers(c, &seed, cache);
        values[s] = numbers(c, &seed, cache);
    }
    for (int i = 0; i < OP_ROWS; i++)
        rows[i] = (compute_row){.keys = keys[i % 2],
                                .values = values[i % 2],
                                .token = (i * 57) % VOCAB,
                                .position = i < 2 ? 0 : OP_CAPACITY - OP_ROWS + i,
                                .capacity = OP_CAPACITY};
    assert_true(c->ops->reserve(c, OP_ROWS, &error));
    c->ops->begin(c, rows, OP_ROWS);
    run_rows(c, &seed, out);
    run_attention(c, &seed, out);
    run_experts(c, &seed, out);
    assert_true(sizeof out->keys == cache * sizeof(float));
    take(c, out->keys, keys[0], sizeof out->keys);
    c->ops->release(c, keys[1]);
    for (int s = 0; s < 2; s++)
        c->ops->release(c, values[s]);
}

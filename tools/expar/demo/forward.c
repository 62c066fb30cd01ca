/* SPDX-License-Identifier: Apache-2.0 */
/* The layers of the model (data/moe-lm/README.md has the formulas), for all rows of a batch at once. */
#include "forward.h"

#include "kernels.h"
#include "router.h"
#include <stdlib.h>
#include <string.h>

/* B: max_rows. */
struct forward {
    const model *m;
    moe *experts;
    int64_t max_rows;
    float *x;            /* [B][D] the residual stream */
    float *normed;       /* [B][D] */
    float *q, *k, *v;    /* [B][D] */
    float *attended;     /* [B][D] */
    float *update;       /* [B][D] what a half of a layer adds to x */
    float *attention;    /* [context] scores of one head */
    float *scores;       /* [B][E] of the router */
    int32_t *topk_idx;   /* [B][top_k] */
    float *topk_weights; /* [B][top_k] */
};

static bool allocate(forward *f, demo_error *error)
{
    const model_sizes *s = &f->m->sizes;
    size_t rows = (size_t)f->max_rows, values = rows * (size_t)s->hidden;
    float **of_hidden[] = {&f->x, &f->normed, &f->q, &f->k, &f->v, &f->attended, &f->update};
    for (size_t i = 0; i < sizeof of_hidden / sizeof of_hidden[0]; i++)
        if (!(*of_hidden[i] = demo_calloc(error, values, sizeof(float)))) return false;
    f->attention = demo_calloc(error, (size_t)s->context, sizeof(float));
    f->scores = demo_calloc(error, rows * (size_t)s->experts, sizeof(float));
    f->topk_idx = demo_calloc(error, rows * (size_t)s->top_k, sizeof(int32_t));
    f->topk_weights = demo_calloc(error, rows * (size_t)s->top_k, sizeof(float));
    return f->attention && f->scores && f->topk_idx && f->topk_weights;
}

bool forward_create(const model *m, moe *experts, int64_t max_rows, forward **out, demo_error *error)
{
    forward *f = demo_calloc(error, 1, sizeof *f);
    if (!f) return false;
    f->m = m;
    f->experts = experts;
    f->max_rows = max_rows;
    if (!allocate(f, error)) {
        forward_free(f);
        return false;
    }
    *out = f;
    return true;
}

void forward_free(forward *f)
{
    if (!f) return;
    float *all[] = {f->x,        f->normed, f->q,         f->k,      f->v,
                    f->attended, f->update, f->attention, f->scores, f->topk_weights};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
    free(f->topk_idx);
    free(f);
}

/* Turns the row's query and key, and files key and value in the sequence's cache. */
static void cache_row(forward *f, int32_t layer, int64_t row, const batch_row *at)
{
    const model_sizes *s = &f->m->sizes;
    int64_t d = s->hidden, half = d / s->heads / 2, angle = at->position * half;
    kernel_rope(f->q + row * d, s->heads, half, f->m->rope_cos + angle, f->m->rope_sin + angle);
    kernel_rope(f->k + row * d, s->heads, half, f->m->rope_cos + angle, f->m->rope_sin + angle);
    int64_t slot = ((int64_t)layer * at->text->capacity + at->position) * d;
    memcpy(at->text->keys + slot, f->k + row * d, (size_t)d * sizeof(float));
    memcpy(at->text->values + slot, f->v + row * d, (size_t)d * sizeof(float));
}

static void attend_row(forward *f, int32_t layer, int64_t row, const batch_row *at)
{
    const model_sizes *s = &f->m->sizes;
    int64_t d = s->hidden, head_width = d / s->heads, cache = (int64_t)layer * at->text->capacity * d;
    float scale = 1.0f / __builtin_sqrtf((float)head_width);
    for (int64_t start = 0; start < d; start += head_width)
        kernel_attend(f->q + row * d + start, at->text->keys + cache + start, at->text->values + cache + start, d,
                      at->position + 1, head_width, scale, f->attention, f->attended + row * d + start);
}

/* x += attention(rmsnorm(x)) */
static void run_attention(forward *f, int32_t layer, const batch_row *rows, int64_t count)
{
    const model_layer *w = &f->m->layers[layer];
    int64_t d = f->m->sizes.hidden;
    kernel_rmsnorm(f->x, count, d, w->g1, f->m->sizes.rms_eps, f->normed);
    kernel_matmul(f->normed, count, d, w->wq, d, f->q);
    kernel_matmul(f->normed, count, d, w->wk, d, f->k);
    kernel_matmul(f->normed, count, d, w->wv, d, f->v);
    for (int64_t row = 0; row < count; row++)
        cache_row(f, layer, row, &rows[row]);
    for (int64_t row = 0; row < count; row++)
        attend_row(f, layer, row, &rows[row]);
    kernel_matmul(f->attended, count, d, w->wo, d, f->update);
    kernel_add(f->x, f->update, count * d);
}

/* x += experts(rmsnorm(x)) */
static bool run_experts(forward *f, int32_t layer, int64_t count, demo_error *error)
{
    const model_sizes *s = &f->m->sizes;
    const model_layer *w = &f->m->layers[layer];
    kernel_rmsnorm(f->x, count, s->hidden, w->g2, s->rms_eps, f->normed);
    kernel_matmul(f->normed, count, s->hidden, w->wr, s->experts, f->scores);
    kernel_sigmoid(f->scores, count * s->experts);
    router_choose(f->scores, w->bias, count, s->experts, s->top_k, f->topk_idx, f->topk_weights);
    const routed_rows rows = {.count = count, .x = f->normed, .topk_idx = f->topk_idx, .topk_weights = f->topk_weights};
    if (!f->experts->run(f->experts, layer, &rows, f->update, error)) return false;
    kernel_add(f->x, f->update, count * s->hidden);
    return true;
}

bool forward_run(forward *f, const batch_row *rows, int64_t count, demo_error *error)
{
    int64_t d = f->m->sizes.hidden;
    if (count > f->max_rows)
        return demo_fail(error, "a batch of %lld rows is more than the %lld prepared for", (long long)count,
                         (long long)f->max_rows);
    for (int64_t row = 0; row < count; row++)
        memcpy(f->x + row * d, f->m->embedding + rows[row].text->text[rows[row].position] * d,
               (size_t)d * sizeof(float));
    for (int32_t layer = 0; layer < f->m->sizes.layers; layer++) {
        run_attention(f, layer, rows, count);
        if (!run_experts(f, layer, count, error)) return false;
    }
    return true;
}

int32_t forward_vocab(const forward *f)
{
    return f->m->sizes.vocab;
}

void forward_logits(forward *f, int64_t row, float *logits)
{
    const model_sizes *s = &f->m->sizes;
    kernel_rmsnorm(f->x + row * s->hidden, 1, s->hidden, f->m->g, s->rms_eps, f->normed);
    kernel_matmul(f->normed, 1, s->hidden, f->m->unembedding, s->vocab, logits);
}

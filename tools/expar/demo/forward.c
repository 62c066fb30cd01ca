/* SPDX-License-Identifier: Apache-2.0 */
/* The layers of the model (data/moe-lm/README.md has the formulas), for all rows of a batch at once. */
#include "forward.h"

#include <stdlib.h>

/* B: max_rows. All but `rows` lie in memory of the model's compute. */
struct forward {
    const model *m;
    compute *c;
    int64_t max_rows;
    compute_row *rows;   /* [B] */
    float *x;            /* [B][D] the residual stream */
    float *normed;       /* [B][D] */
    float *q, *k, *v;    /* [B][D] */
    float *attended;     /* [B][D] */
    float *update;       /* [B][D] the sum that attention or experts add to x */
    float *scores;       /* [B][E] of the router */
    float *logits;       /* [V] of one row */
    int32_t *topk_idx;   /* [B][top_k] */
    float *topk_weights; /* [B][top_k] */
};

static float *alloc_floats(forward *f, int64_t count, demo_error *error)
{
    return f->c->ops->alloc(f->c, (size_t)count * sizeof(float), error);
}

static bool allocate(forward *f, demo_error *error)
{
    const model_sizes *s = &f->m->sizes;
    float **of_hidden[] = {&f->x, &f->normed, &f->q, &f->k, &f->v, &f->attended, &f->update};
    for (size_t i = 0; i < sizeof of_hidden / sizeof of_hidden[0]; i++)
        if (!(*of_hidden[i] = alloc_floats(f, f->max_rows * s->hidden, error))) return false;
    f->rows = demo_calloc(error, (size_t)f->max_rows, sizeof *f->rows);
    f->scores = alloc_floats(f, f->max_rows * s->experts, error);
    f->logits = alloc_floats(f, s->vocab, error);
    f->topk_idx = f->c->ops->alloc(f->c, (size_t)(f->max_rows * s->top_k) * sizeof(int32_t), error);
    f->topk_weights = alloc_floats(f, f->max_rows * s->top_k, error);
    return f->rows && f->scores && f->logits && f->topk_idx && f->topk_weights &&
           f->c->ops->reserve(f->c, f->max_rows, error);
}

bool forward_create(const model *m, int64_t max_rows, forward **out, demo_error *error)
{
    forward *f = demo_calloc(error, 1, sizeof *f);
    if (!f) return false;
    f->m = m;
    f->c = m->compute;
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
    void *const all[] = {f->x,      f->normed, f->q,      f->k,        f->v,           f->attended,
                         f->update, f->scores, f->logits, f->topk_idx, f->topk_weights};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        f->c->ops->release(f->c, all[i]);
    free(f->rows);
    free(f);
}

/* x += attention(rmsnorm(x)) */
static void run_attention(forward *f, int32_t layer, int64_t count)
{
    const compute_ops *ops = f->c->ops;
    const model_layer *w = &f->m->layers[layer];
    int64_t d = f->m->sizes.hidden;
    ops->rmsnorm(f->c, f->x, count, w->g1, f->normed);
    ops->matmul(f->c, f->normed, count, d, w->wq, d, f->q);
    ops->matmul(f->c, f->normed, count, d, w->wk, d, f->k);
    ops->matmul(f->c, f->normed, count, d, w->wv, d, f->v);
    ops->file(f->c, layer, f->m->rope_cos, f->m->rope_sin, f->q, f->k, f->v);
    ops->attend(f->c, layer, f->q, f->attended);
    ops->matmul(f->c, f->attended, count, d, w->wo, d, f->update);
    ops->add(f->c, f->x, f->update, count * d);
}

/* x += experts(rmsnorm(x)) */
static bool run_experts(forward *f, moe *experts, int32_t layer, int64_t count, demo_error *error)
{
    const compute_ops *ops = f->c->ops;
    const model_sizes *s = &f->m->sizes;
    const model_layer *w = &f->m->layers[layer];
    ops->rmsnorm(f->c, f->x, count, w->g2, f->normed);
    ops->matmul(f->c, f->normed, count, s->hidden, w->wr, s->experts, f->scores);
    ops->sigmoid(f->c, f->scores, count * s->experts);
    ops->choose(f->c, f->scores, w->bias, count, f->topk_idx, f->topk_weights);
    const routed_rows rows = {.count = count, .x = f->normed, .topk_idx = f->topk_idx, .topk_weights = f->topk_weights};
    if (!experts->run(experts, layer, &rows, f->update, error)) return false;
    ops->add(f->c, f->x, f->update, count * s->hidden);
    return true;
}

bool forward_run(forward *f, moe *experts, const batch_row *rows, int64_t count, demo_error *error)
{
    if (count > f->max_rows)
        return demo_fail(error, "a batch of %lld rows is more than the %lld prepared for", (long long)count,
                         (long long)f->max_rows);
    for (int64_t row = 0; row < count; row++) {
        const sequence *text = rows[row].text;
        f->rows[row] = (compute_row){.keys = text->keys,
                                     .values = text->values,
                                     .token = text->text[rows[row].position],
                                     .position = rows[row].position,
                                     .capacity = text->capacity};
    }
    f->c->ops->begin(f->c, f->rows, count);
    f->c->ops->embed(f->c, f->m->embedding, f->x);
    for (int32_t layer = 0; layer < f->m->sizes.layers; layer++) {
        run_attention(f, layer, count);
        if (!run_experts(f, experts, layer, count, error)) return false;
    }
    return true;
}

int32_t forward_vocab(const forward *f)
{
    return f->m->sizes.vocab;
}

bool forward_logits(forward *f, int64_t row, float *logits, demo_error *error)
{
    const compute_ops *ops = f->c->ops;
    const model_sizes *s = &f->m->sizes;
    ops->rmsnorm(f->c, f->x + row * s->hidden, 1, f->m->g, f->normed);
    ops->matmul(f->c, f->normed, 1, s->hidden, f->m->unembedding, s->vocab, f->logits);
    return ops->read(f->c, logits, f->logits, (size_t)s->vocab * sizeof *logits, error);
}

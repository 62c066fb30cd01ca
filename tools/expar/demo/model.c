/* SPDX-License-Identifier: Apache-2.0 */
/* Loading the weights: the list of tensors, their shapes, and which are transposed for the kernels. */
#include "model.h"

#include "safetensors.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* One tensor of the model: its place in the struct, and how it is stored.
 * count matrices of [rows][columns] in the file; with `turned` each is kept [columns][rows]. */
typedef struct weight {
    float **place;
    const char *name; /* after "blocks.N." */
    const char *dtype;
    int32_t count, rows, columns; /* count 0: no leading dimension; rows 0: a vector */
    bool turned;
} weight;

#define LAYER_WEIGHTS 11
#define OTHER_WEIGHTS 2

static void layer_weights(const model_sizes *s, model_layer *layer, weight list[LAYER_WEIGHTS])
{
    int32_t d = s->hidden, e = s->experts, f = s->expert_ffn;
    const weight all[LAYER_WEIGHTS] = {
        {&layer->g1, "g1", "BF16", 0, 0, d, false}, {&layer->g2, "g2", "BF16", 0, 0, d, false},
        {&layer->wq, "wq", "BF16", 0, d, d, true},  {&layer->wk, "wk", "BF16", 0, d, d, true},
        {&layer->wv, "wv", "BF16", 0, d, d, true},  {&layer->wo, "wo", "BF16", 0, d, d, true},
        {&layer->wr, "wr", "F32", 0, e, d, true},   {&layer->bias, "bias", "F32", 0, 0, e, false},
        {&layer->w1, "w1", "BF16", e, f, d, true},  {&layer->w3, "w3", "BF16", e, f, d, true},
        {&layer->w2, "w2", "BF16", e, d, f, true},
    };
    for (int i = 0; i < LAYER_WEIGHTS; i++)
        list[i] = all[i];
}

static void other_weights(const model_sizes *s, model *m, weight list[OTHER_WEIGHTS])
{
    list[0] = (weight){&m->embedding, "emb", "BF16", 0, s->vocab, s->hidden, false};
    list[1] = (weight){&m->g, "g", "BF16", 0, 0, s->hidden, false};
}

/* Writes the full name to `name`. layer < 0: a weight outside of the layers. */
static tensor_spec weight_spec(const weight *w, int32_t layer, char name[64])
{
    if (layer < 0)
        snprintf(name, 64, "%s", w->name);
    else
        snprintf(name, 64, "blocks.%d.%s", layer, w->name);
    tensor_spec spec = {.name = name, .dtype = w->dtype};
    if (w->count) spec.shape[spec.ndim++] = w->count;
    if (w->rows) spec.shape[spec.ndim++] = w->rows;
    spec.shape[spec.ndim++] = w->columns;
    return spec;
}

/* out[column][row] = in[row][column] */
static void turn(const float *in, int32_t rows, int32_t columns, float *out)
{
    for (int32_t c = 0; c < columns; c++)
        for (int32_t r = 0; r < rows; r++)
            out[(size_t)c * (size_t)rows + (size_t)r] = in[(size_t)r * (size_t)columns + (size_t)c];
}

/* Reads matrices first … first + count - 1 in the layout of the kernels. NULL leaves a text. */
static float *weight_read(const safetensors *file, const weight *w, int32_t layer, int32_t first, int32_t count,
                          demo_error *error)
{
    char name[64];
    tensor_spec spec = weight_spec(w, layer, name);
    int64_t elements = (int64_t)(w->rows ? w->rows : 1) * w->columns;
    float *all = demo_calloc(error, (size_t)(count * elements), sizeof(float));
    float *scratch = w->turned ? demo_calloc(error, (size_t)elements, sizeof(float)) : NULL;
    bool ok = all && (scratch || !w->turned);
    for (int32_t i = 0; ok && i < count; i++) {
        float *out = all + i * elements;
        ok = safetensors_read(file, &spec, (first + i) * elements, elements, w->turned ? scratch : out, error);
        if (ok && w->turned) turn(scratch, w->rows, w->columns, out);
    }
    free(scratch);
    if (ok) return all;
    free(all);
    return NULL;
}

/* Allocates memory at *place and copies the host's numbers there. */
static bool place_numbers(compute *c, const float *numbers, size_t count, float **place, demo_error *error)
{
    *place = c->ops->alloc(c, count * sizeof(float), error);
    return *place && c->ops->write(c, *place, numbers, count * sizeof(float), error);
}

static bool weight_load(const safetensors *file, compute *c, const weight *w, int32_t layer, int32_t first,
                        int32_t count, demo_error *error)
{
    float *all = weight_read(file, w, layer, first, count, error);
    size_t elements = (size_t)(w->rows ? w->rows : 1) * (size_t)w->columns;
    bool ok = all && place_numbers(c, all, (size_t)count * elements, w->place, error);
    free(all);
    return ok;
}

static bool load_layer(const safetensors *file, model *m, int32_t layer, demo_error *error)
{
    weight list[LAYER_WEIGHTS];
    layer_weights(&m->sizes, &m->layers[layer], list);
    for (int i = 0; i < LAYER_WEIGHTS; i++) {
        bool of_experts = list[i].count != 0;
        if (!weight_load(file, m->compute, &list[i], layer, of_experts ? m->first_expert : 0,
                         of_experts ? m->num_local_experts : 1, error))
            return false;
    }
    return true;
}

/* Computes the angles p·theta^(-i/half) of position p and pair i, in double until the end. */
static bool make_rope(model *m, demo_error *error)
{
    int32_t half = m->sizes.hidden / m->sizes.heads / 2;
    size_t count = (size_t)m->sizes.context * (size_t)half;
    float *cosines = demo_calloc(error, count, sizeof(float)), *sines = demo_calloc(error, count, sizeof(float));
    for (int32_t p = 0; cosines && sines && p < m->sizes.context; p++) {
        for (int32_t i = 0; i < half; i++) {
            double angle = p * pow((double)m->sizes.rope_theta, -(double)i / half);
            cosines[p * half + i] = (float)cos(angle);
            sines[p * half + i] = (float)sin(angle);
        }
    }
    bool ok = cosines && sines && place_numbers(m->compute, cosines, count, &m->rope_cos, error) &&
              place_numbers(m->compute, sines, count, &m->rope_sin, error);
    free(cosines);
    free(sines);
    return ok;
}

/* Loads the embedding, and its transpose as the unembedding. */
static bool load_embedding(const safetensors *file, model *m, const weight *w, demo_error *error)
{
    size_t count = (size_t)m->sizes.vocab * (size_t)m->sizes.hidden;
    float *rows = weight_read(file, w, -1, 0, 1, error), *turned = demo_calloc(error, count, sizeof(float));
    bool ok = rows && turned;
    if (ok) {
        turn(rows, m->sizes.vocab, m->sizes.hidden, turned);
        ok = place_numbers(m->compute, rows, count, &m->embedding, error) &&
             place_numbers(m->compute, turned, count, &m->unembedding, error);
    }
    free(rows);
    free(turned);
    return ok;
}

static bool load_all(const safetensors *file, model *m, demo_error *error)
{
    m->layers = demo_calloc(error, (size_t)m->sizes.layers, sizeof *m->layers);
    if (!m->layers) return false;
    for (int32_t layer = 0; layer < m->sizes.layers; layer++)
        if (!load_layer(file, m, layer, error)) return false;
    weight list[OTHER_WEIGHTS];
    other_weights(&m->sizes, m, list);
    return load_embedding(file, m, &list[0], error) && weight_load(file, m->compute, &list[1], -1, 0, 1, error) &&
           make_rope(m, error);
}

static bool open_weights(const char *directory, safetensors **file, demo_error *error)
{
    char path[4096];
    if (snprintf(path, sizeof path, "%s/model.safetensors", directory) >= (int)sizeof path)
        return demo_fail(error, "the path of the model is too long: %.64s...", directory);
    return safetensors_open(path, file, error);
}

static bool check_list(const safetensors *file, const weight *list, int count, int32_t layer, demo_error *error)
{
    for (int i = 0; i < count; i++) {
        char name[64];
        tensor_spec spec = weight_spec(&list[i], layer, name);
        if (!safetensors_check(file, &spec, error)) return false;
    }
    return true;
}

bool model_check(const char *directory, const model_sizes *sizes, demo_error *error)
{
    safetensors *file = NULL;
    if (!open_weights(directory, &file, error)) return false;
    model nothing = {0};
    model_layer no_layer = {0};
    weight other[OTHER_WEIGHTS], of_layer[LAYER_WEIGHTS];
    other_weights(sizes, &nothing, other);
    layer_weights(sizes, &no_layer, of_layer);
    bool ok = check_list(file, other, OTHER_WEIGHTS, -1, error);
    for (int32_t layer = 0; ok && layer < sizes->layers; layer++)
        ok = check_list(file, of_layer, LAYER_WEIGHTS, layer, error);
    safetensors_close(file);
    return ok;
}

bool model_load(const char *directory, compute *c, int32_t first_expert, int32_t num_local_experts, model **out,
                demo_error *error)
{
    safetensors *file = NULL;
    if (!open_weights(directory, &file, error)) return false;
    model *m = demo_calloc(error, 1, sizeof *m);
    bool ok = m != NULL;
    if (ok) {
        m->compute = c;
        m->sizes = c->sizes;
        m->first_expert = first_expert;
        m->num_local_experts = num_local_experts;
        ok = load_all(file, m, error);
    }
    safetensors_close(file);
    if (!ok) {
        model_free(m);
        return false;
    }
    *out = m;
    return true;
}

expert_weights model_experts(const model *m, int32_t layer)
{
    const model_layer *l = &m->layers[layer];
    return (expert_weights){.w1 = l->w1, .w3 = l->w3, .w2 = l->w2, .count = m->num_local_experts};
}

void model_free(model *m)
{
    if (!m) return;
    compute *c = m->compute;
    for (int32_t layer = 0; m->layers && layer < m->sizes.layers; layer++) {
        weight list[LAYER_WEIGHTS];
        layer_weights(&m->sizes, &m->layers[layer], list);
        for (int i = 0; i < LAYER_WEIGHTS; i++)
            c->ops->release(c, *list[i].place);
    }
    float *const others[] = {m->embedding, m->unembedding, m->g, m->rope_cos, m->rope_sin};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        c->ops->release(c, others[i]);
    free(m->layers);
    free(m);
}

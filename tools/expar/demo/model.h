/* SPDX-License-Identifier: Apache-2.0 */
/* The model's weights in FP32, each matrix stored [inputs][outputs] as the matrix kernel reads it, in memory of the
 * compute that works on them. */
#ifndef EXPAR_DEMO_MODEL_H
#define EXPAR_DEMO_MODEL_H

#include "compute.h"

/* One layer. L: the experts that were loaded. */
typedef struct model_layer {
    float *g1, *g2;           /* [D] */
    float *wq, *wk, *wv, *wo; /* [D][D] */
    float *wr;                /* [D][E] */
    float *bias;              /* [E] */
    float *w1, *w3;           /* [L][D][F] */
    float *w2;                /* [L][F][D] */
} model_layer;

typedef struct model {
    compute *compute; /* borrowed */
    model_sizes sizes;
    int32_t first_expert,
        num_local_experts;      /* experts first_expert … first_expert + num_local_experts - 1 are loaded */
    float *embedding;           /* [V][D] */
    float *unembedding;         /* [D][V]: the same numbers */
    float *g;                   /* [D] */
    float *rope_cos, *rope_sin; /* [context][D / heads / 2] */
    model_layer *layers;
} model;

/* Checks that `directory`/model.safetensors holds every tensor of such a model, without reading the weights. */
bool model_check(const char *directory, const model_sizes *sizes, demo_error *error);
/* Loads the shared weights and the experts of one owner into memory of c, which must have the model's sizes. */
bool model_load(const char *directory, compute *c, int32_t first_expert, int32_t num_local_experts, model **out,
                demo_error *error);
/* Returns all loaded experts of a layer. */
expert_weights model_experts(const model *m, int32_t layer);
void model_free(model *m);

#endif

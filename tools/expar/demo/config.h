/* SPDX-License-Identifier: Apache-2.0 */
/* config.json of the model: its sizes, and the prompts that it was shipped with. */
#ifndef EXPAR_DEMO_CONFIG_H
#define EXPAR_DEMO_CONFIG_H

#include "failure.h"
#include <stdint.h>

/* Sizes. Letters in shapes elsewhere: V vocab, D hidden, E experts, K top_k, F expert_ffn. */
typedef struct model_sizes {
    int32_t vocab; /* 256: a token is a byte */
    int32_t hidden;
    int32_t layers;
    int32_t heads;
    int32_t experts;
    int32_t top_k;
    int32_t expert_ffn;
    int32_t context; /* tokens that fit into one sequence */
    float rms_eps;
    float rope_theta;
} model_sizes;

/* Most that top_k may be: routing works on arrays of this length. */
#define MODEL_MAX_TOP_K 16

/* A shipped prompt with its greedy continuation. */
typedef struct model_sample {
    uint8_t *prompt;
    int32_t prompt_bytes;
    uint8_t *greedy;
    int32_t greedy_bytes;
} model_sample;

typedef struct model_config {
    model_sizes sizes;
    model_sample *samples;
    int32_t num_samples;
} model_config;

/* Reads and checks `directory`/config.json. */
bool model_config_load(const char *directory, model_config *config, demo_error *error);
void model_config_free(model_config *config);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* sequence: a growing text with its bytes, and the keys and values of the tokens that went through the model so far. */
#ifndef EXPAR_DEMO_SEQUENCE_H
#define EXPAR_DEMO_SEQUENCE_H

#include "compute.h"

typedef struct sequence {
    uint8_t *text;        /* [capacity] prompt and continuation */
    int32_t prompt_bytes; /* ≥ 1 */
    int32_t length;       /* bytes of text that are there */
    int32_t capacity;     /* prompt and all that will be generated */
    compute *compute;     /* borrowed; keys and values lie in its memory */
    float *keys, *values; /* [layers][capacity][D] */
    float *gaps;          /* [capacity] the lead of the logit of a generated text[i] over the second best */
} sequence;

/* Makes a sequence of a prompt and `bytes` bytes to generate. Together they fit the model's context. */
bool sequence_create(compute *c, const uint8_t *prompt, int32_t prompt_bytes, int32_t bytes, sequence **out,
                     demo_error *error);
void sequence_free(sequence *s);

typedef struct sequence_list {
    sequence **items;
    int32_t count;
} sequence_list;

/* Frees the sequences too. */
void sequence_list_free(sequence_list *list);

#endif

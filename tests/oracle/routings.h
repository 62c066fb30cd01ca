/* SPDX-License-Identifier: Apache-2.0 */
/* Routings for tests: which experts the tokens choose. */
#ifndef TESTS_ORACLE_ROUTINGS_H
#define TESTS_ORACLE_ROUTINGS_H

#include "random.h"

typedef enum routing_kind {
    ROUTING_UNIFORM,  /* every expert alike */
    ROUTING_ZIPF,     /* the i-th expert of a random order with probability ∝ 1/i */
    ROUTING_GROUPED,  /* the experts form groups (8 where E allows); a token keeps to the 4 best of them */
    ROUTING_ONE_HOT,  /* every slot of every token: one and the same expert */
    ROUTING_RECORDED, /* a router's decisions on real text, folded to E experts and K slots */
    ROUTING_NOWHERE,  /* -1 everywhere */
    ROUTING_KINDS
} routing_kind;

const char *routing_name(routing_kind kind);

/* Fills topk_idx [T][K] with experts 0 … E-1, distinct within a token as long as the kind and K ≤ E allow. */
void routing_fill(routing_kind kind, random_source *random, int64_t num_tokens, int32_t topk, int32_t num_experts,
                  int64_t *topk_idx);
/* Turns about one slot in `chances` to -1, and as many to the expert of another slot of the same token. */
void routing_disturb(random_source *random, int64_t chances, int64_t num_tokens, int32_t topk, int64_t *topk_idx);

/* The recording: [layer][token][slot] experts of a model with 32 of them. */
#define ROUTING_RECORDED_LAYERS  4
#define ROUTING_RECORDED_TOKENS  32768
#define ROUTING_RECORDED_TOPK    4
#define ROUTING_RECORDED_EXPERTS 32
/* Read once from the data folder; ends the program with a message when the file is missing or is another. Call it
   before threads start. */
const int16_t *routing_recorded(void);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Routing generators. */
#include "routings.h"
#include <stdlib.h>
#include <string.h>

const char *routing_name(routing_kind kind)
{
    static const char *const names[ROUTING_KINDS] = {"uniform", "zipf", "grouped", "one-hot", "recorded", "nowhere"};
    return names[kind];
}

static bool contains(const int64_t *experts, int32_t count, int64_t expert)
{
    for (int32_t k = 0; k < count; k++)
        if (experts[k] == expert) return true;
    return false;
}

/* A random order of 0 … count-1. */
static int32_t *shuffled(random_source *random, int32_t count)
{
    int32_t *order = malloc((size_t)count * sizeof *order);
    if (!order) abort();
    for (int32_t i = 0; i < count; i++) {
        int32_t j = (int32_t)random_between(random, 0, i);
        order[i] = order[j];
        order[j] = i;
    }
    return order;
}

/* Puts one of `choices` experts, drawn by `draw`, in each slot; distinct as long as there are enough. */
typedef int64_t (*draw_fn)(random_source *random, const void *context);
static void fill_distinct(random_source *random, draw_fn draw, const void *context, int64_t choices, int32_t topk,
                          int64_t *experts)
{
    for (int32_t k = 0; k < topk; k++) {
        do
            experts[k] = draw(random, context);
        while (k < choices && contains(experts, k, experts[k]));
    }
}

static int64_t draw_uniform(random_source *random, const void *context)
{
    return random_between(random, 0, *(const int32_t *)context - 1);
}

static void fill_uniform(random_source *random, int64_t num_tokens, int32_t topk, int32_t num_experts,
                         int64_t *topk_idx)
{
    for (int64_t t = 0; t < num_tokens; t++)
        fill_distinct(random, draw_uniform, &num_experts, num_experts, topk, topk_idx + t * topk);
}

typedef struct zipf {
    const int32_t *order;
    const double *cumulative; /* [num_experts] */
    int32_t num_experts;
} zipf;

static int64_t draw_zipf(random_source *random, const void *context)
{
    const zipf *law = context;
    double point = random_unit(random) * law->cumulative[law->num_experts - 1];
    int32_t i = 0;
    while (i < law->num_experts - 1 && law->cumulative[i] <= point)
        i++;
    return law->order[i];
}

static void fill_zipf(random_source *random, int64_t num_tokens, int32_t topk, int32_t num_experts, int64_t *topk_idx)
{
    int32_t *order = shuffled(random, num_experts);
    double *cumulative = malloc((size_t)num_experts * sizeof *cumulative);
    if (!cumulative) abort();
    for (int32_t i = 0; i < num_experts; i++)
        cumulative[i] = (i ? cumulative[i - 1] : 0) + 1.0 / (i + 1);
    zipf law = {order, cumulative, num_experts};
    for (int64_t t = 0; t < num_tokens; t++)
        fill_distinct(random, draw_zipf, &law, num_experts, topk, topk_idx + t * topk);
    free(cumulative);
    free(order);
}

#define GROUPS      8
#define GROUPS_KEPT 4

typedef struct kept_groups {
    const int32_t *groups; /* a random order: the first `kept` are this token's */
    int32_t kept, group_experts;
} kept_groups;

static int64_t draw_grouped(random_source *random, const void *context)
{
    const kept_groups *groups = context;
    int64_t i = random_between(random, 0, (int64_t)groups->kept * groups->group_experts - 1);
    return (int64_t)groups->groups[i / groups->group_experts] * groups->group_experts + i % groups->group_experts;
}

static void fill_grouped(random_source *random, int64_t num_tokens, int32_t topk, int32_t num_experts,
                         int64_t *topk_idx)
{
    int32_t count = num_experts % GROUPS == 0 ? GROUPS : 1;
    int32_t kept = count == GROUPS ? GROUPS_KEPT : 1;
    int32_t group_experts = num_experts / count;
    for (int64_t t = 0; t < num_tokens; t++) {
        int32_t *order = shuffled(random, count);
        kept_groups groups = {order, kept, group_experts};
        fill_distinct(random, draw_grouped, &groups, (int64_t)kept * group_experts, topk, topk_idx + t * topk);
        free(order);
    }
}

static void fill_constant(int64_t expert, int64_t count, int64_t *topk_idx)
{
    for (int64_t i = 0; i < count; i++)
        topk_idx[i] = expert;
}

/* Consecutive tokens from a random place on; slots beyond the recorded four come from the following layers. */
static void fill_recorded(random_source *random, int64_t num_tokens, int32_t topk, int32_t num_experts,
                          int64_t *topk_idx)
{
    const int16_t *recorded = routing_recorded();
    int64_t start = random_between(random, 0, ROUTING_RECORDED_TOKENS - 1);
    int64_t first_layer = random_between(random, 0, ROUTING_RECORDED_LAYERS - 1);
    for (int64_t t = 0; t < num_tokens; t++)
        for (int32_t k = 0; k < topk; k++) {
            int64_t layer = (first_layer + k / ROUTING_RECORDED_TOPK) % ROUTING_RECORDED_LAYERS;
            int64_t token = (start + t) % ROUTING_RECORDED_TOKENS;
            int64_t row = layer * ROUTING_RECORDED_TOKENS + token;
            int64_t expert = recorded[row * ROUTING_RECORDED_TOPK + k % ROUTING_RECORDED_TOPK];
            topk_idx[t * topk + k] = num_experts <= ROUTING_RECORDED_EXPERTS
                                         ? expert % num_experts
                                         : expert * num_experts / ROUTING_RECORDED_EXPERTS;
        }
}

void routing_fill(routing_kind kind, random_source *random, int64_t num_tokens, int32_t topk, int32_t num_experts,
                  int64_t *topk_idx)
{
    switch (kind) {
    case ROUTING_ZIPF:
        fill_zipf(random, num_tokens, topk, num_experts, topk_idx);
        break;
    case ROUTING_GROUPED:
        fill_grouped(random, num_tokens, topk, num_experts, topk_idx);
        break;
    case ROUTING_ONE_HOT:
        fill_constant(random_between(random, 0, num_experts - 1), num_tokens * topk, topk_idx);
        break;
    case ROUTING_RECORDED:
        fill_recorded(random, num_tokens, topk, num_experts, topk_idx);
        break;
    case ROUTING_NOWHERE:
        fill_constant(-1, num_tokens * topk, topk_idx);
        break;
    default:
        fill_uniform(random, num_tokens, topk, num_experts, topk_idx);
    }
}

void routing_disturb(random_source *random, int64_t chances, int64_t num_tokens, int32_t topk, int64_t *topk_idx)
{
    for (int64_t t = 0; t < num_tokens; t++)
        for (int32_t k = 0; k < topk; k++) {
            int64_t *slot = topk_idx + t * topk + k;
            if (random_once_in(random, chances))
                *slot = -1;
            else if (random_once_in(random, chances))
                *slot = topk_idx[t * topk + random_between(random, 0, topk - 1)];
        }
}

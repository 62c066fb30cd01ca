/* SPDX-License-Identifier: Apache-2.0 */
/* Draws scripts. */
#include "ep/harness/script.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_TOKENS       200
#define MAX_LARGE_TOKENS 24
#define MAX_ROW_UNITS    896 /* of 16 bytes: 7168 elements of bf16 */
#define MAX_PAD          4
/* The most of one rank's input, to keep the oracle quick. */
#define INPUT_BYTES      ((int64_t)96 << 10)
#define AMPLE_POOL_BYTES ((int64_t)256 << 20)
#define TINY_POOL_BYTES  4096

/* 1 … high, small numbers as likely as large ones. */
static int64_t draw_log(random_source *random, int64_t high)
{
    int64_t value = (int64_t)exp(random_unit(random) * log((double)high + 1));
    return value < 1 ? 1 : value > high ? high : value;
}

static int32_t draw_ranks(random_source *random)
{
    return random_once_in(random, 16) ? 16 : (int32_t)random_between(random, 1, 8);
}

static expar_ep_config draw_config(random_source *random, int32_t ranks)
{
    static const int32_t slots[] = {0, 1, 1, 2, 3, 8, 64};
    static const int64_t pools[] = {0, TINY_POOL_BYTES, AMPLE_POOL_BYTES, AMPLE_POOL_BYTES};
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    config.max_row_bytes = 16 * draw_log(random, MAX_ROW_UNITS);
    int64_t most = INPUT_BYTES / config.max_row_bytes;
    most = most > MAX_TOKENS ? MAX_TOKENS : most < MAX_LARGE_TOKENS ? MAX_LARGE_TOKENS : most;
    config.max_tokens = random_between(random, 0, most);
    config.max_topk = (int32_t)random_between(random, 1, 16);
    config.max_experts = ranks * (int32_t)draw_log(random, 16);
    config.num_channels = random_once_in(random, 3)
                              ? 0
                              : (int32_t)draw_log(random, config.max_tokens + 3 > 40 ? 40 : config.max_tokens + 3);
    config.ring_slots = slots[random_between(random, 0, 6)];
    config.pool_limit_bytes = pools[random_between(random, 0, 3)];
    return config;
}

static trial_choice draw_common(random_source *random)
{
    return (trial_choice){.pad = random_once_in(random, 2) ? (int32_t)random_between(random, 1, MAX_PAD) : 0,
                          .spare_rows = random_once_in(random, 3) ? (int32_t)random_between(random, 1, 5) : 0,
                          .null_if_empty = random_once_in(random, 2)};
}

static trial_choice draw_dispatch_choice(random_source *random, bool ample_pool)
{
    trial_choice choice = draw_common(random);
    choice.place = (trial_place)random_between(random, PLACE_LIBRARY, PLACE_SYMMETRIC);
    choice.sure_of_pool = ample_pool;
    if (random_once_in(random, 2))
        choice.path = ample_pool && choice.place != PLACE_PRIVATE && random_once_in(random, 2) ? EXPAR_EP_PATH_DIRECT
                                                                                               : EXPAR_EP_PATH_QUEUE;
    return choice;
}

static trial_choice draw_combine_choice(random_source *random, bool have_output)
{
    trial_choice choice = draw_common(random);
    choice.place = (trial_place)random_between(random, have_output ? PLACE_LIBRARY : PLACE_PRIVATE, PLACE_SYMMETRIC);
    if (random_once_in(random, 2))
        choice.path =
            choice.place == PLACE_SYMMETRIC && random_once_in(random, 2) ? EXPAR_EP_PATH_DIRECT : EXPAR_EP_PATH_QUEUE;
    return choice;
}

static traffic *draw_traffic(random_source *random, const script *s)
{
    int32_t n = s->ranks.size;
    int64_t *num_tokens = traffic_alloc((size_t)n, sizeof *num_tokens);
    const expar_ep_config *config = &s->config;
    bool full = random_once_in(random, 4), idle = random_once_in(random, 4);
    for (int32_t r = 0; r < n; r++) {
        num_tokens[r] = full ? config->max_tokens : random_between(random, 0, config->max_tokens);
        if (idle && random_once_in(random, 2)) num_tokens[r] = 0;
    }
    oracle_type type = (oracle_type)random_between(random, ORACLE_BF16, ORACLE_F32);
    int64_t units =
        random_once_in(random, 3) ? config->max_row_bytes / 16 : draw_log(random, config->max_row_bytes / 16);
    traffic_plan plan = {.num_ranks = n,
                         .ranks_per_node = s->ranks.ranks_per_node,
                         .hidden = (int32_t)(units * 16 / (int64_t)oracle_element_bytes(type)),
                         .topk = (int32_t)random_between(random, 1, config->max_topk),
                         .num_experts = n * (int32_t)random_between(random, 1, config->max_experts / n),
                         .expert_alignment = random_once_in(random, 2) ? (int32_t)random_between(random, 0, 20) : 0,
                         .type = type,
                         .wide = random_once_in(random, 2),
                         .with_weights = random_once_in(random, 2),
                         .routing = (routing_kind)random_between(random, 0, ROUTING_KINDS - 1),
                         .disturb = random_once_in(random, 2) ? random_between(random, 2, 10) : 0,
                         .num_tokens = num_tokens};
    traffic *made = traffic_make(&plan, random);
    free(num_tokens);
    return made;
}

/* The content of a slot while the script is drawn. */
typedef struct drawn_slot {
    traffic *routing;
    bool have_output;
} drawn_slot;

static script_kind draw_kind(random_source *random, const drawn_slot *slot)
{
    if (!slot->routing || random_once_in(random, 4)) return SCRIPT_DISPATCH;
    if (slot->have_output && random_once_in(random, 10)) return SCRIPT_FORGET;
    return random_once_in(random, 3) ? SCRIPT_REPEAT : SCRIPT_COMBINE;
}

static script_op draw_op(random_source *random, const script *s, drawn_slot slots[SCRIPT_SLOTS])
{
    script_op op = {.slot = (int32_t)random_between(random, 0, SCRIPT_SLOTS - 1)};
    drawn_slot *slot = &slots[op.slot];
    op.kind = draw_kind(random, slot);
    op.choices = traffic_alloc((size_t)s->ranks.size, sizeof *op.choices);
    if (op.kind == SCRIPT_DISPATCH)
        *slot = (drawn_slot){op.traffic = draw_traffic(random, s), true};
    else if (op.kind == SCRIPT_REPEAT)
        op.traffic = traffic_repeat(slot->routing, random);
    else if (op.kind == SCRIPT_COMBINE)
        op.answers = answers_make(op.traffic = slot->routing, random_once_in(random, 2), random);
    else
        slot->have_output = false;
    for (int32_t r = 0; r < s->ranks.size; r++)
        op.choices[r] = op.kind == SCRIPT_COMBINE ? draw_combine_choice(random, slot->have_output)
                                                  : draw_dispatch_choice(random, s->ample_pool);
    return op;
}

/* Large enough for all rows that one rank can get, some to spare, and weights. */
static size_t area_bytes(const expar_ep_config *config, int32_t ranks)
{
    int64_t rows = config->max_tokens * ranks + 16;
    return (size_t)(rows * (config->max_row_bytes + 4 * config->max_topk + MAX_PAD * 20) + 4096);
}

static size_t heap_bytes(const script *s)
{
    size_t bytes = 0;
    if (expar_ep_get_buffer_size(&s->config, s->ranks.size, &bytes) != EXPAR_OK) {
        fprintf(stderr, "%s\n", expar_last_error());
        abort();
    }
    return bytes + 4 * SCRIPT_SLOTS * s->area_bytes + ((size_t)16 << 20);
}

script *script_make_on(uint64_t seed, const ranks_plan *ranks, int64_t num_ops)
{
    random_source random = random_start(seed);
    drawn_slot slots[SCRIPT_SLOTS] = {0};
    script *s = traffic_alloc(1, sizeof *s);
    s->seed = seed;
    s->ranks = *ranks;
    if (!ranks->size) s->ranks.size = draw_ranks(&random);
    s->config = draw_config(&random, s->ranks.size);
    s->config.ranks_per_node = s->ranks.ranks_per_node;
    s->ample_pool = s->config.pool_limit_bytes == AMPLE_POOL_BYTES;
    s->threads = traffic_alloc((size_t)s->ranks.size, sizeof *s->threads);
    for (int32_t r = 0; r < s->ranks.size; r++)
        s->threads[r] = (int32_t)random_between(&random, 1, 3);
    s->area_bytes = area_bytes(&s->config, s->ranks.size);
    s->ranks.heap_bytes = heap_bytes(s);
    s->num_ops = num_ops;
    s->ops = traffic_alloc((size_t)num_ops, sizeof *s->ops);
    for (int64_t i = 0; i < num_ops; i++)
        s->ops[i] = draw_op(&random, s, slots);
    return s;
}

void script_forget_limits(script *s)
{
    expar_ep_config *config = &s->config;
    config->max_tokens = config->max_row_bytes = 0;
    config->max_topk = config->max_experts = config->max_scales = 0;
    s->ranks.heap_bytes = heap_bytes(s);
}

script *script_make(uint64_t seed, ranks_kind kind, int64_t num_ops)
{
    return script_make_on(seed, &(ranks_plan){.kind = kind}, num_ops);
}

static void script_free(script *s)
{
    for (int64_t i = 0; i < s->num_ops; i++) {
        if (s->ops[i].kind != SCRIPT_COMBINE) traffic_free(s->ops[i].traffic);
        answers_free(s->ops[i].answers);
        free(s->ops[i].choices);
    }
    free(s->ops);
    free(s->threads);
    free(s);
}

static void script_print(const script *s)
{
    const expar_ep_config *c = &s->config;
    fprintf(stderr,
            "script %" PRIu64
            ": %d ranks, %d a node, T ≤ %lld, rows ≤ %lld bytes, K ≤ %d, E ≤ %d, %d channels, %d slots, pool %lld\n",
            s->seed, (int)s->ranks.size, (int)s->ranks.ranks_per_node, (long long)c->max_tokens,
            (long long)c->max_row_bytes, (int)c->max_topk, (int)c->max_experts, (int)c->num_channels,
            (int)c->ring_slots, (long long)c->pool_limit_bytes);
}

bool script_run(script *s)
{
    const bool passed = ranks_run(&s->ranks, script_trial, s);
    if (!passed) script_print(s);
    script_free(s);
    return passed;
}

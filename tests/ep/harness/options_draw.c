/* SPDX-License-Identifier: Apache-2.0 */
/* Random deals and moves. */
#include "ep/harness/options_draw.h"
#include <stdlib.h>

static trial_place draw_place(random_source *random)
{
    return (trial_place)random_between(random, PLACE_LIBRARY, PLACE_SYMMETRIC);
}

static deal_choice draw_common(random_source *random)
{
    return (deal_choice){.place = draw_place(random),
                         .pad = random_once_in(random, 2) ? (int32_t)random_between(random, 1, 3) : 0,
                         .null_if_empty = random_once_in(random, 2),
                         .num_sms = random_once_in(random, 2) ? (int32_t)random_between(random, 1, 5) : 0,
                         .async = random_once_in(random, 2)};
}

/* direct: the call can be asked for the direct path. */
static expar_ep_path draw_path(random_source *random, bool direct)
{
    int64_t choice = random_between(random, 0, 3);
    if (choice == 0) return EXPAR_EP_PATH_QUEUE;
    return choice == 1 && direct ? EXPAR_EP_PATH_DIRECT : EXPAR_EP_PATH_AUTO;
}

static deal_choice draw_dispatch_choice(const options_limits *limits, bool may_be_expert_major, random_source *random)
{
    static const int32_t alignments[] = {0, 1, 2, 7, 16, 128};
    deal_choice choice = draw_common(random);
    choice.expert_major = random_once_in(random, 3) && may_be_expert_major;
    choice.path = draw_path(random, limits->ample_pool && (choice.expert_major || choice.place != PLACE_PRIVATE));
    choice.zero_padding = random_once_in(random, 2);
    choice.row_weights = random_once_in(random, 2);
    choice.counts = random_once_in(random, 2);
    if (random_once_in(random, 3)) choice.own = (uint32_t)random_between(random, 0, 511);
    choice.own_symmetric = random_once_in(random, 2);
    choice.column_scales = random_once_in(random, 3);
    choice.scales = (deal_scales)random_between(random, 0, SCALES_ORDERS - 1);
    choice.alignment = alignments[random_between(random, 0, 5)];
    choice.worst = random_once_in(random, 3) ? (deal_worst)random_between(random, 0, WORST_KINDS - 1) : WORST_NONE;
    choice.limit = random_once_in(random, 3) ? (deal_limit)random_between(random, 0, LIMIT_KINDS - 1) : LIMIT_NONE;
    return choice;
}

deal *options_draw_deal(const options_limits *limits, random_source *random)
{
    int32_t n = limits->num_ranks;
    int64_t *num_tokens = traffic_alloc((size_t)n, sizeof *num_tokens);
    deal_choice *choices = traffic_alloc((size_t)n, sizeof *choices);
    bool idle = random_once_in(random, 5);
    deal_plan plan = {.num_ranks = n,
                      .ranks_per_node = limits->ranks_per_node,
                      .topk = (int32_t)random_between(random, 1, limits->config->max_topk),
                      .num_experts = n * (int32_t)random_between(random, 1, limits->config->max_experts / n),
                      .wide = random_once_in(random, 2),
                      .with_weights = random_once_in(random, 2),
                      .by_hand = random_once_in(random, 4),
                      .with_counts = random_once_in(random, 2),
                      .keep_slots = random_once_in(random, 2),
                      .routing = (routing_kind)random_between(random, 0, ROUTING_KINDS - 1),
                      .disturb = random_once_in(random, 2) ? random_between(random, 2, 10) : 0,
                      .num_tokens = num_tokens,
                      .choices = choices};
    if (plan.by_hand && random_once_in(random, 2)) plan.topk = 0;
    bool all_expert_major = plan.topk && random_once_in(random, 4);
    for (int32_t r = 0; r < n; r++) {
        num_tokens[r] = random_between(random, 0, limits->config->max_tokens);
        if (idle && random_once_in(random, 2)) num_tokens[r] = 0;
        choices[r] = draw_dispatch_choice(limits, plan.topk > 0, random);
        choices[r].expert_major |= all_expert_major;
    }
    deal *made = deal_make(&plan, random);
    free(num_tokens);
    free(choices);
    return made;
}

static int32_t draw_hidden(const options_limits *limits, oracle_type type, random_source *random)
{
    return (int32_t)(random_between(random, 1, limits->config->max_row_bytes / 16) * 16 /
                     (int64_t)oracle_element_bytes(type));
}

static int32_t most_scales(const expar_ep_config *config)
{
    return config->max_scales ? config->max_scales : (int32_t)((config->max_row_bytes + 63) / 64);
}

/* Late where the rank gets rows at all. */
static void reject_one(deal_move *m, random_source *random)
{
    m->form.refuser = (int32_t)random_between(random, 0, m->job.num_ranks - 1);
    bool late = random_once_in(random, 2) && m->form.kind != MOVE_COMBINE && move_num_x_rows(m, m->form.refuser) > 0;
    m->form.rejection = late ? REJECTION_LATE : REJECTION_EARLY;
}

/* A call with topk_idx needs no handle that knows the places. */
static bool may_be_expert_major(const deal *d, int32_t rank, const move_form *form)
{
    return d->job.topk && (form->with_topk || d->choices[rank].expert_major);
}

deal_move *options_draw_dispatch(const options_limits *limits, const deal *d, move_kind kind, bool rejected,
                                 random_source *random)
{
    int32_t n = limits->num_ranks;
    deal_choice *choices = traffic_alloc((size_t)n, sizeof *choices);
    move_form form = {.kind = kind,
                      .type = (oracle_type)random_between(random, ORACLE_BF16, ORACLE_I8),
                      .packed = random_once_in(random, 2)};
    form.routed = kind == MOVE_DISPATCH && random_once_in(random, 3);
    form.with_topk = kind == MOVE_REPEAT && random_once_in(random, 2);
    form.src_tokens = random_once_in(random, 3);
    if (random_once_in(random, 3))
        form.src_stride = (int32_t)(limits->config->max_tokens + random_between(random, 0, 9));
    form.global_experts = random_once_in(random, 3);
    form.hidden = draw_hidden(limits, form.type, random);
    if (form.type >= ORACLE_F8E4M3 && !random_once_in(random, 4))
        form.num_scales = (int32_t)random_between(random, 1, most_scales(limits->config));
    for (int32_t r = 0; r < n; r++)
        choices[r] = kind == MOVE_DISPATCH ? d->choices[r]
                                           : draw_dispatch_choice(limits, may_be_expert_major(d, r, &form), random);
    deal_move *m = move_make(d, &form, choices, random);
    free(choices);
    if (rejected) reject_one(m, random);
    return m;
}

static deal_choice draw_combine_choice(const options_limits *limits, bool may_be_expert_major, const move_form *form,
                                       random_source *random)
{
    deal_choice choice = draw_common(random);
    bool each_slot = form->order == ORDER_EACH_SLOT, in_heap = choice.place == PLACE_SYMMETRIC;
    choice.expert_major = (random_once_in(random, 2) || each_slot) && may_be_expert_major;
    bool direct = choice.expert_major ? limits->ample_pool && (each_slot ? in_heap : !form->with_weights) : in_heap;
    choice.path = draw_path(random, direct);
    choice.expert_weights = random_once_in(random, 2);
    choice.biases = random_once_in(random, 2) ? (int32_t)random_between(random, 0, 3) : 0;
    return choice;
}

static deal_order draw_order(const deal *d, random_source *random)
{
    bool each = true;
    for (int32_t r = 0; r < d->job.num_ranks; r++)
        each &= d->choices[r].expert_major;
    if (!d->keep_slots) return ORDER_BY_RANK;
    return (deal_order)random_between(random, ORDER_BY_RANK, each ? ORDER_EACH_SLOT : ORDER_BY_SLOT);
}

deal_move *options_draw_combine(const options_limits *limits, const deal *d, bool rejected, random_source *random)
{
    int32_t n = limits->num_ranks;
    deal_choice *choices = traffic_alloc((size_t)n, sizeof *choices);
    move_form form = {.kind = MOVE_COMBINE,
                      .type = (oracle_type)random_between(random, ORACLE_BF16, ORACLE_F32),
                      .with_weights = d->job.topk && random_once_in(random, 2)};
    form.hidden = draw_hidden(limits, form.type, random);
    form.order = draw_order(d, random);
    form.owners_weights = d->keep_slots && form.with_weights && random_once_in(random, 2);
    if (limits->ranks_per_node) form.nodes = (oracle_nodes)random_between(random, 0, ORACLE_NODES_KINDS - 1);
    for (int32_t r = 0; r < n; r++)
        choices[r] = draw_combine_choice(limits, d->choices[r].expert_major, &form, random);
    deal_move *m = move_make(d, &form, choices, random);
    free(choices);
    if (rejected) reject_one(m, random);
    return m;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Traffic and answers, with the oracle's results. */
#include "ep/harness/traffic.h"
#include <stdlib.h>
#include <string.h>

/* Rows must be 16-byte aligned; a cache line keeps rows of different arrays apart. */
#define ARRAY_ALIGN_BYTES 64

void *traffic_alloc(size_t count, size_t bytes)
{
    size_t total = (count * bytes + ARRAY_ALIGN_BYTES) / ARRAY_ALIGN_BYTES * ARRAY_ALIGN_BYTES;
    void *array = aligned_alloc(ARRAY_ALIGN_BYTES, total);
    if (!array) abort();
    return memset(array, 0, total);
}

size_t traffic_row_bytes(const traffic *t)
{
    return (size_t)t->job.hidden * oracle_element_bytes(t->job.type);
}

expar_dtype traffic_dtype(const traffic *t)
{
    static const expar_dtype dtypes[] = {
        [ORACLE_BF16] = EXPAR_BF16, [ORACLE_F16] = EXPAR_F16, [ORACLE_F32] = EXPAR_F32};
    return dtypes[t->job.type];
}

int32_t traffic_local_experts(const traffic *t)
{
    return t->job.num_experts / t->job.num_ranks;
}

traffic_plan traffic_plan_small(int32_t num_ranks, int32_t ranks_per_node, const int64_t *num_tokens)
{
    return (traffic_plan){.num_ranks = num_ranks,
                          .ranks_per_node = ranks_per_node,
                          .hidden = 24,
                          .topk = 3,
                          .num_experts = 2 * num_ranks,
                          .num_tokens = num_tokens};
}

static traffic *traffic_of(const oracle_job *job, bool wide, bool with_weights)
{
    traffic *t = traffic_alloc(1, sizeof *t);
    t->job = *job;
    t->wide = wide;
    t->with_weights = with_weights;
    t->inputs = traffic_alloc((size_t)job->num_ranks, sizeof *t->inputs);
    t->arrivals = traffic_alloc((size_t)job->num_ranks, sizeof *t->arrivals);
    t->job.inputs = t->inputs;
    return t;
}

static void *draw_rows(const traffic *t, int64_t rows, random_source *random)
{
    void *x = traffic_alloc((size_t)rows, traffic_row_bytes(t));
    traffic_fill_rows(random, t->job.type, rows, t->job.hidden, x);
    return x;
}

static uint32_t *draw_weights(const traffic *t, int64_t rows, random_source *random)
{
    uint32_t *weights = traffic_alloc((size_t)(rows * t->job.topk), sizeof *weights);
    traffic_fill_rows(random, ORACLE_F32, rows, t->job.topk, weights);
    return weights;
}

static oracle_input draw_input(const traffic *t, const traffic_plan *plan, int32_t rank, random_source *random)
{
    int64_t count = plan->num_tokens[rank];
    int64_t *topk_idx = traffic_alloc((size_t)(count * plan->topk), sizeof *topk_idx);
    routing_fill(plan->routing, random, count, plan->topk, plan->num_experts, topk_idx);
    if (plan->disturb) routing_disturb(random, plan->disturb, count, plan->topk, topk_idx);
    return (oracle_input){.num_tokens = count,
                          .x = draw_rows(t, count, random),
                          .topk_idx = topk_idx,
                          .weights = plan->with_weights ? draw_weights(t, count, random) : NULL};
}

traffic *traffic_make(const traffic_plan *plan, random_source *random)
{
    oracle_job job = {.num_ranks = plan->num_ranks,
                      .ranks_per_node = plan->ranks_per_node ? plan->ranks_per_node : plan->num_ranks,
                      .hidden = plan->hidden,
                      .topk = plan->topk,
                      .num_experts = plan->num_experts,
                      .expert_alignment = plan->expert_alignment,
                      .type = plan->type};
    traffic *t = traffic_of(&job, plan->wide, plan->with_weights);
    for (int32_t r = 0; r < plan->num_ranks; r++)
        t->inputs[r] = draw_input(t, plan, r, random);
    traffic_settle(t);
    return t;
}

traffic *traffic_repeat(const traffic *first, random_source *random)
{
    traffic *t = traffic_of(&first->job, first->wide, false);
    for (int32_t r = 0; r < t->job.num_ranks; r++) {
        const oracle_input *old = &first->inputs[r];
        size_t slots = (size_t)(old->num_tokens * t->job.topk);
        int64_t *topk_idx = traffic_alloc(slots, sizeof *topk_idx);
        memcpy(topk_idx, old->topk_idx, slots * sizeof *topk_idx);
        t->inputs[r] = (oracle_input){
            .num_tokens = old->num_tokens, .x = draw_rows(t, old->num_tokens, random), .topk_idx = topk_idx};
    }
    traffic_settle(t);
    return t;
}

static void free_arrival(traffic_arrival *arrival)
{
    free(arrival->x);
    free(arrival->topk_idx);
    free(arrival->weights);
    free(arrival->per_expert);
    free(arrival->rank_prefix);
}

static traffic_arrival settle_rank(const traffic *t, int32_t rank)
{
    int64_t rows = oracle_num_received(&t->job, rank);
    size_t slots = (size_t)(rows * t->job.topk);
    traffic_arrival arrival = {
        .num_rows = rows,
        .x = traffic_alloc((size_t)rows, traffic_row_bytes(t)),
        .topk_idx = traffic_alloc(slots, sizeof *arrival.topk_idx),
        .weights = t->with_weights ? traffic_alloc(slots, sizeof *arrival.weights) : NULL,
        .per_expert = traffic_alloc((size_t)traffic_local_experts(t), sizeof *arrival.per_expert),
        .rank_prefix = traffic_alloc((size_t)t->job.num_ranks, sizeof *arrival.rank_prefix),
    };
    oracle_dispatch(&t->job, rank, arrival.x, arrival.topk_idx, arrival.weights);
    oracle_received_per_expert(&t->job, rank, arrival.per_expert);
    oracle_rank_prefix(&t->job, rank, arrival.rank_prefix);
    return arrival;
}

void traffic_settle(traffic *t)
{
    for (int32_t r = 0; r < t->job.num_ranks; r++) {
        free_arrival(&t->arrivals[r]);
        t->arrivals[r] = settle_rank(t, r);
    }
}

void traffic_free(traffic *t)
{
    if (!t) return;
    for (int32_t r = 0; r < t->job.num_ranks; r++) {
        free((void *)(uintptr_t)t->inputs[r].x);
        free((void *)(uintptr_t)t->inputs[r].topk_idx);
        free((void *)(uintptr_t)t->inputs[r].weights);
        free_arrival(&t->arrivals[r]);
    }
    free(t->inputs);
    free(t->arrivals);
    free(t);
}

static void settle_answers(const traffic *t, answers *a)
{
    for (int32_t r = 0; r < a->num_ranks; r++) {
        a->y[r] = traffic_alloc((size_t)t->inputs[r].num_tokens, traffic_row_bytes(t));
        oracle_combine(&t->job, r, (const void *const *)a->x, a->y[r]);
        if (!a->with_weights) continue;
        a->summed[r] = traffic_alloc((size_t)(t->inputs[r].num_tokens * t->job.topk), sizeof **a->summed);
        oracle_combine_weights(&t->job, r, (const uint32_t *const *)a->weights, a->summed[r]);
    }
}

answers *answers_make(const traffic *t, bool with_weights, random_source *random)
{
    size_t n = (size_t)t->job.num_ranks;
    answers *a = traffic_alloc(1, sizeof *a);
    *a = (answers){.num_ranks = t->job.num_ranks,
                   .with_weights = with_weights,
                   .x = traffic_alloc(n, sizeof *a->x),
                   .weights = traffic_alloc(n, sizeof *a->weights),
                   .y = traffic_alloc(n, sizeof *a->y),
                   .summed = traffic_alloc(n, sizeof *a->summed)};
    for (int32_t r = 0; r < a->num_ranks; r++) {
        a->x[r] = draw_rows(t, t->arrivals[r].num_rows, random);
        if (with_weights) a->weights[r] = draw_weights(t, t->arrivals[r].num_rows, random);
    }
    settle_answers(t, a);
    return a;
}

void answers_free(answers *a)
{
    if (!a) return;
    for (int32_t r = 0; r < a->num_ranks; r++) {
        free(a->x[r]);
        free(a->weights[r]);
        free(a->y[r]);
        free(a->summed[r]);
    }
    free(a->x);
    free(a->weights);
    free(a->y);
    free(a->summed);
    free(a);
}

void traffic_forms_add(traffic_forms *f, const traffic_plan *plan, random_source *random)
{
    if (f->count == TRAFFIC_MOST_FORMS) abort();
    f->traffic[f->count] = traffic_make(plan, random);
    f->answers[f->count] = answers_make(f->traffic[f->count], plan->with_weights, random);
    f->count++;
}

void traffic_forms_free(traffic_forms *f)
{
    for (int32_t i = 0; i < f->count; i++) {
        traffic_free(f->traffic[i]);
        answers_free(f->answers[i]);
    }
}

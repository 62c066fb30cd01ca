/* SPDX-License-Identifier: Apache-2.0 */
/* The same tokens and the same rows for views in which ranks are masked. */
#include "ep/low_latency/masked.h"
#include "ep/low_latency/reach.h"
#include <stdlib.h>
#include <string.h>

static void draw_masks(masked_traffic *m)
{
    const int32_t n = m->num_ranks;
    m->masks = traffic_alloc((size_t)(MASKED_VIEWS * n), 1);
    memset(m->masks, 0, (size_t)(MASKED_VIEWS * n));
    for (int32_t r = 0; r < n; r++) {
        m->masks[MASKED_VICTIM * n + r] = r == m->victim;
        m->masks[MASKED_OTHERS * n + r] = r != m->victim;
        m->masks[MASKED_BOTH * n + r] = r == m->victim || r == m->second;
    }
}

/* Weights are what they are in the first view. */
static void share_weights(lowlat_answers *a, const lowlat_answers *first, const lowlat_traffic *t)
{
    for (int32_t r = 0; r < a->job.num_ranks; r++)
        if (a->inputs[r].weights != t->inputs[r].weights)
            memcpy((void *)(uintptr_t)a->inputs[r].weights, first->inputs[r].weights,
                   (size_t)(t->inputs[r].num_tokens * a->job.topk) * sizeof(uint32_t));
}

/* And so are the rows, which stand in other places here. */
static void share_rows(const lowlat_answers *a, const lowlat_answers *first, const int32_t *map, const int32_t *all)
{
    const llo_job *job = &a->job;
    const int64_t places = lowlat_places(job), locals = lowlat_locals(job);
    const size_t row_bytes = (size_t)job->hidden * oracle_element_bytes(job->type);
    for (int32_t r = 0; r < job->num_ranks; r++)
        for (int64_t i = 0; i < job->inputs[r].num_tokens * job->topk; i++) {
            const int64_t slot = r * job->max_tokens * job->topk + i, e = job->inputs[r].topk_idx[i];
            const int32_t row = map[slot], from = all[slot];
            if (row < 0) continue;
            memcpy((char *)a->x[e / locals] + (size_t)(e % locals * places + row) * row_bytes,
                   (const char *)first->x[e / locals] + (size_t)(e % locals * places + from) * row_bytes, row_bytes);
        }
}

static void share_answers(masked_traffic *m, masked_view view)
{
    lowlat_answers *a = m->back[view];
    const lowlat_answers *first = m->back[MASKED_NOBODY];
    share_weights(a, first, m->there[view]);
    share_rows(a, first, m->there[view]->map, m->there[MASKED_NOBODY]->map);
    for (int32_t r = 0; r < m->num_ranks; r++)
        (a->sum == EXPAR_LL_SUM_EXACT ? llo_combine_exact : llo_combine_reduced)(&a->job, m->there[view]->map, r,
                                                                                 (const void *const *)a->x, a->y[r]);
}

masked_traffic *masked_traffic_make(const lowlat_plan *plan, int32_t victim, expar_ll_sum sum, uint64_t seed)
{
    masked_traffic *m = traffic_alloc(1, sizeof *m);
    m->num_ranks = plan->num_ranks;
    m->victim = victim;
    m->second = (victim + 1) % plan->num_ranks;
    draw_masks(m);
    for (int view = 0; view < MASKED_VIEWS; view++) {
        random_source random = random_start(seed);
        m->there[view] = lowlat_traffic_make(plan, &random);
        m->there[view]->job.masked = m->masks + view * m->num_ranks;
        lowlat_traffic_settle(m->there[view]);
        m->back[view] = lowlat_answers_make(m->there[view], plan->type, sum, &random);
        if (view != MASKED_NOBODY) share_answers(m, (masked_view)view);
    }
    return m;
}

void masked_traffic_free(masked_traffic *m)
{
    if (!m) return;
    for (int view = 0; view < MASKED_VIEWS; view++) {
        lowlat_answers_free(m->back[view], m->there[view]);
        lowlat_traffic_free(m->there[view]);
    }
    free(m->masks);
    free(m);
}

lowlat_plan masked_plan(int32_t num_ranks, int64_t *tokens, random_source *random)
{
    const lowlat_plan plan = {.num_ranks = num_ranks,
                              .max_tokens = 12,
                              .hidden = 128,
                              .topk = 4,
                              .num_experts = 3 * num_ranks,
                              .type = ORACLE_BF16,
                              .with_weights = random_between(random, 0, 1),
                              .num_tokens = tokens};
    for (int32_t r = 0; r < num_ranks; r++)
        tokens[r] = random_between(random, 8, 12);
    return plan;
}

expar_ll_config masked_config(const lowlat_plan *plan)
{
    expar_ll_config config = EXPAR_LL_CONFIG_INIT;
    config.max_tokens = plan->max_tokens;
    config.hidden = plan->hidden;
    config.max_topk = plan->topk;
    config.num_experts = plan->num_experts;
    config.masking = 1;
    config.unmapped = reach_unmapped();
    return config;
}

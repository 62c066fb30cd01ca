/* SPDX-License-Identifier: Apache-2.0 */
/* The MoE layer over a group in low-latency mode: dispatch puts each row where its experts are, expert by expert, each
 * expert runs its rows, a reduced combine sums them by weight: first on the experts' rank, then where the token came
 * from.
 *
 * Normal mode and the reference add a rank's experts in rising order, a combine adds slots in their own. So the slots
 * of each token are brought into that order first, and all three give the same bits. */
#include "moe.h"

#include <expar/low_latency.h>
#include <stdlib.h>

typedef struct moe_low_latency {
    moe base;
    const model *m;
    expar_ll *ll;
    int32_t rank, share; /* this rank, and how many experts each has */
    int64_t most_rows;   /* ranks · max_tokens: of one expert in one run */
    int32_t *slots;      /* [max_tokens][top_k] the routing of the batch, each token's experts rising */
    float *weights;      /* [max_tokens][top_k] */
    int32_t *one_slot;   /* [most_rows][top_k] 0 and then none: each row goes through the one expert given */
    float *ones;         /* [most_rows][top_k] 1: weights are the combine's */
    float *outputs;      /* [most_rows][D] what one expert made of its rows */
    moe_counts *counts;
} moe_low_latency;

/* Files an expert with the `filled` ones of a token that are already in order. */
static void insert_slot(int32_t *slots, float *weights, int32_t filled, int32_t expert, float weight)
{
    int32_t at = filled;
    for (; at > 0 && slots[at - 1] > expert; at--) {
        slots[at] = slots[at - 1];
        weights[at] = weights[at - 1];
    }
    slots[at] = expert;
    weights[at] = weight;
}

/* Counts the token's messages: one to each rank that has experts of it. */
static void count_messages(const moe_low_latency *self, const int32_t *slots, int32_t top_k)
{
    for (int32_t k = 0, before = -1; k < top_k; k++) {
        const int32_t owner = slots[k] / self->share;
        self->counts->rows += owner != before;
        self->counts->rows_between_ranks += owner != before && owner != self->rank;
        before = owner;
    }
}

static void order_slots(moe_low_latency *self, const routed_rows *rows)
{
    const int32_t top_k = self->m->sizes.top_k;
    for (int64_t row = 0; row < rows->count; row++) {
        const int64_t at = row * top_k;
        for (int32_t k = 0; k < top_k; k++)
            insert_slot(self->slots + at, self->weights + at, k, rows->topk_idx[at + k], rows->topk_weights[at + k]);
        count_messages(self, self->slots + at, top_k);
    }
}

static bool send_rows(moe_low_latency *self, const routed_rows *rows, expar_ll_dispatch_result *received,
                      demo_error *error)
{
    const model_sizes *s = &self->m->sizes;
    expar_ll_dispatch_args args = EXPAR_LL_DISPATCH_ARGS_INIT;
    args.x = compute_tensor(self->m->compute, rows->x, EXPAR_F32, rows->count, s->hidden);
    args.topk_idx = compute_tensor(self->m->compute, self->slots, EXPAR_I32, rows->count, s->top_k);
    args.topk_weights = compute_tensor(self->m->compute, self->weights, EXPAR_F32, rows->count, s->top_k);
    args.format = EXPAR_LL_PLAIN;
    return demo_check(error, "low-latency dispatch", expar_ll_dispatch(self->ll, &args, received));
}

/* Replaces the rows of each expert by what it makes of them, so that combine reads them where dispatch put them. */
static void run_received(moe_low_latency *self, int32_t layer, const expar_ll_dispatch_result *received)
{
    const model_sizes *s = &self->m->sizes;
    compute *c = self->m->compute;
    expert_weights w = model_experts(self->m, layer);
    const int64_t matrix = (int64_t)s->hidden * s->expert_ffn;
    const int32_t *recv_count = received->recv_count.data;
    w.count = 1;
    for (int32_t e = 0; e < self->share; e++, w.w1 += matrix, w.w3 += matrix, w.w2 += matrix) {
        float *x = (float *)received->recv_x.data + (int64_t)e * self->most_rows * s->hidden;
        const routed_rows rows = {
            .count = recv_count[e], .x = x, .topk_idx = self->one_slot, .topk_weights = self->ones};
        self->counts->tokens_per_expert[e] += rows.count;
        if (rows.count == 0) continue;
        c->ops->run_experts(c, &w, &rows, self->outputs);
        c->ops->copy(c, x, self->outputs, (size_t)(rows.count * s->hidden) * sizeof(float));
    }
}

static bool bring_back(moe_low_latency *self, const expar_ll_dispatch_result *received, int64_t count, float *y,
                       demo_error *error)
{
    const model_sizes *s = &self->m->sizes;
    expar_ll_combine_args args = EXPAR_LL_COMBINE_ARGS_INIT;
    args.x = received->recv_x;
    args.topk_idx = compute_tensor(self->m->compute, self->slots, EXPAR_I32, count, s->top_k);
    args.topk_weights = compute_tensor(self->m->compute, self->weights, EXPAR_F32, count, s->top_k);
    args.handle = received->handle;
    args.sum = EXPAR_LL_REDUCED;
    args.format = EXPAR_LL_PLAIN;
    args.out = compute_tensor(self->m->compute, y, EXPAR_F32, count, s->hidden);
    expar_ll_combine_result result = EXPAR_LL_COMBINE_RESULT_INIT;
    if (!demo_check(error, "low-latency combine", expar_ll_combine(self->ll, &args, &result))) return false;
    expar_ep_output_release(result.output);
    return true;
}

static bool moe_low_latency_run(moe *base, int32_t layer, const routed_rows *rows, float *y, demo_error *error)
{
    moe_low_latency *self = (moe_low_latency *)base;
    expar_ll_dispatch_result received = EXPAR_LL_DISPATCH_RESULT_INIT;
    order_slots(self, rows);
    if (!send_rows(self, rows, &received, error)) return false;
    run_received(self, layer, &received);
    const bool ok = bring_back(self, &received, rows->count, y, error);
    expar_ll_handle_destroy(received.handle);
    expar_ep_output_release(received.output);
    return ok;
}

static void moe_low_latency_free(moe *base)
{
    moe_low_latency *self = (moe_low_latency *)base;
    expar_ll_destroy(self->ll);
    free(self->slots);
    free(self->weights);
    free(self->one_slot);
    free(self->ones);
    free(self->outputs);
    free(self);
}

static bool allocate(moe_low_latency *self, int32_t max_tokens, demo_error *error)
{
    const size_t top_k = (size_t)self->m->sizes.top_k, most_rows = (size_t)self->most_rows;
    self->slots = demo_calloc(error, (size_t)max_tokens * top_k, sizeof(int32_t));
    self->weights = demo_calloc(error, (size_t)max_tokens * top_k, sizeof(float));
    self->one_slot = demo_calloc(error, most_rows * top_k, sizeof(int32_t));
    self->ones = demo_calloc(error, most_rows * top_k, sizeof(float));
    self->outputs = demo_calloc(error, most_rows * (size_t)self->m->sizes.hidden, sizeof(float));
    if (!self->slots || !self->weights || !self->one_slot || !self->ones || !self->outputs) return false;
    for (size_t i = 0; i < most_rows * top_k; i++) {
        self->one_slot[i] = i % top_k == 0 ? 0 : -1;
        self->ones[i] = 1;
    }
    return true;
}

static expar_ll_config config_for(const model_sizes *sizes, int32_t max_tokens)
{
    expar_ll_config config = EXPAR_LL_CONFIG_INIT;
    config.max_tokens = max_tokens;
    config.hidden = sizes->hidden;
    config.num_topk = sizes->top_k;
    config.num_experts = sizes->experts;
    config.max_element_bytes = sizeof(float);
    config.sums = 1 << EXPAR_LL_REDUCED;
    return config;
}

size_t moe_low_latency_bytes(const model_sizes *sizes, int32_t ranks, int32_t max_tokens)
{
    const expar_ll_config config = config_for(sizes, max_tokens);
    size_t bytes = 0;
    return expar_ll_buffer_size(&config, ranks, &bytes) == EXPAR_OK ? bytes : 0;
}

static bool create_buffer(moe_low_latency *self, expar_group *group, int32_t max_tokens, demo_error *error)
{
    const expar_ll_config config = config_for(&self->m->sizes, max_tokens);
    return demo_check(error, "create the low-latency buffer", expar_ll_create(group, &config, &self->ll));
}

bool moe_low_latency_create(expar_group *group, const model *m, int32_t max_tokens, moe_counts *counts, moe **out,
                            demo_error *error)
{
    moe_low_latency *self = demo_calloc(error, 1, sizeof *self);
    if (!self) return false;
    self->base = (moe){.run = moe_low_latency_run, .free = moe_low_latency_free};
    self->m = m;
    self->rank = expar_group_rank(group);
    self->share = m->num_local_experts;
    self->most_rows = (int64_t)expar_group_size(group) * max_tokens;
    self->counts = counts;
    if (!allocate(self, max_tokens, error) || !create_buffer(self, group, max_tokens, error)) {
        moe_low_latency_free(&self->base);
        return false;
    }
    *out = &self->base;
    return true;
}

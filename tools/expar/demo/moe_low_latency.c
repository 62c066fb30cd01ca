/* SPDX-License-Identifier: Apache-2.0 */
/* The MoE layer over a group in low-latency mode. Dispatch carries each row to its experts, where rows are ordered by
 * expert. Each expert runs its rows. A reduced combine sums the weighted rows, first on the experts' rank, then at the
 * token's source.
 *
 * Normal mode and the reference add a rank's experts in rising order. A combine adds slots in the token's own order. So
 * the slots of each token are sorted by expert first, and all three give the same bits.
 *
 * The host computes the order of slots, and the number of rows of each expert, wherever the rows lie. On a GPU it waits
 * for the routing and for the rows. */
#include "ep/low_latency/tools.h"
#include "moe.h"

#include <expar/low_latency.h>
#include <stdlib.h>

typedef struct moe_low_latency {
    moe base;
    const model *m;
    expar_ll *ll;
    int32_t rank, share; /* this rank, and the number of experts of each rank */
    int64_t most_rows;   /* ranks · max_tokens: of one expert in one run */
    int64_t layers;      /* calls */
    /* The host's: */
    int32_t *slots;      /* [max_tokens][top_k] the routing of the batch, each token's experts rising */
    float *weights;      /* [max_tokens][top_k] */
    int32_t *recv_count; /* [share] rows that came for each expert */
    moe_counts *counts;
    /* In memory of the compute: */
    int32_t *topk_idx;   /* [max_tokens][top_k] slots */
    float *topk_weights; /* [max_tokens][top_k] weights */
    int32_t *one_slot;   /* [most_rows][top_k] 0, then none: each row goes through the given expert only */
    float *ones;         /* [most_rows][top_k] 1: weights are the combine's */
    float *outputs;      /* [most_rows][D] one expert's outputs */
} moe_low_latency;

/* Inserts an expert into the `filled` sorted experts of a token. */
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

static bool order_slots(moe_low_latency *self, const routed_rows *rows, demo_error *error)
{
    compute *c = self->m->compute;
    const int32_t top_k = self->m->sizes.top_k;
    const size_t slots = (size_t)rows->count * (size_t)top_k;
    if (slots == 0) return true;
    if (!c->ops->read(c, self->slots, rows->topk_idx, slots * sizeof *self->slots, error) ||
        !c->ops->read(c, self->weights, rows->topk_weights, slots * sizeof *self->weights, error))
        return false;
    for (int64_t row = 0; row < rows->count; row++) {
        const int64_t at = row * top_k;
        for (int32_t k = 0; k < top_k; k++)
            insert_slot(self->slots + at, self->weights + at, k, self->slots[at + k], self->weights[at + k]);
        count_messages(self, self->slots + at, top_k);
    }
    return c->ops->write(c, self->topk_idx, self->slots, slots * sizeof *self->slots, error) &&
           c->ops->write(c, self->topk_weights, self->weights, slots * sizeof *self->weights, error);
}

/* On a GPU the call has only been put on the stream. Nothing is enqueued after it before it has ended. Where ranks
 * share the GPU, its kernel waits for those that others have yet to launch (docs/reference/gpu.md, "Ranks that share a
 * GPU"). */
static bool await_call(moe_low_latency *self, const char *what, demo_error *error)
{
    compute *c = self->m->compute;
    return c->ops->settle(c, error) && demo_check(error, what, expar_ll_query(self->ll));
}

static bool send_rows(moe_low_latency *self, const routed_rows *rows, expar_ll_dispatch_result *received,
                      demo_error *error)
{
    const model_sizes *s = &self->m->sizes;
    const compute *c = self->m->compute;
    expar_ll_dispatch_args args = EXPAR_LL_DISPATCH_ARGS_INIT;
    args.x = compute_tensor(c, rows->x, EXPAR_F32, rows->count, s->hidden);
    args.topk_idx = compute_tensor(c, self->topk_idx, EXPAR_I32, rows->count, s->top_k);
    args.topk_weights = compute_tensor(c, self->topk_weights, EXPAR_F32, rows->count, s->top_k);
    args.format = EXPAR_LL_FORMAT_PLAIN;
    args.stream = c->stream;
    return demo_check(error, "low-latency dispatch", expar_ll_dispatch(self->ll, &args, received));
}

static bool count_received(moe_low_latency *self, const expar_ll_dispatch_result *received, demo_error *error)
{
    compute *c = self->m->compute;
    const size_t bytes = (size_t)self->share * sizeof *self->recv_count;
    return await_call(self, "low-latency dispatch", error) &&
           c->ops->read(c, self->recv_count, received->recv_count.data, bytes, error);
}

/* Replaces the rows of each expert by its outputs, so that combine reads them where dispatch put them. */
static void run_received(moe_low_latency *self, int32_t layer, const expar_ll_dispatch_result *received)
{
    const model_sizes *s = &self->m->sizes;
    compute *c = self->m->compute;
    expert_weights w = model_experts(self->m, layer);
    const int64_t matrix = (int64_t)s->hidden * s->expert_ffn;
    w.count = 1;
    for (int32_t e = 0; e < self->share; e++, w.w1 += matrix, w.w3 += matrix, w.w2 += matrix) {
        float *x = (float *)received->recv_x.data + (int64_t)e * self->most_rows * s->hidden;
        const routed_rows rows = {
            .count = self->recv_count[e], .x = x, .topk_idx = self->one_slot, .topk_weights = self->ones};
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
    const compute *c = self->m->compute;
    expar_ll_combine_args args = EXPAR_LL_COMBINE_ARGS_INIT;
    args.x = received->recv_x;
    args.topk_idx = compute_tensor(c, self->topk_idx, EXPAR_I32, count, s->top_k);
    args.topk_weights = compute_tensor(c, self->topk_weights, EXPAR_F32, count, s->top_k);
    args.handle = received->handle;
    args.sum = EXPAR_LL_SUM_REDUCED;
    args.format = EXPAR_LL_FORMAT_PLAIN;
    args.out_y = compute_tensor(c, y, EXPAR_F32, count, s->hidden);
    args.stream = c->stream;
    expar_ll_combine_result result = EXPAR_LL_COMBINE_RESULT_INIT;
    if (!demo_check(error, "low-latency combine", expar_ll_combine(self->ll, &args, &result))) return false;
    expar_ep_output_release(result.output);
    return await_call(self, "low-latency combine", error);
}

static bool moe_low_latency_run(moe *base, int32_t layer, const routed_rows *rows, float *y, demo_error *error)
{
    moe_low_latency *self = (moe_low_latency *)base;
    expar_ll_dispatch_result received = EXPAR_LL_DISPATCH_RESULT_INIT;
    self->layers++;
    if (!order_slots(self, rows, error) || !send_rows(self, rows, &received, error)) return false;
    bool ok = count_received(self, &received, error);
    if (ok) {
        run_received(self, layer, &received);
        ok = bring_back(self, &received, rows->count, y, error);
    }
    expar_ll_handle_release(received.handle);
    expar_ep_output_release(received.output);
    return ok;
}

static moe_traffic moe_low_latency_traffic(const moe *base)
{
    const moe_low_latency *self = (const moe_low_latency *)base;
    const link_sent sent = ll_sent_so_far(self->ll);
    return (moe_traffic){
        .layers = self->layers, .messages = (int64_t)(sent.messages + sent.flags), .bytes = (int64_t)sent.bytes};
}

static void moe_low_latency_free(moe *base)
{
    moe_low_latency *self = (moe_low_latency *)base;
    compute *c = self->m->compute;
    void *const there[] = {self->topk_idx, self->topk_weights, self->one_slot, self->ones, self->outputs};
    expar_ll_destroy(self->ll);
    for (size_t i = 0; i < sizeof there / sizeof *there; i++)
        c->ops->release(c, there[i]);
    free(self->slots);
    free(self->weights);
    free(self->recv_count);
    free(self);
}

static bool allocate(moe_low_latency *self, int32_t max_tokens, demo_error *error)
{
    compute *c = self->m->compute;
    const size_t top_k = (size_t)self->m->sizes.top_k, most_rows = (size_t)self->most_rows;
    const size_t slots = (size_t)max_tokens * top_k;
    return (self->slots = demo_calloc(error, slots, sizeof(int32_t))) &&
           (self->weights = demo_calloc(error, slots, sizeof(float))) &&
           (self->recv_count = demo_calloc(error, (size_t)self->share, sizeof(int32_t))) &&
           (self->topk_idx = c->ops->alloc(c, slots * sizeof(int32_t), error)) &&
           (self->topk_weights = c->ops->alloc(c, slots * sizeof(float), error)) &&
           (self->one_slot = c->ops->alloc(c, most_rows * top_k * sizeof(int32_t), error)) &&
           (self->ones = c->ops->alloc(c, most_rows * top_k * sizeof(float), error)) &&
           (self->outputs = c->ops->alloc(c, most_rows * (size_t)self->m->sizes.hidden * sizeof(float), error));
}

/* Writes the routing of rows that each go through one expert. */
static bool fill_ones(moe_low_latency *self, demo_error *error)
{
    compute *c = self->m->compute;
    const size_t top_k = (size_t)self->m->sizes.top_k, slots = (size_t)self->most_rows * top_k;
    int32_t *one_slot = demo_calloc(error, slots, sizeof *one_slot);
    float *ones = demo_calloc(error, slots, sizeof *ones);
    bool ok = one_slot && ones;
    for (size_t i = 0; ok && i < slots; i++) {
        one_slot[i] = i % top_k == 0 ? 0 : -1;
        ones[i] = 1;
    }
    ok = ok && c->ops->write(c, self->one_slot, one_slot, slots * sizeof *one_slot, error) &&
         c->ops->write(c, self->ones, ones, slots * sizeof *ones, error);
    free(one_slot);
    free(ones);
    return ok;
}

static expar_ll_config config_for(const model_sizes *sizes, int32_t max_tokens)
{
    expar_ll_config config = EXPAR_LL_CONFIG_INIT;
    config.max_tokens = max_tokens;
    config.hidden = sizes->hidden;
    config.max_topk = sizes->top_k;
    config.num_experts = sizes->experts;
    config.max_row_bytes = config.hidden * (int64_t)sizeof(float);
    config.sums = 1 << EXPAR_LL_SUM_REDUCED;
    return config;
}

size_t moe_low_latency_bytes(const model_sizes *sizes, int32_t ranks, int32_t max_tokens)
{
    const expar_ll_config config = config_for(sizes, max_tokens);
    size_t bytes = 0;
    return expar_ll_get_buffer_size(&config, ranks, &bytes) == EXPAR_OK ? bytes : 0;
}

static bool create_buffer(moe_low_latency *self, expar_group *group, int32_t max_tokens, demo_error *error)
{
    expar_ll_config config = config_for(&self->m->sizes, max_tokens);
    config.device = self->m->compute->device;
    config.num_sms = self->m->compute->num_sms;
    return demo_check(error, "create the low-latency buffer", expar_ll_create(group, &config, &self->ll));
}

bool moe_low_latency_create(expar_group *group, const model *m, int32_t max_tokens, moe_counts *counts, moe **out,
                            demo_error *error)
{
    moe_low_latency *self = demo_calloc(error, 1, sizeof *self);
    if (!self) return false;
    self->base = (moe){.run = moe_low_latency_run, .traffic = moe_low_latency_traffic, .free = moe_low_latency_free};
    self->m = m;
    self->rank = expar_group_rank(group);
    self->share = m->num_local_experts;
    self->most_rows = (int64_t)expar_group_size(group) * max_tokens;
    self->counts = counts;
    if (!allocate(self, max_tokens, error) || !fill_ones(self, error) ||
        !create_buffer(self, group, max_tokens, error)) {
        moe_low_latency_free(&self->base);
        return false;
    }
    *out = &self->base;
    return true;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The MoE layer over a group in normal mode. Dispatch carries each row to the ranks that own its experts. Each owner
 * runs them and sums their outputs into one row. Combine adds the owners' rows up where the token came from. */
#include "ep/normal/tools.h"
#include "moe.h"

#include <stdlib.h>

typedef struct moe_normal {
    moe base;
    const model *m;
    expar_ep *ep;
    expar_ep_path path;
    int32_t rank;
    float *sums; /* [ranks · max_tokens][D] the experts' outputs for the received rows */
    moe_counts *counts;
    int64_t layers; /* calls */
} moe_normal;

/* The tensors are views: nothing writes through those of const rows. */
static bool dispatch(moe_normal *self, const routed_rows *rows, expar_ep_dispatch_result *received, demo_error *error)
{
    const model_sizes *s = &self->m->sizes;
    expar_ep_dispatch_args args = EXPAR_EP_DISPATCH_ARGS_INIT;
    args.x = compute_tensor(self->m->compute, rows->x, EXPAR_F32, rows->count, s->hidden);
    args.topk_idx = compute_tensor(self->m->compute, rows->topk_idx, EXPAR_I32, rows->count, s->top_k);
    args.topk_weights = compute_tensor(self->m->compute, rows->topk_weights, EXPAR_F32, rows->count, s->top_k);
    args.stream = self->m->compute->stream;
    args.num_experts = s->experts;
    args.path = self->path;
    return demo_check(error, "dispatch", expar_ep_dispatch(self->ep, &args, received));
}

static bool count(moe_normal *self, const expar_ep_dispatch_result *received, demo_error *error)
{
    expar_ep_handle_info info = EXPAR_EP_HANDLE_INFO_INIT;
    if (!demo_check(error, "handle", expar_ep_handle_get_info(received->handle, &info))) return false;
    int64_t before = self->rank > 0 ? info.rank_prefix[self->rank - 1] : 0;
    int64_t own = info.rank_prefix[self->rank] - before;
    self->counts->path = received->path;
    self->counts->rows += received->num_recv_tokens;
    self->counts->rows_between_ranks += received->num_recv_tokens - own;
    for (int32_t e = 0; e < received->num_local_experts; e++)
        self->counts->tokens_per_expert[e] += received->recv_tokens_per_expert[e];
    return true;
}

/* Replaces the received rows by the experts' sums, so that combine reads them where dispatch put them. */
static void run_local(moe_normal *self, int32_t layer, const expar_ep_dispatch_result *received)
{
    compute *c = self->m->compute;
    const expert_weights w = model_experts(self->m, layer);
    const routed_rows rows = {.count = received->num_recv_tokens,
                              .x = received->recv_x.data,
                              .topk_idx = received->recv_topk_idx.data,
                              .topk_weights = received->recv_topk_weights.data};
    if (rows.count == 0) return;
    c->ops->run_experts(c, &w, &rows, self->sums);
    c->ops->copy(c, received->recv_x.data, self->sums, (size_t)(rows.count * self->m->sizes.hidden) * sizeof(float));
}

static bool combine(moe_normal *self, const expar_ep_dispatch_result *received, int64_t count_tokens, float *y,
                    demo_error *error)
{
    expar_ep_combine_args args = EXPAR_EP_COMBINE_ARGS_INIT;
    args.x = received->recv_x;
    args.handle = received->handle;
    args.path = self->path;
    args.out_y = compute_tensor(self->m->compute, y, EXPAR_F32, count_tokens, self->m->sizes.hidden);
    args.stream = self->m->compute->stream;
    return demo_check(error, "combine", expar_ep_combine(self->ep, &args, NULL));
}

static bool moe_normal_run(moe *base, int32_t layer, const routed_rows *rows, float *y, demo_error *error)
{
    moe_normal *self = (moe_normal *)base;
    expar_ep_dispatch_result received = EXPAR_EP_DISPATCH_RESULT_INIT;
    self->layers++;
    if (!dispatch(self, rows, &received, error)) return false;
    bool ok = count(self, &received, error);
    if (ok) {
        run_local(self, layer, &received);
        ok = combine(self, &received, rows->count, y, error);
    }
    expar_ep_handle_release(received.handle);
    expar_ep_output_release(received.output);
    return ok;
}

static moe_traffic moe_normal_traffic(const moe *base)
{
    const moe_normal *self = (const moe_normal *)base;
    const link_sent sent = ep_sent_so_far(self->ep);
    return (moe_traffic){
        .layers = self->layers, .messages = (int64_t)(sent.messages + sent.flags), .bytes = (int64_t)sent.bytes};
}

static void moe_normal_free(moe *base)
{
    moe_normal *self = (moe_normal *)base;
    expar_ep_destroy(self->ep);
    self->m->compute->ops->release(self->m->compute, self->sums);
    free(self);
}

static bool create_buffer(moe_normal *self, expar_group *group, int64_t max_tokens, demo_error *error)
{
    const model_sizes *s = &self->m->sizes;
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    config.max_tokens = max_tokens;
    config.max_row_bytes = s->hidden * (int64_t)sizeof(float);
    config.max_topk = s->top_k;
    config.max_experts = s->experts;
    config.device = self->m->compute->device;
    config.num_sms = self->m->compute->num_sms;
    return demo_check(error, "create the EP buffer", expar_ep_create(group, &config, &self->ep));
}

bool moe_normal_create(expar_group *group, const model *m, int64_t max_tokens, expar_ep_path path, moe_counts *counts,
                       moe **out, demo_error *error)
{
    moe_normal *self = demo_calloc(error, 1, sizeof *self);
    if (!self) return false;
    self->base = (moe){.run = moe_normal_run, .traffic = moe_normal_traffic, .free = moe_normal_free};
    self->m = m;
    self->path = path;
    self->rank = expar_group_rank(group);
    self->counts = counts;
    size_t sums_bytes = (size_t)(expar_group_size(group) * max_tokens * m->sizes.hidden) * sizeof(float);
    self->sums = m->compute->ops->alloc(m->compute, sums_bytes, error);
    if (!self->sums || !create_buffer(self, group, max_tokens, error)) {
        moe_normal_free(&self->base);
        return false;
    }
    *out = &self->base;
    return true;
}

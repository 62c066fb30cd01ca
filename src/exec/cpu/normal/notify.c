/* SPDX-License-Identifier: Apache-2.0 */
/* Notify: makes the layout. Then every rank tells every rank how many tokens it will send there, by channel, and how
 * many for each expert. */
#include "exec/cpu/normal/nodes.h"

#include <string.h>

/* Takes sources in rank order, since their rows follow each other in the output. */
static void collect(const cpu_executor *self, uint32_t epoch, ep_routing *routing)
{
    int32_t channels = routing->channels, locals = routing->local_experts, total = 0;
    memset(routing->recv_expert_counts, 0, (size_t)locals * sizeof(int32_t));
    for (int32_t s = 0; s < routing->ranks; s++) {
        const int32_t *counts = (const int32_t *)(cpu_header_from(self, epoch, s) + 1);
        memcpy(routing->recv_channel_prefix + (int64_t)s * channels, counts, (size_t)channels * sizeof(int32_t));
        total += counts[channels - 1];
        routing->rank_prefix[s] = total;
        for (int32_t e = 0; e < locals; e++)
            routing->recv_expert_counts[e] += counts[channels + e];
    }
}

/* Finds where this rank's rows begin at each rank: after those of the ranks before it. */
static void find_first_rows(const cpu_executor *self, uint32_t epoch, ep_routing *routing)
{
    memset(routing->first_row, 0, (size_t)routing->ranks * sizeof(int32_t));
    for (int32_t s = 0; s < self->sym->rank; s++) {
        const uint8_t *header = (const uint8_t *)cpu_header_from(self, epoch, s);
        const int32_t *sent = (const int32_t *)(header + self->space.header_sent);
        for (int32_t r = 0; r < routing->ranks; r++)
            routing->first_row[r] += sent[r];
    }
}

/* All ranks come to the same result, from the same headers. */
static bool pools_grow(const cpu_executor *self, uint32_t epoch)
{
    bool all = true, any = false;
    for (int32_t r = 0; r < self->shape.ranks; r++) {
        const int32_t growth = cpu_header_from(self, epoch, r)->spare.growth;
        all = all && growth >= EP_GROWTH_CAN;
        any = any || growth == EP_GROWTH_REQUESTED;
    }
    return all && any;
}

/* Returns the routing with its layout; NULL: this rank rejects the call. */
static ep_routing *begin_layout(const cpu_executor *self, ep_notify_step *step)
{
    if (step->routing && self->nodes) self->nodes->forget(step->routing);
    if (!step->routing || step->rejection.status != EXPAR_OK) return NULL;
    const expar_status status = cpu_layout(&step->route, step->routing);
    if (status != EXPAR_OK) step->rejection = ep_rejection_of(status);
    return status == EXPAR_OK ? step->routing : NULL;
}

expar_status cpu_notify(executor *base, exec_call *call, ep_notify_step *step)
{
    (void)call;
    cpu_executor *self = cpu_of(base);
    ep_routing *counts = begin_layout(self, step);
    self->growth = counts ? (int32_t)step->growth : EP_GROWTH_NONE;
    expar_status status = cpu_header_post(self, step->epoch, &step->form, &step->rejection, NULL, counts);
    self->growth = EP_GROWTH_NONE;
    if (status == EXPAR_OK) status = cpu_mailbox_await(self, EP_MAILBOX_HEADER, step->epoch, "notify");
    if (status != EXPAR_OK) return status;
    cpu_header_judge(self, step->epoch, &step->vote);
    step->counted = step->vote.rank < 0;
    if (!step->counted) return EXPAR_OK;
    step->grows = pools_grow(self, step->epoch);
    collect(self, step->epoch, step->routing);
    if (self->nodes) return self->nodes->collect(self, step->epoch, step->routing);
    if (step->form.kind == EP_ROUTE) find_first_rows(self, step->epoch, step->routing);
    return EXPAR_OK;
}

/* ---- counts for the caller --------------------------------------------------------------------------------------- */

static void tell_experts(const ep_counts_step *step)
{
    const ep_routing *routing = step->routing;
    int64_t before = 0;
    for (int32_t e = 0; e < routing->local_experts; e++) {
        int32_t count = routing->recv_expert_counts[e];
        if (step->tokens_per_expert) step->tokens_per_expert[e] = count;
        if (step->expert_prefix) step->expert_prefix[e] = ep_saturate(before);
        if (step->expert_ends) step->expert_ends[e] = ep_saturate(before + count);
        before += (int64_t)ep_round((uint64_t)count, (uint64_t)step->alignment);
    }
    if (step->expert_prefix) step->expert_prefix[routing->local_experts] = ep_saturate(before);
}

expar_status cpu_tell_counts(executor *base, exec_call *call, const ep_counts_step *step)
{
    (void)base, (void)call;
    const ep_routing *routing = step->routing;
    int64_t coming = routing->rank_prefix[routing->ranks - 1];
    tell_experts(step);
    if (step->rank_prefix) memcpy(step->rank_prefix, routing->rank_prefix, (size_t)routing->ranks * sizeof(int32_t));
    if (step->num_recv_tokens) *step->num_recv_tokens = coming < step->rows ? coming : step->rows;
    return EXPAR_OK;
}

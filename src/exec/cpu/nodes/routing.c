/* SPDX-License-Identifier: Apache-2.0 */
/* The part of a handle about its rail: how many records go to and come from each node, which ranks have each of them,
 * and where their rows lie. With it a combine, or another dispatch, needs nothing but headers. */
#include "exec/cpu/nodes/rails.h"

#include <stdlib.h>
#include <string.h>

expar_status rail_routing_make(const cpu_executor *self, ep_routing *routing)
{
    const ep_rails *shape = &self->rails->shape;
    const size_t nodes = (size_t)shape->nodes, each = (size_t)shape->each, channels = (size_t)routing->channels;
    const size_t cells = nodes * channels, counts = (2 + each) * cells + nodes * each;
    ep_rail_routing *known = calloc(1, sizeof *known + (nodes + 1) * sizeof(int64_t) + counts * sizeof(int32_t));
    if (!known) return error_set(EXPAR_ERR_MEMORY, "no memory for the routing over %d nodes", shape->nodes);
    known->nodes = shape->nodes;
    known->each = shape->each;
    known->node = self->rails->node;
    known->kept_words = ep_kept_words(shape->each, routing->keeps_slots ? routing->topk : 0);
    known->first_mask = (int64_t *)(known + 1);
    known->records_out = (int32_t *)(known->first_mask + nodes + 1);
    known->records_in = known->records_out + cells;
    known->rows_in = known->records_in + cells;
    known->first_row = known->rows_in + each * cells;
    routing->rails = known;
    return EXPAR_OK;
}

const ep_target *rail_targets(const ep_routing *routing, int64_t token, int32_t node, const ep_target **end)
{
    const int32_t first = node * routing->rails->each, after = first + routing->rails->each;
    const ep_target *target = routing->targets + routing->first[token];
    const ep_target *last = routing->targets + routing->first[token + 1];
    while (target < last && target->rank < first)
        target++;
    const ep_target *begin = target;
    while (target < last && target->rank < after)
        target++;
    *end = target;
    return begin < target ? begin : NULL;
}

/* Adds each of the token's nodes once: targets of one node are adjacent. */
static void count_records(const ep_routing *routing, int64_t token, int32_t channel)
{
    const ep_rail_routing *known = routing->rails;
    int32_t last = -1;
    for (int64_t i = routing->first[token]; i < routing->first[token + 1]; i++) {
        const int32_t node = routing->targets[i].rank / known->each;
        if (node != last) known->records_out[(int64_t)node * routing->channels + channel]++;
        last = node;
    }
}

void rail_forget(const ep_routing *routing)
{
    ep_rail_routing *known = routing->rails;
    atomic_store_explicit(&known->counted, false, memory_order_release);
    atomic_store_explicit(&known->masks_known, false, memory_order_release);
    free(atomic_exchange_explicit(&known->masks, NULL, memory_order_acq_rel));
}

void rail_layout(const ep_routing *routing)
{
    const ep_rail_routing *known = routing->rails;
    const int32_t channels = routing->channels;
    int32_t *out = known->records_out;
    memset(out, 0, (size_t)known->nodes * (size_t)channels * sizeof *out);
    for (int32_t c = 0; c < channels; c++) {
        const int64_t end = ep_channel_begin(routing->tokens, channels, c + 1);
        for (int64_t t = ep_channel_begin(routing->tokens, channels, c); t < end; t++)
            count_records(routing, t, c);
    }
    for (int32_t i = 0; i < known->nodes * channels; i++)
        if (i % channels) out[i] += out[i - 1];
}

/* ---- what comes -------------------------------------------------------------------------------------------------- */

/* Copies the counts of this rail's rank on a node, which were checked when they came. */
static void collect_node(const cpu_executor *self, uint32_t epoch, const ep_routing *routing, int32_t node)
{
    const cpu_rails *rails = self->rails;
    const ep_rail_routing *known = routing->rails;
    const size_t channels = (size_t)routing->channels, bytes = channels * sizeof(int32_t);
    const ep_rail_header *header = rail_at(self, ep_rail_header_at(&rails->space, rails->shape.nodes, epoch, node));
    const int32_t *counts = rail_header_counts(self, header, routing->local_experts), *ranks = counts + channels;
    memcpy(known->records_in + (size_t)node * channels, counts, bytes);
    for (int32_t l = 0; l < known->each; l++) {
        memcpy(known->rows_in + ((size_t)node * (size_t)known->each + (size_t)l) * channels, ranks, bytes);
        ranks += channels + (size_t)routing->local_experts;
    }
}

/* Rows of a local rank come in the order of their sources: adds up what all of them send there. */
static expar_status find_first_rows_at(const cpu_executor *self, uint32_t epoch, const ep_routing *routing,
                                       int32_t local)
{
    const ep_rails *shape = &self->rails->shape;
    const int32_t pe = self->near_first + local;
    int64_t row = 0;
    for (int32_t s = 0; s < routing->ranks; s++) {
        const uint8_t *header = (const uint8_t *)cpu_header_from(self, epoch, s);
        if (s == self->sym->rank) routing->first_row[pe] = (int32_t)row;
        if (ep_local_of(shape, s) == self->rails->local)
            routing->rails->first_row[(int64_t)ep_node_of(shape, s) * shape->each + local] = (int32_t)row;
        row += ((const int32_t *)(header + self->space.header_sent))[pe];
        if (row > INT32_MAX)
            return error_set(EXPAR_ERR_PEER, "ranks 0 to %d have told of more than 2^31 - 1 rows for rank %d", s, pe);
    }
    return EXPAR_OK;
}

expar_status rail_collect(const cpu_executor *self, uint32_t epoch, ep_routing *routing)
{
    const cpu_rails *rails = self->rails;
    ep_rail_routing *known = routing->rails;
    expar_status status = EXPAR_OK;
    for (int32_t i = 0; i < rails->shape.nodes - 1; i++)
        collect_node(self, epoch, routing, rail_node_in_turn(rails, i));
    memset(routing->first_row, 0, (size_t)routing->ranks * sizeof *routing->first_row);
    for (int32_t l = 0; l < rails->shape.each && status == EXPAR_OK; l++)
        status = find_first_rows_at(self, epoch, routing, l);
    for (int32_t node = 0; node < known->nodes; node++)
        known->first_mask[node + 1] = known->first_mask[node] + rail_records_in(routing, node)[routing->channels - 1];
    atomic_store_explicit(&known->counted, status == EXPAR_OK, memory_order_release);
    return status;
}

/* A handle of a route may serve dispatches on several buffers before any has brought masks. All of them use the memory
   of the first one. */
static expar_status make_masks(const ep_routing *routing)
{
    ep_rail_routing *known = routing->rails;
    _Atomic uint64_t *none = NULL;
    if (atomic_load_explicit(&known->masks, memory_order_acquire)) return EXPAR_OK;
    const int64_t words = known->first_mask[known->nodes] * known->kept_words;
    _Atomic uint64_t *masks = calloc((size_t)words + 1, sizeof *masks);
    if (!masks) return error_set(EXPAR_ERR_MEMORY, "no memory for the masks of %lld records", (long long)words);
    if (!atomic_compare_exchange_strong_explicit(&known->masks, &none, masks, memory_order_acq_rel,
                                                 memory_order_acquire))
        free(masks);
    return EXPAR_OK;
}

/* Ranks that have rejected a route in a graph, and those that have not, know the counts of different launches. */
static expar_status find_counts(const ep_routing *routing)
{
    if (atomic_load_explicit(&routing->rails->counted, memory_order_acquire)) return EXPAR_OK;
    return error_set(EXPAR_ERR_HANDLE, "the route or dispatch that made the handle was rejected, or has not ended");
}

/* Checks that the masks are there, which come with the records of a dispatch. They are forgotten with the counts. */
static expar_status find_masks(const ep_routing *routing)
{
    if (rail_masks_are_known(routing)) return EXPAR_OK;
    return error_set(EXPAR_ERR_HANDLE,
                     "no dispatch with the handle has brought rows across nodes: it is that of a route, or of a "
                     "rejected dispatch");
}

void rail_admit(const ep_routing *routing, bool back, ep_rejection *rejection)
{
    if (rejection->status != EXPAR_OK) return;
    expar_status status = back ? find_masks(routing) : find_counts(routing);
    if (status == EXPAR_OK && !back) status = make_masks(routing);
    if (status != EXPAR_OK) *rejection = ep_rejection_of(status);
}

void rail_masks_settle(const ep_routing *routing)
{
    atomic_store_explicit(&routing->rails->masks_known, true, memory_order_release);
}

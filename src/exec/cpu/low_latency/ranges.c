/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the places of a dispatch's rows among those of their experts, by the counts of all ranks. */
#include "exec/cpu/low_latency/dispatch.h"

#include <stdio.h>
#include <string.h>

/* Returns the sum of all sources' counts for one expert here. */
static int64_t rows_wanted(const ll_dispatch *d, int32_t local)
{
    int64_t rows = 0;
    for (int32_t s = 0; s < d->self->shape.ranks; s++)
        if (ll_sends_data(d->self, d->record, s))
            rows += d->record->counts[(int64_t)s * d->self->shape.local_experts + local];
    return rows;
}

/* Reports the first expert whose rows exceed its places, unless another report came first. */
static void report_excess(const ll_dispatch *d)
{
    const ll_shape *shape = &d->self->shape;
    ep_vote *vote = &d->step->call.vote;
    for (int32_t l = 0; l < shape->local_experts && vote->rank < 0; l++) {
        const int64_t rows = rows_wanted(d, l);
        if (rows <= ll_expert_places(shape)) continue;
        vote->rank = d->self->sym->rank;
        vote->reason.status = EXPAR_ERR_LIMIT;
        snprintf(vote->reason.text, sizeof vote->reason.text,
                 "expert %d gets %lld rows; expected at most %d (num_ranks * config.max_tokens)",
                 d->self->sym->rank * shape->local_experts + l, (long long)rows, ll_expert_places(shape));
    }
}

void ll_ranges_place(ll_dispatch *d)
{
    const ll_cpu *self = d->self;
    const int32_t locals = self->shape.local_experts, n = self->shape.ranks;
    int64_t *range = d->step->routing->range;
    int32_t *begins = d->step->out_count;
    uint64_t rows = 0;
    bool exceeds = false;
    memset(begins, 0, (size_t)locals * sizeof *begins);
    for (int32_t s = 0; s < n; s++) {
        const bool sends = ll_sends_data(self, d->record, s);
        const int32_t *counts = d->record->counts + (int64_t)s * locals;
        for (int32_t l = 0; l < locals; l++) {
            const int32_t wanted = sends ? counts[l] : 0,
                          count = ll_rows_that_fit(ll_expert_places(&self->shape), begins[l], wanted);
            exceeds |= count < wanted;
            range[(int64_t)l * n + s] = ll_range(begins[l], count);
            begins[l] += count;
            rows += (uint64_t)count;
        }
    }
    /* Results are read later than rows that are under way, so they bypass the cache from half as many on. */
    d->streaming = ll_streams(self, 2 * rows, d->row_bytes);
    if (exceeds) report_excess(d);
}

bool ll_range_row(const ll_dispatch *d, int32_t source, int32_t local, int32_t row, int64_t *out)
{
    const ll_cpu *self = d->self;
    if (local < 0 || local >= self->shape.local_experts) return false;
    const int64_t range = d->step->routing->range[(int64_t)local * self->shape.ranks + source];
    if (row < 0 || row >= ll_range_count(range)) return false;
    *out = (int64_t)local * ll_expert_places(&self->shape) + ll_range_begin(range) + row;
    return true;
}

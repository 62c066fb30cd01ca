/* SPDX-License-Identifier: Apache-2.0 */
/* The places of rows at the receiver of a dispatch, by the counts that all ranks have told, and what the handle
 * keeps. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_DISPATCH_TARGETS_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_DISPATCH_TARGETS_H

#include "exec/cuda/kernels/low_latency/dispatch_rows.h"
#include "exec/cuda/kernels/low_latency/outcome.h"

/* ---- counts ------------------------------------------------------------------------------------------------------ */

/* Turns counts into first rows: ranks ascending. Returns true if an expert has more rows than places; those beyond are
   left out. All threads of a block call it, and meet. */
GPU_FUNC bool ll_place_ranks(const ll_dispatch_args *a, const ll_shared *s, const ll_tokens *t)
{
    const int32_t locals = LL_LOCALS(&a->call), n = LL_RANKS(&a->call), places = (int32_t)ll_rows_of_expert(&a->call);
    bool exceeds = false;
    for (int32_t l = threadIdx.x; l < locals; l += blockDim.x) {
        int32_t row = 0;
        for (int32_t r = 0; r < n; r++) {
            const int32_t wanted = ll_sends_data(s, r) ? t->first[r * locals + l] : 0;
            const int32_t count = ll_rows_that_fit(places, row, wanted);
            exceeds |= count < wanted;
            t->first[r * locals + l] = row;
            row += count;
        }
        t->first[n * locals + l] = row;
    }
    return __syncthreads_or(exceeds) != 0;
}

/* Returns the number of rows that all ranks have counted for an expert here. One thread calls it. */
GPU_FUNC int64_t ll_rows_wanted(const ll_gpu_call *c, const ll_shared *s, const ll_now *now, int32_t local)
{
    int64_t rows = 0;
    for (int32_t r = 0; r < LL_RANKS(c); r++)
        if (ll_sends_data(s, r))
            rows += (int32_t)(uint32_t)load_relaxed_64(ll_told_header_of(c, s, now, r) + LL_HEADER_COUNTS + local);
    return rows;
}

/* Reports the first expert whose rows exceed its places, with the text of the CPU's report. One thread calls it. */
GPU_ASIDE void ll_report_excess(const ll_gpu_call *c, ll_now call)
{
    const ll_shared shared = ll_shared_here(c), *s = &shared;
    const int64_t places = ll_rows_of_expert(c);
    gpu_vote *slot = vote_slot(&c->place);
    int32_t l = 0;
    if (!slot) return;
    while (l + 1 < LL_LOCALS(c) && ll_rows_wanted(c, s, &call, l) <= places)
        l++;
    char *text = slot->reason.text;
    slot->rank = c->place.rank;
    slot->dropped = 0;
    slot->reason.status = EXPAR_STATUS_LIMIT;
    int32_t at = ll_put_words(text, 0, "expert ", c->place.rank * LL_LOCALS(c) + l);
    at = ll_put_words(text, at, " gets ", ll_rows_wanted(c, s, &call, l));
    at = ll_put_words(text, at, " rows; expected at most ", places);
    put_text(text + at, " (num_ranks * config.max_tokens)");
    publish_vote(&c->place, slot);
}

/* Writes the counts that the caller and combines read; a call without results has zeros. One block calls it. */
GPU_FUNC void ll_tell_counts(const ll_dispatch_args *a, const ll_shared *s, const ll_tokens *t, const ll_now *now,
                             ll_outcome outcome)
{
    const int32_t locals = LL_LOCALS(&a->call), n = LL_RANKS(&a->call);
    for (int32_t i = threadIdx.x; i < locals * n; i += blockDim.x) {
        const int32_t l = i / n, r = i - l * n, begin = t->first[r * locals + l];
        a->routing.range[i] = outcome.mismatched ? 0 : ll_range(begin, t->first[(r + 1) * locals + l] - begin);
    }
    for (int32_t l = threadIdx.x; l < locals; l += blockDim.x) {
        const int32_t rows = outcome.mismatched ? 0 : t->first[n * locals + l];
        a->out_count[l] = rows;
        if (a->stats) a->stats[l] += rows;
    }
    for (int32_t r = threadIdx.x; r < n; r += blockDim.x)
        a->routing.messages[r] = outcome.mismatched || !ll_sends_data(s, r) ? 0 : s->messages[r];
    if (threadIdx.x == 0) *a->routing.stamp = outcome.odd ? 0 : now->stamp;
}

/* The number of pieces of a message that a thread loads at once, after the first ones. Each batch takes one memory
   latency. More pieces need more registers than there are. */
#define LL_MORE_UNITS (LL_FAR && LL_MASKS ? 1 : 3)

/* ---- where rows go ----------------------------------------------------------------------------------------------- */

/* Where a slot's row goes: its local expert, and its number among that expert's rows. local -1: nowhere, whatever its
   source says. Each lane of a warp has one. */
typedef struct ll_target {
    int32_t local, row;
} ll_target;

GPU_FUNC ll_target ll_target_of(const ll_dispatch_args *a, const ll_tokens *t, int32_t source, int32_t local,
                                int32_t row)
{
    const int32_t locals = LL_LOCALS(&a->call);
    const ll_target none = {-1, -1};
    if (local < 0 || local >= locals || row < 0) return none;
    const int32_t begin = t->first[source * locals + local];
    if (row >= t->first[(source + 1) * locals + local] - begin) return none;
    const ll_target target = {local, begin + row};
    return target;
}
GPU_FUNC int64_t ll_row_of(const ll_dispatch_args *a, int32_t local, int32_t row)
{
    return (int64_t)local * LL_RANKS(&a->call) * LL_TOKENS(&a->call) + row;
}

/* Stores a piece to the rows in `to` of the lanes in `mask`. A warp calls it, whose lanes have a piece each. Lanes
   beyond the row's end are not `in`. */
GPU_FUNC void ll_fan_out_header(const ll_dispatch_args *a, uint32_t mask, const ll_target *to, int32_t u, bool in,
                                uint4 value)
{
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        const int32_t lane = __ffs((int)rest) - 1;
        const int64_t row = ll_row_of(a, __shfl_sync(GPU_ALL, to->local, lane), __shfl_sync(GPU_ALL, to->row, lane));
        if (in) store_row((uint4 *)(a->out_x + row * GPU_ROW_BYTES(a)) + u, value);
    }
}

/* Stores pieces from u on, a team's length apart. */
GPU_FUNC void ll_fan_out_more(const ll_dispatch_args *a, uint32_t mask, const ll_target *to, const ll_team *team,
                              int32_t u, const uint4 values[LL_MORE_UNITS])
{
    const int32_t units = (int32_t)(GPU_ROW_BYTES(a) / 16);
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        const int32_t lane = __ffs((int)rest) - 1;
        const int64_t row = ll_row_of(a, __shfl_sync(GPU_ALL, to->local, lane), __shfl_sync(GPU_ALL, to->row, lane));
        uint4 *out = (uint4 *)(a->out_x + row * GPU_ROW_BYTES(a)) + u;
#pragma unroll
        for (int32_t i = 0; i < LL_MORE_UNITS; i++)
            if (u + i * team->threads < units) store_row(out + i * team->threads, values[i]);
    }
}

/* ---- the handle -------------------------------------------------------------------------------------------------- */

/* The handle keeps this of a message, or of a token of this rank's own. */
typedef struct ll_kept {
    int32_t source, number; /* source and number of the message */
    int32_t token, place;
    float weight; /* weight of this lane's slot */
} ll_kept;

/* Keeps a message's header, with each slot's row among all of its expert's; -1: it has none. One warp calls it, whose
   lanes have the slots. */
GPU_FUNC void ll_keep_header(const ll_dispatch_args *a, const ll_kept *kept, const ll_target *to)
{
    const ll_gpu_call *c = &a->call;
    const int64_t at = (int64_t)kept->source * LL_TOKENS(c) + kept->number;
    ll_header *keep = (ll_header *)(a->routing.headers + at * (int64_t)a->routing.header_bytes);
    const int32_t lane = threadIdx.x % 32, slots = LL_BUFFER_TOPK(c);
    if (lane < slots) {
        ll_header_experts(keep)[lane] = to->local;
        ll_header_rows(keep, slots)[lane] = to->row;
        ll_header_weights(keep, slots)[lane] = lane < a->routing.topk ? kept->weight : 0.0f;
    }
    if (lane == 0) {
        keep->token = kept->token;
        keep->place = kept->place;
    }
    if (to->local >= 0) a->routing.src_info[ll_row_of(a, to->local, to->row)] = kept->token;
}

#endif

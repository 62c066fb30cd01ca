/* SPDX-License-Identifier: Apache-2.0 */
/* Expert-major rows. Rows that arrived in token order are copied to one row for each (token, local expert), sorted by
   expert. Each expert's rows begin at a multiple of the alignment. On the way back a token's rows are weighted and
   summed to one. All of this is local; the workers divide the rows by tokens. */
#include "base/knobs.h"
#include "exec/cpu/normal/cpu.h"

#include <stdlib.h>
#include <string.h>

/* Returns how many rows came, of an output with space for `rows`. */
static int64_t rows_here(const ep_routing *routing, int64_t rows)
{
    int64_t coming = routing->rank_prefix[routing->ranks - 1];
    return coming < rows ? coming : rows;
}

/* ---- which row belongs to which slot ----------------------------------------------------------------------------- */

/* Returns the local number, or less than 0. */
static int64_t expert_at(const ep_map_step *step, int64_t slot)
{
    const void *idx = step->idx;
    int64_t expert = step->idx_bytes == 8 ? ((const int64_t *)idx)[slot] : ((const int32_t *)idx)[slot];
    return expert - step->first_expert;
}

/* next: [L] the row that each expert's next slot gets */
static void begin_experts(const ep_map_step *step, int64_t *next)
{
    int64_t begin = 0;
    for (int32_t e = 0; e < step->routing->local_experts; e++) {
        next[e] = begin;
        begin += (int64_t)ep_round((uint64_t)step->routing->recv_expert_counts[e], (uint64_t)step->alignment);
    }
}

/* Returns how many slots name the expert in rows from `begin` to `end`. */
static int64_t slots_of(const ep_map_step *step, int32_t expert, int64_t begin, int64_t end)
{
    const int64_t topk = step->routing->topk;
    int64_t count = 0;
    for (int64_t slot = begin * topk; slot < end * topk; slot++)
        count += expert_at(step, slot) == expert;
    return count;
}

/* Finds the rank that sent another number of rows for an expert than it had counted. It uses the counts in the headers,
   which are valid until the dispatch has ended. */
static expar_status miscounted(const cpu_executor *self, const ep_map_step *step, int32_t expert)
{
    const ep_routing *routing = step->routing;
    const int32_t *ends = routing->rank_prefix;
    for (int32_t s = 0; step->counted && s < routing->ranks; s++) {
        const int32_t *counts = (const int32_t *)(cpu_header_from(self, step->counted, s) + 1);
        const int32_t told = counts[routing->channels + expert];
        const int64_t came = slots_of(step, expert, ep_prefix_before(ends, s), ends[s]);
        if (came != told)
            return error_set(EXPAR_ERR_PEER, "rank %d has counted %d rows for expert %d here, and has sent %lld", s,
                             told, expert, (long long)came);
    }
    return error_set(EXPAR_ERR_PEER, "%d rows were counted for expert %d here, and %lld came",
                     routing->recv_expert_counts[expert], expert,
                     (long long)slots_of(step, expert, 0, ends[routing->ranks - 1]));
}

/* next: the row after each expert's last slot. Checks that no row stays empty and none has two slots. If rows were
   dropped, their slots are not known, and nothing is checked. */
static expar_status map_check_counts(const cpu_executor *self, const ep_map_step *step, const int64_t *next)
{
    const ep_routing *routing = step->routing;
    int64_t begin = 0;
    if (rows_here(routing, step->rows) < routing->rank_prefix[routing->ranks - 1]) return EXPAR_OK;
    for (int32_t e = 0; e < routing->local_experts; e++) {
        if (next[e] - begin != routing->recv_expert_counts[e]) return miscounted(self, step, e);
        begin += (int64_t)ep_round((uint64_t)routing->recv_expert_counts[e], (uint64_t)step->alignment);
    }
    return EXPAR_OK;
}

expar_status cpu_map(executor *base, exec_call *call, const ep_map_step *step)
{
    (void)call;
    const ep_routing *routing = step->routing;
    int64_t slots = rows_here(routing, step->rows) * routing->topk;
    int64_t *next = malloc((size_t)routing->local_experts * sizeof *next);
    if (!next) return error_set(EXPAR_ERR_MEMORY, "no memory for the rows of %d experts", routing->local_experts);
    begin_experts(step, next);
    for (int64_t slot = 0; slot < slots; slot++) {
        int64_t expert = expert_at(step, slot);
        int64_t row = expert < 0 ? -1 : next[expert]++;
        /* Counts include all rows that were sent. If some were dropped, places may lie beyond the output. */
        step->map[slot] = row < step->expert_rows ? (int32_t)row : -1;
    }
    for (int64_t slot = slots; slot < step->rows * routing->topk; slot++)
        step->map[slot] = -1;
    const expar_status status = map_check_counts(cpu_of(base), step, next);
    free(next);
    return status;
}

/* Writes the scales of one row of an output; from: NULL for zeros. */
static void put_scales(void *scales, int64_t pitch, int64_t row, const uint32_t *from, int64_t bytes)
{
    uint32_t *to = (uint32_t *)scales + (pitch ? row : row * bytes / 4);
    for (int64_t i = 0; pitch && i < bytes / 4; i++)
        to[i * pitch] = from ? from[i] : 0;
    if (pitch) return;
    if (from)
        memcpy(to, from, (size_t)bytes);
    else
        memset(to, 0, (size_t)bytes);
}

/* ---- token-major to expert-major --------------------------------------------------------------------------------- */

typedef struct arrange_run {
    const cpu_executor *self;
    const ep_arrange_step *step;
    int64_t rows; /* how many came */
} arrange_run;

/* Copies row `from` of x to row `to` of the output. */
static void move_row(const arrange_run *run, int32_t worker, int64_t from, int64_t to)
{
    const ep_arrange_step *step = run->step;
    cpu_carrier *carrier = run->self->carrying;
    const uint8_t *source = (const uint8_t *)step->x + from * step->row_bytes;
    uint8_t *dest = (uint8_t *)step->out_x + to * step->row_bytes;
    if (carrier)
        carrier->ops->copy(carrier, worker, dest, source, step->row_bytes);
    else
        memcpy(dest, source, (size_t)step->row_bytes);
}

static void expand_row(const arrange_run *run, int32_t worker, int64_t row)
{
    const ep_arrange_step *step = run->step;
    for (int32_t k = 0; k < step->topk; k++) {
        int64_t to = step->map[row * step->topk + k];
        if (to < 0) continue;
        move_row(run, worker, row, to);
        if (step->scale_bytes)
            put_scales(step->out_scales, step->out_pitch, to,
                       (const uint32_t *)step->scales + row * step->scale_bytes / 4, step->scale_bytes);
        if (step->out_weights)
            memcpy(&step->out_weights[to], &step->weights[row * step->topk + k], sizeof *step->weights);
    }
}

static expar_status expand_share(void *context, int32_t worker)
{
    const arrange_run *run = context;
    int64_t end = ep_channel_begin(run->rows, run->self->active, worker + 1);
    for (int64_t row = ep_channel_begin(run->rows, run->self->active, worker); row < end; row++)
        expand_row(run, worker, row);
    return cpu_carry_await(run->self, worker);
}

/* A sum of no rows is 0. */
static void zero_row(const cpu_executor *self, const ep_arrange_step *step, int64_t row)
{
    uint8_t *dest = (uint8_t *)step->out_x + row * step->row_bytes;
    const cpu_carried_sum none = {.dtype = EXPAR_F32, .sum = dest, .bytes = step->row_bytes};
    if (self->carrying)
        self->carrying->ops->sum(self->carrying, 0, &none);
    else
        memset(dest, 0, (size_t)step->row_bytes);
}

/* Zeroes rows of the output that no entry of the map names. */
static expar_status pad(const cpu_executor *self, const ep_arrange_step *step)
{
    int64_t slots = step->rows * step->topk;
    uint8_t *placed = calloc((size_t)step->out_rows + 1, 1);
    if (!placed) return error_set(EXPAR_ERR_MEMORY, "no memory to tell %lld rows", (long long)step->out_rows);
    for (int64_t slot = 0; slot < slots; slot++)
        if (step->map[slot] >= 0) placed[step->map[slot]] = 1;
    for (int64_t row = 0; row < step->out_rows; row++) {
        if (placed[row]) continue;
        zero_row(self, step, row);
        if (step->scale_bytes) put_scales(step->out_scales, step->out_pitch, row, NULL, step->scale_bytes);
        if (step->out_weights) step->out_weights[row] = 0.0f;
    }
    free(placed);
    return cpu_carry_await(self, 0);
}

/* ---- column-major scales ----------------------------------------------------------------------------------------- */

static void turn_rows(const ep_arrange_step *step, int64_t begin, int64_t end)
{
    const int64_t scales = step->scale_bytes / (int64_t)sizeof(uint32_t);
    const uint32_t *from = step->scales;
    uint32_t *to = step->out_scales;
    for (int64_t i = 0; i < scales; i++)
        for (int64_t row = begin; row < end; row++)
            to[i * step->out_pitch + row] = from[row * scales + i];
}

static expar_status columns_share(void *context, int32_t worker)
{
    const arrange_run *run = context;
    const int64_t step = knob(KNOB_CPU_COLUMN_ROWS), end = ep_channel_begin(run->rows, run->self->active, worker + 1);
    for (int64_t row = ep_channel_begin(run->rows, run->self->active, worker); row < end; row += step)
        turn_rows(run->step, row, row + step < end ? row + step : end);
    return EXPAR_OK;
}

expar_status cpu_arrange(executor *base, exec_call *call, const ep_arrange_step *step)
{
    cpu_executor *self = cpu_of(base);
    arrange_run run = {.self = self, .step = step, .rows = rows_here(step->routing, step->rows)};
    cpu_call_workers(self, call, run.rows * (step->map ? step->row_bytes : step->scale_bytes));
    cpu_carry_begin(self, step->carried, step->topk);
    expar_status status = cpu_workers_run(self->workers, self->active, step->map ? expand_share : columns_share, &run);
    if (status == EXPAR_OK && step->pads) status = pad(self, step);
    cpu_carry_end(self);
    return status;
}

/* ---- where rows came from ---------------------------------------------------------------------------------------- */

typedef struct sources_run {
    const cpu_executor *self;
    const ep_sources_step *step;
    int64_t rows; /* how many came */
} sources_run;

static void tell_source(const ep_sources_step *step, int32_t source, int64_t row)
{
    const int32_t topk = step->topk;
    int32_t *out = step->out + row * (2 + topk);
    out[0] = ep_saturate((int64_t)source * step->stride + step->src[row]);
    out[1] = source;
    if (step->map)
        memcpy(out + 2, step->map + row * topk, (size_t)topk * sizeof *out);
    else
        memset(out + 2, 0xff, (size_t)topk * sizeof *out);
}

static expar_status sources_share(void *context, int32_t worker)
{
    const sources_run *run = context;
    const int32_t *prefix = run->step->routing->rank_prefix;
    int64_t end = ep_channel_begin(run->rows, run->self->active, worker + 1);
    int32_t source = 0;
    for (int64_t row = ep_channel_begin(run->rows, run->self->active, worker); row < end; row++) {
        while (prefix[source] <= row)
            source++;
        tell_source(run->step, source, row);
    }
    return EXPAR_OK;
}

expar_status cpu_tell_sources(executor *base, exec_call *call, const ep_sources_step *step)
{
    cpu_executor *self = cpu_of(base);
    sources_run run = {.self = self, .step = step, .rows = rows_here(step->routing, step->rows)};
    const int64_t row_bytes = (2 + step->topk) * (int64_t)sizeof *step->out;
    memset(step->out + run.rows * (2 + step->topk), 0xff, (size_t)((step->rows - run.rows) * row_bytes));
    cpu_call_workers(self, call, run.rows * row_bytes);
    return cpu_workers_run(self->workers, self->active, sources_share, &run);
}

/* ---- and back ---------------------------------------------------------------------------------------------------- */

typedef struct reduce_run {
    const cpu_executor *self;
    const ep_reduce_step *step;
    int64_t rows; /* how many came */
} reduce_run;

/* Gives each slot the weight of its row. */
static void spread_weights(const ep_reduce_step *step, int64_t row)
{
    for (int64_t slot = row * step->topk; slot < (row + 1) * step->topk; slot++) {
        const float none = 0.0f, *weight = &none;
        if (step->map[slot] >= 0) weight = step->row_weights + step->map[slot] * step->row_weights_pitch;
        memcpy(&step->out_weights[slot], weight, sizeof *weight);
    }
}

/* Has the carrier make the sum. */
static void carry_sum(cpu_carrier *carrier, int32_t worker, const ep_reduce_step *step, void *out,
                      const void *const *rows, const float *weights, int32_t count)
{
    const cpu_carried_sum sum = {.dtype = (expar_dtype)step->dtype,
                                 .sum = out,
                                 .bytes = step->row_bytes,
                                 .rows = rows,
                                 .count = count,
                                 .wide_from = count,
                                 .weights = weights};
    carrier->ops->sum(carrier, worker, &sum);
}

/* Sums one token's rows, slots ascending. */
static void reduce_row(const reduce_run *run, int32_t worker, const void **rows, int64_t row)
{
    const ep_reduce_step *step = run->step;
    uint8_t *out = (uint8_t *)step->out + row * step->row_bytes;
    float *weights = (float *)(rows + step->topk);
    int32_t count = 0;
    for (int32_t k = 0; k < step->topk; k++) {
        int64_t from = step->map[row * step->topk + k];
        if (from < 0) continue;
        rows[count] = (const uint8_t *)step->x + from * step->x_pitch_bytes;
        weights[count++] = step->weights ? step->weights[row * step->weights_pitch + k] : 1.0f;
    }
    if (!step->weights) weights = NULL;
    if (run->self->carrying)
        carry_sum(run->self->carrying, worker, step, out, rows, weights, count);
    else
        cpu_sum_weighted((expar_dtype)step->dtype, out, rows, weights, count, step->hidden);
}

static expar_status reduce_share(void *context, int32_t worker)
{
    const reduce_run *run = context;
    const void **rows = cpu_sources_of(run->self, worker);
    int64_t end = ep_channel_begin(run->rows, run->self->active, worker + 1);
    for (int64_t row = ep_channel_begin(run->rows, run->self->active, worker); row < end; row++) {
        if (run->step->out) reduce_row(run, worker, rows, row);
        if (run->step->out_weights) spread_weights(run->step, row);
    }
    return cpu_carry_await(run->self, worker);
}

expar_status cpu_reduce(executor *base, exec_call *call, const ep_reduce_step *step)
{
    cpu_executor *self = cpu_of(base);
    reduce_run run = {.self = self, .step = step, .rows = rows_here(step->routing, step->rows)};
    cpu_call_workers(self, call, run.rows * step->row_bytes);
    cpu_carry_begin(self, step->carried, step->topk);
    const expar_status status = cpu_workers_run(self->workers, self->active, reduce_share, &run);
    cpu_carry_end(self);
    return status;
}

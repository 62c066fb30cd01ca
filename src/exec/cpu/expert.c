/* SPDX-License-Identifier: Apache-2.0 */
/* Expert-major rows: what arrived in token order is copied to one row for each (token, local expert), sorted by expert;
   on the way back a token's rows are weighted and summed to one. Both are local, shared out among the workers by
   tokens. */
#include "exec/cpu/cpu.h"

#include <string.h>

/* ---- token-major to expert-major ---- */

typedef struct expand_run {
    const cpu_executor *self;
    const ep_expand_step *step;
} expand_run;

static void expand_row(const ep_expand_step *step, int64_t row)
{
    for (int32_t k = 0; k < step->topk; k++) {
        int64_t to = step->map[row * step->topk + k];
        if (to < 0) continue;
        memcpy((uint8_t *)step->out_x + to * step->row_bytes, (const uint8_t *)step->x + row * step->row_bytes,
               (size_t)step->row_bytes);
        if (step->scale_bytes)
            memcpy((uint8_t *)step->out_scales + to * step->scale_bytes,
                   (const uint8_t *)step->scales + row * step->scale_bytes, (size_t)step->scale_bytes);
    }
}

static expar_status expand_share(void *context, int32_t worker)
{
    const expand_run *run = context;
    int64_t end = ep_channel_begin(run->step->rows, run->self->num_workers, worker + 1);
    for (int64_t row = ep_channel_begin(run->step->rows, run->self->num_workers, worker); row < end; row++)
        expand_row(run->step, row);
    return EXPAR_OK;
}

expar_status cpu_expand(executor *base, const ep_expand_step *step)
{
    cpu_executor *self = (cpu_executor *)base;
    expand_run run = {.self = self, .step = step};
    return cpu_workers_run(self->workers, expand_share, &run);
}

/* ---- and back ---- */

typedef struct reduce_run {
    const cpu_executor *self;
    const ep_reduce_step *step;
} reduce_run;

/* One token's rows, slots ascending. */
static void reduce_row(const ep_reduce_step *step, int64_t row)
{
    const void *rows[step->topk];
    float weights[step->topk];
    int32_t count = 0;
    for (int32_t k = 0; k < step->topk; k++) {
        int64_t from = step->map[row * step->topk + k];
        if (from < 0) continue;
        rows[count] = (const uint8_t *)step->x + from * step->x_pitch_bytes;
        weights[count++] = step->weights ? step->weights[row * step->weights_pitch + k] : 1.0f;
    }
    cpu_sum_weighted((expar_dtype)step->dtype, (uint8_t *)step->out + row * step->row_bytes, rows,
                     step->weights ? weights : NULL, count, step->hidden);
}

static expar_status reduce_share(void *context, int32_t worker)
{
    const reduce_run *run = context;
    int64_t end = ep_channel_begin(run->step->rows, run->self->num_workers, worker + 1);
    for (int64_t row = ep_channel_begin(run->step->rows, run->self->num_workers, worker); row < end; row++)
        reduce_row(run->step, row);
    return EXPAR_OK;
}

expar_status cpu_reduce(executor *base, const ep_reduce_step *step)
{
    cpu_executor *self = (cpu_executor *)base;
    reduce_run run = {.self = self, .step = step};
    return cpu_workers_run(self->workers, reduce_share, &run);
}

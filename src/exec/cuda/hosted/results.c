/* SPDX-License-Identifier: Apache-2.0 */
/* The steps that make a dispatch's results from the rows that came. Maps of the same call are still in host memory, and
 * so are rows that were not carried: they are not read from the GPU again. */
#include "exec/cuda/hosted/hosted.h"

static uint64_t bytes_of(int64_t count, int64_t each)
{
    return (uint64_t)(count * each);
}

expar_status hosted_map(executor *base, exec_call *call, const ep_map_step *step)
{
    executor *inner = hosted_of(base)->inner;
    exec_call host = {.placed = true};
    hosted_step steps = hosted_step_begin(hosted_of(base), call);
    if (steps.status != EXPAR_OK) return steps.status;
    const int64_t slots = step->rows * step->routing->topk;
    ep_map_step here = *step;
    /* The caller's number is not that with which the call has opened, once graphs have calls of the buffer. */
    if (here.counted) here.counted = steps.call->epoch;
    here.idx = hosted_read(&steps, step->idx, bytes_of(slots, step->idx_bytes));
    here.map = hosted_write(&steps, step->map, bytes_of(slots, sizeof *step->map), false);
    if (hosted_sync(&steps) != EXPAR_OK) return steps.status;
    const expar_status status = inner->normal->map(inner, &host, &here);
    if (status != EXPAR_OK) return status;
    hosted_write_back(&steps, step->map, bytes_of(slots, sizeof *step->map));
    return hosted_sync(&steps);
}

/* ---- to expert-major order --------------------------------------------------------------------------------------- */

/* Returns the bytes of the scales of the result, from the first to the last. */
static uint64_t scales_out_bytes(const ep_arrange_step *step)
{
    const int64_t columns = step->scale_bytes / (int64_t)sizeof(uint32_t),
                  rows = step->map ? step->out_rows : step->rows;
    if (columns == 0 || rows == 0) return 0;
    if (step->out_pitch == 0) return bytes_of(rows, step->scale_bytes);
    return bytes_of((columns - 1) * step->out_pitch + rows, sizeof(uint32_t));
}

static void read_arrange(hosted_step *steps, ep_arrange_step *here)
{
    const bool expands = here->map != NULL;
    const int64_t slots = here->rows * here->topk;
    here->scales = hosted_read(steps, here->scales, bytes_of(here->rows, here->scale_bytes));
    here->out_scales = hosted_write(steps, here->out_scales, scales_out_bytes(here), true);
    if (!expands) return;
    here->map = hosted_read(steps, here->map, bytes_of(slots, sizeof *here->map));
    here->carried = hosted_carry_step(steps, here->x, bytes_of(here->rows, here->row_bytes), here->topk);
    here->weights = hosted_read(steps, here->weights, bytes_of(slots, sizeof *here->weights));
    if (!here->carried) {
        here->x = hosted_read(steps, here->x, bytes_of(here->rows, here->row_bytes));
        here->out_x = hosted_write(steps, here->out_x, bytes_of(here->out_rows, here->row_bytes), !here->pads);
    }
    here->out_weights =
        hosted_write(steps, here->out_weights, bytes_of(here->out_rows, sizeof *here->out_weights), !here->pads);
}

expar_status hosted_arrange(executor *base, exec_call *call, const ep_arrange_step *step)
{
    executor *inner = hosted_of(base)->inner;
    exec_call host = {.placed = true};
    hosted_step steps = hosted_step_begin(hosted_of(base), call);
    if (steps.status != EXPAR_OK) return steps.status;
    ep_arrange_step here = *step;
    read_arrange(&steps, &here);
    if (hosted_sync(&steps) != EXPAR_OK) return steps.status;
    const expar_status status = inner->normal->arrange(inner, &host, &here);
    if (status != EXPAR_OK) return status;
    hosted_write_back(&steps, step->out_scales, scales_out_bytes(step));
    if (step->map) hosted_write_back(&steps, step->out_x, bytes_of(step->out_rows, step->row_bytes));
    if (step->map) hosted_write_back(&steps, step->out_weights, bytes_of(step->out_rows, sizeof *step->out_weights));
    return hosted_sync(&steps);
}

/* ---- and beside it ----------------------------------------------------------------------------------------------- */

expar_status hosted_sources(executor *base, exec_call *call, const ep_sources_step *step)
{
    executor *inner = hosted_of(base)->inner;
    exec_call host = {.placed = true};
    hosted_step steps = hosted_step_begin(hosted_of(base), call);
    if (steps.status != EXPAR_OK) return steps.status;
    const uint64_t out_bytes = bytes_of(step->rows * (2 + step->topk), sizeof *step->out);
    ep_sources_step here = *step;
    here.src = hosted_read(&steps, step->src, bytes_of(step->rows, sizeof *step->src));
    here.map = hosted_read(&steps, step->map, bytes_of(step->rows * step->topk, sizeof *step->map));
    here.out = hosted_write(&steps, step->out, out_bytes, false);
    if (hosted_sync(&steps) != EXPAR_OK) return steps.status;
    const expar_status status = inner->normal->sources(inner, &host, &here);
    if (status != EXPAR_OK) return status;
    hosted_write_back(&steps, step->out, out_bytes);
    return hosted_sync(&steps);
}

expar_status hosted_copy_bytes(executor *base, exec_call *call, void *dest, const void *source, uint64_t bytes)
{
    hosted_step steps = hosted_step_begin(hosted_of(base), call);
    if (steps.status != EXPAR_OK) return steps.status;
    hosted_move(&steps, dest, source, bytes);
    return hosted_sync(&steps);
}

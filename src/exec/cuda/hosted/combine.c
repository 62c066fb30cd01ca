/* SPDX-License-Identifier: Apache-2.0 */
/* Combine by the host: rows come from the GPU, sums go there. */
#include "exec/cuda/hosted/hosted.h"

#include <string.h>

/* ---- rows in the order of experts -------------------------------------------------------------------------------- */

/* Returns how many expert-major rows the map names, which is in host memory: the last one, and those before it. */
static int64_t expert_rows_of(const int32_t *map, int64_t slots)
{
    int64_t rows = 0;
    for (int64_t i = 0; i < slots; i++)
        if (map[i] >= rows) rows = (int64_t)map[i] + 1;
    return rows;
}

/* How many token-major rows came, of an output with space for `rows`. */
static int64_t rows_that_came(const ep_routing *routing, int64_t rows)
{
    const int64_t coming = routing->rank_prefix[routing->ranks - 1];
    return coming < rows ? coming : rows;
}

static const float *read_floats(hosted_step *step, const float *data, int64_t rows, int64_t columns, int64_t *pitch)
{
    const int64_t unit = (int64_t)sizeof *data;
    int64_t bytes = *pitch * unit;
    const float *host = hosted_read_rows(step, data, rows, columns * unit, &bytes);
    *pitch = bytes / unit;
    return host;
}

static void read_reduce(hosted_step *step, ep_reduce_step *here)
{
    const int64_t rows = rows_that_came(here->routing, here->rows), topk = here->topk;
    here->map = hosted_read(step, here->map, (uint64_t)(here->rows * topk) * sizeof *here->map);
    if (hosted_sync(step) != EXPAR_OK) return;
    const int64_t expert_rows = expert_rows_of(here->map, rows * topk);
    here->carried = here->out && hosted_carry_step(step, here->x, (uint64_t)here->row_bytes, here->topk);
    if (here->out && !here->carried) {
        here->x = hosted_read_rows(step, here->x, expert_rows, here->row_bytes, &here->x_pitch_bytes);
        here->out = hosted_write(step, here->out, (uint64_t)(here->rows * here->row_bytes), false);
    }
    here->weights = read_floats(step, here->weights, rows, topk, &here->weights_pitch);
    if (here->out_weights)
        here->row_weights = read_floats(step, here->row_weights, expert_rows, 1, &here->row_weights_pitch);
    here->out_weights = hosted_write(step, here->out_weights, (uint64_t)(here->rows * topk) * sizeof(float), false);
    hosted_sync(step);
}

/* Only the combine that follows reads the sums. It finds them in host memory, or on the GPU if they are carried. */
expar_status hosted_reduce(executor *base, exec_call *call, const ep_reduce_step *step)
{
    executor *inner = hosted_of(base)->inner;
    exec_call host = {.placed = true};
    hosted_step reads = hosted_step_begin(hosted_of(base), call);
    ep_reduce_step here = *step;
    if (reads.status == EXPAR_OK) read_reduce(&reads, &here);
    return reads.status == EXPAR_OK ? inner->normal->reduce(inner, &host, &here) : reads.status;
}

/* ---- what a combine reads ---------------------------------------------------------------------------------------- */

/* Peers read the map, too, which is the handle's. */
static void read_map(hosted_step *step, ep_combine_step *here)
{
    const uint64_t bytes = (uint64_t)here->rows * (uint64_t)here->routing->topk * sizeof *here->map;
    if (!here->map || bytes == 0) return;
    void *host = hosted_scratch(step, bytes);
    const void *from = hosted_read(step, here->map, bytes);
    if (hosted_sync(step) != EXPAR_OK) return;
    memcpy(host, from, (size_t)bytes);
    here->map = host;
}

/* Rows that did not come are in no token's sum, so they stay where they are. The map is in host memory. */
static int64_t rows_to_read(const ep_combine_step *here)
{
    const int64_t came = rows_that_came(here->routing, here->rows);
    return here->map ? expert_rows_of(here->map, came * here->routing->topk) : came;
}

static void read_rows(hosted_step *step, ep_combine_step *here)
{
    const int64_t rows = step->status == EXPAR_OK ? rows_to_read(here) : 0;
    here->x = hosted_read_rows(step, here->x, rows, here->row_bytes, &here->x_pitch_bytes);
    for (int i = 0; i < 2; i++)
        here->bias[i] =
            hosted_read_rows(step, here->bias[i], here->routing->tokens, here->row_bytes, &here->bias_pitch_bytes[i]);
}

/* Says where peers read the weights and the map. Rows that some of them do not reach go by the queue. */
static void place_beside_combined(hosted_step *step, ep_combine_step *here)
{
    here->x_shifts = here->weights_shifts = NULL;
    if (here->rows == 0) return;
    const bool weights = hosted_is_symmetric(step, here->weights, &here->weights_offset);
    const bool map = hosted_is_symmetric(step, here->map, &here->map_offset);
    if (!weights || !map) here->mode = EP_MODE_QUEUE;
}

/* Rows, biases and sums pass through host memory. */
static void bring_combined_to_host(hosted_step *step, ep_combine_step *here)
{
    read_rows(step, here);
    if (here->rows > 0 && !hosted_is_symmetric(step, here->x, &here->x_offset)) here->mode = EP_MODE_QUEUE;
    here->y = hosted_scratch(step, (uint64_t)(here->routing->tokens * here->row_bytes));
    here->y_pitch_bytes = here->row_bytes;
}

/* The carrier reads rows and biases where they are, and writes sums there. Rows that the host has added, slots of a
   token into one, go back to the GPU first. */
static bool carry_combined(hosted_step *step, ep_combine_step *here)
{
    const hosted_executor *self = step->self;
    if (step->status != EXPAR_OK || !self->carrier || (here->mode != EP_MODE_DIRECT && here->rows > 0)) return false;
    if (!executor_cpu_carries(self->inner, here->routing, &here->form, here->row_bytes, true)) return false;
    const int64_t rows = rows_to_read(here), span = rows > 0 ? (rows - 1) * here->x_pitch_bytes + here->row_bytes : 0;
    if (!hosted_offset_on_gpu(self, here->x, (uint64_t)span, &here->x_offset)) return false;
    hosted_write_back(step, here->x, (uint64_t)(rows * here->row_bytes));
    if (hosted_sync(step) != EXPAR_OK) return false;
    here->mode = EP_MODE_DIRECT;
    return true;
}

static void place_combined(hosted_step *step, ep_combine_step *here)
{
    step->call->carried = here->carried = carry_combined(step, here);
    if (!here->carried) bring_combined_to_host(step, here);
}

/* Not all ranks of the node have a carrier for this call. */
static void give_up_carried_combine(hosted_step *step, ep_combine_step *here)
{
    if (!step->call->carried || here->carried) return;
    step->call->carried = false;
    bring_combined_to_host(step, here);
    hosted_sync(step);
}

static void place_sums_of_weights(hosted_step *step, ep_combine_step *here)
{
    const int64_t tokens = here->routing->tokens, topk = here->routing->topk;
    if (!here->out_weights) return;
    here->out_weights = hosted_scratch(step, (uint64_t)(tokens * topk) * sizeof(float));
    here->out_weights_pitch = topk;
}

static void read_combine(hosted_step *step, ep_combine_step *here)
{
    const int64_t came = rows_that_came(here->routing, here->rows);
    read_map(step, here);
    here->weights = read_floats(step, here->weights, came, here->routing->topk, &here->weights_pitch);
    place_beside_combined(step, here);
    place_combined(step, here);
    place_sums_of_weights(step, here);
    hosted_sync(step);
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

/* The call is rejected. */
static expar_status combine_send_rejection(hosted_executor *self, exec_call *call, ep_combine_step *step)
{
    hosted_run alone;
    expar_status status = hosted_turn_begin(self, call, &alone);
    if (status == EXPAR_OK) {
        step->epoch = hosted_open(self, call);
        status = self->inner->normal->combine_send(self->inner, call, step);
    }
    hosted_turn_end(self, &alone);
    return status;
}

/* A rank that cannot read its inputs says so with its advertisements. */
expar_status hosted_combine_send(executor *base, exec_call *call, ep_combine_step *step)
{
    hosted_executor *self = hosted_of(base);
    executor *inner = self->inner;
    if (step->rejection.status != EXPAR_OK) return combine_send_rejection(self, call, step);
    exec_call host = {.placed = true};
    hosted_step reads = hosted_step_begin(self, call);
    if (!reads.call) return reads.status;
    ep_combine_step *here = &reads.call->combine;
    *here = *step;
    if (reads.status == EXPAR_OK) read_combine(&reads, here);
    if (hosted_mark_loss(&reads, call)) return reads.status;
    if (reads.status != EXPAR_OK) here->rejection = ep_rejection_of(reads.status);
    here->epoch = hosted_open(self, call);
    const expar_status status = inner->normal->combine_send(inner, &host, here);
    step->rejection = here->rejection;
    step->vote = here->vote;
    return status;
}

expar_status hosted_combine_receive(executor *base, exec_call *call, ep_combine_step *step)
{
    hosted_executor *self = hosted_of(base);
    executor *inner = self->inner;
    exec_call host = {.placed = true};
    hosted_step writes = hosted_step_begin(self, call);
    if (hosted_mark_loss(&writes, call) || writes.status != EXPAR_OK) return writes.status;
    ep_combine_step *here = &writes.call->combine;
    const int64_t tokens = step->routing->tokens, weights_bytes = step->routing->topk * (int64_t)sizeof(float);
    give_up_carried_combine(&writes, here);
    if (writes.status != EXPAR_OK) return hosted_break_off(self, call, writes.status);
    if (here->carried) hosted_carrier_use(self->carrier, &writes.call->run);
    const expar_status status = inner->normal->combine_receive(inner, &host, here);
    step->vote = here->vote;
    if (status != EXPAR_OK) return hosted_break_off(self, call, status);
    hosted_send_rows(&writes, step->y, here->y, tokens, step->row_bytes, step->y_pitch_bytes);
    if (step->out_weights)
        hosted_send_rows(&writes, step->out_weights, here->out_weights, tokens, weights_bytes,
                         step->out_weights_pitch * (int64_t)sizeof(float));
    hosted_sync(&writes);
    (void)hosted_mark_loss(&writes, call);
    return writes.status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Combine against the oracle. */
#include "ep/harness/pitched.h"
#include "ep/harness/trial.h"
#include <stdlib.h>
#include <string.h>

/* Weights follow the rows in a symmetric area. */
static void *after_rows(const trial_area *area, size_t row_bytes_total)
{
    return (char *)area->in + (row_bytes_total + 127) / 128 * 128;
}

/* The rows to combine, where the choice wants them; without gaps in the library's memory. */
static expar_tensor make_x(const traffic *t, const answers *a, int32_t rank, const trial_choice *choice,
                           const trial_area *area, trial_arrival *arrival)
{
    int64_t rows = t->arrivals[rank].num_rows;
    int64_t gap = choice->pad * 16 / (int64_t)oracle_element_bytes(t->job.type);
    expar_tensor x;
    if (choice->place == PLACE_LIBRARY) {
        x = arrival->result.recv_x;
        arrival->overwritten = true;
    } else if (choice->place == PLACE_SYMMETRIC) {
        x = pitched_view(area->in, traffic_dtype(t), rows, t->job.hidden, gap);
    } else {
        x = pitched_make(traffic_dtype(t), rows, t->job.hidden, gap, choice->null_if_empty);
    }
    pitched_fill(&x, a->x[rank]);
    return x;
}

static expar_tensor make_weights(const traffic *t, const answers *a, int32_t rank, const trial_choice *choice,
                                 const trial_area *area)
{
    int64_t rows = t->arrivals[rank].num_rows;
    size_t bytes = (size_t)rows * (traffic_row_bytes(t) + 16 * (size_t)choice->pad);
    expar_tensor weights = choice->place == PLACE_SYMMETRIC
                               ? pitched_view(after_rows(area, bytes), EXPAR_F32, rows, t->job.topk, choice->pad)
                               : pitched_make(EXPAR_F32, rows, t->job.topk, choice->pad, choice->null_if_empty);
    pitched_fill(&weights, a->weights[rank]);
    return weights;
}

/* Names the first element that differs. */
static bool check_y(const traffic *t, const expar_tensor *y, const void *expected)
{
    for (int64_t row = 0; row < y->shape[0]; row++)
        for (int64_t i = 0; i < y->shape[1]; i++) {
            uint32_t got = oracle_load(t->job.type, y->data, row * y->strides[0] + i);
            uint32_t right = oracle_load(t->job.type, expected, row * y->shape[1] + i);
            if (!CHECK(got == right, "y[%lld][%lld] is %#x, expected %#x", (long long)row, (long long)i, got, right))
                return false;
        }
    return CHECK(pitched_gaps_intact(y), "the combine wrote beyond the rows of y");
}

static bool check_summed(const expar_tensor *summed, const uint32_t *expected)
{
    return CHECK(pitched_equals(summed, expected), "out_topk_weights differ") &
           CHECK(pitched_gaps_intact(summed), "the combine wrote beyond out_topk_weights");
}

bool trial_combine(expar_ep *ep, const traffic *t, const answers *a, int32_t rank, const trial_choice *choice,
                   const trial_area *area, const expar_ep_handle *handle, trial_arrival *arrival)
{
    int64_t num_tokens = t->inputs[rank].num_tokens;
    int64_t gap = choice->pad * 16 / (int64_t)oracle_element_bytes(t->job.type);
    expar_ep_combine_args args = EXPAR_EP_COMBINE_ARGS_INIT;
    args.x = make_x(t, a, rank, choice, area, arrival);
    args.handle = handle;
    args.path = choice->path;
    args.out_y = pitched_make(traffic_dtype(t), num_tokens, t->job.hidden, gap, choice->null_if_empty);
    if (a->with_weights) {
        args.topk_weights = make_weights(t, a, rank, choice, area);
        args.out_topk_weights = pitched_make(EXPAR_F32, num_tokens, t->job.topk, 0, choice->null_if_empty);
    }
    bool right = CHECK_OK(expar_ep_combine(ep, &args, NULL)) && check_y(t, &args.out_y, a->y[rank]) &&
                 (!a->with_weights || check_summed(&args.out_topk_weights, a->summed[rank])) &&
                 CHECK(pitched_equals(&args.x, a->x[rank]), "the combine changed its input");
    if (choice->place == PLACE_PRIVATE) pitched_free(&args.x);
    if (choice->place != PLACE_SYMMETRIC) pitched_free(&args.topk_weights);
    pitched_free(&args.out_y);
    pitched_free(&args.out_topk_weights);
    return right;
}

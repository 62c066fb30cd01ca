/* SPDX-License-Identifier: Apache-2.0 */
/* Expert-major outputs: one row for each (token, local expert), sorted by expert, each expert's rows beginning at a
   multiple of the alignment. Here is which row belongs to which slot; the executor copies. */
#include "ep/ep.h"

#include <stdlib.h>
#include <string.h>

expar_status ep_expert_counts(const ep_routing *routing, int32_t alignment, int32_t *counts, int64_t *sum)
{
    int64_t unit = alignment > 1 ? alignment : 1;
    *sum = 0;
    for (int32_t e = 0; e < routing->local_experts; e++) {
        int64_t rounded = (routing->recv_expert_counts[e] + unit - 1) / unit * unit;
        if (rounded > INT32_MAX)
            return error_set(EXPAR_ERR_ARGUMENT,
                             "expert_alignment %lld makes a count of %lld; expected at most 2^31 - 1", (long long)unit,
                             (long long)rounded);
        counts[e] = (int32_t)rounded;
        *sum += rounded;
    }
    return EXPAR_OK;
}

static int64_t expert_at(const void *idx, int32_t idx_bytes, int64_t slot)
{
    return idx_bytes == 8 ? ((const int64_t *)idx)[slot] : ((const int32_t *)idx)[slot];
}

expar_status ep_expert_map(expar_ep_handle *handle, const int32_t *counts, const void *idx, int32_t idx_bytes)
{
    const ep_routing *routing = &handle->routing;
    int32_t locals = routing->local_experts;
    int64_t slots = handle->recv_tokens * routing->topk, begin = 0;
    int64_t *next = malloc((size_t)locals * sizeof *next); /* the row that each expert's next slot gets */
    if (!next) return error_set(EXPAR_ERR_MEMORY, "no memory for the rows of %d experts", locals);
    for (int32_t e = 0; e < locals; e++) {
        next[e] = begin;
        begin += counts[e];
    }
    for (int64_t slot = 0; slot < slots; slot++) {
        int64_t expert = expert_at(idx, idx_bytes, slot);
        int64_t row = expert < 0 ? -1 : next[expert]++;
        /* Counts tell all that was sent: where rows were dropped, places may lie beyond the output. */
        handle->row_map[slot] = row < handle->expert_rows ? (int32_t)row : -1;
    }
    for (int64_t slot = slots; slot < handle->rows * routing->topk; slot++)
        handle->row_map[slot] = -1;
    free(next);
    return EXPAR_OK;
}

expar_status ep_expert_zero_padding(const expar_ep_handle *handle, void *x, int64_t row_bytes, void *scales,
                                    int64_t scale_bytes)
{
    int64_t slots = handle->rows * handle->routing.topk;
    uint8_t *placed = calloc((size_t)handle->expert_rows + 1, 1);
    if (!placed) return error_set(EXPAR_ERR_MEMORY, "no memory to tell %lld rows", (long long)handle->expert_rows);
    for (int64_t slot = 0; slot < slots; slot++)
        if (handle->row_map[slot] >= 0) placed[handle->row_map[slot]] = 1;
    for (int64_t row = 0; row < handle->expert_rows; row++) {
        if (placed[row]) continue;
        memset((uint8_t *)x + row * row_bytes, 0, (size_t)row_bytes);
        if (scale_bytes) memset((uint8_t *)scales + row * scale_bytes, 0, (size_t)scale_bytes);
    }
    free(placed);
    return EXPAR_OK;
}

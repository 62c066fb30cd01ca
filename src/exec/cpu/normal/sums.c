/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of rows that came back by themselves, for callers without a buffer. The calling thread makes them. */
#include "exec/cpu/normal/cpu.h"

#include <stdlib.h>
#include <string.h>

/* ---- terms ------------------------------------------------------------------------------------------------------- */

/* Rows with the same key come together, and keys ascend. Returns -1 for a slot without expert. */
static int64_t key_at(const ep_terms_step *step, int64_t token, int32_t slot)
{
    const int64_t expert = ep_route_expert(&step->route, token, slot);
    return expert < 0 ? -1 : expert / step->key_experts;
}

/* Says whether the slot has a row. If rows are those of ranks, the rank's last slot has it. */
static bool has_row(const ep_terms_step *step, int64_t token, int32_t slot)
{
    const int64_t key = key_at(step, token, slot);
    bool later = false;
    for (int32_t k = slot + 1; !step->each_slot && k < step->topk; k++)
        later |= key_at(step, token, k) == key;
    return key >= 0 && !later;
}

static int64_t term_of(const ep_terms_step *step, int64_t token, int32_t slot, int64_t row)
{
    const int64_t expert = ep_route_expert(&step->route, token, slot);
    return step->node_experts ? row | (expert / step->node_experts + 1) << EP_TERM_NODE : row;
}

/* next: [keys] zeros. They become the first row of each key. */
static void begin_keys(const ep_terms_step *step, int32_t keys, int64_t *next)
{
    int64_t begin = 0;
    for (int64_t t = 0; t < step->tokens; t++)
        for (int32_t k = 0; k < step->topk; k++)
            if (has_row(step, t, k)) next[key_at(step, t, k)]++;
    for (int32_t key = 0; key < keys; key++) {
        const int64_t count = next[key];
        next[key] = begin;
        begin += count;
    }
}

expar_status cpu_terms(const ep_terms_step *step)
{
    const int32_t keys = step->experts / step->key_experts;
    const ep_routing range = {.tokens = step->tokens, .topk = step->topk, .experts = step->experts};
    expar_status status = cpu_check_range(&step->route, &range);
    if (status != EXPAR_OK) return status;
    int64_t *next = calloc((size_t)keys, sizeof *next);
    if (!next) return error_set(EXPAR_ERR_MEMORY, "no memory for the rows of %d experts or ranks", keys);
    begin_keys(step, keys, next);
    for (int64_t t = 0; t < step->tokens; t++)
        for (int32_t k = 0; k < step->topk; k++)
            step->terms[t * step->terms_pitch + k] =
                has_row(step, t, k) ? term_of(step, t, k, next[key_at(step, t, k)]++) : -1;
    free(next);
    return EXPAR_OK;
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

/* One token's rows, in the order in which they are added. */
typedef struct sum_rows {
    const void **whole; /* [2 + K] biases, rows, and sums of nodes */
    const void **part;  /* [K] rows of a node */
    uint8_t *parts;     /* [K] rows of memory for sums of nodes */
} sum_rows;

static int64_t term_at(const ep_sum_step *step, int64_t token, int32_t slot)
{
    const int64_t i = token * step->terms_pitch + slot;
    return step->term_bytes == 8 ? ((const int64_t *)step->terms)[i] : ((const int32_t *)step->terms)[i];
}

/* Returns NULL if the term adds nothing. */
static const void *row_of(const ep_sum_step *step, int64_t term)
{
    const int64_t row = term & (((int64_t)1 << EP_TERM_NODE) - 1);
    return term < 0 || row >= step->rows ? NULL : (const uint8_t *)step->x + row * step->x_pitch_bytes;
}

static int64_t term_node(int64_t term)
{
    return term < 0 ? 0 : term >> EP_TERM_NODE;
}

static bool is_last_of_node(const ep_sum_step *step, int64_t token, int32_t slot)
{
    const int64_t node = term_node(term_at(step, token, slot));
    for (int32_t k = slot + 1; k < step->topk; k++)
        if (term_node(term_at(step, token, k)) == node) return false;
    return true;
}

/* Sums the rows of a node up to its last slot. */
static const void *node_sum(const ep_sum_step *step, sum_rows *rows, int64_t token, int32_t slot, int64_t elements)
{
    const int64_t node = term_node(term_at(step, token, slot));
    int32_t count = 0;
    for (int32_t k = 0; k <= slot; k++) {
        const int64_t term = term_at(step, token, k);
        const void *row = term_node(term) == node ? row_of(step, term) : NULL;
        if (row) rows->part[count++] = row;
    }
    void *sum = rows->parts + slot * step->row_bytes;
    cpu_sum_rows((expar_dtype)step->dtype, sum, rows->part, count, elements);
    return sum;
}

static void sum_token(const ep_sum_step *step, sum_rows *rows, int64_t token)
{
    const int64_t elements = step->row_bytes / (int64_t)expar_dtype_bytes((expar_dtype)step->dtype);
    int32_t count = 0;
    for (int32_t i = 0; i < 2; i++)
        if (step->bias[i]) rows->whole[count++] = (const uint8_t *)step->bias[i] + token * step->bias_pitch_bytes[i];
    for (int32_t k = 0; k < step->topk; k++) {
        const int64_t term = term_at(step, token, k);
        if (term_node(term) == 0) {
            const void *row = row_of(step, term);
            if (row) rows->whole[count++] = row;
        } else if (is_last_of_node(step, token, k)) {
            rows->whole[count++] = node_sum(step, rows, token, k, elements);
        }
    }
    cpu_sum_rows((expar_dtype)step->dtype, (uint8_t *)step->y + token * step->y_pitch_bytes, rows->whole, count,
                 elements);
}

expar_status cpu_sum(const ep_sum_step *step)
{
    const size_t topk = (size_t)step->topk, pointers = (2 + 2 * topk) * sizeof(void *);
    const size_t parts = step->term_bytes == 8 ? topk * (size_t)step->row_bytes : 0;
    const void **memory = malloc(pointers + parts);
    if (!memory) return error_set(EXPAR_ERR_MEMORY, "no memory for a sum of %d rows", step->topk);
    sum_rows rows = {.whole = memory, .part = memory + 2 + topk, .parts = (uint8_t *)memory + pointers};
    for (int64_t t = 0; t < step->tokens; t++)
        sum_token(step, &rows, t);
    free(memory);
    return EXPAR_OK;
}

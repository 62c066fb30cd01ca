/* SPDX-License-Identifier: Apache-2.0 */
/* Finds where pieces of messages and rows lie, and makes the arrays about those that are sent or awaited. */
#include "exec/cpu/low_latency/far/links.h"

#include <stdlib.h>
#include <string.h>

static int32_t *piece_numbers(size_t count, bool *made)
{
    int32_t *numbers = calloc(count, sizeof *numbers);
    *made = *made && numbers;
    return numbers;
}

expar_status ll_far_pieces_make(const ll_cpu *self)
{
    ll_links *far = self->links;
    const size_t n = (size_t)self->shape.ranks, tokens = (size_t)self->shape.tokens;
    bool made = true;
    far->tokens = piece_numbers(n * tokens, &made);
    far->rows_of = piece_numbers(n * (size_t)self->shape.local_experts, &made);
    far->numbers = piece_numbers(tokens * (size_t)self->space.places, &made);
    far->due_rows = piece_numbers(n, &made);
    far->due_sums = piece_numbers(n, &made);
    far->returns = piece_numbers(n, &made);
    far->pieces = calloc(n * (size_t)ll_pieces(self->shape.tokens), sizeof *far->pieces);
    return made && far->pieces ? EXPAR_OK : error_set(EXPAR_ERR_MEMORY, "no memory for a low-latency buffer");
}

void ll_far_pieces_free(ll_links *far)
{
    free(far->tokens);
    free(far->rows_of);
    free(far->numbers);
    free(far->due_rows);
    free(far->due_sums);
    free(far->returns);
    free(far->pieces);
}

/* Exact combines have at least as many rows as reduced ones have sums. A handle serves both, so there is space for the
   most that a buffer makes. */
void ll_far_place_returns(const ll_cpu *self)
{
    ll_links *far = self->links;
    int32_t next = 0;
    for (int32_t r = 0; r < self->shape.ranks; r++) {
        far->returns[r] = next;
        if (ll_is_far(self, r)) next += ll_pieces(self->shape.exact ? far->due_rows[r] : far->due_sums[r]);
    }
}

static void clear_flag(const ll_cpu *self, uint64_t flag)
{
    memset(ll_here(self, flag), 0, sizeof(uint64_t));
}

static void clear_messages(const ll_cpu *self, int32_t slot)
{
    for (int32_t r = 0; r < self->shape.ranks; r++)
        for (int32_t piece = 0; ll_is_far(self, r) && piece < ll_pieces(self->shape.tokens); piece++)
            clear_flag(self, ll_message_piece_flag_at(&self->space, &self->shape, r, slot, piece));
}

static void clear_returns(const ll_cpu *self, int32_t slot, int32_t region)
{
    for (uint64_t piece = 0; piece < self->space.return_pieces; piece++)
        clear_flag(self, ll_return_flag_at(&self->space, (uint64_t)slot, region, (int32_t)piece));
}

void ll_far_clear(const ll_cpu *self, ll_kind kind, int32_t slot, int32_t region)
{
    if (kind == LL_DISPATCH)
        clear_messages(self, slot);
    else
        clear_returns(self, slot, region);
}

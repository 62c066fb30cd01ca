/* SPDX-License-Identifier: Apache-2.0 */
/* Counts of the MoE layer of a rank: rows moved and computed. */
#include "moe.h"

#include <stdlib.h>

bool moe_counts_create(const model *m, moe_counts *counts, demo_error *error)
{
    moe_counts fresh = {.tokens_per_expert = demo_calloc(error, (size_t)m->num_local_experts, sizeof(int64_t))};
    if (!fresh.tokens_per_expert) return false;
    *counts = fresh;
    return true;
}

void moe_counts_free(moe_counts *counts)
{
    free(counts->tokens_per_expert);
    *counts = (moe_counts){0};
}

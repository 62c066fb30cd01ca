/* SPDX-License-Identifier: Apache-2.0 */
/* Places of rows in dispatch's layout. The rows of an expert are ordered by source, then by token. */
#include "bench/low_latency/mode.h"
#include <stdlib.h>

struct ll_layout *ll_layout_create(const struct problem *problem)
{
    const int64_t slots = (int64_t)problem->num_ranks * problem->tokens * problem->topk;
    struct ll_layout *layout = calloc(1, sizeof *layout);
    if (!layout) return NULL;
    layout->local_experts = problem->experts / problem->num_ranks;
    layout->rows_per_expert = (problem->tokens ? problem->tokens : 1) * problem->num_ranks;
    layout->row = calloc((size_t)slots + 1, sizeof *layout->row);
    layout->counts = calloc((size_t)problem->experts, sizeof *layout->counts);
    if (!layout->row || !layout->counts) {
        ll_layout_free(layout);
        return NULL;
    }
    for (int64_t i = 0; i < slots; i++)
        layout->row[i] = problem->routing[i] < 0 ? -1 : layout->counts[problem->routing[i]]++;
    for (int l = 0; l < layout->local_experts; l++)
        layout->num_rows += layout->counts[problem->rank * layout->local_experts + l];
    return layout;
}

void ll_layout_free(struct ll_layout *layout)
{
    if (!layout) return;
    free(layout->row);
    free(layout->counts);
    free(layout);
}

static int64_t slot_of(const struct problem *problem, int source, int64_t token, int k)
{
    return ((int64_t)source * problem->tokens + token) * problem->topk + k;
}

int64_t ll_layout_row(const struct problem *problem, const struct ll_layout *layout, int source, int64_t token, int k)
{
    const int64_t slot = slot_of(problem, source, token, k);
    if (layout->row[slot] < 0) return -1;
    return problem->routing[slot] % layout->local_experts * layout->rows_per_expert + layout->row[slot];
}

int ll_layout_rank(const struct problem *problem, int source, int64_t token, int k)
{
    const int32_t expert = problem->routing[slot_of(problem, source, token, k)];
    return expert < 0 ? -1 : expert / (problem->experts / problem->num_ranks);
}

size_t ll_wire_bytes(const struct bench_session *session)
{
    const struct problem *problem = session->problem;
    return ll_format_row_bytes(session->format, problem->dtype, problem->hidden) +
           4 * (size_t)ll_format_scales(session->format, problem->hidden);
}

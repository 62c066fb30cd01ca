/* SPDX-License-Identifier: Apache-2.0 */
/* Compares every byte of an output with what follows from the routing and the pattern of rows. */
#include "bench/normal/mode.h"
#include <stdlib.h>
#include <string.h>

bool verify_rows(const struct problem *problem, uint64_t salt, const void *rows)
{
    unsigned char *expected = malloc(problem->row_bytes);
    if (!expected) return bench_wrong(problem, "out of memory for the comparison");
    bool good = true;
    for (int64_t i = 0; i < problem->num_received && good; i++) {
        const struct problem_row *source = &problem->received[i];
        const unsigned char *row = (const unsigned char *)rows + (size_t)i * problem->row_bytes;
        pattern_row(problem->dtype, pattern_key(salt, source->rank, source->token), problem->hidden, expected);
        if (memcmp(row, expected, problem->row_bytes))
            good = bench_wrong(problem, "row %lld is not token %d of rank %d", (long long)i, (int)source->token,
                               (int)source->rank);
    }
    free(expected);
    return good;
}

/* Verifies the top-k of one received row: local numbers of the experts on this rank, -1 and weight 0 for the others. */
static bool verify_topk_row(const struct problem *problem, int64_t i, const int32_t *experts, const float *weights)
{
    const struct problem_row *source = &problem->received[i];
    const int32_t *routed = problem_routing_of(problem, source->rank) + (size_t)source->token * (size_t)problem->topk;
    int per_rank = problem->experts / problem->num_ranks, first = problem->rank * per_rank;
    for (int k = 0; k < problem->topk; k++) {
        bool here = routed[k] >= first && routed[k] < first + per_rank;
        float weight = here ? problem_weight(source->rank, source->token, k) : 0;
        if (experts[k] != (here ? routed[k] - first : -1) || weights[k] != weight) return false;
    }
    return true;
}

static bool verify_topk(const struct problem *problem, const expar_ep_dispatch_result *result)
{
    const int32_t *experts = result->recv_topk_idx.data;
    const float *weights = result->recv_topk_weights.data;
    for (int64_t i = 0; i < problem->num_received; i++) {
        size_t start = (size_t)i * (size_t)problem->topk;
        if (!verify_topk_row(problem, i, experts + start, weights + start))
            return bench_wrong(problem, "top-k of row %lld", (long long)i);
    }
    return true;
}

static bool verify_scales(const struct problem *problem, const float *scales)
{
    for (int64_t i = 0; i < problem->num_received; i++) {
        const struct problem_row *source = &problem->received[i];
        for (int s = 0; s < problem->num_scales; s++)
            if (scales[i * problem->num_scales + s] != problem_scale(source->rank, source->token, s))
                return bench_wrong(problem, "scale %d of row %lld", s, (long long)i);
    }
    return true;
}

static int64_t count_expert(const struct problem *problem, int expert)
{
    int64_t count = 0;
    int64_t entries = (int64_t)problem->num_ranks * problem->tokens * problem->topk;
    for (int64_t i = 0; i < entries; i++)
        count += problem->routing[i] == expert;
    return count;
}

static bool verify_expert_counts(const struct problem *problem, const int32_t *counts)
{
    int per_rank = problem->experts / problem->num_ranks;
    for (int local = 0; local < per_rank; local++)
        if (counts[local] != count_expert(problem, problem->rank * per_rank + local))
            return bench_wrong(problem, "the count of local expert %d", local);
    return true;
}

bool verify_dispatch(const struct problem *problem, uint64_t salt, const expar_ep_dispatch_result *result, bool cached)
{
    if (result->num_recv_tokens != problem->num_received)
        return bench_wrong(problem, "%lld rows received, %lld expected", (long long)result->num_recv_tokens,
                           (long long)problem->num_received);
    bool topk =
        cached || (verify_topk(problem, result) && verify_expert_counts(problem, result->recv_tokens_per_expert));
    bool scales = problem->num_scales == 0 || verify_scales(problem, result->recv_scales.data);
    return topk && scales && verify_rows(problem, salt, result->recv_x.data);
}

/* Tells which rows a sum is expected to have. */
struct sum_case {
    const struct problem *problem;
    uint64_t salt;
    enum verify_rows_of rows_of;
};

/* Names the row that the holder has for the token, at `position` among its rows. */
static uint64_t key_of(const struct sum_case *self, int64_t token, int holder, int64_t position)
{
    if (self->rows_of == VERIFY_RETURNED) return pattern_key(self->salt, self->problem->rank, token);
    return pattern_key(self->salt, holder, position);
}

/* sum += the rows that the ranks from `first` on have for the token, ascending. False: none of them had it. */
static bool add_holders(const struct sum_case *self, int64_t token, int first, int count, float *sum)
{
    const struct problem *problem = self->problem;
    bool any = false;
    for (int holder = first; holder < first + count; holder++) {
        int64_t position = problem->position[token * problem->num_ranks + holder];
        if (position >= 0) pattern_add(problem->dtype, key_of(self, token, holder, position), problem->hidden, sum);
        any |= position >= 0;
    }
    return any;
}

/* Computes the token's row: one sum over the ranks, or, if `each` ranks are a node, the sum of the nodes' rounded sums.
   sums: [2][H]. */
static void expected_row(const struct sum_case *self, int64_t token, int each, float *sums, void *row)
{
    const struct problem *problem = self->problem;
    const size_t hidden = (size_t)problem->hidden;
    float *sum = sums, *node_sum = sums + hidden;
    memset(sum, 0, hidden * sizeof *sum);
    if (each == problem->num_ranks) add_holders(self, token, 0, each, sum);
    for (int first = 0; first < problem->num_ranks && each < problem->num_ranks; first += each) {
        memset(node_sum, 0, hidden * sizeof *node_sum);
        if (!add_holders(self, token, first, each, node_sum)) continue;
        pattern_round(problem->dtype, node_sum, problem->hidden, row);
        pattern_add_row(problem->dtype, row, problem->hidden, sum);
    }
    pattern_round(problem->dtype, sum, problem->hidden, row);
}

bool verify_combine(const struct problem *problem, uint64_t salt, enum verify_rows_of rows_of, int each, const void *y)
{
    const struct sum_case self = {.problem = problem, .salt = salt, .rows_of = rows_of};
    float *sums = malloc(2 * (size_t)problem->hidden * sizeof *sums);
    unsigned char *expected = malloc(problem->row_bytes);
    bool good = sums && expected ? true : bench_wrong(problem, "out of memory for the comparison");
    for (int64_t token = 0; token < problem->tokens && good; token++) {
        expected_row(&self, token, each, sums, expected);
        if (memcmp((const unsigned char *)y + (size_t)token * problem->row_bytes, expected, problem->row_bytes))
            good = bench_wrong(problem, "the sum of token %lld", (long long)token);
    }
    free(expected);
    free(sums);
    return good;
}

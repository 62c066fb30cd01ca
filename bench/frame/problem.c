/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers that follow from a routing that all ranks know. */
#include "bench/frame/problem.h"
#include <stdlib.h>

const int32_t *problem_routing_of(const struct problem *problem, int rank)
{
    return problem->routing + (size_t)rank * (size_t)problem->tokens * (size_t)problem->topk;
}

bool problem_goes_to(const struct problem *problem, int source, int64_t token, int target)
{
    const int32_t *experts = problem_routing_of(problem, source) + (size_t)token * (size_t)problem->topk;
    int per_rank = problem->experts / problem->num_ranks;
    for (int k = 0; k < problem->topk; k++)
        if (experts[k] >= 0 && experts[k] / per_rank == target) return true;
    return false;
}

float problem_weight(int rank, int64_t token, int k)
{
    return (float)(1 + (rank * 7 + token * 3 + k) % 64) * 0x1p-6f;
}

float problem_scale(int rank, int64_t token, int s)
{
    return (float)(1 + (rank * 5 + token * 11 + s) % 512) * 0x1p-9f;
}

static int scales_of(const struct problem_shape *shape)
{
    return shape->dtype == EXPAR_F8E4M3 && shape->hidden % 128 == 0 ? shape->hidden / 128 : 0;
}

static int64_t count_rows(const struct problem *problem, int source, int target)
{
    int64_t count = 0;
    for (int64_t token = 0; token < problem->tokens; token++)
        count += problem_goes_to(problem, source, token, target);
    return count;
}

/* Computes the place of this rank's tokens on every rank, after the rows of the ranks before it. */
static void fill_positions(struct problem *problem)
{
    for (int target = 0; target < problem->num_ranks; target++) {
        int64_t next = 0;
        for (int source = 0; source < problem->rank; source++)
            next += count_rows(problem, source, target);
        for (int64_t token = 0; token < problem->tokens; token++) {
            bool goes = problem_goes_to(problem, problem->rank, token, target);
            problem->position[token * problem->num_ranks + target] = goes ? next++ : -1;
            problem->num_sent += goes;
        }
    }
}

static bool fill_received(struct problem *problem)
{
    for (int target = 0; target < problem->num_ranks; target++) {
        int64_t rows = 0;
        for (int source = 0; source < problem->num_ranks; source++)
            rows += count_rows(problem, source, target);
        if (rows > problem->most_received) problem->most_received = rows;
        if (target == problem->rank) problem->num_received = rows;
    }
    problem->received = calloc((size_t)problem->num_received + 1, sizeof *problem->received);
    if (!problem->received) return false;
    struct problem_row *next = problem->received;
    for (int source = 0; source < problem->num_ranks; source++)
        for (int64_t token = 0; token < problem->tokens; token++)
            if (problem_goes_to(problem, source, token, problem->rank))
                *next++ = (struct problem_row){.rank = source, .token = (int32_t)token};
    return true;
}

struct problem *problem_create(const struct problem_shape *shape, int32_t *routing)
{
    struct problem *problem = calloc(1, sizeof *problem);
    if (!problem) {
        free(routing);
        return NULL;
    }
    *problem = (struct problem){.rank = shape->rank,
                                .num_ranks = shape->num_ranks,
                                .tokens = shape->tokens,
                                .hidden = shape->hidden,
                                .topk = shape->topk,
                                .experts = shape->experts,
                                .dtype = shape->dtype,
                                .row_bytes = (size_t)shape->hidden * expar_dtype_bytes(shape->dtype),
                                .num_scales = scales_of(shape),
                                .routing = routing};
    problem->position = calloc((size_t)shape->tokens * (size_t)shape->num_ranks + 1, sizeof *problem->position);
    if (!problem->position || !fill_received(problem)) {
        problem_free(problem);
        return NULL;
    }
    fill_positions(problem);
    return problem;
}

void problem_free(struct problem *problem)
{
    if (!problem) return;
    free(problem->position);
    free(problem->received);
    free(problem->routing);
    free(problem);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle's expert-major rows: one for each (token, slot) whose expert lives on the rank, sorted by expert, then by
   token, then by slot. */
#include "oracle.h"
#include <stdlib.h>
#include <string.h>

static int32_t local_experts(const oracle_job *job)
{
    return job->num_experts / job->num_ranks;
}

static void *take(size_t count, size_t bytes)
{
    void *memory = calloc(count + 1, bytes);
    if (!memory) abort();
    return memory;
}

int64_t oracle_num_expert_rows(const oracle_job *job, int32_t rank)
{
    int32_t *counts = take((size_t)local_experts(job), sizeof *counts);
    int64_t rows = 0, worst = job->inputs[rank].num_worst_tokens;
    int64_t alignment = job->expert_alignment > 1 ? job->expert_alignment : 1;
    oracle_received_per_expert(job, rank, counts);
    for (int32_t e = 0; e < local_experts(job); e++)
        rows += counts[e];
    free(counts);
    if (job->inputs[rank].num_expert_rows > 0) return job->inputs[rank].num_expert_rows;
    return worst > 0 ? worst * job->topk + local_experts(job) * (alignment - 1) : rows;
}

/* Slots of the kept rows in which expert e stands get rows from `next` on, as far as there are any. */
static void map_expert(const int64_t *idx, int64_t slots, int32_t e, int64_t next, int64_t end, int32_t *map)
{
    for (int64_t i = 0; i < slots; i++)
        if (idx[i] == e) {
            map[i] = next < end ? (int32_t)next : -1;
            next++;
        }
}

void oracle_expert_map(const oracle_job *job, int32_t rank, int32_t *map)
{
    int64_t slots = oracle_num_kept(job, rank) * job->topk, all = oracle_num_rows(job, rank) * job->topk;
    int64_t *idx = take((size_t)slots, sizeof *idx), start = 0, end = oracle_num_expert_rows(job, rank);
    int32_t *counts = take((size_t)local_experts(job), sizeof *counts);
    oracle_dispatch(job, rank, NULL, idx, NULL);
    oracle_received_per_expert(job, rank, counts);
    for (int64_t i = 0; i < all; i++)
        map[i] = -1;
    for (int32_t e = 0; e < local_experts(job); e++) {
        map_expert(idx, slots, e, start, end, map);
        start += counts[e];
    }
    free(counts);
    free(idx);
}

void oracle_expert_expand(const oracle_job *job, int32_t rank, size_t row_bytes, const void *rows, void *expert_rows)
{
    int64_t slots = oracle_num_kept(job, rank) * job->topk;
    int32_t *map = take((size_t)(oracle_num_rows(job, rank) * job->topk), sizeof *map);
    oracle_expert_map(job, rank, map);
    for (int64_t i = 0; i < slots; i++)
        if (map[i] >= 0)
            memcpy((char *)expert_rows + (size_t)map[i] * row_bytes,
                   (const char *)rows + (size_t)(i / job->topk) * row_bytes, row_bytes);
    free(map);
}

/* map: [K], where the slots of the source's token t stand. */
static void weigh_token(const oracle_job *job, const int32_t *map, const oracle_input *source, int64_t t,
                        uint32_t *row_weights)
{
    for (int32_t k = 0; k < job->topk; k++)
        if (map[k] >= 0) row_weights[map[k]] = source->weights[t * job->topk + k];
}

void oracle_expert_weights(const oracle_job *job, int32_t rank, uint32_t *row_weights)
{
    int64_t row = 0, end = oracle_num_kept(job, rank);
    int32_t *map = take((size_t)(oracle_num_rows(job, rank) * job->topk), sizeof *map);
    oracle_expert_map(job, rank, map);
    for (int32_t source = 0; source < job->num_ranks; source++)
        for (int64_t t = 0; t < job->inputs[source].num_tokens && row < end; t++)
            if (oracle_token_in_rank(job, source, t, rank))
                weigh_token(job, map + job->topk * row++, &job->inputs[source], t, row_weights);
    free(map);
}

void oracle_dispatch_metadata(const oracle_job *job, int32_t rank, int32_t stride, const int32_t *map,
                              int32_t *metadata)
{
    int64_t row = 0, end = oracle_num_kept(job, rank);
    for (int32_t source = 0; source < job->num_ranks; source++)
        for (int64_t t = 0; t < job->inputs[source].num_tokens && row < end; t++) {
            if (!oracle_token_in_rank(job, source, t, rank)) continue;
            *metadata++ = (int32_t)(source * stride + t);
            *metadata++ = source;
            for (int32_t k = 0; k < job->topk; k++)
                *metadata++ = map ? map[row * job->topk + k] : -1;
            row++;
        }
}

static float weight_of(const uint32_t *weights, int64_t slot)
{
    float weight = 1.0f;
    if (weights) memcpy(&weight, &weights[slot], sizeof weight);
    return weight;
}

/* One element of one row: the product is rounded before it is added. */
static uint32_t reduce_element(const oracle_job *job, const int32_t *map, int64_t row, int64_t column,
                               const void *expert_rows, const uint32_t *weights)
{
    float sum = 0.0f;
    for (int64_t slot = row * job->topk; slot < (row + 1) * job->topk; slot++) {
        if (map[slot] < 0) continue;
        float x =
            oracle_widen(job->type, oracle_load(job->type, expert_rows, (int64_t)map[slot] * job->hidden + column));
        float product = weight_of(weights, slot) * x;
        sum += product;
    }
    return oracle_round(job->type, sum);
}

void oracle_expert_reduce(const oracle_job *job, int32_t rank, const void *expert_rows, const uint32_t *weights,
                          void *rows)
{
    int32_t *map = take((size_t)(oracle_num_rows(job, rank) * job->topk), sizeof *map);
    oracle_expert_map(job, rank, map);
    for (int64_t row = 0; row < oracle_num_kept(job, rank); row++)
        for (int64_t column = 0; column < job->hidden; column++)
            oracle_store(job->type, rows, row * job->hidden + column,
                         reduce_element(job, map, row, column, expert_rows, weights));
    free(map);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle's sums. Products and sums are FP32, each rounded; contraction is off for this file. */
#include "ep/low_latency/oracle.h"
#include <stdlib.h>
#include <string.h>

static float *take_sums(const llo_job *job)
{
    float *sums = calloc((size_t)job->hidden, sizeof *sums);
    if (!sums) abort();
    return sums;
}

static void clear(const llo_job *job, float *sums)
{
    for (int32_t i = 0; i < job->hidden; i++)
        sums[i] = 0.0f;
}

/* The row that a slot's expert gave back; NULL where there is none. */
static const void *answer(const llo_job *job, const int32_t *map, int32_t source, int64_t t, int32_t k,
                          const void *const *expert_x)
{
    int32_t locals = job->num_experts / job->num_ranks;
    int64_t places = (int64_t)job->num_ranks * job->max_tokens;
    int64_t expert = job->inputs[source].topk_idx[t * job->topk + k];
    if (expert < 0 || llo_token_is_wrong(job, source, t)) return NULL;
    int32_t row = map[(source * job->max_tokens + t) * job->topk + k];
    if (row < 0) return NULL;
    size_t row_bytes = (size_t)job->hidden * oracle_element_bytes(job->type);
    return (const char *)expert_x[expert / locals] + (size_t)(expert % locals * places + row) * row_bytes;
}

static void add_weighted(const llo_job *job, const void *row, uint32_t weight_bits, float *sums)
{
    float weight;
    memcpy(&weight, &weight_bits, sizeof weight);
    for (int32_t i = 0; i < job->hidden; i++) {
        float product = weight * oracle_widen(job->type, oracle_load(job->type, row, i));
        sums[i] += product;
    }
}

/* The slots whose experts live on the ranks `from` to `to`; whether there was one. */
static bool add_slots(const llo_job *job, const int32_t *map, int32_t source, int64_t t, int32_t from, int32_t to,
                      const void *const *expert_x, float *sums)
{
    int32_t locals = job->num_experts / job->num_ranks;
    bool any = false;
    for (int32_t k = 0; k < job->topk; k++) {
        const void *row = answer(job, map, source, t, k, expert_x);
        int64_t owner = job->inputs[source].topk_idx[t * job->topk + k] / locals;
        if (!row || owner < from || owner > to) continue;
        add_weighted(job, row, job->inputs[source].weights[t * job->topk + k], sums);
        any = true;
    }
    return any;
}

static void store(const llo_job *job, const float *sums, int64_t t, void *y)
{
    for (int32_t i = 0; i < job->hidden; i++)
        oracle_store(job->type, y, t * job->hidden + i, oracle_round(job->type, sums[i]));
}

void llo_combine_exact(const llo_job *job, const int32_t *map, int32_t rank, const void *const *expert_x, void *y)
{
    float *sums = take_sums(job);
    for (int64_t t = 0; t < job->inputs[rank].num_tokens; t++) {
        clear(job, sums);
        add_slots(job, map, rank, t, 0, job->num_ranks - 1, expert_x, sums);
        store(job, sums, t, y);
    }
    free(sums);
}

void llo_combine_reduced(const llo_job *job, const int32_t *map, int32_t rank, const void *const *expert_x, void *y)
{
    float *sums = take_sums(job), *part = take_sums(job);
    for (int64_t t = 0; t < job->inputs[rank].num_tokens; t++) {
        clear(job, sums);
        for (int32_t owner = 0; owner < job->num_ranks; owner++) {
            clear(job, part);
            if (!add_slots(job, map, rank, t, owner, owner, expert_x, part)) continue;
            for (int32_t i = 0; i < job->hidden; i++)
                sums[i] += oracle_widen(job->type, oracle_round(job->type, part[i]));
        }
        store(job, sums, t, y);
    }
    free(part);
    free(sums);
}

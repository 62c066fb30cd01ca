/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle's rows: what arrives where, and what the sum of the ranks' answers is. */
#include "oracle.h"
#include <stdlib.h>
#include <string.h>

/* Slot by slot: the local number where the expert lives on `rank`, with its weight; else -1 and 0. */
static void localise_topk(const oracle_job *job, int32_t rank, const oracle_input *input, int64_t t, int64_t *idx,
                          uint32_t *weights)
{
    int64_t first = (int64_t)rank * (job->num_experts / job->num_ranks);
    int64_t end = first + job->num_experts / job->num_ranks;
    for (int32_t k = 0; k < job->topk; k++) {
        int64_t expert = input->topk_idx[t * job->topk + k];
        bool here = expert >= first && expert < end;
        if (idx) idx[k] = here ? expert - first : -1;
        if (weights) weights[k] = here ? input->weights[t * job->topk + k] : 0;
    }
}

void oracle_dispatch(const oracle_job *job, int32_t rank, void *recv_x, int64_t *recv_topk_idx, uint32_t *recv_weights)
{
    size_t row_bytes = (size_t)job->hidden * oracle_element_bytes(job->type);
    int64_t row = 0, end = oracle_num_kept(job, rank);
    for (int32_t source = 0; source < job->num_ranks; source++) {
        const oracle_input *input = &job->inputs[source];
        for (int64_t t = 0; t < input->num_tokens && row < end; t++) {
            if (!oracle_token_in_rank(job, source, t, rank)) continue;
            if (recv_x)
                memcpy((char *)recv_x + (size_t)row * row_bytes, (const char *)input->x + (size_t)t * row_bytes,
                       row_bytes);
            localise_topk(job, rank, input, t, recv_topk_idx ? recv_topk_idx + row * job->topk : NULL,
                          recv_weights ? recv_weights + row * job->topk : NULL);
            row++;
        }
    }
}

void oracle_dispatch_sources(const oracle_job *job, int32_t rank, int32_t *sources)
{
    int64_t row = 0, end = oracle_num_kept(job, rank);
    for (int32_t source = 0; source < job->num_ranks; source++)
        for (int64_t t = 0; t < job->inputs[source].num_tokens && row < end; t++)
            if (oracle_token_in_rank(job, source, t, rank)) sources[row++] = (int32_t)t;
}

void oracle_dispatch_scales(const oracle_job *job, int32_t rank, uint32_t *recv_scales)
{
    int64_t row = 0, end = oracle_num_kept(job, rank);
    size_t width = (size_t)job->num_scales;
    for (int32_t source = 0; source < job->num_ranks; source++)
        for (int64_t t = 0; t < job->inputs[source].num_tokens && row < end; t++)
            if (oracle_token_in_rank(job, source, t, rank))
                memcpy(recv_scales + (size_t)row++ * width, job->inputs[source].scales + (size_t)t * width,
                       width * sizeof *recv_scales);
}

/* Row of rank `target` that holds the first of `source`'s tokens there. */
static int64_t first_row(const oracle_job *job, int32_t source, int32_t target)
{
    int64_t row = 0;
    for (int32_t before = 0; before < source; before++)
        for (int64_t t = 0; t < job->inputs[before].num_tokens; t++)
            row += oracle_token_in_rank(job, before, t, target);
    return row;
}

/* sums[t][i] += rows[row of t][i] for each token of `rank` that `target` holds and kept; `width` elements of `type` a
   row. */
static void add_answers(const oracle_job *job, int32_t rank, int32_t target, oracle_type type, int64_t width,
                        const void *rows, float *sums)
{
    int64_t row = first_row(job, rank, target), end = oracle_num_kept(job, target);
    for (int64_t t = 0; t < job->inputs[rank].num_tokens && row < end; t++) {
        if (!oracle_token_in_rank(job, rank, t, target)) continue;
        for (int64_t i = 0; i < width; i++)
            sums[t * width + i] += oracle_widen(type, oracle_load(type, rows, row * width + i));
        row++;
    }
}

static float *take_zeros(int64_t count)
{
    float *sums = malloc((size_t)count * sizeof *sums + 1);
    if (!sums) abort();
    for (int64_t i = 0; i < count; i++)
        sums[i] = 0.0f;
    return sums;
}

/* sums[i] += what the node's ranks answer: their sum, FP32 from +0 in rank order, and rounded to the type unless it is
   to be exact. */
static void add_node(const oracle_job *job, int32_t rank, int32_t node, oracle_type type, int64_t width,
                     const void *const *answers, float *sums)
{
    int64_t count = job->inputs[rank].num_tokens * width;
    float *node_sums = take_zeros(count);
    for (int32_t target = node * job->ranks_per_node; target < (node + 1) * job->ranks_per_node; target++)
        add_answers(job, rank, target, type, width, answers[target], node_sums);
    for (int64_t i = 0; i < count; i++)
        sums[i] +=
            job->nodes == ORACLE_NODES_EXACT ? node_sums[i] : oracle_widen(type, oracle_round(type, node_sums[i]));
    free(node_sums);
}

/* Adds what all nodes answer: their sums ascending; or the own node's ranks one by one, then the sums of the nodes
   before it, around. */
static void add_nodes(const oracle_job *job, int32_t rank, oracle_type type, int64_t width, const void *const *answers,
                      float *sums)
{
    const int32_t each = job->ranks_per_node, nodes = job->num_ranks / each, own = rank / each;
    const bool own_first = job->nodes == ORACLE_NODES_OWN_FIRST;
    for (int32_t target = own * each; own_first && target < (own + 1) * each; target++)
        add_answers(job, rank, target, type, width, answers[target], sums);
    for (int32_t i = own_first; i < nodes; i++)
        add_node(job, rank, own_first ? (own + nodes - i) % nodes : i, type, width, answers, sums);
}

/* Biases, then ranks ascending; FP32 from +0, one rounding at the end. Over several nodes: what each adds, rounded,
   too. */
static void combine(const oracle_job *job, int32_t rank, oracle_type type, int64_t width, const void *const biases[2],
                    const void *const *answers, void *out)
{
    int64_t count = job->inputs[rank].num_tokens * width;
    float *sums = take_zeros(count);
    for (int b = 0; b < 2; b++)
        for (int64_t i = 0; biases[b] && i < count; i++)
            sums[i] += oracle_widen(type, oracle_load(type, biases[b], i));
    if (job->ranks_per_node < job->num_ranks)
        add_nodes(job, rank, type, width, answers, sums);
    else
        for (int32_t target = 0; target < job->num_ranks; target++)
            add_answers(job, rank, target, type, width, answers[target], sums);
    for (int64_t i = 0; i < count; i++)
        oracle_store(type, out, i, oracle_round(type, sums[i]));
    free(sums);
}

oracle_job oracle_job_of_sums(const oracle_job *job)
{
    oracle_job sums = *job;
    if (job->nodes == ORACLE_NODES_ONE_ORDER) sums.ranks_per_node = job->num_ranks;
    return sums;
}

static const void *const no_biases[2] = {NULL, NULL};

void oracle_combine(const oracle_job *job, int32_t rank, const void *const *expert_x, void *y)
{
    oracle_combine_biased(job, rank, no_biases, expert_x, y);
}

void oracle_combine_biased(const oracle_job *job, int32_t rank, const void *const biases[2],
                           const void *const *expert_x, void *y)
{
    const oracle_job sums = oracle_job_of_sums(job);
    combine(&sums, rank, job->type, job->hidden, biases, expert_x, y);
}

void oracle_combine_weights(const oracle_job *job, int32_t rank, const uint32_t *const *expert_weights,
                            uint32_t *weights)
{
    const void **answers = calloc((size_t)job->num_ranks, sizeof *answers);
    oracle_job ascending = *job;
    if (!answers) abort();
    for (int32_t r = 0; r < job->num_ranks; r++)
        answers[r] = expert_weights[r];
    ascending.nodes = ORACLE_NODES_ROUNDED;
    combine(&ascending, rank, ORACLE_F32, job->topk, no_biases, answers, weights);
    free(answers);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle's counts: who sends how many tokens where. */
#include "oracle.h"

static int32_t local_experts(const oracle_job *job)
{
    return job->num_experts / job->num_ranks;
}

bool oracle_token_in_rank(const oracle_job *job, int32_t source, int64_t t, int32_t target)
{
    const oracle_input *input = &job->inputs[source];
    if (input->token_in_rank) return input->token_in_rank[t * job->num_ranks + target] != 0;
    const int64_t *experts = input->topk_idx + t * job->topk;
    for (int32_t k = 0; k < job->topk; k++)
        if (experts[k] >= 0 && experts[k] / local_experts(job) == target) return true;
    return false;
}

/* Tokens [first, end) of source that go to target. */
static int32_t count_tokens(const oracle_job *job, int32_t source, int64_t first, int64_t end, int32_t target)
{
    int32_t count = 0;
    for (int64_t t = first; t < end; t++)
        count += oracle_token_in_rank(job, source, t, target);
    return count;
}

void oracle_tokens_per_rank(const oracle_job *job, int32_t rank, int32_t *counts)
{
    for (int32_t target = 0; target < job->num_ranks; target++)
        counts[target] = count_tokens(job, rank, 0, job->inputs[rank].num_tokens, target);
}

static bool token_in_node(const oracle_job *job, int32_t source, int64_t t, int32_t node)
{
    int32_t first = node * job->ranks_per_node;
    for (int32_t target = first; target < first + job->ranks_per_node; target++)
        if (oracle_token_in_rank(job, source, t, target)) return true;
    return false;
}

void oracle_tokens_per_node(const oracle_job *job, int32_t rank, int32_t *counts)
{
    for (int32_t node = 0; node < job->num_ranks / job->ranks_per_node; node++) {
        counts[node] = 0;
        for (int64_t t = 0; t < job->inputs[rank].num_tokens; t++)
            counts[node] += token_in_node(job, rank, t, node);
    }
}

/* Occurrences in the tokens that go to the expert's rank. */
static int32_t count_expert(const oracle_job *job, int32_t source, int64_t expert)
{
    const oracle_input *input = &job->inputs[source];
    int32_t count = 0;
    if (!input->topk_idx && input->tokens_per_expert) return input->tokens_per_expert[expert];
    for (int64_t i = 0; i < input->num_tokens * job->topk; i++)
        if (input->topk_idx[i] == expert)
            count += oracle_token_in_rank(job, source, i / job->topk, (int32_t)(expert / local_experts(job)));
    return count;
}

void oracle_tokens_per_expert(const oracle_job *job, int32_t rank, int32_t *counts)
{
    for (int32_t expert = 0; expert < job->num_experts; expert++)
        counts[expert] = count_expert(job, rank, expert);
}

void oracle_routes(const oracle_job *job, int32_t rank, uint8_t *token_in_rank)
{
    for (int64_t t = 0; t < job->inputs[rank].num_tokens; t++)
        for (int32_t target = 0; target < job->num_ranks; target++)
            token_in_rank[t * job->num_ranks + target] = oracle_token_in_rank(job, rank, t, target);
}

void oracle_rank_prefix(const oracle_job *job, int32_t rank, int32_t *prefix)
{
    int32_t sum = 0;
    for (int32_t source = 0; source < job->num_ranks; source++) {
        sum += count_tokens(job, source, 0, job->inputs[source].num_tokens, rank);
        prefix[source] = sum;
    }
}

void oracle_channel_prefix(const oracle_job *job, int32_t rank, int32_t num_channels, int32_t *prefix)
{
    int64_t num_tokens = job->inputs[rank].num_tokens;
    int64_t share = num_tokens / num_channels + (num_tokens % num_channels != 0);
    for (int32_t target = 0; target < job->num_ranks; target++)
        for (int32_t c = 0; c < num_channels; c++) {
            int64_t end = (c + 1) * share;
            prefix[target * num_channels + c] = count_tokens(job, rank, 0, end < num_tokens ? end : num_tokens, target);
        }
}

int64_t oracle_num_received(const oracle_job *job, int32_t rank)
{
    int64_t sum = 0;
    for (int32_t source = 0; source < job->num_ranks; source++)
        sum += count_tokens(job, source, 0, job->inputs[source].num_tokens, rank);
    return sum;
}

int64_t oracle_num_kept(const oracle_job *job, int32_t rank)
{
    int64_t coming = oracle_num_received(job, rank), spare = job->inputs[rank].num_worst_tokens;
    return spare > 0 && spare < coming ? spare : coming;
}

int64_t oracle_num_rows(const oracle_job *job, int32_t rank)
{
    int64_t spare = job->inputs[rank].num_worst_tokens;
    return spare > 0 ? spare : oracle_num_received(job, rank);
}

void oracle_received_per_expert(const oracle_job *job, int32_t rank, int32_t *counts)
{
    int32_t alignment = job->expert_alignment > 1 ? job->expert_alignment : 1;
    for (int32_t local = 0; local < local_experts(job); local++) {
        int32_t count = 0;
        for (int32_t source = 0; source < job->num_ranks; source++)
            count += count_expert(job, source, (int64_t)rank * local_experts(job) + local);
        counts[local] = (count + alignment - 1) / alignment * alignment;
    }
}

void oracle_expert_ends(const oracle_job *job, int32_t rank, int32_t *ends)
{
    int32_t alignment = job->expert_alignment > 1 ? job->expert_alignment : 1, row = 0;
    for (int32_t local = 0; local < local_experts(job); local++) {
        while (row % alignment)
            row++;
        for (int32_t source = 0; source < job->num_ranks; source++)
            row += count_expert(job, source, (int64_t)rank * local_experts(job) + local);
        ends[local] = row;
    }
}

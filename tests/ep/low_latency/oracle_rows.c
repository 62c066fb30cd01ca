/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle's rows: which token stands where, and what it looks like there. */
#include "ep/low_latency/oracle.h"
#include <stdlib.h>
#include <string.h>

static int64_t expert_of(const llo_job *job, int32_t source, int64_t t, int32_t k)
{
    return job->inputs[source].topk_idx[t * job->topk + k];
}

bool llo_token_is_wrong(const llo_job *job, int32_t source, int64_t t)
{
    for (int32_t k = 0; k < job->topk; k++) {
        int64_t expert = expert_of(job, source, t, k);
        if (expert < -1 || expert >= job->num_experts) return true;
    }
    return false;
}

static bool is_masked(const llo_job *job, int32_t rank)
{
    return job->masked && job->masked[rank];
}

static bool token_goes_to(const llo_job *job, int32_t source, int64_t t, int64_t expert)
{
    int32_t target = (int32_t)(expert / (job->num_experts / job->num_ranks));
    if (is_masked(job, source) || is_masked(job, target) || llo_token_is_wrong(job, source, t)) return false;
    for (int32_t k = 0; k < job->topk; k++)
        if (expert_of(job, source, t, k) == expert) return true;
    return false;
}

int32_t *llo_map_make(const llo_job *job)
{
    int64_t slots = (int64_t)job->num_ranks * job->max_tokens * job->topk;
    int32_t *map = malloc((size_t)slots * sizeof *map);
    int32_t *next = calloc((size_t)job->num_experts, sizeof *next);
    if (!map || !next) abort();
    for (int64_t i = 0; i < slots; i++) {
        int32_t source = (int32_t)(i / job->topk / job->max_tokens), k = (int32_t)(i % job->topk);
        int64_t t = i / job->topk % job->max_tokens;
        int64_t expert = t < job->inputs[source].num_tokens ? expert_of(job, source, t, k) : -1;
        map[i] = expert >= 0 && token_goes_to(job, source, t, expert) ? next[expert]++ : -1;
    }
    free(next);
    return map;
}

int64_t llo_messages(const llo_job *job, int32_t rank)
{
    int32_t locals = job->num_experts / job->num_ranks;
    int64_t messages = 0;
    for (int64_t t = 0; t < job->inputs[rank].num_tokens; t++)
        for (int32_t target = 0; target < job->num_ranks; target++) {
            bool goes = false;
            for (int32_t e = target * locals; e < (target + 1) * locals; e++)
                goes |= token_goes_to(job, rank, t, e);
            messages += goes;
        }
    return messages;
}

void llo_places(const llo_job *job, const int32_t *map, int32_t rank, int32_t *count, int32_t *src_info, int64_t *range)
{
    int32_t locals = job->num_experts / job->num_ranks;
    int64_t places = (int64_t)job->num_ranks * job->max_tokens;
    for (int64_t i = 0; i < locals * places; i++)
        src_info[i] = -1;
    for (int32_t e = 0; e < locals; e++) {
        count[e] = 0;
        for (int32_t source = 0; source < job->num_ranks; source++) {
            int64_t begin = count[e], slots = (int64_t)job->max_tokens * job->topk;
            for (int64_t i = 0; i < slots; i++) {
                int32_t row = map[source * slots + i], t = (int32_t)(i / job->topk);
                if (row < 0 || expert_of(job, source, t, (int32_t)(i % job->topk)) != rank * locals + e) continue;
                src_info[e * places + row] = t;
                count[e]++;
            }
            range[e * job->num_ranks + source] = begin << 32 | (count[e] - begin);
        }
    }
}

void llo_dispatch(const llo_job *job, const int32_t *map, int32_t rank, void *x, uint32_t *scales)
{
    int32_t locals = job->num_experts / job->num_ranks, num_scales = llo_num_scales(job);
    int64_t places = (int64_t)job->num_ranks * job->max_tokens;
    size_t from_bytes = (size_t)job->hidden * oracle_element_bytes(job->type);
    size_t to_bytes = llo_row_bytes(job);
    for (int64_t i = 0; i < places * job->topk; i++) {
        int32_t source = (int32_t)(i / job->topk / job->max_tokens);
        int64_t t = i / job->topk % job->max_tokens;
        if (map[i] < 0) continue;
        int64_t expert = expert_of(job, source, t, (int32_t)(i % job->topk));
        if (expert / locals != rank) continue;
        int64_t row = expert % locals * places + map[i];
        const char *input = job->inputs[source].x;
        llo_quantise(job, input + (size_t)t * from_bytes, (char *)x + (size_t)row * to_bytes,
                     scales + row * num_scales);
    }
}

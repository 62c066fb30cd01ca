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
        for (int32_t before = 0; before < k; before++)
            if (expert >= 0 && expert_of(job, source, t, before) == expert) return true;
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
    int64_t places = (int64_t)job->num_ranks * job->max_tokens;
    int32_t *map = malloc((size_t)(job->num_experts * places) * sizeof *map);
    if (!map) abort();
    for (int64_t e = 0; e < job->num_experts; e++) {
        int32_t row = 0;
        for (int32_t source = 0; source < job->num_ranks; source++)
            for (int64_t t = 0; t < job->max_tokens; t++) {
                bool goes = t < job->inputs[source].num_tokens && token_goes_to(job, source, t, e);
                map[e * places + source * job->max_tokens + t] = goes ? row++ : -1;
            }
    }
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
    for (int32_t e = 0; e < locals; e++) {
        const int32_t *rows = map + ((int64_t)rank * locals + e) * places;
        int32_t *tokens = src_info + e * places;
        count[e] = 0;
        for (int64_t i = 0; i < places; i++)
            tokens[i] = -1;
        for (int32_t source = 0; source < job->num_ranks; source++) {
            int64_t begin = count[e];
            for (int32_t t = 0; t < job->max_tokens; t++) {
                int32_t row = rows[source * job->max_tokens + t];
                if (row < 0) continue;
                tokens[row] = t;
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
    size_t to_bytes = (size_t)job->hidden * llo_element_bytes(job);
    for (int64_t e = 0; e < locals; e++)
        for (int64_t i = 0; i < places; i++) {
            int32_t row = map[(rank * locals + e) * places + i];
            if (row < 0) continue;
            const char *input = job->inputs[i / job->max_tokens].x;
            llo_quantise(job, input + (size_t)(i % job->max_tokens) * from_bytes,
                         (char *)x + (size_t)(e * places + row) * to_bytes, scales + (e * places + row) * num_scales);
        }
}

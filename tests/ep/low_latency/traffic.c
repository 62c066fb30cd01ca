/* SPDX-License-Identifier: Apache-2.0 */
/* Traffic and answers of low-latency mode, with the oracle's results. */
#include "ep/low_latency/traffic.h"
#include <stdlib.h>
#include <string.h>

int32_t lowlat_locals(const llo_job *job)
{
    return job->num_experts / job->num_ranks;
}

int64_t lowlat_places(const llo_job *job)
{
    return (int64_t)job->num_ranks * job->max_tokens;
}

expar_dtype lowlat_dtype(oracle_type type)
{
    return type == ORACLE_BF16 ? EXPAR_BF16 : type == ORACLE_F16 ? EXPAR_F16 : EXPAR_F32;
}

expar_ll_format lowlat_format(llo_format format)
{
    static const expar_ll_format formats[] = {
        [LLO_PLAIN] = EXPAR_LL_FORMAT_PLAIN,         [LLO_FP8] = EXPAR_LL_FORMAT_FP8,
        [LLO_FP8_ROUND] = EXPAR_LL_FORMAT_FP8_ROUND, [LLO_FP8_UE8M0] = EXPAR_LL_FORMAT_FP8_UE8M0,
        [LLO_INT8] = EXPAR_LL_FORMAT_INT8,           [LLO_NVFP4] = EXPAR_LL_FORMAT_NVFP4};
    return formats[format];
}

/* ---- dispatch ---------------------------------------------------------------------------------------------------- */

/* Whether the slot's expert stands in an earlier slot of its token. */
static bool is_double(const int64_t *topk_idx, int32_t k)
{
    for (int32_t before = 0; before < k; before++)
        if (topk_idx[before] == topk_idx[k]) return true;
    return false;
}

/* Slots that name an expert again go where the expert has more rows than places, until all fit. */
static void drop_excess(const llo_job *job)
{
    int64_t *rows = traffic_alloc((size_t)job->num_experts, sizeof *rows);
    memset(rows, 0, (size_t)job->num_experts * sizeof *rows);
    for (int32_t r = 0; r < job->num_ranks; r++)
        for (int64_t i = 0; i < job->inputs[r].num_tokens * job->topk; i++)
            if (job->inputs[r].topk_idx[i] >= 0) rows[job->inputs[r].topk_idx[i]]++;
    for (int32_t r = 0; r < job->num_ranks; r++) {
        int64_t *topk_idx = (int64_t *)(uintptr_t)job->inputs[r].topk_idx;
        for (int64_t i = 0; i < job->inputs[r].num_tokens * job->topk; i++) {
            const int64_t first = i - i % job->topk;
            if (topk_idx[i] < 0 || rows[topk_idx[i]] <= lowlat_places(job)) continue;
            if (!is_double(topk_idx + first, (int32_t)(i - first))) continue;
            rows[topk_idx[i]]--;
            topk_idx[i] = -1;
        }
    }
    free(rows);
}

static uint32_t *draw_weights(int64_t num_tokens, int32_t topk, random_source *random)
{
    uint32_t *weights = traffic_alloc((size_t)(num_tokens * topk), sizeof *weights);
    traffic_fill_rows(random, ORACLE_F32, num_tokens, topk, weights);
    return weights;
}

static oracle_input draw_input(const lowlat_plan *plan, int32_t rank, random_source *random)
{
    int64_t count = plan->num_tokens[rank];
    int64_t *topk_idx = traffic_alloc((size_t)(count * plan->topk), sizeof *topk_idx);
    void *x = traffic_alloc((size_t)(count * plan->hidden), oracle_element_bytes(plan->type));
    routing_fill(plan->routing, random, count, plan->topk, plan->num_experts, topk_idx);
    if (plan->disturb) routing_disturb(random, plan->disturb, count, plan->topk, topk_idx);
    traffic_fill_rows(random, plan->type, count, plan->hidden, x);
    return (oracle_input){.num_tokens = count,
                          .x = x,
                          .topk_idx = topk_idx,
                          .weights = plan->with_weights ? draw_weights(count, plan->topk, random) : NULL};
}

static void free_arrival(const lowlat_arrival *arrival)
{
    free(arrival->count);
    free(arrival->src_info);
    free(arrival->range);
    free(arrival->x);
    free(arrival->scales);
}

void lowlat_traffic_settle(lowlat_traffic *t)
{
    const llo_job *job = &t->job;
    size_t locals = (size_t)lowlat_locals(job), rows = locals * (size_t)lowlat_places(job);
    free(t->map);
    t->map = llo_map_make(job);
    for (int32_t r = 0; r < job->num_ranks; r++) {
        lowlat_arrival *arrival = &t->arrivals[r];
        free_arrival(arrival);
        *arrival =
            (lowlat_arrival){.count = traffic_alloc(locals, sizeof *arrival->count),
                             .src_info = traffic_alloc(rows, sizeof *arrival->src_info),
                             .range = traffic_alloc(locals * (size_t)job->num_ranks, sizeof *arrival->range),
                             .x = traffic_alloc(rows, llo_row_bytes(job)),
                             .scales = traffic_alloc(rows, (size_t)llo_num_scales(job) * sizeof *arrival->scales),
                             .messages = llo_messages(job, r)};
        llo_places(job, t->map, r, arrival->count, arrival->src_info, arrival->range);
        llo_dispatch(job, t->map, r, arrival->x, arrival->scales);
    }
}

lowlat_traffic *lowlat_traffic_make(const lowlat_plan *plan, random_source *random)
{
    lowlat_traffic *t = traffic_alloc(1, sizeof *t);
    t->wide = plan->wide;
    t->with_weights = plan->with_weights;
    t->inputs = traffic_alloc((size_t)plan->num_ranks, sizeof *t->inputs);
    t->arrivals = traffic_alloc((size_t)plan->num_ranks, sizeof *t->arrivals);
    t->job = (llo_job){.num_ranks = plan->num_ranks,
                       .max_tokens = plan->max_tokens,
                       .hidden = plan->hidden,
                       .topk = plan->topk,
                       .num_experts = plan->num_experts,
                       .type = plan->type,
                       .format = plan->format,
                       .inputs = t->inputs};
    if (plan->format == LLO_NVFP4) t->job.global_scale = (float)random_between(random, 1, 4000) / 4.0f;
    for (int32_t r = 0; r < plan->num_ranks; r++)
        t->inputs[r] = draw_input(plan, r, random);
    drop_excess(&t->job);
    lowlat_traffic_settle(t);
    return t;
}

/* The oracle's inputs are read only; these arrays are the tests' own. */
static void free_given(const void *array)
{
    free((void *)(uintptr_t)array);
}

void lowlat_traffic_free(lowlat_traffic *t)
{
    if (!t) return;
    for (int32_t r = 0; r < t->job.num_ranks; r++) {
        free_given(t->inputs[r].x);
        free_given(t->inputs[r].topk_idx);
        free_given(t->inputs[r].weights);
        free_arrival(&t->arrivals[r]);
    }
    free(t->map);
    free(t->inputs);
    free(t->arrivals);
    free(t);
}

/* ---- combine ----------------------------------------------------------------------------------------------------- */

static void *draw_answer(const lowlat_answers *a, const lowlat_traffic *t, int32_t rank, random_source *random)
{
    const llo_job *job = &a->job;
    size_t places = (size_t)lowlat_places(job), locals = (size_t)lowlat_locals(job);
    size_t row_bytes = (size_t)job->hidden * oracle_element_bytes(job->type);
    char *x = traffic_alloc(locals * places, row_bytes);
    memset(x, 0xff, locals * places * row_bytes);
    for (size_t e = 0; e < locals; e++)
        traffic_fill_rows(random, job->type, t->arrivals[rank].count[e], job->hidden, x + e * places * row_bytes);
    return x;
}

lowlat_answers *lowlat_answers_make(const lowlat_traffic *t, oracle_type type, expar_ll_sum sum, random_source *random)
{
    lowlat_answers *a = traffic_alloc(1, sizeof *a);
    size_t n = (size_t)t->job.num_ranks;
    a->job = t->job;
    a->job.type = type;
    a->job.inputs = a->inputs = traffic_alloc(n, sizeof *a->inputs);
    a->sum = sum;
    a->x = traffic_alloc(n, sizeof *a->x);
    a->y = traffic_alloc(n, sizeof *a->y);
    for (size_t r = 0; r < n; r++) {
        a->inputs[r] = t->inputs[r];
        if (sum != EXPAR_LL_SUM_REDUCED || !t->with_weights)
            a->inputs[r].weights = draw_weights(t->inputs[r].num_tokens, t->job.topk, random);
        a->x[r] = draw_answer(a, t, (int32_t)r, random);
    }
    for (size_t r = 0; r < n; r++) {
        a->y[r] = traffic_alloc((size_t)t->inputs[r].num_tokens, (size_t)t->job.hidden * oracle_element_bytes(type));
        (sum == EXPAR_LL_SUM_EXACT ? llo_combine_exact : llo_combine_reduced)(&a->job, t->map, (int32_t)r,
                                                                              (const void *const *)a->x, a->y[r]);
    }
    return a;
}

/* Large elements become small ones. */
static void shrink(oracle_type type, void *rows, int64_t row, int64_t hidden)
{
    for (int64_t i = row * hidden; i < (row + 1) * hidden; i++) {
        float value = oracle_widen(type, oracle_load(type, rows, i));
        if (value > 0x1p-4f || value < -0x1p-4f) oracle_store(type, rows, i, oracle_round(type, value * 0x1p-12f));
    }
}

/* Rows that have arrived, and how many of their elements are not known to the bit. */
typedef struct arrived {
    void **low, **high; /* [N] → [L][N*B][H] */
    int64_t unsure, all;
} arrived;

/* The row of a slot: where its weight is negative the larger numbers give the smaller sum. */
static void code_row(const lowlat_answers *a, int64_t expert, int64_t row, bool negative, arrived *to)
{
    const llo_job *job = &a->job;
    const int64_t rank = expert / lowlat_locals(job), local = expert % lowlat_locals(job);
    const size_t row_bytes = (size_t)job->hidden * oracle_element_bytes(job->type);
    const size_t at = (size_t)(local * lowlat_places(job) + row) * row_bytes;
    char *least = (char *)to->low[rank] + at, *most = (char *)to->high[rank] + at;
    to->unsure += llo_log_row(job->type, job->hidden, (const char *)a->x[rank] + at, negative ? most : least,
                              negative ? least : most);
    to->all += job->hidden;
}

static void code_token(const lowlat_answers *a, const lowlat_traffic *t, int32_t source, int64_t token, arrived *to)
{
    const llo_job *job = &a->job;
    for (int32_t k = 0; k < job->topk; k++) {
        const int64_t slot = token * job->topk + k, expert = a->inputs[source].topk_idx[slot];
        if (expert < 0 || expert >= job->num_experts) continue;
        const int32_t row = t->map[(source * job->max_tokens + token) * job->topk + k];
        if (row >= 0) code_row(a, expert, row, a->inputs[source].weights[slot] >> 31, to);
    }
}

static void **copy_rows(const lowlat_answers *a)
{
    const size_t n = (size_t)a->job.num_ranks, rows = (size_t)(lowlat_locals(&a->job) * lowlat_places(&a->job));
    const size_t bytes = rows * (size_t)a->job.hidden * oracle_element_bytes(a->job.type);
    void **copies = traffic_alloc(n, sizeof *copies);
    for (size_t r = 0; r < n; r++)
        copies[r] = memcpy(traffic_alloc(bytes, 1), a->x[r], bytes);
    return copies;
}

static void shrink_rows(const lowlat_answers *a, const lowlat_traffic *t)
{
    const int64_t places = lowlat_places(&a->job), rows = lowlat_locals(&a->job) * places;
    for (int32_t r = 0; r < a->job.num_ranks; r++)
        for (int64_t row = 0; row < rows; row++)
            if (row % places < t->arrivals[r].count[row / places] && row % 4)
                shrink(a->job.type, a->x[r], row, a->job.hidden);
}

/* In the types of 16 bits nearly all elements have one value. One in a hundred of BF16 may have two, which has 2^-8
   between them, and one in ten of FP16. Some of any traffic may, since those of a small one prove nothing. */
#define UNSURE_OF_ANY 16
static void check_sure(const lowlat_answers *a, const arrived *rows)
{
    const int64_t often = a->job.type == ORACLE_BF16 ? 100 : 10;
    if (a->job.type != ORACLE_F32 && (rows->unsure - UNSURE_OF_ANY) * often > rows->all) abort();
}

void lowlat_answers_code(lowlat_answers *a, const lowlat_traffic *t)
{
    const llo_job *job = &a->job;
    const size_t n = (size_t)job->num_ranks;
    a->logfmt = true;
    shrink_rows(a, t);
    arrived rows = {.low = copy_rows(a), .high = copy_rows(a)};
    for (int32_t r = 0; r < job->num_ranks; r++)
        for (int64_t token = 0; token < t->inputs[r].num_tokens; token++)
            code_token(a, t, r, token, &rows);
    check_sure(a, &rows);
    a->most = traffic_alloc(n, sizeof *a->most);
    for (size_t r = 0; r < n; r++) {
        a->most[r] =
            traffic_alloc((size_t)t->inputs[r].num_tokens, (size_t)job->hidden * oracle_element_bytes(job->type));
        llo_combine_exact(job, t->map, (int32_t)r, (const void *const *)rows.low, a->y[r]);
        llo_combine_exact(job, t->map, (int32_t)r, (const void *const *)rows.high, a->most[r]);
    }
    for (size_t r = 0; r < n; r++) {
        free(rows.low[r]);
        free(rows.high[r]);
    }
    free(rows.low);
    free(rows.high);
}

void lowlat_answers_free(lowlat_answers *a, const lowlat_traffic *t)
{
    if (!a) return;
    for (int32_t r = 0; r < a->job.num_ranks; r++) {
        if (a->inputs[r].weights != t->inputs[r].weights) free_given(a->inputs[r].weights);
        free(a->x[r]);
        free(a->y[r]);
        if (a->most) free(a->most[r]);
    }
    free(a->most);
    free(a->inputs);
    free(a->x);
    free(a->y);
    free(a);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "ep/low_latency/case.h"
#include "ep/harness/check.h"
#include "ep/low_latency/reach.h"
#include "proto/codec/codec.h"
#include <stdlib.h>
#include <string.h>

const ll_case case_example = {.ranks = 3,
                              .max_tokens = 6,
                              .hidden = 24,
                              .topk = 4,
                              .experts = 12,
                              .tokens = {6, 2, 5},
                              .seed = 3,
                              .weights = true};

expar_ll_config case_config(const ll_case *c)
{
    expar_ll_config config = EXPAR_LL_CONFIG_INIT;
    config.max_tokens = c->max_tokens;
    config.hidden = c->hidden;
    config.max_topk = c->topk;
    config.num_experts = c->experts;
    config.max_row_bytes = 4 * (int64_t)config.hidden;
    config.num_threads = c->threads;
    config.num_sms = c->sms;
    config.unmapped = reach_unmapped();
    return config;
}

static uint32_t mix(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t h = a * 2654435761u ^ b * 2246822519u ^ c * 3266489917u;
    h ^= h >> 15;
    h *= 2246822519u;
    return h ^ h >> 13;
}

int32_t case_expert(const ll_case *c, int32_t rank, int32_t token, int32_t k)
{
    const uint32_t first = mix(c->seed, (uint32_t)rank + 1, (uint32_t)token + 1);
    if (mix(first, (uint32_t)k, 7) % 6 == 0) return -1;
    return (int32_t)((first + (uint32_t)k) % (uint32_t)c->experts);
}

static float value_of(uint32_t number, int32_t rank, int32_t token, int32_t h)
{
    return (float)(int32_t)(mix(number + 1, (uint32_t)rank * 4096 + (uint32_t)token, (uint32_t)h) % 2001) - 1000.0f;
}

static float weight_of(int32_t rank, int32_t token, int32_t k)
{
    return (float)(mix((uint32_t)rank, (uint32_t)token, (uint32_t)k + 99) % 1000) / 1024.0f;
}

/* An expert's answer for value h of a row: below 1 but in every third group, which LogFMT does not code. */
static float expert_value(const ll_case *c, int32_t expert, int32_t h, float value)
{
    const bool below = c->logfmt && (expert + h / CODEC_GROUP) % 3;
    return value * (1.0f + (float)expert * 0.25f) * (below ? 0x1p-14f : 1.0f);
}

static void *filled(size_t bytes)
{
    void *data = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    if (!data) abort();
    memset(data, 0x5a, bytes);
    return data;
}

static void fill_arguments(ll_round *round)
{
    const ll_case *c = round->c;
    const int32_t tokens = c->tokens[round->rank];
    for (int32_t t = 0; t < tokens; t++) {
        for (int32_t h = 0; h < c->hidden; h++)
            round->x[t * c->hidden + h] = value_of(round->number, round->rank, t, h);
        for (int32_t k = 0; k < c->topk; k++) {
            const int32_t expert = case_expert(c, round->rank, t, k);
            round->weights[t * c->topk + k] = weight_of(round->rank, t, k);
            if (c->wide_idx)
                ((int64_t *)round->idx)[t * c->topk + k] = expert;
            else
                ((int32_t *)round->idx)[t * c->topk + k] = expert;
        }
    }
}

static expar_tensor rows_tensor(const ll_case *c, float *data)
{
    const int64_t rows = (int64_t)c->ranks * c->max_tokens;
    expar_tensor tensor = expar_tensor_2d(data, EXPAR_F32, rows, c->hidden);
    tensor.ndim = 3;
    tensor.shape[0] = c->experts / c->ranks;
    tensor.shape[1] = rows;
    tensor.shape[2] = c->hidden;
    tensor.strides[0] = rows * c->hidden;
    tensor.strides[1] = c->hidden;
    tensor.strides[2] = 1;
    return tensor;
}

ll_round *round_make(const ll_case *c, int32_t rank, uint32_t number)
{
    const size_t tokens = (size_t)c->tokens[rank], slots = tokens * (size_t)c->topk;
    const size_t rows = (size_t)c->experts * (size_t)c->max_tokens, hidden = (size_t)c->hidden;
    ll_round *round = calloc(1, sizeof *round);
    if (!round) abort();
    round->c = c;
    round->rank = rank;
    round->number = number;
    round->x = filled(tokens * hidden * sizeof(float));
    round->weights = filled(slots * sizeof(float));
    round->idx = filled(slots * sizeof(int64_t));
    round->encoded = filled(hidden * sizeof(float) * 2);
    round->expert_x = filled(rows * hidden * sizeof(float));
    fill_arguments(round);
    round->dispatch = (expar_ll_dispatch_args)EXPAR_LL_DISPATCH_ARGS_INIT;
    round->dispatch.x = expar_tensor_2d(round->x, EXPAR_F32, (int64_t)tokens, c->hidden);
    round->dispatch.format = c->format;
    round->dispatch.topk_idx =
        expar_tensor_2d(round->idx, c->wide_idx ? EXPAR_I64 : EXPAR_I32, (int64_t)tokens, c->topk);
    if (c->weights) round->dispatch.topk_weights = expar_tensor_2d(round->weights, EXPAR_F32, (int64_t)tokens, c->topk);
    if (c->lend) {
        round->lent_x = filled(rows * hidden * sizeof(float));
        round->lent_count = filled((size_t)c->experts * sizeof(int32_t));
        round->lent_y = filled(tokens * hidden * sizeof(float));
        round->dispatch.out_x = rows_tensor(c, round->lent_x);
        round->dispatch.out_count = expar_tensor_1d(round->lent_count, EXPAR_I32, c->experts / c->ranks);
    }
    round->received = (expar_ll_dispatch_result)EXPAR_LL_DISPATCH_RESULT_INIT;
    round->combined = (expar_ll_combine_result)EXPAR_LL_COMBINE_RESULT_INIT;
    return round;
}

void round_free(ll_round *round)
{
    expar_ll_hook_release(round->received.hook);
    expar_ll_hook_release(round->combined.hook);
    expar_ep_output_release(round->received.output);
    expar_ep_output_release(round->combined.output);
    expar_ll_handle_release(round->received.handle);
    free(round->x);
    free(round->weights);
    free(round->idx);
    free(round->expert_x);
    free(round->encoded);
    free(round->lent_x);
    free(round->lent_y);
    free(round->lent_count);
    free(round);
}

/* ---- dispatch ---------------------------------------------------------------------------------------------------- */

static bool check_row(const ll_round *round, const float *row, int32_t source, int32_t token)
{
    for (int32_t h = 0; h < round->c->hidden; h++)
        if (!CHECK(row[h] == value_of(round->number, source, token, h), "round %u, rank %d's token %d, element %d",
                   round->number, source, token, h))
            return false;
    return true;
}

/* The row's bytes are those that the codec defines. */
static bool check_encoded(const ll_round *round, int64_t row, int32_t local, int32_t source, int32_t token)
{
    const ll_case *c = round->c;
    const int64_t rows = (int64_t)c->ranks * c->max_tokens;
    const int32_t codec = c->format + CODEC_FP8 - 1;
    const size_t bytes = (size_t)codec_row_bytes(codec, c->hidden);
    const int64_t words = codec_scales(codec, c->hidden);
    float *x = round->encoded;
    uint8_t *payload = (uint8_t *)round->encoded + (size_t)c->hidden * sizeof(float);
    for (int32_t h = 0; h < c->hidden; h++)
        x[h] = value_of(round->number, source, token, h);
    codec_encode_row(codec, CODEC_F32, c->hidden, x, payload, payload + bytes);
    const uint8_t *got = (const uint8_t *)round->received.recv_x.data + (local * rows + row) * (int64_t)bytes;
    if (!CHECK(memcmp(got, payload, bytes) == 0, "rank %d's token %d", source, token)) return false;
    const expar_tensor *scales = &round->received.recv_scales;
    for (int64_t w = 0; w < words; w++) {
        const int64_t at = local * scales->strides[0] + row * scales->strides[1] + w * scales->strides[2];
        if (!CHECK(memcmp((const uint32_t *)scales->data + at, payload + bytes + w * 4, 4) == 0,
                   "rank %d's token %d, scale %lld", source, token, (long long)w))
            return false;
    }
    return true;
}

static bool is_for(const ll_case *c, int32_t source, int32_t token, int32_t expert)
{
    for (int32_t k = 0; k < c->topk; k++)
        if (case_expert(c, source, token, k) == expert) return true;
    return false;
}

/* Rows of one local expert: sources ascending, each one's tokens ascending. */
static bool check_expert(const ll_round *round, const expar_ll_handle_info *info, int32_t local)
{
    const ll_case *c = round->c;
    const int64_t rows = (int64_t)c->ranks * c->max_tokens;
    const int32_t expert = round->rank * (c->experts / c->ranks) + local;
    const float *x = (const float *)round->received.recv_x.data + local * rows * c->hidden;
    const int32_t *src = (const int32_t *)info->src_info.data + local * rows;
    const int64_t *range = (const int64_t *)info->range.data + (int64_t)local * c->ranks;
    int32_t row = 0;
    for (int32_t s = 0; s < c->ranks; s++) {
        const int32_t begin = row;
        for (int32_t t = 0; t < c->tokens[s]; t++) {
            if (!is_for(c, s, t, expert)) continue;
            if (c->format != EXPAR_LL_FORMAT_PLAIN ? !check_encoded(round, row, local, s, t)
                                                   : !check_row(round, x + (int64_t)row * c->hidden, s, t))
                return false;
            if (!CHECK(src[row] == t, "src_info[%d][%d] is %d, not %d", local, row, src[row], t)) return false;
            row++;
        }
        if (!CHECK(range[s] == ((int64_t)begin << 32 | (row - begin)), "range[%d][%d] is %llx", local, s,
                   (unsigned long long)range[s]))
            return false;
    }
    const int32_t count = ((const int32_t *)round->received.recv_count.data)[local];
    return CHECK(count == row, "recv_count[%d] is %d, not %d", local, count, row);
}

bool round_check_dispatch(const ll_round *round)
{
    expar_ll_handle_info info = EXPAR_LL_HANDLE_INFO_INIT;
    if (!CHECK_OK(expar_ll_handle_get_info(round->received.handle, &info))) return false;
    bool good = CHECK(info.num_tokens == round->c->tokens[round->rank] && info.num_topk == round->c->topk &&
                          info.max_tokens == round->c->max_tokens && info.hidden == round->c->hidden &&
                          info.num_experts == round->c->experts,
                      "what the handle knows");
    for (int32_t l = 0; l < round->c->experts / round->c->ranks && good; l++)
        good = check_expert(round, &info, l);
    return good;
}

bool round_dispatch(ll_round *round, expar_ll *ll)
{
    if (!CHECK_OK(expar_ll_dispatch(ll, &round->dispatch, &round->received))) return false;
    return round->dispatch.hook || round_check_dispatch(round);
}

bool round_dispatch_hook(ll_round *round)
{
    return CHECK_OK(expar_ll_hook_call(round->received.hook, NULL)) && round_check_dispatch(round);
}

/* ---- combine ----------------------------------------------------------------------------------------------------- */

static void fill_expert_rows(ll_round *round)
{
    const ll_case *c = round->c;
    const int32_t locals = c->experts / c->ranks;
    const int64_t rows = (int64_t)c->ranks * c->max_tokens;
    for (int32_t l = 0; l < locals; l++)
        for (int32_t row = 0; row < ((const int32_t *)round->received.recv_count.data)[l]; row++)
            for (int32_t h = 0; h < c->hidden; h++) {
                const int64_t at = (l * rows + row) * c->hidden + h;
                round->expert_x[at] =
                    expert_value(c, round->rank * locals + l, h, ((const float *)round->received.recv_x.data)[at]);
            }
}

void round_prepare_combine(ll_round *round)
{
    const ll_case *c = round->c;
    const int64_t tokens = c->tokens[round->rank];
    fill_expert_rows(round);
    round->combine = (expar_ll_combine_args)EXPAR_LL_COMBINE_ARGS_INIT;
    round->combine.x = rows_tensor(c, round->expert_x);
    round->combine.topk_idx = round->dispatch.topk_idx;
    round->combine.topk_weights = expar_tensor_2d(round->weights, EXPAR_F32, tokens, c->topk);
    round->combine.handle = round->received.handle;
    round->combine.sum = c->sum;
    if (c->logfmt) round->combine.format = EXPAR_LL_FORMAT_LOGFMT;
    if (c->lend) round->combine.out_y = expar_tensor_2d(round->lent_y, EXPAR_F32, tokens, c->hidden);
}

/* Each product is rounded, then each sum. */
static float sum_exact(const ll_round *round, int32_t token, int32_t h, float value)
{
    float sum = 0;
    for (int32_t k = 0; k < round->c->topk; k++) {
        const int32_t expert = case_expert(round->c, round->rank, token, k);
        if (expert < 0) continue;
        const float product = weight_of(round->rank, token, k) * expert_value(round->c, expert, h, value);
        sum = sum + product;
    }
    return sum;
}

/* Each rank's own sum, then those, ranks ascending. */
static float sum_reduced(const ll_round *round, int32_t token, int32_t h, float value)
{
    const int32_t locals = round->c->experts / round->c->ranks;
    float sum = 0;
    for (int32_t r = 0; r < round->c->ranks; r++) {
        float part = 0;
        for (int32_t k = 0; k < round->c->topk; k++) {
            const int32_t expert = case_expert(round->c, round->rank, token, k);
            if (expert < 0 || expert / locals != r) continue;
            const float product = weight_of(round->rank, token, k) * expert_value(round->c, expert, h, value);
            part = part + product;
        }
        sum = sum + part;
    }
    return sum;
}

/* An expert's coded answer for a token of round `number`: bytes of the payload, and in `row`, [4][hidden], the values
   after coding. The rest of it is scratch. */
static int64_t code_row(const ll_case *c, uint32_t number, int32_t rank, int32_t token, int32_t expert, float *row)
{
    float *heads = row + c->hidden, *payload = row + 2 * c->hidden;
    for (int32_t h = 0; h < c->hidden; h++)
        row[h] = expert_value(c, expert, h, value_of(number, rank, token, h));
    const int64_t bytes = codec_encode_row(CODEC_LOGFMT, CODEC_F32, c->hidden, row, payload, heads);
    codec_decode_row(CODEC_LOGFMT, c->hidden, payload, heads, row);
    return bytes;
}

int64_t case_coded_bytes(const ll_case *c, uint32_t number, int32_t rank, int32_t token, int32_t expert)
{
    float *row = malloc(4 * (size_t)c->hidden * sizeof(float));
    if (!row) abort();
    const int64_t bytes = code_row(c, number, rank, token, expert, row) + codec_scale_bytes(CODEC_LOGFMT, c->hidden);
    free(row);
    return bytes;
}

/* For a slot: the values of the expert's row after coding. */
static void add_coded(const ll_round *round, int32_t token, int32_t k, float *sum)
{
    const ll_case *c = round->c;
    float *row = malloc(4 * (size_t)c->hidden * sizeof(float));
    if (!row) abort();
    code_row(c, round->number, round->rank, token, case_expert(c, round->rank, token, k), row);
    for (int32_t h = 0; h < c->hidden; h++) {
        const float product = weight_of(round->rank, token, k) * row[h];
        sum[h] = sum[h] + product;
    }
    free(row);
}

static bool check_coded(const ll_round *round)
{
    const ll_case *c = round->c;
    bool good = true;
    for (int32_t t = 0; t < c->tokens[round->rank] && good; t++) {
        const float *y = (const float *)round->combined.y.data + (int64_t)t * c->hidden;
        float *sum = calloc((size_t)c->hidden, sizeof *sum);
        if (!sum) abort();
        for (int32_t k = 0; k < c->topk; k++)
            if (case_expert(c, round->rank, t, k) >= 0) add_coded(round, t, k, sum);
        for (int32_t h = 0; h < c->hidden && good; h++)
            good = CHECK(y[h] == sum[h], "y[%d][%d] is %g, not %g", t, h, (double)y[h], (double)sum[h]);
        free(sum);
    }
    return good;
}

bool round_check_combine(const ll_round *round)
{
    const ll_case *c = round->c;
    const float *y = round->combined.y.data;
    if (c->logfmt) return check_coded(round);
    for (int32_t t = 0; t < c->tokens[round->rank]; t++)
        for (int32_t h = 0; h < c->hidden; h++) {
            const float value = value_of(round->number, round->rank, t, h);
            const float expected =
                c->sum == EXPAR_LL_SUM_EXACT ? sum_exact(round, t, h, value) : sum_reduced(round, t, h, value);
            if (!CHECK(y[t * c->hidden + h] == expected, "round %u, y[%d][%d] is %g, not %g", round->number, t, h,
                       (double)y[t * c->hidden + h], (double)expected))
                return false;
        }
    return true;
}

bool round_combine(ll_round *round, expar_ll *ll)
{
    if (!CHECK_OK(expar_ll_combine(ll, &round->combine, &round->combined))) return false;
    return round->combine.hook || round_check_combine(round);
}

bool round_combine_hook(ll_round *round)
{
    return CHECK_OK(expar_ll_hook_call(round->combined.hook, NULL)) && round_check_combine(round);
}

bool round_trial(const ll_case *c, int32_t rank, expar_ll *ll, uint32_t number)
{
    ll_round *round = round_make(c, rank, number);
    bool good = round_dispatch(round, ll);
    if (good) {
        round_prepare_combine(round);
        good = round_combine(round, ll);
    }
    round_free(round);
    return good;
}

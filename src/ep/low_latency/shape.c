/* SPDX-License-Identifier: Apache-2.0 */
/* From a config to the shape of a buffer, and its size: known before anything is allocated. */
#include "ep/low_latency/ll.h"
#include "proto/sends.h"

/* Bounds that keep every product of proto/low_latency.h in 64 bits. */
#define LL_MOST_RANKS   65536
#define LL_MOST_TOKENS  65535
#define LL_MOST_HIDDEN  (1 << 24)
#define LL_MOST_EXPERTS (1 << 22)
#define LL_ROW_UNIT     16
#define LL_MOST_RESERVE ((uint64_t)1 << 60)

typedef struct member_rule {
    const char *name;
    int64_t value, low, high;
} member_rule;

static expar_status ll_check_rules(const member_rule *rules, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (rules[i].value < rules[i].low || rules[i].value > rules[i].high)
            return error_set(EXPAR_ERR_ARGUMENT, "config.%s is %lld; expected %lld to %lld", rules[i].name,
                             (long long)rules[i].value, (long long)rules[i].low, (long long)rules[i].high);
    return EXPAR_OK;
}

/* The shape, or with a reserve that there is none. */
static expar_status ll_check_members(const expar_ll_config *config)
{
    const member_rule rules[] = {{"max_tokens", config->max_tokens, 1, LL_MOST_TOKENS},
                                 {"hidden", config->hidden, 1, LL_MOST_HIDDEN},
                                 {"max_topk", config->max_topk, 1, LL_MOST_TOPK},
                                 {"num_experts", config->num_experts, 1, LL_MOST_EXPERTS},
                                 {"max_row_bytes", config->max_row_bytes, 0, 4 * (int64_t)LL_MOST_HIDDEN}};
    if (config->reserve_bytes > LL_MOST_RESERVE)
        return error_set(EXPAR_ERR_ARGUMENT, "config.reserve_bytes is %zu; expected at most %llu",
                         config->reserve_bytes, (unsigned long long)LL_MOST_RESERVE);
    if (!config->reserve_bytes) return ll_check_rules(rules, ARRAY_LENGTH(rules));
    for (size_t i = 0; i < ARRAY_LENGTH(rules); i++)
        if (rules[i].value != 0)
            return error_set(EXPAR_ERR_ARGUMENT,
                             "config.%s is %lld; expected 0 with reserve_bytes: expar_ll_set_shape has the shape",
                             rules[i].name, (long long)rules[i].value);
    if (config->masking == 0)
        return error_set(EXPAR_ERR_ARGUMENT, "config.masking is 0; expected 1 with reserve_bytes");
    return EXPAR_OK;
}

static expar_status ll_check_config(const expar_ll_config *config)
{
    const member_rule rules[] = {
        {"sums", config->sums, 0, LL_ALL_SUMS},
        {"device.type", config->device.type, 0, EXPAR_CUDA},
        {"device.index", config->device.index, 0, INT32_MAX},
        {"num_threads", config->num_threads, 0, 1024},
        {"num_sms", config->num_sms, 0, INT32_MAX},
        {"masking", config->masking, 0, 1},
        {"unmapped", config->unmapped, 0, 1},
        {"late_limit_ms", config->late_limit_ms, 0, INT64_MAX / 1000000},
    };
    expar_status status = ll_check_members(config);
    return status == EXPAR_OK ? ll_check_rules(rules, ARRAY_LENGTH(rules)) : status;
}

static int32_t ll_element_bytes(const expar_ll_config *config)
{
    return config->max_row_bytes > 2 * (int64_t)config->hidden ? 4 : 2;
}

/* Checks members that are in their bounds, but may not fit each other. */
static expar_status ll_check_together(const expar_ll_config *config, int32_t ranks)
{
    const int64_t row_bytes = config->max_row_bytes, twice = 2 * (int64_t)config->hidden;
    const int32_t bytes = ll_element_bytes(config);
    uint64_t rows;
    if (row_bytes && row_bytes != twice && row_bytes != 2 * twice)
        return error_set(EXPAR_ERR_ARGUMENT,
                         "config.max_row_bytes is %lld; expected %lld (bf16, f16), %lld (f32, too) or 0 with hidden %d",
                         (long long)row_bytes, (long long)twice, (long long)(2 * twice), config->hidden);
    if ((int64_t)config->hidden * bytes % LL_ROW_UNIT)
        return error_set(EXPAR_ERR_ARGUMENT,
                         "config.hidden is %d; expected a multiple of %d: rows of elements of %d bytes are multiples "
                         "of %d bytes",
                         config->hidden, LL_ROW_UNIT / bytes, bytes, LL_ROW_UNIT);
    if (config->num_experts % ranks)
        return error_set(EXPAR_ERR_ARGUMENT, "config.num_experts is %d; expected a multiple of the %d ranks",
                         config->num_experts, ranks);
    if ((int64_t)ranks * config->max_tokens > INT32_MAX)
        return error_set(EXPAR_ERR_ARGUMENT, "config.max_tokens is %d; expected at most %d with %d ranks",
                         config->max_tokens, INT32_MAX / ranks, ranks);
    if (size_mul_overflows((uint64_t)config->num_experts * (uint64_t)config->max_tokens,
                           (uint64_t)config->hidden * (uint64_t)bytes, &rows) ||
        rows > INT64_MAX / 2)
        return error_set(EXPAR_ERR_ARGUMENT,
                         "config makes results of more than 2^62 bytes (num_experts %d, max_tokens %d, hidden %d)",
                         config->num_experts, config->max_tokens, config->hidden);
    return EXPAR_OK;
}

/* Small batches are for GPUs, whose flags wait for all rows before them; with masks they are as others. */
static int32_t ll_word_tokens(const expar_ll_config *config)
{
    if (config->device.type != EXPAR_CUDA || config->masking) return 0;
    return config->max_tokens < LL_WORD_TOKENS ? config->max_tokens : LL_WORD_TOKENS;
}

expar_status ll_shape_make(const expar_ll_config *given, int32_t ranks, expar_ll_config *config, ll_shape *shape)
{
    expar_status status = ep_copy_struct("config", config, sizeof *config, given);
    if (status == EXPAR_OK && (ranks < 1 || ranks > LL_MOST_RANKS))
        status = error_set(EXPAR_ERR_ARGUMENT, "num_ranks is %d; expected 1 to %d", ranks, LL_MOST_RANKS);
    if (status == EXPAR_OK) status = ll_check_config(config);
    if (status == EXPAR_OK && !config->reserve_bytes) status = ll_check_together(config, ranks);
    if (status != EXPAR_OK) return status;
    const int32_t sums = config->sums ? config->sums : LL_ALL_SUMS;
    *shape = (ll_shape){.ranks = ranks,
                        .tokens = config->max_tokens,
                        .topk = config->max_topk,
                        .local_experts = config->num_experts / ranks,
                        .hidden = config->hidden,
                        .element_bytes = ll_element_bytes(config),
                        .exact = (sums >> EXPAR_LL_SUM_EXACT) & 1,
                        .reduced = (sums >> EXPAR_LL_SUM_REDUCED) & 1,
                        .masking = config->masking,
                        .regions = config->masking ? (ranks < LL_REGIONS ? ranks : LL_REGIONS) : 1,
                        .word_tokens = ll_word_tokens(config),
                        .unmapped = config->unmapped};
    return EXPAR_OK;
}

/* Which ranks are mapped is not known yet, unless the config says that none is. */
static uint64_t ll_bytes_of(const expar_ll_config *config, const ll_shape *shape)
{
    const bool by_rings = config->device.type == EXPAR_CUDA && shape->unmapped;
    return by_rings ? ll_sends_all_bytes(shape, shape->ranks - 1) : ll_space_of(shape).total_bytes;
}

expar_status expar_ll_get_buffer_size(const expar_ll_config *config, int32_t num_ranks, size_t *bytes)
{
    static const char name[] = "expar_ll_get_buffer_size";
    expar_ll_config full;
    ll_shape shape;
    if (!bytes) return call_ended(error_set(EXPAR_ERR_NULL, "%s: bytes is NULL", name));
    expar_status status = ll_shape_make(config, num_ranks, &full, &shape);
    if (status != EXPAR_OK) return call_ended(error_prefix(status, "%s", name));
    const ll_reserved reserve = ll_reserved_of(num_ranks, full.reserve_bytes);
    *bytes = (reserve.bytes ? reserve.total_bytes : ll_bytes_of(&full, &shape)) + ep_teardown_bytes(num_ranks);
    return EXPAR_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* From a config to the shape of a buffer, and its size: known before anything is allocated. */
#include "ep/normal/normal.h"
#include "proto/nodes.h"

/* Bounds that keep every product below in 64 bits but for the two that are checked. */
#define MAX_RANKS       65536
#define MAX_CHANNELS    1024
#define MAX_RING_SLOTS  65536
#define MAX_TOPK        4096
#define MAX_ROW_BYTES   (1 << 26)
#define MAX_SCALES      (1 << 20)
#define MAX_RECV_TOKENS INT32_MAX

static expar_status check_member(const char *name, int64_t value, int64_t low, int64_t high)
{
    if (value >= low && value <= high) return EXPAR_OK;
    return error_set(EXPAR_ERR_ARGUMENT, "config.%s is %lld; expected %lld to %lld", name, (long long)value,
                     (long long)low, (long long)high);
}

/* NULL: there is none for the config's device. */
static const executor_kind *kind_of(const expar_ep_config *config)
{
    return executor_kind_of(config->device.type ? config->device.type : EXPAR_CPU);
}

static expar_status check_members(const expar_ep_config *config, int32_t ranks)
{
    const executor_kind *kind = kind_of(config);
    const int64_t least = kind && kind->grows ? 0 : 1;
    const struct {
        const char *name;
        int64_t value, low, high;
    } rules[] = {
        /* First: the others' bounds are those of the device. */
        {"device.type", config->device.type, 0, EXPAR_CUDA},
        {"max_tokens", config->max_tokens, 0, MAX_RECV_TOKENS / ranks},
        {"max_row_bytes", config->max_row_bytes, least, MAX_ROW_BYTES},
        {"max_topk", config->max_topk, least, MAX_TOPK},
        {"max_experts", config->max_experts, least, EP_MOST_EXPERTS},
        {"num_channels", config->num_channels, 0, MAX_CHANNELS},
        {"ring_slots", config->ring_slots, 0, MAX_RING_SLOTS},
        {"num_threads", config->num_threads, 0, 1024},
        {"pool_bytes", config->pool_bytes, 0, INT64_MAX / 4},
        {"max_scales", config->max_scales, 0, MAX_SCALES},
        {"device.index", config->device.index, 0, INT32_MAX},
        {"pool_limit_bytes", config->pool_limit_bytes, 0, INT64_MAX / 4},
        {"num_sms", config->num_sms, kind ? kind->least_sms : 0, INT32_MAX},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(rules); i++) {
        expar_status status = check_member(rules[i].name, rules[i].value, rules[i].low, rules[i].high);
        if (status != EXPAR_OK) return status;
    }
    if (config->device.index && config->device.type != EXPAR_CUDA)
        return error_set(EXPAR_ERR_ARGUMENT, "config.device.index is %d; expected 0 on the CPU", config->device.index);
    if (config->max_experts % ranks)
        return error_set(EXPAR_ERR_ARGUMENT, "config.max_experts is %d; expected a multiple of the %d ranks",
                         config->max_experts, ranks);
    if (config->pool_limit_bytes == 0 || config->pool_bytes <= config->pool_limit_bytes) return EXPAR_OK;
    return error_set(EXPAR_ERR_ARGUMENT,
                     "config.pool_limit_bytes is %lld; expected 0 (none), or at least the %lld of config.pool_bytes",
                     (long long)config->pool_limit_bytes, (long long)config->pool_bytes);
}

/* As the pool rounds large blocks. */
static uint64_t shape_in_pool(uint64_t bytes)
{
    return align_up(bytes, MEM_POOL_LARGE_BYTES);
}

/* Twice the largest output that a rank can receive, as its rows come, and what the executor needs with them. */
static bool default_pool_overflows(const ep_shape *shape, const executor_kind *kind, uint64_t *bytes)
{
    uint64_t rows = (uint64_t)shape->tokens * (uint64_t)shape->ranks, unused;
    if (size_mul_overflows(rows,
                           (uint64_t)shape->row_bytes + 4 * (uint64_t)shape->scales + 16 * (uint64_t)shape->topk + 1024,
                           &unused))
        return true;
    ep_block_shape largest = {.x_rows = (int64_t)rows,
                              .rows = (int64_t)rows,
                              .row_bytes = shape->row_bytes,
                              .scale_bytes = 4 * (int64_t)shape->scales,
                              .topk = shape->topk,
                              .idx_bytes = 8,
                              .weights = 1};
    *bytes = 2 * shape_in_pool(ep_block_map_of(&largest).total_bytes);
    *bytes += kind->beside_outputs(shape, (int64_t)rows);
    return *bytes >= UINT64_MAX / 4;
}

/* Sets the first size of the pool to the needs of the largest calls, if these have limits; at most to the pool's own
   limit. Says whether that overflows. */
static bool pool_overflows(const expar_ep_config *config, const executor_kind *kind, bool all_mapped, ep_shape *shape)
{
    const uint64_t limit = (uint64_t)config->pool_limit_bytes;
    if (!kind->beside_outputs || !all_mapped) return false;
    shape->pool_bytes = (uint64_t)config->pool_bytes;
    bool limited = config->max_tokens && config->max_row_bytes && config->max_topk;
    if (!shape->pool_bytes && limited && default_pool_overflows(shape, kind, &shape->pool_bytes)) return true;
    if (limit && shape->pool_bytes > limit) shape->pool_bytes = limit;
    return false;
}

/* Without a longest row there are no rings yet. */
static int32_t ring_slots(const expar_ep_config *config)
{
    if (config->max_row_bytes == 0) return 0;
    return config->ring_slots ? config->ring_slots : ep_ring_slots_for(config->max_row_bytes);
}

static bool slots_overflow(const ep_shape *shape)
{
    uint64_t slots = (uint64_t)shape->ranks * (uint64_t)shape->channels * (uint64_t)shape->ring_slots, bytes;
    uint64_t slot_bytes =
        (uint64_t)shape->row_bytes + 4 * (uint64_t)shape->scales + 28 * (uint64_t)shape->topk + 4 * EP_LINE_BYTES;
    return size_mul_overflows(slots, slot_bytes, &bytes) || bytes >= UINT64_MAX / 4;
}

static int32_t channels_of(const expar_ep_config *config, const executor_kind *kind, bool all_mapped)
{
    if (config->num_channels) return config->num_channels;
    return (int32_t)knob(all_mapped ? kind->num_channels : kind->num_channels_across);
}

expar_status ep_shape_make(const expar_ep_config *given, int32_t ranks, bool all_mapped, ep_shape *out)
{
    expar_ep_config config;
    expar_status status = ep_copy_struct("config", &config, sizeof config, given);
    if (status == EXPAR_OK && (ranks < 1 || ranks > MAX_RANKS))
        status = error_set(EXPAR_ERR_ARGUMENT, "num_ranks is %d; expected 1 to %d", ranks, MAX_RANKS);
    if (status == EXPAR_OK) status = check_members(&config, ranks);
    if (status != EXPAR_OK) return status;
    const executor_kind *kind = kind_of(&config);
    ep_shape shape = {.ranks = ranks,
                      .channels = channels_of(&config, kind, all_mapped),
                      .ring_slots = ring_slots(&config),
                      .topk = config.max_topk,
                      .scales = config.max_scales ? config.max_scales : (int32_t)((config.max_row_bytes + 63) / 64),
                      .local_experts = config.max_experts / ranks,
                      .tokens = config.max_tokens,
                      .row_bytes = config.max_row_bytes};
    if (slots_overflow(&shape) || pool_overflows(&config, kind, all_mapped, &shape))
        return error_set(EXPAR_ERR_ARGUMENT,
                         "config needs more than 2^62 bytes (max_tokens %lld, max_row_bytes %lld, num_channels %d, "
                         "ring_slots %d)",
                         (long long)shape.tokens, (long long)shape.row_bytes, shape.channels, shape.ring_slots);
    *out = shape;
    return EXPAR_OK;
}

static int64_t limit_or(int64_t given, int64_t most)
{
    return given > 0 ? given : most;
}

ep_limits ep_limits_of(const expar_ep_config *config, const ep_shape *shape, bool all_mapped)
{
    const int64_t most_experts = all_mapped ? EP_MOST_EXPERTS : (int64_t)ep_rail_experts(shape) * shape->ranks;
    if (!kind_of(config)->grows)
        return (ep_limits){.tokens = shape->tokens,
                           .row_bytes = shape->row_bytes,
                           .topk = shape->topk,
                           .experts = shape->local_experts * shape->ranks,
                           .scales = shape->scales};
    return (ep_limits){.tokens = limit_or(config->max_tokens, MAX_RECV_TOKENS / shape->ranks),
                       .row_bytes = limit_or(config->max_row_bytes, MAX_ROW_BYTES),
                       .topk = (int32_t)limit_or(config->max_topk, MAX_TOPK),
                       .experts = (int32_t)limit_or(config->max_experts, most_experts),
                       .scales = (int32_t)limit_or(config->max_scales, MAX_SCALES)};
}

static bool says_one_node(const expar_ep_config *config, int32_t ranks)
{
    return !config->ranks_per_node || config->ranks_per_node == ranks;
}

/* With rails, where the config says that there are nodes. */
static expar_status shape_bytes(const expar_ep_config *given, const ep_shape *shape, uint64_t *bytes)
{
    expar_ep_config config;
    expar_status status = ep_copy_struct("config", &config, sizeof config, given);
    const int32_t each = config.ranks_per_node;
    *bytes = ep_space_of(shape).total_bytes;
    if (status != EXPAR_OK || says_one_node(&config, shape->ranks)) return status;
    if (each < 1 || shape->ranks % each)
        return error_set(EXPAR_ERR_ARGUMENT, "config.ranks_per_node is %d; expected 0, or a divisor of the %d ranks",
                         config.ranks_per_node, shape->ranks);
    const ep_rails rails = ep_rails_of(shape->ranks / each, each, shape, config.ring_slots);
    const uint64_t places = 4 * (uint64_t)rails.nodes * (uint64_t)rails.chunks * (uint64_t)shape->channels;
    if (size_mul_overflows(places, ep_rail_place_bytes(&rails), bytes) || *bytes >= UINT64_MAX / 4)
        return error_set(EXPAR_ERR_ARGUMENT, "config needs more than 2^62 bytes for rings over the network");
    *bytes = ep_rail_space_of(&rails, shape).total_bytes;
    return EXPAR_OK;
}

expar_status expar_ep_get_buffer_size(const expar_ep_config *config, int32_t num_ranks, size_t *bytes)
{
    if (!bytes) return call_ended(error_set(EXPAR_ERR_NULL, "expar_ep_get_buffer_size: bytes is NULL"));
    expar_ep_config full;
    ep_shape shape;
    uint64_t taken;
    expar_status status = ep_copy_struct("config", &full, sizeof full, config);
    if (status == EXPAR_OK) status = ep_shape_make(config, num_ranks, says_one_node(&full, num_ranks), &shape);
    if (status == EXPAR_OK) status = shape_bytes(config, &shape, &taken);
    if (status != EXPAR_OK) return call_ended(error_prefix(status, "expar_ep_get_buffer_size"));
    *bytes = taken + ep_teardown_bytes(num_ranks);
    return EXPAR_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Where the results of a dispatch go: a block of the pool (direct), other memory (queue), or the caller's own. */
#include "ep/normal/normal.h"

#include <stdio.h>

expar_status ep_block_take(expar_ep *ep, uint64_t bytes, mem_block **out)
{
    if (mem_pool_take(ep->base.exec->pool, bytes ? bytes : 1, out) == EXPAR_OK) return EXPAR_OK;
    return ep_other_take(ep, bytes, out);
}

expar_status ep_pool_lacks(const expar_ep *ep, uint64_t bytes, const char *what)
{
    mem_pool *pool = ep->base.exec->pool;
    return error_set(EXPAR_ERR_BUFFER_SIZE,
                     "path is DIRECT, but the pool of %llu bytes has no room for %s (config.%s: %llu would do)",
                     (unsigned long long)mem_pool_limit(pool), what,
                     ep->base.exec->grows && !ep->pool_limit_bytes ? "pool_bytes" : "pool_limit_bytes",
                     (unsigned long long)mem_pool_enough(pool, bytes));
}

/* Takes a block: from the pool while rows are to come directly, else (AUTO: or where there is no room, which then also
   settles the mode) from other memory. */
static expar_status output_take_block(expar_ep *ep, const ep_wish *wish, uint64_t bytes, ep_mode *mode,
                                      mem_block **block)
{
    bytes = bytes ? bytes : 1;
    if (*mode == EP_MODE_DIRECT) {
        expar_status status = mem_pool_take(ep->base.exec->pool, bytes, block);
        if (status == EXPAR_OK) return EXPAR_OK;
        /* Without a limit there is no memory, as the error says. */
        if (wish->path == EXPAR_PATH_DIRECT && !ep->pool_limit_bytes && !ep->shape.pool_bytes)
            return error_prefix(EXPAR_ERR_MEMORY, "path is DIRECT, but");
        if (wish->path == EXPAR_PATH_DIRECT) {
            char what[64];
            snprintf(what, sizeof what, "an output of %llu bytes", (unsigned long long)bytes);
            return ep_pool_lacks(ep, bytes, what);
        }
        LOG(LOG_INFO, "pool has no room for %llu bytes: this output comes by the queue", (unsigned long long)bytes);
        *mode = EP_MODE_QUEUE;
    }
    return ep_other_take(ep, bytes, block);
}

/* ---- the caller's own memory ------------------------------------------------------------------------------------- */

static const char *const out_names[EP_DISPATCH_PARTS] = {[EXPAR_EP_PART_X] = "out_x",
                                                         [EXPAR_EP_PART_SCALES] = "out_scales",
                                                         [EXPAR_EP_PART_TOPK_IDX] = "out_topk_idx",
                                                         [EXPAR_EP_PART_TOPK_WEIGHTS] = "out_topk_weights",
                                                         [EXPAR_EP_PART_ROW_MAP] = "out_row_map",
                                                         [EXPAR_EP_PART_SRC_TOKEN] = "out_src_token",
                                                         [EXPAR_EP_PART_ROW_WEIGHTS] = "out_row_weights",
                                                         [EXPAR_EP_PART_SRC_METADATA] = "out_src_metadata"};

const char *ep_out_name(int part)
{
    return out_names[part];
}

/* Bytes of one row of a part that rows bring along; 0: none does. The map and what goes by it are made here. */
static int64_t part_row_bytes(const ep_block_shape *shape, int part)
{
    switch (part) {
    case EXPAR_EP_PART_X:
        return shape->row_bytes;
    case EXPAR_EP_PART_SCALES:
        return shape->scale_bytes;
    case EXPAR_EP_PART_TOPK_IDX:
        return (int64_t)shape->topk * shape->idx_bytes;
    case EXPAR_EP_PART_TOPK_WEIGHTS:
        return shape->weights ? (int64_t)shape->topk * (int64_t)sizeof(float) : 0;
    case EXPAR_EP_PART_SRC_TOKEN:
        return shape->src ? (int64_t)sizeof(int32_t) : 0;
    default:
        return 0;
    }
}

static uint64_t *part_offset(ep_arrival *arrival, int part)
{
    uint64_t *const offsets[EP_DISPATCH_PARTS] = {[EXPAR_EP_PART_X] = &arrival->x_offset,
                                                  [EXPAR_EP_PART_SCALES] = &arrival->scales_offset,
                                                  [EXPAR_EP_PART_TOPK_IDX] = &arrival->idx_offset,
                                                  [EXPAR_EP_PART_TOPK_WEIGHTS] = &arrival->weights_offset,
                                                  [EXPAR_EP_PART_SRC_TOKEN] = &arrival->src_offset};
    return offsets[part];
}

/* Rows of that part come straight to the caller's memory: expert-major ones come to a block of their own first, scales
   that are to be column-major to the result's. */
static bool part_arrives_there(const ep_wish *wish, int part)
{
    bool expanded = wish->expert_major && (part == EXPAR_EP_PART_X || part == EXPAR_EP_PART_SCALES);
    bool turned = wish->shape.column_bytes && part == EXPAR_EP_PART_SCALES;
    return wish->out[part] && !expanded && !turned && part_row_bytes(&wish->shape, part) > 0;
}

/* Whether the caller's wish and memory allow rows to be written by their senders. The caller's memory need not be
   symmetric when rows arrive elsewhere first: expert-major ones, and any where the executor stages them. */
static expar_status output_choose_mode(const expar_ep *ep, ep_wish *wish, ep_arrival *arrival)
{
    const int64_t rows = wish->shape.rows;
    arrival->mode = wish->path == EXPAR_PATH_QUEUE ? EP_MODE_QUEUE : EP_MODE_DIRECT;
    for (int part = 0; part < EP_DISPATCH_PARTS && rows > 0 && wish->path != EXPAR_PATH_QUEUE; part++) {
        if (!part_arrives_there(wish, part)) continue;
        const void *data = wish->out[part]->data;
        uint64_t bytes = (uint64_t)(rows * part_row_bytes(&wish->shape, part));
        if (ep->base.exec->normal->reaches(ep->base.exec, data, bytes, part_offset(arrival, part))) continue;
        if (wish->path == EXPAR_PATH_DIRECT)
            return error_set(EXPAR_ERR_ADDRESS, "path is DIRECT, but %s.data %p is not in the symmetric heap",
                             out_names[part], data);
        wish->staged |= 1u << part;
    }
    /* Rows that do not come are not written: their number must be known to copy the others. */
    if (!wish->staged || (ep->base.exec->normal->stages && wish->rows_known)) return EXPAR_OK;
    wish->staged = 0;
    arrival->mode = EP_MODE_QUEUE;
    return EXPAR_OK;
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

static bool in_block(const ep_wish *wish, int part)
{
    return !wish->out[part] || wish->staged >> part & 1;
}

/* The block of the results, without what is the caller's. */
static ep_block_shape block_shape(const ep_wish *wish)
{
    ep_block_shape shape = wish->shape;
    if (!in_block(wish, EXPAR_EP_PART_X)) shape.row_bytes = 0;
    if (!in_block(wish, EXPAR_EP_PART_SCALES)) shape.column_bytes = 0;
    if (wish->shape.column_bytes ? wish->expert_major : !in_block(wish, EXPAR_EP_PART_SCALES)) shape.scale_bytes = 0;
    if (!in_block(wish, EXPAR_EP_PART_TOPK_IDX)) shape.idx_bytes = 0;
    if (!in_block(wish, EXPAR_EP_PART_TOPK_WEIGHTS)) shape.weights = 0;
    if (!in_block(wish, EXPAR_EP_PART_ROW_MAP)) shape.map = 0;
    if (!in_block(wish, EXPAR_EP_PART_SRC_TOKEN)) shape.src = 0;
    if (!in_block(wish, EXPAR_EP_PART_ROW_WEIGHTS)) shape.row_weights = 0;
    if (!in_block(wish, EXPAR_EP_PART_SRC_METADATA)) shape.metadata = 0;
    return shape;
}

/* Token-major rows and scales on their way to an expert-major output. */
static ep_block_shape arrival_shape(const ep_wish *wish)
{
    return (ep_block_shape){.x_rows = wish->shape.rows,
                            .rows = wish->shape.rows,
                            .row_bytes = wish->shape.row_bytes,
                            .scale_bytes = wish->shape.scale_bytes};
}

/* Rows that were to pass through the pool on their way to the caller's memory come by the queue where
   it has no room. */
static void drop_stage(expar_ep *ep, ep_wish *wish, ep_destination *to)
{
    ep_block_shape shape = block_shape(wish);
    if (mem_pool_take(ep->base.exec->pool, ep_block_map_of(&shape).total_bytes, &to->output->block) == EXPAR_OK) return;
    wish->staged = 0;
    to->arrival.mode = EP_MODE_QUEUE;
}

static expar_status take_result_block(expar_ep *ep, const ep_wish *wish, ep_destination *to)
{
    ep_block_shape shape = block_shape(wish);
    uint64_t bytes = ep_block_map_of(&shape).total_bytes;
    /* All that there is may be the caller's. */
    if (bytes == 0 && ep_block_map_of(&wish->shape).total_bytes > 0) return mem_block_private(1, &to->output->block);
    return output_take_block(ep, wish, bytes, &to->arrival.mode, &to->output->block);
}

/* All blocks of one output are of one kind: where the second finds no room in the pool, the first is taken again. */
static expar_status take_blocks(expar_ep *ep, ep_wish *wish, ep_destination *to)
{
    ep_block_shape coming = arrival_shape(wish);
    expar_ep_output *output = to->output;
    if (wish->staged) drop_stage(ep, wish, to);
    expar_status status = output->block ? EXPAR_OK : take_result_block(ep, wish, to);
    if (status != EXPAR_OK || !wish->expert_major) return status;
    ep_mode before = to->arrival.mode;
    status = output_take_block(ep, wish, ep_block_map_of(&coming).total_bytes, &to->arrival.mode, &output->arrival);
    if (status != EXPAR_OK || to->arrival.mode == before) return status;
    mem_block_release(output->block);
    output->block = NULL;
    wish->staged = 0;
    return take_result_block(ep, wish, to);
}

/* ---- places ------------------------------------------------------------------------------------------------------ */

/* Where rows of a part come: to the caller's memory, whose offset is known, or into a block. NULL: none come. */
static void *place_part(const ep_wish *wish, ep_arrival *arrival, int part, const mem_block *block, uint64_t at)
{
    if (part_row_bytes(&wish->shape, part) == 0) return NULL;
    if (part_arrives_there(wish, part) && !in_block(wish, part)) return wish->out[part]->data;
    *part_offset(arrival, part) = block->offset + at;
    return (uint8_t *)block->data + at;
}

/* The result's part: the caller's memory, or where it has come. */
static void *result_of(const ep_wish *wish, int part, void *arrived)
{
    return arrived && wish->out[part] ? wish->out[part]->data : arrived;
}

/* Those of the result, in its block: where they have come, or made of what has. */
static void *scales_in_block(const ep_wish *wish, void *arrived, const ep_block_map *map, uint8_t *data)
{
    if (!arrived) return NULL;
    if (wish->shape.column_bytes) return data + map->columns;
    return wish->expert_major ? data + map->scales : arrived;
}

/* Puts every part of the results in its place. */
static void output_place(const ep_wish *wish, ep_destination *to)
{
    const ep_block_shape shape = block_shape(wish), coming = arrival_shape(wish);
    const ep_block_map map = ep_block_map_of(&shape), rows = wish->expert_major ? ep_block_map_of(&coming) : map;
    const mem_block *block = to->output->block, *first = wish->expert_major ? to->output->arrival : block;
    uint8_t *data = block->data;
    ep_arrival *arrival = &to->arrival;
    arrival->x = place_part(wish, arrival, EXPAR_EP_PART_X, first, rows.x);
    arrival->scales = place_part(wish, arrival, EXPAR_EP_PART_SCALES, first, rows.scales);
    arrival->idx = place_part(wish, arrival, EXPAR_EP_PART_TOPK_IDX, block, map.idx);
    arrival->weights = place_part(wish, arrival, EXPAR_EP_PART_TOPK_WEIGHTS, block, map.weights);
    arrival->src = place_part(wish, arrival, EXPAR_EP_PART_SRC_TOKEN, block, map.src);
    to->x = result_of(wish, EXPAR_EP_PART_X, wish->expert_major ? data + map.x : arrival->x);
    to->scales = result_of(wish, EXPAR_EP_PART_SCALES, scales_in_block(wish, arrival->scales, &map, data));
    to->idx = result_of(wish, EXPAR_EP_PART_TOPK_IDX, arrival->idx);
    to->weights = result_of(wish, EXPAR_EP_PART_TOPK_WEIGHTS, arrival->weights);
    to->src = result_of(wish, EXPAR_EP_PART_SRC_TOKEN, arrival->src);
    if (wish->shape.map) to->row_map = result_of(wish, EXPAR_EP_PART_ROW_MAP, data + map.map);
    if (wish->shape.metadata) to->metadata = result_of(wish, EXPAR_EP_PART_SRC_METADATA, data + map.metadata);
    if (wish->shape.row_weights) to->row_weights = result_of(wish, EXPAR_EP_PART_ROW_WEIGHTS, data + map.row_weights);
}

void ep_destination_sizes(const ep_wish *wish, uint64_t sizes[2])
{
    ep_wish own = *wish;
    for (int part = 0; part < EP_DISPATCH_PARTS; part++)
        own.staged |= part_arrives_there(wish, part) ? 1u << part : 0;
    const ep_block_shape shape = block_shape(&own), coming = arrival_shape(&own);
    sizes[0] = ep_block_map_of(&shape).total_bytes;
    sizes[0] += !sizes[0];
    sizes[1] = wish->expert_major ? ep_block_map_of(&coming).total_bytes : 0;
}

expar_status ep_destination_make(expar_ep *ep, const ep_wish *given, ep_destination *out)
{
    ep_wish own = *given, *wish = &own;
    ep_destination to = {.arrival.rows = (int32_t)wish->shape.rows};
    expar_status status = output_choose_mode(ep, wish, &to.arrival);
    if (status != EXPAR_OK) {
        expar_ep_output_release(wish->output);
        return status;
    }
    to.output = wish->output ? wish->output : ep_output_make(&ep->base);
    if (!to.output) return error_set(EXPAR_ERR_MEMORY, "no memory for an output");
    status = take_blocks(ep, wish, &to);
    if (status != EXPAR_OK) {
        expar_ep_output_release(to.output);
        return status;
    }
    output_place(wish, &to);
    *out = to;
    return EXPAR_OK;
}

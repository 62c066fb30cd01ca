/* SPDX-License-Identifier: Apache-2.0 */
/* Where the results of a dispatch go: a block of the pool (direct), other memory (queue), or the caller's own. */
#include "ep/ep.h"

#include <stdio.h>

expar_status ep_block_take(expar_ep *ep, uint64_t bytes, mem_block **out)
{
    if (mem_pool_take(ep->exec->pool, bytes ? bytes : 1, out) == EXPAR_OK) return EXPAR_OK;
    return ep_other_take(ep, bytes, out);
}

expar_status ep_pool_lacks(const expar_ep *ep, uint64_t bytes, const char *what)
{
    mem_pool *pool = ep->exec->pool;
    return error_set(EXPAR_ERR_BUFFER_SIZE,
                     "path is DIRECT, but the pool of %llu bytes has no room for %s (config.%s: %llu would do)",
                     (unsigned long long)mem_pool_limit(pool), what,
                     ep->exec->grows && !ep->pool_limit_bytes ? "pool_bytes" : "pool_limit_bytes",
                     (unsigned long long)mem_pool_enough(pool, bytes));
}

/* Takes a block: from the pool while rows are to come directly, else (AUTO: or where there is no room, which then also
   settles the mode) from other memory. */
static expar_status output_take_block(expar_ep *ep, const ep_wish *wish, uint64_t bytes, ep_mode *mode,
                                      mem_block **block)
{
    bytes = bytes ? bytes : 1;
    if (*mode == EP_MODE_DIRECT) {
        expar_status status = mem_pool_take(ep->exec->pool, bytes, block);
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

/* Whether the caller's wish and memory allow rows to be written by their senders. The caller's memory need not be
   symmetric when rows arrive elsewhere first: expert-major ones, and any where the executor stages them. */
static expar_status output_choose_mode(const expar_ep *ep, ep_wish *wish, ep_arrival *arrival)
{
    const ep_block_shape *shape = &wish->shape;
    arrival->mode = wish->path == EXPAR_PATH_QUEUE ? EP_MODE_QUEUE : EP_MODE_DIRECT;
    if (!wish->out_x || wish->expert_major || arrival->mode == EP_MODE_QUEUE || shape->rows == 0) return EXPAR_OK;
    size_t bytes = (size_t)(shape->rows * shape->row_bytes);
    if (ep->exec->ops->reaches(ep->exec, wish->out_x->data, bytes, &arrival->x_offset)) return EXPAR_OK;
    if (wish->path == EXPAR_PATH_DIRECT)
        return error_set(EXPAR_ERR_ADDRESS, "path is DIRECT, but out_x.data %p is not in the symmetric heap",
                         wish->out_x->data);
    /* Rows that do not come are not written: their number must be known to copy the others. */
    if (ep->exec->ops->stages && wish->rows_known)
        wish->staged = true;
    else
        arrival->mode = EP_MODE_QUEUE;
    return EXPAR_OK;
}

/* The block of the results, without recv_x where that is the caller's. */
static ep_block_shape block_shape(const ep_wish *wish)
{
    ep_block_shape shape = wish->shape;
    if (wish->out_x && !wish->staged) shape.row_bytes = 0;
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

static void place_rows(const ep_wish *wish, const mem_block *block, const ep_block_map *map, ep_arrival *arrival)
{
    if (!wish->out_x || wish->expert_major || wish->staged) {
        arrival->x = (uint8_t *)block->data + map->x;
        arrival->x_offset = block->offset + map->x;
    } else {
        arrival->x = wish->out_x->data;
    }
    if (!wish->shape.scale_bytes) return;
    arrival->scales = (uint8_t *)block->data + map->scales;
    arrival->scales_offset = block->offset + map->scales;
}

/* Puts every part of the results in its place. */
static void output_place(const ep_wish *wish, ep_destination *to)
{
    ep_block_shape shape = block_shape(wish);
    ep_block_map map = ep_block_map_of(&shape);
    const mem_block *block = to->output->block;
    uint8_t *data = block->data;
    if (wish->expert_major) {
        ep_block_shape coming = arrival_shape(wish);
        ep_block_map coming_map = ep_block_map_of(&coming);
        place_rows(wish, to->output->arrival, &coming_map, &to->arrival);
        to->x = wish->out_x ? wish->out_x->data : data + map.x;
        to->scales = shape.scale_bytes ? data + map.scales : NULL;
    } else {
        place_rows(wish, block, &map, &to->arrival);
        to->x = wish->staged ? wish->out_x->data : to->arrival.x;
        to->scales = to->arrival.scales;
    }
    if (shape.idx_bytes) {
        to->arrival.idx = data + map.idx;
        to->arrival.idx_offset = block->offset + map.idx;
    }
    if (shape.weights) {
        to->arrival.weights = (float *)(data + map.weights);
        to->arrival.weights_offset = block->offset + map.weights;
    }
    if (shape.map) to->row_map = (int32_t *)(data + map.map);
}

/* Rows that were to pass through the pool on their way to the caller's memory come by the queue where
   it has no room. */
static void drop_stage(expar_ep *ep, ep_wish *wish, ep_destination *to)
{
    ep_block_shape shape = block_shape(wish);
    if (mem_pool_take(ep->exec->pool, ep_block_map_of(&shape).total_bytes, &to->output->block) == EXPAR_OK) return;
    wish->staged = false;
    to->arrival.mode = EP_MODE_QUEUE;
}

/* All blocks of one output are of one kind: where the second finds no room in the pool, the first is taken again. */
static expar_status take_blocks(expar_ep *ep, ep_wish *wish, ep_destination *to)
{
    if (wish->staged) drop_stage(ep, wish, to);
    if (to->output->block) return EXPAR_OK;
    ep_block_shape shape = block_shape(wish), coming = arrival_shape(wish);
    expar_ep_output *output = to->output;
    expar_status status =
        output_take_block(ep, wish, ep_block_map_of(&shape).total_bytes, &to->arrival.mode, &output->block);
    if (status != EXPAR_OK || !wish->expert_major) return status;
    ep_mode before = to->arrival.mode;
    status = output_take_block(ep, wish, ep_block_map_of(&coming).total_bytes, &to->arrival.mode, &output->arrival);
    if (status != EXPAR_OK || to->arrival.mode == before) return status;
    mem_block_release(output->block);
    output->block = NULL;
    return output_take_block(ep, wish, ep_block_map_of(&shape).total_bytes, &to->arrival.mode, &output->block);
}

void ep_destination_sizes(const ep_wish *wish, uint64_t sizes[2])
{
    ep_wish own = *wish;
    own.staged = wish->out_x && !wish->expert_major;
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
    to.output = wish->output ? wish->output : ep_output_make(ep);
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

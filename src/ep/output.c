/* SPDX-License-Identifier: Apache-2.0 */
/* Where the results of a dispatch go: a block of the pool (direct), private memory (queue), or the caller's own. */
#include "ep/ep.h"

#include <stdlib.h>

void expar_ep_output_release(expar_ep_output *output)
{
    if (!output) return;
    if (output->block) mem_block_release(output->block);
    free(output->tokens_per_expert);
    free(output);
}

static ep_block_map map_of(const ep_wish *wish)
{
    return ep_block_map_of(wish->rows, wish->out_x ? 0 : wish->row_bytes, wish->idx_bytes ? wish->topk : 0,
                           wish->idx_bytes, wish->weights);
}

/* The pool of private memory, made when it is first needed; NULL where there is no room for one. */
static mem_pool *private_pool(expar_ep *ep)
{
    uint64_t bytes = ep->shape.pool_bytes;
    if (ep->private_pool || bytes == 0) return ep->private_pool;
    if (!ep->private_region.base && mem_region_create(bytes, false, &ep->private_region) != EXPAR_OK) return NULL;
    if (mem_pool_create(ep->private_region.base, 0, bytes, &ep->private_pool) != EXPAR_OK) return NULL;
    return ep->private_pool;
}

/* Private memory stays mapped from one dispatch to the next, as the pool's does. What does not fit is taken by itself.
 */
static expar_status take_private(expar_ep *ep, uint64_t bytes, mem_block **block)
{
    mem_pool *pool = private_pool(ep);
    if (pool && mem_pool_take(pool, bytes, block) == EXPAR_OK) return EXPAR_OK;
    return mem_block_private(bytes, block);
}

/* Takes the block: from the pool when rows are to come directly, else (AUTO: or where there is no room) from private
 * memory. */
static expar_status take_block(expar_ep *ep, const ep_wish *wish, ep_mode *mode, mem_block **block)
{
    uint64_t bytes = map_of(wish).total_bytes;
    bytes = bytes ? bytes : 1;
    if (*mode == EP_MODE_DIRECT) {
        expar_status status = mem_pool_take(ep->pool, bytes, block);
        if (status == EXPAR_OK) return EXPAR_OK;
        if (wish->path == EXPAR_PATH_DIRECT)
            return error_set(EXPAR_ERR_BUFFER_SIZE,
                             "path is DIRECT, but the pool of %llu bytes has no room for an output of %llu bytes "
                             "(config.pool_bytes)",
                             (unsigned long long)ep->shape.pool_bytes, (unsigned long long)bytes);
        LOG(LOG_INFO, "pool has no room for %llu bytes: this output comes by the queue", (unsigned long long)bytes);
        *mode = EP_MODE_QUEUE;
    }
    return take_private(ep, bytes, block);
}

/* Whether the caller's wish and memory allow rows to be written by their senders. */
static expar_status choose_mode(const expar_ep *ep, const ep_wish *wish, ep_destination *to)
{
    to->mode = wish->path == EXPAR_PATH_QUEUE ? EP_MODE_QUEUE : EP_MODE_DIRECT;
    if (!wish->out_x || to->mode == EP_MODE_QUEUE || wish->rows == 0) return EXPAR_OK;
    size_t bytes = (size_t)(wish->rows * wish->row_bytes);
    if (sym_offset(ep->group->sym, wish->out_x->data, bytes, &to->x_offset)) return EXPAR_OK;
    if (wish->path == EXPAR_PATH_DIRECT)
        return error_set(EXPAR_ERR_ADDRESS, "path is DIRECT, but out_x.data %p is not in the symmetric heap",
                         wish->out_x->data);
    to->mode = EP_MODE_QUEUE;
    return EXPAR_OK;
}

static void place(const ep_wish *wish, ep_destination *to)
{
    ep_block_map map = map_of(wish);
    const mem_block *block = to->output->block;
    uint8_t *data = block->data;
    if (wish->out_x) {
        to->x = wish->out_x->data;
    } else {
        to->x = data + map.x;
        to->x_offset = block->offset + map.x;
    }
    if (!wish->idx_bytes) return;
    to->idx = data + map.idx;
    to->idx_offset = block->offset + map.idx;
    if (!wish->weights) return;
    to->weights = (float *)(data + map.weights);
    to->weights_offset = block->offset + map.weights;
}

expar_status ep_destination_make(expar_ep *ep, const ep_wish *wish, ep_destination *out)
{
    ep_destination to = {0};
    expar_status status = choose_mode(ep, wish, &to);
    if (status != EXPAR_OK) return status;
    to.output = calloc(1, sizeof *to.output);
    if (!to.output) return error_set(EXPAR_ERR_MEMORY, "no memory for an output");
    status = take_block(ep, wish, &to.mode, &to.output->block);
    if (status != EXPAR_OK) {
        expar_ep_output_release(to.output);
        return status;
    }
    place(wish, &to);
    *out = to;
    return EXPAR_OK;
}

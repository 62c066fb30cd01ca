/* SPDX-License-Identifier: Apache-2.0 */
/* Room ahead of the counts.
 *
 * Between the counts of a fresh dispatch and its rows lies a way to the host and back: it learns how many rows come,
 * takes memory for them, has them sent. An executor that takes rooms has them sent before that, into a free piece of
 * the pool as it is, which is offered with the hello; once the counts are there all know how much of it is needed. */
#include "ep/normal/dispatch.h"

#include <stdlib.h>

/* As if each token of this rank brought as many rows as the last time, and some to spare: the next routing is another
   one. */
static int64_t guess_rows(const dispatch_call *call)
{
    const expar_ep *ep = ep_of(&call->base);
    int64_t tokens = call->args.x.shape[0], most = ep->shape.ranks * ep->limits.tokens, rows;
    if (ep->last_tokens && tokens)
        rows = ep->last_rows * tokens / ep->last_tokens;
    else
        rows = ep->last_rows > tokens ? ep->last_rows : tokens;
    rows += rows / 8;
    return rows < most ? rows : most;
}

static void note_rows(const dispatch_call *call)
{
    ep_of(&call->base)->last_tokens = call->args.x.shape[0];
    ep_of(&call->base)->last_rows = call->made->rows;
}

static uint64_t bytes_of_rows(const ep_wish *wish, int64_t rows)
{
    ep_block_shape shape = wish->shape;
    shape.rows = shape.x_rows = rows;
    const uint64_t bytes = ep_block_map_of(&shape).total_bytes;
    return bytes ? bytes : 1;
}

/* Where there is none for the spare as well, the guess may still be right without it. */
static bool room_take_block(dispatch_call *call, mem_block **out)
{
    executor *exec = call->base.buffer->exec;
    const ep_wish wish = dispatch_wish(call);
    for (int part = 0; part < EP_DISPATCH_PARTS; part++)
        if (wish.out[part]) return false;
    /* Rows that were sent ahead lie as those that stand alone. */
    if (wish.expert_major || wish.shape.column_bytes) return false;
    const int64_t rows = guess_rows(call);
    const uint64_t least = bytes_of_rows(&wish, rows - rows / 9);
    if (mem_pool_take_whole(exec->pool, bytes_of_rows(&wish, rows), out)) return true;
    if (mem_pool_take_whole(exec->pool, least, out)) return true;
    call->lacks_room = exec->normal->lacks(exec, least);
    return false;
}

/* Kernels lay out so much in the room (ep_block_shape_of). Parts that are made of rows later come after it. */
static uint64_t bytes_that_come(const ep_wish *wish, int64_t rows)
{
    ep_wish bare = *wish;
    bare.shape.metadata = 0;
    return bytes_of_rows(&bare, rows);
}

/* Bytes to offer, so that the whole output has its place in the block whenever what comes fits into them: less than one
   row more than fits would take. */
static uint64_t bytes_to_offer(const ep_wish *wish, const mem_block *block)
{
    int64_t fit = 0, over = (int64_t)(block->bytes / (uint64_t)wish->shape.row_bytes) + 1;
    if (!wish->shape.metadata) return block->bytes;
    while (over - fit > 1) {
        const int64_t rows = fit + (over - fit) / 2;
        if (bytes_of_rows(wish, rows) <= block->bytes)
            fit = rows;
        else
            over = rows;
    }
    return bytes_that_come(wish, over) - 1;
}

void dispatch_room_take(dispatch_call *call)
{
    if (!call->base.buffer->exec->offers_room) return;
    size_t counts = (size_t)call->made->routing.local_experts;
    expar_ep_output *output = ep_output_make(call->base.buffer);
    if (!output) return;
    output->tokens_per_expert = calloc(counts, sizeof *output->tokens_per_expert);
    if (!output->tokens_per_expert || !room_take_block(call, &output->block)) {
        expar_ep_output_release(output);
        return;
    }
    const ep_wish wish = dispatch_wish(call);
    call->room_bytes = bytes_to_offer(&wish, output->block);
    call->ahead = output;
}

ep_room dispatch_room(const dispatch_call *call)
{
    const mem_block *block = call->ahead->block;
    return (ep_room){.offset = block->offset,
                     .bytes = call->room_bytes,
                     .mode = call->args.path == EXPAR_PATH_QUEUE ? EP_MODE_QUEUE : EP_MODE_DIRECT};
}

void dispatch_room_settle(dispatch_call *call)
{
    note_rows(call);
    if (!call->ahead) return;
    const ep_wish wish = dispatch_wish(call);
    call->sent_ahead = !call->grows && bytes_that_come(&wish, wish.shape.rows) <= call->room_bytes;
    if (call->sent_ahead) {
        mem_block_trim(call->ahead->block, ep_block_map_of(&wish.shape).total_bytes);
        return;
    }
    expar_ep_output_release(call->ahead);
    call->ahead = NULL;
}

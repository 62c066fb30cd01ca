/* SPDX-License-Identifier: Apache-2.0 */
/* mover: copies and adds rows of this GPU and of pinned memory for a call that the host carries out (mover_args.h).
 *
 *   grid   a block of MOVER_THREADS for each SM of the call; each takes its share of each command
 *   waits  one thread of block 0 polls the ring, across the bus. One thread of each other block polls device memory.
 *          No rank is awaited: the host ends each run, also that of a call that has failed
 *   bytes  the rows, once each way; a copy has eight vectors of 16 bytes under way in each thread
 *   order  the last block to carry a command out tells the host. A block carries commands out in their order, so those
 *          before it are complete then, too */
#include "exec/cuda/kernels/hosted/mover_lists.h"

/* A warp takes so many bytes of a row at a time. */
#define PIECE_BYTES 8192u

/* ---- commands ---------------------------------------------------------------------------------------------------- */

/* Passes the command on to all blocks. */
GPU_FUNC void pass_on(const mover_args *a, uint32_t number)
{
    const uint32_t place = number % MOVER_COMMANDS;
    while (load_acquire(&a->ring->posted) < mover_count(a->run, number + 1))
        between_polls();
    mover_command command = a->ring->commands[place];
    if (command.kind != MOVER_END && load_acquire(&a->ring->over) == a->run) command.kind = MOVER_SKIP;
    a->state->commands[place] = command;
    store_release(&a->state->ready, mover_count(a->run, number + 1));
}

GPU_FUNC void await_command(const mover_args *a, uint32_t number)
{
    if (blockIdx.x == 0) {
        pass_on(a, number);
        return;
    }
    while (load_acquire(&a->state->ready) < mover_count(a->run, number + 1))
        between_polls();
}

/* The block has carried the command out. */
GPU_FUNC void arrive(const mover_args *a, uint32_t number, uint64_t kind)
{
    uint32_t *arrived = &a->state->arrived[number % MOVER_COMMANDS];
    __syncthreads();
    if (threadIdx.x) return;
    fence_system();
    if (atomicAdd(arrived, 1u) != gridDim.x - 1) return;
    fence_system();
    *arrived = 0;
    if (kind == MOVER_END) {
        a->state->ended = a->run;
        store_release(&a->ring->exited, a->run);
    } else {
        store_release(&a->ring->done, mover_count(a->run, number + 1));
    }
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* Warps take pieces in turns, over all blocks. */
GPU_FUNC void copy_rows(const mover_command *c)
{
    const uint64_t each = (c->row_bytes + PIECE_BYTES - 1) / PIECE_BYTES, all = c->rows * each;
    const uint32_t warps = blockDim.x / 32;
    for (uint64_t i = threadIdx.x / 32 * gridDim.x + blockIdx.x; i < all; i += warps * gridDim.x) {
        const uint64_t row = i / each, at = (i - row * each) * PIECE_BYTES, left = c->row_bytes - at;
        copy_piece(c->dest + row * c->dest_pitch + at, c->source + row * c->source_pitch + at,
                   left < PIECE_BYTES ? (uint32_t)left : PIECE_BYTES);
    }
}

/* Gives a launch of a graph its number. All blocks have read `ended` before the last of them has arrived at the end. */
GPU_FUNC mover_args numbered(const mover_args *a)
{
    mover_args out = *a;
    if (out.run == 0) out.run = out.state->ended + 1;
    return out;
}

GPU_KERNEL(MOVER_THREADS) ep_mover(GPU_ARGS mover_args args)
{
    __shared__ mover_command current;
    const mover_args a = numbered(&args);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        a.ring->record = a.record;
        store_release(&a.ring->started, a.run);
        __threadfence_system();
    }
    for (uint32_t number = 0;; number++) {
        if (threadIdx.x == 0) {
            await_command(&a, number);
            current = a.state->commands[number % MOVER_COMMANDS];
        }
        __syncthreads();
        const mover_command command = current;
        if (command.kind == MOVER_COPY) copy_rows(&command);
        if (command.kind == MOVER_ROWS) copy_listed(&command);
        if (command.kind == MOVER_SUMS) sum_listed(&command);
        arrive(&a, number, command.kind);
        if (command.kind == MOVER_END) return;
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The rings of proto/normal.h on a GPU, moved by teams of warps. Dispatch and combine use them.
 *
 * A block has two teams: one puts rows into this rank's outgoing rings, the other takes them out of its incoming ones.
 * A team works on one channel at a time, on the rings to (from) all ranks together, in turns. In a turn it looks at all
 * words, all its warps copy what may be copied, and then it publishes. It never waits for one ring alone, and both ends
 * go through the channels in ascending order. So rings cannot wait for each other in a cycle, whatever their size and
 * however many blocks each rank has.
 *
 *   tail  in the receiver's memory: rows put in. The source's put team stores it (release) after its barrier, when all
 *         warps have filled their slots. The receiver's take team loads it (acquire) and then meets at its barrier.
 *   head  in the source's memory: rows taken out. The take team stores it (release) and the put team loads it
 *         (acquire), likewise.
 *
 * Both carry the call's epoch. A word of another epoch counts as 0, so nothing is ever reset. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_NORMAL_RINGS_H
#define EXPAR_EXEC_CUDA_KERNELS_NORMAL_RINGS_H

#include "exec/cuda/kernels/normal/records.h"

typedef enum gpu_end { GPU_PUT = 0, GPU_TAKE = 1 } gpu_end;

/* This end of one ring, in shared memory. The one thread of the team that has the rank writes it. The whole team reads
   it between two of its barriers. */
typedef struct gpu_ring {
    int32_t all;   /* rows that go through it in this call */
    int32_t moved; /* of these, rows put in or taken out */
    int32_t batch; /* rows of this turn */
    int32_t first; /* the caller's number of the first row */
} gpu_ring;

/* One team, in shared memory. One thread makes it before the block's barrier. Thread 0 of the team changes channel and
   waiting. Any thread sets `stopped` (a wait was given up). All threads of the team read it after a barrier of the
   team. */
typedef struct gpu_team {
    gpu_end end;
    int32_t begin, threads; /* it has the block's threads [begin, begin + threads) */
    int32_t channel;
    int32_t stopped;
    gpu_ring *rings; /* [N] */
    gpu_waiting waiting;
} gpu_team;

GPU_FUNC int32_t team_thread(const gpu_team *team)
{
    return (int32_t)threadIdx.x - team->begin;
}

/* Makes the block's teams. The first half of its warps puts, the second half takes. All threads of a block of at least
   two warps call it. rings: [2][N] shared. */
GPU_FUNC gpu_team *team_of(int32_t ranks, gpu_ring *rings)
{
    __shared__ gpu_team teams[2];
    int32_t half = (int32_t)(blockDim.x / 64 * 32), end = (int32_t)threadIdx.x >= half;
    if (threadIdx.x < 2) {
        gpu_team *team = &teams[threadIdx.x];
        bool takes = threadIdx.x == GPU_TAKE;
        team->end = takes ? GPU_TAKE : GPU_PUT;
        team->begin = takes ? half : 0;
        team->threads = takes ? (int32_t)blockDim.x - half : half;
        team->stopped = 0;
        team->rings = rings + (takes ? ranks : 0);
        team->waiting.pulse = 0;
        team->waiting.polls = 0;
    }
    __syncthreads();
    return &teams[end];
}

/* All threads of the team call it, and no others. */
GPU_FUNC void team_meet(const gpu_team *team)
{
    meet_at(1 + (int32_t)team->end, team->threads);
}

/* Goes on to the next channel, once all threads have finished the previous one. */
GPU_FUNC void team_begin(gpu_team *team, int32_t channel)
{
    team_meet(team);
    if (team_thread(team) == 0) team->channel = channel;
    team_meet(team);
}

/* ---- words and slots --------------------------------------------------------------------------------------------- */

/* Returns the word that the other end of the ring writes, in this rank's memory. */
GPU_FUNC const uint64_t *ring_word_here(const gpu_world *world, const gpu_team *team, int32_t peer)
{
    const ep_space *space = &world->space;
    int32_t ranks = GPU_RANKS(&world->place);
    return (const uint64_t *)buffer_at(&world->place, world->place.rank,
                                       team->end == GPU_PUT ? ep_head_at(space, ranks, team->channel, peer)
                                                            : ep_tail_at(space, ranks, team->channel, peer));
}

/* Returns the word that this end writes, in the peer's memory. */
GPU_FUNC uint64_t *ring_word_there(const gpu_world *world, const gpu_team *team, int32_t peer)
{
    const ep_space *space = &world->space;
    int32_t ranks = GPU_RANKS(&world->place);
    return (uint64_t *)buffer_at(&world->place, peer,
                                 team->end == GPU_PUT ? ep_tail_at(space, ranks, team->channel, world->place.rank)
                                                      : ep_head_at(space, ranks, team->channel, world->place.rank));
}

/* Returns a slot of the ring. Slots are in the memory of the rank that takes. */
GPU_FUNC uint8_t *ring_slot(const gpu_world *world, const gpu_team *team, int32_t peer, int32_t row)
{
    int32_t owner = team->end == GPU_PUT ? peer : world->place.rank,
            source = team->end == GPU_PUT ? world->place.rank : peer;
    return buffer_at(&world->place, owner,
                     ep_slot_at(&world->space, &world->shape, team->channel, source, (uint32_t)row));
}

/* ---- turns ------------------------------------------------------------------------------------------------------- */

/* Returns how many rows of the ring may be moved now. A put team leaves half of the ring for its next turn, so that
   both ends can work at the same time. */
GPU_FUNC int32_t ring_look(const gpu_world *world, const gpu_team *team, int32_t peer, uint32_t epoch)
{
    const gpu_ring *ring = &team->rings[peer];
    int32_t left = ring->all - ring->moved, slots = world->shape.ring_slots, most = slots;
    if (left <= 0) return 0;
    const bool puts = team->end == GPU_PUT;
    const uint64_t word = load_acquire(ring_word_here(world, team, peer));
    int32_t may = ep_ring_may_move(word, epoch, (uint32_t)ring->moved, puts ? slots : 0, slots);
    if (puts) most = (slots + 1) / 2;
    may = may < most ? may : most;
    return may < left ? may : left;
}

/* Thread 0 calls it if no ring moved. An error would name the first ring with rows left. */
GPU_FUNC void ring_wait(const gpu_world *world, gpu_team *team, uint32_t epoch)
{
    int32_t peer = 0;
    while (team->rings[peer].all == team->rings[peer].moved)
        peer++;
    int32_t moved = team->rings[peer].moved, slots = world->shape.ring_slots;
    bool puts = team->end == GPU_PUT;
    uint64_t seen = load_acquire(ring_word_here(world, team, peer));
    uint64_t expected = ep_word(epoch, (uint32_t)(puts ? moved - slots + 1 : moved + 1));
    if (!may_wait(&world->place, &team->waiting, puts ? GPU_WAIT_SLOT : GPU_WAIT_ROW, peer, seen, expected))
        team->stopped = 1;
}

/* Opens a turn: waits until some rows may be moved, and says how many. 0: none are left, or a wait was given up. */
GPU_FUNC int32_t turn_open(const gpu_world *world, gpu_team *team, uint32_t epoch)
{
    int32_t ranks = GPU_RANKS(&world->place);
    for (;;) {
        for (int32_t pe = team_thread(team); pe < ranks; pe += team->threads)
            team->rings[pe].batch = ring_look(world, team, pe, epoch);
        team_meet(team);
        int32_t rows = 0, left = 0;
        for (int32_t pe = 0; pe < ranks; pe++) {
            rows += team->rings[pe].batch;
            left += team->rings[pe].all - team->rings[pe].moved;
        }
        if (team_thread(team) == 0 && rows) team->waiting.polls = 0, team->waiting.pulse = 0;
        if (team_thread(team) == 0 && left && !rows) ring_wait(world, team, epoch);
        team_meet(team);
        if (!left || team->stopped) return 0;
        if (rows) return rows;
    }
}

/* Closes the turn: the rows have been moved, and the other ends are told. */
GPU_FUNC void turn_close(const gpu_world *world, const gpu_team *team, uint32_t epoch)
{
    team_meet(team);
    for (int32_t pe = team_thread(team); pe < GPU_RANKS(&world->place); pe += team->threads) {
        gpu_ring *ring = &team->rings[pe];
        if (!ring->batch) continue;
        ring->moved += ring->batch;
        store_release(ring_word_there(world, team, pe), ep_word(epoch, (uint32_t)ring->moved));
    }
}

/* ---- the work of each warp in a turn ----------------------------------------------------------------------------- */

/* One warp's piece of the turn's rows: a part of a row if there are more warps than rows. */
typedef struct gpu_piece {
    int32_t peer;
    int32_t row; /* row of the ring */
    int32_t part, parts;
} gpu_piece;

GPU_FUNC int32_t team_parts(const gpu_team *team, int32_t rows)
{
    int32_t warps = team->threads / 32;
    return rows < warps ? warps / rows : 1;
}

/* Returns piece `number` of rows · team_parts. */
GPU_FUNC gpu_piece piece_of(const gpu_team *team, int32_t number, int32_t parts)
{
    gpu_piece p;
    int32_t row = number / parts;
    p.part = number % parts;
    p.parts = parts;
    for (p.peer = 0; row >= team->rings[p.peer].batch; p.peer++)
        row -= team->rings[p.peer].batch;
    p.row = team->rings[p.peer].moved + row;
    return p;
}

/* The most vectors that a lane loads at once. */
#define GPU_PIECE_VECTORS 2

/* Copies the warp's part of a row of 16-byte vectors. */
GPU_FUNC void copy_part(uint8_t *to, const uint8_t *from, int32_t vectors, const gpu_piece *p)
{
    int32_t lane = threadIdx.x % 32, unit = 32 * GPU_PIECE_VECTORS;
    for (int32_t first = p->part * unit; first < vectors; first += p->parts * unit) {
        uint4 part[GPU_PIECE_VECTORS];
#pragma unroll
        for (int32_t i = 0; i < GPU_PIECE_VECTORS; i++)
            if (first + i * 32 + lane < vectors) part[i] = load_row((const uint4 *)from + first + i * 32 + lane);
#pragma unroll
        for (int32_t i = 0; i < GPU_PIECE_VECTORS; i++)
            if (first + i * 32 + lane < vectors) store_row((uint4 *)to + first + i * 32 + lane, part[i]);
    }
}

/* Copies 4-byte words. One warp calls it. */
GPU_FUNC void copy_lanes(void *to, const void *from, int32_t words)
{
    for (int32_t i = threadIdx.x % 32; i < words; i += 32)
        ((uint32_t *)to)[i] = ((const uint32_t *)from)[i];
}

#endif

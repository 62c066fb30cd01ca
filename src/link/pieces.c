/* SPDX-License-Identifier: Apache-2.0 */
/* Data between memory of this rank's GPU and memory of CPUs. It passes through two pinned pieces: while the driver
 * copies one, the transport carries the other one. */
#include "link/parts.h"
#include "shmem/kinds.h"

/* A put or a get in progress. */
typedef struct pieces_run {
    const link_peer *peer;
    mem_lane *lane;
    /* operations on each piece */
    link_batch batches[MEM_LANE_PIECES];
    uint64_t piece_bytes;
    error_kept failed;
} pieces_run;

static void pieces_note_failure(pieces_run *run, expar_status status)
{
    if (status != EXPAR_OK && run->failed.status == EXPAR_OK) error_keep(&run->failed, status);
}

static bool is_sound(const pieces_run *run)
{
    return run->failed.status == EXPAR_OK;
}

static mem_side device_side(const void *at)
{
    return (mem_side){.at = (void *)(uintptr_t)at, .kind = MEM_DEVICE};
}

static mem_side pieces_piece(pieces_run *run, uint64_t number)
{
    return mem_lane_piece(run->lane, (int32_t)(number % MEM_LANE_PIECES), &run->piece_bytes);
}

static uint64_t pieces_bytes(const pieces_run *run, uint64_t bytes, uint64_t at)
{
    return bytes - at < run->piece_bytes ? bytes - at : run->piece_bytes;
}

static void pieces_settle(pieces_run *run, uint64_t number)
{
    pieces_note_failure(run, link_quiet(run->peer->sym, &run->batches[number % MEM_LANE_PIECES]));
}

static pieces_run begin(const link_peer *peer)
{
    pieces_run run = {.peer = peer, .lane = mem_copier_borrow(kinds_copier(peer->sym))};
    mem_lane_piece(run.lane, 0, &run.piece_bytes);
    return run;
}

static expar_status end(pieces_run *run)
{
    for (uint64_t i = 0; i < MEM_LANE_PIECES; i++)
        pieces_settle(run, i);
    mem_copier_return(kinds_copier(run->peer->sym), run->lane);
    return is_sound(run) ? EXPAR_OK : link_named(run->peer, error_restore(&run->failed));
}

/* Returns where this rank's GPU reaches the peer's memory by itself; NULL: nowhere. */
static void *reached_by_gpu(const link_peer *peer, uint64_t offset)
{
    const transport_ways *ways = sym_ways(peer->sym, peer->memory, peer->pe);
    const kinds_place place = {.memory = peer->memory, .offset = offset};
    if (peer->memory != TRANSPORT_PINNED || ways->map != peer->data) return NULL;
    return kinds_peer_on_device(peer->sym, &place, peer->pe);
}

static void put_piece(pieces_run *run, const link_data *data, uint64_t at, uint64_t number)
{
    link_peer plain = *run->peer;
    const mem_side piece = pieces_piece(run, number);
    const uint64_t bytes = pieces_bytes(run, data->bytes, at);
    pieces_settle(run, number);
    if (is_sound(run))
        pieces_note_failure(run,
                            mem_lane_copy(run->lane, piece, device_side((const uint8_t *)data->source + at), bytes));
    if (!is_sound(run)) return;
    plain.on_device = false;
    plain.call = NULL;
    const link_data put = {.offset = data->offset + at, .source = piece.at, .bytes = bytes};
    pieces_note_failure(run, link_put(&plain, &put, &run->batches[number % MEM_LANE_PIECES]));
}

expar_status link_pieces_put(const link_peer *peer, const link_data *data)
{
    void *reached = reached_by_gpu(peer, data->offset);
    if (reached)
        return mem_copier_copy(kinds_copier(peer->sym), (mem_side){.at = reached, .kind = MEM_PINNED},
                               device_side(data->source), data->bytes);
    pieces_run run = begin(peer);
    for (uint64_t at = 0, number = 0; at < data->bytes && is_sound(&run); at += run.piece_bytes, number++)
        put_piece(&run, data, at, number);
    return end(&run);
}

static void ask_piece(pieces_run *run, uint64_t offset, uint64_t bytes, uint64_t at)
{
    link_peer plain = *run->peer;
    const uint64_t number = at / run->piece_bytes;
    if (at >= bytes || !is_sound(run)) return;
    plain.on_device = false;
    plain.call = NULL;
    pieces_note_failure(run, link_get(&plain, pieces_piece(run, number).at, offset + at, pieces_bytes(run, bytes, at),
                                      &run->batches[number % MEM_LANE_PIECES]));
}

expar_status link_pieces_get(const link_peer *peer, void *dest, uint64_t offset, size_t bytes)
{
    void *reached = reached_by_gpu(peer, offset);
    if (reached)
        return mem_copier_copy(kinds_copier(peer->sym), device_side(dest),
                               (mem_side){.at = reached, .kind = MEM_PINNED}, bytes);
    pieces_run run = begin(peer);
    for (uint64_t i = 0; i < MEM_LANE_PIECES; i++)
        ask_piece(&run, offset, bytes, i * run.piece_bytes);
    for (uint64_t at = 0, number = 0; at < bytes && is_sound(&run); at += run.piece_bytes, number++) {
        pieces_settle(&run, number);
        if (is_sound(&run))
            pieces_note_failure(&run, mem_lane_copy(run.lane, device_side((uint8_t *)dest + at),
                                                    pieces_piece(&run, number), pieces_bytes(&run, bytes, at)));
        ask_piece(&run, offset, bytes, at + MEM_LANE_PIECES * run.piece_bytes);
    }
    return end(&run);
}

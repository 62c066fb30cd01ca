/* SPDX-License-Identifier: Apache-2.0 */
/* Data between memory of this rank's GPU and memory of CPUs. It passes through two pinned pieces: while the driver
 * copies one, the transport carries the other one. */
#include "shmem/copies/parts.h"
#include "shmem/kinds.h"

/* A put or a get in progress. */
typedef struct pieces_run {
    sym *sym;
    const transport_request *request;
    transport *via;
    mem_lane *lane;
    /* operations on each piece */
    transport_batch batches[MEM_LANE_PIECES];
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

static uint64_t pieces_bytes(const pieces_run *run, uint64_t at)
{
    const uint64_t bytes = run->request->bytes;
    return bytes - at < run->piece_bytes ? bytes - at : run->piece_bytes;
}

static void pieces_settle(pieces_run *run, uint64_t number)
{
    transport_batch *batch = &run->batches[number % MEM_LANE_PIECES];
    const bool ended = atomic_load_explicit(&batch->left, memory_order_acquire) == 0; /* before the status */
    const bool sound = atomic_load_explicit(&batch->status, memory_order_relaxed) == EXPAR_OK;
    if (!ended || !sound) pieces_note_failure(run, sym_settle(run->sym, batch));
}

/* Posts the request's part at `at`, with the piece as this rank's side. */
static void pieces_post(pieces_run *run, uint64_t at, uint64_t number)
{
    const mem_side piece = pieces_piece(run, number);
    const transport_request part = {.kind = run->request->kind,
                                    .pe = run->request->pe,
                                    .memory = run->request->memory,
                                    .offset = run->request->offset + at,
                                    .source = piece.at,
                                    .dest = piece.at,
                                    .bytes = pieces_bytes(run, at)};
    pieces_note_failure(run, transport_post(run->via, &run->sym->site, &part, &run->batches[number % MEM_LANE_PIECES]));
}

static void put_piece(pieces_run *run, uint64_t at, uint64_t number)
{
    const mem_side source = device_side((const uint8_t *)run->request->source + at);
    pieces_settle(run, number);
    if (is_sound(run))
        pieces_note_failure(run, mem_lane_copy(run->lane, pieces_piece(run, number), source, pieces_bytes(run, at)));
    if (is_sound(run)) pieces_post(run, at, number);
}

static void put_all(pieces_run *run)
{
    for (uint64_t at = 0, number = 0; at < run->request->bytes && is_sound(run); at += run->piece_bytes, number++)
        put_piece(run, at, number);
}

static void ask_piece(pieces_run *run, uint64_t at)
{
    if (at < run->request->bytes && is_sound(run)) pieces_post(run, at, at / run->piece_bytes);
}

static void get_all(pieces_run *run)
{
    for (uint64_t i = 0; i < MEM_LANE_PIECES; i++)
        ask_piece(run, i * run->piece_bytes);
    for (uint64_t at = 0, number = 0; at < run->request->bytes && is_sound(run); at += run->piece_bytes, number++) {
        const mem_side dest = device_side((uint8_t *)run->request->dest + at);
        pieces_settle(run, number);
        if (is_sound(run))
            pieces_note_failure(run, mem_lane_copy(run->lane, dest, pieces_piece(run, number), pieces_bytes(run, at)));
        ask_piece(run, at + MEM_LANE_PIECES * run->piece_bytes);
    }
}

/* Returns where this rank's GPU reaches the peer's memory by itself; NULL: nowhere. */
static void *reached_by_gpu(const sym *symmetric, const transport_request *request)
{
    const transport_ways *ways = sym_ways(symmetric, (transport_memory)request->memory, request->pe);
    const kinds_place place = {.memory = (transport_memory)request->memory, .offset = request->offset};
    if (place.memory != TRANSPORT_PINNED || ways->map != ways->data) return NULL;
    return kinds_peer_on_device(symmetric, &place, request->pe);
}

static expar_status copy_there(const sym *symmetric, const transport_request *request, void *reached)
{
    const mem_side peer = {.at = reached, .kind = MEM_PINNED};
    if (request->kind == TRANSPORT_KIND_GET)
        return mem_copier_copy(kinds_copier(symmetric), device_side(request->dest), peer, request->bytes);
    return mem_copier_copy(kinds_copier(symmetric), peer, device_side(request->source), request->bytes);
}

expar_status kinds_carry_pieces(sym *symmetric, const transport_request *request)
{
    void *reached = reached_by_gpu(symmetric, request);
    if (reached) return copy_there(symmetric, request, reached);
    mem_copier *copier = kinds_copier(symmetric);
    pieces_run run = {.sym = symmetric,
                      .request = request,
                      .via = sym_ways(symmetric, (transport_memory)request->memory, request->pe)->data,
                      .lane = mem_copier_borrow(copier)};
    mem_lane_piece(run.lane, 0, &run.piece_bytes);
    if (request->kind == TRANSPORT_KIND_GET)
        get_all(&run);
    else
        put_all(&run);
    for (uint64_t i = 0; i < MEM_LANE_PIECES; i++)
        pieces_settle(&run, i);
    mem_copier_return(copier, run.lane);
    return is_sound(&run) ? EXPAR_OK : error_restore(&run.failed);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks with heaps, queues between all of them, and one software NIC for all, in one process.
 *
 * A heap has chunks of several sizes, each with keys of its own. Peers know a heap by addresses that are not those
 * where it lies, as they do a buffer that was registered at an offset. */
#ifndef TESTS_NET_GDA_WORLD_H
#define TESTS_NET_GDA_WORLD_H

#include "made.h"
#include "net/gda/nic/nic.h"

#include <endian.h>

#define WORLD_RANKS      2
#define WORLD_CHUNKS     4
#define WORLD_HEAP_BYTES 65536
#define WORLD_RESULTS    0x77u

/* With a window the device's thread knows memory by addresses that no load or store reaches; NULL: there is none. */
static nic_window *world_window;
#define WORLD_BEYOND (UINT64_C(1) << 62)
static inline void *world_base(const void *at)
{
    return (void *)((uintptr_t)at + (world_window && at ? WORLD_BEYOND : 0));
}

typedef struct world_rank {
    uint8_t *heap;
    uint64_t ends[WORLD_CHUNKS], remotes[WORLD_RANKS];
    uint32_t lkeys[WORLD_CHUNKS], rkeys[WORLD_RANKS * WORLD_CHUNKS];
    gda_keys keys;
    made queues[WORLD_RANKS]; /* to each rank, itself too */
} world_rank;

typedef struct world {
    nic *nic;
    world_rank ranks[WORLD_RANKS];
} world;

static inline uint64_t world_remote(int32_t rank)
{
    return UINT64_C(0x500000001000) + ((uint64_t)(uint32_t)rank << 40);
}
static inline uint32_t world_qpn(int32_t from, int32_t to)
{
    return 0xabc000u + (uint32_t)from * 16 + (uint32_t)to;
}

static inline void world_add_rank(world *w, int32_t rank, unsigned access)
{
    static const uint64_t ends[WORLD_CHUNKS] = {8192, 20480, 20488, WORLD_HEAP_BYTES};
    world_rank *r = &w->ranks[rank];
    uint64_t begin = 0;
    r->heap = aligned_alloc(4096, WORLD_HEAP_BYTES);
    assert_non_null(r->heap);
    memset(r->heap, 0, WORLD_HEAP_BYTES);
    for (uint32_t c = 0; c < WORLD_CHUNKS; c++) {
        nic_memory m = {.port = (uint32_t)rank,
                        .key = 0x1000 + c,
                        .address = (uintptr_t)r->heap + begin,
                        .bytes = ends[c] - begin,
                        .base = world_base(r->heap + begin),
                        .access = NIC_LOCAL_WRITE,
                        .window = world_window};
        assert_int_equal(nic_add_memory(w->nic, &m), EXPAR_OK);
        m.key = 0x2000 + (uint32_t)rank * 16 + c;
        m.address = world_remote(rank) + begin;
        m.access = access;
        assert_int_equal(nic_add_memory(w->nic, &m), EXPAR_OK);
        r->ends[c] = begin = ends[c];
        r->lkeys[c] = htobe32(0x1000 + c);
        for (uint32_t pe = 0; pe < WORLD_RANKS; pe++)
            r->rkeys[pe * WORLD_CHUNKS + c] = htobe32(0x2000 + pe * 16 + c);
    }
    for (int32_t pe = 0; pe < WORLD_RANKS; pe++)
        r->remotes[pe] = world_remote(pe);
    r->keys = (gda_keys){.heap = (uintptr_t)r->heap,
                         .remotes = r->remotes,
                         .ends = r->ends,
                         .lkeys = r->lkeys,
                         .rkeys = r->rkeys,
                         .num_pes = WORLD_RANKS,
                         .stride = WORLD_CHUNKS,
                         .num_chunks = WORLD_CHUNKS};
}

static inline void world_add_queue(world *w, const gda_plan *plan, int32_t from, int32_t to)
{
    made *m = &w->ranks[from].queues[to];
    made_begin(m, plan);
    m->queue.qpn = world_qpn(from, to);
    m->queue.pe = to;
    const nic_memory results = {.port = (uint32_t)from,
                                .key = WORLD_RESULTS + (uint32_t)to,
                                .address = (uintptr_t)m->results,
                                .bytes = ((uint64_t)plan->num_results + 1) * 8,
                                .base = world_base(m->results),
                                .access = NIC_LOCAL_WRITE,
                                .window = world_window};
    m->queue.results_lkey = htobe32(results.key);
    assert_int_equal(nic_add_memory(w->nic, &results), EXPAR_OK);
    const nic_queue queue = {.qpn = m->queue.qpn,
                             .port = (uint32_t)from,
                             .peer_port = (uint32_t)to,
                             .peer_qpn = world_qpn(to, from),
                             .depth = plan->depth,
                             .first = plan->first,
                             .window = world_window,
                             .record_window = world_window,
                             .blocks = world_base(m->blocks),
                             .record = world_base(m->record),
                             .doorbell = &m->doorbell,
                             .collapsed = plan->collapsed,
                             .cq_entries = plan->cq_entries,
                             .cqes = world_base(m->cqes),
                             .cq_record = world_base(&m->cq_record)};
    assert_int_equal(nic_add_queue(w->nic, &queue), EXPAR_OK);
}

#define WORLD_ACCESS (NIC_REMOTE_READ | NIC_REMOTE_WRITE | NIC_REMOTE_ATOMIC)

static inline void world_begin(world *w, const gda_plan *plan, const nic_faults *faults, unsigned access)
{
    memset(w, 0, sizeof *w);
    assert_int_equal(nic_open(faults, &w->nic), EXPAR_OK);
    for (int32_t from = 0; from < WORLD_RANKS; from++) {
        world_add_rank(w, from, access);
        for (int32_t to = 0; to < WORLD_RANKS; to++)
            world_add_queue(w, plan, from, to);
    }
}

static inline void world_end(world *w)
{
    nic_close(w->nic);
    for (int32_t from = 0; from < WORLD_RANKS; from++) {
        for (int32_t to = 0; to < WORLD_RANKS; to++)
            made_end(&w->ranks[from].queues[to]);
        free(w->ranks[from].heap);
    }
}

/* The address and key of an offset in a rank's heap, as requests of other ranks give it. */
static inline void world_aim(const world *w, gda_request *request, int32_t pe, uint64_t offset)
{
    gda_piece piece = {0};
    uint64_t bytes;
    assert_true(gda_find_remote(&w->ranks[0].keys, pe, offset, &piece, &bytes));
    request->remote = piece.remote;
    request->rkey = piece.rkey;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The vocabulary of link/device by itself: rows and their flags, counters, bulk copies. With EXPAR_DELAYS threads are
 * late at random at each ordered access (link/device/delay.h).
 *
 * link_mail: block p of the first half of the grid sends to block p of the second half; each waits for the other with
 * a deadline. Dynamic shared memory: with LINK_WAY_BULK row_bytes and 8. link_count: no waits, no shared memory.
 * link_bulk: a block; dynamic shared memory: stage_bytes and 8 for each warp. link_storm and link_rate: warps that do
 * not wait for each other, but for the rings' threads on the host. */
#include "link/device/bulk.h"
#include "link/device/ring.h"
#include "tests/cuda/kernels/link.h"

/* ---- rows -------------------------------------------------------------------------------------------------------- */

GPU_FUNC uint4 unit_of(int32_t number, uint32_t round, int64_t unit)
{
    return make_uint4(link_unit_word(number, round, 4 * unit), link_unit_word(number, round, 4 * unit + 1),
                      link_unit_word(number, round, 4 * unit + 2), link_unit_word(number, round, 4 * unit + 3));
}

GPU_FUNC void fill_row(uint8_t *row, int64_t bytes, int32_t number, uint32_t round)
{
    for (int64_t i = threadIdx.x; i < bytes / 16; i += blockDim.x)
        store_row((uint4 *)row + i, unit_of(number, round, i));
}

GPU_FUNC void check_row(const uint8_t *row, int64_t bytes, int32_t number, uint32_t round, uint32_t *wrong)
{
    for (int64_t i = threadIdx.x; i < bytes / 16; i += blockDim.x) {
        const uint4 seen = load_row((const uint4 *)row + i), sent = unit_of(number, round, i);
        if (seen.x != sent.x || seen.y != sent.y || seen.z != sent.z || seen.w != sent.w) atomicAdd(wrong, 1u);
    }
}

/* ---- flags ------------------------------------------------------------------------------------------------------- */

/* Whether the round's flag has come; by one thread. */
GPU_FUNC int32_t flag_has_come(int32_t way, const uint64_t *flag, uint32_t round)
{
    uint64_t first = 0, second = 0;
    if (way == LINK_WAY_SHORT || way == LINK_WAY_FENCE) {
        if (way == LINK_WAY_SHORT) first = load_relaxed((const uint32_t *)flag);
        if (way == LINK_WAY_FENCE) first = load_relaxed_64(flag);
        if (first == round) fence_system();
        return first == round;
    }
    if (way != LINK_WAY_BOTH) return load_acquire(flag) == round;
    load_acquire_both(flag, &first, &second);
    return first == round && second == ~(uint64_t)round;
}

GPU_FUNC void set_flag(int32_t way, uint64_t *flag, uint32_t round)
{
    if (way == LINK_WAY_SHORT) {
        store_release_32((uint32_t *)flag, round);
    } else if (way == LINK_WAY_FENCE) {
        fence_system();
        store_relaxed_64(flag, round);
    } else {
        store_release(flag, round);
        if (way == LINK_WAY_BOTH) store_release(flag + 1, ~(uint64_t)round);
    }
}

/* By all threads of a block: false once it is too late. */
GPU_FUNC int32_t await_flag(const link_mail_call *c, int32_t way, const uint64_t *flag, uint32_t round)
{
    int32_t late = 0;
    if (threadIdx.x == 0) {
        const uint64_t start = clock_now();
        while (!late && !flag_has_come(way, flag, round)) {
            late = clock_now() - start > c->timeout_ns;
            between_polls();
        }
        if (late) atomicAdd(c->late, 1u);
    }
    return !__syncthreads_or(late);
}

/* ---- words that carry their stamps ------------------------------------------------------------------------------- */

GPU_FUNC void send_words(uint8_t *row, int64_t bytes, int32_t number, uint32_t round)
{
    const uint64_t stamp = (uint64_t)round << 32;
    for (int64_t i = threadIdx.x; i < bytes / 16; i += blockDim.x)
        store_words((uint64_t *)row + 2 * i, stamp | link_unit_word(number, round, 2 * i),
                    stamp | link_unit_word(number, round, 2 * i + 1));
}

GPU_FUNC int32_t receive_words(const link_mail_call *c, const uint8_t *row, int32_t number, uint32_t round)
{
    const uint64_t start = clock_now();
    int32_t late = 0;
    for (int64_t i = threadIdx.x; i < c->row_bytes / 16 && !late; i += blockDim.x) {
        uint64_t first = 0, second = 0;
        while (!late && (first >> 32 != round || second >> 32 != round)) {
            poll_words((const uint64_t *)row + 2 * i, &first, &second);
            late = clock_now() - start > c->timeout_ns;
            between_polls();
        }
        if ((uint32_t)first != link_unit_word(number, round, 2 * i) ||
            (uint32_t)second != link_unit_word(number, round, 2 * i + 1))
            atomicAdd(c->wrong, 1u);
    }
    if (late) atomicAdd(c->late, 1u);
    return !__syncthreads_or(late);
}

/* ---- mail -------------------------------------------------------------------------------------------------------- */

#ifdef GPU_HAS_BULK
/* The row is made in shared memory by all, and leaves from there by the first thread, which sets the flag, too. */
GPU_FUNC void send_by_bulk(bulk_stage *stage, uint8_t *stages, uint8_t *row, int64_t bytes, int32_t number,
                           uint32_t round)
{
    for (int64_t i = threadIdx.x; i < bytes / 16; i += blockDim.x)
        ((uint4 *)stages)[i] = unit_of(number, round, i);
    bulk_fence();
    __syncthreads();
    if (threadIdx.x != 0) return;
    bulk_store(stage, row, (uint32_t)bytes);
    bulk_commit();
    bulk_stage_close(stage);
}
#endif

/* ---- mail by a ring ---------------------------------------------------------------------------------------------- */

/* The row leaves from the sender's own memory, which it may write again when the command is complete. */
GPU_FUNC int32_t send_by_ring(const link_mail_call *c, int32_t pair, uint32_t round)
{
    const uint64_t row = (uint64_t)pair * (uint64_t)c->row_bytes;
    uint64_t after = 0, ended = 0;
    fill_row(c->sources + row, c->row_bytes, pair, round);
    __syncthreads();
    if (threadIdx.x == 0) {
        proxy_command put = {0};
        put.kind = PROXY_PUT_SIGNAL;
        put.pe = 1;
        put.offset = c->rows_at + row;
        put.local = c->sources_host + row;
        put.bytes = (uint64_t)c->row_bytes;
        put.signal = c->flags_at + (uint64_t)pair * LINK_FLAG_WORDS * 8;
        put.operand = round;
        put.op = 1; /* TRANSPORT_SET */
        ended = ring_issue(c->port, &put, &after);
        if (!ended) ended = proxy_await_done_to(c->port, put.pe, after);
        if (ended || proxy_load(&c->port->failure)) atomicAdd(c->late, 1u);
    }
    return !__syncthreads_or(ended != 0);
}

GPU_FUNC void answer_by_ring(const link_mail_call *c, int32_t pair, uint32_t round)
{
    proxy_command word = {0};
    uint64_t after = 0;
    word.kind = PROXY_PUT_SIGNAL;
    word.pe = 1;
    word.signal = c->flags_at + ((uint64_t)pair * LINK_FLAG_WORDS + LINK_FLAG_WORDS / 2) * 8;
    word.operand = round;
    word.op = 1; /* TRANSPORT_SET */
    if (ring_issue(c->port, &word, &after)) atomicAdd(c->late, 1u);
}

GPU_FUNC void send_all(const link_mail_call *c, uint8_t *stages, uint8_t *row, uint64_t *flag, int32_t pair)
{
    bulk_stage stage;
    bulk_stage_open(&stage, stages, threadIdx.x / 32, 1, 0);
    if (c->way == LINK_WAY_BULK && threadIdx.x < 32) bulk_stage_open(&stage, stages, 0, 1, (int32_t)c->row_bytes);
    for (uint32_t round = 1; round <= (uint32_t)c->rounds; round++) {
        if (!await_flag(c, LINK_WAY_FLAG, flag + LINK_FLAG_WORDS / 2, round - 1)) return;
        if (c->way == LINK_WAY_WORDS) {
            send_words(row, c->row_bytes, pair, round);
            continue;
        }
        if (c->way == LINK_WAY_RING) {
            if (!send_by_ring(c, pair, round)) return;
            continue;
        }
#ifdef GPU_HAS_BULK
        if (c->way == LINK_WAY_BULK)
            send_by_bulk(&stage, stages, row, c->row_bytes, pair, round);
        else
#endif
            fill_row(row, c->row_bytes, pair, round);
        __syncthreads();
        if (threadIdx.x == 0) set_flag(c->way, flag, round);
    }
}

GPU_FUNC void receive_all(const link_mail_call *c, const uint8_t *row, uint64_t *flag, int32_t pair)
{
    for (uint32_t round = 1; round <= (uint32_t)c->rounds; round++) {
        if (c->way == LINK_WAY_WORDS) {
            if (!receive_words(c, row, pair, round)) return;
        } else {
            if (!await_flag(c, c->way, flag, round)) return;
            check_row(row, c->row_bytes, pair, round, c->wrong);
            __syncthreads();
        }
        if (threadIdx.x != 0) continue;
        if (c->way == LINK_WAY_RING)
            answer_by_ring(c, pair, round);
        else
            store_release(flag + LINK_FLAG_WORDS / 2, round);
    }
}

GPU_KERNEL(LINK_THREADS) link_mail(GPU_ARGS link_mail_call c)
{
    GPU_LAUNCH_SHARED(uint8_t, stages);
    const int32_t pairs = (int32_t)gridDim.x / 2, pair = (int32_t)blockIdx.x % pairs;
    uint8_t *row = c.rows + pair * c.row_bytes;
    uint64_t *flag = c.flags + pair * LINK_FLAG_WORDS;
    if ((int32_t)blockIdx.x < pairs)
        send_all(&c, stages, row, flag, pair);
    else
        receive_all(&c, row, flag, pair);
}

/* ---- rings ------------------------------------------------------------------------------------------------------- */

GPU_FUNC proxy_command storm_command(int32_t pe, uint64_t at, int32_t lane)
{
    proxy_command add = {0};
    add.kind = PROXY_ATOMIC;
    add.pe = pe;
    add.offset = at + 8 * (uint64_t)lane;
    add.bytes = 8;
    add.operand = 1;
    add.op = 4; /* TRANSPORT_ADD */
    return add;
}

GPU_KERNEL(LINK_THREADS) link_storm(GPU_ARGS link_storm_call c)
{
    const int32_t lane = threadIdx.x % 32, warp = (int32_t)(blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32);
    uint64_t ended = 0, after = 0;
    const proxy_command add = storm_command(c.pe, c.at, lane);
    for (int32_t round = 0; round < c.rounds && !ended; round++) {
        ended = ring_issue_warp(c.port, link_storm_wants(warp, lane, round), &add, &after);
        if (!ended && round % 4 == 0) ended = ring_quiet_warp(c.port);
    }
    if (!ended) ended = ring_quiet_warp(c.port);
    if (lane == 0 && (ended || proxy_load(&c.port->failure))) atomicAdd(c.late, 1u);
}

/* A thread that issues a command, and waits until it sees that it is done. */
GPU_FUNC uint64_t rate_alone(const link_rate_call *c, proxy_port *port)
{
    uint64_t ended = 0, after = 0;
    const proxy_command add = storm_command(1, 0, 0);
    for (int32_t round = 0; round < c->rounds && !ended; round++) {
        const uint32_t before = cycles_now();
        ended = ring_issue(port, &add, &after);
        if (!ended) ended = proxy_await_done(port, after);
        c->cycles[round] = cycles_now() - before;
    }
    return ended;
}

GPU_FUNC uint64_t rate_together(const link_rate_call *c, proxy_port *port)
{
    uint64_t ended = 0, after = 0;
    const proxy_command add = storm_command(1, 0, (int32_t)threadIdx.x % 32);
    for (int32_t round = 0; round < c->rounds && !ended; round++)
        ended = ring_issue_warp(port, 1, &add, &after);
    return ended ? ended : ring_quiet_warp(port);
}

GPU_KERNEL(LINK_THREADS) link_rate(GPU_ARGS link_rate_call c)
{
    proxy_port *port = c.ports[blockIdx.x % c.num_rings];
    const uint64_t begin = clock_now();
    uint64_t ended = 0;
    if (!c.cycles)
        ended = rate_together(&c, port);
    else if (threadIdx.x == 0)
        ended = rate_alone(&c, port);
    if (threadIdx.x % 32 != 0) return;
    if (ended) atomicAdd(c.late, 1u);
    atomicMin(c.begin, (unsigned long long)begin);
    atomicMax(c.end, (unsigned long long)clock_now());
}

/* ---- counters ---------------------------------------------------------------------------------------------------- */

GPU_FUNC void fence_of(const link_count_call *c)
{
    if (c->system)
        fence_system();
    else
        fence_gpu();
}

GPU_KERNEL(LINK_THREADS) link_count(GPU_ARGS link_count_call c)
{
    int32_t last = 0;
    fill_row(c.rows + blockIdx.x * c.row_bytes, c.row_bytes, (int32_t)blockIdx.x, c.round);
    __syncthreads();
    if (threadIdx.x == 0) {
        hold_back();
        fence_of(&c);
        last = atomicAdd(c.counter, 1u) + 1 == (c.round + 1) * gridDim.x;
        fence_of(&c);
        if (last) atomicAdd(c.lasts, 1u);
    }
    if (!__syncthreads_or(last)) return;
    for (int32_t b = 0; b < (int32_t)gridDim.x; b++)
        check_row(c.rows + b * c.row_bytes, c.row_bytes, b, c.round, c.wrong);
}

/* ---- bulk copies ------------------------------------------------------------------------------------------------- */

GPU_KERNEL(LINK_THREADS) link_bulk(GPU_ARGS link_bulk_call c)
{
#ifdef GPU_HAS_BULK
    GPU_LAUNCH_SHARED(uint8_t, stages);
    const int32_t warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = threadIdx.x % 32;
    const uint8_t *from = c.from + warp * c.pitch;
    uint8_t *to = c.to + warp * c.pitch;
    const int64_t whole = c.bytes / 16 * 16;
    bulk_stage stage;
    bulk_stage_open(&stage, stages, warp, warps, c.stage_bytes);
    for (int64_t at = 0; at < whole; at += stage.bytes) {
        const uint32_t part = (uint32_t)(whole - at < stage.bytes ? whole - at : stage.bytes);
        hold_back(); /* a bulk copy has no ordered access of its own */
        bulk_wait_read();
        __syncwarp();
        bulk_load(&stage, from + at, part);
        if (lane == 0) bulk_store(&stage, to + at, part);
        bulk_commit();
    }
    bulk_stage_close(&stage);
    if (lane < c.bytes - whole) to[whole + lane] = from[whole + lane];
    if (threadIdx.x == 0) *c.has_bulk = 1;
#endif
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Warps of several blocks post to shared queues (link/device/gda.h), and a device in software carries their requests
 * out.
 *
 * gda_programs: random puts, gets, posts of some lanes and atomics on the warp's own areas at both ranks. A model in
 * the warp's own memory says what they must give. gda_messages: warp w of rank 0 and warp w of rank 1 send each other
 * data with a signal in turns, and answer. gda_fail: warps post until their queue has failed. gda_rate: warps post
 * adds, and do not wait. No shared memory. */
#include "link/device/gda.h"
#include "tests/cuda/kernels/gda_programs.h"

/* A warp: one of GDAP_WARPS. */
typedef struct gdap_warp {
    const gdap_call *c;
    uint32_t block, number, rank, lane;
    gda_queue *queue; /* to the rank of the operation */
    uint32_t pe;
    const gda_keys *keys; /* of its rank */
    uint8_t *source;      /* in its rank's heap, and where it gets to after that */
    uint8_t *model;       /* of its area at the rank of the operation */
    uint64_t step, bits;  /* the operation's number, and bits that all lanes have alike */
} gdap_warp;

GPU_FUNC gdap_warp gdap_begin(const gdap_call *c)
{
    gdap_warp w;
    w.c = c;
    w.block = c->view ? blockIdx.x * GDAP_RANKS + c->rank : blockIdx.x;
    w.number = w.block * (GDAP_THREADS / 32) + threadIdx.x / 32;
    w.lane = threadIdx.x % 32;
    w.rank = w.block % GDAP_RANKS;
    w.keys = c->view ? c->view->keys + GDAP_PINNED : c->keys + w.rank;
    w.source = c->heaps[w.rank] + GDAP_SOURCES_AT + 2 * w.number * GDAP_SOURCE;
    w.queue = 0;
    w.model = c->models;
    w.pe = 0;
    w.step = w.bits = 0;
    return w;
}

GPU_FUNC gda_queue *gdap_queue(const gdap_warp *w, uint32_t pe)
{
    return w->c->view ? gda_queue_to(w->c->view, pe, 0) : w->c->queues + w->rank * GDAP_RANKS + pe;
}

/* Gives the next operation its bits. */
GPU_FUNC void gdap_next(gdap_warp *w, uint64_t step)
{
    w->step = step;
    w->bits = gdap_bits(w->c->seed + w->number, step, 32);
    w->pe = (uint32_t)(w->bits >> 60) % GDAP_RANKS;
    w->queue = gdap_queue(w, w->pe);
    w->model = w->c->models + ((uint64_t)w->number * GDAP_RANKS + w->pe) * GDAP_AREA;
}

GPU_FUNC uint64_t gdap_lane_bits(const gdap_warp *w)
{
    return gdap_bits(w->c->seed + w->number, w->step, w->lane);
}

GPU_FUNC uint64_t gdap_area(const gdap_warp *w)
{
    return w->c->at + GDAP_AREAS_AT + (uint64_t)w->number * GDAP_AREA;
}

/* Keeps the first check that failed; by any lane. */
GPU_FUNC void gdap_expect(const gdap_warp *w, int good, gdap_check check)
{
    if (!good) atomicCAS(w->c->wrong + w->number, 0u, (uint32_t)check);
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

GPU_FUNC void gdap_put(gdap_warp *w)
{
    const uint32_t bytes = 1 + (uint32_t)(w->bits % GDAP_SOURCE),
                   from = (uint32_t)(w->bits >> 16) % (GDAP_SOURCE + 1 - bytes);
    const uint32_t at = (uint32_t)(w->bits >> 32) % (GDAP_AREA + 1 - bytes);
    uint64_t end = 0;
    int good = 1;
    for (uint32_t i = w->lane; i < bytes; i += 32)
        w->source[from + i] = w->model[at + i] = (uint8_t)gdap_bits(w->bits, i, 7);
    __syncwarp();
    if (w->bits >> 59 & 1) {
        good = gda_transfer_warp(w->queue, w->keys, GDA_WRITE, gdap_area(w) + at, (uint64_t)(w->source + from), bytes,
                                 0, &end) &&
               gda_poll_warp(w->queue, end);
    } else {
        if (w->lane == 0)
            good = gda_transfer(w->queue, w->keys, GDA_WRITE, gdap_area(w) + at, (uint64_t)(w->source + from), bytes, 0,
                                &end) &&
                   gda_poll(w->queue, end);
        good = gda_agree(good);
    }
    gdap_expect(w, good, GDAP_PUT);
}

GPU_FUNC void gdap_get(gdap_warp *w)
{
    const uint32_t bytes = 1 + (uint32_t)(w->bits % GDAP_SOURCE),
                   at = (uint32_t)(w->bits >> 32) % (GDAP_AREA + 1 - bytes);
    uint8_t *dest = w->source + GDAP_SOURCE;
    uint64_t end = 0;
    int good = gda_transfer_warp(w->queue, w->keys, GDA_READ, gdap_area(w) + at, (uint64_t)dest, bytes, 0, &end);
    good = good && (w->bits >> 59 & 1 ? gda_quiet_warp(w->queue) : gda_poll_warp(w->queue, end));
    gdap_expect(w, good, GDAP_GET);
    for (uint32_t i = w->lane; good && i < bytes; i += 32)
        gdap_expect(w, dest[i] == w->model[at + i], GDAP_BYTES);
    __syncwarp();
}

/* Some lanes write up to 28 bytes each, inside of their requests. */
GPU_FUNC void gdap_post(gdap_warp *w)
{
    const uint64_t bits = gdap_lane_bits(w);
    const uint32_t at = w->lane * (GDAP_AREA / 32), bytes = 1 + (uint32_t)(bits % GDA_MOST_INLINE);
    gda_request r = {GDA_WRITE_INLINE, 0, 0, 0, 0, 0, bytes, 0, 0, 0, 0, 0, {0}};
    gda_piece piece = {0, 0, 0, 0, 0};
    uint64_t left = 0, end = 0;
    int wants = (bits >> 40 & 3) != 0;
    wants = wants && gda_find_remote(w->keys, (int32_t)w->pe, gdap_area(w) + at, &piece, &left) && left >= bytes;
    r.remote = piece.remote;
    r.rkey = piece.rkey;
    for (uint32_t i = 0; i < GDA_MOST_INLINE / 4; i++)
        r.data[i] = (uint32_t)gdap_bits(bits, i, 3);
    for (uint32_t i = 0; wants && i < bytes; i++)
        w->model[at + i] = (uint8_t)((uint32_t)gdap_bits(bits, i / 4, 3) >> 8 * (i % 4));
    gdap_expect(w, gda_post_warp(w->queue, wants, &r, &end), GDAP_POST);
    __syncwarp();
}

GPU_FUNC gda_form gdap_form(uint32_t choice)
{
    return choice == 0   ? GDA_ADD_64
           : choice == 1 ? GDA_COMPARE_SWAP_64
           : choice == 2 ? GDA_ADD_MASKED_32
           : choice == 3 ? GDA_ADD_MASKED_64
           : choice == 4 ? GDA_SWAP_MASKED_32
                         : GDA_SWAP_MASKED_64;
}

/* Some lanes change a word each, and get the old one. */
GPU_FUNC void gdap_atomic(gdap_warp *w)
{
    const uint64_t bits = gdap_lane_bits(w), more = gdap_bits(bits, 1, 1);
    const uint32_t at = w->lane * (GDAP_AREA / 32);
    gda_request r = {gdap_form((uint32_t)(bits % 6)), 0, 0, 0, 0, 0, 0, 0, more, 0, 0, 0, {0}};
    const uint32_t bytes = gda_word_bytes(r.form);
    gda_piece piece = {0, 0, 0, 0, 0};
    uint64_t *model = (uint64_t *)(w->model + at), left = 0, old = 0, before = 0;
    const int wants =
        (bits >> 40 & 3) != 0 && gda_find_remote(w->keys, (int32_t)w->pe, gdap_area(w) + at, &piece, &left);
    const uint64_t known = bytes == 4 ? *(const uint32_t *)model : *model;
    r.remote = piece.remote;
    r.rkey = piece.rkey;
    r.compare = bits >> 50 & 1 ? known : more >> 7;
    r.swap_mask = gdap_bits(bits, 2, 1);
    r.compare_mask = bits >> 51 & 1 ? ~(uint64_t)0 : 0;
    before = known;
    gdap_expect(w, gda_fetch_warp(w->queue, wants, &r, &old), GDAP_ATOMIC);
    if (wants) {
        gdap_expect(w, old == before, GDAP_OLD);
        if (bytes == 4)
            *(uint32_t *)model = (uint32_t)gdap_changed(&r, before);
        else
            *model = gdap_changed(&r, before);
    }
    __syncwarp();
}

/* Lanes of all warps add to one word of rank 0. */
GPU_FUNC void gdap_add(gdap_warp *w)
{
    gda_request r = {GDA_ADD_64, 0, 0, 0, 0, 0, 0, 0, 1 + w->lane, 0, 0, 0, {0}};
    gda_piece piece = {0, 0, 0, 0, 0};
    uint64_t left = 0, end = 0;
    const int wants = (int)(gdap_lane_bits(w) & 1);
    uint32_t sum = 0;
    w->queue = gdap_queue(w, 0);
    gda_find_remote(w->keys, 0, w->c->at, &piece, &left);
    r.remote = piece.remote;
    r.rkey = piece.rkey;
    gda_to_sink(w->queue, &r);
    gdap_expect(w, gda_post_warp(w->queue, wants, &r, &end), GDAP_ADD);
    gda_sum_before(wants ? 1 + w->lane : 0, &sum);
    if (w->lane == 0) w->c->adds[w->number] += sum;
}

GPU_FUNC void gdap_quiet(gdap_warp *w)
{
    for (uint32_t pe = 0; pe < GDAP_RANKS; pe++)
        gdap_expect(w, gda_quiet_warp(gdap_queue(w, pe)), GDAP_QUIET);
}

GPU_KERNEL(GDAP_THREADS) gda_programs(GPU_ARGS gdap_call c)
{
    gdap_warp w = gdap_begin(&c);
    for (int32_t round = 0; round < c.rounds; round++) {
        gdap_next(&w, (uint64_t)round);
        const uint32_t choice = (uint32_t)(w.bits >> 48) % 5;
        if (choice == 0) gdap_put(&w);
        if (choice == 1) gdap_get(&w);
        if (choice == 2) gdap_post(&w);
        if (choice == 3) gdap_atomic(&w);
        if (choice == 4) gdap_add(&w);
        if (__any_sync(GDA_ALL_LANES, load_relaxed(c.wrong + w.number) != 0)) break;
    }
    gdap_quiet(&w);
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

/* Warps of the first two blocks take part. The words of signals follow word 0 of each heap. */
GPU_FUNC int gdap_await(const gdap_warp *w, const uint64_t *word, uint64_t least)
{
    int good = 1;
    if (w->lane == 0) {
        uint32_t turns = 0;
        while (good && load_acquire(word) < least)
            good = !gda_must_end(w->queue, &turns);
    }
    return gda_agree(good);
}

/* Data that goes with the signal `number`, and is checked after it. */
GPU_FUNC int gdap_send(gdap_warp *w, uint32_t mail, uint64_t number)
{
    gda_request signal = {
        GDA_WRITE_INLINE, 0, 0, 0, 0, 0, 8, 0, 1, 0, 0, 0, {(uint32_t)number, (uint32_t)(number >> 32)}};
    gda_piece piece = {0, 0, 0, 0, 0};
    uint64_t left = 0, end = 0;
    for (uint32_t i = w->lane; i < GDAP_MESSAGE / 8; i += 32)
        ((uint64_t *)w->source)[i] = gdap_bits(w->rank, number, i);
    if (number % 2) signal.form = GDA_ADD_64;
    gda_find_remote(w->keys, (int32_t)w->pe, w->c->at + 8 + 8 * mail, &piece, &left);
    signal.remote = piece.remote;
    signal.rkey = piece.rkey;
    gda_to_sink(w->queue, &signal);
    __syncwarp();
    return gda_transfer_warp(w->queue, w->keys, GDA_WRITE, w->c->at + GDAP_AREAS_AT + (uint64_t)mail * GDAP_AREA,
                             (uint64_t)w->source, GDAP_MESSAGE, &signal, &end) &&
           gda_poll_warp(w->queue, end);
}

/* The signal of that number has come, and its data are here. */
GPU_FUNC int gdap_receive(gdap_warp *w, uint32_t mail, uint64_t number)
{
    const uint64_t *data = (const uint64_t *)(w->c->heaps[w->rank] + GDAP_AREAS_AT + mail * GDAP_AREA);
    if (!gdap_await(w, (const uint64_t *)(w->c->heaps[w->rank] + 8 + 8 * mail), number)) return 0;
    for (uint32_t i = w->lane; i < GDAP_MESSAGE / 8; i += 32)
        gdap_expect(w, data[i] == gdap_bits(w->pe, number, i), GDAP_SIGNAL);
    __syncwarp();
    return 1;
}

/* Rank 1 answers when it has read, and rank 0 sends again when it has read the answer. */
GPU_KERNEL(GDAP_THREADS) gda_messages(GPU_ARGS gdap_call c)
{
    gdap_warp w = gdap_begin(&c);
    const uint32_t mail = threadIdx.x / 32;
    int good = 1;
    if (w.block >= GDAP_RANKS) return;
    w.pe = 1 - w.rank;
    w.queue = gdap_queue(&w, w.pe);
    for (uint64_t number = 1; good && number <= (uint64_t)c.rounds; number++) {
        if (w.rank == 0) good = gdap_send(&w, mail, number);
        good = good && gdap_receive(&w, mail, number);
        if (w.rank == 1) good = good && gdap_send(&w, mail, number);
    }
    gdap_expect(&w, good, GDAP_STOPPED);
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

/* Adds with results, until the queue to the other rank fails, by the device or by the host. */
GPU_KERNEL(GDAP_THREADS) gda_fail(GPU_ARGS gdap_call c)
{
    gdap_warp w = gdap_begin(&c);
    gda_request r = {GDA_ADD_64, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, {0}};
    gda_piece piece = {0, 0, 0, 0, 0};
    uint64_t left = 0, old = 0, end = 0;
    w.pe = 1 - w.rank;
    w.queue = gdap_queue(&w, w.pe);
    gda_find_remote(w.keys, (int32_t)w.pe, gdap_area(&w) + 8 * w.lane, &piece, &left);
    r.remote = piece.remote;
    r.rkey = piece.rkey;
    for (int32_t round = 0; round < c.rounds; round++)
        if (!gda_fetch_warp(w.queue, 1, &r, &old)) break;
    gdap_expect(&w, gda_error(w.queue) != 0, GDAP_NO_FAILURE);
    gdap_expect(&w, !gda_post_warp(w.queue, 1, &r, &end) && !gda_quiet_warp(w.queue), GDAP_NO_FAILURE);
    if (w.lane == 0) c.seen[w.number] = gda_error(w.queue);
}

/* ---- rates ------------------------------------------------------------------------------------------------------- */

/* Returns an add to word 0 of the queue's PE. */
GPU_FUNC gda_request gdap_counted(const gdap_warp *w)
{
    gda_request r = {GDA_ADD_64, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, {0}};
    gda_piece piece = {0, 0, 0, 0, 0};
    uint64_t left = 0;
    gda_find_remote(w->c->keys, w->queue->pe, 0, &piece, &left);
    r.remote = piece.remote;
    r.rkey = piece.rkey;
    gda_to_sink(w->queue, &r);
    return r;
}

GPU_KERNEL(GDAP_THREADS) gda_rate(GPU_ARGS gdap_call c)
{
    gdap_warp w = gdap_begin(&c);
    uint64_t end = 0;
    int good = 1;
    if (!c.num_queues && (blockIdx.x || threadIdx.x)) return;
    w.queue = c.queues + (c.num_queues ? blockIdx.x % c.num_queues : 0);
    const gda_request add = gdap_counted(&w);
    const uint64_t begin = clock_now();
    for (int32_t round = 0; good && round < c.rounds; round++) {
        if (c.num_queues)
            good = gda_post_warp(w.queue, 1, &add, &end);
        else
            good = gda_post(w.queue, &add, &end) && gda_poll(w.queue, end);
    }
    gdap_expect(&w, good, GDAP_ADD);
    if (w.lane) return;
    atomicMin(c.times, (unsigned long long)begin);
    atomicMax(c.times + 1, (unsigned long long)clock_now());
}

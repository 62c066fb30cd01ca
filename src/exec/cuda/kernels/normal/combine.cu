/* SPDX-License-Identifier: Apache-2.0 */
/* Combine: each owner fetches the rows of its tokens from the ranks that had them, and adds them.
 *
 * Grid: as many blocks as SMs were granted. Block 0 writes this rank's header, with the place of its rows, into every
 * peer's memory (release). All blocks poll the peers' headers in local memory (acquire). A peer's header says that its
 * rows are ready, since it is posted in stream order after the kernels that made them.
 *
 * Then each warp takes parts of rows (sm_90). Bulk copies bring them from all ranks that have them into shared memory.
 * The warp adds one part while the next is copied (combine_bulk.h). A lane takes every 32nd vector of 16 bytes. Biases
 * and rows are added in rank order in FP32, with one rounding. On older GPUs a warp takes a token, and a lane loads its
 * vector from up to GPU_SOURCES ranks at once. If rows of some rank come through rings, blocks take channels instead
 * (combine_queue.h).
 *
 * The last block posts the completion flags (release), "I have read all that I will". It polls those of all peers
 * (acquire). After that x may be used again.
 *
 * Bytes of a token: one row is read from each rank that had it, one row is written. Shared memory: [N] places of rows,
 * [2][N] rings, and slots for parts of rows.
 *
 * combine_slots.cu is this kernel for sums that go by slots, and for weights of the slots' owners. GPU_BY_SLOT marks
 * the differences: a token's rows are found by places (ep_sum_place), which are the ranks here. */
#ifndef GPU_BY_SLOT
#define GPU_BY_SLOT 0
#define GPU_COMBINE ep_combine_impl
#endif
#include "exec/cuda/kernels/core/number.h"
#include "exec/cuda/kernels/normal/rings.h"
#include "link/device/bulk.h"
#include "proto/serving.h"

/* The most rows of which a lane loads a vector at once. */
#define GPU_SOURCES 4

/* The addresses of one provider's rows, in shared memory. */
typedef struct gpu_source {
    const uint8_t *x, *weights;
    const int32_t *map; /* with EP_SUM_EACH_SLOT */
    int64_t x_pitch_bytes, weights_pitch_bytes;
    int32_t first_row; /* this rank's first row there */
    int32_t rows;      /* rows from this number on were dropped */
    int32_t mode;      /* ep_mode */
    int32_t unused;
} gpu_source;
static_assert(sizeof(gpu_source) + 2 * sizeof(gpu_ring) == GPU_COMBINE_RANK_BYTES, "the host plans shared memory");

/* ---- headers ----------------------------------------------------------------------------------------------------- */

/* Returns the number of rows that this rank has: those that came, as far as there was space for them. */
GPU_FUNC int32_t rows_held(const gpu_combine_args *a)
{
    if (!a->routing) return 0;
    int32_t came = ((const int32_t *)(a->routing + a->at.rank_prefix))[GPU_RANKS(&a->world.place) - 1];
    return came < a->advert.rows ? came : a->advert.rows;
}

/* Block 0 calls it. */
GPU_FUNC void post_headers(const gpu_combine_args *a, uint32_t epoch)
{
    const gpu_world *world = &a->world;
    ep_advert advert = a->advert;
    advert.rows = rows_held(a);
    for (int32_t pe = threadIdx.x; pe < GPU_RANKS(&world->place); pe += blockDim.x) {
        ep_header *header = header_at(world, pe, epoch, world->place.rank);
        header->form = a->form;
        if (a->shifted) {
            advert.x_offset = a->advert.x_offset + a->x_shifts[pe];
            advert.weights_offset = a->advert.weights_offset + a->weights_shifts[pe];
        }
        header->advert = advert;
        copy_words(&header->rejection, &a->rejection,
                   a->rejection.status ? sizeof a->rejection : sizeof a->rejection.status);
        store_release((uint64_t *)&header->flag, ep_word(epoch, 1));
    }
}

/* Every block calls it. It waits for the headers of all ranks, and keeps the places of their rows. False: nothing is to
   be added. */
GPU_FUNC bool accept_headers(const gpu_combine_args *a, uint32_t epoch, gpu_source *sources)
{
    const gpu_world *world = &a->world;
    bool come = true, agree = true;
    for (int32_t pe = threadIdx.x; pe < GPU_RANKS(&world->place); pe += blockDim.x) {
        const ep_header *header = header_at(world, world->place.rank, epoch, pe);
        come &= await_flag(&world->place, (const uint64_t *)&header->flag, epoch, GPU_WAIT_HEADER, pe);
        agree &= header_agrees(header, &a->form);
        sources[pe].x = heap_at(&world->place, pe, header->advert.x_offset);
        sources[pe].weights = heap_at(&world->place, pe, header->advert.weights_offset);
        if (GPU_BY_SLOT) sources[pe].map = (const int32_t *)heap_at(&world->place, pe, header->advert.idx_offset);
        sources[pe].x_pitch_bytes = header->advert.x_pitch_bytes;
        sources[pe].weights_pitch_bytes = header->advert.weights_pitch_bytes;
        sources[pe].first_row = a->routing ? ((const int32_t *)(a->routing + a->at.first_row))[pe] : 0;
        sources[pe].rows = header->advert.rows;
        sources[pe].mode = header->advert.mode;
    }
    if (__syncthreads_and(come && agree)) return true;
    if (!__syncthreads_and(come)) return false;
    bool rejected = false;
    int32_t against = judge_headers(world, epoch, &rejected);
    if (against >= 0 && blockIdx.x == 0 && threadIdx.x == 0 && is_news(world, &a->rejection))
        report_header(world, epoch, against, rejected);
    return against < 0;
}

/* ---- places ------------------------------------------------------------------------------------------------------ */

GPU_FUNC ep_sum sum_of(const gpu_combine_args *a)
{
    ep_sum sum = a->sum;
    sum.ranks = GPU_RANKS(&a->world.place);
    sum.topk = GPU_TOPK(a);
    return sum;
}

/* Returns the number of places of a token. */
GPU_FUNC int32_t places_of(const gpu_combine_args *a)
{
    const ep_sum sum = sum_of(a);
    return GPU_BY_SLOT ? ep_sum_places(&sum) : GPU_RANKS(&a->world.place);
}

GPU_FUNC const uint16_t *owners_of(const gpu_combine_args *a, int64_t token)
{
    return (const uint16_t *)(a->routing + a->at.owners) + token * GPU_TOPK(a);
}

GPU_FUNC ep_place place_of(const gpu_combine_args *a, int64_t token, int32_t number)
{
    ep_place place = {number, -1};
    if (!GPU_BY_SLOT) return place;
    const ep_sum sum = sum_of(a);
    if (number < ep_sum_places(&sum)) return ep_sum_place(&sum, owners_of(a, token), number);
    place.rank = -1;
    return place;
}

/* Through rings, a row of a sum of each slot comes in parts, each in one slot of the ring. */
GPU_FUNC int32_t ring_parts_of(const gpu_combine_args *a)
{
    return GPU_BY_SLOT ? a->ring_parts : 1;
}

/* A token, or one of these parts of it. */
typedef struct gpu_token {
    int64_t number;
    int32_t part; /* 0: also the whole token, if there are no teams */
} gpu_token;

/* ring_part_bytes returns how many bytes of a row are added at a time, token_bytes how many those of one part are. */
GPU_FUNC int64_t ring_part_bytes(const gpu_combine_args *a, const gpu_team *team)
{
    return GPU_BY_SLOT && team ? a->ring_part_bytes : GPU_ROW_BYTES(a);
}
GPU_FUNC int64_t token_bytes(const gpu_combine_args *a, const gpu_team *team, int32_t part)
{
    int64_t bytes = ring_part_bytes(a, team), left = GPU_ROW_BYTES(a) - part * bytes;
    return left < bytes ? left : bytes;
}

/* ---- one token --------------------------------------------------------------------------------------------------- */

/* The rows of a token at 32 consecutive places: lane i has place first + i. */
typedef struct gpu_find {
    const uint8_t *x;
    const float *weights;
    uint32_t places; /* bit i: the lane's place has a row */
} gpu_find;

/* Finds a slot's row. False: there is none. base: the slot of the ring, or NULL. */
GPU_FUNC bool find_slot_row(const gpu_combine_args *a, const gpu_source *source, const uint8_t *base, int64_t row,
                            int32_t slot, int64_t at, const uint8_t **x)
{
    if (base) {
        *x = base + slot * a->ring_part_bytes;
        return ((const int32_t *)(base + a->world.space.slot_idx))[slot] >= 0;
    }
    int32_t expert_row = source->map[row * GPU_TOPK(a) + slot];
    *x = source->x + expert_row * source->x_pitch_bytes + at;
    return expert_row >= 0;
}

/* Finds the place's row, from the part's begin on, and the rank's weights for the token. Rows that come through rings
   are in slots. team: the team that takes them, or NULL. False: there is no row. One lane calls it. */
GPU_FUNC bool find_row(const gpu_combine_args *a, const gpu_source *sources, const gpu_team *team,
                       const gpu_token *token, ep_place place, const uint8_t **x, const float **weights)
{
    int32_t rank = place.rank, parts = ring_parts_of(a);
    const uint8_t *base = NULL;
    gpu_hop hop = hop_of(a->routing, &a->at, GPU_RANKS(&a->world.place), token->number, rank);
    int64_t row = (int64_t)sources[rank].first_row + hop.index, at = token->part * ring_part_bytes(a, team);
    bool there = hop.goes && row < sources[rank].rows;
    *x = sources[rank].x + row * sources[rank].x_pitch_bytes + at;
    *weights = (const float *)(sources[rank].weights + row * sources[rank].weights_pitch_bytes);
    if (team && sources[rank].mode == EP_MODE_QUEUE) {
        *x = base = ring_slot(&a->world, team, rank, hop.index * parts + token->part - team->rings[rank].first);
        *weights = (const float *)(base + a->world.space.slot_weights);
    }
    if (GPU_BY_SLOT && there && place.slot >= 0) there = find_slot_row(a, &sources[rank], base, row, place.slot, at, x);
    return there;
}

/* by_rank: places are the ranks, whatever the order of sums is. */
GPU_FUNC gpu_find find_places(const gpu_combine_args *a, const gpu_source *sources, const gpu_team *team,
                              const gpu_token *token, int32_t first, bool by_rank)
{
    const int32_t number = first + threadIdx.x % 32;
    gpu_find f = {NULL, NULL, 0};
    bool there = false;
    ep_place place = {number, -1};
    if (!by_rank) place = place_of(a, token->number, number);
    if ((uint32_t)place.rank < (uint32_t)GPU_RANKS(&a->world.place))
        there = find_row(a, sources, team, token, place, &f.x, &f.weights);
    f.places = __ballot_sync(GPU_ALL, there);
    return f;
}

GPU_FUNC gpu_find find_rows(const gpu_combine_args *a, const gpu_source *sources, const gpu_team *team,
                            const gpu_token *token, int32_t first)
{
    return find_places(a, sources, team, token, first, false);
}

GPU_FUNC const uint8_t *pick(const uint8_t *value, int32_t lane)
{
    return (const uint8_t *)__shfl_sync(GPU_ALL, (unsigned long long)value, lane);
}

/* Adds vector v of all rows found, in the order of places, GPU_SOURCES at a time. Lanes whose vector is past the end
   take part only in the shuffles. */
GPU_FUNC void add_found(const gpu_combine_args *a, const gpu_find *f, int32_t v, bool inside, float sums[8])
{
    for (uint32_t left = f->places; left;) {
        uint4 part[GPU_SOURCES];
        uint32_t next = left;
#pragma unroll
        for (int32_t i = 0; i < GPU_SOURCES; i++) {
            if (!next) break;
            const uint4 *row = (const uint4 *)pick(f->x, __ffs(next) - 1);
            next &= next - 1;
            if (inside) part[i] = load_row(row + v);
        }
#pragma unroll
        for (int32_t i = 0; i < GPU_SOURCES; i++) {
            if (!left) break;
            left &= left - 1;
            if (inside) add_vector(GPU_DTYPE(a->form.dtype), sums, part[i], false, 1.0f);
        }
    }
}

GPU_FUNC void add_biases(const gpu_combine_args *a, int64_t token, int32_t v, float sums[8])
{
#pragma unroll
    for (int32_t i = 0; i < 2; i++) {
        if (!a->bias[i]) continue;
        const uint4 *row = (const uint4 *)(a->bias[i] + token * a->bias_pitch_bytes[i]);
        add_vector(GPU_DTYPE(a->form.dtype), sums, load_row(row + v), false, 1.0f);
    }
}

/* One warp adds a part of a token, or of its part: number `share` of `shares`. */
GPU_FUNC void add_row(const gpu_combine_args *a, const gpu_source *sources, const gpu_team *team,
                      const gpu_token *token, const gpu_find *first_found, int32_t share, int32_t shares)
{
    int32_t vectors = (int32_t)(token_bytes(a, team, token->part) / 16), lane = threadIdx.x % 32;
    int32_t places = places_of(a), at = (int32_t)(token->part * ring_part_bytes(a, team) / 16);
    for (int32_t begin = share * 32; begin < vectors; begin += shares * 32) {
        int32_t v = begin + lane;
        float sums[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
        if (v < vectors) add_biases(a, token->number, at + v, sums);
        add_found(a, first_found, v, v < vectors, sums);
        for (int32_t first = 32; first < places; first += 32) {
            gpu_find more = find_rows(a, sources, team, token, first);
            add_found(a, &more, v, v < vectors, sums);
        }
        if (v < vectors)
            store_row((uint4 *)(a->y + token->number * a->y_pitch_bytes) + at + v,
                      narrow_vector(GPU_DTYPE(a->form.dtype), sums));
    }
}

/* Takes the weight that each slot's owner gave for it, unchanged; lanes take slots. */
GPU_FUNC void take_weights(const gpu_combine_args *a, const gpu_source *sources, const gpu_team *team,
                           const gpu_token *token)
{
    const uint16_t *owners = owners_of(a, token->number);
    for (int32_t k = threadIdx.x % 32; k < GPU_TOPK(a); k += 32) {
        const uint8_t *x;
        const float *weights;
        uint32_t bits = 0;
        ep_place place = {owners[k], -1};
        if (place.rank < GPU_RANKS(&a->world.place) && find_row(a, sources, team, token, place, &x, &weights))
            bits = ((const uint32_t *)weights)[k];
        ((uint32_t *)a->out_weights)[token->number * a->out_weights_pitch + k] = bits;
    }
}

/* Adds slot by slot, ranks ascending; lanes take slots. The token's first part has its weights. */
GPU_FUNC void add_weights(const gpu_combine_args *a, const gpu_source *sources, const gpu_team *team,
                          const gpu_token *token)
{
    int32_t topk = GPU_TOPK(a), lane = threadIdx.x % 32;
    if (GPU_BY_SLOT && a->form.weights_of == EP_WEIGHTS_OF_OWNER) {
        take_weights(a, sources, team, token);
        return;
    }
    for (int32_t begin = 0; begin < topk; begin += 32) {
        float sum = 0.0f;
        for (int32_t first = 0; first < GPU_RANKS(&a->world.place); first += 32) {
            gpu_find f = find_places(a, sources, team, token, first, true);
            for (uint32_t left = f.places; left; left &= left - 1) {
                const float *row = (const float *)pick((const uint8_t *)f.weights, __ffs(left) - 1);
                if (begin + lane < topk) sum = __fadd_rn(sum, row[begin + lane]);
            }
        }
        if (begin + lane < topk)
            ((uint32_t *)a->out_weights)[token->number * a->out_weights_pitch + begin + lane] = narrow_f32(sum);
    }
}

#include "exec/cuda/kernels/normal/combine_bulk.h"

GPU_FUNC void add_all(const gpu_combine_args *a, const gpu_source *sources, uint8_t *slots)
{
#ifdef GPU_HAS_BULK
    if (a->part_bytes) {
        add_all_by_bulk(a, sources, slots);
        return;
    }
#endif
    int32_t warp = threadIdx.x / 32, warps = blockDim.x / 32;
    for (int64_t t = (int64_t)warp * gridDim.x + blockIdx.x; t < a->tokens; t += (int64_t)warps * gridDim.x) {
        gpu_token token = {t, 0};
        gpu_find found = find_rows(a, sources, NULL, &token, 0);
        add_row(a, sources, NULL, &token, &found, 0, 1);
        if (a->out_weights) add_weights(a, sources, NULL, &token);
    }
}

/* ---- all rows ---------------------------------------------------------------------------------------------------- */

#include "exec/cuda/kernels/normal/combine_queue.h"

/* rings: [2][N] shared; slots follow them. */
GPU_FUNC void move_rows(const gpu_combine_args *a, const gpu_source *sources, gpu_ring *rings, uint8_t *slots,
                        uint32_t epoch)
{
    bool queued = false;
    for (int32_t pe = threadIdx.x; pe < GPU_RANKS(&a->world.place); pe += blockDim.x)
        queued |= sources[pe].mode == EP_MODE_QUEUE;
    if (__syncthreads_or(queued))
        add_queued(a, sources, rings, epoch);
    else
        add_all(a, sources, slots);
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

GPU_KERNEL(32 * GPU_COMBINE_WARPS) GPU_COMBINE(GPU_ARGS gpu_combine_args a)
{
    GPU_LAUNCH_SHARED(uint8_t, shared);
    gpu_source *sources = (gpu_source *)shared;
    gpu_ring *rings = (gpu_ring *)(sources + GPU_RANKS(&a.world.place));
    const gpu_world *world = &a.world;
    uint32_t epoch = world->place.state->epoch + 1;
    stamp_warp(a.stamps, GPU_STARTED);
    if (blockIdx.x == 0) post_headers(&a, epoch);
    bool go = accept_headers(&a, epoch, sources);
    if (blockIdx.x == 0) tell_opened(&world->place);
    stamp_warp(a.stamps, GPU_OPENED);
    if (go)
        move_rows(&a, sources, rings,
                  shared + ep_round(GPU_RANKS(&world->place) * GPU_COMBINE_RANK_BYTES, EP_ALIGN_BYTES), epoch);
    stamp_warp(a.stamps, GPU_SENT);
    if (!last_block(&world->place, true)) return;
    if (go) exchange_dones(world, epoch);
    if (threadIdx.x == 0) {
        world->place.state->epoch = epoch;
        world->place.state->dealt = 0;
    }
    stamp_warp(a.stamps, GPU_ENDED);
}

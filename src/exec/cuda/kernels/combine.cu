/* SPDX-License-Identifier: Apache-2.0 */
/* Combine: the way back. Each owner fetches the rows of its tokens from the ranks that had them, and adds them.
 *
 * Grid: as many blocks as SMs were granted. Block 0 writes this rank's hello, with where its rows lie, into every
 * peer's memory (release). All blocks poll the peers' hellos in local memory (acquire): a peer's hello says that its
 * rows are ready, since it is posted in stream order behind the kernels that made them. Then each warp takes parts of
 * rows (sm_90): bulk copies bring them from all ranks that have them into shared memory, the next part while one is
 * added, and a lane takes every 32nd vector of 16 bytes (combine_bulk.h): biases and rows in rank order in FP32, one
 * rounding. On older GPUs a warp takes a token, and a lane loads its vector from up to GPU_SOURCES ranks at once. Where
 * some rank's rows come by the queue, blocks take channels instead (combine_queue.h). The last block posts the dones
 * (release): "I have read all that I will", and polls those of all peers (acquire), after which x may be used again.
 *
 * Bytes a token: one row read a rank that had it, one row written. Shared memory: [N] places of rows, [2][N] rings, and
 * slots for parts of rows. */
#include "exec/cuda/kernels/bulk.h"
#include "exec/cuda/kernels/number.h"
#include "exec/cuda/kernels/rings.h"

/* Rows of which a lane has a vector in flight. */
#define GPU_SOURCES 4

/* Where one provider's rows lie, as addresses; in shared memory. */
typedef struct gpu_source {
    const uint8_t *x, *weights;
    int64_t x_pitch_bytes, weights_pitch_bytes;
    int32_t first_row; /* this rank's first row there */
    int32_t rows;      /* rows from here on were dropped */
    int32_t mode;      /* ep_mode */
    int32_t unused;
} gpu_source;
static_assert(sizeof(gpu_source) + 2 * sizeof(gpu_ring) == GPU_COMBINE_RANK_BYTES, "the host plans shared memory");

/* ---- hellos ------------------------------------------------------------------------------------------------------ */

/* Rows that this rank has: what came, but no more than it had room for. */
GPU_FUNC int32_t rows_held(const gpu_combine_args *a)
{
    if (!a->routing) return 0;
    int32_t came = ((const int32_t *)(a->routing + a->at.rank_prefix))[GPU_RANKS(&a->world) - 1];
    return came < a->offer.rows ? came : a->offer.rows;
}

/* By block 0. */
GPU_FUNC void post_hellos(const gpu_combine_args *a, uint32_t epoch)
{
    const gpu_world *world = &a->world;
    ep_offer offer = a->offer;
    offer.rows = rows_held(a);
    for (int32_t pe = threadIdx.x; pe < GPU_RANKS(world); pe += blockDim.x) {
        ep_hello *hello = hello_at(world, pe, epoch, world->rank);
        hello->form = a->form;
        hello->offer = offer;
        copy_words(&hello->refusal, &a->refusal, a->refusal.status ? sizeof a->refusal : sizeof a->refusal.status);
        store_release((uint64_t *)&hello->flag, ep_word(epoch, 1));
    }
}

/* By every block: waits for the hellos of all, and notes where the rows lie. False: nothing is to be added. */
GPU_FUNC bool accept_hellos(const gpu_combine_args *a, uint32_t epoch, gpu_source *sources)
{
    const gpu_world *world = &a->world;
    bool come = true, agree = true;
    for (int32_t pe = threadIdx.x; pe < GPU_RANKS(world); pe += blockDim.x) {
        const ep_hello *hello = hello_at(world, world->rank, epoch, pe);
        come &= await_flag(world, (const uint64_t *)&hello->flag, epoch, GPU_WAIT_HELLO, pe);
        agree &= hello_agrees(hello, &a->form);
        sources[pe].x = heap_at(world, pe, hello->offer.x_offset);
        sources[pe].weights = heap_at(world, pe, hello->offer.weights_offset);
        sources[pe].x_pitch_bytes = hello->offer.x_pitch_bytes;
        sources[pe].weights_pitch_bytes = hello->offer.weights_pitch_bytes;
        sources[pe].first_row = a->routing ? ((const int32_t *)(a->routing + a->at.first_row))[pe] : 0;
        sources[pe].rows = hello->offer.rows;
        sources[pe].mode = hello->offer.mode;
    }
    if (__syncthreads_and(come && agree)) return true;
    if (!__syncthreads_and(come)) return false;
    bool refused = false;
    int32_t against = judge_hellos(world, epoch, &refused);
    if (against >= 0 && blockIdx.x == 0 && threadIdx.x == 0) report_hello(world, epoch, against, refused);
    return against < 0;
}

/* ---- one token --------------------------------------------------------------------------------------------------- */

/* The rows of a token at the ranks of one word of 32: lane r has rank first + r. */
typedef struct gpu_find {
    const uint8_t *x;
    const float *weights;
    uint32_t ranks; /* bit r: the lane's rank has a row */
} gpu_find;

/* Rows that come by the queue lie in slots; team: the one that takes them, or NULL where there are none. */
GPU_FUNC gpu_find find_rows(const gpu_combine_args *a, const gpu_source *sources, const gpu_team *team, int64_t token,
                            int32_t first)
{
    int32_t ranks = GPU_RANKS(&a->world), rank = first + threadIdx.x % 32;
    gpu_find f = {NULL, NULL, 0};
    bool there = false;
    if (rank < ranks) {
        gpu_hop hop = hop_of(a->routing, &a->at, ranks, token, rank);
        int64_t row = (int64_t)sources[rank].first_row + hop.index;
        there = hop.goes && row < sources[rank].rows;
        f.x = sources[rank].x + row * sources[rank].x_pitch_bytes;
        f.weights = (const float *)(sources[rank].weights + row * sources[rank].weights_pitch_bytes);
        if (team && sources[rank].mode == EP_MODE_QUEUE) {
            f.x = ring_slot(&a->world, team, rank, hop.index - team->rings[rank].first);
            f.weights = (const float *)(f.x + a->world.space.slot_weights);
        }
    }
    f.ranks = __ballot_sync(GPU_ALL, there);
    return f;
}

GPU_FUNC const uint8_t *pick(const uint8_t *value, int32_t lane)
{
    return (const uint8_t *)__shfl_sync(GPU_ALL, (unsigned long long)value, lane);
}

/* Adds vector v of all rows found, in rank order, GPU_SOURCES in flight. Lanes whose vector is past the end take part
   in the shuffles only. */
GPU_FUNC void add_found(const gpu_combine_args *a, const gpu_find *f, int32_t v, bool inside, float sums[8])
{
    for (uint32_t left = f->ranks; left;) {
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

/* By one warp: the part-th of `parts` shares of a row. */
GPU_FUNC void add_row(const gpu_combine_args *a, const gpu_source *sources, const gpu_team *team, int64_t token,
                      const gpu_find *first_found, int32_t part, int32_t parts)
{
    int32_t vectors = (int32_t)(GPU_ROW_BYTES(a) / 16), lane = threadIdx.x % 32, ranks = GPU_RANKS(&a->world);
    for (int32_t begin = part * 32; begin < vectors; begin += parts * 32) {
        int32_t v = begin + lane;
        float sums[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
        if (v < vectors) add_biases(a, token, v, sums);
        add_found(a, first_found, v, v < vectors, sums);
        for (int32_t first = 32; first < ranks; first += 32) {
            gpu_find more = find_rows(a, sources, team, token, first);
            add_found(a, &more, v, v < vectors, sums);
        }
        if (v < vectors)
            store_row((uint4 *)(a->y + token * a->y_pitch_bytes) + v, narrow_vector(GPU_DTYPE(a->form.dtype), sums));
    }
}

/* Slot by slot, ranks ascending; lanes take slots. */
GPU_FUNC void add_weights(const gpu_combine_args *a, const gpu_source *sources, const gpu_team *team, int64_t token)
{
    int32_t topk = GPU_TOPK(a), lane = threadIdx.x % 32;
    for (int32_t begin = 0; begin < topk; begin += 32) {
        float sum = 0.0f;
        for (int32_t first = 0; first < GPU_RANKS(&a->world); first += 32) {
            gpu_find f = find_rows(a, sources, team, token, first);
            for (uint32_t left = f.ranks; left; left &= left - 1) {
                const float *row = (const float *)pick((const uint8_t *)f.weights, __ffs(left) - 1);
                if (begin + lane < topk) sum = __fadd_rn(sum, row[begin + lane]);
            }
        }
        if (begin + lane < topk)
            ((uint32_t *)a->out_weights)[token * a->out_weights_pitch + begin + lane] = narrow_f32(sum);
    }
}

#include "exec/cuda/kernels/combine_bulk.h"

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
        gpu_find found = find_rows(a, sources, NULL, t, 0);
        add_row(a, sources, NULL, t, &found, 0, 1);
        if (a->out_weights) add_weights(a, sources, NULL, t);
    }
}

/* ---- all rows ---------------------------------------------------------------------------------------------------- */

#include "exec/cuda/kernels/combine_queue.h"

/* rings: [2][N] shared; slots behind them. */
GPU_FUNC void move_rows(const gpu_combine_args *a, const gpu_source *sources, gpu_ring *rings, uint8_t *slots,
                        uint32_t epoch)
{
    bool queued = false;
    for (int32_t pe = threadIdx.x; pe < GPU_RANKS(&a->world); pe += blockDim.x)
        queued |= sources[pe].mode == EP_MODE_QUEUE;
    if (__syncthreads_or(queued))
        add_queued(a, sources, rings, epoch);
    else
        add_all(a, sources, slots);
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

GPU_FUNC void stamp(const gpu_combine_args *a, int32_t which)
{
    if (a->stamps && threadIdx.x == 0) a->stamps[which * gridDim.x + blockIdx.x] = clock_now();
}

extern "C" __global__ void __launch_bounds__(32 * GPU_COMBINE_WARPS, 1)
    ep_combine(const __grid_constant__ gpu_combine_args a)
{
    extern __shared__ __align__(128) uint8_t shared[];
    gpu_source *sources = (gpu_source *)shared;
    gpu_ring *rings = (gpu_ring *)(sources + GPU_RANKS(&a.world));
    const gpu_world *world = &a.world;
    uint32_t epoch = world->state->epoch + 1;
    stamp(&a, 0);
    if (blockIdx.x == 0) post_hellos(&a, epoch);
    bool go = accept_hellos(&a, epoch, sources);
    if (blockIdx.x == 0) tell_opened(world);
    stamp(&a, 1);
    if (go)
        move_rows(&a, sources, rings, shared + ep_round(GPU_RANKS(world) * GPU_COMBINE_RANK_BYTES, EP_ALIGN_BYTES),
                  epoch);
    stamp(&a, 2);
    if (!last_block(world, true)) return;
    if (go) exchange_dones(world, epoch);
    if (threadIdx.x == 0) world->state->epoch = epoch;
    stamp(&a, 3);
}

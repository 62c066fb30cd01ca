/* SPDX-License-Identifier: Apache-2.0 */
/* Low-latency mode's copy roofline, its round trips, and an empty launch.
 *
 * bench_ll_turn: copies messages to their slots, or adds rows into places at other ranks; then copies rows from slots
 * to where experts read them, and adds rows. Nobody waits for anybody, and there are no flags: slots and places hold
 * the same from turn to turn. A warp takes a part of a copy or a sum, PART_BYTES and SUM_BYTES of it, so that few rows,
 * too, are spread over all SMs. Parts lie so that those of one row are in different blocks. With stamps each warp
 * stores the clock at its start, after its sends, if it has any, and after its work, where it ends. Registers: under
 * 64; nothing shared.
 *
 * bench_ll_trip: one thread on ranks 0 and 1. Who waits for whom: rank 1 for rank 0's word, rank 0 for the answer. */
#include "bench/gpu/kernels/forms.h"
#include "exec/cuda/kernels/core/tools.h"

#define PART_VECTORS 4 /* of 16 bytes, that a lane has in flight */
#define PART_BYTES   (32 * 16 * PART_VECTORS)
#define SUM_BYTES    (32 * 16)

GPU_FUNC int64_t parts_of(int64_t bytes, int64_t part_bytes)
{
    return (bytes + part_bytes - 1) / part_bytes;
}

GPU_FUNC void copy_part(const ll_copy *copy, int64_t bytes, int64_t begin, int32_t lane)
{
    const int64_t vectors = bytes / 16;
    const uint4 *from = (const uint4 *)copy->source;
    uint4 *to = (uint4 *)copy->target, parts[PART_VECTORS];
#pragma unroll
    for (int32_t i = 0; i < PART_VECTORS; i++)
        if (begin + i * 32 + lane < vectors) parts[i] = load_row(from + begin + i * 32 + lane);
#pragma unroll
    for (int32_t i = 0; i < PART_VECTORS; i++)
        if (begin + i * 32 + lane < vectors) store_row(to + begin + i * 32 + lane, parts[i]);
}

/* The rest beside whole vectors: scales, and the token's number. */
GPU_FUNC void copy_rest(const ll_turn *t, const ll_copy *copy, int64_t bytes, int32_t lane)
{
    const uint32_t *words = (const uint32_t *)copy->source;
    for (int64_t i = bytes / 16 * 4 + lane; i < bytes / 4; i += 32)
        ((uint32_t *)copy->target)[i] = words[i];
    for (int32_t i = lane; copy->scales && i < t->num_scales; i += 32)
        copy->scales[i * t->scale_stride] = words[bytes / 4 + i];
    if (lane == 0 && copy->info) *copy->info = copy->token;
}

/* Copies this warp's parts of a list. False: it has none. */
GPU_FUNC bool copy_list_parts(const ll_turn *t, const ll_copy *list, int64_t count, int64_t most_bytes)
{
    const int64_t warp = (int64_t)(threadIdx.x / 32) * gridDim.x + blockIdx.x;
    const int64_t warps = (int64_t)gridDim.x * blockDim.x / 32;
    const int64_t parts = parts_of(most_bytes, PART_BYTES);
    const int32_t lane = threadIdx.x % 32;
    for (int64_t p = warp; p < count * parts; p += warps) {
        const ll_copy *copy = list + p / parts;
        const int64_t bytes = t->all_bytes ? t->all_bytes : copy->bytes, begin = p % parts * (PART_BYTES / 16);
        copy_part(copy, bytes, begin, lane);
        if (begin == 0) copy_rest(t, copy, bytes, lane);
    }
    return warp < count * parts;
}

GPU_FUNC void add_part(const ll_turn *t, const ll_sums *list, const ll_sum *sum, int64_t vector)
{
    float sums[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    const uint8_t *const *rows = list->rows + sum->first;
    const float *weights = list->weights ? list->weights + sum->first : NULL;
    for (int32_t i = 0; i < sum->count; i += PART_VECTORS) {
        uint4 parts[PART_VECTORS];
#pragma unroll
        for (int32_t j = 0; j < PART_VECTORS; j++)
            if (i + j < sum->count) parts[j] = load_row((const uint4 *)rows[i + j] + vector);
#pragma unroll
        for (int32_t j = 0; j < PART_VECTORS; j++)
            if (i + j < sum->count)
                add_vector(t->dtype, sums, parts[j], weights != NULL, weights ? weights[i + j] : 1.0f);
    }
    store_row((uint4 *)sum->out + vector, narrow_vector(t->dtype, sums));
}

/* Adds this warp's parts of a list. False: it has none. */
GPU_FUNC bool add_list(const ll_turn *t, const ll_sums *list)
{
    const int64_t warp = (int64_t)(threadIdx.x / 32) * gridDim.x + blockIdx.x;
    const int64_t warps = (int64_t)gridDim.x * blockDim.x / 32;
    const int64_t parts = parts_of(t->row_bytes, SUM_BYTES);
    for (int64_t p = warp; p < list->count * parts; p += warps) {
        const int64_t vector = p % parts * 32 + threadIdx.x % 32;
        if (vector < t->row_bytes / 16) add_part(t, list, list->items + p / parts, vector);
    }
    return warp < list->count * parts;
}

GPU_KERNEL(1024) bench_ll_turn(GPU_ARGS ll_turn t)
{
    stamp_warp(t.stamps, LL_GPU_STARTED);
    bool sends = copy_list_parts(&t, t.messages, t.num_messages, t.most_message_bytes);
    sends |= add_list(&t, &t.partial);
    if (sends) stamp_warp(t.stamps, LL_GPU_SENT);
    copy_list_parts(&t, t.rows, t.num_rows, t.most_row_bytes);
    add_list(&t, &t.sums);
    stamp_warp(t.stamps, LL_GPU_DONE);
    stamp_warp(t.stamps, LL_GPU_ENDED);
}

GPU_FUNC bool await_trip(const ll_trip_call *t, uint64_t value)
{
    const uint64_t start = clock_now();
    while (load_acquire(t->own) < value)
        if (clock_now() - start > t->timeout_ns) return false;
    return true;
}

GPU_KERNEL(32) bench_ll_trip(GPU_ARGS ll_trip_call t)
{
    bool come = true;
    for (int32_t i = 0; threadIdx.x == 0 && come && i < t.trips; i++) {
        const uint64_t value = t.first + (uint64_t)i;
        if (t.rank == 1) come = await_trip(&t, value);
        store_release(t.peers, value);
        if (t.rank == 0) come = await_trip(&t, value);
    }
    if (!come) *t.expired = 1;
}

GPU_KERNEL(32) bench_ll_nothing(GPU_ARGS ll_nothing a)
{
    (void)a;
}

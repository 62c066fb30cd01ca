/* SPDX-License-Identifier: Apache-2.0 */
/* The send of a combine in LogFMT. The groups of up to 32 of a block's rows (combine_list.h) are numbered through, row
 * after row, and each warp has a part of them. It passes over its part twice. The first pass finds the ranges. Then the
 * block meets, since the addresses of groups are only known after that. The second pass codes the groups. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_LOG_SEND_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_LOG_SEND_H

#include "exec/cuda/kernels/low_latency/combine_list.h"
#include "exec/cuda/kernels/low_latency/headers.h"
#include "exec/cuda/kernels/low_latency/log_codes.h"

/* The most words that a lane loads at once in the first pass. */
#define LL_LOG_WORDS (LL_ALL_FORMATS ? 8 : 16)

/* Rows that a block sends at a time. */
typedef struct ll_log_rows {
    int32_t count;
    ll_listed mine; /* this lane's, in lanes below count */
    const float *table;
    /* [count][pitch] in shared memory, 1: the group goes as BF16. The group's lane writes it in the first pass; the
       second pass reads it after a meeting. */
    uint8_t *bf16;
    /* [32] in shared memory, the bytes of each row. The lane of the row's last group writes them, and the thread that
       stores the row's flag reads them after a meeting. */
    int32_t *sizes;
} ll_log_rows;

/* This lane's group. */
typedef struct ll_log_group {
    bool is; /* false: the lane has none */
    int32_t row, group;
    const uint8_t *from;
    uint8_t *place; /* the row's */
} ll_log_group;

/* ---- loading ----------------------------------------------------------------------------------------------------- */

/* The type of the rows, and the most words that a lane has of a group. Both are known at compile time, or at least
   `words`. */
typedef struct ll_log_type {
    int32_t dtype, words;
} ll_log_type;

/* Loads the lane's elements of the group of lane j. They stay in the first-level cache for the second pass. */
GPU_FUNC void ll_log_load(ll_log_type type, const ll_log_group *at, int32_t j, uint32_t *words)
{
    const uint8_t *from = ll_pointer_of(at->from, j);
    const int32_t lane = threadIdx.x % 32;
    if (type.dtype == CODEC_F32) {
        const uint4 all = ((const uint4 *)from)[lane];
        words[0] = all.x, words[1] = all.y, words[2] = all.z, words[3] = all.w;
    } else {
        const uint64_t all = ((const uint64_t *)from)[lane];
        words[0] = (uint32_t)all, words[1] = (uint32_t)(all >> 32);
    }
}
GPU_FUNC void ll_log_values(ll_log_type type, const uint32_t *words, float values[LL_LOG_LANE])
{
#pragma unroll
    for (int32_t i = 0; i < LL_LOG_LANE; i++) {
        const uint32_t slot = words[i / 2] >> 16 * (i % 2) & 0xffffu;
        values[i] = type.dtype == CODEC_F32    ? __uint_as_float(words[i])
                    : type.dtype == CODEC_BF16 ? __uint_as_float(slot << 16)
                                               : widen_f16(slot);
    }
}

/* ---- the first pass: ranges -------------------------------------------------------------------------------------- */

/* Finds the extent of the warp's group: the least of (magnitude - 1), where zero gives the largest number, and the
   largest magnitude. */
GPU_FUNC void ll_log_extent(const float values[LL_LOG_LANE], uint32_t *least_below, uint32_t *most)
{
    uint32_t below = 0xffffffffu, above = 0;
#pragma unroll
    for (int32_t i = 0; i < LL_LOG_LANE; i++) {
        const uint32_t magnitude = number_magnitude(values[i]);
        below = min(below, magnitude - 1);
        above = max(above, magnitude);
    }
    *least_below = __reduce_min_sync(GPU_ALL, below);
    *most = __reduce_max_sync(GPU_ALL, above);
}

/* Returns the range of this lane's group; `count` lanes have one. */
GPU_FUNC logfmt_range ll_log_ranges(ll_log_type type, const ll_log_group *at, int32_t count)
{
    const int32_t lane = threadIdx.x % 32, loads = LL_LOG_WORDS / type.words;
    uint32_t least_below = 0xffffffffu, most = 0;
    for (int32_t first = 0; first < count; first += loads) {
        uint32_t words[LL_LOG_WORDS];
#pragma unroll
        for (int32_t j = 0; j < loads; j++)
            ll_log_load(type, at, min(first + j, count - 1), words + j * type.words);
#pragma unroll
        for (int32_t j = 0; j < loads; j++) {
            float values[LL_LOG_LANE];
            uint32_t below, above;
            ll_log_values(type, words + j * type.words, values);
            ll_log_extent(values, &below, &above);
            if (lane == first + j) least_below = below, most = above;
        }
    }
    return logfmt_range_of(least_below, most);
}

/* ---- the second pass: codes -------------------------------------------------------------------------------------- */

/* Returns the number of earlier groups in its row that go as BF16. */
GPU_FUNC int32_t ll_log_bf16_before(const uint8_t *bf16_of_row, int32_t group)
{
    const uint32_t *words = (const uint32_t *)bf16_of_row;
    int32_t count = 0;
    for (int32_t w = 0; w < group / 4; w++)
        count += __popc(words[w]);
    return group % 4 ? count + __popc(words[group / 4] & ((1u << 8 * (group % 4)) - 1)) : count;
}

/* Returns bytes whose highest bits are the signs of the lane's elements. */
GPU_FUNC uint32_t ll_log_signs(ll_log_type type, const uint32_t *words)
{
    if (type.dtype != CODEC_F32) return __byte_perm(words[0], words[1], 0x7531);
    return __byte_perm(__byte_perm(words[0], words[1], 0x7373), __byte_perm(words[2], words[3], 0x7373), 0x5410);
}

/* Stores the low bytes of codes, and a byte of the bits above of four, from each lane. One warp calls it. */
GPU_FUNC void ll_log_store_coded(const logfmt_range *range, float steps_per_unit, const float values[LL_LOG_LANE],
                                 uint32_t signs, const float *table, uint8_t *bytes)
{
    const int32_t lane = threadIdx.x % 32;
    uint32_t codes[LL_LOG_LANE], low, above;
#pragma unroll
    for (int32_t i = 0; i < LL_LOG_LANE; i++)
        codes[i] = ll_log_code_in(range, steps_per_unit, values[i], table);
    ll_log_pack(codes, signs, &low, &above);
    ((uint32_t *)bytes)[lane] = low;
    bytes[LOGFMT_LOW_BYTES + lane] = (uint8_t)(above >> 24);
}
GPU_FUNC void ll_log_store_bf16(const float values[LL_LOG_LANE], uint8_t *bytes)
{
    const uint32_t low = narrow_pair_bf16(values[0], values[1]), high = narrow_pair_bf16(values[2], values[3]);
    ((uint64_t *)bytes)[threadIdx.x % 32] = (uint64_t)high << 32 | low;
}

/* Stores the warp's groups. `to` and steps_per_unit of a group are in its lane; 0 steps: it goes as BF16. The next
   group is loaded from the cache meanwhile. */
GPU_FUNC void ll_log_store_groups(ll_log_type type, const ll_log_group *at, int32_t count, const logfmt_range *range,
                                  float steps_per_unit, const float *table, const uint8_t *to)
{
    uint32_t words[LL_LOG_LANE];
    if (count > 0) ll_log_load(type, at, 0, words);
    for (int32_t j = 0; j < count; j++) {
        const logfmt_range of = ll_log_range_of(range, j);
        const float steps = __shfl_sync(GPU_ALL, steps_per_unit, j);
        uint8_t *bytes = (uint8_t *)ll_pointer_of(to, j);
        float values[LL_LOG_LANE];
        ll_log_values(type, words, values);
        const uint32_t signs = ll_log_signs(type, words);
        ll_log_load(type, at, min(j + 1, count - 1), words);
        if (steps > 0.0f)
            ll_log_store_coded(&of, steps, values, signs, table, bytes);
        else
            ll_log_store_bf16(values, bytes);
    }
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* Adds rows that the call will send to the rank, or -1 for a sent row and its bytes. One thread calls it. */
GPU_FUNC void ll_log_count(const ll_gpu_call *c, const ll_now *now, int32_t to, int32_t rows, int32_t bytes)
{
    unsigned long long *coded = &c->tally[to].coded[now->slot];
    const uint64_t more = ((uint64_t)(int64_t)rows << LL_GPU_CODED_BITS) + (uint64_t)bytes;
    const uint64_t sum = atomicAdd(coded, (unsigned long long)more) + more;
    if (sum >> LL_GPU_CODED_BITS) return;
    *coded = 0;
    ll_count_bytes(c, to, sum);
}

/* Returns the rows of the lanes that have one, from the lowest lane on. */
GPU_FUNC ll_log_rows ll_log_rows_of(const ll_combine_args *a, const ll_shared *s, const ll_listed *listed)
{
    const uint32_t mask = __ballot_sync(GPU_ALL, listed->row != NULL);
    const int32_t from = ll_log_lane_of(mask);
    ll_log_rows rows;
    rows.count = __popc(mask);
    rows.mine.row = ll_pointer_of(listed->row, from);
    rows.mine.place = (uint8_t *)ll_pointer_of(listed->place, from);
    rows.mine.number = 0;
    rows.mine.to = __shfl_sync(GPU_ALL, listed->to, from);
    rows.table = ll_log_table(s);
    rows.bf16 = (uint8_t *)(rows.table + LL_GPU_LOG_TABLE);
    rows.sizes = (int32_t *)(rows.bf16 + 32 * ll_gpu_log_pitch(ll_log_groups(&a->call)));
    return rows;
}
/* Returns the group of number `first` plus this lane's number; none if that is not below `end`. */
GPU_FUNC ll_log_group ll_log_group_of(const ll_gpu_call *c, ll_log_type type, const ll_log_rows *rows, int32_t first,
                                      int32_t end)
{
    const int32_t groups = ll_log_groups(c), number = first + (int32_t)threadIdx.x % 32;
    ll_log_group at;
    at.is = number < end;
    at.row = at.is ? number / groups : 0;
    at.group = at.is ? number % groups : 0;
    at.from = ll_pointer_of(rows->mine.row, at.row) + at.group * LOGFMT_GROUP * (type.dtype == CODEC_F32 ? 4 : 2);
    at.place = (uint8_t *)ll_pointer_of(rows->mine.place, at.row);
    return at;
}

/* Sends the block's groups from number base on, `each` of them by each warp. */
GPU_FUNC void ll_log_send_groups(const ll_gpu_call *c, const ll_now *now, ll_log_type type, const ll_log_rows *rows,
                                 int32_t base, int32_t each)
{
    const int32_t groups = ll_log_groups(c), all = rows->count * groups;
    const int32_t first = min(base + (int32_t)threadIdx.x / 32 * each, all), end = min(first + each, all);
    const ll_log_group at = ll_log_group_of(c, type, rows, first, end);
    const logfmt_range range = ll_log_ranges(type, &at, end - first);
    const bool coded = range.span > 0.0f;
    uint8_t *bf16 = rows->bf16 + at.row * ll_gpu_log_pitch(groups);
    if (at.is) {
        ((float *)at.place)[2 * at.group] = range.least;
        ((float *)at.place)[2 * at.group + 1] = range.most;
        bf16[at.group] = !coded;
    }
    __syncthreads();
    const float steps_per_unit = coded ? logfmt_steps_per_unit(&range) : 0.0f;
    const int32_t begin = ll_log_begin(c, at.group, ll_log_bf16_before(bf16, at.group));
    const int32_t to = __shfl_sync(GPU_ALL, rows->mine.to, at.row);
    ll_log_store_groups(type, &at, end - first, &range, steps_per_unit, type.words == 2 ? rows->table : NULL,
                        at.place + begin);
    if (!at.is || at.group != groups - 1) return;
    const int32_t bytes = begin + logfmt_group_bytes(&range);
    if (LL_FAR) rows->sizes[at.row] = bytes;
    ll_log_count(c, now, to, -1, bytes);
}

/* All threads of a block call it, and meet afterwards. */
GPU_FUNC void ll_log_send_rows(const ll_gpu_call *c, const ll_now *now, const ll_log_rows *rows)
{
    const int32_t all = rows->count * ll_log_groups(c), each = min((all + LL_BLOCK_WARPS - 1) / LL_BLOCK_WARPS, 32);
    const ll_log_type bf16 = {CODEC_BF16, 2}, any = {c->form.dtype, 4};
    for (int32_t base = 0; base < all; base += each * LL_BLOCK_WARPS)
        if (!LL_ALL_FORMATS && c->form.dtype == CODEC_BF16)
            ll_log_send_groups(c, now, bf16, rows, base, each);
        else
            ll_log_send_groups(c, now, any, rows, base, each);
}

/* Stores the flags of the rows that the lanes have. One warp calls it. */
GPU_FUNC void ll_log_flag_rows(const ll_combine_args *a, const ll_shared *s, const ll_now *now, const ll_log_rows *rows,
                               const ll_listed *mine)
{
    const uint32_t mask = __ballot_sync(GPU_ALL, mine->row != NULL);
    if (!mine->row) return;
    const int32_t row = __popc(mask & ((1u << threadIdx.x % 32) - 1));
    ll_flag_row(&a->call, s, now, mine->to, mine->number, mine->place, LL_FAR ? (uint64_t)rows->sizes[row] : 0);
}

/* Sends all of the block's rows. If several blocks share each message, each sends some of its slots. Otherwise all
   blocks send equal numbers of rows, which takes a while to compute. *sending: only that many blocks, the first ones,
   have a row. */
GPU_FUNC void ll_log_send(const ll_combine_args *a, const ll_shared *s, const ll_now *now, int32_t *sending)
{
    const int32_t messages = ll_all_messages(&a->call, s), lane = threadIdx.x % 32;
    const ll_split split = ll_split_of(messages, 0, LL_MASKS ? 1 : 8, 1);
    const bool shared = split.parts > 1;
    ll_list list = {split.first, messages, 0, 0, 0, 0, 0, NULL};
    *sending = messages * split.parts;
    if (!shared) list = ll_list_of(a, s, sending);
    for (int32_t at = list.first; at < list.end; at += shared ? split.stride : 32) {
        const int32_t listed = (at - list.first) % LL_GPU_LISTED;
        if (!shared && listed == 0) ll_list_entries(a, s, &list, at);
        const bool is = shared ? lane < a->routing.topk && lane % split.parts == split.part : at + lane < list.end;
        ll_listed mine = {NULL, NULL, 0, 0};
        if (is) mine = ll_listed_row(a, s, now, shared ? ll_listed_entry(at, lane) : list.entries[listed + lane]);
        __syncwarp();
        const ll_log_rows rows = ll_log_rows_of(a, s, &mine);
        ll_log_send_rows(&a->call, now, &rows);
        ll_stamp_time(&a->call, LL_GPU_SENT);
        __syncthreads();
        if (threadIdx.x < 32) ll_log_flag_rows(a, s, now, &rows, &mine);
    }
}

#endif

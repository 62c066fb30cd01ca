/* SPDX-License-Identifier: Apache-2.0 */
/* ll_dispatch: a low-latency dispatch, or one of its two phases.
 *
 *   grid     as many blocks as the call may use SMs, all resident with those of the other ranks; LL_GPU_THREADS each
 *   units    the last N blocks count the experts of one rank each (a histogram in shared memory) and open the call
 *            there, before they do anything else
 *   send     block b has tokens b, b + blocks, …: its warps find each slot's message and row by looking at all tokens
 *            before (the indices of all tokens lie in shared memory), then all threads load the row once, quantise it
 *            where the format says so, and store it to the slots of all its ranks; then a flag a message. Small batches
 *            go in words, each row by two blocks
 *   receive  teams of two blocks, of one, or of a part of one's warps have messages of all ranks in turn, the first
 *            block behind those that send first: each warp polls the message's flag, or its words, and brings its part
 *            of the row to all rows of the message's experts
 *   waits    the send for the half before to be read (a word that is there already, but for a rank that is behind);
 *            the receive for all units, then for each message
 *   bytes    of a token: its row once from memory, once to each of its ranks; there once from the slot, and once to
 *            each expert's row */
#include "exec/cuda/kernels/ll_device.h"
#include "exec/cuda/kernels/ll_dues.h"

/* ---- experts of this rank's tokens ------------------------------------------------------------------------------- */

/* Shared memory of this kernel, behind what both have. */
typedef struct ll_tokens {
    int32_t *first; /* [N+1][L] counts, then first rows, of each rank's for each expert here */
    int32_t *idx;   /* [K][pitch] expert, or -1; a token that is not right goes nowhere */
    int32_t pitch;
} ll_tokens;

GPU_FUNC ll_tokens ll_tokens_of(const ll_dispatch_args *a, const ll_shared *s)
{
    ll_tokens t;
    t.first = s->rest;
    t.idx = t.first + (LL_RANKS(&a->call) + 1) * a->call.shape.local_experts;
    t.pitch = ll_gpu_idx_pitch(a->routing.tokens);
    return t;
}

#define LL_OUT_OF_RANGE (-2)

GPU_FUNC void ll_load_idx(const ll_dispatch_args *a, const ll_tokens *t)
{
    const int32_t topk = a->routing.topk, experts = LL_RANKS(&a->call) * a->call.shape.local_experts;
    for (int32_t i = threadIdx.x; i < a->routing.tokens * topk; i += blockDim.x) {
        const int32_t token = i / topk, k = i - token * topk;
        const int64_t expert = expert_at(&a->route, token, k);
        t->idx[k * t->pitch + token] = expert < -1 || expert >= experts ? LL_OUT_OF_RANGE : (int32_t)expert;
    }
}

/* The first slot that is out of range, or has an expert of an earlier one; -1: none. */
GPU_FUNC int32_t ll_find_bad(const int32_t *column, int32_t pitch, int32_t topk)
{
    for (int32_t k = 0; k < topk; k++) {
        const int32_t expert = column[k * pitch];
        bool bad = expert == LL_OUT_OF_RANGE;
        for (int32_t j = 0; j < k; j++)
            bad |= expert >= 0 && column[j * pitch] == expert;
        if (bad) return k;
    }
    return -1;
}

/* With the words of the CPU's check. */
GPU_FUNC void ll_refuse_index(const ll_dispatch_args *a, const ll_shared *s)
{
    const int32_t token = (int32_t)(*s->first_bad >> GPU_SLOT_BITS);
    const int32_t k = (int32_t)(*s->first_bad & ((1u << GPU_SLOT_BITS) - 1));
    const int32_t experts = LL_RANKS(&a->call) * a->call.shape.local_experts;
    const int64_t expert = expert_at(&a->route, token, k);
    char *text = s->refusal->text;
    s->refusal->status = EXPAR_STATUS_INDEX;
    int32_t at = put_words(text, 0, "topk_idx[", token);
    at = put_words(text, at, "][", k);
    at = put_words(text, at, "] is ", expert);
    if (expert >= -1 && expert < experts) {
        put_text(text + at, ", which stands in an earlier slot of the token, too");
        return;
    }
    at = put_words(text, at, "; expected -1 to ", experts - 1);
    text[at] = 0;
}

/* A token with a bad index goes nowhere, and this rank reports it. */
GPU_FUNC void ll_check_tokens(const ll_dispatch_args *a, const ll_shared *s, const ll_tokens *t)
{
    const int32_t topk = a->routing.topk;
    bool any = false;
    for (int32_t token = threadIdx.x; token < a->routing.tokens; token += blockDim.x) {
        const int32_t bad = ll_find_bad(t->idx + token, t->pitch, topk);
        if (bad < 0) continue;
        any = true;
        atomicMin(s->first_bad, (unsigned long long)token << GPU_SLOT_BITS | (unsigned)bad);
        for (int32_t k = 0; k < topk; k++)
            t->idx[k * t->pitch + token] = -1;
    }
    if (!__syncthreads_or(any)) return;
    if (threadIdx.x == 0) ll_refuse_index(a, s);
    __syncthreads();
}

/* Tokens before this one that have the expert, and in the high half those that have one of its rank. By a warp. */
GPU_FUNC uint32_t ll_count_before(const ll_tokens *t, int32_t topk, int32_t token, int32_t expert, int32_t locals)
{
    const int32_t low = expert / locals * locals;
    uint32_t count = 0;
    for (int32_t i = threadIdx.x % 32; i < token; i += 32) {
        bool has = false, any = false;
#pragma unroll 8
        for (int32_t k = 0; k < topk; k++) {
            const int32_t other = t->idx[k * t->pitch + i];
            has |= other == expert;
            any |= other >= low && other < low + locals;
        }
        count += (any ? 1u << 16 : 0) + (has ? 1 : 0);
    }
    return __reduce_add_sync(GPU_ALL, count);
}

/* ---- opening units ----------------------------------------------------------------------------------------------- */

/* Rows for each of the rank's experts into t->first, and messages to it. */
GPU_FUNC int32_t ll_count_for(const ll_dispatch_args *a, const ll_shared *s, const ll_tokens *t, int32_t pe)
{
    const int32_t locals = a->call.shape.local_experts, topk = a->routing.topk;
    for (int32_t l = threadIdx.x; l < locals; l += blockDim.x)
        t->first[l] = 0;
    if (threadIdx.x == 0) *s->sum = 0;
    __syncthreads();
    for (int32_t token = threadIdx.x; token < a->routing.tokens; token += blockDim.x) {
        bool any = false;
        for (int32_t k = 0; k < topk; k++) {
            const int32_t local = t->idx[k * t->pitch + token] - pe * locals;
            if (local < 0 || local >= locals) continue;
            atomicAdd(&t->first[local], 1);
            any = true;
        }
        if (any) atomicAdd(s->sum, 1);
    }
    __syncthreads();
    return *s->sum;
}

/* Of a message, as it is counted. */
GPU_FUNC uint64_t ll_message_bytes(const ll_dispatch_args *a)
{
    const uint64_t numbers = a->route.weights ? 12 : 8;
    const uint64_t header = sizeof(ll_header) + numbers * (uint64_t)a->routing.topk;
    return header + (uint64_t)a->row_bytes + 4 * (uint64_t)a->scales;
}

/* Rows of a call of so few tokens go in words. */
GPU_FUNC bool ll_sends_words(const ll_dispatch_args *a)
{
    return !LL_MASKS && a->call.shape.word_tokens && a->routing.tokens <= a->call.shape.word_tokens;
}

/* False: a wait was given up. */
GPU_FUNC bool ll_open_ranks(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, const ll_tokens *t)
{
    const ll_gpu_call *c = &a->call;
    const bool goes = ll_status_goes_on(s->refusal->status);
    const int32_t words = ll_sends_words(a) ? (int32_t)LL_UNIT_IN_WORDS : 0;
    if (now->behind && blockIdx.x == 0 && !ll_await_between(c, s, now)) return false;
    for (int32_t i = ll_first_opened(now); i < LL_RANKS(c); i += ll_opened_stride(now)) {
        const int32_t pe = (c->world.rank + 1 + i) % LL_RANKS(c);
        if (!ll_is_told(c, pe)) continue;
        const int32_t messages = goes ? ll_count_for(a, s, t, pe) : 0;
        ll_post_unit(c, s, now, pe, 0, messages | words, t->first);
        ll_tell_read(c, s, pe);
        if (threadIdx.x == LL_GPU_THREADS - 1)
            ll_count_sent(c, pe, messages, 0, (uint64_t)messages * ll_message_bytes(a));
        __syncthreads();
    }
    return true;
}

/* ---- one token --------------------------------------------------------------------------------------------------- */

/* What a token's slots are, in s->notes: rows among this rank's for the expert, and of the j-th of its ranks the number
   of its message, the rank itself, whose row lies at s->places[j] then; 0: it takes none. */
#define LL_NOTE_ROW     0
#define LL_NOTE_MESSAGE 1
#define LL_NOTE_RANK    2

GPU_FUNC int32_t *ll_notes(const ll_shared *s, int32_t which)
{
    return s->notes + which * LL_MOST_TOPK;
}

/* The token's slot k, by one warp. False: a wait was given up. */
GPU_FUNC bool ll_place_slot(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, const ll_tokens *t,
                            int32_t token, int32_t k)
{
    const ll_gpu_call *c = &a->call;
    const int32_t topk = a->routing.topk, locals = c->shape.local_experts, lane = threadIdx.x % 32;
    const int32_t expert = t->idx[k * t->pitch + token];
    if (expert < 0) return true;
    const int32_t rank = expert / locals;
    const uint32_t before = ll_count_before(t, topk, token, expert, locals);
    if (lane == 0) ll_notes(s, LL_NOTE_ROW)[k] = (int32_t)(before & 0xffffu);
    const int32_t mine = lane < topk ? t->idx[lane * t->pitch + token] : -1;
    const int32_t to = mine < 0 ? -1 - lane : mine / locals;
    const uint32_t same = __match_any_sync(GPU_ALL, to);
    const uint32_t firsts = __ballot_sync(GPU_ALL, mine >= 0 && __ffs((int)same) - 1 == lane);
    if (!(firsts >> k & 1)) return true;
    const int32_t message = (int32_t)(before >> 16);
    ll_gpu_door door = LL_GPU_OPEN;
    if (lane == 0) {
        const int32_t place = __popc(firsts & ((1u << k) - 1));
        int32_t region;
        door = ll_await_half(c, s, now, rank, &region);
        const uint64_t at = ll_sends_words(a)
                                ? ll_word_message_at(&c->space, &c->shape, c->world.rank, now->epoch, message)
                                : ll_message_at(&c->space, &c->shape, c->world.rank, now->half, message);
        ll_notes(s, LL_NOTE_MESSAGE)[place] = message;
        ll_notes(s, LL_NOTE_RANK)[place] = rank;
        s->places[place] = door == LL_GPU_OPEN ? (uint64_t)ll_there(s, rank, at) : 0;
    }
    return door != LL_GPU_LEAVES;
}

/* Ranks that the token goes to. */
GPU_FUNC int32_t ll_count_ranks(const ll_dispatch_args *a, const ll_tokens *t, int32_t token)
{
    const int32_t topk = a->routing.topk, lane = threadIdx.x % 32;
    const int32_t mine = lane < topk ? t->idx[lane * t->pitch + token] : -1;
    const int32_t to = mine < 0 ? -1 - lane : mine / a->call.shape.local_experts;
    const uint32_t same = __match_any_sync(GPU_ALL, to);
    return __popc(__ballot_sync(GPU_ALL, mine >= 0 && __ffs((int)same) - 1 == lane));
}

/* Number i of the words of a message, from its header on. */
GPU_FUNC void ll_put(const ll_dispatch_args *a, const ll_now *now, uint64_t message, int64_t i, uint32_t value)
{
    if (ll_sends_words(a))
        store_relaxed_64((uint64_t *)message + i, ll_flag_of(now, value));
    else
        ((uint32_t *)message)[i] = value;
}

/* To the j-th of the token's ranks, by one warp. */
GPU_FUNC void ll_write_header(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, const ll_tokens *t,
                              int32_t token, int32_t j)
{
    const ll_gpu_call *c = &a->call;
    const int32_t lane = threadIdx.x % 32, locals = c->shape.local_experts, topk = LL_BUFFER_TOPK(c);
    const uint64_t message = s->places[j];
    const int64_t first = sizeof(ll_header) / 4;
    if (!message) return;
    if (lane < a->routing.topk) {
        const int32_t expert = t->idx[lane * t->pitch + token];
        const int32_t local = expert - ll_notes(s, LL_NOTE_RANK)[j] * locals;
        const bool here = expert >= 0 && local >= 0 && local < locals;
        ll_put(a, now, message, first + lane, (uint32_t)(here ? local : -1));
        ll_put(a, now, message, first + topk + lane, here ? (uint32_t)ll_notes(s, LL_NOTE_ROW)[lane] : 0);
        if (a->route.weights)
            ll_put(a, now, message, first + 2 * topk + lane,
                   __float_as_uint(a->route.weights[token * a->route.weights_pitch + lane]));
    }
    if (lane < 2) ll_put(a, now, message, lane, (uint32_t)(lane ? j : token));
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* At that byte of the payload. */
GPU_FUNC void ll_store_units(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, int32_t ranks,
                             int64_t at, uint4 value)
{
    const int64_t from = (int64_t)a->call.space.header_bytes + at;
    for (int32_t j = 0; j < ranks; j++) {
        if (!s->places[j]) continue;
        if (ll_sends_words(a))
            ll_store_in_words((uint64_t *)(s->places[j] + 2 * from), now->stamp, value);
        else
            store_row((uint4 *)(s->places[j] + from), value);
    }
}

GPU_FUNC void ll_send_plain(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, const ll_team *team,
                            const uint4 *row, int32_t ranks)
{
    const int32_t units = (int32_t)(GPU_ROW_BYTES(a) / 16);
#pragma unroll 2
    for (int32_t u = team->at; u < units; u += team->threads)
        ll_store_units(a, s, now, ranks, (int64_t)u * 16, load_row(row + u));
}

#define LL_LANE_ELEMENTS 16
#define LL_GROUP_LANES   (CODEC_GROUP / LL_LANE_ELEMENTS)
#define LL_WARP_GROUPS   (32 / LL_GROUP_LANES)

GPU_FUNC void ll_widen(int32_t dtype, uint4 v, float *out)
{
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int32_t i = 0; i < 4; i++)
        if (dtype == CODEC_F32) {
            out[i] = number_of_bits(words[i]);
        } else {
            const uint32_t low = words[i] & 0xffffu, high = words[i] >> 16;
            out[2 * i] = dtype == CODEC_BF16 ? number_of_bf16(low) : number_of_f16(low);
            out[2 * i + 1] = dtype == CODEC_BF16 ? number_of_bf16(high) : number_of_f16(high);
        }
}

/* This lane's elements of a group. */
GPU_FUNC void ll_load_elements(int32_t dtype, const uint8_t *row, int64_t first, float values[LL_LANE_ELEMENTS])
{
    const int64_t bytes = dtype == CODEC_F32 ? 4 : 2;
    const uint4 *from = (const uint4 *)(row + first * bytes);
    if (dtype == CODEC_F32) {
#pragma unroll
        for (int32_t i = 0; i < 4; i++)
            ll_widen(dtype, load_row(from + i), values + 4 * i);
    } else {
#pragma unroll
        for (int32_t i = 0; i < 2; i++)
            ll_widen(dtype, load_row(from + i), values + 8 * i);
    }
}

/* The largest magnitude of a group, as bits, in all of its lanes. */
GPU_FUNC uint32_t ll_amax(const float values[LL_LANE_ELEMENTS])
{
    uint32_t amax = 0;
#pragma unroll
    for (int32_t i = 0; i < LL_LANE_ELEMENTS; i++)
        amax = max(amax, number_magnitude(values[i]));
#pragma unroll
    for (int32_t offset = LL_GROUP_LANES / 2; offset; offset /= 2)
        amax = max(amax, __shfl_xor_sync(GPU_ALL, amax, offset));
    return amax;
}

GPU_FUNC uint4 ll_quantise(int32_t codec, const float values[LL_LANE_ELEMENTS], float factor)
{
    uint32_t words[4];
#pragma unroll
    for (int32_t i = 0; i < 4; i++)
        words[i] = codec_quantise_pair(codec, values[4 * i], values[4 * i + 1], factor) |
                   codec_quantise_pair(codec, values[4 * i + 2], values[4 * i + 3], factor) << 16;
    return make_uint4(words[0], words[1], words[2], words[3]);
}

/* Scales stand behind the payload. Four groups of a warp have one word of UE8M0. */
GPU_FUNC void ll_store_scale(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, int32_t ranks,
                             int32_t group, float scale)
{
    const int32_t lane = threadIdx.x % 32, groups = a->call.shape.hidden / CODEC_GROUP;
    const bool packed = codec_facts_of(a->codec).scales == CODEC_SCALES_UE8M0;
    const uint32_t byte = group < groups ? codec_scale_exponent(scale) << (group % 4 * 8) : 0;
    uint32_t word = number_bits(scale);
    if (packed) {
        word = byte | __shfl_xor_sync(GPU_ALL, byte, LL_GROUP_LANES);
        word |= __shfl_xor_sync(GPU_ALL, word, 2 * LL_GROUP_LANES);
    }
    if (group >= groups || lane % (packed ? 32 : LL_GROUP_LANES)) return;
    const int64_t bytes = (int64_t)a->call.space.header_bytes + a->row_bytes;
    for (int32_t j = 0; j < ranks; j++)
        if (s->places[j]) ll_put(a, now, s->places[j], bytes / 4 + (packed ? group / 4 : group), word);
}

/* Eight lanes a group, so that a warp has four that begin at a multiple of four. */
GPU_FUNC void ll_send_quantised(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, const ll_team *team,
                                const uint8_t *row, int32_t ranks)
{
    const int32_t dtype = a->call.form.dtype, groups = a->call.shape.hidden / CODEC_GROUP;
    const int32_t part = threadIdx.x % LL_GROUP_LANES;
    const int32_t first = team->at / 32 * LL_WARP_GROUPS;
    for (int32_t base = first; base < groups; base += team->threads / 32 * LL_WARP_GROUPS) {
        const int32_t group = base + threadIdx.x % 32 / LL_GROUP_LANES;
        const int64_t element = (int64_t)group * CODEC_GROUP + part * LL_LANE_ELEMENTS;
        float values[LL_LANE_ELEMENTS] = {0};
        if (group < groups) ll_load_elements(dtype, row, element, values);
        const codec_scaling scaling = codec_scaling_of(a->codec, ll_amax(values));
        if (group < groups) ll_store_units(a, s, now, ranks, element, ll_quantise(a->codec, values, scaling.factor));
        ll_store_scale(a, s, now, ranks, group, scaling.scale);
    }
}

/* ---- send -------------------------------------------------------------------------------------------------------- */

/* A row that goes by flags belongs to one block, which stores its flag. */
GPU_FUNC ll_split ll_sending(const ll_dispatch_args *a)
{
    return ll_split_of(a->routing.tokens, 0, ll_sends_words(a) ? 2 : 1, 1);
}

/* So that rows are near when their indices are there. */
GPU_FUNC void ll_fetch_row(const ll_dispatch_args *a)
{
    const ll_split split = ll_sending(a);
    const int64_t bytes = (int64_t)a->call.shape.hidden * (a->call.form.dtype == CODEC_F32 ? 4 : 2);
    if (split.first >= a->routing.tokens) return;
    const uint8_t *row = a->x + split.first * a->x_pitch_bytes;
    for (int64_t at = (int64_t)threadIdx.x * 128; at < bytes; at += LL_GPU_THREADS * 128)
        prefetch(row + at);
}

/* Flags behind all that the block has stored. */
GPU_FUNC void ll_flag_token(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, int32_t ranks)
{
    const ll_gpu_call *c = &a->call;
    __syncthreads();
    for (int32_t j = threadIdx.x; j < ranks; j += blockDim.x) {
        const uint64_t flag =
            ll_message_flag_at(&c->space, &c->shape, c->world.rank, now->epoch, ll_notes(s, LL_NOTE_MESSAGE)[j]);
        if (s->places[j])
            store_release((uint64_t *)ll_there(s, ll_notes(s, LL_NOTE_RANK)[j], flag), ll_flag_of(now, 1));
    }
}

/* By all threads of the block; false: a wait was given up. */
GPU_FUNC bool ll_send_token(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, const ll_tokens *t,
                            const ll_split *split, int32_t token)
{
    const ll_gpu_call *c = &a->call;
    const int32_t topk = a->routing.topk, warp = threadIdx.x / 32;
    bool ok = true;
    for (int32_t k = warp; k < topk; k += LL_BLOCK_WARPS)
        ok &= ll_place_slot(a, s, now, t, token, k);
    if (__syncthreads_or(!ok)) return false;
    const int32_t ranks = ll_count_ranks(a, t, token);
    const uint8_t *row = a->x + token * a->x_pitch_bytes;
    for (int32_t j = warp; j < ranks && split->part == 0; j += LL_BLOCK_WARPS)
        ll_write_header(a, s, now, t, token, j);
    if (a->scales)
        ll_send_quantised(a, s, now, &split->team, row, ranks);
    else
        ll_send_plain(a, s, now, &split->team, (const uint4 *)row, ranks);
    ll_stamp_time(c, LL_GPU_SENT);
    if (!ll_sends_words(a)) ll_flag_token(a, s, now, ranks);
    for (int32_t k = threadIdx.x; k < topk && split->part == 0; k += blockDim.x)
        a->routing.idx[(int64_t)token * LL_BUFFER_TOPK(c) + k] = t->idx[k * t->pitch + token];
    return true;
}

/* False: nothing is to be received, as this rank refused, or a wait was given up. */
GPU_FUNC bool ll_dispatch_send(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, const ll_tokens *t)
{
    const ll_split split = ll_sending(a);
    if (ll_status_goes_on(s->refusal->status)) ll_check_tokens(a, s, t);
    if (!ll_open_ranks(a, s, now, t)) return false;
    if (!ll_status_goes_on(s->refusal->status)) return false;
    for (int32_t token = split.first; token < a->routing.tokens; token += split.stride) {
        if (token != split.first) __syncthreads(); /* notes of the token before are read */
        if (!ll_send_token(a, s, now, t, &split, token)) return false;
    }
    return true;
}

/* ---- receive ----------------------------------------------------------------------------------------------------- */

/* From counts to first rows: ranks ascending. */
GPU_FUNC void ll_place_ranks(const ll_dispatch_args *a, const ll_shared *s, const ll_tokens *t)
{
    const int32_t locals = a->call.shape.local_experts, n = LL_RANKS(&a->call);
    for (int32_t l = threadIdx.x; l < locals; l += blockDim.x) {
        int32_t row = 0;
        for (int32_t r = 0; r < n; r++) {
            const int32_t count = ll_sends_data(s, r) ? t->first[r * locals + l] : 0;
            t->first[r * locals + l] = row;
            row += count;
        }
        t->first[n * locals + l] = row;
    }
    __syncthreads();
}

/* What the host's caller and combines read of the counts; of a call that brings nothing zeros. By one block. */
GPU_FUNC void ll_tell_counts(const ll_dispatch_args *a, const ll_shared *s, const ll_tokens *t, const ll_now *now,
                             ll_outcome outcome)
{
    const int32_t locals = a->call.shape.local_experts, n = LL_RANKS(&a->call);
    for (int32_t i = threadIdx.x; i < locals * n; i += blockDim.x) {
        const int32_t l = i / n, r = i - l * n, begin = t->first[r * locals + l];
        a->routing.range[i] = outcome.mismatched ? 0 : ll_range(begin, t->first[(r + 1) * locals + l] - begin);
    }
    for (int32_t l = threadIdx.x; l < locals; l += blockDim.x) {
        const int32_t rows = outcome.mismatched ? 0 : t->first[n * locals + l];
        a->out_count[l] = rows;
        if (a->stats) a->stats[l] += rows;
    }
    for (int32_t r = threadIdx.x; r < n; r += blockDim.x)
        a->routing.messages[r] = outcome.mismatched || !ll_sends_data(s, r) ? 0 : s->messages[r];
    if (threadIdx.x == 0) *a->routing.stamp = outcome.odd ? 0 : now->stamp;
}

/* Where a slot's row goes: of which expert, and the how-many-th of its rows; local -1: nowhere, whatever its source
   says. Each lane of a warp has one. */
typedef struct ll_target {
    int32_t local, row;
} ll_target;

GPU_FUNC ll_target ll_target_of(const ll_dispatch_args *a, const ll_tokens *t, int32_t source, int32_t local,
                                int32_t row)
{
    const int32_t locals = a->call.shape.local_experts;
    const ll_target none = {-1, -1};
    if (local < 0 || local >= locals || row < 0) return none;
    const int32_t begin = t->first[source * locals + local];
    if (row >= t->first[(source + 1) * locals + local] - begin) return none;
    const ll_target target = {local, begin + row};
    return target;
}
GPU_FUNC int64_t ll_row_of(const ll_dispatch_args *a, int32_t local, int32_t row)
{
    return (int64_t)local * LL_RANKS(&a->call) * a->call.shape.tokens + row;
}

/* A message on its way in: where it lies, and whether it does in words. */
typedef struct ll_incoming {
    const uint8_t *message;
    bool in_words;
    int32_t source, number;
} ll_incoming;

/* The team's part of one row to the rows in `to` of the lanes in `mask`. False: a wait was given up. */
GPU_FUNC bool ll_fan_out_row(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, const ll_team *team,
                             const ll_incoming *in, uint32_t mask, const ll_target *to)
{
    const int32_t units = (int32_t)(GPU_ROW_BYTES(a) / 16);
    const int64_t first = (int64_t)a->call.space.header_bytes;
    bool ok = true;
#pragma unroll 2
    for (int32_t base = team->at / 32 * 32; base < units; base += team->threads) {
        const int32_t u = base + threadIdx.x % 32;
        uint4 value = make_uint4(0, 0, 0, 0);
        if (u < units && in->in_words)
            ok &= ll_await_row_words(&a->call, s, now, in->source, (const uint64_t *)(in->message + 2 * first) + 4 * u,
                                     &value);
        else if (u < units)
            value = load_row((const uint4 *)(in->message + first) + u);
        for (uint32_t rest = mask; rest; rest &= rest - 1) {
            const int32_t lane = __ffs((int)rest) - 1;
            const int64_t row =
                ll_row_of(a, __shfl_sync(GPU_ALL, to->local, lane), __shfl_sync(GPU_ALL, to->row, lane));
            if (u < units) store_row((uint4 *)(a->out_x + row * GPU_ROW_BYTES(a)) + u, value);
        }
    }
    return ok;
}

/* Number i of a message's words. False: a wait was given up. */
GPU_FUNC bool ll_get(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, const ll_incoming *in, int64_t i,
                     uint32_t *value)
{
    uint64_t seen = 0;
    if (!in->in_words) {
        *value = load_relaxed((const uint32_t *)in->message + i);
        return true;
    }
    const bool came = ll_await_word(&a->call, s, (const uint64_t *)in->message + i, now->stamp, GPU_WAIT_MESSAGE,
                                    in->source, &seen) == LL_TURN_ON;
    *value = (uint32_t)seen;
    return came;
}

GPU_FUNC bool ll_fan_out_scales(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, const ll_team *team,
                                const ll_incoming *in, uint32_t mask, const ll_target *to)
{
    const int64_t rows = (int64_t)LL_RANKS(&a->call) * a->call.shape.tokens;
    const int64_t first = ((int64_t)a->call.space.header_bytes + a->row_bytes) / 4;
    bool ok = true;
    for (int32_t base = team->at / 32 * 32; base < a->scales; base += team->threads) {
        const int32_t w = base + threadIdx.x % 32;
        uint32_t value = 0;
        if (w < a->scales) ok &= ll_get(a, s, now, in, first + w, &value);
        for (uint32_t rest = mask; rest; rest &= rest - 1) {
            const int32_t lane = __ffs((int)rest) - 1;
            const int32_t local = __shfl_sync(GPU_ALL, to->local, lane), row = __shfl_sync(GPU_ALL, to->row, lane);
            if (w < a->scales) a->out_scales[codec_scale_at(a->scales, rows, local, w, row)] = value;
        }
    }
    return ok;
}

/* A message's header, with the handle, and each slot's row among all of its expert's; -1: it has none. By one warp,
   whose lanes have the slots. False: a wait was given up. */
GPU_FUNC bool ll_keep_header(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, const ll_incoming *in,
                             const ll_target *to)
{
    const ll_gpu_call *c = &a->call;
    const int64_t place = (int64_t)in->source * c->shape.tokens + in->number;
    ll_header *keep = (ll_header *)(a->routing.headers + place * (int64_t)a->routing.header_bytes);
    const int32_t lane = threadIdx.x % 32, topk = LL_BUFFER_TOPK(c);
    uint32_t token = 0, order = 0, weight = 0;
    bool ok = ll_get(a, s, now, in, 0, &token) && ll_get(a, s, now, in, 1, &order);
    if (lane < a->routing.topk && c->form.weights)
        ok = ok && ll_get(a, s, now, in, (int64_t)sizeof(ll_header) / 4 + 2 * topk + lane, &weight);
    if (lane < topk) {
        ll_header_experts(keep)[lane] = to->local;
        ll_header_rows(keep, topk)[lane] = to->row;
        ll_header_weights(keep, topk)[lane] = __uint_as_float(weight);
    }
    if (lane == 0) {
        keep->token = (int32_t)token;
        keep->place = (int32_t)order;
    }
    if (to->local >= 0) a->routing.src_info[ll_row_of(a, to->local, to->row)] = (int32_t)token;
    return ok;
}

/* With masks: whether the message is lost, as all warps of the block see it then. *ok: no wait was given up. */
GPU_FUNC bool ll_loses_message(const ll_dispatch_args *a, int32_t source, int32_t number, ll_gpu_turn turn, bool *ok)
{
    const int64_t place = (int64_t)source * a->call.shape.tokens + number;
    *ok = !__syncthreads_or(turn == LL_TURN_LEAVE);
    if (!__syncthreads_or(turn == LL_TURN_LOST)) return false;
    if (threadIdx.x == 0)
        ((ll_header *)(a->routing.headers + place * (int64_t)a->routing.header_bytes))->token = LL_NO_TOKEN;
    return true;
}

/* Until the message's flag is there; each warp by itself, but with masks. */
GPU_FUNC ll_gpu_turn ll_await_message(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now,
                                      const ll_incoming *in)
{
    const ll_gpu_call *c = &a->call;
    const uint64_t flag = ll_message_flag_at(&c->space, &c->shape, in->source, now->epoch, in->number);
    const bool clocked = c->wait_ns && threadIdx.x == 0;
    const uint64_t since_ns = ll_wait_begin(c), before = clocked ? s->waits[in->source] : 0;
    uint64_t seen;
    const ll_gpu_turn turn =
        ll_await(c, s, (const uint64_t *)ll_own(c, flag), now->stamp, GPU_WAIT_MESSAGE, in->source, &seen);
    bool ok = turn != LL_TURN_LEAVE;
    if (LL_MASKS && ll_loses_message(a, in->source, in->number, turn, &ok)) return ok ? LL_TURN_LOST : LL_TURN_LEAVE;
    if (!__all_sync(GPU_ALL, ok)) return LL_TURN_LEAVE;
    if (threadIdx.x == 0) ll_wait_end(c, s, in->source, before, since_ns);
    return LL_TURN_ON;
}

/* False: a wait was given up. */
GPU_FUNC bool ll_take_message(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, const ll_tokens *t,
                              const ll_team *team, const ll_incoming *in)
{
    const ll_gpu_call *c = &a->call;
    const int32_t lane = threadIdx.x % 32, topk = a->routing.topk;
    const int64_t experts = sizeof(ll_header) / 4, rows = experts + LL_BUFFER_TOPK(c);
    const ll_gpu_turn turn = in->in_words ? LL_TURN_ON : ll_await_message(a, s, now, in);
    if (turn != LL_TURN_ON) return turn == LL_TURN_LOST;
    uint32_t expert = 0, row = 0;
    bool ok = true;
    if (lane < topk) {
        ok &= ll_get(a, s, now, in, experts + lane, &expert);
        ok &= ll_get(a, s, now, in, rows + lane, &row);
    }
    ll_stamp_time(c, LL_GPU_SEEN);
    if (!__all_sync(GPU_ALL, ok)) return false;
    const ll_target to = ll_target_of(a, t, in->source, lane < topk ? (int32_t)expert : -1, (int32_t)row);
    const uint32_t mask = __ballot_sync(GPU_ALL, to.local >= 0);
    ok &= ll_fan_out_row(a, s, now, team, in, mask, &to);
    ok &= ll_fan_out_scales(a, s, now, team, in, mask, &to);
    if (team->at / 32 == team->threads / 32 - 1) ok &= ll_keep_header(a, s, now, in, &to);
    return __all_sync(GPU_ALL, ok);
}

/* All messages of all ranks, in turn from the next rank on, this one last. */
GPU_FUNC bool ll_take_messages(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, const ll_tokens *t)
{
    const ll_gpu_call *c = &a->call;
    const int32_t n = LL_RANKS(c), sending = c->phases & LL_GPU_SEND ? a->routing.tokens : 0;
    int32_t most = 0;
    for (int32_t r = 0; r < n; r++)
        if (ll_sends_data(s, r)) most = max(most, ll_messages_of(s, r));
    const ll_split split =
        ll_split_of(most * n, ll_sends_words(a) ? 2 * sending : sending, LL_MASKS ? 1 : 2, LL_MASKS ? 1 : 4);
    for (int32_t i = split.first; i < most * n; i += split.stride) {
        const int32_t number = i / n, source = (c->world.rank + 1 + i % n) % n;
        if (!ll_sends_data(s, source) || number >= ll_messages_of(s, source)) continue;
        const bool words = ll_in_words(s, source);
        const uint64_t at = words ? ll_word_message_at(&c->space, &c->shape, source, now->epoch, number)
                                  : ll_message_at(&c->space, &c->shape, source, now->half, number);
        const ll_incoming in = {ll_own(c, at), words, source, number};
        if (!ll_take_message(a, s, now, t, &split.team, &in)) return false;
    }
    return true;
}

/* ---- with masks: what a rank has counted and not sent ------------------------------------------------------------ */

GPU_FUNC void ll_find_missing(const ll_dispatch_args *a, const ll_shared *s, const ll_tokens *t, int32_t source)
{
    const ll_gpu_call *c = &a->call;
    const int32_t locals = c->shape.local_experts, topk = a->routing.topk;
    for (int32_t l = 0; l < locals; l++) {
        const int64_t rows = (int64_t)l * LL_RANKS(c) * c->shape.tokens;
        for (int32_t i = t->first[source * locals + l] + (int32_t)threadIdx.x; i < t->first[(source + 1) * locals + l];
             i += blockDim.x)
            a->routing.src_info[rows + i] = LL_NO_TOKEN;
    }
    __syncthreads();
    for (int32_t m = threadIdx.x; m < ll_messages_of(s, source); m += blockDim.x) {
        const int64_t place = (int64_t)source * c->shape.tokens + m;
        ll_header *header = (ll_header *)(a->routing.headers + place * (int64_t)a->routing.header_bytes);
        for (int32_t k = 0; k < topk && header->token != LL_NO_TOKEN; k++) {
            const int32_t local = ll_header_experts(header)[k], row = ll_header_rows(header, LL_BUFFER_TOPK(c))[k];
            if (local >= 0) a->routing.src_info[ll_row_of(a, local, row)] = header->token;
        }
    }
    __syncthreads();
}

GPU_FUNC void ll_clear_row(const ll_dispatch_args *a, int64_t row)
{
    const int32_t units = (int32_t)(GPU_ROW_BYTES(a) / 16);
    const int64_t rows = (int64_t)LL_RANKS(&a->call) * a->call.shape.tokens;
    for (int32_t u = threadIdx.x; u < units; u += blockDim.x)
        store_row((uint4 *)(a->out_x + row * GPU_ROW_BYTES(a)) + u, make_uint4(0, 0, 0, 0));
    for (int32_t w = threadIdx.x; w < a->scales; w += blockDim.x)
        a->out_scales[codec_scale_at(a->scales, rows, row / rows, w, row % rows)] = 0;
}

GPU_FUNC void ll_clear_missing(const ll_dispatch_args *a, const ll_tokens *t, int32_t source)
{
    const ll_gpu_call *c = &a->call;
    const int32_t locals = c->shape.local_experts;
    for (int32_t l = 0; l < locals; l++) {
        const int64_t rows = (int64_t)l * LL_RANKS(c) * c->shape.tokens;
        int32_t cleared = 0;
        for (int32_t i = t->first[source * locals + l]; i < t->first[(source + 1) * locals + l]; i++) {
            if (a->routing.src_info[rows + i] != LL_NO_TOKEN) continue;
            ll_clear_row(a, rows + i);
            cleared++;
        }
        if (threadIdx.x == 0 && a->stats) a->stats[l] -= cleared; /* they were counted, and did not come */
    }
}

/* Rows of ranks that have been masked meanwhile: those that have not come are zero. By the last block to end. */
GPU_FUNC void ll_dispatch_mend(const ll_dispatch_args *a, const ll_shared *s, const ll_tokens *t)
{
    const ll_gpu_call *c = &a->call;
    if (!__syncthreads_or(load_relaxed(&c->masks->lost))) return;
    for (int32_t r = 0; r < LL_RANKS(c); r++) {
        if (!ll_sends_data(s, r) || !__syncthreads_or(ll_is_masked(c, r))) continue;
        ll_find_missing(a, s, t, r);
        ll_clear_missing(a, t, r);
    }
    __syncthreads();
}

/* ---- the whole of it --------------------------------------------------------------------------------------------- */

/* False: the call was not received. */
GPU_FUNC bool ll_dispatch_receive(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, const ll_tokens *t,
                                  bool *mismatched)
{
    if (a->call.wait_ns) ll_clear_waits(&a->call, s);
    const ll_outcome outcome = ll_take_units(&a->call, s, now, 0, t->first);
    if (outcome.left) return false;
    *mismatched = outcome.mismatched;
    ll_place_ranks(a, s, t);
    if (!outcome.mismatched && !ll_take_messages(a, s, now, t)) return false;
    if (blockIdx.x == gridDim.x - 1) {
        ll_tell_counts(a, s, t, now, outcome);
        if (outcome.odd && threadIdx.x == 0) ll_report(&a->call, s, now, 0);
    }
    return true;
}

/* Messages of the rank that have come. By a warp. */
GPU_FUNC int32_t ll_count_messages(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, int32_t rank,
                                   uint32_t told)
{
    const ll_gpu_call *c = &a->call;
    const int32_t all = (int32_t)(told & ~LL_UNIT_IN_WORDS);
    int32_t came = 0;
    if (!(told & LL_UNIT_IN_WORDS))
        return ll_count_flags(c, s, now, ll_message_flag_at(&c->space, &c->shape, rank, now->epoch, 0), all);
    const int64_t first = (int64_t)c->space.header_bytes / 4, words = a->row_bytes / 4 + a->scales;
    for (int32_t m = 0; m < all; m++) {
        const uint64_t at = ll_word_message_at(&c->space, &c->shape, rank, now->epoch, m);
        came += ll_words_are_here(c, now, at + 8 * (uint64_t)first, words) && ll_words_are_here(c, now, at, 2);
    }
    return came;
}

/* What was missing of each rank when a wait was given up. By each warp that leaves. */
GPU_FUNC void ll_dispatch_tell_dues(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now)
{
    const ll_gpu_call *c = &a->call;
    const int32_t wait = ll_dues_begin(c);
    for (int32_t r = 0; wait && r < LL_RANKS(c); r++) {
        if (wait != GPU_WAIT_MESSAGE) {
            ll_dues_tell_one(c, s, now, wait, r);
            continue;
        }
        const uint32_t told = (uint32_t)load_acquire(ll_unit_of(c, s, now, r) + LL_UNIT_MESSAGES);
        const bool sends = ll_unit_promises(c, s, now, r) && ll_is_usual(c, LL_UNIT_MESSAGES, told, 0);
        const int32_t all = sends ? (int32_t)(told & ~LL_UNIT_IN_WORDS) : 0;
        ll_dues_tell(c, r, sends ? ll_count_messages(a, s, now, r, told) : 0, all);
    }
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

GPU_KERNEL(LL_GPU_THREADS) LL_KERNEL(ll_dispatch)(GPU_ARGS ll_dispatch_args a)
{
    GPU_LAUNCH_SHARED(uint8_t, memory);
    const ll_shared s = ll_shared_of(&a.call, memory);
    const ll_tokens t = ll_tokens_of(&a, &s);
    ll_now now;
    bool mismatched = false;
    ll_stamp_start(&a.call);
    ll_begin(&a.call, &s, LL_DISPATCH, &now);
    if (a.call.phases & LL_GPU_SEND && ll_status_goes_on(a.call.refusal.status)) {
        ll_fetch_row(&a);
        ll_load_idx(&a, &t);
    }
    if (!ll_has_begun(&a.call, &s, &now)) return;
    bool goes = !(a.call.phases & LL_GPU_SEND) || ll_dispatch_send(&a, &s, &now, &t);
    const bool receives = goes && a.call.phases & LL_GPU_RECEIVE;
    if (receives) goes = ll_dispatch_receive(&a, &s, &now, &t, &mismatched);
    if (!goes) ll_dispatch_tell_dues(&a, &s, &now);
    if (now.quick) {
        if (goes) ll_ends_quickly(&a.call, &now, mismatched);
        return;
    }
    if (!ll_ends_last(&a.call, &s, receives)) return;
    if (LL_MASKS && goes && receives && !mismatched) ll_dispatch_mend(&a, &s, &t);
    ll_close(&a.call, &s, &now, receives, mismatched);
}

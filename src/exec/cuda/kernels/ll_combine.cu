/* SPDX-License-Identifier: Apache-2.0 */
/* ll_combine: a low-latency combine, or one of its two phases.
 *
 *   grid     as many blocks as the call may use SMs, all resident with those of the other ranks; LL_GPU_THREADS each
 *   units    the last N blocks open the call at one rank each, before they do anything else
 *   send     teams of several blocks, of one, or of a part of one's warps have messages of the dispatch, of all ranks
 *            in turn: they bring the rows of its slots to their places (exact; where blocks share a message each has
 *            some of its slots), or add them and bring the sum to its place (reduced); then a flag a place. Rows of
 *            small batches go in words
 *   receive  teams have tokens, the first block behind those that send first: each warp polls the flags of the token's
 *            places, or their words, and adds its part of these rows
 *   waits    the send for the half before to be read; where weights go ahead, for those of the others; the receive for
 *            all units, then for each token's rows
 *   bytes    of a token: each row of a slot once from memory and once to its place, or once from memory, and one row a
 *            rank; then each place once from memory */
#include "exec/cuda/kernels/ll_device.h"
#include "exec/cuda/kernels/ll_dues.h"
#include "exec/cuda/kernels/ll_log.h"
#include "exec/cuda/kernels/number.h"

/* expar_ll_sum; the host checks it. */
#define LL_GPU_REDUCED 1

/* 1: the kernel for rows of LogFMT, which has no others. */
#ifndef LL_CODED
#define LL_CODED 0
#endif

#ifndef LL_COMBINE_KERNEL
#define LL_COMBINE_KERNEL ll_combine
#endif

GPU_FUNC bool ll_is_coded(const ll_combine_args *a)
{
    return LL_MASKS ? a->coded != 0 : LL_CODED != 0;
}

/* ---- before anything is sent ------------------------------------------------------------------------------------- */

GPU_FUNC void ll_refuse_expert(const ll_combine_args *a, const ll_shared *s, int32_t kept)
{
    const int32_t token = (int32_t)(*s->first_bad >> GPU_SLOT_BITS);
    const int32_t k = (int32_t)(*s->first_bad & ((1u << GPU_SLOT_BITS) - 1));
    char *text = s->refusal->text;
    s->refusal->status = EXPAR_STATUS_ARGUMENT;
    int32_t at = put_words(text, 0, "topk_idx[", token);
    at = put_words(text, at, "][", k);
    at = put_words(text, at, "] is ", expert_at(&a->route, token, k));
    at = put_words(text, at, "; expected ", kept);
    put_text(text + at, ", as in the handle's dispatch");
}

/* What a combine finds out before the block meets: what it owes each rank; whether the dispatch has not brought all its
   rows, or its experts are not those that rows are awaited for, as far as this thread sees. */
GPU_FUNC bool ll_doubts_handle(const ll_combine_args *a, const ll_shared *s, uint32_t route)
{
    const int32_t topk = a->routing.topk, pitch = LL_BUFFER_TOPK(&a->call);
    bool doubt = route == 0;
    for (int32_t r = threadIdx.x; r < LL_RANKS(&a->call); r += blockDim.x)
        s->owed[r] = a->routing.messages[r];
    for (int32_t i = threadIdx.x; i < a->routing.tokens * topk; i += blockDim.x) {
        const int32_t token = i / topk, k = i - token * topk;
        doubt |= a->routing.idx[(int64_t)token * pitch + k] != expert_at(&a->route, token, k);
    }
    return doubt;
}

/* What is wrong with the handle becomes the refusal. */
GPU_FUNC void ll_refuse_handle(const ll_combine_args *a, const ll_shared *s)
{
    const int32_t topk = a->routing.topk, pitch = LL_BUFFER_TOPK(&a->call);
    for (int32_t i = threadIdx.x; i < a->routing.tokens * topk; i += blockDim.x) {
        const int32_t token = i / topk, k = i - token * topk;
        if (a->routing.idx[(int64_t)token * pitch + k] != expert_at(&a->route, token, k))
            atomicMin(s->first_bad, (unsigned long long)token << GPU_SLOT_BITS | (unsigned)k);
    }
    __syncthreads();
    if (threadIdx.x == 0 && *a->routing.stamp == 0) {
        s->refusal->status = EXPAR_STATUS_HANDLE;
        put_text(s->refusal->text, "handle is of a dispatch that was not received whole; expected one that ended well "
                                   "on all ranks");
    } else if (threadIdx.x == 0) {
        const int64_t token = (int64_t)(*s->first_bad >> GPU_SLOT_BITS);
        const int32_t k = (int32_t)(*s->first_bad & ((1u << GPU_SLOT_BITS) - 1));
        ll_refuse_expert(a, s, a->routing.idx[token * pitch + k]);
    }
    __syncthreads();
}

/* Messages of the dispatch that the rank has sent; whether its rows go back in words. */
GPU_FUNC int32_t ll_owed(const ll_shared *s, int32_t source)
{
    return (int32_t)((uint32_t)s->owed[source] & ~LL_UNIT_IN_WORDS);
}
GPU_FUNC bool ll_owes_words(const ll_combine_args *a, const ll_shared *s, int32_t source)
{
    return !LL_MASKS && !ll_is_coded(a) && ((uint32_t)s->owed[source] & LL_UNIT_IN_WORDS);
}
/* Whether this rank's rows come back so. */
GPU_FUNC bool ll_awaits_words(const ll_combine_args *a)
{
    const int32_t most = a->call.shape.word_tokens;
    return !LL_MASKS && !ll_is_coded(a) && most && a->routing.tokens <= most;
}

/* Rows that go to the rank, whose number is known before they are sent; those that are coded count their bytes
   themselves. By the last warp. */
GPU_FUNC void ll_count_returned(const ll_combine_args *a, const ll_shared *s, int32_t pe)
{
    const ll_gpu_call *c = &a->call;
    int32_t rows = c->form.sum == LL_GPU_REDUCED && threadIdx.x % 32 == 0 ? ll_owed(s, pe) : 0;
    if (threadIdx.x < LL_GPU_THREADS - 32) return;
    for (int32_t l = threadIdx.x % 32; l < c->shape.local_experts && c->form.sum != LL_GPU_REDUCED; l += 32)
        rows += ll_range_count(a->routing.range[(int64_t)l * LL_RANKS(c) + pe]);
    rows = __reduce_add_sync(GPU_ALL, rows);
    if (threadIdx.x % 32 == 0)
        ll_count_sent(c, pe, 0, rows, ll_is_coded(a) ? 0 : (uint64_t)rows * (uint64_t)a->row_bytes);
}

/* False: a wait was given up. */
GPU_FUNC bool ll_open_owners(const ll_combine_args *a, const ll_shared *s, const ll_now *now, uint32_t route)
{
    const ll_gpu_call *c = &a->call;
    if (now->behind && blockIdx.x == 0 && !ll_await_between(c, s, now)) return false;
    /* No read word has told others where this half lies: this unit does. */
    if (LL_MASKS && now->behind && blockIdx.x == 0 && !ll_line_of(c, LL_COMBINE)->open[now->half])
        ll_settle(c, s, now->half);
    const int32_t region = LL_MASKS ? c->masks->region[now->half] : 0;
    for (int32_t i = ll_first_opened(now); i < LL_RANKS(c); i += ll_opened_stride(now)) {
        const int32_t pe = (c->world.rank + 1 + i) % LL_RANKS(c);
        if (!ll_is_told(c, pe)) continue;
        ll_post_unit(c, s, now, pe, route, region, NULL);
        ll_tell_read(c, s, pe);
        if (!s->refusal->status) ll_count_returned(a, s, pe);
        __syncthreads();
    }
    return true;
}

/* ---- a message of the dispatch ----------------------------------------------------------------------------------- */

/* This lane's slot of a message, as every warp of a block sees it. */
typedef struct ll_slot {
    const uint8_t *row; /* the expert's; NULL: the slot has none here */
    float weight;
} ll_slot;

GPU_FUNC const ll_header *ll_header_of(const ll_combine_args *a, int32_t source, int32_t number)
{
    const int64_t place = (int64_t)source * a->call.shape.tokens + number;
    return (const ll_header *)(a->routing.headers + place * (int64_t)a->routing.header_bytes);
}

GPU_FUNC const uint8_t *ll_row_there(const ll_combine_args *a, const ll_header *header, int32_t k)
{
    const int32_t local = ll_header_experts((ll_header *)header)[k];
    const int32_t row = ll_header_rows((ll_header *)header, LL_BUFFER_TOPK(&a->call))[k];
    if (local < 0) return NULL;
    return a->x + local * a->x_expert_pitch_bytes + row * a->x_row_pitch_bytes;
}

/* With its header, by those that went ahead of the rows, or this rank's own. */
GPU_FUNC const float *ll_weights_of(const ll_combine_args *a, const ll_shared *s, const ll_now *now, int32_t source,
                                    int32_t number, const ll_header *header)
{
    const ll_gpu_call *c = &a->call;
    if (!c->form.weights) return ll_header_weights((ll_header *)header, LL_BUFFER_TOPK(c));
    if (source == c->world.rank) return a->route.weights + header->token * a->route.weights_pitch;
    return (const float *)ll_own(c, ll_weights_at(&c->space, &c->shape, source, now->epoch, number));
}

GPU_FUNC ll_slot ll_slot_of(const ll_combine_args *a, const ll_shared *s, const ll_now *now, int32_t source,
                            int32_t number, const ll_header *header)
{
    const int32_t lane = threadIdx.x % 32;
    ll_slot slot = {NULL, 0.0f};
    if (lane >= a->routing.topk) return slot;
    slot.row = ll_row_there(a, header, lane);
    if (slot.row && a->call.form.sum == LL_GPU_REDUCED)
        slot.weight = ll_weights_of(a, s, now, source, number, header)[lane];
    return slot;
}

/* What names no place comes from a broken peer alone. */
GPU_FUNC bool ll_header_fits(const ll_combine_args *a, const ll_header *header)
{
    const ll_gpu_call *c = &a->call;
    return header->token >= 0 && header->token < c->shape.tokens && header->place >= 0 &&
           header->place < c->space.places;
}

/* Region of the half that a rank's rows go to; s->messages is what the send makes of it. */
GPU_FUNC int32_t ll_region_there(const ll_shared *s, int32_t source)
{
    return LL_MASKS ? s->messages[source] - 1 : 0;
}

GPU_FUNC const uint8_t *ll_pointer_of(const void *pointer, int32_t lane)
{
    return (const uint8_t *)__shfl_sync(GPU_ALL, (unsigned long long)pointer, lane);
}

/* Where a row goes: its place, or the words of its place. */
GPU_FUNC uint8_t *ll_place_there(const ll_combine_args *a, const ll_shared *s, const ll_now *now, int32_t source,
                                 int32_t token, int32_t place)
{
    const ll_gpu_call *c = &a->call;
    if (ll_owes_words(a, s, source))
        return ll_there(s, source, ll_word_row_at(&c->space, &c->shape, now->epoch, token, place));
    const uint64_t number = ll_place_number(&c->space, &c->shape, now->epoch, ll_region_there(s, source), token, place);
    return ll_there(s, source, ll_row_at(&c->space, number));
}

/* Unit u of a row, to the place. stamp: of words; 0: it lies there as it is. */
GPU_FUNC void ll_bring_unit(uint8_t *place, int32_t u, uint32_t stamp, uint4 value)
{
    if (stamp)
        ll_store_in_words((uint64_t *)place + 4 * u, stamp, value);
    else
        store_row((uint4 *)place + u, value);
}

/* ---- rows as they are -------------------------------------------------------------------------------------------- */

/* The team's part of the rows of up to LL_GPU_PARTS slots, from the lowest one in *mask on. */
GPU_FUNC void ll_bring_rows(const ll_combine_args *a, const ll_team *team, uint32_t *mask, const uint8_t *row,
                            const uint8_t *place, uint32_t stamp)
{
    const int32_t units = (int32_t)(GPU_ROW_BYTES(a) / 16);
    const uint4 *from[LL_GPU_PARTS];
    uint8_t *to[LL_GPU_PARTS];
#pragma unroll
    for (int32_t i = 0; i < LL_GPU_PARTS; i++) {
        const int32_t lane = *mask ? __ffs((int)*mask) - 1 : 0;
        from[i] = *mask ? (const uint4 *)ll_pointer_of(row, lane) : NULL;
        to[i] = *mask ? (uint8_t *)ll_pointer_of(place, lane) : NULL;
        *mask &= *mask - 1;
    }
    for (int32_t u = team->at; u < units; u += team->threads) {
        uint4 value[LL_GPU_PARTS];
#pragma unroll
        for (int32_t i = 0; i < LL_GPU_PARTS; i++)
            if (from[i]) value[i] = load_row(from[i] + u);
#pragma unroll
        for (int32_t i = 0; i < LL_GPU_PARTS; i++)
            if (from[i]) ll_bring_unit(to[i], u, stamp, value[i]);
    }
}

/* Threads of a block that flag a row behind all that they have stored meet. */
GPU_FUNC void ll_meet_group(const ll_split *split)
{
    if (split->groups == 1)
        __syncthreads();
    else
        meet_at(1 + split->group, LL_GPU_THREADS / split->groups);
}
GPU_FUNC int32_t ll_thread_of_group(const ll_split *split)
{
    return (int32_t)threadIdx.x % (LL_GPU_THREADS / split->groups);
}
GPU_FUNC ll_team ll_group_of(const ll_split *split)
{
    const ll_team group = {ll_thread_of_group(split), LL_GPU_THREADS / split->groups};
    return group;
}

/* Each slot's row to the slot's place; where several blocks share the message, of this one's slots. */
GPU_FUNC void ll_send_slots(const ll_combine_args *a, const ll_shared *s, const ll_now *now, const ll_split *split,
                            int32_t source, const ll_header *header, const ll_slot *slot)
{
    const ll_gpu_call *c = &a->call;
    const int32_t lane = threadIdx.x % 32, k = lane < a->routing.topk ? lane : 0;
    const ll_team group = ll_group_of(split);
    const bool words = ll_owes_words(a, s, source);
    const uint8_t *place = ll_place_there(a, s, now, source, header->token, k);
    const bool mine = slot->row && lane % split->parts == split->part;
    uint32_t mask = __ballot_sync(GPU_ALL, mine);
    for (; ll_is_coded(a) && mask; mask &= mask - 1)
        ll_log_send_row(c, source, (uint32_t *)s->rest, c->form.dtype, ll_pointer_of(slot->row, __ffs((int)mask) - 1),
                        (uint8_t *)ll_pointer_of(place, __ffs((int)mask) - 1));
    while (mask)
        ll_bring_rows(a, &group, &mask, slot->row, place, words ? now->stamp : 0);
    ll_stamp_time(c, LL_GPU_SENT);
    if (words) return;
    ll_meet_group(split);
    const uint64_t number =
        ll_place_number(&c->space, &c->shape, now->epoch, ll_region_there(s, source), header->token, k);
    if (group.at < 32 && mine)
        store_release((uint64_t *)ll_there(s, source, ll_row_flag_at(&c->space, number)), ll_flag_of(now, 1));
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

/* Rows that are added, of which lane has one each: where it begins, and from whom it comes in words; -1: it lies there
   as it is. */
typedef struct ll_addend {
    const uint8_t *row;
    float weight;
    bool weighted;
    int32_t peer;
} ll_addend;

/* One unit of a sum: of the rows of the lanes in mask, from the lowest lane on. *ok: no wait was given up. */
GPU_FUNC uint4 ll_add_unit(const ll_combine_args *a, const ll_shared *s, const ll_now *now, uint32_t mask,
                           const ll_addend *mine, bool words, int32_t u, bool in, bool *ok)
{
    const int32_t dtype = GPU_DTYPE(a->call.form.dtype);
    float sums[8] = {0};
    while (mask) {
        const uint8_t *from[LL_GPU_PARTS];
        float by[LL_GPU_PARTS];
        int32_t peer[LL_GPU_PARTS];
        bool here[LL_GPU_PARTS];
        uint4 value[LL_GPU_PARTS];
#pragma unroll
        for (int32_t i = 0; i < LL_GPU_PARTS; i++) {
            const int32_t lane = mask ? __ffs((int)mask) - 1 : 0;
            from[i] = mask ? ll_pointer_of(mine->row, lane) : NULL;
            by[i] = __shfl_sync(GPU_ALL, mine->weight, lane);
            peer[i] = __shfl_sync(GPU_ALL, mine->peer, lane);
            here[i] = true;
            if (from[i] && in && words)
                here[i] = ll_look_at_words((const uint64_t *)from[i] + 4 * u, now->stamp, &value[i]);
            else if (from[i] && in)
                value[i] = load_row((const uint4 *)from[i] + u);
            mask &= mask - 1;
        }
#pragma unroll
        for (int32_t i = 0; i < LL_GPU_PARTS; i++) {
            if (!from[i] || !in) continue;
            if (!here[i])
                *ok &= ll_await_row_words(&a->call, s, now, peer[i], (const uint64_t *)from[i] + 4 * u, &value[i]);
            add_vector(dtype, sums, value[i], mine->weighted, by[i]);
        }
    }
    return narrow_vector(dtype, sums);
}

/* The team's part of a sum. stamp: of words in which it goes; 0: it goes as it is. False: a wait was given up. */
GPU_FUNC bool ll_add_rows(const ll_combine_args *a, const ll_shared *s, const ll_now *now, const ll_team *team,
                          uint32_t mask, const ll_addend *mine, bool words, uint8_t *to, uint32_t stamp)
{
    const int32_t units = (int32_t)(GPU_ROW_BYTES(a) / 16);
    bool ok = true;
    for (int32_t base = team->at / 32 * 32; base < units; base += team->threads) {
        const int32_t u = base + threadIdx.x % 32;
        const uint4 sum = ll_add_unit(a, s, now, mask, mine, words, u, u < units, &ok);
        if (u < units) ll_bring_unit(to, u, stamp, sum);
    }
    return ok;
}

/* A message's rows, added where they are, to the place of this rank. What goes by a flag goes from one block. */
GPU_FUNC void ll_send_sum(const ll_combine_args *a, const ll_shared *s, const ll_now *now, const ll_split *split,
                          int32_t source, const ll_header *header, const ll_slot *slot)
{
    const ll_gpu_call *c = &a->call;
    const bool words = ll_owes_words(a, s, source);
    const ll_team group = ll_group_of(split);
    const ll_team team = {words ? split->team.at : group.at, words ? split->team.threads : group.threads};
    const ll_addend mine = {slot->row, slot->weight, true, -1};
    if (!words && split->part) return;
    ll_add_rows(a, s, now, &team, __ballot_sync(GPU_ALL, slot->row != NULL), &mine, false,
                ll_place_there(a, s, now, source, header->token, header->place), words ? now->stamp : 0);
    ll_stamp_time(c, LL_GPU_SENT);
    if (words) return;
    ll_meet_group(split);
    const uint64_t number =
        ll_place_number(&c->space, &c->shape, now->epoch, ll_region_there(s, source), header->token, header->place);
    if (group.at == 0)
        store_release((uint64_t *)ll_there(s, source, ll_row_flag_at(&c->space, number)), ll_flag_of(now, 1));
}

/* ---- weights that go ahead --------------------------------------------------------------------------------------- */

/* The token's message to the rank, if it has one, is that rank's next: its weights go to it. By one warp a rank. */
GPU_FUNC void ll_send_weights(const ll_combine_args *a, const ll_shared *s, const ll_now *now, int32_t pe)
{
    const ll_gpu_call *c = &a->call;
    const int32_t topk = a->routing.topk, locals = c->shape.local_experts, lane = threadIdx.x % 32;
    int32_t message = 0;
    for (int32_t token = 0; token < a->routing.tokens; token++) {
        const int32_t expert = lane < topk ? a->routing.idx[(int64_t)token * LL_BUFFER_TOPK(c) + lane] : -1;
        if (!__any_sync(GPU_ALL, expert >= 0 && expert / locals == pe)) continue;
        float *to = (float *)ll_there(s, pe, ll_weights_at(&c->space, &c->shape, c->world.rank, now->epoch, message));
        if (lane < topk) to[lane] = a->route.weights[token * a->route.weights_pitch + lane];
        __syncwarp();
        const uint64_t flag = ll_weight_flag_at(&c->space, &c->shape, c->world.rank, now->epoch, message);
        if (lane == 0) store_release((uint64_t *)ll_there(s, pe, flag), ll_flag_of(now, 1));
        message++;
    }
}

/* To all ranks, by block 0. False: a wait was given up. */
GPU_FUNC bool ll_send_all_weights(const ll_combine_args *a, const ll_shared *s, const ll_now *now)
{
    const ll_gpu_call *c = &a->call;
    bool ok = true;
    for (int32_t i = threadIdx.x / 32; i + 1 < LL_RANKS(c) && !blockIdx.x; i += LL_BLOCK_WARPS) {
        const int32_t pe = (c->world.rank + 1 + i) % LL_RANKS(c);
        int32_t region;
        const ll_gpu_door door = ll_await_half(c, s, now, pe, &region);
        ok &= door != LL_GPU_LEAVES;
        if (__all_sync(GPU_ALL, door == LL_GPU_OPEN)) ll_send_weights(a, s, now, pe);
    }
    return !__syncthreads_or(!ok);
}

/* ---- send -------------------------------------------------------------------------------------------------------- */

/* Whether rows may go to each rank, in s->messages: 1, with masks and the region there, or 0. False: a wait was given
   up. */
GPU_FUNC bool ll_await_owners(const ll_combine_args *a, const ll_shared *s, const ll_now *now)
{
    const ll_gpu_call *c = &a->call;
    bool ok = true;
    for (int32_t r = threadIdx.x; r < LL_RANKS(c); r += blockDim.x) {
        ll_gpu_door door = LL_GPU_REFUSES;
        int32_t region = 0;
        if (ll_owed(s, r) > 0 && !(c->form.weights && !ll_sends_data(s, r)))
            door = ll_await_half(c, s, now, r, &region);
        s->messages[r] = door == LL_GPU_OPEN ? 1 + region : 0;
        ok &= door != LL_GPU_LEAVES;
    }
    return !__syncthreads_or(!ok);
}

/* False: a wait was given up. */
GPU_FUNC bool ll_return_message(const ll_combine_args *a, const ll_shared *s, const ll_now *now, const ll_split *split,
                                int32_t source, int32_t number)
{
    const ll_gpu_call *c = &a->call;
    const ll_header *header = ll_header_of(a, source, number);
    if (!ll_header_fits(a, header)) return true;
    if (c->form.weights && source != c->world.rank) {
        uint64_t seen;
        const uint64_t flag = ll_weight_flag_at(&c->space, &c->shape, source, now->epoch, number);
        const ll_gpu_turn turn =
            ll_await(c, s, (const uint64_t *)ll_own(c, flag), now->stamp, GPU_WAIT_WEIGHTS, source, &seen);
        if (__syncthreads_or(turn == LL_TURN_LEAVE)) return false;
        if (LL_MASKS && __syncthreads_or(turn == LL_TURN_LOST)) return true;
    }
    const ll_slot slot = ll_slot_of(a, s, now, source, number, header);
    if (c->form.sum == LL_GPU_REDUCED)
        ll_send_sum(a, s, now, split, source, header, &slot);
    else
        ll_send_slots(a, s, now, split, source, header, &slot);
    return true;
}

/* The messages of all ranks, in turn from the next rank on, this one last; *sending: blocks that have one first. */
GPU_FUNC bool ll_return_messages(const ll_combine_args *a, const ll_shared *s, const ll_now *now, int32_t *sending)
{
    const ll_gpu_call *c = &a->call;
    const int32_t n = LL_RANKS(c);
    const bool exact = c->form.sum != LL_GPU_REDUCED, one = LL_MASKS || c->form.weights || ll_is_coded(a);
    int32_t most = 0;
    for (int32_t r = 0; r < n; r++)
        most = max(most, ll_owed(s, r));
    const ll_split split = ll_split_of(most * n, 0, LL_MASKS ? 1 : exact ? 8 : 2, one ? 1 : 4);
    *sending = most * n * split.parts;
    for (int32_t i = split.first; i < most * n; i += split.stride) {
        const int32_t number = i / n, source = (c->world.rank + 1 + i % n) % n;
        if (number >= ll_owed(s, source) || !s->messages[source]) continue;
        if (!ll_return_message(a, s, now, &split, source, number)) return false;
    }
    return true;
}

/* *mismatched: nothing is sent, as weights that go ahead are not those of this call. False: nothing is to be received.
   */
GPU_FUNC bool ll_combine_send(const ll_combine_args *a, const ll_shared *s, const ll_now *now, uint32_t route,
                              bool *mismatched, int32_t *sending)
{
    if (!ll_open_owners(a, s, now, route)) return false;
    if (s->refusal->status) return false;
    if (a->call.form.weights) {
        if (!ll_send_all_weights(a, s, now)) return false;
        const ll_outcome outcome = ll_take_units(&a->call, s, now, route, NULL);
        if (outcome.left) return false;
        *mismatched = outcome.mismatched;
        if (*mismatched) return true;
    }
    return ll_await_owners(a, s, now) && ll_return_messages(a, s, now, sending);
}

/* ---- receive ----------------------------------------------------------------------------------------------------- */

/* What a token awaits, this lane's part: from which rank, to which place; of a rank's sum, in the order of ranks. */
typedef struct ll_gpu_part {
    int32_t rank, place; /* rank -1: the lane has none */
    float weight;
} ll_gpu_part;

GPU_FUNC ll_gpu_part ll_part_of_slot(const ll_combine_args *a, const ll_shared *s, int32_t token)
{
    const ll_gpu_call *c = &a->call;
    const int32_t lane = threadIdx.x % 32;
    ll_gpu_part part = {-1, lane, 0.0f};
    if (lane >= a->routing.topk) return part;
    const int32_t expert = a->routing.idx[(int64_t)token * LL_BUFFER_TOPK(c) + lane];
    if (expert < 0) return part;
    part.rank = expert / c->shape.local_experts;
    if (c->form.sum != LL_GPU_REDUCED) part.weight = a->route.weights[token * a->route.weights_pitch + lane];
    return part;
}

/* One part a rank: places are numbered in the order in which ranks come first in the token's slots, and lanes have
   parts in the order of ranks. */
GPU_FUNC ll_gpu_part ll_parts_by_rank(ll_gpu_part slot)
{
    const int32_t lane = threadIdx.x % 32;
    const uint32_t same = __match_any_sync(GPU_ALL, slot.rank < 0 ? -1 - lane : slot.rank);
    const bool first = slot.rank >= 0 && __ffs((int)same) - 1 == lane;
    const uint32_t firsts = __ballot_sync(GPU_ALL, first);
    const int32_t place = __popc(firsts & ((1u << lane) - 1));
    ll_gpu_part part = {-1, 0, 0.0f};
    int32_t below = 0;
    for (uint32_t rest = firsts; rest; rest &= rest - 1)
        below += __shfl_sync(GPU_ALL, slot.rank, __ffs((int)rest) - 1) < slot.rank;
    for (uint32_t rest = firsts; rest; rest &= rest - 1) {
        const int32_t from = __ffs((int)rest) - 1;
        const int32_t order = __shfl_sync(GPU_ALL, below, from), rank = __shfl_sync(GPU_ALL, slot.rank, from);
        const int32_t where = __shfl_sync(GPU_ALL, place, from);
        if (order == lane) {
            part.rank = rank;
            part.place = where;
        }
    }
    return part;
}

/* Until the flag of this lane's row is there, if it has one. */
GPU_FUNC ll_gpu_turn ll_await_row(const ll_combine_args *a, const ll_shared *s, const ll_now *now, int32_t rank,
                                  uint64_t number)
{
    const ll_gpu_call *c = &a->call;
    const bool clocked = c->wait_ns && threadIdx.x < 32 && rank >= 0;
    const uint64_t since_ns = ll_wait_begin(c), before = clocked ? s->waits[rank] : 0;
    const uint64_t *flag = (const uint64_t *)ll_own(c, ll_row_flag_at(&c->space, number));
    ll_gpu_turn turn = LL_TURN_ON;
    uint64_t seen;
    __syncwarp();
    if (rank >= 0) turn = ll_await(c, s, flag, now->stamp, GPU_WAIT_MESSAGE, rank, &seen);
    if (clocked && turn == LL_TURN_ON) ll_wait_end(c, s, rank, before, since_ns);
    return turn;
}

/* Each warp by itself; false: a wait was given up. */
GPU_FUNC bool ll_add_token(const ll_combine_args *a, const ll_shared *s, const ll_now *now, const ll_team *team,
                           int32_t token)
{
    const ll_gpu_call *c = &a->call;
    const bool reduced = c->form.sum == LL_GPU_REDUCED, words = ll_awaits_words(a);
    ll_gpu_part part = ll_part_of_slot(a, s, token);
    if (reduced) part = ll_parts_by_rank(part);
    if (part.rank >= 0 && !ll_sends_data(s, part.rank)) part.rank = -1;
    const int32_t region = LL_MASKS ? ll_region_of(c, (uint32_t)s->messages[c->world.rank]) : 0;
    const int32_t place = part.rank < 0 ? 0 : part.place;
    const uint64_t number = ll_place_number(&c->space, &c->shape, now->epoch, region, token, place);
    const ll_gpu_turn turn = words ? LL_TURN_ON : ll_await_row(a, s, now, part.rank, number);
    if (__any_sync(GPU_ALL, turn == LL_TURN_LEAVE)) return false;
    if (LL_MASKS && turn == LL_TURN_LOST) part.rank = -1;
    ll_stamp_time(c, LL_GPU_SEEN);
    __syncwarp();
    const uint32_t mask = __ballot_sync(GPU_ALL, part.rank >= 0);
    const uint64_t at =
        words ? ll_word_row_at(&c->space, &c->shape, now->epoch, token, place) : ll_row_at(&c->space, number);
    uint8_t *y = a->y + token * a->y_pitch_bytes;
    const ll_addend mine = {ll_own(c, at), part.weight, !reduced, part.rank};
    if (ll_is_coded(a)) {
        ll_log_add_rows(c, c->form.dtype, team, mask, mine.row, part.weight, y);
        return true;
    }
    return __all_sync(GPU_ALL, ll_add_rows(a, s, now, team, mask, &mine, words, y, 0));
}

/* False: the call was not received. */
GPU_FUNC bool ll_combine_receive(const ll_combine_args *a, const ll_shared *s, const ll_now *now, uint32_t route,
                                 int32_t sending, bool *mismatched)
{
    ll_clear_waits(&a->call, s); /* a barrier, too: s->messages is no longer what the send makes of it */
    const ll_outcome outcome = ll_take_units(&a->call, s, now, route, NULL);
    if (outcome.left) return false;
    const int32_t tokens = outcome.mismatched ? 0 : a->routing.tokens, parts = ll_is_coded(a) ? 4 : 2;
    const ll_split split = ll_split_of(tokens, sending, LL_MASKS ? 1 : parts, LL_MASKS ? 1 : 4);
    *mismatched = outcome.mismatched;
    if (blockIdx.x == 0 && threadIdx.x == 0 && outcome.odd) ll_report(&a->call, s, now, route);
    for (int32_t token = split.first; token < tokens; token += split.stride)
        if (!ll_add_token(a, s, now, &split.team, token)) return false;
    return true;
}

/* With masks: a rank that has been masked meanwhile adds to no token. By the last block to end. */
GPU_FUNC void ll_combine_mend(const ll_combine_args *a, const ll_shared *s, const ll_now *now)
{
    const ll_gpu_call *c = &a->call;
    const ll_team block = {(int32_t)threadIdx.x, LL_GPU_THREADS};
    bool ok = true;
    while (ok && __syncthreads_or(threadIdx.x == 0 && atomicExch(&c->masks->lost, 0u)))
        for (int32_t token = 0; token < a->routing.tokens && ok; token++)
            ok = !__syncthreads_or(!ll_add_token(a, s, now, &block, token));
}

/* ---- what was missing when a wait was given up ------------------------------------------------------------------- */

/* Of the lanes' rows of a token: those that have come whole. */
GPU_FUNC int32_t ll_count_word_rows(const ll_combine_args *a, const ll_now *now, int32_t token, uint32_t mask,
                                    int32_t place)
{
    const ll_gpu_call *c = &a->call;
    int32_t came = 0;
    for (; mask; mask &= mask - 1) {
        const int32_t one = __shfl_sync(GPU_ALL, place, __ffs((int)mask) - 1);
        came +=
            ll_words_are_here(c, now, ll_word_row_at(&c->space, &c->shape, now->epoch, token, one), a->row_bytes / 4);
    }
    return came;
}

/* Rows of the rank that have come; *all: those that are to come. By a warp. */
GPU_FUNC int32_t ll_count_rows(const ll_combine_args *a, const ll_shared *s, const ll_now *now, int32_t rank,
                               int32_t *all)
{
    const ll_gpu_call *c = &a->call;
    const int32_t region = LL_MASKS ? c->masks->region[now->half] : 0;
    int32_t came = 0;
    *all = 0;
    for (int32_t token = 0; token < a->routing.tokens && ll_unit_promises(c, s, now, rank); token++) {
        ll_gpu_part part = ll_part_of_slot(a, s, token);
        if (c->form.sum == LL_GPU_REDUCED) part = ll_parts_by_rank(part);
        const bool due = part.rank == rank;
        const uint64_t number = ll_place_number(&c->space, &c->shape, now->epoch, region, token, due ? part.place : 0);
        const uint64_t *flag = (const uint64_t *)ll_own(c, ll_row_flag_at(&c->space, number));
        const uint32_t mask = __ballot_sync(GPU_ALL, due);
        *all += __popc(mask);
        if (ll_awaits_words(a))
            came += ll_count_word_rows(a, now, token, mask, part.place);
        else
            came += __popc(__ballot_sync(GPU_ALL, due && ll_has_stamp(flag, now->stamp)));
    }
    return came;
}

/* By each warp that leaves. */
GPU_FUNC void ll_combine_tell_dues(const ll_combine_args *a, const ll_shared *s, const ll_now *now)
{
    const ll_gpu_call *c = &a->call;
    const int32_t wait = ll_dues_begin(c);
    for (int32_t r = 0; wait && r < LL_RANKS(c); r++) {
        if (wait != GPU_WAIT_MESSAGE && wait != GPU_WAIT_WEIGHTS) {
            ll_dues_tell_one(c, s, now, wait, r);
            continue;
        }
        const uint64_t first = ll_weight_flag_at(&c->space, &c->shape, r, now->epoch, 0);
        int32_t all = wait == GPU_WAIT_WEIGHTS && ll_unit_promises(c, s, now, r) ? ll_owed(s, r) : 0;
        const int32_t weights = ll_count_flags(c, s, now, first, all);
        const int32_t came = wait == GPU_WAIT_WEIGHTS ? weights : ll_count_rows(a, s, now, r, &all);
        ll_dues_tell(c, r, came, all);
    }
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

GPU_KERNEL(LL_GPU_THREADS) LL_KERNEL(LL_COMBINE_KERNEL)(GPU_ARGS ll_combine_args a)
{
    GPU_LAUNCH_SHARED(uint8_t, memory);
    const ll_shared s = ll_shared_of(&a.call, memory);
    ll_now now;
    bool mismatched = false, doubt = false;
    int32_t sending = 0;
    ll_stamp_start(&a.call);
    const uint32_t route = a.call.refusal.status ? 0 : (uint32_t)*a.routing.stamp;
    ll_begin(&a.call, &s, LL_COMBINE, &now);
    if (!a.call.refusal.status) doubt = ll_doubts_handle(&a, &s, route);
    if (!ll_has_begun(&a.call, &s, &now)) return;
    if (a.call.phases & LL_GPU_SEND && !s.refusal->status && __syncthreads_or(doubt)) ll_refuse_handle(&a, &s);
    now.quick &= !s.refusal->status && !ll_is_coded(&a);
    bool goes = !(a.call.phases & LL_GPU_SEND) || ll_combine_send(&a, &s, &now, route, &mismatched, &sending);
    const bool receives = goes && a.call.phases & LL_GPU_RECEIVE;
    if (receives) goes = ll_combine_receive(&a, &s, &now, route, sending, &mismatched);
    if (!goes) ll_combine_tell_dues(&a, &s, &now);
    if (now.quick) {
        if (goes) ll_ends_quickly(&a.call, &now, mismatched);
        return;
    }
    if (!ll_ends_last(&a.call, &s, receives)) return;
    if (LL_MASKS && goes && receives && !mismatched) ll_combine_mend(&a, &s, &now);
    ll_close(&a.call, &s, &now, receives, mismatched);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* ll_combine: a low-latency combine, or one of its two phases.
 *
 *   grid     as many blocks as the call may use SMs, all resident with those of the other ranks; LL_GPU_THREADS each
 *   units    blocks 0 to N-1 open the call at one rank each, before they do anything else
 *   send     block b has messages b, b + blocks, … of the dispatch, of all ranks in turn: all threads bring the rows of
 *            its slots to their places (exact), or add them and bring the sum to its place (reduced); then a flag a
 *            place
 *   receive  block b has tokens b, b + blocks, …: each of its warps polls the flags of the token's places, and adds its
 *            part of these rows
 *   waits    the send for the half before to be read; where weights go ahead, for those of the others; the receive for
 *            all units, then for each token's rows
 *   bytes    of a token: each row of a slot once from memory and once to its place, or once from memory, and one row a
 *            rank; then each place once from memory */
#include "exec/cuda/kernels/ll_device.h"
#include "exec/cuda/kernels/ll_log.h"
#include "exec/cuda/kernels/number.h"

/* expar_ll_sum; the host checks it. */
#define LL_GPU_REDUCED 1

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

/* The dispatch has brought all its rows, and its experts are what rows are awaited for. */
GPU_FUNC void ll_check_handle(const ll_combine_args *a, const ll_shared *s)
{
    const int32_t topk = a->routing.topk, pitch = LL_BUFFER_TOPK(&a->call);
    for (int32_t i = threadIdx.x; i < a->routing.tokens * topk; i += blockDim.x) {
        const int32_t token = i / topk, k = i - token * topk;
        if (a->routing.idx[(int64_t)token * pitch + k] != expert_at(&a->route, token, k))
            atomicMin(s->first_bad, (unsigned long long)token << GPU_SLOT_BITS | (unsigned)k);
    }
    const bool whole = *a->routing.stamp != 0;
    __syncthreads();
    if (whole && *s->first_bad == ~0ull) return;
    if (threadIdx.x == 0 && !whole) {
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

/* False: a wait was given up. */
GPU_FUNC bool ll_open_owners(const ll_combine_args *a, const ll_shared *s, const ll_now *now, uint32_t route)
{
    const ll_gpu_call *c = &a->call;
    if (now->behind && blockIdx.x == 0 && !ll_await_between(c, s, now)) return false;
    /* No read word has told others where this half lies: this unit does. */
    if (LL_MASKS && now->behind && blockIdx.x == 0 && !c->state->open[LL_COMBINE][now->half])
        ll_settle(c, s, now->half);
    const int32_t region = LL_MASKS ? c->masks->region[now->half] : 0;
    for (int32_t i = ll_first_opened(now); i < LL_RANKS(c); i += ll_opened_stride(now)) {
        const int32_t pe = (c->world.rank + 1 + i) % LL_RANKS(c);
        if (!ll_is_told(c, pe)) continue;
        ll_post_unit(c, s, now, pe, route, region, NULL);
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

GPU_FUNC const uint8_t *ll_row_there(const ll_combine_args *a, int32_t source, const ll_header *header, int32_t k)
{
    const ll_gpu_call *c = &a->call;
    const int32_t local = ll_header_experts((ll_header *)header)[k];
    const int32_t row = ll_header_rows((ll_header *)header, LL_BUFFER_TOPK(c))[k];
    if (local < 0 || local >= c->shape.local_experts) return NULL;
    const int64_t range = a->routing.range[(int64_t)local * LL_RANKS(c) + source];
    if (row < 0 || row >= ll_range_count(range)) return NULL;
    return a->x + local * a->x_expert_pitch_bytes + (ll_range_begin(range) + (int64_t)row) * a->x_row_pitch_bytes;
}

/* With its header, by those that went ahead of the rows, or this rank's own. */
GPU_FUNC const float *ll_weights_of(const ll_combine_args *a, const ll_shared *s, const ll_now *now, int32_t source,
                                    int32_t number, const ll_header *header)
{
    const ll_gpu_call *c = &a->call;
    if (!c->form.weights) return ll_header_weights((ll_header *)header, LL_BUFFER_TOPK(c));
    if (source == c->world.rank) return a->route.weights + header->token * a->route.weights_pitch;
    return (const float *)ll_own(c, s, ll_weights_at(&c->space, &c->shape, source, now->epoch, number));
}

GPU_FUNC ll_slot ll_slot_of(const ll_combine_args *a, const ll_shared *s, const ll_now *now, int32_t source,
                            int32_t number, const ll_header *header)
{
    const int32_t lane = threadIdx.x % 32;
    ll_slot slot = {NULL, 0.0f};
    if (lane >= a->routing.topk) return slot;
    slot.row = ll_row_there(a, source, header, lane);
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

/* ---- rows as they are -------------------------------------------------------------------------------------------- */

/* The block's part of the rows of up to LL_GPU_PARTS slots, from the lowest one in *mask on. */
GPU_FUNC void ll_bring_rows(const ll_combine_args *a, uint32_t *mask, const uint8_t *row, const uint8_t *place)
{
    const int32_t units = (int32_t)(GPU_ROW_BYTES(a) / 16);
    const uint4 *from[LL_GPU_PARTS];
    uint4 *to[LL_GPU_PARTS];
#pragma unroll
    for (int32_t i = 0; i < LL_GPU_PARTS; i++) {
        const int32_t lane = *mask ? __ffs((int)*mask) - 1 : 0;
        from[i] = *mask ? (const uint4 *)ll_pointer_of(row, lane) : NULL;
        to[i] = *mask ? (uint4 *)ll_pointer_of(place, lane) : NULL;
        *mask &= *mask - 1;
    }
    for (int32_t u = threadIdx.x; u < units; u += LL_GPU_THREADS) {
        uint4 value[LL_GPU_PARTS];
#pragma unroll
        for (int32_t i = 0; i < LL_GPU_PARTS; i++)
            if (from[i]) value[i] = load_row(from[i] + u);
#pragma unroll
        for (int32_t i = 0; i < LL_GPU_PARTS; i++)
            if (from[i]) store_row(to[i] + u, value[i]);
    }
}

/* Each slot's row to the slot's place. By all threads of a block. */
GPU_FUNC void ll_send_slots(const ll_combine_args *a, const ll_shared *s, const ll_now *now, int32_t source,
                            const ll_header *header, const ll_slot *slot)
{
    const ll_gpu_call *c = &a->call;
    const int32_t lane = threadIdx.x % 32;
    const uint64_t number = ll_place_number(&c->space, &c->shape, now->epoch, ll_region_there(s, source), header->token,
                                            lane < a->routing.topk ? lane : 0);
    const uint8_t *place = ll_there(s, source, ll_row_at(&c->space, number));
    uint32_t mask = __ballot_sync(GPU_ALL, slot->row != NULL);
    for (; a->coded && mask; mask &= mask - 1)
        ll_log_send_row(c, (uint32_t *)s->rest, c->form.dtype, ll_pointer_of(slot->row, __ffs((int)mask) - 1),
                        (uint8_t *)ll_pointer_of(place, __ffs((int)mask) - 1));
    while (mask)
        ll_bring_rows(a, &mask, slot->row, place);
    ll_stamp_time(c, LL_GPU_SENT);
    __syncthreads();
    if (threadIdx.x < 32 && slot->row)
        store_release((uint64_t *)ll_there(s, source, ll_row_flag_at(&c->space, number)), ll_flag_of(now, 1));
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

/* One unit of a sum: of the rows of the lanes in mask, from the lowest lane on. */
GPU_FUNC uint4 ll_add_unit(int32_t dtype, uint32_t mask, const uint8_t *row, float weight, bool weighted, int32_t u,
                           bool in)
{
    float sums[8] = {0};
    while (mask) {
        const uint4 *from[LL_GPU_PARTS];
        float by[LL_GPU_PARTS];
        uint4 value[LL_GPU_PARTS];
#pragma unroll
        for (int32_t i = 0; i < LL_GPU_PARTS; i++) {
            const int32_t lane = mask ? __ffs((int)mask) - 1 : 0;
            from[i] = mask ? (const uint4 *)ll_pointer_of(row, lane) : NULL;
            by[i] = __shfl_sync(GPU_ALL, weight, lane);
            if (from[i] && in) value[i] = load_row(from[i] + u);
            mask &= mask - 1;
        }
#pragma unroll
        for (int32_t i = 0; i < LL_GPU_PARTS; i++)
            if (from[i] && in) add_vector(dtype, sums, value[i], weighted, by[i]);
    }
    return narrow_vector(dtype, sums);
}

/* The block's part of a sum. */
GPU_FUNC void ll_add_rows(const ll_combine_args *a, uint32_t mask, const uint8_t *row, float weight, bool weighted,
                          uint4 *to)
{
    const int32_t units = (int32_t)(GPU_ROW_BYTES(a) / 16), dtype = GPU_DTYPE(a->call.form.dtype);
    for (int32_t base = threadIdx.x / 32 * 32; base < units; base += LL_GPU_THREADS) {
        const int32_t u = base + threadIdx.x % 32;
        const uint4 sum = ll_add_unit(dtype, mask, row, weight, weighted, u, u < units);
        if (u < units) store_row(to + u, sum);
    }
}

/* A message's rows, added where they are, to the place of this rank. By all threads of a block. */
GPU_FUNC void ll_send_sum(const ll_combine_args *a, const ll_shared *s, const ll_now *now, int32_t source,
                          const ll_header *header, const ll_slot *slot)
{
    const ll_gpu_call *c = &a->call;
    const uint64_t number =
        ll_place_number(&c->space, &c->shape, now->epoch, ll_region_there(s, source), header->token, header->place);
    ll_add_rows(a, __ballot_sync(GPU_ALL, slot->row != NULL), slot->row, slot->weight, true,
                (uint4 *)ll_there(s, source, ll_row_at(&c->space, number)));
    ll_stamp_time(c, LL_GPU_SENT);
    __syncthreads();
    if (threadIdx.x == 0)
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
        if (a->routing.messages[r] > 0 && !(c->form.weights && !ll_sends_data(s, r)))
            door = ll_await_half(c, s, now, r, &region);
        s->messages[r] = door == LL_GPU_OPEN ? 1 + region : 0;
        ok &= door != LL_GPU_LEAVES;
    }
    return !__syncthreads_or(!ok);
}

/* False: a wait was given up. */
GPU_FUNC bool ll_return_message(const ll_combine_args *a, const ll_shared *s, const ll_now *now, int32_t source,
                                int32_t number)
{
    const ll_gpu_call *c = &a->call;
    const ll_header *header = ll_header_of(a, source, number);
    if (!ll_header_fits(a, header)) return true;
    if (c->form.weights && source != c->world.rank) {
        uint64_t seen;
        const uint64_t flag = ll_weight_flag_at(&c->space, &c->shape, source, now->epoch, number);
        const ll_gpu_turn turn =
            ll_await(c, s, (const uint64_t *)ll_own(c, s, flag), now->stamp, GPU_WAIT_WEIGHTS, source, &seen);
        if (__syncthreads_or(turn == LL_TURN_LEAVE)) return false;
        if (LL_MASKS && __syncthreads_or(turn == LL_TURN_LOST)) return true;
    }
    const ll_slot slot = ll_slot_of(a, s, now, source, number, header);
    if (c->form.sum == LL_GPU_REDUCED)
        ll_send_sum(a, s, now, source, header, &slot);
    else
        ll_send_slots(a, s, now, source, header, &slot);
    return true;
}

GPU_FUNC void ll_count_returned(const ll_combine_args *a)
{
    const ll_gpu_call *c = &a->call;
    const int32_t n = LL_RANKS(c), ranges = c->shape.local_experts * n;
    int32_t rows = 0;
    if (c->form.sum == LL_GPU_REDUCED)
        for (int32_t r = threadIdx.x; r < n; r += blockDim.x)
            rows += ll_is_masked(c, r) ? 0 : a->routing.messages[r];
    else
        for (int32_t i = threadIdx.x; i < ranges; i += blockDim.x)
            rows += LL_MASKS && ll_is_masked(c, i % n) ? 0 : ll_range_count(a->routing.range[i]);
    rows = __reduce_add_sync(GPU_ALL, rows);
    if (threadIdx.x % 32 || rows == 0) return;
    atomicAdd(&c->state->rows, (unsigned long long)rows);
    if (!a->coded) atomicAdd(&c->state->bytes, (unsigned long long)rows * (unsigned long long)a->row_bytes);
}

/* Number `i` of the messages of all ranks, in turn from the next rank on, this one last. */
GPU_FUNC bool ll_return_messages(const ll_combine_args *a, const ll_shared *s, const ll_now *now)
{
    const ll_gpu_call *c = &a->call;
    const int32_t n = LL_RANKS(c);
    int32_t most = 0;
    for (int32_t r = 0; r < n; r++)
        most = max(most, a->routing.messages[r]);
    for (int32_t i = blockIdx.x; i < most * n; i += gridDim.x) {
        const int32_t number = i / n, source = (c->world.rank + 1 + i % n) % n;
        if (number >= a->routing.messages[source] || !s->messages[source]) continue;
        if (!ll_return_message(a, s, now, source, number)) return false;
    }
    return true;
}

/* *mismatched: nothing is sent, as weights that go ahead are not those of this call. False: nothing is to be received.
   */
GPU_FUNC bool ll_combine_send(const ll_combine_args *a, const ll_shared *s, const ll_now *now, uint32_t route,
                              bool *mismatched)
{
    if (ll_status_goes_on(s->refusal->status)) ll_check_handle(a, s);
    if (!ll_open_owners(a, s, now, route)) return false;
    if (s->refusal->status) return false;
    if (blockIdx.x == gridDim.x - 1) ll_count_returned(a);
    if (a->call.form.weights) {
        if (!ll_send_all_weights(a, s, now) || !ll_take_units(&a->call, s, now, NULL)) return false;
        *mismatched = ll_judge(&a->call, s, route).mismatched;
        if (*mismatched) return true;
    }
    return ll_await_owners(a, s, now) && ll_return_messages(a, s, now);
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

/* Each warp by itself; false: a wait was given up. */
GPU_FUNC bool ll_add_token(const ll_combine_args *a, const ll_shared *s, const ll_now *now, int32_t token)
{
    const ll_gpu_call *c = &a->call;
    const bool reduced = c->form.sum == LL_GPU_REDUCED;
    ll_gpu_part part = ll_part_of_slot(a, s, token);
    if (reduced) part = ll_parts_by_rank(part);
    if (part.rank >= 0 && !ll_sends_data(s, part.rank)) part.rank = -1;
    const int32_t region = LL_MASKS ? ll_region_of(c, (uint32_t)s->messages[c->world.rank]) : 0;
    const uint64_t number =
        ll_place_number(&c->space, &c->shape, now->epoch, region, token, part.rank < 0 ? 0 : part.place);
    const bool clocked = c->wait_ns && threadIdx.x < 32 && part.rank >= 0;
    const uint64_t since_ns = ll_wait_begin(c), before = clocked ? s->waits[part.rank] : 0;
    ll_gpu_turn turn = LL_TURN_ON;
    uint64_t seen;
    __syncwarp();
    if (part.rank >= 0)
        turn = ll_await(c, s, (const uint64_t *)ll_own(c, s, ll_row_flag_at(&c->space, number)), now->stamp,
                        GPU_WAIT_MESSAGE, part.rank, &seen);
    if (__any_sync(GPU_ALL, turn == LL_TURN_LEAVE)) return false;
    if (LL_MASKS && turn == LL_TURN_LOST) part.rank = -1;
    if (clocked && part.rank >= 0) ll_wait_end(c, s, part.rank, before, since_ns);
    ll_stamp_time(c, LL_GPU_SEEN);
    __syncwarp();
    const uint32_t mask = __ballot_sync(GPU_ALL, part.rank >= 0);
    const uint8_t *place = ll_own(c, s, ll_row_at(&c->space, number));
    uint8_t *y = a->y + token * a->y_pitch_bytes;
    if (a->coded)
        ll_log_add_rows(c, c->form.dtype, mask, place, part.weight, y);
    else
        ll_add_rows(a, mask, place, part.weight, !reduced, (uint4 *)y);
    return true;
}

/* False: the call was not received. */
GPU_FUNC bool ll_combine_receive(const ll_combine_args *a, const ll_shared *s, const ll_now *now, uint32_t route,
                                 bool *mismatched)
{
    ll_clear_waits(&a->call, s); /* a barrier, too: s->messages is no longer what the send makes of it */
    if (!ll_take_units(&a->call, s, now, NULL)) return false;
    const ll_outcome outcome = ll_judge(&a->call, s, route);
    *mismatched = outcome.mismatched;
    if (blockIdx.x == 0 && threadIdx.x == 0 && outcome.odd) ll_report(&a->call, s, now, route);
    for (int32_t token = blockIdx.x; token < a->routing.tokens && !outcome.mismatched; token += gridDim.x)
        if (!ll_add_token(a, s, now, token)) return false;
    return true;
}

/* With masks: a rank that has been masked meanwhile adds to no token. By the last block to end. */
GPU_FUNC void ll_combine_mend(const ll_combine_args *a, const ll_shared *s, const ll_now *now)
{
    const ll_gpu_call *c = &a->call;
    bool ok = true;
    while (ok && __syncthreads_or(threadIdx.x == 0 && atomicExch(&c->masks->lost, 0u)))
        for (int32_t token = 0; token < a->routing.tokens && ok; token++)
            ok = !__syncthreads_or(!ll_add_token(a, s, now, token));
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

GPU_KERNEL(LL_GPU_THREADS) LL_KERNEL(ll_combine)(GPU_ARGS ll_combine_args a)
{
    GPU_LAUNCH_SHARED(uint8_t, memory);
    const ll_shared s = ll_shared_of(&a.call, memory);
    ll_now now;
    bool mismatched = false;
    ll_stamp_start(&a.call);
    const uint32_t route = a.call.refusal.status ? 0 : (uint32_t)*a.routing.stamp;
    if (!ll_open(&a.call, &s, LL_COMBINE, &now)) return;
    bool goes = !(a.call.phases & LL_GPU_SEND) || ll_combine_send(&a, &s, &now, route, &mismatched);
    const bool receives = goes && a.call.phases & LL_GPU_RECEIVE;
    if (receives) goes = ll_combine_receive(&a, &s, &now, route, &mismatched);
    if (!ll_ends_last(&a.call, &s, receives)) return;
    if (LL_MASKS && goes && receives && !mismatched) ll_combine_mend(&a, &s, &now);
    ll_close(&a.call, &s, &now, receives, mismatched);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* topk_idx → messages: one for each token and rank that has experts of it, in token order by a scan. */
#include "exec/cpu/low_latency/cpu.h"

#include <stdlib.h>
#include <string.h>

static size_t sends_place(size_t *bytes, size_t count, size_t each)
{
    const size_t at = *bytes;
    *bytes += count * each;
    return at;
}

expar_status ll_sends_make(const ll_shape *shape, ll_sends *sends)
{
    const size_t tokens = (size_t)shape->tokens, n = (size_t)shape->ranks, topk = (size_t)shape->topk;
    const size_t experts = n * (size_t)shape->local_experts, most = topk < n ? topk : n;
    size_t bytes = 0;
    const size_t targets = sends_place(&bytes, tokens * most, sizeof(ll_target));
    const size_t first = sends_place(&bytes, tokens + 1, sizeof(int32_t));
    const size_t slots = sends_place(&bytes, tokens * topk, sizeof(int32_t));
    const size_t rows = sends_place(&bytes, tokens * topk, sizeof(int32_t));
    const size_t messages = sends_place(&bytes, n, sizeof(int32_t));
    const size_t counts = sends_place(&bytes, experts, sizeof(int32_t));
    const size_t last_target = sends_place(&bytes, n, sizeof(int32_t));
    uint8_t *arrays = calloc(1, bytes);
    if (!arrays) return error_set(EXPAR_ERR_MEMORY, "no memory for the messages of %d tokens", shape->tokens);
    *sends = (ll_sends){.first = (int32_t *)(arrays + first),
                        .targets = (ll_target *)(arrays + targets),
                        .experts = (int32_t *)(arrays + slots),
                        .rows = (int32_t *)(arrays + rows),
                        .messages = (int32_t *)(arrays + messages),
                        .counts = (int32_t *)(arrays + counts),
                        .last_target = (int32_t *)(arrays + last_target),
                        .arrays = arrays};
    return EXPAR_OK;
}

static expar_status bad_index(const ep_route_view *route, int32_t token, int32_t k, int64_t experts)
{
    return error_set(EXPAR_ERR_INDEX, "topk_idx[%d][%d] is %lld; expected -1 to %lld", token, k,
                     (long long)ep_route_expert(route, token, k), (long long)experts - 1);
}

/* Reads one token's slots. Returns false if one of them, *bad, is out of range. */
static bool read_token(const ll_sends *sends, const ll_shape *shape, const ep_route_view *route, int32_t token,
                       int32_t topk, int32_t *bad)
{
    const int64_t experts = (int64_t)shape->ranks * shape->local_experts;
    int32_t *slots = sends->experts + (int64_t)token * shape->topk;
    for (int32_t k = 0; k < topk; k++) {
        const int64_t expert = ep_route_expert(route, token, k);
        *bad = k;
        if (expert < -1 || expert >= experts) return false;
        slots[k] = (int32_t)expert;
    }
    return true;
}

/* Numbers the token's rows and messages. Each slot has a row of its own, even if two slots name one expert. */
static int32_t place_token(ll_sends *sends, const ll_shape *shape, int32_t token, int32_t topk, int32_t next)
{
    const int64_t slot = (int64_t)token * shape->topk;
    const int32_t begin = next;
    for (int32_t k = 0; k < topk; k++) {
        const int32_t expert = sends->experts[slot + k];
        if (expert < 0) continue;
        const int32_t rank = expert / shape->local_experts;
        sends->rows[slot + k] = sends->counts[expert]++;
        if (sends->last_target[rank] == token + 1) continue;
        sends->last_target[rank] = token + 1;
        sends->targets[next] = (ll_target){.rank = rank, .message = sends->messages[rank]++, .place = next - begin};
        next++;
    }
    return next;
}

expar_status ll_sends_fill(ll_sends *sends, const ll_shape *shape, const ep_route_view *route, int32_t tokens,
                           int32_t topk)
{
    const size_t n = (size_t)shape->ranks, experts = n * (size_t)shape->local_experts;
    expar_status status = EXPAR_OK;
    int32_t next = 0;
    /* Messages, counts and last targets are contiguous. */
    memset(sends->messages, 0, (2 * n + experts) * sizeof(int32_t));
    for (int32_t t = 0; t < tokens; t++) {
        int32_t bad = 0;
        sends->first[t] = next;
        if (read_token(sends, shape, route, t, topk, &bad)) {
            next = place_token(sends, shape, t, topk, next);
            continue;
        }
        for (int32_t k = 0; k < topk; k++)
            sends->experts[(int64_t)t * shape->topk + k] = -1;
        if (status == EXPAR_OK) status = bad_index(route, t, bad, (int64_t)shape->ranks * shape->local_experts);
    }
    sends->first[tokens] = next;
    return status;
}

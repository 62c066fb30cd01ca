/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls of expar/atomics.h, and their like on contexts. */
#include "pgas/direct.h"
#include "pgas/ops.h"
#include "pgas/target.h"
#include <expar/atomics.h>

#include <string.h>

static expar_status atomic_aim(const ops_origin *from, link_change *change, const void *word, int32_t pe,
                               link_peer *out)
{
    kinds_place place;
    expar_status status = target_check_pe(from->call, from->group, pe);
    if (status == EXPAR_OK) status = target_check_host(from->call, from->group, "old", change->old);
    if (status == EXPAR_OK) status = target_check_word(from->call, from->group, "word", word, change->bytes, &place);
    if (status != EXPAR_OK) return status;
    change->offset = place.offset;
    return target_link(from, pe, place.memory, LINK_WORDS, NULL, out);
}

static expar_status run_by_link(const ops_origin *from, const link_change *change, const void *word, int32_t pe)
{
    link_peer peer;
    link_change aimed = *change;
    expar_status status = atomic_aim(from, &aimed, word, pe, &peer);
    return status == EXPAR_OK ? link_change_now(&peer, &aimed) : status;
}

expar_status ops_atomic_run(const ops_origin *from, const link_change *change, const void *word, int32_t pe)
{
    return direct_change(from->group, change, word, pe) ? EXPAR_OK : run_by_link(from, change, word, pe);
}

/* Numbers are words of their bits. */
static uint64_t bits_of(const void *value, size_t bytes)
{
    uint32_t low;
    uint64_t whole;
    if (bytes == sizeof low) {
        memcpy(&low, value, sizeof low);
        return low;
    }
    memcpy(&whole, value, sizeof whole);
    return whole;
}

/* The old word comes by quiet. */
static expar_status start_atomic(const ops_origin *from, const link_change *change, const void *word, int32_t pe)
{
    link_peer peer;
    link_change aimed = *change;
    expar_status status = atomic_aim(from, &aimed, word, pe, &peer);
    return status == EXPAR_OK ? link_change_word(&peer, &aimed, from->batch) : status;
}

/* An operation without a result. */
static expar_status run_plain(const ops_origin *from, const link_change *change, const void *word, int32_t pe)
{
    return from->batch ? start_atomic(from, change, word, pe) : ops_atomic_run(from, change, word, pe);
}

/* change->old: the call's argument of that name (a plain fetch: value). */
static expar_status run_fetching(const ops_origin *from, const link_change *change, const void *word, int32_t pe)
{
    if (!change->old)
        return error_set(EXPAR_ERR_NULL, "%s: %s is NULL", from->call, change->op == TRANSPORT_FETCH ? "value" : "old");
    return from->nbi ? start_atomic(from, change, word, pe) : ops_atomic_run(from, change, word, pe);
}

#define OPERATION(op, operand, compare, old)                                                                           \
    (&(link_change){op, sizeof(*word), bits_of(&(operand), sizeof(operand)), bits_of(&(compare), sizeof(compare)), 0,  \
                    old})

/* ---- the calls: P is what names begin with, O declares the group or context, ON makes the origin ----------------- */

/* name(word, value) and name(word, value, old) of one operation. */
#define PLAIN_DEFINE(P, O, ON, T, S, name, op)                                                                         \
    expar_status P##atomic_##name##_##S(O, T *word, T value, int32_t pe)                                               \
    {                                                                                                                  \
        ON(#P "atomic_" #name "_" #S, false)                                                                           \
        return group_ended(from.group, run_plain(&from, OPERATION(op, value, value, NULL), word, pe));                 \
    }
#define FETCHING_DEFINE(P, O, ON, T, S, name, nbi, op)                                                                 \
    expar_status P##atomic_##name##_##S(O, T *word, T value, int32_t pe, T *old)                                       \
    {                                                                                                                  \
        ON(#P "atomic_" #name "_" #S, nbi)                                                                             \
        return group_ended(from.group, run_fetching(&from, OPERATION(op, value, value, old), word, pe));               \
    }
#define FETCH_DEFINE(P, O, ON, T, S, name, nbi)                                                                        \
    expar_status P##atomic_##name##_##S(O, const T *word, int32_t pe, T *value)                                        \
    {                                                                                                                  \
        const T none = 0;                                                                                              \
        ON(#P "atomic_" #name "_" #S, nbi)                                                                             \
        return group_ended(from.group, run_fetching(&from, OPERATION(TRANSPORT_FETCH, none, none, value), word, pe));  \
    }
#define COMPARE_SWAP_DEFINE(P, O, ON, T, S, name, nbi)                                                                 \
    expar_status P##atomic_##name##_##S(O, T *word, T expected, T desired, int32_t pe, T *old)                         \
    {                                                                                                                  \
        ON(#P "atomic_" #name "_" #S, nbi)                                                                             \
        return group_ended(from.group,                                                                                 \
                           run_fetching(&from, OPERATION(TRANSPORT_COMPARE_SWAP, desired, expected, old), word, pe));  \
    }
#define FETCH_INC_DEFINE(P, O, ON, T, S, name, nbi)                                                                    \
    expar_status P##atomic_##name##_##S(O, T *word, int32_t pe, T *old)                                                \
    {                                                                                                                  \
        const T one = 1;                                                                                               \
        ON(#P "atomic_" #name "_" #S, nbi)                                                                             \
        return group_ended(from.group, run_fetching(&from, OPERATION(TRANSPORT_ADD, one, one, old), word, pe));        \
    }

#define SWAP_SET_DEFINE(P, O, ON, T, S)                                                                                \
    FETCH_DEFINE(P, O, ON, T, S, fetch, false)                                                                         \
    FETCH_DEFINE(P, O, ON, T, S, fetch_nbi, true)                                                                      \
    PLAIN_DEFINE(P, O, ON, T, S, set, TRANSPORT_SET)                                                                   \
    FETCHING_DEFINE(P, O, ON, T, S, swap, false, TRANSPORT_SWAP)                                                       \
    FETCHING_DEFINE(P, O, ON, T, S, swap_nbi, true, TRANSPORT_SWAP)

#define OPERATION_DEFINE(P, O, ON, T, S, name, op)                                                                     \
    PLAIN_DEFINE(P, O, ON, T, S, name, op)                                                                             \
    FETCHING_DEFINE(P, O, ON, T, S, fetch_##name, false, op)                                                           \
    FETCHING_DEFINE(P, O, ON, T, S, fetch_##name##_nbi, true, op)

#define ATOMICS_DEFINE(P, O, ON, T, S)                                                                                 \
    SWAP_SET_DEFINE(P, O, ON, T, S)                                                                                    \
    COMPARE_SWAP_DEFINE(P, O, ON, T, S, compare_swap, false)                                                           \
    COMPARE_SWAP_DEFINE(P, O, ON, T, S, compare_swap_nbi, true)                                                        \
    OPERATION_DEFINE(P, O, ON, T, S, add, TRANSPORT_ADD)                                                               \
    OPERATION_DEFINE(P, O, ON, T, S, and, TRANSPORT_AND)                                                               \
    OPERATION_DEFINE(P, O, ON, T, S, or, TRANSPORT_OR)                                                                 \
    OPERATION_DEFINE(P, O, ON, T, S, xor, TRANSPORT_XOR)                                                               \
    FETCH_INC_DEFINE(P, O, ON, T, S, fetch_inc, false)                                                                 \
    FETCH_INC_DEFINE(P, O, ON, T, S, fetch_inc_nbi, true)                                                              \
    expar_status P##atomic_inc_##S(O, T *word, int32_t pe)                                                             \
    {                                                                                                                  \
        const T one = 1;                                                                                               \
        ON(#P "atomic_inc_" #S, false)                                                                                 \
        return group_ended(from.group, run_plain(&from, OPERATION(TRANSPORT_ADD, one, one, NULL), word, pe));          \
    }

#define GROUP_SWAP_SET(T, S) SWAP_SET_DEFINE(expar_, expar_group *group, OPS_ON_GROUP, T, S)
#define GROUP_ATOMICS(T, S)  ATOMICS_DEFINE(expar_, expar_group *group, OPS_ON_GROUP, T, S)
#define CTX_SWAP_SET(T, S)   SWAP_SET_DEFINE(expar_ctx_, expar_ctx *ctx, OPS_ON_CTX, T, S)
#define CTX_ATOMICS(T, S)    ATOMICS_DEFINE(expar_ctx_, expar_ctx *ctx, OPS_ON_CTX, T, S)
EXPAR_FLOAT_TYPES(GROUP_SWAP_SET)
EXPAR_WORD_TYPES(GROUP_ATOMICS)
EXPAR_FLOAT_TYPES(CTX_SWAP_SET)
EXPAR_WORD_TYPES(CTX_ATOMICS)

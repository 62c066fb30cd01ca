/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls of expar/atomics.h. Without a proxy the nbi forms are the plain ones: a value that is here at once
 * is here after quiet, too. */
#include "shmem/ops.h"
#include "shmem/target.h"
#include <expar/atomics.h>

#include <string.h>

static expar_status check_atomic(const ops_atomic *atomic, expar_group *group, const void *word, int32_t pe,
                                 uint64_t *offset, transport **via)
{
    expar_status status = target_check_pe(atomic->call, group, pe);
    if (status == EXPAR_OK) status = target_check_word(atomic->call, group, "word", word, atomic->bytes, offset);
    return status == EXPAR_OK ? target_transport(atomic->call, group, group->sym->reach_atomic, pe, via) : status;
}

expar_status ops_atomic_run(const ops_atomic *atomic, expar_group *group, const void *word, int32_t pe, uint64_t *old)
{
    uint64_t offset;
    transport *via;
    expar_status status = check_atomic(atomic, group, word, pe, &offset, &via);
    if (status == EXPAR_OK)
        status = via->ops->atomic(via, pe, offset, atomic->bytes, atomic->op, atomic->operand, atomic->compare, old);
    if (status == EXPAR_OK && atomic->op != TRANSPORT_FETCH) sym_ring(group->sym, pe);
    return status;
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

/* *old: a number of the atomic's size. */
static expar_status run_fetching(const ops_atomic *atomic, expar_group *group, const void *word, int32_t pe, void *old)
{
    uint64_t before;
    if (!old) return error_set(EXPAR_ERR_NULL, "%s: no place for the value before", atomic->call);
    expar_status status = ops_atomic_run(atomic, group, word, pe, &before);
    uint32_t low = (uint32_t)before;
    if (status == EXPAR_OK) memcpy(old, atomic->bytes == sizeof low ? (void *)&low : (void *)&before, atomic->bytes);
    return status;
}

/* The value before comes by quiet. */
static expar_status run_fetching_nbi(const ops_atomic *atomic, expar_group *group, const void *word, int32_t pe,
                                     void *old)
{
    uint64_t offset;
    transport *via;
    if (!old || !group || !group->sym->proxy) return run_fetching(atomic, group, word, pe, old);
    expar_status status = check_atomic(atomic, group, word, pe, &offset, &via);
    if (status != EXPAR_OK) return status;
    return proxy_issue(group->sym->proxy, atomic->call,
                       &(proxy_command){.kind = PROXY_ATOMIC,
                                        .pe = pe,
                                        .offset = offset,
                                        .local = (uintptr_t)old,
                                        .bytes = atomic->bytes,
                                        .op = (uint16_t)atomic->op,
                                        .operand = atomic->operand,
                                        .compare = atomic->compare});
}

#define OPERATION(call, op, operand, compare)                                                                          \
    (&(ops_atomic){call, op, sizeof(*word), bits_of(&(operand), sizeof(operand)), bits_of(&(compare), sizeof(compare))})

/* name(word, value) and name(word, value, old) of one operation. */
#define PLAIN_DEFINE(T, S, name, op)                                                                                   \
    expar_status expar_atomic_##name##_##S(expar_group *group, T *word, T value, int32_t pe)                           \
    {                                                                                                                  \
        return ops_atomic_run(OPERATION("expar_atomic_" #name "_" #S, op, value, value), group, word, pe, NULL);       \
    }
#define FETCHING_DEFINE(T, S, name, op, run)                                                                           \
    expar_status expar_atomic_##name##_##S(expar_group *group, T *word, T value, int32_t pe, T *old)                   \
    {                                                                                                                  \
        return run(OPERATION("expar_atomic_" #name "_" #S, op, value, value), group, word, pe, old);                   \
    }
#define FETCH_DEFINE(T, S, name, run)                                                                                  \
    expar_status expar_atomic_##name##_##S(expar_group *group, const T *word, int32_t pe, T *value)                    \
    {                                                                                                                  \
        const T none = 0;                                                                                              \
        return run(OPERATION("expar_atomic_" #name "_" #S, TRANSPORT_FETCH, none, none), group, word, pe, value);      \
    }
#define COMPARE_SWAP_DEFINE(T, S, name, run)                                                                           \
    expar_status expar_atomic_##name##_##S(expar_group *group, T *word, T expected, T desired, int32_t pe, T *old)     \
    {                                                                                                                  \
        return run(OPERATION("expar_atomic_" #name "_" #S, TRANSPORT_COMPARE_SWAP, desired, expected), group, word,    \
                   pe, old);                                                                                           \
    }
#define FETCH_INC_DEFINE(T, S, name, run)                                                                              \
    expar_status expar_atomic_##name##_##S(expar_group *group, T *word, int32_t pe, T *old)                            \
    {                                                                                                                  \
        const T one = 1;                                                                                               \
        return run(OPERATION("expar_atomic_" #name "_" #S, TRANSPORT_ADD, one, one), group, word, pe, old);            \
    }

#define SWAP_SET_DEFINE(T, S)                                                                                          \
    FETCH_DEFINE(T, S, fetch, run_fetching)                                                                            \
    FETCH_DEFINE(T, S, fetch_nbi, run_fetching_nbi)                                                                    \
    PLAIN_DEFINE(T, S, set, TRANSPORT_SET)                                                                             \
    FETCHING_DEFINE(T, S, swap, TRANSPORT_SWAP, run_fetching)                                                          \
    FETCHING_DEFINE(T, S, swap_nbi, TRANSPORT_SWAP, run_fetching_nbi)

#define OPERATION_DEFINE(T, S, name, op)                                                                               \
    PLAIN_DEFINE(T, S, name, op)                                                                                       \
    FETCHING_DEFINE(T, S, fetch_##name, op, run_fetching)                                                              \
    FETCHING_DEFINE(T, S, fetch_##name##_nbi, op, run_fetching_nbi)

#define ATOMICS_DEFINE(T, S)                                                                                           \
    SWAP_SET_DEFINE(T, S)                                                                                              \
    COMPARE_SWAP_DEFINE(T, S, compare_swap, run_fetching)                                                              \
    COMPARE_SWAP_DEFINE(T, S, compare_swap_nbi, run_fetching_nbi)                                                      \
    OPERATION_DEFINE(T, S, add, TRANSPORT_ADD)                                                                         \
    OPERATION_DEFINE(T, S, and, TRANSPORT_AND)                                                                         \
    OPERATION_DEFINE(T, S, or, TRANSPORT_OR)                                                                           \
    OPERATION_DEFINE(T, S, xor, TRANSPORT_XOR)                                                                         \
    FETCH_INC_DEFINE(T, S, fetch_inc, run_fetching)                                                                    \
    FETCH_INC_DEFINE(T, S, fetch_inc_nbi, run_fetching_nbi)                                                            \
    expar_status expar_atomic_inc_##S(expar_group *group, T *word, int32_t pe)                                         \
    {                                                                                                                  \
        const T one = 1;                                                                                               \
        return ops_atomic_run(OPERATION("expar_atomic_inc_" #S, TRANSPORT_ADD, one, one), group, word, pe, NULL);      \
    }

EXPAR_FLOAT_TYPES(SWAP_SET_DEFINE)
EXPAR_WORD_TYPES(ATOMICS_DEFINE)

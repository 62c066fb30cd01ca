/* SPDX-License-Identifier: Apache-2.0 */
/* The public atomics of expar/rma.h. */
#include "shmem/target.h"
#include <expar/rma.h>

/* One atomic operation of a caller. */
typedef struct atomic_call {
    const char *name;
    transport_atomic_op op;
    size_t bytes; /* of the word */
    uint64_t operand, compare;
} atomic_call;

static expar_status carry_out(const atomic_call *call, expar_group *group, const void *word, int32_t pe, uint64_t *old)
{
    uint64_t offset;
    transport *via;
    expar_status status = target_check_pe(call->name, group, pe);
    if (status == EXPAR_OK) status = target_check_word(call->name, group, "word", word, call->bytes, &offset);
    if (status == EXPAR_OK) status = target_transport(call->name, group, group->sym->reach_atomic, pe, &via);
    if (status == EXPAR_OK)
        status = via->ops->atomic(via, pe, offset, call->bytes, call->op, call->operand, call->compare, old);
    if (status == EXPAR_OK && call->op != TRANSPORT_FETCH) sym_ring(group->sym, pe);
    return status;
}

static expar_status null_output(const char *name)
{
    return error_set(EXPAR_ERR_NULL, "%s: no place for the value before", name);
}

/* The public functions of one type. */
#define ATOMICS_DEFINE(T, S)                                                                                           \
    static expar_status fetching_##S(const atomic_call *call, expar_group *group, const T *word, int32_t pe, T *old)   \
    {                                                                                                                  \
        uint64_t before;                                                                                               \
        if (!old) return null_output(call->name);                                                                      \
        expar_status status = carry_out(call, group, word, pe, &before);                                               \
        if (status == EXPAR_OK) *old = (T)before;                                                                      \
        return status;                                                                                                 \
    }                                                                                                                  \
    expar_status expar_atomic_fetch_##S(expar_group *group, const T *word, int32_t pe, T *value)                       \
    {                                                                                                                  \
        return fetching_##S(&(atomic_call){"expar_atomic_fetch_" #S, TRANSPORT_FETCH, sizeof(T), 0, 0}, group, word,   \
                            pe, value);                                                                                \
    }                                                                                                                  \
    expar_status expar_atomic_set_##S(expar_group *group, T *word, T value, int32_t pe)                                \
    {                                                                                                                  \
        return carry_out(&(atomic_call){"expar_atomic_set_" #S, TRANSPORT_SET, sizeof(T), value, 0}, group, word, pe,  \
                         NULL);                                                                                        \
    }                                                                                                                  \
    expar_status expar_atomic_swap_##S(expar_group *group, T *word, T value, int32_t pe, T *old)                       \
    {                                                                                                                  \
        return fetching_##S(&(atomic_call){"expar_atomic_swap_" #S, TRANSPORT_SWAP, sizeof(T), value, 0}, group, word, \
                            pe, old);                                                                                  \
    }                                                                                                                  \
    expar_status expar_atomic_compare_swap_##S(expar_group *group, T *word, T expected, T desired, int32_t pe, T *old) \
    {                                                                                                                  \
        return fetching_##S(                                                                                           \
            &(atomic_call){"expar_atomic_compare_swap_" #S, TRANSPORT_COMPARE_SWAP, sizeof(T), desired, expected},     \
            group, word, pe, old);                                                                                     \
    }                                                                                                                  \
    expar_status expar_atomic_fetch_add_##S(expar_group *group, T *word, T value, int32_t pe, T *old)                  \
    {                                                                                                                  \
        return fetching_##S(&(atomic_call){"expar_atomic_fetch_add_" #S, TRANSPORT_ADD, sizeof(T), value, 0}, group,   \
                            word, pe, old);                                                                            \
    }                                                                                                                  \
    expar_status expar_atomic_add_##S(expar_group *group, T *word, T value, int32_t pe)                                \
    {                                                                                                                  \
        return carry_out(&(atomic_call){"expar_atomic_add_" #S, TRANSPORT_ADD, sizeof(T), value, 0}, group, word, pe,  \
                         NULL);                                                                                        \
    }
ATOMICS_DEFINE(uint32_t, u32)
ATOMICS_DEFINE(uint64_t, u64)

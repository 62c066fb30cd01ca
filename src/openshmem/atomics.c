/* SPDX-License-Identifier: Apache-2.0 */
/* Atomics: those of the unsigned word of the type's size, whose bits are the value's. */
#include "openshmem/shm.h"

#include <string.h>

/* The words that an operation takes and gives, by the operation's name. */
#define BY_SIZE(name)                                                                                                  \
    static uint64_t run_##name(void *word, size_t bytes, uint64_t value, int32_t pe)                                   \
    {                                                                                                                  \
        uint64_t whole = 0;                                                                                            \
        uint32_t low = 0;                                                                                              \
        shm_must(bytes == sizeof low ? expar_atomic_##name##_u32(shm.group, word, (uint32_t)value, pe, &low)           \
                                     : expar_atomic_##name##_u64(shm.group, word, value, pe, &whole));                 \
        return bytes == sizeof low ? low : whole;                                                                      \
    }
BY_SIZE(swap)
BY_SIZE(fetch_add)
BY_SIZE(fetch_and)
BY_SIZE(fetch_or)
BY_SIZE(fetch_xor)

static uint64_t run_fetch(const void *word, size_t bytes, int32_t pe)
{
    uint64_t whole = 0;
    uint32_t low = 0;
    shm_must(bytes == sizeof low ? expar_atomic_fetch_u32(shm.group, word, pe, &low)
                                 : expar_atomic_fetch_u64(shm.group, word, pe, &whole));
    return bytes == sizeof low ? low : whole;
}

static uint64_t run_compare_swap(void *word, size_t bytes, uint64_t expected, uint64_t desired, int32_t pe)
{
    uint64_t whole = 0;
    uint32_t low = 0;
    shm_must(bytes == sizeof low
                 ? expar_atomic_compare_swap_u32(shm.group, word, (uint32_t)expected, (uint32_t)desired, pe, &low)
                 : expar_atomic_compare_swap_u64(shm.group, word, expected, desired, pe, &whole));
    return bytes == sizeof low ? low : whole;
}

/* To and from the bits of a number, in the low bytes of the word. */
#define BITS_DEFINE(T, N)                                                                                              \
    static uint64_t bits_of_##N(T value)                                                                               \
    {                                                                                                                  \
        uint32_t low = 0;                                                                                              \
        uint64_t whole = 0;                                                                                            \
        memcpy(sizeof(T) == sizeof low ? (void *)&low : (void *)&whole, &value, sizeof value);                         \
        return sizeof(T) == sizeof low ? low : whole;                                                                  \
    }                                                                                                                  \
    static T value_of_##N(uint64_t whole)                                                                              \
    {                                                                                                                  \
        uint32_t low = (uint32_t)whole;                                                                                \
        T value;                                                                                                       \
        memcpy(&value, sizeof(T) == sizeof low ? (void *)&low : (void *)&whole, sizeof value);                         \
        return value;                                                                                                  \
    }
EXPAR_SHMEM_FLOATS(BITS_DEFINE)
EXPAR_SHMEM_AMO_TYPES(BITS_DEFINE)

/* A fetching operation, its form that gives the value later, and both on the default context. */
#define FETCHING(T, name, parameters, arguments, expression)                                                           \
    T shmem_ctx_##name(shmem_ctx_t ctx, EXPAR_SHMEM_UNPACK parameters)                                                 \
    {                                                                                                                  \
        const int32_t rank = shm_ctx_rank(ctx, pe);                                                                    \
        return expression;                                                                                             \
    }                                                                                                                  \
    T shmem_##name(EXPAR_SHMEM_UNPACK parameters)                                                                      \
    {                                                                                                                  \
        return shmem_ctx_##name(SHMEM_CTX_DEFAULT, EXPAR_SHMEM_UNPACK arguments);                                      \
    }                                                                                                                  \
    void shmem_ctx_##name##_nbi(shmem_ctx_t ctx, T *fetch, EXPAR_SHMEM_UNPACK parameters)                              \
    {                                                                                                                  \
        *fetch = shmem_ctx_##name(ctx, EXPAR_SHMEM_UNPACK arguments);                                                  \
    }                                                                                                                  \
    void shmem_##name##_nbi(T *fetch, EXPAR_SHMEM_UNPACK parameters)                                                   \
    {                                                                                                                  \
        *fetch = shmem_ctx_##name(SHMEM_CTX_DEFAULT, EXPAR_SHMEM_UNPACK arguments);                                    \
    }
#define PLAIN(name, parameters, arguments, expression)                                                                 \
    void shmem_ctx_##name(shmem_ctx_t ctx, EXPAR_SHMEM_UNPACK parameters)                                              \
    {                                                                                                                  \
        const int32_t rank = shm_ctx_rank(ctx, pe);                                                                    \
        expression;                                                                                                    \
    }                                                                                                                  \
    void shmem_##name(EXPAR_SHMEM_UNPACK parameters)                                                                   \
    {                                                                                                                  \
        shmem_ctx_##name(SHMEM_CTX_DEFAULT, EXPAR_SHMEM_UNPACK arguments);                                             \
    }

#define SWAP_DEFINE(T, N)                                                                                              \
    FETCHING(T, N##_atomic_fetch, (const T *source, int pe), (source, pe),                                             \
             value_of_##N(run_fetch(source, sizeof(T), rank)))                                                         \
    FETCHING(T, N##_atomic_swap, (T * dest, T value, int pe), (dest, value, pe),                                       \
             value_of_##N(run_swap(dest, sizeof(T), bits_of_##N(value), rank)))                                        \
    PLAIN(N##_atomic_set, (T * dest, T value, int pe), (dest, value, pe),                                              \
          run_swap(dest, sizeof(T), bits_of_##N(value), rank))
#define OPERATION_DEFINE(T, N, name)                                                                                   \
    FETCHING(T, N##_atomic_fetch_##name, (T * dest, T value, int pe), (dest, value, pe),                               \
             value_of_##N(run_fetch_##name(dest, sizeof(T), bits_of_##N(value), rank)))                                \
    PLAIN(N##_atomic_##name, (T * dest, T value, int pe), (dest, value, pe),                                           \
          run_fetch_##name(dest, sizeof(T), bits_of_##N(value), rank))
#define AMO_DEFINE(T, N)                                                                                               \
    SWAP_DEFINE(T, N)                                                                                                  \
    OPERATION_DEFINE(T, N, add)                                                                                        \
    FETCHING(T, N##_atomic_fetch_inc, (T * dest, int pe), (dest, pe),                                                  \
             value_of_##N(run_fetch_add(dest, sizeof(T), 1, rank)))                                                    \
    PLAIN(N##_atomic_inc, (T * dest, int pe), (dest, pe), run_fetch_add(dest, sizeof(T), 1, rank))                     \
    FETCHING(T, N##_atomic_compare_swap, (T * dest, T cond, T value, int pe), (dest, cond, value, pe),                 \
             value_of_##N(run_compare_swap(dest, sizeof(T), bits_of_##N(cond), bits_of_##N(value), rank)))
#define BITWISE_DEFINE(T, N)                                                                                           \
    OPERATION_DEFINE(T, N, and)                                                                                        \
    OPERATION_DEFINE(T, N, or)                                                                                         \
    OPERATION_DEFINE(T, N, xor)
EXPAR_SHMEM_FLOATS(SWAP_DEFINE)
EXPAR_SHMEM_AMO_TYPES(AMO_DEFINE)
EXPAR_SHMEM_BITS_TYPES(BITWISE_DEFINE)

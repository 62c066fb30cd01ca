/* SPDX-License-Identifier: Apache-2.0 */
/* Atomics: those of the unsigned word of the type's size, whose bits are the value's. */
#include "openshmem/shm.h"

#include <string.h>

/* The words that an operation takes and gives, by the operation's name; the nbi form's comes later. */
#define BY_SIZE(name)                                                                                                  \
    static uint64_t run_##name(shmem_ctx_t ctx, void *word, size_t bytes, uint64_t value, int pe)                      \
    {                                                                                                                  \
        uint64_t whole = 0;                                                                                            \
        uint32_t low = 0;                                                                                              \
        if (bytes == sizeof low)                                                                                       \
            SHM_ON(ctx, atomic_##name##_u32, word, (uint32_t)value, pe, &low);                                         \
        else                                                                                                           \
            SHM_ON(ctx, atomic_##name##_u64, word, value, pe, &whole);                                                 \
        return bytes == sizeof low ? low : whole;                                                                      \
    }                                                                                                                  \
    static void start_##name(shmem_ctx_t ctx, void *word, size_t bytes, uint64_t value, int pe, void *fetch)           \
    {                                                                                                                  \
        if (bytes == sizeof(uint32_t))                                                                                 \
            SHM_ON(ctx, atomic_##name##_nbi_u32, word, (uint32_t)value, pe, fetch);                                    \
        else                                                                                                           \
            SHM_ON(ctx, atomic_##name##_nbi_u64, word, value, pe, fetch);                                              \
    }
BY_SIZE(swap)
BY_SIZE(fetch_add)
BY_SIZE(fetch_and)
BY_SIZE(fetch_or)
BY_SIZE(fetch_xor)

/* Those that give nothing back are sent, and complete by quiet. */
#define PLAIN_BY_SIZE(name)                                                                                            \
    static void send_##name(shmem_ctx_t ctx, void *word, size_t bytes, uint64_t value, int pe)                         \
    {                                                                                                                  \
        if (bytes == sizeof(uint32_t))                                                                                 \
            SHM_ON(ctx, atomic_##name##_u32, word, (uint32_t)value, pe);                                               \
        else                                                                                                           \
            SHM_ON(ctx, atomic_##name##_u64, word, value, pe);                                                         \
    }
PLAIN_BY_SIZE(set)
PLAIN_BY_SIZE(add)
PLAIN_BY_SIZE(and)
PLAIN_BY_SIZE(or)
PLAIN_BY_SIZE(xor)

static uint64_t run_fetch(shmem_ctx_t ctx, const void *word, size_t bytes, int pe)
{
    uint64_t whole = 0;
    uint32_t low = 0;
    if (bytes == sizeof low)
        SHM_ON(ctx, atomic_fetch_u32, word, pe, &low);
    else
        SHM_ON(ctx, atomic_fetch_u64, word, pe, &whole);
    return bytes == sizeof low ? low : whole;
}

static void start_fetch(shmem_ctx_t ctx, const void *word, size_t bytes, int pe, void *fetch)
{
    if (bytes == sizeof(uint32_t))
        SHM_ON(ctx, atomic_fetch_nbi_u32, word, pe, fetch);
    else
        SHM_ON(ctx, atomic_fetch_nbi_u64, word, pe, fetch);
}

static uint64_t run_compare_swap(shmem_ctx_t ctx, void *word, size_t bytes, uint64_t expected, uint64_t desired, int pe)
{
    uint64_t whole = 0;
    uint32_t low = 0;
    if (bytes == sizeof low)
        SHM_ON(ctx, atomic_compare_swap_u32, word, (uint32_t)expected, (uint32_t)desired, pe, &low);
    else
        SHM_ON(ctx, atomic_compare_swap_u64, word, expected, desired, pe, &whole);
    return bytes == sizeof low ? low : whole;
}

static void start_compare_swap(shmem_ctx_t ctx, void *word, size_t bytes, uint64_t expected, uint64_t desired, int pe,
                               void *fetch)
{
    if (bytes == sizeof(uint32_t))
        SHM_ON(ctx, atomic_compare_swap_nbi_u32, word, (uint32_t)expected, (uint32_t)desired, pe, fetch);
    else
        SHM_ON(ctx, atomic_compare_swap_nbi_u64, word, expected, desired, pe, fetch);
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
#define FETCHING(T, name, parameters, arguments, expression, start)                                                    \
    T shmem_ctx_##name(shmem_ctx_t ctx, EXPAR_SHMEM_UNPACK parameters)                                                 \
    {                                                                                                                  \
        return expression;                                                                                             \
    }                                                                                                                  \
    T shmem_##name(EXPAR_SHMEM_UNPACK parameters)                                                                      \
    {                                                                                                                  \
        return shmem_ctx_##name(SHMEM_CTX_DEFAULT, EXPAR_SHMEM_UNPACK arguments);                                      \
    }                                                                                                                  \
    void shmem_ctx_##name##_nbi(shmem_ctx_t ctx, T *fetch, EXPAR_SHMEM_UNPACK parameters)                              \
    {                                                                                                                  \
        start;                                                                                                         \
    }                                                                                                                  \
    void shmem_##name##_nbi(T *fetch, EXPAR_SHMEM_UNPACK parameters)                                                   \
    {                                                                                                                  \
        shmem_ctx_##name##_nbi(SHMEM_CTX_DEFAULT, fetch, EXPAR_SHMEM_UNPACK arguments);                                \
    }
#define PLAIN(name, parameters, arguments, sending)                                                                    \
    void shmem_ctx_##name(shmem_ctx_t ctx, EXPAR_SHMEM_UNPACK parameters)                                              \
    {                                                                                                                  \
        sending;                                                                                                       \
    }                                                                                                                  \
    void shmem_##name(EXPAR_SHMEM_UNPACK parameters)                                                                   \
    {                                                                                                                  \
        shmem_ctx_##name(SHMEM_CTX_DEFAULT, EXPAR_SHMEM_UNPACK arguments);                                             \
    }

#define SWAP_DEFINE(T, N)                                                                                              \
    FETCHING(T, N##_atomic_fetch, (const T *source, int pe), (source, pe),                                             \
             value_of_##N(run_fetch(ctx, source, sizeof(T), pe)), start_fetch(ctx, source, sizeof(T), pe, fetch))      \
    FETCHING(T, N##_atomic_swap, (T * dest, T value, int pe), (dest, value, pe),                                       \
             value_of_##N(run_swap(ctx, dest, sizeof(T), bits_of_##N(value), pe)),                                     \
             start_swap(ctx, dest, sizeof(T), bits_of_##N(value), pe, fetch))                                          \
    PLAIN(N##_atomic_set, (T * dest, T value, int pe), (dest, value, pe),                                              \
          send_set(ctx, dest, sizeof(T), bits_of_##N(value), pe))
#define OPERATION_DEFINE(T, N, name)                                                                                   \
    FETCHING(T, N##_atomic_fetch_##name, (T * dest, T value, int pe), (dest, value, pe),                               \
             value_of_##N(run_fetch_##name(ctx, dest, sizeof(T), bits_of_##N(value), pe)),                             \
             start_fetch_##name(ctx, dest, sizeof(T), bits_of_##N(value), pe, fetch))                                  \
    PLAIN(N##_atomic_##name, (T * dest, T value, int pe), (dest, value, pe),                                           \
          send_##name(ctx, dest, sizeof(T), bits_of_##N(value), pe))
#define AMO_DEFINE(T, N)                                                                                               \
    SWAP_DEFINE(T, N)                                                                                                  \
    OPERATION_DEFINE(T, N, add)                                                                                        \
    FETCHING(T, N##_atomic_fetch_inc, (T * dest, int pe), (dest, pe),                                                  \
             value_of_##N(run_fetch_add(ctx, dest, sizeof(T), 1, pe)),                                                 \
             start_fetch_add(ctx, dest, sizeof(T), 1, pe, fetch))                                                      \
    PLAIN(N##_atomic_inc, (T * dest, int pe), (dest, pe), send_add(ctx, dest, sizeof(T), 1, pe))                       \
    FETCHING(T, N##_atomic_compare_swap, (T * dest, T cond, T value, int pe), (dest, cond, value, pe),                 \
             value_of_##N(run_compare_swap(ctx, dest, sizeof(T), bits_of_##N(cond), bits_of_##N(value), pe)),          \
             start_compare_swap(ctx, dest, sizeof(T), bits_of_##N(cond), bits_of_##N(value), pe, fetch))
#define BITWISE_DEFINE(T, N)                                                                                           \
    OPERATION_DEFINE(T, N, and)                                                                                        \
    OPERATION_DEFINE(T, N, or)                                                                                         \
    OPERATION_DEFINE(T, N, xor)
EXPAR_SHMEM_FLOATS(SWAP_DEFINE)
EXPAR_SHMEM_AMO_TYPES(AMO_DEFINE)
EXPAR_SHMEM_BITS_TYPES(BITWISE_DEFINE)

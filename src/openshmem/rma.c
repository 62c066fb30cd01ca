/* SPDX-License-Identifier: Apache-2.0 */
/* Puts, gets and signals of all types and sizes. */
#include "openshmem/shm.h"

/* Both forms of a call, the first on the default context. */
#define BOTH(R, name, parameters, arguments, body)                                                                     \
    R shmem_ctx_##name(shmem_ctx_t ctx, EXPAR_SHMEM_UNPACK parameters)                                                 \
        body R shmem_##name(EXPAR_SHMEM_UNPACK parameters)                                                             \
    {                                                                                                                  \
        RETURN_##R shmem_ctx_##name(SHMEM_CTX_DEFAULT, EXPAR_SHMEM_UNPACK arguments);                                  \
    }
#define RETURN_void

#define MOVE(name, T, size, call)                                                                                      \
    BOTH(void, name, (T * dest, const T *source, size_t nelems, int pe), (dest, source, nelems, pe),                   \
         { SHM_ON(ctx, call, dest, source, shm_bytes(nelems, size), pe); })
#define MOVE_STRIDED(name, T, size, call)                                                                              \
    BOTH(void, name, (T * dest, const T *source, ptrdiff_t dst, ptrdiff_t sst, size_t nelems, int pe),                 \
         (dest, source, dst, sst, nelems, pe), { SHM_ON(ctx, call, dest, source, dst, sst, size, nelems, pe); })
#define MOVE_SIGNAL(name, T, size, call)                                                                               \
    BOTH(void, name,                                                                                                   \
         (T * dest, const T *source, size_t nelems, uint64_t *sig_addr, uint64_t signal, int sig_op, int pe),          \
         (dest, source, nelems, sig_addr, signal, sig_op, pe),                                                         \
         { SHM_ON(ctx, call, dest, source, shm_bytes(nelems, size), sig_addr, signal, (expar_signal_op)sig_op, pe); })

#define TYPED(T, N)                                                                                                    \
    MOVE(N##_put, T, sizeof(T), put)                                                                                   \
    MOVE(N##_get, T, sizeof(T), get)                                                                                   \
    MOVE(N##_put_nbi, T, sizeof(T), put_nbi)                                                                           \
    MOVE(N##_get_nbi, T, sizeof(T), get_nbi)                                                                           \
    MOVE_STRIDED(N##_iput, T, sizeof(T), iput)                                                                         \
    MOVE_STRIDED(N##_iget, T, sizeof(T), iget)                                                                         \
    MOVE_SIGNAL(N##_put_signal, T, sizeof(T), put_signal)                                                              \
    MOVE_SIGNAL(N##_put_signal_nbi, T, sizeof(T), put_signal_nbi)                                                      \
    BOTH(void, N##_p, (T * dest, T value, int pe), (dest, value, pe),                                                  \
         { SHM_ON(ctx, put, dest, &value, sizeof value, pe); })                                                        \
    T shmem_ctx_##N##_g(shmem_ctx_t ctx, const T *source, int pe)                                                      \
    {                                                                                                                  \
        T value;                                                                                                       \
        SHM_ON(ctx, get, &value, source, sizeof value, pe);                                                            \
        return value;                                                                                                  \
    }                                                                                                                  \
    T shmem_##N##_g(const T *source, int pe)                                                                           \
    {                                                                                                                  \
        return shmem_ctx_##N##_g(SHMEM_CTX_DEFAULT, source, pe);                                                       \
    }
EXPAR_SHMEM_RMA_TYPES(TYPED)

#define BLOCKS(W, size)                                                                                                \
    MOVE(put##W, void, size, put)                                                                                      \
    MOVE(get##W, void, size, get)                                                                                      \
    MOVE(put##W##_nbi, void, size, put_nbi)                                                                            \
    MOVE(get##W##_nbi, void, size, get_nbi)                                                                            \
    MOVE_SIGNAL(put##W##_signal, void, size, put_signal)                                                               \
    MOVE_SIGNAL(put##W##_signal_nbi, void, size, put_signal_nbi)
#define SIZED(W)                                                                                                       \
    BLOCKS(W, (W / 8))                                                                                                 \
    MOVE_STRIDED(iput##W, void, (W / 8), iput)                                                                         \
    MOVE_STRIDED(iget##W, void, (W / 8), iget)
EXPAR_SHMEM_WIDTHS(SIZED)
BLOCKS(mem, 1)

uint64_t shmem_signal_fetch(const uint64_t *sig_addr)
{
    uint64_t value;
    shm_must(expar_signal_fetch(shm.group, sig_addr, &value));
    return value;
}

uint64_t shmem_signal_wait_until(uint64_t *sig_addr, int cmp, uint64_t cmp_value)
{
    uint64_t seen;
    shm_must(expar_signal_wait_until(shm.group, sig_addr, (expar_cmp)cmp, cmp_value, &seen));
    return seen;
}

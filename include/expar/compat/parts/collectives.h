/* SPDX-License-Identifier: Apache-2.0 */
/* NVSHMEM's collectives over teams. Kernels' forms stand on puts and barriers of the team's handle: one collective of a
 * team runs on a PE at a time. Reductions in kernels are for blocks; each PE combines a part for all others, in the
 * order of PEs. */
#ifndef EXPAR_COMPAT_PARTS_COLLECTIVES_H
#define EXPAR_COMPAT_PARTS_COLLECTIVES_H

#include <expar/compat/parts/target.h>

/* ---- broadcast, fcollect, alltoall ------------------------------------------------------------------------------- */

#ifdef EXPAR_NV_HAS_KERNELS
/* Return 0, or another number if there is no such team or PE, or the handle has an error. */
#define EXPAR_NV_COLLECT_IN(scope)                                                                                     \
    EXPAR_NV_KERNEL int expar_nv_broadcast##scope(nvshmem_team_t team, void *dest, const void *source, size_t bytes,   \
                                                  int root)                                                            \
    {                                                                                                                  \
        const expar_device_handle *h = expar_nv_team(team);                                                            \
        if (!h || root < 0 || root >= expar_kernel_n_pes(h)) return NVSHMEMX_ERROR_INVALID_VALUE;                      \
        for (int pe = 0; expar_kernel_my_pe(h) == root && pe < expar_kernel_n_pes(h); pe++)                            \
            if (pe != root || dest != source) expar_kernel_put_nbi##scope(h, dest, source, bytes, pe);                 \
        return expar_kernel_barrier##scope(h);                                                                         \
    }                                                                                                                  \
    EXPAR_NV_KERNEL int expar_nv_fcollect##scope(nvshmem_team_t team, void *dest, const void *source, size_t bytes)    \
    {                                                                                                                  \
        const expar_device_handle *h = expar_nv_team(team);                                                            \
        if (!h) return NVSHMEMX_ERROR_INVALID_VALUE;                                                                   \
        void *mine = (char *)dest + bytes * (size_t)expar_kernel_my_pe(h);                                             \
        for (int pe = 0; pe < expar_kernel_n_pes(h); pe++)                                                             \
            expar_kernel_put_nbi##scope(h, mine, source, bytes, pe);                                                   \
        return expar_kernel_barrier##scope(h);                                                                         \
    }                                                                                                                  \
    EXPAR_NV_KERNEL int expar_nv_alltoall##scope(nvshmem_team_t team, void *dest, const void *source, size_t bytes)    \
    {                                                                                                                  \
        const expar_device_handle *h = expar_nv_team(team);                                                            \
        if (!h) return NVSHMEMX_ERROR_INVALID_VALUE;                                                                   \
        void *mine = (char *)dest + bytes * (size_t)expar_kernel_my_pe(h);                                             \
        for (int pe = 0; pe < expar_kernel_n_pes(h); pe++)                                                             \
            expar_kernel_put_nbi##scope(h, mine, (const char *)source + bytes * (size_t)pe, bytes, pe);                \
        return expar_kernel_barrier##scope(h);                                                                         \
    }
EXPAR_NV_COLLECT_IN()
EXPAR_NV_COLLECT_IN(_warp)
EXPAR_NV_COLLECT_IN(_block)
#define EXPAR_NV_BROADCAST_IN(name, T, size, scope)                                                                    \
    EXPAR_NV_KERNEL int nvshmemx_##name##scope(nvshmem_team_t team, T *dest, const T *source, size_t nelems,           \
                                               int PE_root)                                                            \
    {                                                                                                                  \
        return expar_nv_broadcast##scope(team, dest, source, expar_nv_bytes(nelems, size), PE_root);                   \
    }
#define EXPAR_NV_GATHER_IN(call, name, T, size, scope)                                                                 \
    EXPAR_NV_KERNEL int nvshmemx_##name##scope(nvshmem_team_t team, T *dest, const T *source, size_t nelems)           \
    {                                                                                                                  \
        return expar_nv_##call##scope(team, dest, source, expar_nv_bytes(nelems, size));                               \
    }
#else
#define EXPAR_NV_BROADCAST_IN(name, T, size, scope)
#define EXPAR_NV_GATHER_IN(call, name, T, size, scope)
#endif
#ifndef __CUDACC_RTC__
#define EXPAR_NV_BROADCAST_ON_STREAM(name, T, size)                                                                    \
    EXPAR_NV_HOST int nvshmemx_##name##_on_stream(nvshmem_team_t team, T *dest, const T *source, size_t nelems,        \
                                                  int PE_root, cudaStream_t stream)                                    \
    {                                                                                                                  \
        return expar_nv_done(expar_broadcast_on_stream(expar_nvshmem_team(team), dest, source,                         \
                                                       expar_nv_bytes(nelems, size), PE_root, stream));                \
    }
#define EXPAR_NV_GATHER_ON_STREAM(call, name, T, size)                                                                 \
    EXPAR_NV_HOST int nvshmemx_##name##_on_stream(nvshmem_team_t team, T *dest, const T *source, size_t nelems,        \
                                                  cudaStream_t stream)                                                 \
    {                                                                                                                  \
        return expar_nv_done(                                                                                          \
            expar_##call##_on_stream(expar_nvshmem_team(team), dest, source, expar_nv_bytes(nelems, size), stream));   \
    }
#else
#define EXPAR_NV_BROADCAST_ON_STREAM(name, T, size)
#define EXPAR_NV_GATHER_ON_STREAM(call, name, T, size)
#endif
#define EXPAR_NV_BROADCAST(name, T, size)                                                                              \
    EXPAR_NV_CALL int nvshmem_##name(nvshmem_team_t team, T *dest, const T *source, size_t nelems, int PE_root)        \
    {                                                                                                                  \
        return EXPAR_NV_BODY(expar_nv_broadcast(team, dest, source, expar_nv_bytes(nelems, size), PE_root),            \
                             expar_nv_done(expar_broadcast(expar_nvshmem_team(team), dest, source,                     \
                                                           expar_nv_bytes(nelems, size), PE_root)));                   \
    }                                                                                                                  \
    EXPAR_NV_BROADCAST_IN(name, T, size, _warp)                                                                        \
    EXPAR_NV_BROADCAST_IN(name, T, size, _block)                                                                       \
    EXPAR_NV_BROADCAST_ON_STREAM(name, T, size)
#define EXPAR_NV_GATHER(call, name, T, size)                                                                           \
    EXPAR_NV_CALL int nvshmem_##name(nvshmem_team_t team, T *dest, const T *source, size_t nelems)                     \
    {                                                                                                                  \
        return EXPAR_NV_BODY(                                                                                          \
            expar_nv_##call(team, dest, source, expar_nv_bytes(nelems, size)),                                         \
            expar_nv_done(expar_##call(expar_nvshmem_team(team), dest, source, expar_nv_bytes(nelems, size))));        \
    }                                                                                                                  \
    EXPAR_NV_GATHER_IN(call, name, T, size, _warp)                                                                     \
    EXPAR_NV_GATHER_IN(call, name, T, size, _block)                                                                    \
    EXPAR_NV_GATHER_ON_STREAM(call, name, T, size)
#define EXPAR_NV_COLLECTIVES(T, N, S)                                                                                  \
    EXPAR_NV_BROADCAST(N##_broadcast, T, sizeof(T))                                                                    \
    EXPAR_NV_GATHER(fcollect, N##_fcollect, T, sizeof(T))                                                              \
    EXPAR_NV_GATHER(alltoall, N##_alltoall, T, sizeof(T))
EXPAR_NV_TYPES(EXPAR_NV_COLLECTIVES)
EXPAR_NV_BROADCAST(broadcastmem, void, 1)
EXPAR_NV_GATHER(fcollect, fcollectmem, void, 1)
EXPAR_NV_GATHER(alltoall, alltoallmem, void, 1)

/* ---- reductions -------------------------------------------------------------------------------------------------- */

#ifdef EXPAR_NV_HAS_KERNELS
#define EXPAR_NV_COMBINE_and(a, b)  (a) & (b)
#define EXPAR_NV_COMBINE_or(a, b)   (a) | (b)
#define EXPAR_NV_COMBINE_xor(a, b)  (a) ^ (b)
#define EXPAR_NV_COMBINE_min(a, b)  (b) < (a) ? (b) : (a)
#define EXPAR_NV_COMBINE_max(a, b)  (a) < (b) ? (b) : (a)
#define EXPAR_NV_COMBINE_sum(a, b)  (a) + (b)
#define EXPAR_NV_COMBINE_prod(a, b) (a) * (b)
/* PE p combines elements [p * part, (p + 1) * part) of all PEs and puts them to all. No other PE reads or writes these
   elements, so dest may be source. Integers are combined as unsigned ones of 64 bits where signed ones may overflow. */
#define EXPAR_NV_REDUCTION(S, operation, A)                                                                            \
    EXPAR_NV_KERNEL int expar_nv_##operation##_##S(nvshmem_team_t team, expar_nv_##S *dest,                            \
                                                   const expar_nv_##S *source, size_t count)                           \
    {                                                                                                                  \
        const expar_device_handle *h = expar_nv_team(team);                                                            \
        if (!h) return NVSHMEMX_ERROR_INVALID_VALUE;                                                                   \
        const expar_dev_place place = expar_dev_place_in(EXPAR_DEV_BLOCK);                                             \
        const size_t pes = (size_t)expar_kernel_n_pes(h), part = count / pes + (count % pes != 0);                     \
        const size_t first = part * (size_t)expar_kernel_my_pe(h);                                                     \
        const size_t end = first < count && count - first > part ? first + part : count;                               \
        const int status = expar_kernel_sync_block(h);                                                                 \
        for (size_t i = first + place.index; status == 0 && i < end; i += place.count) {                               \
            A into = (A)expar_kernel_g_##S(h, source + i, 0);                                                          \
            for (int pe = 1; pe < (int)pes; pe++) {                                                                    \
                const A from = (A)expar_kernel_g_##S(h, source + i, pe);                                               \
                into = (A)(EXPAR_NV_COMBINE_##operation(into, from));                                                  \
            }                                                                                                          \
            for (int pe = 0; pe < (int)pes; pe++)                                                                      \
                expar_kernel_p_##S(h, dest + i, (expar_nv_##S)into, pe);                                               \
        }                                                                                                              \
        return status == 0 ? expar_kernel_barrier_block(h) : status;                                                   \
    }
#define EXPAR_NV_REDUCTIONS(S, A)                                                                                      \
    EXPAR_NV_REDUCTION(S, min, expar_nv_##S)                                                                           \
    EXPAR_NV_REDUCTION(S, max, expar_nv_##S)                                                                           \
    EXPAR_NV_REDUCTION(S, sum, A)                                                                                      \
    EXPAR_NV_REDUCTION(S, prod, A)
#define EXPAR_NV_INT_REDUCTIONS(S)                                                                                     \
    EXPAR_NV_REDUCTIONS(S, expar_nv_u64)                                                                               \
    EXPAR_NV_REDUCTION(S, and, expar_nv_##S)                                                                           \
    EXPAR_NV_REDUCTION(S, or, expar_nv_##S)                                                                            \
    EXPAR_NV_REDUCTION(S, xor, expar_nv_##S)
EXPAR_NV_INTS(EXPAR_NV_INT_REDUCTIONS)
EXPAR_NV_REDUCTIONS(f32, float)
EXPAR_NV_REDUCTIONS(f64, double)
#define EXPAR_NV_REDUCE_BLOCK(T, N, S, operation)                                                                      \
    EXPAR_NV_KERNEL int nvshmemx_##N##_##operation##_reduce_block(nvshmem_team_t team, T *dest, const T *source,       \
                                                                  size_t nreduce)                                      \
    {                                                                                                                  \
        return expar_nv_##operation##_##S(team, (expar_nv_##S *)dest, (const expar_nv_##S *)source, nreduce);          \
    }
#else
#define EXPAR_NV_REDUCE_BLOCK(T, N, S, operation)
#endif
#ifndef __CUDACC_RTC__
#define EXPAR_NV_REDUCE_HOST(T, N, S, operation)                                                                       \
    EXPAR_NV_HOST int nvshmem_##N##_##operation##_reduce(nvshmem_team_t team, T *dest, const T *source,                \
                                                         size_t nreduce)                                               \
    {                                                                                                                  \
        return expar_nv_done(expar_##operation##_reduce_##S(expar_nvshmem_team(team), (expar_nv_##S *)dest,            \
                                                            (const expar_nv_##S *)source, nreduce));                   \
    }                                                                                                                  \
    EXPAR_NV_HOST int nvshmemx_##N##_##operation##_reduce_on_stream(nvshmem_team_t team, T *dest, const T *source,     \
                                                                    size_t nreduce, cudaStream_t stream)               \
    {                                                                                                                  \
        return expar_nv_done(expar_##operation##_reduce_##S##_on_stream(                                               \
            expar_nvshmem_team(team), (expar_nv_##S *)dest, (const expar_nv_##S *)source, nreduce, stream));           \
    }
#else
#define EXPAR_NV_REDUCE_HOST(T, N, S, operation)
#endif
#define EXPAR_NV_REDUCE(T, N, S, operation)                                                                            \
    EXPAR_NV_REDUCE_BLOCK(T, N, S, operation)                                                                          \
    EXPAR_NV_REDUCE_HOST(T, N, S, operation)
#define EXPAR_NV_REDUCE_NUMBERS(T, N, S)                                                                               \
    EXPAR_NV_REDUCE(T, N, S, min)                                                                                      \
    EXPAR_NV_REDUCE(T, N, S, max)                                                                                      \
    EXPAR_NV_REDUCE(T, N, S, sum)                                                                                      \
    EXPAR_NV_REDUCE(T, N, S, prod)
#define EXPAR_NV_REDUCE_BITS(T, N, S)                                                                                  \
    EXPAR_NV_REDUCE(T, N, S, and)                                                                                      \
    EXPAR_NV_REDUCE(T, N, S, or)                                                                                       \
    EXPAR_NV_REDUCE(T, N, S, xor)
EXPAR_NV_TYPES(EXPAR_NV_REDUCE_NUMBERS)
EXPAR_NV_BIT_TYPES(EXPAR_NV_REDUCE_BITS)

#endif

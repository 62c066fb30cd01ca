/* SPDX-License-Identifier: Apache-2.0 */
/* NVSHMEM's puts, gets and signals. Names end in _warp or _block where all threads of it call, and in _on_stream where
 * the call follows a stream. Kernels' forms of the strided calls copy element by element. */
#ifndef EXPAR_COMPAT_PARTS_RMA_H
#define EXPAR_COMPAT_PARTS_RMA_H

#include <expar/compat/parts/target.h>

/* ---- blocks of memory -------------------------------------------------------------------------------------------- */

#ifdef EXPAR_NV_HAS_KERNELS
#define EXPAR_NV_MOVE_IN(move, name, T, size, scope)                                                                   \
    EXPAR_NV_KERNEL void nvshmemx_##name##scope(T *dest, const T *source, size_t nelems, int pe)                       \
    {                                                                                                                  \
        expar_kernel_##move##scope(EXPAR_NV_WORLD, dest, source, expar_nv_bytes(nelems, size), pe);                    \
    }
#else
#define EXPAR_NV_MOVE_IN(move, name, T, size, scope)
#endif
#ifndef __CUDACC_RTC__
#define EXPAR_NV_MOVE_ON_STREAM(move, name, T, size)                                                                   \
    EXPAR_NV_HOST void nvshmemx_##name##_on_stream(T *dest, const T *source, size_t nelems, int pe,                    \
                                                   cudaStream_t cstrm)                                                 \
    {                                                                                                                  \
        expar_nvshmem_must(                                                                                            \
            expar_##move##_on_stream(expar_nvshmem_group(), dest, source, expar_nv_bytes(nelems, size), pe, cstrm));   \
    }
#else
#define EXPAR_NV_MOVE_ON_STREAM(move, name, T, size)
#endif
/* `call` is expar's, `move` that on a stream, which is complete when the stream passes it. */
#define EXPAR_NV_MOVE(call, move, name, T, size)                                                                       \
    EXPAR_NV_CALL void nvshmem_##name(T *dest, const T *source, size_t nelems, int pe)                                 \
    {                                                                                                                  \
        EXPAR_NV_BODY(                                                                                                 \
            expar_kernel_##call(EXPAR_NV_WORLD, dest, source, expar_nv_bytes(nelems, size), pe),                       \
            expar_nvshmem_must(expar_##call(expar_nvshmem_group(), dest, source, expar_nv_bytes(nelems, size), pe)));  \
    }                                                                                                                  \
    EXPAR_NV_MOVE_IN(call, name, T, size, _warp)                                                                       \
    EXPAR_NV_MOVE_IN(call, name, T, size, _block)                                                                      \
    EXPAR_NV_MOVE_ON_STREAM(move, name, T, size)

#define EXPAR_NV_TYPED_MOVES(T, N, S)                                                                                  \
    EXPAR_NV_MOVE(put, put, N##_put, T, sizeof(T))                                                                     \
    EXPAR_NV_MOVE(put_nbi, put, N##_put_nbi, T, sizeof(T))                                                             \
    EXPAR_NV_MOVE(get, get, N##_get, T, sizeof(T))                                                                     \
    EXPAR_NV_MOVE(get_nbi, get, N##_get_nbi, T, sizeof(T))
EXPAR_NV_TYPES(EXPAR_NV_TYPED_MOVES)
#define EXPAR_NV_SIZED_MOVES(W, size)                                                                                  \
    EXPAR_NV_MOVE(put, put, put##W, void, size)                                                                        \
    EXPAR_NV_MOVE(put_nbi, put, put##W##_nbi, void, size)                                                              \
    EXPAR_NV_MOVE(get, get, get##W, void, size)                                                                        \
    EXPAR_NV_MOVE(get_nbi, get, get##W##_nbi, void, size)
#define EXPAR_NV_MOVES_OF(W) EXPAR_NV_SIZED_MOVES(W, (W) / 8)
EXPAR_NV_SIZES(EXPAR_NV_MOVES_OF)
EXPAR_NV_SIZED_MOVES(mem, 1)

/* ---- strided ----------------------------------------------------------------------------------------------------- */

/* Where an element lies. */
EXPAR_NV_CALL void *expar_nv_at(const void *begin, expar_nv_ptrdiff index, size_t size)
{
    return (char *)begin + index * (expar_nv_ptrdiff)size;
}

#ifdef EXPAR_NV_HAS_KERNELS
#define EXPAR_NV_STRIDED(move, scope, SCOPE)                                                                           \
    EXPAR_NV_KERNEL void expar_nv_strided_##move##scope(void *dest, const void *source, expar_nv_ptrdiff dst,          \
                                                        expar_nv_ptrdiff sst, size_t size, size_t nelems, int pe)      \
    {                                                                                                                  \
        const expar_device_handle *h = EXPAR_NV_WORLD;                                                                 \
        const expar_dev_place place = expar_dev_place_in(SCOPE);                                                       \
        expar_dev_meet(SCOPE);                                                                                         \
        for (size_t i = place.index; i < nelems; i += place.count) {                                                   \
            const expar_nv_ptrdiff k = (expar_nv_ptrdiff)i;                                                            \
            expar_kernel_##move(h, expar_nv_at(dest, k *dst, size), expar_nv_at(source, k *sst, size), size, pe);      \
        }                                                                                                              \
        expar_dev_meet(SCOPE);                                                                                         \
    }
EXPAR_NV_STRIDED(put, , EXPAR_DEV_THREAD)
EXPAR_NV_STRIDED(put, _warp, EXPAR_DEV_WARP)
EXPAR_NV_STRIDED(put, _block, EXPAR_DEV_BLOCK)
EXPAR_NV_STRIDED(get, , EXPAR_DEV_THREAD)
EXPAR_NV_STRIDED(get, _warp, EXPAR_DEV_WARP)
EXPAR_NV_STRIDED(get, _block, EXPAR_DEV_BLOCK)
#define EXPAR_NV_STRIDED_IN(move, name, T, size, scope)                                                                \
    EXPAR_NV_KERNEL void nvshmemx_##name##scope(T *dest, const T *source, expar_nv_ptrdiff dst, expar_nv_ptrdiff sst,  \
                                                size_t nelems, int pe)                                                 \
    {                                                                                                                  \
        expar_nv_strided_##move##scope(dest, source, dst, sst, size, nelems, pe);                                      \
    }
#else
#define EXPAR_NV_STRIDED_IN(move, name, T, size, scope)
#endif
#ifndef __CUDACC_RTC__
/* A call for each element. */
#define EXPAR_NV_STRIDED_ON_STREAM(move, name, T, size)                                                                \
    EXPAR_NV_HOST void nvshmemx_##name##_on_stream(T *dest, const T *source, ptrdiff_t dst, ptrdiff_t sst,             \
                                                   size_t nelems, int pe, cudaStream_t cstrm)                          \
    {                                                                                                                  \
        for (ptrdiff_t i = 0; i < (ptrdiff_t)nelems; i++)                                                              \
            expar_nvshmem_must(expar_##move##_on_stream(expar_nvshmem_group(), expar_nv_at(dest, i *dst, size),        \
                                                        expar_nv_at(source, i *sst, size), size, pe, cstrm));          \
    }
#else
#define EXPAR_NV_STRIDED_ON_STREAM(move, name, T, size)
#endif
#define EXPAR_NV_STRIDED_MOVE(move, name, T, size)                                                                     \
    EXPAR_NV_CALL void nvshmem_##name(T *dest, const T *source, expar_nv_ptrdiff dst, expar_nv_ptrdiff sst,            \
                                      size_t nelems, int pe)                                                           \
    {                                                                                                                  \
        EXPAR_NV_BODY(                                                                                                 \
            expar_nv_strided_##move(dest, source, dst, sst, size, nelems, pe),                                         \
            expar_nvshmem_must(expar_i##move(expar_nvshmem_group(), dest, source, dst, sst, size, nelems, pe)));       \
    }                                                                                                                  \
    EXPAR_NV_STRIDED_IN(move, name, T, size, _warp)                                                                    \
    EXPAR_NV_STRIDED_IN(move, name, T, size, _block)                                                                   \
    EXPAR_NV_STRIDED_ON_STREAM(move, name, T, size)
#define EXPAR_NV_TYPED_STRIDED(T, N, S)                                                                                \
    EXPAR_NV_STRIDED_MOVE(put, N##_iput, T, sizeof(T))                                                                 \
    EXPAR_NV_STRIDED_MOVE(get, N##_iget, T, sizeof(T))
EXPAR_NV_TYPES(EXPAR_NV_TYPED_STRIDED)
#define EXPAR_NV_SIZED_STRIDED(W)                                                                                      \
    EXPAR_NV_STRIDED_MOVE(put, iput##W, void, (W) / 8)                                                                 \
    EXPAR_NV_STRIDED_MOVE(get, iget##W, void, (W) / 8)
EXPAR_NV_SIZES(EXPAR_NV_SIZED_STRIDED)

/* ---- one element ------------------------------------------------------------------------------------------------- */

#ifndef __CUDACC_RTC__
#define EXPAR_NV_P_ON_STREAM(T, N, S)                                                                                  \
    EXPAR_NV_HOST void nvshmemx_##N##_p_on_stream(T *dest, T value, int pe, cudaStream_t cstrm)                        \
    {                                                                                                                  \
        expar_nvshmem_must(                                                                                            \
            expar_p_##S##_on_stream(expar_nvshmem_group(), (expar_nv_##S *)dest, (expar_nv_##S)value, pe, cstrm));     \
    }
#else
#define EXPAR_NV_P_ON_STREAM(T, N, S)
#endif
#define EXPAR_NV_SINGLES(T, N, S)                                                                                      \
    EXPAR_NV_CALL void nvshmem_##N##_p(T *dest, T value, int pe)                                                       \
    {                                                                                                                  \
        EXPAR_NV_BODY(expar_kernel_p_##S(EXPAR_NV_WORLD, (expar_nv_##S *)dest, (expar_nv_##S)value, pe),               \
                      expar_nvshmem_must(expar_put(expar_nvshmem_group(), dest, &value, sizeof value, pe)));           \
    }                                                                                                                  \
    EXPAR_NV_CALL T nvshmem_##N##_g(const T *source, int pe)                                                           \
    {                                                                                                                  \
        T value = 0;                                                                                                   \
        EXPAR_NV_BODY(value = (T)expar_kernel_g_##S(EXPAR_NV_WORLD, (const expar_nv_##S *)source, pe),                 \
                      expar_nvshmem_must(expar_get(expar_nvshmem_group(), &value, source, sizeof value, pe)));         \
        return value;                                                                                                  \
    }                                                                                                                  \
    EXPAR_NV_P_ON_STREAM(T, N, S)
EXPAR_NV_TYPES(EXPAR_NV_SINGLES)

/* ---- put with signal --------------------------------------------------------------------------------------------- */

#define EXPAR_NV_SIGNAL_PARAMETERS(T)                                                                                  \
    T *dest, const T *source, size_t nelems, expar_nv_u64 *sig_addr, expar_nv_u64 signal, int sig_op, int pe
#ifdef EXPAR_NV_HAS_KERNELS
#define EXPAR_NV_PUT_SIGNAL_IN(put, name, T, size, scope)                                                              \
    EXPAR_NV_KERNEL void nvshmemx_##name##scope(EXPAR_NV_SIGNAL_PARAMETERS(T))                                         \
    {                                                                                                                  \
        expar_kernel_##put##scope(EXPAR_NV_WORLD, dest, source, expar_nv_bytes(nelems, size), sig_addr, signal,        \
                                  (expar_signal_op)sig_op, pe);                                                        \
    }
#else
#define EXPAR_NV_PUT_SIGNAL_IN(put, name, T, size, scope)
#endif
#ifndef __CUDACC_RTC__
#define EXPAR_NV_PUT_SIGNAL_ON_STREAM(name, T, size)                                                                   \
    EXPAR_NV_HOST void nvshmemx_##name##_on_stream(EXPAR_NV_SIGNAL_PARAMETERS(T), cudaStream_t cstrm)                  \
    {                                                                                                                  \
        expar_nvshmem_must(expar_put_signal_on_stream(expar_nvshmem_group(), dest, source,                             \
                                                      expar_nv_bytes(nelems, size), sig_addr, signal,                  \
                                                      (expar_signal_op)sig_op, pe, cstrm));                            \
    }
#else
#define EXPAR_NV_PUT_SIGNAL_ON_STREAM(name, T, size)
#endif
#define EXPAR_NV_PUT_SIGNAL(put, name, T, size)                                                                        \
    EXPAR_NV_CALL void nvshmem_##name(EXPAR_NV_SIGNAL_PARAMETERS(T))                                                   \
    {                                                                                                                  \
        EXPAR_NV_BODY(                                                                                                 \
            expar_kernel_##put(EXPAR_NV_WORLD, dest, source, expar_nv_bytes(nelems, size), sig_addr, signal,           \
                               (expar_signal_op)sig_op, pe),                                                           \
            expar_nvshmem_must(expar_##put(expar_nvshmem_group(), dest, source, expar_nv_bytes(nelems, size),          \
                                           sig_addr, signal, (expar_signal_op)sig_op, pe)));                           \
    }                                                                                                                  \
    EXPAR_NV_PUT_SIGNAL_IN(put, name, T, size, _warp)                                                                  \
    EXPAR_NV_PUT_SIGNAL_IN(put, name, T, size, _block)                                                                 \
    EXPAR_NV_PUT_SIGNAL_ON_STREAM(name, T, size)
#define EXPAR_NV_TYPED_PUT_SIGNALS(T, N, S)                                                                            \
    EXPAR_NV_PUT_SIGNAL(put_signal, N##_put_signal, T, sizeof(T))                                                      \
    EXPAR_NV_PUT_SIGNAL(put_signal_nbi, N##_put_signal_nbi, T, sizeof(T))
EXPAR_NV_TYPES(EXPAR_NV_TYPED_PUT_SIGNALS)
#define EXPAR_NV_SIZED_PUT_SIGNALS(W, size)                                                                            \
    EXPAR_NV_PUT_SIGNAL(put_signal, put##W##_signal, void, size)                                                       \
    EXPAR_NV_PUT_SIGNAL(put_signal_nbi, put##W##_signal_nbi, void, size)
#define EXPAR_NV_PUT_SIGNALS_OF(W) EXPAR_NV_SIZED_PUT_SIGNALS(W, (W) / 8)
EXPAR_NV_SIZES(EXPAR_NV_PUT_SIGNALS_OF)
EXPAR_NV_SIZED_PUT_SIGNALS(mem, 1)

/* ---- signals ----------------------------------------------------------------------------------------------------- */

EXPAR_NV_CALL void nvshmemx_signal_op(expar_nv_u64 *sig_addr, expar_nv_u64 signal, int sig_op, int pe)
{
    EXPAR_NV_BODY(expar_kernel_signal_op(EXPAR_NV_WORLD, sig_addr, signal, (expar_signal_op)sig_op, pe),
                  expar_nvshmem_must(expar_put_signal(expar_nvshmem_group(), sig_addr, sig_addr, 0, sig_addr, signal,
                                                      (expar_signal_op)sig_op, pe)));
}
#ifndef __CUDACC_RTC__
EXPAR_NV_HOST void nvshmemx_signal_op_on_stream(uint64_t *sig_addr, uint64_t signal, int sig_op, int pe,
                                                cudaStream_t cstrm)
{
    expar_nvshmem_must(
        expar_signal_op_on_stream(expar_nvshmem_group(), sig_addr, signal, (expar_signal_op)sig_op, pe, cstrm));
}
#endif
EXPAR_NV_CALL expar_nv_u64 nvshmem_signal_fetch(expar_nv_u64 *sig_addr)
{
    expar_nv_u64 value = 0;
    EXPAR_NV_BODY(value = expar_kernel_signal_fetch(EXPAR_NV_WORLD, sig_addr),
                  expar_nvshmem_must(expar_signal_fetch(expar_nvshmem_group(), sig_addr, &value)));
    return value;
}

#endif

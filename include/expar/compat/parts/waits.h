/* SPDX-License-Identifier: Apache-2.0 */
/* NVSHMEM's waits and tests. Kernels' waits end, too, when a PE is lost; the host learns that when it next completes or
 * synchronises. */
#ifndef EXPAR_COMPAT_PARTS_WAITS_H
#define EXPAR_COMPAT_PARTS_WAITS_H

#include <expar/compat/parts/target.h>

/* A call of expar's: its name without the suffix of the type, and what follows the handle or group. */
#define EXPAR_NV_LOOK(S, call, ...)                                                                                    \
    EXPAR_NV_BODY((void)expar_kernel_##call##_##S(EXPAR_NV_WORLD, __VA_ARGS__),                                        \
                  expar_nvshmem_must(expar_##call##_##S(expar_nvshmem_group(), __VA_ARGS__)))

/* clang-format off */
#define EXPAR_NV_WAITS_ONE(T, N, S)                                                                                    \
    EXPAR_NV_CALL void nvshmem_##N##_wait_until(T *ivar, int cmp, T cmp_value)                                         \
    {                                                                                                                  \
        EXPAR_NV_LOOK(S, wait_until, (const expar_nv_##S *)ivar, (expar_cmp)cmp, (expar_nv_##S)cmp_value, 0);          \
    }                                                                                                                  \
    EXPAR_NV_CALL int nvshmem_##N##_test(T *ivar, int cmp, T cmp_value)                                                \
    {                                                                                                                  \
        int holds = 0;                                                                                                 \
        EXPAR_NV_LOOK(S, test, (const expar_nv_##S *)ivar, (expar_cmp)cmp, (expar_nv_##S)cmp_value, &holds);           \
        return holds;                                                                                                  \
    }
/* VALUE and value: the parameter with what words are compared with, and as expar takes it. */
#define EXPAR_NV_WAITS_SET(T, N, S, vector, VALUE, value)                                                              \
    EXPAR_NV_CALL void nvshmem_##N##_wait_until_all##vector(T *ivars, size_t nelems, const int *status, int cmp,       \
                                                            VALUE)                                                     \
    {                                                                                                                  \
        EXPAR_NV_LOOK(S, wait_until_all##vector, (const expar_nv_##S *)ivars, nelems, status, (expar_cmp)cmp, value);  \
    }                                                                                                                  \
    EXPAR_NV_CALL size_t nvshmem_##N##_wait_until_any##vector(T *ivars, size_t nelems, const int *status, int cmp,     \
                                                              VALUE)                                                   \
    {                                                                                                                  \
        size_t found = 0;                                                                                              \
        EXPAR_NV_LOOK(S, wait_until_any##vector, (const expar_nv_##S *)ivars, nelems, status, (expar_cmp)cmp, value,   \
                      &found);                                                                                         \
        return found;                                                                                                  \
    }                                                                                                                  \
    EXPAR_NV_CALL size_t nvshmem_##N##_wait_until_some##vector(T *ivars, size_t nelems, size_t *indices,               \
                                                               const int *status, int cmp, VALUE)                      \
    {                                                                                                                  \
        size_t found = 0;                                                                                              \
        EXPAR_NV_LOOK(S, wait_until_some##vector, (const expar_nv_##S *)ivars, nelems, indices, status,                \
                      (expar_cmp)cmp, value, &found);                                                                  \
        return found;                                                                                                  \
    }                                                                                                                  \
    EXPAR_NV_CALL int nvshmem_##N##_test_all##vector(T *ivars, size_t nelems, const int *status, int cmp, VALUE)       \
    {                                                                                                                  \
        int holds = 0;                                                                                                 \
        EXPAR_NV_LOOK(S, test_all##vector, (const expar_nv_##S *)ivars, nelems, status, (expar_cmp)cmp, value,         \
                      &holds);                                                                                         \
        return holds;                                                                                                  \
    }                                                                                                                  \
    EXPAR_NV_CALL size_t nvshmem_##N##_test_any##vector(T *ivars, size_t nelems, const int *status, int cmp, VALUE)    \
    {                                                                                                                  \
        size_t found = 0;                                                                                              \
        EXPAR_NV_LOOK(S, test_any##vector, (const expar_nv_##S *)ivars, nelems, status, (expar_cmp)cmp, value,         \
                      &found);                                                                                         \
        return found;                                                                                                  \
    }                                                                                                                  \
    EXPAR_NV_CALL size_t nvshmem_##N##_test_some##vector(T *ivars, size_t nelems, size_t *indices, const int *status,  \
                                                         int cmp, VALUE)                                               \
    {                                                                                                                  \
        size_t found = 0;                                                                                              \
        EXPAR_NV_LOOK(S, test_some##vector, (const expar_nv_##S *)ivars, nelems, indices, status, (expar_cmp)cmp,      \
                      value, &found);                                                                                  \
        return found;                                                                                                  \
    }
/* clang-format on */
#define EXPAR_NV_WAITS(T, N, S)                                                                                        \
    EXPAR_NV_WAITS_ONE(T, N, S)                                                                                        \
    EXPAR_NV_WAITS_SET(T, N, S, , T cmp_value, (expar_nv_##S)cmp_value)                                                \
    EXPAR_NV_WAITS_SET(T, N, S, _vector, T *cmp_values, (const expar_nv_##S *)cmp_values)
EXPAR_NV_WAIT_TYPES(EXPAR_NV_WAITS)

EXPAR_NV_CALL expar_nv_u64 nvshmem_signal_wait_until(expar_nv_u64 *sig_addr, int cmp, expar_nv_u64 cmp_value)
{
    expar_nv_u64 seen = 0;
    EXPAR_NV_LOOK(u64, wait_until, sig_addr, (expar_cmp)cmp, cmp_value, &seen);
    return seen;
}

#ifndef __CUDACC_RTC__
#define EXPAR_NV_WAITS_ON_STREAM(T, N, S)                                                                              \
    EXPAR_NV_HOST void nvshmemx_##N##_wait_until_on_stream(T *ivar, int cmp, T cmp_value, cudaStream_t cstrm)          \
    {                                                                                                                  \
        expar_nvshmem_must(expar_wait_until_##S##_on_stream(expar_nvshmem_group(), (const expar_nv_##S *)ivar,         \
                                                            (expar_cmp)cmp, (expar_nv_##S)cmp_value, cstrm));          \
    }
EXPAR_NV_WAIT_TYPES(EXPAR_NV_WAITS_ON_STREAM)

EXPAR_NV_HOST void nvshmemx_signal_wait_until_on_stream(uint64_t *sig_addr, int cmp, uint64_t cmp_value,
                                                        cudaStream_t cstrm)
{
    expar_nvshmem_must(
        expar_signal_wait_until_on_stream(expar_nvshmem_group(), sig_addr, (expar_cmp)cmp, cmp_value, cstrm));
}
#endif

#endif

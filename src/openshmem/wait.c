/* SPDX-License-Identifier: Apache-2.0 */
/* Waits and tests: those of expar's type of the same size and sign. */
#include "openshmem/shm.h"

_Static_assert(EXPAR_NO_INDEX == SIZE_MAX, "the standard's word for none");

#define INDEX(call, ...)                                                                                               \
    {                                                                                                                  \
        size_t found;                                                                                                  \
        shm_must(call(shm.group, __VA_ARGS__, &found));                                                                \
        return found;                                                                                                  \
    }
#define HOLDS(call, ...)                                                                                               \
    {                                                                                                                  \
        int holds;                                                                                                     \
        shm_must(call(shm.group, __VA_ARGS__, &holds));                                                                \
        return holds;                                                                                                  \
    }
#define CMP ((expar_cmp)cmp)

/* name: of the standard; E: expar's type, to which V casts; S: its suffix. */
#define WAIT_DEFINE(T, name, E, S)                                                                                     \
    void shmem_##name##_wait_until(T *ivar, int cmp, T value)                                                          \
    {                                                                                                                  \
        shm_must(expar_wait_until_##S(shm.group, (E *)ivar, CMP, (E)value, NULL));                                     \
    }                                                                                                                  \
    void shmem_##name##_wait_until_all(T *ivars, size_t n, const int *status, int cmp, T value)                        \
    {                                                                                                                  \
        shm_must(expar_wait_until_all_##S(shm.group, (E *)ivars, n, status, CMP, (E)value));                           \
    }                                                                                                                  \
    void shmem_##name##_wait_until_all_vector(T *ivars, size_t n, const int *status, int cmp, T *values)               \
    {                                                                                                                  \
        shm_must(expar_wait_until_all_vector_##S(shm.group, (E *)ivars, n, status, CMP, (E *)values));                 \
    }                                                                                                                  \
    size_t shmem_##name##_wait_until_any(T *ivars, size_t n, const int *status, int cmp, T value) INDEX(               \
        expar_wait_until_any_##S, (E *)ivars, n, status, CMP, (E)value)                                                \
        size_t shmem_##name##_wait_until_any_vector(T *ivars, size_t n, const int *status, int cmp, T *values)         \
            INDEX(expar_wait_until_any_vector_##S, (E *)ivars, n, status, CMP,                                         \
                  (E *)values) size_t shmem_##name##_wait_until_some(T *ivars, size_t n, size_t *indices,              \
                                                                     const int *status, int cmp, T value)              \
                INDEX(expar_wait_until_some_##S, (E *)ivars, n, indices, status, CMP,                                  \
                      (E)value) size_t shmem_##name##_wait_until_some_vector(T *ivars, size_t n, size_t *indices,      \
                                                                             const int *status, int cmp, T *values)    \
                    INDEX(expar_wait_until_some_vector_##S, (E *)ivars, n, indices, status, CMP,                       \
                          (E *)values) int shmem_##name##_test(T *ivar, int cmp, T value)                              \
                        HOLDS(expar_test_##S, (E *)ivar, CMP, (E)value) int shmem_##name##_test_all(                   \
                            T *ivars, size_t n, const int *status, int cmp, T value)                                   \
                            HOLDS(expar_test_all_##S, (E *)ivars, n, status, CMP,                                      \
                                  (E)value) int shmem_##name##_test_all_vector(T *ivars, size_t n, const int *status,  \
                                                                               int cmp, T *values)                     \
                                HOLDS(expar_test_all_vector_##S, (E *)ivars, n, status, CMP, (E *)values)              \
                                    size_t shmem_##name##_test_any(T *ivars, size_t n, const int *status, int cmp,     \
                                                                   T value) INDEX(expar_test_any_##S, (E *)ivars,      \
                                                                                  n, status, CMP, (E)value)            \
                                        size_t shmem_##name##_test_any_vector(T *ivars, size_t n, const int *status,   \
                                                                              int cmp, T *values)                      \
                                            INDEX(expar_test_any_vector_##S, (E *)ivars, n, status, CMP, (E *)values)  \
                                                size_t shmem_##name##_test_some(T *ivars, size_t n, size_t *indices,   \
                                                                                const int *status, int cmp, T value)   \
                                                    INDEX(expar_test_some_##S, (E *)ivars, n, indices, status, CMP,    \
                                                          (E)value)                                                    \
                                                        size_t shmem_##name##_test_some_vector(                        \
                                                            T *ivars, size_t n, size_t *indices, const int *status,    \
                                                            int cmp, T *values)                                        \
                                                            INDEX(expar_test_some_vector_##S, (E *)ivars, n, indices,  \
                                                                  status, CMP, (E *)values)

WAIT_DEFINE(short, short, int16_t, i16)
WAIT_DEFINE(unsigned short, ushort, uint16_t, u16)
WAIT_DEFINE(int, int, int32_t, i32)
WAIT_DEFINE(long, long, int64_t, i64)
WAIT_DEFINE(long long, longlong, int64_t, i64)
WAIT_DEFINE(unsigned int, uint, uint32_t, u32)
WAIT_DEFINE(unsigned long, ulong, uint64_t, u64)
WAIT_DEFINE(unsigned long long, ulonglong, uint64_t, u64)
WAIT_DEFINE(int32_t, int32, int32_t, i32)
WAIT_DEFINE(int64_t, int64, int64_t, i64)
WAIT_DEFINE(uint32_t, uint32, uint32_t, u32)
WAIT_DEFINE(uint64_t, uint64, uint64_t, u64)
WAIT_DEFINE(size_t, size, uint64_t, u64)
WAIT_DEFINE(ptrdiff_t, ptrdiff, int64_t, i64)

/* SPDX-License-Identifier: Apache-2.0 */
/* OpenSHMEM 1.5 for host memory on top of expar. A program includes <shmem.h> and is built with what
 * `pkg-config --cflags --libs expar-shmem` says; docs/reference/openshmem.md has the table of what is covered.
 *
 * A call that fails says why on stderr and ends the job, since most of them have no way to report it. Functions of a
 * family differ in their types only, so tables declare them: X(C type, name of the standard). */
#ifndef EXPAR_SHMEM_H
#define EXPAR_SHMEM_H

#include <expar/status.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#include <complex>
extern "C" {
typedef std::complex<float> expar_shmem_complexf;
typedef std::complex<double> expar_shmem_complexd;
#else
#include <complex.h>
typedef float _Complex expar_shmem_complexf;
typedef double _Complex expar_shmem_complexd;
#endif

/* ---- constants --------------------------------------------------------------------------------------------------- */

#define SHMEM_MAJOR_VERSION 1
#define SHMEM_MINOR_VERSION 5
#define SHMEM_MAX_NAME_LEN  64
#define SHMEM_VENDOR_STRING "expar"

enum { SHMEM_THREAD_SINGLE, SHMEM_THREAD_FUNNELED, SHMEM_THREAD_SERIALIZED, SHMEM_THREAD_MULTIPLE };
enum { SHMEM_CMP_EQ, SHMEM_CMP_NE, SHMEM_CMP_GT, SHMEM_CMP_GE, SHMEM_CMP_LT, SHMEM_CMP_LE };
enum { SHMEM_SIGNAL_SET, SHMEM_SIGNAL_ADD };
#define SHMEM_CTX_SERIALIZED          1L
#define SHMEM_CTX_PRIVATE             2L
#define SHMEM_CTX_NOSTORE             4L
#define SHMEM_MALLOC_ATOMICS_REMOTE   1L
#define SHMEM_MALLOC_SIGNAL_REMOTE    2L
#define SHMEM_TEAM_NUM_CONTEXTS       1L
#define SHMEM_SYNC_VALUE              0L
#define SHMEM_SYNC_SIZE               1
#define SHMEM_BARRIER_SYNC_SIZE       1
#define SHMEM_BCAST_SYNC_SIZE         1
#define SHMEM_COLLECT_SYNC_SIZE       1
#define SHMEM_ALLTOALL_SYNC_SIZE      1
#define SHMEM_ALLTOALLS_SYNC_SIZE     1
#define SHMEM_REDUCE_SYNC_SIZE        1
#define SHMEM_REDUCE_MIN_WRKDATA_SIZE 1

typedef struct expar_shmem_ctx *shmem_ctx_t;
typedef struct expar_shmem_team *shmem_team_t;
#define SHMEM_CTX_INVALID  ((shmem_ctx_t)0)
#define SHMEM_CTX_DEFAULT  ((shmem_ctx_t)1)
#define SHMEM_TEAM_INVALID ((shmem_team_t)0)
#define SHMEM_TEAM_WORLD   ((shmem_team_t)1)
#define SHMEM_TEAM_SHARED  ((shmem_team_t)2)
typedef struct {
    int num_contexts;
} shmem_team_config_t;

/* ---- types ------------------------------------------------------------------------------------------------------- */

#define EXPAR_SHMEM_INTS(X)   X(int, int) X(long, long) X(long long, longlong)
#define EXPAR_SHMEM_UINTS(X)  X(unsigned int, uint) X(unsigned long, ulong) X(unsigned long long, ulonglong)
#define EXPAR_SHMEM_FLOATS(X) X(float, float) X(double, double)
/* Types that differ, in C and C++: those that generic names choose among. */
/* clang-format off */
#define EXPAR_SHMEM_DISTINCT(X)                                                                                        \
    EXPAR_SHMEM_FLOATS(X)                                                                                              \
    X(long double, longdouble) X(char, char) X(signed char, schar) X(short, short) EXPAR_SHMEM_INTS(X)                 \
        X(unsigned char, uchar) X(unsigned short, ushort) EXPAR_SHMEM_UINTS(X)
/* clang-format on */
#define EXPAR_SHMEM_FIXED_WORDS(X) X(int32_t, int32) X(int64_t, int64) X(uint32_t, uint32) X(uint64_t, uint64)
#define EXPAR_SHMEM_SIZES(X)       X(size_t, size) X(ptrdiff_t, ptrdiff)
/* clang-format off */
#define EXPAR_SHMEM_RMA_TYPES(X)                                                                                       \
    EXPAR_SHMEM_DISTINCT(X)                                                                                            \
    X(int8_t, int8) X(int16_t, int16) X(uint8_t, uint8) X(uint16_t, uint16) EXPAR_SHMEM_FIXED_WORDS(X)                 \
        EXPAR_SHMEM_SIZES(X)
/* clang-format on */
#define EXPAR_SHMEM_AMO_DISTINCT(X) EXPAR_SHMEM_INTS(X) EXPAR_SHMEM_UINTS(X)
#define EXPAR_SHMEM_AMO_TYPES(X)    EXPAR_SHMEM_AMO_DISTINCT(X) EXPAR_SHMEM_FIXED_WORDS(X) EXPAR_SHMEM_SIZES(X)
/* The deprecated 16 bits: words that puts change, since there are no atomics on them. */
#define EXPAR_SHMEM_SHORTS(X)        X(short, short) X(unsigned short, ushort)
#define EXPAR_SHMEM_WAIT_DISTINCT(X) EXPAR_SHMEM_SHORTS(X) EXPAR_SHMEM_AMO_DISTINCT(X)
#define EXPAR_SHMEM_WAIT_TYPES(X)    EXPAR_SHMEM_SHORTS(X) EXPAR_SHMEM_AMO_TYPES(X)
#define EXPAR_SHMEM_BITS_DISTINCT(X) EXPAR_SHMEM_UINTS(X) X(int32_t, int32) X(int64_t, int64)
#define EXPAR_SHMEM_BITS_TYPES(X)    EXPAR_SHMEM_UINTS(X) EXPAR_SHMEM_FIXED_WORDS(X)
/* Sized forms: X(bits). */
#define EXPAR_SHMEM_WIDTHS(X) X(8) X(16) X(32) X(64) X(128)

/* ---- start, end, queries ----------------------------------------------------------------------------------------- */

/* PEs wait for each other without a time-out, as the standard says. A PE may compute for any time while others are in a
   wait, a lock or a collective. A PE that dies ends the job, and so does a host that does not answer for two minutes.
   With EXPAR_TIMEOUT set (expar 1) a wait of that long ends the job, too. */
EXPAR_API void shmem_init(void);
EXPAR_API int shmem_init_thread(int requested, int *provided);
EXPAR_API void shmem_query_thread(int *provided);
EXPAR_API void shmem_finalize(void);
EXPAR_API void shmem_global_exit(int status) __attribute__((noreturn));
EXPAR_API int shmem_my_pe(void);
EXPAR_API int shmem_n_pes(void);
EXPAR_API int shmem_pe_accessible(int pe);
EXPAR_API int shmem_addr_accessible(const void *addr, int pe);
EXPAR_API void *shmem_ptr(const void *dest, int pe);
EXPAR_API void shmem_info_get_version(int *major, int *minor);
EXPAR_API void shmem_info_get_name(char *name);
/* Returns at once: for profilers, which put a function of their own before it. */
EXPAR_API void shmem_pcontrol(int level, ...);
/* Deprecated names. */
EXPAR_API void start_pes(int npes);
EXPAR_API int _my_pe(void);
EXPAR_API int _num_pes(void);

/* ---- memory ------------------------------------------------------------------------------------------------------ */

EXPAR_API void *shmem_malloc(size_t size);
EXPAR_API void *shmem_malloc_with_hints(size_t size, long hints);
EXPAR_API void *shmem_calloc(size_t count, size_t size);
EXPAR_API void *shmem_align(size_t alignment, size_t size);
EXPAR_API void *shmem_realloc(void *ptr, size_t size);
EXPAR_API void shmem_free(void *ptr);

/* ---- teams and contexts ------------------------------------------------------------------------------------------ */

EXPAR_API int shmem_team_my_pe(shmem_team_t team);
EXPAR_API int shmem_team_n_pes(shmem_team_t team);
EXPAR_API int shmem_team_get_config(shmem_team_t team, long config_mask, shmem_team_config_t *config);
EXPAR_API int shmem_team_translate_pe(shmem_team_t src_team, int src_pe, shmem_team_t dest_team);
/* As shmem_ptr, pe being a number in the team; NULL where there is no such member, too. OpenSHMEM 1.6. */
EXPAR_API void *shmem_team_ptr(shmem_team_t team, const void *dest, int pe);
EXPAR_API int shmem_team_split_strided(shmem_team_t parent, int start, int stride, int size,
                                       const shmem_team_config_t *config, long config_mask, shmem_team_t *new_team);
EXPAR_API int shmem_team_split_2d(shmem_team_t parent, int xrange, const shmem_team_config_t *xaxis_config,
                                  long xaxis_mask, shmem_team_t *xaxis_team, const shmem_team_config_t *yaxis_config,
                                  long yaxis_mask, shmem_team_t *yaxis_team);
EXPAR_API void shmem_team_destroy(shmem_team_t team);
EXPAR_API int shmem_team_sync(shmem_team_t team);
EXPAR_API int shmem_ctx_create(long options, shmem_ctx_t *ctx);
EXPAR_API int shmem_team_create_ctx(shmem_team_t team, long options, shmem_ctx_t *ctx);
EXPAR_API void shmem_ctx_destroy(shmem_ctx_t ctx);
EXPAR_API int shmem_ctx_get_team(shmem_ctx_t ctx, shmem_team_t *team);
EXPAR_API void shmem_ctx_fence(shmem_ctx_t ctx);
EXPAR_API void shmem_ctx_quiet(shmem_ctx_t ctx);
EXPAR_API void shmem_fence(void);
EXPAR_API void shmem_quiet(void);
EXPAR_API void shmem_barrier_all(void);
EXPAR_API void shmem_sync_all(void);
EXPAR_API void shmem_set_lock(long *lock);
EXPAR_API void shmem_clear_lock(long *lock);
EXPAR_API int shmem_test_lock(long *lock);

/* ---- put and get ------------------------------------------------------------------------------------------------- */

/* A function and its form with a context first: EXPAR_SHMEM_BOTH(type, name after shmem_, (its parameters)). */
#define EXPAR_SHMEM_UNPACK(...) __VA_ARGS__
#define EXPAR_SHMEM_BOTH(R, name, parameters)                                                                          \
    EXPAR_API R shmem_##name(EXPAR_SHMEM_UNPACK parameters);                                                           \
    EXPAR_API R shmem_ctx_##name(shmem_ctx_t ctx, EXPAR_SHMEM_UNPACK parameters);
#define EXPAR_SHMEM_RMA_DECLARE(T, N)                                                                                  \
    EXPAR_SHMEM_BOTH(void, N##_put, (T * dest, const T *source, size_t nelems, int pe))                                \
    EXPAR_SHMEM_BOTH(void, N##_get, (T * dest, const T *source, size_t nelems, int pe))                                \
    EXPAR_SHMEM_BOTH(void, N##_put_nbi, (T * dest, const T *source, size_t nelems, int pe))                            \
    EXPAR_SHMEM_BOTH(void, N##_get_nbi, (T * dest, const T *source, size_t nelems, int pe))                            \
    EXPAR_SHMEM_BOTH(void, N##_p, (T * dest, T value, int pe))                                                         \
    EXPAR_SHMEM_BOTH(T, N##_g, (const T *source, int pe))                                                              \
    EXPAR_SHMEM_BOTH(void, N##_iput, (T * dest, const T *source, ptrdiff_t dst, ptrdiff_t sst, size_t nelems, int pe)) \
    EXPAR_SHMEM_BOTH(void, N##_iget, (T * dest, const T *source, ptrdiff_t dst, ptrdiff_t sst, size_t nelems, int pe)) \
    EXPAR_SHMEM_BOTH(                                                                                                  \
        void, N##_put_signal,                                                                                          \
        (T * dest, const T *source, size_t nelems, uint64_t *sig_addr, uint64_t signal, int sig_op, int pe))           \
    EXPAR_SHMEM_BOTH(                                                                                                  \
        void, N##_put_signal_nbi,                                                                                      \
        (T * dest, const T *source, size_t nelems, uint64_t *sig_addr, uint64_t signal, int sig_op, int pe))
EXPAR_SHMEM_RMA_TYPES(EXPAR_SHMEM_RMA_DECLARE)

/* Names end in the bits of an element, or in mem for bytes. */
#define EXPAR_SHMEM_BLOCK_DECLARE(W)                                                                                   \
    EXPAR_SHMEM_BOTH(void, put##W, (void *dest, const void *source, size_t nelems, int pe))                            \
    EXPAR_SHMEM_BOTH(void, get##W, (void *dest, const void *source, size_t nelems, int pe))                            \
    EXPAR_SHMEM_BOTH(void, put##W##_nbi, (void *dest, const void *source, size_t nelems, int pe))                      \
    EXPAR_SHMEM_BOTH(void, get##W##_nbi, (void *dest, const void *source, size_t nelems, int pe))                      \
    EXPAR_SHMEM_BOTH(                                                                                                  \
        void, put##W##_signal,                                                                                         \
        (void *dest, const void *source, size_t nelems, uint64_t *sig_addr, uint64_t signal, int sig_op, int pe))      \
    EXPAR_SHMEM_BOTH(                                                                                                  \
        void, put##W##_signal_nbi,                                                                                     \
        (void *dest, const void *source, size_t nelems, uint64_t *sig_addr, uint64_t signal, int sig_op, int pe))
#define EXPAR_SHMEM_STRIDED_DECLARE(W)                                                                                 \
    EXPAR_SHMEM_BOTH(void, iput##W,                                                                                    \
                     (void *dest, const void *source, ptrdiff_t dst, ptrdiff_t sst, size_t nelems, int pe))            \
    EXPAR_SHMEM_BOTH(void, iget##W,                                                                                    \
                     (void *dest, const void *source, ptrdiff_t dst, ptrdiff_t sst, size_t nelems, int pe))
EXPAR_SHMEM_WIDTHS(EXPAR_SHMEM_BLOCK_DECLARE)
EXPAR_SHMEM_BLOCK_DECLARE(mem)
EXPAR_SHMEM_WIDTHS(EXPAR_SHMEM_STRIDED_DECLARE)

EXPAR_API uint64_t shmem_signal_fetch(const uint64_t *sig_addr);
EXPAR_API uint64_t shmem_signal_wait_until(uint64_t *sig_addr, int cmp, uint64_t cmp_value);

/* ---- atomics ----------------------------------------------------------------------------------------------------- */

#define EXPAR_SHMEM_SWAP_DECLARE(T, N)                                                                                 \
    EXPAR_SHMEM_BOTH(T, N##_atomic_fetch, (const T *source, int pe))                                                   \
    EXPAR_SHMEM_BOTH(void, N##_atomic_set, (T * dest, T value, int pe))                                                \
    EXPAR_SHMEM_BOTH(T, N##_atomic_swap, (T * dest, T value, int pe))                                                  \
    EXPAR_SHMEM_BOTH(void, N##_atomic_fetch_nbi, (T * fetch, const T *source, int pe))                                 \
    EXPAR_SHMEM_BOTH(void, N##_atomic_swap_nbi, (T * fetch, T * dest, T value, int pe))
#define EXPAR_SHMEM_OPERATION_DECLARE(T, N, operation)                                                                 \
    EXPAR_SHMEM_BOTH(void, N##_atomic_##operation, (T * dest, T value, int pe))                                        \
    EXPAR_SHMEM_BOTH(T, N##_atomic_fetch_##operation, (T * dest, T value, int pe))                                     \
    EXPAR_SHMEM_BOTH(void, N##_atomic_fetch_##operation##_nbi, (T * fetch, T * dest, T value, int pe))
#define EXPAR_SHMEM_AMO_DECLARE(T, N)                                                                                  \
    EXPAR_SHMEM_SWAP_DECLARE(T, N)                                                                                     \
    EXPAR_SHMEM_OPERATION_DECLARE(T, N, add)                                                                           \
    EXPAR_SHMEM_BOTH(void, N##_atomic_inc, (T * dest, int pe))                                                         \
    EXPAR_SHMEM_BOTH(T, N##_atomic_fetch_inc, (T * dest, int pe))                                                      \
    EXPAR_SHMEM_BOTH(void, N##_atomic_fetch_inc_nbi, (T * fetch, T * dest, int pe))                                    \
    EXPAR_SHMEM_BOTH(T, N##_atomic_compare_swap, (T * dest, T cond, T value, int pe))                                  \
    EXPAR_SHMEM_BOTH(void, N##_atomic_compare_swap_nbi, (T * fetch, T * dest, T cond, T value, int pe))
#define EXPAR_SHMEM_BITS_DECLARE(T, N)                                                                                 \
    EXPAR_SHMEM_OPERATION_DECLARE(T, N, and)                                                                           \
    EXPAR_SHMEM_OPERATION_DECLARE(T, N, or)                                                                            \
    EXPAR_SHMEM_OPERATION_DECLARE(T, N, xor)
EXPAR_SHMEM_FLOATS(EXPAR_SHMEM_SWAP_DECLARE)
EXPAR_SHMEM_AMO_TYPES(EXPAR_SHMEM_AMO_DECLARE)
EXPAR_SHMEM_BITS_TYPES(EXPAR_SHMEM_BITS_DECLARE)

/* ---- waits ------------------------------------------------------------------------------------------------------- */

#define EXPAR_SHMEM_WAIT_DECLARE(T, N)                                                                                 \
    EXPAR_API void shmem_##N##_wait_until(T *ivar, int cmp, T cmp_value);                                              \
    EXPAR_API void shmem_##N##_wait_until_all(T *ivars, size_t nelems, const int *status, int cmp, T cmp_value);       \
    EXPAR_API size_t shmem_##N##_wait_until_any(T *ivars, size_t nelems, const int *status, int cmp, T cmp_value);     \
    EXPAR_API size_t shmem_##N##_wait_until_some(T *ivars, size_t nelems, size_t *indices, const int *status, int cmp, \
                                                 T cmp_value);                                                         \
    EXPAR_API void shmem_##N##_wait_until_all_vector(T *ivars, size_t nelems, const int *status, int cmp,              \
                                                     T *cmp_values);                                                   \
    EXPAR_API size_t shmem_##N##_wait_until_any_vector(T *ivars, size_t nelems, const int *status, int cmp,            \
                                                       T *cmp_values);                                                 \
    EXPAR_API size_t shmem_##N##_wait_until_some_vector(T *ivars, size_t nelems, size_t *indices, const int *status,   \
                                                        int cmp, T *cmp_values);                                       \
    EXPAR_API int shmem_##N##_test(T *ivar, int cmp, T cmp_value);                                                     \
    EXPAR_API int shmem_##N##_test_all(T *ivars, size_t nelems, const int *status, int cmp, T cmp_value);              \
    EXPAR_API size_t shmem_##N##_test_any(T *ivars, size_t nelems, const int *status, int cmp, T cmp_value);           \
    EXPAR_API size_t shmem_##N##_test_some(T *ivars, size_t nelems, size_t *indices, const int *status, int cmp,       \
                                           T cmp_value);                                                               \
    EXPAR_API int shmem_##N##_test_all_vector(T *ivars, size_t nelems, const int *status, int cmp, T *cmp_values);     \
    EXPAR_API size_t shmem_##N##_test_any_vector(T *ivars, size_t nelems, const int *status, int cmp, T *cmp_values);  \
    EXPAR_API size_t shmem_##N##_test_some_vector(T *ivars, size_t nelems, size_t *indices, const int *status,         \
                                                  int cmp, T *cmp_values);
EXPAR_SHMEM_WAIT_TYPES(EXPAR_SHMEM_WAIT_DECLARE)

/* ---- collectives over teams -------------------------------------------------------------------------------------- */

#define EXPAR_SHMEM_COLLECTIVE_DECLARE(T, broadcast, collect, fcollect, alltoall)                                      \
    EXPAR_API int shmem_##broadcast(shmem_team_t team, T *dest, const T *source, size_t nelems, int PE_root);          \
    EXPAR_API int shmem_##collect(shmem_team_t team, T *dest, const T *source, size_t nelems);                         \
    EXPAR_API int shmem_##fcollect(shmem_team_t team, T *dest, const T *source, size_t nelems);                        \
    EXPAR_API int shmem_##alltoall(shmem_team_t team, T *dest, const T *source, size_t nelems);
#define EXPAR_SHMEM_TYPED_COLLECTIVE_DECLARE(T, N)                                                                     \
    EXPAR_SHMEM_COLLECTIVE_DECLARE(T, N##_broadcast, N##_collect, N##_fcollect, N##_alltoall)                          \
    EXPAR_API int shmem_##N##_alltoalls(shmem_team_t team, T *dest, const T *source, ptrdiff_t dst, ptrdiff_t sst,     \
                                        size_t nelems);
EXPAR_SHMEM_RMA_TYPES(EXPAR_SHMEM_TYPED_COLLECTIVE_DECLARE)
EXPAR_SHMEM_COLLECTIVE_DECLARE(void, broadcastmem, collectmem, fcollectmem, alltoallmem)
EXPAR_API int shmem_alltoallsmem(shmem_team_t team, void *dest, const void *source, ptrdiff_t dst, ptrdiff_t sst,
                                 size_t nelems);

/* clang-format off */
#define EXPAR_SHMEM_BITS_REDUCE_TYPES(X)                                                                               \
    X(unsigned char, uchar)                                                                                            \
    X(unsigned short, ushort) EXPAR_SHMEM_UINTS(X) X(int8_t, int8) X(int16_t, int16) X(uint8_t, uint8)                 \
        X(uint16_t, uint16) EXPAR_SHMEM_FIXED_WORDS(X) X(size_t, size)
#define EXPAR_SHMEM_BITS_REDUCE_DISTINCT(X)                                                                            \
    X(unsigned char, uchar)                                                                                            \
    X(unsigned short, ushort) X(int8_t, int8) X(int16_t, int16) EXPAR_SHMEM_BITS_DISTINCT(X)
/* clang-format on */
#define EXPAR_SHMEM_COMPLEX(X) X(expar_shmem_complexd, complexd) X(expar_shmem_complexf, complexf)
#define EXPAR_SHMEM_REDUCE_DECLARE(T, N, operation)                                                                    \
    EXPAR_API int shmem_##N##_##operation##_reduce(shmem_team_t team, T *dest, const T *source, size_t nreduce);
#define EXPAR_SHMEM_REDUCE_BITS(T, N)                                                                                  \
    EXPAR_SHMEM_REDUCE_DECLARE(T, N, and)                                                                              \
    EXPAR_SHMEM_REDUCE_DECLARE(T, N, or)                                                                               \
    EXPAR_SHMEM_REDUCE_DECLARE(T, N, xor)
#define EXPAR_SHMEM_REDUCE_ORDER(T, N)                                                                                 \
    EXPAR_SHMEM_REDUCE_DECLARE(T, N, min)                                                                              \
    EXPAR_SHMEM_REDUCE_DECLARE(T, N, max)
#define EXPAR_SHMEM_REDUCE_SUMS(T, N)                                                                                  \
    EXPAR_SHMEM_REDUCE_DECLARE(T, N, sum)                                                                              \
    EXPAR_SHMEM_REDUCE_DECLARE(T, N, prod)
EXPAR_SHMEM_BITS_REDUCE_TYPES(EXPAR_SHMEM_REDUCE_BITS)
EXPAR_SHMEM_RMA_TYPES(EXPAR_SHMEM_REDUCE_ORDER)
EXPAR_SHMEM_RMA_TYPES(EXPAR_SHMEM_REDUCE_SUMS)
EXPAR_SHMEM_COMPLEX(EXPAR_SHMEM_REDUCE_SUMS)

/* ---- active sets (deprecated by the standard) -------------------------------------------------------------------- */

EXPAR_API void shmem_barrier(int PE_start, int logPE_stride, int PE_size, long *pSync);
EXPAR_API void shmem_sync(int PE_start, int logPE_stride, int PE_size, long *pSync);
#define EXPAR_SHMEM_SET_DECLARE(W)                                                                                     \
    EXPAR_API void shmem_broadcast##W(void *dest, const void *source, size_t nelems, int PE_root, int PE_start,        \
                                      int logPE_stride, int PE_size, long *pSync);                                     \
    EXPAR_API void shmem_collect##W(void *dest, const void *source, size_t nelems, int PE_start, int logPE_stride,     \
                                    int PE_size, long *pSync);                                                         \
    EXPAR_API void shmem_fcollect##W(void *dest, const void *source, size_t nelems, int PE_start, int logPE_stride,    \
                                     int PE_size, long *pSync);                                                        \
    EXPAR_API void shmem_alltoall##W(void *dest, const void *source, size_t nelems, int PE_start, int logPE_stride,    \
                                     int PE_size, long *pSync);                                                        \
    EXPAR_API void shmem_alltoalls##W(void *dest, const void *source, ptrdiff_t dst, ptrdiff_t sst, size_t nelems,     \
                                      int PE_start, int logPE_stride, int PE_size, long *pSync);
EXPAR_SHMEM_SET_DECLARE(32)
EXPAR_SHMEM_SET_DECLARE(64)

#define EXPAR_SHMEM_SET_INTS(X)  X(short, short) EXPAR_SHMEM_INTS(X)
#define EXPAR_SHMEM_SET_REALS(X) EXPAR_SHMEM_FLOATS(X) X(long double, longdouble)
#define EXPAR_SHMEM_TO_ALL_DECLARE(T, N, operation)                                                                    \
    EXPAR_API void shmem_##N##_##operation##_to_all(T *dest, const T *source, int nreduce, int PE_start,               \
                                                    int logPE_stride, int PE_size, T *pWrk, long *pSync);
#define EXPAR_SHMEM_TO_ALL_BITS(T, N)                                                                                  \
    EXPAR_SHMEM_TO_ALL_DECLARE(T, N, and)                                                                              \
    EXPAR_SHMEM_TO_ALL_DECLARE(T, N, or)                                                                               \
    EXPAR_SHMEM_TO_ALL_DECLARE(T, N, xor)
#define EXPAR_SHMEM_TO_ALL_ORDER(T, N)                                                                                 \
    EXPAR_SHMEM_TO_ALL_DECLARE(T, N, min)                                                                              \
    EXPAR_SHMEM_TO_ALL_DECLARE(T, N, max)
#define EXPAR_SHMEM_TO_ALL_SUMS(T, N)                                                                                  \
    EXPAR_SHMEM_TO_ALL_DECLARE(T, N, sum)                                                                              \
    EXPAR_SHMEM_TO_ALL_DECLARE(T, N, prod)
EXPAR_SHMEM_SET_INTS(EXPAR_SHMEM_TO_ALL_BITS)
EXPAR_SHMEM_SET_INTS(EXPAR_SHMEM_TO_ALL_ORDER)
EXPAR_SHMEM_SET_INTS(EXPAR_SHMEM_TO_ALL_SUMS)
EXPAR_SHMEM_SET_REALS(EXPAR_SHMEM_TO_ALL_ORDER)
EXPAR_SHMEM_SET_REALS(EXPAR_SHMEM_TO_ALL_SUMS)
EXPAR_SHMEM_COMPLEX(EXPAR_SHMEM_TO_ALL_SUMS)

#ifdef __cplusplus
}
#endif

#if defined(__cplusplus) && !defined(EXPAR_SHMEM_NO_GENERICS)
#include <expar/shmem_overloads.h>
#elif !defined(EXPAR_SHMEM_NO_GENERICS)
#include <expar/shmem_generic.h>
#endif
#endif

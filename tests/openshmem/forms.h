/* SPDX-License-Identifier: Apache-2.0 */
/* The types of the standard, as its tables list them: X(type, name); and the ways in which a typed call is named. The
 * typed programs are compiled as C and as C++. */
#ifndef TESTS_OPENSHMEM_FORMS_H
#define TESTS_OPENSHMEM_FORMS_H

#include "expect.h"

#include <stdalign.h>
#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
typedef std::complex<float> complexf;
typedef std::complex<double> complexd;
#define COMPLEX_NUMBER(real, imaginary) complexd(real, imaginary)
#else
typedef float _Complex complexf;
typedef double _Complex complexd;
#define COMPLEX_NUMBER(real, imaginary) ((real) + (imaginary) * (complexd)_Complex_I)
#endif

/* clang-format off */
#define WORD_TYPES(X)                                                                                                  \
    X(int, int) X(long, long) X(long long, longlong) X(unsigned int, uint) X(unsigned long, ulong)                     \
    X(unsigned long long, ulonglong) X(int32_t, int32) X(int64_t, int64) X(uint32_t, uint32) X(uint64_t, uint64)       \
    X(size_t, size) X(ptrdiff_t, ptrdiff)
#define WAIT_TYPES(X)         X(short, short) X(unsigned short, ushort) WORD_TYPES(X)
#define INTEGER_TYPES(X)                                                                                               \
    X(char, char) X(signed char, schar) X(short, short) X(unsigned char, uchar) X(unsigned short, ushort)              \
    X(int8_t, int8) X(int16_t, int16) X(uint8_t, uint8) X(uint16_t, uint16) WORD_TYPES(X)
#define REAL_TYPES(X)         X(float, float) X(double, double)
#define LONG_REAL_TYPES(X)    REAL_TYPES(X) X(long double, longdouble)
#define COMPLEX_TYPES(X)      X(complexf, complexf) X(complexd, complexd)
#define RMA_TYPES(X)          LONG_REAL_TYPES(X) INTEGER_TYPES(X)
#define BITS_AMO_TYPES(X)                                                                                              \
    X(unsigned int, uint) X(unsigned long, ulong) X(unsigned long long, ulonglong) X(int32_t, int32)                   \
    X(int64_t, int64) X(uint32_t, uint32) X(uint64_t, uint64)
#define BITS_REDUCE_TYPES(X)                                                                                           \
    X(unsigned char, uchar) X(unsigned short, ushort) X(int8_t, int8) X(int16_t, int16) X(uint8_t, uint8)              \
    X(uint16_t, uint16) X(size_t, size) BITS_AMO_TYPES(X)
#define SET_INTEGER_TYPES(X)  X(short, short) X(int, int) X(long, long) X(long long, longlong)

/* The ways to name a call, with and without a context: by its type's name, and by its arguments' type. In a check, ctx
   is the context. FOUR(CHECK, T, N) checks them all, TWO those without a context. */
#define BY_NAME(N, call, ...)     shmem_##N##_##call(__VA_ARGS__)
#define BY_NAME_CTX(N, call, ...) shmem_ctx_##N##_##call(ctx, __VA_ARGS__)
#define BY_TYPE(N, call, ...)     shmem_##call(__VA_ARGS__)
#define BY_TYPE_CTX(N, call, ...) shmem_##call(ctx, __VA_ARGS__)
#define TWO(CHECK, T, N)          CHECK(T, N, name, BY_NAME) CHECK(T, N, type, BY_TYPE)
#define FOUR(CHECK, T, N)         TWO(CHECK, T, N) CHECK(T, N, name_ctx, BY_NAME_CTX) CHECK(T, N, type_ctx, BY_TYPE_CTX)
/* clang-format on */

/* Another number each time, in every type. */
static inline int fresh(void)
{
    static int last;
    last = last % 113 + 1;
    return last;
}

#endif

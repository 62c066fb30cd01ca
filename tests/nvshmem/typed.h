/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of types that the names have, as the documentation lists them: X(C type, name). */
#ifndef TESTS_NVSHMEM_TYPED_H
#define TESTS_NVSHMEM_TYPED_H

/* clang-format off */
#define BIT_WORDS(X)                                                                                                   \
    X(unsigned int, uint) X(unsigned long, ulong) X(unsigned long long, ulonglong) X(int32_t, int32)                   \
    X(int64_t, int64) X(uint32_t, uint32) X(uint64_t, uint64)
#define WORDS(X)                                                                                                       \
    X(int, int) X(long, long) X(long long, longlong) BIT_WORDS(X) X(size_t, size) X(ptrdiff_t, ptrdiff)
#define WAIT_TYPES(X) X(short, short) X(unsigned short, ushort) WORDS(X)
#define FLOATS(X) X(float, float) X(double, double)
#define BIT_TYPES(X)                                                                                                   \
    X(unsigned char, uchar) X(unsigned short, ushort) X(int8_t, int8) X(int16_t, int16) X(uint8_t, uint8)              \
    X(uint16_t, uint16) BIT_WORDS(X) X(size_t, size)
#define TYPES(X)                                                                                                       \
    FLOATS(X) X(char, char) X(signed char, schar) X(unsigned char, uchar) X(int8_t, int8) X(int16_t, int16)            \
    X(uint8_t, uint8) X(uint16_t, uint16) WAIT_TYPES(X)
#define SIZES(X) X(8) X(16) X(32) X(64) X(128)
/* clang-format on */

#endif

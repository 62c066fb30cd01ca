/* SPDX-License-Identifier: Apache-2.0 */
/* Types and constants of NVSHMEM's names, and the tables of types: X(C type, NVSHMEM's name, suffix of expar's). */
#ifndef EXPAR_COMPAT_PARTS_TYPES_H
#define EXPAR_COMPAT_PARTS_TYPES_H

#ifdef __CUDACC_RTC__
#include <expar/device.h>
typedef expar_int8 expar_nv_i8;
typedef expar_int16 expar_nv_i16;
typedef expar_int32 expar_nv_i32;
typedef expar_int64 expar_nv_i64;
typedef expar_uint8 expar_nv_u8;
typedef expar_uint16 expar_nv_u16;
typedef expar_uint32 expar_nv_u32;
typedef expar_uint64 expar_nv_u64;
typedef long expar_nv_ptrdiff;
#else
#include <stddef.h>
#include <stdint.h>
typedef int8_t expar_nv_i8;
typedef int16_t expar_nv_i16;
typedef int32_t expar_nv_i32;
typedef int64_t expar_nv_i64;
typedef uint8_t expar_nv_u8;
typedef uint16_t expar_nv_u16;
typedef uint32_t expar_nv_u32;
typedef uint64_t expar_nv_u64;
typedef ptrdiff_t expar_nv_ptrdiff;
#endif
typedef float expar_nv_f32;
typedef double expar_nv_f64;

/* ---- constants --------------------------------------------------------------------------------------------------- */

#define NVSHMEM_MAJOR_VERSION        3
#define NVSHMEM_MINOR_VERSION        5
#define NVSHMEM_PATCH_VERSION        0
#define NVSHMEM_MAX_NAME_LEN         256
#define NVSHMEM_VENDOR_STRING        "expar"
#define NVSHMEM_VENDOR_MAJOR_VERSION NVSHMEM_MAJOR_VERSION
#define NVSHMEM_VENDOR_MINOR_VERSION NVSHMEM_MINOR_VERSION
#define NVSHMEM_VENDOR_PATCH_VERSION NVSHMEM_PATCH_VERSION

/* The values of expar_cmp and expar_signal_op. */
enum { NVSHMEM_CMP_EQ, NVSHMEM_CMP_NE, NVSHMEM_CMP_GT, NVSHMEM_CMP_GE, NVSHMEM_CMP_LT, NVSHMEM_CMP_LE };
enum { NVSHMEM_SIGNAL_SET, NVSHMEM_SIGNAL_ADD };

enum {
    NVSHMEMX_SUCCESS = 0,
    NVSHMEMX_ERROR_INVALID_VALUE = 1,
    NVSHMEMX_ERROR_NOT_SUPPORTED = 2,
    NVSHMEMX_ERROR_INTERNAL = 3
};

/* ---- teams ------------------------------------------------------------------------------------------------------- */

typedef expar_nv_i32 nvshmem_team_t;
#define NVSHMEM_TEAM_INVALID         (-1)
#define NVSHMEM_TEAM_WORLD           0
#define NVSHMEM_TEAM_SHARED          1
#define NVSHMEMX_TEAM_NODE           2
#define NVSHMEMX_TEAM_SAME_MYPE_NODE 3
/* Teams have numbers below this one. */
#define EXPAR_NV_TEAMS            64
#define NVSHMEM_TEAM_NUM_CONTEXTS 1L
typedef struct {
    int num_contexts;
} nvshmem_team_config_t;

/* ---- tables of types --------------------------------------------------------------------------------------------- */

/* clang-format off */
#ifdef __CHAR_UNSIGNED__
#define EXPAR_NV_CHAR(X) X(char, char, u8)
#else
#define EXPAR_NV_CHAR(X) X(char, char, i8)
#endif
#define EXPAR_NV_SHORTS(X) X(short, short, i16) X(unsigned short, ushort, u16)
/* Types on which atomics combine bits. */
#define EXPAR_NV_BIT_WORDS(X)                                                                                          \
    X(unsigned int, uint, u32) X(unsigned long, ulong, u64) X(unsigned long long, ulonglong, u64)                      \
    X(expar_nv_i32, int32, i32) X(expar_nv_i64, int64, i64) X(expar_nv_u32, uint32, u32) X(expar_nv_u64, uint64, u64)
/* Types of all atomics. Waits know these and the shorts. */
#define EXPAR_NV_WORDS(X)                                                                                              \
    X(int, int, i32) X(long, long, i64) X(long long, longlong, i64) EXPAR_NV_BIT_WORDS(X)                              \
    X(size_t, size, u64) X(expar_nv_ptrdiff, ptrdiff, i64)
#define EXPAR_NV_WAIT_TYPES(X) EXPAR_NV_SHORTS(X) EXPAR_NV_WORDS(X)
#define EXPAR_NV_FLOATS(X) X(float, float, f32) X(double, double, f64)
#define EXPAR_NV_BYTES(X)                                                                                              \
    X(signed char, schar, i8) X(unsigned char, uchar, u8) X(expar_nv_i8, int8, i8) X(expar_nv_u8, uint8, u8)
#define EXPAR_NV_HALFS(X) EXPAR_NV_SHORTS(X) X(expar_nv_i16, int16, i16) X(expar_nv_u16, uint16, u16)
/* Types that are put and got, and reduced as numbers. */
#define EXPAR_NV_TYPES(X)                                                                                              \
    EXPAR_NV_FLOATS(X) EXPAR_NV_CHAR(X) EXPAR_NV_BYTES(X) EXPAR_NV_HALFS(X) EXPAR_NV_WORDS(X)
/* Types that are reduced as bits. */
#define EXPAR_NV_BIT_TYPES(X)                                                                                          \
    X(unsigned char, uchar, u8) X(expar_nv_i8, int8, i8) X(expar_nv_u8, uint8, u8)                                     \
    X(unsigned short, ushort, u16) X(expar_nv_i16, int16, i16) X(expar_nv_u16, uint16, u16)                            \
    EXPAR_NV_BIT_WORDS(X) X(size_t, size, u64)
/* expar's own types: X(suffix). */
#define EXPAR_NV_INTS(X) X(i8) X(i16) X(i32) X(i64) X(u8) X(u16) X(u32) X(u64)
/* Sized forms: X(bits). */
#define EXPAR_NV_SIZES(X) X(8) X(16) X(32) X(64) X(128)
/* clang-format on */

#endif

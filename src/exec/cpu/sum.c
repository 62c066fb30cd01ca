/* SPDX-License-Identifier: Apache-2.0 */
/* Adding rows: FP32 accumulation in the order given, one rounding at the end. Written without branches, so that the
   compiler vectorises the loops for the instruction sets named below. NaN is one value in each type: positive, quiet,
   all mantissa bits set, which is also what the conversions of NVIDIA GPUs give. */
#include "exec/cpu/cpu.h"

#include <string.h>

/* Sanitizers instrument code that runs before they are ready to resolve clones. */
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define VECTOR_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define VECTOR_CLONES
#endif

/* Elements summed at a time: the accumulators stay in the first-level cache. */
#define BLOCK 1024

/* Rows are read a block at a time, in turn, which is too short a run for the hardware to read ahead: we do it
   ourselves, one block ahead. At the end of a row that is the next row, which is often the next to be read; past the
   end of memory a prefetch does nothing. (Measured: docs/performance.md.) */
static inline void prefetch_ahead(const void *row, size_t bytes)
{
    uintptr_t from = (uintptr_t)row + bytes;
    for (size_t i = 0; i < bytes; i += EP_LINE_BYTES)
        __builtin_prefetch((const void *)(from + i), 0, 3); /* NOLINT(performance-no-int-to-ptr): may leave the row */
}

static inline uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float widen_bf16(uint16_t value)
{
    return float_of((uint32_t)value << 16);
}

/* Rounds to nearest even by adding half a unit, less one where the kept part is even. */
static inline uint16_t narrow_bf16(float value)
{
    uint32_t bits = bits_of(value);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
    return (uint16_t)(value != value ? 0x7fffu : rounded);
}

/* binary16 → binary32: move the fields, then correct the exponent; subnormals are made normal by a subtraction. */
static inline float widen_f16(uint16_t value)
{
    uint32_t sign = (uint32_t)(value & 0x8000u) << 16, magnitude = value & 0x7fffu;
    uint32_t moved = (magnitude << 13) + (112u << 23);
    uint32_t special = moved + (112u << 23);
    uint32_t tiny = bits_of(float_of((magnitude << 13) + (113u << 23)) - float_of(113u << 23));
    uint32_t bits = magnitude >= 0x7c00u ? special : moved;
    bits = magnitude < 0x0400u ? tiny : bits;
    return float_of(sign | bits);
}

/* binary32 → binary16, to nearest even. Results below the normal range are rounded by adding 0.5, whose last mantissa
   bit has the weight of the smallest subnormal. */
static inline uint16_t narrow_f16(float value)
{
    uint32_t bits = bits_of(value), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
    uint32_t normal = (magnitude - (112u << 23) + 0x0fffu + ((magnitude >> 13) & 1)) >> 13;
    uint32_t tiny = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
    uint32_t half = magnitude < (113u << 23) ? tiny : normal;
    half = magnitude >= 0x477ff000u ? 0x7c00u : half; /* 65520 and more round to infinity */
    return (uint16_t)(magnitude > 0x7f800000u ? 0x7fffu : sign | half);
}

static inline uint32_t narrow_f32(float value)
{
    return value != value ? 0x7fffffffu : bits_of(value);
}

/* weights NULL: the rows as they are. */
#define DEFINE_SUM(name, type, widen, narrow)                                                                          \
    VECTOR_CLONES static void sum_##name(type *restrict y, const void *const *rows, const float *weights,              \
                                         int32_t num_rows, int64_t begin, int32_t n)                                   \
    {                                                                                                                  \
        float sums[BLOCK];                                                                                             \
        for (int32_t i = 0; i < n; i++)                                                                                \
            sums[i] = 0.0f;                                                                                            \
        for (int32_t r = 0; r < num_rows; r++) {                                                                       \
            const type *row = (const type *)rows[r] + begin;                                                           \
            prefetch_ahead(row, (size_t)n * sizeof *row);                                                              \
            if (weights)                                                                                               \
                for (int32_t i = 0; i < n; i++)                                                                        \
                    sums[i] += weights[r] * widen(row[i]);                                                             \
            else                                                                                                       \
                for (int32_t i = 0; i < n; i++)                                                                        \
                    sums[i] += widen(row[i]);                                                                          \
        }                                                                                                              \
        for (int32_t i = 0; i < n; i++)                                                                                \
            y[begin + i] = narrow(sums[i]);                                                                            \
    }

DEFINE_SUM(bf16, uint16_t, widen_bf16, narrow_bf16)
DEFINE_SUM(f16, uint16_t, widen_f16, narrow_f16)
DEFINE_SUM(f32, uint32_t, float_of, narrow_f32)

void cpu_sum_weighted(expar_dtype dtype, void *y, const void *const *rows, const float *weights, int32_t num_rows,
                      int64_t elements)
{
    for (int64_t begin = 0; begin < elements; begin += BLOCK) {
        int32_t n = (int32_t)(elements - begin < BLOCK ? elements - begin : BLOCK);
        if (dtype == EXPAR_BF16)
            sum_bf16(y, rows, weights, num_rows, begin, n);
        else if (dtype == EXPAR_F16)
            sum_f16(y, rows, weights, num_rows, begin, n);
        else
            sum_f32(y, rows, weights, num_rows, begin, n);
    }
}

void cpu_sum_rows(expar_dtype dtype, void *y, const void *const *rows, int32_t num_rows, int64_t elements)
{
    cpu_sum_weighted(dtype, y, rows, NULL, num_rows, elements);
}

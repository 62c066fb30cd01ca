/* SPDX-License-Identifier: Apache-2.0 */
/* Codes of a coded group of LogFMT, four a lane: the same as logfmt_code_of and logfmt_value_of have, by fewer integer
 * instructions, of which a multiprocessor carries out half as many as of others. Whole numbers stay in the lowest bits
 * of a float where the sum with LOGFMT_ROUND has put them, and bytes of four of them are put together at once. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_LOG_CODES_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_LOG_CODES_H

#include "exec/cuda/kernels/low_latency/log.h"

/* ---- the table ---------------------------------------------------------------------------------------------------
 *
 * Fractions of logarithms of BF16 follow from the seven bits behind the first: [128] in shared memory, filled by each
 * block before it meets first, and read by its warps. */

GPU_FUNC float *ll_log_table(const ll_shared *s)
{
    return (float *)(s->rest + LL_BLOCK_WARPS + LL_GPU_LISTED);
}
GPU_FUNC void ll_log_fill_table(float *table)
{
    if (threadIdx.x < LL_GPU_LOG_TABLE) table[threadIdx.x] = logfmt_log_of(127u << 23 | threadIdx.x << 16).fraction;
}

/* ---- codes ------------------------------------------------------------------------------------------------------- */

/* A float whose lowest nine bits are the value's code. table: of BF16; NULL: it may be any number. */
GPU_FUNC uint32_t ll_log_code_in(const logfmt_range *range, float steps_per_unit, float value, const float *table)
{
    const uint32_t magnitude = __float_as_uint(larger_magnitude(value, range->least));
    logfmt_log log = logfmt_log_of(magnitude);
    if (table) log.fraction = table[magnitude >> 16 & (LL_GPU_LOG_TABLE - 1)];
    const float steps = number_multiply(logfmt_above_log(range, log), steps_per_unit);
    return __float_as_uint(number_add(number_add(steps, LOGFMT_ROUND), one_unless_zero(value)));
}

/* Of four such floats, and bytes whose highest bits are the values' signs: the low bytes of the codes, and the byte of
   the bits above, as the highest one of *above. */
GPU_FUNC void ll_log_pack(const uint32_t codes[LL_LOG_LANE], uint32_t signs, uint32_t *low, uint32_t *above)
{
    const uint32_t first = __byte_perm(codes[0], codes[1], 0x5140), second = __byte_perm(codes[2], codes[3], 0x5140);
    *low = __byte_perm(first, second, 0x5410);
    /* Two bits in the lowest ones of each byte, which the product moves together without a carry. */
    const uint32_t bits = __byte_perm(first, second, 0x7632) | (signs >> 6 & 0x02020202u);
    *above = bits * 0x01041040u;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* Of low bytes of four codes, and their byte of bits above: the values. */
GPU_FUNC void ll_log_unpack(const logfmt_range *range, float units_per_step, uint32_t low, uint32_t above,
                            float values[LL_LOG_LANE])
{
    /* Two bits of each into the lowest ones of a byte. */
    const uint32_t nibbles = above * 0x1001u & 0x000f000fu, pairs = nibbles * 0x41u & 0x03030303u;
    const uint32_t high = pairs & 0x01010101u, signs = pairs & 0x02020202u;
    const uint32_t first = __byte_perm(high, 0x4b00u, 0x5410), second = __byte_perm(high, 0x4b00u, 0x5432);
#pragma unroll
    for (int32_t i = 0; i < LL_LOG_LANE; i++) {
        /* 2^23 + the code. */
        const uint32_t in =
            __byte_perm(low, i < 2 ? first : second, 0x7600u | (uint32_t)(4 + i % 2) << 4 | (uint32_t)i);
        const float steps = number_add(__uint_as_float(in), -8388609.0f);
        const float fraction = number_add(number_multiply(steps, units_per_step), range->start.fraction);
        const uint32_t magnitude = __float_as_uint(logfmt_power(range->start.exponent, fraction));
        const uint32_t sign = signs << (30 - 8 * i) & 0x80000000u;
        values[i] = __uint_as_float((steps < 0.0f ? 0 : magnitude) | sign);
    }
}

#endif

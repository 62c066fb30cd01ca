/* SPDX-License-Identifier: Apache-2.0 */
/* Adds rows: FP32 from +0 in the given order, one rounding to nearest even, one canonical NaN (positive, quiet, all
 * mantissa bits set). The bytes equal those of the CPU's sums: nothing is contracted, nothing is flushed to zero. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_CORE_NUMBER_H
#define EXPAR_EXEC_CUDA_KERNELS_CORE_NUMBER_H

#include "exec/cuda/kernels/core/device.h"

/* Values of expar_dtype; the host checks that they are the same. */
#define GPU_BF16 1
#define GPU_F16  2
#define GPU_F32  3

/* A NaN among sums is 0x7fffffff, as every FP32 operation produces it. */
GPU_FUNC uint32_t narrow_pair(int32_t dtype, float low, float high)
{
    return dtype == GPU_BF16 ? narrow_pair_bf16(low, high) : narrow_pair_f16(low, high);
}

/* sums[i] += number i, or weight · number i with the product rounded first. */
GPU_FUNC void add_word(int32_t dtype, float *sums, uint32_t word, bool weighted, float weight)
{
    float low, high = 0.0f;
    if (dtype == GPU_F32) {
        low = __uint_as_float(word);
    } else if (dtype == GPU_BF16) {
        low = __uint_as_float(word << 16);
        high = __uint_as_float(word & 0xffff0000u);
    } else {
        low = widen_f16(word & 0xffffu);
        high = widen_f16(word >> 16);
    }
    sums[0] = __fadd_rn(sums[0], weighted ? __fmul_rn(weight, low) : low);
    if (dtype != GPU_F32) sums[1] = __fadd_rn(sums[1], weighted ? __fmul_rn(weight, high) : high);
}

GPU_FUNC void add_vector(int32_t dtype, float sums[8], uint4 v, bool weighted, float weight)
{
    if (dtype == GPU_F32) {
        add_word(dtype, sums, v.x, weighted, weight);
        add_word(dtype, sums + 1, v.y, weighted, weight);
        add_word(dtype, sums + 2, v.z, weighted, weight);
        add_word(dtype, sums + 3, v.w, weighted, weight);
    } else {
        add_word(dtype, sums, v.x, weighted, weight);
        add_word(dtype, sums + 2, v.y, weighted, weight);
        add_word(dtype, sums + 4, v.z, weighted, weight);
        add_word(dtype, sums + 6, v.w, weighted, weight);
    }
}

GPU_FUNC uint32_t narrow_f32(float value)
{
    return value != value ? 0x7fffffffu : __float_as_uint(value);
}

GPU_FUNC uint4 narrow_vector(int32_t dtype, const float sums[8])
{
    if (dtype == GPU_F32)
        return make_uint4(narrow_f32(sums[0]), narrow_f32(sums[1]), narrow_f32(sums[2]), narrow_f32(sums[3]));
    return make_uint4(narrow_pair(dtype, sums[0], sums[1]), narrow_pair(dtype, sums[2], sums[3]),
                      narrow_pair(dtype, sums[4], sums[5]), narrow_pair(dtype, sums[6], sums[7]));
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* e^x in FP32 by multiplications and additions alone, each rounded separately. So the CPU and GPUs get the same bits,
 * which their libraries' own functions do not promise. The error is at most 2 ulps for -87 ≤ x ≤ 88; outside of that
 * the result is the value at the bound. This compiles as C17 and as CUDA C, and must be compiled without
 * contraction. */
#ifndef EXPAR_DEMO_EXPONENTIAL_H
#define EXPAR_DEMO_EXPONENTIAL_H

#ifdef __CUDACC__
#define EXPONENTIAL_FUNC static __device__ __forceinline__
#else
#define EXPONENTIAL_FUNC static inline
#endif

/* x = n·ln 2 + r with n whole and |r| ≤ ln 2 / 2; e^r by a polynomial (Cephes' expf), times 2^n. */
EXPONENTIAL_FUNC float exponential(float x)
{
    const float to_whole = 12582912.0f; /* 1.5 · 2^23: adding it rounds to a whole number */
    union {
        float value;
        int bits;
    } power;
    x = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
    float n = (x * 1.44269504f + to_whole) - to_whole;
    float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    power.bits = ((int)n + 127) << 23;
    return p * power.value;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The model's arithmetic in FP32.
 *
 * Every output row depends on its own input row alone, computed in one fixed order whatever the number of rows. So a
 * token gets the same bits in a prefill of hundreds as alone, on one rank as on eight. Products and sums are rounded
 * one by one (no contraction), so that all instruction sets agree too; so does kernels/model.cu, which does the same on
 * GPUs. */
#ifndef EXPAR_DEMO_KERNELS_H
#define EXPAR_DEMO_KERNELS_H

#include <stdint.h>

/* Extents that a matrix kernel writes, and lengths of dot products, are multiples of this. */
#define KERNEL_COLUMN_BLOCK 32

/* y[rows][outputs] = x[rows][inputs] · w[inputs][outputs] */
void kernel_matmul(const float *x, int64_t rows, int64_t inputs, const float *w, int64_t outputs, float *y);

/* y = x / sqrt(mean(x²) + eps) · g, for each of `rows` rows of n */
void kernel_rmsnorm(const float *x, int64_t rows, int64_t n, const float *g, float eps, float *y);

/* Rotates the pairs (i, i + half) of each of `heads` heads of 2·half by the given angles. */
void kernel_rope(float *x, int64_t heads, int64_t half, const float *cosines, const float *sines);

/* Computes one head of one token: out[n] = softmax(scale · q·keys) · values over `count` keys and values, `stride`
   floats apart. scores: scratch memory for `count` floats. */
void kernel_attend(const float *q, const float *keys, const float *values, int64_t stride, int64_t count, int64_t n,
                   float scale, float *scores, float *out);

/* a = silu(a) ⊙ b */
void kernel_silu_multiply(float *a, const float *b, int64_t n);
/* a = sigmoid(a) */
void kernel_sigmoid(float *a, int64_t n);
/* y += x */
void kernel_add(float *y, const float *x, int64_t n);
/* y += factor · x */
void kernel_add_scaled(float *y, const float *x, float factor, int64_t n);

#endif

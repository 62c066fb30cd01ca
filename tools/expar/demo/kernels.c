/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic, in the compiler's vector types. The matrix product keeps a block of rows × columns in registers and
 * walks along the inputs once: the weights are read once for four rows. */
#include "kernels.h"

#include "exponential.h"
#include <math.h>
#include <string.h>

/* Compiles one function for each instruction set, chosen at start. It is off under sanitizers, whose run time is not
   ready yet when that choice is made. */
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define KERNEL_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define KERNEL_CLONES
#endif

#define KERNEL_INLINE static inline __attribute__((always_inline))

enum { LANES = 8 };
typedef float lanes __attribute__((vector_size(LANES * sizeof(float))));

KERNEL_INLINE void load(lanes *out, const float *from)
{
    memcpy(out, from, sizeof *out);
}

KERNEL_INLINE void store(float *to, const lanes *value)
{
    memcpy(to, value, sizeof *value);
}

/* y[row_count][vectors·LANES] of a product; row_count and vectors are constants where it is called. */
KERNEL_INLINE void matmul_block(const float *x, int64_t inputs, const float *w, int64_t outputs, float *y,
                                const int row_count, const int vectors)
{
    lanes sum[4][4] = {0};
    for (int64_t k = 0; k < inputs; k++) {
        for (int v = 0; v < vectors; v++) {
            lanes weights;
            load(&weights, w + k * outputs + v * LANES);
            for (int r = 0; r < row_count; r++)
                sum[r][v] += weights * x[r * inputs + k];
        }
    }
    for (int r = 0; r < row_count; r++)
        for (int v = 0; v < vectors; v++)
            store(y + r * outputs + v * LANES, &sum[r][v]);
}

KERNEL_CLONES void kernel_matmul(const float *x, int64_t rows, int64_t inputs, const float *w, int64_t outputs,
                                 float *y)
{
    int64_t row = 0;
    for (; row + 4 <= rows; row += 4)
        for (int64_t column = 0; column < outputs; column += 2 * LANES)
            matmul_block(x + row * inputs, inputs, w + column, outputs, y + row * outputs + column, 4, 2);
    for (; row < rows; row++)
        for (int64_t column = 0; column < outputs; column += 4 * LANES)
            matmul_block(x + row * inputs, inputs, w + column, outputs, y + row * outputs + column, 1, 4);
}

/* n is a multiple of 2·LANES. */
KERNEL_INLINE float dot(const float *a, const float *b, int64_t n)
{
    lanes sum[2] = {0}, left[2], right[2];
    for (int64_t i = 0; i < n; i += 2 * LANES) {
        for (int v = 0; v < 2; v++) {
            load(&left[v], a + i + v * LANES);
            load(&right[v], b + i + v * LANES);
            sum[v] += left[v] * right[v];
        }
    }
    sum[0] += sum[1];
    float total = 0;
    for (int lane = 0; lane < LANES; lane++)
        total += sum[0][lane];
    return total;
}

KERNEL_CLONES void kernel_rmsnorm(const float *x, int64_t rows, int64_t n, const float *g, float eps, float *y)
{
    for (int64_t row = 0; row < rows; row++, x += n, y += n) {
        float scale = 1.0f / sqrtf(dot(x, x, n) / (float)n + eps);
        for (int64_t i = 0; i < n; i++)
            y[i] = x[i] * scale * g[i];
    }
}

void kernel_rope(float *x, int64_t heads, int64_t half, const float *cosines, const float *sines)
{
    for (int64_t head = 0; head < heads; head++) {
        float *low = x + head * 2 * half, *high = low + half;
        for (int64_t i = 0; i < half; i++) {
            float a = low[i], b = high[i];
            low[i] = a * cosines[i] - b * sines[i];
            high[i] = b * cosines[i] + a * sines[i];
        }
    }
}

/* Works in place; afterwards the values sum to 1. */
KERNEL_INLINE void softmax(float *values, int64_t count)
{
    float highest = values[0], sum = 0;
    for (int64_t i = 1; i < count; i++)
        highest = values[i] > highest ? values[i] : highest;
    for (int64_t i = 0; i < count; i++) {
        values[i] = exponential(values[i] - highest);
        sum += values[i];
    }
    for (int64_t i = 0; i < count; i++)
        values[i] /= sum;
}

KERNEL_CLONES void kernel_attend(const float *q, const float *keys, const float *values, int64_t stride, int64_t count,
                                 int64_t n, float scale, float *scores, float *out)
{
    for (int64_t i = 0; i < count; i++)
        scores[i] = scale * dot(q, keys + i * stride, n);
    softmax(scores, count);
    memset(out, 0, (size_t)n * sizeof *out);
    for (int64_t i = 0; i < count; i++)
        for (int64_t j = 0; j < n; j++)
            out[j] += scores[i] * values[i * stride + j];
}

void kernel_silu_multiply(float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        a[i] = a[i] / (1.0f + exponential(-a[i])) * b[i];
}

void kernel_sigmoid(float *a, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        a[i] = 1.0f / (1.0f + exponential(-a[i]));
}

KERNEL_CLONES void kernel_add(float *y, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] += x[i];
}

KERNEL_CLONES void kernel_add_scaled(float *y, const float *x, float factor, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] += factor * x[i];
}

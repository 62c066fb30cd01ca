/* SPDX-License-Identifier: Apache-2.0 */
/* The demo's model on a GPU. Every output is computed by the same multiplications and additions in the same order as in
 * kernels.c, experts.c and router.c, so that it has the same bits; speed comes second. Compiled without contraction.
 *
 * Grid: a block a row (attention: a row and a head; matrix product: a row and 128 columns); threads share out columns.
 * Nobody waits for another block. Registers: under 64; shared memory: the row that the block works on, or the scores of
 * its head, dynamic. */
#include "demo/exponential.h"
#include "demo/kernels/forms.h"

#define THREADS DEMO_THREADS
/* Lanes of a dot product on the CPU: two vectors of 8. */
#define LANES 16

/* ---- dot products ------------------------------------------------------------------------------------------------ */

/* The sum of n elements, n a multiple of LANES: lane l adds elements l, l + LANES, …. The upper half of the lanes is
   added to the lower, and those one after another. */
static __device__ __forceinline__ float dot(const float *a, const float *b, int32_t n)
{
    float sum[LANES];
#pragma unroll
    for (int32_t lane = 0; lane < LANES; lane++)
        sum[lane] = 0;
    for (int32_t i = 0; i < n; i += LANES) {
#pragma unroll
        for (int32_t lane = 0; lane < LANES; lane++)
            sum[lane] += a[i + lane] * b[i + lane];
    }
    float total = 0;
#pragma unroll
    for (int32_t lane = 0; lane < LANES / 2; lane++)
        total += sum[lane] + sum[lane + LANES / 2];
    return total;
}

/* Column `column` of x · w, inputs in rising order. */
static __device__ __forceinline__ float product(const float *x, int32_t inputs, const float *w, int32_t outputs,
                                                int32_t column)
{
    float sum = 0;
    for (int32_t k = 0; k < inputs; k++)
        sum += w[(int64_t)k * outputs + column] * x[k];
    return sum;
}

/* ---- the layers' parts ------------------------------------------------------------------------------------------- */

extern "C" __global__ void __launch_bounds__(THREADS)
    demo_embed(const compute_row *rows, const float *embedding, int32_t d, float *x)
{
    const float *from = embedding + (int64_t)rows[blockIdx.x].token * d;
    for (int32_t i = threadIdx.x; i < d; i += THREADS)
        x[(int64_t)blockIdx.x * d + i] = from[i];
}

extern "C" __global__ void __launch_bounds__(THREADS)
    demo_rmsnorm(const float *x, int32_t d, const float *g, float eps, float *y)
{
    __shared__ float scale;
    const float *row = x + (int64_t)blockIdx.x * d;
    if (threadIdx.x == 0) scale = 1.0f / sqrtf(dot(row, row, d) / (float)d + eps);
    __syncthreads();
    for (int32_t i = threadIdx.x; i < d; i += THREADS)
        y[(int64_t)blockIdx.x * d + i] = row[i] * scale * g[i];
}

extern "C" __global__ void __launch_bounds__(THREADS)
    demo_matmul(const float *x, int32_t inputs, const float *w, int32_t outputs, float *y)
{
    int32_t blocks = (outputs + THREADS - 1) / THREADS, row = blockIdx.x / blocks;
    int32_t column = blockIdx.x % blocks * THREADS + threadIdx.x;
    if (column >= outputs) return;
    y[(int64_t)row * outputs + column] = product(x + (int64_t)row * inputs, inputs, w, outputs, column);
}

static __device__ __forceinline__ void turn(float *low, float *high, float cosine, float sine)
{
    float a = *low, b = *high;
    *low = a * cosine - b * sine;
    *high = b * cosine + a * sine;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    demo_file(const compute_row *rows, int32_t layer, int32_t d, int32_t heads, const float *cosines,
              const float *sines, float *q, float *k, const float *v)
{
    const compute_row *at = rows + blockIdx.x;
    int32_t half = d / heads / 2;
    int64_t row = (int64_t)blockIdx.x * d, slot = ((int64_t)layer * at->capacity + at->position) * d;
    for (int32_t i = threadIdx.x; i < d / 2; i += THREADS) {
        int64_t angle = (int64_t)at->position * half + i % half, low = row + i / half * 2 * half + i % half;
        turn(q + low, q + low + half, cosines[angle], sines[angle]);
        turn(k + low, k + low + half, cosines[angle], sines[angle]);
    }
    __syncthreads();
    for (int32_t i = threadIdx.x; i < d; i += THREADS) {
        at->keys[slot + i] = k[row + i];
        at->values[slot + i] = v[row + i];
    }
}

/* Replaces each score by e^(score − the highest score), divided by the sum of these. It works in place. The whole block
   calls it. */
static __device__ __forceinline__ void softmax(float *scores, int32_t count)
{
    __shared__ float number;
    if (threadIdx.x == 0) {
        float highest = scores[0];
        for (int32_t i = 1; i < count; i++)
            highest = scores[i] > highest ? scores[i] : highest;
        number = highest;
    }
    __syncthreads();
    for (int32_t i = threadIdx.x; i < count; i += THREADS)
        scores[i] = exponential(scores[i] - number);
    __syncthreads();
    if (threadIdx.x == 0) {
        float sum = 0;
        for (int32_t i = 0; i < count; i++)
            sum += scores[i];
        number = sum;
    }
    __syncthreads();
    for (int32_t i = threadIdx.x; i < count; i += THREADS)
        scores[i] /= number;
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS)
    demo_attend(const compute_row *rows, int32_t layer, int32_t d, int32_t heads, const float *q, float *out)
{
    extern __shared__ float scores[];
    const compute_row *at = rows + blockIdx.x / heads;
    int32_t width = d / heads, start = blockIdx.x % heads * width, count = at->position + 1;
    int64_t cache = (int64_t)layer * at->capacity * d + start, row = (int64_t)(blockIdx.x / heads) * d + start;
    float scale = 1.0f / sqrtf((float)width);
    for (int32_t i = threadIdx.x; i < count; i += THREADS)
        scores[i] = scale * dot(q + row, at->keys + cache + (int64_t)i * d, width);
    __syncthreads();
    softmax(scores, count);
    for (int32_t j = threadIdx.x; j < width; j += THREADS) {
        float sum = 0;
        for (int32_t i = 0; i < count; i++)
            sum += scores[i] * at->values[cache + (int64_t)i * d + j];
        out[row + j] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) demo_sigmoid(float *a, int64_t n)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n) a[i] = 1.0f / (1.0f + exponential(-a[i]));
}

extern "C" __global__ void __launch_bounds__(THREADS) demo_add(float *y, const float *x, int64_t n)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n) y[i] += x[i];
}

/* ---- the experts ------------------------------------------------------------------------------------------------- */

/* True if an expert with this key comes before the other: the larger key first, then the lower number. */
static __device__ __forceinline__ bool comes_before(float key, int32_t expert, float other_key, int32_t other)
{
    return key > other_key || (key == other_key && expert < other);
}

/* One warp handles one row. Each step takes the best expert after the one that was taken last. */
extern "C" __global__ void __launch_bounds__(32) demo_choose(const float *scores, const float *bias, int32_t experts,
                                                             int32_t top_k, int32_t *topk_idx, float *topk_weights)
{
    const float *own = scores + (int64_t)blockIdx.x * experts;
    int32_t *idx = topk_idx + (int64_t)blockIdx.x * top_k, last = -1;
    float *weights = topk_weights + (int64_t)blockIdx.x * top_k, last_key = 0, sum = 0;
    for (int32_t k = 0; k < top_k; k++) {
        int32_t best = experts;
        float best_key = 0;
        for (int32_t e = threadIdx.x; e < experts; e += 32) {
            float key = own[e] + bias[e];
            bool left = last < 0 || comes_before(last_key, last, key, e);
            if (left && (best == experts || comes_before(key, e, best_key, best))) best = e, best_key = key;
        }
        for (int32_t step = 16; step; step /= 2) {
            int32_t other = __shfl_xor_sync(0xffffffffu, best, step);
            float other_key = __shfl_xor_sync(0xffffffffu, best_key, step);
            bool better = best == experts || comes_before(other_key, other, best_key, best);
            if (other < experts && better) best = other, best_key = other_key;
        }
        last = best;
        last_key = best_key;
        sum += own[best];
        if (threadIdx.x == 0) idx[k] = best;
    }
    __syncwarp();
    for (int32_t k = threadIdx.x; k < top_k; k += 32)
        weights[k] = own[idx[k]] / sum;
}

/* Runs one expert on the row in shared memory, and adds weight times its output to y. gate: [F] in shared memory. */
static __device__ __forceinline__ void run_expert(const expert_weights *w, int32_t expert, const float *x, float *gate,
                                                  int32_t d, int32_t f, float weight, float *y)
{
    int64_t matrix = (int64_t)expert * d * f;
    for (int32_t i = threadIdx.x; i < f; i += THREADS) {
        float a = product(x, d, w->w1 + matrix, f, i), b = product(x, d, w->w3 + matrix, f, i);
        gate[i] = a / (1.0f + exponential(-a)) * b;
    }
    __syncthreads();
    for (int32_t i = threadIdx.x; i < d; i += THREADS)
        y[i] += weight * product(gate, f, w->w2 + matrix, d, i);
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS)
    demo_experts(const __grid_constant__ expert_weights w, const float *x, const int32_t *topk_idx,
                 const float *topk_weights, int32_t top_k, int32_t d, int32_t f, float *y)
{
    extern __shared__ float own[]; /* [D] the row, [F] between the layers */
    const int32_t *idx = topk_idx + (int64_t)blockIdx.x * top_k;
    const float *weights = topk_weights + (int64_t)blockIdx.x * top_k;
    float *sum = y + (int64_t)blockIdx.x * d;
    for (int32_t i = threadIdx.x; i < d; i += THREADS) {
        own[i] = x[(int64_t)blockIdx.x * d + i];
        sum[i] = 0;
    }
    __syncthreads();
    for (int32_t expert = w.first; expert < w.first + w.count; expert++)
        for (int32_t k = 0; k < top_k; k++)
            if (idx[k] == expert) run_expert(&w, expert, own, own + d, d, f, weights[k], sum);
}

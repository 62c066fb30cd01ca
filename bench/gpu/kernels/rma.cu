/* SPDX-License-Identifier: Apache-2.0 */
/* bench_rma: operations of expar/device.h in a loop, and the same by bare loads and stores. One block on each rank: a
 * thread, a warp or the whole block takes part. A put ends with quiet, a get is blocking, and signals go to and fro
 * between two ranks. bench_rma_post: threads of rank 0 put words to other ranks.
 *
 * Waits: for the peer's signal; the library's waits end if the peer is lost, and bare ones after a deadline. */
#include "exec/cuda/kernels/core/tools.h"

#include "bench/gpu/kernels/rma_forms.h"

#define RMA_DEADLINE_NS ((uint64_t)30000000000u)

#define RMA_BY_SCOPE(call, ...)                                                                                        \
    do {                                                                                                               \
        if (c->scope == EXPAR_DEV_BLOCK)                                                                               \
            call##_block(__VA_ARGS__);                                                                                 \
        else if (c->scope == EXPAR_DEV_WARP)                                                                           \
            call##_warp(__VA_ARGS__);                                                                                  \
        else                                                                                                           \
            call(__VA_ARGS__);                                                                                         \
    } while (0)

/* ---- the library's ----------------------------------------------------------------------------------------------- */

GPU_FUNC void rma_library_wait(const rma_gpu_call *c, uint64_t value)
{
    const expar_device_handle *h = &c->handle;
    RMA_BY_SCOPE((void)expar_kernel_signal_wait_until, h, c->signal, EXPAR_CMP_GE, value, 0);
}
GPU_FUNC void rma_library(const rma_gpu_call *c, uint64_t value)
{
    const expar_device_handle *h = &c->handle;
    if (c->op == RMA_GPU_GET) {
        RMA_BY_SCOPE(expar_kernel_get, h, c->dest, c->source, c->bytes, c->peer);
    } else if (c->op == RMA_GPU_PUT) {
        RMA_BY_SCOPE(expar_kernel_put_nbi, h, c->dest, c->source, c->bytes, c->peer);
        RMA_BY_SCOPE((void)expar_kernel_quiet, h);
    } else {
        if (!c->starts) rma_library_wait(c, value);
        RMA_BY_SCOPE(expar_kernel_put_signal, h, c->dest, c->source, c->bytes, c->signal, value, EXPAR_SIGNAL_SET,
                     c->peer);
        if (c->starts) rma_library_wait(c, value);
    }
}

/* ---- bare -------------------------------------------------------------------------------------------------------- */

/* The memory is aligned to 16 bytes. Each thread has RMA_DEPTH loads of so many bytes on their way. The first thread
 * copies the rest by smaller words, and also what is one such word as a whole. Loads leave nothing in the L1 cache,
 * which would serve the next round. */
#define RMA_DEPTH 8
GPU_FUNC void rma_copy_word(unsigned char *to, const unsigned char *from, uint64_t bytes)
{
    if (bytes == 16)
        store_row((uint4 *)(void *)to, load_row((const uint4 *)(const void *)from));
    else if (bytes == 8)
        *(uint64_t *)(void *)to = *(const volatile uint64_t *)(const void *)from;
    else if (bytes == 4)
        *(uint32_t *)(void *)to = *(const volatile uint32_t *)(const void *)from;
    else if (bytes == 2)
        *(uint16_t *)(void *)to = *(const volatile uint16_t *)(const void *)from;
    else
        *to = *(const volatile unsigned char *)from;
}
GPU_FUNC void rma_copy_units(uint4 *to, const uint4 *from, uint64_t units, expar_dev_place place)
{
    const uint64_t stride = place.count;
    uint64_t i = place.index;
    for (; i + (RMA_DEPTH - 1) * stride < units; i += RMA_DEPTH * stride) {
        uint4 v[RMA_DEPTH];
#pragma unroll
        for (int k = 0; k < RMA_DEPTH; k++)
            v[k] = load_row(from + i + (uint64_t)k * stride);
#pragma unroll
        for (int k = 0; k < RMA_DEPTH; k++)
            store_row(to + i + (uint64_t)k * stride, v[k]);
    }
    for (; i < units; i += stride)
        store_row(to + i, load_row(from + i));
}
GPU_FUNC void rma_copy(const rma_gpu_call *c, unsigned char *to, const unsigned char *from)
{
    const expar_dev_place place = expar_dev_place_in(c->scope);
    const uint64_t bytes = c->bytes, tail = bytes % 16, end = bytes - tail;
    if (end > 0) rma_copy_units((uint4 *)(void *)to, (const uint4 *)(const void *)from, bytes / 16, place);
    if (tail > 0 && place.index == 0)
        for (uint64_t word = 8; word > 0; word /= 2)
            if (tail & word) {
                const uint64_t at = end + (tail & ~(2 * word - 1));
                rma_copy_word(to + at, from + at, word);
            }
}
GPU_FUNC void rma_bare_wait(const rma_gpu_call *c, uint64_t value)
{
    const uint64_t start = clock_now();
    if (expar_dev_place_in(c->scope).index == 0)
        while (load_acquire((const uint64_t *)c->signal) < value && clock_now() - start < RMA_DEADLINE_NS)
            between_polls();
    expar_dev_meet(c->scope);
}
GPU_FUNC void rma_bare(const rma_gpu_call *c, uint64_t value)
{
    if (c->op == RMA_GPU_SIGNAL && !c->starts) rma_bare_wait(c, value);
    if (c->op == RMA_GPU_GET)
        rma_copy(c, c->dest, c->peer_source);
    else
        rma_copy(c, c->peer_dest, c->source);
    expar_dev_meet(c->scope);
    if (expar_dev_place_in(c->scope).index == 0) {
        if (c->op == RMA_GPU_SIGNAL)
            store_release((uint64_t *)c->peer_signal, value);
        else if (c->op == RMA_GPU_PUT)
            fence_system();
    }
    expar_dev_meet(c->scope);
    if (c->op == RMA_GPU_SIGNAL && c->starts) rma_bare_wait(c, value);
}

/* ---- the kernels ------------------------------------------------------------------------------------------------- */

GPU_KERNEL(RMA_GPU_THREADS) bench_rma(GPU_ARGS rma_gpu_call a)
{
    const rma_gpu_call *c = &a;
    const uint32_t threads = c->scope == EXPAR_DEV_BLOCK ? RMA_GPU_THREADS : c->scope == EXPAR_DEV_WARP ? 32u : 1u;
    if (threadIdx.x >= threads) return;
    const uint64_t begin = clock_now();
    for (int32_t round = 1; round <= c->rounds; round++) {
        if (c->bare)
            rma_bare(c, c->first + (uint64_t)round);
        else
            rma_library(c, c->first + (uint64_t)round);
    }
    if (threadIdx.x != 0) return;
    *c->ns = clock_now() - begin;
    *c->failed = expar_kernel_status(&c->handle) != EXPAR_OK;
}

/* One thread puts a word, and waits until it is complete. */
GPU_FUNC void rma_post_alone(const rma_gpu_call *c)
{
    for (int32_t round = 0; round < c->rounds; round++) {
        const uint32_t before = cycles_now();
        expar_kernel_p_u64(&c->handle, (expar_uint64 *)(void *)c->dest, c->first + 1 + (uint64_t)round, 1);
        expar_kernel_quiet(&c->handle);
        c->cycles[round] = cycles_now() - before;
    }
}
/* All threads put a word each, and the first one of each block waits for all. */
GPU_FUNC uint64_t rma_post_together(const rma_gpu_call *c)
{
    const uint32_t word = blockIdx.x * blockDim.x + threadIdx.x;
    const int pe = 1 + (int)word % c->peers;
    uint64_t issuing_ns = 0;
    for (int32_t round = 0; round < c->rounds; round++) {
        const uint64_t begin = clock_now();
        expar_kernel_p_u64(&c->handle, (expar_uint64 *)(void *)c->dest + word, c->first + 1 + (uint64_t)round, pe);
        __syncthreads();
        issuing_ns += clock_now() - begin;
        if (threadIdx.x == 0) expar_kernel_quiet(&c->handle);
        __syncthreads();
    }
    return issuing_ns;
}

GPU_KERNEL(RMA_GPU_POST_THREADS) bench_rma_post(GPU_ARGS rma_gpu_call a)
{
    const rma_gpu_call *c = &a;
    const uint64_t begin = clock_now();
    uint64_t issuing_ns = 0;
    if (!c->cycles)
        issuing_ns = rma_post_together(c);
    else if (threadIdx.x == 0)
        rma_post_alone(c);
    if (threadIdx.x != 0) return;
    expar_uint64 *span = c->spans + 3 * blockIdx.x;
    span[0] = begin;
    span[1] = clock_now();
    span[2] = issuing_ns;
    if (expar_kernel_status(&c->handle) != EXPAR_OK) *c->failed = 1;
}

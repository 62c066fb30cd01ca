/* SPDX-License-Identifier: Apache-2.0 */
/* link/device: how kernels reach memory of peers: ordered loads and stores, fences, and copies of rows (bulk.h); also
 * the forms of kernels and of shared memory. All PTX is here and in bulk.h, so that kernels can run without a GPU:
 * tests/cuda/simt has other files of these names.
 *
 * There are two back-ends. By mapped memory, kernels take addresses of peers' heaps from a table (gpu_place.heaps). By
 * the proxy, they issue commands to a ring (ring.h), as low-latency mode does (kernels/low_latency/far.h). Where ranks
 * do not map each other, the creation of buffers of normal mode, and of those with masks, is rejected by name
 * (ep/normal/shape.c, exec/cuda/low_latency/far.c), as tests/exec/cuda/test_fake_nodes.c checks. */
#ifndef EXPAR_LINK_DEVICE_PTX_H
#define EXPAR_LINK_DEVICE_PTX_H

#include "base/portable.h"

#define GPU_FUNC static __device__ __forceinline__
/* Code that successful calls never reach is kept out of line. A kernel's code is fetched as it runs, and each jump over
   unused code takes as long as a load from memory. */
#define GPU_ASIDE static __device__ __noinline__
/* A kernel with blocks of that many threads, which the host finds by its name; one block runs on each SM. */
#define GPU_KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads, 1)
/* Arguments of a kernel, which all threads read in place. */
#define GPU_ARGS const __grid_constant__
/* The shared memory that the launch gives to a block, aligned to 128 bytes. */
#define GPU_LAUNCH_SHARED(type, name) extern __shared__ __align__(128) type name[]

/* ---- clocks ------------------------------------------------------------------------------------------------------ */

/* Returns nanoseconds; all SMs of a GPU share this clock. */
GPU_FUNC uint64_t clock_now(void)
{
    uint64_t value;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value)::"memory");
    return value;
}
/* Returns the cycles of this SM. */
GPU_FUNC uint32_t cycles_now(void)
{
    uint32_t value;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(value)::"memory");
    return value;
}

#include "link/device/delay.h"

/* ---- ordered accesses -------------------------------------------------------------------------------------------- */

GPU_FUNC uint64_t load_acquire(const uint64_t *address)
{
    uint64_t value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
    hold_back();
    return value;
}
GPU_FUNC void store_release(uint64_t *address, uint64_t value)
{
    hold_back();
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}
GPU_FUNC uint32_t load_relaxed(const uint32_t *address)
{
    uint32_t value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
    return value;
}
GPU_FUNC uint64_t load_relaxed_64(const uint64_t *address)
{
    uint64_t value;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
    return value;
}
GPU_FUNC void store_relaxed_64(uint64_t *address, uint64_t value)
{
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}
/* Stores two words that each carry data and their stamp. Each store is one access; the two together are not. */
GPU_FUNC void store_words(uint64_t *address, uint64_t first, uint64_t second)
{
    hold_back();
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(address), "l"(first), "l"(second) : "memory");
}
GPU_FUNC void poll_words(const uint64_t *address, uint64_t *first, uint64_t *second)
{
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(*first), "=l"(*second)
                 : "l"(address)
                 : "memory");
}
/* Loads two words, each of which signals stores that were made before it. */
GPU_FUNC void load_acquire_both(const uint64_t *address, uint64_t *first, uint64_t *second)
{
    asm volatile("ld.acquire.sys.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(*first), "=l"(*second)
                 : "l"(address)
                 : "memory");
    hold_back();
}
/* Pauses before a thread polls again. */
GPU_FUNC void between_polls(void)
{
}
/* The same for many threads that poll over the bus: up to a microsecond. */
GPU_FUNC void pause_polls(void)
{
    __nanosleep(500);
}
GPU_FUNC void store_release_32(uint32_t *address, uint32_t value)
{
    hold_back();
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
/* Before an atomic, each of the two is a release; after an atomic or a relaxed load, it is an acquire. The slower
   __threadfence_system is not needed. It is for threads that each store once and then load once what the other stores.
   Here threads load until they see it. */
GPU_FUNC void fence_system(void)
{
    asm volatile("fence.acq_rel.sys;" ::: "memory");
}
GPU_FUNC void fence_gpu(void)
{
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

/* Fetches the line into the second-level cache. */
GPU_FUNC void prefetch(const void *address)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

/* Loads payload that is read once. It bypasses the first-level cache, which other GPUs' stores do not reach. */
GPU_FUNC uint4 load_row(const uint4 *address)
{
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(address)
                 : "memory");
    return v;
}
GPU_FUNC void store_row(uint4 *address, uint4 v)
{
    asm volatile("st.global.L1::no_allocate.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(v.x), "r"(v.y),
                 "r"(v.z), "r"(v.w)
                 : "memory");
}

/* ---- meeting ----------------------------------------------------------------------------------------------------- */

/* A barrier for that many threads of the block, in whole warps; `barrier` is 1 to 15. */
GPU_FUNC void meet_at(int32_t barrier, int32_t threads)
{
    asm volatile("barrier.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

GPU_FUNC float widen_f16(uint32_t low)
{
    float value;
    asm("{\n\t.reg .b16 half;\n\tcvt.u16.u32 half, %1;\n\tcvt.f32.f16 %0, half;\n\t}" : "=f"(value) : "r"(low));
    return value;
}

/* Returns the larger of two magnitudes; neither may be that of a NaN. */
GPU_FUNC float larger_magnitude(float a, float b)
{
    return fmaxf(fabsf(a), fabsf(b));
}
/* Returns 1, or 0 for a zero. */
GPU_FUNC float one_unless_zero(float value)
{
    float one;
    asm("set.neu.f32.f32 %0, %1, 0f00000000;" : "=f"(one) : "f"(value));
    return one;
}

/* Converts two numbers to 16 bits each, the low one in the low 16 bits. It rounds to nearest even, keeps subnormals,
   and gives infinity beyond the largest. A NaN becomes 0x7fff. */
GPU_FUNC uint32_t narrow_pair_bf16(float low, float high)
{
    uint32_t bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}
GPU_FUNC uint32_t narrow_pair_f16(float low, float high)
{
    uint32_t bits;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}

#endif

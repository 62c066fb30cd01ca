/* SPDX-License-Identifier: Apache-2.0 */
/* link/device: how kernels reach memory of peers that is mapped: ordered loads and stores, fences, and copies of rows
 * (bulk.h); beside them the forms of kernels and shared memory. Whatever is said in PTX stands here and in bulk.h, so
 * that kernels can be carried out without a GPU: tests/cuda/simt has other files of these names. */
#ifndef EXPAR_LINK_DEVICE_PTX_H
#define EXPAR_LINK_DEVICE_PTX_H

#include "base/portable.h"

#define GPU_FUNC static __device__ __forceinline__
/* What calls that go well never come to lies aside, and not in the way of what they do: a kernel's code is fetched as
   it runs, and each jump over what it does not need takes as long as a load from memory. */
#define GPU_ASIDE static __device__ __noinline__
/* A kernel of blocks of so many threads, found by its name; one block of it an SM. */
#define GPU_KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads, 1)
/* Its arguments, which all threads read where they are. */
#define GPU_ARGS const __grid_constant__
/* What the launch gives a block of shared memory, aligned to 128 bytes. */
#define GPU_LAUNCH_SHARED(type, name) extern __shared__ __align__(128) type name[]

/* ---- clocks ------------------------------------------------------------------------------------------------------ */

/* Nanoseconds, the same for all of a GPU. */
GPU_FUNC uint64_t clock_now(void)
{
    uint64_t value;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value)::"memory");
    return value;
}
/* Of the SM. */
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
/* Two words that each carry data and their stamp: each is one access, the two of them are not. */
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
/* Two words that tell of what was stored before each. */
GPU_FUNC void load_acquire_both(const uint64_t *address, uint64_t *first, uint64_t *second)
{
    asm volatile("ld.acquire.sys.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(*first), "=l"(*second)
                 : "l"(address)
                 : "memory");
    hold_back();
}
/* Before a thread looks again. */
GPU_FUNC void between_polls(void)
{
}
GPU_FUNC void store_release_32(uint32_t *address, uint32_t value)
{
    hold_back();
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
/* Before an atomic, both are a release; behind one, or behind a relaxed load, an acquire. Not __threadfence_system,
   which takes longer: it is for threads that each store and then load, once, what the other stores; here they load
   until they see it. */
GPU_FUNC void fence_system(void)
{
    asm volatile("fence.acq_rel.sys;" ::: "memory");
}
GPU_FUNC void fence_gpu(void)
{
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

/* Into the second-level cache. */
GPU_FUNC void prefetch(const void *address)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

/* Payload that is read once: keep it out of the first-level cache, which other GPUs' stores do not reach. */
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

/* So many threads of the block, whole warps, at one of its barriers 1 to 15. */
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

/* The larger one of two magnitudes, of which none is a NaN's. */
GPU_FUNC float larger_magnitude(float a, float b)
{
    return fmaxf(fabsf(a), fabsf(b));
}
/* 1; 0 of a zero. */
GPU_FUNC float one_unless_zero(float value)
{
    float one;
    asm("set.neu.f32.f32 %0, %1, 0f00000000;" : "=f"(one) : "f"(value));
    return one;
}

/* Two numbers in 16 bits each, the low one in the low half: to nearest even, subnormals kept, infinity beyond the
   largest. A NaN becomes 0x7fff. */
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

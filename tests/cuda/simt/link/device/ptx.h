/* SPDX-License-Identifier: Apache-2.0 */
/* In the place of the kernels' own file of this name: the same vocabulary in C17, for the simulated GPU
 * (tests/cuda/simt/simt.h). Acquire and release are the host's. */
#ifndef EXPAR_LINK_DEVICE_PTX_H
#define EXPAR_LINK_DEVICE_PTX_H

#include "base/portable.h"
#include "cuda/simt/simt.h"

#define EXPAR_DEVICE_PORT "cuda/simt/device_port.h"

#include <math.h>
#include <time.h>

#define GPU_FUNC                      static __attribute__((unused)) inline
#define GPU_ASIDE                     static __attribute__((unused, noinline))
#define GPU_KERNEL(threads)           void
#define GPU_ARGS                      const
#define GPU_LAUNCH_SHARED(type, name) type *const name = simt_shared()

/* ---- clocks ------------------------------------------------------------------------------------------------------ */

GPU_FUNC uint64_t clock_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
GPU_FUNC uint32_t cycles_now(void)
{
    return (uint32_t)clock_now();
}

/* Compiled in, and asked for when a kernel runs. */
#define EXPAR_DELAYS  simt_delays
#define hold_back     hold_back_at_random
#define COUNT_DELAY() atomic_fetch_add_explicit(&simt_delays_made, 1, memory_order_relaxed)
#include "link/device/delay.h"
#undef hold_back
GPU_FUNC void hold_back(void)
{
    if (simt_delays) hold_back_at_random();
}

/* ---- ordered accesses -------------------------------------------------------------------------------------------- */

GPU_FUNC uint64_t load_acquire(const uint64_t *address)
{
    simt_note_load(address);
    const uint64_t value = __atomic_load_n(address, __ATOMIC_ACQUIRE);
    hold_back();
    simt_poll();
    return value;
}
GPU_FUNC void store_release(uint64_t *address, uint64_t value)
{
    hold_back();
    __atomic_store_n(address, value, __ATOMIC_RELEASE);
}
GPU_FUNC uint32_t load_relaxed(const uint32_t *address)
{
    simt_note_load(address);
    return __atomic_load_n(address, __ATOMIC_RELAXED);
}
GPU_FUNC uint64_t load_relaxed_64(const uint64_t *address)
{
    simt_note_load(address);
    return __atomic_load_n(address, __ATOMIC_RELAXED);
}
GPU_FUNC void store_relaxed_64(uint64_t *address, uint64_t value)
{
    __atomic_store_n(address, value, __ATOMIC_RELAXED);
}
GPU_FUNC void store_words(uint64_t *address, uint64_t first, uint64_t second)
{
    hold_back();
    __atomic_store_n(address, first, __ATOMIC_RELAXED);
    hold_back();
    __atomic_store_n(address + 1, second, __ATOMIC_RELAXED);
}
GPU_FUNC void poll_words(const uint64_t *address, uint64_t *first, uint64_t *second)
{
    *first = __atomic_load_n(address, __ATOMIC_RELAXED);
    hold_back();
    *second = __atomic_load_n(address + 1, __ATOMIC_RELAXED);
}
GPU_FUNC void load_acquire_both(const uint64_t *address, uint64_t *first, uint64_t *second)
{
    *first = load_acquire(address);
    *second = load_acquire(address + 1);
}
GPU_FUNC void between_polls(void)
{
    simt_poll();
}
GPU_FUNC void pause_polls(void)
{
}
GPU_FUNC void prefetch(const void *address)
{
    (void)address;
}
GPU_FUNC void store_release_32(uint32_t *address, uint32_t value)
{
    hold_back();
    __atomic_store_n(address, value, __ATOMIC_RELEASE);
}
GPU_FUNC void fence_system(void)
{
    __atomic_thread_fence(__ATOMIC_ACQ_REL);
}
GPU_FUNC void fence_gpu(void)
{
    __atomic_thread_fence(__ATOMIC_ACQ_REL);
}
GPU_FUNC void __threadfence_system(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
GPU_FUNC uint4 load_row(const uint4 *address)
{
    return *address;
}
GPU_FUNC void store_row(uint4 *address, uint4 v)
{
    *address = v;
    simt_stored_bytes += sizeof v;
}

/* ---- meeting ----------------------------------------------------------------------------------------------------- */

GPU_FUNC void meet_at(int32_t barrier, int32_t threads)
{
    simt_meet(barrier, threads, false);
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

GPU_FUNC float larger_magnitude(float a, float b)
{
    a = a < 0 ? -a : a;
    b = b < 0 ? -b : b;
    return a > b ? a : b;
}
GPU_FUNC float one_unless_zero(float value)
{
    return value != 0 ? 1.0f : 0.0f;
}
GPU_FUNC float widen_f16(uint32_t low)
{
    _Float16 half;
    const uint16_t bits = (uint16_t)low;
    memcpy(&half, &bits, sizeof half);
    return (float)half;
}
GPU_FUNC uint32_t narrow_one_bf16(float value)
{
    const uint32_t bits = __float_as_uint(value);
    if (value != value) return 0x7fff;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
GPU_FUNC uint32_t narrow_one_f16(float value)
{
    const _Float16 half = (_Float16)value;
    uint16_t bits;
    if (value != value) return 0x7fff;
    memcpy(&bits, &half, sizeof bits);
    return bits;
}
GPU_FUNC uint32_t narrow_pair_bf16(float low, float high)
{
    return narrow_one_bf16(high) << 16 | narrow_one_bf16(low);
}
GPU_FUNC uint32_t narrow_pair_f16(float low, float high)
{
    return narrow_one_f16(high) << 16 | narrow_one_f16(low);
}

#endif

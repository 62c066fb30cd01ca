/* SPDX-License-Identifier: Apache-2.0 */
/* A kernel's environment on the GPU that simt.c simulates: places of threads, meetings of blocks and warps, atomics,
 * built-in functions, by their names in CUDA C. Each block has a thread of the host; its own threads take turns there,
 * and one gives its turn up where it waits for others, or polls. So shared memory is the host thread's own. */
#ifndef TESTS_CUDA_SIMT_SIMT_H
#define TESTS_CUDA_SIMT_SIMT_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* ---- places ------------------------------------------------------------------------------------------------------ */

typedef struct simt_place {
    uint32_t x;
} simt_place;
/* The thread whose turn it is. */
extern _Thread_local simt_place threadIdx, blockIdx, blockDim, gridDim;

#define __shared__ static _Thread_local

/* Shared memory that the launch gave the block; zeroed by nobody. */
void *simt_shared(void);
/* Data that this thread has sent out of its stage of shared memory and not waited for (link/device/bulk.h). */
typedef struct simt_parcel {
    uint8_t *to;
    const uint8_t *from;
    uint32_t bytes; /* 0: nothing */
} simt_parcel;
simt_parcel *simt_parcel_here(void);
/* Bytes of rows that threads of this block have stored so far. */
extern _Thread_local uint64_t simt_stored_bytes;
/* An ordered load is about to read there. */
extern void (*_Atomic simt_watch_load)(const void *address);
static inline void simt_note_load(const void *address)
{
    void (*watch)(const void *) = simt_watch_load;
    if (watch) watch(address);
}
/* The others' turns: a thread that polls does this between two looks. */
void simt_poll(void);

/* ---- meetings ---------------------------------------------------------------------------------------------------- */

/* A meeting of `threads` of the block, at one of its barriers 0 to 15; returns how many came with a nonzero word. */
int32_t simt_meet(int32_t barrier, int32_t threads, bool with);
/* A meeting of the lanes in the mask, with a word each: all[32], which stays as it is until the next meeting. */
const uint64_t *simt_meet_lanes(uint32_t mask, uint64_t word);
/* Threads of the block that have not returned from the kernel. */
int32_t simt_alive(void);

static inline void __syncthreads(void)
{
    simt_meet(0, simt_alive(), false);
}
static inline int __syncthreads_or(int with)
{
    return simt_meet(0, simt_alive(), with != 0) > 0;
}
static inline int __syncthreads_and(int with)
{
    return simt_meet(0, simt_alive(), with == 0) == 0;
}

#define SIMT_ALL 0xffffffffu

static inline void __syncwarp(void)
{
    simt_meet_lanes(SIMT_ALL, 0);
}
static inline uint32_t __ballot_sync(uint32_t mask, int with)
{
    const uint64_t *all = simt_meet_lanes(mask, with != 0);
    uint32_t set = 0;
    for (int lane = 0; lane < 32; lane++)
        if (mask >> lane & 1 && all[lane]) set |= 1u << lane;
    return set;
}
static inline int __any_sync(uint32_t mask, int with)
{
    return __ballot_sync(mask, with) != 0;
}
static inline int __all_sync(uint32_t mask, int with)
{
    return __ballot_sync(mask, with) == mask;
}
static inline uint32_t __match_any_sync(uint32_t mask, int32_t word)
{
    const uint64_t *all = simt_meet_lanes(mask, (uint32_t)word);
    uint32_t same = 0;
    for (int lane = 0; lane < 32; lane++)
        if (mask >> lane & 1 && all[lane] == (uint32_t)word) same |= 1u << lane;
    return same;
}
static inline int32_t __reduce_add_sync(uint32_t mask, int32_t word)
{
    const uint64_t *all = simt_meet_lanes(mask, (uint32_t)word);
    uint32_t sum = 0;
    for (int lane = 0; lane < 32; lane++)
        if (mask >> lane & 1) sum += (uint32_t)all[lane];
    return (int32_t)sum;
}
static inline uint32_t __reduce_min_sync(uint32_t mask, uint32_t word)
{
    const uint64_t *all = simt_meet_lanes(mask, word);
    uint32_t least = word;
    for (int lane = 0; lane < 32; lane++)
        if (mask >> lane & 1 && all[lane] < least) least = (uint32_t)all[lane];
    return least;
}
static inline uint32_t __reduce_max_sync(uint32_t mask, uint32_t word)
{
    return ~__reduce_min_sync(mask, ~word);
}

/* Words of up to 8 bytes, of whatever type. */
#define SIMT_SHUFFLE(mask, value, from)                                                                                \
    ({                                                                                                                 \
        __typeof__((value) + 0) simt_given = (value), simt_taken;                                                      \
        uint64_t simt_word = 0;                                                                                        \
        memcpy(&simt_word, &simt_given, sizeof simt_given);                                                            \
        const uint32_t simt_lane = threadIdx.x % 32;                                                                   \
        const uint32_t simt_from = (uint32_t)(from);                                                                   \
        simt_word = simt_meet_lanes((mask), simt_word)[simt_from < 32 ? simt_from : simt_lane];                        \
        memcpy(&simt_taken, &simt_word, sizeof simt_taken);                                                            \
        simt_taken;                                                                                                    \
    })
#define __shfl_sync(mask, value, lane)      SIMT_SHUFFLE(mask, value, (uint32_t)(lane) % 32)
#define __shfl_xor_sync(mask, value, other) SIMT_SHUFFLE(mask, value, simt_lane ^ (uint32_t)(other))
#define __shfl_up_sync(mask, value, by)     SIMT_SHUFFLE(mask, value, simt_lane - (uint32_t)(by))

/* Bytes of y above those of x, of which each hexadecimal digit of `choice` takes one. */
static inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t choice)
{
    const uint64_t bytes = (uint64_t)y << 32 | x;
    uint32_t taken = 0;
    for (uint32_t i = 0; i < 4; i++)
        taken |= (uint32_t)(bytes >> 8 * (choice >> 4 * i & 7) & 0xffu) << 8 * i;
    return taken;
}

/* ---- atomics ----------------------------------------------------------------------------------------------------- */

#define atomicAdd(at, value) __atomic_fetch_add((at), (value), __ATOMIC_RELAXED)
/* Up to a bound that nothing comes to here. */
#define atomicInc(at, bound)  __atomic_fetch_add((at), 1, __ATOMIC_RELAXED)
#define atomicOr(at, value)   __atomic_fetch_or((at), (value), __ATOMIC_RELAXED)
#define atomicExch(at, value) __atomic_exchange_n((at), (value), __ATOMIC_RELAXED)
#define atomicCAS(at, expected, value)                                                                                 \
    ({                                                                                                                 \
        __typeof__(*(at)) simt_seen = (expected);                                                                      \
        __atomic_compare_exchange_n((at), &simt_seen, (value), false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);             \
        simt_seen;                                                                                                     \
    })
#define SIMT_ATOMIC_BEST(at, value, better)                                                                            \
    ({                                                                                                                 \
        __typeof__(*(at)) simt_new = (value), simt_seen = __atomic_load_n((at), __ATOMIC_RELAXED);                     \
        while (simt_new better simt_seen &&                                                                            \
               !__atomic_compare_exchange_n((at), &simt_seen, simt_new, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {  \
        }                                                                                                              \
        simt_seen;                                                                                                     \
    })
#define atomicMin(at, value) SIMT_ATOMIC_BEST(at, value, <)
#define atomicMax(at, value) SIMT_ATOMIC_BEST(at, value, >)

/* ---- numbers and bits -------------------------------------------------------------------------------------------- */

typedef struct uint4 {
    uint32_t x, y, z, w;
} uint4;
static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
    return (uint4){x, y, z, w};
}
#define max(a, b)                                                                                                      \
    ({                                                                                                                 \
        const __typeof__((a) + (b)) simt_a = (a), simt_b = (b);                                                        \
        simt_a > simt_b ? simt_a : simt_b;                                                                             \
    })
#define min(a, b)                                                                                                      \
    ({                                                                                                                 \
        const __typeof__((a) + (b)) simt_a = (a), simt_b = (b);                                                        \
        simt_a < simt_b ? simt_a : simt_b;                                                                             \
    })
static inline int __popc(uint32_t bits)
{
    return __builtin_popcount(bits);
}
static inline int __ffs(int bits)
{
    return __builtin_ffs(bits);
}
static inline float __uint_as_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
static inline uint32_t __float_as_uint(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}
/* Compiled without contraction, so that each is rounded. */
static inline float __fadd_rn(float a, float b)
{
    return a + b;
}
static inline float __fmul_rn(float a, float b)
{
    return a * b;
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

/* Others have turns for so long. */
void simt_sleep(uint32_t ns);
static inline void __nanosleep(uint32_t ns)
{
    simt_sleep(ns);
}

/* The seed of delays at random (link/device/delay.h); 0: there are none. Set by the loader of a module, read by
   kernels: nothing but the word counts. */
extern _Atomic uint32_t simt_delays;
/* Delays of all modules. Kernels add to it, cuModuleGetGlobal_v2 gives it for each module's count. */
extern _Atomic uint64_t simt_delays_made;

#endif

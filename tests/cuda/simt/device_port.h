/* SPDX-License-Identifier: Apache-2.0 */
/* The vocabulary of expar/device.h on the simulated GPU (simt.h). Threads give their turn up where they poll and where
 * they meet. link/device/ptx.h of this folder names this file. */
#ifndef TESTS_CUDA_SIMT_DEVICE_PORT_H
#define TESTS_CUDA_SIMT_DEVICE_PORT_H

#define EXPAR_DEV_FUNC      static __attribute__((unused)) inline
#define EXPAR_DEV_MAIN_KIND EXPAR_DEV_DEVICE
#define EXPAR_DEV_READS_AHEAD

/* Loads poll: others have their turns. */
#define PORT_LOAD(name, T, order)                                                                                      \
    EXPAR_DEV_FUNC T name(const T *at)                                                                                 \
    {                                                                                                                  \
        simt_note_load(at);                                                                                            \
        return __atomic_load_n(at, order);                                                                             \
    }
#define PORT_STORE(name, T, order)                                                                                     \
    EXPAR_DEV_FUNC void name(T *at, T value)                                                                           \
    {                                                                                                                  \
        __atomic_store_n(at, value, order);                                                                            \
    }
PORT_LOAD(expar_dev_load_acquire_16, expar_uint16, __ATOMIC_ACQUIRE)
PORT_LOAD(expar_dev_load_acquire_32, expar_uint32, __ATOMIC_ACQUIRE)
PORT_LOAD(expar_dev_load_acquire_64, expar_uint64, __ATOMIC_ACQUIRE)
PORT_LOAD(expar_dev_load_8, expar_uint8, __ATOMIC_RELAXED)
PORT_LOAD(expar_dev_load_16, expar_uint16, __ATOMIC_RELAXED)
PORT_LOAD(expar_dev_load_32, expar_dev_u32, __ATOMIC_RELAXED)
PORT_LOAD(expar_dev_load_64, expar_dev_u64, __ATOMIC_RELAXED)
PORT_STORE(expar_dev_store_8, expar_uint8, __ATOMIC_RELAXED)
PORT_STORE(expar_dev_store_16, expar_uint16, __ATOMIC_RELAXED)
PORT_STORE(expar_dev_store_32, expar_dev_u32, __ATOMIC_RELAXED)
PORT_STORE(expar_dev_store_64, expar_dev_u64, __ATOMIC_RELAXED)
PORT_STORE(expar_dev_store_release_32, expar_uint32, __ATOMIC_RELEASE)
PORT_STORE(expar_dev_store_release_64, expar_uint64, __ATOMIC_RELEASE)

#define PORT_CHANGE(name, T, builtin)                                                                                  \
    EXPAR_DEV_FUNC T name(T *at, T value)                                                                              \
    {                                                                                                                  \
        return builtin(at, value, __ATOMIC_RELAXED);                                                                   \
    }
#define PORT_CHANGES(T, bits)                                                                                          \
    PORT_CHANGE(expar_dev_swap_##bits, T, __atomic_exchange_n)                                                         \
    PORT_CHANGE(expar_dev_add_##bits, T, __atomic_fetch_add)                                                           \
    PORT_CHANGE(expar_dev_and_##bits, T, __atomic_fetch_and)                                                           \
    PORT_CHANGE(expar_dev_or_##bits, T, __atomic_fetch_or)                                                             \
    PORT_CHANGE(expar_dev_xor_##bits, T, __atomic_fetch_xor)                                                           \
    EXPAR_DEV_FUNC T expar_dev_compare_swap_##bits(T *at, T expected, T desired)                                       \
    {                                                                                                                  \
        __atomic_compare_exchange_n(at, &expected, desired, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);                    \
        return expected;                                                                                               \
    }
PORT_CHANGES(expar_dev_u32, 32)
PORT_CHANGES(expar_dev_u64, 64)
EXPAR_DEV_FUNC void expar_dev_add_release_64(expar_uint64 *at, expar_uint64 value)
{
    __atomic_fetch_add(at, value, __ATOMIC_RELEASE);
}
EXPAR_DEV_FUNC void expar_dev_max_64(expar_uint64 *at, expar_uint64 value)
{
    atomicMax(at, value);
}

EXPAR_DEV_FUNC void expar_dev_fence_order(void)
{
    __atomic_thread_fence(__ATOMIC_ACQ_REL);
}
EXPAR_DEV_FUNC void expar_dev_fence_full(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
EXPAR_DEV_FUNC void expar_dev_fence_near(void)
{
    __atomic_thread_fence(__ATOMIC_ACQ_REL);
}
EXPAR_DEV_FUNC void expar_dev_store_register(expar_uint64 *at, expar_uint64 value)
{
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
}
EXPAR_DEV_FUNC void expar_dev_store_unit(expar_uint32 *at, const expar_uint32 *from)
{
    memcpy(at, from, 16);
}
EXPAR_DEV_FUNC expar_uint64 expar_dev_clock_ns(void)
{
    return clock_now();
}
EXPAR_DEV_FUNC void expar_dev_pause(int is_far)
{
    if (is_far)
        simt_sleep(200);
    else
        simt_poll();
}
#define EXPAR_DEV_POLLS 16u

EXPAR_DEV_FUNC expar_dev_place expar_dev_place_in(int scope)
{
    expar_dev_place place = {0, 1};
    if (scope == EXPAR_DEV_THREAD) return place;
    place.index = scope == EXPAR_DEV_WARP ? threadIdx.x % 32 : threadIdx.x;
    place.count = scope == EXPAR_DEV_WARP ? 32 : blockDim.x;
    return place;
}
EXPAR_DEV_FUNC expar_uint32 expar_dev_block_number(void)
{
    return blockIdx.x;
}
EXPAR_DEV_FUNC void expar_dev_meet(int scope)
{
    if (scope == EXPAR_DEV_BLOCK) __syncthreads();
    if (scope == EXPAR_DEV_WARP) __syncwarp();
}
EXPAR_DEV_FUNC void expar_dev_share(int scope, expar_dev_words4 *words)
{
    static _Thread_local expar_dev_words4 given;
    if (scope == EXPAR_DEV_WARP)
        for (int i = 0; i < 4; i++)
            words->word[i] = __shfl_sync(SIMT_ALL, words->word[i], 0);
    if (scope != EXPAR_DEV_BLOCK) return;
    if (threadIdx.x == 0) given = *words;
    __syncthreads();
    *words = given;
    __syncthreads();
}

typedef struct expar_dev_unit {
    expar_uint32 word[4];
} __attribute__((aligned(16), may_alias)) expar_dev_unit;
EXPAR_DEV_FUNC expar_dev_unit expar_dev_load_unit(const expar_dev_unit *at)
{
    simt_note_load(at);
    return *at;
}
EXPAR_DEV_FUNC int expar_dev_meet_all(int scope, int holds)
{
    if (scope == EXPAR_DEV_BLOCK) return __syncthreads_and(holds);
    if (scope == EXPAR_DEV_WARP) return __all_sync(SIMT_ALL, holds);
    return holds;
}

#endif

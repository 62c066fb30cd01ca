/* SPDX-License-Identifier: Apache-2.0 */
/* NVSHMEM's names in kernels: by threads, warps and blocks. Under nvcc on GPUs, by cpu/cpu.sh as threads of the CPU. */
#include <cuda_runtime.h>
#include <nvshmem.h>
#include <nvshmemx.h>

#include <cstdio>
#include <cstdlib>

constexpr int COUNT = 45;
#ifdef __CUDACC__
constexpr int WARP_THREADS = 32, BLOCK_THREADS = 48;
#else
constexpr int WARP_THREADS = 3, BLOCK_THREADS = 5; /* threads of the CPU */
#endif

/* A kernel's argument. */
struct arena {
    /* symmetric: [2 * COUNT] elements of 16 bytes each, and words */
    void *block, *other;
    uint64_t *words;
    void *mine; /* memory of this PE's GPU */
    int *wrong; /* the line of a check that failed; 0: none */
    nvshmem_team_t even;
};

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) *a.wrong = __LINE__;                                                                         \
    } while (0)

/* ---- puts and gets ----------------------------------------------------------------------------------------------- */

/* A call each, since nvcc takes minutes where barriers and waits are inline. */
__device__ __noinline__ void meet_thread()
{
    nvshmem_barrier_all();
}
__device__ __noinline__ void meet_warp()
{
    nvshmemx_barrier_all_warp();
}
__device__ __noinline__ void meet_block()
{
    nvshmemx_barrier_all_block();
}
/* As threads of the CPU, kernels call the host's nvshmem_quiet, which does not cover calls of warps and blocks. */
__device__ __noinline__ void complete()
{
    nvshmem_quiet();
#ifndef __CUDACC__
    (void)expar_kernel_quiet(expar_nvshmem_cpu_handle(NVSHMEM_TEAM_WORLD));
#endif
}
__device__ __noinline__ bool await_signal(uint64_t *signal, uint64_t value)
{
    nvshmem_uint64_wait_until(signal, NVSHMEM_CMP_EQ, value);
    return nvshmem_signal_wait_until(signal, NVSHMEM_CMP_EQ, value) == value && nvshmem_signal_fetch(signal) == value;
}

/* All threads of the scope call these; a launch has the threads of one scope. */
template <class T> __device__ void fill(T *at, int pe)
{
    for (int i = threadIdx.x; i < COUNT; i += blockDim.x)
        at[i] = (T)(pe * 16 + i + 1);
    __syncthreads();
}
template <class T> __device__ bool holds(const T *at, int pe, int stride)
{
    bool right = true;
    for (int i = threadIdx.x; i < COUNT; i += blockDim.x)
        right = right && at[i * stride] == (T)(pe * 16 + i + 1);
    __syncthreads();
    return right;
}
template <class T> __device__ void clear(T *at)
{
    for (int i = threadIdx.x; i < 2 * COUNT; i += blockDim.x)
        at[i] = 0;
}

/* N is the beginning of the names, B the barrier of the scope. `words` are set by signals of the PE before. */
#define PUTS(P, N, scope, T, B)                                                                                        \
    {                                                                                                                  \
        T *dest = (T *)a.block, *mine = (T *)a.mine, *got = (T *)a.other;                                              \
        fill(mine, me);                                                                                                \
        clear(dest);                                                                                                   \
        B();                                                                                                           \
        P##N##_put##scope(dest, mine, COUNT, next);                                                                    \
        B();                                                                                                           \
        CHECK(holds(dest, last, 1));                                                                                   \
        B();                                                                                                           \
        clear(dest);                                                                                                   \
        B();                                                                                                           \
        P##N##_put_nbi##scope(dest, mine, COUNT, next);                                                                \
        B();                                                                                                           \
        CHECK(holds(dest, last, 1));                                                                                   \
        B();                                                                                                           \
        clear(dest);                                                                                                   \
        B();                                                                                                           \
        P##N##_iput##scope(dest, mine, 2, 1, COUNT, next);                                                             \
        B();                                                                                                           \
        CHECK(holds(dest, last, 2));                                                                                   \
        B();                                                                                                           \
        clear(dest);                                                                                                   \
        B();                                                                                                           \
        P##N##_put_signal##scope(dest, mine, COUNT, a.words, ++turn, NVSHMEM_SIGNAL_SET, next);                        \
        CHECK(await_signal(a.words, turn));                                                                            \
        CHECK(holds(dest, last, 1));                                                                                   \
        B();                                                                                                           \
        clear(dest);                                                                                                   \
        B();                                                                                                           \
        turn += 2;                                                                                                     \
        P##N##_put_signal_nbi##scope(dest, mine, COUNT, a.words, 2, NVSHMEM_SIGNAL_ADD, next);                         \
        CHECK(await_signal(a.words, turn) && holds(dest, last, 1));                                                    \
        fill(dest, me);                                                                                                \
        B();                                                                                                           \
        P##N##_get##scope(got, dest, COUNT, last);                                                                     \
        CHECK(holds(got, last, 1));                                                                                    \
        clear(got);                                                                                                    \
        __syncthreads();                                                                                               \
        P##N##_get_nbi##scope(got, dest, COUNT, next);                                                                 \
        complete();                                                                                                    \
        CHECK(holds(got, next, 1));                                                                                    \
        clear(got);                                                                                                    \
        __syncthreads();                                                                                               \
        P##N##_iget##scope(got, dest, 2, 1, COUNT, next);                                                              \
        CHECK(holds(got, next, 2));                                                                                    \
        B();                                                                                                           \
    }
/* Sized names, of which puts and gets take any memory. */
#define SIZED(P, W, scope, B)                                                                                          \
    {                                                                                                                  \
        uint64_t *dest = (uint64_t *)a.block, *mine = (uint64_t *)a.mine, *got = (uint64_t *)a.other;                  \
        const size_t units = (COUNT - 1) * 64 / W;                                                                     \
        fill(mine, me);                                                                                                \
        clear(dest);                                                                                                   \
        B();                                                                                                           \
        P##put##W##scope(dest, mine, units, next);                                                                     \
        P##iput##W##scope(dest, mine, 1, 1, units, next);                                                              \
        B();                                                                                                           \
        CHECK(dest[COUNT - 1] == 0 && dest[COUNT - 2] == (uint64_t)(last * 16 + COUNT - 1));                           \
        P##get##W##scope(got, dest, units, last);                                                                      \
        P##iget##W##scope(got, dest, 1, 1, units, last);                                                               \
        CHECK(got[0] == (uint64_t)((last + pes - 1) % pes * 16 + 1));                                                  \
        B();                                                                                                           \
    }

#define RMA(name, P, scope, B)                                                                                         \
    __global__ void name(arena a)                                                                                      \
    {                                                                                                                  \
        const int me = nvshmem_my_pe(), pes = nvshmem_n_pes(), next = (me + 1) % pes, last = (me + pes - 1) % pes;     \
        uint64_t turn = 0;                                                                                             \
        if (threadIdx.x == 0) a.words[0] = 0;                                                                          \
        PUTS(P, float, scope, float, B)                                                                                \
        PUTS(P, ushort, scope, unsigned short, B)                                                                      \
        SIZED(P, 128, scope, B)                                                                                        \
    }
RMA(rma_thread, nvshmem_, , meet_thread)
RMA(rma_warp, nvshmemx_, _warp, meet_warp)
RMA(rma_block, nvshmemx_, _block, meet_block)

/* ---- by one thread ----------------------------------------------------------------------------------------------- */

__global__ void words_thread(arena a)
{
    const int me = nvshmem_my_pe(), pes = nvshmem_n_pes(), next = (me + 1) % pes;
    int *word = (int *)a.block;
    const int skip[4] = {1, 0, 0, 1};
    size_t at[4];
    a.words[1] = 0;
    for (int i = 0; i < 4; i++)
        word[i] = 0;
    nvshmem_barrier_all();
    nvshmem_uint64_atomic_add(a.words + 1, (uint64_t)me + 1, 0);
    CHECK(nvshmem_int_atomic_fetch_add(word, 5, next) == 0 && nvshmem_int_atomic_fetch(word, next) == 5);
    CHECK(nvshmem_int_atomic_compare_swap(word, 5, 8, next) == 5 && nvshmem_int_atomic_swap(word, 6, next) == 8);
    nvshmem_int_atomic_inc(word, next);
    CHECK(nvshmem_uint_atomic_fetch_or((unsigned int *)word, 8, next) == 7);
    nvshmem_int_atomic_set(word, 0, next);
    nvshmem_barrier_all();
    if (me == 0) CHECK(a.words[1] == (uint64_t)(pes * (pes + 1) / 2));
    nvshmem_int_p(word + 1, 3, next);
    nvshmem_fence();
    nvshmem_int_p(word + 2, 4, next);
    nvshmem_int_wait_until_all(word, 4, skip, NVSHMEM_CMP_GE, 3);
    CHECK(nvshmem_int_wait_until_any(word, 4, skip, NVSHMEM_CMP_EQ, 4) == 2);
    CHECK(nvshmem_int_wait_until_some(word, 4, at, nullptr, NVSHMEM_CMP_NE, 0) == 2 && at[1] == 2);
    CHECK(nvshmem_int_test(word + 1, NVSHMEM_CMP_LT, 4) && !nvshmem_int_test_all(word, 4, nullptr, NVSHMEM_CMP_GT, 0));
    CHECK(nvshmem_int_g(word + 2, next) == 4);
    CHECK(nvshmem_ptr(word, me) == word && !nvshmem_ptr(word, pes) && !nvshmem_ptr(a.wrong, me));
    CHECK(nvshmem_team_n_pes(NVSHMEM_TEAM_WORLD) == pes && nvshmem_team_my_pe(NVSHMEM_TEAM_INVALID) == -1);
    CHECK((nvshmem_team_my_pe(a.even) == me / 2) == (me % 2 == 0));
    if (me % 2 == 0) CHECK(nvshmem_team_translate_pe(a.even, me / 2, NVSHMEM_TEAM_WORLD) == me);
    CHECK(nvshmem_team_translate_pe(NVSHMEM_TEAM_WORLD, 0, EXPAR_NV_TEAMS) == -1);
    nvshmem_sync_all();
}

/* ---- collectives ------------------------------------------------------------------------------------------------- */

#define COLLECT(P, T, N, scope, team)                                                                                  \
    {                                                                                                                  \
        const int mine = nvshmem_team_my_pe(team), size = nvshmem_team_n_pes(team);                                    \
        T *into = (T *)a.block, *from = (T *)a.other;                                                                  \
        for (int i = threadIdx.x; i < 4 * size; i += blockDim.x)                                                       \
            from[i] = (T)(mine * 4 + i);                                                                               \
        CHECK(P##team_sync##scope(team) == 0);                                                                         \
        CHECK(P##N##_broadcast##scope(team, into, from, 4, size - 1) == 0);                                            \
        CHECK(into[1] == (T)(size * 4 - 3));                                                                           \
        CHECK(P##sync##scope(team) == 0);                                                                              \
        CHECK(P##N##_fcollect##scope(team, into, from, 4) == 0);                                                       \
        for (int i = 0; i < 4 * size; i++)                                                                             \
            CHECK(into[i] == (T)(i / 4 * 4 + i % 4));                                                                  \
        CHECK(P##barrier##scope(team) == 0);                                                                           \
        CHECK(P##N##_alltoall##scope(team, into, from, 4) == 0);                                                       \
        for (int i = 0; i < 4 * size; i++)                                                                             \
            CHECK(into[i] == (T)(i / 4 * 4 + mine * 4 + i % 4));                                                       \
        CHECK(P##barrier##scope(team) == 0);                                                                           \
    }

#define TEAMS(name, P, scope)                                                                                          \
    __global__ void name(arena a)                                                                                      \
    {                                                                                                                  \
        COLLECT(P, float, float, scope, NVSHMEM_TEAM_WORLD)                                                            \
        if (a.even != NVSHMEM_TEAM_INVALID) COLLECT(P, unsigned char, uchar, scope, a.even)                            \
        CHECK(P##barrier##scope(NVSHMEM_TEAM_SHARED) == 0);                                                            \
    }
TEAMS(teams_thread, nvshmem_, )
TEAMS(teams_warp, nvshmemx_, _warp)
TEAMS(teams_block, nvshmemx_, _block)

/* In another memory, and in place. */
#define REDUCE(T, N, operation, result)                                                                                \
    for (int in_place = 0; in_place < 2; in_place++) {                                                                 \
        T *from = (T *)a.other, *into = in_place ? from : (T *)a.block;                                                \
        for (int i = threadIdx.x; i < COUNT; i += blockDim.x)                                                          \
            from[i] = (T)(me + i % 3 + 1);                                                                             \
        __syncthreads();                                                                                               \
        CHECK(nvshmemx_##N##_##operation##_reduce_block(NVSHMEM_TEAM_WORLD, into, from, COUNT) == 0);                  \
        for (int i = threadIdx.x; i < COUNT; i += blockDim.x)                                                          \
            CHECK(into[i] == (T)(result));                                                                             \
        meet_block();                                                                                                  \
    }
__global__ void reduce_block(arena a)
{
    const int me = nvshmem_my_pe(), pes = nvshmem_n_pes();
    int product = 1, both = -1, any = 0, odd = 0;
    REDUCE(float, float, sum, pes *(i % 3 + 1) + pes * (pes - 1) / 2)
    REDUCE(double, double, max, pes + i % 3)
    REDUCE(signed char, schar, min, i % 3 + 1)
    for (int i = 0; i < pes; i++) {
        product *= i + 1;
        both &= i + 1;
        any |= i + 1;
        odd ^= i + 1;
    }
#define FIRST(value) i % 3 == 0 ? value : into[i] /* the others are as they came */
    REDUCE(int, int, prod, FIRST(product))
    REDUCE(unsigned char, uchar, and, FIRST(both))
    REDUCE(uint64_t, uint64, or, FIRST(any))
    REDUCE(unsigned int, uint, xor, FIRST(odd))
    /* No such team, and no such PE. */
    CHECK(nvshmemx_int_sum_reduce_block(EXPAR_NV_TEAMS, (int *)a.block, (int *)a.block, 1) != 0);
    CHECK(nvshmemx_barrier_block(NVSHMEM_TEAM_INVALID) != 0);
    CHECK(nvshmemx_fcollectmem_block(EXPAR_NV_TEAMS - 1, a.block, a.block, 1) != 0);
    CHECK(nvshmemx_broadcastmem_block(NVSHMEM_TEAM_WORLD, a.block, a.block, 1, pes) != 0);
}

/* ---- the host ---------------------------------------------------------------------------------------------------- */

static void must(cudaError_t error)
{
    if (error == cudaSuccess) return;
    std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
    std::exit(1);
}

/* Ends the job if a check of the kernel failed. */
static void finish(const char *kernel, const arena &a)
{
    int line = 0;
    must(cudaGetLastError());
    must(cudaDeviceSynchronize());
    must(cudaMemcpy(&line, a.wrong, sizeof line, cudaMemcpyDeviceToHost));
    if (line) {
        std::fprintf(stderr, "PE %d: %s: the check of line %d failed\n", nvshmem_my_pe(), kernel, line);
        nvshmem_global_exit(1);
    }
    nvshmem_barrier_all();
}

#ifdef __CUDACC__
/* All blocks meet, and then block 0 meets the other PEs. */
__global__ void meet_blocks(unsigned int *came)
{
    if (threadIdx.x == 0) {
        atomicAdd(came, 1);
        while (*(volatile unsigned int *)came < gridDim.x) {
        }
    }
    __syncthreads();
    if (blockIdx.x == 0) nvshmemx_barrier_all_block();
}

static void launch_together()
{
    unsigned int *came = nullptr, seen = 0;
    int most = 0;
    must(cudaMalloc(&came, sizeof *came));
    must(cudaMemset(came, 0, sizeof *came));
    void *args[] = {&came};
    const void *kernel = (const void *)meet_blocks;
    if (nvshmemx_collective_launch_query_gridsize(kernel, 64, args, 0, &most) || most < 1 ||
        nvshmemx_collective_launch(kernel, most / nvshmem_n_pes(), 64, args, 0, nullptr) ||
        !nvshmemx_collective_launch(kernel, most + 1, 64, args, 0, nullptr)) {
        std::fprintf(stderr, "PE %d: collective launch\n", nvshmem_my_pe());
        nvshmem_global_exit(1);
    }
    must(cudaDeviceSynchronize());
    must(cudaMemcpy(&seen, came, sizeof seen, cudaMemcpyDeviceToHost));
    if ((int)seen != most / nvshmem_n_pes()) nvshmem_global_exit(1);
    must(cudaFree(came));
    nvshmem_barrier_all();
}
#endif

static void run_kernels(const arena &a)
{
    rma_thread<<<1, 1>>>(a);
    finish("rma_thread", a);
    rma_warp<<<1, WARP_THREADS>>>(a);
    finish("rma_warp", a);
    rma_block<<<1, BLOCK_THREADS>>>(a);
    finish("rma_block", a);
    words_thread<<<1, 1>>>(a);
    finish("words_thread", a);
    teams_thread<<<1, 1>>>(a);
    finish("teams_thread", a);
    teams_warp<<<1, WARP_THREADS>>>(a);
    finish("teams_warp", a);
    teams_block<<<1, BLOCK_THREADS>>>(a);
    finish("teams_block", a);
    reduce_block<<<1, BLOCK_THREADS>>>(a);
    finish("reduce_block", a);
}

int main()
{
    int gpus = 0;
    if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
        std::printf("no GPU\n");
        return 77;
    }
    arena a = {};
    nvshmem_team_t early = NVSHMEM_TEAM_INVALID;
    nvshmem_init();
    must(cudaSetDevice(nvshmem_team_my_pe(NVSHMEMX_TEAM_NODE) % gpus));
    const int pes = nvshmem_n_pes();
    /* One team from before the memory is chosen, and one from after it takes the number of an ended one. */
    nvshmem_team_split_strided(NVSHMEM_TEAM_WORLD, 0, 2, (pes + 1) / 2, nullptr, 0, &early);
    a.block = nvshmem_calloc(2 * COUNT, 16);
    a.other = nvshmem_calloc(2 * COUNT, 16);
    a.words = static_cast<uint64_t *>(nvshmem_calloc(2, sizeof(uint64_t)));
    must(cudaMalloc(&a.mine, 2 * COUNT * 16));
    must(cudaMalloc(&a.wrong, sizeof *a.wrong));
    /* Kernels need that for PEs that their GPU does not reach. */
    if (nvshmemx_buffer_register(a.mine, 2 * COUNT * 16)) nvshmem_global_exit(1);
    const int none = 0;
    must(cudaMemcpy(a.wrong, &none, sizeof none, cudaMemcpyHostToDevice));
    a.even = early;
    run_kernels(a);
    nvshmem_team_destroy(early);
    nvshmem_team_split_strided(NVSHMEM_TEAM_WORLD, 0, 2, (pes + 1) / 2, nullptr, 0, &a.even);
    words_thread<<<1, 1>>>(a);
    finish("words_thread", a);
#ifdef __CUDACC__
    launch_together();
#endif
    if (nvshmemx_buffer_unregister(a.mine)) nvshmem_global_exit(1);
    must(cudaFree(a.mine));
    must(cudaFree(a.wrong));
    nvshmem_free(a.words);
    nvshmem_free(a.other);
    nvshmem_free(a.block);
    nvshmem_finalize();
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A program for NVSHMEM's interface, which knows nothing of expar. In each round every PE passes its row on to the next
 * one by a kernel, and adds what came to its sum. At the end all PEs compare their sums.
 *
 *   nvcc -std=c++14 nvshmem_ring.cu -o nvshmem_ring $(pkg-config --cflags --libs expar-nvshmem)
 *   expar run -n 4 -- ./nvshmem_ring */
#include <cuda_runtime.h>
#include <nvshmem.h>
#include <nvshmemx.h>

#include <cstdio>
#include <cstdlib>

constexpr int COUNT = 1024;
constexpr int THREADS = 64;

/* One block on each PE. rows are two, which take turns; a signal belongs to each. */
__global__ void pass_rows(float *rows, float *sum, float *total, uint64_t *signals)
{
    const int me = nvshmem_my_pe(), pes = nvshmem_n_pes(), next = (me + 1) % pes;
    for (int i = threadIdx.x; i < COUNT; i += blockDim.x) {
        rows[i] = (float)(me + i);
        sum[i] = rows[i];
    }
    nvshmemx_barrier_all_block();
    for (int round = 1; round < pes; round++) {
        float *mine = rows + (round + 1) % 2 * COUNT, *theirs = rows + round % 2 * COUNT;
        nvshmemx_float_put_signal_block(theirs, mine, COUNT, signals + round % 2, round, NVSHMEM_SIGNAL_SET, next);
        if (threadIdx.x == 0) nvshmem_signal_wait_until(signals + round % 2, NVSHMEM_CMP_EQ, round);
        __syncthreads();
        for (int i = threadIdx.x; i < COUNT; i += blockDim.x)
            sum[i] += theirs[i];
        nvshmemx_barrier_all_block(); /* the next round writes to the other row of all PEs */
    }
    nvshmemx_float_max_reduce_block(NVSHMEM_TEAM_WORLD, total, sum, COUNT);
}

static void must(cudaError_t error)
{
    if (error == cudaSuccess) return;
    std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
    std::exit(1);
}

/* Every PE has the same sum: that of all first rows. */
static int check_sums(const float *sum, const float *total)
{
    static float mine[COUNT], most[COUNT];
    int wrong = 0;
    const int pes = nvshmem_n_pes();
    must(cudaMemcpy(mine, sum, sizeof mine, cudaMemcpyDeviceToHost));
    must(cudaMemcpy(most, total, sizeof most, cudaMemcpyDeviceToHost));
    for (int i = 0; i < COUNT; i++)
        wrong += mine[i] != (float)(pes * i + pes * (pes - 1) / 2) || most[i] != mine[i];
    return wrong;
}

int main()
{
    int gpus = 0;
    if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
        std::printf("no GPU\n");
        return 77;
    }
    nvshmem_init();
    must(cudaSetDevice(nvshmem_team_my_pe(NVSHMEMX_TEAM_NODE) % gpus));
    float *rows = static_cast<float *>(nvshmem_malloc(2 * COUNT * sizeof(float)));
    float *sum = static_cast<float *>(nvshmem_malloc(COUNT * sizeof(float)));
    float *total = static_cast<float *>(nvshmem_malloc(COUNT * sizeof(float)));
    uint64_t *signals = static_cast<uint64_t *>(nvshmem_calloc(2, sizeof(uint64_t)));

    pass_rows<<<1, THREADS>>>(rows, sum, total, signals);
    must(cudaGetLastError());
    must(cudaDeviceSynchronize());
    nvshmem_barrier_all(); /* ends the job if a call of the kernel has failed */

    const int wrong = check_sums(sum, total);
    std::printf("PE %d of %d: %s\n", nvshmem_my_pe(), nvshmem_n_pes(), wrong ? "WRONG" : "right");
    nvshmem_free(signals);
    nvshmem_free(total);
    nvshmem_free(sum);
    nvshmem_free(rows);
    nvshmem_finalize();
    return wrong != 0;
}

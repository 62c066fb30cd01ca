/* SPDX-License-Identifier: Apache-2.0 */
/* A token goes around all GPUs, passed on by kernels alone.
 *
 * Each rank runs one kernel with one block. The kernel waits for the token and the row that comes with it, adds 1 to
 * each number of the row, and passes both on to the next rank. After some rounds the host checks the row. Where a rank
 * dies, the kernels of the others leave, and their hosts say why.
 *
 *   nvcc -std=c++14 ring.cu -o ring -lexpar
 *   expar run -n 4 -- ./ring */
#include <cuda_runtime.h>
#include <expar/device.h>
#include <expar/expar.h>

#include <cstdio>
#include <cstdlib>

constexpr int COUNT = 1024;
constexpr int ROUNDS = 100;

/* All pointers are this rank's symmetric addresses; `mine` is any memory of this GPU. */
__global__ void pass_token(expar_device_handle h, int32_t *row, uint64_t *token, int32_t *mine)
{
    const int me = expar_kernel_my_pe(&h), size = expar_kernel_n_pes(&h), next = (me + 1) % size;
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        /* Rank 0 begins each round with the row of the round before. */
        const uint64_t awaited = me == 0 ? round - 1 : round;
        if (expar_kernel_signal_wait_until_block(&h, token, EXPAR_CMP_EQ, awaited, nullptr) != EXPAR_OK) return;
        for (int i = threadIdx.x; i < COUNT; i += blockDim.x)
            mine[i] = row[i] + 1;
        expar_kernel_put_signal_i32_block(&h, row, mine, COUNT, token, round, EXPAR_SIGNAL_SET, next);
    }
    /* The last row comes back to rank 0. */
    if (me == 0) expar_kernel_signal_wait_until_block(&h, token, EXPAR_CMP_EQ, ROUNDS, nullptr);
}

static void must(expar_status status)
{
    if (status == EXPAR_OK) return;
    std::fprintf(stderr, "%s: %s\n", expar_status_string(status), expar_last_error());
    std::exit(1);
}

static void must(cudaError_t error)
{
    if (error == cudaSuccess) return;
    std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
    std::exit(1);
}

/* Memory of this rank's GPU, at the same offset on all ranks. Collective. */
static void *symmetric(expar_group *group, int gpu, size_t bytes)
{
    expar_memory_options options = EXPAR_MEMORY_OPTIONS_INIT;
    options.kind = EXPAR_MEMORY_DEVICE;
    options.device = gpu;
    options.bytes = bytes;
    options.zeroed = 1;
    void *block = nullptr;
    must(expar_memory_alloc(group, &options, &block));
    return block;
}

/* Each of the ranks added 1 in each round. */
static int check_row(expar_group *group, const int32_t *row)
{
    int32_t seen[COUNT], wrong = 0;
    must(cudaMemcpy(seen, row, sizeof seen, cudaMemcpyDeviceToHost));
    for (int32_t each : seen)
        wrong += each != ROUNDS * expar_group_size(group);
    std::printf("%d rounds over %d ranks: %s\n", ROUNDS, expar_group_size(group), wrong ? "WRONG" : "right");
    return wrong;
}

int main()
{
    int gpus = 0;
    if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
        std::printf("no GPU\n");
        return 77;
    }
    expar_group *group = nullptr;
    must(expar_group_create(nullptr, &group));
    const int gpu = expar_group_local_rank(group) % gpus;
    must(cudaSetDevice(gpu));
    int32_t *row = static_cast<int32_t *>(symmetric(group, gpu, COUNT * sizeof(int32_t))), *mine = nullptr;
    uint64_t *token = static_cast<uint64_t *>(symmetric(group, gpu, sizeof(uint64_t)));
    must(cudaMalloc(&mine, COUNT * sizeof *mine));

    expar_device_handle handle;
    must(expar_device_get(group, nullptr, &handle));
    pass_token<<<1, 256>>>(handle, row, token, mine);
    must(cudaGetLastError());
    must(cudaDeviceSynchronize());

    expar_device_error error = EXPAR_DEVICE_ERROR_INIT;
    must(expar_device_get_error(&handle, &error));
    if (error.status != EXPAR_OK) std::fprintf(stderr, "rank %d: %s\n", expar_group_rank(group), error.text);
    int failed = error.status != EXPAR_OK;
    if (!failed && expar_group_rank(group) == 0) failed = check_row(group, row) != 0;

    must(expar_barrier_all(group)); /* no kernel uses the blocks any more, on any rank */
    must(expar_free(group, row));
    must(expar_free(group, token));
    must(expar_group_destroy(group));
    return failed;
}

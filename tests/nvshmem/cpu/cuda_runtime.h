/* SPDX-License-Identifier: Apache-2.0 */
/* As much of the CUDA runtime as the programs of this folder use, on the CPU. Memory is the host's, and a kernel's
 * threads are threads of the process. A launch returns when its kernel has ended; cpu.sh makes it a call of
 * cpu_launch. */
#ifndef TESTS_NVSHMEM_CPU_CUDA_RUNTIME_H
#define TESTS_NVSHMEM_CPU_CUDA_RUNTIME_H

#include <expar/device.h>

#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __noinline__
#define __shared__ static

struct dim3 {
    unsigned int x, y, z;
    dim3(unsigned int x_ = 1, unsigned int y_ = 1, unsigned int z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};
inline thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;

enum cudaError_t { cudaSuccess = 0, cudaErrorMemoryAllocation = 2 };
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };
inline const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaSuccess ? "no error" : "out of memory";
}
inline cudaError_t cudaGetLastError()
{
    return cudaSuccess;
}
inline cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 1;
    return cudaSuccess;
}
inline cudaError_t cudaSetDevice(int)
{
    return cudaSuccess;
}
inline cudaError_t cudaDeviceSynchronize()
{
    return cudaSuccess;
}
template <class T> cudaError_t cudaMalloc(T **out, size_t bytes)
{
    *out = static_cast<T *>(std::calloc(1, bytes));
    return *out ? cudaSuccess : cudaErrorMemoryAllocation;
}
inline cudaError_t cudaFree(void *block)
{
    std::free(block);
    return cudaSuccess;
}
inline cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind)
{
    std::memcpy(to, from, bytes);
    return cudaSuccess;
}

inline void __syncthreads()
{
    expar_dev_meet(EXPAR_DEV_BLOCK);
}

/* A grid of one block. */
template <class Kernel> void cpu_launch(dim3 grid, dim3 block, Kernel kernel)
{
    expar_device_block threads;
    std::vector<std::thread> running;
    if (grid.x != 1) std::abort();
    expar_device_block_begin(&threads, block.x);
    for (unsigned int i = 0; i < block.x; i++)
        running.emplace_back([&, i] {
            threadIdx = dim3(i, 0, 0);
            blockDim = block;
            expar_device_thread_begin(&threads, i);
            kernel();
            expar_device_thread_end();
        });
    for (std::thread &each : running)
        each.join();
}

#endif

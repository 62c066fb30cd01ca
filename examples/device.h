/* SPDX-License-Identifier: Apache-2.0 */
/* The common part of the examples that compute on a GPU. The driver and cuBLAS are opened at run time, so the examples
 * compile without CUDA. Memory, graphs and a GEMM work on the CPU if there is no GPU. */
#ifndef EXAMPLES_DEVICE_H
#define EXAMPLES_DEVICE_H

#include <dlfcn.h>
#include <expar/expar.h>
#include <stdio.h>
#include <stdlib.h>

/* The functions that are used, with the names that they have in the libraries. */
#define DRIVER(X)                                                                                                      \
    X(cuInit, (unsigned))                                                                                              \
    X(cuDeviceGetCount, (int *))                                                                                       \
    X(cuDevicePrimaryCtxRetain, (void **, int))                                                                        \
    X(cuCtxSetCurrent, (void *))                                                                                       \
    X(cuStreamCreate, (void **, unsigned))                                                                             \
    X(cuStreamSynchronize, (void *))                                                                                   \
    X(cuMemAlloc_v2, (void **, size_t))                                                                                \
    X(cuMemcpyHtoD_v2, (void *, const void *, size_t))                                                                 \
    X(cuMemcpyDtoH_v2, (void *, const void *, size_t))                                                                 \
    X(cuStreamBeginCapture_v2, (void *, int))                                                                          \
    X(cuStreamEndCapture, (void *, void **))                                                                           \
    X(cuGraphInstantiateWithFlags, (void **, void *, unsigned long long))                                              \
    X(cuGraphLaunch, (void *, void *))                                                                                 \
    X(cuGraphExecDestroy, (void *))                                                                                    \
    X(cuGraphDestroy, (void *))                                                                                        \
    X(cuMemFree_v2, (void *))                                                                                          \
    X(cuStreamDestroy_v2, (void *))
#define BLAS(X)                                                                                                        \
    X(cublasCreate_v2, (void **))                                                                                      \
    X(cublasSetStream_v2, (void *, void *))                                                                            \
    X(cublasSgemm_v2, (void *, int, int, int, int, int, const float *, const void *, int, const void *, int,           \
                       const float *, void *, int))
#define DECLARE(name, arguments) static int(*name) arguments;
DRIVER(DECLARE)
BLAS(DECLARE)
#define FIND(name, arguments)                                                                                          \
    *(void **)&name = dlsym(library, #name);                                                                           \
    if (!name) return 0;

/* Checks a status of the library, the driver or cuBLAS: 0 is success in all of them. */
static inline void must(int status)
{
    if (status == 0) return;
    fprintf(stderr, "status %d: %s\n", status, expar_last_error());
    exit(1);
}

/* Returns the number of GPUs; 0 also without a driver. */
static inline int driver_open(void)
{
    int num_gpus = 0;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) return 0;
    DRIVER(FIND)
    return cuInit(0) == 0 && cuDeviceGetCount(&num_gpus) == 0 ? num_gpus : 0;
}

static inline int blas_open(void)
{
    void *library = dlopen("libcublas.so.13", RTLD_NOW);
    if (!library) library = dlopen("libcublas.so.12", RTLD_NOW);
    if (!library) return 0;
    BLAS(FIND)
    return 1;
}

/* Makes a stream of the GPU's primary context, and makes that context the thread's. The stream does not wait for the
   default stream. */
static inline void *stream_make(int32_t gpu)
{
    void *context, *stream;
    must(cuDevicePrimaryCtxRetain(&context, gpu));
    must(cuCtxSetCurrent(context));
    must(cuStreamCreate(&stream, 1));
    return stream;
}

/* ---- the CPU, or a GPU ------------------------------------------------------------------------------------------- */

typedef struct device {
    expar_device is;
    void *stream, *blas; /* NULL on the CPU */
} device;

/* Opens the rank's own GPU, or the CPU if there are fewer GPUs than ranks, or no cuBLAS. */
static inline device device_open(const expar_group *group)
{
    device self = {.is = {EXPAR_CPU, 0}};
    if (driver_open() < expar_group_ranks_per_node(group) || !blas_open()) return self;
    self.is = (expar_device){EXPAR_CUDA, expar_group_local_rank(group)};
    self.stream = stream_make(self.is.index);
    must(cublasCreate_v2(&self.blas));
    must(cublasSetStream_v2(self.blas, self.stream));
    return self;
}

static inline expar_tensor device_view(const device *self, void *data, expar_dtype dtype, int64_t rows, int64_t columns)
{
    expar_tensor view = expar_tensor_2d(data, dtype, rows, columns);
    view.device = self->is;
    return view;
}

/* Makes a tensor in the device's memory, with the content at `host`. It lives as long as the program runs. */
static inline expar_tensor device_tensor(const device *self, void *host, expar_dtype dtype, int64_t rows,
                                         int64_t columns)
{
    const size_t bytes = (size_t)(rows * columns) * expar_dtype_bytes(dtype);
    void *data = host;
    if (self->is.type == EXPAR_CUDA) {
        must(cuMemAlloc_v2(&data, bytes));
        must(cuMemcpyHtoD_v2(data, host, bytes));
    }
    return device_view(self, data, dtype, rows, columns);
}

/* Returns the first float of a tensor, after all work on the stream. */
static inline float device_first(const device *self, const expar_tensor *tensor)
{
    float value;
    if (self->is.type == EXPAR_CPU) return *(const float *)tensor->data;
    must(cuStreamSynchronize(self->stream));
    must(cuMemcpyDtoH_v2(&value, tensor->data, sizeof value));
    return value;
}

/* y[R][M] = x[R][H] · w[H][M], floats. cuBLAS counts by columns: there it is yᵀ = wᵀ · xᵀ. */
static inline void device_gemm(const device *self, const expar_tensor *x, const expar_tensor *w, const expar_tensor *y)
{
    const int64_t num_rows = x->shape[0], h = w->shape[0], m = w->shape[1];
    const float one = 1, zero = 0, *a = x->data, *b = w->data;
    if (self->is.type == EXPAR_CUDA) {
        must(cublasSgemm_v2(self->blas, 0, 0, (int)m, (int)num_rows, (int)h, &one, b, (int)m, a, (int)h, &zero, y->data,
                            (int)m));
        return;
    }
    for (int64_t i = 0; i < num_rows * m; i++) {
        float sum = 0;
        for (int64_t k = 0; k < h; k++)
            sum += a[i / m * h + k] * b[k * m + i % m];
        ((float *)y->data)[i] = sum;
    }
}

/* Work between these two calls is captured into a graph, which is then launched; on the CPU it runs at once. */
static inline void device_capture(const device *self)
{
    if (self->is.type == EXPAR_CUDA) must(cuStreamBeginCapture_v2(self->stream, 1)); /* this thread's calls only */
}
static inline void device_launch(const device *self)
{
    void *graph, *launchable;
    if (self->is.type == EXPAR_CPU) return;
    must(cuStreamEndCapture(self->stream, &graph));
    must(cuGraphInstantiateWithFlags(&launchable, graph, 0));
    must(cuGraphLaunch(launchable, self->stream));
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Dispatch and combine on a CUDA stream, and the same calls captured into a graph that is launched with other inputs.
 *
 *     expar run -n 2 -- cuda_graph        one rank a GPU
 *
 * The experts give back what they get, so y[t] is x[t] times the number of ranks that had token t. The driver is opened
 * at run time, so that this compiles where there is no CUDA; without a GPU it says so and ends with 77. */
#include <dlfcn.h>
#include <expar/expar.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 64, HIDDEN = 512, TOPK = 2, LAUNCHES = 3, SKIPPED = 77 };

/* The functions of the driver that are used here, with the names that they have in its library. */
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
#define DECLARE(name, arguments) static int(*name) arguments;
DRIVER(DECLARE)

static void must(expar_status status)
{
    if (status == EXPAR_OK) return;
    fprintf(stderr, "%s: %s\n", expar_status_string(status), expar_last_error());
    exit(1);
}

static void must_cuda(int result)
{
    if (result == 0) return;
    fprintf(stderr, "CUDA: error %d\n", result);
    exit(1);
}

static int driver_open(int *num_gpus)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) return 0;
#define FIND(name, arguments)                                                                                          \
    *(void **)&name = dlsym(library, #name);                                                                           \
    if (!name) return 0;
    DRIVER(FIND)
    return cuInit(0) == 0 && cuDeviceGetCount(num_gpus) == 0 && *num_gpus > 0;
}

/* This rank's share, in memory of its GPU, and what calls on it need. */
typedef struct layer {
    void *x, *topk_idx, *y, *stream;
    int32_t gpu, rank, num_ranks;
    int32_t topk_idx_host[TOKENS][TOPK];
} layer;

static expar_tensor on_gpu(const layer *self, void *data, expar_dtype dtype, int64_t columns)
{
    expar_tensor tensor = expar_tensor_2d(data, dtype, TOKENS, columns);
    tensor.device = (expar_device){EXPAR_CUDA, self->gpu};
    return tensor;
}

/* Puts both calls on the stream: nothing waits on the host, since outputs have a worst-case size. */
static void layer_enqueue(const layer *self, expar_ep *ep)
{
    expar_dispatch_args dispatch = EXPAR_DISPATCH_ARGS_INIT;
    dispatch.x = on_gpu(self, self->x, EXPAR_F32, HIDDEN);
    dispatch.topk_idx = on_gpu(self, self->topk_idx, EXPAR_I32, TOPK);
    dispatch.num_experts = self->num_ranks;
    dispatch.num_worst_tokens = (int64_t)TOKENS * self->num_ranks;
    dispatch.stream = self->stream;
    expar_dispatch_result rows = EXPAR_DISPATCH_RESULT_INIT;
    must(expar_dispatch(ep, &dispatch, &rows));

    expar_combine_args combine = EXPAR_COMBINE_ARGS_INIT;
    combine.x = rows.recv_x;
    combine.handle = rows.handle;
    combine.y = on_gpu(self, self->y, EXPAR_F32, HIDDEN);
    combine.stream = self->stream;
    must(expar_combine(ep, &combine));
    /* Used again behind these calls; a graph keeps what its calls use. */
    expar_ep_output_release(rows.output);
    expar_ep_handle_destroy(rows.handle);
}

static void x_fill(const layer *self, float (*x)[HIDDEN], int round)
{
    for (int t = 0; t < TOKENS; t++)
        for (int h = 0; h < HIDDEN; h++)
            x[t][h] = (float)((self->rank + 1) * (round + 1) + t + h);
    must_cuda(cuMemcpyHtoD_v2(self->x, x, sizeof(float[TOKENS][HIDDEN])));
}

/* Numbers of y that are wrong. */
static int64_t y_check(const layer *self, float (*x)[HIDDEN], float (*y)[HIDDEN])
{
    int64_t wrong = 0;
    must_cuda(cuStreamSynchronize(self->stream));
    must_cuda(cuMemcpyDtoH_v2(y, self->y, sizeof(float[TOKENS][HIDDEN])));
    for (int t = 0; t < TOKENS; t++) {
        const int32_t *idx = self->topk_idx_host[t];
        const float ranks = idx[0] == idx[1] ? 1 : 2;
        for (int h = 0; h < HIDDEN; h++)
            wrong += y[t][h] != x[t][h] * ranks;
    }
    return wrong;
}

static void layer_make(layer *self)
{
    void *context;
    must_cuda(cuDevicePrimaryCtxRetain(&context, self->gpu));
    must_cuda(cuCtxSetCurrent(context));
    must_cuda(cuStreamCreate(&self->stream, 1)); /* one that does not wait for the default stream */
    must_cuda(cuMemAlloc_v2(&self->x, sizeof(float[TOKENS][HIDDEN])));
    must_cuda(cuMemAlloc_v2(&self->y, sizeof(float[TOKENS][HIDDEN])));
    must_cuda(cuMemAlloc_v2(&self->topk_idx, sizeof self->topk_idx_host));
    for (int t = 0; t < TOKENS; t++)
        for (int k = 0; k < TOPK; k++)
            self->topk_idx_host[t][k] = (self->rank + t + k) % self->num_ranks;
    must_cuda(cuMemcpyHtoD_v2(self->topk_idx, self->topk_idx_host, sizeof self->topk_idx_host));
}

static int64_t layer_run(const layer *self, expar_ep *ep)
{
    static float x[TOKENS][HIDDEN], y[TOKENS][HIDDEN];
    void *graph, *launchable;
    x_fill(self, x, 0);
    layer_enqueue(self, ep);
    int64_t wrong = y_check(self, x, y);

    must_cuda(cuStreamBeginCapture_v2(self->stream, 1)); /* of this thread's calls */
    layer_enqueue(self, ep);
    must_cuda(cuStreamEndCapture(self->stream, &graph));
    must_cuda(cuGraphInstantiateWithFlags(&launchable, graph, 0));
    for (int round = 1; round <= LAUNCHES; round++) {
        x_fill(self, x, round);
        must_cuda(cuGraphLaunch(launchable, self->stream));
        wrong += y_check(self, x, y);
        must(expar_ep_query(ep)); /* nobody else asks how calls in a graph ended */
    }
    must_cuda(cuGraphExecDestroy(launchable));
    must_cuda(cuGraphDestroy(graph));
    return wrong;
}

int main(void)
{
    int num_gpus;
    if (!driver_open(&num_gpus)) return puts("SKIPPED: there is no GPU"), SKIPPED;
    expar_group *group;
    must(expar_group_create(NULL, &group));
    layer self = {.rank = expar_group_rank(group), .num_ranks = expar_group_size(group)};
    self.gpu = expar_group_local_rank(group) % num_gpus;
    layer_make(&self);

    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    config.max_tokens = TOKENS;
    config.max_row_bytes = HIDDEN * sizeof(float);
    config.max_topk = TOPK;
    config.max_experts = self.num_ranks;
    config.device = (expar_device){EXPAR_CUDA, self.gpu};
    expar_ep *ep;
    must(expar_ep_create(group, &config, &ep));
    int64_t wrong = layer_run(&self, ep);
    printf("rank %d of %d on GPU %d: %d launches, %s\n", self.rank, self.num_ranks, self.gpu, LAUNCHES,
           wrong ? "WRONG" : "all sums right");

    must(expar_ep_destroy(ep));
    must(expar_group_destroy(group));
    must_cuda(cuMemFree_v2(self.x));
    must_cuda(cuMemFree_v2(self.y));
    must_cuda(cuMemFree_v2(self.topk_idx));
    must_cuda(cuStreamDestroy_v2(self.stream));
    return wrong != 0;
}

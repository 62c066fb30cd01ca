/* SPDX-License-Identifier: Apache-2.0 */
/* Dispatch and combine on a CUDA stream, and the same calls captured into a graph that is launched with other inputs.
 *
 *     expar run -n 2 -- cuda_graph        one rank a GPU
 *
 * The experts give back what they get, so y[t] is x[t] times the number of ranks that had token t. Without a
 * GPU it says so and ends with 77. */
#include "device.h"

enum { TOKENS = 64, HIDDEN = 512, TOPK = 2, LAUNCHES = 3, SKIPPED = 77 };

/* This rank's tensors in memory of its GPU, and the other arguments of its calls. */
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

/* Enqueues both calls on the stream. The host does not wait, because outputs have a worst-case size. */
static void layer_enqueue(const layer *self, expar_ep *ep)
{
    expar_ep_dispatch_args dispatch = EXPAR_EP_DISPATCH_ARGS_INIT;
    dispatch.x = on_gpu(self, self->x, EXPAR_F32, HIDDEN);
    dispatch.topk_idx = on_gpu(self, self->topk_idx, EXPAR_I32, TOPK);
    dispatch.num_experts = self->num_ranks;
    dispatch.num_worst_tokens = (int64_t)TOKENS * self->num_ranks;
    dispatch.stream = self->stream;
    expar_ep_dispatch_result rows = EXPAR_EP_DISPATCH_RESULT_INIT;
    must(expar_ep_dispatch(ep, &dispatch, &rows));

    expar_ep_combine_args combine = EXPAR_EP_COMBINE_ARGS_INIT;
    combine.x = rows.recv_x;
    combine.handle = rows.handle;
    combine.out_y = on_gpu(self, self->y, EXPAR_F32, HIDDEN);
    combine.stream = self->stream;
    must(expar_ep_combine(ep, &combine, NULL));
    /* Later calls use the memory again. A graph keeps the memory of its calls. */
    expar_ep_output_release(rows.output);
    expar_ep_handle_release(rows.handle);
}

static void x_fill(const layer *self, float (*x)[HIDDEN], int round)
{
    for (int t = 0; t < TOKENS; t++)
        for (int h = 0; h < HIDDEN; h++)
            x[t][h] = (float)((self->rank + 1) * (round + 1) + t + h);
    must(cuMemcpyHtoD_v2(self->x, x, sizeof(float[TOKENS][HIDDEN])));
}

/* Returns the number of wrong elements of y. */
static int64_t y_check(const layer *self, float (*x)[HIDDEN], float (*y)[HIDDEN])
{
    int64_t wrong = 0;
    must(cuStreamSynchronize(self->stream));
    must(cuMemcpyDtoH_v2(y, self->y, sizeof(float[TOKENS][HIDDEN])));
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
    self->stream = stream_make(self->gpu);
    must(cuMemAlloc_v2(&self->x, sizeof(float[TOKENS][HIDDEN])));
    must(cuMemAlloc_v2(&self->y, sizeof(float[TOKENS][HIDDEN])));
    must(cuMemAlloc_v2(&self->topk_idx, sizeof self->topk_idx_host));
    for (int t = 0; t < TOKENS; t++)
        for (int k = 0; k < TOPK; k++)
            self->topk_idx_host[t][k] = (self->rank + t + k) % self->num_ranks;
    must(cuMemcpyHtoD_v2(self->topk_idx, self->topk_idx_host, sizeof self->topk_idx_host));
}

static int64_t layer_run(const layer *self, expar_ep *ep)
{
    static float x[TOKENS][HIDDEN], y[TOKENS][HIDDEN];
    void *graph, *launchable;
    x_fill(self, x, 0);
    layer_enqueue(self, ep);
    int64_t wrong = y_check(self, x, y);

    must(cuStreamBeginCapture_v2(self->stream, 1)); /* captures calls of this thread only */
    layer_enqueue(self, ep);
    must(cuStreamEndCapture(self->stream, &graph));
    must(cuGraphInstantiateWithFlags(&launchable, graph, 0));
    for (int round = 1; round <= LAUNCHES; round++) {
        x_fill(self, x, round);
        must(cuGraphLaunch(launchable, self->stream));
        wrong += y_check(self, x, y);
        must(expar_ep_query(ep)); /* nothing else reports errors of calls in a graph */
    }
    must(cuGraphExecDestroy(launchable));
    must(cuGraphDestroy(graph));
    return wrong;
}

int main(void)
{
    const int num_gpus = driver_open();
    if (num_gpus == 0) return puts("SKIPPED: there is no GPU"), SKIPPED;
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
    must(cuMemFree_v2(self.x));
    must(cuMemFree_v2(self.y));
    must(cuMemFree_v2(self.topk_idx));
    must(cuStreamDestroy_v2(self.stream));
    return wrong != 0;
}

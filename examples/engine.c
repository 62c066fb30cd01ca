/* SPDX-License-Identifier: Apache-2.0 */
/* An engine's life: route, allocate, dispatch, GEMM in place, combine, graph, and an end in the wrong order.
 * expar run -n 4 -- engine      On GPUs, one a rank, the GEMM is left out: -include cuda.h -D'CUDA(call)=must(call)' */
#include <expar/expar.h>
#include <stdio.h>
#include <stdlib.h>
#ifndef CUDA
#define CUDA(call) /* on CPUs: nothing */
#endif
enum { T = 32, H = 64, K = 2 };

static void must(int status) /* EXPAR_OK and CUDA_SUCCESS are 0 */
{
    if (status != 0) exit((fprintf(stderr, "engine: status %d, %s\n", status, expar_last_error()), 1));
}

int main(void)
{
    static _Alignas(16) float x[T * H], y[T * H];
    static int32_t topk_idx[T * K];
    void *in = x, *idx = topk_idx, *out = y, *stream = NULL, *graph = NULL;
    expar_group *group;
    must(expar_group_create(NULL, &group));
    const int32_t size = expar_group_size(group);
    expar_device device = {EXPAR_CPU, 0};
    for (int i = 0; i < T * H; i++)
        x[i] = (float)i, topk_idx[i % (T * K)] = i % size;
    CUDA((device = (expar_device){EXPAR_CUDA, expar_group_local_rank(group)}, cuInit(0)));
    CUDA(cuDevicePrimaryCtxRetain((CUcontext *)&stream, device.index) || cuCtxSetCurrent(stream));
    CUDA(cuStreamCreate((CUstream *)&stream, CU_STREAM_NON_BLOCKING) || cuMemAlloc((CUdeviceptr *)&out, sizeof y));
    CUDA(cuMemAlloc((CUdeviceptr *)&in, sizeof x) || cuMemcpyHtoD((CUdeviceptr)in, x, sizeof x));
    CUDA(cuMemAlloc((CUdeviceptr *)&idx, sizeof topk_idx) || cuMemcpyHtoD((CUdeviceptr)idx, topk_idx, sizeof topk_idx));
    expar_ep *ep;
    const expar_ep_config config = {sizeof config, T, H * sizeof(float), K, size, .device = device};
    must(expar_ep_create(group, &config, &ep));
    const expar_tensor choices = {idx, EXPAR_I32, 2, {T, K}, {K, 1}, device};
    const expar_route_args route = {sizeof route, choices, .num_experts = size, .stream = stream};
    expar_route_result ways = EXPAR_ROUTE_RESULT_INIT;
    must(expar_ep_route(ep, &route, &ways));
    expar_ep_output *output; /* of the pool: rows arrive there, are worked on, and are read by combine */
    expar_tensor rows, tokens = {in, EXPAR_F32, 2, {T, H}, {H, 1}, device};
    must(expar_ep_alloc(ep, (size_t)ways.num_recv_tokens * H * sizeof(float), &output));
    must(expar_ep_output_tensor(output, EXPAR_EP_PART_X, &rows));
    rows = (expar_tensor){rows.data, EXPAR_F32, 2, {ways.num_recv_tokens, H}, {H, 1}, device};
    const expar_tensor sums = {out, EXPAR_F32, 2, {T, H}, {H, 1}, device};
    expar_dispatch_result sent = EXPAR_DISPATCH_RESULT_INIT;
    const expar_dispatch_args there = {sizeof there, tokens, .handle = ways.handle, .out_x = rows, .stream = stream};
    const expar_combine_args back = {sizeof back, rows, .handle = ways.handle, .y = sums, .stream = stream};
    CUDA(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    must(expar_dispatch(ep, &there, &sent));
    for (int64_t i = 0; device.type == EXPAR_CPU && i < ways.num_recv_tokens * H; i++)
        ((float *)rows.data)[i] *= 2; /* stands for the experts' GEMM */
    must(expar_combine(ep, &back));
    CUDA(cuStreamEndCapture(stream, (CUgraph *)&graph) || cuGraphInstantiate((CUgraphExec *)&graph, graph, 0));
    CUDA(cuGraphLaunch(graph, stream) || cuStreamSynchronize(stream) || cuMemcpyDtoH(y, (CUdeviceptr)out, sizeof y));
    printf("engine: %s, y[%d] = %g\n", graph ? "a graph" : "no graphs on CPUs: at once", T * H - 1, y[T * H - 1]);
    must(expar_ep_destroy(ep)); /* memory and handle live on */
    must(expar_group_destroy(group));
    expar_ep_output_release(sent.output);
    expar_ep_output_release(output);
    expar_ep_handle_destroy(ways.handle);
    return y[T * H - 1] != x[T * H - 1] * (size > 1 ? 2 : 1) * (graph ? 1 : 2);
}

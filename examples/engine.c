/* SPDX-License-Identifier: Apache-2.0 */
/* An engine from start to end (expar run -n 4 -- engine), on GPUs if each rank has one, else on CPUs. */
#include "device.h"

enum { T = 64, H = 64 };
static _Alignas(16) float x[T][H], w[H][H] = {{2}}, y[T][H];
static int32_t topk_idx[T][1];
static expar_tensor tokens, weights, results, sums; /* results: a GEMM's output for each received row */

static void layer(expar_ep *ep, const expar_ep_handle *handle, const device *on)
{
    const expar_ep_dispatch_args there = {sizeof there, tokens, .handle = handle, .stream = on->stream};
    const expar_ep_combine_args back = {sizeof back, results, .handle = handle, .out_y = sums, .stream = on->stream};
    expar_ep_dispatch_result rows = EXPAR_EP_DISPATCH_RESULT_INIT;
    must(expar_ep_dispatch(ep, &there, &rows));
    device_gemm(on, &rows.recv_x, &weights, &results);
    must(expar_ep_combine(ep, &back, NULL)); /* it reads the rows in place */
    expar_ep_output_release(rows.output);
}

int main(void)
{
    expar_group *group;
    must(expar_group_create(NULL, &group));
    const int32_t size = expar_group_size(group);
    const device on = device_open(group);
    const expar_ep_config config = {sizeof config, T, sizeof x[0], 1, size, .device = on.is};
    expar_ep *ep, *spare;
    must(expar_ep_create(group, &config, &ep));
    must(expar_ep_create(group, &config, &spare));
    for (int t = 0; t < T; t++) {
        x[t][0] = 3;
        topk_idx[t][0] = t % size;
    }
    tokens = device_tensor(&on, x, EXPAR_F32, T, H);
    weights = device_tensor(&on, w, EXPAR_F32, H, H);
    sums = device_tensor(&on, y, EXPAR_F32, T, H);
    const expar_tensor choices = device_tensor(&on, topk_idx, EXPAR_I32, T, 1);
    const expar_ep_route_args args = {sizeof args, choices, .num_experts = size, .stream = on.stream};
    expar_ep_route_result route = EXPAR_EP_ROUTE_RESULT_INIT;
    must(expar_ep_route(ep, &args, &route)); /* it returns how much memory is needed */
    expar_ep_output *memory;
    must(expar_ep_alloc(ep, (size_t)route.num_recv_tokens * sizeof x[0], &memory));
    must(expar_ep_output_get_tensor(memory, EXPAR_EP_PART_X, &results));
    results = device_view(&on, results.data, EXPAR_F32, route.num_recv_tokens, H);
    layer(ep, route.handle, &on); /* directly */
    device_capture(&on);
    layer(ep, route.handle, &on); /* in a graph, which keeps its memory */
    device_launch(&on);
    must(expar_ep_output_retain(memory)); /* for a second tensor of it; the first one goes */
    expar_ep_output_release(memory);
    expar_ep_abandon(spare); /* it does not wait, as a finaliser must not */
    must(expar_ep_destroy(ep));
    must(expar_group_destroy(group)); /* the memory outlives both */
    const float result = device_first(&on, &results), sum = device_first(&on, &sums);
    expar_ep_output_release(memory);
    expar_ep_handle_release(route.handle);
    printf("a result is %g, a sum %g\n", result, sum);
    return result != 6 || sum != 6;
}

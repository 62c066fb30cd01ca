/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks without tokens. */
#include "ep/harness/idle_rank.h"
#include "cuda/find_controls.h"
#include "ep/harness/check.h"
#include "ep/normal/normal.h"
#include "exec/cuda/normal/normal_gpu.h"

expar_ep_config idle_config(const expar_group *group)
{
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    config.max_tokens = 4;
    config.max_row_bytes = IDLE_HIDDEN * sizeof(float);
    config.max_topk = 1;
    config.max_experts = group->size;
    config.device = (expar_device){.type = EXPAR_CUDA};
    return config;
}

bool idle_begin_as(idle_rank *one, expar_group *group, const expar_ep_config *config)
{
    *one = (idle_rank){.group = group};
    one->came = (expar_ep_dispatch_result)EXPAR_EP_DISPATCH_RESULT_INIT;
    if (!CHECK_OK(cuda_device_open(config->device.index, &one->gpu)) || !CHECK_OK(cuda_enter(one->gpu))) return false;
    CHECK_OK(CUDA_CALL(StreamCreate, &one->stream, CU_STREAM_NON_BLOCKING));
    return CHECK_OK(expar_ep_create(group, config, &one->ep));
}

bool idle_begin(idle_rank *one, expar_group *group)
{
    return idle_begin_with(one, group, 0);
}

bool idle_begin_with(idle_rank *one, expar_group *group, int64_t pool_bytes)
{
    expar_ep_config config = idle_config(group);
    config.pool_bytes = config.pool_limit_bytes = pool_bytes;
    return idle_begin_as(one, group, &config);
}

bool idle_begin_at(idle_rank *one, expar_group *group, int32_t gpu)
{
    expar_ep_config config = idle_config(group);
    config.device.index = gpu;
    return idle_begin_as(one, group, &config);
}

void idle_forget(idle_rank *one)
{
    expar_ep_output_release(one->came.output);
    expar_ep_handle_release(one->came.handle);
    one->came = (expar_ep_dispatch_result)EXPAR_EP_DISPATCH_RESULT_INIT;
}

void idle_end(idle_rank *one)
{
    idle_forget(one);
    CHECK_OK(expar_ep_destroy(one->ep));
    CHECK_OK(CUDA_CALL(StreamDestroy, one->stream));
    cuda_leave();
    cuda_device_close(one->gpu);
    const fake_controls *controls = controls_find();
    CHECK(!controls || atomic_load(&controls->host_functions) == 0, "the library has put a host function on a stream");
}

mem_block *idle_fill_pool(const idle_rank *one)
{
    mem_block *handle, *rest = NULL;
    uint64_t bytes = gpu_routing_bytes(&one->ep->shape, 0);
    if (!CHECK_OK(mem_pool_take(one->ep->base.exec->pool, bytes, &handle))) return NULL;
    CHECK(mem_pool_take_whole(one->ep->base.exec->pool, 1, &rest), "the pool is full");
    mem_block_release(handle);
    return rest;
}

expar_tensor idle_tensor(expar_dtype dtype, int64_t columns)
{
    expar_tensor t = expar_tensor_2d(NULL, dtype, 0, columns);
    t.device = (expar_device){.type = EXPAR_CUDA};
    return t;
}

expar_ep_dispatch_args idle_dispatch_args(const idle_rank *one, expar_dtype dtype)
{
    expar_ep_dispatch_args args = EXPAR_EP_DISPATCH_ARGS_INIT;
    args.x = idle_tensor(dtype, IDLE_HIDDEN);
    args.topk_idx = idle_tensor(EXPAR_I32, 1);
    args.x.device.index = args.topk_idx.device.index = one->gpu->index;
    args.num_experts = one->group->size;
    args.stream = one->stream;
    return args;
}

expar_ep_combine_args idle_combine_args(const idle_rank *one)
{
    expar_ep_combine_args args = EXPAR_EP_COMBINE_ARGS_INIT;
    args.x = args.out_y = idle_tensor(EXPAR_F32, IDLE_HIDDEN);
    args.x.device.index = args.out_y.device.index = one->gpu->index;
    args.handle = one->came.handle;
    args.stream = one->stream;
    return args;
}

bool idle_dispatch(idle_rank *one, expar_dtype dtype)
{
    expar_ep_dispatch_args args = idle_dispatch_args(one, dtype);
    idle_forget(one);
    return CHECK_OK(expar_ep_dispatch(one->ep, &args, &one->came));
}

bool idle_combine(idle_rank *one)
{
    expar_ep_combine_args args = idle_combine_args(one);
    return CHECK_OK(expar_ep_combine(one->ep, &args, NULL));
}

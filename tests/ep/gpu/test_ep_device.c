/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors on the wrong device: each is refused with its name and both places, on CPU buffers and on GPU buffers, and
 * the buffer stays usable. */
#include "cuda/cuda.h"
#include "cuda/gpus.h"
#include "shmem/kind.h"

#define TOKENS 4
#define HIDDEN 16

static int32_t num_gpus;

/* One rank's memory on both sides. */
typedef struct sides {
    cuda_device *gpu;
    cu_stream stream;
    float host[TOKENS * HIDDEN];
    int32_t host_idx[TOKENS];
    cu_address rows, idx;
} sides;

static bool open_sides(sides *s)
{
    memset(s, 0, sizeof *s);
    return CHECK_OK(cuda_device_open(0, &s->gpu)) && CHECK_OK(cuda_enter(s->gpu)) &&
           CHECK_OK(CUDA_CALL(StreamCreate, &s->stream, CU_STREAM_NON_BLOCKING)) &&
           CHECK_OK(CUDA_CALL(MemAlloc, &s->rows, sizeof s->host)) &&
           CHECK_OK(CUDA_CALL(MemAlloc, &s->idx, sizeof s->host_idx)) &&
           CHECK_OK(CUDA_CALL(MemcpyHtoD, s->rows, s->host, sizeof s->host)) &&
           CHECK_OK(CUDA_CALL(MemcpyHtoD, s->idx, s->host_idx, sizeof s->host_idx)) && CHECK_OK(cuda_synchronize());
}

static void close_sides(sides *s)
{
    CHECK_OK(CUDA_CALL(StreamDestroy, s->stream));
    CHECK_OK(CUDA_CALL(MemFree, s->rows));
    CHECK_OK(CUDA_CALL(MemFree, s->idx));
    cuda_leave();
    cuda_device_close(s->gpu);
}

static expar_ep *make_buffer(expar_group *group, expar_device device)
{
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    expar_ep *ep = NULL;
    config.max_tokens = TOKENS;
    config.max_row_bytes = HIDDEN * sizeof(float);
    config.max_topk = 1;
    config.max_experts = group->size;
    config.device = device;
    return CHECK_OK(expar_ep_create(group, &config, &ep)) ? ep : NULL;
}

static expar_tensor on(expar_device device, expar_tensor tensor)
{
    tensor.device = device;
    return tensor;
}

/* All arguments where `device` wants them. */
static expar_ep_dispatch_args good_args(sides *s, expar_device device, int32_t experts)
{
    bool gpu = device.type == EXPAR_CUDA;
    void *rows = gpu ? (void *)(uintptr_t)s->rows : s->host, *idx = gpu ? (void *)(uintptr_t)s->idx : s->host_idx;
    expar_ep_dispatch_args args = EXPAR_EP_DISPATCH_ARGS_INIT;
    args.x = on(device, expar_tensor_2d(rows, EXPAR_F32, TOKENS, HIDDEN));
    args.topk_idx = on(device, expar_tensor_2d(idx, EXPAR_I32, TOKENS, 1));
    args.num_experts = experts;
    args.stream = gpu ? s->stream : NULL;
    return args;
}

static void reject(expar_ep *ep, const expar_ep_dispatch_args *args, const char *what, const char *where)
{
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    CHECK_STATUS(EXPAR_ERR_DEVICE, expar_ep_dispatch(ep, args, &result));
    CHECK_TEXT("expar_ep_dispatch", what, where);
}

static void accept(expar_ep *ep, const sides *s, const expar_ep_dispatch_args *args)
{
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    if (!CHECK_OK(expar_ep_dispatch(ep, args, &result))) return;
    CHECK_OK(CUDA_CALL(StreamSynchronize, s->stream));
    expar_ep_output_release(result.output);
    expar_ep_handle_release(result.handle);
}

static void gpu_memory_for_a_cpu_buffer(expar_group *group, void *shared)
{
    (void)shared;
    const expar_device cpu = {.type = EXPAR_CPU};
    sides s;
    if (!open_sides(&s)) return;
    expar_ep *ep = make_buffer(group, cpu);
    if (!ep) return;
    expar_ep_dispatch_args args = good_args(&s, cpu, group->size);
    args.x.data = (void *)(uintptr_t)s.rows;
    reject(ep, &args, "x.data", "memory of GPU 0; expected host memory");
    args = good_args(&s, cpu, group->size);
    args.topk_idx.data = (void *)(uintptr_t)s.idx;
    reject(ep, &args, "topk_idx.data", "memory of GPU 0; expected host memory");
    args = good_args(&s, cpu, group->size);
    accept(ep, &s, &args);
    CHECK_OK(expar_ep_destroy(ep));
    close_sides(&s);
}

static void host_memory_for_a_gpu_buffer(expar_group *group, void *shared)
{
    (void)shared;
    const expar_device gpu = {.type = EXPAR_CUDA}, other = {.type = EXPAR_CUDA, .index = 1};
    sides s;
    if (!open_sides(&s)) return;
    expar_ep *ep = make_buffer(group, gpu);
    if (!ep) return;
    expar_ep_dispatch_args args = good_args(&s, gpu, group->size);
    args.x.data = s.host;
    reject(ep, &args, "x.data", "host memory; expected memory of GPU 0");
    args = good_args(&s, gpu, group->size);
    args.topk_idx.data = s.host_idx;
    reject(ep, &args, "topk_idx.data", "host memory; expected memory of GPU 0");
    args = good_args(&s, gpu, group->size);
    args.x = on((expar_device){.type = EXPAR_CPU}, args.x);
    reject(ep, &args, "x lies on device type CPU", "expected CUDA");
    args = good_args(&s, gpu, group->size);
    args.x = on(other, args.x);
    reject(ep, &args, "x lies on GPU 1", "expected GPU 0");
    args = good_args(&s, gpu, group->size);
    accept(ep, &s, &args);
    CHECK_OK(expar_ep_destroy(ep));
    close_sides(&s);
}

static void memory_of_another_gpu(expar_group *group, void *shared)
{
    (void)shared;
    const expar_device gpu = {.type = EXPAR_CUDA};
    cuda_device *second;
    cu_address far;
    sides s;
    if (!open_sides(&s)) return;
    expar_ep *ep = make_buffer(group, gpu);
    if (!ep || !CHECK_OK(cuda_device_open(1, &second)) || !CHECK_OK(cuda_enter(second))) return;
    CHECK_OK(CUDA_CALL(MemAlloc, &far, sizeof s.host));
    expar_ep_dispatch_args args = good_args(&s, gpu, group->size);
    args.x.data = (void *)(uintptr_t)far;
    reject(ep, &args, "x.data", "memory of GPU 1; expected GPU 0");
    CHECK_OK(CUDA_CALL(MemFree, far));
    cuda_leave();
    cuda_device_close(second);
    CHECK_OK(expar_ep_destroy(ep));
    close_sides(&s);
}

static void a_gpu_that_is_not_there(expar_group *group, void *shared)
{
    (void)shared;
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    expar_ep *ep = NULL;
    bool last = group->rank == group->size - 1;
    config.max_tokens = TOKENS;
    config.max_row_bytes = 64;
    config.max_topk = 1;
    config.max_experts = group->size;
    config.device = (expar_device){.type = EXPAR_CUDA, .index = last ? 1000 : 0};
    CHECK_STATUS(last ? EXPAR_ERR_RANGE : EXPAR_ERR_REMOTE, expar_ep_create(group, &config, &ep));
    CHECK_TEXT("expar_ep_create", "GPU 1000");
}

static void more_memory_than_there_is(expar_group *group, void *shared)
{
    (void)shared;
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    expar_ep *ep = NULL;
    config.max_tokens = TOKENS;
    config.max_row_bytes = 64;
    config.max_topk = 1;
    config.max_experts = group->size;
    config.pool_bytes = (int64_t)1 << 50;
    config.device = (expar_device){.type = EXPAR_CUDA};
    CHECK_STATUS(EXPAR_ERR_MEMORY, expar_ep_create(group, &config, &ep));
    CHECK_TEXT("expar_ep_create", "GPU 0");
}

#define ON_RANKS(body)                                                                                                 \
    static void body##_on_ranks(void **state)                                                                          \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        kind_run((ranks_plan){0}, 1, body);                                                                            \
        kind_run((ranks_plan){0}, 2, body);                                                                            \
    }
ON_RANKS(gpu_memory_for_a_cpu_buffer)
ON_RANKS(host_memory_for_a_gpu_buffer)
ON_RANKS(a_gpu_that_is_not_there)
ON_RANKS(more_memory_than_there_is)

static void memory_of_another_gpu_on_ranks(void **state)
{
    (void)state;
    if (num_gpus < 2) skip();
    kind_run((ranks_plan){0}, 2, memory_of_another_gpu);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpu_memory_for_a_cpu_buffer_on_ranks), cmocka_unit_test(host_memory_for_a_gpu_buffer_on_ranks),
        cmocka_unit_test(memory_of_another_gpu_on_ranks),       cmocka_unit_test(a_gpu_that_is_not_there_on_ranks),
        cmocka_unit_test(more_memory_than_there_is_on_ranks),
    };
    kind_read(argc, argv);
    num_gpus = gpus_count(1);
    if (num_gpus < 1) return GPUS_SKIP;
    return cmocka_run_group_tests(tests, NULL, NULL);
}

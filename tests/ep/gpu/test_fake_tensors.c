/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments that lie somewhere, with GPUs that cuda/fake/fake.c simulates. Some tensors a buffer cannot take: on the
 * wrong side, on another GPU, with the wrong strides, not aligned. They are rejected with their name and the
 * expectation, and the buffer takes the next call. Counts of the caller's may go when the call returns. */
#include "cuda/cuda.h"
#include "shmem/kind.h"

#define TOKENS 4
#define HIDDEN 16

/* One rank's memory: of the host and of both GPUs. */
typedef struct sides {
    cuda_device *gpus[2];
    cu_address rows[2];
    _Alignas(128) float host[TOKENS * HIDDEN];
    int32_t host_idx[TOKENS];
} sides;

static bool open_sides(sides *s)
{
    memset(s, 0, sizeof *s);
    for (int32_t i = 0; i < 2; i++) {
        if (!CHECK_OK(cuda_device_open(i, &s->gpus[i])) || !CHECK_OK(cuda_enter(s->gpus[i]))) return false;
        CHECK_OK(CUDA_CALL(MemAlloc, &s->rows[i], sizeof s->host));
        cuda_leave();
    }
    return true;
}

static void close_sides(sides *s)
{
    for (int32_t i = 0; i < 2; i++) {
        CHECK_OK(cuda_enter(s->gpus[i]));
        CHECK_OK(CUDA_CALL(MemFree, s->rows[i]));
        cuda_leave();
        cuda_device_close(s->gpus[i]);
    }
}

static void *on_gpu(const sides *s, int32_t index)
{
    return (void *)(uintptr_t)s->rows[index];
}

static const expar_device host = {.type = EXPAR_CPU}, first = {.type = EXPAR_CUDA},
                          second = {.type = EXPAR_CUDA, .index = 1};

static expar_tensor rows_at(void *data, expar_device device)
{
    expar_tensor x = expar_tensor_2d(data, EXPAR_F32, TOKENS, HIDDEN);
    x.device = device;
    return x;
}

static expar_tensor spaced(expar_tensor x, int64_t row, int64_t column)
{
    x.strides[0] = row;
    x.strides[1] = column;
    return x;
}

static expar_ep *make_buffer(expar_group *group, expar_device device)
{
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    expar_ep *ep = NULL;
    config.max_tokens = TOKENS;
    config.max_row_bytes = HIDDEN * sizeof(float);
    config.max_topk = 1;
    config.max_scales = 2;
    config.max_experts = group->size;
    config.device = device;
    return CHECK_OK(expar_ep_create(group, &config, &ep)) ? ep : NULL;
}

static void reject(expar_ep *ep, expar_tensor x, expar_tensor idx, expar_status expected, const char *what,
                   const char *why)
{
    static char stream; /* of the fake driver any address is one */
    expar_ep_dispatch_args args = EXPAR_EP_DISPATCH_ARGS_INIT;
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    args.x = x;
    args.topk_idx = idx;
    args.num_experts = 1;
    args.stream = x.device.type == EXPAR_CUDA ? &stream : NULL;
    CHECK_STATUS(expected, expar_ep_dispatch(ep, &args, &result));
    CHECK_TEXT("expar_ep_dispatch", what, why);
}

/* Numbers of tokens by hand may lie on the host or where the tensors do. */
static void reject_counts(expar_ep *ep, expar_tensor x, const int32_t *counts, const char *what, const char *why)
{
    static char stream;
    expar_ep_dispatch_args args = EXPAR_EP_DISPATCH_ARGS_INIT;
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    args.x = x;
    args.token_in_rank = expar_tensor_2d(x.data, EXPAR_U8, TOKENS, 1);
    args.token_in_rank.device = x.device;
    args.tokens_per_expert = counts;
    args.num_experts = 1;
    args.stream = x.device.type == EXPAR_CUDA ? &stream : NULL;
    CHECK_STATUS(EXPAR_ERR_DEVICE, expar_ep_dispatch(ep, &args, &result));
    CHECK_TEXT("expar_ep_dispatch", what, why);
}

static void a_gpu_buffer(expar_group *group, void *shared)
{
    (void)shared;
    sides s;
    if (!open_sides(&s)) return;
    expar_ep *ep = make_buffer(group, first);
    if (!ep) return;
    expar_tensor x = rows_at(on_gpu(&s, 0), first), idx = expar_tensor_2d(on_gpu(&s, 0), EXPAR_I32, TOKENS, 1);
    idx.device = first;
    reject(ep, rows_at(s.host, first), idx, EXPAR_ERR_DEVICE, "x.data", "is host memory; expected memory of GPU 0");
    reject(ep, rows_at(s.host, host), idx, EXPAR_ERR_DEVICE, "x lies on device type CPU", "expected CUDA");
    reject(ep, rows_at(on_gpu(&s, 1), first), idx, EXPAR_ERR_DEVICE, "x.data", "is memory of GPU 1; expected GPU 0");
    reject(ep, rows_at(on_gpu(&s, 1), second), idx, EXPAR_ERR_DEVICE, "x lies on GPU 1", "expected GPU 0");
    reject(ep, spaced(x, HIDDEN, 2), idx, EXPAR_ERR_STRIDE, "x.strides[1] is 2", "expected 1");
    reject(ep, spaced(x, HIDDEN - 1, 1), idx, EXPAR_ERR_STRIDE, "x.strides[0] is 15", "expected at least 16");
    reject(ep, spaced(x, HIDDEN + 1, 1), idx, EXPAR_ERR_ALIGNMENT, "x.strides[0] is 17", "multiple of 16");
    reject(ep, rows_at((char *)on_gpu(&s, 0) + 4, first), idx, EXPAR_ERR_ALIGNMENT, "x.data", "multiple of 16");
    idx.data = s.host_idx;
    reject(ep, x, idx, EXPAR_ERR_DEVICE, "topk_idx.data", "is host memory; expected memory of GPU 0");
    reject_counts(ep, x, on_gpu(&s, 1), "tokens_per_expert", "is memory of GPU 1; expected GPU 0");
    CHECK_OK(expar_ep_destroy(ep));
    close_sides(&s);
}

/* Kernels reckon with 64 bits: each of these strides alone would do, both do not. */
static void scales_apart(expar_group *group, void *shared)
{
    (void)shared;
    static const int64_t far = INT64_MAX / sizeof(float) - 4;
    sides s;
    char stream;
    if (!open_sides(&s)) return;
    expar_ep *ep = make_buffer(group, first);
    if (!ep) return;
    expar_ep_dispatch_args args = EXPAR_EP_DISPATCH_ARGS_INIT;
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    args.x = expar_tensor_2d(on_gpu(&s, 0), EXPAR_F8E4M3, TOKENS, HIDDEN);
    args.topk_idx = expar_tensor_2d(on_gpu(&s, 0), EXPAR_I32, TOKENS, 1);
    args.x_scales = spaced(expar_tensor_2d(on_gpu(&s, 0), EXPAR_F32, TOKENS, 2), -far / TOKENS, far / 2);
    args.x.device = args.topk_idx.device = args.x_scales.device = first;
    args.num_experts = 1;
    args.stream = &stream;
    CHECK_STATUS(EXPAR_ERR_STRIDE, expar_ep_dispatch(ep, &args, &result));
    CHECK_TEXT("expar_ep_dispatch", "x_scales.strides are [", "with shape [4][2]", "less than 2^63 bytes");
    CHECK_OK(expar_ep_destroy(ep));
    close_sides(&s);
}

static void scales_that_reach_too_far(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 1, scales_apart);
}

static void a_cpu_buffer(expar_group *group, void *shared)
{
    (void)shared;
    sides s;
    if (!open_sides(&s)) return;
    expar_ep *ep = make_buffer(group, host);
    if (!ep) return;
    expar_tensor idx = expar_tensor_2d(s.host_idx, EXPAR_I32, TOKENS, 1);
    reject(ep, rows_at(on_gpu(&s, 1), host), idx, EXPAR_ERR_DEVICE, "x.data", "is memory of GPU 1; expected host");
    reject(ep, rows_at(on_gpu(&s, 0), first), idx, EXPAR_ERR_DEVICE, "x lies on device type CUDA", "expected CPU");
    idx.data = on_gpu(&s, 0);
    reject(ep, rows_at(s.host, host), idx, EXPAR_ERR_DEVICE, "topk_idx.data", "is memory of GPU 0; expected host");
    reject_counts(ep, rows_at(s.host, host), on_gpu(&s, 0), "tokens_per_expert", "is memory of GPU 0; expected host");
    CHECK_OK(expar_ep_destroy(ep));
    close_sides(&s);
}

/* The counts go ahead of the kernels, of which the first cannot be launched, from the host and from the GPU. */
static void routing_by_hand(expar_group *group, void *shared)
{
    (void)shared;
    sides s;
    char stream;
    if (!open_sides(&s)) return;
    expar_ep *ep = make_buffer(group, first);
    if (!ep) return;
    for (int32_t i = 0; i < 3; i++) {
        int32_t *counts = calloc(1, sizeof *counts);
        expar_ep_dispatch_args args = EXPAR_EP_DISPATCH_ARGS_INIT;
        expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
        args.x = rows_at(on_gpu(&s, 0), first);
        args.token_in_rank = expar_tensor_2d(on_gpu(&s, 0), EXPAR_U8, TOKENS, 1);
        args.token_in_rank.device = first;
        args.tokens_per_expert = i == 2 ? on_gpu(&s, 0) : counts;
        args.num_experts = 1;
        args.stream = &stream;
        CHECK_STATUS(EXPAR_ERR_CUDA, expar_ep_dispatch(ep, &args, &result));
        CHECK_TEXT("cuLaunchKernelEx", "719");
        free(counts);
    }
    CHECK_OK(expar_ep_destroy(ep));
    close_sides(&s);
}

static void counts_go_ahead(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 1, routing_by_hand);
}

static void gpu_buffers_reject(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 1, a_gpu_buffer);
}

static void cpu_buffers_reject(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 1, a_cpu_buffer);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(gpu_buffers_reject), cmocka_unit_test(cpu_buffers_reject),
                                       cmocka_unit_test(counts_go_ahead), cmocka_unit_test(scales_that_reach_too_far)};
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

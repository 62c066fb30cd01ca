/* SPDX-License-Identifier: Apache-2.0 */
/* Every tensor of a call on a GPU's buffer, in turns, in host memory and on another GPU. Each is rejected with its
 * name, where it lies and the expectation. So are arrays for the host's eyes that lie on a GPU. The next call is as
 * good as ever. With GPUs that cuda/fake/fake.c simulates, and ranks without tokens. */
#include "ep/harness/idle_rank.h"
#include "shmem/kind.h"

#include <stddef.h>
#include <stdio.h>

#define SCALES 2

/* One rank's memory: of the host and of both GPUs. */
typedef struct sides {
    idle_rank one;
    cuda_device *gpus[2];
    void *on[2];
    _Alignas(128) char host[256];
} sides;

static bool open_sides(sides *s, expar_group *group)
{
    memset(s, 0, sizeof *s);
    if (!idle_begin(&s->one, group)) return false;
    for (int32_t i = 0; i < 2; i++) {
        cu_address address;
        if (!CHECK_OK(cuda_device_open(i, &s->gpus[i])) || !CHECK_OK(cuda_enter(s->gpus[i]))) return false;
        bool taken = CHECK_OK(CUDA_CALL(MemAlloc, &address, sizeof s->host));
        cuda_leave();
        if (!taken) return false;
        s->on[i] = (void *)(uintptr_t)address;
    }
    return true;
}

static void close_sides(sides *s)
{
    for (int32_t i = 0; i < 2; i++) {
        CHECK_OK(CUDA_CALL(MemFree, (cu_address)(uintptr_t)s->on[i]));
        cuda_device_close(s->gpus[i]);
    }
    idle_end(&s->one);
}

static expar_tensor at(const sides *s, expar_dtype dtype, int64_t columns)
{
    expar_tensor tensor = idle_tensor(dtype, columns);
    tensor.data = s->on[0];
    return tensor;
}

/* ---- calls with every tensor that they may have ------------------------------------------------------------------ */

static expar_ep_dispatch_args full_dispatch(const sides *s)
{
    expar_ep_dispatch_args args = idle_dispatch_args(&s->one, EXPAR_F8E4M3);
    args.x = args.out_x = at(s, EXPAR_F8E4M3, IDLE_HIDDEN);
    args.topk_idx = at(s, EXPAR_I32, 1);
    args.topk_weights = at(s, EXPAR_F32, 1);
    args.x_scales = at(s, EXPAR_F32, SCALES);
    args.token_in_rank = at(s, EXPAR_U8, s->one.group->size);
    args.expert_major = 1;
    return args;
}

static expar_ep_combine_args full_combine(const sides *s)
{
    expar_ep_combine_args args = idle_combine_args(&s->one);
    args.x = args.out_y = args.bias[0] = args.bias[1] = at(s, EXPAR_F32, IDLE_HIDDEN);
    args.topk_weights = args.out_topk_weights = args.expert_weights = at(s, EXPAR_F32, 1);
    args.expert_major = 1;
    return args;
}

static bool dispatch(sides *s, const expar_ep_dispatch_args *args)
{
    expar_ep_output_release(s->one.came.output);
    expar_ep_handle_release(s->one.came.handle);
    s->one.came = (expar_ep_dispatch_result)EXPAR_EP_DISPATCH_RESULT_INIT;
    return CHECK_OK(expar_ep_dispatch(s->one.ep, args, &s->one.came));
}

/* ---- a tensor in the wrong place --------------------------------------------------------------------------------- */

typedef struct argument {
    const char *name;
    size_t offset; /* in the call's arguments */
} argument;

/* The text about it: after its name, and the expectation. */
typedef struct place {
    bool on_host;        /* else on GPU 1 */
    expar_device device; /* that the tensor names */
    const char *where, *expected;
} place;

static const place wrong_places[] = {
    {true, {EXPAR_CUDA, 0}, ".data", "is host memory; expected memory of GPU 0"},
    {false, {EXPAR_CUDA, 0}, ".data", "is memory of GPU 1; expected GPU 0"},
    {true, {EXPAR_CPU, 0}, " lies on device type CPU", "expected CUDA"},
    {false, {EXPAR_CUDA, 1}, " lies on GPU 1", "expected GPU 0, the buffer's"},
};

/* The argument's tensor goes there. `args` is a call's. */
static void misplace(sides *s, void *args, const argument *one, const place *wrong)
{
    expar_tensor *tensor = (expar_tensor *)(void *)((char *)args + one->offset);
    tensor->data = wrong->on_host ? s->host : s->on[1];
    tensor->device = wrong->device;
}

static void check_rejected(expar_status status, const char *call, const argument *one, const place *wrong)
{
    char where[96];
    snprintf(where, sizeof where, "%s%s", one->name, wrong->where);
    CHECK_STATUS(EXPAR_ERR_DEVICE, status);
    CHECK_TEXT(call, where, wrong->expected);
}

#define DISPATCH(member)                                                                                               \
    {                                                                                                                  \
#member, offsetof(expar_ep_dispatch_args, member)                                                              \
    }
static const argument dispatch_arguments[] = {DISPATCH(x),        DISPATCH(topk_idx),      DISPATCH(topk_weights),
                                              DISPATCH(x_scales), DISPATCH(token_in_rank), DISPATCH(out_x)};

#define COMBINE(member)                                                                                                \
    {                                                                                                                  \
#member, offsetof(expar_ep_combine_args, member)                                                               \
    }
static const argument combine_arguments[] = {COMBINE(x),
                                             COMBINE(out_y),
                                             COMBINE(topk_weights),
                                             COMBINE(bias[0]),
                                             COMBINE(bias[1]),
                                             COMBINE(out_topk_weights),
                                             COMBINE(expert_weights)};

static void misplaced_in_dispatch(expar_group *group, void *shared)
{
    (void)shared;
    sides s;
    if (!open_sides(&s, group)) return;
    const expar_ep_dispatch_args good = full_dispatch(&s);
    for (size_t i = 0; i < ARRAY_LENGTH(dispatch_arguments); i++)
        for (size_t w = 0; w < ARRAY_LENGTH(wrong_places); w++) {
            expar_ep_dispatch_args args = good;
            expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
            misplace(&s, &args, &dispatch_arguments[i], &wrong_places[w]);
            check_rejected(expar_ep_dispatch(s.one.ep, &args, &result), "expar_ep_dispatch", &dispatch_arguments[i],
                           &wrong_places[w]);
        }
    dispatch(&s, &good);
    close_sides(&s);
}

static void misplaced_in_combine(expar_group *group, void *shared)
{
    (void)shared;
    sides s;
    if (!open_sides(&s, group)) return;
    const expar_ep_dispatch_args before = full_dispatch(&s);
    if (!dispatch(&s, &before)) return;
    const expar_ep_combine_args good = full_combine(&s);
    for (size_t i = 0; i < ARRAY_LENGTH(combine_arguments); i++)
        for (size_t w = 0; w < ARRAY_LENGTH(wrong_places); w++) {
            expar_ep_combine_args args = good;
            misplace(&s, &args, &combine_arguments[i], &wrong_places[w]);
            check_rejected(expar_ep_combine(s.one.ep, &args, NULL), "expar_ep_combine", &combine_arguments[i],
                           &wrong_places[w]);
        }
    CHECK_OK(expar_ep_combine(s.one.ep, &good, NULL));
    close_sides(&s);
}

/* ---- arrays that the host reads and writes ----------------------------------------------------------------------- */

static void counts_on_another_gpu(expar_group *group, void *shared)
{
    (void)shared;
    sides s;
    if (!open_sides(&s, group)) return;
    expar_ep_dispatch_args args = full_dispatch(&s);
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    args.topk_idx = args.topk_weights = EXPAR_TENSOR_NONE;
    args.expert_major = 0;
    args.tokens_per_expert = s.on[1];
    CHECK_STATUS(EXPAR_ERR_DEVICE, expar_ep_dispatch(s.one.ep, &args, &result));
    CHECK_TEXT("expar_ep_dispatch", "tokens_per_expert", "is memory of GPU 1");
    args.tokens_per_expert = NULL;
    dispatch(&s, &args);
    close_sides(&s);
}

static void reject_layout(const expar_group *group, const expar_ep_layout *layout, const char *name, const char *where)
{
    static int32_t idx[2];
    const expar_tensor topk_idx = expar_tensor_2d(idx, EXPAR_I32, 2, 1);
    CHECK_STATUS(EXPAR_ERR_DEVICE, expar_ep_get_layout(group, &topk_idx, group->size, layout));
    CHECK_TEXT("expar_ep_get_layout", name, where);
}

static void layouts_on_gpus(expar_group *group, void *shared)
{
    (void)shared;
    static const char first[] = "is memory of GPU 0; expected host memory";
    sides s;
    int32_t to_ranks[2];
    if (!open_sides(&s, group)) return;
    expar_ep_layout layout = EXPAR_EP_LAYOUT_INIT;
    layout.tokens_per_rank = s.on[0];
    reject_layout(group, &layout, "layout.tokens_per_rank", first);
    layout.tokens_per_rank = to_ranks;
    layout.tokens_per_node = s.on[0];
    reject_layout(group, &layout, "layout.tokens_per_node", first);
    layout.tokens_per_node = NULL;
    layout.tokens_per_expert = s.on[0];
    reject_layout(group, &layout, "layout.tokens_per_expert", first);
    layout.tokens_per_expert = NULL;
    layout.token_in_rank = s.on[1];
    reject_layout(group, &layout, "layout.token_in_rank", "is memory of GPU 1; expected host memory");
    layout.token_in_rank = NULL;
    const expar_tensor on_gpu = expar_tensor_2d(s.on[0], EXPAR_I32, 2, 1);
    CHECK_STATUS(EXPAR_ERR_DEVICE, expar_ep_get_layout(group, &on_gpu, group->size, &layout));
    CHECK_TEXT("expar_ep_get_layout", "topk_idx.data", first);
    close_sides(&s);
}

#define ON_RANKS(body)                                                                                                 \
    static void body##_are_rejected(void **state)                                                                      \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        kind_run((ranks_plan){0}, 2, body);                                                                            \
    }
ON_RANKS(misplaced_in_dispatch)
ON_RANKS(misplaced_in_combine)
ON_RANKS(counts_on_another_gpu)
ON_RANKS(layouts_on_gpus)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(misplaced_in_dispatch_are_rejected),
        cmocka_unit_test(misplaced_in_combine_are_rejected),
        cmocka_unit_test(counts_on_another_gpu_are_rejected),
        cmocka_unit_test(layouts_on_gpus_are_rejected),
    };
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

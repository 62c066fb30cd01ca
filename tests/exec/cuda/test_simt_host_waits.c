/* SPDX-License-Identifier: Apache-2.0 */
/* Reads of the host's memory by a kernel that waits long, on simulated GPUs with the library's own kernels: one thread
 * at a time reads, and rarely. Rank 1 comes to each call some time after rank 0, each on a GPU of its own. */
#include "cuda/find_controls.h"
#include "ep/harness/idle_rank.h"
#include "shmem/kind.h"
#include <expar/low_latency.h>

#define RANKS      2
#define LOADS      16 /* of a wait */
#define DEADLINE_S 120
#define TOKENS     2

typedef struct loads {
    unsigned long long all, crowds;
} loads;

static loads loads_so_far(void)
{
    const fake_controls *controls = controls_find();
    return (loads){atomic_load(&controls->host_loads), atomic_load(&controls->host_crowds)};
}

/* The last rank comes once the kernel of the other one has waited so long that it has read some times. */
static void come_late(const expar_group *group, loads before)
{
    if (expar_group_rank(group) != RANKS - 1) return;
    for (int ms = 0; ms < DEADLINE_S * 1000 && loads_so_far().all < before.all + LOADS; ms++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* By the time that a thread reads, the reading before it may have been late; so some may come close to each other. */
static void check_loads(const char *what, loads before)
{
    const loads now = loads_so_far();
    const unsigned long long all = now.all - before.all, crowds = now.crowds - before.crowds;
    CHECK(all >= LOADS, "%s: the host's orders are read %llu times within %d s", what, all, DEADLINE_S);
    CHECK(crowds <= all / 4, "%s: of %llu loads of the host's memory %llu came within 20 us after another one", what,
          all, crowds);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

typedef struct scene {
    idle_rank one;
    expar_ll *ll;
    cu_address rows; /* of a low-latency combine */
    expar_ll_dispatch_result there;
    expar_ll_combine_result back;
} scene;

/* One rank is late in the call, whose kernel waits for it. */
typedef struct waiting_call {
    const char *name;
    void (*run)(scene *s);
} waiting_call;

static void wait_in_calls(scene *s, const waiting_call *calls, size_t number)
{
    expar_group *group = s->one.group;
    for (size_t i = 0; i < number; i++) {
        CHECK_OK(CUDA_CALL(StreamSynchronize, s->one.stream));
        CHECK_OK(expar_barrier_all(group));
        const loads before = loads_so_far();
        come_late(group, before);
        calls[i].run(s);
        CHECK_OK(CUDA_CALL(StreamSynchronize, s->one.stream));
        CHECK_OK(expar_barrier_all(group));
        check_loads(calls[i].name, before);
    }
    CHECK_OK(expar_barrier_all(group));
}

/* ---- normal mode ------------------------------------------------------------------------------------------------- */

static void dispatch_afresh(scene *s)
{
    idle_dispatch(&s->one, EXPAR_F32);
}

static void dispatch_again(scene *s)
{
    expar_ep_dispatch_args args = idle_dispatch_args(&s->one, EXPAR_F32);
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    args.topk_idx = EXPAR_TENSOR_NONE;
    args.handle = s->one.came.handle;
    CHECK_OK(expar_ep_dispatch(s->one.ep, &args, &result));
    expar_ep_output_release(result.output);
}

static void combine(scene *s)
{
    idle_combine(&s->one);
}

static const waiting_call normal_calls[] = {
    {"dispatch", dispatch_afresh}, {"dispatch with a handle", dispatch_again}, {"combine", combine}};

static void wait_in_normal_mode(expar_group *group, void *shared)
{
    scene s = {0};
    (void)shared;
    if (!idle_begin_at(&s.one, group, expar_group_rank(group)) || !idle_dispatch(&s.one, EXPAR_F32)) return;
    wait_in_calls(&s, normal_calls, sizeof normal_calls / sizeof *normal_calls);
    idle_end(&s.one);
}

/* ---- low latency ------------------------------------------------------------------------------------------------- */

static bool make_low_latency(scene *s)
{
    expar_ll_config config = EXPAR_LL_CONFIG_INIT;
    config.max_tokens = TOKENS;
    config.hidden = IDLE_HIDDEN;
    config.max_topk = 1;
    config.num_experts = RANKS;
    config.device = (expar_device){.type = EXPAR_CUDA, .index = s->one.gpu->index};
    return CHECK_OK(CUDA_CALL(MemAlloc, &s->rows, RANKS * TOKENS * IDLE_HIDDEN * sizeof(uint16_t))) &&
           CHECK_OK(expar_ll_create(s->one.group, &config, &s->ll));
}

static expar_tensor no_tokens(const scene *s, expar_dtype dtype, int64_t columns)
{
    expar_tensor t = idle_tensor(dtype, columns);
    t.device.index = s->one.gpu->index;
    return t;
}

static void ll_dispatch_by(scene *s, int32_t hook)
{
    expar_ll_dispatch_args args = EXPAR_LL_DISPATCH_ARGS_INIT;
    args.x = no_tokens(s, EXPAR_BF16, IDLE_HIDDEN);
    args.topk_idx = no_tokens(s, EXPAR_I64, 1);
    args.stream = s->one.stream;
    args.hook = hook;
    s->there = (expar_ll_dispatch_result)EXPAR_LL_DISPATCH_RESULT_INIT;
    CHECK_OK(expar_ll_dispatch(s->ll, &args, &s->there));
}

static void ll_combine_by(scene *s, int32_t hook)
{
    expar_ll_combine_args args = EXPAR_LL_COMBINE_ARGS_INIT;
    args.x = expar_tensor_1d((void *)(uintptr_t)s->rows, EXPAR_BF16, 1);
    args.x.ndim = 3;
    args.x.shape[1] = RANKS * TOKENS;
    args.x.shape[2] = IDLE_HIDDEN;
    args.x.strides[0] = (int64_t)RANKS * TOKENS * IDLE_HIDDEN;
    args.x.strides[1] = IDLE_HIDDEN;
    args.x.strides[2] = 1;
    args.x.device = (expar_device){.type = EXPAR_CUDA, .index = s->one.gpu->index};
    args.topk_idx = no_tokens(s, EXPAR_I64, 1);
    args.topk_weights = no_tokens(s, EXPAR_F32, 1);
    args.handle = s->there.handle;
    args.stream = s->one.stream;
    args.hook = hook;
    s->back = (expar_ll_combine_result)EXPAR_LL_COMBINE_RESULT_INIT;
    CHECK_OK(expar_ll_combine(s->ll, &args, &s->back));
}

static void let_go(scene *s)
{
    expar_ep_output_release(s->there.output);
    expar_ep_output_release(s->back.output);
    expar_ll_handle_release(s->there.handle);
    s->there = (expar_ll_dispatch_result)EXPAR_LL_DISPATCH_RESULT_INIT;
    s->back = (expar_ll_combine_result)EXPAR_LL_COMBINE_RESULT_INIT;
}

static void call_hook(const scene *s, expar_ll_hook *hook)
{
    CHECK_OK(expar_ll_hook_call(hook, s->one.stream));
    expar_ll_hook_release(hook);
}

static void ll_dispatch(scene *s)
{
    ll_dispatch_by(s, 0);
}

static void ll_combine(scene *s)
{
    ll_combine_by(s, 0);
    CHECK_OK(CUDA_CALL(StreamSynchronize, s->one.stream));
    let_go(s);
}

static void ll_dispatch_hooked(scene *s)
{
    ll_dispatch_by(s, 1);
    call_hook(s, s->there.hook);
}

static void ll_combine_hooked(scene *s)
{
    ll_combine_by(s, 1);
    call_hook(s, s->back.hook);
    CHECK_OK(CUDA_CALL(StreamSynchronize, s->one.stream));
    let_go(s);
}

static const waiting_call ll_calls[] = {{"low-latency dispatch", ll_dispatch},
                                        {"low-latency combine", ll_combine},
                                        {"low-latency dispatch by a hook", ll_dispatch_hooked},
                                        {"low-latency combine by a hook", ll_combine_hooked}};

static void wait_in_low_latency(expar_group *group, void *shared)
{
    scene s = {0};
    (void)shared;
    if (!idle_begin_at(&s.one, group, expar_group_rank(group)) || !make_low_latency(&s)) return;
    ll_dispatch(&s);
    ll_combine(&s);
    wait_in_calls(&s, ll_calls, sizeof ll_calls / sizeof *ll_calls);
    CHECK_OK(expar_ll_destroy(s.ll));
    CHECK_OK(CUDA_CALL(MemFree, s.rows));
    idle_end(&s.one);
}

static void long_waits_of_normal_mode(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, RANKS, wait_in_normal_mode);
}

static void long_waits_of_low_latency(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, RANKS, wait_in_low_latency);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(long_waits_of_normal_mode),
                                       cmocka_unit_test(long_waits_of_low_latency)};
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

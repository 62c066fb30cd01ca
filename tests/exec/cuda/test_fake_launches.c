/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of a call on its stream, as the simulated driver sees them (cuda/fake/fake.c). A dispatch has one kernel
 * with that word in its name, a combine likewise, by every path; a fresh dispatch opens with notify, one with a handle
 * does not. The kernel of a fresh dispatch is launched before the counts are read, where the pool has space for its
 * results. A call takes as many SMs as it says, a block each. Ranks without tokens, for which there is no layout to
 * make. And the library brings the context that this needs. */
#include "cuda/find_controls.h"
#include "ep/harness/idle_rank.h"
#include "ep/normal/normal.h"
#include "exec/cuda/normal/normal_gpu.h"
#include "shmem/kind.h"

typedef struct launches {
    int all, dispatches, combines, ahead;
} launches;

static launches launches_now(const fake_controls *controls)
{
    return (launches){atomic_load(&controls->launches), atomic_load(&controls->dispatches),
                      atomic_load(&controls->combines), atomic_load(&controls->ahead)};
}

/* Since `before`. */
static void check_launches(const fake_controls *controls, launches before, launches expected, const char *what)
{
    launches now = launches_now(controls);
    CHECK(now.all - before.all == expected.all, "%s: %d kernels, expected %d", what, now.all - before.all,
          expected.all);
    CHECK(now.dispatches - before.dispatches == expected.dispatches, "%s: %d dispatch", what,
          now.dispatches - before.dispatches);
    CHECK(now.combines - before.combines == expected.combines, "%s: %d combine", what, now.combines - before.combines);
}

static void trial_fresh(idle_rank *one, const fake_controls *controls, expar_ep_path path, int64_t worst)
{
    expar_ep_dispatch_args args = idle_dispatch_args(one, EXPAR_F32);
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    launches before = launches_now(controls);
    args.path = path;
    args.num_worst_tokens = worst;
    if (!CHECK_OK(expar_ep_dispatch(one->ep, &args, &result))) return;
    check_launches(controls, before, (launches){.all = 2, .dispatches = 1, .ahead = !worst}, "a fresh dispatch");
    expar_ep_output_release(result.output);
    expar_ep_handle_release(result.handle);
}

static void trial_cached(idle_rank *one, const fake_controls *controls, expar_ep_path path)
{
    expar_ep_dispatch_args args = idle_dispatch_args(one, EXPAR_F32);
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    launches before = launches_now(controls);
    args.path = path;
    args.handle = one->came.handle;
    args.topk_idx = EXPAR_TENSOR_NONE;
    if (!CHECK_OK(expar_ep_dispatch(one->ep, &args, &result))) return;
    check_launches(controls, before, (launches){.all = 1, .dispatches = 1}, "a dispatch with a handle");
    expar_ep_output_release(result.output);
}

static void trial_combine(idle_rank *one, const fake_controls *controls, expar_ep_path path)
{
    expar_ep_combine_args args = idle_combine_args(one);
    launches before = launches_now(controls);
    args.path = path;
    CHECK_OK(expar_ep_combine(one->ep, &args, NULL));
    check_launches(controls, before, (launches){.all = 1, .combines = 1}, "a combine");
}

static void trial_calls(expar_group *group, void *shared)
{
    static const expar_ep_path paths[] = {EXPAR_EP_PATH_AUTO, EXPAR_EP_PATH_DIRECT, EXPAR_EP_PATH_QUEUE};
    (void)shared;
    idle_rank one;
    if (!idle_begin(&one, group) || !idle_dispatch(&one, EXPAR_F32)) return;
    const fake_controls *controls = controls_find();
    for (size_t i = 0; CHECK(controls, "another driver is open") && i < ARRAY_LENGTH(paths); i++) {
        trial_fresh(&one, controls, paths[i], 0);
        trial_fresh(&one, controls, paths[i], 8);
        trial_cached(&one, controls, paths[i]);
        trial_combine(&one, controls, paths[i]);
    }
    idle_end(&one);
}

static void a_call_is_one_kernel(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 1, trial_calls);
}

/* ---- SMs --------------------------------------------------------------------------------------------------------- */

/* Checks the blocks of the last kernel that was launched. */
static void check_blocks(const fake_controls *controls, int32_t expected, const char *what, int32_t asked)
{
    const unsigned last = (unsigned)atomic_load(&controls->launches) - 1;
    const unsigned blocks = atomic_load(&controls->blocks[last % FAKE_LAUNCHES]);
    CHECK(blocks == (unsigned)expected, "%s with num_sms %d: %u blocks, expected %d", what, (int)asked, blocks,
          (int)expected);
}

/* asked: of each call; 0: the buffer's. */
static void trial_sms(idle_rank *one, const fake_controls *controls, int32_t asked)
{
    const int32_t expected = asked ? asked : gpu_of(one->ep->base.exec)->core.num_sms;
    expar_ep_dispatch_result again = EXPAR_EP_DISPATCH_RESULT_INIT;
    expar_ep_dispatch_args args = idle_dispatch_args(one, EXPAR_F32);
    args.num_sms = asked;
    idle_forget(one);
    if (!CHECK_OK(expar_ep_dispatch(one->ep, &args, &one->came))) return;
    check_blocks(controls, expected, "a fresh dispatch", asked);
    args.handle = one->came.handle;
    args.topk_idx = EXPAR_TENSOR_NONE;
    CHECK_OK(expar_ep_dispatch(one->ep, &args, &again));
    check_blocks(controls, expected, "a dispatch with a handle", asked);
    expar_ep_output_release(again.output);
    expar_ep_combine_args back = idle_combine_args(one);
    back.num_sms = asked;
    CHECK_OK(expar_ep_combine(one->ep, &back, NULL));
    check_blocks(controls, expected, "a combine", asked);
}

static void trial_calls_of_some_sms(expar_group *group, void *shared)
{
    static const int32_t asked[] = {1, 0, 7, 3, 0};
    (void)shared;
    idle_rank one;
    if (!idle_begin(&one, group)) return;
    const fake_controls *controls = controls_find();
    for (size_t i = 0; CHECK(controls, "another driver is open") && i < ARRAY_LENGTH(asked); i++)
        trial_sms(&one, controls, asked[i]);
    idle_end(&one);
}

static void a_call_takes_the_sms_that_it_says(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 1, trial_calls_of_some_sms);
}

/* ---- ahead of the counts ----------------------------------------------------------------------------------------- */

/* A fresh dispatch that the caller has made ready. */
static void check_ahead(idle_rank *one, const expar_ep_dispatch_args *args, int ahead, const char *what)
{
    const fake_controls *controls = controls_find();
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    if (!CHECK(controls, "another driver is open")) return;
    int before = atomic_load(&controls->ahead);
    if (!CHECK_OK(expar_ep_dispatch(one->ep, args, &result))) return;
    CHECK(atomic_load(&controls->ahead) - before == ahead, "%s: %d launched ahead", what,
          atomic_load(&controls->ahead) - before);
    expar_ep_output_release(result.output);
    expar_ep_handle_release(result.handle);
}

static void trial_what_is_launched_ahead(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    if (!idle_begin(&one, group)) return;
    expar_ep_dispatch_args args = idle_dispatch_args(&one, EXPAR_F32);
    check_ahead(&one, &args, 1, "as it comes");
    args.expert_alignment = 1 << 30;
    check_ahead(&one, &args, 1, "counts rounded up as far as may be");
    args.expert_alignment = 128;
    check_ahead(&one, &args, 1, "counts rounded up");
    args.topk_idx = EXPAR_TENSOR_NONE;
    args.token_in_rank = idle_tensor(EXPAR_U8, one.group->size);
    check_ahead(&one, &args, 1, "counts of the caller's own, rounded up");
    args.expert_alignment = 0;
    check_ahead(&one, &args, 1, "those as they are");
    args = idle_dispatch_args(&one, EXPAR_F32);
    args.expert_major = 1;
    check_ahead(&one, &args, 0, "expert-major");
    args = idle_dispatch_args(&one, EXPAR_F32);
    args.out_x = args.x;
    check_ahead(&one, &args, 0, "into the caller's memory");
    args = idle_dispatch_args(&one, EXPAR_F32);
    args.num_worst_tokens = 4;
    check_ahead(&one, &args, 0, "of the worst-case size");
    idle_end(&one);
}

static void fresh_dispatches_are_launched_ahead(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 1, trial_what_is_launched_ahead);
}

/* Threads share its context, where nothing may be enqueued after a kernel that waits; processes do not. */
static void trial_on_one_gpu(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    if (!idle_begin(&one, group)) return;
    expar_ep_dispatch_args args = idle_dispatch_args(&one, EXPAR_F32);
    for (int i = 0; i < 3; i++)
        check_ahead(&one, &args, kind_of_ranks == RANKS_PROCESSES, "of ranks that share a GPU");
    idle_end(&one);
}

static void threads_on_one_gpu_are_not(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, trial_on_one_gpu);
}

/* So many use their space, and do not tell of it with their headers. */
static void more_ranks_than_tell_space(void **state)
{
    (void)state;
    if (kind_of_ranks == RANKS_THREADS) skip();
    kind_run((ranks_plan){0}, EP_SPACE_RANKS + 1, trial_on_one_gpu);
}

#define LIMIT_BYTES (8 << 20)

/* Free space is not taken by force: a call that fails without it fails as before, and what it had is given back. */
static void trial_without_space(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    if (!idle_begin_with(&one, group, LIMIT_BYTES)) return;
    fake_controls *controls = controls_find();
    if (!CHECK(controls, "the driver is not the played one")) return;
    mem_block *all = idle_fill_pool(&one);
    atomic_store(&controls->no_lending, 1);
    expar_ep_dispatch_args args = idle_dispatch_args(&one, EXPAR_F32);
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    CHECK_STATUS(EXPAR_ERR_MEMORY, expar_ep_dispatch(one.ep, &args, &result));
    CHECK_TEXT("the pool of", "config.pool_limit_bytes");
    atomic_store(&controls->no_lending, 0);
    mem_block_release(all);
    for (int i = 0; i < 3; i++)
        check_ahead(&one, &args, 1, "with room again");
    args.topk_idx.dtype = EXPAR_BF16;
    CHECK_STATUS(EXPAR_ERR_DTYPE, expar_ep_dispatch(one.ep, &args, &result));
    const uint64_t bytes = LIMIT_BYTES;
    if (CHECK_OK(mem_pool_take(one.ep->base.exec->pool, bytes - (2u << 20), &all))) mem_block_release(all);
    idle_end(&one);
}

static void space_that_is_missing(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 1, trial_without_space);
}

/* ---- callers without a context ----------------------------------------------------------------------------------- */

/* Whatever is current to the calling thread, nothing for one: the library enters its GPU's context itself. */
static void trial_without_context(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    expar_ep_combine_result done = EXPAR_EP_COMBINE_RESULT_INIT;
    if (!idle_begin_at(&one, group, 1)) return;
    cuda_leave();
    CHECK(CUDA_CALL(StreamSynchronize, one.stream) == EXPAR_ERR_CUDA, "a context is current");
    if (!idle_dispatch(&one, EXPAR_F32)) return;
    expar_ep_combine_args args = idle_combine_args(&one);
    args.async_finish = 1;
    CHECK_OK(expar_ep_combine(one.ep, &args, &done));
    CHECK_OK(expar_event_wait(done.event));
    expar_event_release(done.event);
    args = idle_combine_args(&one);
    args.x.data = (void *)1; /* refused, and told */
    CHECK_STATUS(EXPAR_ERR_DEVICE, expar_ep_combine(one.ep, &args, NULL));
    CHECK_OK(expar_ep_destroy(one.ep));
    one.ep = NULL;
    CHECK_OK(cuda_enter(one.gpu));
    idle_end(&one);
}

static void callers_need_no_context(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, trial_without_context);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_call_is_one_kernel),
        cmocka_unit_test(a_call_takes_the_sms_that_it_says),
        cmocka_unit_test(fresh_dispatches_are_launched_ahead),
        cmocka_unit_test(threads_on_one_gpu_are_not),
        cmocka_unit_test(more_ranks_than_tell_space),
        cmocka_unit_test(space_that_is_missing),
        cmocka_unit_test(callers_need_no_context),
    };
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What a call puts on its stream, as the driver that plays GPUs sees it (fake/fake.c): a dispatch one kernel with that
 * word in its name, a combine likewise, by every path; a fresh dispatch opens with notify, one with a handle does not.
 * Ranks without tokens, for which there is no layout to make. And the library brings the context that this needs. */
#include "cuda/find_desk.h"
#include "cuda/idle_rank.h"
#include "shmem/kind.h"

typedef struct launches {
    int all, dispatches, combines;
} launches;

static launches launches_now(const fake_desk *desk)
{
    return (launches){atomic_load(&desk->launches), atomic_load(&desk->dispatches), atomic_load(&desk->combines)};
}

/* Since `before`. */
static void check_launches(const fake_desk *desk, launches before, launches expected, const char *what)
{
    launches now = launches_now(desk);
    CHECK(now.all - before.all == expected.all, "%s: %d kernels, expected %d", what, now.all - before.all,
          expected.all);
    CHECK(now.dispatches - before.dispatches == expected.dispatches, "%s: %d dispatch", what,
          now.dispatches - before.dispatches);
    CHECK(now.combines - before.combines == expected.combines, "%s: %d combine", what, now.combines - before.combines);
}

static void play_fresh(idle_rank *one, const fake_desk *desk, expar_path path, int64_t worst)
{
    expar_dispatch_args args = idle_dispatch_args(one, EXPAR_F32);
    expar_dispatch_result result = EXPAR_DISPATCH_RESULT_INIT;
    launches before = launches_now(desk);
    args.path = path;
    args.num_worst_tokens = worst;
    if (!CHECK_OK(expar_dispatch(one->ep, &args, &result))) return;
    check_launches(desk, before, (launches){.all = 2, .dispatches = 1}, "a fresh dispatch");
    expar_ep_output_release(result.output);
    expar_ep_handle_destroy(result.handle);
}

static void play_cached(idle_rank *one, const fake_desk *desk, expar_path path)
{
    expar_dispatch_args args = idle_dispatch_args(one, EXPAR_F32);
    expar_dispatch_result result = EXPAR_DISPATCH_RESULT_INIT;
    launches before = launches_now(desk);
    args.path = path;
    args.handle = one->came.handle;
    args.topk_idx = EXPAR_TENSOR_NONE;
    if (!CHECK_OK(expar_dispatch(one->ep, &args, &result))) return;
    check_launches(desk, before, (launches){.all = 1, .dispatches = 1}, "a dispatch with a handle");
    expar_ep_output_release(result.output);
}

static void play_combine(idle_rank *one, const fake_desk *desk, expar_path path)
{
    expar_combine_args args = idle_combine_args(one);
    launches before = launches_now(desk);
    args.path = path;
    CHECK_OK(expar_combine(one->ep, &args));
    check_launches(desk, before, (launches){.all = 1, .combines = 1}, "a combine");
}

static void play_calls(expar_group *group, void *shared)
{
    static const expar_path paths[] = {EXPAR_PATH_AUTO, EXPAR_PATH_DIRECT, EXPAR_PATH_QUEUE};
    (void)shared;
    idle_rank one;
    if (!idle_begin(&one, group) || !idle_dispatch(&one, EXPAR_F32)) return;
    const fake_desk *desk = desk_find();
    for (size_t i = 0; CHECK(desk, "another driver is open") && i < ARRAY_LENGTH(paths); i++) {
        play_fresh(&one, desk, paths[i], 0);
        play_fresh(&one, desk, paths[i], 8);
        play_cached(&one, desk, paths[i]);
        play_combine(&one, desk, paths[i]);
    }
    idle_end(&one);
}

static void a_call_is_one_kernel(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 1, play_calls);
}

/* ---- callers without a context ------------------------------------------------------------------------------------
 */

/* Whatever is current to the calling thread, nothing for one: the library enters its GPU's context itself. */
static void play_without_context(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    expar_event *event = NULL;
    if (!idle_begin_at(&one, group, 1)) return;
    cuda_leave();
    CHECK(CUDA_CALL(StreamSynchronize, one.stream) == EXPAR_ERR_CUDA, "a context is current");
    if (!idle_dispatch(&one, EXPAR_F32)) return;
    expar_combine_args args = idle_combine_args(&one);
    args.async_finish = 1;
    args.event = &event;
    CHECK_OK(expar_combine(one.ep, &args));
    CHECK_OK(expar_event_wait(event));
    expar_event_destroy(event);
    args = idle_combine_args(&one);
    args.x.data = (void *)1; /* refused, and told */
    CHECK_STATUS(EXPAR_ERR_DEVICE, expar_combine(one.ep, &args));
    CHECK_OK(expar_ep_destroy(one.ep));
    one.ep = NULL;
    CHECK_OK(cuda_enter(one.gpu));
    idle_end(&one);
}

static void callers_need_no_context(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, play_without_context);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_call_is_one_kernel),
                                       cmocka_unit_test(callers_need_no_context)};
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

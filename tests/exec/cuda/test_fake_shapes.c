/* SPDX-License-Identifier: Apache-2.0 */
/* Calls whose rows differ from rank to rank, and so the kernels they need. The simulated driver lets no module in while
 * kernels of its context run (cuda/fake/modules.c). All ranks are told, nobody waits in vain, and the buffer takes the
 * next call. */
#include "cuda/find_controls.h"
#include "ep/harness/idle_rank.h"
#include "shmem/kind.h"

#define RANKS 3
#define ODD   2 /* the rank whose rows differ */

static bool is_odd(const idle_rank *one)
{
    return one->group->rank == ODD;
}

/* The odd rank calls last: what it loads comes when kernels of all others wait for it. Processes see no more of each
   other than that all have done with the call before. */
static void take_turns(const idle_rank *one, const fake_controls *controls)
{
    CHECK_OK(expar_group_barrier(one->group));
    if (!is_odd(one) || kind_of_ranks == RANKS_PROCESSES) return;
    CHECK(controls_await(&controls->running[0], RANKS - 1), "%d kernels run; expected those of %d ranks",
          atomic_load(&controls->running[0]), RANKS - 1);
}

static void dispatch_rows(const idle_rank *one, const fake_controls *controls, expar_dtype dtype, int64_t hidden)
{
    expar_ep_dispatch_args args = idle_dispatch_args(one, EXPAR_F32);
    expar_ep_dispatch_result unused = EXPAR_EP_DISPATCH_RESULT_INIT;
    if (is_odd(one)) {
        args.x = idle_tensor(dtype, hidden);
        args.x.device = args.topk_idx.device;
    }
    take_turns(one, controls);
    CHECK_STATUS(EXPAR_ERR_MISMATCH, expar_ep_dispatch(one->ep, &args, &unused));
    CHECK_TEXT("expar_ep_dispatch on rank ", hidden == IDLE_HIDDEN ? "dtype of x is" : "hidden size is",
               "on rank 2 and");
}

static void combine_rows(const idle_rank *one, const fake_controls *controls, expar_dtype dtype, int64_t hidden)
{
    expar_ep_combine_args args = idle_combine_args(one);
    const expar_device device = args.x.device;
    if (is_odd(one)) {
        args.x = args.out_y = idle_tensor(dtype, hidden);
        args.x.device = args.out_y.device = device;
    }
    take_turns(one, controls);
    CHECK_STATUS(EXPAR_ERR_MISMATCH, expar_ep_combine(one->ep, &args, NULL));
    CHECK_TEXT("expar_ep_combine on rank ", hidden == IDLE_HIDDEN ? "dtype of x is" : "hidden size is",
               "on rank 2 and");
}

static void call_with_other_rows(idle_rank *one, const fake_controls *controls)
{
    dispatch_rows(one, controls, EXPAR_F32, IDLE_HIDDEN / 2);
    dispatch_rows(one, controls, EXPAR_F16, IDLE_HIDDEN);
    if (!idle_dispatch(one, EXPAR_F32)) return;
    combine_rows(one, controls, EXPAR_F32, IDLE_HIDDEN / 4);
    combine_rows(one, controls, EXPAR_BF16, IDLE_HIDDEN);
    idle_combine(one);
}

/* Shared: whether the odd rank has a GPU of its own. */
static void rows_that_differ(expar_group *group, void *shared)
{
    const bool apart = *(const bool *)shared, shares = kind_of_ranks == RANKS_THREADS && !apart;
    idle_rank one;
    if (!idle_begin_at(&one, group, apart && group->rank == ODD)) return;
    const fake_controls *controls = controls_find();
    if (!CHECK(controls != NULL, "this is not the driver that plays GPUs")) return;
    const int loads = atomic_load(&controls->loads);
    for (int32_t round = 0; round < 2 && !check_failures(); round++)
        call_with_other_rows(&one, controls);
    CHECK_OK(expar_group_barrier(group));
    const int more = atomic_load(&controls->loads) - loads;
    CHECK((more == 0) == shares, "%d modules were loaded with the calls; expected %s", more, shares ? "none" : "some");
    CHECK_OK(expar_group_barrier(group));
    idle_end(&one);
}

static void run(bool apart)
{
    const ranks_plan plan = {.kind = kind_of_ranks, .size = RANKS};
    assert_true(ranks_run(&plan, rows_that_differ, &apart));
}

/* Threads have a context in common, and load nothing once the buffer is made; processes have one each. */
static void ranks_that_share_a_gpu(void **state)
{
    (void)state;
    run(false);
}

/* It loads kernels for its rows, which wait for nobody else's. */
static void a_rank_with_a_gpu_of_its_own(void **state)
{
    (void)state;
    run(true);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_that_share_a_gpu),
        cmocka_unit_test(a_rank_with_a_gpu_of_its_own),
    };
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

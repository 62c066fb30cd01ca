/* SPDX-License-Identifier: Apache-2.0 */
/* A program's first calls on a GPU compile kernels, with a simulated compiler (cuda/fake/nvrtc.c). Those of the next
 * program find them on the disk. A known shape compiles nothing, whatever the number of tokens. If a call or a buffer
 * needs several kernels, they are compiled at the same time. */
#include "cuda/find_controls.h"
#include "ep/harness/idle_rank.h"
#include "shmem/kind.h"
#include <expar/low_latency.h>

#include <ftw.h>
#include <stdio.h>
#include <unistd.h>

static char root[] = "/tmp/expar-warm-XXXXXX";

static void dispatch_into(idle_rank *one, int64_t spare)
{
    expar_ep_dispatch_args args = idle_dispatch_args(one, EXPAR_F32);
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    args.num_worst_tokens = spare;
    CHECK_OK(expar_ep_dispatch(one->ep, &args, &result));
    expar_ep_output_release(result.output);
    expar_ep_handle_release(result.handle);
}

/* In a process of its own. shared: not NULL where the disk has all already. */
static void trial(expar_group *group, void *shared)
{
    idle_rank one;
    if (!idle_begin(&one, group) || !idle_dispatch(&one, EXPAR_F32) || !idle_combine(&one)) return;
    const fake_compiler_controls *controls = controls_find_compiler();
    if (!CHECK(controls, "another compiler is open")) return;
    int begun = atomic_load(&controls->begun);
    CHECK(shared ? begun == 0 : begun >= 4, "%d kernel sources were compiled", begun);
    for (int64_t spare = 1; spare <= 16; spare *= 2)
        dispatch_into(&one, spare);
    CHECK(atomic_load(&controls->begun) == begun, "other numbers of tokens were compiled for");
    idle_end(&one);
}

static void a_warm_start_compiles_nothing(void **state)
{
    (void)state;
    const ranks_plan plan = {.kind = RANKS_PROCESSES, .size = 1};
    assert_true(ranks_run(&plan, trial, NULL));
    assert_true(ranks_run(&plan, trial, root));
}

/* The first rows of a kind, dispatch and combine: neither is through before the other has begun. */
static void call_first(idle_rank *one, fake_compiler_controls *controls)
{
    const int begun = atomic_load(&controls->begun);
    atomic_store(&controls->meet, begun + 2);
    idle_dispatch(one, EXPAR_F16);
    CHECK(atomic_load(&controls->begun) == begun + 2, "%d sources were compiled",
          atomic_load(&controls->begun) - begun);
}

/* Those of a low-latency buffer: two kinds of dispatch and of combine, and the wait for signals. */
enum { LL_SOURCES = 5 };

static void create_first(const idle_rank *one, fake_compiler_controls *controls)
{
    const int begun = atomic_load(&controls->begun);
    expar_ll_config config = EXPAR_LL_CONFIG_INIT;
    expar_ll *ll = NULL;
    config.device = (expar_device){EXPAR_CUDA, 0};
    config.max_tokens = 4;
    config.hidden = IDLE_HIDDEN;
    config.max_topk = 1;
    config.num_experts = 1;
    atomic_store(&controls->meet, begun + LL_SOURCES);
    if (CHECK_OK(expar_ll_create(one->group, &config, &ll))) CHECK_OK(expar_ll_destroy(ll));
    CHECK(atomic_load(&controls->begun) == begun + LL_SOURCES, "%d sources were compiled",
          atomic_load(&controls->begun) - begun);
}

static void trial_first_ones(expar_group *group, void *shared)
{
    idle_rank one;
    (void)shared;
    if (!idle_begin(&one, group)) return;
    fake_compiler_controls *controls = controls_find_compiler();
    if (!CHECK(controls, "another compiler is open")) return;
    call_first(&one, controls);
    create_first(&one, controls);
    idle_end(&one);
}

static void programs_of_a_buffer_are_compiled_at_the_same_time(void **state)
{
    (void)state;
    const ranks_plan plan = {.kind = RANKS_PROCESSES, .size = 1};
    assert_true(ranks_run(&plan, trial_first_ones, NULL));
}

/* A token of one rank has one row, so that sums by slot are those by rank. They take the kernel that there is. */
static void trial_by_slot(expar_group *group, void *shared)
{
    idle_rank one;
    (void)shared;
    if (!idle_begin(&one, group)) return;
    const fake_compiler_controls *controls = controls_find_compiler();
    expar_ep_dispatch_args args = idle_dispatch_args(&one, EXPAR_F32);
    args.keep_slots = 1;
    if (!CHECK(controls, "another compiler is open") || !CHECK_OK(expar_ep_dispatch(one.ep, &args, &one.came))) return;
    const int begun = atomic_load(&controls->begun);
    expar_ep_combine_args back = idle_combine_args(&one);
    back.sum_order = EXPAR_EP_SUM_ORDER_BY_SLOT;
    CHECK_OK(expar_ep_combine(one.ep, &back, NULL));
    CHECK(atomic_load(&controls->begun) == begun, "%d sources were compiled", atomic_load(&controls->begun) - begun);
    idle_end(&one);
}

static void sums_by_slot_of_one_rank_compile_nothing(void **state)
{
    (void)state;
    const ranks_plan plan = {.kind = RANKS_PROCESSES, .size = 1};
    assert_true(ranks_run(&plan, trial_by_slot, NULL));
}

static int remove_one(const char *path, const struct stat *facts, int kind, struct FTW *walk)
{
    (void)facts, (void)kind, (void)walk;
    return remove(path);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_warm_start_compiles_nothing),
                                       cmocka_unit_test(programs_of_a_buffer_are_compiled_at_the_same_time),
                                       cmocka_unit_test(sums_by_slot_of_one_rank_compile_nothing)};
    kind_read(argc, argv);
    if (!mkdtemp(root)) return 1;
    setenv("XDG_CACHE_HOME", root, 1);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    return failed;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of combines in the caller's memory, on a simulated driver (cuda/fake/fake.c). The test sees copies on streams,
 * and the memory of other ranks that a process has open, from a buffer's first call to its end. Ranks have no tokens,
 * but their handles have space for rows that never come. test_gpu_mapped checks rows. */
#include "cuda/find_controls.h"
#include "ep/harness/idle_rank.h"
#include "exec/cuda/core/gpu.h"
#include "shmem/kind.h"

#define RANKS      2
#define ROWS       8
#define MOST_CALLS 20000

/* A rank with its handle, and rows for its combines. */
typedef struct mapped_rank {
    idle_rank idle;
    fake_controls *controls;
    expar_tensor x, weights;
} mapped_rank;

static expar_tensor take_tensor(const mapped_rank *one, int64_t columns)
{
    cu_address at = 0;
    CHECK_OK(CUDA_CALL(MemAlloc, &at, (size_t)(ROWS * columns) * sizeof(float)));
    expar_tensor t = expar_tensor_2d((void *)(uintptr_t)at, EXPAR_F32, ROWS, columns);
    t.device = (expar_device){.type = EXPAR_CUDA, .index = one->idle.gpu->index};
    return t;
}

static void give_tensor(const expar_tensor *tensor)
{
    CHECK_OK(CUDA_CALL(MemFree, (cu_address)(uintptr_t)tensor->data));
}

static bool begin(mapped_rank *one, expar_group *group, int32_t gpu)
{
    *one = (mapped_rank){0};
    if (!idle_begin_at(&one->idle, group, gpu)) return false;
    expar_ep_dispatch_args args = idle_dispatch_args(&one->idle, EXPAR_F32);
    args.topk_weights = idle_tensor(EXPAR_F32, 1);
    args.topk_weights.device.index = gpu;
    args.num_worst_tokens = ROWS;
    one->controls = controls_find();
    one->x = take_tensor(one, IDLE_HIDDEN);
    one->weights = take_tensor(one, 1);
    return CHECK(one->controls, "another driver is open") &&
           CHECK_OK(expar_ep_dispatch(one->idle.ep, &args, &one->idle.came));
}

static void end(mapped_rank *one)
{
    const fake_controls *controls = one->controls;
    give_tensor(&one->x);
    give_tensor(&one->weights);
    idle_end(&one->idle);
    CHECK(atomic_load(&controls->opened) == 0, "%d handles of other ranks are open behind the end",
          atomic_load(&controls->opened));
}

static expar_ep_stats stats_of(const mapped_rank *one)
{
    expar_ep_stats stats = EXPAR_EP_STATS_INIT;
    CHECK_OK(expar_ep_get_stats(one->idle.ep, &stats));
    return stats;
}

/* Whether this call's rows were read where they lie. Between barriers: threads share the driver's counts. */
static bool combine(mapped_rank *one, int *copies)
{
    expar_ep_combine_args args = idle_combine_args(&one->idle);
    const uint64_t before = stats_of(one).mapped_calls;
    args.x = one->x;
    args.topk_weights = one->weights;
    args.out_topk_weights = idle_tensor(EXPAR_F32, 1);
    args.out_topk_weights.device.index = one->idle.gpu->index;
    CHECK_OK(expar_barrier_all(one->idle.group));
    const int at_first = atomic_load(&one->controls->others);
    CHECK_OK(expar_barrier_all(one->idle.group));
    CHECK_OK(expar_ep_combine(one->idle.ep, &args, NULL));
    CHECK_OK(expar_barrier_all(one->idle.group));
    *copies = atomic_load(&one->controls->others) - at_first;
    CHECK_OK(expar_barrier_all(one->idle.group));
    return stats_of(one).mapped_calls > before;
}

static bool all_say(const mapped_rank *one, bool own)
{
    boot *ctl = one->idle.group->boot;
    uint64_t word = own, all[RANKS] = {0};
    return CHECK_OK(ctl->ops->allgather(ctl, &word, all, sizeof word)) && all[0] && all[1];
}

/* Until no rank copies anything. */
static bool combine_until_mapped(mapped_rank *one)
{
    for (int i = 0; i < MOST_CALLS; i++) {
        int copies = 0;
        const bool mapped = combine(one, &copies);
        if (all_say(one, mapped && copies == 0)) return true;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return CHECK(false, "rows are still copied after %d calls", MOST_CALLS);
}

static bool is_process(const mapped_rank *one)
{
    return !one->idle.group->threads;
}

/* ---- the tests --------------------------------------------------------------------------------------------------- */

static void trial_mapped(expar_group *group, void *shared)
{
    (void)shared;
    mapped_rank one;
    if (!begin(&one, group, group->rank)) return;
    int copies = 0;
    const bool mapped = combine(&one, &copies);
    CHECK(mapped == !is_process(&one), "the first call's rows were%s read where they lie", mapped ? "" : " not");
    CHECK(copies == (is_process(&one) ? 2 : 0), "%d copies", copies);
    if (!combine_until_mapped(&one)) return;
    const int opened = is_process(&one) ? 2 : 0;
    CHECK(atomic_load(&one.controls->opened) == opened, "%d handles are open", atomic_load(&one.controls->opened));
    give_tensor(&one.weights);
    one.weights = take_tensor(&one, 1);
    if (!combine_until_mapped(&one)) return;
    CHECK(atomic_load(&one.controls->opened) == opened, "%d handles are open", atomic_load(&one.controls->opened));
    end(&one);
}

static void rows_are_copied_until_peers_map_them(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, RANKS, trial_mapped);
}

/* Two buffers share what has been mapped, and the second one's end leaves it to the first. */
static void trial_two_buffers(expar_group *group, void *shared)
{
    (void)shared;
    mapped_rank one;
    idle_rank other;
    if (!begin(&one, group, group->rank) || !combine_until_mapped(&one)) return;
    if (!idle_begin_at(&other, group, group->rank)) return;
    idle_end(&other);
    int copies = 0;
    CHECK(combine(&one, &copies) && copies == 0, "%d copies behind another buffer's end", copies);
    end(&one);
}

static void mappings_outlive_other_buffers(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, RANKS, trial_two_buffers);
}

/* If one rank has switched mapping off, no rank maps. */
static void trial_one_off(expar_group *group, void *shared)
{
    (void)shared;
    mapped_rank one;
    if (group->rank == 1) setenv("EXPAR_MAP_SEGMENTS", "0", 1);
    if (!begin(&one, group, group->rank)) return;
    const int expected = is_process(&one) ? 2 : 2 * RANKS;
    for (int i = 0; i < 10; i++) {
        int copies = 0;
        CHECK(!combine(&one, &copies) && copies == expected, "%d copies", copies);
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    CHECK(stats_of(&one).copied_calls == 10, "%llu copied calls", (unsigned long long)stats_of(&one).copied_calls);
    end(&one);
}

/* Threads share an environment: there it is off on all. */
static void one_rank_switches_it_off(void **state)
{
    (void)state;
    if (kind_of_ranks == RANKS_THREADS)
        kind_run_with("EXPAR_MAP_SEGMENTS", "0", RANKS, trial_one_off);
    else
        kind_run((ranks_plan){0}, RANKS, trial_one_off);
}

static void trial_bad_setting(expar_group *group, void *shared)
{
    (void)shared;
    expar_ep *ep = NULL;
    const expar_ep_config config = idle_config(group);
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_ep_create(group, &config, &ep));
    CHECK_TEXT("EXPAR_MAP_SEGMENTS", "2");
}

static void a_bad_setting_is_named(void **state)
{
    (void)state;
    kind_run_with("EXPAR_MAP_SEGMENTS", "2", RANKS, trial_bad_setting);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_copied_until_peers_map_them),
        cmocka_unit_test(mappings_outlive_other_buffers),
        cmocka_unit_test(a_bad_setting_is_named),
        cmocka_unit_test(one_rank_switches_it_off),
    };
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

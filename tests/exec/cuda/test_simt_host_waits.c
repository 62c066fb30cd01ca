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

/* ---- normal mode ------------------------------------------------------------------------------------------------- */

static void wait_in_normal_mode(expar_group *group, void *shared)
{
    idle_rank one;
    (void)shared;
    if (!idle_begin_at(&one, group, expar_group_rank(group)) || !idle_dispatch(&one, EXPAR_F32)) return;
    for (int i = 0; i < 2; i++) {
        CHECK_OK(CUDA_CALL(StreamSynchronize, one.stream));
        CHECK_OK(expar_barrier_all(group));
        const loads before = loads_so_far();
        come_late(group, before);
        if (i == 0) idle_dispatch(&one, EXPAR_F32);
        if (i == 1) idle_combine(&one);
        CHECK_OK(CUDA_CALL(StreamSynchronize, one.stream));
        CHECK_OK(expar_barrier_all(group));
        check_loads(i == 0 ? "dispatch" : "combine", before);
    }
    CHECK_OK(expar_barrier_all(group));
    idle_end(&one);
}

/* ---- low latency ------------------------------------------------------------------------------------------------- */

static bool make_low_latency(const idle_rank *one, expar_ll **ll)
{
    expar_ll_config config = EXPAR_LL_CONFIG_INIT;
    config.max_tokens = TOKENS;
    config.hidden = IDLE_HIDDEN;
    config.max_topk = 1;
    config.num_experts = RANKS;
    config.device = (expar_device){.type = EXPAR_CUDA, .index = one->gpu->index};
    return CHECK_OK(expar_ll_create(one->group, &config, ll));
}

static void dispatch_once(const idle_rank *one, expar_ll *ll)
{
    expar_ll_dispatch_args args = EXPAR_LL_DISPATCH_ARGS_INIT;
    expar_ll_dispatch_result result = EXPAR_LL_DISPATCH_RESULT_INIT;
    args.x = idle_tensor(EXPAR_BF16, IDLE_HIDDEN);
    args.topk_idx = idle_tensor(EXPAR_I64, 1);
    args.x.device.index = args.topk_idx.device.index = one->gpu->index;
    args.stream = one->stream;
    CHECK_OK(expar_ll_dispatch(ll, &args, &result));
    CHECK_OK(CUDA_CALL(StreamSynchronize, one->stream));
    expar_ep_output_release(result.output);
    expar_ll_handle_release(result.handle);
}

static void wait_in_low_latency(expar_group *group, void *shared)
{
    idle_rank one;
    expar_ll *ll;
    (void)shared;
    if (!idle_begin_at(&one, group, expar_group_rank(group)) || !make_low_latency(&one, &ll)) return;
    dispatch_once(&one, ll);
    CHECK_OK(expar_barrier_all(group));
    const loads before = loads_so_far();
    come_late(group, before);
    dispatch_once(&one, ll);
    CHECK_OK(expar_barrier_all(group));
    check_loads("low-latency dispatch", before);
    CHECK_OK(expar_barrier_all(group));
    CHECK_OK(expar_ll_destroy(ll));
    idle_end(&one);
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

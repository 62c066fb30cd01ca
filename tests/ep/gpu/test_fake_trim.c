/* SPDX-License-Identifier: Apache-2.0 */
/* Idle memory of GPUs that goes back, on a simulated driver (cuda/fake/fake.c). It goes with the next call that all
 * ranks wait in, from where nothing is in use, on all ranks that map it. Memory in use, by graphs too, stays, and so
 * does the first memory of pools. Pools grow again. Ranks have no tokens: pools are filled by blocks, and worst-case
 * outputs. */
#include "cuda/find_controls.h"
#include "ep/harness/idle_rank.h"
#include "ep/normal/normal.h"
#include "exec/cuda/normal/normal_gpu.h"
#include "shmem/kind.h"

#define RANKS     2
#define ODD       1 /* the rank that has idle memory */
#define MIB       ((uint64_t)1 << 20)
#define MANY_ROWS 262144 /* 33 MiB, indices included */
#define SPACE     (40 * MIB)

static bool is_odd(const idle_rank *one)
{
    return one->group->rank == ODD;
}

static uint64_t reserved(const idle_rank *one)
{
    expar_ep_stats stats = EXPAR_EP_STATS_INIT;
    CHECK_OK(expar_ep_get_stats(one->ep, &stats));
    CHECK(stats.reserved_bytes == device_heap_own_bytes(gpu_of(one->ep->base.exec)->core.heap),
          "other bytes than the heap's");
    return stats.reserved_bytes;
}

/* Pieces that are mapped in this process, while no rank changes that. */
static int mapped(const idle_rank *one)
{
    const fake_controls *controls = controls_find();
    CHECK_OK(expar_barrier_all(one->group));
    const int found = controls ? atomic_load(&controls->mapped) : -1;
    CHECK_OK(expar_barrier_all(one->group));
    return found;
}

/* Makes space for so many rows and more, in a pool that has none: it grows with the next call. */
static mem_block *grow(idle_rank *one, bool grows)
{
    mem_block *block = NULL;
    if (grows && mem_pool_take(one->ep->base.exec->pool, SPACE, &block) == EXPAR_OK) return block;
    const uint64_t before = reserved(one);
    idle_dispatch(one, EXPAR_F32);
    idle_forget(one);
    CHECK((reserved(one) > before) == grows, "the pool went from %llu to %llu bytes", (unsigned long long)before,
          (unsigned long long)reserved(one));
    if (grows) CHECK_OK(mem_pool_take(one->ep->base.exec->pool, SPACE, &block));
    return block;
}

/* A word of each rank's, at the end of the odd rank's memory. */
static void check_reach(const idle_rank *one)
{
    device_heap *heap = gpu_of(one->ep->base.exec)->core.heap;
    const uint64_t own = reserved(one), begin = device_heap_own_offset(heap);
    uint64_t all[RANKS];
    CHECK_OK(one->group->boot->ops->allgather(one->group->boot, &own, all, sizeof own));
    int32_t *words = (int32_t *)(uintptr_t)(device_heap_bases(heap)[ODD] + begin + all[ODD]) - RANKS;
    words[one->group->rank] = 7 + one->group->rank;
    CHECK_OK(expar_barrier_all(one->group));
    CHECK(words[0] == 7 && words[1] == 8, "words are %d and %d", (int)words[0], (int)words[1]);
    CHECK_OK(expar_barrier_all(one->group));
}

static void run(ranks_body body)
{
    kind_run((ranks_plan){0}, RANKS, body);
}

/* ---- what goes --------------------------------------------------------------------------------------------------- */

static void trim_one(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    if (!idle_begin(&one, group) || !idle_dispatch(&one, EXPAR_F32)) return;
    idle_forget(&one);
    const uint64_t start = reserved(&one);
    const int at_first = mapped(&one);
    for (int32_t i = 0; i < 3; i++) {
        mem_block *block = grow(&one, is_odd(&one));
        CHECK(mapped(&one) == at_first + 1, "%d pieces are mapped, %d were", mapped(&one), at_first);
        check_reach(&one);
        CHECK_OK(expar_ep_trim(one.ep));
        idle_dispatch(&one, EXPAR_F32);
        CHECK((reserved(&one) > start) == is_odd(&one), "memory of a living block went");
        mem_block_release(block);
        const uint64_t before = reserved(&one);
        if (is_odd(&one)) CHECK_OK(expar_ep_trim(one.ep));
        CHECK(reserved(&one) == before, "memory went while others map it");
        idle_dispatch(&one, EXPAR_F32);
        CHECK(one.came.path == EXPAR_EP_PATH_DIRECT, "path %d", (int)one.came.path);
        CHECK(reserved(&one) == start, "%llu of %llu bytes stayed", (unsigned long long)reserved(&one),
              (unsigned long long)before);
        CHECK(mapped(&one) == at_first, "%d pieces are mapped, %d were", mapped(&one), at_first);
        check_reach(&one);
        idle_forget(&one);
    }
    CHECK_OK(expar_ep_trim(one.ep));
    idle_dispatch(&one, EXPAR_F32);
    CHECK(reserved(&one) == start, "what the pool began with went");
    idle_end(&one);
}

static void idle_memory_goes_and_comes_again(void **state)
{
    (void)state;
    run(trim_one);
}

/* With a buffer without limits, whose pool began with nothing. */
static void trim_all(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    config.device = (expar_device){.type = EXPAR_CUDA};
    if (!idle_begin_as(&one, group, &config)) return;
    for (int32_t i = 0; i < 2; i++) {
        if (!idle_dispatch(&one, EXPAR_F32)) return;
        mem_block_release(grow(&one, true));
        CHECK(reserved(&one) >= 32 * MIB, "%llu bytes", (unsigned long long)reserved(&one));
        CHECK_OK(expar_ep_trim(one.ep));
        idle_forget(&one);
        idle_dispatch(&one, EXPAR_F32);
        CHECK(reserved(&one) > 0 && reserved(&one) < 32 * MIB, "%llu bytes", (unsigned long long)reserved(&one));
    }
    idle_end(&one);
}

static void pools_without_limits_keep_what_calls_need(void **state)
{
    (void)state;
    run(trim_all);
}

/* ---- what stays -------------------------------------------------------------------------------------------------- */

/* An output in memory that has grown, which is in use, and after it such that is not. */
static void trim_beside_output(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    if (!idle_begin(&one, group)) return;
    mem_block_release(grow(&one, true));
    expar_ep_dispatch_args args = idle_dispatch_args(&one, EXPAR_F32);
    expar_ep_dispatch_result held = EXPAR_EP_DISPATCH_RESULT_INIT;
    args.num_worst_tokens = MANY_ROWS;
    if (!CHECK_OK(expar_ep_dispatch(one.ep, &args, &held))) return;
    CHECK(held.path == EXPAR_EP_PATH_DIRECT, "path %d", (int)held.path);
    const uint64_t with = reserved(&one);
    uint8_t *bytes = held.recv_x.data;
    CHECK_OK(CUDA_CALL(MemsetD8, (cu_address)(uintptr_t)bytes, 42, MANY_ROWS * 64));
    mem_block_release(grow(&one, true));
    CHECK(reserved(&one) > with, "the pool has not grown");
    CHECK_OK(expar_ep_trim(one.ep));
    idle_dispatch(&one, EXPAR_F32);
    CHECK(reserved(&one) == with, "%llu bytes, expected %llu", (unsigned long long)reserved(&one),
          (unsigned long long)with);
    CHECK(bytes[0] == 42 && bytes[MANY_ROWS * 64 - 1] == 42, "the output has changed");
    expar_ep_output_release(held.output);
    expar_ep_handle_release(held.handle);
    CHECK_OK(expar_ep_trim(one.ep));
    idle_dispatch(&one, EXPAR_F32);
    CHECK(reserved(&one) < with, "all stayed");
    idle_end(&one);
}

static void outputs_stay(void **state)
{
    (void)state;
    run(trim_beside_output);
}

/* The caller lets go of a captured call's output: the graph still has it. */
static void trim_beside_graph(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    cu_graph graph = NULL;
    if (!idle_begin(&one, group)) return;
    mem_block_release(grow(&one, true));
    const uint64_t with = reserved(&one);
    expar_ep_dispatch_args args = idle_dispatch_args(&one, EXPAR_F32);
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    args.num_worst_tokens = MANY_ROWS;
    CHECK_OK(CUDA_CALL(StreamCreate, (cu_stream *)&args.stream, CU_STREAM_NON_BLOCKING));
    CHECK_OK(CUDA_CALL(StreamBeginCapture, args.stream, CU_CAPTURE_THREAD_LOCAL));
    if (!CHECK_OK(expar_ep_dispatch(one.ep, &args, &result))) return;
    CHECK(result.path == EXPAR_EP_PATH_DIRECT, "path %d", (int)result.path);
    expar_ep_output_release(result.output);
    expar_ep_handle_release(result.handle);
    CHECK_OK(expar_ep_trim(one.ep));
    idle_dispatch(&one, EXPAR_F32);
    idle_forget(&one);
    CHECK(reserved(&one) == with, "memory of a graph went");
    CHECK_OK(CUDA_CALL(StreamEndCapture, args.stream, &graph));
    if (graph) CHECK_OK(CUDA_CALL(GraphDestroy, graph));
    CHECK_OK(CUDA_CALL(StreamDestroy, args.stream));
    CHECK_OK(expar_ep_trim(one.ep));
    idle_dispatch(&one, EXPAR_F32);
    CHECK(reserved(&one) < with, "all stayed");
    idle_end(&one);
}

static void what_a_graph_uses_stays(void **state)
{
    (void)state;
    run(trim_beside_graph);
}

/* One that does not wait for its counts. */
static void trim_without_waiting(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    if (!idle_begin(&one, group)) return;
    mem_block_release(grow(&one, true));
    const uint64_t with = reserved(&one);
    expar_ep_dispatch_args args = idle_dispatch_args(&one, EXPAR_F32);
    args.num_worst_tokens = is_odd(&one) ? 4 : 0;
    args.async_finish = 1;
    CHECK_OK(expar_ep_trim(one.ep));
    CHECK_OK(expar_ep_dispatch(one.ep, &args, &one.came));
    CHECK_OK(expar_event_wait(one.came.event));
    expar_event_release(one.came.event);
    CHECK(reserved(&one) == with, "memory went in a call that one rank did not wait in");
    idle_dispatch(&one, EXPAR_F32);
    CHECK(reserved(&one) < with, "all stayed");
    idle_end(&one);
}

static void nothing_goes_where_a_rank_does_not_wait(void **state)
{
    (void)state;
    run(trim_without_waiting);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(idle_memory_goes_and_comes_again),
        cmocka_unit_test(pools_without_limits_keep_what_calls_need),
        cmocka_unit_test(outputs_stay),
        cmocka_unit_test(what_a_graph_uses_stays),
        cmocka_unit_test(nothing_goes_where_a_rank_does_not_wait),
    };
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

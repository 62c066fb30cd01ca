/* SPDX-License-Identifier: Apache-2.0 */
/* Pools on GPUs under traffic whose calls need not wait for their counts, on a simulated driver (cuda/fake/fake.c).
 * They grow in a call that waits for that alone, and afterwards nobody waits. Calls with async_finish and captures
 * never wait. Sizes that are known at a form's first call hold from then on. Ranks have no tokens: their outputs are of
 * the worst case. Each has a GPU of its own, as ranks of a process that share one wait in any case. */
#include "cuda/find_controls.h"
#include "ep/harness/idle_rank.h"
#include "ep/normal/normal.h"
#include "exec/cuda/normal/normal_gpu.h"
#include "shmem/kind.h"

#define RANKS     2
#define ODD       1      /* the rank whose pool is full */
#define MANY_ROWS 262144 /* 33 MiB, indices included: more than the pool begins with */
#define FEW_ROWS  4

static bool is_odd(const idle_rank *one)
{
    return one->group->rank == ODD;
}

static uint64_t pool_bytes(const idle_rank *one)
{
    return device_heap_own_bytes(gpu_of(one->ep->base.exec)->core.heap);
}

/* With async_finish that has been waited for by its event. */
static bool dispatch_worst(idle_rank *one, int64_t rows, bool async_finish, expar_ep_path path)
{
    expar_ep_dispatch_args args = idle_dispatch_args(one, EXPAR_F32);
    args.num_worst_tokens = rows;
    args.async_finish = async_finish;
    idle_forget(one);
    if (!CHECK_OK(expar_ep_dispatch(one->ep, &args, &one->came))) return false;
    if (async_finish) {
        CHECK_OK(expar_event_wait(one->came.event));
        expar_event_release(one->came.event);
    }
    CHECK(one->came.num_recv_tokens == -1 && !one->came.recv_tokens_per_expert, "the call tells its counts");
    return CHECK(one->came.path == path, "path %d, expected %d", (int)one->came.path, (int)path);
}

static void set_hold(const idle_rank *one, int hold)
{
    fake_controls *controls = controls_find();
    CHECK_OK(expar_barrier_all(one->group));
    if (CHECK(controls, "the driver is not the played one")) atomic_store(&controls->hold, hold);
    CHECK_OK(expar_barrier_all(one->group));
}

/* Streams do not come to the call's kernels before it has returned. */
static void check_does_not_wait(idle_rank *one, int64_t rows, bool async_finish)
{
    expar_ep_dispatch_args args = idle_dispatch_args(one, EXPAR_F32);
    args.num_worst_tokens = rows;
    args.async_finish = async_finish;
    idle_forget(one);
    set_hold(one, 1);
    CHECK_OK(expar_ep_dispatch(one->ep, &args, &one->came));
    set_hold(one, 0);
    if (!one->came.event) return;
    CHECK_OK(expar_event_wait(one->came.event));
    expar_event_release(one->came.event);
}

static void run(ranks_body body)
{
    kind_run((ranks_plan){0}, RANKS, body);
}

/* ---- all ranks alike --------------------------------------------------------------------------------------------- */

/* The first call comes by the queue, and its memory beside the pool; later ones do not. */
static void grow_alike(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    if (!idle_begin_at(&one, group, group->rank)) return;
    const uint64_t before = pool_bytes(&one);
    if (!dispatch_worst(&one, MANY_ROWS, false, EXPAR_EP_PATH_QUEUE)) return;
    const uint64_t grown = pool_bytes(&one);
    CHECK(grown > before, "the pool has not grown");
    for (int32_t i = 0; i < 3; i++)
        dispatch_worst(&one, MANY_ROWS, i == 2, EXPAR_EP_PATH_DIRECT);
    check_does_not_wait(&one, MANY_ROWS, false);
    CHECK(pool_bytes(&one) == grown, "the pool grew again");
    idle_end(&one);
}

static void pools_grow_for_worst_cases(void **state)
{
    (void)state;
    run(grow_alike);
}

static void grow_for_experts(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    if (!idle_begin_at(&one, group, group->rank)) return;
    for (int32_t i = 0; i < 3; i++) {
        expar_ep_dispatch_args args = idle_dispatch_args(&one, EXPAR_F32);
        args.num_worst_tokens = MANY_ROWS;
        args.expert_major = 1;
        idle_forget(&one);
        if (!CHECK_OK(expar_ep_dispatch(one.ep, &args, &one.came))) return;
        CHECK(one.came.path == (i ? EXPAR_EP_PATH_DIRECT : EXPAR_EP_PATH_QUEUE), "path %d in call %d",
              (int)one.came.path, (int)i);
        CHECK(i == 0 || ep_handle_map_block(one.came.handle)->pool, "the map lies beside the pool in call %d", (int)i);
    }
    idle_end(&one);
}

static void pools_grow_for_expert_major_worst_cases(void **state)
{
    (void)state;
    run(grow_for_experts);
}

/* ---- one rank alone ---------------------------------------------------------------------------------------------- */

/* The other rank learns of the request by the header of a call that it did not wait in. */
static void grow_one(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    if (!idle_begin_at(&one, group, group->rank)) return;
    const uint64_t before = pool_bytes(&one);
    const int64_t rows = is_odd(&one) ? MANY_ROWS : FEW_ROWS;
    dispatch_worst(&one, rows, false, is_odd(&one) ? EXPAR_EP_PATH_QUEUE : EXPAR_EP_PATH_DIRECT);
    CHECK(pool_bytes(&one) == before, "the pool grew in a call that one rank did not wait in");
    /* Until the other's kernel has told it, too. */
    CHECK_OK(CUDA_CALL(StreamSynchronize, one.stream));
    CHECK_OK(expar_barrier_all(group));
    dispatch_worst(&one, rows, false, is_odd(&one) ? EXPAR_EP_PATH_QUEUE : EXPAR_EP_PATH_DIRECT);
    CHECK((pool_bytes(&one) > before) == is_odd(&one), "the pool has %llu bytes", (unsigned long long)pool_bytes(&one));
    for (int32_t i = 0; i < 10; i++)
        dispatch_worst(&one, rows, false, EXPAR_EP_PATH_DIRECT);
    check_does_not_wait(&one, rows, false);
    idle_end(&one);
}

static void one_ranks_request_is_heard(void **state)
{
    (void)state;
    run(grow_one);
}

/* The other rank never waits: the request is given up after a while, and taken up again when it may be met. */
static void request_in_vain(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    if (!idle_begin_at(&one, group, group->rank)) return;
    const uint64_t before = pool_bytes(&one);
    const int64_t rows = is_odd(&one) ? MANY_ROWS : FEW_ROWS;
    const expar_ep_path path = is_odd(&one) ? EXPAR_EP_PATH_QUEUE : EXPAR_EP_PATH_DIRECT;
    for (int32_t i = 0; i < 64; i++)
        dispatch_worst(&one, rows, !is_odd(&one), path);
    check_does_not_wait(&one, rows, !is_odd(&one));
    CHECK(pool_bytes(&one) == before, "the pool has grown");
    for (int32_t i = 0; i < 32; i++)
        idle_dispatch(&one, EXPAR_F32);
    CHECK((pool_bytes(&one) > before) == is_odd(&one), "the pool has %llu bytes", (unsigned long long)pool_bytes(&one));
    idle_end(&one);
}

static void requests_in_vain_are_rare(void **state)
{
    (void)state;
    run(request_in_vain);
}

/* ---- calls that never wait --------------------------------------------------------------------------------------- */

/* With async_finish: the stream may hang on what the caller's thread does later. */
static void never_wait(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    if (!idle_begin_at(&one, group, group->rank)) return;
    const uint64_t before = pool_bytes(&one);
    for (int32_t i = 0; i < 3; i++) {
        check_does_not_wait(&one, MANY_ROWS, true);
        CHECK(one.came.path == EXPAR_EP_PATH_QUEUE && pool_bytes(&one) == before, "the pool has grown");
    }
    dispatch_worst(&one, FEW_ROWS, false, EXPAR_EP_PATH_DIRECT);
    CHECK(pool_bytes(&one) > before, "what found no room was forgotten");
    dispatch_worst(&one, MANY_ROWS, true, EXPAR_EP_PATH_DIRECT);
    idle_end(&one);
}

static void calls_with_async_finish_never_wait(void **state)
{
    (void)state;
    run(never_wait);
}

static expar_status capture(idle_rank *one, cu_stream stream)
{
    expar_ep_dispatch_args args = idle_dispatch_args(one, EXPAR_F32);
    args.num_worst_tokens = MANY_ROWS;
    args.stream = stream;
    idle_forget(one);
    return expar_ep_dispatch(one->ep, &args, &one->came);
}

/* A captured call that finds no memory does once the call has been made outside. */
static void capture_after(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    cu_graph graph = NULL;
    cu_stream stream = NULL;
    if (!idle_begin_at(&one, group, group->rank)) return;
    CHECK_OK(CUDA_CALL(StreamCreate, &stream, CU_STREAM_NON_BLOCKING));
    CHECK_OK(CUDA_CALL(StreamBeginCapture, stream, CU_CAPTURE_THREAD_LOCAL));
    CHECK_STATUS(EXPAR_ERR_BUFFER_SIZE, capture(&one, stream));
    dispatch_worst(&one, MANY_ROWS, false, EXPAR_EP_PATH_QUEUE);
    CHECK_OK(capture(&one, stream));
    CHECK_OK(CUDA_CALL(StreamEndCapture, stream, &graph));
    if (graph) CHECK_OK(CUDA_CALL(GraphDestroy, graph));
    CHECK_OK(CUDA_CALL(StreamDestroy, stream));
    idle_end(&one);
}

static void captures_find_what_calls_outside_have_grown(void **state)
{
    (void)state;
    run(capture_after);
}

/* ---- without limits ---------------------------------------------------------------------------------------------- */

/* Where records grow the hosts meet in any case: pools are there for the same call. */
static void begin_with_worst(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    config.device = (expar_device){.type = EXPAR_CUDA, .index = group->rank};
    if (!idle_begin_as(&one, group, &config)) return;
    CHECK(pool_bytes(&one) == 0, "the pool begins with memory");
    dispatch_worst(&one, is_odd(&one) ? MANY_ROWS : FEW_ROWS, true, EXPAR_EP_PATH_DIRECT);
    CHECK((pool_bytes(&one) > MANY_ROWS * 128) == is_odd(&one), "%llu bytes", (unsigned long long)pool_bytes(&one));
    const uint64_t grown = pool_bytes(&one);
    check_does_not_wait(&one, FEW_ROWS, false);
    CHECK(pool_bytes(&one) == grown, "the pool grew again");
    idle_end(&one);
}

static void pools_come_with_records(void **state)
{
    (void)state;
    run(begin_with_worst);
}

static void route_worst(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    if (!idle_begin_at(&one, group, group->rank)) return;
    mem_block *all = NULL;
    const uint64_t before = pool_bytes(&one);
    if (is_odd(&one)) CHECK(mem_pool_take_whole(one.ep->base.exec->pool, 1, &all), "the pool is full");
    for (int32_t i = 0; i < 2; i++) {
        expar_ep_route_args args = EXPAR_EP_ROUTE_ARGS_INIT;
        expar_ep_route_result result = EXPAR_EP_ROUTE_RESULT_INIT;
        args.topk_idx = idle_tensor(EXPAR_I32, 1);
        args.topk_idx.device.index = group->rank;
        args.num_experts = group->size;
        args.num_worst_tokens = FEW_ROWS;
        args.stream = one.stream;
        if (!CHECK_OK(expar_ep_route(one.ep, &args, &result))) return;
        CHECK(result.num_recv_tokens == -1, "the route tells its counts");
        expar_ep_handle_release(result.handle);
        CHECK_OK(CUDA_CALL(StreamSynchronize, one.stream));
        CHECK_OK(expar_barrier_all(group));
    }
    CHECK((pool_bytes(&one) > before) == is_odd(&one), "the pool has %llu bytes", (unsigned long long)pool_bytes(&one));
    mem_block_release(all);
    idle_end(&one);
}

static void routes_grow_pools_too(void **state)
{
    (void)state;
    run(route_worst);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pools_grow_for_worst_cases),
        cmocka_unit_test(pools_grow_for_expert_major_worst_cases),
        cmocka_unit_test(one_ranks_request_is_heard),
        cmocka_unit_test(requests_in_vain_are_rare),
        cmocka_unit_test(calls_with_async_finish_never_wait),
        cmocka_unit_test(captures_find_what_calls_outside_have_grown),
        cmocka_unit_test(pools_come_with_records),
        cmocka_unit_test(routes_grow_pools_too),
    };
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

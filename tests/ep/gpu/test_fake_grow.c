/* SPDX-License-Identifier: Apache-2.0 */
/* Pools on GPUs that grow, on a simulated driver (cuda/fake/fake.c). All ranks grow together, in calls that wait for
 * their counts, once and then no more. Also the state when a growth fails, memory beside the pool, and records that
 * grow with the forms of calls. Also captures, and outputs that outlive buffer and group. Ranks have no tokens: pools
 * are filled by blocks, and worst-case outputs. */
#include "cuda/find_controls.h"
#include "ep/harness/idle_rank.h"
#include "ep/normal/normal.h"
#include "exec/cuda/normal/normal_gpu.h"
#include "shmem/kind.h"

#include <stdlib.h>

#define RANKS 2
#define ODD   1 /* the rank whose pool is full */
#define MIB   ((uint64_t)1 << 20)

static bool is_odd(const idle_rank *one)
{
    return one->group->rank == ODD;
}

static uint64_t pool_bytes(const idle_rank *one)
{
    return device_heap_own_bytes(gpu_of(one->ep->base.exec)->core.heap);
}

/* All that the pool has now. */
static mem_block *take_all(const idle_rank *one)
{
    mem_block *all = NULL;
    CHECK(mem_pool_take_whole(one->ep->base.exec->pool, 1, &all), "the pool is full");
    return all;
}

static fake_controls *controls(void)
{
    fake_controls *found = controls_find();
    CHECK(found, "the driver is not the played one");
    return found;
}

static void run(ranks_body body)
{
    kind_run((ranks_plan){0}, RANKS, body);
}

/* A fresh dispatch that waits for its counts; where its results lie. */
static void check_results(idle_rank *one, bool in_pool)
{
    if (!idle_dispatch(one, EXPAR_F32)) return;
    const bool pooled = one->came.output->block->pool != NULL;
    CHECK(pooled == in_pool, "the results lie %s the pool", pooled ? "in" : "beside");
    CHECK(one->came.path == (in_pool ? EXPAR_EP_PATH_DIRECT : EXPAR_EP_PATH_QUEUE), "path %d", (int)one->came.path);
}

/* Once nothing is held, and a later call has come, no memory is in use any more, by any rank of this process. */
static void check_nothing_lent(idle_rank *one)
{
    idle_forget(one);
    if (!idle_dispatch(one, EXPAR_F32)) return;
    idle_forget(one);
    CHECK_OK(expar_barrier_all(one->group));
    cuda_later_await();
    CHECK_OK(expar_barrier_all(one->group));
    CHECK(atomic_load(&controls()->lent) == 0, "%d pieces are still lent", atomic_load(&controls()->lent));
    CHECK_OK(expar_barrier_all(one->group));
}

/* ---- growth ------------------------------------------------------------------------------------------------------ */

/* The odd rank's pool alone is full: it grows there alone, in the first call, and in no other. */
static void grow_once(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    if (!idle_begin(&one, group)) return;
    check_results(&one, true);
    idle_forget(&one);
    const uint64_t before = pool_bytes(&one);
    mem_block *all = is_odd(&one) ? take_all(&one) : NULL;
    check_results(&one, true);
    const uint64_t grown = pool_bytes(&one);
    CHECK(is_odd(&one) ? grown > before && grown <= before + 4 * MIB : grown == before,
          "the pool went from %llu to %llu bytes", (unsigned long long)before, (unsigned long long)grown);
    for (int32_t i = 0; i < 3; i++)
        check_results(&one, true);
    idle_combine(&one);
    CHECK(pool_bytes(&one) == grown, "the pool grew again");
    mem_block_release(all);
    check_nothing_lent(&one);
    idle_end(&one);
}

static void a_pool_grows_once(void **state)
{
    (void)state;
    run(grow_once);
}

/* Expert-major, whose rows and map are blocks of their own. */
static void grow_for_experts(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    if (!idle_begin(&one, group)) return;
    const uint64_t before = pool_bytes(&one);
    mem_block *all = take_all(&one);
    expar_ep_dispatch_args args = idle_dispatch_args(&one, EXPAR_F32);
    args.expert_major = 1;
    for (int32_t i = 0; i < 2; i++) {
        expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
        if (!CHECK_OK(expar_ep_dispatch(one.ep, &args, &result))) return;
        CHECK(result.path == EXPAR_EP_PATH_DIRECT, "path %d", (int)result.path);
        CHECK(result.handle->map->pool && result.output->block->pool, "map or rows lie beside the pool");
        CHECK(pool_bytes(&one) > before, "the pool has not grown");
        expar_ep_output_release(result.output);
        expar_ep_handle_release(result.handle);
    }
    mem_block_release(all);
    idle_end(&one);
}

static void pools_grow_for_expert_major_rows(void **state)
{
    (void)state;
    run(grow_for_experts);
}

/* A rank that does not wait for its counts keeps all from growing; its call is as good. */
static void grow_with_worst(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    if (!idle_begin(&one, group)) return;
    const uint64_t before = pool_bytes(&one);
    mem_block *all = is_odd(&one) ? take_all(&one) : NULL;
    expar_ep_dispatch_args args = idle_dispatch_args(&one, EXPAR_F32);
    if (!is_odd(&one)) args.num_worst_tokens = 8;
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    if (!CHECK_OK(expar_ep_dispatch(one.ep, &args, &result))) return;
    CHECK(result.path == (is_odd(&one) ? EXPAR_EP_PATH_QUEUE : EXPAR_EP_PATH_DIRECT), "path %d", (int)result.path);
    CHECK(pool_bytes(&one) == before, "the pool has grown");
    expar_ep_output_release(result.output);
    expar_ep_handle_release(result.handle);
    check_results(&one, true);
    CHECK((pool_bytes(&one) > before) == is_odd(&one), "the pool has %llu bytes", (unsigned long long)pool_bytes(&one));
    mem_block_release(all);
    check_nothing_lent(&one);
    idle_end(&one);
}

static void a_rank_that_does_not_wait_keeps_pools_as_they_are(void **state)
{
    (void)state;
    run(grow_with_worst);
}

/* There is no memory to grow by: the call takes memory beside the pool, and so do later ones, until there is some. */
static void fail_to_grow(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    if (!idle_begin(&one, group)) return;
    const uint64_t before = pool_bytes(&one);
    mem_block *all = is_odd(&one) ? take_all(&one) : NULL;
    CHECK_OK(expar_barrier_all(group));
    atomic_store(&controls()->no_chunks, kind_of_ranks == RANKS_THREADS || is_odd(&one));
    CHECK_OK(expar_barrier_all(group));
    for (int32_t i = 0; i < 3; i++)
        check_results(&one, !is_odd(&one));
    CHECK(pool_bytes(&one) == before, "the pool has grown");
    CHECK_OK(expar_barrier_all(group));
    atomic_store(&controls()->no_chunks, 0);
    CHECK_OK(expar_barrier_all(group));
    for (int32_t i = 0; i < 24; i++)
        if (!idle_dispatch(&one, EXPAR_F32)) return;
    CHECK((pool_bytes(&one) > before) == is_odd(&one), "the pool has %llu bytes", (unsigned long long)pool_bytes(&one));
    mem_block_release(all);
    check_nothing_lent(&one);
    idle_end(&one);
}

static void a_growth_that_fails_loses_nothing(void **state)
{
    (void)state;
    run(fail_to_grow);
}

/* The first piece of memory is rejected, as by a GPU without space for a spare output. The growth is tried again. */
static void grow_without_spare(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    if (!idle_begin(&one, group)) return;
    const uint64_t before = pool_bytes(&one);
    mem_block *all = is_odd(&one) ? take_all(&one) : NULL;
    if (is_odd(&one)) atomic_store(&controls()->few_chunks, 1);
    check_results(&one, true);
    if (is_odd(&one)) CHECK(atomic_load(&controls()->few_chunks) == 0, "no piece of memory was asked for");
    CHECK((pool_bytes(&one) > before) == is_odd(&one), "the pool has %llu bytes", (unsigned long long)pool_bytes(&one));
    mem_block_release(all);
    check_nothing_lent(&one);
    idle_end(&one);
}

static void a_growth_is_tried_again_without_spare(void **state)
{
    (void)state;
    run(grow_without_spare);
}

/* ---- beside the pool --------------------------------------------------------------------------------------------- */

#define LIMIT_BYTES ((int64_t)64 << 10)
#define MANY_ROWS   4096 /* 512 KiB */

/* Beyond the limit outputs come from elsewhere, by the queue, and pools do not grow. */
static void go_beyond_the_limit(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    if (!idle_begin_with(&one, group, LIMIT_BYTES)) return;
    const uint64_t before = pool_bytes(&one);
    for (int32_t i = 0; i < 3; i++) {
        expar_ep_dispatch_args args = idle_dispatch_args(&one, EXPAR_F32);
        expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
        args.num_worst_tokens = MANY_ROWS;
        if (!CHECK_OK(expar_ep_dispatch(one.ep, &args, &result))) return;
        CHECK(result.path == EXPAR_EP_PATH_QUEUE && !result.output->block->pool, "the rows lie in the pool");
        const cuda_place place = cuda_place_of(result.recv_x.data);
        CHECK(place.kind == CUDA_PLACE_DEVICE, "the rows lie in memory of kind %d", (int)place.kind);
        expar_ep_output_release(result.output);
        expar_ep_handle_release(result.handle);
        check_results(&one, true);
    }
    CHECK(pool_bytes(&one) == before, "the pool has grown");
    check_nothing_lent(&one);
    idle_end(&one);
}

static void a_limit_is_kept(void **state)
{
    (void)state;
    run(go_beyond_the_limit);
}

/* ---- records ----------------------------------------------------------------------------------------------------- */

/* A buffer without any limits, for which nothing is reserved. */
static bool begin_without_limits(idle_rank *one, expar_group *group)
{
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    config.device = (expar_device){.type = EXPAR_CUDA};
    if (!idle_begin_as(one, group, &config)) return false;
    CHECK(pool_bytes(one) == 0, "%llu bytes are reserved", (unsigned long long)pool_bytes(one));
    return true;
}

static expar_status dispatch_topk(idle_rank *one, int32_t topk, void *stream)
{
    expar_ep_dispatch_args args = idle_dispatch_args(one, EXPAR_F32);
    args.topk_idx = idle_tensor(EXPAR_I32, topk);
    args.stream = stream;
    if (stream != one->stream) args.num_worst_tokens = 4;
    idle_forget(one);
    return expar_ep_dispatch(one->ep, &args, &one->came);
}

static void check_growths(const idle_rank *one, uint32_t expected)
{
    CHECK(one->ep->growths == expected, "records grew %u times", (unsigned)one->ep->growths);
}

/* Once for each form that is larger; forms that differ, and memory that is missing, are told to all. */
static void grow_records(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    if (!begin_without_limits(&one, group)) return;
    for (int32_t i = 0; i < 3; i++)
        if (idle_dispatch(&one, EXPAR_F32)) idle_combine(&one);
    check_growths(&one, 1);
    CHECK(pool_bytes(&one) > 0, "the pool is empty");
    CHECK_OK(dispatch_topk(&one, 5, one.stream));
    CHECK_OK(dispatch_topk(&one, 3, one.stream));
    check_growths(&one, 2);
    const int32_t topk = is_odd(&one) ? 7 : 6;
    CHECK_STATUS(EXPAR_ERR_MISMATCH, dispatch_topk(&one, topk, one.stream));
    CHECK_TEXT("expar_ep_dispatch", "top-k is 7 on rank 1 and 6 on rank 0");
    CHECK_STATUS(EXPAR_ERR_MISMATCH, dispatch_topk(&one, is_odd(&one) ? 7 : 5, one.stream));
    CHECK_OK(expar_barrier_all(group));
    atomic_store(&controls()->no_chunks, kind_of_ranks == RANKS_THREADS || is_odd(&one));
    CHECK_OK(expar_barrier_all(group));
    expar_ep_dispatch_args args = idle_dispatch_args(&one, EXPAR_F32);
    args.x = idle_tensor(EXPAR_F32, 1 << 16);
    idle_forget(&one);
    CHECK_STATUS(EXPAR_ERR_MEMORY, expar_ep_dispatch(one.ep, &args, &one.came));
    CHECK_OK(expar_barrier_all(group));
    atomic_store(&controls()->no_chunks, 0);
    CHECK_OK(expar_barrier_all(group));
    check_growths(&one, 2);
    CHECK_OK(expar_ep_dispatch(one.ep, &args, &one.came));
    check_growths(&one, 3);
    if (idle_dispatch(&one, EXPAR_F32)) idle_combine(&one);
    idle_end(&one);
}

static void records_grow_with_forms(void **state)
{
    (void)state;
    run(grow_records);
}

static expar_status dispatch_experts(idle_rank *one, int32_t num_experts)
{
    expar_ep_dispatch_args args = idle_dispatch_args(one, EXPAR_F32);
    args.num_experts = num_experts;
    idle_forget(one);
    return expar_ep_dispatch(one->ep, &args, &one->came);
}

/* Routing by hand: the counts come from the host, or as they lie in pinned memory. */
static expar_status dispatch_counts(idle_rank *one, int32_t num_experts)
{
    expar_ep_dispatch_args args = idle_dispatch_args(one, EXPAR_F32);
    int32_t *counts = calloc((size_t)num_experts, sizeof *counts);
    args.num_experts = num_experts;
    args.topk_idx = args.topk_weights = (expar_tensor){0};
    args.token_in_rank = idle_tensor(EXPAR_U8, RANKS);
    args.tokens_per_expert = counts;
    idle_forget(one);
    expar_status status = expar_ep_dispatch(one->ep, &args, &one->came);
    free(counts);
    return status;
}

static void check_counters(const idle_rank *one, int32_t least)
{
    const gpu_counters *counters = gpu_of(one->ep->base.exec)->counters;
    CHECK(counters->experts >= least, "there are counters for %d experts", (int)counters->experts);
}

#define MANY_EXPERTS 40000

/* Counters grow with the form, once; where one rank has no memory for them all ranks are told, and nothing is lost. */
static void grow_counters(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    if (!begin_without_limits(&one, group)) return;
    CHECK_OK(dispatch_experts(&one, RANKS));
    const gpu_counters *const first = gpu_of(one.ep->base.exec)->counters;
    CHECK_OK(expar_barrier_all(group));
    atomic_store(&controls()->no_pinned, kind_of_ranks == RANKS_THREADS || is_odd(&one));
    CHECK_OK(expar_barrier_all(group));
    CHECK_STATUS(EXPAR_ERR_MEMORY, dispatch_experts(&one, MANY_EXPERTS));
    CHECK_OK(expar_barrier_all(group));
    atomic_store(&controls()->no_pinned, 0);
    CHECK_OK(expar_barrier_all(group));
    CHECK(gpu_of(one.ep->base.exec)->counters == first, "counters grew on this rank alone");
    check_growths(&one, 1);
    CHECK_OK(dispatch_experts(&one, MANY_EXPERTS));
    check_growths(&one, 2);
    check_counters(&one, MANY_EXPERTS);
    CHECK_OK(dispatch_counts(&one, MANY_EXPERTS));
    CHECK_OK(dispatch_experts(&one, RANKS));
    check_growths(&one, 2);
    CHECK_OK(dispatch_counts(&one, 3 * MANY_EXPERTS));
    check_growths(&one, 3);
    check_counters(&one, 3 * MANY_EXPERTS);
    CHECK(gpu_of(one.ep->base.exec)->counters->before->before == first, "counters that graphs may use have gone");
    if (idle_dispatch(&one, EXPAR_F32)) idle_combine(&one);
    idle_end(&one);
}

static void counters_grow_with_experts(void **state)
{
    (void)state;
    run(grow_counters);
}

/* A graph cannot wait for it. */
static void capture_larger_form(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    cu_graph graph = NULL;
    cu_stream captured = NULL;
    if (!begin_without_limits(&one, group)) return;
    CHECK_OK(dispatch_topk(&one, 4, one.stream));
    CHECK_OK(dispatch_topk(&one, 4, one.stream));
    CHECK_OK(CUDA_CALL(StreamCreate, &captured, CU_STREAM_NON_BLOCKING));
    CHECK_OK(CUDA_CALL(StreamBeginCapture, captured, CU_CAPTURE_THREAD_LOCAL));
    CHECK_STATUS(EXPAR_ERR_LIMIT, dispatch_topk(&one, 9, captured));
    CHECK_TEXT("expar_ep_dispatch", "top-k 9", "while the stream is being captured");
    CHECK_OK(dispatch_topk(&one, 4, captured));
    CHECK_OK(CUDA_CALL(StreamEndCapture, captured, &graph));
    if (graph) CHECK_OK(CUDA_CALL(GraphDestroy, graph));
    CHECK_OK(CUDA_CALL(StreamDestroy, captured));
    CHECK_OK(dispatch_topk(&one, 9, one.stream));
    idle_end(&one);
}

static void captured_forms_do_not_grow(void **state)
{
    (void)state;
    run(capture_larger_form);
}

/* ---- captures ---------------------------------------------------------------------------------------------------- */

/* The allocation fails. No part of the call is on the stream and the buffer is unchanged. Once memory is free, the same
   call is captured. */
static void capture_without_space(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    cu_graph graph = NULL;
    if (!idle_begin_with(&one, group, LIMIT_BYTES)) return;
    check_results(&one, true);
    idle_forget(&one);
    expar_ep_dispatch_args args = idle_dispatch_args(&one, EXPAR_F32);
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    CHECK_OK(CUDA_CALL(StreamBeginCapture, one.stream, CU_CAPTURE_THREAD_LOCAL));
    CHECK_OK(expar_barrier_all(group));
    const int launches = atomic_load(&controls()->launches), others = atomic_load(&controls()->others);
    CHECK_OK(expar_barrier_all(group));
    args.num_worst_tokens = MANY_ROWS;
    CHECK_STATUS(EXPAR_ERR_BUFFER_SIZE, expar_ep_dispatch(one.ep, &args, &result));
    CHECK_TEXT("expar_ep_dispatch", "while the stream is being captured", "config.pool_bytes");
    CHECK_OK(expar_barrier_all(group));
    CHECK(atomic_load(&controls()->launches) == launches && atomic_load(&controls()->others) == others,
          "the refused call is on the stream");
    CHECK_OK(expar_barrier_all(group));
    args.num_worst_tokens = 4;
    CHECK_OK(expar_ep_dispatch(one.ep, &args, &result));
    CHECK_OK(CUDA_CALL(StreamEndCapture, one.stream, &graph));
    if (graph) CHECK_OK(CUDA_CALL(GraphDestroy, graph));
    expar_ep_output_release(result.output);
    expar_ep_handle_release(result.handle);
    check_results(&one, true);
    idle_end(&one);
}

static void captures_without_space_are_rejected(void **state)
{
    (void)state;
    run(capture_without_space);
}

/* ---- lives ------------------------------------------------------------------------------------------------------- */

static _Thread_local expar_ep_dispatch_result kept[2]; /* in the pool, and beside it */
static _Thread_local cu_address kept_at[2];

/* Rows that the test writes by itself. */
static void keep_one(idle_rank *one, int32_t which, int64_t rows)
{
    expar_ep_dispatch_args args = idle_dispatch_args(one, EXPAR_F32);
    args.num_worst_tokens = rows;
    kept[which] = (expar_ep_dispatch_result)EXPAR_EP_DISPATCH_RESULT_INIT;
    if (!CHECK_OK(expar_ep_dispatch(one->ep, &args, &kept[which]))) return;
    kept_at[which] = (cu_address)(uintptr_t)kept[which].recv_x.data;
    CHECK_OK(CUDA_CALL(MemsetD8, kept_at[which], (unsigned char)(one->group->rank + 1 + 10 * which), 128));
}

static void keep_outputs(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    if (!idle_begin_with(&one, group, LIMIT_BYTES)) return;
    keep_one(&one, 0, 4);
    keep_one(&one, 1, MANY_ROWS);
    CHECK(kept[0].output->block->pool && !kept[1].output->block->pool, "both lie in one place");
    idle_end(&one);
}

static bool is_there(cu_address at)
{
    return cuda_place_of((const void *)(uintptr_t)at).kind == CUDA_PLACE_DEVICE;
}

/* Group and buffer have gone. */
static void read_and_release(expar_group *none, void *shared)
{
    (void)none, (void)shared;
    for (int32_t i = 0; i < 2; i++) {
        const uint8_t *seen = kept[i].recv_x.data;
        if (!kept[i].output) continue;
        CHECK(is_there(kept_at[i]), "the memory of output %d is gone", (int)i);
        CHECK(seen[0] == seen[127] && seen[0] > 10 * i, "output %d holds %d", (int)i, (int)seen[0]);
        expar_ep_handle_release(kept[i].handle);
        CHECK(is_there(kept_at[i]), "the memory of output %d is gone with its handle", (int)i);
        expar_ep_output_release(kept[i].output);
    }
    cuda_later_await();
    for (int32_t i = 0; i < 2; i++)
        CHECK(!is_there(kept_at[i]), "the memory of output %d has stayed", (int)i);
}

static void outputs_outlive_buffer_and_group(void **state)
{
    (void)state;
    kind_run((ranks_plan){.after = read_and_release}, RANKS, keep_outputs);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pool_grows_once),
        cmocka_unit_test(pools_grow_for_expert_major_rows),
        cmocka_unit_test(a_rank_that_does_not_wait_keeps_pools_as_they_are),
        cmocka_unit_test(a_growth_that_fails_loses_nothing),
        cmocka_unit_test(a_growth_is_tried_again_without_spare),
        cmocka_unit_test(a_limit_is_kept),
        cmocka_unit_test(records_grow_with_forms),
        cmocka_unit_test(counters_grow_with_experts),
        cmocka_unit_test(captured_forms_do_not_grow),
        cmocka_unit_test(captures_without_space_are_rejected),
        cmocka_unit_test(outputs_outlive_buffer_and_group),
    };
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

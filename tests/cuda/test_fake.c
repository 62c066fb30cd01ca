/* SPDX-License-Identifier: Apache-2.0 */
/* What goes wrong with GPUs, on a driver that plays it (fake/fake.c): each is said clearly, on all ranks, and leaves
 * the group usable. */
#include "shmem/device_heap_parts.h"
#include "shmem/kind.h"

#define MIB ((uint64_t)1 << 20)

/* ---- the device heap ----------------------------------------------------------------------------------------------
 */

static void two_gpus_without_access(expar_group *group, void *shared)
{
    (void)shared;
    device_heap *heap = NULL;
    CHECK_STATUS(EXPAR_ERR_UNSUPPORTED, device_heap_create(group->sym, group->rank, &heap));
    CHECK_TEXT("no peer access between GPU", "GPU 0000:01:00.0 of rank 0", "GPU 0000:02:00.0 of rank 1");
    if (!CHECK_OK(device_heap_create(group->sym, 1, &heap))) return; /* one GPU for both */
    CHECK_OK(expar_group_barrier(group));
    device_heap_destroy(heap, true);
}

/* A driver that plays so, for the ranks of one run. */
static void run_with(const char *setting, const char *value, int32_t size, ranks_body body)
{
    const ranks_plan plan = {.kind = kind_of_ranks, .size = size};
    setenv(setting, value, 1);
    bool passed = ranks_run(&plan, body, NULL);
    unsetenv(setting);
    assert_true(passed);
}

static void no_peer_access_is_named(void **state)
{
    (void)state;
    run_with("FAKE_PEERS", "0", 2, two_gpus_without_access);
}

static void write_and_read(expar_group *group, device_heap *heap, uint64_t offset)
{
    int32_t got[4], mine[4] = {group->rank, group->rank, group->rank, group->rank};
    int32_t next = (group->rank + 1) % group->size, before = (group->rank + group->size - 1) % group->size;
    if (!CHECK_OK(cuda_enter(device_heap_device(heap)))) return;
    CHECK_OK(CUDA_CALL(MemcpyHtoD, device_heap_bases(heap)[next] + offset, mine, sizeof mine));
    CHECK_OK(expar_group_barrier(group));
    CHECK_OK(CUDA_CALL(MemcpyDtoH, got, device_heap_at(heap, offset), sizeof got));
    cuda_leave();
    CHECK(got[0] == before && got[3] == before, "rank %d wrote %d", (int)before, (int)got[0]);
}

/* Ranks that are threads need no descriptors; processes fall back to CUDA IPC. */
static void memory_without_descriptors(expar_group *group, void *shared)
{
    (void)shared;
    bool whole = kind_of_ranks == RANKS_PROCESSES;
    device_heap *heap = NULL;
    uint64_t offset, more;
    if (!CHECK_OK(device_heap_create(group->sym, group->rank % 2, &heap))) return;
    CHECK(heap->kind == (whole ? HEAP_WHOLE : HEAP_CHUNKS), "the heap's kind is %d", (int)heap->kind);
    if (!CHECK_OK(device_heap_take(heap, "test", 8 * MIB, 4096, &offset))) return;
    write_and_read(group, heap, offset);
    expar_status grown = device_heap_take(heap, "test", 64 * MIB, 4096, &more);
    CHECK_STATUS(whole ? EXPAR_ERR_MEMORY : EXPAR_OK, grown);
    if (whole) CHECK_TEXT("by CUDA IPC the device heap cannot grow");
    CHECK_OK(expar_group_barrier(group));
    device_heap_destroy(heap, true);
}

static void descriptors_are_not_needed(void **state)
{
    (void)state;
    run_with("FAKE_EXPORT", "0", 3, memory_without_descriptors);
}

/* Rank 1 aborts: what threads leave behind is freed with the last heap, and the next heap is as good. */
static void a_failed_group(expar_group *group, void *shared)
{
    (void)shared;
    device_heap *heap = NULL;
    uint64_t offset;
    if (!CHECK_OK(device_heap_create(group->sym, 0, &heap))) return;
    CHECK_OK(device_heap_take(heap, "test", 8 * MIB, 4096, &offset));
    if (group->rank == 1) CHECK_OK(expar_group_abort(group));
    device_heap_destroy(heap, true);
}

static void a_failed_group_leaves_nothing(void **state)
{
    (void)state;
    size_t before, after, total;
    if (kind_of_ranks == RANKS_PROCESSES) skip();
    assert_int_equal(cuda_open(), EXPAR_OK);
    assert_int_equal(cuda_driver()->MemGetInfo(&before, &total), CU_OK);
    kind_run((ranks_plan){0}, 3, a_failed_group);
    assert_int_equal(cuda_driver()->MemGetInfo(&after, &total), CU_OK);
    assert_int_equal(before, after);
    kind_run((ranks_plan){0}, 3, memory_without_descriptors);
}

/* ---- buffers ------------------------------------------------------------------------------------------------------
 */

static expar_ep_config small_config(const expar_group *group)
{
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    config.max_tokens = 4;
    config.max_row_bytes = 64;
    config.max_topk = 1;
    config.max_experts = group->size;
    config.device = (expar_device){.type = EXPAR_CUDA};
    return config;
}

static void numbers_of_sms(expar_group *group, void *shared)
{
    static const int32_t wrong[] = {67, 133, -1, INT32_MIN}, right[] = {66, 1, 0};
    (void)shared;
    bool mine = group->rank == 1;
    expar_ep *ep = NULL;
    for (size_t i = 0; i < ARRAY_LENGTH(wrong); i++) {
        expar_ep_config config = small_config(group);
        if (mine) config.num_sms = wrong[i];
        CHECK_STATUS(mine ? EXPAR_ERR_ARGUMENT : EXPAR_ERR_REMOTE, expar_ep_create(group, &config, &ep));
        CHECK_TEXT("expar_ep_create", "config.num_sms is", "expected 1 to 66, or 0", "132 SMs for 2 ranks");
    }
    for (size_t i = 0; i < ARRAY_LENGTH(right); i++) {
        expar_ep_config config = small_config(group);
        config.num_sms = right[i];
        if (CHECK_OK(expar_ep_create(group, &config, &ep))) CHECK_OK(expar_ep_destroy(ep));
    }
}

static void more_sms_than_there_are(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, numbers_of_sms);
}

static void gpus_with_one_sm(expar_group *group, void *shared)
{
    (void)shared;
    expar_ep_config config = small_config(group);
    expar_ep *ep = NULL;
    CHECK_STATUS(EXPAR_ERR_UNSUPPORTED, expar_ep_create(group, &config, &ep));
    CHECK_TEXT("expar_ep_create", "2 ranks share GPU 0, which has 1 SM");
    config.device.index = group->rank;
    if (CHECK_OK(expar_ep_create(group, &config, &ep))) CHECK_OK(expar_ep_destroy(ep));
}

static void more_ranks_than_sms(void **state)
{
    (void)state;
    run_with("FAKE_SMS", "1", 2, gpus_with_one_sm);
}

static void old_gpus(expar_group *group, void *shared)
{
    (void)shared;
    expar_ep_config config = small_config(group);
    expar_ep *ep = NULL;
    CHECK_STATUS(EXPAR_ERR_UNSUPPORTED, expar_ep_create(group, &config, &ep));
    CHECK_TEXT("expar_ep_create", "GPU 0 (Fake 0) has compute capability 7.5; expected 8.0 or higher");
}

static void gpus_that_are_too_old(void **state)
{
    (void)state;
    run_with("FAKE_CC", "75", 2, old_gpus);
}

static void a_large_pool(expar_group *group, void *shared)
{
    (void)shared;
    expar_ep_config config = small_config(group);
    expar_ep *ep = NULL;
    config.pool_bytes = (int64_t)8 << 30;
    CHECK_STATUS(EXPAR_ERR_MEMORY, expar_ep_create(group, &config, &ep));
    CHECK_TEXT("expar_ep_create", "bytes are more than GPU 0 (Fake 0) has");
    config.pool_bytes = (int64_t)3900 << 20;
    CHECK_STATUS(EXPAR_ERR_MEMORY, expar_ep_create(group, &config, &ep));
    CHECK_TEXT("expar_ep_create", "GPU 0 (Fake 0) has no", "MiB of memory left", "of 4096 MiB are free");
}

static void more_memory_than_there_is(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 1, a_large_pool);
}

/* A kernel that cannot be launched ends the call, and nobody waits for its flags. */
static void a_launch_that_fails(expar_group *group, void *shared)
{
    (void)shared;
    expar_ep_config config = small_config(group);
    expar_dispatch_args args = EXPAR_DISPATCH_ARGS_INIT;
    expar_dispatch_result result = EXPAR_DISPATCH_RESULT_INIT;
    expar_ep *ep = NULL;
    char stream;
    if (!CHECK_OK(expar_ep_create(group, &config, &ep))) return;
    args.x = expar_tensor_2d(NULL, EXPAR_F32, 0, 16);
    args.topk_idx = expar_tensor_2d(NULL, EXPAR_I32, 0, 1);
    args.x.device = args.topk_idx.device = (expar_device){.type = EXPAR_CUDA};
    args.num_experts = group->size;
    args.stream = &stream;
    CHECK_STATUS(EXPAR_ERR_CUDA, expar_dispatch(ep, &args, &result));
    CHECK_TEXT("cuLaunchKernelEx", "719");
    CHECK_OK(expar_ep_destroy(ep));
}

static void failing_launches_are_told(void **state)
{
    (void)state;
    run_with("FAKE_LAUNCH", "0", 1, a_launch_that_fails);
}

static void crowd(expar_group *group, void *shared)
{
    const char *queues = shared;
    expar_ep_config config = small_config(group);
    expar_ep *ep = NULL;
    expar_status status = expar_ep_create(group, &config, &ep);
    CHECK_STATUS(queues ? EXPAR_OK : EXPAR_ERR_UNSUPPORTED, status);
    if (!queues) CHECK_TEXT("9 ranks of this process share GPU 0", "CUDA_DEVICE_MAX_CONNECTIONS");
    CHECK_OK(expar_ep_destroy(ep));
}

static void more_ranks_than_queues(void **state)
{
    (void)state;
    const ranks_plan plan = {.kind = RANKS_THREADS, .size = 9};
    unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
    assert_true(ranks_run(&plan, crowd, NULL));
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "9", 1);
    assert_true(ranks_run(&plan, crowd, "9"));
    unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_peer_access_is_named),       cmocka_unit_test(descriptors_are_not_needed),
        cmocka_unit_test(a_failed_group_leaves_nothing), cmocka_unit_test(more_sms_than_there_are),
        cmocka_unit_test(more_memory_than_there_is),     cmocka_unit_test(failing_launches_are_told),
        cmocka_unit_test(more_ranks_than_queues),        cmocka_unit_test(more_ranks_than_sms),
        cmocka_unit_test(gpus_that_are_too_old),
    };
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

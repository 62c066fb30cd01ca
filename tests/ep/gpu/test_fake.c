/* SPDX-License-Identifier: Apache-2.0 */
/* Errors of buffers on GPUs, on a simulated driver (cuda/fake/fake.c). Each is said clearly, on all ranks, and leaves
 * the group usable. */
#include "shmem/kind.h"

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
    kind_run_with("FAKE_SMS", "1", 2, gpus_with_one_sm);
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
    kind_run_with("FAKE_CC", "75", 2, old_gpus);
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
    expar_ep_dispatch_args args = EXPAR_EP_DISPATCH_ARGS_INIT;
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    expar_ep *ep = NULL;
    char stream;
    if (!CHECK_OK(expar_ep_create(group, &config, &ep))) return;
    args.x = expar_tensor_2d(NULL, EXPAR_F32, 0, 16);
    args.topk_idx = expar_tensor_2d(NULL, EXPAR_I32, 0, 1);
    args.x.device = args.topk_idx.device = (expar_device){.type = EXPAR_CUDA};
    args.num_experts = group->size;
    args.stream = &stream;
    CHECK_STATUS(EXPAR_ERR_CUDA, expar_ep_dispatch(ep, &args, &result));
    CHECK_TEXT("cuLaunchKernelEx", "719");
    CHECK_OK(expar_ep_destroy(ep));
}

static void failing_launches_are_told(void **state)
{
    (void)state;
    kind_run_with("FAKE_LAUNCH", "0", 1, a_launch_that_fails);
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
        cmocka_unit_test(more_sms_than_there_are),   cmocka_unit_test(more_memory_than_there_is),
        cmocka_unit_test(failing_launches_are_told), cmocka_unit_test(more_ranks_than_queues),
        cmocka_unit_test(more_ranks_than_sms),       cmocka_unit_test(gpus_that_are_too_old),
    };
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

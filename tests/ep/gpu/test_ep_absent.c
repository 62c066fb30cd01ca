/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers on GPUs that are not there: the call is refused with a word, and the group serves CPU buffers as before. */
#include "shmem/kind.h"

static expar_ep_config small_config(expar_device_type type, int32_t index)
{
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    config.max_tokens = 4;
    config.max_row_bytes = 64;
    config.max_topk = 1;
    config.max_experts = 12;
    config.device = (expar_device){.type = type, .index = index};
    return config;
}

static void cpu_buffers_still_work(expar_group *group)
{
    expar_ep_config config = small_config(EXPAR_CPU, 0);
    expar_ep *ep = NULL;
    if (CHECK_OK(expar_ep_create(group, &config, &ep))) CHECK_OK(expar_ep_destroy(ep));
}

static void all_ask_for_a_gpu(expar_group *group, void *shared)
{
    (void)shared;
    expar_ep_config config = small_config(EXPAR_CUDA, 0);
    expar_ep *ep = NULL;
    CHECK_STATUS(EXPAR_ERR_UNSUPPORTED, expar_ep_create(group, &config, &ep));
    CHECK_TEXT("expar_ep_create", "CUDA is not available");
    CHECK(ep == NULL, "a buffer came all the same");
    cpu_buffers_still_work(group);
}

static void one_asks_for_a_gpu(expar_group *group, void *shared)
{
    (void)shared;
    expar_ep_config config = small_config(group->rank == 1 ? EXPAR_CUDA : EXPAR_CPU, 0);
    expar_ep *ep = NULL;
    CHECK_STATUS(EXPAR_ERR_MISMATCH, expar_ep_create(group, &config, &ep));
    CHECK_TEXT("device.type", "rank 1");
    cpu_buffers_still_work(group);
}

static void devices_that_make_no_sense(expar_group *group, void *shared)
{
    (void)shared;
    const expar_device bad[] = {{(expar_device_type)3, 0}, {EXPAR_CUDA, -1}, {(expar_device_type)-1, 0}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        expar_ep_config config = small_config(bad[i].type, bad[i].index);
        expar_ep *ep = NULL;
        CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_ep_create(group, &config, &ep));
        CHECK_TEXT("config.device");
    }
    cpu_buffers_still_work(group);
}

static void without_cuda_it_is_said(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 1, all_ask_for_a_gpu);
    kind_run((ranks_plan){0}, 3, all_ask_for_a_gpu);
}

static void ranks_must_agree_on_the_kind_of_device(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 3, one_asks_for_a_gpu);
}

static void nonsense_is_rejected(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, devices_that_make_no_sense);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_cuda_it_is_said),
        cmocka_unit_test(ranks_must_agree_on_the_kind_of_device),
        cmocka_unit_test(nonsense_is_rejected),
    };
    kind_read(argc, argv);
    setenv("CUDA_VISIBLE_DEVICES", "", 1); /* for machines that have GPUs */
    return cmocka_run_group_tests(tests, NULL, NULL);
}

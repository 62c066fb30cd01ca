/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers on GPUs of ranks that do not map each other's memory: what does not work there is rejected by name, on all
 * ranks, and the group stays usable. On simulated nodes; with the argument "fabric" on one node whose ranks may use the
 * network alone. */
#include "ep/harness/check.h"
#include "ep/harness/idle_rank.h"
#include "ep/harness/ranks.h"
#include "oracle/unit.h"
#include <expar/low_latency.h>

#include <stdlib.h>
#include <string.h>

#define RANKS 2

static bool by_fabric;

/* The GPU has fewer SMs. */
static void reject_normal(expar_group *group)
{
    expar_ep_config config = idle_config(group);
    expar_ep *ep = NULL;
    config.num_sms = INT32_MAX;
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_ep_create(group, &config, &ep));
    CHECK_TEXT("expar_ep_create", "config.num_sms is 2147483647", "SMs of GPU 0");
    CHECK(!ep, "a buffer that was rejected was given");
}

/* Rank 1 asks for a buffer on the CPU. */
static void reject_mixed(expar_group *group)
{
    expar_ep_config config = idle_config(group);
    expar_ep *ep = NULL;
    if (expar_group_rank(group) == 1) config.device = (expar_device){.type = EXPAR_CPU};
    CHECK_STATUS(EXPAR_ERR_MISMATCH, expar_ep_create(group, &config, &ep));
    CHECK_TEXT("expar_ep_create", "config.device.type", "CUDA", "CPU");
    CHECK(!ep, "a buffer that was rejected was given");
}

static expar_ll_config low_latency_config(void)
{
    expar_ll_config config = EXPAR_LL_CONFIG_INIT;
    config.max_tokens = 4;
    config.hidden = 128;
    config.max_topk = 2;
    config.num_experts = 2 * RANKS;
    return config;
}

/* Buffers without a shape. */
static void reject_low_latency(expar_group *group, int32_t unmapped, const char *why)
{
    expar_ll_config config = EXPAR_LL_CONFIG_INIT;
    expar_ll *ll = NULL;
    config.device.type = EXPAR_CUDA;
    config.unmapped = unmapped;
    config.masking = 1;
    config.reserve_bytes = 1 << 20;
    CHECK_STATUS(EXPAR_ERR_UNSUPPORTED, expar_ll_create(group, &config, &ll));
    CHECK_TEXT("expar_ll_create", "config.reserve_bytes is given", why, "expected 0 there");
    CHECK(!ll, "a buffer that was rejected was given");
}

/* After all rejections buffers are made as ever. */
static void make_others(expar_group *group)
{
    const expar_ll_config config = low_latency_config();
    const expar_ep_config normal = idle_config(group);
    expar_ll *ll = NULL;
    expar_ep *ep = NULL;
    if (CHECK_OK(expar_ep_create(group, &normal, &ep))) CHECK_OK(expar_ep_destroy(ep));
    if (CHECK_OK(expar_ll_create(group, &config, &ll))) CHECK_OK(expar_ll_destroy(ll));
}

static void reject_all(expar_group *group, void *shared)
{
    (void)shared;
    reject_normal(group);
    reject_mixed(group);
    reject_low_latency(group, 0, by_fabric ? "EXPAR_TRANSPORTS" : "the group spans several nodes");
    reject_low_latency(group, 1, "config.unmapped is 1");
    make_others(group);
}

static void test_rejections(void **state)
{
    (void)state;
    const ranks_plan plan = {.kind = RANKS_PROCESSES, .size = RANKS, .ranks_per_node = by_fabric ? 0 : 1};
    assert_true(ranks_run(&plan, reject_all, NULL));
}

int main(int argc, char **argv)
{
    by_fabric = argc > 1 && strcmp(argv[1], "fabric") == 0;
    if (by_fabric) setenv("EXPAR_TRANSPORTS", "fabric", 1);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rejections)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

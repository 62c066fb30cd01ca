/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers on GPUs of ranks that do not map each other's memory: what does not work there is rejected by name, on all
 * ranks, and the group stays usable. On simulated nodes; with the argument "fabric" on one node whose ranks may use the
 * network alone. */
#include "cuda/find_controls.h"
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

static void make_normal(expar_group *group)
{
    const expar_ep_config config = idle_config(group);
    expar_ep *ep = NULL;
    if (CHECK_OK(expar_ep_create(group, &config, &ep))) CHECK_OK(expar_ep_destroy(ep));
}

static expar_status create_low_latency(expar_group *group, expar_device_type type)
{
    expar_ll_config config = low_latency_config();
    expar_ll *ll = NULL;
    config.device.type = type;
    const expar_status status = expar_ll_create(group, &config, &ll);
    CHECK((status == EXPAR_OK) == (ll != NULL), "status %s with a buffer, or without one", expar_status_string(status));
    if (ll) CHECK_OK(expar_ll_destroy(ll));
    return status;
}

/* Rank 1 asks for a buffer on the CPU. */
static void reject_mixed_low_latency(expar_group *group)
{
    const expar_device_type type = expar_group_rank(group) == 1 ? EXPAR_CPU : EXPAR_CUDA;
    CHECK_STATUS(EXPAR_ERR_MISMATCH, create_low_latency(group, type));
    CHECK_TEXT("expar_ll_create", "config.device.type", "CUDA", "CPU");
}

/* The driver of rank 1 gives no pinned memory, which a network would reach. */
static void reject_without_pinned(expar_group *group)
{
    if (expar_group_rank(group) == 1) atomic_store(&controls_find()->no_pinned, 1);
    CHECK_STATUS(EXPAR_ERR_MEMORY, create_low_latency(group, EXPAR_CUDA));
    CHECK_TEXT("expar_ll_create", "pinned host memory", expar_group_rank(group) == 1 ? "cuMemHostAlloc" : "rank 1");
    /* Normal mode does without: streams copy. */
    make_normal(group);
    atomic_store(&controls_find()->no_pinned, 0);
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
    make_normal(group);
    CHECK_OK(create_low_latency(group, EXPAR_CPU));
    CHECK_OK(create_low_latency(group, EXPAR_CUDA));
}

static void reject_all(expar_group *group, void *shared)
{
    (void)shared;
    reject_normal(group);
    reject_mixed(group);
    reject_low_latency(group, 0, by_fabric ? "EXPAR_TRANSPORTS" : "the group spans several nodes");
    reject_low_latency(group, 1, "config.unmapped is 1");
    reject_mixed_low_latency(group);
    reject_without_pinned(group);
    make_others(group);
}

/* No network is allowed. */
static void reject_unreached(expar_group *group, void *shared)
{
    (void)shared;
    const char *other = expar_group_rank(group) == 0 ? "no transport reaches rank 1" : "no transport reaches rank 0";
    const expar_ep_config config = idle_config(group);
    expar_ep *ep = NULL;
    CHECK_STATUS(EXPAR_ERR_UNSUPPORTED, expar_ep_create(group, &config, &ep));
    CHECK_TEXT("expar_ep_create", other);
    CHECK_STATUS(EXPAR_ERR_UNSUPPORTED, create_low_latency(group, EXPAR_CUDA));
    CHECK_TEXT("expar_ll_create", "no way of EXPAR_DEVICE_TRANSPORTS=mapped,gda,proxy", "pinned memory of rank",
               "proxy: no transport reaches it with puts and atomics");
}

static void test_without_network(void **state)
{
    (void)state;
    const ranks_plan plan = {.kind = RANKS_PROCESSES, .size = RANKS, .ranks_per_node = 1};
    if (by_fabric) skip();
    setenv("EXPAR_TRANSPORTS", "p2p", 1);
    assert_true(ranks_run(&plan, reject_unreached, NULL));
    unsetenv("EXPAR_TRANSPORTS");
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rejections), cmocka_unit_test(test_without_network)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

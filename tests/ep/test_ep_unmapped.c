/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of one host that reach each other by the network alone (EXPAR_TRANSPORTS=fabric): a buffer is refused on all of
 * them by a text that says what to do, and the group serves on. */
#include "ep/check.h"
#include "ep/ep.h"
#include "ep/ranks.h"
#include "oracle/unit.h"

static void play_refused(expar_group *group, void *shared)
{
    (void)shared;
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    config.max_tokens = 4;
    config.max_row_bytes = 64;
    config.max_topk = 1;
    config.max_experts = 2;
    for (int round = 0; round < 2; round++) {
        expar_ep *ep = NULL;
        CHECK_STATUS(EXPAR_ERR_UNSUPPORTED, expar_ep_create(group, &config, &ep));
        CHECK_TEXT("expar_ep_create", "'s memory is not mapped on rank ", "expected all ranks to share memory",
                   "EXPAR_TRANSPORTS", "p2p");
        CHECK(!ep, "a buffer was given");
    }
    CHECK_OK(expar_barrier_all(group));
}

static void test_refused_by_name(void **state)
{
    (void)state;
    const ranks_plan plan = {.kind = RANKS_PROCESSES, .size = 2};
    assert_true(ranks_run(&plan, play_refused, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_refused_by_name)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

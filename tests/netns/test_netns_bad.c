/* SPDX-License-Identifier: Apache-2.0 */
/* A host that lacks a part of the network: a provider, or an interface that is up. Both hosts' errors name the rank
 * whose host it is, and the remedy. A group that does not need the network is formed all the same, and its buffers are
 * rejected. */
#include "netns/stage.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cmocka.h>

#define RANKS 2 /* one on each host */
#define LACKS 1 /* the rank on the host that lacks it */

typedef struct lack {
    const char *variable, *value;    /* of that rank alone; NULL: none */
    expar_status joins[RANKS];       /* what each comes to there */
    expar_status creates;            /* and both, where they have a group */
    const char *mine[3], *theirs[3]; /* in the error's text on the host that lacks it, and on the other one */
} lack;

static void check_parts(const char *const *parts)
{
    for (int i = 0; i < 3 && parts[i]; i++)
        CHECK(strstr(expar_last_error(), parts[i]), "\"%s\" is not in: %s", parts[i], expar_last_error());
}

static void create_buffer(expar_group *group, const lack *what, int32_t rank)
{
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    expar_ep *ep = NULL;
    config.max_tokens = 16;
    config.max_row_bytes = 128;
    config.max_topk = 2;
    config.max_experts = 2 * RANKS;
    CHECK_STATUS(what->creates, expar_ep_create(group, &config, &ep));
    check_parts(rank == LACKS ? what->mine : what->theirs);
    CHECK_OK(expar_group_barrier(group));
}

static _Noreturn void be_rank(const lack *what, const expar_unique_id *id, int32_t rank)
{
    const ranks_plan plan = {.kind = RANKS_PROCESSES, .size = RANKS, .heap_bytes = (size_t)8 << 20};
    expar_group *group = NULL;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    check_begin(rank);
    if (rank == LACKS && what->variable) setenv(what->variable, what->value, 1);
    CHECK(netns_enter(rank, RANKS, 0), "no way to its host");
    CHECK_STATUS(what->joins[rank], ranks_join(&plan, id, rank, &group));
    if (group)
        create_buffer(group, what, rank);
    else
        check_parts(rank == LACKS ? what->mine : what->theirs);
    CHECK_OK(expar_group_destroy(group));
    fflush(NULL);
    _exit(check_failures() ? EXIT_FAILURE : EXIT_SUCCESS);
}

static void trial(const lack *what)
{
    stage_ranks ranks = {.size = RANKS};
    assert_true(ranks_host_start(&ranks.host));
    for (int32_t r = 0; r < RANKS; r++) {
        fflush(NULL);
        ranks.pids[r] = fork();
        if (ranks.pids[r] == 0) be_rank(what, &ranks.host.id, r);
        assert_true(ranks.pids[r] > 0);
    }
    stage_finish(&ranks);
}

static void test_no_provider(void **state)
{
    const lack what = {.variable = "EXPAR_FABRIC_PROVIDER",
                       .value = "nowhere",
                       .creates = EXPAR_ERR_UNSUPPORTED,
                       .mine = {"expar_ep_create", "no provider nowhere"},
                       .theirs = {"expar_ep_create", "rank 1", "no provider nowhere"}};
    (void)state;
    trial(&what);
}

/* Without a transport that is asked for by name there is no group. */
static void trial_asked_for(const lack *what)
{
    setenv("EXPAR_TRANSPORTS", "fabric", 1);
    trial(what);
    unsetenv("EXPAR_TRANSPORTS");
}

static void test_no_provider_that_is_asked_for(void **state)
{
    const lack what = {.variable = "EXPAR_FABRIC_PROVIDER",
                       .value = "nowhere",
                       .joins = {EXPAR_ERR_UNSUPPORTED, EXPAR_ERR_UNSUPPORTED},
                       .mine = {"no provider nowhere", "apt-get install libfabric1"},
                       .theirs = {"rank 1", "no provider nowhere", "apt-get install libfabric1"}};
    (void)state;
    trial_asked_for(&what);
}

static void test_interface_that_is_down(void **state)
{
    const stage *s = *state;
    const lack what = {.variable = "EXPAR_FABRIC_INTERFACE",
                       .value = "net1",
                       .joins = {EXPAR_ERR_REMOTE, EXPAR_ERR_ARGUMENT},
                       .mine = {"EXPAR_FABRIC_INTERFACE=net1", "no interface that is up", "ip address"},
                       .theirs = {"rank 1", "EXPAR_FABRIC_INTERFACE=net1", "no interface that is up"}};
    assert_true(netns_command(&s->net, 1, "ip link set net1 down"));
    trial_asked_for(&what);
}

/* The ranks meet at the first cable, and nothing comes through the second. */
static void test_interface_that_is_closed(void **state)
{
    const stage *s = *state;
    const lack what = {.joins = {EXPAR_ERR_UNSUPPORTED, EXPAR_ERR_UNSUPPORTED},
                       .mine = {"rank 0 at ", "198.18.1.1:", "EXPAR_FABRIC_INTERFACE names another"},
                       .theirs = {"rank 1 at ", "198.18.1.2:", "EXPAR_FABRIC_INTERFACE names another"}};
    assert_true(netns_command(&s->net, 1,
                              "nft 'add table ip t; add chain ip t in { type filter hook input priority 0; }; "
                              "add rule ip t in iifname net1 drop'"));
    setenv("EXPAR_FABRIC_INTERFACE", "net1", 1);
    setenv("EXPAR_BOOTSTRAP_TIMEOUT", "4", 1);
    trial_asked_for(&what);
    unsetenv("EXPAR_BOOTSTRAP_TIMEOUT");
    unsetenv("EXPAR_FABRIC_INTERFACE");
}

#define ON_A_NETWORK(test) cmocka_unit_test_setup_teardown(test, stage_set_up, stage_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_A_NETWORK(test_no_provider),
        ON_A_NETWORK(test_no_provider_that_is_asked_for),
        ON_A_NETWORK(test_interface_that_is_down),
        ON_A_NETWORK(test_interface_that_is_closed),
    };
    netns probe;
    if (!netns_make(&probe)) return netns_skip();
    netns_drop(&probe);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Both modes of expert parallelism over hosts whose network is slow or loses segments. The cable is pulled in the
 * middle of a chunk and plugged in again, or for good. Bytes are those of the oracle, or an error names a rank of
 * another host. With the argument "long" it runs the cases that take long, or start many ranks. */
#include "ep/harness/trial.h"
#include "ep/low_latency/case.h"
#include "netns/stage.h"
#include "oracle/unit.h"
#include "shmem/kind.h"

#include <stdio.h>

#define RANKS      4
#define TOKENS     48
#define HIDDEN     1024
#define ROUNDS     4
#define HELD_ROUND 2 /* of a test that is disturbed in the middle */
#define SILENCE_MS 4000
#define HEAP_BYTES ((size_t)32 << 20)
#define SPAN_MS    (RANKS_TIMEOUT_MS / 3) /* of what waits for nobody */

typedef enum ep_mode { NORMAL, LOW_LATENCY } ep_mode;

/* The scene of the ranks: made before they are, which inherit it. */
static ep_mode mode; /* that is disturbed */
static int32_t each; /* ranks a node */
static traffic *rows;
static answers *back;
static const ll_case low_latency = {.ranks = RANKS,
                                    .max_tokens = TOKENS,
                                    .hidden = HIDDEN,
                                    .topk = 4,
                                    .experts = 2 * RANKS,
                                    .tokens = {TOKENS, 7, TOKENS, TOKENS},
                                    .seed = 11,
                                    .weights = true};

/* One rank's. */
typedef struct player {
    expar_group *group;
    stage *stage;
    expar_ep *ep;
    expar_ll *ll;
} player;

static void make_rows(void)
{
    static const int64_t num_tokens[RANKS] = {TOKENS, 7, TOKENS, TOKENS};
    random_source random = random_start(61);
    const traffic_plan plan = {.num_ranks = RANKS,
                               .ranks_per_node = each,
                               .hidden = HIDDEN,
                               .topk = 4,
                               .num_experts = 2 * RANKS,
                               .type = ORACLE_F32,
                               .num_tokens = num_tokens};
    rows = traffic_make(&plan, &random);
    back = answers_make(rows, false, &random);
}

static void free_rows(void)
{
    answers_free(back);
    traffic_free(rows);
}

/* ---- one rank ---------------------------------------------------------------------------------------------------- */

static bool make_buffers(player *p)
{
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    const expar_ll_config ll_config = case_config(&low_latency);
    config.max_tokens = TOKENS;
    config.max_row_bytes = (int64_t)traffic_row_bytes(rows);
    config.max_topk = rows->job.topk;
    config.max_experts = rows->job.num_experts;
    return CHECK_OK(expar_ep_create(p->group, &config, &p->ep)) &&
           CHECK_OK(expar_ll_create(p->group, &ll_config, &p->ll));
}

static void destroy_buffers(const player *p)
{
    CHECK_OK(expar_ep_destroy(p->ep));
    CHECK_OK(expar_ll_destroy(p->ll));
}

static bool trial_normal(const player *p)
{
    const trial_choice plain = {0};
    const trial_area none = {0};
    const int32_t rank = expar_group_rank(p->group);
    trial_arrival arrival;
    if (!trial_dispatch(p->ep, rows, rank, &plain, &none, NULL, &arrival)) return false;
    const bool right = trial_combine(p->ep, rows, back, rank, &plain, &none, arrival.handle, &arrival);
    trial_release(&arrival, true);
    return right;
}

static bool trial_low_latency(const player *p, int round)
{
    return round_trial(&low_latency, expar_group_rank(p->group), p->ll, (uint32_t)round);
}

/* In both modes, first in that which is disturbed. */
static bool trial_round(const player *p, int round)
{
    if (mode == NORMAL) return trial_normal(p) && trial_low_latency(p, round);
    return trial_low_latency(p, round) && trial_normal(p);
}

static void trial_rounds(expar_group *group, void *shared)
{
    player p = {.group = group, .stage = shared};
    if (!make_buffers(&p)) return;
    for (int round = 0; round < ROUNDS && check_failures() == 0; round++) {
        if (round == HELD_ROUND) stage_hold(p.stage);
        trial_round(&p, round);
        atomic_fetch_add_explicit(&p.stage->steps, 1, memory_order_relaxed);
    }
    destroy_buffers(&p);
}

/* ---- the network ------------------------------------------------------------------------------------------------- */

static void begin(stage *s, ep_mode what, int32_t ranks_per_node, ranks_body body, stage_ranks *ranks)
{
    const ranks_plan plan = {
        .kind = RANKS_PROCESSES, .size = RANKS, .ranks_per_node = ranks_per_node, .heap_bytes = HEAP_BYTES};
    mode = what;
    each = ranks_per_node;
    make_rows();
    stage_start(s, &plan, body, ranks);
}

static void finish(stage_ranks *ranks)
{
    stage_finish(ranks);
    free_rows();
}

static void run_rounds(stage *s, int32_t ranks_per_node)
{
    stage_ranks ranks;
    begin(s, NORMAL, ranks_per_node, trial_rounds, &ranks);
    finish(&ranks);
}

/* Slow enough for the first chunk not to have gone through before the test looks. */
static void make_slow(const stage *s)
{
    assert_true(netns_command(&s->net, 0, "tc qdisc add dev net0 root tbf rate 200kbit burst 4kb limit 8kb"));
}

static void await_bytes(const stage *s)
{
    assert_true(netns_command(&s->net, 0,
                              "until tc -s qdisc show dev net0 | grep -q 'Sent [0-9]\\{5,\\} bytes'; do sleep 0.02; "
                              "done"));
}

static void pull(const stage *s)
{
    assert_true(netns_command(&s->net, 1, "ip link set net0 down"));
}

static void plug_in(const stage *s)
{
    assert_true(netns_command(&s->net, 1, "ip link set net0 up"));
}

/* ---- a poor network ---------------------------------------------------------------------------------------------- */

static void test_four_hosts(void **state)
{
    run_rounds(*state, 1);
}

static void test_slow(void **state)
{
    stage *s = *state;
    for (int host = 0; host < 2; host++)
        assert_true(
            netns_command(&s->net, host, "tc qdisc add dev net0 root tbf rate 100mbit burst 32kb latency 20ms"));
    run_rounds(s, 2);
    assert_true(netns_command(&s->net, 0, "tc -s qdisc show dev net0 | grep -q 'overlimits [1-9]'"));
}

/* A queue that is too short for what goes through it. */
static void test_lossy(void **state)
{
    stage *s = *state;
    for (int host = 0; host < 2; host++)
        assert_true(netns_command(&s->net, host, "tc qdisc add dev net0 root tbf rate 50mbit burst 8kb limit 12kb"));
    run_rounds(s, 2);
    for (int host = 0; host < 2; host++)
        assert_true(netns_command(&s->net, host, "tc -s qdisc show dev net0 | grep -q 'dropped [1-9]'"));
}

/* Once bytes of the round flow it is pulled; nothing ends until it is plugged in again, and all is right. */
static void pull_in_the_middle(stage *s, ep_mode what)
{
    stage_ranks ranks;
    atomic_store(&s->held, true);
    begin(s, what, 2, trial_rounds, &ranks);
    stage_await(&s->steps, RANKS * HELD_ROUND);
    make_slow(s);
    atomic_store(&s->held, false);
    await_bytes(s);
    pull(s);
    assert_true(netns_command(&s->net, 0, "sleep 0.3; tc qdisc del dev net0 root"));
    assert_int_equal(atomic_load(&s->steps), RANKS * HELD_ROUND);
    plug_in(s);
    finish(&ranks);
}

static void test_pulled_in_dispatch(void **state)
{
    pull_in_the_middle(*state, NORMAL);
}

static void test_pulled_in_low_latency(void **state)
{
    pull_in_the_middle(*state, LOW_LATENCY);
}

/* ---- for good ---------------------------------------------------------------------------------------------------- */

static expar_status dispatch(const player *p)
{
    static const trial_choice plain = {0};
    static const trial_area none = {0};
    const int32_t rank = expar_group_rank(p->group);
    expar_status status;
    if (mode == NORMAL) {
        expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
        expar_ep_dispatch_args args = trial_dispatch_args(rows, rank, &plain, &none, NULL);
        status = expar_ep_dispatch(p->ep, &args, &result);
        trial_dispatch_args_free(&args);
    } else {
        ll_round *round = round_make(&low_latency, rank, 1);
        status = expar_ll_dispatch(p->ll, &round->dispatch, &round->received);
        round_free(round);
    }
    return status;
}

/* One of another host, or what somebody of this one has to tell of it. */
static bool names_far_rank(const expar_group *group)
{
    const int host = netns_host_of(group->rank, group->size, each);
    bool named = false;
    for (int32_t r = 0; r < group->size; r++) {
        char one[24], list[32];
        snprintf(one, sizeof one, "rank %d", (int)r);
        snprintf(list, sizeof list, "silent: rank %d", (int)r);
        if (netns_host_of(r, group->size, each) != host)
            named |= strstr(expar_last_error(), one) || strstr(expar_last_error(), list);
    }
    return named;
}

static void cut(expar_group *group, void *shared)
{
    player p = {.group = group, .stage = shared};
    expar_status status = EXPAR_OK;
    if (!make_buffers(&p)) return;
    kind_set_timeout(group, SILENCE_MS);
    atomic_fetch_add_explicit(&p.stage->armed, 1, memory_order_relaxed);
    stage_hold(p.stage);
    while (status == EXPAR_OK)
        status = dispatch(&p);
    CHECK(status == EXPAR_ERR_PEER && names_far_rank(group), "%s: %s", expar_status_string(status), expar_last_error());
    CHECK_STATUS(EXPAR_ERR_PEER, dispatch(&p));
    CHECK(stage_part(p.stage, group->size), "some rank does not get there");
    kind_set_timeout(group, 200); /* leaving waits for those who cannot hear */
    destroy_buffers(&p);
}

static void cut_in(stage *s, ep_mode what)
{
    stage_ranks ranks;
    atomic_store(&s->held, true);
    begin(s, what, 2, cut, &ranks);
    stage_await(&s->armed, RANKS);
    make_slow(s);
    atomic_store(&s->held, false);
    await_bytes(s);
    pull(s);
    finish(&ranks);
}

static void test_cut_in_dispatch(void **state)
{
    cut_in(*state, NORMAL);
}

static void test_cut_in_low_latency(void **state)
{
    cut_in(*state, LOW_LATENCY);
}

/* Rank 0 waits for nobody in either mode, and its node learns from it that it has gone from normal mode. Nobody is
   silent for the time-out: it is far longer than this test. */
static void abandon(expar_group *group, void *shared)
{
    player p = {.group = group, .stage = shared};
    if (!make_buffers(&p)) return;
    trial_round(&p, 0);
    atomic_fetch_add_explicit(&p.stage->armed, 1, memory_order_relaxed);
    stage_hold(p.stage);
    const int64_t start_ms = ranks_clock_ms();
    if (group->rank == 0) {
        CHECK_OK(expar_ep_abandon(p.ep));
        CHECK_OK(expar_ll_abandon(p.ll));
    }
    CHECK(ranks_clock_ms() - start_ms < SPAN_MS, "it took %lld ms", (long long)(ranks_clock_ms() - start_ms));
    if (group->rank == 1) {
        CHECK_STATUS(EXPAR_ERR_PEER, dispatch(&p));
        CHECK_TEXT("rank 0", "abandoned the buffer");
    }
    CHECK(stage_part(p.stage, group->size), "some rank does not get there");
    kind_set_timeout(group, 200);
    if (group->rank > 0) destroy_buffers(&p);
}

static void test_abandon_after_a_cut(void **state)
{
    stage *s = *state;
    stage_ranks ranks;
    atomic_store(&s->held, true);
    begin(s, NORMAL, 2, abandon, &ranks);
    stage_await(&s->armed, RANKS);
    pull(s);
    atomic_store(&s->held, false);
    finish(&ranks);
}

/* ---- late, not dead ---------------------------------------------------------------------------------------------- */

/* Calls that take longer than the time-out while all ranks answer. */
static void trial_long(expar_group *group, void *shared)
{
    player p = {.group = group, .stage = shared};
    if (!make_buffers(&p)) return;
    kind_set_silence(group, SILENCE_MS);
    atomic_fetch_add_explicit(&p.stage->armed, 1, memory_order_relaxed);
    stage_hold(p.stage);
    trial_round(&p, 0);
    kind_set_silence(group, RANKS_TIMEOUT_MS);
    destroy_buffers(&p);
}

static void test_longer_than_the_time_out(void **state)
{
    stage *s = *state;
    stage_ranks ranks;
    atomic_store(&s->held, true);
    begin(s, NORMAL, 2, trial_long, &ranks);
    stage_await(&s->armed, RANKS);
    assert_true(netns_command(&s->net, 0, "tc qdisc add dev net0 root tbf rate 2mbit burst 8kb limit 24kb"));
    const int64_t start_ms = ranks_clock_ms();
    atomic_store(&s->held, false);
    finish(&ranks);
    print_message("a round took %lld ms, the time-out was %d\n", (long long)(ranks_clock_ms() - start_ms), SILENCE_MS);
}

#define ON_A_NETWORK(test)  cmocka_unit_test_setup_teardown(test, stage_set_up, stage_tear_down)
#define ON_FOUR_HOSTS(test) cmocka_unit_test_setup_teardown(test, stage_set_up_four, stage_tear_down)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        ON_FOUR_HOSTS(test_four_hosts),
        ON_A_NETWORK(test_pulled_in_dispatch),
    };
    const struct CMUnitTest long_tests[] = {
        ON_A_NETWORK(test_pulled_in_low_latency),
        ON_A_NETWORK(test_slow),
        ON_A_NETWORK(test_lossy),
        ON_A_NETWORK(test_cut_in_dispatch),
        ON_A_NETWORK(test_cut_in_low_latency),
        ON_A_NETWORK(test_abandon_after_a_cut),
        ON_A_NETWORK(test_longer_than_the_time_out),
    };
    netns probe;
    if (!netns_make(&probe)) return netns_skip();
    netns_drop(&probe);
    if (argc > 1 && strcmp(argv[1], "long") == 0) return cmocka_run_group_tests(long_tests, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A rank of one node leaves the group as soon as its combine has returned. Others, on its node and on the other one,
 * may be in theirs: these end well, all the same. Thread ranks, or with the argument "processes" process ranks.
 * EXPAR_TEST_ROUNDS sets how often. */
#include "ep/harness/stage.h"
#include "oracle/unit.h"

#define RANKS          4
#define RANKS_PER_NODE 2
#define ROUNDS         4

static ranks_kind kind;

typedef struct scene {
    traffic *traffic;
    answers *answers;
    expar_ep_config config;
    int32_t leaver;
} scene;

static void trial_leaving(expar_group *group, void *shared)
{
    const scene *s = shared;
    const int32_t rank = expar_group_rank(group);
    const trial_choice plain = {0};
    const trial_area none = {0};
    trial_arrival arrival;
    expar_ep *ep = NULL;
    if (CHECK_OK(expar_ep_create(group, &s->config, &ep)) &&
        CHECK(trial_dispatch(ep, s->traffic, rank, &plain, &none, NULL, &arrival), "the dispatch")) {
        CHECK(trial_combine(ep, s->traffic, s->answers, rank, &plain, &none, arrival.handle, &arrival), "the combine");
        if (rank == s->leaver) CHECK_OK(expar_group_abandon(group));
        trial_release(&arrival, true);
    }
    CHECK_OK(rank == s->leaver ? expar_ep_abandon(ep) : expar_ep_destroy(ep));
    if (rank != s->leaver) CHECK_OK(expar_group_destroy(group));
}

static void test_others_end_well(void **state)
{
    (void)state;
    static const int64_t num_tokens[RANKS] = {9, 3, 5, 12};
    const traffic_plan plan = traffic_plan_small(RANKS, RANKS_PER_NODE, num_tokens);
    random_source random = random_start(31);
    scene s = {.traffic = traffic_make(&plan, &random)};
    s.answers = answers_make(s.traffic, false, &random);
    const stage_plan setting = stage_plan_for(s.traffic, kind);
    s.config = setting.config;
    ranks_plan ranks = setting.ranks;
    ranks.ends_itself = true;
    bool passed = true;
    for (int64_t i = random_test_rounds(ROUNDS); i > 0 && passed; i--) {
        s.leaver = (int32_t)(i % RANKS);
        passed = ranks_run(&ranks, trial_leaving, &s);
    }
    answers_free(s.answers);
    traffic_free(s.traffic);
    assert_true(passed);
}

int main(int argc, char **argv)
{
    kind = stage_kind(argc, argv);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_others_end_well)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

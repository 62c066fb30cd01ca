/* SPDX-License-Identifier: Apache-2.0 */
/* Pools of ranks on several nodes that begin empty. Outputs of a dispatch with num_worst_tokens find no space at first,
 * and come by the queue. On GPUs the ranks agree on growth then, also those whose dispatch has no such number. So rows
 * soon come directly. Thread ranks, or with the argument "processes" process ranks. */
#include "ep/harness/stage.h"
#include "oracle/unit.h"

#define RANKS          4
#define RANKS_PER_NODE 2
#define CALLS          6

static ranks_kind kind;

/* A dispatch that returns after its end. Only some ranks know no number of rows before. */
static bool dispatch_once(stage *s, const traffic *t, bool worst)
{
    static const trial_choice plain = {0};
    void *own_out = NULL;
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    expar_ep_dispatch_args args = trial_dispatch_args(t, s->rank, &plain, &s->area, &own_out);
    for (int32_t r = 0; worst && r < RANKS; r++)
        args.num_worst_tokens += t->inputs[r].num_tokens;
    const bool dispatched = CHECK_OK(expar_ep_dispatch(s->ep, &args, &result));
    trial_dispatch_args_free(&args);
    expar_ep_handle_release(result.handle);
    expar_ep_output_release(result.output);
    return dispatched;
}

static void trial_growth(stage *s, void *shared)
{
    const traffic *t = shared;
    expar_ep_stats stats = EXPAR_EP_STATS_INIT;
    for (int call = 0; call < CALLS; call++)
        if (!dispatch_once(s, t, (call + s->rank) % 2 == 0 || call < CALLS / 2)) return;
    CHECK_OK(expar_ep_get_stats(s->ep, &stats));
    CHECK(stats.direct_calls >= CALLS - 2, "rows came directly in %llu of %d calls",
          (unsigned long long)stats.direct_calls, CALLS);
}

static void test_pools_grow(void **state)
{
    (void)state;
    static const int64_t num_tokens[RANKS] = {9, 3, 5, 12};
    const traffic_plan plan = traffic_plan_small(RANKS, RANKS_PER_NODE, num_tokens);
    random_source random = random_start(47);
    traffic *t = traffic_make(&plan, &random);
    stage_plan setting = stage_plan_for(t, kind);
    setting.config.pool_limit_bytes = 0;
    const bool passed = stage_run(&setting, trial_growth, t);
    traffic_free(t);
    assert_true(passed);
}

int main(int argc, char **argv)
{
    kind = stage_kind(argc, argv);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pools_grow)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* More tokens than a GPU's call has blocks. A block sends one after the other, and takes what has come in between,
 * beside a rank whose few tokens go in words. Rows are so long that each thread of a part of a block has several pieces
 * of one. */
#include "ep/harness/check.h"
#include "ep/harness/stage.h"
#include "ep/low_latency/case.h"
#include "oracle/unit.h"

#define ROUNDS 2

static ranks_kind kind;

/* Quantised rows have the dispatch alone. */
static bool trial_round(const ll_case *c, int32_t rank, expar_ll *ll, uint32_t number)
{
    if (c->format == EXPAR_LL_FORMAT_PLAIN) return round_trial(c, rank, ll, number);
    ll_round *round = round_make(c, rank, number);
    const bool good = round_dispatch(round, ll);
    round_free(round);
    return good;
}

static void trial(expar_group *group, void *shared)
{
    const ll_case *c = shared;
    const expar_ll_config config = case_config(c);
    expar_ll *ll = NULL;
    bool good = CHECK_OK(expar_ll_create(group, &config, &ll));
    for (uint32_t i = 0; i < ROUNDS && good; i++)
        good = trial_round(c, expar_group_rank(group), ll, i);
    if (good) CHECK_OK(expar_ll_destroy(ll));
}

static void run(ll_case c)
{
    const ranks_plan plan = {.kind = kind, .size = c.ranks};
    assert_true(ranks_run(&plan, trial, &c));
}

static const ll_case many = {.ranks = 3,
                             .max_tokens = 24,
                             .hidden = 1280,
                             .topk = 4,
                             .experts = 12,
                             .tokens = {24, 19, 3},
                             .seed = 40,
                             .sms = 3,
                             .weights = true};

static void test_rows_as_they_are(void **state)
{
    (void)state;
    ll_case c = many;
    run(c);
    c.sum = EXPAR_LL_SUM_REDUCED;
    run(c);
}

static void test_quantised_rows(void **state)
{
    (void)state;
    ll_case c = many;
    c.format = EXPAR_LL_FORMAT_FP8;
    run(c);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_as_they_are),
        cmocka_unit_test(test_quantised_rows),
    };
    kind = stage_kind(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

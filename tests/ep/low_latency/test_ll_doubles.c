/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens that name an expert in several slots: each slot has a row of its own, as long as the expert has places. */
#include "ep/harness/ranks.h"
#include "ep/harness/stage.h"
#include "ep/low_latency/reach.h"
#include "ep/low_latency/trial.h"
#include "oracle/unit.h"
#include <string.h>

#define RANKS  2
#define TOKENS 4
#define HIDDEN 128
#define TOPK   2
#define LOCALS 1

static ranks_kind kind;

typedef struct scene {
    lowlat_traffic *traffic;
    lowlat_answers *back[2];
} scene;

/* ---- traffic ----------------------------------------------------------------------------------------------------- */

/* Slots of [RANKS][TOKENS][TOPK]; -1: none. */
static scene make_scene(const int64_t slots[RANKS][TOKENS * TOPK], llo_format format, bool with_weights)
{
    const int64_t num_tokens[RANKS] = {TOKENS, TOKENS};
    const lowlat_plan plan = {.num_ranks = RANKS,
                              .max_tokens = TOKENS,
                              .hidden = HIDDEN,
                              .topk = TOPK,
                              .num_experts = LOCALS * RANKS,
                              .format = format,
                              .with_weights = with_weights,
                              .num_tokens = num_tokens};
    random_source random = random_start(RANKS + TOKENS);
    scene s = {.traffic = lowlat_traffic_make(&plan, &random)};
    for (int32_t r = 0; r < RANKS; r++)
        memcpy((void *)(uintptr_t)s.traffic->inputs[r].topk_idx, slots[r], sizeof slots[r]);
    return s;
}

static void add_answers(scene *s)
{
    random_source random = random_start(TOPK);
    lowlat_traffic_settle(s->traffic);
    s->back[0] = lowlat_answers_make(s->traffic, ORACLE_BF16, EXPAR_LL_SUM_EXACT, &random);
    s->back[1] = lowlat_answers_make(s->traffic, ORACLE_BF16, EXPAR_LL_SUM_REDUCED, &random);
}

static void free_scene(scene *s)
{
    for (int i = 0; i < 2; i++)
        lowlat_answers_free(s->back[i], s->traffic);
    lowlat_traffic_free(s->traffic);
}

static expar_ll *open_buffer(expar_group *group)
{
    expar_ll_config config = EXPAR_LL_CONFIG_INIT;
    expar_ll *ll = NULL;
    config.max_tokens = TOKENS;
    config.hidden = HIDDEN;
    config.max_topk = TOPK;
    config.num_experts = LOCALS * RANKS;
    config.unmapped = reach_unmapped();
    return CHECK_OK(expar_ll_create(group, &config, &ll)) ? ll : NULL;
}

/* ---- rows that fit ----------------------------------------------------------------------------------------------- */

static void trial_all(expar_group *group, void *shared)
{
    const scene *s = shared;
    const int32_t rank = expar_group_rank(group);
    expar_ll *ll = open_buffer(group);
    bool good = ll != NULL;
    for (int round = 0; round < 3 && good; round++) {
        const lowlat_choice choice = {.stats = true, .hook = round == 1, .async = round == 2};
        const int32_t sums = s->traffic->with_weights || !choice.hook ? 2 : 1;
        good = lowlat_round_trip(ll, s->traffic, s->back, sums, rank, &choice);
    }
    if (good) CHECK_OK(expar_ll_destroy(ll));
}

static void run_slots(const int64_t slots[RANKS][TOKENS * TOPK], llo_format format, bool with_weights)
{
    const ranks_plan plan = {.kind = kind, .size = RANKS};
    scene s = make_scene(slots, format, with_weights);
    add_answers(&s);
    assert_true(ranks_run(&plan, trial_all, &s));
    free_scene(&s);
}

static void test_one_token_names_an_expert_twice(void **state)
{
    (void)state;
    static const int64_t slots[RANKS][TOKENS * TOPK] = {{0, 0, 0, 1, -1, -1, 1, -1}, {1, 1, -1, 0, 0, 1, -1, -1}};
    run_slots(slots, LLO_PLAIN, true);
    run_slots(slots, LLO_PLAIN, false);
    run_slots(slots, LLO_FP8, true);
}

/* All N*B places of an expert, of which one source has twice its share. */
static void test_an_expert_is_full(void **state)
{
    (void)state;
    static const int64_t slots[RANKS][TOKENS * TOPK] = {{0, 0, 0, 0, 0, 0, 0, 0}, {1, 1, 1, -1, -1, 1, 1, 1}};
    run_slots(slots, LLO_PLAIN, true);
}

/* ---- rows that do not fit ---------------------------------------------------------------------------------------- */

#define EXCESS "expert 0 gets 9 rows; expected at most 8 (num_ranks * config.max_tokens)"

/* Rank 0 has the expert, and reports it; rank 1 learns of it no later than in the combine, which nobody can answer. */
static void trial_excess(expar_group *group, void *shared)
{
    const scene *s = shared;
    const int32_t rank = expar_group_rank(group);
    const lowlat_choice choice = {.async = true};
    lowlat_call there, back;
    expar_ll *ll = open_buffer(group);
    if (!ll) return;
    lowlat_prepare_dispatch(&there, ll, s->traffic, rank, &choice);
    CHECK_OK(lowlat_start(&there));
    const expar_status ended = lowlat_end(&there);
    if (rank == 0) {
        CHECK_STATUS(EXPAR_ERR_LIMIT, ended);
        CHECK_TEXT(EXCESS);
        lowlat_clean(&there);
        lowlat_prepare_dispatch(&there, ll, s->traffic, rank, &choice);
        CHECK_STATUS(EXPAR_ERR_LIMIT, lowlat_start(&there));
        if (CHECK_TEXT("poisoned")) CHECK_TEXT(EXCESS);
    } else if (CHECK_OK(ended) && CHECK(lowlat_is_right(&there), "rank 1 has its rows")) {
        lowlat_prepare_combine(&back, ll, s->traffic, s->back[0], rank, &choice, there.there.handle);
        expar_status status = lowlat_start(&back);
        if (status == EXPAR_OK) status = lowlat_end(&back);
        CHECK_STATUS(EXPAR_ERR_PEER, status);
        if (CHECK_TEXT("rank 0")) CHECK_TEXT(EXCESS);
        lowlat_clean(&back);
    }
    lowlat_clean(&there);
    expar_ll_destroy(ll);
}

static void test_an_expert_has_too_many_rows(void **state)
{
    (void)state;
    static const int64_t full[RANKS][TOKENS * TOPK] = {{0, 0, 0, 0, 0, 0, 0, 0}, {1, 1, 1, -1, -1, 1, 1, -1}};
    const ranks_plan plan = {.kind = kind, .size = RANKS};
    scene s = make_scene(full, LLO_PLAIN, true);
    add_answers(&s);
    /* Only rank 0's results depend on this. */
    ((int64_t *)(uintptr_t)s.traffic->inputs[1].topk_idx)[3] = 0;
    assert_true(ranks_run(&plan, trial_excess, &s));
    free_scene(&s);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_token_names_an_expert_twice),
        cmocka_unit_test(test_an_expert_is_full),
        cmocka_unit_test(test_an_expert_has_too_many_rows),
    };
    kind = stage_kind(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

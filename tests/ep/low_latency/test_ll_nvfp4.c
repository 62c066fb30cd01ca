/* SPDX-License-Identifier: Apache-2.0 */
/* Dispatches in NVFP4: codes and scales are the oracle's, where an expert's rows fill several tiles of scales. */
#include "ep/harness/ranks.h"
#include "ep/harness/stage.h"
#include "ep/low_latency/reach.h"
#include "ep/low_latency/trial.h"
#include "oracle/unit.h"
#include <string.h>

#define RANKS  2
#define TOKENS 70 /* so that an expert with all of them has a tile of 128 rows, and 12 more */
#define TOPK   2
#define LOCALS 2

static ranks_kind kind;

typedef struct scene {
    lowlat_traffic *traffic;
    lowlat_answers *back[2];
} scene;

/* Every token names expert 1. Every other one also names an expert of rank 1. */
static scene make_scene(oracle_type type, int32_t hidden)
{
    const int64_t num_tokens[RANKS] = {TOKENS, TOKENS};
    const lowlat_plan plan = {.num_ranks = RANKS,
                              .max_tokens = TOKENS,
                              .hidden = hidden,
                              .topk = TOPK,
                              .num_experts = LOCALS * RANKS,
                              .type = type,
                              .format = LLO_NVFP4,
                              .with_weights = true,
                              .num_tokens = num_tokens};
    random_source random = random_start((uint64_t)hidden);
    scene s = {.traffic = lowlat_traffic_make(&plan, &random)};
    for (int32_t r = 0; r < RANKS; r++)
        for (int32_t t = 0; t < TOKENS; t++) {
            int64_t *slots = (int64_t *)(uintptr_t)s.traffic->inputs[r].topk_idx + (size_t)t * TOPK;
            slots[0] = 1;
            slots[1] = t % 2 ? LOCALS + r : -1;
        }
    lowlat_traffic_settle(s.traffic);
    s.back[0] = lowlat_answers_make(s.traffic, type, EXPAR_LL_SUM_EXACT, &random);
    s.back[1] = lowlat_answers_make(s.traffic, type, EXPAR_LL_SUM_REDUCED, &random);
    return s;
}

static void free_scene(scene *s)
{
    for (int i = 0; i < 2; i++)
        lowlat_answers_free(s->back[i], s->traffic);
    lowlat_traffic_free(s->traffic);
}

static void trial_all(expar_group *group, void *shared)
{
    const scene *s = shared;
    const int32_t rank = expar_group_rank(group);
    expar_ll_config config = EXPAR_LL_CONFIG_INIT;
    expar_ll *ll = NULL;
    config.max_tokens = TOKENS;
    config.hidden = s->traffic->job.hidden;
    config.max_row_bytes = 4 * (int64_t)config.hidden;
    config.max_topk = TOPK;
    config.num_experts = LOCALS * RANKS;
    config.unmapped = reach_unmapped();
    bool good = CHECK_OK(expar_ll_create(group, &config, &ll));
    for (int round = 0; round < 3 && good; round++) {
        const bool own = round == 2;
        const lowlat_choice choice = {.own_x = own, .own_scales = own, .hook = round == 1, .async = own};
        good = lowlat_round_trip(ll, s->traffic, s->back, 2, rank, &choice);
    }
    if (good) CHECK_OK(expar_ll_destroy(ll));
}

static void run_type(oracle_type type, int32_t hidden)
{
    const ranks_plan plan = {.kind = kind, .size = RANKS};
    scene s = make_scene(type, hidden);
    assert_true(ranks_run(&plan, trial_all, &s));
    free_scene(&s);
}

static void test_rows_of_all_types(void **state)
{
    (void)state;
    run_type(ORACLE_BF16, 128); /* two words of scales */
    run_type(ORACLE_F16, 640);
    run_type(ORACLE_F32, 384);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_of_all_types),
    };
    kind = stage_kind(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Masks that callers set: calls of the others without a rank, and of that rank alone, all as the oracle says; masks
 * that are taken back, clean, and bad arguments. */
#include "ep/harness/check.h"
#include "ep/harness/holdup.h"
#include "ep/harness/stage.h"
#include "ep/low_latency/hold.h"
#include "ep/low_latency/masked.h"
#include "ep/low_latency/reach.h"
#include "ep/low_latency/trial.h"
#include "oracle/unit.h"
#include <stdlib.h>
#include <string.h>

static ranks_kind kind;

enum { MOST_RANKS = 6, TRIALS = 8, ROUNDS = 5, SLEEPS = 3 /* of 256 steps */ };

typedef struct mask_show {
    lowlat_plan plan;
    holdup holdups[MOST_RANKS]; /* of thread ranks, with `late` */
    bool late;
    int32_t trials; /* TRIALS, or EXPAR_TEST_ROUNDS of them */
    int64_t tokens[MOST_RANKS];
    masked_traffic *rounds[TRIALS][ROUNDS]; /* those of a trial have one victim */
    lowlat_choice choices[TRIALS][ROUNDS];
} mask_show;

static lowlat_choice draw_choice(random_source *random)
{
    const int64_t how = random_between(random, 0, 2);
    return (lowlat_choice){.hook = how == 1,
                           .async = how == 2,
                           .own_x = random_between(random, 0, 1),
                           .waits = random_between(random, 0, 1),
                           .zero_copy = random_between(random, 0, 3) == 0};
}

static void draw_show(mask_show *show, int32_t ranks, uint64_t seed)
{
    random_source random = random_start(seed);
    show->plan = masked_plan(ranks, show->tokens, &random);
    for (int i = 0; i < show->trials; i++) {
        const int32_t victim = (int32_t)random_between(&random, 0, ranks - 1);
        for (int j = 0; j < ROUNDS; j++) {
            lowlat_plan plan = show->plan;
            plan.format = (llo_format)random_between(&random, LLO_PLAIN, LLO_NVFP4);
            const expar_ll_sum sum =
                plan.with_weights && random_between(&random, 0, 1) ? EXPAR_LL_SUM_REDUCED : EXPAR_LL_SUM_EXACT;
            show->rounds[i][j] = masked_traffic_make(&plan, victim, sum, seed * 1000 + (uint64_t)(i * ROUNDS + j));
            show->choices[i][j] = draw_choice(&random);
        }
    }
}

static void free_show(mask_show *show)
{
    for (int i = 0; i < show->trials; i++)
        for (int j = 0; j < ROUNDS; j++)
            masked_traffic_free(show->rounds[i][j]);
}

static void run_show(int32_t ranks, uint64_t seed, bool late, ranks_body body)
{
    mask_show show;
    const ranks_plan plan = {.kind = kind, .size = ranks, .ranks_per_node = reach_ranks_per_node(ranks)};
    random_source random = random_start(~seed);
    holdups_draw(show.holdups, MOST_RANKS, SLEEPS, &random);
    show.late = late;
    show.trials = getenv("EXPAR_TEST_ROUNDS") ? (int32_t)random_test_rounds(TRIALS) : TRIALS;
    assert_in_range(show.trials, 1, TRIALS);
    draw_show(&show, ranks, seed);
    const bool passed = ranks_run(&plan, body, &show);
    free_show(&show);
    assert_true(passed);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

static bool trial_view(expar_ll *ll, const masked_traffic *m, masked_view view, int32_t rank,
                       const lowlat_choice *choice)
{
    return lowlat_round_trip(ll, m->there[view], &m->back[view], 1, rank, choice);
}

static bool check_masks(expar_ll *ll, const uint8_t *wanted, int32_t ranks)
{
    int32_t got[MOST_RANKS] = {0};
    const expar_tensor status = expar_tensor_1d(got, EXPAR_I32, ranks);
    bool right = CHECK_OK(expar_ll_mask_query(ll, &status, NULL));
    for (int32_t r = 0; r < ranks && right; r++)
        right = CHECK(got[r] == (wanted ? wanted[r] : 0), "rank %d is %d", (int)r, (int)got[r]);
    return right;
}

/* The others mask the victim; it finds that out, and masks them. Clean makes all of them one again. */
static void trial_set(expar_group *group, void *shared)
{
    mask_show *show = shared;
    const int32_t rank = expar_group_rank(group), ranks = show->plan.num_ranks;
    const expar_ll_config config = masked_config(&show->plan);
    expar_ll *ll = NULL;
    if (!CHECK_OK(masked_create(group, &config, &ll))) return;
    if (show->late) hold_install(ll, holdup_step, &show->holdups[rank]);
    bool good = true;
    for (int i = 0; i < show->trials && good; i++) {
        masked_traffic *const *rounds = show->rounds[i];
        const int32_t victim = rounds[0]->victim;
        good = trial_view(ll, rounds[0], MASKED_NOBODY, rank, &show->choices[i][0]) &&
               CHECK_OK(expar_group_barrier(group)) && (rank == victim || CHECK_OK(expar_ll_mask_set(ll, victim, 1))) &&
               CHECK_OK(expar_group_barrier(group));
        for (int j = 1; j < ROUNDS && good; j++)
            good =
                trial_view(ll, rounds[j], rank == victim ? MASKED_OTHERS : MASKED_VICTIM, rank, &show->choices[i][j]);
        good = good && check_masks(ll, masked_of(rounds[0], rank), ranks) && CHECK_OK(expar_ll_mask_clean(ll)) &&
               check_masks(ll, NULL, ranks) && (i % 2 || CHECK_OK(expar_ll_mask_clean(ll)));
    }
    good = good && trial_view(ll, show->rounds[0][0], MASKED_NOBODY, rank, &show->choices[0][0]);
    if (good) CHECK_OK(expar_ll_destroy(ll));
}

/* Fewer where EXPAR_TEST_QUICK asks for it: on a simulated GPU a rank is not cheap. */
static int32_t most_ranks(int32_t most)
{
    return getenv("EXPAR_TEST_QUICK") && most > 3 ? 3 : most;
}

static void test_set(void **state)
{
    (void)state;
    for (int32_t ranks = 2; ranks <= most_ranks(MOST_RANKS); ranks++)
        run_show(ranks, (uint64_t)ranks, false, trial_set);
}

/* Each rank is held back at random between any two steps, those of cleans included. */
static void test_set_late(void **state)
{
    (void)state;
    for (int32_t ranks = 2; ranks <= most_ranks(4); ranks++)
        run_show(ranks, 70 + (uint64_t)ranks, true, trial_set);
}

/* ---- ranks that leave -------------------------------------------------------------------------------------------- */

/* One rank after the other abandons the buffer: the others go on without it, and so does a clean, each time. */
static void trial_leavers(expar_group *group, void *shared)
{
    const mask_show *show = shared;
    const int32_t rank = expar_group_rank(group);
    const expar_ll_config config = masked_config(&show->plan);
    const lowlat_choice plain = {0};
    masked_traffic *const *rounds = show->rounds[0];
    expar_ll *ll = NULL;
    if (!CHECK_OK(masked_create(group, &config, &ll))) return;
    bool good = trial_view(ll, rounds[0], MASKED_NOBODY, rank, &plain);
    for (int i = 0; i < 2 && good; i++) {
        const int32_t leaver = i == 0 ? rounds[0]->victim : rounds[0]->second;
        const masked_view view = i == 0 ? MASKED_VICTIM : MASKED_BOTH;
        if (rank == leaver) {
            CHECK_OK(expar_ll_abandon(ll));
            break;
        }
        good = trial_view(ll, rounds[1], view, rank, &plain) && trial_view(ll, rounds[2], view, rank, &plain) &&
               CHECK_OK(expar_ll_mask_clean(ll)) && trial_view(ll, rounds[3], view, rank, &plain) &&
               check_masks(ll, rounds[0]->there[view]->job.masked, show->plan.num_ranks);
    }
    if (good && rank != rounds[0]->victim && rank != rounds[0]->second) CHECK_OK(expar_ll_destroy(ll));
    CHECK_OK(expar_group_barrier(group));
}

static void test_leavers(void **state)
{
    (void)state;
    run_show(4, 81, false, trial_leavers);
}

/* ---- what is left ------------------------------------------------------------------------------------------------ */

/* A mask that is taken back before anything has happened is none. */
static bool trial_taken_back(expar_ll *ll, const mask_show *show, int32_t rank)
{
    const int32_t ranks = show->plan.num_ranks, other = (rank + 1) % ranks;
    uint8_t mask[MOST_RANKS] = {0};
    mask[other] = 1;
    return CHECK_OK(expar_ll_mask_set(ll, other, 1)) && check_masks(ll, mask, ranks) &&
           CHECK_OK(expar_ll_mask_set(ll, other, 1)) && CHECK_OK(expar_ll_mask_set(ll, other, 0)) &&
           CHECK_OK(expar_ll_mask_set(ll, other, 0)) && check_masks(ll, NULL, ranks);
}

static void trial_rest(expar_group *group, void *shared)
{
    const mask_show *show = shared;
    const int32_t rank = expar_group_rank(group);
    const expar_ll_config config = masked_config(&show->plan);
    const lowlat_choice plain = {0};
    masked_traffic *const *rounds = show->rounds[0];
    const int32_t victim = rounds[0]->victim;
    expar_ll *ll = NULL;
    lowlat_call there, back;
    if (!CHECK_OK(masked_create(group, &config, &ll))) return;
    CHECK_OK(expar_ll_mask_clean(ll));
    bool good = trial_taken_back(ll, show, rank) && CHECK_OK(expar_group_barrier(group)) &&
                trial_view(ll, rounds[0], MASKED_NOBODY, rank, &plain) && CHECK_OK(expar_group_barrier(group));
    /* The mask stays after a call without the victim. */
    if (good && rank != victim) CHECK_OK(expar_ll_mask_set(ll, victim, 1));
    good = good && CHECK_OK(expar_group_barrier(group)) &&
           trial_view(ll, rounds[1], rank == victim ? MASKED_OTHERS : MASKED_VICTIM, rank, &plain);
    CHECK_STATUS(EXPAR_ERR_STATE,
                 expar_ll_mask_set(ll, rank == victim ? (rank + 1) % show->plan.num_ranks : victim, 0));
    CHECK_TEXT("expar_ll_mask_clean");
    /* An earlier handle serves no combine after a clean. */
    lowlat_prepare_dispatch(&there, ll, rounds[1]->there[rank == victim ? MASKED_OTHERS : MASKED_VICTIM], rank, &plain);
    good = good && lowlat_trial(&there) && CHECK_OK(expar_ll_mask_clean(ll));
    if (good) {
        lowlat_prepare_combine(&back, ll, there.traffic,
                               rounds[1]->back[rank == victim ? MASKED_OTHERS : MASKED_VICTIM], rank, &plain,
                               there.there.handle);
        CHECK_STATUS(EXPAR_ERR_HANDLE, lowlat_start(&back));
        CHECK_TEXT("expar_ll_mask_clean");
        lowlat_clean(&back);
    }
    lowlat_clean(&there);
    if (good && trial_view(ll, rounds[2], MASKED_NOBODY, rank, &plain)) CHECK_OK(expar_ll_destroy(ll));
}

static void test_rest(void **state)
{
    (void)state;
    run_show(3, 41, false, trial_rest);
}

/* A clean with an open call is refused there, and the others are told; it disturbs nothing. */
static void trial_open(expar_group *group, void *shared)
{
    const mask_show *show = shared;
    const int32_t rank = expar_group_rank(group);
    const expar_ll_config config = masked_config(&show->plan);
    const lowlat_choice plain = {0}, hooked = {.hook = true};
    masked_traffic *const *rounds = show->rounds[0];
    expar_ll *ll = NULL;
    lowlat_call there;
    if (!CHECK_OK(masked_create(group, &config, &ll))) return;
    lowlat_prepare_dispatch(&there, ll, rounds[0]->there[MASKED_NOBODY], rank, rank == 1 ? &hooked : &plain);
    bool good = CHECK_OK(lowlat_start(&there));
    if (good && rank == 1) {
        CHECK_STATUS(EXPAR_ERR_STATE, expar_ll_mask_clean(ll));
        CHECK_TEXT("open");
    } else if (good) {
        CHECK_STATUS(EXPAR_ERR_REMOTE, expar_ll_mask_clean(ll));
        CHECK_TEXT("rank 1", "open");
    }
    good = good && CHECK_OK(lowlat_end(&there)) && lowlat_is_right(&there) && CHECK_OK(expar_ll_mask_clean(ll)) &&
           trial_view(ll, rounds[1], MASKED_NOBODY, rank, &plain);
    lowlat_clean(&there);
    if (good) CHECK_OK(expar_ll_destroy(ll));
}

static void test_open(void **state)
{
    (void)state;
    run_show(3, 42, false, trial_open);
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

/* Masks add this: words, and three more regions of the places of two slots. */
static void test_bytes(void **state)
{
    (void)state;
    expar_ll_config config = EXPAR_LL_CONFIG_INIT;
    config.max_tokens = 64;
    config.hidden = 2048;
    config.max_topk = 8;
    config.num_experts = 24;
    const size_t places = 2 * 64 * 8, row_bytes = 2048 * 2 + 2048 / 128 * 8;
    size_t without = 0, with = 0;
    assert_int_equal(expar_ll_get_buffer_size(&config, 8, &without), EXPAR_OK);
    config.masking = 1;
    assert_int_equal(expar_ll_get_buffer_size(&config, 8, &with), EXPAR_OK);
    assert_true(with - without >= 3 * places * (row_bytes + 8));
    assert_true(with - without < 3 * places * (row_bytes + 8) + 16384);
    assert_int_equal(expar_ll_get_buffer_size(&config, 1, &with), EXPAR_OK);
    config.masking = 0;
    assert_int_equal(expar_ll_get_buffer_size(&config, 1, &without), EXPAR_OK);
    assert_true(with >= without && with - without <= 4096);
}

/* ---- bad arguments ----------------------------------------------------------------------------------------------- */

static void check_bad(expar_ll *ll, int32_t rank, int32_t ranks)
{
    int32_t few[MOST_RANKS];
    expar_tensor status = expar_tensor_1d(few, EXPAR_I32, ranks);
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_ll_mask_set(ll, -1, 1));
    CHECK_TEXT("rank is -1");
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_ll_mask_set(ll, ranks, 1));
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_ll_mask_set(ll, rank, 1));
    CHECK_TEXT("this one");
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_ll_mask_set(ll, rank, 0));
    if (ranks > 1) CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_ll_mask_set(ll, (rank + 1) % ranks, 2));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_ll_mask_query(ll, NULL, NULL));
    const expar_tensor none = {0};
    CHECK_STATUS(EXPAR_ERR_NULL, expar_ll_mask_query(ll, &none, NULL));
    status.shape[0] = ranks + 1;
    CHECK_STATUS(EXPAR_ERR_SHAPE, expar_ll_mask_query(ll, &status, NULL));
    status = expar_tensor_1d(few, EXPAR_F32, ranks);
    CHECK_STATUS(EXPAR_ERR_DTYPE, expar_ll_mask_query(ll, &status, NULL));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_ll_mask_set(NULL, 0, 1));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_ll_mask_query(NULL, &status, NULL));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_ll_mask_clean(NULL));
}

static void trial_bad(expar_group *group, void *shared)
{
    const mask_show *show = shared;
    const int32_t rank = expar_group_rank(group), ranks = show->plan.num_ranks;
    expar_ll_config config = masked_config(&show->plan);
    const lowlat_choice plain = {0};
    int32_t status[MOST_RANKS];
    const expar_tensor query = expar_tensor_1d(status, EXPAR_I32, ranks);
    expar_ll *with = NULL, *without = NULL;
    if (!CHECK_OK(masked_create(group, &config, &with))) return;
    check_bad(with, rank, ranks);
    CHECK_OK(expar_ll_mask_clean(with));
    trial_view(with, show->rounds[0][0], MASKED_NOBODY, rank, &plain);
    CHECK_OK(expar_ll_destroy(with));
    config.masking = 0;
    if (!CHECK_OK(expar_ll_create(group, &config, &without))) return;
    CHECK_STATUS(EXPAR_ERR_STATE, expar_ll_mask_set(without, 0, 1));
    CHECK_TEXT("masking is 0");
    CHECK_STATUS(EXPAR_ERR_STATE, expar_ll_mask_query(without, &query, NULL));
    CHECK_STATUS(EXPAR_ERR_STATE, expar_ll_mask_clean(without));
    CHECK_OK(expar_ll_destroy(without));
    CHECK_STATUS(EXPAR_ERR_STATE, expar_ll_mask_clean(without));
    config.masking = rank == ranks - 1;
    if (ranks > 1) CHECK_STATUS(EXPAR_ERR_MISMATCH, expar_ll_create(group, &config, &without));
}

static void test_bad(void **state)
{
    (void)state;
    run_show(1, 51, false, trial_bad);
    run_show(2, 52, false, trial_bad);
    run_show(5, 53, false, trial_bad);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_set),     cmocka_unit_test(test_set_late),
                                       cmocka_unit_test(test_leavers), cmocka_unit_test(test_rest),
                                       cmocka_unit_test(test_open),    cmocka_unit_test(test_bytes),
                                       cmocka_unit_test(test_bad)};
    kind = stage_kind(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
